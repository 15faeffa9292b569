"""Elementwise operators of random programs, on floats, integers and truth values."""

from __future__ import annotations

import math

from .shapes import LACKING, broadcast, partner
from .sketch import Sketch, Unfit, Value

CONTINUOUS = {
    "Neg": 1.0, "Abs": 1.0, "Relu": 1.0, "Sigmoid": 0.0, "Tanh": 0.0, "Erf": 0.0, "Sin": 0.0, "Cos": 0.0, "Softplus": 1.0,
    "Softsign": 0.0, "Gelu": 1.0, "Mish": 1.0, "HardSigmoid": 0.0, "HardSwish": 1.0, "Elu": 1.0, "Celu": 1.0, "Selu": 1.0,
    "LeakyRelu": 1.0, "Identity": 1.0,
}  # fmt: skip
EXACT = ("Neg", "Abs", "Relu", "Identity")  #: operators that round nothing
ROUNDING = ("Floor", "Ceil", "Round", "Sign", "ThresholdedRelu", "Shrink")
BINARY = ("Add", "Mul", "Sub", "Max", "Min", "Sum", "Mean", "PRelu")
COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")


def unary(s: Sketch, x: Value) -> object:
    op = s.one([o for o in CONTINUOUS if o not in LACKING.get(x.dtype, ())])
    size = max(x.size * CONTINUOUS[op], 1.0)
    more = {"approximate": s.one(("none", "tanh"))} if op == "Gelu" else {}
    if op in ("LeakyRelu", "Elu", "Celu"):
        more = {"alpha": s.one((0.5, 0.01, 1.5))}
    return s.node(op, [x], x.dims, exact=x.exact and op in EXACT, size=size, **more)


def exp(s: Sketch, x: Value) -> object:
    if x.size > 4:
        x = s.node("Tanh", [x], x.dims, keep=False)
    return s.node("Exp", [x], x.dims, size=math.exp(min(2 * x.size, 8)))


def positive(s: Sketch, x: Value) -> object:
    """A function of positive numbers."""
    y = s.node("Abs", [x], x.dims, size=x.size, keep=False)
    y = s.node("Add", [y, s.constant(s.one((0.5, 1.0, 1e-3)))], x.dims, size=x.size + 1, keep=False)
    op = s.one(("Sqrt", "Log", "Reciprocal"))
    return s.node(op, [y], x.dims, size=max(x.size, 3.0))


def power(s: Sketch, x: Value) -> object:
    exponent = s.one((2.0, 3.0, 1.0, 4.0, -1.0, 0.5, -0.5, 1.5))
    if exponent < 0 or exponent != int(exponent):
        x = s.node("Abs", [x], x.dims, size=x.size, keep=False)
        x = s.node("Add", [x, s.constant(0.5)], x.dims, size=x.size + 1, keep=False)
    return s.node("Pow", [x, s.constant(exponent)], x.dims, size=(x.size + 1) ** abs(exponent))


def rounded(s: Sketch, x: Value) -> object:
    if not x.exact:
        raise Unfit
    op = s.one([o for o in ROUNDING if o not in LACKING.get(x.dtype, ())])
    more = {"Shrink": {"lambd": 0.25, "bias": 0.125}, "ThresholdedRelu": {"alpha": 0.5}}.get(op, {})
    return s.node(op, [x], x.dims, exact=op in ROUNDING[:4], size=x.size + 1, **more)


def clip(s: Sketch, x: Value) -> object:
    low, high = s.one(((-1.0, 1.0), (0.0, 6.0), (-0.25, 2.0)))
    return s.node("Clip", [x, s.constant(low), s.constant(high)], x.dims, exact=x.exact, size=min(x.size, 6.0))


def binary(s: Sketch, x: Value) -> object:
    op = s.one([o for o in BINARY if o not in LACKING.get(x.dtype, ())])
    y = partner(s, x)
    if op == "PRelu":
        dims = x.dims
        if broadcast(x.dims, y.dims) != x.dims:
            raise Unfit
    else:
        dims = broadcast(x.dims, y.dims)
    operands = [x, y] if op == "PRelu" or not s.maybe(3) else [y, x]
    size = x.size * y.size if op in ("Mul", "PRelu") else x.size + y.size
    exact = op in ("Max", "Min") and x.exact and y.exact
    return s.node(op, operands, dims, exact=exact, size=size)


