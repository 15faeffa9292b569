"""Models that onnxruntime loads although the checker of `onnx` refuses them, brought into the checker's form.

These edits are made on the reader's copy of a model:

1. the domain `ai.onnx` is the one without a name;
2. a domain that nodes have and nothing imports is imported in version 1, as onnxruntime takes it;
3. the nodes of the main graph are put into an order of computation, where there is one;
4. a declaration that says no type is dropped, and so is a weight without a name; an output that holds maps, of which
   onnx-ir knows no type, has none.

And in the skeleton that the checker sees, operators that onnxruntime adds to ONNX's own are in a domain that it does not
know, and outputs without a type have one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import onnx

from mirage_cli.frontends.onnx.traversal import all_graphs, all_nodes, graphs, topological

_SPELLED_OUT = "ai.onnx"
#: operators of onnxruntime in ONNX's own domain; and one that opset 18 declares deprecated since opset 21 corrects it
_ADDED = (
    *("Affine", "Crop", "DynamicSlice", "GRUUnit", "GivenTensorFill", "ImageScaler", "LayerNormalization"),
    *("MeanVarianceNormalization", "MemcpyFromHost", "MemcpyToHost", "ParametricSoftplus", "Scale", "ScaledTanh"),
    *("SimplifiedLayerNormalization", "ThresholdedRelu", "GroupNormalization"),
)
_ELSEWHERE = "mirage.tolerated"  #: the domain that hides these from the checker
_Imports: TypeAlias = onnx.ModelProto | onnx.FunctionProto


def bring_into_form(proto: onnx.ModelProto) -> None:
    """The edits above, in place."""
    for part in (proto, *proto.functions):
        _one_name(part)
        _import_all(part)
    for function in proto.functions:
        function.domain = "" if function.domain == _SPELLED_OUT else function.domain
    _sort(proto.graph)
    for graph in all_graphs(proto):
        for value in (*graph.output, *graph.value_info):
            if holds_maps(value.type):
                value.ClearField("type")
        _drop(graph.value_info, [v.type.WhichOneof("value") is None for v in graph.value_info])
        _drop(graph.initializer, [not t.name for t in graph.initializer])


def hide(small: onnx.ModelProto, opset: int) -> None:
    """The edits of a skeleton, in place."""
    added = {n for n in _ADDED if not onnx.defs.has(n, opset) or onnx.defs.get_schema(n, opset).deprecated}
    for part in (small, *small.functions):
        hidden = [n for n in _nodes(part) if n.domain == "" and n.op_type in added]
        for node in hidden:
            node.domain = _ELSEWHERE
        if hidden:
            part.opset_import.add(domain=_ELSEWHERE, version=1)
    for value in small.graph.output:
        if value.type.WhichOneof("value") is None:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            value.type.tensor_type.shape.SetInParent()


def _nodes(part: _Imports) -> Iterator[onnx.NodeProto]:
    """All nodes of a model's graph, or of a function."""
    return all_nodes(part.graph.node if isinstance(part, onnx.ModelProto) else part.node)


# --- 1 and 2: domains -------------------------------------------------------------------------------------------------
def _one_name(part: _Imports) -> None:
    for node in _nodes(part):
        if node.domain == _SPELLED_OUT:
            node.domain = ""
    has_short = any(entry.domain == "" for entry in part.opset_import)
    spelled = [entry.domain == _SPELLED_OUT for entry in part.opset_import]
    if has_short:
        _drop(part.opset_import, spelled)
    else:
        for entry in part.opset_import:
            entry.domain = "" if entry.domain == _SPELLED_OUT else entry.domain


def _import_all(part: _Imports) -> None:
    imported = {entry.domain for entry in part.opset_import}
    for domain in sorted({node.domain for node in _nodes(part)} - imported - {""}):
        part.opset_import.add(domain=domain, version=1)


# --- 3: order ---------------------------------------------------------------------------------------------------------
def _sort(graph: onnx.GraphProto) -> None:
    """Put the nodes into the first order of computation, counted by where they stand; where there is none they stay."""
    maker_of = {name: k for k, node in enumerate(graph.node) for name in node.output if name}
    needs = [{maker_of[n] for n in _read(node) if n in maker_of} for node in graph.node]
    if all(max(need, default=-1) < k for k, need in enumerate(needs)):
        return
    order = topological(needs)
    if order is not None:
        nodes = [graph.node[k] for k in order]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, and those that its sub-graphs do."""
    for inner in all_nodes([node]):
        yield from inner.input
        yield from (v.name for a in inner.attribute for g in graphs(a) for v in g.output)


# --- 4: what has no type or no name -----------------------------------------------------------------------------------
def holds_maps(kind: onnx.TypeProto) -> bool:
    """True if a type is a map, or a sequence or an optional value of one."""
    inner = kind.WhichOneof("value")
    while inner in ("sequence_type", "optional_type"):
        kind = getattr(kind, inner).elem_type
        inner = kind.WhichOneof("value")
    return bool(inner == "map_type")


def _drop(entries: object, gone: Sequence[bool]) -> None:
    """Delete the entries of a repeated field that are marked."""
    assert hasattr(entries, "__delitem__")
    for k in sorted((k for k, drop in enumerate(gone) if drop), reverse=True):
        del entries[k]
