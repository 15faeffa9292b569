"""Two programs on the same tensors with shorter axes: what takes too long to evaluate at the real extents.

A tensor is cut where any way of reading or writing it cuts it; what lies between two cuts is a *piece*. An axis walks some
pieces of each tensor that has it, and pieces that one axis walks at the same place are one. They are shortened together, so
that both programs still walk the same tensors. Pieces keep their length where a read takes a part of them, or a fixed
position.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.program import Axis, Program, Slot

SHORT = 3  #: positions that are left of a piece


def numbered(p: Program, symbols: Mapping[str, int]) -> Program:
    """The program with numbers for its symbols."""

    def of(e: Extent) -> int:
        return ex.value(e, symbols)

    def slots(access: tuple[Slot, ...]) -> tuple[Slot, ...]:
        return tuple(replace(s, extent=of(s.extent)) for s in access)

    return replace(
        p,
        axes=tuple(Axis(a.name, of(a.extent)) for a in p.axes),
        sources=tuple(replace(s, dims=tuple(map(of, s.dims))) for s in p.sources),
        inputs=tuple(replace(i, access=slots(i.access)) for i in p.inputs),
        outputs=tuple(replace(o, access=slots(o.access), dims=tuple(map(of, o.dims))) for o in p.outputs),
        _axes_of={},
    )


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Where an axis (its number among all, or None) stands in a tensor: positions `inner` apart, `extent` of them, of which it
    walks all, or not."""

    axis: tuple[int, str] | None
    tensor: str
    inner: int
    extent: int
    whole: bool


@dataclass(slots=True)
class _Pieces:
    """The cuts of tensors, and which pieces are one."""

    stretches: list[_Stretch]
    cuts: dict[str, set[int]] = field(default_factory=dict)
    first: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    fixed: set[tuple[str, int]] = field(default_factory=set)

    def find(self, piece: tuple[str, int]) -> tuple[str, int]:
        while (up := self.first.get(piece, piece)) != piece:
            piece = up
        return piece

    def between(self, s: _Stretch) -> list[int]:
        """The cuts within a stretch, its own ends among them."""
        return sorted(c for c in self.cuts[s.tensor] if s.inner <= c <= s.inner * s.extent)

    def cut(self) -> bool:
        """Cut tensors wherever one that shares an axis is cut; whether all cuts divide each other."""
        for stretch in self.stretches:
            self.cuts.setdefault(stretch.tensor, set()).update((stretch.inner, stretch.inner * stretch.extent))
        changed = True
        while changed:
            changed = False
            for same in self.axes().values():
                relative = {
                    c // stretch.inner for stretch in same for c in self.between(stretch) if c % stretch.inner == 0
                }
                for stretch in same:
                    new = {stretch.inner * r for r in relative} - self.cuts[stretch.tensor]
                    changed |= bool(new)
                    self.cuts[stretch.tensor] |= new
        return all(b % a == 0 for cuts in self.cuts.values() for a, b in itertools.pairwise(sorted(cuts)))

    def axes(self) -> dict[tuple[int, str], list[_Stretch]]:
        """The whole stretches of each axis."""
        stretches: dict[tuple[int, str], list[_Stretch]] = {}
        for s in self.stretches:
            if s.axis is not None and s.whole:
                stretches.setdefault(s.axis, []).append(s)
        return stretches

    def join(self, counted: set[tuple[int, str]]) -> None:
        """Find out which pieces are one, and which keep their length: those of axes whose positions are `counted` do."""
        for same in self.axes().values():
            for s in same[1:]:
                for a, b in zip(self.between(same[0]), self.between(s), strict=True):
                    x, y = self.find((same[0].tensor, a)), self.find((s.tensor, b))
                    self.first[max(x, y)] = min(x, y)
        for s in self.stretches:
            if not s.whole or s.axis in counted:
                self.fixed.update((s.tensor, c) for c in self.between(s)[:-1])
        self.fixed = {self.find(p) for p in self.fixed}

    def length(self, s: _Stretch) -> int:
        """The length of a stretch once its axis is shorter."""
        total = 1
        for a, b in itertools.pairwise(self.between(s)):
            kept = self.find((s.tensor, a)) in self.fixed
            total *= b // a if kept else min(b // a, SHORT)
        return total


def shrunk(pair: Sequence[Program], exact: bool = True) -> list[Program] | None:
    """Programs without symbols on the same tensors, with shorter axes, but for those whose extents, or positions as `exact`
    numbers, they compute with; None where tensors are cut in ways that do not fit."""
    places = [_stretches(number, p) for number, p in enumerate(pair)]
    pieces = _Pieces([s for stretches_of in places for accesses in stretches_of.values() for s in accesses])
    if not pieces.cut():
        return None
    counted = ("extent", "iota") if exact else ("extent",)
    pieces.join({(k, n.axis) for k, p in enumerate(pair) for n in p.nodes if n.axis is not None and n.op in counted})
    return [_resized(number, p, places[number], pieces) for number, p in enumerate(pair)]


def _stretches(number: int, p: Program) -> dict[tuple[str, int], list[_Stretch]]:
    """The stretches of each read and each output."""
    stretches: dict[tuple[str, int], list[_Stretch]] = {}
    accesses = [(("read", k), f"source {p.sources[i.source].name}", i.access) for k, i in enumerate(p.inputs)]
    accesses += [(("output", k), f"output {k}", o.access) for k, o in enumerate(p.outputs)]
    for place, tensor, access in accesses:
        inner, own = 1, list[_Stretch]()
        for s in reversed(access):
            assert isinstance(s.extent, int)
            whole = s.axis is not None and s.offset == 0 and p.extent(s.axis) == s.extent
            own.append(_Stretch(None if s.axis is None else (number, s.axis), tensor, inner, s.extent, whole))
            inner *= s.extent
        stretches[place] = own[::-1]
    return stretches


def _resized(number: int, p: Program, places: Mapping[tuple[str, int], Sequence[_Stretch]], pieces: _Pieces) -> Program:
    """A program at its shorter extents."""
    new = {s.axis[1]: pieces.length(s) for own in places.values() for s in own if s.axis is not None and s.whole}

    def slots(access: tuple[Slot, ...], place: tuple[str, int]) -> tuple[Slot, ...]:
        return tuple(replace(slot, extent=pieces.length(s)) for slot, s in zip(access, places[place], strict=True))

    inputs = tuple(replace(i, access=slots(i.access, ("read", k))) for k, i in enumerate(p.inputs))
    outputs = tuple(
        replace(o, access=(own := slots(o.access, ("output", k))), dims=(ex.product(s.extent for s in own),))
        for k, o in enumerate(p.outputs)
    )
    axes = tuple(Axis(a.name, new.get(a.name, a.extent)) for a in p.axes)
    sources = tuple(
        replace(s, dims=(next((ex.product(t.extent for t in i.access) for i in inputs if i.source == k), 0),))
        for k, s in enumerate(p.sources)
    )
    return replace(p, axes=axes, sources=sources, inputs=inputs, outputs=outputs, _axes_of={})
