"""Parts that several thread graphs of a phase compute become operators of their own, where that saves more than it costs.

Regions come from the closure as whole functions, so what two of them have in common (a residual that is normalised: once
below the sum of squares, once above the line) is there twice.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace

from mirage_cli.lax.ops import OPS
from mirage_cli.search.mugraph.mugraph import BlockGraph, BlockOp, ThreadGraph, ThreadNode


@dataclass(frozen=True, slots=True)
class _Place:
    """Node `node` of the thread graph of operator number `op`; `flops` are those of it and all below."""

    op: int
    node: int
    flops: int


def share(graph: BlockGraph, worth: float) -> BlockGraph:
    """The graph in which parts above `worth` multiply-adds for each element stand once."""
    while (places := _common(graph.ops, worth)) is not None:
        graph = _extracted(graph, places)
    return graph


def _common(ops: Sequence[BlockOp], worth: float) -> list[_Place] | None:
    """Where the most expensive part stands that several operators of one phase compute; the whole of one comes first."""
    found: dict[Hashable, list[_Place]] = {}
    ids: dict[Hashable, int] = {}
    for number, o in enumerate(ops):
        if o.thread is None:
            continue
        known: list[int] = [ids.setdefault(i, len(ids)) for i in o.inputs]
        for k, n in enumerate(o.thread.nodes):
            args = [known[i] for i in n.inputs]
            args = sorted(args) if n.op in OPS and OPS[n.op].commutative else args
            known.append(ids.setdefault((n.op, n.value, *args), len(ids)))
            places = found.setdefault((o.phase, known[-1]), [])
            if not places or places[-1].op != number:
                places.append(_Place(number, k, _part(o.thread, k).flops()))
    several = [p for p in found.values() if len(p) > 1 and p[0].flops > worth]
    return max(several, key=lambda p: p[0].flops, default=None)


def _part(thread: ThreadGraph, node: int) -> ThreadGraph:
    """The nodes that a node is computed from, itself included, with all arguments."""
    arity, needed = thread.arity, {node}
    for k in range(node, -1, -1):
        if k in needed:
            needed.update(i - arity for i in thread.nodes[k].inputs if i >= arity)
    place = {i: i for i in range(arity)}
    kept: list[ThreadNode] = []
    for k in sorted(needed):
        n = thread.nodes[k]
        kept.append(replace(n, inputs=tuple(place[i] for i in n.inputs)))
        place[arity + k] = arity + len(kept) - 1
    return ThreadGraph(arity, tuple(kept))


def _extracted(graph: BlockGraph, places: Sequence[_Place]) -> BlockGraph:
    """The graph with a common part as an operator of its own, which stands where the first one that has it stood."""
    ops = {o.name: o for o in graph.ops}
    where = {graph.ops[p.op].name: p.node for p in places}
    whole = [v for v, k in where.items() if k == len(_thread(ops[v]).nodes) - 1]
    first = next(iter(where))
    name = first if first in whole else _unused(f"{first}_part", ops)
    made: list[BlockOp] = []
    for v, o in ops.items():
        if v == first and v not in whole:
            made.append(_trimmed(replace(o, name=name, thread=_part(_thread(o), where[v]))))
        if v in where and v not in whole:
            o = _reading(o, where[v], name)
        if v not in whole or v == name:
            made.append(replace(o, inputs=tuple(name if i in whole else i for i in o.inputs)))
    outputs = tuple(name if v in whole else v for v in graph.outputs)
    return replace(graph, ops=tuple(made), outputs=outputs)


def _unused(name: str, ops: Collection[str]) -> str:
    while name in ops:
        name += "_"
    return name


def _thread(o: BlockOp) -> ThreadGraph:
    assert o.thread is not None
    return o.thread


def _reading(o: BlockOp, node: int, name: str) -> BlockOp:
    """An operator that reads the value of a node instead of computing it."""
    thread = _thread(o)
    old, inputs = thread.arity, (*o.inputs, name)
    place = {i: i for i in range(old)} | {old + k: old + 1 + k for k in range(len(thread.nodes))}
    place[old + node] = old
    nodes = tuple(replace(n, inputs=tuple(place[i] for i in n.inputs)) for n in thread.nodes)
    return _trimmed(replace(o, inputs=inputs, thread=_part(ThreadGraph(len(inputs), nodes), len(nodes) - 1)))


def _trimmed(o: BlockOp) -> BlockOp:
    """An operator without inputs that it does not read."""
    thread = _thread(o)
    used = sorted({i for n in thread.nodes for i in n.inputs if i < thread.arity})
    place = {i: k for k, i in enumerate(used)}
    place |= {thread.arity + k: len(used) + k for k in range(len(thread.nodes))}
    nodes = tuple(replace(n, inputs=tuple(place[i] for i in n.inputs)) for n in thread.nodes)
    return replace(o, inputs=tuple(o.inputs[i] for i in used), thread=ThreadGraph(len(used), nodes))
