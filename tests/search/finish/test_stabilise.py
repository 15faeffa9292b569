"""Stabilised exponentials: no overflow, masked rows and blocks, and the refusal of factors that do not cancel."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_cli.errors import Refused
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.closure.closure import Closure
from mirage_cli.search.closure.extract import block_graphs
from mirage_cli.search.closure.form import search_form
from mirage_cli.search.closure.mapping import Mapping
from mirage_cli.search.finish.fuse import thread_graphs
from mirage_cli.search.finish.stabilise import factor_powers, stabilise
from mirage_cli.search.mugraph.evaluate import evaluate_kernels
from mirage_cli.search.mugraph.mugraph import BODY, BlockGraph, BlockOp, ThreadGraph, ThreadNode
from mirage_cli.search.search import Searcher, SearchOptions
from tests.search.programs import attention, built, one_kernel, same_in_field

Array = NDArray[Any]
ROWS, KEYS, HEAD, VALUES = 3, 7, 4, 5
KEY = "c"  #: the softmax axis of `attention()`


def guarded() -> Program:
    """Attention in which fully masked rows give zeros."""

    def build(g: Graph) -> int:
        scores = compose.matmul(g, g.input("q", (ROWS, HEAD), F32), g.input("k", (HEAD, KEYS), F32))
        weights = compose.softmax(g, g.map("add", scores, g.input("m", (ROWS, KEYS), F32)), [-1])
        weights = compose.select(g, g.map("isnan", weights), g.fill(0, F32), weights)
        return compose.matmul(g, weights, g.input("v", (KEYS, VALUES), F32))

    return built(build)


def graphs_of(p: Program, mapping: Mapping, count: int = 3) -> list[BlockGraph]:
    """Finished block graphs under one mapping, of those whose factors cancel."""
    found = []
    for graph in block_graphs(Closure(search_form(p), mapping).run(), count):
        with contextlib.suppress(Refused):
            found.append(thread_graphs(stabilise(graph, p), p))
    return found


def key_axis(p: Program) -> str:
    """The axis of the softmax."""
    return next(n.over[0] for n in p.nodes if n.op == "stable_exp")


def inputs(mask: Array, scale: float = 1.0) -> dict[str, Array]:
    """Attention's inputs with a mask."""
    rng = np.random.default_rng(5)
    shapes = {"q": (ROWS, HEAD), "k": (HEAD, KEYS), "v": (KEYS, VALUES)}
    made = {n: rng.normal(size=s) for n, s in shapes.items()}
    return made | {"q": made["q"] * scale, "m": mask}


def softmax(a: dict[str, Array]) -> Array:
    """Attention in float64."""
    with np.errstate(all="ignore"):
        scores = a["q"] @ a["k"] + a["m"]
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True)) @ a["v"]


def by_shape(p: Program, a: dict[str, Array]) -> dict[int, Array]:
    """Inputs by source number: their shapes tell them apart."""
    shapes = {x.shape: x for x in a.values()}
    return {k: shapes[tuple(int(str(e)) for e in s.dims)] for k, s in enumerate(p.sources)}


def run(p: Program, graph: BlockGraph, a: dict[str, Array], step: int, share: int) -> Array:
    """The block graph in float64 with `step` keys in an iteration and `share` in a block."""
    tiles = dict.fromkeys(graph.grid, 2) | dict.fromkeys(graph.split, share) | ({"loop": step} if graph.loop else {})
    domain = lambda q: Float64([x.name for x in q.axes])
    return evaluate_kernels(one_kernel(p, graph), [tiles], domain, by_shape(p, a))[0]


