"""Many runs at once with one cache: some are killed, the cache is emptied beside them. Is anything lost or broken?

    python -m tests.faults.races [--seed 0] [--at-once 20] [--models 20] [--imports 40] [--only runs|imports]

runs: `optimize` of different models, all at once with one cache, some pairs into one folder; a third of them is killed at
random moments; `cache clean` and `cache list` again and again beside them. Every run ends well, was killed, or says that
another one works on its folder; every folder is absent or complete, with the bytes that its model gives alone; the same runs
once more, undisturbed, give these bytes too and leave nothing behind.

imports: `cache import` of documents that share rows, all at once into one cache; a third is killed. Once beside `cache clean`;
then without it: what an import that ended well brought is there, a killed one brought all or nothing, and of a row that
several bring the one that knows most has stayed.

Afterwards SQLite finds the file of tunings in order (`PRAGMA integrity_check`).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_cli.errors import Busy
from mirage_cli.optimization.environment import TUNINGS
from mirage_cli.tuning.cache import FILE, Measurement, Row, TuningCache, exported
from tests.faults.state import complete, files, litter

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "samples" / "operators"
KILLED = 3  #: one of so many
SHARED = 3  #: one of so many runs writes into the folder of the one before
BUSY = f'"code": "{Busy.code}"'
PLACE = ("p", "{}", "f32", "sm_90a", "H200", "1", "1")


@dataclass
class Run:
    """A run of mirage in a process of its own, and when it is to be killed, if so; `code` is None where it was."""

    arguments: Sequence[str]
    kill_after: float | None = None
    process: int = 0
    begun: float = 0.0
    code: int | None = None
    ended: bool = False

    def start(self, told: Path) -> None:
        """Begin it; what it prints goes into a file."""
        sys.stdout.flush()
        self.begun, self.process = time.monotonic(), os.fork()
        if self.process == 0:
            code = 70
            try:
                os.setsid()
                with told.open("wb") as file:
                    for stream in (1, 2):
                        os.dup2(file.fileno(), stream)
                from mirage_cli.main import cli

                code = cli.run(list(self.arguments))
                sys.stdout.flush()
            finally:
                os._exit(code)

    def look(self) -> bool:
        """Whether it has ended; it is killed when it is time."""
        if self.ended:
            return True
        if self.kill_after is not None and time.monotonic() - self.begun > self.kill_after:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process, signal.SIGKILL)
        number, status = os.waitpid(self.process, os.WNOHANG)
        if number:
            self.ended = True
            self.code = None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self.ended


def race(runs: Sequence[Run], at_once: int, folder: Path, beside: Callable[[], Sequence[str]] | None = None) -> int:
    """Run all, `at_once` at a time, with other commands one after the other beside them; how many of these there were."""
    waiting, going, count = list(runs), list[Run](), 0
    other: Run | None = None
    while waiting or going:
        while waiting and len(going) < at_once:
            run = waiting.pop(0)
            run.start(folder / f"said{runs.index(run)}")
            going.append(run)
        if beside is not None and (other is None or other.look()):
            if other is not None and other.code:
                raise AssertionError(f"{other.arguments} ended with {other.code}: {_said(folder / 'beside')}")
            other, count = Run(beside()), count + 1
            other.start(folder / "beside")
        going = [r for r in going if not r.look()]
        time.sleep(0.005)
    while other is not None and not other.look():
        time.sleep(0.005)
    return count


def _said(file: Path) -> str:
    return file.read_text(errors="replace").strip()[-400:]


def sound(cache: Path) -> list[str]:
    """What is wrong with the file of tunings, by SQLite."""
    file = cache / TUNINGS / FILE
    if not file.exists():
        return []
    with contextlib.closing(sqlite3.connect(file)) as db:
        found = db.execute("PRAGMA integrity_check").fetchall()
    broken = [p.name for p in file.parent.glob(f"{FILE}.broken*")]
    return [*([] if found == [("ok",)] else [f"integrity: {found}"]), *(f"moved aside: {b}" for b in broken)]


# ---- optimize --------------------------------------------------------------------------------------------------------
def optimizing(root: Path, count: int, at_once: int, draw: random.Random) -> Iterator[str]:
    """Problems of runs of `optimize`; prints what was done."""
    for name in ("alone", "outs"):
        (root / name).mkdir()
    models = sorted(MODELS.glob("*_fp32.onnx"))[:count]
    cache = root / "cache"

    def run(model: Path, out: Path, cache: Path, kill_after: float | None = None) -> Run:
        options = ["--target", "cpu", "--force", "--jobs", "1", "--cache", str(cache), "--json"]
        return Run(["optimize", str(model), "-o", str(out), *options], kill_after)

    alone = [run(m, root / "alone" / m.stem, root / f"cache-{m.stem}") for m in models]
    start = time.monotonic()
    race(alone, at_once, root)
    seconds = time.monotonic() - start
    for r in alone:
        if r.code:
            yield f"alone: exit code {r.code}: {r.arguments}: {_said(root / f'said{alone.index(r)}')}"
    known = {m.stem: files(root / "alone" / m.stem) for m in models}
    outs = [root / "outs" / (models[k - 1] if k % SHARED == 2 else m).stem for k, m in enumerate(models)]
    together = [
        run(m, out, cache, draw.uniform(0, seconds) if k % KILLED == 0 else None)
        for k, (m, out) in enumerate(zip(models, outs, strict=True))
    ]

    def beside() -> Sequence[str]:
        time.sleep(draw.uniform(0, 0.3))
        return ["cache", draw.choice(["clean", "list"]), "--cache", str(cache)]

    others, busy = race(together, at_once, root, beside), 0
    for k, (m, out, r) in enumerate(zip(models, outs, together, strict=True)):
        told = BUSY in (root / f"said{k}").read_text(errors="replace")
        busy += told
        owners = [n.stem for n, o in zip(models, outs, strict=True) if o == out]
        if r.code and not (told and len(owners) > 1):
            yield f"{m.stem}: exit code {r.code}: {_said(root / f'said{k}')}"
        found = files(out) if out.exists() else None
        if found is not None and (not complete(out) or found not in [known[o] for o in owners]):
            yield f"{m.stem}: the folder is not complete, or another one"
        if r.code == 0 and found is None:
            yield f"{m.stem}: there is no folder"
    killed = sum(r.code is None for r in together)
    yield from sound(cache)
    again = [run(m, root / "outs" / m.stem, cache) for m in models]
    race(again, at_once, root)
    for m, r in zip(models, again, strict=True):
        if r.code or files(root / "outs" / m.stem) != known[m.stem]:
            yield f"{m.stem} once more: exit code {r.code}"
    left = litter(root / "outs", cache)
    if left:
        yield f"left: {left}"
    print(
        f"{len(models)} models at once, {at_once} at a time: {killed} killed, {busy} told of another run, "
        f"{others} times cache clean or list beside them; {time.monotonic() - start:.0f} s",
        flush=True,
    )


# ---- cache import ----------------------------------------------------------------------------------------------------
def importing(root: Path, count: int, at_once: int, draw: random.Random, size: int = 99) -> Iterator[str]:
    """Problems of imports; prints what was done."""
    documents = []
    for k in range(count):  # rows of its own, and shared ones that know more or less
        own = [Row(PLACE, f"own{k}-{n}", {"name": "x" * 200}, Measurement(1.0, 1.0, 1.0, 1)) for n in range(size)]
        shared = [
            Row(PLACE, f"shared{n}", {}, Measurement(1.0, 1.0, 1.0, 1 + (k * 7 + n) % count)) for n in range(size)
        ]
        documents.append([*own, *shared])
        (root / f"tunings{k}.json").write_text(json.dumps(exported(documents[-1])))
    start = time.monotonic()

    def imports(cache: Path, longest: float) -> list[Run]:
        return [
            Run(
                ["cache", "import", str(root / f"tunings{k}.json"), "--cache", str(cache)],
                draw.uniform(0, longest) if k % KILLED == 0 else None,
            )
            for k in range(count)
        ]

    trial = Run(["cache", "import", str(root / "tunings0.json"), "--cache", str(root / "trial")])
    race([trial], 1, root)
    longest = 3 * (time.monotonic() - start)
    killed = others = 0
    for name, clean in (("cleaned", True), ("kept", False)):
        cache = root / name
        runs = imports(cache, longest)
        others += race(runs, at_once, root, (lambda c=str(cache): ["cache", "clean", "--cache", c]) if clean else None)
        killed += sum(r.code is None for r in runs)
        yield from (f"{name}: exit code {r.code}: {_said(root / f'said{k}')}" for k, r in enumerate(runs) if r.code)
        yield from sound(cache)
    found = {r.candidate: r.value for r in TuningCache(root / "kept" / TUNINGS).rows()}
    certain = [k for k, r in enumerate(runs) if r.code == 0]
    for k, rows in enumerate(documents):
        there = sum(r.candidate in found for r in rows[:size])
        if there not in ((size,) if k in certain else (0, size)):
            yield f"import {k}: {there} of {size} rows are there"
    whole = [k for k, rows in enumerate(documents) if rows[0].candidate in found]
    for n in range(size):
        best = max((documents[k][size + n].value.samples for k in whole), default=0)
        row = found.get(f"shared{n}")
        if best and (not isinstance(row, Measurement) or row.samples != best):
            yield f"shared row {n}: {row}, and {best} samples were brought"
    print(
        f"{2 * count} imports of {2 * size} rows, {at_once} at a time: {killed} killed, {others} times cache clean; "
        f"{time.monotonic() - start:.1f} s",
        flush=True,
    )


def main() -> int:
    """The command; 1 where something is lost or broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=20)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--imports", type=int, default=40)
    parser.add_argument("--only", choices=("runs", "imports"))
    asked = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if asked.only != "imports":
        importlib.import_module("mirage_cli.optimization.story")  # once for all of them
    importlib.import_module("mirage_cli.inspection.caches")

    problems: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="races-") as name:
        os.environ["XDG_STATE_HOME"] = str(Path(name) / "state")
        for kind, act, count in (("imports", importing, asked.imports), ("runs", optimizing, asked.models)):
            if asked.only in (None, kind):
                folder = Path(name) / kind
                folder.mkdir()
                for problem in act(folder, count, asked.at_once, random.Random(f"{kind} {asked.seed}")):
                    problems[kind] += 1
                    print(f"{kind}: {problem}", flush=True)
    print(f"seed {asked.seed}: {problems.total()} problems")
    return int(problems.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
