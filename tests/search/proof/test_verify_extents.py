"""The verifier at large, symbolic and hopeless extents."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax.dtypes import F16, F32
from mirage_cli.lax.extents import symbol, value
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import PROLOGUE, BlockGraph, BlockOp, ThreadGraph, ThreadNode
from mirage_cli.search.proof import stand_in
from mirage_cli.search.proof.resize import resized
from mirage_cli.search.proof.verify import verify
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.search.finish.test_kernels import wide_attention
from tests.search.mutants import mutants
from tests.search.programs import built, one_kernel
from tests.search.proof.test_verify import found


def large_norm(rows: int = 4096, inner: int = 4096, columns: int = 6144) -> Program:
    def build(g: Graph) -> int:
        x, w = g.input("x", (rows, inner), F16), g.input("w", (inner, columns), F16, True)
        return compose.matmul(g, compose.rms_norm(g, x, [-1], 1e-5), w)

    return built(build)


def large_gram(rows: int = 4096, inner: int = 4096) -> Program:
    """A tensor times itself, whose axes cannot be taken apart."""

    def build(g: Graph) -> int:
        x = g.input("x", (rows, inner), F16)
        return compose.matmul(g, compose.rms_norm(g, x, [-1], 1e-5), g.transpose(x, (1, 0)))

    return built(build)


@pytest.mark.parametrize("name", ["cpu", "sm_90a"])
@pytest.mark.parametrize(("build", "extents"), [(large_norm, "real"), (large_gram, "stand-in")])
def test_large_extents_are_proved_at_few_positions_or_on_a_stand_in(
    build: Callable[[], Program], extents: str, name: str
) -> None:
    p = build()
    best = Searcher(SearchOptions(candidates=1)).search(p, load_target(name)).candidates[0]
    tiles = [s.as_tiles() for s in best.schedules]
    assert stand_in.cost(p, best.graph, tiles, {}) > 20 * stand_in.AFFORDABLE
    (point,) = stand_in.points(p, best.graph, tiles)
    assert stand_in.cost(point.program, point.graph, tiles, {}) < 2 * stand_in.AFFORDABLE
    verdict = verify(p, best.graph, tiles)
    assert verdict.passed, verdict.reason
    assert verdict.extents == extents
    assert verdict.log2_bound < -40
    some = [m for m in mutants(best.graph, tiles) if "left out" in m[0] or "is " in m[0]][::6]
    assert len(some) > 2
    for what, mutant, own in some:
        try:
            assert not verify(p, mutant, own).passed, what
        except InvalidGraph:
            continue


def test_a_stand_in_keeps_whole_and_partial_tiles() -> None:
    p = large_gram(4096 + 5, 4096 + 24)
    best = Searcher(SearchOptions(candidates=1)).search(p, load_target("sm_90a")).candidates[0]
    tiles = [s.as_tiles() for s in best.schedules]
    (point,) = stand_in.points(p, best.graph, tiles)
    assert not point.real
    assert stand_in.cost(point.program, point.graph, tiles, {}) < stand_in.AFFORDABLE
    for kernel, real, tile in zip(point.graph.kernels, best.graph.kernels, tiles, strict=True):
        walked = [(kernel.block.loop, tile["loop"])] if kernel.block.loop else []
        for axis, step in (*((a, tile[a]) for a in kernel.block.grid), *walked):
            short, full = (value(q.extent(axis), {}) for q in (kernel.program, real.program))
            assert short % step == full % step
            assert short // step >= min(2, full // step)


def test_symbols_are_verified_at_one_small_and_large_values() -> None:
    n = symbol("n")

    def build(g: Graph) -> int:
        return compose.matmul(g, compose.rms_norm(g, g.input("x", (n, 7), F32), [-1], 0.5), g.input("w", (7, 5), F32))

    p = built(build)
    graph, tiles = found(p)[0]
    tile = max(tiles[0].values())
    values = [a["n"] for a in stand_in.assignments(p, graph, tiles)]
    assert values[0] == 1
    assert 1 < values[1] < values[2]
    assert values[2] > 2 * tile
    verdict = verify(p, graph, tiles)
    assert verdict.passed
    assert verdict.extents == "stand-in"
    assert len(stand_in.points(p, graph, tiles)) == 3


def test_an_axis_of_several_symbols_has_two_tiles_and_few_more() -> None:
    """The greatest number of a tensor: what its number of columns does for the length need not come from its symbols."""
    batch, seq = symbol("batch"), symbol("seq")
    p = built(lambda g: g.reduce("max", g.input("x", (batch, seq, 64), F32), [0, 1, 2]))
    graph = next(g for g, _ in found(p) if g.kernels[0].block.loop is not None)
    (axis,) = (a for a in p.axes if a.name == graph.kernels[0].block.loop)
    for loop in (32, 512, 4096, 32768):
        *_, large = stand_in.assignments(p, graph, [{"loop": loop}])
        beyond = stand_in.beyond_a_tile(p, graph, [{"loop": loop}])
        assert 2 * loop <= value(axis.extent, large) <= 4 * max(2 * loop, 64 * 7 * 9)
        assert value(axis.extent, beyond) > loop


def test_more_positions_are_there_than_an_axis_walks_of_them() -> None:
    """The keys that count of a cache that has room for more: no stride is taken for another."""
    keys, whole = symbol("keys"), symbol("(free+keys)")

    def build(g: Graph) -> int:
        cache, weights = g.input("cache", (3, whole, 5), F32), g.input("w", (3, keys), F32)
        return g.contract(weights, g.slice(cache, 1, 0, keys), [0, 1], [0, 1, 2], [0, 2])

    p = built(build)
    graph, tiles = found(p)[0]
    ones, *others = stand_in.assignments(p, graph, tiles)
    assert ones == {"keys": 1, "(free+keys)": 1}
    assert all(1 < a["keys"] < a["(free+keys)"] for a in others)
    assert verify(p, graph, tiles).passed


def test_a_number_in_the_place_of_a_symbol_is_found() -> None:
    """A mean whose divisor is right for some extents only."""
    n = symbol("n")
    p = built(lambda g: compose.rms_norm(g, g.input("x", (3, n), F32), [-1], 0.5))
    graph, tiles = found(p)[0]
    assert verify(p, graph, tiles).passed
    for number in (1, 3, *(a["n"] for a in stand_in.assignments(p, graph, tiles))):
        count = ThreadGraph(0, (ThreadNode("const", (), Fraction(number)),))
        kernels = []
        for kernel in graph.kernels:
            ops = [
                replace(o, op="thread", axis=None, thread=count) if o.op == "extent" else o for o in kernel.block.ops
            ]
            kernels.append(replace(kernel, block=replace(kernel.block, ops=tuple(ops))))
        wrong = replace(graph, kernels=tuple(kernels))
        assert wrong != graph
        assert not verify(p, wrong, tiles).passed


def test_a_tensor_read_twice_keeps_one_shape() -> None:
    """Rows and columns of one tensor: axes of different tiles walk the same dimension."""

    def build(g: Graph) -> int:
        x = g.input("x", (8192, 64), F32)
        return compose.matmul(g, x, g.transpose(x, (1, 0)))

    p = built(build)
    best = Searcher(SearchOptions(candidates=1)).search(p, load_target("cpu")).candidates[0]
    verdict = verify(p, best.graph, [s.as_tiles() for s in best.schedules])
    assert verdict.passed, verdict.reason
    assert verdict.extents == "stand-in"


def test_what_stays_too_large_is_refused() -> None:
    """A slice keeps its place, so its axis cannot be shortened."""

    def build(g: Graph) -> int:
        x = g.slice(g.input("x", (1 << 18, 1 << 18), F32), 0, 3, 1 << 17)
        return g.map("mul", g.slice(x, 1, 5, 1 << 17), g.fill(2, F32))

    p = built(build)
    op = BlockOp("v", "load", (), PROLOGUE, source_value=p.inputs[0].name)
    verdict = verify(p, one_kernel(p, BlockGraph((), (), None, (op,), ("v",))), [{}])
    assert not verdict.passed
    assert "would take" in verdict.reason


def test_axes_beside_one_that_is_cut_up_are_shortened() -> None:
    """Where blocks share keys, one kernel reads them as parts of parts; that does not concern the queries."""
    p = wide_attention(32, 4096, 64)
    graph = Searcher(SearchOptions()).search(p, load_target("cpu")).candidates[0].graph
    assert any(a.name.endswith("_of2") for k in graph.kernels for a in k.program.axes)
    tiles = [dict.fromkeys((*k.block.grid, "loop"), 4) for k in graph.kernels]
    sizes = stand_in._sizes(p, graph, tiles, {}, 2)
    assert {p.extent(a.name): sizes[a.name] for a in p.axes} == {32: 8, 4096: 4096, 64: 64}
    verdict = verify(*resized(p, graph, sizes), tiles)
    assert verdict.passed, verdict.reason


def test_a_dimension_of_which_one_position_is_read_keeps_its_extent() -> None:
    """The fourth row beside all rows."""

    def build(g: Graph) -> int:
        x = g.input("x", (500, 33), F32)
        return g.map("exp", g.map("mul", x, g.slice(x, 0, 3, 1)))

    p = built(build)
    assert sorted(i.access[0].axis is None for i in p.inputs) == [False, True]
    for graph, tiles in found(p):
        small = [{k: min(4, n) for k, n in t.items()} for t in tiles]
        point = stand_in.shortest(p, graph, small)
        assert {i.access[0].extent for i in point.program.validate().inputs} == {500}
        assert verify(point.program, point.graph, small).passed
