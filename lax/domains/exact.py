"""Exact products of matrices of residues, by matrix products in float64.

The smaller operand is cut into limbs, the larger one is used as it is: a sum of products of limbs of w bits and residues
below 2**31 is exact in float64 as long as it has at most 2**(53 - 31 - w) summands. So the large operand, in which the
bytes are, is converted once and read once for all limbs. Both are converted in pieces that stay in the cache, into
memory that is kept from product to product: new pages cost more than the arithmetic.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

SHORT, LONG = 64, 2048  #: summands up to which two limbs of 16 bits, three of 11, are exact
PIECE = 1 << 17  #: elements that are converted at a time
ROWS = 256  #: rows of the smaller operand that are multiplied at a time
DEPTH = 512  #: summands of which the larger operand is converted at a time


class Buffers:
    """Arrays that are used again: one of each name, valid until the next one of this name is taken."""

    def __init__(self) -> None:
        self._kept: dict[str, NDArray[Any]] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array with arbitrary contents."""
        size = math.prod(shape)
        kept = self._kept.get(name)
        if kept is None or kept.size < size:
            kept = self._kept[name] = np.empty(size, dtype=dtype)
        return kept[:size].reshape(shape)


def modular_product(x: Integers, y: Integers, p: Integers, buffers: Buffers) -> Integers:
    """The product of [b, m, k] and [b, k, n], each of the b pairs modulo its own one of the b numbers `p`.

    The elements are residues: from 0 to below `p`, which is at most 2**31; of any integer type that holds them.
    """
    out = np.zeros((x.shape[0], x.shape[1], y.shape[2]), dtype=np.int64)
    if not out.size or not x.shape[2]:
        return out
    if x.size <= y.size:
        _multiply(out, x, y, p, buffers)
    else:
        _multiply(out.transpose(0, 2, 1), y.transpose(0, 2, 1), x.transpose(0, 2, 1), p, buffers)
    return out


def _multiply(out: Integers, small: Integers, large: Integers, p: Integers, buffers: Buffers) -> None:
    """Put `small` times `large` into `out`, in pieces."""
    count, m, k = small.shape
    n = large.shape[2]
    depth, rows = min(k, LONG), min(m, ROWS)
    held = max(min(depth, DEPTH), 2 * rows)
    columns = max(1, min(n, PIECE // held))
    group = max(1, PIECE // (held * columns)) if (rows, columns) == (m, n) else 1
    for b in range(0, count, group):
        modulus = p[b : b + group].reshape(-1, 1, 1)
        for r in range(0, m, rows):
            for start in range(0, k, depth):
                limbs = _limbs(small[b : b + group, r : r + rows, start : start + depth], buffers)
                for c in range(0, n, columns):
                    part = large[b : b + group, start : start + depth, c : c + columns]
                    place = out[b : b + group, r : r + rows, c : c + columns]
                    total = _joined(_sums(limbs, part, buffers), limbs.shape[1], modulus, buffers)
                    if start:
                        total += place
                        total %= modulus
                    place[...] = total


def _floats(x: Integers, buffers: Buffers) -> Floats:
    """[b, k, n] as floats, in the order in which it lies in memory."""
    if abs(x.strides[1]) < abs(x.strides[2]):
        return _floats(x.transpose(0, 2, 1), buffers).transpose(0, 2, 1)
    floats = buffers.take("large", x.shape, np.float64)
    np.copyto(floats, x)
    return floats


def _limbs(x: Integers, buffers: Buffers) -> Floats:
    """The limbs of [b, m, k] as [b, limbs, m, k], the highest first."""
    count = 2 if x.shape[2] <= SHORT else 3
    bits = 16 if count == 2 else 11
    limbs = buffers.take("limbs", (x.shape[0], count, *x.shape[1:]), np.float64)
    part = buffers.take("limb", x.shape, np.int64)
    for k in range(count):
        np.right_shift(x, bits * (count - 1 - k), out=part)
        if k:
            part &= (1 << bits) - 1
        limbs[:, k] = part
    return limbs


def _sums(limbs: Floats, large: Integers, buffers: Buffers) -> Floats:
    """The products of the limbs [b, limbs, m, k] and [b, k, n] as [b, limbs m, n]."""
    b, count, m, k = limbs.shape
    shape = (b, count * m, large.shape[2])
    total, more = (buffers.take(name, shape, np.float64) for name in ("sums", "more"))
    limbs = limbs.reshape(b, count * m, k)
    for start in range(0, k, DEPTH):
        part = _floats(large[:, start : start + DEPTH], buffers)
        np.matmul(limbs[:, :, start : start + DEPTH], part, out=more if start else total)
        if start:
            total += more
    return total


def _joined(sums: Floats, count: int, modulus: Integers, buffers: Buffers) -> Integers:
    """The product modulo `modulus` from the products of `count` limbs.

    With three limbs the highest has 9 bits: its sums stay below 2**51, and 2**62 when moved by 11 bits.
    """
    m = sums.shape[1] // count
    shape = (sums.shape[0], m, sums.shape[2])
    total, limb = (buffers.take(name, shape, np.int64) for name in ("total", "next"))
    np.copyto(total, sums[:, :m], casting="unsafe")
    for k in range(1, count):
        if k == count - 1:
            total %= modulus
        total <<= 16 if count == 2 else 11
        np.copyto(limb, sums[:, k * m : (k + 1) * m], casting="unsafe")
        total += limb
    total %= modulus
    return total
