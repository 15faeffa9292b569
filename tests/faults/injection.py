"""Fail the first, second, third ... call of the file system in a run of `optimize`, until a run has no such call.

    python -m tests.faults.injection [--workers 2] [--every 1] [--faults ENOSPC,EIO,KILL] [--situations warm,cold,import]

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

from mirage_cli.tuning.cache import FILE, Measurement, Row, TuningCache, exported
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
#: optimize with plans kept and an output to be replaced; with neither; `cache import` into an empty cache
SITUATIONS = ("warm", "cold", "import")
INJECTED, MODEL_FILE = "MIRAGE_INJECTED", "MIRAGE_INJECTED_MODEL"  #: library and model, for this program's processes


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

    def __init__(self, root: Path) -> None:
        self.root, self.out, self.cache = root, root / "place" / "out", root / "cache"
        self.model = root / "model.onnx"
        for name in ("place", "state", "tmp", "cache"):
            (root / name).mkdir(parents=True, mode=0o700)
        shutil.copy(os.environ[MODEL_FILE], self.model)
        os.environ.update(XDG_STATE_HOME=str(root / "state"), TMPDIR=str(root / "tmp"))
        tempfile.tempdir = str(root / "tmp")  # or Python tries whether it can write there

    def optimize(self, *options: str) -> list[str]:
        """The arguments of a run of optimize."""
        arguments = ["optimize", str(self.model), "-o", str(self.out), "--cache", str(self.cache), "--json"]
        return [*arguments, "--target", "cpu", "--force", "--jobs", "1", *options]

    def run(
        self, arguments: Sequence[str], call: int = 0, error: int = 0, on: bool = False, lack: Sequence[str] = ()
    ) -> Ended:
        """A run of mirage in a child, in which a call fails (0: none), or all calls of the kinds that a folder `lack`s."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                with os.fdopen(writing, "w") as answer:
                    json.dump(dataclasses.asdict(self._run(arguments, call or 1 << 60, error, on, lack)), answer)
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            text = answer.read()
        _, status = os.waitpid(child, 0)
        return Ended(None, calls=call) if os.WIFSIGNALED(status) else Ended(**json.loads(text))

    def _run(self, arguments: Sequence[str], call: int, error: int, on: bool, lack: Sequence[str]) -> Ended:
        from mirage_cli.main import cli

        output, told = io.StringIO(), io.StringIO()
        library = ctypes.CDLL(os.environ[INJECTED])
        library.injected_call.restype = ctypes.c_char_p
        if lack:
            folder, kinds, name = lack
            library.lack(str(self.root / folder).encode(), f" {kinds} ".encode(), getattr(errno, name))
        else:
            library.inject(str(self.root).encode(), ctypes.c_long(call), error, int(on))
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(told):
            code = cli.run(list(arguments))
        calls = library.injected()
        text = output.getvalue()
        where = library.injected_call().decode(errors="replace").replace(str(self.root), "")
        return Ended(code, json.loads(text) if text else None, calls, where, told.getvalue())

    def remove(self) -> None:
        """Forget everything."""
        shutil.rmtree(self.root)


class Bench:
    """What all faults of a situation of `optimize` share: the cache and the output of before, what has to come out."""

    def __init__(self, folder: Path, situation: str) -> None:
        self.folder, self.situation = folder, situation
        first = Arena(folder / "first")
        succeeds(first.run(first.optimize("--skip", "*")))
        self.old = files(first.out)
        shutil.copytree(first.out, folder / "old")
        succeeds(first.run(first.optimize()))
        self.new = files(first.out)
        assert self.new != self.old
        self.cache, self.state = folder / "kept", folder / "kept-state"
        shutil.copytree(first.cache, self.cache)
        shutil.copytree(first.root / "state", self.state)
        first.remove()

    def arena(self) -> Arena:
        """A fresh folder for one fault."""
        arena = Arena(self.folder / "arena")
        if self.situation == "warm":
            shutil.copytree(self.cache, arena.cache, dirs_exist_ok=True)
            shutil.copytree(self.folder / "old", arena.out)
        else:
            shutil.copytree(self.cache / "objects", arena.cache / "objects")
        shutil.copytree(self.state, arena.root / "state", dirs_exist_ok=True)
        return arena

    def arguments(self, arena: Arena) -> list[str]:
        """Of the run in which a call fails."""
        return arena.optimize()

    def told(self, arena: Arena, ended: Ended, fault: str) -> list[str]:
        """What is wrong after a fault."""
        before = "old" if self.situation == "warm" else "absent"
        found = standing(arena.out, {"old": self.old, "new": self.new})
        allowed = {before, "new"} if ended.code is None else {before} if ended.code else {"new"}
        return [] if found in allowed else [f"the folder is {found}"]

    def told_next(self, arena: Arena, ended: Ended, again: Ended, kept: int) -> list[str]:
        """What is wrong after a run without faults that follows; `kept` results were there before."""
        found = standing(arena.out, {"new": self.new})
        problems = [] if found == "new" else [f"the next run: the folder is {found}"]
        cached = sum(bool(f["search"].get("cached")) for f in again.document["fragments"])
        plans = len(again.document["fragments"])
        # kept are: that the compiler works, plans, checks; in this order, unless keeping one of them failed
        if ended.code is None and cached < min(plans, kept - 1):
            problems.append(f"the next run: {cached} of {plans} plans from the cache, with {kept} results kept")
        return problems


