"""Elementwise operators. Adding one is one `define` here (or `opaque`, for a function outside the algebra).

C expressions use the functions of the headers `templates/include/mirage/math.*` (prefix `m_`) over `float`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from mirage_cli.lax import dtypes
from mirage_cli.lax.ops.registry import Op, define, opaque

_HALF = Fraction(1, 2)
QUOTIENTS = ("div", "div0", "share")  #: x / y, and what else it is where y is 0 or NaN

# --- the algebra's own operators -------------------------------------------------------------------------------------
define(Op("add", 2, lambda d, x, y: d.add(x, y), "({0} + {1})", commutative=True, linear=(0, 1), onnx="Add"))
define(Op("sub", 2, lambda d, x, y: d.sub(x, y), "({0} - {1})", linear=(0, 1), onnx="Sub"))
define(
    Op(
        "below",
        2,
        lambda d, x, y: d.sub(x, y),
        "({0} - {1})",
        doc="x - y where both may be huge: nothing comes between",
    )
)
define(
    Op(
        "centred",
        2,
        lambda d, x, y: d.sub(x, y),
        "({0} - {1})",
        doc="a quantized number less its zero point: of sums of the two apart, most would cancel",
    )
)
define(
    Op("mul", 2, lambda d, x, y: d.mul(x, y), "({0} * {1})", commutative=True, linear=(0, 1), product=True, onnx="Mul")
)
define(Op("rounded", 1, lambda d, x: x, "m_rounded({0})", doc="x as a number of its type, whatever reads it"))
define(Op("div", 2, lambda d, x, y: d.div(x, y), "({0} / {1})", linear=(0,), flops=4, onnx="Div"))
define(
    Op(
        "div0",
        2,
        lambda d, x, y: d.div(x, y, "div0"),
        "m_div0({0}, {1})",
        linear=(0,),
        flops=4,
        doc="x / y, but 0 where y is NaN or the quotient of two numbers is: a softmax whose NaN a model replaces by zeros",
    )
)
define(
    Op(
        "share",
        2,
        lambda d, x, y: d.div(x, y, "share"),
        "m_share({0}, {1})",
        linear=(0,),
        flops=4,
        doc="x / y, but 0 where y is 0 and x a number: a softmax that is defined to give zeros where all is masked",
    )
)
define(Op("neg", 1, lambda d, x: d.sub(d.const(0), x), "(-{0})", linear=(0,), onnx="Neg"))
define(Op("recip", 1, lambda d, x: d.div(d.const(1), x), "(1.0f / {0})", flops=4, onnx="Reciprocal"))
define(Op("exp", 1, lambda d, x: d.exp(x), "m_exp({0})", flops=8, onnx="Exp"))
define(Op("where", 3, lambda d, c, x, y: d.select(c, x, y), "m_where({0}, {1}, {2})", linear=(1, 2), onnx="Where"))

# --- truth values: polynomials in 0 and 1 ----------------------------------------------------------------------------
define(Op("and", 2, lambda d, x, y: d.mul(x, y), "({0} * {1})", commutative=True, predicate=True, onnx="And"))
define(
    Op(
        "or",
        2,
        lambda d, x, y: d.sub(d.add(x, y), d.mul(x, y)),
        "({0} + {1} - {0} * {1})",
        commutative=True,
        predicate=True,
        onnx="Or",
    )
)
define(
    Op(
        "xor",
        2,
        lambda d, x, y: d.sub(d.add(x, y), d.mul(d.const(2), d.mul(x, y))),
        "({0} + {1} - 2.0f * {0} * {1})",
        commutative=True,
        predicate=True,
        onnx="Xor",
    )
)
define(Op("not", 1, lambda d, x: d.sub(d.const(1), x), "(1.0f - {0})", predicate=True, onnx="Not"))

# --- functions of the algebra ----------------------------------------------------------------------------------------


def _sigmoid(d: Any, x: Any) -> Any:
    return d.div(d.const(1), d.add(d.const(1), d.exp(d.sub(d.const(0), x))))


def _gelu(d: Any, x: Any) -> Any:
    erf = d.call("erf", d.mul(x, d.const(math.sqrt(0.5))))
    return d.mul(d.mul(d.const(_HALF), x), d.add(d.const(1), erf))


def _gelu_tanh(d: Any, x: Any) -> Any:
    cubic = d.mul(d.const(0.044715), d.mul(x, d.mul(x, x)))
    t = d.call("tanh", d.mul(d.const(math.sqrt(2 / math.pi)), d.add(x, cubic)))
    return d.mul(d.mul(d.const(_HALF), x), d.add(d.const(1), t))


define(Op("rsqrt", 1, lambda d, x: d.div(d.const(1), d.call("sqrt", x)), "m_rsqrt({0})", flops=4))
define(Op("sigmoid", 1, _sigmoid, "m_sigmoid({0})", flops=12, onnx="Sigmoid"))
define(Op("silu", 1, lambda d, x: d.mul(x, _sigmoid(d, x)), "m_silu({0})", flops=13))
define(Op("gelu", 1, _gelu, "m_gelu({0})", flops=20, product=True))
define(Op("gelu_tanh", 1, _gelu_tanh, "m_gelu_tanh({0})", flops=20, product=True))
define(Op("softsign", 1, lambda d, x: d.div(x, d.add(d.const(1), d.call("abs", x))), "m_softsign({0})", flops=6))
define(
    Op(
        "softplus",
        1,
        lambda d, x: d.call("log1p_exp", x),
        "m_softplus({0})",
        real=None,
        flops=16,
        onnx="Softplus",
    )
)

# --- functions that the algebra does not look into --------------------------------------------------------------------
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _power(x: Any, y: Any) -> Any:
    """C's pow; numpy takes the root for one exponent of 1/2, which of -infinity and -0 is another number."""
    return np.power(x, np.array(np.broadcast_to(y, np.broadcast_shapes(np.shape(x), np.shape(y)))))