MASKS: dict[str, Sequence[Sequence[float]]] = {
    "none": np.zeros((ROWS, KEYS)),
    "finite": np.random.default_rng(1).normal(size=(ROWS, KEYS)),
    "first block hidden": np.where(np.arange(KEYS) < 4, -np.inf, 0.0) * np.ones((ROWS, 1)),
    "all but the last hidden": np.where(np.arange(KEYS) < KEYS - 1, -np.inf, 0.0) * np.ones((ROWS, 1)),
    "last block hidden": np.where(np.arange(KEYS) > 2, -np.inf, 0.0) * np.ones((ROWS, 1)),
    "causal": np.where(np.arange(KEYS) <= 2 * np.arange(ROWS)[:, None], 0.0, -np.inf),
    "lowest number": np.where(np.arange(KEYS) < 5, np.finfo(np.float32).min, 0.0) * np.ones((ROWS, 1)),
}
MASKS = {name: np.where(np.isnan(m), 0.0, m) for name, m in MASKS.items()}
MAPPINGS = [Mapping(), Mapping(KEY), Mapping(None, KEY), Mapping(KEY, KEY)]


@pytest.fixture(scope="module", params=MAPPINGS, ids=str)
def found(request: pytest.FixtureRequest) -> tuple[Program, list[BlockGraph]]:
    """Attention and its block graphs under a mapping."""
    p = attention(ROWS, KEYS)
    assert key_axis(p) == KEY
    return p, graphs_of(p, request.param)


@pytest.mark.parametrize("mask", MASKS)
def test_masks(found: tuple[Program, list[BlockGraph]], mask: str) -> None:
    p, graphs = found
    a = inputs(np.asarray(MASKS[mask]))
    assert graphs
    for graph in graphs:
        for step, share in ((1, 7), (2, 4), (3, 3), (7, 2)):
            np.testing.assert_allclose(run(p, graph, a, step, share), softmax(a), rtol=1e-10, atol=1e-13)


def test_large_scores_do_not_overflow(found: tuple[Program, list[BlockGraph]]) -> None:
    p, graphs = found
    a = inputs(np.zeros((ROWS, KEYS)), scale=4000.0)
    assert np.max(np.abs(a["q"] @ a["k"])) > 4000
    for graph in graphs:
        np.testing.assert_allclose(run(p, graph, a, 2, 3), softmax(a), rtol=1e-9, atol=1e-12)


