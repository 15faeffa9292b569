"""Powers of two out of what products round to float16: where, how many, and where a muGraph is refused instead."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import BF16, F16, F32, DType
from mirage_cli.lax.fragments.instantiate import instantiate
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph, Input
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.search.finish.kernels import one_kernel
from mirage_cli.search.finish.scaling import MOST_BITS, with_headroom
from mirage_cli.search.mugraph.mugraph import BlockGraph, KernelGraph
from mirage_cli.search.proof.verify import verify
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions

ROWS, WIDE, OUT = 3, 24, 5


def made(build: Callable[[Graph], int], dtype: DType = F16) -> Program:
    """The program of a graph of one output."""
    g = Graph()
    out = build(g)
    inputs = [v for v, step in enumerate(g.steps) if isinstance(step, Input)]
    return canonical(instantiate(g, [out], inputs, {v: f"t{v}" for v in [*inputs, out]}))


def normed(dtype: DType = F16, twice: bool = False) -> Program:
    """A norm with gain, a weight, and one or two linear layers."""

    def build(g: Graph) -> int:
        x = compose.rms_norm(g, g.input("x", (ROWS, WIDE), dtype), [1], 1e-5)
        x = g.map("mul", x, g.input("gain", (WIDE,), dtype, constant=True))
        w = [g.input(f"w{k}", (WIDE, OUT), dtype, constant=True) for k in range(1 + twice)]
        y = [compose.linear(g, x, v) for v in w]
        return g.map("mul", g.map("silu", y[0]), y[1]) if twice else y[0]

    return made(build)


def source(p: Program, name: str) -> int:
    """The number of a source whose dimensions are those of the gain or of the rows."""
    dims = {"gain": (WIDE,), "x": (ROWS, WIDE)}[name]
    return next(k for k, s in enumerate(p.sources) if s.dims == dims)


def blocks(p: Program, kind: Callable[[BlockGraph], bool]) -> list[KernelGraph]:
    """The one-kernel muGraphs of a program of a kind."""
    return [one_kernel(p, b) for b in Searcher(SearchOptions()).blocks(p)[0] if kind(b)]


def multiplies_first(b: BlockGraph) -> bool:
    """Whether a product of two tensors is an operand: the norm comes behind."""
    operands = {i for o in b.ops if o.op == "contract" for i in o.inputs}
    made = {o.name: o for o in b.ops}
    products = [made[i] for i in operands if made[i].thread is not None]
    return b.loop is not None and any([n.op for n in o.thread.nodes] == ["mul"] for o in products if o.thread)


def constants(graph: KernelGraph) -> list[Fraction | float | None]:
    """All constants of the thread graphs, sorted."""
    threads = [o.thread for k in graph.kernels for o in k.block.ops if o.thread is not None]
    return sorted(n.value for t in threads for n in t.nodes if n.op == "const" and n.value is not None)


@pytest.mark.parametrize("twice", [False, True])
def test_a_gain_above_one_takes_its_power_of_two(twice: bool) -> None:
    p = normed(twice=twice)
    graphs = blocks(p, multiplies_first)
    assert len(graphs) > 2
    taken = 0
    for graph in graphs:
        changed = with_headroom(p, graph, {source(p, "gain"): 8.0, source(p, "x"): 65504.0})
        new = [c for c in constants(changed) if c not in constants(graph)]
        assert set(new) <= {Fraction(1, 8), Fraction(8)}
        taken += bool(new)
        tiles = [{"loop": 8, **dict.fromkeys(k.block.grid, 2)} for k in changed.kernels]
        assert verify(p, changed, tiles).passed
    assert taken == len(graphs)


def test_nothing_changes_where_nothing_may_overflow() -> None:
    p = normed()
    for graph in blocks(p, multiplies_first):
        assert with_headroom(p, graph, {source(p, "gain"): 1.0}) == graph
    for dtype in (BF16, F32):
        p = normed(dtype)
        for graph in blocks(p, multiplies_first):
            assert with_headroom(p, graph, {}) == graph


def test_a_gain_that_nobody_knows_and_one_that_is_too_large_are_refused() -> None:
    p = normed()
    (graph, *_) = blocks(p, multiplies_first)
    most = 2.0**MOST_BITS
    assert with_headroom(p, graph, {source(p, "gain"): most}) != graph
    for largest in ({}, {source(p, "gain"): 2 * most}):
        with pytest.raises(Refused, match="rounded to f16 before a product, and may overflow"):
            with_headroom(p, graph, largest)


def test_what_the_model_rounds_itself_is_left_alone() -> None:
    """A product in front of a linear layer, without a norm: the original overflows too."""

    def build(g: Graph) -> int:
        x = g.map("mul", g.input("x", (ROWS, WIDE), F16), g.input("gain", (WIDE,), F16))
        return compose.linear(g, x, g.input("w", (WIDE, OUT), F16))

    p = made(build)
    rows = {i.name for i in p.inputs if p.sources[i.source].dims == (ROWS, WIDE)}
    graphs = blocks(p, lambda b: any(reads(b, i) & rows for i in products(b)))
    assert graphs
    for graph in graphs:
        assert with_headroom(p, graph, {}) == graph


def products(b: BlockGraph) -> list[str]:
    """Computed operands."""
    return [i for o in b.ops if o.op == "contract" for i in o.inputs if b.op(i).op == "thread"]


def reads(b: BlockGraph, value: str) -> set[str | None]:
    """The inputs of the program that a value's operands are."""
    return {b.op(i).source_value for i in b.op(value).inputs}


