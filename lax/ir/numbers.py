"""Exact numbers of programs: as text, and as what a kernel divides by."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(r"[+-]?[0-9]+(/0*[1-9][0-9]*)?")


def number_to_json(v: Fraction | float) -> str:
    """An exact number as text: `3/8`, `inf`, `nan`."""
    return str(v)


def number_from_json(text: str) -> Fraction | float:
    """The inverse of `number_to_json`. Raises ValueError for other texts: `1e999999999` would be a number without an end."""
    if text in ("inf", "-inf", "nan"):
        return float(text)
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no number")
    return Fraction(text)


def divisor(v: Fraction | float | None) -> Fraction | None:
    """The number by which to divide where the model's arithmetic divides: for a constant that float32 lacks and whose
    reciprocal it holds, such as the 1/90 of a mean over 90 elements. A product with the rounded constant rounds twice."""
    if not isinstance(v, Fraction) or v == 0 or _fits_float32(v):
        return None
    return 1 / v if _fits_float32(1 / v) else None


def _fits_float32(v: Fraction) -> bool:
    """True if float32 holds a number, far from its limits."""
    mantissa, power = abs(v.numerator), v.denominator
    return mantissa < 1 << 24 and power < 1 << 100 and not power & (power - 1)
