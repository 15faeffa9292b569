"""Small programs whose extents divide nothing: named ones of every kind, and random ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from mirage_cli.lax.dtypes import BF16, BOOL, F16, F32, I64, DType
from mirage_cli.lax.extents import Extent, symbol
from mirage_cli.lax.fragments.instantiate import instantiate
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph, Input
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.normal.canonical import canonical

Build = Callable[[Graph, DType], Sequence[int]]
ODD = (1, 3, 5, 17, 33, 65)
ROWS: Extent = symbol("rows")


def program(build: Build, dtype: DType, name: str = "t") -> Program:
    """The program of what `build` records, in normal form; its inputs are those of the graph. Tensors of the model are
    called `name` and a number."""
    graph = Graph()
    outputs = list(build(graph, dtype))
    inputs = [v for v, step in enumerate(graph.steps) if isinstance(step, Input)]
    names = {v: f"{name}{v}" for v in [*inputs, *outputs]}
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
    normal = compose.affine(
        g, compose.layer_norm(g, x, [1], 1e-5), g.input("gain", (33,), t), g.input("bias", (33,), t)
    )
    return [g.map("gelu", g.map("add", compose.linear(g, normal, g.input("w", (33, 17), t)), g.input("c", (17,), t)))]


def _softmax(g: Graph, t: DType) -> Sequence[int]:
    return [compose.softmax(g, g.map("mul", g.input("x", (7, 65), t), g.input("s", (65,), t)), [1])]


def _total(g: Graph, t: DType) -> Sequence[int]:
    """A sum over rows whose number is a symbol, each of which is normalised."""
    return [g.reduce("sum", compose.softmax(g, g.input("x", (symbol("rows"), 5), t), [1]), [0])]


def _attention(g: Graph, t: DType, keys: Extent = 37, masked: str = "") -> Sequence[int]:
    q, k, v = (g.input(n, (2, e, 16), t) for n, e in (("q", 5), ("k", keys), ("v", keys)))
    scores = compose.scale(g, compose.matmul(g, q, g.transpose(k, (0, 2, 1))), 0.25)
    if masked == "causal":
        scores = compose.causal(g, scores, 20)
    elif masked:
        mask = g.input("mask", (5, keys), BOOL if masked == "boolean" else t)
        scores = compose.attention_mask(g, scores, mask)
    return [compose.matmul(g, compose.softmax(g, scores, [2]), v)]


def behind(g: Graph, t: DType, rows: Extent, keys: Extent, window: int = 0) -> Sequence[int]:
    """Attention of rows behind `before` keys, another number for each of two sequences; values behind `last` count as 0."""
    q, k, v = (g.input(n, (2, e, 64), t) for n, e in (("q", rows), ("k", keys), ("v", keys)))
    before, last = (g.reshape(g.input(n, (2,), I64), (2, 1, 1)) for n in ("before", "last"))
    at, j = g.map("add", before, g.iota(rows, 1, 3, I64)), g.iota(keys, 2, 3, I64)
    keep = g.map("le", j, at)
    if window:
        keep = g.map("and", keep, g.map("lt", compose.shift(g, at, -window), j))
    scores = compose.scale(g, compose.matmul(g, q, g.transpose(k, (0, 2, 1))), Fraction(1, 8))
    weights = compose.softmax(g, compose.attention_mask(g, scores, keep), [2])
    written = g.map("le", g.iota(keys, 1, 3, I64), last)
    return [compose.matmul(g, weights, compose.select(g, written, v, g.fill(0, t)))]


def normed_keys(g: Graph, t: DType) -> Sequence[int]:
    """Keys are normalised where they are read: a sum within the loop that keeps the loop's axis, of unknown length."""
    q, k, v = (g.input(n, (2, e, 16), t) for n, e in (("q", 5), ("k", symbol("keys")), ("v", symbol("keys"))))
    scores = compose.matmul(g, q, g.transpose(compose.rms_norm(g, k, [2], 1e-5), (0, 2, 1)))
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


def _deep(g: Graph, t: DType) -> Sequence[int]:
    x = compose.rms_norm(g, g.input("x", (3, 200), t), [1], 1e-5)
    return [compose.linear(g, x, g.input("w", (200, 21), t))]


