"""How much of a model the fragments cover, and what was left and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mirage_cli.frontends.imported import Imported
from mirage_cli.lax import extents as ex
from mirage_cli.lax import graph as g
from mirage_cli.lax.fragment import Partition
from mirage_cli.search.cost import number

if TYPE_CHECKING:
    from mirage_cli.work import Occurrence, Work

#: Operators that only describe shapes or constants: they do no work at run time.
FREE = ("Constant", "Shape", "Identity")


def flops_of(graph: g.Graph, v: int) -> int:
    """Multiply-adds of a contraction; 0 for other steps."""
    step = graph.steps[v]
    if not isinstance(step, g.Contract):
        return 0
    size: dict[int, int] = {}
    for labels, i in zip((step.lhs, step.rhs), graph.inputs[v], strict=True):
        for label, e in zip(labels, graph.dims(i), strict=True):
            size[label] = max(size.get(label, 1), number(e))
    total = 1
    for n in size.values():
        total *= n
    return total


def measure(imported: Imported, occurrences: Sequence[Occurrence]) -> dict[str, float]:
    """Shares of the contractions' work, of the weights' bytes and of the nodes that are in fragments."""
    graph = imported.graph
    needed = set(graph.cone(graph.outputs))
    inside = {v for o in occurrences for v in o.fragment.steps}
    work = {v: flops_of(graph, v) for v in needed}
    total = sum(work.values())
    covered = sum(f for v, f in work.items() if v in inside)
    weights = {
        v: number(ex.product(graph.dims(v))) * graph.dtype(v).bytes
        for v in needed
        if isinstance((step := graph.steps[v]), g.Input) and step.constant
    }
    read = {v for o in occurrences for v in o.fragment.inputs}
    nodes = {n.name for n in imported.model.graph if n.op_type not in FREE}
    gone = {n.name for o in occurrences for n in o.region.nodes}
    return {
        "flops": covered / total if total else 0.0,
        "weight_bytes": sum(b for v, b in weights.items() if v in read) / max(1, sum(weights.values())),
        "nodes": len(nodes & gone) / max(1, len(nodes)),
    }


def unchanged(imported: Imported, parts: Partition, work: Sequence[Work]) -> list[dict[str, Any]]:
    """Groups of nodes that stay as they were, each with its reason."""
    replaced = {n.name for w in work if w.replace for o in w.occurrences for n in o.region.nodes}
    found: list[dict[str, Any]] = []
    seen: set[str | None] = set(replaced)
    for w in work:
        if not w.replace:
            for o in w.occurrences:
                names = [n for n in o.region.node_names if n not in seen]
                seen.update(names)
                if names:
                    found.append({"nodes": names, "reason": w.reason})
    names_of = {value: name for name, value in imported.values.items()}
    producer = {v.name: n for n in imported.model.graph for v in n.outputs}
    for left in parts.left:
        node = producer.get(names_of.get(left.value, ""))
        if node is not None and node.name not in seen:
            seen.add(node.name)
            found.append({"nodes": [node.name], "reason": left.reason})
    for name, reason in imported.reasons.items():
        if name not in seen:
            seen.add(name)
            found.append({"nodes": [name], "reason": reason})
    rest = [n.name for n in imported.model.graph if n.name not in seen and n.op_type not in FREE]
    if rest:
        found.append({"nodes": rest, "reason": "elementwise or layout operators outside any fragment"})
    return found