def test_float32_that_the_model_normalises_before_it_is_float16() -> None:
    def build(g: Graph) -> int:
        x = compose.rms_norm(g, g.input("x", (ROWS, WIDE), F32), [1], 1e-5)
        return compose.linear(g, g.cast(x, F16), g.input("w", (WIDE, OUT), F16))

    p = made(build)
    plain = [
        one_kernel(p, b)
        for b in Searcher(SearchOptions()).blocks(p)[0]
        if any(o.op == "contract" and all(b.op(i).op == "load" for i in o.inputs) for o in b.ops)
    ]
    assert plain
    for graph in plain:
        with pytest.raises(Refused, match="rounded to f16"):
            with_headroom(p, graph, {})


def test_the_search_gives_candidates_with_headroom() -> None:
    p = normed()
    for target in ("sm_80", "sm_90a"):
        searcher = Searcher(SearchOptions(largest=((source(p, "gain"), 4.0),)))
        known = searcher.search(p, load_target(target)).candidates
        unknown = Searcher(SearchOptions()).search(p, load_target(target))
        assert Fraction(1, 4) in {c for k in known for c in constants(k.graph)}
        assert unknown.candidates and len(unknown.candidates) < len(known)
        assert all(with_headroom(p, c.graph, {}) == c.graph for c in unknown.candidates)


def test_where_the_best_way_is_refused_the_norm_becomes_a_kernel_of_its_own() -> None:
    """Eight rows of a model, whose gain is an input."""

    def build(g: Graph) -> int:
        x = compose.rms_norm(g, g.input("x", (8, 4096), F16), [1], 1e-5)
        x = g.map("mul", x, g.input("gain", (4096,), F16))
        return compose.linear(g, x, g.input("w", (4096, 6144), F16, constant=True))

    p, target = made(build), load_target("sm_90a")
    gain = next(k for k, s in enumerate(p.sources) if s.dims == (4096,))
    best = Searcher(SearchOptions()).search(p, target).candidates[0]
    known = Searcher(SearchOptions(largest=((gain, 1.0),))).search(p, target).candidates[0]
    assert (len(known.graph.kernels), len(best.graph.kernels)) == (1, 2)
    assert known.predicted_us < best.predicted_us < 1.2 * known.predicted_us
