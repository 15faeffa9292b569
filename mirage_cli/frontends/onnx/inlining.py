"""Calls of a model's own functions written out, in a time that grows with the nodes that this makes.

onnx-ir's pass does it. Two of its steps grow with a square: for a name that is taken it tries all numbers in turn, from the
first on, for each value of each call; and it looks at all pairs of functions whose domains are equal. So functions get
names here that cost it nothing: each a domain of its own, and their values and nodes new names before each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir
from onnx_ir.passes import common as passes

from mirage_cli.frontends.names import Names

_NAME = "f"  #: of every function, while calls are written out


def inline(model: ir.Model) -> None:
    """Replace calls of a model's functions by their nodes, in place; functions that nothing calls are dropped."""
    used = _called(model)
    for key in [key for key in model.functions if key not in used]:
        del model.functions[key]
    if not used:
        return
    _own_domains(model)
    outer = list(_nodes(model.graph))
    nodes = Names(n.name for n in outer if n.name)
    values = Names([*_inputs(model.graph, outer), *(v.name for n in outer for v in n.outputs if v.name)])

    def renamed(function: ir.Function) -> bool:
        for node in _nodes(function):
            node.name = nodes.new(node.name or "node")
            for value in node.outputs:
                value.name = values.new(value.name or "val")
        return True

    passes.InlinePass(criteria=renamed)(model)


def _nodes(graph: ir.Graph | ir.Function) -> Iterator[ir.Node]:
    """All nodes, those of sub-graphs too."""
    return iter(ir.traversal.RecursiveGraphIterator(graph))


def _inputs(graph: ir.Graph, nodes: Iterable[ir.Node]) -> Iterator[str]:
    """Names of the inputs and weights of a graph and of the sub-graphs of its nodes."""
    inner = (g for n in nodes for a in n.attributes.values() for g in _graphs(a))
    for part in (graph, *inner):
        yield from (v.name for v in (*part.inputs, *part.initializers.values()) if v.name)


def _graphs(attribute: ir.Attr) -> list[ir.Graph]:
    if attribute.is_ref():
        return []
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    return list(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else []


def _called(model: ir.Model) -> set[ir.OperatorIdentifier]:
    """The functions that the graph calls, directly or through others."""
    called: set[ir.OperatorIdentifier] = set()
    waiting: list[ir.Graph | ir.Function] = [model.graph]
    while waiting:
        calls = {n.op_identifier() for n in _nodes(waiting.pop())} & model.functions.keys()
        waiting += [model.functions[key] for key in sorted(calls - called)]
        called |= calls
    return called


def _own_domains(model: ir.Model) -> None:
    """Give each function a domain of its own that nothing else has, in its calls too."""
    parts: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    prefix, taken = "function", {n.domain for part in parts for n in _nodes(part)}
    while any(domain.startswith(prefix) for domain in taken):
        prefix += "_"
    functions = dict(model.functions)
    domains = {key: f"{prefix}{k}" for k, key in enumerate(functions)}
    for part in parts:
        for node in _nodes(part):
            if (domain := domains.get(node.op_identifier())) is not None:
                node.domain, node.op_type, node.overload = domain, _NAME, ""
    model.functions.clear()
    for key, function in functions.items():
        function.domain, function.name, function.overload = domains[key], _NAME, ""
        model.functions[function.identifier()] = function
