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


def scale(graph: Graph, x: int, factor: Number) -> int:
    """`factor * x`."""
    return x if factor == 1 else graph.map("mul", x, graph.fill(factor, graph.dtype(x)))


def shift(graph: Graph, x: int, term: Number) -> int:
    """`x + term`."""
    return x if term == 0 else graph.map("add", x, graph.fill(term, graph.dtype(x)))


def count(graph: Graph, x: int, dims: Sequence[int]) -> Extent:
    """Number of elements along `dims`."""
    rank = len(graph.dims(x))
    return ex.product(graph.dims(x)[d] for d in {d % rank for d in dims})


def mean(graph: Graph, x: int, dims: Sequence[int]) -> int:
    """Arithmetic mean along `dims`, kept with extent 1."""
    total = graph.reduce("sum", x, dims)
    n = count(graph, x, dims)
    if isinstance(n, int):
        return graph.map("div", total, graph.fill(n, graph.dtype(x)))
    ones = graph.expand(graph.fill(1, graph.dtype(x), (1,) * len(graph.dims(x))), graph.dims(x))
    return graph.map("div", total, graph.reduce("sum", ones, dims))


def square(graph: Graph, x: int) -> int:
    """`x * x`."""
    return graph.map("mul", x, x)


def power(graph: Graph, x: int, exponent: Number) -> int:
    """`x ** exponent`; small whole exponents become products and quotients, and half ones of what is never negative roots:
    of -infinity a root is NaN, and a power is not."""
    if exponent == 0.5 and never_negative(graph, x):
        return graph.map("sqrt", x)
    if exponent == -0.5 and never_negative(graph, x):
        return graph.map("rsqrt", x)
    if exponent == -1:
        return graph.map("recip", x)
    if exponent in (1, 2, 3, 4):
        result = x
        for _ in range(int(exponent) - 1):
            result = graph.map("mul", result, x)
        return result
    return graph.map("pow", x, graph.fill(exponent, graph.dtype(x)))


def converted(graph: Graph, x: int, to: DType) -> int:
    """A value in a float type; in a wider one, what is left of it."""
    return graph.cast(rounded_to_type(graph, x) if to.bytes > graph.dtype(x).bytes else x, to)


def rounded_to_type(graph: Graph, x: int) -> int:
    """The numbers of a value of 16 bits whose steps do not say that they were rounded to it."""
    return graph.map(f"round_{graph.dtype(x)}", x) if narrowed(graph, x) else x


def softmax(graph: Graph, x: int, dims: Sequence[int]) -> int:
    """exp(x) / sum(exp(x)) along `dims`."""
    e = graph.stable_exp(x, dims)
    return graph.map("div", e, graph.reduce("sum", e, dims))


def log_softmax(graph: Graph, x: int, dims: Sequence[int]) -> int:
    """x - max - log(sum(exp(x - max))) along `dims`."""
    shifted = graph.map("sub", x, graph.reduce("max", x, dims))
    return graph.map("sub", shifted, graph.map("log", graph.reduce("sum", graph.map("exp", shifted), dims)))


def log_sum_exp(graph: Graph, x: int, dims: Sequence[int]) -> int:
    """log(sum(exp(x))) along `dims`, with the maximum taken out where it is finite."""
    m = graph.reduce("max", x, dims)
    m = graph.map("where", graph.map("isinf", m), graph.fill(0, graph.dtype(x)), m)
    return graph.map("add", graph.map("log", graph.reduce("sum", graph.map("exp", graph.map("sub", x, m)), dims)), m)


def select(graph: Graph, condition: int, x: int, y: int) -> int:
    """`x` where `condition` holds, else `y`; a softmax whose NaN is replaced by 0 is a quotient of its own, div0.

    Recognised are isnan(q) and its spellings not(isnan(q)), q == q and not(q == q), for q = a / b also behind casts. Where b
    is the sum of all a of a row, it is NaN wherever some a is: whether the result is 0 depends on b alone, and what the
    quotient is multiplied with may come before it.
    """
    nan_test = _nan_test(graph, condition)
    if nan_test is not None:
        tested, positive = nan_test
        zero, kept = (x, y) if positive else (y, x)
        q = behind_casts(graph, kept)
        same = q == behind_casts(graph, tested) and broadcast([graph.dims(x), graph.dims(y)], "where") == graph.dims(
            kept
        )
        if same and graph.fill_value(zero) == 0 and graph.steps[q] == Map("div") and _is_share(graph, *graph.inputs[q]):
            return graph.cast(graph.map("div0", *graph.inputs[q]), graph.dtype(kept))
    return graph.map("where", condition, x, y)


