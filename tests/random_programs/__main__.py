"""Random programs from the command line: `python -m tests.random_programs --count 5000` (`make programs`).

Programs are optimized in batches, each in a process of its own and for one instruction set. What fails is tried again alone,
made smaller, and printed as ONNX text with the command that makes it again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from onnx import printer

from mirage_cli.errors import MirageError
from mirage_cli.processes import isolation

from .batch import Outcome
from .choices import DTYPES, drawn, reduced, replayed
from .inputs import KINDS
from .sketch import model
from .working import ISAS, fails, supported, timed, tried, tried_alone

EVERY = 20.0  #: seconds between two lines that say how far a run is
PATIENCE = 150.0  #: seconds that a batch may take


def main(arguments: Sequence[str] | None = None) -> int:
    """Try many programs; 1 if anything is wrong with one of them."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.random_programs")
    parser.add_argument("--count", type=int, default=1000, help="programs (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--batch", type=int, default=20, help="programs that are one model (default: 20)")
    parser.add_argument("--first", type=int, default=0, help="the first batch")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS, help="inputs")
    parser.add_argument("--seconds", type=float, default=1e9, help="no batch is begun after this time")
    parser.add_argument("--verify", type=int, default=4, help="each so many batches one is verified (0: none)")
    parser.add_argument("--cuda", nargs="*", default=[], metavar="ARCH", help="kernels for these, run on the GPU")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds that a batch may take (default: 150)")
    parser.add_argument("--only", type=int, help="this program alone, made smaller if it fails")
    parser.add_argument("--isa", choices=ISAS, help="the instruction set for --only (default: as in the run)")
    parser.add_argument("--shrink", type=int, default=3, help="how many failing programs are made smaller")
    o = parser.parse_args(arguments)
    if o.only is not None:
        return 0 if explained(o.only, o.batch, o.seed, o.kinds, bool(o.shrink), bool(o.verify), o.isa) else 1
    start, total, wrong = time.perf_counter(), Outcome(), list[int]()
    batches = range(o.first, o.first + -(-o.count // o.batch))
    until = time.time() + o.seconds
    jobs = [(b, o.batch, o.seed, o.kinds, o.cuda, bool(o.verify) and b % o.verify == 0, until) for b in batches]
    told, lost = start, list[int]()
    for k, found in isolation.each(timed, jobs, o.jobs, apart=True, seconds=o.patience):
        if isinstance(found, isolation.Lost):
            print(f"batch {batches[k]}: {found.reason}", flush=True)
            total.wrong(f"b{batches[k]}", found.reason)
            lost.append(batches[k])
            continue
        total.add(found)
        for name, problems in found.problems.items():
            wrong.append(int(name[1:]))
            more = f" (and {len(problems) - 2} more)" if len(problems) > 2 else ""
            print(f"{name}: " + "; ".join(p[:230] for p in problems[:2]) + more, flush=True)
        if found.counts and time.perf_counter() - told > EVERY:
            told = time.perf_counter()
            print(f"{said(total)}, {told - start:.0f} s", flush=True)
    singles = [(n, o.batch, o.seed, o.kinds, o.cuda) for b in lost for n in range(b * o.batch, (b + 1) * o.batch)]
    for k, found in isolation.each(tried_alone, singles, o.jobs, apart=True, seconds=o.patience / 2):
        if isinstance(found, isolation.Lost):
            print(f"p{singles[k][0]} alone: {found.reason}", flush=True)
        else:
            print(
                "\n".join(f"{name} alone: {problems[0][:300]}" for name, problems in found.problems.items()), flush=True
            )
    for number in wrong[: o.shrink]:
        explained(number, o.batch, o.seed, o.kinds, True)
    for name, n in sorted(total.counts.items()):
        print(f"{n:>12,}  {name}")
    print(f"{said(total)}, {time.perf_counter() - start:.0f} s")
    return 1 if total.problems else 0


def said(total: Outcome) -> str:
    """How far a run is."""
    c = total.counts
    return f"{c['programs']} programs, {c['programs verified']} verified, {len(total.problems)} with problems"


def explained(
    number: int,
    size: int,
    seed: int,
    kinds: Sequence[str],
    shrink: bool,
    verified: bool = False,
    isa: str | None = None,
) -> bool:
    """Print what a program is and what is wrong with it; whether nothing is."""
    at, isas = number // size, supported()
    dtype, isa = DTYPES[at % len(DTYPES)], isa or isas[at % len(isas)]
    _, choices = drawn(number, seed, dtype)
    if shrink and fails(number, choices, dtype, isa, seed, kinds):
        choices = reduced(choices, lambda c: fails(number, c, dtype, isa, seed, kinds), 100)
    program = replayed(choices, number, dtype)
    print(printer.to_text(model({f"p{number}": program})))
    try:
        found = tried({f"p{number}": program}, isa, seed, kinds, (), verified).problems
    except MirageError as error:
        found = {f"p{number}": [str(error)]}
    for problems in found.values():
        print("\n".join(problems))
    print(f"python -m tests.random_programs --only {number} --batch {size} --seed {seed}  # {dtype}, {isa}", flush=True)
    return not found


if __name__ == "__main__":
    sys.exit(main())
