"""Element types under the names that Python users know."""

from __future__ import annotations

from typing import Any

from mirage_cli.errors import UsageError
from mirage_cli.lax.dtypes import BF16, BOOL, F16, F32, I64, DType

float16, bfloat16, float32, bool_, int64 = F16, BF16, F32, BOOL, I64
#: the types of inputs and weights, by numpy's names
BY_NAME = {"float16": float16, "bfloat16": bfloat16, "float32": float32, "bool": bool_}


def element_type(given: Any) -> DType:
    """The element type that is meant: one of ours, or numpy's, torch's or its name. Raises UsageError."""
    if isinstance(given, DType):
        dtype = given if given in BY_NAME.values() else None
    else:
        name = getattr(given, "__name__", None) or getattr(given, "name", None) or str(given)
        dtype = BY_NAME.get(str(name).rpartition(".")[2].removesuffix("_"))
    if dtype is None:
        raise UsageError(f"dtype: expected {', '.join(BY_NAME)}, found {given!r}")
    return dtype
