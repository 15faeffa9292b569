"""Small programs whose extents divide nothing: named ones of every kind, and random ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mirage_cli.lax import compose
from mirage_cli.lax.canonical import canonical
from mirage_cli.lax.dtypes import BF16, BOOL, F16, F32, I64, DType
from mirage_cli.lax.extents import Extent, symbol
from mirage_cli.lax.graph import Graph, Input
from mirage_cli.lax.instantiate import instantiate
from mirage_cli.lax.program import Program

Build = Callable[[Graph, DType], Sequence[int]]
ODD = (1, 3, 5, 17, 33, 65)
ROWS: Extent = symbol("rows")


def program(build: Build, dtype: DType) -> Program:
    """The program of what `build` records, in normal form; its inputs are those of the graph."""
    graph = Graph()
    outputs = list(build(graph, dtype))
    inputs = [v for v, step in enumerate(graph.steps) if isinstance(step, Input)]
    names = {v: f"t{v}" for v in [*inputs, *outputs]}
    return canonical(instantiate(graph, outputs, inputs, names))


def _matmul(g: Graph, t: DType) -> Sequence[int]:
    return [compose.matmul(g, g.input("x", (17, 33), t), g.input("w", (33, 65), t))]


def _vector(g: Graph, t: DType) -> Sequence[int]:
    return [compose.matmul(g, g.input("x", (1, 65), t), g.input("w", (65, 5), t))]


def _transposed(g: Graph, t: DType) -> Sequence[int]:
    return [compose.linear(g, g.input("x", (5, 35), t), g.input("w", (67, 35), t), transposed=True)]


def _columns(g: Graph, t: DType) -> Sequence[int]:
    x = g.transpose(g.input("x", (33, 3), t), (1, 0))
    return [compose.matmul(g, x, g.transpose(g.input("w", (5, 33), t), (1, 0)))]


def _batched(g: Graph, t: DType) -> Sequence[int]:
    return [compose.matmul(g, g.input("x", (3, 5, 17), t), g.input("w", (3, 17, 9), t))]


def _rms_linear(g: Graph, t: DType) -> Sequence[int]:
    x = g.input("x", (5, 65), t)
    normal = g.map("mul", compose.rms_norm(g, x, [1], 1e-5), g.input("gain", (65,), t))
    return [compose.linear(g, normal, g.input("w", (65, 33), t))]


def _layer_norm_gelu(g: Graph, t: DType) -> Sequence[int]:
    x = g.input("x", (3, 33), t)
    normal = compose.affine(g, compose.layer_norm(g, x, [1], 1e-5), g.input("gain", (33,), t), g.input("bias", (33,), t))
    return [g.map("gelu", g.map("add", compose.linear(g, normal, g.input("w", (33, 17), t)), g.input("c", (17,), t)))]


def _softmax(g: Graph, t: DType) -> Sequence[int]:
    return [compose.softmax(g, g.map("mul", g.input("x", (7, 65), t), g.input("s", (65,), t)), [1])]


def _attention(g: Graph, t: DType, keys: Extent = 37, masked: str = "") -> Sequence[int]:
    q, k, v = (g.input(n, (2, e, 16), t) for n, e in (("q", 5), ("k", keys), ("v", keys)))
    scores = compose.scale(g, compose.matmul(g, q, g.transpose(k, (0, 2, 1))), 0.25)
    if masked == "causal":
        scores = compose.causal(g, scores, 20)
    elif masked:
        mask = g.input("mask", (5, keys), BOOL if masked == "boolean" else t)
        scores = compose.attention_mask(g, scores, mask)
    return [compose.matmul(g, compose.softmax(g, scores, [2]), v)]


def _gated(g: Graph, t: DType) -> Sequence[int]:
    x = g.input("x", (4, 40), t)
    gate, up = (compose.linear(g, x, g.input(n, (40, 24), t)) for n in ("gate", "up"))
    return [g.map("mul", g.map("silu", gate), up)]


def _lora(g: Graph, t: DType) -> Sequence[int]:
    x, w, a, b = (g.input(n, e, t) for n, e in (("x", (3, 50)), ("w", (50, 34)), ("a", (50, 5)), ("b", (5, 34))))
    return [g.map("add", compose.linear(g, x, w), compose.linear(g, compose.linear(g, x, a), b))]


def _two_outputs(g: Graph, t: DType) -> Sequence[int]:
    x = g.input("x", (6, 33), t)
    total = g.reduce("sum", compose.square(g, x), [1])
    return [g.map("add", total, g.input("c", (6, 1), t)), compose.linear(g, x, g.input("w", (33, 20), t))]


def _broadcast(g: Graph, t: DType) -> Sequence[int]:
    x, y = g.input("x", (3, 1, 5), t), g.input("y", (17, 1), t)
    return [g.map("tanh", g.map("add", g.map("mul", x, y), g.input("z", (5,), t)))]


def _integers(g: Graph, t: DType) -> Sequence[int]:
    x = g.cast(g.input("ids", (5, 33), I64), t)
    return [compose.linear(g, g.map("add", x, g.input("x", (5, 33), t)), g.input("w", (33, 9), t))]


def _symbolic(g: Graph, t: DType) -> Sequence[int]:
    x = g.input("x", (ROWS, 33), t)
    return [compose.linear(g, compose.rms_norm(g, x, [1], 1e-5), g.input("w", (33, 18), t))]


NAMED: dict[str, Build] = {
    "matmul": _matmul,
    "vector": _vector,
    "transposed": _transposed,
    "columns": _columns,
    "batched": _batched,
    "rms_linear": _rms_linear,
    "layer_norm_gelu": _layer_norm_gelu,
    "softmax": _softmax,
    "attention": _attention,
    "attention_causal": lambda g, t: _attention(g, t, masked="causal"),
    "attention_boolean": lambda g, t: _attention(g, t, masked="boolean"),
    "attention_masked": lambda g, t: _attention(g, t, masked="additive"),
    "attention_symbolic": lambda g, t: _attention(g, t, keys=symbol("keys")),
    "gated": _gated,
    "lora": _lora,
    "two_outputs": _two_outputs,
    "broadcast": _broadcast,
    "integers": _integers,
    "symbolic": _symbolic,
}
TYPES = (F32, F16, BF16)


def random_build(seed: int) -> tuple[Build, DType]:
    """A random program: a normalised or plain operand, one or two products of it, and elementwise ends."""
    random = np.random.default_rng(seed)
    dtype = TYPES[int(random.integers(3))]
    m, k, n = (int(random.choice(ODD)) for _ in range(3))
    batch = tuple(int(random.choice((1, 2, 3))) for _ in range(int(random.integers(2))))
    kind = str(random.choice(["plain", "rms", "layer", "softmax", "gain"]))
    unary = [str(u) for u in random.choice(["relu", "silu", "tanh", "sigmoid", "abs"], 2)]
    flat, turned, residual, twice = (bool(random.integers(2)) for _ in range(4))

    def build(g: Graph, t: DType) -> Sequence[int]:
        x = g.input("x", (*batch, m, k), t)
        last = len(batch) + 1
        if kind == "rms":
            x = compose.rms_norm(g, x, [last], 1e-5)
        elif kind == "layer":
            x = compose.layer_norm(g, x, [last], 1e-3)
        elif kind == "softmax":
            x = compose.softmax(g, x, [last])
        elif kind == "gain":
            x = g.map("mul", g.map(unary[0], x), g.input("gain", (k,), t))
        own = () if flat else batch
        w = g.input("w", (*own, n, k) if turned else (*own, k, n), t)
        y = compose.matmul(g, x, g.transpose(w, (*range(len(own)), len(own) + 1, len(own))) if turned else w)
        if residual:
            y = g.map("add", y, g.input("r", (m, 1), t))
        y = g.map(unary[1], y)
        return [y, g.reduce("sum", y, [last])] if twice and n > 1 else [y]

    return build, dtype
