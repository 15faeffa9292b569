"""Branches of `If`, read beside the main graph: merged decoders are one `If` between a prompt and a step.

Nodes of a branch compute what they do wherever they stand, so the reader's copy has them in the main graph, in front of their
`If`, which chooses between results then. What they read from around their branch is a value of its own there (`entered`):
nothing of two branches, nor of one and of the main graph, is one fragment. A branch may not run, so that it tells nothing
about sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import onnx
import onnx_ir as ir

from mirage_cli.frontends.names import Names
from mirage_cli.frontends.onnx.traversal import all_nodes, graphs

BRANCH = "branch"  #: the key under which a lifted node knows its branch
BRANCHES = ("then_branch", "else_branch")
_DOMAINS = ("", "ai.onnx")


def of_message(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """The branches of the main graph, each with its name: that of the first result of its `If` and which one it is."""
    for node in model.graph.node:
        if node.op_type == "If" and node.domain in _DOMAINS and node.output and node.output[0]:
            for attribute in node.attribute:
                if attribute.name in BRANCHES and attribute.HasField("g"):
                    yield named(node.output[0], attribute.name), attribute.g


def named(result: str, branch: str) -> str:
    """The name of a branch."""
    return f"{result}/{branch}"


def name_apart(model: onnx.ModelProto) -> None:
    """Give the tensors of branches names that nothing else in the model has, in place: two branches may use the same."""
    own = dict(of_message(model))
    if not own:
        return
    main = model.graph
    used = Names([v.name for v in main.input] + [t.name for t in main.initializer])
    for node in main.node:
        for name in node.output:
            used.new(name)
    for graph in own.values():
        given = [t.name for t in graph.initializer] + [name for n in graph.node for name in n.output if name]
        new = {name: other for name in dict.fromkeys(given) if (other := used.new(name)) != name}
        if new:
            _rename(graph, new)


def _rename(graph: onnx.GraphProto, new: Mapping[str, str]) -> None:
    """Rename what a branch defines, wherever it is read."""
    for t in graph.initializer:
        t.name = new.get(t.name, t.name)
    for v in (*graph.output, *graph.value_info):
        v.name = new.get(v.name, v.name)
    for node in all_nodes(graph.node):
        node.input[:] = [new.get(name, name) for name in node.input]
        for inner in (g for a in node.attribute for g in graphs(a)):
            for v in inner.output:
                v.name = new.get(v.name, v.name)
    for node in graph.node:
        node.output[:] = [new.get(name, name) for name in node.output]


def choices(model: ir.Model) -> list[str]:
    """The first results of the nodes `If` of the main graph."""
    return [n.outputs[0].name or "" for n in model.graph if n.op_type == "If" and n.domain in _DOMAINS and n.outputs]


def lift(model: ir.Model, wanted: Collection[str]) -> None:
    """Put the nodes of branches in front of their `If`, in place, for those whose first results are `wanted`."""
    graph = model.graph
    for node in list(graph):
        result = node.outputs[0].name or "" if node.outputs else ""
        if node.op_type != "If" or node.domain not in _DOMAINS or result not in wanted:
            continue
        for which in BRANCHES:
            _lift(graph, node, which, named(result, which))


def _lift(graph: ir.Graph, node: ir.Node, which: str, branch: str) -> None:
    """Put the nodes of a branch in front of its `If`; the branch passes their results on."""
    own = node.attributes[which].as_graph()
    results = list(own.outputs)
    own.outputs.clear()
    for name, weight in list(own.initializers.items()):
        del own.initializers[name]
        graph.register_initializer(weight)
    for inner in list(own):
        own.remove(inner)
        inner.meta[BRANCH] = branch
        graph.insert_before(node, inner)
    for v in results:
        passed = ir.Value(name=f"{v.name}/{which}", shape=v.shape, type=v.type)
        own.append(ir.node("Identity", [v], outputs=[passed], name=f"{v.name}/{which}"))
        own.outputs.append(passed)


def branch_of(v: ir.Value) -> str:
    """The branch whose node computes a tensor; nothing for others."""
    maker = v.producer()
    return "" if maker is None else str(maker.meta.get(BRANCH, ""))
