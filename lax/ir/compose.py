"""Composite operators written in the primitive ones; every front end and the Python interface build on these.

Dimensions are positional; negative ones count from the end. Sources: the ONNX operator specification (softmax,
normalisations, Gelu, attention), which agrees with PyTorch's functions of the same names.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Number
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.graph import Cast, Graph, Map, Reduce, broadcast
from mirage_cli.lax.ir.magnitudes import narrowed, never_negative


def scale(g: Graph, x: int, factor: Number) -> int:
    """`factor * x`."""
    return x if factor == 1 else g.map("mul", x, g.fill(factor, g.dtype(x)))


def shift(g: Graph, x: int, term: Number) -> int:
    """`x + term`."""
    return x if term == 0 else g.map("add", x, g.fill(term, g.dtype(x)))


def count(g: Graph, x: int, dims: Sequence[int]) -> Extent:
    """Number of elements along `dims`."""
    rank = len(g.dims(x))
    return ex.product(g.dims(x)[d] for d in {d % rank for d in dims})


def mean(g: Graph, x: int, dims: Sequence[int]) -> int:
    """Arithmetic mean along `dims`, kept with extent 1."""
    total = g.reduce("sum", x, dims)
    n = count(g, x, dims)
    if isinstance(n, int):
        return g.map("div", total, g.fill(n, g.dtype(x)))
    ones = g.expand(g.fill(1, g.dtype(x), (1,) * len(g.dims(x))), g.dims(x))
    return g.map("div", total, g.reduce("sum", ones, dims))


def square(g: Graph, x: int) -> int:
    """`x * x`."""
    return g.map("mul", x, x)


def power(g: Graph, x: int, exponent: Number) -> int:
    """`x ** exponent`; small whole exponents become products and quotients, and half ones of what is never negative roots:
    of -infinity a root is NaN, and a power is not."""
    if exponent == 0.5 and never_negative(g, x):
        return g.map("sqrt", x)
    if exponent == -0.5 and never_negative(g, x):
        return g.map("rsqrt", x)
    if exponent == -1:
        return g.map("recip", x)
    if exponent in (1, 2, 3, 4):
        result = x
        for _ in range(int(exponent) - 1):
            result = g.map("mul", result, x)
        return result
    return g.map("pow", x, g.fill(exponent, g.dtype(x)))


def converted(g: Graph, x: int, to: DType) -> int:
    """A value in a float type; in a wider one, what is left of it."""
    return g.cast(rounded_to_type(g, x) if to.bytes > g.dtype(x).bytes else x, to)


def rounded_to_type(g: Graph, x: int) -> int:
    """The numbers of a value of 16 bits whose steps do not say that they were rounded to it."""
    return g.map(f"round_{g.dtype(x)}", x) if narrowed(g, x) else x


def softmax(g: Graph, x: int, dims: Sequence[int]) -> int:
    """exp(x) / sum(exp(x)) along `dims`."""
    e = g.stable_exp(x, dims)
    return g.map("div", e, g.reduce("sum", e, dims))


def log_softmax(g: Graph, x: int, dims: Sequence[int]) -> int:
    """x - max - log(sum(exp(x - max))) along `dims`."""
    shifted = g.map("sub", x, g.reduce("max", x, dims))
    return g.map("sub", shifted, g.map("log", g.reduce("sum", g.map("exp", shifted), dims)))


def log_sum_exp(g: Graph, x: int, dims: Sequence[int]) -> int:
    """log(sum(exp(x))) along `dims`, with the maximum taken out where it is finite."""
    m = g.reduce("max", x, dims)
    m = g.map("where", g.map("isinf", m), g.fill(0, g.dtype(x)), m)
    return g.map("add", g.map("log", g.reduce("sum", g.map("exp", g.map("sub", x, m)), dims)), m)


def select(g: Graph, condition: int, x: int, y: int) -> int:
    """`x` where `condition` holds, else `y`; a softmax whose NaN is replaced by 0 is a quotient of its own, div0.

    Recognised are isnan(q) and its spellings not(isnan(q)), q == q and not(q == q), for q = a / b also behind casts. Where b
    is the sum of all a of a row, it is NaN wherever some a is: whether the result is 0 depends on b alone, and what the
    quotient is multiplied with may come before it.
    """
    nan_test = _nan_test(g, condition)
    if nan_test is not None:
        tested, positive = nan_test
        zero, kept = (x, y) if positive else (y, x)
        q = _behind_casts(g, kept)
        same = q == _behind_casts(g, tested) and broadcast([g.dims(x), g.dims(y)], "where") == g.dims(kept)
        if same and g.fill_value(zero) == 0 and g.steps[q] == Map("div") and _is_share(g, *g.inputs[q]):
            return g.cast(g.map("div0", *g.inputs[q]), g.dtype(kept))
    return g.map("where", condition, x, y)


def _nan_test(g: Graph, v: int) -> tuple[int, bool] | None:
    """(q, whether the test holds for NaN) when `v` tests if q is NaN."""
    inputs = g.inputs[v]
    match g.steps[v]:
        case Map("isnan"):
            return inputs[0], True
        case Map("eq") if inputs[0] == inputs[1]:
            return inputs[0], False
        case Map("not"):
            inner = _nan_test(g, inputs[0])
            return None if inner is None else (inner[0], not inner[1])
    return None


def _is_share(g: Graph, part: int, total: int) -> bool:
    """True if a value is divided by a sum of such values."""
    total = _behind_casts(g, total)
    step = g.steps[total]
    return (
        isinstance(step, Reduce)
        and step.kind == "sum"
        and _behind_casts(g, g.inputs[total][0]) == _behind_casts(g, part)
    )


def _behind_casts(g: Graph, v: int) -> int:
    while isinstance(g.steps[v], Cast):
        (v,) = g.inputs[v]
    return v


def rms_norm(g: Graph, x: int, dims: Sequence[int], epsilon: Number) -> int:
    """x / sqrt(mean(x^2) + epsilon) along `dims`."""
    return g.map("div", x, g.map("sqrt", shift(g, mean(g, square(g, x), dims), epsilon)))


def centred(g: Graph, x: int, dims: Sequence[int]) -> int:
    """x minus its mean along `dims`."""
    return g.map("sub", x, mean(g, x, dims))


def layer_norm(g: Graph, x: int, dims: Sequence[int], epsilon: Number) -> int:
    """(x - mean) / sqrt(variance + epsilon) along `dims`."""
    return rms_norm(g, centred(g, x, dims), dims, epsilon)


def affine(g: Graph, x: int, gain: int | None, bias: int | None) -> int:
    """`x * gain + bias`, each broadcast and optional."""
    if gain is not None:
        x = g.map("mul", x, gain)
    return x if bias is None else g.map("add", x, bias)


def matmul(g: Graph, x: int, y: int) -> int:
    """numpy's matmul: the last two dimensions contracted, the others broadcast, vectors padded."""
    vector_x, vector_y = len(g.dims(x)) == 1, len(g.dims(y)) == 1
    if vector_x:
        x = g.reshape(x, (1, *g.dims(x)))
    if vector_y:
        y = g.reshape(y, (*g.dims(y), 1))
    rank = max(len(g.dims(x)), len(g.dims(y)))
    m, k, n = rank - 2, rank - 1, rank
    batch = range(rank - 2)
    lhs = [*list(batch)[rank - len(g.dims(x)) :], m, k]
    rhs = [*list(batch)[rank - len(g.dims(y)) :], k, n]
    z = g.contract(x, y, lhs, rhs, [*batch, m, n])
    if vector_x or vector_y:
        dims = list(g.dims(z))
        keep = [e for i, e in enumerate(dims) if not ((vector_y and i == rank - 1) or (vector_x and i == rank - 2))]
        z = g.reshape(z, keep)
    return z


