"""Elementwise operators: those that the registry has by their ONNX name, and compositions of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import reduce

from mirage_cli.errors import Refused
from mirage_cli.frontends.onnx.ops.registry import MICROSOFT, READERS, Call, Reader, element_type, reads
from mirage_cli.lax.dtypes import BOOL, F32, U32, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.magnitudes import integer_range, whole_range
from mirage_cli.lax.ops import OPS

#: results that are exact for integers of any width; others may wrap around
_EXACT = frozenset({"Where", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Sign", "Relu"})


BOUNDS_ARE_INPUTS = 11  #: the opset from which on Clip has inputs for its bounds


def whole_arithmetic(dtype: DType) -> None:
    """Raise Refused for integers that wrap around in ordinary models: narrow and unsigned ones."""
    if dtype.kind == "int" and (dtype.bytes < 4 or dtype.name.startswith("u")):
        raise Refused(f"arithmetic on {dtype} wraps around")


def floating(call: Call, i: int = 0) -> int:
    """Input `i`, which must be floating point. Raises Refused."""
    if not call.dtype(i).is_float:
        raise Refused(f"integer arithmetic that rounds ({call.dtype(i)})")
    return call.arg(i)


def _by_name(op: str, onnx: str) -> Callable[[Call], int]:
    def read(call: Call) -> int:
        args = call.args()
        if onnx not in _EXACT:
            for a in args:
                whole_arithmetic(call.graph.dtype(a))
        return call.graph.map(op, *args)

    return read


_OWN = ("Div", "Pow", "Where")  # read below
for _op in OPS.values():
    if _op.onnx and _op.onnx not in _OWN:
        READERS["", _op.onnx] = Reader(_by_name(_op.name, _op.onnx), f"`{_op.name}`")


@reads("Greater", "GreaterOrEqual")
def _greater(call: Call) -> int:
    """`lt` or `le` with the operands exchanged."""
    x, y = call.args()
    return call.graph.map("lt" if call.node.op_type == "Greater" else "le", y, x)


@reads("Div")
def _div(call: Call) -> int:
    """`div`; integer division is refused."""
    return call.graph.map("div", floating(call), call.arg(1))


@reads("Where")
def _where(call: Call) -> int:
    """`where`; a quotient whose NaN is replaced by 0 becomes `div0`."""
    return compose.select(call.graph, *call.args())


@reads("Pow")
def _pow(call: Call) -> int:
    """Products, roots and quotients for small constant exponents, else `pow`; integers only to the powers 1 to 4."""
    graph, x, y = call.graph, call.arg(0), call.arg(1)
    exponent = graph.fill_value(y)
    if not graph.dtype(x).is_float and exponent not in (1, 2, 3, 4):
        raise Refused("integer power")
    if exponent is None:
        return graph.map("pow", x, y)
    z = compose.power(graph, x, exponent)
    return graph.expand(z, graph.dims(graph.map("pow", x, y))) if len(graph.dims(y)) else z


def _variadic(step: Callable[[Graph, int, int], int]) -> Callable[[Call], int]:
    return lambda call: reduce(lambda x, y: step(call.graph, x, y), call.args())


reads("Min", how="`min`, chained")(_variadic(lambda g, x, y: g.map("min", x, y)))
reads("Max", how="`max`, chained")(_variadic(lambda g, x, y: g.map("max", x, y)))
reads("Sum", how="`add`, chained")(_variadic(lambda g, x, y: g.map("add", x, y)))


@reads("Mean")
def _mean(call: Call) -> int:
    """The sum of the operands, divided by their number."""
    graph, args = call.graph, call.args()
    total = reduce(lambda x, y: graph.map("add", x, y), args)
    return total if len(args) == 1 else graph.map("div", total, graph.fill(len(args), graph.dtype(total)))


@reads("Clip")
def _clip(call: Call) -> int:
    """`max` with the lower bound, then `min` with the upper one: attributes before opset 11, the type's limits by default."""
    graph, x = call.graph, call.arg(0)
    if call.version < BOUNDS_ARE_INPUTS:
        bounds = (call.real("min", -F32.largest), call.real("max", F32.largest))
        least, most = (graph.fill(b, graph.dtype(x)) for b in bounds)
        return graph.map("min", graph.map("max", x, least), most)
    dtype, low, high = graph.dtype(x), call.maybe(1), call.maybe(2)
    if dtype.is_float:
        low, high = (graph.fill(sign * dtype.largest, dtype) if b is None else b for sign, b in ((-1, low), (1, high)))
    x = x if low is None else graph.map("max", x, low)
    return x if high is None else graph.map("min", x, high)