def test_hidden_rows_are_undefined_like_softmax(found: tuple[Program, list[BlockGraph]]) -> None:
    p, graphs = found
    mask = np.zeros((ROWS, KEYS))
    mask[1] = -np.inf
    a = inputs(mask)
    wanted = softmax(a)
    assert np.isnan(wanted[1]).all()
    for graph in graphs:
        np.testing.assert_allclose(run(p, graph, a, 2, 4), wanted, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
def test_hidden_rows_are_zeros_where_the_model_says_so(mapping: Mapping) -> None:
    p = guarded()
    mask = np.where(np.arange(KEYS) < 4, -np.inf, 0.0) * np.ones((ROWS, 1))
    mask = np.where(np.isnan(mask), 0.0, mask)
    mask[1] = -np.inf
    a = inputs(mask)
    wanted = np.nan_to_num(softmax(a), nan=0.0)
    axis = key_axis(p)
    renamed = replace(mapping, loop=mapping.loop and axis, split=mapping.split and axis)
    graphs = graphs_of(p, renamed)
    assert graphs
    for graph in graphs:
        for step, share in ((1, 7), (2, 4), (3, 2)):
            np.testing.assert_allclose(run(p, graph, a, step, share), wanted, rtol=1e-10, atol=1e-13)


def test_running_maxima_in_the_fields(found: tuple[Program, list[BlockGraph]]) -> None:
    """Arbitrary values in place of every maximum leave the result alone."""
    p, graphs = found
    for graph in graphs:
        tiles = dict.fromkeys(graph.grid, 2) | ({"loop": 3} if graph.loop else {})
        assert same_in_field(p, one_kernel(p, graph), [tiles])


def test_a_forgotten_rescale_is_found_out() -> None:
    p = attention(ROWS, KEYS)
    (graph, *_) = graphs_of(p, Mapping(KEY))
    accumulators = [o for o in graph.ops if o.op == "accum"]
    assert all(len(o.inputs) == 2 for o in accumulators)
    for broken in accumulators:
        forgotten = tuple(replace(o, inputs=o.inputs[:1]) if o is broken else o for o in graph.ops)
        wrong = replace(graph, ops=forgotten).validate(p)
        assert not same_in_field(p, one_kernel(p, wrong), [dict.fromkeys(graph.grid, 2) | {"loop": 3}])


def test_a_softmax_before_the_loop_needs_no_rescale() -> None:
    """Scores of whole rows before a loop that walks the keys for the second product: one maximum for all iterations."""
    p = attention(ROWS, KEYS)
    graphs = [g for g in graphs_of(p, Mapping(KEY), 12) if not any(o.op == "running" for o in g.ops)]
    assert any(o.op == "accum" for g in graphs for o in g.ops)
    for graph in graphs:
        assert same_in_field(p, one_kernel(p, graph), [dict.fromkeys(graph.grid, 2) | {"loop": 3}])


def test_two_softmaxes_have_maxima_of_their_own() -> None:
    """No accumulator is left with the factors of both, of which one rescale would be forgotten."""

    def build(g: Graph) -> int:
        x, y = g.input("x", (ROWS, KEYS), F32), g.input("y", (ROWS, KEYS), F32)
        both = g.map("mul", compose.softmax(g, x, [-1]), compose.softmax(g, y, [-1]))
        return compose.matmul(g, both, g.input("v", (KEYS, VALUES), F32))

    p = built(build)
    graphs = Searcher(SearchOptions(candidates=2)).blocks(p)[0]
    assert graphs
    for graph in graphs:
        tiles = dict.fromkeys(graph.grid, 2) | ({"loop": 3} if graph.loop else {})
        assert same_in_field(p, one_kernel(p, graph), [tiles]), graph.text(p)


# --- factors --------------------------------------------------------------------------------------------------------------
def graph_with(*ops: BlockOp, outputs: tuple[str, ...], loop: str | None = None) -> BlockGraph:
    """A block graph that loads attention's mask as x[a, c]."""
    return BlockGraph((), (), loop, ops, outputs)


def thread(name: str, op: str, *inputs: str, phase: str = BODY) -> BlockOp:
    """One elementwise operator."""
    nodes = (ThreadNode(op, tuple(range(len(inputs)))),)
    return BlockOp(name, "thread", inputs, phase, thread=ThreadGraph(len(inputs), nodes))


X = BlockOp("x", "load", (), BODY, source_value="x0")
E = BlockOp("e", "stable_exp", ("x",), BODY, (KEY,))


def test_powers_of_a_factor() -> None:
    ops = (
        X,
        E,
        thread("square", "mul", "e", "e"),
        thread("one", "div", "e", "e"),
        thread("minus", "neg", "e"),
        thread("twice", "add", "e", "minus"),
        BlockOp("s", "sum", ("e",), BODY, (KEY,)),
        BlockOp("c", "contract", ("e", "square"), BODY, (KEY,), dtype=F32),
    )
    powers = factor_powers(graph_with(*ops, outputs=()), "e")
    assert powers == {"x": 0, "e": 1, "square": 2, "one": 0, "minus": 1, "twice": 1, "s": 1, "c": 3}


@pytest.mark.parametrize(
    "op",
    [
        thread("bad", "sqrt", "e"),
        thread("bad", "add", "e", "x"),
        thread("bad", "add", "e", "square"),
        BlockOp("bad", "top", ("e",), BODY, (KEY,)),
    ],
    ids=["function", "sum with another", "sum of powers", "maximum"],
)
def test_values_without_a_common_factor_are_refused(op: BlockOp) -> None:
    with pytest.raises(Refused, match="bad"):
        factor_powers(graph_with(X, E, thread("square", "mul", "e", "e"), op, outputs=()), "e")


def test_a_factor_in_an_output_is_refused() -> None:
    p = attention(ROWS, KEYS)
    with pytest.raises(Refused, match="the factor of exponential e does not cancel in output e"):
        stabilise(graph_with(X, E, outputs=("e",), loop=KEY), p)
