"""What the ONNX operators of random programs mean, in numpy: written from ONNX's specification, apart from the front end.

Every function takes the operands as arrays (floats in float64) and the node's attributes; it gives one array or a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Meaning = Callable[..., Any]

_erf = np.vectorize(erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(x, 0.0))


def _gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + _erf(x / np.sqrt(2))))


def _softmax(x: Array, axis: int = -1) -> Array:
    if x.size == 0:
        return x
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


def _log_softmax(x: Array, axis: int = -1) -> Array:
    shifted = x - x.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def _layer_norm(
    x: Array, gain: Array, bias: Array | None = None, axis: int = -1, epsilon: float = 1e-5, mean: Array | None = None
) -> Array:
    over = tuple(range(axis % x.ndim, x.ndim))
    centred = x - (x.mean(axis=over, keepdims=True) if mean is None else mean)
    normal = centred / np.sqrt((centred * centred).mean(axis=over, keepdims=True) + epsilon)
    return np.asarray(normal * gain if bias is None else normal * gain + bias)


def _rms_norm(x: Array, gain: Array, axis: int = -1, epsilon: float = 1e-5) -> Array:
    over = tuple(range(axis % x.ndim, x.ndim))
    return np.asarray(x / np.sqrt((x * x).mean(axis=over, keepdims=True) + epsilon) * gain)


def _reducing(f: Callable[..., Any]) -> Meaning:
    def reduce(x: Array, axes: Array | None = None, keepdims: int = 1) -> Array:
        over = None if axes is None else tuple(int(a) % x.ndim for a in axes)
        return np.asarray(f(x, axis=over, keepdims=bool(keepdims)))

    return reduce


def _log_sum_exp(x: Array, **over: Any) -> Array:
    return np.asarray(np.logaddexp.reduce(x, **over))


def _gemm(
    a: Array, b: Array, c: Array | None = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Array:
    product = alpha * ((a.T if transA else a) @ (b.T if transB else b))
    return np.asarray(product if c is None else product + beta * c)


def _slice(x: Array, starts: Array, ends: Array, axes: Array, steps: Array) -> Array:
    at: list[slice] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at[int(axis)] = slice(int(start), None if step < 0 and end < -x.shape[axis] else int(end), int(step))
    return x[tuple(at)]


def _reshape(x: Array, shape: Array) -> Array:
    return x.reshape([x.shape[k] if n == 0 else int(n) for k, n in enumerate(shape)])


def _split(x: Array, sizes: Array, axis: int = 0) -> list[Array]:
    return list(np.split(x, np.cumsum(sizes)[:-1], axis=axis))


def _where_elu(x: Array, below: Array) -> Array:
    return np.where(x > 0, x, below)


_SELU = (1.67326319217681884765625, 1.05070102214813232421875)

MEANINGS: dict[str, Meaning] = {
    "Abs": np.abs,
    "Neg": np.negative,
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": _sigmoid,
    "Tanh": np.tanh,
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "Erf": _erf,
    "Sin": np.sin,
    "Cos": np.cos,
    "Reciprocal": lambda x: 1 / x,
    "Softplus": _softplus,
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Gelu": _gelu,
    "Mish": lambda x: x * np.tanh(_softplus(x)),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Elu": lambda x, alpha=1.0: _where_elu(x, alpha * np.expm1(np.minimum(x, 0))),
    "Celu": lambda x, alpha=1.0: _where_elu(x, alpha * np.expm1(np.minimum(x, 0) / alpha)),
    "Selu": lambda x: _SELU[1] * _where_elu(x, _SELU[0] * np.expm1(np.minimum(x, 0))),
    "LeakyRelu": lambda x, alpha=0.01: _where_elu(x, alpha * x),
    "ThresholdedRelu": lambda x, alpha=1.0: np.where(x > alpha, x, 0),
    "Shrink": lambda x, lambd=0.5, bias=0.0: np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)),
    "PRelu": lambda x, slope: np.where(x < 0, slope * x, x),
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sign": np.sign,
    "IsNaN": np.isnan,
    "IsInf": np.isinf,
    "Identity": lambda x: x,
    "Clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": lambda x, y: np.power(x, y.astype(np.float64)),
    "Max": np.maximum,
    "Min": np.minimum,
    "Sum": lambda *xs: sum(xs[1:], xs[0]),
    "Mean": lambda *xs: sum(xs[1:], xs[0]) / len(xs),
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Equal": np.equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Not": np.logical_not,
    "Where": np.where,
    "MatMul": np.matmul,
    "Gemm": _gemm,
    "Einsum": lambda *xs, equation: np.einsum(equation, *xs),
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "ReduceSum": _reducing(np.sum),
    "ReduceMean": _reducing(np.mean),
    "ReduceMax": _reducing(np.max),
    "ReduceMin": _reducing(np.min),
    "ReduceProd": _reducing(np.prod),
    "ReduceL1": _reducing(lambda x, **over: np.abs(x).sum(**over)),
    "ReduceL2": _reducing(lambda x, **over: np.sqrt((x * x).sum(**over))),
    "ReduceSumSquare": _reducing(lambda x, **over: (x * x).sum(**over)),
    "ReduceLogSumExp": _reducing(_log_sum_exp),
    "Transpose": lambda x, perm: x.transpose(perm),
    "Reshape": _reshape,
    "Flatten": lambda x, axis=1: x.reshape(int(np.prod(x.shape[:axis])), -1),
    "Squeeze": lambda x, axes: np.squeeze(x, tuple(int(a) for a in axes)),
    "Unsqueeze": lambda x, axes: np.expand_dims(x, tuple(int(a) for a in axes)),
    "Slice": _slice,
    "Split": _split,
    "Concat": lambda *xs, axis: np.concatenate(xs, axis),
    "Expand": lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, [int(n) for n in shape])),
    "Tile": lambda x, repeats: np.tile(x, [int(n) for n in repeats]),
    "Gather": lambda x, indices, axis=0: np.take(x, indices, axis),
    "Trilu": lambda x, k, upper=1: np.triu(x, int(k)) if upper else np.tril(x, int(k)),
}
FLOATS = ("float32", "float16", "bfloat16", "float64")


def meant(op: str, operands: Sequence[Array], attributes: Mapping[str, Any]) -> list[Array]:
    """What the outputs of a node are."""
    if op == "Cast":
        return [operands[0].astype(np.float64 if attributes["to"] in FLOATS else attributes["to"])]
    made = MEANINGS[op](*operands, **attributes)
    return made if isinstance(made, list) else [np.asarray(made)]
