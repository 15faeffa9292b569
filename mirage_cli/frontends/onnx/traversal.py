"""Walking an ONNX message: the nodes of a graph and those of the sub-graphs in their attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx


def graphs(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    """The sub-graphs that an attribute holds."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes and those of their sub-graphs; protobuf itself limits how deep these are."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in graphs(attribute):
                yield from all_nodes(graph.node)


def all_graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """A model's graph, its sub-graphs and those of its functions."""
    yield model.graph
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        for node in all_nodes(nodes):
            for attribute in node.attribute:
                yield from graphs(attribute)
