"""Equal reductions over different axes: `sum(x[a, g]; g)` and `sum(x[a, h]; h)` are one value.

A reduction binds the axes that it consumes, so their names do not matter. Two reductions are equal when one bijection
between their bound axes (of equal extents) makes their operands equal; what lies behind the operands and does not have
a bound axis has to be the same value, anything else the same operator on equal operands.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from mirage_cli.lax.ir.program import REDUCTIONS, Input, Node, Program
from mirage_cli.lax.normal.identify import dedupe
from mirage_cli.lax.ops import OPS

MAX_BOUND = 4  #: reductions over more axes than this are compared by name

Placeholder = tuple[int, str]  #: a number that no enclosing reduction uses, and the axis's extent
Bound = Mapping[str, Placeholder]


def merge_reductions(p: Program) -> Program:
    """The program in which equal reductions are one value."""
    keys = _Keys(p)
    name: dict[str, str] = {i.name: i.name for i in p.inputs}
    first: dict[str, str] = {}
    nodes: list[Node] = []
    for n in p.nodes:
        n = replace(n, inputs=tuple(name[i] for i in n.inputs))
        keys.define(n)
        name[n.name] = n.name
        if _binds(n) and len(n.over) <= MAX_BOUND:
            name[n.name] = first.setdefault(keys.of(n.name, {}), n.name)
        nodes.append(n)
    outputs = tuple(replace(o, value=name[o.value]) for o in p.outputs)
    return dedupe(replace(p, nodes=tuple(nodes), outputs=outputs, _axes_of={}))


def _binds(n: Node) -> bool:
    return n.op == "contract" or (n.op in REDUCTIONS and bool(n.over))


class _Keys:
    """Hashes of values in which bound axes are placeholders."""

    def __init__(self, p: Program) -> None:
        self.p = p
        self.defs: dict[str, Node | Input] = {i.name: i for i in p.inputs}
        self.memo: dict[tuple[str, tuple[tuple[str, Placeholder], ...]], str] = {}

    def define(self, n: Node) -> None:
        """Add a node whose operands are known."""
        self.defs[n.name] = n

    def of(self, v: str, bound: Bound) -> str:
        """The key of a value under bound axes."""
        own = self.p.axes_of(v)
        bound = {a: b for a, b in bound.items() if a in own}
        at = (v, tuple(sorted(bound.items())))
        if at not in self.memo:
            self.memo[at] = self._key(self.defs[v], bound)
        return self.memo[at]

    def _key(self, d: Node | Input, bound: Bound) -> str:
        if isinstance(d, Input):
            slots = [(bound.get(s.axis or "", s.axis), str(s.extent), s.offset) for s in d.access]
            return _hash("read", d.source, slots)
        if _binds(d) and len(d.over) <= MAX_BOUND:
            return min(self._node(d, {**bound, **inner}) for inner in self._namings(d, bound))
        if not bound:
            return d.name
        return self._node(d, bound)

    def _namings(self, d: Node, bound: Bound) -> Iterator[dict[str, Placeholder]]:
        """All ways to name the axes that a reduction binds."""
        depth = 1 + max((level for level, _ in bound.values()), default=-1)
        for order in itertools.permutations(d.over):
            yield {a: (depth + k, str(self.p.extent(a))) for k, a in enumerate(order)}

    def _node(self, d: Node, bound: Bound) -> str:
        args = [self.of(i, bound) for i in d.inputs]
        if d.op == "contract" or (d.op in OPS and OPS[d.op].commutative):
            args.sort()
        over = sorted(repr(bound.get(a, a)) for a in d.over)
        return _hash(d.op, args, over, str(d.value), bound.get(d.axis or "", d.axis), str(d.dtype))


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