# --- activations ------------------------------------------------------------------------------------------------------
def _number(call: Call, value: float) -> int:
    return call.graph.fill(value, call.dtype(0))


def below_zero(call: Call, x: int, otherwise: int) -> int:
    """`otherwise` where x < 0, else x."""
    return call.graph.map("where", call.graph.map("lt", x, _number(call, 0)), otherwise, x)


@reads("LeakyRelu")
def _leaky_relu(call: Call) -> int:
    """alpha x below 0, else x."""
    x = call.arg(0)
    return below_zero(call, x, compose.scale(call.graph, x, call.real("alpha", 0.01)))


@reads("PRelu")
def _prelu(call: Call) -> int:
    """slope x below 0, else x."""
    x = call.arg(0)
    whole_arithmetic(call.dtype(0))
    return below_zero(call, x, call.graph.map("mul", x, call.arg(1)))


def _exponential_below(call: Call, alpha: float, inner: float = 1.0) -> int:
    """alpha (exp(x / inner) - 1) below 0, else x."""
    graph, x = call.graph, call.arg(0)
    e = graph.map("exp", compose.scale(graph, x, 1 / Fraction(inner)))
    return below_zero(call, x, compose.scale(graph, compose.shift(graph, e, -1), alpha))


@reads("Elu")
def _elu(call: Call) -> int:
    """alpha (exp(x) - 1) below 0, else x."""
    return _exponential_below(call, call.real("alpha", 1.0))


@reads("Selu")
def _selu(call: Call) -> int:
    """gamma times Elu."""
    alpha, gamma = call.real("alpha", 1.67326319217681884765625), call.real("gamma", 1.05070102214813232421875)
    return compose.scale(call.graph, _exponential_below(call, alpha), gamma)


@reads("Celu")
def _celu(call: Call) -> int:
    """alpha (exp(x / alpha) - 1) below 0, else x."""
    alpha = call.real("alpha", 1.0)
    if alpha == 0 or not math.isfinite(alpha):
        raise Refused(f"its alpha is {alpha}, by which nothing can be divided")
    return _exponential_below(call, alpha, alpha)


@reads("Mish")
def _mish(call: Call) -> int:
    """x tanh(softplus(x))."""
    graph, x = call.graph, call.arg(0)
    return graph.map("mul", x, graph.map("tanh", graph.map("softplus", x)))


def _hard_sigmoid(call: Call, alpha: float, beta: float) -> int:
    graph = call.graph
    line = compose.shift(graph, compose.scale(graph, call.arg(0), alpha), beta)
    return graph.map("max", graph.map("min", line, _number(call, 1)), _number(call, 0))


@reads("HardSigmoid")
def _read_hard_sigmoid(call: Call) -> int:
    """alpha x + beta, cut to 0..1."""
    return _hard_sigmoid(call, call.real("alpha", 0.2), call.real("beta", 0.5))


@reads("HardSwish")
def _hard_swish(call: Call) -> int:
    """x HardSigmoid(x) with alpha 1/6 and beta 1/2."""
    return call.graph.map("mul", call.arg(0), _hard_sigmoid(call, 1 / 6, 0.5))


@reads("ThresholdedRelu")
def _thresholded_relu(call: Call) -> int:
    """x above alpha, else 0."""
    graph, x = call.graph, call.arg(0)
    return graph.map("where", graph.map("lt", _number(call, call.real("alpha", 1.0)), x), x, _number(call, 0))


@reads("Shrink")
def _shrink(call: Call) -> int:
    """x + bias below -lambd, x - bias above lambd, else 0."""
    graph, x, bias, lambd = call.graph, floating(call), call.real("bias", 0.0), call.real("lambd", 0.5)
    above = graph.map(
        "where", graph.map("lt", _number(call, lambd), x), compose.shift(graph, x, -bias), _number(call, 0)
    )
    return graph.map("where", graph.map("lt", x, _number(call, -lambd)), compose.shift(graph, x, bias), above)


@reads("Softsign")
def _softsign(call: Call) -> int:
    """`softsign`."""
    return call.graph.map("softsign", call.arg(0))


@reads("Gelu")
def _gelu(call: Call) -> int:
    """`gelu` or `gelu_tanh`."""
    return call.graph.map("gelu_tanh" if call.text("approximate", "none") == "tanh" else "gelu", call.arg(0))


