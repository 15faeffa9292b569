"""Values of a model: tensors whose floats are carried as float64 beside the ONNX element type they have in the file.

Every element type with a fraction is carried as float64, every complex one as complex128, the integers of less than a
byte as int8 or uint8; all others in their own type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from mirage_cli.errors import Refused

Array: TypeAlias = NDArray[Any]
Load: TypeAlias = Callable[[TensorProto], Array]


@dataclass(frozen=True)
class Tensor:
    """An array, and the ONNX element type that it has in the file. `was` is a narrower float type, all numbers of which it is
    a wider spelling of: casting it back does not round."""

    data: Array
    type: int
    was: int | None = None


@dataclass(frozen=True)
class Series:
    """A sequence of tensors."""

    items: tuple[Tensor, ...]


#: what a name of a graph stands for; None is an input that was left out, or an optional without a value
Value: TypeAlias = Tensor | Series | None


@dataclass(frozen=True)
class FloatFormat:
    """A binary format: bits of its significand (with the hidden one), exponent of its smallest step, largest number.

    `infinite`: too large a number becomes an infinity, else NaN; `nan` and `signed_zero` say whether the format has them.
    """

    bits: int
    step: int
    largest: float
    infinite: bool = False
    nan: bool = True
    signed_zero: bool = True


FLOAT6E2M3, FLOAT6E3M2 = 27, 28  #: element types that the oldest onnx this works with has no names for

FORMATS: dict[int, FloatFormat] = {
    TensorProto.FLOAT: FloatFormat(24, -149, float(np.finfo(np.float32).max), infinite=True),
    TensorProto.FLOAT16: FloatFormat(11, -24, 65504.0, infinite=True),
    TensorProto.BFLOAT16: FloatFormat(8, -133, 3.3895313892515355e38, infinite=True),
    TensorProto.FLOAT8E4M3FN: FloatFormat(4, -9, 448.0),
    TensorProto.FLOAT8E4M3FNUZ: FloatFormat(4, -10, 240.0, signed_zero=False),
    TensorProto.FLOAT8E5M2: FloatFormat(3, -16, 57344.0, infinite=True),
    TensorProto.FLOAT8E5M2FNUZ: FloatFormat(3, -17, 57344.0, signed_zero=False),
    TensorProto.FLOAT4E2M1: FloatFormat(2, -1, 6.0, nan=False),
    FLOAT6E2M3: FloatFormat(4, -3, 7.5, nan=False),
    FLOAT6E3M2: FloatFormat(3, -4, 28.0, nan=False),
}

#: element types that are carried as float64
FLOATS = frozenset({*FORMATS, TensorProto.DOUBLE, TensorProto.FLOAT8E8M0})

#: element types that saturate where they are made from larger numbers
SMALL_FLOATS = frozenset(
    {
        TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT8E4M3FNUZ,
        TensorProto.FLOAT8E5M2,
        TensorProto.FLOAT8E5M2FNUZ,
        TensorProto.FLOAT4E2M1,
        FLOAT6E2M3,
        FLOAT6E3M2,
    }
)

#: integers of less than a byte: their lowest and highest number
NARROW: dict[int, tuple[int, int]] = {
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT2: (-2, 1),
    TensorProto.UINT2: (0, 3),
}

CARRIERS: dict[int, np.dtype[Any]] = {
    **{kind: np.dtype(np.float64) for kind in FLOATS},
    TensorProto.COMPLEX64: np.dtype(np.complex128),
    TensorProto.COMPLEX128: np.dtype(np.complex128),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.INT32: np.dtype(np.int32),
    TensorProto.INT64: np.dtype(np.int64),
    TensorProto.UINT32: np.dtype(np.uint32),
    TensorProto.UINT64: np.dtype(np.uint64),
    TensorProto.BOOL: np.dtype(np.bool_),
    TensorProto.STRING: np.dtype(np.object_),
    TensorProto.INT4: np.dtype(np.int8),
    TensorProto.UINT4: np.dtype(np.uint8),
    TensorProto.INT2: np.dtype(np.int8),
    TensorProto.UINT2: np.dtype(np.uint8),
}

#: names under which numpy knows element types that are not its own (ml_dtypes)
FOREIGN = {
    "bfloat16": TensorProto.BFLOAT16,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
    "float8_e8m0fnu": TensorProto.FLOAT8E8M0,
    "float4_e2m1fn": TensorProto.FLOAT4E2M1,
    "float6_e2m3fn": FLOAT6E2M3,
    "float6_e3m2fn": FLOAT6E3M2,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
    "int2": TensorProto.INT2,
    "uint2": TensorProto.UINT2,
}

NATIVE = {
    "float64": TensorProto.DOUBLE,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "complex64": TensorProto.COMPLEX64,
    "complex128": TensorProto.COMPLEX128,
    "object": TensorProto.STRING,
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "uint16": TensorProto.UINT16,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "bool": TensorProto.BOOL,
}


def type_of(array: Array) -> int:
    """The ONNX element type of an array's own type; Refused where there is none."""
    if array.dtype.kind in "US":
        return int(TensorProto.STRING)
    code = NATIVE.get(array.dtype.name, FOREIGN.get(array.dtype.name))
    if code is None:
        raise Refused(f"no ONNX element type for numpy's {array.dtype}")
    return int(code)


