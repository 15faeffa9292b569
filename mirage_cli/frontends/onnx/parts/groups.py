"""Products of packed weights whose positions share scales with others than their neighbours (`g_idx`): the positions sorted.

Where every scale belongs to as many positions as a block has, the product is one of blocks behind a Gather: activations in the
order of the scales, and the numbers of the weight in the same order, as stored. What is multiplied is what the operator says.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mirage_cli.frontends.onnx.ops.registry import MICROSOFT
from mirage_cli.frontends.onnx.parts.cut_points import take_place
from mirage_cli.lax.dtypes import U2, U4, U8, packed, unpacked

NUMBERS, GROUPS = 1, 4  #: inputs of MatMulNBits
WHOLE = {2: U2, 4: U4, 8: U8}  #: types of the numbers, by their bits
_ROUNDING = "accuracy_level"  #: which the operator does not heed beside groups
Order = NDArray[np.int64]


def sort_groups(model: ir.Model) -> None:
    """Sort the positions of all such products, in place. Those that share an operand and an order share a Gather."""
    sorted_: dict[tuple[str, bytes], ir.Value] = {}
    for node in list(model.graph):
        if node.domain == MICROSOFT and node.op_type == "MatMulNBits":
            order = _order(node)
            if order is not None:
                _sort(node, order, sorted_)


def _order(node: ir.Node) -> Order | None:
    """The positions group by group; None where they are sorted, or groups have not as many as a block has."""
    groups = node.inputs[GROUPS] if len(node.inputs) > GROUPS else None
    x, q = node.inputs[:2]
    deep, size, bits = (a.as_int() if (a := node.attributes.get(n)) else 4 for n in ("K", "block_size", "bits"))
    stored = None if groups is None or groups.is_graph_input() else groups.const_value
    if stored is None or x is None or x.shape is None or q is None or q.is_graph_input() or q.const_value is None:
        return None
    group = stored.numpy().ravel()
    even = size > 0 and deep % size == 0 and np.array_equal(np.sort(group), np.arange(deep) // size)
    fits = bits in WHOLE and q.const_value.size * 8 % max(deep * bits, 1) == 0
    if not even or not fits or np.array_equal(group, np.arange(deep) // size):
        return None
    return np.argsort(group, kind="stable").astype(np.int64)


def _sort(node: ir.Node, order: Order, shared: dict[tuple[str, bytes], ir.Value]) -> None:
    """Put a product of sorted positions in the place of another."""
    x, q, graph = node.inputs[0], node.inputs[NUMBERS], node.graph
    assert x is not None and q is not None and isinstance(graph, ir.Graph)
    key = (x.name or "", order.tobytes())
    prefix = f"{node.outputs[0].name}/sorted"
    if key not in shared:
        indices = _weight(graph, f"{prefix}/positions", ir.tensor(order.astype(np.int32)))
        behind = ir.Value(name=f"{prefix}/activations", shape=x.shape, type=x.type)
        graph.insert_before(node, ir.node("Gather", [x, indices], {"axis": -1}, outputs=[behind], name=behind.name))
        shared[key] = behind
    numbers, bits = q.const_value, node.attributes["bits"].as_int() if "bits" in node.attributes else 4
    assert numbers is not None
    moved = ir.LazyTensor(
        functools.partial(_moved, numbers, order, bits),
        dtype=numbers.dtype,
        shape=ir.Shape(list(numbers.shape.numpy())),
        name=f"{prefix}/numbers",
    )
    inputs = [shared[key], _weight(graph, moved.name or "", moved), *node.inputs[2:]]
    inputs[GROUPS] = None
    kept = [a for name, a in node.attributes.items() if name != _ROUNDING]
    y = node.outputs[0]
    result = ir.Value(name=prefix, shape=y.shape, type=y.type)
    graph.insert_before(node, ir.Node(MICROSOFT, node.op_type, inputs, kept, outputs=[result], name=prefix))
    take_place(node, [(y, result)])


def _moved(numbers: ir.TensorProtocol, order: Order, bits: int) -> ir.TensorProtocol:
    """Numbers of a weight in another order of positions, packed as they were."""
    stored, dtype = numbers.numpy(), WHOLE[bits]
    apart = unpacked(stored.reshape(-1, order.size * bits // 8), dtype)
    return ir.tensor(packed(apart[:, order], dtype).reshape(stored.shape))


def _weight(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """A new weight of the model."""
    v = ir.Value(
        name=name, shape=ir.Shape(list(tensor.shape.numpy())), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(v)
    return v
