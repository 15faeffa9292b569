"""Products of packed weights whose positions share scales with others than their neighbours (`g_idx`), or whose last block of
several is not full: the positions sorted, and whole blocks of them.

The product is one of blocks behind a Gather: activations in the order of the scales, and the numbers of the weight in the same
order, as stored. A scale of more positions than a block has takes several blocks; the last one of each is filled up with
activations that are 0. What is multiplied is what the operator says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mirage_cli.frontends.onnx.ops.registry import MICROSOFT
from mirage_cli.frontends.onnx.parts.cut_points import take_place
from mirage_cli.lax.dtypes import U2, U4, U8, DType, packed, unpacked

NUMBERS, SCALES, ZEROS, GROUPS = 1, 2, 3, 4  #: inputs of MatMulNBits
WHOLE = {2: U2, 4: U4, 8: U8}  #: types of the numbers, by their bits
_ROUNDING = "accuracy_level"  #: which the operator does not heed beside groups
PLAIN = 2  #: of so many blocks the last may be part of one as it is
Integers = NDArray[np.int64]
Elements = NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Order:
    """The position in each place of the sorted blocks, -1 where there is none, and the scale of each of these blocks."""

    positions: Integers
    scales: Integers

    @property
    def full(self) -> bool:
        """True if there is a position in each place."""
        return bool((self.positions >= 0).all())


def sort_groups(model: ir.Model) -> None:
    """Sort the positions of all such products, in place. Those that share an operand and an order share a Gather."""
    sorted_: dict[tuple[str, bytes], ir.Value] = {}
    for node in list(model.graph):
        if node.domain == MICROSOFT and node.op_type == "MatMulNBits":
            order = _order(node)
            if order is not None:
                _sort(node, order, sorted_)


def _order(node: ir.Node) -> _Order | None:
    """The positions group by group; None where they are sorted and fill their blocks, or the weight is no constant."""
    groups = node.inputs[GROUPS] if len(node.inputs) > GROUPS else None
    x, bits = node.inputs[0], node.attributes.get_int("bits", 4)
    deep, size = (node.attributes.get_int(n, 0) for n in ("K", "block_size"))
    if x is None or x.shape is None or x.dtype is None or min(deep, size) < 1 or bits not in WHOLE:
        return None
    blocks, given = -(-deep // size), [v for v in node.inputs[NUMBERS : GROUPS + 1] if v is not None]
    stored = [v.const_value for v in given if v.const_value is not None and not v.is_graph_input()]
    if len(stored) < len(given):
        return None
    neighbours = np.arange(deep) // size
    group = neighbours if groups is None else stored[-1].numpy().ravel().astype(np.int64)
    packed_whole = size * bits % 8 == 0 and stored[0].size * 8 % (blocks * size * bits) == 0
    if group.shape != (deep,) or not packed_whole or (group < 0).any() or (group >= blocks).any():
        return None
    if np.array_equal(group, neighbours) and (deep % size == 0 or blocks <= PLAIN):
        return None
    members = [np.flatnonzero(group == k) for k in range(blocks)]
    counts = [-(-len(own) // size) for own in members]
    places = [np.pad(own, (0, n * size - len(own)), constant_values=-1) for own, n in zip(members, counts, strict=True)]
    return _Order(np.concatenate(places), np.repeat(np.arange(blocks), counts))


def _sort(node: ir.Node, order: _Order, shared: dict[tuple[str, bytes], ir.Value]) -> None:
    """Put a product of sorted positions in the place of another."""
    x, graph, y = node.inputs[0], node.graph, node.outputs[0]
    assert x is not None and isinstance(graph, ir.Graph)
    key, prefix = (x.name or "", order.positions.tobytes()), f"{y.name}/sorted"
    if key not in shared:
        shared[key] = _activations(node, order, prefix)
    bits, size = node.attributes.get_int("bits", 4), node.attributes.get_int("block_size", 0)
    wide, own = node.attributes.get_int("N", 0), len(order.scales)
    numbers = functools.partial(_moved, order=order.positions, dtype=WHOLE[bits])
    zeros = functools.partial(_moved, order=order.scales, dtype=WHOLE[bits])
    scales = functools.partial(_chosen, order=order.scales)
    inputs = [shared[key], _again(graph, node, NUMBERS, numbers, (wide, own, size * bits // 8))]
    inputs.append(_again(graph, node, SCALES, scales, (wide, own)))
    zero = node.inputs[ZEROS] if len(node.inputs) > ZEROS else None
    whole = zero is not None and zero.dtype == ir.DataType.UINT8
    inputs.append(_again(graph, node, ZEROS, zeros if whole else scales, (wide, -(-own * bits // 8) if whole else own)))
    changed = {"K"} if len(node.inputs) <= GROUPS or node.inputs[GROUPS] is None else {"K", _ROUNDING}
    kept = [a for name, a in node.attributes.items() if name not in changed]
    result = ir.Value(name=prefix, shape=y.shape, type=y.type)
    attributes = [*kept, ir.AttrInt64("K", len(order.positions))]
    more = [None, *node.inputs[GROUPS + 1 :]]
    graph.insert_before(
        node, ir.Node(MICROSOFT, node.op_type, [*inputs, *more], attributes, outputs=[result], name=prefix)
    )
    take_place(node, [(y, result)])


def _activations(node: ir.Node, order: _Order, prefix: str) -> ir.Value:
    """The activations of a product in another order, 0 where there is none."""
    x, graph = node.inputs[0], node.graph
    assert x is not None and x.shape is not None and x.dtype is not None and isinstance(graph, ir.Graph)
    places = np.maximum(order.positions, 0).astype(np.int32)
    shape = ir.Shape([*list(x.shape)[:-1], len(places)])
    behind = ir.Value(name=f"{prefix}/activations", shape=shape, type=x.type)
    indices = _weight(graph, f"{prefix}/positions", ir.tensor(places))
    graph.insert_before(node, ir.node("Gather", [x, indices], {"axis": -1}, outputs=[behind], name=behind.name))
    if order.full:
        return behind
    there = _weight(graph, f"{prefix}/there", ir.tensor(order.positions >= 0))
    nothing = _weight(graph, f"{prefix}/nothing", ir.tensor(np.zeros((), x.dtype.numpy())))
    filled = ir.Value(name=f"{prefix}/filled", shape=shape, type=x.type)
    graph.insert_before(node, ir.node("Where", [there, behind, nothing], outputs=[filled], name=filled.name))
    return filled


def _again(
    graph: ir.Graph, node: ir.Node, k: int, change: Callable[[Elements], Elements], dims: tuple[int, ...]
) -> ir.Value | None:
    """An input of a product with its elements in another order, which are read when they are needed."""
    old = node.inputs[k] if k < len(node.inputs) else None
    if old is None or old.const_value is None:
        return None
    stored, name = old.const_value, f"{node.outputs[0].name}/sorted/{k}"

    def read() -> ir.TensorProtocol:
        rows = stored.numpy().reshape(dims[0], -1)
        return ir.tensor(change(rows).reshape(dims), dtype=stored.dtype)

    return _weight(graph, name, ir.LazyTensor(read, dtype=stored.dtype, shape=ir.Shape(dims), name=name))


def _moved(rows: Elements, order: Integers, dtype: DType) -> Elements:
    """Rows of packed numbers in another order, packed as they were; 0 where there is none."""
    moved = np.where(order >= 0, unpacked(rows, dtype)[:, order], 0)
    return packed(np.pad(moved, ((0, 0), (0, -len(order) % dtype.per_byte))), dtype)


def _chosen(rows: Elements, order: Integers) -> Elements:
    """Rows of scales, or of zero points that are numbers, in another order."""
    return rows[:, order]


def _weight(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """A new weight of the model."""
    v = ir.Value(
        name=name, shape=ir.Shape(list(tensor.shape.numpy())), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(v)
    return v
