"""The greatest and least numbers of rows as symmetric functions of their elements: what is proved of them, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.fragments.instantiate import untidied
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.search.mugraph.evaluate import evaluate_kernels
from mirage_cli.search.mugraph.mugraph import (
    BODY,
    EPILOGUE,
    PROLOGUE,
    BlockGraph,
    BlockOp,
    KernelGraph,
    ThreadGraph,
    ThreadNode,
)
from mirage_cli.search.proof.verify import verify
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.search.programs import built, one_kernel, tilings

SIZES = {"B": 3, "N": 7}
ROWS, KEYS = ex.from_json("B"), ex.from_json("N")


def _x(g: Graph) -> int:
    return g.input("x", (ROWS, KEYS), F32)


BUILDS: dict[str, Callable[[Graph], int]] = {
    "greatest": lambda g: g.reduce("max", g.map("mul", _x(g), g.input("b", (KEYS,), F32)), [1]),
    "least": lambda g: g.reduce("min", g.map("tanh", _x(g)), [1]),
    "span": lambda g: g.map("sub", g.reduce("max", x := _x(g), [1]), g.reduce("min", x, [1])),
    "both axes": lambda g: g.reduce("max", g.input("x", (5, 6), F32), [0, 1]),
    "log softmax": lambda g: compose.log_softmax(g, _x(g), [1]),
    "of products": lambda g: g.reduce("max", compose.matmul(g, _x(g), g.input("w", (KEYS, 3), F32)), [1]),
}


def tiled(graph: KernelGraph) -> list[dict[str, int]]:
    """Tiles of a kernel graph, partial ones among them."""
    return [dict(tilings(k.program, k.block, SIZES)[1]) for k in graph.kernels]


@pytest.mark.parametrize("name", BUILDS)
def test_what_is_found_is_proved(name: str) -> None:
    p = built(BUILDS[name])
    found = Searcher(SearchOptions(candidates=2)).search(p, load_target("cpu"))
    assert found.candidates, found.statistics.refused
    for c in found.candidates[:3]:
        tiles = tiled(c.graph)
        assert verify(p, c.graph, tiles).passed
        assert found.contains(c.graph), found.contains(c.graph).reason
        rng = np.random.default_rng(3)
        arrays = {k: rng.normal(size=[ex.value(e, SIZES) for e in s.dims]) for k, s in enumerate(p.sources)}
        for number in (0.0, -np.inf, np.nan, 1e30):
            arrays[0][(1,) * (arrays[0].ndim - 1)][:2] = number
            wanted = evaluate_program(p, Float64([a.name for a in p.axes]), arrays, SIZES)
            made = evaluate_kernels(c.graph, tiles, lambda q: Float64([a.name for a in q.axes]), arrays, SIZES)
            np.testing.assert_allclose(made[0], wanted[0], rtol=1e-12)


# --- adversaries ------------------------------------------------------------------------------------------------------
def grid(build: Callable[[Graph, int], int]) -> tuple[Program, str, str]:
    """A program of x [a, b], and the names of its axes."""
    g = Graph()
    y = build(g, x := g.input("x", (4, 6), F32))
    p = untidied(g, [y], [x], {x: "x", y: "y"})
    first, second = (s.axis or "" for s in p.inputs[0].access)
    return p, first, second


def block(p: Program, ops: list[BlockOp], loop: str | None = None) -> KernelGraph:
    """The kernel graph of one block that makes the last of some operators of a load x."""
    load = BlockOp("x", "load", (), BODY if loop else PROLOGUE, source_value=p.inputs[0].name)
    return one_kernel(p, BlockGraph((), (), loop, (load, *ops), (ops[-1].name,)))


def refuted(p: Program, graph: KernelGraph, loop: int = 4) -> None:
    """A well-formed graph differs."""
    verdict = verify(p, graph, [{"loop": loop}])
    assert not verdict.passed and "differs" in verdict.reason


def test_sums_of_maxima_are_not_those_along_other_axes() -> None:
    """max(a, b) + max(c, d) has the elements of max(a, c) + max(b, d)."""
    p, a, b = grid(lambda g, x: g.reduce("sum", g.reduce("max", x, [0]), [0, 1]))

    def summed(inner: str, outer: str) -> KernelGraph:
        ops = [BlockOp("m", "max", ("x",), PROLOGUE, (inner,)), BlockOp("s", "sum", ("m",), PROLOGUE, (outer,))]
        return block(p, ops)

    assert verify(p, summed(a, b), [{}]).passed
    refuted(p, summed(b, a))


def test_a_maximum_of_maxima_along_other_axes_is_not_a_least_one() -> None:
    p, a, b = grid(lambda g, x: g.reduce("max", x, [0, 1]))
    both = tuple(sorted((a, b)))
    assert verify(p, block(p, [BlockOp("m", "max", ("x",), PROLOGUE, both)]), [{}]).passed
    refuted(p, block(p, [BlockOp("m", "min", ("x",), PROLOGUE, both)]))
    total = [BlockOp("m", "max", ("x",), PROLOGUE, (a,)), BlockOp("s", "sum", ("m",), PROLOGUE, (b,))]
    refuted(p, block(p, total))


def test_iterations_are_taken_together_and_not_added() -> None:
    p, a, b = grid(lambda g, x: g.reduce("max", x, [0, 1]))
    whole = BlockOp("m", "max", ("x",), EPILOGUE, tuple(sorted((a, b))))
    assert verify(p, block(p, [whole], b), [{"loop": 4}]).passed  # the last iteration is partial
    rows = [BlockOp("m", "max", ("x",), EPILOGUE, (b,)), BlockOp("n", "max", ("m",), EPILOGUE, (a,))]
    refuted(p, block(p, rows, b))  # equal, but as a function of other elements
    part = [
        BlockOp("m", "max", ("x",), BODY, (a,)),
        BlockOp("s", "sum", ("m",), BODY, (b,)),
        BlockOp("t", "accum", ("s",), EPILOGUE),
    ]
    refuted(p, block(p, part, b))


def test_elements_have_to_be_equal() -> None:
    p, a, b = grid(lambda g, x: g.reduce("max", g.map("abs", x), [0, 1]))
    over = tuple(sorted((a, b)))
    assert verify(p, block(p, [_of("abs"), BlockOp("m", "max", ("e",), PROLOGUE, over)]), [{}]).passed
    refuted(p, block(p, [_of("neg"), BlockOp("m", "max", ("e",), PROLOGUE, over)]))
    refuted(p, block(p, [BlockOp("m", "max", ("x",), PROLOGUE, over), replace(_of("abs"), inputs=("m",))]))


def _of(op: str) -> BlockOp:
    return BlockOp("e", "thread", ("x",), PROLOGUE, thread=ThreadGraph(1, (ThreadNode(op, (0,)),)))


@pytest.mark.parametrize("kind", ["max", "min"])
def test_parts_are_not_whole_rows(kind: str) -> None:
    p, a, b = grid(lambda g, x: g.reduce(kind, x, [1]))
    row = BlockOp("m", kind, ("x",), PROLOGUE, (b,))
    with pytest.raises(InvalidGraph, match="sees a part"):
        BlockGraph(
            (a, b), (b,), None, (BlockOp("x", "load", (), PROLOGUE, source_value=p.inputs[0].name), row), ("m",)
        ).validate(p)
    for phase, message in ((BODY, "sees a part"), (PROLOGUE, "lives in the body")):
        with pytest.raises(InvalidGraph, match=message):
            block(p, [replace(row, phase=phase)], b)
    with pytest.raises(InvalidGraph, match="is no maximum"):  # an exact one is none that keeps exponentials small
        minus = BlockOp("e", "thread", ("x", "m"), PROLOGUE, thread=ThreadGraph(2, (ThreadNode("exp_minus", (0, 1)),)))
        BlockGraph(
            (a,), (), None, (BlockOp("x", "load", (), PROLOGUE, source_value=p.inputs[0].name), row, minus), ("m",)
        ).validate(p, ())
