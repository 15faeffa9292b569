"""Fail the first, second, third ... call of the file system in a run of `optimize`, until a run has no such call.

    python -m tests.faults.injection [--workers 2] [--every 1] [--faults ENOSPC,EIO,KILL] [--situations warm,cold]

In the manner of SQLite's tests: call number n fails with an error (or it and all calls after it, or the process is killed
before it), for n = 1, 2, 3 ... After each run the output folder is absent, the old one or the new one, and nothing else; an
error is told by a code of the catalogue that is no internal one. Then a run without faults completes, writes the same bytes
as ever, takes what the broken run has kept, and leaves nothing behind in the output's parent, the cache, the folder of the
user's state or of temporary files.

Runs are children of a process that has imported everything. `injected.c` is preloaded into them and counts calls on files
of the run's folder: its model, output, cache, state and temporary files.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.faults.state import files, litter, standing

SOURCE = Path(__file__).with_name("injected.c")
ROOT = SOURCE.parents[2]
MODEL = ROOT / "samples" / "operators" / "mlp_fp32.onnx"
FAULTS = (
    "ENOSPC",
    "ENOSPC+",
    "EIO",
    "EACCES",
    "EMFILE",
    "KILL",
)  #: +: and all later calls; KILL: the process is killed
SITUATIONS = ("warm", "cold")  #: plans kept and an output to be replaced; neither
INJECTED = "MIRAGE_INJECTED"  #: the library, for the processes of this program


def build(folder: Path) -> Path:
    """The library that makes calls fail. Raises OSError or CalledProcessError without a C compiler."""
    library = folder / "injected.so"
    flags = ["-O1", "-fPIC", "-shared", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=0"]
    subprocess.run(["gcc", *flags, str(SOURCE), "-o", str(library), "-ldl"], check=True, capture_output=True)
    return library


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code (None: killed), what it printed as JSON, how many calls it made, the one that failed."""

    code: int | None
    document: Any = None
    calls: int = 0
    call: str = ""
    told: str = ""

    @property
    def error(self) -> str:
        """The code of the error."""
        return str(self.document["error"]["code"]) if self.code else ""