def type_name(kind: int) -> str:
    """The name of an ONNX element type, in the words of the format."""
    return str(TensorProto.DataType.Name(kind)) if kind in TensorProto.DataType.values() else f"type {kind}"


def carrier(kind: int) -> np.dtype[Any]:
    """The numpy type in which elements of an ONNX type are carried; Refused for an unknown one."""
    if kind not in CARRIERS:
        raise Refused(f"elements of {type_name(kind)} have no meaning here")
    return CARRIERS[kind]


def tensor(array: Array, kind: int | None = None) -> Tensor:
    """An array as it is fed or stored, as a tensor of element type `kind` (its own, where that is left out)."""
    kind = type_of(array) if kind is None else kind
    wanted = carrier(kind)
    if (
        array.dtype.kind == "u"
        and kind in FLOATS - set(NATIVE.values())
        and array.dtype == f"u{numpy_type(kind).itemsize}"
    ):
        array = array.view(numpy_type(kind))  # the bits of a type that numpy does not have
    if array.dtype.kind in "US":
        array = array.astype(np.object_)
    return Tensor(array if array.dtype == wanted else array.astype(wanted), kind)


def plain(array: Array | np.generic) -> Tensor:
    """An array of integers, bools or strings as a tensor of its own type."""
    data = np.asarray(array)
    return Tensor(data, type_of(data))


def numpy_type(kind: int) -> np.dtype[Any]:
    """numpy's (or ml_dtypes') own type for an ONNX element type."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))


def stored(proto: TensorProto, load: Load | None) -> Tensor:
    """A tensor as it is kept in the file, or beside it (read by `load`)."""
    if proto.data_location == TensorProto.EXTERNAL:
        if load is None:
            raise Refused("it lies outside the file, and nothing was given to read it")
        return tensor(np.asarray(load(proto)).reshape(tuple(proto.dims)), proto.data_type)
    carrier(proto.data_type)
    array = numpy_helper.to_array(proto)
    if proto.data_type == TensorProto.STRING:
        texts = [x.decode("utf-8", "surrogateescape") if isinstance(x, bytes) else str(x) for x in array.ravel()]
        filled = np.empty(len(texts), np.object_)
        filled[:] = texts
        return Tensor(filled.reshape(array.shape), proto.data_type)
    return tensor(array, proto.data_type)


def rounded(data: Array, kind: int, saturate: bool = False) -> Array:
    """Every number of an array of float64 as the nearest one of element type `kind`, ties to even, still as float64.

    What is too large becomes an infinity, or NaN in a type that has none; with `saturate` the largest number. Types
    without NaN (4 and 6 bits) always saturate.
    """
    if kind == TensorProto.DOUBLE or kind not in FLOATS:
        return data
    if kind == TensorProto.FLOAT8E8M0:
        return power_of_two(data)
    shape = FORMATS[kind]
    if kind in (TensorProto.FLOAT, TensorProto.FLOAT16):
        narrow = data.astype(np.float32 if kind == TensorProto.FLOAT else np.float16)
        return narrow.astype(np.float64)
    _, exponent = np.frexp(np.where(np.isfinite(data), data, 0.0))
    step = np.ldexp(1.0, np.maximum(exponent - shape.bits, shape.step))
    near = np.asarray(np.rint(data / step) * step)
    return _within(near, data, shape, saturate)


def _within(near: Array, data: Array, shape: FloatFormat, saturate: bool) -> Array:
    """Numbers of the right precision, with those that are too large for their format put right."""
    largest = np.copysign(shape.largest, data)
    if not shape.nan:
        result = np.where(np.abs(near) > shape.largest, largest, near)
        result = np.where(np.isnan(data), 0.0, result)
    elif saturate:
        result = np.where(np.abs(near) > shape.largest, largest, near)
    elif shape.infinite:
        result = np.where(np.abs(near) > shape.largest, np.copysign(np.inf, data), near)
    else:
        result = np.where(np.abs(near) > shape.largest, np.nan, near)
    return result if shape.signed_zero else np.asarray(result + 0.0)


def power_of_two(data: Array, saturate: bool = True, mode: str = "nearest") -> Array:
    """Numbers as float8e8m0 has them, which is powers of two alone, rounded `up`, `down` or to the `nearest`."""
    return np.asarray(numpy_helper.to_float8e8m0(data.astype(np.float32), saturate, mode)).astype(np.float64)


def finer(source: int, target: int) -> bool:
    """True if some number of float type `source` is not one of `target`."""
    if target in (TensorProto.DOUBLE, source):
        return False
    if source == TensorProto.DOUBLE or TensorProto.FLOAT8E8M0 in (source, target):
        return not (source == TensorProto.FLOAT8E8M0 and target in (TensorProto.FLOAT, TensorProto.BFLOAT16))
    a, b = FORMATS[source], FORMATS[target]
    return (
        a.bits > b.bits
        or a.step < b.step
        or a.largest > b.largest
        or (a.infinite and not b.infinite)
        or (a.nan and not b.nan)
    )
