"""Operators that change the element type."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, meaning
from mirage_cli.truth.calls.values import (
    FLOATS,
    NARROW,
    SMALL_FLOATS,
    Array,
    Tensor,
    carrier,
    finer,
    numpy_type,
    power_of_two,
    rounded,
    tensor,
)
from mirage_cli.truth.operators.elementwise import to_integers


def cast(
    value: Tensor, kind: int, *, rounds: bool = True, overflows: bool = True, saturate: bool = True, mode: str = "up"
) -> Tensor:
    """A tensor as one of another element type, as onnxruntime converts on x86.

    Without `rounds` a cast between float types keeps the numbers, without `overflows` those that are too large; `mode` is how
    float8e8m0 rounds.
    """
    target = carrier(kind)
    if value.type == TensorProto.STRING:
        return _from_text(value, kind)
    if kind == TensorProto.STRING:
        return _to_text(value)
    if kind in FLOATS:
        if kind == TensorProto.FLOAT8E8M0 and rounds and value.type != kind:
            return Tensor(power_of_two(value.data, saturate, mode), kind)
        return _to_float(value, kind, rounds=rounds, overflows=overflows, saturate=saturate)
    if kind == TensorProto.BOOL:
        return Tensor(value.data != 0, kind)
    if kind in NARROW:
        return Tensor(_narrowed(value, kind), kind)
    if value.type in FLOATS:
        if kind == TensorProto.UINT32 and _depends_on_place(value.data):
            raise Refused("a number beyond uint32: what becomes of it depends on its place in the tensor")
        return Tensor(to_integers(value.data, target), kind)
    return Tensor(value.data.astype(target), kind)


def _depends_on_place(data: Array) -> bool:
    """Whether a float becomes another uint32 in the middle of a tensor, by vector instructions, than at its end: one that
    neither int32 nor uint32 hold may."""
    whole = np.trunc(data)
    return not bool(((whole >= -(2.0**31)) & (whole < 2.0**32)).all())


def _to_float(value: Tensor, kind: int, *, rounds: bool, overflows: bool, saturate: bool) -> Tensor:
    data = value.data.astype(carrier(kind))
    if value.type in FLOATS:
        known = value.type if value.was is None else value.was
        if not rounds or not finer(known, kind):
            return Tensor(data, kind, None if known == kind else known)
    saturates = saturate and kind in SMALL_FLOATS
    near = rounded(data, kind, saturates)
    return Tensor(near if overflows else np.where(np.isinf(near), data, near), kind)


def _narrowed(value: Tensor, kind: int) -> Array:
    """Integers of less than a byte: the low bits of the number, which onnxruntime rounds (halves away from zero)."""
    low, high = NARROW[kind]
    count = high - low + 1
    if value.type in FLOATS:
        near = np.copysign(np.floor(np.abs(value.data) + 0.5), value.data)
        whole = to_integers(near, np.dtype(np.int32))
    else:
        whole = value.data
    return ((whole.astype(np.int64) - low) % count + low).astype(carrier(kind))


def _from_text(value: Tensor, kind: int) -> Tensor:
    if kind == TensorProto.STRING:
        return value
    numbers = np.array([float(text) for text in value.data.ravel()], np.float64).reshape(value.data.shape)
    if kind not in FLOATS:
        whole = [int(text) if text.strip().lstrip("+-").isdigit() else int(float(text)) for text in value.data.ravel()]
        return Tensor(np.array(whole, np.int64).reshape(value.data.shape).astype(carrier(kind)), kind)
    return Tensor(rounded(numbers, kind), kind)


def _to_text(value: Tensor) -> Tensor:
    digits = 17 if value.type == TensorProto.DOUBLE else 8
    texts = [_text(x, digits) for x in value.data.ravel().tolist()]
    filled = np.empty(len(texts), np.object_)
    filled[:] = texts
    return Tensor(filled.reshape(value.data.shape), TensorProto.STRING)


def _text(number: float | int | bool, digits: int) -> str:
    if isinstance(number, float):
        return "NaN" if math.isnan(number) else {np.inf: "INF", -np.inf: "-INF"}.get(number, f"{number:.{digits}g}")
    return str(int(number))


def _as(call: Call, kind: int) -> Tensor:
    """The first input as one of another element type, as the node says."""
    saturate, mode = bool(call.integer("saturate", 1)), call.text("round_mode", "up")
    return cast(call.tensor(0), kind, rounds=call.casts, overflows=call.overflows, saturate=saturate, mode=mode)


@meaning("Cast")
def _cast(call: Call) -> Tensor:
    return _as(call, call.integer("to"))


@meaning("CastLike")
def _cast_like(call: Call) -> Tensor:
    return _as(call, call.tensor(1).type)


@meaning("BitCast")
def _bit_cast(call: Call) -> Tensor:
    value, kind = call.tensor(0), call.integer("to")
    if value.type in NARROW or kind in NARROW:
        raise Refused("bits of integers of less than a byte")
    bits = rounded(value.data, value.type).astype(numpy_type(value.type))
    return tensor(bits.view(numpy_type(kind)), kind)
