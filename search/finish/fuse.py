"""Thread graphs: elementwise operators of one phase that feed one another become one, their values stay in registers.

Passes (OSDI'25 section 4.2, here with binary operators):
1. `fuse`: a producer joins its consumer when it has no other, and both have the same axes and live in one phase (then numbers
   less their mean are `rounded_alike`, see `centering.py`);
2. `share` (`common_subexpressions.py`): a part that several thread graphs of a phase have becomes an operator of its own;
3. `hoist`: what a thread graph computes of fewer axes, or of values known earlier, becomes an operator of its own where
   that saves more than keeping it costs (a row's reciprocal root is computed once for the row, not once for each element).

The result's operators are in topological order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from mirage_cli.lax.ir.program import Program
from mirage_cli.search.closure.mapping import numeric
from mirage_cli.search.finish.centering import rounded_alike
from mirage_cli.search.finish.common_subexpressions import share
from mirage_cli.search.mugraph.mugraph import PHASES, BlockGraph, BlockOp, ThreadGraph, ThreadNode

WORTH = 3.0  #: keeping a value for others costs about this many multiply-adds for each of its readers' elements
ITERATIONS = 8  #: what a loop is taken to run at least


def thread_graphs(graph: BlockGraph, program: Program) -> BlockGraph:
    """The graph with its elementwise parts as maximal thread graphs."""
    return hoist(share(rounded_alike(fuse(graph, program)), WORTH), program).validate(program)


# --- 1 ------------------------------------------------------------------------------------------------------------------
def fuse(graph: BlockGraph, program: Program) -> BlockGraph:
    """The graph with maximal thread graphs."""
    ops, axes = list(graph.ops), graph.axes_of(program)
    while (pair := _next(ops, graph.outputs, axes)) is not None:
        producer, consumer = pair
        fused = _fuse(producer, consumer)
        ops = [fused if o is consumer else o for o in ops]
        if producer.name not in {i for o in ops for i in o.inputs} | set(graph.outputs):
            ops.remove(producer)
    return replace(graph, ops=tuple(ops))


def _next(
    ops: list[BlockOp], outputs: tuple[str, ...], axes: Mapping[str, frozenset[str]]
) -> tuple[BlockOp, BlockOp] | None:
    uses = Counter(i for o in ops for i in set(o.inputs))
    uses.update(outputs)
    by_name = {o.name: o for o in ops}
    for consumer in ops:
        for i in consumer.inputs:
            producer = by_name[i]
            if (
                consumer.op == "thread"
                and producer.op == "thread"
                and (not producer.inputs or producer.phase == consumer.phase)
                and (not producer.inputs or (uses[i] == 1 and axes[i] == axes[consumer.name]))
            ):
                return producer, consumer
    return None


def _fuse(producer: BlockOp, consumer: BlockOp) -> BlockOp:
    """One operator in the consumer's place."""
    assert producer.thread is not None
    assert consumer.thread is not None
    args = list(dict.fromkeys([*producer.inputs, *(i for i in consumer.inputs if i != producer.name)]))
    arity = len(args)
    nodes: dict[ThreadNode, int] = {}

    def add(thread: ThreadGraph, places: list[int]) -> int:
        values = list(places)
        for n in thread.nodes:
            n = replace(n, inputs=tuple(values[i] for i in n.inputs))
            values.append(nodes.setdefault(n, arity + len(nodes)))
        return values[-1]

    inner = add(producer.thread, [args.index(i) for i in producer.inputs])
    last = add(consumer.thread, [inner if i == producer.name else args.index(i) for i in consumer.inputs])
    return replace(consumer, inputs=tuple(args), thread=ThreadGraph(arity, tuple(nodes)[: last + 1 - arity]))


# --- 3 ------------------------------------------------------------------------------------------------------------------
def hoist(graph: BlockGraph, program: Program) -> BlockGraph:
    """The graph with parts of thread graphs moved to where they are computed least often."""
    axes = graph.axes_of(program)
    phase = {o.name: o.phase for o in graph.ops}
    ops: list[BlockOp] = []
    known: dict[object, str] = {}
    for o in graph.ops:
        if o.thread is not None:
            o = _hoist(o, program, axes, phase, ops, known)
        ops.append(o)
    return replace(graph, ops=tuple(ops))


