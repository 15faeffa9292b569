"""Axes that are one: passes on programs that find the fewest axes.

1. Two axes that read the same stored positions and never meet in one value are the same axis (the hidden axis of a
   normalisation's statistics and of the contraction behind it). Merging renames a bound axis, so nothing changes.
2. Two axes that everywhere stand side by side are one axis (batch and sequence in front of a linear layer).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import replace

from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir.parts import places_of
from mirage_cli.lax.ir.program import Axis, Input, Node, Program, Slot, Source
from mirage_cli.lax.ops import OPS


def tidy(p: Program) -> Program:
    """The program with the fewest axes, without duplicate or unused values."""
    return fuse_axes(merge_axes(dedupe(p)))


def dedupe(p: Program) -> Program:
    """One value for equal nodes and reads; values and axes that no output needs are dropped."""
    name: dict[str, str] = {}
    reads: dict[tuple[int, tuple[Slot, ...]], Input] = {}
    for i in p.inputs:
        name[i.name] = reads.setdefault((i.source, i.access), i).name
    nodes: dict[object, Node] = {}
    for n in p.nodes:
        n = replace(n, inputs=tuple(name[x] for x in n.inputs), over=tuple(sorted(n.over)))
        name[n.name] = nodes.setdefault(_identity(n), n).name
    outputs = tuple(replace(o, value=name[o.value]) for o in p.outputs)
    return prune(replace(p, inputs=tuple(reads.values()), nodes=tuple(nodes.values()), outputs=outputs, _axes_of={}))


def _identity(n: Node) -> object:
    commutes = n.op == "contract" or (n.op in OPS and OPS[n.op].commutative)
    return n.op, tuple(sorted(n.inputs)) if commutes else n.inputs, n.over, str(n.value), n.axis, n.dtype


def prune(p: Program) -> Program:
    """Without values, sources and axes that no output needs."""
    needed = {o.value for o in p.outputs}
    for n in reversed(p.nodes):
        if n.name in needed:
            needed.update(n.inputs)
    nodes = tuple(n for n in p.nodes if n.name in needed)
    inputs = tuple(i for i in p.inputs if i.name in needed)
    kept = sorted({i.source for i in inputs})
    inputs = tuple(replace(i, source=kept.index(i.source)) for i in inputs)
    used = {s.axis for i in inputs for s in i.access} | {s.axis for o in p.outputs for s in o.access}
    used |= {a for n in nodes for a in (*n.over, n.axis)}
    return replace(
        p,
        axes=tuple(a for a in p.axes if a.name in used),
        sources=tuple(p.sources[i] for i in kept),
        inputs=inputs,
        nodes=nodes,
        _axes_of={},
    )


def rename_axes(p: Program, new: Mapping[str, str]) -> Program:
    """The program with axes renamed; several may get one name (their extents agree)."""

    def to(a: str | None) -> str | None:
        return None if a is None else new.get(a, a)

    def access(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        return tuple(replace(s, axis=to(s.axis)) for s in slots)

    axes = {new.get(a.name, a.name): a.extent for a in p.axes}
    return replace(
        p,
        axes=tuple(Axis(n, e) for n, e in axes.items()),
        inputs=tuple(replace(i, access=access(i.access)) for i in p.inputs),
        nodes=tuple(
            replace(n, over=tuple(dict.fromkeys(new.get(a, a) for a in n.over)), axis=to(n.axis)) for n in p.nodes
        ),
        outputs=tuple(replace(o, access=access(o.access)) for o in p.outputs),
        _axes_of={},
    )


# --- 1. axes that read the same positions -------------------------------------------------------------------------------
def merge_axes(p: Program) -> Program:
    """Identify axes by the reads of one source that differ in nothing but their names."""
    while (same := _find_merge(p)) is not None:
        p = dedupe(rename_axes(p, same))
    return p


def _find_merge(p: Program) -> dict[str, str] | None:
    meetings = _meetings(p)
    free = {s.axis for o in p.outputs for s in o.access}
    for n, a in enumerate(p.inputs):
        for b in p.inputs[n + 1 :]:
            if a.source == b.source and (same := _difference(p, a, b)) and not _meet(same, meetings):
                return {(x if y in free else y): (y if y in free else x) for x, y in same.items()}
    return None


def _difference(p: Program, a: Input, b: Input) -> dict[str, str] | None:
    """The renaming that makes `a` out of `b`; None when they differ in more than names of axes."""
    if len(a.access) != len(b.access):
        return None
    same: dict[str, str] = {}
    for s, t in zip(a.access, b.access, strict=True):
        if (s.extent, s.offset, s.axis is None) != (t.extent, t.offset, t.axis is None):
            return None
        if s.axis is not None and t.axis is not None and s.axis != t.axis:
            if p.extent(s.axis) != p.extent(t.axis):
                return None
            same[s.axis] = t.axis
    return same


def _meetings(p: Program) -> list[frozenset[str]]:
    """Sets of axes that are alive together while a node is computed or an output stored."""
    accesses = [x.access for x in p.inputs] + [x.access for x in p.outputs]
    sets = [frozenset(s.axis for s in access if s.axis is not None) for access in accesses]
    for n in p.nodes:
        sets.append(frozenset(n.over).union(*(p.axes_of(i) for i in n.inputs)))
    return sets


def _meet(same: Mapping[str, str], meetings: list[frozenset[str]]) -> bool:
    targets = list(same.values())
    if len(set(targets)) != len(targets) or set(same) & set(targets):
        return True
    return any(x in axes and y in axes for x, y in same.items() for axes in meetings)


def share_axes(p: Program) -> Program:
    """The program with one axis for summed ones of equal extents that never meet, whatever they read: arrays have a dimension
    for each axis, and not more than some."""
    met: dict[str, set[str]] = {a.name: {a.name} for a in p.axes}
    for together in _meetings(p):
        for axis in together:
            met[axis] |= together
    free = {s.axis for o in p.outputs for s in o.access}
    kept, new = list[Axis](), dict[str, str]()
    for a in (a for a in p.axes if a.name not in free):
        one = next((b.name for b in kept if b.extent == a.extent and b.name not in met[a.name]), None)
        if one is None:
            kept.append(a)
            continue
        new[a.name] = one
        met[one] |= met[a.name]
        for other in met[a.name]:
            met[other] = met[other] | {one}
    return rename_axes(p, new)


# --- 2. axes that always stand side by side -----------------------------------------------------------------------------
def fuse_axes(p: Program) -> Program:
    """Replace neighbours by one axis of the product of their extents, as often as possible."""
    while (pair := _find_pair(p)) is not None:
        p = _fuse(p, *pair)
    return p


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, or one like it that is not taken."""
    return free_name(f"{name}_", taken) if name in taken else name


