"""Products with quantized weights: (q - z) s of numbers that stay packed, times activations that are as they are."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.frontends.onnx.ops.elementwise import floating
from mirage_cli.frontends.onnx.ops.registry import MICROSOFT, ONNX, Call, Unread, dimension, element_type, reads
from mirage_cli.frontends.onnx.ops.views import gathered
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import F32, I8, I32, PACKED, U8, DType
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Cast, Choose, Graph, Input, Map, Opaque, Reshape


def _numbers(graph: Graph, v: int, bits: int, held: bool = True) -> int:
    """Unsigned numbers of so many bits in a tensor of bytes, along its last dimension: of one that the model holds, unless
    said otherwise."""
    if graph.dtype(v) != U8:
        raise Refused(f"numbers of {bits} bits in elements of type {graph.dtype(v)}")
    if bits == U8.bits:
        return v
    made = [graph.steps[u] for u in graph.cone([v], [u for u, s in enumerate(graph.steps) if isinstance(s, Choose)])]
    if held and any(isinstance(s, Opaque) or (isinstance(s, Input) and not s.constant) for s in made):
        raise Refused(f"numbers of {bits} bits that the model does not hold: they are read of weights only")
    return graph.unpack(v, PACKED[bits, True])


def _scaled(graph: Graph, q: int, zero: int | None, scale: int) -> int:
    """(q - zero) scale, in the type of the scale."""
    dtype = graph.dtype(scale)
    centred = graph.cast(q, dtype)
    if zero is not None and graph.fill_value(zero) != 0:
        centred = graph.map("centred", centred, graph.cast(zero, dtype))
    return graph.map("mul", centred, scale)


# --- activations in 8 bits -----------------------------------------------------------------------------------------------
ROUNDED = 4  #: the accuracy level of products that round activations to 8 bits
_ROUNDED_BESIDE = tuple(getattr(ir.DataType, name) for name in ("INT4", "UINT4", "INT8", "UINT8"))
LEAST = 16  #: positions of a block in products that onnxruntime makes of two operators


def rounds_activations(node: ir.Node) -> bool:
    """True for weights' products that round activations to 8 bits, by the blocks of the weights: they are told so, or are
    spelled as two, of which onnxruntime makes such. It rounds nothing where zero points are no whole numbers or positions have
    groups, nor beside all numbers of 2 bits."""
    match node.op_type:
        case "MatMulNBits":
            level, bits = (node.attributes.get_int(name, of) for name, of in (("accuracy_level", 0), ("bits", 4)))
            zero, groups = (node.inputs[k] if k < len(node.inputs) else None for k in (3, 4))
            return (
                level == ROUNDED and bits != 2 and groups is None and (zero is None or zero.dtype == ir.DataType.UINT8)
            )
        case "DequantizeLinear":
            size = node.attributes.get_int("block_size", 0)
            blocks = size >= LEAST and size & (size - 1) == 0 and node.attributes.get_int("axis", 1) == 0
            whole = node.inputs[0] is not None and node.inputs[0].dtype in _ROUNDED_BESIDE
            users = [user.op_type for user, _ in node.outputs[0].uses()]
            return blocks and whole and users == ["MatMul"] and not node.outputs[0].is_graph_output()
    return False


def _declare_rounding(call: Call, i: int) -> None:
    """Say of a weight that products with it round, if all do that read it but to look rows up."""
    if all(rounds_activations(user) or _looks_up(call, user) for user, _ in call.tensor(i).uses()):
        call.graph.declare_rounds(call.arg(i))


def _looks_up(call: Call, node: ir.Node) -> bool:
    """True for a lookup of rows that are chosen at run time, of a tied embedding: no product of ours has what it gives."""
    if node.op_type == "Reshape" and not node.outputs[0].is_graph_output():
        return all(_looks_up(call, user) for user, _ in node.outputs[0].uses())
    indices = node.inputs[1] if node.op_type == "GatherBlockQuantized" else None
    return indices is not None and call.scope.known(indices) is None


# --- products of packed blocks ------------------------------------------------------------------------------------------
@reads("MatMulNBits", domain=MICROSOFT)
def _matmul_n_bits(call: Call) -> int:
    """A contraction with (q - z) s over blocks and the positions in them; of two blocks the last may be part of one."""
    x, deep, wide, size = call.arg(0), *(call.integer(name, 0) for name in ("K", "N", "block_size"))
    bits = call.integer("bits", 4)
    if bits not in (2, 4, 8) or min(deep, wide, size) < 1 or call.dims(0)[-1] != deep:
        raise Refused(f"a product of {deep} with {wide} columns of {bits} bits in blocks of {size}")
    with _of_shape((*call.dims(0)[:-1], wide), call.dtype(0)):
        y = _over_blocks(call.graph, x, _weights(call, (wide, deep, size), bits), deep, size)
        return call.graph.map("add", y, call.arg(5)) if call.has(5) else y


@contextlib.contextmanager
def _of_shape(dims: Sequence[Extent], dtype: DType) -> Iterator[None]:
    """What is refused inside has a result of these dimensions and this type, which onnx cannot tell."""
    try:
        yield
    except (Refused, InvalidGraph) as refusal:
        raise Unread(str(refusal), dims, dtype) from None


def _weights(call: Call, dims: tuple[int, int, int], bits: int) -> int:
    """The weights of MatMulNBits, [N, blocks, positions]. Raises Refused."""
    graph, (wide, deep, size) = call.graph, dims
    if call.integer("weight_prepacked", 0):
        raise Refused("weights in the layout of a GPU's kernel")
    if deep % size and deep > 2 * size:
        raise Refused(f"blocks of {size}, of which the last is not full, of a weight that the model does not hold")
    blocks = -(-deep // size)
    _check_groups(call, deep, size)
    _declare_rounding(call, 1)
    numbers = graph.reshape(_numbers(graph, call.arg(1), bits), (wide, blocks, size))
    scale = graph.reshape(call.arg(2), (wide, blocks, 1))
    return _scaled(graph, numbers, _zero_points(call, (wide, blocks), bits), scale)


def _check_groups(call: Call, deep: int, size: int) -> None:
    """Raise Refused where positions share scales with others than their neighbours, which `parts/groups.py` did not sort."""
    if not call.has(4):
        return
    stored = call.tensor(4).const_value
    if stored is None or not np.array_equal(stored.numpy(), np.arange(deep) // size):
        raise Refused("groups of positions of a weight that the model does not hold")


def _zero_points(call: Call, dims: tuple[int, int], bits: int) -> int:
    """The zero points of blocks, [N, blocks, 1]: given as numbers, packed, or the middle of the range."""
    graph, (wide, blocks) = call.graph, dims
    zero = call.maybe(3)
    if zero is None:
        return graph.fill(1 << (bits - 1), graph.dtype(call.arg(2)), (wide, blocks, 1))
    if not graph.dtype(zero).is_float:
        row = -(-blocks * bits // 8) * 8 // bits
        zero = graph.slice(graph.reshape(_numbers(graph, zero, bits), (wide, row)), 1, 0, blocks)
    return graph.reshape(zero, (wide, blocks, 1))


def _over_blocks(graph: Graph, x: int, weights: int, deep: int, size: int) -> int:
    """The sum over the last dimension of x, of `deep` positions, of products with weights [N, blocks, positions]."""
    *outer, _ = graph.dims(x)
    whole, rest = divmod(deep, size)
    rank = len(outer)
    labels, (n, block, at) = list(range(rank)), range(rank, rank + 3)

    def part(first: int, blocks: int, positions: int) -> int:
        own = graph.slice(x, rank, first * size, blocks * positions)
        own = graph.reshape(own, [*outer, blocks, positions])
        those = graph.slice(graph.slice(weights, 1, first, blocks), 2, 0, positions)
        return graph.contract(own, those, [*labels, block, at], [n, block, at], [*labels, n])

    shapes = [(first, *dims) for first, *dims in ((0, whole, size), (whole, 1, rest)) if all(dims)]
    return functools.reduce(lambda y, z: graph.map("add", y, z), [part(*shape) for shape in shapes])


# --- tensors ------------------------------------------------------------------------------------------------------------
@reads("DequantizeLinear")
@reads("DequantizeLinear", domain=MICROSOFT)
def _dequantize_linear(call: Call) -> int:
    """(q - z) s with one scale and zero point, one for each place of an axis, or one for each block along it."""
    graph, q, scale = call.graph, call.arg(0), call.arg(1)
    dims, zero = graph.dims(q), call.maybe(2)
    dtype = _result_type(call, graph.dtype(scale))
    if zero is not None and graph.dtype(zero) != graph.dtype(q):
        raise Refused(f"zero points of type {graph.dtype(zero)} for {graph.dtype(q)}")
    size = call.integer("block_size", 0)
    _declare_rounding(call, 0)
    if size:
        at = dimension(call.integer("axis", 1), len(dims))
        return graph.cast(_blocked(graph, q, scale, zero, at, size), dtype)
    single = graph.dims(scale) in ((), (1,))
    at = -1 if single else dimension(call.integer("axis", 1), len(dims))
    each: list[Extent] = [e if i == at else 1 for i, e in enumerate(dims)]
    own = None if zero is None else graph.reshape(zero, each)
    return graph.cast(_scaled(graph, q, own, graph.reshape(scale, each)), dtype)


def _result_type(call: Call, of_scale: DType) -> DType:
    code = call.integer("output_dtype", 0)
    return element_type(code) if code else of_scale


def _blocked(graph: Graph, q: int, scale: int, zero: int | None, at: int, size: Extent) -> int:
    """The same for blocks of `size` along dimension `at`, in the type of the scale."""
    dims, each = graph.dims(q), list(graph.dims(scale))
    blocks = ex.quotient(dims[at], size)
    if blocks is None or len(each) != len(dims) or each[at] != blocks:
        raise Refused(f"blocks of {size} that are not all full in a dimension of {dims[at]}")
    each.insert(at + 1, 1)
    cut = graph.reshape(q, [*dims[:at], blocks, size, *dims[at + 1 :]])
    own = None if zero is None else graph.reshape(zero, each)
    return graph.reshape(_scaled(graph, cut, own, graph.reshape(scale, each)), dims)


@reads("GatherBlockQuantized", domain=MICROSOFT)
def _gather_block_quantized(call: Call) -> int:
    """As Gather, of (q - z) s with a scale for each block: indices that are chosen at run time are refused"""
    graph, stored, scale = call.graph, call.arg(0), call.arg(2)
    bits, zero = call.integer("bits", 4), call.maybe(3)
    if graph.dtype(stored) == U8:
        if bits not in (2, 4, 8):
            raise Refused(f"numbers of {bits} bits")
        q = _numbers(graph, stored, bits, held=False)
        rank = len(graph.dims(q))
        if zero is None:
            zero = graph.fill(1 << (bits - 1), graph.dtype(scale), graph.dims(scale))
        else:
            zero = graph.slice(_numbers(graph, zero, bits), rank - 1, 0, graph.dims(scale)[-1])
    else:
        q, rank = stored, len(graph.dims(stored))
    at = dimension(call.integer("quantize_axis", 1), rank)
    size = call.integer("block_size", 128) or graph.dims(q)[at]
    axis = dimension(call.integer("gather_axis", 0), rank)
    dims = graph.dims(q)
    with _of_shape((*dims[:axis], *call.dims(1), *dims[axis + 1 :]), graph.dtype(scale)):
        return gathered(call, _blocked(graph, q, scale, zero, at, size), axis)


# --- activations in 8 bits, by the range of a tensor -------------------------------------------------------------------------
STEPS = 255  #: between the least number of a byte and the largest
DEEPEST = (1 << 31) // STEPS**2  #: products of bytes whose sum 32 bits hold
EXACT = (1 << 24) // STEPS**2  #: the same of float32


@reads("DynamicQuantizeLinear")
def _dynamic_quantize_linear(call: Call) -> list[int]:
    """`levels` by the least and the largest of all numbers, with a scale and a zero point"""
    graph, x = call.graph, floating(call)
    levels, scale, zero = _by_range(graph, x)
    return [graph.cast(graph.map("add", levels, zero), U8), _single(graph, scale), _single(graph, graph.cast(zero, U8))]


def _by_range(graph: Graph, x: int) -> tuple[int, int, int]:
    """A tensor in levels, the size of one, and the level of 0 above the least."""
    dtype, dims = graph.dtype(x), range(len(graph.dims(x)))
    nothing, one = graph.fill(0, dtype), graph.fill(1, dtype)
    number = graph.map("where", graph.map("isnan", x), nothing, x)
    low = graph.map("min", graph.reduce("min", number, dims), nothing)
    high = graph.map("max", graph.reduce("max", number, dims), nothing)
    size = graph.map("div", graph.map("sub", high, low), graph.fill(STEPS, dtype))
    scale = graph.map("where", graph.map("eq", size, nothing), one, size)
    zero = graph.map("round", graph.map("div", graph.map("neg", low), scale))
    zero = graph.map("where", graph.map("isnan", zero), graph.fill(STEPS, dtype), zero)  # of -inf, over a scale of inf
    return graph.map("levels", x, scale, zero), scale, zero


def _single(graph: Graph, v: int) -> int:
    return graph.reshape(v, ())


@reads("MatMulInteger")
def _matmul_integer(call: Call) -> int:
    """A contraction of numbers less their zero points"""
    result = call.node.outputs[0]
    floats = not result.is_graph_output() and all(user.op_type == "Cast" for user, _ in result.uses())
    if not floats and _deep(call) > EXACT:
        raise Refused("sums of whole numbers that are not read as floats: float32 does not hold them all")
    return call.graph.cast(_of_bytes(call, 0, 1, 2, 3), I32)


def _deep(call: Call) -> int:
    """The positions that a product of bytes sums. Raises Refused."""
    deep = call.dims(0)[-1]
    if not isinstance(deep, int) or deep > DEEPEST:
        raise Refused(f"sums of {deep} products of bytes: 32 bits do not hold them all")
    return deep


def _of_bytes(call: Call, a: int, b: int, a_zero: int, b_zero: int) -> int:
    """The product of inputs in bytes, less their zero points: one, or one for each column. Raises Refused."""
    _deep(call)
    left, right = (_centred(call, i, zero) for i, zero in ((a, a_zero), (b, b_zero)))
    return compose.matmul(call.graph, left, right)


def _centred(call: Call, i: int, zero: int) -> int:
    """Numbers less their zero point, as float32."""
    graph, q = call.graph, call.arg(i)
    if graph.dtype(q) not in (U8, I8):
        raise Refused(f"a product of elements of type {graph.dtype(q)}")
    if not call.has(zero):
        return graph.cast(q, F32)
    z = call.arg(zero)
    if graph.dims(z) not in ((), (1,)) and (i == 0 or len(graph.dims(z)) != 1):
        raise Refused("zero points of rows")
    levels = _levels_of(graph, q, z)
    return levels if levels is not None else graph.map("centred", graph.cast(q, F32), graph.cast(z, F32))


def _levels_of(graph: Graph, q: int, zero: int) -> int | None:
    """What is added to a zero point where a tensor is that sum in bytes."""
    total, own = (compose.behind_casts(graph, v) for v in (q, zero))
    while isinstance(graph.steps[own], (Cast, Reshape)):
        (own,) = graph.inputs[own]
    if graph.steps[total] != Map("add") or graph.inputs[total][1] != own:
        return None
    return graph.inputs[total][0]


@reads("MatMulIntegerToFloat", domain=MICROSOFT)
def _matmul_integer_to_float(call: Call) -> int:
    """As MatMulInteger, times both scales, plus a bias"""
    graph = call.graph
    scale = graph.map("mul", call.arg(2), call.arg(3))
    y = graph.map("mul", _of_bytes(call, 0, 1, 4, 5), scale)
    return graph.map("add", y, call.arg(6)) if call.has(6) else y


@reads("DynamicQuantizeMatMul", domain=MICROSOFT)
def _dynamic_quantize_matmul(call: Call) -> int:
    """As DynamicQuantizeLinear and MatMulIntegerToFloat"""
    graph, _ = call.graph, _deep(call)
    levels, scale, _ = _by_range(graph, call.arg(0))
    y = compose.matmul(graph, levels, _centred(call, 1, 3))
    y = graph.map("mul", y, graph.map("mul", _single(graph, scale), call.arg(2)))
    return graph.map("add", y, call.arg(4)) if call.has(4) else y


def scaled_integers(node: ir.Node) -> ir.Node | None:
    """MatMulInteger where a node is what follows it where activations are quantised: the Cast of its sums, the product with
    scales, and that of the scales. Runtimes make one operator of all these, which multiplies integers of 8 bits as such."""
    if node.domain not in (ONNX, "ai.onnx"):
        return None
    if node.op_type == "Cast":
        product = _made_by(node.inputs[0], "MatMulInteger")
        return product if any(user.op_type == "Mul" for user, _ in node.outputs[0].uses()) else None
    if node.op_type != "Mul":
        return None
    if any(_made_by(v, "DynamicQuantizeLinear") for v in node.inputs):
        ends = [_ended_product(user) if user.op_type == "Mul" else None for user, _ in node.outputs[0].uses()]
        return ends[0] if ends and all(ends) else None
    return _ended_product(node)


def _ended_product(mul: ir.Node) -> ir.Node | None:
    casts = [m for v in mul.inputs if (m := _made_by(v, "Cast")) is not None]
    return next((p for m in casts if (p := _made_by(m.inputs[0], "MatMulInteger")) is not None), None)


def _made_by(v: ir.Value | None, kind: str) -> ir.Node | None:
    maker = None if v is None else v.producer()
    return maker if maker is not None and maker.op_type == kind else None


# --- what stays: experts ------------------------------------------------------------------------------------------------
_APART = "Taken apart before: TopK, products with rows of tables; others stay, with a result of known shape"


@reads("MoE", "QMoE", domain=MICROSOFT, how=_APART)
def _experts(call: Call) -> int:
    """Refused: which weights a row is multiplied with is known when the model runs."""
    raise Unread("which experts a row takes is chosen at run time", call.dims(0), call.dtype(0))
