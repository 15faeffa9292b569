"""Reductions, norms, products and what is made of them in random programs."""

from __future__ import annotations

import math

from .shapes import LACKING, SIZES, axis_of, broadcast, count
from .sketch import SYMBOL, Dim, Sketch, Unfit, Value

REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceL1", "ReduceSumSquare", "ReduceLogSumExp",
    "ReduceProd",
)  # fmt: skip


def reduction(s: Sketch, x: Value) -> object:
    axes = sorted({axis_of(s, x) for _ in range(1 + s.pick(2))})
    over = math.prod(count(x.dims[a]) for a in axes)
    if over == 0:
        raise Unfit
    op = s.one(REDUCTIONS if over < 8 else REDUCTIONS[:-1])
    if op == "ReduceLogSumExp" and x.size > 8:
        raise Unfit
    keep = s.pick(2)
    dims = [1 if k in axes else d for k, d in enumerate(x.dims) if keep or k not in axes]
    grows = {"ReduceSum": math.sqrt(over), "ReduceL1": over, "ReduceL2": math.sqrt(over)}.get(op, 1.0)
    size = x.size * grows if op != "ReduceSumSquare" else x.size**2 * over
    if op == "ReduceProd":
        size = max(2.0, x.size) ** over
    exact = op in ("ReduceMax", "ReduceMin") and x.exact
    return s.node(op, [x, s.indices(axes)], dims, keepdims=keep, exact=exact, size=size)


def softmax(s: Sketch, x: Value) -> object:
    axis = axis_of(s, x)
    if x.dims[axis] == 0:
        raise Unfit
    if s.maybe(4):
        return s.node("LogSoftmax", [x], x.dims, axis=axis, size=x.size + 5)
    return s.node("Softmax", [x], x.dims, axis=axis - len(x.dims) if s.maybe(2) else axis)


def layer_norm(s: Sketch, x: Value) -> object:
    axis = axis_of(s, x)
    over = x.dims[axis:]
    if not all(isinstance(d, int) and d > 1 for d in over):
        raise Unfit
    operands = [x, s.weight(over)] + ([s.weight(over)] if s.maybe(2) else [])
    return s.node("LayerNormalization", operands, x.dims, axis=axis, epsilon=s.one((1e-5, 1e-2)), size=3.0)


def rms_norm(s: Sketch, x: Value) -> object:
    axis = axis_of(s, x)
    over = x.dims[axis:]
    if not all(isinstance(d, int) and d > 0 for d in over):
        raise Unfit
    return s.node("RMSNormalization", [x, s.weight(over)], x.dims, axis=axis, epsilon=s.one((1e-5, 1e-2)), size=3.0)


def spelled_norm(s: Sketch, x: Value) -> object:
    """x / sqrt(mean(x x) + epsilon), one operator after the other, in float32 where the model is in less."""
    axis = axis_of(s, x)
    if x.dims[axis] == 0:
        raise Unfit
    wide = x
    if x.dtype == "float16" and s.maybe(2):
        wide = s.node("Cast", [x], x.dims, dtype="float32", to="float32", size=x.size, keep=False)
    square = s.node("Pow", [wide, s.constant(2.0, wide.dtype)], x.dims, size=x.size**2, keep=False)
    dims = [1 if k == axis else d for k, d in enumerate(x.dims)]
    mean = s.node("ReduceMean", [square, s.indices([axis])], dims, keepdims=1, size=square.size, keep=False)
    under = s.node("Add", [mean, s.constant(s.one((1e-5, 1e-2)), wide.dtype)], dims, size=square.size, keep=False)
    root = s.node("Sqrt", [under], dims, size=x.size, keep=False)
    normal = s.node("Div", [wide, root], x.dims, size=3.0, keep=wide is x)
    if wide is x:
        return normal
    return s.node("Cast", [normal], x.dims, dtype=x.dtype, to=x.dtype, size=3.0)


# --- products -------------------------------------------------------------------------------------------------------------
def matmul(s: Sketch, x: Value) -> object:
    if not x.dims or (len(x.dims) == 1 and s.maybe(2)):
        raise Unfit
    k = x.dims[-1]
    others = [v for v in s.values if v.dtype == x.dtype and len(v.dims) > 1 and v.dims[-2] == k]
    if others and s.maybe(2):
        y = others[-1 - s.pick(len(others))]
    else:
        batch = tuple(x.dims[:-2]) if s.maybe(3) else ()
        y = s.leaf((*batch, k, s.one(SIZES)), 1 / math.sqrt(max(count(k), 1)))
    if len(x.dims) == 1:
        dims = (*y.dims[:-2], y.dims[-1])
    else:
        dims = (*broadcast(x.dims[:-2], y.dims[:-2]), x.dims[-2], y.dims[-1])
    return s.node("MatMul", [x, y], dims, size=x.size * y.size * math.sqrt(max(count(k), 1)))


