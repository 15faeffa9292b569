"""Products along an axis whose positions are computed apart as well, as choices among these: what is turned by a rotary
embedding is read whole and by halves, and multiplied once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

from mirage_cli.lax.ir.program import Input, Node, Program, Slot
from mirage_cli.lax.normal.identify import dedupe

Read: TypeAlias = tuple[int, tuple[Slot, ...]] | str  #: an operand: a source and how it is read, or a value


def assembled(p: Program) -> Program:
    """The program without products that others hold position by position."""
    reads = {i.name: i for i in p.inputs}
    known = {_key(n, reads): n for n in p.nodes if n.op == "contract"}
    nodes: dict[str, Node] = {n.name: n for n in p.nodes}
    new: list[Node] = []
    for n in p.nodes:
        for axis, keys in _positions(p, n, reads) if n.op == "contract" else ():
            parts = [known[key].name for key in keys if key in known]
            if len(parts) == len(keys):
                new += _choice(n.name, axis, parts)
                del nodes[n.name]
                break
    if not new:
        return p
    return dedupe(replace(p, nodes=_sorted([*nodes.values(), *new], set(reads)), _axes_of={}))


def _read(value: str, reads: dict[str, Input]) -> Read:
    return (reads[value].source, reads[value].access) if value in reads else value


def _key(n: Node, reads: dict[str, Input]) -> tuple[object, ...]:
    return (n.dtype, frozenset(n.over), frozenset(_read(i, reads) for i in n.inputs))


def _positions(p: Program, n: Node, reads: dict[str, Input]) -> Iterator[tuple[str, list[tuple[object, ...]]]]:
    """For each axis that one operand is read along from end to end, and the other one lacks, the products at its positions."""
    for value, other in (n.inputs, n.inputs[::-1]):
        if value not in reads or value == other:
            continue
        source, access = reads[value].source, reads[value].access
        for k, slot in enumerate(access):
            axis, extent = slot.axis, slot.extent
            if (
                axis is None
                or axis in (*n.over, *p.axes_of(other))
                or not isinstance(extent, int)
                or extent != p.extent(axis)
                or extent > len(p.nodes)  # a product for each position
            ):
                continue
            fixed = [(*access[:k], Slot(None, extent, at), *access[k + 1 :]) for at in range(extent)]
            yield axis, [(n.dtype, frozenset(n.over), frozenset([(source, a), _read(other, reads)])) for a in fixed]


def _choice(name: str, axis: str, parts: list[str]) -> list[Node]:
    """Nodes for the value that is, at each position of an axis, that of a part."""
    nodes = [Node(f"{name}.at", "iota", axis=axis)]
    last = parts[-1]
    for at, part in reversed(list(enumerate(parts[:-1]))):
        own = f"{name}.{at}" if at else name
        nodes += [
            Node(f"{name}.n{at}", "const", value=Fraction(at)),
            Node(f"{name}.is{at}", "eq", (f"{name}.at", f"{name}.n{at}")),
            Node(own, "where", (f"{name}.is{at}", part, last)),
        ]
        last = own
    return nodes


def _sorted(nodes: list[Node], ready: set[str]) -> tuple[Node, ...]:
    """Nodes in an order in which they can be computed."""
    ordered: list[Node] = []
    while nodes:
        now = [n for n in nodes if ready.issuperset(n.inputs)]
        later = [n for n in nodes if not ready.issuperset(n.inputs)]
        ready |= {n.name for n in now}
        ordered, nodes = [*ordered, *now], later
    return tuple(ordered)
