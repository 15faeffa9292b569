"""Results of the search for the published cases, as a table: `python samples/cases.py --table [NAME ...]`."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mirage_cli.lax.ir.program import Program
from mirage_cli.search.contains import contains
from mirage_cli.search.proof.verify import verify
from mirage_cli.search.schedules.ranking import ranked
from mirage_cli.search.schedules.target import Target, load_target
from mirage_cli.search.search import Searcher
from samples.cases import CASES, Case, program, search_options
from samples.golden import GOLDEN, Golden

TARGET = "sm_90a"
DOCS = Path(__file__).resolve().parents[1] / "docs" / "reference" / "measurements.md"
#: the published cases, and those at whose extents the reference ships a muGraph
ALL = CASES | {g.case.name: g.case for g in GOLDEN}
BEGIN, END = "<!-- cases -->\n", "<!-- end of cases -->"
HEADER = ("case", "mappings", "values", "muGraphs", "s", "bound", "kernels", "µs", "floor µs", "golden")


@dataclass(frozen=True, slots=True)
class Row:
    """One case: what the search went through, and its best muGraph (`bound` is the binary logarithm of the proof's)."""

    case: str
    source: str
    mappings: int
    values: int
    mugraphs: int
    seconds: float
    proved: bool
    bound: float
    proof_seconds: float
    kernels: int
    predicted_us: float
    floor_us: float
    golden: dict[str, str]
    text: str
    refused: list[str]

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        bound = f"2^{self.bound:.1f}" if self.proved else "refused"
        golden = "; ".join(f"{name} {answer.partition(':')[0]}" for name, answer in self.golden.items()) or "-"
        counts = (str(n) for n in (self.mappings, self.values, self.mugraphs))
        times = (f"{self.predicted_us:.1f}", f"{self.floor_us:.1f}")
        return (f"`{self.case}`", *counts, f"{self.seconds:.1f}", bound, str(self.kernels), *times, golden)


def measured(case: Case) -> Row:
    """Search a case, prove its best muGraph and look for the golden ones. Raises ValueError when nothing is found."""
    p, target = program(case), load_target(TARGET)
    searcher = Searcher(search_options(case, p))
    start = time.process_time()
    result = searcher.search(p, target)
    seconds = time.process_time() - start
    if not result.candidates:
        raise ValueError(f"{case.name}: no muGraph; {'; '.join(result.statistics.refused)}")
    best, statistics = result.candidates[0], result.statistics
    start = time.process_time()
    verdict = verify(p, best.graph, [s.as_tiles() for s in best.schedules])
    proof = time.process_time() - start
    return Row(
        case.name,
        case.source,
        statistics.mappings,
        statistics.values,
        statistics.mugraphs,
        seconds,
        verdict.passed,
        verdict.log2_bound,
        proof,
        len(best.graph.kernels),
        best.predicted_us,
        best.floor_us,
        {g.name: contained(searcher, p, g, target) for g in GOLDEN if g.case == case},
        "\n".join(k.block.text(k.program) for k in best.graph.kernels),
        statistics.refused,
    )


def contained(searcher: Searcher, p: Program, golden: Golden, target: Target) -> str:
    """The answer whether the search covers a golden muGraph: "yes" with what the model predicts for its best
    schedules, or why not."""
    if golden.draw is None:
        return f"outside: {golden.outside}"
    graph = golden.build(p)
    containment = contains(searcher, p, graph)
    if not containment:
        return f"{'outside' if golden.outside else 'no'}: {containment.reason}"
    fitting = [ranked(k.program, k.block, target, 1) for k in graph.kernels]
    return f"yes, {sum(r[0].prediction.us for r in fitting):.1f} µs" if all(fitting) else "yes, fits no memory"


def table(rows: Iterable[Row]) -> Iterator[str]:
    """The lines of the Markdown table."""
    yield f"| {' | '.join(HEADER)} |"
    yield "|" + "---|" * len(HEADER)
    for row in rows:
        yield f"| {' | '.join(row.cells())} |"


def reasons(rows: Iterable[Row]) -> Iterator[str]:
    """Why golden muGraphs are not contained, as a list."""
    for row in rows:
        for name, answer in row.golden.items():
            verdict, colon, reason = answer.partition(": ")
            if colon:
                yield f"- {name} ({verdict}): {reason}."


def summary(rows: Sequence[Row]) -> str:
    """The sum of the seconds, the slowest case and the memory of this process."""
    slowest = max(rows, key=lambda r: r.seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    total, proofs = sum(r.seconds for r in rows), sum(r.proof_seconds for r in rows)
    return (
        f"{len(rows)} cases: searched in {total:.0f} s of one core (the slowest: {slowest.case}, {slowest.seconds:.1f} s), "
        f"proved in {proofs:.0f} s; {peak:.0f} MiB at most"
    )


def written(text: str, lines: Iterable[str]) -> str:
    """A page with what stands between its markers replaced."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "".join(f"{line}\n" for line in lines) + END + rest.split(END)[1]


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all cases by default")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--table", action="store_true", help="a Markdown table (the default)")
    form.add_argument("--json", action="store_true", help="everything as JSON")
    parser.add_argument("--text", action="store_true", help="with the best muGraph of each case as text")
    parser.add_argument("--write", action="store_true", help=f"write the table into {DOCS.name}")
    given = parser.parse_args()
    if unknown := [n for n in given.names if n not in ALL]:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(ALL)}")
    if given.write and given.names:
        parser.error("--write takes no names: the table holds all cases")
    rows = []
    for name in given.names or ALL:
        print(name, end=" ", file=sys.stderr, flush=True)
        rows.append(measured(ALL[name]))
    print(file=sys.stderr)
    if given.json:
        print(json.dumps([asdict(r) for r in rows], indent=1))
    else:
        print("\n".join([*table(rows), "", *reasons(rows)]))
    if given.text and not given.json:
        print("".join(f"\n{r.case}\n\n{r.text}\n" for r in rows), end="")
    if given.write:
        DOCS.write_text(written(DOCS.read_text(), [*table(rows), "", *reasons(rows), "", f"{summary(rows)}."]))
    print(summary(rows), file=sys.stderr)