NAMED: dict[str, Build] = {
    "matmul": _matmul,
    "vector": _vector,
    "transposed": _transposed,
    "columns": _columns,
    "batched": _batched,
    "rms_linear": _rms_linear,
    "layer_norm_gelu": _layer_norm_gelu,
    "softmax": _softmax,
    "total": _total,
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
    "deep": _deep,
    "deep_attention": lambda g, t: _attention(g, t, keys=150, masked="boolean"),
}
SPLIT = ("deep", "deep_attention", "two_outputs", "softmax")  #: programs whose reductions may be split over blocks
TYPES = (F32, F16, BF16)


def random_build(seed: int) -> tuple[Build, DType]:
    """A random program: attention, or products of an operand that may be normalised, with elementwise ends."""
    random = np.random.default_rng(seed)
    return (_random_attention if random.integers(3) == 0 else _random_products)(random), TYPES[int(random.integers(3))]


def _random_attention(random: np.random.Generator) -> Build:
    batch, queries, keys, width, depth = (int(random.choice(e)) for e in ((1, 2, 3), ODD, ODD, (1, 8, 17), (5, 16, 33)))
    mask = str(random.choice(["", "causal", "boolean", "additive", "cap", "plain"]))
    transposed, shared, normal = (bool(random.integers(2)) for _ in range(3))

    def build(g: Graph, t: DType) -> Sequence[int]:
        q = g.input("q", (batch, queries, depth), t)
        own = 1 if shared else batch
        k = g.input("k", (own, depth, keys) if transposed else (own, keys, depth), t)
        v = g.input("v", (own, keys, width), t)
        if normal and depth > 1:
            q = compose.rms_norm(g, q, [2], 1e-3)
        scores = compose.scale(g, compose.matmul(g, q, k if transposed else g.transpose(k, (0, 2, 1))), 0.3)
        if mask == "causal":
            scores = compose.causal(g, scores, max(0, keys - queries))
        elif mask == "cap":
            scores = compose.soft_cap(g, scores, 3.0)
        elif mask in ("boolean", "additive"):
            scores = compose.attention_mask(
                g, scores, g.input("mask", (queries, keys), BOOL if mask == "boolean" else t)
            )
        weights = scores if mask == "plain" else compose.softmax(g, scores, [2])
        return [compose.matmul(g, weights, v)]

    return build


def _random_products(random: np.random.Generator) -> Build:
    m, k, n, inner = (int(random.choice(ODD)) for _ in range(4))
    batch = tuple(int(random.choice((1, 2, 3))) for _ in range(int(random.integers(2))))
    kind = str(random.choice(["plain", "rms", "layer", "softmax", "gain"]))
    unary = [str(u) for u in random.choice(["relu", "silu", "tanh", "sigmoid", "abs"], 2)]
    end = str(random.choice(["none", "gate", "down", "total", "normal"]))
    flat, turned, residual, columns = (bool(random.integers(2)) for _ in range(4))
    last = len(batch) + 1
    swap = (*range(len(batch)), last, last - 1)

    def weight(g: Graph, t: DType, name: str, rows: int, cols: int) -> int:
        own = () if flat else batch
        if not turned:
            return g.input(name, (*own, rows, cols), t)
        return g.transpose(g.input(name, (*own, cols, rows), t), (1, 0) if flat else swap)

    def build(g: Graph, t: DType) -> Sequence[int]:
        x = g.transpose(g.input("x", (*batch, k, m), t), swap) if columns else g.input("x", (*batch, m, k), t)
        if kind == "rms":
            x = compose.rms_norm(g, x, [last], 1e-5)
        elif kind == "layer":
            x = compose.layer_norm(g, x, [last], 1e-3)
        elif kind == "softmax":
            x = compose.softmax(g, x, [last])
        elif kind == "gain":
            x = g.map("mul", g.map(unary[0], x), g.input("gain", (k,), t))
        y = compose.matmul(g, x, weight(g, t, "w", k, n))
        if residual:
            y = g.map("add", y, g.input("r", (m, 1), t))
        y = g.map(unary[1], y)
        if end == "gate":
            return [g.map("mul", y, compose.matmul(g, x, weight(g, t, "up", k, n)))]
        if end == "down":
            return [compose.matmul(g, y, weight(g, t, "down", n, inner))]
        if end == "normal" and n > 1:
            return [compose.rms_norm(g, y, [last], 1e-3)]
        return [y, g.reduce("sum", y, [last])] if end == "total" and n > 1 else [y]

    return build
