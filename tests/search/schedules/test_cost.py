"""What the model of a CPU says of tiles that are partial, of reads of parts of lines, and of weights that are copied."""

from __future__ import annotations

import pytest

from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.schedules.cost import CostModel
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.search.programs import built

CPU = load_target("cpu")


def block(p: Program) -> BlockGraph:
    """A block graph without a loop, whose grid has all axes of the result."""
    axes = {s.axis for o in p.outputs for s in o.access}
    found = Searcher(SearchOptions(candidates=1)).blocks(p)[0]
    return next(g for g in found if g.loop is None and {*g.grid} == axes and not g.split)


def us(p: Program, tiles: dict[str, int], g: BlockGraph | None = None) -> float:
    """What is predicted for tiles, of the axes that are not named whole ones."""
    g = g or block(p)
    extents = {a.name: a.extent for a in p.axes}
    sizes = ((a, tiles.get(a, extents[a])) for a in g.grid)
    return CostModel(p, g, CPU).predict(Schedule(tuple((a, int(str(n))) for a, n in sizes))).us


def batched(rows: int, keys: int = 256, heads: int = 12) -> Program:
    """Scores of attention, written once."""
    return built(
        lambda g: compose.matmul(g, *(g.input(n, (heads, *d), F32) for n, d in (("q", (rows, 64)), ("k", (64, keys)))))
    )


@pytest.mark.parametrize("rows", [129, 196, 255])
def test_a_partial_tile_costs_what_there_is_of_it(rows: int) -> None:
    """Two blocks along the rows in each case: work is that of the rows, as in two equal blocks."""
    p, whole = batched(rows), batched(256)
    axis = next(a.name for a in p.axes if a.extent == rows)
    other = next(a.name for a in whole.axes if a.extent == 256 and a.name in {s.axis for s in whole.outputs[0].access})
    keys = next(a.name for a in p.axes if a.extent == 256)
    heads = next(a.name for a in p.axes if a.extent == 12)
    some = us(p, {axis: 128, keys: 256, heads: 1})
    full = us(whole, {other: 128, heads: 1})
    assert some < full
    assert some == pytest.approx(full * rows / 256, rel=0.15)


def test_reads_of_parts_of_lines_bring_whole_lines() -> None:
    """A bias whose heads lie side by side: added head by head, each of its lines comes 16 times."""

    def build(g: Graph) -> int:
        bias = g.transpose(g.input("b", (256, 192, 16), F32), (2, 0, 1))
        return g.map("add", g.map("exp", g.input("x", (16, 256, 192), F32)), bias)

    p = built(build)
    heads, positions = (next(a.name for a in p.axes if a.extent == n) for n in (16, 256 * 192))
    assert us(p, {heads: 1, positions: 4096}) > 1.5 * us(p, {heads: 16, positions: 256})


def test_a_part_of_a_weight_that_is_copied_is_read_in_pieces() -> None:
    """Halves of several heads are no matrix that a product reads in place; those of one head are."""

    def halves(heads: int) -> Program:
        def build(g: Graph) -> int:
            w = g.reshape(g.input("w", (1024, heads * 64), F32, True), (1024, heads, 64))
            part = g.reshape(g.slice(w, 2, 0, 32), (1024, heads * 32))
            return g.contract(g.input("x", (1, 1024), F32), part, (0, 1), (1, 2), (0, 2))

        return built(build)

    p = halves(16)
    heads = next(a.name for a in p.axes if a.extent == 16)
    assert us(p, {heads: 8}) > 1.5 * us(p, {heads: 1})