class Importing(Bench):
    """The same for `cache import`."""

    def __init__(self, folder: Path, situation: str) -> None:
        self.folder, self.situation = folder, situation
        folder.mkdir(parents=True)
        self.file = folder / "tunings.json"
        place = ("p", "{}", "f32", "sm_90a", "H200", "1", "1")
        self.rows = [Row(place, f"c{k}", {"name": "x" * 200}, Measurement(1.0, 1.0, 1.0, k + 1)) for k in range(99)]
        self.file.write_text(json.dumps(exported(self.rows)))

    def arena(self) -> Arena:
        """A fresh folder for one fault."""
        arena = Arena(self.folder / "arena")
        shutil.copy(self.file, arena.root)
        return arena

    def arguments(self, arena: Arena) -> list[str]:
        """Of the run in which a call fails."""
        return ["cache", "import", str(arena.root / self.file.name), "--cache", str(arena.cache), "--json"]

    def told(self, arena: Arena, ended: Ended, fault: str) -> list[str]:
        """What is wrong after a fault."""
        return self._held(arena, {0, 99} if ended.code is None else {0} if ended.code else {99})

    def told_next(self, arena: Arena, ended: Ended, again: Ended, kept: int) -> list[str]:
        """What is wrong after a run without faults that follows."""
        found = sorted(p.name for p in (arena.cache / "tunings").iterdir())
        return self._held(arena, {99}) + ([] if found == [FILE] else [f"there is {found}"])

    def _held(self, arena: Arena, allowed: set[int]) -> list[str]:
        folder = arena.root / "look"
        shutil.copytree(arena.cache, folder)  # looking at it may repair it
        found = len(TuningCache(folder / "tunings").rows())
        shutil.rmtree(folder)
        return [] if found in allowed else [f"{found} tunings are there"]


def succeeds(ended: Ended) -> None:
    """A run without faults."""
    assert ended.code == 0, ended


def calls(bench: Bench) -> int:
    """How many calls a run makes."""
    arena = bench.arena()
    ended = arena.run(bench.arguments(arena))
    arena.remove()
    succeeds(ended)
    return ended.calls


def inject(bench: Bench, number: int, fault: str) -> tuple[str, list[str]]:
    """(how a run with the fault ended, what was wrong with it or with the next one)."""
    error = 0 if fault == "KILL" else getattr(errno, fault.rstrip("+"))
    arena = bench.arena()
    ended = arena.run(bench.arguments(arena), number, error, fault.endswith("+"))
    outcome = "killed" if ended.code is None else ended.error or "done"
    problems = bench.told(arena, ended, fault)
    if ended.error in ("internal", "error") or "Traceback" in ended.told:
        problems.append(f"{ended.document} {ended.told}")
    kept = len(list((arena.cache / "results").glob("*.kept")))
    again = arena.run(bench.arguments(arena))
    if again.code == 0:
        problems += bench.told_next(arena, ended, again, kept)
    else:
        problems.append(f"the next run: {again}")
    left = litter(arena.root / "place", arena.cache, arena.root / "state")
    left += [str(p) for p in (arena.root / "tmp").iterdir()]
    if left:
        problems.append(f"after the next run there is {left}")
    arena.remove()
    return outcome, [f"call {number} ({ended.call}) {fault} {bench.situation}: {outcome}; {p}" for p in problems]


def run(folder: Path, situations: Sequence[str], faults: Sequence[str], numbers: Callable[[int], Iterator[int]]) -> Any:
    """(calls by situation, how many runs ended how, problems) of these faults at some of the calls."""
    counts, outcomes, problems = {}, Counter[str](), []
    for situation in situations:
        bench = (Importing if situation == "import" else Bench)(folder / situation, situation)
        counts[situation] = calls(bench)
        for number in numbers(counts[situation]):
            for fault in faults:
                outcome, wrong = inject(bench, number, fault)
                outcomes[f"{situation} {fault}: {outcome}"] += 1
                for text in wrong:
                    print(text, file=sys.stderr, flush=True)
                problems += wrong
    return counts, outcomes, problems


def worker(folder: Path, asked: argparse.Namespace, rank: int) -> None:
    """A share of the runs; what came out as JSON on standard output."""
    import numpy as np  # noqa: F401
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401

    import mirage_cli.exporters.html
    import mirage_cli.optimization.pipeline  # noqa: F401

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
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank is not None:
        worker(asked.folder, asked, asked.rank)
        return 0
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="injection-") as name:
        library = build(Path(name))
        variables = {
            "LD_PRELOAD": str(library),
            INJECTED: str(library),
            MODEL_FILE: str(asked.model),
            "OPENBLAS_NUM_THREADS": "1",
        }
        variables["PYTHONWARNINGS"] = "ignore::DeprecationWarning"  # of forks beside threads that sleep
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