def fuse_summed(p: Program) -> Program:
    """The same of axes that no output has, under names that tell of both."""
    while (pair := _find_pair(p, {s.axis for o in p.outputs for s in o.access})) is not None:
        a, b = pair
        p = rename_axes(_fuse(p, a, b), {a: f"{a}_{b}"})
    return p


def _find_pair(p: Program, but: Collection[str | None] = ()) -> tuple[str, str] | None:
    """Two axes that stand side by side everywhere, of others than some."""
    accesses = [i.access for i in p.inputs] + [o.access for o in p.outputs]
    apart = {_behind_places(p.sources[i.source], i.access) for i in p.inputs}
    pairs = {
        (s.axis, t.axis)
        for access in accesses
        for s, t in itertools.pairwise(access)
        if s.axis is not None and t.axis is not None and not {s.axis, t.axis} & {*but}
    } - apart
    for a, b in sorted(pairs):
        if all(_side_by_side(p, access, a, b) for access in accesses) and all(
            (a in n.over) == (b in n.over) and n.axis not in (a, b) for n in p.nodes
        ):
            return a, b
    return None


def _behind_places(source: Source, access: tuple[Slot, ...]) -> tuple[str | None, str | None]:
    """The last axis of the places of chosen rows, and the first one of the rows."""
    n = places_of(source, access)
    return (access[n - 1].axis, access[n].axis) if n and n < len(access) else (None, None)


def _side_by_side(p: Program, access: tuple[Slot, ...], a: str, b: str) -> bool:
    names = [s.axis for s in access]
    if a not in names and b not in names:
        return True
    if a not in names or b not in names or names.index(b) != names.index(a) + 1:
        return False
    whole = (Slot(a, p.extent(a)), Slot(b, p.extent(b)))
    return access[names.index(a) : names.index(a) + 2] == whole


def _fuse(p: Program, a: str, b: str) -> Program:
    extent = ex.product([p.extent(a), p.extent(b)])

    def access(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        return tuple(Slot(a, extent) if s.axis == a else s for s in slots if s.axis != b)

    return replace(
        p,
        axes=tuple(Axis(a, extent) if x.name == a else x for x in p.axes if x.name != b),
        inputs=tuple(replace(i, access=access(i.access)) for i in p.inputs),
        nodes=tuple(replace(n, over=tuple(x for x in n.over if x != b)) for n in p.nodes),
        outputs=tuple(replace(o, access=access(o.access)) for o in p.outputs),
        _axes_of={},
    )
