"""Nodes of a model that are written out where it is patched: calls of its functions, and operators that are several in one.

A fragment may begin or end at a tensor inside of such a node. In its place stand then the nodes that the reader made of
it; nodes that no fragment touches stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from mirage_cli.patching import graph_message
from mirage_cli.patching.regions import GRAPHS, tensors_by_name


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """For nodes by their position in the file the reader's nodes in their place, and for each tensor that is inside of one
    its position."""

    nodes: Mapping[int, tuple[ir.Node, ...]]
    inside: Mapping[str, int]


def written_out(
    model: ir.Model,
    results: Mapping[str, int],
    known: Collection[str],
    read: Iterable[str],
    outputs: Iterable[str],
    asked: Iterable[int] = (),
) -> WrittenOut:
    """The nodes that have to be written out when fragments `read` tensors of the reader's `model` and have others as
    `outputs`, and what is `asked`.

    `results` are the file's nodes by their results' names, `known` all names of tensors of its main graph.
    """
    parts = _Parts(model, results, known)
    outputs = list(outputs)
    around = [parts.around(name) for name in dict.fromkeys((*read, *outputs)) if name not in known]
    touched = {k for places in around if len(places) == 1 for k in places}
    touched |= {results[name] for name in outputs if name in results and len(parts.of(results[name])) > 1}
    touched |= {k for places in around if touched.isdisjoint(places) for k in places}
    nodes = {k: parts.of(k) for k in sorted({*touched, *asked})}
    inside: dict[str, int] = {}
    for k, own in nodes.items():
        for v in (v for node in own for v in node.outputs):
            inside.setdefault(v.name or "", k)
    return WrittenOut(_once(nodes), inside)


def reads(node: ir.Node) -> list[str]:
    """The tensors that a node reads, those that its sub-graphs read from around it among them."""
    if any(a.type in GRAPHS for a in node.attributes.values()):
        return graph_message.reads(ir.to_proto(node))
    return [v.name for v in node.inputs if v is not None and v.name]


def _once(nodes: Mapping[int, tuple[ir.Node, ...]]) -> dict[int, tuple[ir.Node, ...]]:
    """Each of the reader's nodes in the first place only."""
    seen: set[ir.Node] = set()
    once = {}
    for k, own in nodes.items():
        once[k] = tuple(n for n in own if n not in seen)
        seen.update(own)
    return once


class _Parts:
    """The reader's nodes by the file's nodes that they were made of."""

    def __init__(self, model: ir.Model, results: Mapping[str, int], known: Collection[str]) -> None:
        self.tensors = tensors_by_name(model)
        self.positions = {node: k for k, node in enumerate(model.graph)}
        self.results, self.known = results, known
        self.names: dict[int, list[str]] = {}
        for name, k in results.items():
            self.names.setdefault(k, []).append(name)
        self.users: dict[str, list[ir.Node]] = {}
        for node in model.graph:
            for name in reads(node):
                self.users.setdefault(name, []).append(node)

    def of(self, k: int) -> tuple[ir.Node, ...]:
        """The reader's nodes that compute the results of a node of the file, in order."""
        nodes: set[ir.Node] = set()
        todo = [self.tensors[name] for name in self.names[k] if name in self.tensors]
        while todo:
            node = todo.pop().producer()
            if node is not None and node not in nodes:
                nodes.add(node)
                todo.extend(self.tensors[name] for name in reads(node) if name not in self.known)
        return tuple(sorted(nodes, key=self.positions.__getitem__))

    def around(self, name: str) -> set[int]:
        """The file's nodes that a tensor of the reader's is inside of: several where they share it."""
        places: set[int] = set()
        start = self.tensors[name]
        seen, todo = {start}, [start] if start.producer() is not None else []
        while todo:
            v = todo.pop()
            maker = v.producer()
            behind = [o for user in self.users.get(v.name or "", ()) for o in user.outputs]
            near = [*(maker.outputs if maker is not None else ()), *behind]
            places |= {self.results[o.name] for o in near if o.name and o.name in self.results}
            fresh = [o for o in behind if o.name not in self.known and o not in seen]
            seen.update(fresh)
            todo.extend(fresh)
        return places
