"""The nodes of an ONNX graph as protobuf messages: what they read, which are needed, and their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

import onnx

from mirage_cli.frontends.onnx.traversal import all_graphs, all_nodes, graphs, topological
from mirage_cli.patching.regions import ONNX_DOMAINS


def reads(node: onnx.NodeProto) -> list[str]:
    """The tensors that a node reads, those that its sub-graphs read from around it among them."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in graphs(attribute):
            names += _free(graph)
    return names


def _free(graph: onnx.GraphProto) -> list[str]:
    """The names that a sub-graph reads and does not define."""
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    read = [name for node in graph.node for name in reads(node)] + [v.name for v in graph.output]
    return [name for name in dict.fromkeys(read) if name not in own]


def value_names(model: onnx.ModelProto) -> set[str]:
    """The names of all tensors of a model, those of sub-graphs too."""
    names: set[str] = set()
    for graph in all_graphs(model):
        names |= {v.name for v in (*graph.input, *graph.output, *graph.value_info)}
        names |= {t.name for t in graph.initializer}
        names |= {name for node in graph.node for name in (*node.input, *node.output)}
    return names


def node_names(model: onnx.ModelProto) -> set[str]:
    """The names of all nodes of a model, those of sub-graphs too."""
    return {node.name for node in all_nodes(model.graph.node)}


def unused_name(name: str, used: set[str]) -> str:
    """The name, with a number behind it if it is taken; it is taken from now on."""
    free, count = name, 0
    while free in used:
        count += 1
        free = f"{name}_{count}"
    used.add(free)
    return free


def stored_tensors(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The tensors that a graph holds, as weights and in Constant nodes, by name."""
    tensors = {t.name: t for t in graph.initializer}
    constants = [n for n in graph.node if n.op_type == "Constant" and n.domain in ONNX_DOMAINS]
    return tensors | {node.output[0]: a.t for node in constants for a in node.attribute if a.name == "value"}


def needed_nodes(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> set[int]:
    """The positions of the nodes that outputs need."""
    makers = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    positions: set[int] = set()
    todo = [makers[name] for name in outputs if name in makers]
    while todo:
        k = todo.pop()
        if k not in positions:
            positions.add(k)
            todo.extend(makers[name] for name in reads(nodes[k]) if name in makers)
    return positions


def still_possible(
    nodes: Sequence[onnx.NodeProto], candidates: Sequence[int], available: AbstractSet[str]
) -> Iterator[int]:
    """Those of the candidates whose inputs are there, or are results of others of them."""
    there, left = set(available), list(candidates)
    while ready := [k for k in left if there.issuperset(reads(nodes[k]))]:
        yield from ready
        there.update(name for k in ready for name in nodes[k].output)
        done = set(ready)
        left = [k for k in left if k not in done]


def is_sorted(nodes: Sequence[onnx.NodeProto]) -> bool:
    """True if no node reads what a later one computes."""
    makers = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    return all(makers.get(name, -1) < k for k, node in enumerate(nodes) for name in reads(node))


def in_order(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes so that none reads what a later one computes, otherwise as they stand; as they are where they need each
    other in a ring."""
    if is_sorted(nodes):
        return list(nodes)
    makers = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    before = [{makers[name] for name in reads(node) if name in makers} for node in nodes]
    order = topological(before)
    return list(nodes) if order is None else [nodes[k] for k in order]
