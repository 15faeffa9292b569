"""Products of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from mirage_cli.truth.calls.call import Call, Limits, meaning
from mirage_cli.truth.calls.values import Array, Tensor

NEAR_ONE = 0.01  #: how far rounded weights of a mean are from a sum of 1, at most


def matmul(limits: Limits, a: Array, b: Array) -> Array:
    """numpy's product of stacks of matrices, within the limits of a run."""
    left, right = a if a.ndim > 1 else a[None], b if b.ndim > 1 else b[:, None]
    stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    shape = (*stack, left.shape[-2], right.shape[-1])
    limits.check_shape(shape)
    limits.check_work(float(math.prod(shape)) * left.shape[-1])
    return np.asarray(np.matmul(a, b))


def product(call: Call, a: Array, b: Array) -> Array:
    """The same for a call; without `hidden` rows that weigh a mean (they sum to 1) do not read what they weigh with 0."""
    whole, numbers = matmul(call.limits, a, b), np.isfinite(b)
    if call.hidden or numbers.all() or min(a.ndim, b.ndim) < 2:
        return whole
    sums = a.sum(axis=-1, keepdims=True, dtype=np.float64)
    weighs = (a >= 0).all(axis=-1, keepdims=True) & (np.abs(sums - 1) < NEAR_ONE)
    reads = matmul(call.limits, (a != 0).astype(np.float64), (~numbers).astype(np.float64)) > 0
    shown = matmul(call.limits, a, np.where(numbers, b, np.zeros_like(b)))
    return np.where(weighs & ~reads, shown, whole)


@meaning("MatMul")
def _matmul(call: Call) -> Tensor:
    return call.like(product(call, call.array(0), call.array(1)))


def gemm(call: Call) -> Array:
    """alpha A B + beta C, with A and B transposed where the node says so."""
    a = call.array(0).T if call.integer("transA", 0) else call.array(0)
    b = call.array(1).T if call.integer("transB", 0) else call.array(1)
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    product = matmul(call.limits, a, b)
    scaled = product if alpha == 1 else (alpha * product).astype(product.dtype)
    c = call.maybe(2)
    if c is None or beta == 0:
        return scaled
    return np.asarray(scaled + (c if beta == 1 else (beta * c).astype(product.dtype)))


@meaning("Gemm")
def _gemm(call: Call) -> Tensor:
    return call.like(gemm(call))


@meaning("FusedGemm", domain="com.microsoft")
def _fused_gemm(call: Call) -> Tensor:
    y, name = gemm(call), call.text("activation", "")
    alpha, beta = call.number("activation_alpha", 0.01), call.number("activation_beta", 0.0)
    return call.like(activation(name, y, alpha, beta) if name else y)


def activation(name: str, x: Array, alpha: float, beta: float) -> Array:
    """An activation function that is fused into another operator, by its name."""
    functions: dict[str, Callable[[], Array]] = {
        "Relu": lambda: np.maximum(x, 0),
        "LeakyRelu": lambda: np.where(x >= 0, x, alpha * x),
        "Tanh": lambda: np.tanh(x),
        "Sigmoid": lambda: 1 / (1 + np.exp(-x)),
        "Clip": lambda: np.minimum(np.maximum(x, alpha), beta),
        "HardSigmoid": lambda: np.clip(alpha * x + beta, 0, 1),
    }
    return np.asarray(functions[name]())


@meaning("FusedMatMul", "TransposeMatMul", domain="com.microsoft")
def _fused_matmul(call: Call) -> Tensor:
    a, b = call.array(0), call.array(1)
    a = _turned(a, bool(call.integer("transBatchA", 0)), bool(call.integer("transA", 0)))
    b = _turned(b, bool(call.integer("transBatchB", 0)), bool(call.integer("transB", 0)))
    return call.like(call.number("alpha", 1.0) * matmul(call.limits, a, b))


def _turned(x: Array, batch: bool, matrix: bool) -> Array:
    """An operand of FusedMatMul in the usual layout: `batch` says that the matrix's rows come in front of the stack."""
    if x.ndim < 2:
        return x
    if batch:
        x = np.moveaxis(x, 0, -2)
    return np.swapaxes(x, -1, -2) if matrix else x


@meaning("Einsum")
def _einsum(call: Call) -> Tensor:
    equation = call.text("equation").replace(" ", "")
    arrays = call.arrays()
    _check_einsum(call.limits, equation, arrays)
    return call.like(np.einsum(equation, *arrays, optimize=True))


def _check_einsum(limits: Limits, equation: str, arrays: Sequence[Array]) -> None:
    """Check the work of an einsum that is done in one sweep over all its letters, and the size of its result."""
    terms, _, result = equation.partition("->")
    sizes: dict[str, int] = {}
    rest = 1
    for term, array in zip(terms.split(","), arrays, strict=True):
        front, dots, back = term.partition("...")
        for letter, size in [*zip(front, array.shape, strict=False)]:
            sizes[letter] = max(size, sizes.get(letter, 1))
        for letter, size in zip(reversed(back if dots else ""), reversed(array.shape), strict=False):
            sizes[letter] = max(size, sizes.get(letter, 1))
        if dots:
            rest = max(rest, math.prod(array.shape[len(front) : array.ndim - len(back)]))
    limits.check_work(float(math.prod(sizes.values())) * rest)
    limits.check_shape(
        [*(sizes.get(letter, 1) for letter in result.replace("...", "")), rest if "..." in result else 1]
    )


@meaning("Det")
def _det(call: Call) -> Tensor:
    return call.like(np.linalg.det(call.array(0)))


@meaning("Inverse", domain="com.microsoft")
def _inverse(call: Call) -> Tensor:
    return call.like(np.linalg.inv(call.array(0)))
