"""Operators that work on each element for itself, broadcast against each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, broadcast, meaning
from mirage_cli.truth.calls.values import Array, Tensor, plain

LOW = -(2.0**125)  #: numbers not above it hide scores: the lowest of float32 and bfloat16, and minus infinity


def erf(x: Array) -> Array:
    """The error function of every element."""
    return np.array([math.erf(v) for v in x.ravel().tolist()], np.float64).reshape(x.shape)


def erfc(x: Array) -> Array:
    """1 - erf of every element, without loss where erf is near 1."""
    return np.array([math.erfc(v) for v in x.ravel().tolist()], np.float64).reshape(x.shape)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x)."""
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def softplus(x: Array) -> Array:
    """log(1 + e^x)."""
    return np.logaddexp(0.0, x)


def gelu(x: Array) -> Array:
    """x times the normal distribution up to x."""
    return np.asarray(np.where(np.isneginf(x), -0.0, 0.5 * x * erfc(-x * math.sqrt(0.5))))


def gelu_tanh(x: Array) -> Array:
    """The approximation of gelu by tanh: 0.5 x (1 + tanh y) is x sigmoid(2 y)."""
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


@meaning(
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Log", "Neg"
)
@meaning("Reciprocal", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "Mish")
@meaning("HardSwish")
def _function(call: Call) -> Tensor:
    functions: dict[str, Callable[[Array], Array]] = {
        "Abs": np.abs,
        "Acos": np.arccos,
        "Acosh": np.arccosh,
        "Asin": np.arcsin,
        "Asinh": np.arcsinh,
        "Atan": np.arctan,
        "Atanh": np.arctanh,
        "Ceil": np.ceil,
        "Cos": np.cos,
        "Cosh": np.cosh,
        "Erf": lambda x: erf(x.astype(np.float64)).astype(x.dtype),
        "Exp": np.exp,
        "Floor": np.floor,
        "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        "Log": np.log,
        "Mish": lambda x: x * np.tanh(softplus(x)),
        "Neg": np.negative,
        "Reciprocal": np.reciprocal,
        "Round": np.rint,
        "Sigmoid": sigmoid,
        "Sign": np.sign,
        "Sin": np.sin,
        "Sinh": np.sinh,
        "Softplus": softplus,
        "Softsign": lambda x: x / (1 + np.abs(x)),
        "Sqrt": np.sqrt,
        "Tan": np.tan,
        "Tanh": np.tanh,
    }
    return call.like(functions[call.node.op_type](call.array(0)))


@meaning("Relu")
def _relu(call: Call) -> Tensor:
    x = call.array(0)
    return call.like(np.maximum(x, x.dtype.type(0)))


@meaning("LeakyRelu")
def _leaky_relu(call: Call) -> Tensor:
    x = call.array(0)
    return call.like(np.where(x >= 0, x, x * call.number("alpha", 0.01)))


@meaning("PRelu")
def _prelu(call: Call) -> Tensor:
    x, slope = call.array(0), call.array(1)
    if slope.ndim > x.ndim:
        raise Refused(f"slope of shape {slope.shape} does not fit x of {x.shape}")
    return call.like(np.where(x >= 0, x, x * slope))


@meaning("Elu")
def _elu(call: Call) -> Tensor:
    x = call.array(0)
    return call.like(np.where(x >= 0, x, call.number("alpha", 1.0) * np.expm1(x)))


@meaning("Selu")
def _selu(call: Call) -> Tensor:
    x = call.array(0)
    alpha, gamma = call.number("alpha", 1.67326319217681884765625), call.number("gamma", 1.05070102214813232421875)
    return call.like(gamma * np.where(x > 0, x, alpha * np.expm1(x)))


@meaning("Celu")
def _celu(call: Call) -> Tensor:
    x, alpha = call.array(0), call.number("alpha", 1.0)
    return call.like(np.maximum(0, x) + np.minimum(0, alpha * np.expm1(x / alpha)))


@meaning("HardSigmoid")
def _hard_sigmoid(call: Call) -> Tensor:
    return call.like(np.clip(call.number("alpha", 0.2) * call.array(0) + call.number("beta", 0.5), 0, 1))


@meaning("ThresholdedRelu")
def _thresholded_relu(call: Call) -> Tensor:
    x = call.array(0)
    return call.like(np.where(x > call.number("alpha", 1.0), x, 0.0))


