"""Nodes whose results are rounded to their types by chance: how far off the model itself may be.

onnxruntime's run of a model is one way to round its results, which may be near to float64 by luck: exp(x) has the error of
its largest results, a norm that of a row that hardly varies. What is as good as the model keeps the accuracy rule beside many
ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax.dtypes import F32, DType, from_numpy
from mirage_cli.runtime import sessions

from .meaning import meant

Array = NDArray[Any]

#: operators that give elements of their operands, or their opposites
EXACT = (
    "Neg", "Abs", "Relu", "Identity", "Clip", "Max", "Min", "Where", "ReduceMax", "ReduceMin", "Transpose", "Reshape",
    "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Concat", "Expand", "Tile", "Gather", "Trilu", "Floor", "Ceil",
    "Round", "Sign",
)  # fmt: skip
SUMS = ("MatMul", "Gemm", "Einsum", "ReduceSum", "ReduceMean")  #: their terms may be larger than they are


def rounded(
    op: str, operands: Sequence[Array], attributes: Mapping[str, Any], dtype: str, random: np.random.Generator
) -> list[Array]:
    """What the outputs of a node are, each up to half a unit in the last place of its type larger or smaller."""
    kind = from_numpy(sessions.numpy_dtype(dtype))
    assert kind is not None
    if op == "LayerNormalization":
        attributes = {**attributes, "mean": _mean(operands[0], attributes["axis"], kind, random)}
    made = meant(op, operands, attributes)
    if op in EXACT or not kind.is_float:
        return made
    if op in SUMS:
        (squares,), (terms,) = (_of_floats(op, operands, attributes, f) for f in (np.square, np.ones_like))
        return [noisy(made[0], kind, random, np.sqrt(np.abs(squares)), np.sqrt(np.abs(terms) / 2))]
    return [noisy(a, kind, random) for a in made]


def exchanged(x: Array, others: Mapping[float, float]) -> Array:
    """Numbers with others in the place of some that are not finite."""
    found = x.copy()
    for old, new in others.items():
        found[np.isnan(x) if np.isnan(old) else x == old] = new
    return found


def _of_floats(
    op: str, operands: Sequence[Array], attributes: Mapping[str, Any], f: Callable[[Array], Array]
) -> list[Array]:
    """What the outputs of a node would be with a function of its operands."""
    return meant(op, [f(x) if x.dtype.kind == "f" else x for x in operands], attributes)


def _mean(x: Array, axis: int, kind: DType, random: np.random.Generator) -> Array:
    """The mean of what is normalised, rounded to float32 at least."""
    over = tuple(range(axis % x.ndim, x.ndim))
    size = np.sqrt((x * x).mean(axis=over, keepdims=True))
    return noisy(x.mean(axis=over, keepdims=True), F32 if kind.epsilon > F32.epsilon else kind, random, size)


def noisy(
    x: Array, kind: DType, random: np.random.Generator, size: Array | float = 0.0, times: Array | float = 1.0
) -> Array:
    """Numbers, each up to half a unit in the last place off, or in that of `size` where this is larger, or some `times` as
    much; infinities beyond what the type can hold. A sum of n terms, one after the other, is sqrt(n / 2) times as far off as
    one number is, since its parts are rounded too and grow as the root of their number."""
    most = np.maximum(np.abs(x), np.where(np.isfinite(size), size, 0.0))  # 0 is rounded by nobody
    unit = 2.0 ** np.floor(np.log2(np.maximum(most, kind.normal))) * kind.epsilon
    with np.errstate(invalid="ignore"):
        found = x + np.where(np.isfinite(unit) & (most > 0), unit, 0.0) * np.maximum(times, 1.0) * random.uniform(
            -0.5, 0.5, x.shape
        )
    return np.where(np.abs(found) > kind.largest, np.copysign(np.inf, found), found)