def _hoist(
    o: BlockOp,
    program: Program,
    axes: dict[str, frozenset[str]],
    phase: dict[str, str],
    ops: list[BlockOp],
    known: dict[object, str],
) -> BlockOp:
    assert o.thread is not None
    arity, nodes = o.thread.arity, o.thread.nodes
    own_axes = [axes[i] for i in o.inputs]
    own_phase = [_visible(phase[i], o.phase) for i in o.inputs]
    for n in nodes:
        own_axes.append(frozenset[str]().union(*(own_axes[i] for i in n.inputs)))
        own_phase.append(max((own_phase[i] for i in n.inputs), default=0))
    here = (axes[o.name], PHASES.index(o.phase))
    cheaper = [
        k
        for k in range(arity, arity + len(nodes))
        if _less(own_axes[k], own_phase[k], *here, nodes[k - arity])
        and _gain(_part(o, k), own_axes[k], own_phase[k], *here, program) > WORTH
    ]
    users = {k: [j for j in range(arity, arity + len(nodes)) if k in nodes[j - arity].inputs] for k in cheaper}
    roots = [k for k in cheaper if k == arity + len(nodes) - 1 or any(j not in cheaper for j in users[k])]
    if not roots or arity + len(nodes) - 1 in roots:
        return o
    moved: dict[int, str] = {}
    for k in roots:
        part = _part(o, k)
        key = (part.thread, part.inputs)
        if key not in known:
            known[key] = f"{o.name}_{len(known)}"
            name, at = known[key], PHASES[own_phase[k]]
            axes[name], phase[name] = own_axes[k], at
            ops.append(_hoist(replace(part, name=name, phase=at), program, axes, phase, ops, known))
        moved[k] = known[key]
    return _without(o, moved)


def _visible(phase: str, reader: str) -> int:
    """The earliest phase in which a value can be read by a part of a reader."""
    return min(PHASES.index(phase), PHASES.index(reader))


def _less(axes: frozenset[str], phase: int, all_axes: frozenset[str], own: int, node: ThreadNode) -> bool:
    return node.op != "const" and (axes < all_axes or (phase < own and not all_axes - axes and not axes))


def _gain(
    part: BlockOp, axes: frozenset[str], phase: int, all_axes: frozenset[str], own: int, program: Program
) -> float:
    """The price that is saved for each element by computing a part by itself, in multiply-adds."""
    assert part.thread is not None
    times = ITERATIONS if phase < own else 1
    for a in all_axes - axes:
        times *= numeric(program.extent(a))
    return part.thread.flops() * (1 - 1 / times)


def _part(o: BlockOp, root: int) -> BlockOp:
    """The thread graph that computes value `root` of `o` alone."""
    assert o.thread is not None
    arity, nodes = o.thread.arity, o.thread.nodes
    needed: set[int] = {root}
    for k in range(root, arity - 1, -1):
        if k in needed:
            needed.update(nodes[k - arity].inputs)
    inputs = [i for i in range(arity) if i in needed]
    place = {i: n for n, i in enumerate(inputs)}
    kept: list[ThreadNode] = []
    for k in range(arity, root + 1):
        if k in needed:
            kept.append(replace(nodes[k - arity], inputs=tuple(place[i] for i in nodes[k - arity].inputs)))
            place[k] = len(inputs) + len(kept) - 1
    return replace(o, inputs=tuple(o.inputs[i] for i in inputs), thread=ThreadGraph(len(inputs), tuple(kept)))


def _without(o: BlockOp, moved: Mapping[int, str]) -> BlockOp:
    """`o` reading the moved parts instead of computing them."""
    assert o.thread is not None
    arity, nodes = o.thread.arity, o.thread.nodes
    needed: set[int] = {arity + len(nodes) - 1}
    for k in range(arity + len(nodes) - 1, arity - 1, -1):
        if k in needed and k not in moved:
            needed.update(nodes[k - arity].inputs)
    inputs = [o.inputs[i] for i in range(arity) if i in needed]
    place = {i: inputs.index(o.inputs[i]) for i in range(arity) if i in needed}
    for k in moved:
        if k in needed:
            if moved[k] not in inputs:
                inputs.append(moved[k])
            place[k] = inputs.index(moved[k])
    kept: list[ThreadNode] = []
    for k in range(arity, arity + len(nodes)):
        if k in needed and k not in moved:
            kept.append(replace(nodes[k - arity], inputs=tuple(place[i] for i in nodes[k - arity].inputs)))
            place[k] = len(inputs) + len(kept) - 1
    return replace(o, inputs=tuple(inputs), thread=ThreadGraph(len(inputs), tuple(kept)))