@meaning("Shrink")
def _shrink(call: Call) -> Tensor:
    x, bias, bound = call.array(0), call.number("bias", 0.0), call.number("lambd", 0.5)
    y = x.astype(np.float64)
    return call.like(np.where(y < -bound, y + bias, np.where(y > bound, y - bias, 0.0)).astype(x.dtype))


@meaning("Gelu")
def _gelu(call: Call) -> Tensor:
    return call.like(gelu_tanh(call.array(0)) if call.text("approximate", "none") == "tanh" else gelu(call.array(0)))


@meaning("Swish")
def _swish(call: Call) -> Tensor:
    x = call.array(0)
    return call.like(x * sigmoid(call.number("alpha", 1.0) * x))


@meaning("SwiGLU")
def _swiglu(call: Call) -> Tensor:
    gate, value = call.array(0), call.array(1)
    return call.like(gate * sigmoid(call.number("alpha", 1.0) * gate) * value)


@meaning("Clip")
def _clip(call: Call) -> Tensor:
    x = call.array(0)
    if call.version < 11:
        low, high = (call.number(name, 0.0) if call.has(name) else None for name in ("min", "max"))
    else:
        low, high = (call.scalar(i) if call.given(i) else None for i in (1, 2))
    if low is not None:
        x = np.maximum(x, x.dtype.type(low))
    return call.like(x if high is None else np.minimum(x, x.dtype.type(high)))


@meaning("Not")
def _not(call: Call) -> Tensor:
    return call.like(np.logical_not(call.array(0)))


@meaning("IsNaN")
def _is_nan(call: Call) -> Tensor:
    return plain(np.isnan(call.array(0)))


@meaning("IsInf")
def _is_inf(call: Call) -> Tensor:
    x = call.array(0)
    up = np.isposinf(x) & bool(call.integer("detect_positive", 1))
    return plain(up | (np.isneginf(x) & bool(call.integer("detect_negative", 1))))


def shown(call: Call, result: Array, *of: Array) -> Array:
    """A result; without `hidden` minus infinity where one of the numbers that it is `of` is so low that it hides scores."""
    if call.hidden or result.dtype.kind != "f":
        return result
    return np.where(reduce(np.logical_or, (x <= LOW for x in of)), -np.inf, result)