def quotient(s: Sketch, x: Value) -> object:
    y = partner(s, x)
    dims = broadcast(x.dims, y.dims)
    y = s.node("Abs", [y], y.dims, size=y.size, keep=False)
    y = s.node("Add", [y, s.constant(s.one((1.0, 0.25)))], y.dims, size=y.size, keep=False)
    return s.node("Div", [x, y], dims, size=x.size * 4)


def squared(s: Sketch, x: Value) -> object:
    return s.node("Mul", [x, x], x.dims, size=x.size**2)


def scaled(s: Sketch, x: Value) -> object:
    factor = s.one((0.5, 2.0, 0.125, -1.0, 0.7071067, 1.0))
    return s.node(s.one(("Mul", "Add", "Div")), [x, s.constant(factor)], x.dims, size=x.size * 2 + 1)


def converted(s: Sketch, x: Value) -> object:
    to = s.one([t for t in ("float32", "float16") if t != x.dtype])
    if s.dtype == "bfloat16" or (to == "float16" and x.size > 100):
        raise Unfit
    y = s.node("Cast", [x], x.dims, dtype=to, exact=x.exact and to != "float16", size=x.size, to=to, keep=False)
    y = s.node(s.one(("Tanh", "Abs", "Neg")), [y], x.dims, size=x.size, keep=False)
    return s.node("Cast", [y], x.dims, dtype=x.dtype, size=x.size, to=x.dtype)


# --- truth values and integers --------------------------------------------------------------------------------------------
def condition(s: Sketch, x: Value) -> Value:
    """Truth values that broadcast with `x`."""
    there = [v for v in s.values if v.dtype == "bool" and _fits(x, v)]
    kind = s.pick(4)
    if there and kind == 0:
        return there[-1 - s.pick(len(there))]
    exact = [v for v in s.values if v.exact and v.is_float and _fits(x, v)]
    if not exact or kind == 1:
        return s.input(x.dims[-2:] if not s.maybe(3) else [1, *x.dims[-1:]], "bool")
    if kind == 2:
        dims = x.dims[-1:]
        a, b = s.input(dims, "int64"), s.input([], "int64")
        return s.node(s.one(COMPARISONS), [a, b], dims, dtype="bool", exact=True)
    a = exact[-1 - s.pick(len(exact))]
    b = s.constant(s.one((0.0, 0.5, -0.25)), a.dtype) if s.maybe(2) else partner(s, a, exact=True)
    if b.dtype != a.dtype or not b.exact:
        raise Unfit
    return s.node(s.one(COMPARISONS), [a, b], broadcast(a.dims, b.dims), dtype="bool", exact=True)


def _fits(x: Value, v: Value) -> bool:
    try:
        return broadcast(x.dims, v.dims) is not None
    except Unfit:
        return False


def logic(s: Sketch, x: Value) -> object:
    a = condition(s, x)
    if s.maybe(2):
        return s.node("Not", [a], a.dims, dtype="bool", exact=True)
    b = condition(s, x)
    return s.node(s.one(("And", "Or", "Xor")), [a, b], broadcast(a.dims, b.dims), dtype="bool", exact=True)


def where(s: Sketch, x: Value) -> object:
    c = condition(s, x)
    y = partner(s, x) if s.maybe(2) else s.constant(s.one((0.0, -1.0, 1.0)), x.dtype)
    if y.dtype != x.dtype:
        raise Unfit
    dims = broadcast(broadcast(c.dims, x.dims), y.dims)
    size, operands = max(x.size, y.size), [c, x, y] if s.maybe(2) else [c, y, x]
    return s.node("Where", operands, dims, dtype=x.dtype, exact=x.exact and y.exact, size=size)


def counted(s: Sketch, x: Value) -> object:
    """Integers turned into floats."""
    i = s.input(x.dims[-2:], s.one(("int64", "int32")))
    if s.maybe(2):
        i = s.node("Add", [i, s.input(i.dims[-1:], i.dtype)], i.dims, exact=True, keep=False)
    f = s.node("Cast", [i], i.dims, dtype=x.dtype, exact=True, size=6.0, to=x.dtype, keep=False)
    return s.node("Mul", [x, f], broadcast(x.dims, f.dims), size=x.size * 6)


def truth(s: Sketch, x: Value) -> object:
    c = condition(s, x)
    f = s.node("Cast", [c], c.dims, dtype=x.dtype, exact=True, to=x.dtype, keep=False)
    return s.node("Mul", [x, f], broadcast(x.dims, c.dims), size=x.size)
