"""Programs without contractions: named ones, and random ones whose extents divide nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from mirage_cli.lax.dtypes import BOOL, F32, I64, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.finish.fuse import thread_graphs
from mirage_cli.search.finish.stabilise import stabilise
from mirage_cli.search.mugraph.mugraph import PROLOGUE, BlockGraph, BlockOp, ThreadGraph, ThreadNode
from mirage_cli.search.mugraph.row_values import rows_of
from mirage_cli.search.schedules.rows import Shape, schedule_of, shapes
from mirage_cli.search.schedules.target import load_target

from .kernels import Case, single
from .programs import ROWS, TYPES, Build


def _norm(g: Graph, t: DType) -> Sequence[int]:
    return [compose.rms_norm(g, g.input("x", (5, 72), t), [1], 1e-5)]


def _layer_norm(g: Graph, t: DType) -> Sequence[int]:
    x = g.map("add", g.input("x", (3, 264), t), g.input("r", (3, 264), t))
    normal = compose.layer_norm(g, x, [1], 1e-3)
    return [x, compose.affine(g, normal, g.input("gain", (264,), t), g.input("bias", (264,), t))]


def _odd_norm(g: Graph, t: DType) -> Sequence[int]:
    return [g.map("mul", compose.rms_norm(g, g.input("x", (7, 33), t), [1], 1e-5), g.input("gain", (33,), t))]


def _softmax(g: Graph, t: DType) -> Sequence[int]:
    scores = compose.attention_mask(g, g.input("x", (2, 5, 24), t), g.input("mask", (5, 24), BOOL))
    return [compose.softmax(g, scores, [2])]


def _causal(g: Graph, t: DType) -> Sequence[int]:
    return [compose.softmax(g, compose.causal(g, g.input("x", (9, 40), t), 31), [1])]


def _channels(g: Graph, t: DType) -> Sequence[int]:
    """A norm along an axis that is not the innermost one."""
    return [compose.layer_norm(g, g.input("x", (2, 21, 48), t), [1], 1e-3)]


def _two_axes(g: Graph, t: DType) -> Sequence[int]:
    x = compose.layer_norm(g, g.input("x", (3, 5, 16), t), [1, 2], 1e-3)
    return [g.map("mul", x, g.input("gain", (5, 16), t))]


def _both(g: Graph, t: DType) -> Sequence[int]:
    """A sum of rows, and what it is the sum of."""
    x = g.map("silu", g.input("x", (6, 56), t))
    return [x, g.reduce("sum", compose.square(g, x), [1])]


def _chain(g: Graph, t: DType) -> Sequence[int]:
    x, y = g.input("x", (3, 4, 40), t), g.input("y", (4, 1), F32)
    return [g.map("tanh", g.map("add", g.map("mul", x, y), g.input("z", (40,), t)))]


def _turned(g: Graph, t: DType) -> Sequence[int]:
    x = g.transpose(g.input("x", (24, 16), t), (1, 0))
    return [g.map("add", x, g.input("y", (16, 24), t))]


def _clipped(g: Graph, t: DType) -> Sequence[int]:
    """The larger of two elements, which is not the largest of a row."""
    x = g.input("x", (5, 40), t)
    low, high = (g.fill(value, t) for value in (Fraction(-1, 4), Fraction(2)))
    return [g.map("min", g.map("max", compose.rms_norm(g, x, [1], 1e-3), low), high), g.map("max", x, low)]


def _integers(g: Graph, t: DType) -> Sequence[int]:
    return [g.map("mul", g.cast(g.input("ids", (5, 24), I64), t), g.input("x", (5, 24), t))]


def _symbolic(g: Graph, t: DType) -> Sequence[int]:
    return [compose.rms_norm(g, g.input("x", (ROWS, 48), t), [1], 1e-5)]


NAMED: dict[str, Build] = {
    "norm": _norm,
    "layernorm": _layer_norm,
    "odd": _odd_norm,
    "softmax": _softmax,
    "causal": _causal,
    "channels": _channels,
    "twoaxes": _two_axes,
    "both": _both,
    "chain": _chain,
    "turned": _turned,
    "clipped": _clipped,
    "integers": _integers,
    "symbolic": _symbolic,
}


def random_rows(seed: int) -> tuple[Build, DType]:
    """A random program without contractions: rows of one or two axes that are normalised, weighed or summed."""
    random = np.random.default_rng(seed)
    extents = [int(random.choice(e)) for e in ((1, 2, 3), (1, 4, 7), (8, 24, 33, 80))]
    over = [[2], [2], [1], [1, 2]][int(random.integers(4))]
    first, last = (str(u) for u in random.choice(["none", "rms", "layer", "softmax", "total"], 2))
    unary = str(random.choice(["relu", "silu", "tanh", "sigmoid", "abs"]))
    turned, gain, residual, kept = (bool(random.integers(2)) for _ in range(4))
    mixed = TYPES[int(random.integers(3))]

    def normal(g: Graph, kind: str, x: int) -> int:
        match kind:
            case "rms":
                return compose.rms_norm(g, x, over, 1e-3)
            case "layer":
                return compose.layer_norm(g, x, over, 1e-2)
            case "softmax":
                return compose.softmax(g, x, over)
            case "total":
                return g.map("add", x, g.reduce("sum", g.map(unary, x), over))
        return x

    def build(g: Graph, t: DType) -> Sequence[int]:
        shape = tuple(extents)
        x = (
            g.transpose(g.input("x", (shape[0], shape[2], shape[1]), t), (0, 2, 1))
            if turned
            else g.input("x", shape, t)
        )
        if residual:
            x = g.map("add", x, g.input("r", (shape[1], shape[2]), mixed))
        y = normal(g, first, x)
        if gain:
            y = g.map("mul", y, g.input("gain", (shape[2],), mixed))
        y = normal(g, last, g.map(unary, y))
        return [x, y] if kept and residual else [y]

    return build, TYPES[int(random.integers(3))]


def whole_graph(program: Program) -> BlockGraph:
    """The block graph that does what the program's operators do, one after the other, on whole rows."""
    ops = [BlockOp(i.name, "load", (), PROLOGUE, source_value=i.name) for i in program.inputs]
    for n in program.nodes:
        if n.op in ("iota", "extent", "sum", "stable_exp"):
            ops.append(BlockOp(n.name, n.op, n.inputs, PROLOGUE, n.over, axis=n.axis))
        else:
            thread = ThreadGraph(len(n.inputs), (ThreadNode(n.op, tuple(range(len(n.inputs))), n.value),))
            ops.append(BlockOp(n.name, "thread", n.inputs, PROLOGUE, thread=thread))
    reduced = {a for n in program.nodes for a in n.over}
    stored = {s.axis for o in program.outputs for s in o.access}
    grid = tuple(a.name for a in program.axes if a.name in stored and a.name not in reduced)
    graph = BlockGraph(grid, (), None, tuple(ops), tuple(o.value for o in program.outputs))
    return thread_graphs(stabilise(graph, program), program)


def row_cases(
    name: str, program: Program, target: str, count: int, seed: int = 0, graphs: Sequence[BlockGraph] = ()
) -> Iterator[Case]:
    """`count` random pairs of a block graph (of `graphs`, or the program as it is) and a shape that the engine takes, or
    fewer where there are no more."""
    random, machine = np.random.default_rng(seed), load_target(target)
    pairs: list[tuple[BlockGraph, Shape]] = []
    for graph in graphs or [whole_graph(program)]:
        pairs += [(graph, s) for s in shapes(rows_of(program, graph), machine)]
    for k, at in enumerate(random.permutation(len(pairs))[:count]):
        graph, shape = pairs[int(at)]
        schedule = schedule_of(program, graph, shape, {})
        yield Case(f"{name}x{k}", program, single(program, graph), (schedule,), machine)
