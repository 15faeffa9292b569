"""The nodes of a graph in an order in which they can be evaluated, with what each reads and what is done with after it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, SparseTensorProto, TensorProto

from mirage_cli.errors import Refused


@dataclass(frozen=True)
class Step:
    """A node: its attributes with those of a function filled in, its sub-graphs, the names that it reads, those done with."""

    node: NodeProto
    attributes: Mapping[str, AttributeProto]
    bodies: Mapping[str, Plan]
    reads: tuple[str, ...]
    drops: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A graph: names and element types of its inputs, its weights by name, steps in order, outputs, names from around it."""

    inputs: tuple[str, ...]
    types: Mapping[str, int]
    weights: Mapping[str, TensorProto | SparseTensorProto]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    free: frozenset[str]


def of_graph(graph: GraphProto, outputs: Sequence[str] | None, bound: Mapping[str, AttributeProto] | None) -> Plan:
    """The plan of a graph for some of its tensors (its outputs, where they are not named).

    `bound` are the attributes of the function around it (None outside of functions).
    """
    weights: dict[str, TensorProto | SparseTensorProto] = {t.name: t for t in graph.initializer}
    weights.update((s.values.name, s) for s in graph.sparse_initializer)
    types = {v.name: v.type.tensor_type.elem_type for v in graph.input if v.type.HasField("tensor_type")}
    names = tuple(v.name for v in graph.input)
    wanted = tuple(v.name for v in graph.output) if outputs is None else tuple(outputs)
    return _plan(graph.node, names, types, weights, wanted, bound)


def of_function(function: FunctionProto, outputs: Sequence[str], bound: Mapping[str, AttributeProto]) -> Plan:
    """The plan of a function's body for some of its outputs, with its attributes filled in."""
    return _plan(function.node, tuple(function.input), {}, {}, tuple(outputs), bound)


def _plan(
    nodes: Sequence[NodeProto],
    inputs: tuple[str, ...],
    types: Mapping[str, int],
    weights: Mapping[str, TensorProto | SparseTensorProto],
    outputs: tuple[str, ...],
    bound: Mapping[str, AttributeProto] | None,
) -> Plan:
    attributes = [_attributes(node, bound) for node in nodes]
    bodies = [_bodies(own, bound) for own in attributes]
    reads = [_reads(node, inner) for node, inner in zip(nodes, bodies, strict=True)]
    makers = _makers(nodes, {*inputs, *weights})
    needed = _needed(reads, makers, outputs)
    order = _order(reads, makers, needed)
    last = _last_use(order, reads, nodes, outputs)
    steps = tuple(Step(nodes[i], attributes[i], bodies[i], reads[i], last[i]) for i in order)
    known = {*inputs, *weights, *makers}
    free = frozenset(name for i in order for name in reads[i] if name not in known)
    return Plan(inputs, types, weights, steps, outputs, free | {name for name in outputs if name not in known})


def _attributes(node: NodeProto, bound: Mapping[str, AttributeProto] | None) -> dict[str, AttributeProto]:
    """The attributes of a node; those that refer to one of the function around it are that one, or absent with it."""
    attributes = {}
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            attributes[attribute.name] = attribute
        elif bound is not None and attribute.ref_attr_name in bound:
            attributes[attribute.name] = bound[attribute.ref_attr_name]
    return attributes


def _bodies(attributes: Mapping[str, AttributeProto], bound: Mapping[str, AttributeProto] | None) -> dict[str, Plan]:
    """The plans of a node's sub-graphs, by the attribute's name."""
    graphs = {name: a.g for name, a in attributes.items() if a.type == AttributeProto.GRAPH}
    return {name: of_graph(graph, None, bound) for name, graph in graphs.items()}


def _reads(node: NodeProto, bodies: Mapping[str, Plan]) -> tuple[str, ...]:
    """The names that a node reads: its inputs, and what its sub-graphs take from around them; each once."""
    inner = sorted(name for body in bodies.values() for name in body.free)
    return tuple(dict.fromkeys(name for name in (*node.input, *inner) if name))


def _makers(nodes: Sequence[NodeProto], given: Iterable[str]) -> dict[str, int]:
    """Which node makes a name; Refused where two do, or one makes what is given."""
    makers: dict[str, int] = {}
    taken = set(given)
    for i, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in taken:
                raise Refused(f"{name!r} is made twice, the second time by {describe(node)}")
            taken.add(name)
            makers[name] = i
    return makers


def _needed(reads: Sequence[Sequence[str]], makers: Mapping[str, int], outputs: Iterable[str]) -> set[int]:
    """The nodes without which the outputs cannot be had."""
    stack = [makers[name] for name in outputs if name in makers]
    needed = set(stack)
    while stack:
        for name in reads[stack.pop()]:
            maker = makers.get(name)
            if maker is not None and maker not in needed:
                needed.add(maker)
                stack.append(maker)
    return needed


def _order(reads: Sequence[Sequence[str]], makers: Mapping[str, int], needed: set[int]) -> list[int]:
    """The needed nodes, every one behind those that it reads, otherwise as they stand in the file; Refused for a cycle."""
    before = {i: {makers[name] for name in reads[i] if name in makers} for i in needed}
    after: dict[int, list[int]] = {i: [] for i in needed}
    for i in sorted(needed):
        for maker in before[i]:
            after[maker].append(i)
    waiting = {i: len(makers_of) for i, makers_of in before.items()}
    ready = [i for i in sorted(needed) if not waiting[i]]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in after[i]:
            waiting[j] -= 1
            if not waiting[j]:
                heapq.heappush(ready, j)
    if len(order) < len(needed):
        raise Refused("the nodes of the graph read each other in a circle")
    return order


def _last_use(
    order: Sequence[int], reads: Sequence[Sequence[str]], nodes: Sequence[NodeProto], outputs: Iterable[str]
) -> dict[int, tuple[str, ...]]:
    """For every node the names that nothing reads behind it, outputs aside."""
    seen = set(outputs)
    last: dict[int, tuple[str, ...]] = {}
    for i in reversed(order):
        names = [name for name in (*reads[i], *nodes[i].output) if name and name not in seen]
        seen.update(names)
        last[i] = tuple(dict.fromkeys(names))
    return last


def describe(node: NodeProto) -> str:
    """A node in a message: its operator, and its name or else its first output."""
    domain = f"{node.domain}." if node.domain not in ("", "ai.onnx") else ""
    called = node.name or next((name for name in node.output if name), "")
    return f"{domain}{node.op_type} {called!r}"