class Arena:
    """A folder with everything that a run touches."""

    def __init__(self, root: Path, objects: Path | None = None) -> None:
        self.root, self.out, self.cache = root, root / "place" / "out", root / "cache"
        self.model = root / "model.onnx"
        for name in ("place", "state", "tmp", "cache"):
            (root / name).mkdir(parents=True, mode=0o700)
        shutil.copy(MODEL, self.model)
        if objects is not None:
            shutil.copytree(objects, self.cache / "objects")
        os.environ.update(XDG_STATE_HOME=str(root / "state"), TMPDIR=str(root / "tmp"))
        tempfile.tempdir = None

    def run(self, call: int = 0, error: int = 0, on: bool = False, options: Sequence[str] = ()) -> Ended:
        """A run of optimize in a child, in which a call fails (0: none)."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                with os.fdopen(writing, "w") as answer:
                    json.dump(dataclasses.asdict(self._run(call or 1 << 60, error, on, options)), answer)
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            text = answer.read()
        _, status = os.waitpid(child, 0)
        return Ended(None, calls=call) if os.WIFSIGNALED(status) else Ended(**json.loads(text))

    def _run(self, call: int, error: int, on: bool, options: Sequence[str]) -> Ended:
        from mirage_cli.main import cli

        arguments = ["optimize", str(self.model), "-o", str(self.out), "--cache", str(self.cache), "--json"]
        arguments += ["--target", "cpu", "--force", "--jobs", "1", *options]
        output, told = io.StringIO(), io.StringIO()
        library = ctypes.CDLL(os.environ[INJECTED])
        library.injected_call.restype = ctypes.c_char_p
        library.inject(str(self.root).encode(), ctypes.c_long(call), error, int(on))
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(told):
            code = cli.run(arguments)
        calls = library.injected()
        text = output.getvalue()
        where = library.injected_call().decode(errors="replace").replace(str(self.root), "")
        return Ended(code, json.loads(text) if text else None, calls, where, told.getvalue())

    def remove(self) -> None:
        """Forget everything."""
        shutil.rmtree(self.root)


class Bench:
    """What all faults of a situation have in common: the cache and the output of before, what has to come out."""

    def __init__(self, folder: Path, situation: str) -> None:
        self.folder, self.situation = folder, situation
        first = Arena(folder / "first")
        self._succeeds(first, "--skip", "*")
        self.old = files(first.out)
        shutil.copytree(first.out, folder / "old")
        self._succeeds(first)
        self.new = files(first.out)
        assert self.new != self.old
        self.cache, self.state = folder / "kept", folder / "kept-state"
        shutil.copytree(first.cache, self.cache)
        shutil.copytree(first.root / "state", self.state)
        first.remove()

    def _succeeds(self, arena: Arena, *options: str) -> None:
        ended = arena.run(options=options)
        assert ended.code == 0, ended

    def arena(self) -> Arena:
        """A fresh folder for one fault."""
        arena = Arena(self.folder / "arena", None if self.situation == "warm" else self.cache / "objects")
        if self.situation == "warm":
            shutil.rmtree(arena.cache)
            shutil.copytree(self.cache, arena.cache)
            shutil.rmtree(arena.root / "state")
            shutil.copytree(self.state, arena.root / "state")
            shutil.copytree(self.folder / "old", arena.out)
        return arena

    def calls(self) -> int:
        """How many calls a run makes."""
        arena = self.arena()
        ended = arena.run()
        arena.remove()
        assert ended.code == 0, ended
        return ended.calls

    def fault(self, number: int, fault: str) -> tuple[str, list[str]]:
        """(how a run with the fault ended, what was wrong with it or with the next one)."""
        kill = fault == "KILL"
        error = 0 if kill else getattr(errno, fault.rstrip("+"))
        arena = self.arena()
        before = "old" if arena.out.exists() else "absent"
        ended = arena.run(number, error, fault.endswith("+"))
        problems = []
        outcome = "killed" if ended.code is None else ended.error or "done"
        found = standing(arena.out, {"old": self.old, "new": self.new})
        if found not in ({before, "new"} if kill else {before} if ended.code else {"new"}):
            problems.append(f"{outcome}, and the folder is {found}")
        if ended.error in ("internal", "error") or "Traceback" in ended.told:
            problems.append(f"{ended.document['error']['message']} {ended.told}")
        kept = len(list((arena.cache / "results").glob("*.kept")))
        again = arena.run()
        if again.code != 0:
            problems.append(f"the next run: {again.document}")
        elif standing(arena.out, {"new": self.new}) != "new":
            problems.append(f"the next run: {standing(arena.out, {'new': self.new})}")
        else:
            cached = sum(bool(f["search"].get("cached")) for f in again.document["fragments"])
            plans = len(again.document["fragments"])
            # kept results: the compiler's probe, plans, checks; in this order when there is one process
            if cached < min(plans, kept - 1):
                problems.append(f"the next run: {cached} of {plans} plans from the cache, with {kept} results kept")
        left = litter(arena.root / "place", arena.cache, arena.root / "state")
        left += [str(p) for p in (arena.root / "tmp").iterdir()]
        if left:
            problems.append(f"after the next run there is {left}")
        arena.remove()
        return outcome, [f"call {number} ({ended.call}) {fault} {self.situation}: {p}" for p in problems]


def run(folder: Path, situations: Sequence[str], faults: Sequence[str], numbers: Callable[[int], Iterator[int]]) -> Any:
    """(calls by situation, how many runs ended how, problems) of these faults at some of the calls."""
    calls, outcomes, problems = {}, Counter[str](), []
    for situation in situations:
        bench = Bench(folder / situation, situation)
        calls[situation] = bench.calls()
        for number in numbers(calls[situation]):
            for fault in faults:
                outcome, wrong = bench.fault(number, fault)
                outcomes[f"{situation} {fault}: {outcome}"] += 1
                for text in wrong:
                    print(text, file=sys.stderr, flush=True)
                problems += wrong
    return calls, outcomes, problems


def worker(folder: Path, asked: argparse.Namespace, rank: int) -> None:
    """A share of the runs; what came out as JSON on standard output."""
    import numpy as np  # noqa: F401
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401

    import mirage_cli.exporters.html
    import mirage_cli.pipeline  # noqa: F401

    start = time.monotonic()

    def numbers(calls: int) -> Iterator[int]:
        for number in range(1 + rank * asked.every, calls + 1, asked.every * asked.workers):
            if time.monotonic() - start > asked.seconds:
                return
            yield number

    found = run(folder, asked.situations.split(","), asked.faults.split(","), numbers)
    json.dump(found, sys.stdout)


def main() -> int:
    """Start workers and add up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--every", type=int, default=1, help="of the calls one in so many")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no other call is tried")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--situations", default=",".join(SITUATIONS))
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank is not None:
        worker(asked.folder, asked, asked.rank)
        return 0
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="injection-") as name:
        library = build(Path(name))
        variables = {"LD_PRELOAD": str(library), INJECTED: str(library), "OPENBLAS_NUM_THREADS": "1"}
        environment = os.environ | variables
        command = [sys.executable, "-m", "tests.faults.injection", *sys.argv[1:], "--workers", str(asked.workers)]
        children = [
            subprocess.Popen(
                [*command, "--rank", str(k), "--folder", f"{name}/{k}"],
                stdout=subprocess.PIPE,
                env=environment,
                cwd=ROOT,
            )
            for k in range(asked.workers)
        ]
        found = [json.loads(c.communicate()[0] or "null") for c in children]
    if None in found:
        return 1
    outcomes: Counter[str] = sum((Counter(f[1]) for f in found), Counter[str]())
    problems = sum(len(f[2]) for f in found)
    for text, count in sorted(outcomes.items()):
        print(f"{count:6} {text}")
    seconds = time.perf_counter() - start
    print(f"{outcomes.total()} runs in {seconds:.0f} s, calls of a run: {found[0][0]}; {problems} problems")
    return int(problems > 0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
