"""The texts of an ONNX message: protobuf hands out bytes where one is not UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx

from mirage_cli.errors import ModelError
from mirage_cli.frontends.onnx.traversal import graphs


def check(proto: onnx.ModelProto, path: str) -> None:
    """Raise ModelError for a name that is not UTF-8."""
    odd = next((t for t in _of_model(proto) if not isinstance(t, str)), None)
    if odd is not None:
        raise ModelError(f"{path}: a name in the model is not UTF-8: {odd[:64]!r}")


def _of_model(proto: onnx.ModelProto) -> Iterator[Any]:
    yield from (proto.producer_name, proto.producer_version, proto.domain, proto.doc_string)
    yield from _of_entries(proto.metadata_props)
    yield from (entry.domain for entry in proto.opset_import)
    yield from _of_graph(proto.graph)
    for function in proto.functions:
        yield from (function.doc_string, function.overload)
        yield from _of_entries(function.metadata_props)
        yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
        yield from _of_values(function.value_info)
        yield from _of_nodes(function.node)


def _of_entries(entries: Iterable[onnx.StringStringEntryProto]) -> Iterator[Any]:
    for entry in entries:
        yield from (entry.key, entry.value)


def _of_graph(graph: onnx.GraphProto) -> Iterator[Any]:
    yield from (graph.name, graph.doc_string)
    yield from _of_entries(graph.metadata_props)
    yield from _of_tensors(graph.initializer)
    for values in (graph.input, graph.output, graph.value_info):
        yield from _of_values(values)
    yield from _of_nodes(graph.node)


def _of_tensors(tensors: Iterable[onnx.TensorProto]) -> Iterator[Any]:
    for tensor in tensors:
        yield from (tensor.name, tensor.doc_string)
        yield from _of_entries((*tensor.external_data, *tensor.metadata_props))


def _of_values(values: Iterable[onnx.ValueInfoProto]) -> Iterator[Any]:
    for value in values:
        yield from (value.name, value.doc_string)
        yield from _of_entries(value.metadata_props)
        yield from (d.dim_param for d in value.type.tensor_type.shape.dim)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[Any]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, node.overload, node.doc_string, *node.input, *node.output)
        yield from _of_entries(node.metadata_props)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name, attribute.doc_string)
            yield from _of_tensors([*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors])
            for graph in graphs(attribute):
                yield from _of_graph(graph)
