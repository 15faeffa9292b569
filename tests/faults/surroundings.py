"""Runs on file systems that lack something: locks, an exchange of names, hard links, room, the right to write.

    python -m tests.faults.surroundings [--situations warm,cold,import] [--only WORDS]

`injected.c` is preloaded, and all calls of some kinds below a folder of a run fail (`injection` lets single calls fail).
What each run has to make of it stands in `SURROUNDINGS`; none may lose an output folder or a tuning, and a run on a usual
file system that follows goes on from what is there.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.injection import INJECTED, MODEL, MODEL_FILE, ROOT, SITUATIONS, Bench, Importing, build
from tests.faults.state import litter

LOCKS, WRITES = "flock fcntl fcntl64", "create write pwrite64 ftruncate64 sendfile64 copy_file_range mkdir"
CHANGES = f"{WRITES} rename renameat2 link linkat unlink unlinkat rmdir chmod"


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """Calls of these kinds, below a folder of the arena ("" for all of it), fail with an error; runs of `optimize` end
    with the code `ends`, `cache import` with `imports`."""

    name: str
    folder: str
    kinds: str
    error: str
    ends: str = "done"
    imports: str = "done"
    fresh: bool = False  #: whether the user's secret has to be made


SURROUNDINGS = (
    Surroundings("no locks", "", LOCKS, "ENOLCK", imports="usage"),
    Surroundings("locks not supported", "", LOCKS, "EOPNOTSUPP", imports="usage"),
    Surroundings("flock alone not known", "", "flock", "ENOSYS"),
    Surroundings("no exchange of names", "", "renameat2", "EINVAL"),
    Surroundings("no hard links", "", "link linkat", "EPERM", fresh=True),
    Surroundings("cache on a full disk", "cache", WRITES, "ENOSPC", imports="usage"),
    Surroundings("cache to be read only", "cache", CHANGES, "EROFS", imports="usage"),
    Surroundings("state to be read only", "state", CHANGES, "EROFS", fresh=True),
    Surroundings("output to be read only", "place", CHANGES, "EROFS", "usage"),
    Surroundings("output on a full disk", "place", WRITES, "ENOSPC", "out-of-resources"),
    Surroundings("temporary files to be read only", "tmp", CHANGES, "EROFS", "usage"),
)


def tried(bench: Bench, given: Surroundings) -> tuple[str, list[str]]:
    """(how a run in these surroundings ended and what it said, what was wrong with it or with the next one)."""
    arena = bench.arena()
    if given.fresh:
        shutil.rmtree(arena.root / "state")
        (arena.root / "state").mkdir(mode=0o700)
    ended = arena.run(bench.arguments(arena), lack=(given.folder, given.kinds, given.error))
    outcome = ended.error or "done"
    problems = bench.told(arena, ended, given.error)
    if outcome != (given.imports if bench.situation == "import" else given.ends) or "Traceback" in ended.told:
        problems.append(f"{ended}")
    again = arena.run(bench.arguments(arena))
    problems += bench.told_next(arena, ended, again, 0) if again.code == 0 else [f"the next run: {again}"]
    left = litter(arena.root / "place", arena.cache, arena.root / "state")
    if left and "flock" not in given.kinds:  # nobody sweeps without locks, and it does no harm
        problems.append(f"after the next run there is {left}")
    arena.remove()
    said = " ".join([ended.document["error"]["message"] if ended.code else "", *ended.told.split()])
    return f"{bench.situation}, {given.name}: {outcome} ({ended.calls} calls failed) {said}".strip(), problems


def run(folder: Path, situations: Sequence[str], only: str) -> list[str]:
    """What was wrong, told as it is found."""
    problems = []
    for situation in situations:
        bench = (Importing if situation == "import" else Bench)(folder / situation, situation)
        for given in SURROUNDINGS:
            if only not in given.name or (situation == "import" and given.folder in ("place", "tmp", "state")):
                continue
            told, wrong = tried(bench, given)
            print(told, *(f"\n    WRONG: {text}" for text in wrong), flush=True)
            problems += wrong
    return problems


def main() -> int:
    """Start a process with the library, and run there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--situations", default=",".join(SITUATIONS))
    parser.add_argument("--only", default="", help="surroundings that have this in their names")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder is not None:
        problems = run(asked.folder, asked.situations.split(","), asked.only)
        print(f"{len(problems)} problems")
        return int(bool(problems))
    with tempfile.TemporaryDirectory(prefix="surroundings-") as name:
        library = build(Path(name))
        changes: dict[str, Any] = {
            "LD_PRELOAD": str(library),
            INJECTED: str(library),
            MODEL_FILE: str(asked.model),
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore::DeprecationWarning",  # of forks beside threads that sleep
        }
        command = [sys.executable, "-m", "tests.faults.surroundings", *sys.argv[1:], "--folder", name]
        return subprocess.run(command, env=os.environ | changes, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
