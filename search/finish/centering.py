"""Numbers less their mean: both sides of the difference are to be rounded alike.

A layer norm of equal numbers is 0 because a number less the mean of such numbers is; whatever is left is divided by the root
of epsilon. Where the numbers are computed, two things leave something: a muGraph may compute them in two ways, x (x (x x))
here and (x x) (x x) there, and compilers make one operation of a product and the difference that reads it, whose
product is not rounded. So the difference gets the numbers as they are summed, and products that are `rounded`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_cli.lax.ops import OPS
from mirage_cli.search.mugraph.mugraph import BlockGraph, BlockOp, ThreadGraph, ThreadNode
from mirage_cli.search.mugraph.subtracted_sums import steps_of, sum_differences

ROUNDED = "rounded"


def rounded_alike(graph: BlockGraph) -> BlockGraph:
    """The graph with such differences made so."""
    by_name = {o.name: o for o in graph.ops}
    others: dict[str, dict[int, str]] = {o.name: {} for o in graph.ops}
    for d in sum_differences(steps_of(graph)):
        term = by_name[d.sum].inputs[0]
        owner, _, node = d.other.partition(".")
        if node:
            others[owner][int(node)] = term
        elif owner == term:
            by_name[term] = _rounded(by_name[term])
    for owner, nodes in others.items():
        same = {k: by_name[term] for k, term in nodes.items() if _same(by_name[owner], k, by_name[term])}
        by_name |= {term.name: _rounded(term) for term in same.values()}
        if same:
            by_name[owner] = _spelled(by_name[owner], {k: by_name[term.name] for k, term in same.items()})
    return replace(graph, ops=tuple(by_name[o.name] for o in graph.ops))


def _rounded(o: BlockOp) -> BlockOp:
    """An operator whose result is rounded, where that is a product."""
    last = o.thread.nodes[-1].op if o.thread is not None and o.thread.nodes else ""
    if o.thread is None or last not in OPS or not OPS[last].product:
        return o
    node = ThreadNode(ROUNDED, (o.thread.arity + len(o.thread.nodes) - 1,))
    return replace(o, thread=ThreadGraph(o.thread.arity, (*o.thread.nodes, node)))


def _same(o: BlockOp, node: int, term: BlockOp) -> bool:
    """True if node number `node` of an operator is what `term` computes."""
    forms = _Forms()
    return term.thread is not None and forms.of(o)[len(o.inputs) + node] == forms.of(term)[-1]


def _spelled(o: BlockOp, terms: Mapping[int, BlockOp]) -> BlockOp:
    """An operator whose nodes of these numbers are computed as others are."""
    assert o.thread is not None
    arity = o.thread.arity
    made: dict[ThreadNode, int] = {}

    def add(nodes: Sequence[ThreadNode], read: list[int]) -> None:
        for n in nodes:
            n = replace(n, inputs=tuple(read[i] for i in n.inputs))
            read.append(made.setdefault(n, arity + len(made)))

    values = list(range(arity))
    for k, n in enumerate(o.thread.nodes):
        if (term := terms.get(k)) is None or term.thread is None:
            add([n], values)
            continue
        inner = [o.inputs.index(i) if i in o.inputs else 0 for i in term.inputs]  # one that is not there is not read
        add(term.thread.nodes, inner)
        values.append(inner[-1])
    return replace(o, thread=_needed(ThreadGraph(arity, tuple(made)), values[-1]))


def _needed(graph: ThreadGraph, result: int) -> ThreadGraph:
    """A thread graph without the nodes that its result does not read."""
    wanted, todo = set[int](), [result]
    while todo:
        k = todo.pop()
        if k >= graph.arity and k not in wanted:
            wanted.add(k)
            todo += graph.nodes[k - graph.arity].inputs
    kept = sorted(wanted)
    place = {k: k for k in range(graph.arity)} | {k: graph.arity + n for n, k in enumerate(kept)}
    nodes = [graph.nodes[k - graph.arity] for k in kept]
    return ThreadGraph(graph.arity, tuple(replace(n, inputs=tuple(place[i] for i in n.inputs)) for n in nodes))


@dataclass
class _Forms:
    """Numbers of values, the same for products and sums of the same things in whatever order."""

    numbers: dict[object, int] = field(default_factory=dict)
    parts: dict[tuple[str, int], Counter[int]] = field(default_factory=dict)  #: of products and of sums

    def of(self, o: BlockOp) -> list[int]:
        """The numbers of a thread operator's operands and nodes."""
        assert o.thread is not None
        numbers = [self._number(("operand", name)) for name in o.inputs]
        for n in o.thread.nodes:
            args = [numbers[i] for i in n.inputs]
            if n.op == ROUNDED:
                numbers.append(args[0])
            elif n.op in ("mul", "add"):
                parts = Counter[int]()
                for a in args:
                    parts.update(self.parts.get((n.op, a), {a: 1}))
                numbers.append(self._number((n.op, frozenset(parts.items()))))
                self.parts[n.op, numbers[-1]] = parts
            else:
                numbers.append(self._number((n.op, n.value, *args)))
        return numbers

    def _number(self, form: object) -> int:
        return self.numbers.setdefault(form, len(self.numbers))
