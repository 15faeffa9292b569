"""The effect of each optimizer pass on kernels, as a table: `python samples/passes.py [--write] [NAME ...]`.

For every published case (`cases.py`) or sample operator the best muGraph for `TARGET` that renders is rendered with all
passes and without each of them. `--write` puts the sums over all cases into docs/codegen.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_cli import frontends
from mirage_cli.codegen.requests.passes import ALL, BLOCK_PASSES, Passes, without
from mirage_cli.codegen.source import source
from mirage_cli.codegen.tiles.memory import least_bytes
from mirage_cli.codegen.tiles.order import barrier_counts
from mirage_cli.codegen.tiles.tile import TileProgram
from mirage_cli.codegen.tiles.traffic import WAVEFRONT, layout_cost
from mirage_cli.errors import Refused
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.ir.program import Program
from mirage_cli.optimization import task
from mirage_cli.search.finish.unfuse import unfused
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.schedules.architectures import BLOCK
from mirage_cli.search.schedules.ranking import engine_ranked
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target, load_target
from mirage_cli.search.search import Searcher, SearchOptions
from mirage_cli.suite.report import between
from samples.cases import CASES, program, search_options

TARGET = "sm_90a"
FOLDER = Path(__file__).resolve().parent / "operators"
DOCS = FOLDER.parents[1] / "docs" / "codegen.md"
BEGIN, END = "<!-- passes -->", "<!-- end of passes -->"
HEADER = (
    "sample",
    *("barriers", "without order", "without fusion"),
    *("bytes", "without memory", "without fusion"),
    *("layouts", "without layouts"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the kernels of a fragment: barriers of an iteration and others, shared bytes, the least for the order and its
    barriers, cost of layouts in wavefronts."""

    inside: int
    outside: int
    shared: int
    least: int
    layouts: int

    @property
    def barriers(self) -> int:
        """Barriers in the source."""
        return self.inside + self.outside


@dataclass(frozen=True, slots=True)
class Row:
    """A fragment with all passes (`""`) and without each; None where the kernel does not fit the target then."""

    sample: str
    figures: dict[str, Figures | None]

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""

        def barriers(name: str) -> str:
            f = self.figures[name]
            return "-" if f is None else f"{f.inside}+{f.outside}"

        def number(name: str, field: str) -> str:
            f = self.figures[name]
            return "-" if f is None else f"{getattr(f, field):,}"

        return (
            f"`{self.sample}`",
            *(barriers(n) for n in ("", "order", "fusion")),
            *(number(n, "shared") for n in ("", "memory", "fusion")),
            *(number(n, "layouts") for n in ("", "layouts")),
        )


def programs(sample: str) -> Iterator[tuple[str, Program]]:
    """A published case, or the fragments of a sample operator, with their names."""
    if sample in CASES:
        yield sample, program(CASES[sample])
        return
    imported = frontends.load(str(FOLDER / f"{sample}.onnx"))
    fragments = partition(imported.graph, task.tensor_names(imported)).fragments
    for k, fragment in enumerate(fragments):
        yield sample if len(fragments) == 1 else f"{sample} {k}", fragment.program


def measured(name: str, p: Program, target: Target) -> Row:
    """The figures of a program's best muGraph that the engine `block` renders, which has these passes. Raises Refused when
    it renders none."""
    options = search_options(CASES[name], p) if name in CASES else SearchOptions()
    for candidate in Searcher(options).search(p, target).candidates:
        graph = candidate.graph
        ways = [engine_ranked(BLOCK, k.program, k.block, target, 1) for k in graph.kernels]
        if not all(ways):
            continue
        pairs = zip(candidate.schedules, ways, strict=True)
        schedules = [s if s.engine == "block" else way[0].schedule for s, way in pairs]
        all_of_them = figures(p, graph, schedules, target, ALL)
        if all_of_them is not None:
            off = {pass_: figures(p, graph, schedules, target, without([pass_])) for pass_ in BLOCK_PASSES}
            return Row(name, {"": all_of_them, **off})
    raise Refused(f"{name}: no muGraph renders for {target.name}")


def figures(
    p: Program, graph: KernelGraph, schedules: Sequence[Schedule], target: Target, passes: Passes
) -> Figures | None:
    """The figures of a muGraph's kernels; None where they do not render."""
    graph = graph if passes.fusion else unfused(graph)
    try:
        rendered = source("k", p, graph, schedules, target, "", passes).tiles
    except Refused:
        return None
    tiles = [t for t in rendered if isinstance(t, TileProgram)]  # all of them: schedules are the engine block's
    inside, outside = (sum(n) for n in zip(*(barrier_counts(t) for t in tiles), strict=True))
    cost = sum(layout_cost(t) for t in tiles) // WAVEFRONT
    return Figures(inside, outside, sum(t.shared_bytes for t in tiles), sum(map(_least, tiles)), cost)


def _least(t: TileProgram) -> int:
    """The memory that no plan can do without: with barriers as they are, or with more of them where that is what was
    done."""
    between = least_bytes(t, intervals=True)
    return between if between <= t.shared_bytes else least_bytes(t)


def table(rows: Iterable[Row]) -> Iterator[str]:
    """The lines of the Markdown table."""
    yield f"| {' | '.join(HEADER)} |"
    yield "|" + "---|" * len(HEADER)
    for row in rows:
        yield f"| {' | '.join(row.cells())} |"


def summary(rows: Sequence[Row]) -> str:
    """Number of memory plans that are proved to be the least by their lower bound, and sums over the samples that fit
    always."""
    own = [f for r in rows if (f := r.figures[""]) is not None]
    exact = sum(f.shared == f.least for f in own)
    lines = [f"{exact} of {len(own)} memory plans reach the lower bound (the most bytes alive at one time).", ""]
    lines += ["| without | cases | barriers | bytes of shared memory | cost of layouts |", "|---|---|---|---|---|"]
    for p in BLOCK_PASSES:
        pairs = [(r.figures[""], r.figures[p]) for r in rows]
        both = [(a, b) for a, b in pairs if a is not None and b is not None]
        parts = (
            f"{sum(getattr(b, field) for _, b in both) / max(1, sum(getattr(a, field) for a, _ in both)):.2f}"
            for field in ("barriers", "shared", "layouts")
        )
        lines.append(f"| {p} | {len(both)} | {' | '.join(parts)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and the sums, or write them into the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="published cases, sample operators (all cases)")
    parser.add_argument("--write", action="store_true", help=f"put the sums into {DOCS.name}")
    options = parser.parse_args(arguments)
    target = load_target(TARGET)
    rows = [measured(name, p, target) for sample in options.names or CASES for name, p in programs(sample)]
    if options.write:
        DOCS.write_text(between(DOCS.read_text(), BEGIN, END, summary(rows)))
    else:
        print("\n".join([*table(rows), "", summary(rows)]))


if __name__ == "__main__":
    main()
