"""Nodes at which onnx's own shape inference, which is C++, ends the process instead of raising an error.

1. RegexFullMatch and EyeLike read the type of their operand without asking whether there is one;
2. Split writes as many results as `num_outputs` says less than it has outputs;
3. GatherND and LayerNormalization read dimensions that are none where `batch_dims` is negative, or `axis` needs more than
   32 bits;
4. GatherND and Slice do so too where a dimension is negative.

They were found by giving every operator of every version operands without a type, and attributes and operands of extreme
values (onnx 1.23).
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator

import onnx
import onnx_ir as ir

from mirage_cli.errors import ModelError
from mirage_cli.frontends.onnx_nodes import all_graphs, all_nodes

NEED_A_TYPE = ("RegexFullMatch", "EyeLike")
#: what attributes that name dimensions may be: from, to
_DIMENSIONS = {("GatherND", "batch_dims"): (0, 1 << 15), ("LayerNormalization", "axis"): (-(1 << 15), 1 << 15)}
_ANY = (-(1 << 63), 1 << 63)
LONGEST = 1 << 14  #: elements of a dimension that folding may split into as many results
_HIDDEN = "mirage.hidden"  #: a domain whose operators inference does not know


def check(proto: onnx.ModelProto, path: str) -> None:
    """Cases 2 and 3: raise ModelError."""
    for node in all_nodes(node for nodes in (proto.graph.node, *(f.node for f in proto.functions)) for node in nodes):
        told = next((a.i for a in node.attribute if a.name == "num_outputs"), None)
        if node.op_type == "Split" and told is not None and told != len(node.output):
            raise ModelError(f"{path}: node {node.name!r} splits into {told} outputs and has {len(node.output)}")
        for attribute in node.attribute:
            low, high = _DIMENSIONS.get((node.op_type, attribute.name), _ANY)
            if not low <= attribute.i < high:
                raise ModelError(
                    f"{path}: node {node.name!r} has {attribute.name} = {attribute.i}, which is no dimension"
                )


def without_negative_dimensions(proto: onnx.ModelProto) -> None:
    """Case 4: let dimensions that are declared to be negative be unknown."""
    for graph in all_graphs(proto):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_value < 0:
                    dim.ClearField("dim_value")


def may_infer(node: onnx.NodeProto, known: Container[str]) -> bool:
    """Whether inference may be asked about a node alone, when the types of the `known` tensors are given to it: those of what
    its sub-graphs read are not."""
    own, *inner = all_nodes([node])
    typed = own.op_type not in NEED_A_TYPE or (bool(own.input) and own.input[0] in known)
    return typed and all(n.op_type not in NEED_A_TYPE for n in inner)


def _lacks_a_type(node: ir.Node) -> bool:
    return node.op_type in NEED_A_TYPE and (not node.inputs or node.inputs[0] is None or node.inputs[0].type is None)


def _is_long(node: ir.Node) -> bool:
    """Whether folding would write a node out for more elements of a dimension than a model has steps."""
    shape = node.inputs[0].shape if node.op_type == "SplitToSequence" and node.inputs and node.inputs[0] else None
    return shape is not None and any(isinstance(d, int) and d > LONGEST for d in shape)


@contextlib.contextmanager
def hidden(model: ir.Model) -> Iterator[None]:
    """Case 1: keep such nodes from inference where the model does not say their operand's type; and from folding what
    would be written out at great length."""
    found = [
        node
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if node.domain in ("", "ai.onnx") and (_lacks_a_type(node) or _is_long(node))
    ]
    domains = [node.domain for node in found]
    for node in found:
        node.domain = _HIDDEN
    if found:
        model.graph.opset_imports[_HIDDEN] = 1
    try:
        yield
    finally:
        for node, domain in zip(found, domains, strict=True):
            node.domain = domain
        model.graph.opset_imports.pop(_HIDDEN, None)
