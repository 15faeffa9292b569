"""Every model of a folder, end to end: `python -m tests.foreign FOLDER [--out RESULTS.jsonl]` (`make foreign`).

Each is run by onnxruntime, optimized, run again without and with its library, compared, and verified. Results are
appended to a file as lines of JSON; models that are there already are passed over, so that a run may be ended at any time.
With `--nodes` and `--spellings` FOLDER is first filled with the node tests of the `onnx` package, or with old spellings
of every operator that mirage reads.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from . import apart, record
from .case import cases
from .story import Settings, tell


def main(arguments: Sequence[str] | None = None) -> int:
    """Run models; 1 if any of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.foreign")
    parser.add_argument("folder", type=Path, help="models, at any depth")
    parser.add_argument("--out", type=Path, help="results (default: FOLDER/results.jsonl)")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time (default: 1)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a command of mirage (default: 300)")
    parser.add_argument("--only", default="*", help="models whose path within FOLDER matches this")
    parser.add_argument("--cache", default="", help="as for `mirage optimize` (default: none)")
    parser.add_argument("--keep", default="", help="a folder for everything about models that fail")
    parser.add_argument("--seconds", type=float, default=1e9, help="no model is begun after this time")
    parser.add_argument("--failed", action="store_true", help="run those again that failed")
    parser.add_argument("--every", type=int, default=1, help="each so many models one is run")
    parser.add_argument("--nodes", action="store_true", help="write the onnx package's node tests to FOLDER first")
    parser.add_argument("--spellings", action="store_true", help="write old spellings of operators to FOLDER first")
    parser.add_argument("--all-isas", action="store_true", help="compile kernels for every instruction set")
    parser.add_argument("--spawn", action="store_true", help="let mirage start its processes as users' runs do")
    parser.add_argument("--quick", action="store_true", help="verify one in eight folders without a replaced fragment")
    parser.add_argument(
        "--options", nargs=argparse.REMAINDER, default=[], help="options of `mirage optimize`, at the end"
    )
    o = parser.parse_args(arguments)
    apart.warm()
    made(o.folder, o.nodes, o.spellings)
    out = o.out or o.folder / "results.jsonl"
    settings = Settings(
        timeout=o.timeout,
        cache=o.cache,
        keep=o.keep,
        one_isa=not o.all_isas,
        forking=not o.spawn,
        quick=o.quick,
        options=tuple(o.options),
    )
    run(o.folder, out, settings, o.jobs, o.only, o.seconds, o.failed, o.every)
    found = [r for name, r in record.read(out).items() if (o.folder / name).exists()]
    print(record.table(found))
    return int(any(r.status == record.FAILED for r in found))


def made(folder: Path, nodes: bool, spellings: bool) -> None:
    """Fill a folder with models, where it is asked for and they are not there yet."""
    if nodes:
        from .nodes import write as write_nodes

        write_nodes(folder)
    if spellings:
        from .spellings import write as write_spellings

        write_spellings(folder)


def run(
    folder: Path,
    out: Path,
    settings: Settings,
    jobs: int = 1,
    only: str = "*",
    seconds: float = 1e9,
    failed: bool = False,
    every: int = 1,
) -> None:
    """Run the models of a folder that are not among the results yet, and append what becomes of them."""
    done = {name for name, r in record.read(out).items() if not (failed and r.status == record.FAILED)}
    todo = [c for c in list(cases(folder, only))[::every] if c.name not in done]
    until = time.monotonic() + seconds
    print(f"{len(todo)} models to run, {len(done)} known", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(lambda c: tell(c, settings) if time.monotonic() < until else None, c) for c in todo]
        for k, future in enumerate(as_completed(running)):
            found = future.result()
            if found is not None:
                record.write(out, found)
                print(f"{k + 1:5} {record.told(found)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
