"""Softmaxes whose rows no block holds: two kernels, of which the first stores maxima and sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.search.finish.softmaxes import with_maxima
from mirage_cli.search.mugraph.evaluate import Tiles, evaluate_kernels
from mirage_cli.search.mugraph.mugraph import BlockOp, CustomKernel, KernelGraph, ThreadGraph, ThreadNode
from mirage_cli.search.proof.verify import verify
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Candidate, Searcher, SearchOptions, SearchResult
from tests.lax.programs import recorded
from tests.search.programs import tilings

ROWS, KEYS = ex.from_json("B"), ex.from_json("N")
EDGES = (np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0)


def _softmax(g: Graph) -> list[int]:
    return [compose.softmax(g, g.input("x", (ROWS, KEYS), F32), [1])]


def _biased(g: Graph) -> list[int]:
    x, b = g.input("x", (ROWS, KEYS), F32), g.input("b", (KEYS,), F32)
    return [compose.scale(g, compose.softmax(g, g.map("add", x, b), [1]), 3)]


def _masked(g: Graph) -> list[int]:
    x, m = g.input("x", (ROWS, KEYS), F32), g.input("m", (ROWS, KEYS), F32)
    return [compose.softmax(g, g.map("where", g.map("lt", m, x), x, g.fill(-np.inf, F32)), [1])]


def _two(g: Graph) -> list[int]:
    x, z = (g.input(n, (ROWS, KEYS), F32) for n in "xz")
    return [g.map("add", compose.softmax(g, x, [1]), compose.softmax(g, z, [1]))]


def _weighed(g: Graph) -> list[int]:
    x, v = g.input("x", (ROWS, KEYS), F32), g.input("v", (KEYS, 3), F32)
    p = compose.softmax(g, x, [1])
    return [compose.matmul(g, p, v), p]


BUILDS: dict[str, Callable[[Graph], Sequence[int]]] = {
    "softmax": _softmax, "biased": _biased, "masked": _masked, "two": _two, "weighed": _weighed
}  # fmt: skip


def built(build: Callable[[Graph], Sequence[int]]) -> Program:
    """The normal form of what `build` records."""
    g = Graph()
    return canonical(recorded(g, list(build(g))))


def searched(p: Program) -> SearchResult:
    """What is found for a CPU."""
    return Searcher(SearchOptions(candidates=2)).search(p, load_target("cpu"))


def tiled(c: KernelGraph, sizes: dict[str, int]) -> list[Tiles]:
    """Tiles of a kernel graph, partial ones among them."""
    return [tilings(k.program, k.block, sizes)[1] for k in c.kernels]


def best(p: Program) -> Candidate:
    """The best way to compute a program."""
    return searched(p).candidates[0]


@pytest.mark.parametrize("name", BUILDS)
def test_rows_of_unknown_length(name: str) -> None:
    p, sizes = built(BUILDS[name]), {"B": 3, "N": 7}
    found = searched(p)
    graph = found.candidates[0].graph
    tiles = tiled(graph, sizes)
    assert len(graph.kernels) > 1
    assert found.contains(graph), found.contains(graph).reason
    assert verify(p, graph, tiles).passed
    rng = np.random.default_rng(5)
    for edge in (0.0, *EDGES):
        arrays = {k: rng.uniform(-9, 9, [ex.value(e, sizes) for e in s.dims]) for k, s in enumerate(p.sources)}
        arrays[0][1, rng.integers(0, 7, 3)] = edge
        wanted = evaluate_program(p, Float64([a.name for a in p.axes]), arrays, sizes)
        made = evaluate_kernels(graph, tiles, lambda q: Float64([a.name for a in q.axes]), arrays, sizes)
        for w, m in zip(wanted, made, strict=True):
            np.testing.assert_allclose(m, w, rtol=1e-12, atol=1e-300)


def test_one_long_row_is_shared_out() -> None:
    p = built(lambda g: [compose.softmax(g, g.input("x", (1, 65536), F32), [1])])
    found = searched(p)
    graph = found.candidates[0].graph
    assert len(graph.kernels) == 3
    assert any(a.extent in (2, 4, 8, 16, 32, 64) for a in graph.kernels[0].program.axes)


def test_short_rows_and_attention_are_left_as_they_are() -> None:
    short = built(lambda g: [compose.softmax(g, g.input("x", (64, 128), F32), [1])])
    assert len(best(short).graph.kernels) == 1
    attention = built(lambda g: _weighed(g)[:1])
    assert with_maxima(attention) is None
    assert with_maxima(built(_weighed)) is not None


# --- what has to be refused -------------------------------------------------------------------------------------------
def _changed(graph: KernelGraph, kernel: int, **blocks: object) -> KernelGraph:
    """The graph with another block in a kernel."""
    old = graph.kernels[kernel]
    new = replace(old, block=replace(old.block, **blocks))  # type: ignore[arg-type]
    return replace(graph, kernels=(*graph.kernels[:kernel], new, *graph.kernels[kernel + 1 :]))


def _swapped(k: CustomKernel, old: str, node: ThreadNode | None, op: BlockOp | None = None) -> tuple[BlockOp, ...]:
    """A kernel's operators, where one node of a thread graph is another one."""

    def changed(o: BlockOp) -> BlockOp:
        if o.thread is None or node is None:
            return o
        nodes = tuple(replace(node, inputs=n.inputs[: len(node.inputs)]) if n.op == old else n for n in o.thread.nodes)
        return replace(o, thread=ThreadGraph(o.thread.arity, nodes))

    return tuple(changed(o) for o in k.block.ops)


