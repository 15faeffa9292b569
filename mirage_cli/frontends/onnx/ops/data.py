"""Operators that make tensors from numbers: ranges, filled tensors, triangles. Shape and Size are read by the walk."""

from __future__ import annotations

import math
from fractions import Fraction

from mirage_cli.errors import Refused
from mirage_cli.frontends import sizes
from mirage_cli.frontends.onnx.ops.registry import ELEMENT_TYPES, READERS, Call, Reader, element_type, reads
from mirage_cli.frontends.sizes import Size
from mirage_cli.lax.dtypes import F32, I64, DType
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph


def _never(_: Call) -> int:
    raise Refused("the operand's dimensions are not known")


for _name, _how in (
    ("Shape", "the dimensions, for whatever reads them as a shape"),
    ("Size", "their product, likewise"),
):
    READERS["", _name] = Reader(_never, _how)


@reads("Constant")
def _constant(call: Call) -> int:
    """A constant input, or a `Fill`; a sparse one is refused."""
    stored = call.node.outputs[0].const_value
    if stored is None:
        raise Refused("a constant that is no dense tensor")
    return call.scope.value(call.node.outputs[0])


@reads("ConstantOfShape")
def _constant_of_shape(call: Call) -> int:
    """`Fill`."""
    attribute = call.node.attributes.get("value")
    if attribute is None:
        return call.graph.fill(0, F32, call.extents(0))
    stored = attribute.as_tensor()
    dtype = element_type(stored.dtype.value)
    value = stored.numpy().item()
    return call.graph.fill(float(value) if dtype.is_float else int(value), dtype, call.extents(0))


@reads("Range")
def _range(call: Call) -> int:
    """`Iota`, scaled and shifted; start, limit and delta are known."""
    tensor = call.tensor(0)
    dtype = ELEMENT_TYPES.get(tensor.dtype) if tensor.dtype is not None else None
    if dtype is None:
        raise Refused("element type of the range")
    start, limit, delta = (_scalar(call, i) for i in range(3))
    if isinstance(start, Fraction) and isinstance(limit, Fraction) and isinstance(delta, Fraction):
        count: Extent = max(0, math.ceil((limit - start) / delta)) if delta else 0
    elif delta == 1 and isinstance(start, (int, Fraction, sizes.Poly)):
        count = _extent(_integer_bound(limit) - _integer_bound(start))
    else:
        raise Refused(f"a range from {start} to {limit} by {delta}")
    steps = compose.scale(call.graph, call.graph.iota(count, 0, 1, dtype), delta if isinstance(delta, Fraction) else 1)
    if isinstance(start, Fraction):
        return compose.shift(call.graph, steps, start)
    return call.graph.map("add", steps, call.arg(0))


def _scalar(call: Call, i: int) -> Fraction | Size:
    """A scalar operand: an exact number or a size. Raises Refused."""
    known = call.scope.known(call.tensor(i))
    if known is not None:
        (size,) = call.sizes(i)
        return Fraction(size) if isinstance(size, int) else size
    value = call.graph.fill_value(call.arg(i))
    if not isinstance(value, Fraction):
        raise Refused(f"input {i} is not known when the model is read")
    return value


def _integer_bound(value: Fraction | Size) -> Size:
    if not isinstance(value, Fraction):
        return value
    if value.denominator != 1:
        raise Refused(f"a symbolic range with bound {value}")
    return int(value)


def _extent(size: Size) -> Extent:
    try:
        return sizes.to_extent(size)
    except ValueError as error:
        raise Refused(str(error)) from None


def below_diagonal(graph: Graph, dims: tuple[Extent, ...], k: int, strict: bool) -> int:
    """Truth values of the last two dimensions: column <= row + k, or < when `strict`."""
    rank = len(dims)
    rows, columns = graph.iota(dims[-2], rank - 2, rank, I64), graph.iota(dims[-1], rank - 1, rank, I64)
    return graph.map("lt" if strict else "le", columns, compose.shift(graph, rows, k))


@reads("Trilu")
def _trilu(call: Call) -> int:
    """`where` on a comparison of `Iota`s."""
    graph, x = call.graph, call.arg(0)
    (k,) = call.ints(1) if call.has(1) else (0,)
    zero = graph.fill(0, graph.dtype(x))
    if call.integer("upper", 1):
        return graph.map("where", below_diagonal(graph, graph.dims(x), k, strict=True), zero, x)
    return graph.map("where", below_diagonal(graph, graph.dims(x), k, strict=False), x, zero)


@reads("EyeLike")
def _eye_like(call: Call) -> int:
    """Equality of `Iota`s."""
    graph = call.graph
    rows, columns = call.dims(0)
    dtype: DType = element_type(call.integer("dtype", 0)) if "dtype" in call.node.attributes else call.dtype(0)
    shifted = compose.shift(graph, graph.iota(rows, 0, 2, I64), call.integer("k", 0))
    return graph.cast(graph.map("eq", shifted, graph.iota(columns, 1, 2, I64)), dtype)
