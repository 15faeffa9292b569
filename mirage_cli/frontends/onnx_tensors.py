"""Tensors where fragments can be cut: edits of the model that keep its answers.

Only what is a tensor of the model can be stored between fragments, so what one exporter stores and another does not
would cut them in other places.

1. An operator that computes a sum with a skip connection inside gives it as an output.
2. A multiplication by a number stands behind the views of its result, not before them: the value without the factor is
   then there in the layout in which it is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mirage_cli.frontends.onnx_ops.registry import MICROSOFT

SUM_OUTPUT = 3  #: of the operators below
_SKIPS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
_VIEWS = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity")
_SCALES = ("Mul", "Div")


def store_what_is_cut_at(model: ir.Model) -> None:
    """Make the edits, in place."""
    for node in list(model.graph):
        if node.domain == MICROSOFT and node.op_type in _SKIPS:
            _show_sum(node)
        elif node.domain == MICROSOFT and node.op_type == "Attention":
            _parts_of_attention(node)
        elif node.domain == MICROSOFT and node.op_type == "MultiHeadAttention":
            _bias_in_front(node)
        elif node.domain in ("", "ai.onnx") and node.op_type in _VIEWS:
            _before_scales(node)


def _show_sum(node: ir.Node) -> None:
    """Case 1."""
    if len(node.outputs) <= SUM_OUTPUT:
        shown = len(node.outputs)
        node.resize_outputs(SUM_OUTPUT + 1)
        for hidden in node.outputs[shown:]:
            hidden.name = ""
    total, like = node.outputs[SUM_OUTPUT], node.inputs[0]
    if total.name or like is None:
        return
    total.name = f"{node.outputs[0].name}/sum"
    total.shape, total.type = like.shape, like.type


def _before_scales(view: ir.Node) -> None:
    """Case 2: views are met in order, so a chain of them moves one by one."""
    scaled = view.inputs[0]
    scale = scaled.producer() if scaled is not None else None
    if scaled is None or scale is None or scale.op_type not in _SCALES or scale.domain not in ("", "ai.onnx"):
        return
    x, c = scale.inputs
    if c is not None and x is not None and _is_number(x) and scale.op_type == "Mul":
        x, c = c, x
    alone = len(scaled.uses()) == 1 and not scaled.is_graph_output()
    result = view.outputs[0]
    if not alone or x is None or c is None or not _is_number(c) or not _same_shape(x, scaled):
        return
    if result.is_graph_output() or result.shape is None or c.shape is None or len(c.shape) > len(result.shape):
        return
    viewed = ir.Value(name=f"{result.name}/unscaled", shape=result.shape, type=result.type)
    moved = ir.Node(
        "", view.op_type, [x, *view.inputs[1:]], list(view.attributes.values()), outputs=[viewed], name=view.name
    )
    graph = view.graph
    assert graph is not None
    again = ir.Node("", scale.op_type, [viewed, c], name=scale.name, num_outputs=1)
    graph.insert_after(view, [moved, again])
    name = result.name
    ir.convenience.replace_all_uses_with(result, again.outputs[0])
    again.outputs[0].shape, again.outputs[0].type = result.shape, result.type
    graph.remove([view, scale], safe=True)
    again.outputs[0].name = name


# --- 3 and 4: attention with more inside ------------------------------------------------------------------------------
_KEPT = ("num_heads", "mask_filter_value", "scale", "unidirectional")
_BIAS = 3  #: of MultiHeadAttention


def _parts_of_attention(node: ir.Node) -> None:
    """Case 3; a node with a cache or rotary embeddings inside stays as it is."""
    given: list[ir.Value | None] = [*node.inputs, *[None] * 7]
    x, w, bias, mask, past, added, *rest = given
    turned = "do_rotary" in node.attributes and node.attributes["do_rotary"].as_int()
    present = len(node.outputs) > 1 and bool(node.outputs[1].name)
    if x is None or w is None or w.shape is None or past is not None or any(rest) or turned or present:
        return
    width = w.shape[1]
    if not isinstance(width, int):
        return
    sizes = (
        list(node.attributes["qkv_hidden_sizes"].as_ints())
        if "qkv_hidden_sizes" in node.attributes
        else [width // 3] * 3
    )
    y = _Before(node)
    total = y.add("MatMul", [x, w], _shaped(x, width))
    if bias is not None:
        total = y.add("Add", [total, bias], _shaped(x, width))
    parts = y.parts(total, sizes)
    inputs = [*parts, None, mask, added]
    attributes = [a for name, a in node.attributes.items() if name in _KEPT]
    output = node.outputs[0]
    made = ir.Node(MICROSOFT, "MultiHeadAttention", inputs, attributes, num_outputs=1, name=node.name)
    _take_place(node, made, output)


def _bias_in_front(node: ir.Node) -> None:
    """Case 4, where queries, keys and values are apart."""
    bias = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
    operands = list(node.inputs[:3])
    if bias is None or any(v is None or v.shape is None or len(v.shape) != 3 for v in operands):
        return
    widths = [v.shape[2] for v in operands if v is not None and v.shape is not None]
    if not all(isinstance(n, int) for n in widths):
        return
    y = _Before(node)
    sizes = [int(n) for n in widths if isinstance(n, int)]
    for i, (v, part) in enumerate(zip(operands, y.parts(bias, sizes), strict=True)):
        assert v is not None and v.shape is not None
        node.replace_input_with(i, y.add("Add", [v, part], v.shape))
    node.replace_input_with(_BIAS, None)


def _shaped(x: ir.Value, width: int) -> ir.Shape | None:
    return None if x.shape is None else ir.Shape([*list(x.shape)[:-1], width])


def _take_place(old: ir.Node, new: ir.Node, output: ir.Value) -> None:
    """Put a node in the place of another, whose first result it computes."""
    graph = old.graph
    assert graph is not None
    graph.insert_before(old, new)
    made, name = new.outputs[0], output.name
    made.shape, made.type = output.shape, output.type
    for i, out in enumerate(graph.outputs):
        if out is output:
            graph.outputs[i] = made
    ir.convenience.replace_all_uses_with(output, made)
    graph.remove(old, safe=True)
    made.name = name


class _Before:
    """New nodes in front of one, named after its first result."""

    def __init__(self, node: ir.Node) -> None:
        assert node.graph is not None and isinstance(node.graph, ir.Graph)
        self.node, self.graph, self.count = node, node.graph, 0

    def add(self, op: str, inputs: list[ir.Value], shape: ir.Shape | None) -> ir.Value:
        """A node of one result, of the type of its first operand."""
        self.count += 1
        name = f"{self.node.outputs[0].name}/{op}_{self.count}"
        made = ir.Value(name=name, shape=shape, type=inputs[0].type)
        self.graph.insert_before(self.node, ir.node(op, inputs, outputs=[made], name=name))
        return made

    def parts(self, x: ir.Value, sizes: list[int]) -> list[ir.Value]:
        """A value cut along its last dimension: a weight into weights."""
        stored = None if x.is_graph_input() else x.const_value
        if stored is not None:
            cuts = np.split(stored.numpy(), np.cumsum(sizes)[:-1], -1)
            return [self.weight(np.ascontiguousarray(c), "part") for c in cuts]
        self.count += 1
        name = f"{self.node.outputs[0].name}/Split_{self.count}"
        made = [ir.Value(name=f"{name}/{k}", shape=_shaped(x, n), type=x.type) for k, n in enumerate(sizes)]
        counts = self.weight(np.array(sizes, np.int64), "sizes")
        self.graph.insert_before(self.node, ir.node("Split", [x, counts], {"axis": -1}, outputs=made, name=name))
        return made

    def weight(self, elements: NDArray[Any], what: str) -> ir.Value:
        """A new weight."""
        self.count += 1
        name = f"{self.node.outputs[0].name}/{what}_{self.count}"
        tensor = ir.tensor(elements, name=name)
        v = ir.Value(
            name=name, shape=ir.Shape(list(elements.shape)), type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        self.graph.register_initializer(v)
        return v


def _is_number(v: ir.Value) -> bool:
    tensor = v.const_value
    return tensor is not None and not v.is_graph_input() and tensor.size == 1


def _same_shape(x: ir.Value, y: ir.Value) -> bool:
    return x.shape is not None and y.shape is not None and x.shape == y.shape