def gram(s: Sketch, x: Value) -> object:
    """A value times its own transpose."""
    if len(x.dims) < 2:
        raise Unfit
    n = len(x.dims)
    perm = [*range(n - 2), n - 1, n - 2]
    y = s.node("Transpose", [x], [x.dims[k] for k in perm], perm=perm, exact=x.exact, size=x.size)
    dims = (*x.dims[:-1], x.dims[-2])
    return s.node("MatMul", [x, y], dims, size=x.size**2 * max(count(x.dims[-1]), 1))


def gemm(s: Sketch, x: Value) -> object:
    if len(x.dims) != 2:
        raise Unfit
    turned, other = s.pick(2), s.pick(2)
    m, k = x.dims[::-1] if turned else x.dims
    n = s.one(SIZES)
    if not isinstance(k, int):
        raise Unfit
    w = s.leaf((n, k) if other else (k, n), 1 / math.sqrt(max(k, 1)))
    operands = [x, w] + ([s.leaf(s.one(((n,), (1, n), ())))] if s.maybe(2) else [])
    alpha, beta = s.one(((1.0, 1.0), (0.5, 2.0), (-1.0, 0.25)))
    return s.node("Gemm", operands, (m, n), size=x.size * 2 + 2, transA=turned, transB=other, alpha=alpha, beta=beta)


def einsum(s: Sketch, x: Value) -> object:
    if len(x.dims) != 3 or "Einsum" in LACKING.get(x.dtype, ()):
        raise Unfit
    b, m, k = x.dims
    n = s.one(SIZES)
    equation, dims, made = s.one(
        (
            ("bmk,kn->bmn", (k, n), (b, m, n)),
            ("bmk,bkn->bnm", (b, k, n), (b, n, m)),
            ("bmk,nk->bmn", (n, k), (b, m, n)),
            ("bmk,mk->bk", (m, k), (b, k)),
        )
    )
    over = m if equation.endswith("bk") else k
    if over == 0:
        raise Unfit  # onnxruntime ends the process
    y = s.leaf(dims, 1 / math.sqrt(max(count(over), 1)))
    return s.node("Einsum", [x, y], made, size=x.size * 2, equation=equation)


def attention(s: Sketch, x: Value) -> object:
    """softmax(scale x k + mask) v, with heads in front or without."""
    if len(x.dims) < 2 or x.dims[-1] == 0 or elements_over(x) > 4000:
        raise Unfit
    heads, d = x.dims[:-2], x.dims[-1]
    keys: Dim = SYMBOL if s.symbolic and s.maybe(2) else s.one(SIZES)
    k, v = s.input((*heads, d, keys)), s.input((*heads, keys, s.one(SIZES[:8])))
    dims = (*x.dims[:-1], keys)
    scores = s.node("MatMul", [x, k], dims, size=x.size * math.sqrt(count(d)), keep=False)
    scale = s.constant(1 / math.sqrt(count(d)))
    scores = s.node("Mul", [scores, scale], dims, size=x.size, keep=False)
    kind = s.pick(4)
    if kind == 1:
        mask = s.input((*x.dims[-2:-1], keys), "bool")
        scores = s.node("Where", [mask, scores, s.constant(-1e4)], dims, dtype=x.dtype, size=x.size, keep=False)
    elif kind == 2:
        scores = s.node("Add", [scores, s.input((*x.dims[-2:-1], keys))], dims, size=x.size + 1, keep=False)
    elif kind == 3:
        cap = s.constant(5.0)
        scores = s.node("Div", [scores, cap], dims, size=x.size, keep=False)
        scores = s.node("Tanh", [scores], dims, keep=False)
        scores = s.node("Mul", [scores, cap], dims, size=5.0, keep=False)
    weights = s.node("Softmax", [scores], dims, axis=-1, keep=s.maybe(4))
    return s.node("MatMul", [weights, v], (*x.dims[:-1], v.dims[-1]), size=1.0)


def elements_over(x: Value) -> int:
    """Elements of all dimensions but the last."""
    return math.prod(count(d) for d in x.dims[:-1])


def gated(s: Sketch, x: Value) -> object:
    """silu(x w) * (x u), a gated layer: the input is shared."""
    if len(x.dims) < 2 or not isinstance(x.dims[-1], int) or x.dims[-1] == 0:
        raise Unfit
    k, n = x.dims[-1], s.one(SIZES)
    dims = (*x.dims[:-1], n)
    a, b = (s.node("MatMul", [x, s.weight((k, n), 1 / math.sqrt(k))], dims, size=x.size, keep=False) for _ in range(2))
    gate = s.node("Sigmoid", [a], dims, keep=False)
    gate = s.node("Mul", [a, gate], dims, size=x.size, keep=s.maybe(3))
    return s.node("Mul", [gate, b], dims, size=x.size**2)