def linear(g: Graph, x: int, weight: int, transposed: bool = False) -> int:
    """Rows of `x` times a two-dimensional weight [k, n], or [n, k] when `transposed`."""
    rank = len(g.dims(x))
    rows = list(range(rank - 1))
    k, n = rank - 1, rank
    return g.contract(x, weight, [*rows, k], [n, k] if transposed else [k, n], [*rows, n])


def attention_mask(g: Graph, scores: int, mask: int) -> int:
    """Scores with an additive (float) or keeping (boolean) mask applied."""
    if g.dtype(mask).is_float:
        return g.map("add", scores, mask)
    return g.map("where", mask, scores, g.fill(float("-inf"), g.dtype(scores)))


def causal(g: Graph, scores: int, offset: int = 0) -> int:
    """Scores with -inf where key index > query index + offset (the last two dimensions)."""
    rank, dims = len(g.dims(scores)), g.dims(scores)
    dtype = g.dtype(scores)
    rows = shift(g, g.iota(dims[-2], rank - 2, rank, dtype), offset)
    keep = g.map("le", g.iota(dims[-1], rank - 1, rank, dtype), rows)
    return attention_mask(g, scores, keep)


def soft_cap(g: Graph, x: int, cap: Number) -> int:
    """cap * tanh(x / cap)."""
    return scale(g, g.map("tanh", g.map("div", x, g.fill(cap, g.dtype(x)))), cap)
