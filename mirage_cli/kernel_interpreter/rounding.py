"""float32 as kernels compute with it: every operation rounds its own result, and so does what element types of less hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mirage_cli.lax.domains.domain import Array, Float64, Number
from mirage_cli.lax.ops import lookup

DEPTH = 16  #: positions that matrix instructions sum before they round


class Single(Float64):
    """float32, operation by operation; of float64 numbers (`double` in a kernel) float64."""

    def const(self, value: Number) -> Array:
        """A float32."""
        return np.asarray(float(value), dtype=np.float32)

    def call(self, name: str, *args: Array) -> Array:
        """A function's value, in the type of its arguments."""
        return np.asarray(super().call(name, *args)).astype(np.result_type(*args))


def _half(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float32)


def _bfloat(x: Array) -> Array:
    return np.asarray(lookup("round_bf16").real(x.astype(np.float32))).astype(np.float32)  # type: ignore[misc]


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "float": lambda x: x.astype(np.float32, copy=False),
    "double": lambda x: x.astype(np.float64, copy=False),
    "__half": _half,
    "half": _half,
    "__nv_bfloat16": _bfloat,
    "bfloat": _bfloat,
}  #: what an element type holds of numbers


def rounded(x: Array, type_: str) -> Array:
    """Numbers as an element type holds them; those of other types than floats without their fraction."""
    with np.errstate(all="ignore"):
        return ROUNDINGS.get(type_, np.trunc)(x)


def product(x: Array, y: Array) -> Array:
    """The product of [b, m, k] and [b, k, n] as matrix instructions make it: those of a few positions, summed in float32."""
    total: Any = np.zeros((*x.shape[:-1], y.shape[-1]), dtype=np.float32)
    with np.errstate(all="ignore"):
        for k in range(0, x.shape[-1], DEPTH):
            left, right = x[..., k : k + DEPTH].astype(np.float64), y[..., k : k + DEPTH, :].astype(np.float64)
            total = total + (left @ right).astype(np.float32)
    return total  # type: ignore[no-any-return]
