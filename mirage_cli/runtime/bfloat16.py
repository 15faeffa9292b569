"""Models in bfloat16 on onnxruntime's CPU provider, which computes nothing in that type.

Every operator gets its bfloat16 operands as float32 and gives its results back rounded to bfloat16: what a processor
without that arithmetic makes of it, with one rounding for each operator as the type asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx
import onnx.inliner
import onnx.shape_inference
from onnx import TensorProto, helper, numpy_helper

_CONTROL = {"If", "Loop", "Scan"}
_STANDARD = {"", "ai.onnx", "com.microsoft", "ai.onnx.ml"}
_MOVED = TensorProto.BFLOAT16


def holds_bfloat16(model: onnx.ModelProto) -> bool:
    """True if a tensor of the model, or a conversion, is of that type."""
    graph = model.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    return (
        any(v.type.tensor_type.elem_type == _MOVED for v in values)
        or any(t.data_type == _MOVED for t in graph.initializer)
        or any(a.i == _MOVED for n in graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to")
    )


def in_float32(model: onnx.ModelProto, keep_functions: bool) -> onnx.ModelProto:
    """A copy whose operators of the standard domains compute bfloat16 values in float32.

    Inputs, outputs, weights and operators of other domains keep their types. Functions of the model are put in their
    callers' places, unless `keep_functions` says that kernels stand for them.
    """
    model = model if keep_functions else onnx.inliner.inline_local_functions(model)
    inferred = onnx.shape_inference.infer_shapes(model)
    _widen(inferred.graph, _types(inferred.graph, {}), _names(inferred.graph))
    return inferred


def _types(graph: onnx.GraphProto, outer: Mapping[str, int]) -> dict[str, int]:
    """Element types by name. Where inference knows none, as for operators of other domains, a result has the type of
    the first operand that is a floating-point number."""
    types = dict(outer)
    types |= {t.name: t.data_type for t in graph.initializer}
    for v in (*graph.input, *graph.output, *graph.value_info):
        if v.type.tensor_type.elem_type:
            types[v.name] = v.type.tensor_type.elem_type
    floats = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
    for node in graph.node:
        operand = next((types[i] for i in node.input if types.get(i) in floats), 0)
        for name in node.output:
            if name and operand:
                types.setdefault(name, operand)
    return types


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    used = {n for g in _graphs(graph) for node in g.node for n in (*node.input, *node.output)}
    used |= {v.name for g in _graphs(graph) for v in (*g.input, *g.output)}
    used |= {t.name for g in _graphs(graph) for t in g.initializer}
    number = 0
    while True:
        number += 1
        if (name := f"wide_{number}") not in used:
            yield name


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for part in _bodies(node):
            yield from _graphs(part)


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [g for a in node.attribute for g in ([a.g] if a.type == onnx.AttributeProto.GRAPH else a.graphs)]


def _widen(graph: onnx.GraphProto, types: Mapping[str, int], names: Iterator[str]) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for body in _bodies(node):
            _widen(body, _types(body, types), names)
        if node.domain not in _STANDARD or node.op_type in _CONTROL or node.op_type in ("Cast", "Constant"):
            nodes.append(node)
        else:
            nodes += _wide(node, types, names)
    del graph.node[:]
    graph.node.extend(nodes)


def _wide(node: onnx.NodeProto, types: Mapping[str, int], names: Iterator[str]) -> Sequence[onnx.NodeProto]:
    before, after = [], []
    for k, name in enumerate(node.input):
        if types.get(name) == _MOVED:
            node.input[k] = next(names)
            before.append(
                helper.make_node("Cast", [name], [node.input[k]], f"{node.input[k]}_in", to=TensorProto.FLOAT)
            )
    filled = _fill(node)
    for k, name in enumerate(node.output):
        if name and types.get(name) == _MOVED and (before or filled):
            node.output[k] = next(names)
            after.append(helper.make_node("Cast", [node.output[k]], [name], f"{node.output[k]}_out", to=_MOVED))
    return [*before, node, *after]


def _fill(node: onnx.NodeProto) -> bool:
    """Let a ConstantOfShape of bfloat16 fill with float32; whether it is one."""
    for a in node.attribute:
        if node.op_type == "ConstantOfShape" and a.name == "value" and a.t.data_type == _MOVED:
            value = numpy_helper.to_array(a.t).astype("float32")
            a.t.CopyFrom(numpy_helper.from_array(value, a.t.name))
            return True
    return False