def _sign(x: Any) -> Any:
    return np.sign(x)


def _levels(x: Any, scale: Any, zero: Any) -> Any:
    return np.clip(np.nan_to_num(np.rint(x / scale) + zero, nan=0.0), 0, 255) - zero


opaque("sqrt", 1, np.sqrt, "m_sqrt({0})", flops=4, onnx="Sqrt")
opaque("log", 1, np.log, "m_log({0})", slow=True, flops=8, onnx="Log")
opaque("log1p_exp", 1, lambda x: np.logaddexp(0.0, x), "m_softplus({0})", flops=16)
opaque("erf", 1, lambda x: _erf(x) if np.size(x) else x, "m_erf({0})", slow=True, flops=14, onnx="Erf")
opaque("tanh", 1, np.tanh, "m_tanh({0})", slow=True, flops=12, onnx="Tanh")
opaque("abs", 1, np.abs, "m_abs({0})", onnx="Abs")
opaque("sign", 1, _sign, "m_sign({0})", slow=True, onnx="Sign")
opaque("relu", 1, lambda x: np.maximum(x, 0.0), "m_max({0}, 0.0f)", onnx="Relu")
opaque("sin", 1, np.sin, "m_sin({0})", slow=True, flops=16, onnx="Sin")
opaque("cos", 1, np.cos, "m_cos({0})", slow=True, flops=16, onnx="Cos")
opaque("floor", 1, np.floor, "m_floor({0})", onnx="Floor")
opaque("ceil", 1, np.ceil, "m_ceil({0})", onnx="Ceil")
opaque("round", 1, np.rint, "m_rint({0})", onnx="Round")
opaque("trunc", 1, np.trunc, "m_trunc({0})")
opaque(
    "levels",
    3,
    _levels,
    "m_levels({0}, {1}, {2})",
    flops=8,
    whole=255,
    doc="x in units of a scale, as a byte holds it (NaN as 0) whose zero point is a whole number, less that",
)
opaque("max", 2, np.maximum, "m_max({0}, {1})", commutative=True)
opaque("min", 2, np.minimum, "m_min({0}, {1})", commutative=True)
opaque("pow", 2, _power, "m_pow({0}, {1})", flops=20, onnx="Pow")
opaque("isnan", 1, lambda x: np.isnan(x).astype(np.float64), "m_isnan({0})", predicate=True)
opaque("isinf", 1, lambda x: np.isinf(x).astype(np.float64), "m_isinf({0})", predicate=True)
opaque("nonzero", 1, lambda x: (x != 0).astype(np.float64), "({0} != 0.0f ? 1.0f : 0.0f)", predicate=True)


# --- numbers of narrower types ----------------------------------------------------------------------------------------
# Not the identity: a number is not what is left of it. What an integer type of 4 or 8 bytes cannot hold, NaN among it,
# is its smallest number, and narrower types keep the low bits of the one of 4 bytes: so do onnxruntime and x86.
_WORD = 32


def _to_integer(bits: int) -> Any:
    """The integer of so many bits, with a sign, that a float is truncated to."""
    low, high = -(2.0 ** (bits - 1)), 2.0 ** (bits - 1)
    return lambda x: np.where((x > low - 1) & (x < high), np.trunc(x), low) + 0.0  # and no -0


def _low_bits(bits: int, low: float) -> Any:
    """The integers of so many bits from `low` on that have the low bits of the one of 4 bytes."""
    word = _to_integer(_WORD)
    return lambda x: np.mod(word(x) - low, 2.0**bits) + low


def _nearest(mantissa: int, exponent: int) -> Any:
    """The nearest number of a type with so many explicit bits."""
    least, largest = 3 - 2 ** (exponent - 1), 2.0 ** (2 ** (exponent - 1)) * (1 - 2.0 ** -(mantissa + 1))

    def real(x: Any) -> Any:
        _, e = np.frexp(x)
        unit = mantissa + 1 - np.maximum(e, least)
        nearest = np.where(np.isfinite(x), np.ldexp(np.rint(np.ldexp(x, unit)), -unit), x)
        return np.where(np.abs(nearest) > largest, np.copysign(np.inf, x), nearest)

    return real


for _type in (dtypes.I64, dtypes.I32):
    opaque(f"to_{_type}", 1, _to_integer(8 * _type.bytes), f"m_to_{_type}({{0}})", flops=2)
for _type, _low in ((dtypes.I16, -(2.0**15)), (dtypes.I8, -(2.0**7)), (dtypes.U16, 0.0), (dtypes.U8, 0.0)):
    opaque(f"to_{_type}", 1, _low_bits(8 * _type.bytes, _low), f"m_to_{_type}({{0}})", flops=2)
for _type in (dtypes.F16, dtypes.BF16):
    opaque(f"round_{_type}", 1, _nearest(_type.mantissa, _type.exponent), f"m_round_{_type}({{0}})", flops=2)


def _compare(name: str, function: Any, c: str, onnx: str, **facts: Any) -> None:
    real = lambda x, y: function(x, y).astype(np.float64)
    opaque(name, 2, real, c, predicate=True, onnx=onnx, **facts)


_compare("eq", np.equal, "({0} == {1} ? 1.0f : 0.0f)", "Equal", commutative=True)
_compare("lt", np.less, "m_lt({0}, {1})", "Less")
_compare("le", np.less_equal, "m_le({0}, {1})", "LessOrEqual")
