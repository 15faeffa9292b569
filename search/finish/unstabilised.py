"""A block graph as the closure sees it: thread graphs operator by operator, without what a stabiliser adds.

`bare` takes a stabilised graph back to the exponential form; `stabilise` makes the graph from it again, so a graph that was
stabilised in another way than that, or wrongly, is found by comparing the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mirage_cli.errors import Refused
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.finish.stabilise import stabilise
from mirage_cli.search.mugraph.mugraph import PROLOGUE, BlockGraph, BlockOp, ThreadGraph, ThreadNode

ADDED = ("top", "running", "shrink", "grid_top")
WEIGHTED = ("accum", "grid_sum")


def bare(graph: BlockGraph, program: Program) -> BlockGraph:
    """The graph in the exponential form. Raises Refused where its maxima are not what `stabilise` would make of it."""
    graph = unfolded(graph)
    by_name = {o.name: o for o in graph.ops}
    ops = tuple(_plain(o, by_name) for o in graph.ops if o.op not in ADDED)
    for o in ops:
        if added := [i for i in o.inputs if by_name[i].op in ADDED]:
            raise Refused(f"{o.name} reads {added[0]}, which keeps exponentials small, as a value")
    plain = replace(graph, ops=ops, outputs=tuple(v for v in graph.outputs if by_name[v].op not in ADDED))
    wanted, found = _stabilisers(unfolded(stabilise(plain, program))), _stabilisers(graph)
    for name, weights in found.items():
        if weights != wanted.get(name):
            raise Refused(f"{name} is not kept small by the maximum that belongs to it")
    return plain


def unfolded(graph: BlockGraph) -> BlockGraph:
    """The graph with one operator for each node of its thread graphs, and every operator once."""
    names: dict[str, str] = {}
    first: dict[BlockOp, str] = {}
    for o in graph.ops:
        o = replace(o, inputs=tuple(names[i] for i in o.inputs))
        if o.thread is None:
            names[o.name] = first.setdefault(replace(o, name=""), o.name)
            continue
        values = list(o.inputs)
        for k, n in enumerate(o.thread.nodes):
            last = k == len(o.thread.nodes) - 1
            made = _single(o, n, [values[i] for i in n.inputs])
            values.append(first.setdefault(made, o.name if last else f"{o.name}.{k}"))
        names[o.name] = values[-1]
    ops = tuple(replace(o, name=name) for o, name in first.items())
    return replace(graph, ops=ops, outputs=tuple(names[v] for v in graph.outputs))


def _single(o: BlockOp, n: ThreadNode, operands: list[str]) -> BlockOp:
    """One node of a thread graph as an operator without a name."""
    node = replace(n, inputs=tuple(range(len(operands))))
    phase = o.phase if operands else PROLOGUE
    return replace(o, name="", inputs=tuple(operands), phase=phase, thread=ThreadGraph(len(operands), (node,)))


def _is_exponential(o: BlockOp, by_name: Mapping[str, BlockOp]) -> bool:
    """True if an operator is an exponential less a maximum that this kernel takes."""
    return o.thread is not None and o.thread.nodes[0].op == "exp_minus" and by_name[o.inputs[1]].op in ADDED


def _plain(o: BlockOp, by_name: Mapping[str, BlockOp]) -> BlockOp:
    """An operator without its weights; an exponential takes its axes from its maximum."""
    if o.op in WEIGHTED:
        return replace(o, inputs=o.inputs[:1])
    if not _is_exponential(o, by_name):
        return o
    top = by_name[o.inputs[1]]
    while top.op in ("running", "grid_top"):
        top = by_name[top.inputs[0]]
    return BlockOp(o.name, "stable_exp", o.inputs[:1], o.phase, top.over)


def _stabilisers(graph: BlockGraph) -> dict[str, tuple[object, ...]]:
    """For each exponential and each weighted sum the maxima behind it, spelled out."""
    spelled: dict[str, object] = {}
    by_name = {o.name: o for o in graph.ops}
    for o in graph.ops:
        if o.op in ADDED:
            spelled[o.name] = (o.op, o.phase, o.over, *(spelled.get(i, i) for i in o.inputs))
    weighted = [o for o in graph.ops if o.op in WEIGHTED or _is_exponential(o, by_name)]
    return {o.name: tuple(spelled[i] for i in o.inputs[1:]) for o in weighted}
