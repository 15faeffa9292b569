"""Tensors where fragments can be cut: edits of the model that keep every bit of its answers.

Only what is a tensor of the model can be stored between fragments, so what one exporter stores and another does not
would cut them in other places.

1. An operator that computes a sum with a skip connection inside gives it as an output.
2. A multiplication by a number stands behind the views of its result, not before them: the value without the factor is
   then there in the layout in which it is read.
"""

from __future__ import annotations

import onnx_ir as ir

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


def _is_number(v: ir.Value) -> bool:
    tensor = v.const_value
    return tensor is not None and not v.is_graph_input() and tensor.size == 1


def _same_shape(x: ir.Value, y: ir.Value) -> bool:
    return x.shape is not None and y.shape is not None and x.shape == y.shape
