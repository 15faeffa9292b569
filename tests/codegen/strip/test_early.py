"""What strip kernels read in front of their loop: rows whose sums the loop needs from its first iteration on, queries that
are turned in part, and what results are added to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirage_cli.lax.dtypes import BF16, F16, F32, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.schedules.products import held_along
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.tiling import BlockModel
from mirage_cli.search.search import Candidate, Searcher, SearchOptions
from tests.codegen import kernels
from tests.codegen.kernels import Case, single
from tests.codegen.programs import program
from tests.codegen.strip_programs import HOPPER, block_graphs, strip_cases


def _normed(rows: int, width: int, t: DType) -> Program:
    """Rows, layer-normalised with gain and bias, times a weight, plus a bias."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        x = compose.layer_norm(g, g.input("x", (rows, width), t), [1], 1e-3)
        x = compose.affine(g, x, *(g.input(n, (width,), t, constant=True) for n in ("gain", "bias")))
        y = compose.linear(g, x, g.input("w", (width, 48), t, constant=True))
        return [g.map("add", y, g.input("c", (48,), t, constant=True))]

    return program(build, t)


def _turned(g: Graph, x: int, size: int, turned: int) -> int:
    """The first `turned` elements of each head with a rotary embedding, the others as they are."""
    cos, sin = (g.input(n, (1, 1, turned), F32) for n in ("cos", "sin"))
    own, rest = g.slice(x, 2, 0, turned), g.slice(x, 2, turned, size - turned)
    a, b = (g.slice(own, 2, k, turned // 2) for k in (0, turned // 2))
    other = g.concat([g.map("neg", b), a], 2)
    own = g.map("add", g.map("mul", own, cos), g.map("mul", other, sin))
    return g.concat([own, rest], 2)


def _first_made(p: Program) -> Candidate:
    found = Searcher(SearchOptions(max_kernels=1)).search(p, HOPPER).candidates
    return next(c for c in found if Case("x", p, c.graph, c.schedules, HOPPER).renders())


@pytest.mark.parametrize(
    ("rows", "width", "t"), [(1, 136, F16), (1, 137, BF16), (3, 128, BF16), (17, 64, F16), (5, 64, F32)]
)
def test_rows_that_are_summed_first_are_held(rows: int, width: int, t: DType) -> None:
    """One kernel of strips, with rows that no iteration ends with, or padded ones."""
    p = _normed(rows, width, t)
    held = [b for b in block_graphs(p) if any(held_along(b, o, b.axes_of(p)) for o in b.ops)]
    cases = list(strip_cases("held", p, "sm_90a", 4, rows, held))
    assert len(cases) == 4 and kernels.problems(cases) == kernels.problems(cases[::2], at_once=True) == []
    assert any("read_tile" in c.render().text for c in cases)
    assert _first_made(p).schedules[0].engine == "strip"


def test_queries_that_are_turned_in_part() -> None:
    """No input has all axes of what the queries become: it is computed from where their parts are stored."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        q, k, v = (g.input(n, (3, e, 32), t) for n, e in (("q", 1), ("k", 72), ("v", 72)))
        scores = compose.matmul(g, _turned(g, q, 32, 16), g.transpose(k, (0, 2, 1)))
        return [compose.matmul(g, compose.softmax(g, scores, [2]), v)]

    p = program(build, F16)
    cases = list(strip_cases("turned", p, "sm_90a", 3, 1, block_graphs(p)))
    assert len(cases) == 3 and kernels.problems(cases) == []


def test_what_results_are_added_to_is_read_in_front_of_the_loop() -> None:
    """Where a thread has one chunk of results; where it has more they are read as before."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        x, r = g.input("x", (16, 64), t), g.input("r", (16, 256), t)
        y = compose.linear(g, x, g.input("w", (64, 256), t, constant=True))
        return [g.map("add", g.map("add", y, g.input("c", (256,), t, constant=True)), r)]

    p = program(build, F16)
    (block, *_) = [b for b in block_graphs(p) if not b.split]
    for columns, early in ((32, True), (256, False)):
        tiles = tuple((a, {16: 16, 256: columns}[p.extent(a)]) for a in block.grid)
        s = Schedule(tiles, 16, 4, 2, "strip", (("members", 1),))
        case = Case("added", p, single(p, block), (s,), HOPPER)
        assert kernels.problems([case]) == []
        before, _, _ = case.render().text.partition("wait_for_earlier();")
        assert ("_early" in case.render().text) == early
        assert ("copy_vector(" in before) == early  # the constant, while the kernel in front still runs


def test_elements_that_are_loaded_alone_have_a_price() -> None:
    """Rows of a weight that are no whole chunks."""

    def predicted(columns: int) -> float:
        def build(g: Graph, t: DType) -> Sequence[int]:
            return [compose.linear(g, g.input("x", (16, 512), t), g.input("w", (512, columns), t))]

        p = program(build, F16)
        block = next(b for b in block_graphs(p) if b.loop and not b.split)
        tiles = tuple((a, {16: 16, columns: 64}[p.extent(a)]) for a in block.grid)
        return BlockModel(p, block, HOPPER, {}).predict(Schedule(tiles, 64, 4, 2)).us

    assert predicted(8191) > 1.5 * predicted(8192)
