"""Operators that change the element type."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from mirage_cli.errors import Refused

from .call import Call, meaning
from .elementwise import to_integers
from .values import FLOATS, NARROW, SMALL_FLOATS, Array, Tensor, carrier, finer, numpy_type, rounded, tensor


def cast(value: Tensor, kind: int, *, rounds: bool = True, saturate: bool = True) -> Tensor:
    """A tensor as one of another element type, as onnxruntime converts on x86.

    Without `rounds` a cast between float types keeps the numbers.
    """
    target = carrier(kind)
    if value.type == TensorProto.STRING:
        return _from_text(value, kind)
    if kind == TensorProto.STRING:
        return _to_text(value)
    if kind in FLOATS:
        return _to_float(value, kind, rounds=rounds, saturate=saturate)
    if kind == TensorProto.BOOL:
        return Tensor(value.data != 0, kind)
    if kind in NARROW:
        return Tensor(_narrowed(value, kind), kind)
    if value.type in FLOATS:
        return Tensor(to_integers(value.data, target), kind)
    return Tensor(value.data.astype(target), kind)


def _to_float(value: Tensor, kind: int, *, rounds: bool, saturate: bool) -> Tensor:
    data = value.data.astype(carrier(kind))
    if value.type in FLOATS and (not rounds or not finer(value.type, kind)):
        return Tensor(data, kind)
    saturates = saturate and kind in SMALL_FLOATS
    return Tensor(rounded(data, kind, saturates), kind)


def _narrowed(value: Tensor, kind: int) -> Array:
    """Integers of less than a byte: the low bits of the number."""
    low, high = NARROW[kind]
    count = high - low + 1
    whole = to_integers(value.data, np.dtype(np.int32)) if value.type in FLOATS else value.data.astype(np.int64)
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


@meaning("Cast")
def _cast(call: Call) -> Tensor:
    return cast(call.tensor(0), call.integer("to"), rounds=call.casts, saturate=bool(call.integer("saturate", 1)))


@meaning("CastLike")
def _cast_like(call: Call) -> Tensor:
    return cast(call.tensor(0), call.tensor(1).type, rounds=call.casts, saturate=bool(call.integer("saturate", 1)))


@meaning("BitCast")
def _bit_cast(call: Call) -> Tensor:
    value, kind = call.tensor(0), call.integer("to")
    if value.type in NARROW or kind in NARROW:
        raise Refused("bits of integers of less than a byte")
    bits = rounded(value.data, value.type).astype(numpy_type(value.type))
    return tensor(bits.view(numpy_type(kind)), kind)