def swish(graph: Graph, x: int, alpha: float) -> int:
    """x sigmoid(alpha x)."""
    return (
        graph.map("silu", x)
        if alpha == 1
        else graph.map("mul", x, graph.map("sigmoid", compose.scale(graph, x, alpha)))
    )


@reads("Swish")
def _swish(call: Call) -> int:
    """`silu`, or x sigmoid(alpha x)."""
    return swish(call.graph, call.arg(0), call.real("alpha", 1.0))


@reads("SwiGLU")
def _swiglu(call: Call) -> int:
    """Swish of the first operand times the second."""
    return call.graph.map("mul", swish(call.graph, call.arg(0), call.real("alpha", 1.0)), call.arg(1))


# --- truth values and types -------------------------------------------------------------------------------------------
@reads("IsNaN")
def _isnan(call: Call) -> int:
    """`isnan`."""
    return call.graph.map("isnan", call.arg(0))


@reads("IsInf")
def _isinf(call: Call) -> int:
    """`isinf`, or equality with one infinity."""
    graph, x = call.graph, call.arg(0)
    positive, negative = call.integer("detect_positive", 1), call.integer("detect_negative", 1)
    if positive and negative:
        return graph.map("isinf", x)
    if not positive and not negative:
        return graph.expand(graph.fill(0, BOOL), graph.dims(x))
    return graph.map("eq", x, _number(call, math.inf if positive else -math.inf))


def convert(graph: Graph, x: int, to: DType) -> int:
    """A value in another element type. Raises Refused where values out of range would wrap around."""
    source = graph.dtype(x)
    if to.per_byte > 1 or (to.is_float and to.bytes < 2):
        raise Refused(f"conversion from {source} to {to}: such numbers are only read")
    if to == BOOL:
        return x if source == BOOL else graph.map("nonzero", x)
    if source in (to, BOOL):
        return graph.cast(x, to)
    if to.is_float:
        return compose.converted(graph, x, to)
    numbers, room = whole_range(graph, x), integer_range(to)
    if numbers is not None and room is not None and room[0] <= numbers[0] and numbers[1] <= room[1]:
        return graph.cast(x, to)
    if source.is_float and f"to_{to}" in OPS:
        return graph.cast(graph.map(f"to_{to}", compose.rounded_to_type(graph, x)), to)
    if source.is_float and to == U32:
        raise Refused(f"conversion from {source} to {to}: what becomes of others depends on their place in the tensor")
    unsigned, from_unsigned = to.name.startswith("u"), source.name.startswith("u")
    wide = to.bytes >= 4 and not unsigned and not source.is_float
    fits = source.kind == "int" and (
        (unsigned == from_unsigned and to.bytes >= source.bytes) or (from_unsigned and to.bytes > source.bytes)
    )
    if not (wide or fits):
        raise Refused(f"conversion from {source} to {to} wraps around")
    return graph.cast(x, to)


@reads("Cast")
def _cast(call: Call) -> int:
    """The same number in another type; floats to integers and to types of 16 bits and back are operators of their own;
    truth is `nonzero`; refused where it wraps."""
    return convert(call.graph, call.arg(0), element_type(call.integer("to", 0)))


@reads("CastLike")
def _cast_like(call: Call) -> int:
    """As Cast, to the type of the second operand."""
    like = call.tensor(1)
    return convert(call.graph, call.arg(0), call.dtype(1) if like.dtype is None else element_type(like.dtype.value))


# --- contributed operators --------------------------------------------------------------------------------------------
@reads("Gelu", domain=MICROSOFT)
def _contributed_gelu(call: Call) -> int:
    """`gelu`."""
    return call.graph.map("gelu", call.arg(0))


@reads("BiasGelu", domain=MICROSOFT)
def _bias_gelu(call: Call) -> int:
    """`gelu` of the sum."""
    return call.graph.map("gelu", call.graph.map("add", call.arg(0), call.arg(1)))


@reads("FastGelu", domain=MICROSOFT)
def _fast_gelu(call: Call) -> int:
    """`gelu_tanh` of the operand plus an optional bias."""
    graph, x, bias = call.graph, call.arg(0), call.maybe(1)
    return graph.map("gelu_tanh", x if bias is None else graph.map("add", x, bias))


@reads("QuickGelu", domain=MICROSOFT)
def _quick_gelu(call: Call) -> int:
    """x sigmoid(alpha x), alpha 1.702."""
    return swish(call.graph, call.arg(0), call.real("alpha", 1.702))
