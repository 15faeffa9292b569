"""Products with quantized weights: (q - z) s of numbers that stay packed, times activations that are as they are."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.frontends.onnx.ops.registry import MICROSOFT, ONNX, Call, Unread, dimension, element_type, reads
from mirage_cli.frontends.onnx.ops.views import gathered
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import PACKED, U8, DType
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.graph import Graph, Input, Opaque


def _numbers(graph: Graph, v: int, bits: int) -> int:
    """Unsigned numbers of so many bits in a tensor of bytes, along its last dimension."""
    if graph.dtype(v) != U8:
        raise Refused(f"numbers of {bits} bits in elements of type {graph.dtype(v)}")
    if bits == U8.bits:
        return v
    made = [graph.steps[u] for u in graph.cone([v])]
    if any(isinstance(s, Opaque) or (isinstance(s, Input) and not s.constant) for s in made):
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
    """Say of a weight that products with it round, if all that read it do."""
    if all(rounds_activations(user) for user, _ in call.tensor(i).uses()):
        call.graph.declare_rounds(call.arg(i))


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
        raise Refused(f"blocks of {size}, of which the last is not full: their positions in {deep} are on no axes")
    blocks = -(-deep // size)
    _check_groups(call, deep, size)
    _declare_rounding(call, 1)
    numbers = graph.reshape(_numbers(graph, call.arg(1), bits), (wide, blocks, size))
    scale = graph.reshape(call.arg(2), (wide, blocks, 1))
    return _scaled(graph, numbers, _zero_points(call, (wide, blocks), bits), scale)


def _check_groups(call: Call, deep: int, size: int) -> None:
    """Raise Refused where positions share scales with others than their neighbours."""
    if not call.has(4):
        return
    stored = call.tensor(4).const_value
    if stored is None or not np.array_equal(stored.numpy(), np.arange(deep) // size):
        raise Refused("groups of positions that do not lie side by side")


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
        q = _numbers(graph, stored, bits)
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


# --- what stays: activations in 8 bits, and experts -----------------------------------------------------------------------
def scales_integers(node: ir.Node) -> bool:
    """True for what follows MatMulInteger where activations are quantised: the Cast of its sums, the product with scales, and
    that of the scales. Runtimes make one operator of all these, which multiplies integers of 8 bits as such."""
    if node.domain not in (ONNX, "ai.onnx"):
        return False
    if node.op_type == "Cast":
        of_integers = any(_made_by(v, "MatMulInteger") for v in node.inputs)
        return of_integers and any(user.op_type == "Mul" for user, _ in node.outputs[0].uses())
    if node.op_type != "Mul":
        return False
    if any(_made_by(v, "DynamicQuantizeLinear") for v in node.inputs):
        users = [user for user, _ in node.outputs[0].uses()]
        return bool(users) and all(u.op_type == "Mul" and _ends_product(u) for u in users)
    return _ends_product(node)


def _ends_product(mul: ir.Node) -> bool:
    makers = [v.producer() for v in mul.inputs if v is not None]
    return any(m is not None and m.op_type == "Cast" and _made_by(m.inputs[0], "MatMulInteger") for m in makers)


def _made_by(v: ir.Value | None, kind: str) -> bool:
    maker = None if v is None else v.producer()
    return maker is not None and maker.op_type == kind


_STAYS = "Stays as it is; its result's shape is known"


@reads("MatMulIntegerToFloat", "DynamicQuantizeMatMul", domain=MICROSOFT, how=_STAYS)
def _integers(call: Call) -> int:
    """Refused: a product of integers of 8 bits, which processors have instructions for and kernels here would convert."""
    *outer, _ = call.dims(0)
    scale = 3 if call.node.op_type == "MatMulIntegerToFloat" else 2
    if len(call.dims(1)) != 2:
        raise Refused("a product of integers with more than one matrix")
    dims = (*outer, call.dims(1)[-1])
    raise Unread("activations are quantised: their integers are multiplied", dims, call.dtype(scale))


@reads("MoE", "QMoE", domain=MICROSOFT, how=_STAYS)
def _experts(call: Call) -> int:
    """Refused: which weights a row is multiplied with is known when the model runs."""
    raise Unread("which experts a row takes is chosen at run time", call.dims(0), call.dtype(0))
