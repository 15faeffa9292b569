"""Exact products of matrices of residues, by matrix products in float64.

The smaller operand is cut into limbs, the larger one is used as it is: a sum of products of limbs of w bits and residues
below 2**31 is exact in float64 as long as it has at most 2**(53 - 31 - w) summands. So the large operand, in which the
bytes are, is converted once and read once for all limbs. Both are converted in pieces that stay in the cache.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

SHORT, LONG = 64, 2048  #: summands up to which two limbs of 16 bits, three of 11, are exact
PIECE = 1 << 18  #: elements that are converted at a time
ROWS = 256  #: rows of the smaller operand that are multiplied at a time


def modular_product(x: Integers, y: Integers, p: Integers) -> Integers:
    """The product of [b, m, k] and [b, k, n], each of the b pairs modulo its own one of the b numbers `p`.

    The elements are residues: from 0 to below `p`, which is at most 2**31; of any integer type that holds them.
    """
    out = np.zeros((x.shape[0], x.shape[1], y.shape[2]), dtype=np.int64)
    if not out.size or not x.shape[2]:
        return out
    if x.size <= y.size:
        _multiply(out, x, y, p)
    else:
        _multiply(out.transpose(0, 2, 1), y.transpose(0, 2, 1), x.transpose(0, 2, 1), p)
    return out


def _multiply(out: Integers, small: Integers, large: Integers, p: Integers) -> None:
    """Put `small` times `large` into `out`, in pieces."""
    count, m, k = small.shape
    n = large.shape[2]
    depth, rows = min(k, LONG), min(m, ROWS)
    columns = max(1, min(n, PIECE // max(depth, 2 * rows)))
    group = max(1, PIECE // (max(depth, 2 * rows) * columns)) if (rows, columns) == (m, n) else 1
    for b in range(0, count, group):
        modulus = p[b : b + group].reshape(-1, 1, 1)
        for r in range(0, m, rows):
            for start in range(0, k, depth):
                limbs = _limbs(small[b : b + group, r : r + rows, start : start + depth])
                for c in range(0, n, columns):
                    part = large[b : b + group, start : start + depth, c : c + columns].astype(np.float64)
                    place = out[b : b + group, r : r + rows, c : c + columns]
                    place += _joined(limbs, part, modulus)
                    if start:
                        place %= modulus


def _limbs(x: Integers) -> Floats:
    """The limbs of [b, m, k] as [b, limbs, m, k], the highest first."""
    if x.shape[2] <= SHORT:
        parts = [x >> 16, x & 0xFFFF]
    else:
        parts = [x >> 22, (x >> 11) & 0x7FF, x & 0x7FF]
    found: Floats = np.stack(parts, axis=1).astype(np.float64)
    return found


def _joined(limbs: Floats, large: Floats, modulus: Integers) -> Integers:
    """The product modulo `modulus` of a matrix, given by its limbs, and another one.

    With three limbs the highest has 9 bits: its sums stay below 2**51, and 2**62 when moved by 11 bits.
    """
    b, count, m, k = limbs.shape
    sums = np.matmul(limbs.reshape(b, count * m, k), large).reshape(b, count, m, -1)
    total: Integers = sums[:, 0].astype(np.int64)
    if count == 3:
        total <<= 11
        total += sums[:, 1].astype(np.int64)
    total %= modulus
    total <<= 16 if count == 2 else 11
    total += sums[:, -1].astype(np.int64)
    total %= modulus
    return total
