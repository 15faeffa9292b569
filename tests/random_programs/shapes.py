"""Shapes of random programs: what fits together, and operands that do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from .sketch import Dim, Sketch, Unfit, Value

SIZES = (5, 3, 2, 1, 7, 13, 17, 31, 33, 63, 65, 127, 129)
#: operators that onnx or onnxruntime lack for a type
LACKING = {
    "float16": ("Celu",),
    "bfloat16": ("Celu", "Shrink", "Einsum", "PRelu"),
    "float64": (
        "HardSigmoid", "Erf", "Softplus", "Selu", "LeakyRelu", "Softsign", "Celu", "Gelu", "Mish", "HardSwish", "Elu", "Mean",
        "ThresholdedRelu", "Shrink", "PRelu",
    ),
}  # fmt: skip


def broadcast(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape of an elementwise result. Raises Unfit."""
    n = max(len(a), len(b))
    found: list[Dim] = []
    for x, y in zip((1,) * (n - len(a)) + tuple(a), (1,) * (n - len(b)) + tuple(b), strict=True):
        if x != y and 1 not in (x, y):
            raise Unfit
        found.append(y if x == 1 else x)
    return tuple(found)


def partner(s: Sketch, x: Value, exact: bool = False) -> Value:
    """A value to combine with `x`: one that is there and fits, or a new one whose shape broadcasts with it."""
    fitting = []
    for v in s.values:
        with suppress(Unfit):
            broadcast(x.dims, v.dims)
            if v.dtype == x.dtype and (v.exact or not exact):
                fitting.append(v)
    if fitting and not s.maybe(3):
        return fitting[-1 - s.pick(len(fitting))]
    kind = s.pick(5)
    if kind == 0:
        dims: list[Dim] = list(x.dims)
    elif kind == 1:
        dims = list(x.dims[-1:])
    elif kind == 2:
        dims = []
    elif kind == 3:
        dims = [1 if s.maybe(2) else d for d in x.dims]
    else:
        dims = [*x.dims[:-1], 1] if x.dims else [s.one(SIZES)]
    if x.dtype != s.dtype:
        return s.input(dims, x.dtype)
    return s.leaf(dims)


def axis_of(s: Sketch, x: Value) -> int:
    """A dimension of a value, the last one first. Raises Unfit for a scalar."""
    if not x.dims:
        raise Unfit
    return len(x.dims) - 1 - s.pick(len(x.dims))


def count(d: Dim) -> int:
    """A dimension as a number, for the size of sums."""
    return 40 if isinstance(d, str) else d