@meaning("Add", "Sub", "Mul", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _binary(call: Call) -> Tensor:
    functions: dict[str, Callable[[Array, Array], Array]] = {
        "Add": lambda x, y: shown(call, x + y, x, y),
        "Sub": np.subtract,
        "Mul": np.multiply,
        "And": np.logical_and,
        "Or": np.logical_or,
        "Xor": np.logical_xor,
        "BitwiseAnd": np.bitwise_and,
        "BitwiseOr": np.bitwise_or,
        "BitwiseXor": np.bitwise_xor,
    }
    a, b = call.array(0), call.array(1)
    broadcast(call, a, b)
    return call.like(functions[call.node.op_type](a, b))


@meaning("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
def _compare(call: Call) -> Tensor:
    functions: dict[str, Callable[[Array, Array], Array]] = {
        "Equal": np.equal,
        "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal,
        "Less": np.less,
        "LessOrEqual": np.less_equal,
    }
    a, b = call.array(0), call.array(1)
    broadcast(call, a, b)
    return plain(np.asarray(functions[call.node.op_type](a, b)).astype(np.bool_))


@meaning("BitwiseNot")
def _bitwise_not(call: Call) -> Tensor:
    return call.like(np.invert(call.array(0)))


@meaning("BitShift")
def _bit_shift(call: Call) -> Tensor:
    a, b = call.array(0), call.array(1)
    broadcast(call, a, b)
    bits = a.dtype.itemsize * 8
    shift = np.left_shift if call.text("direction") == "LEFT" else np.right_shift
    beyond = (
        np.where(a < 0, a.dtype.type(-1), a.dtype.type(0)) if shift is np.right_shift and a.dtype.kind == "i" else 0
    )
    return call.like(np.where(b < bits, shift(a, np.minimum(b, b.dtype.type(bits - 1))), beyond).astype(a.dtype))


@meaning("Div")
def _div(call: Call) -> Tensor:
    a, b = call.array(0), call.array(1)
    broadcast(call, a, b)
    return call.like(a / b if a.dtype.kind in "fc" else _truncated(a, b))


def _truncated(a: Array, b: Array) -> Array:
    """The quotient of integers, rounded towards zero; Refused for a divisor of zero."""
    if not np.all(b):
        raise Refused("an integer is divided by zero")
    quotient = np.floor_divide(a, b)
    off = (quotient * b != a) & ((a < 0) != (b < 0))
    return np.asarray(quotient + off.astype(quotient.dtype))


@meaning("Mod")
def _mod(call: Call) -> Tensor:
    a, b = call.array(0), call.array(1)
    broadcast(call, a, b)
    if a.dtype.kind != "f" and not np.all(b):
        raise Refused("an integer is divided by zero")
    return call.like(np.fmod(a, b) if call.integer("fmod", 0) else np.mod(a, b))


@meaning("Pow")
def _pow(call: Call) -> Tensor:
    a, b = call.array(0), call.array(1)
    broadcast(call, a, b)
    if a.dtype.kind == "f":
        return call.like(np.power(a, b.astype(np.float64)))
    if b.dtype.kind in "iu" and not np.any(b < 0):
        return call.like(np.power(a, b.astype(np.int64).astype(a.dtype)))
    return call.like(to_integers(np.power(a.astype(np.float64), b.astype(np.float64)), a.dtype))


def to_integers(x: Array, target: np.dtype[np.generic]) -> Array:
    """Floats as integers, as C on x86 casts them: towards zero, and the lowest number for NaN and what is out of range.

    Narrow types take the low bits of a cast to int32, unsigned ones those of a cast to int64; too much for uint64 is 0.
    """
    whole = np.trunc(x)
    wide = np.int32 if target.itemsize < 4 or target == np.int32 else np.int64
    edge = 2.0 ** (31 if wide == np.int32 else 63)
    inside = (whole >= -edge) & (whole < edge)
    near = np.where(inside, np.where(inside, whole, 0).astype(wide), wide(-edge))
    if target != np.uint64:
        return near.astype(target)
    high = (whole >= edge) & (whole < 2 * edge)
    upper = np.where(high, np.where(high, whole, 0).astype(np.uint64), near.astype(np.uint64))
    return np.where(whole >= 2 * edge, np.uint64(0), upper)


@meaning("Max", "Min", "Sum", "Mean")
def _variadic(call: Call) -> Tensor:
    arrays = call.arrays()
    broadcast(call, *arrays)
    functions: dict[str, Callable[[Array, Array], Array]] = {
        "Max": np.maximum,
        "Min": np.minimum,
        "Sum": np.add,
        "Mean": np.add,
    }
    total = reduce(functions[call.node.op_type], arrays)
    return call.like(total / len(arrays) if call.node.op_type == "Mean" else total)


@meaning("Where")
def _where(call: Call) -> Tensor:
    broadcast(call, *call.arrays())
    chosen = np.where(call.array(0), call.array(1), call.array(2))
    return call.like(shown(call, chosen, chosen), 1)


@meaning("BiasGelu", domain="com.microsoft")
def _bias_gelu(call: Call) -> Tensor:
    return call.like(gelu(call.array(0) + call.array(1)))


@meaning("Gelu", domain="com.microsoft")
def _microsoft_gelu(call: Call) -> Tensor:
    return call.like(gelu(call.array(0)))


@meaning("FastGelu", domain="com.microsoft")
def _fast_gelu(call: Call) -> Tensor:
    bias = call.maybe(1)
    return call.like(gelu_tanh(call.array(0) if bias is None else call.array(0) + bias))


@meaning("QuickGelu", domain="com.microsoft")
def _quick_gelu(call: Call) -> Tensor:
    x = call.array(0)
    return call.like(x * sigmoid(call.number("alpha", 1.702) * x))


@meaning("BiasSplitGelu", domain="com.microsoft")
def _bias_split_gelu(call: Call) -> Tensor:
    left, right = np.split(call.array(0) + call.array(1), 2, axis=-1)
    return call.like(left * gelu(right))


@meaning("BiasAdd", domain="com.microsoft")
def _bias_add(call: Call) -> Tensor:
    return call.like(call.array(0) + call.array(1) + call.array(2))


@meaning("IsAllFinite", domain="com.microsoft")
def _is_all_finite(call: Call) -> Tensor:
    infinities = call.integer("isinf_only", 0)
    nans = call.integer("isnan_only", 0)
    bad = [np.isinf if infinities else np.isnan if nans else lambda x: ~np.isfinite(x)]
    return plain(np.array(not any(bad[0](x).any() for x in call.arrays())))
