"""The search with and without its parts, as table 5 of the paper (OSDI'25) has it: RMSNorm with gain and a linear layer.

    python samples/ablation.py                  # the table of docs/reference/measurements.md
    python samples/ablation.py --case osdi_gqa --limit 60

For each largest number of operators of a block: closures of all mappings, extraction of block graphs, stabilisers and
thread graphs, with all cores, with one, and without abstract expressions. The form is open, so that operators are as fine
as the paper's.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.lax.domains.expr import Expr, Factor
from mirage_cli.lax.ir.program import Program
from mirage_cli.processes.isolation import Pool
from mirage_cli.search.closure.closure import Closure
from mirage_cli.search.closure.extract import block_graphs
from mirage_cli.search.closure.form import Form, search_form
from mirage_cli.search.closure.mapping import Mapping, mappings
from mirage_cli.search.closure.pruning import Kind, Pair, Pruning
from mirage_cli.search.finish.fuse import thread_graphs
from mirage_cli.search.finish.stabilise import stabilise
from mirage_cli.search.mugraph.mugraph import BlockGraph

OPERATORS = range(5, 12)
PAPER = {5: (11, 58, 768), 6: (16, 93, 19934), 7: (22, 150, None), 8: (24, 152, None), 9: (26, 166, None)}
PAPER |= {10: (26, 166, None), 11: (28, 183, None)}  #: seconds: all, one thread, without expressions (None: over 10 h)
NO_BOUND = 1_000_000  #: values; time is what ends a closure without pruning
ANYTHING: Expr = 0  #: the only abstract expression where none are told apart


class Unpruned(Pruning):
    """Everything is wanted that has admissible axes."""

    def __init__(self, form: Form) -> None:
        super().__init__(form)
        self.exprs = [ANYTHING] * len(self.exprs)

    def holds(self, expr: Expr) -> bool:
        """Always."""
        return True

    def sum(self, x: Expr, factors: tuple[Factor, ...]) -> Expr | None:
        """Wanted."""
        return ANYTHING

    def contraction(self, x: Expr, y: Expr, factors: tuple[Factor, ...]) -> Expr | None:
        """Wanted."""
        return ANYTHING

    def _pair(self, x: Kind, y: Kind) -> Pair:
        quotients = tuple((g, ANYTHING) for g in self.quotients)
        if not self.fits(x[1] | y[1]):
            return Pair()
        return Pair(ANYTHING, ANYTHING, quotients, quotients)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Time and counts of a search; one that ran out of time says so."""

    seconds: float
    values: int
    graphs: int
    complete: bool

    def __str__(self) -> str:
        return f"{'' if self.complete else '> '}{self.seconds:.2f} ({self.values:,})"


class _OutOfTime(Exception):
    pass


def search(p: Program, mapping: Mapping, most: int, pruned: bool, limit: float) -> tuple[int, list[BlockGraph], bool]:
    """Values of the closure under a mapping with at most so many operators, its block graphs, and whether `limit` seconds
    were enough."""
    form = search_form(p, opened=True)
    closure = Closure(form, mapping, NO_BOUND, Pruning(form) if pruned else Unpruned(form), most)
    graphs = []
    try:
        signal.signal(signal.SIGALRM, _out_of_time)
        signal.setitimer(signal.ITIMER_REAL, limit)
        for graph in block_graphs(closure.run(), 4):
            with contextlib.suppress(Refused, InvalidGraph):
                graphs.append(thread_graphs(stabilise(graph, p), p))
    except _OutOfTime:
        return len(closure.values), graphs, False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return len(closure.values), graphs, True


def _out_of_time(number: int, frame: object) -> None:
    raise _OutOfTime


def search_all(p: Program, most: int, jobs: int, pruned: bool, limit: float) -> Outcome:
    """The same for all mappings; the first that runs out of time ends it."""
    start, values, graphs, complete = time.perf_counter(), 0, set[BlockGraph](), True
    calls = [(p, m, most, pruned, limit) for m in mappings(search_form(p))]
    for outcome in (
        Pool(jobs).map(importlib.import_module("samples.ablation").search, calls)
        if jobs > 1
        else (search(*c) for c in calls)
    ):
        values, complete = values + outcome[0], complete and outcome[2]
        graphs.update(outcome[1])
        if not complete:
            break
    return Outcome(time.perf_counter() - start, values, len(graphs), complete)


def rows(case: str, operators: Sequence[int], limit: float, jobs: int) -> Iterator[str]:
    """The table as Markdown, a line at a time."""
    from samples.cases import CASES, program  # noqa: PLC0415  (the processes that search do without)

    p = program(CASES[case])
    yield f"| operators | {jobs} jobs: s (values) | one job | without abstract expressions | muGraphs | the paper's s |"
    yield "|---|---|---|---|---|---|"
    for most in operators:
        full, single, blind = (
            search_all(p, most, j, pruned, limit) for j, pruned in ((jobs, True), (1, True), (1, False))
        )
        published = " / ".join("> 10 h" if s is None else str(s) for s in PAPER.get(most, ())) or "-"
        yield f"| {most} | {full} | {single} | {blind} | {single.graphs} | {published} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="rmsnorm_gain_linear", metavar="NAME", help="of samples/cases.py")
    parser.add_argument(
        "--limit", type=float, default=120.0, metavar="SECONDS", help="what the closure of a mapping may take"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="of the first column")
    parser.add_argument("--operators", type=int, nargs="*", default=[*OPERATORS], metavar="N")
    given = parser.parse_args()
    for row in rows(given.case, given.operators, given.limit, given.jobs):
        print(row, flush=True)


if __name__ == "__main__":
    main()
