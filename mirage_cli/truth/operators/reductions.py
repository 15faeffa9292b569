"""Operators that reduce axes: sums, means, extremes, their places, softmax, running sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, at_axis, meaning
from mirage_cli.truth.calls.values import Array, Tensor, plain
from mirage_cli.truth.operators.elementwise import to_integers


def _axes(call: Call, from_input: int) -> list[int] | None:
    """The axes of a reduction, which are an input from a version on and an attribute before; None for all of them."""
    if call.version < from_input:
        return call.integers("axes")
    return call.index_list(1) if call.given(1) else None


@meaning(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"
)
@meaning("ReduceSumSquare", "ReduceSum")
def _reduce(call: Call) -> Tensor:
    x, kind = call.array(0), call.node.op_type
    chosen = _axes(call, 13 if kind == "ReduceSum" else 18)
    if not chosen and call.integer("noop_with_empty_axes", 0):
        return call.like(_each(kind, x))
    axes = tuple({at_axis(a, x.ndim) for a in chosen}) if chosen else tuple(range(x.ndim))
    return call.like(_reduced(kind, x, axes, bool(call.integer("keepdims", 1))))


def _each(kind: str, x: Array) -> Array:
    """A reduction that reduces no axis: what is done to each element remains."""
    return _reduced(kind, x[..., None], (x.ndim,), keep=False)


def _reduced(kind: str, x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    """A reduction of some axes, in the type of the operand."""
    functions: dict[str, Callable[[Array], Array]] = {
        "ReduceL1": lambda v: np.sum(np.abs(v), axis=axes, keepdims=keep),
        "ReduceL2": lambda v: np.sqrt(np.sum(np.square(v), axis=axes, keepdims=keep)),
        "ReduceLogSum": lambda v: np.log(np.sum(v, axis=axes, keepdims=keep)),
        "ReduceLogSumExp": lambda v: _log_sum_exp(v, axes, keep),
        "ReduceMean": lambda v: np.mean(v, axis=axes, keepdims=keep),
        "ReduceProd": lambda v: np.prod(v, axis=axes, keepdims=keep),
        "ReduceSum": lambda v: np.sum(v, axis=axes, keepdims=keep),
        "ReduceSumSquare": lambda v: np.sum(np.square(v), axis=axes, keepdims=keep),
    }
    if kind in ("ReduceMax", "ReduceMin"):
        return _extreme(x, axes, keep, largest=kind == "ReduceMax")
    if x.dtype.kind == "f":
        return functions[kind](x)
    if kind in ("ReduceL1", "ReduceProd", "ReduceSum", "ReduceSumSquare"):
        return functions[kind](x.astype(np.uint64 if x.dtype.kind == "u" else np.int64)).astype(x.dtype)
    return to_integers(functions[kind](x.astype(np.float64)), x.dtype)


def _extreme(x: Array, axes: tuple[int, ...], keep: bool, largest: bool) -> Array:
    """The largest or smallest along axes; of nothing the lowest or highest number there is."""
    if x.dtype.kind == "b":
        return np.asarray((np.any if largest else np.all)(x, axis=axes, keepdims=keep))
    low, high = (-np.inf, np.inf) if x.dtype.kind == "f" else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    function = np.max if largest else np.min
    return np.asarray(function(x, axis=axes, keepdims=keep, initial=low if largest else high))


def _log_sum_exp(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    largest = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    total = np.log(np.sum(np.exp(x - largest), axis=axes, keepdims=True)) + largest
    return np.asarray(total if keep else np.squeeze(total, axis=axes))


@meaning("ArgMax", "ArgMin")
def _arg(call: Call) -> Tensor:
    x = call.array(0)
    axis = at_axis(call.integer("axis", 0), x.ndim)
    function = np.argmax if call.node.op_type == "ArgMax" else np.argmin
    if call.integer("select_last_index", 0):
        indices = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis)
    else:
        indices = function(x, axis=axis)
    indices = np.asarray(indices, np.int64)
    return plain(np.expand_dims(indices, axis) if call.integer("keepdims", 1) else indices)


def softmax(x: Array, axis: int = -1) -> Array:
    """e^x over its sum along an axis; where all of x is minus infinity, NaN."""
    if not x.shape[axis]:
        return x
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return np.asarray(e / np.sum(e, axis=axis, keepdims=True))


def _log_softmax(x: Array, axis: int) -> Array:
    if not x.shape[axis]:
        return x
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)))


def _hardmax(x: Array, axis: int) -> Array:
    if not x.shape[axis]:
        return x
    first = np.expand_dims(np.argmax(x, axis=axis), axis)
    places = np.arange(x.shape[axis]).reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    return np.asarray(places == first).astype(x.dtype)


@meaning("Softmax", "LogSoftmax", "Hardmax")
def _softmax(call: Call) -> Tensor:
    functions: dict[str, Callable[[Array, int], Array]] = {
        "Softmax": softmax,
        "LogSoftmax": _log_softmax,
        "Hardmax": _hardmax,
    }
    x, function = call.array(0), functions[call.node.op_type]
    if call.version >= 13:
        return call.like(function(x, at_axis(call.integer("axis", -1), x.ndim)) if x.ndim else function(x[None], 0)[0])
    axis = call.integer("axis", 1)
    axis = at_axis(axis, x.ndim) if axis < 0 else at_axis(axis, x.ndim + 1)
    rows = x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), int(np.prod(x.shape[axis:], dtype=np.int64)))
    return call.like(function(rows, 1).reshape(x.shape))


@meaning("BiasSoftmax", domain="com.microsoft")
def _bias_softmax(call: Call) -> Tensor:
    x, bias, axis = call.array(0), call.array(1), call.integer("axis", 1)
    axis = at_axis(axis, x.ndim)
    if call.integer("is_inner_broadcast"):
        raise Refused("a bias that is repeated in the middle")
    total = x + bias.reshape((1,) * (x.ndim - bias.ndim) + bias.shape)
    flat = total.reshape((*x.shape[:axis], int(np.prod(x.shape[axis:], dtype=np.int64))))
    return call.like(softmax(flat).reshape(x.shape))


@meaning("CumSum", "CumProd")
def _running(call: Call) -> Tensor:
    x, axis = call.array(0), at_axis(int(call.scalar(1)), call.array(0).ndim)
    sums = call.node.op_type == "CumSum"
    y = np.flip(x, axis) if call.integer("reverse", 0) else x
    total = np.asarray((np.cumsum if sums else np.cumprod)(y, axis=axis, dtype=x.dtype))
    if call.integer("exclusive", 0) and x.shape[axis]:
        first = np.full_like(np.take(total, [0], axis), 0 if sums else 1)
        total = np.concatenate([first, np.take(total, range(x.shape[axis] - 1), axis)], axis)
    return call.like(np.flip(total, axis) if call.integer("reverse", 0) else total)
