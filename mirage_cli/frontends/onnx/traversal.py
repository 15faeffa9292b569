"""Walking an ONNX message: the nodes of a graph and those of the sub-graphs in their attributes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

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


def topological(needs: Sequence[set[int]]) -> list[int] | None:
    """Positions such that each comes behind those that it needs, the smallest first; None where there is no such order."""
    waiting = [len(need) for need in needs]
    readers: list[list[int]] = [[] for _ in needs]
    for k, need in enumerate(needs):
        for n in need:
            readers[n].append(k)
    ready = [k for k, count in enumerate(waiting) if not count]
    order = []
    while ready:
        k = heapq.heappop(ready)
        order.append(k)
        for reader in readers[k]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return order if len(order) == len(needs) else None