def test_what_the_first_kernel_has_to_do() -> None:
    """Sums below other maxima than the stored ones."""
    p = built(_softmax)
    graph = best(p).graph
    tiles, block = tiled(graph, {"B": 3, "N": 7}), graph.kernels[0].block
    shrink = next(o for o in block.ops if o.op == "shrink")
    ops = tuple(replace(o, inputs=o.inputs[:1]) if shrink.name in o.inputs else o for o in block.ops)
    verdict = verify(p, _changed(graph, 0, ops=ops), tiles)
    assert not verdict.passed and "differs" in verdict.reason
    top = next(o for o in block.ops if o.op == "top")
    early = (*(o for o in block.ops), replace(top, name="late", phase="epilogue"))
    with pytest.raises(InvalidGraph):
        verify(p, _changed(graph, 0, ops=early, outputs=("late", *block.outputs[1:])), tiles)


@pytest.mark.parametrize(
    "node", [ThreadNode("mul", (0, 1)), ThreadNode("sub", (0, 1)), ThreadNode("exp_difference", (0, 1))]
)
def test_a_stored_maximum_is_no_number(node: ThreadNode) -> None:
    p = built(_softmax)
    graph = best(p).graph
    ops = _swapped(graph.kernels[-1], "exp_minus", node)
    with pytest.raises(InvalidGraph, match="maximum"):
        verify(p, _changed(graph, len(graph.kernels) - 1, ops=ops), tiled(graph, {"B": 3, "N": 7}))


def test_an_exponential_without_its_maximum() -> None:
    p = built(_softmax)
    graph = best(p).graph
    ops = _swapped(graph.kernels[-1], "exp_minus", ThreadNode("exp", (0,)))
    verdict = verify(p, _changed(graph, len(graph.kernels) - 1, ops=ops), tiled(graph, {"B": 3, "N": 7}))
    assert not verdict.passed and "differs" in verdict.reason


def test_maxima_of_another_softmax() -> None:
    """Both are maxima, and sums below one of them belong to it."""
    p = built(_two)
    graph = best(p).graph
    last = graph.kernels[-1]
    maxima = [
        t
        for k in graph.kernels[:-1]
        for t, v in zip(k.outputs, k.block.outputs, strict=True)
        if k.block.op(v).op in ("running", "top")
    ]
    assert len(maxima) == 2
    places = [last.inputs.index(t) for t in maxima]
    inputs = list(last.inputs)
    inputs[places[0]], inputs[places[1]] = inputs[places[1]], inputs[places[0]]
    wrong = replace(graph, kernels=(*graph.kernels[:-1], replace(last, inputs=tuple(inputs))))
    verdict = verify(p, wrong, tiled(graph, {"B": 3, "N": 7}))
    assert not verdict.passed and "differs" in verdict.reason


def test_a_maximum_is_no_result() -> None:
    p = built(_softmax)
    first = best(p).graph.kernels[0]
    graph = KernelGraph(1, 2, 3, (replace(first, outputs=(1, 2)),))
    with pytest.raises(InvalidGraph, match="is a maximum"):
        graph.validate()
