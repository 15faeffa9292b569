"""Element types of tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: `name` as in muGraph files, `bytes` of one element, `kind` in {"float", "int", "bool"}."""

    name: str
    bytes: int
    kind: str
    mantissa: int = 0  #: explicit mantissa bits of a float, 0 otherwise
    exponent: int = field(
        default=0, repr=False
    )  #: bits of a float's exponent, 0 otherwise; ids are digests of the repr
    per_byte: int = field(default=1, repr=False)  #: elements that share a byte, the first in its low bits
    top: float = field(default=0.0, repr=False)  #: the largest number of a float that has no infinities, 0 otherwise

    def __str__(self) -> str:
        return self.name

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return 8 * self.bytes // self.per_byte

    @property
    def size(self) -> float:
        """Bytes that one element takes in memory: a fraction where several share a byte."""
        return self.bytes / self.per_byte

    @property
    def is_float(self) -> bool:
        """True if arithmetic on this type rounds."""
        return self.kind == "float"

    @property
    def epsilon(self) -> float:
        """Distance from 1.0 to the next value; 0 for exact types."""
        return 2.0**-self.mantissa if self.is_float else 0.0

    @property
    def largest(self) -> float:
        """The largest finite number of a float type; infinity for others."""
        if not self.is_float or self.top:
            return self.top or math.inf
        power: float = 2.0 ** (2 ** (self.exponent - 1) - 1)
        return power * (2.0 - self.epsilon)

    @property
    def normal(self) -> float:
        """The smallest positive number of a float type that has all its bits."""
        return 2.0 ** (2 - 2 ** (self.exponent - 1)) if self.is_float else 0.0


F64 = DType("f64", 8, "float", 52, 11)
F32 = DType("f32", 4, "float", 23, 8)
F16 = DType("f16", 2, "float", 10, 5)
BF16 = DType("bf16", 2, "float", 7, 8)
E4M3 = DType("e4m3", 1, "float", 3, 4, top=448.0)
E5M2 = DType("e5m2", 1, "float", 2, 5)
I64 = DType("i64", 8, "int")
I32 = DType("i32", 4, "int")
I16 = DType("i16", 2, "int")
I8 = DType("i8", 1, "int")
U64 = DType("u64", 8, "int")
U32 = DType("u32", 4, "int")
U16 = DType("u16", 2, "int")
U8 = DType("u8", 1, "int")
I4 = DType("i4", 1, "int", per_byte=2)
U4 = DType("u4", 1, "int", per_byte=2)
I2 = DType("i2", 1, "int", per_byte=4)
U2 = DType("u2", 1, "int", per_byte=4)
E2M1 = DType("e2m1", 1, "float", 1, 2, per_byte=2, top=6.0)
BOOL = DType("bool", 1, "bool")

ALL = (F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, I4, U4, I2, U2, BOOL, E4M3, E5M2, E2M1)
PACKED = {(d.bits, d.name.startswith("u")): d for d in (I4, U4, I2, U2)}  #: by bits and whether they have no sign
SHARING = tuple(d for d in ALL if d.per_byte > 1)  #: types of which several elements share a byte
BY_NAME = {d.name: d for d in ALL}

_NUMPY = {
    np.dtype(np.float64): F64,
    np.dtype(np.float32): F32,
    np.dtype(np.float16): F16,
    np.dtype(np.int64): I64,
    np.dtype(np.int32): I32,
    np.dtype(np.int16): I16,
    np.dtype(np.int8): I8,
    np.dtype(np.uint64): U64,
    np.dtype(np.uint32): U32,
    np.dtype(np.uint16): U16,
    np.dtype(np.uint8): U8,
    np.dtype(np.bool_): BOOL,
}
_FOREIGN = {
    "bfloat16": BF16, "int4": I4, "uint4": U4, "int2": I2, "uint2": U2, "float8_e4m3fn": E4M3, "float8_e5m2": E5M2,
    "float4_e2m1fn": E2M1,
}  # fmt: skip


def unpacked(packed: NDArray[np.uint8], dtype: DType) -> NDArray[np.int8]:
    """The numbers of a packed type of whole numbers from bytes, along the last axis."""
    shifts = np.arange(0, 8, dtype.bits, dtype=np.uint8)
    numbers = ((packed[..., None] >> shifts) & ((1 << dtype.bits) - 1)).astype(np.int8)
    if not dtype.name.startswith("u"):
        numbers -= (numbers >> (dtype.bits - 1)) << dtype.bits
    return numbers.reshape(*packed.shape[:-1], packed.shape[-1] * dtype.per_byte)


def packed(numbers: NDArray[Any], dtype: DType) -> NDArray[np.uint8]:
    """The numbers of a tensor in row-major order, as bytes; the last one is filled up with zeros."""
    flat = np.zeros(-(-numbers.size // dtype.per_byte) * dtype.per_byte, np.uint8)
    bits = numbers if dtype.is_float else numbers.astype(np.int8)  # of floats, which take a byte each there, their own
    flat[: numbers.size] = bits.ravel().view(np.uint8) & ((1 << dtype.bits) - 1)
    shifts = np.arange(0, 8, dtype.bits, dtype=np.uint8)
    filled: NDArray[np.uint8] = np.bitwise_or.reduce(flat.reshape(-1, dtype.per_byte) << shifts, axis=1)
    return filled


def from_numpy(dtype: np.dtype) -> DType | None:
    """The element type of a numpy dtype (those of `ml_dtypes` by their names), or None where there is none."""
    if dtype in _NUMPY:
        return _NUMPY[dtype]
    return _FOREIGN.get(dtype.name)
