"""Inputs of random programs: random numbers, and such as are known to break kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.runtime import sessions

from .sketch import Value

Array = NDArray[Any]
#: kinds of inputs; on all but the first the order of a sum may decide the error (`ILL_CONDITIONED`)
KINDS = ("random", "large", "tiny", "denormal", "zero", "equal rows", "infinite", "nan")
SMALLEST = {"float16": 6e-8, "bfloat16": 1e-40, "float32": 1e-42, "float64": 1e-310}


def draw(v: Value, shape: Sequence[int], kind: str, random: np.random.Generator) -> Array:
    """An array for an input. Rows of truth values keep a true one."""
    if v.dtype == "bool":
        truth = random.random(shape) < 0.7
        if truth.ndim and truth.shape[-1]:
            truth[..., 0] = True
        return np.asarray(truth)
    if not v.is_float:
        return random.integers(0, 4, shape).astype(v.dtype)
    x = np.asarray(random.standard_normal(shape))
    if kind == "large":
        x = x * (30.0 if v.dtype == "float16" else 1000.0)
    elif kind == "tiny":
        x = x * 1e-4
    elif kind == "denormal":
        x = x * SMALLEST[v.dtype] * 8
    elif kind == "zero":
        x = x * 0
    elif kind == "equal rows" and x.ndim:
        x = np.broadcast_to(x[..., :1], x.shape)
    elif kind in ("infinite", "nan") and x.size:
        x = x.copy()
        for _ in range(2):
            x.flat[int(random.integers(x.size))] = np.nan if kind == "nan" else random.choice([np.inf, -np.inf])
    return np.asarray(x).astype(sessions.numpy_dtype(v.dtype))
