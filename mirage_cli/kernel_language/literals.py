"""Numbers as literals of kernels."""

from __future__ import annotations

import math
import re
from fractions import Fraction

_MANTISSA = 24  # bits of a float32's significand, the hidden one included
_SMALLEST = -149  # exponent of the smallest positive float32
_LARGEST = Fraction(2**_MANTISSA - 1) * Fraction(2) ** 104


def c_float(value: Fraction | float) -> str:
    """The float32 nearest to a value (ties to even) as a C literal: hexadecimal, INFINITY or NAN.

    Negative values are in parentheses, so that no operator before the literal can swallow the sign.
    """
    if isinstance(value, float) and math.isnan(value):
        return "NAN"
    negative = math.copysign(1, value) < 0 if isinstance(value, float) else value < 0
    literal = _magnitude(-value if negative else value)
    return f"(-{literal})" if negative else literal


def _magnitude(value: Fraction | float) -> str:
    """The literal of a value that is not negative and not NaN."""
    if isinstance(value, float) and math.isinf(value):
        return "INFINITY"
    exact = Fraction(value)
    if exact == 0:
        return "0x0p+0f"
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    exponent -= exact < Fraction(2) ** exponent  # now 2^exponent <= exact < 2^(exponent + 1)
    unit = Fraction(2) ** max(exponent - _MANTISSA + 1, _SMALLEST)
    rounded = round(exact / unit) * unit
    if rounded > _LARGEST:
        return "INFINITY"
    return re.sub(r"\.?0*p", "p", float(rounded).hex()) + "f"