def _nan_test(graph: Graph, v: int) -> tuple[int, bool] | None:
    """(q, whether the test holds for NaN) when `v` tests if q is NaN."""
    inputs = graph.inputs[v]
    match graph.steps[v]:
        case Map("isnan"):
            return inputs[0], True
        case Map("eq") if inputs[0] == inputs[1]:
            return inputs[0], False
        case Map("not"):
            inner = _nan_test(graph, inputs[0])
            return None if inner is None else (inner[0], not inner[1])
    return None


def _is_share(graph: Graph, part: int, total: int) -> bool:
    """True if a value is divided by a sum of such values."""
    total = behind_casts(graph, total)
    step = graph.steps[total]
    return (
        isinstance(step, Reduce)
        and step.kind == "sum"
        and behind_casts(graph, graph.inputs[total][0]) == behind_casts(graph, part)
    )


def behind_casts(graph: Graph, v: int) -> int:
    """The value that casts are of."""
    while isinstance(graph.steps[v], Cast):
        (v,) = graph.inputs[v]
    return v


def rms_norm(graph: Graph, x: int, dims: Sequence[int], epsilon: Number) -> int:
    """x / sqrt(mean(x^2) + epsilon) along `dims`."""
    return graph.map("div", x, graph.map("sqrt", shift(graph, mean(graph, square(graph, x), dims), epsilon)))


def centred(graph: Graph, x: int, dims: Sequence[int]) -> int:
    """x minus its mean along `dims`."""
    return graph.map("sub", x, mean(graph, x, dims))


def layer_norm(graph: Graph, x: int, dims: Sequence[int], epsilon: Number) -> int:
    """(x - mean) / sqrt(variance + epsilon) along `dims`."""
    return rms_norm(graph, centred(graph, x, dims), dims, epsilon)


def affine(graph: Graph, x: int, gain: int | None, bias: int | None) -> int:
    """`x * gain + bias`, each broadcast and optional."""
    if gain is not None:
        x = graph.map("mul", x, gain)
    return x if bias is None else graph.map("add", x, bias)


def matmul(graph: Graph, x: int, y: int) -> int:
    """numpy's matmul: the last two dimensions contracted, the others broadcast, vectors padded."""
    vector_x, vector_y = len(graph.dims(x)) == 1, len(graph.dims(y)) == 1
    if vector_x:
        x = graph.reshape(x, (1, *graph.dims(x)))
    if vector_y:
        y = graph.reshape(y, (*graph.dims(y), 1))
    rank = max(len(graph.dims(x)), len(graph.dims(y)))
    m, k, n = rank - 2, rank - 1, rank
    batch = range(rank - 2)
    lhs = [*list(batch)[rank - len(graph.dims(x)) :], m, k]
    rhs = [*list(batch)[rank - len(graph.dims(y)) :], k, n]
    z = graph.contract(x, y, lhs, rhs, [*batch, m, n])
    if vector_x or vector_y:
        dims = list(graph.dims(z))
        keep = [e for i, e in enumerate(dims) if not ((vector_y and i == rank - 1) or (vector_x and i == rank - 2))]
        z = graph.reshape(z, keep)
    return z


def linear(graph: Graph, x: int, weight: int, transposed: bool = False) -> int:
    """Rows of `x` times a two-dimensional weight [k, n], or [n, k] when `transposed`."""
    rank = len(graph.dims(x))
    rows = list(range(rank - 1))
    k, n = rank - 1, rank
    return graph.contract(x, weight, [*rows, k], [n, k] if transposed else [k, n], [*rows, n])


def attention_mask(graph: Graph, scores: int, mask: int) -> int:
    """Scores with an additive (float) or keeping (boolean) mask applied."""
    if graph.dtype(mask).is_float:
        return graph.map("add", scores, mask)
    return graph.map("where", mask, scores, graph.fill(float("-inf"), graph.dtype(scores)))


def causal(graph: Graph, scores: int, offset: int = 0) -> int:
    """Scores with -inf where key index > query index + offset (the last two dimensions)."""
    rank, dims = len(graph.dims(scores)), graph.dims(scores)
    dtype = graph.dtype(scores)
    rows = shift(graph, graph.iota(dims[-2], rank - 2, rank, dtype), offset)
    keep = graph.map("le", graph.iota(dims[-1], rank - 1, rank, dtype), rows)
    return attention_mask(graph, scores, keep)


def soft_cap(graph: Graph, x: int, cap: Number) -> int:
    """cap * tanh(x / cap)."""
    return scale(graph, graph.map("tanh", graph.map("div", x, graph.fill(cap, graph.dtype(x)))), cap)
