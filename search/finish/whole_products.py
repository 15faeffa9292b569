"""Products with parts of one weight as one product with all of it.

A slice of a product's result is a product with a slice of the weight (`lax/fragments/instantiate.py`): behind a rotary
embedding one value is multiplied by two to four of them, each of a few neighbouring columns. Here the product is whole again,
stored by a kernel that reads the weight once, as a session packs it; what follows reads slices of what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir.program import Axis, Input, Node, Output, Program, Slot, Source
from mirage_cli.lax.normal.identify import free_name, fuse_summed, prune
from mirage_cli.search.finish.kernels import Part, needed_sources, part_for, storage


@dataclass(frozen=True, slots=True)
class _Sliced:
    """A product with a part of a weight: the other operand, how the weight is read in front of what is summed, there and
    behind it."""

    product: Node
    other: str
    weight: Input
    parts: tuple[tuple[Slot, ...], tuple[Slot, ...], tuple[Slot, ...]]

    @property
    def same(self) -> object:
        """What products have in common that are one with the whole weight."""
        outer, summed, inner = self.parts
        sizes = [ex.product(s.extent for s in slots) for slots in (outer, inner)]
        return self.weight.source, self.other, self.product.dtype, summed, *sizes


def whole_products(program: Program) -> list[Part]:
    """A part for each value that is multiplied by several parts of a weight, which stores its product with the whole weight;
    the last part is the rest. Only the program where there is none."""
    whole, stored, reads = program, list[Output](), dict[str, tuple[int, tuple[Slot, ...]]]()
    for group in _groups(program):
        whole, output = _with_whole(whole, group[0])
        for one in group:
            reads[one.product.name] = len(stored), (*_rows(program, one), *one.parts[0], *one.parts[2])
        stored.append(output)
    first = [part_for(whole, (o,), ()) for o in stored]
    return [*first, _rest(program, stored, reads)]


def _rest(program: Program, stored: Sequence[Output], reads: dict[str, tuple[int, tuple[Slot, ...]]]) -> Part:
    """What is left of a program whose products are read from what is stored."""
    count = len(program.sources)
    labels = [*(f"source {k}" for k in range(count)), *(o.value for o in stored)]
    rest = replace(
        program,
        sources=(*program.sources, *(Source(o.value, o.dims, o.dtype) for o in stored)),
        inputs=(*program.inputs, *(Input(v, count + k, access) for v, (k, access) in reads.items())),
        nodes=tuple(n for n in program.nodes if n.name not in reads),
        _axes_of={},
    )
    used = needed_sources(rest)
    return fuse_summed(prune(rest)).validate(), tuple(labels[k] for k in used)


def _groups(program: Program) -> list[list[_Sliced]]:
    """Products that are parts of one, where there are several."""
    found = dict[object, list[_Sliced]]()
    for one in _sliced(program):
        found.setdefault(one.same, []).append(one)
    return [group for group in found.values() if len({one.weight.name for one in group}) > 1]


def _sliced(program: Program) -> Iterator[_Sliced]:
    reads = {i.name: i for i in program.inputs}
    for n in program.nodes:
        if n.op != "contract":
            continue
        for weight, other in (n.inputs, n.inputs[::-1]):
            i = reads.get(weight)
            if i is not None and program.sources[i.source].constant and (parts := _parts(program, n, i, other)):
                yield _Sliced(n, other, i, parts)
                break


def _parts(
    program: Program, product: Node, weight: Input, other: str
) -> tuple[tuple[Slot, ...], tuple[Slot, ...], tuple[Slot, ...]] | None:
    """How a weight is read in front of what is summed, there and behind it; None where that does not lie side by side, or is
    walked in part."""
    slots, over = weight.access, product.over
    places = [k for k, s in enumerate(slots) if s.axis in over]
    if not places or len(places) != len(over) or places[-1] - places[0] + 1 != len(places):
        return None
    outer, summed, inner = slots[: places[0]], slots[places[0] : places[-1] + 1], slots[places[-1] + 1 :]
    free = {s.axis for s in (*outer, *inner)}
    shared = program.axes_of(other)
    known = all(isinstance(s.extent, int) for s in (*outer, *inner)) and not shared & free and shared >= {*over}
    whole = all(s.axis is not None and s == Slot(s.axis, program.extent(s.axis)) for s in summed)
    return (outer, summed, inner) if known and whole else None


def _rows(program: Program, one: _Sliced) -> tuple[Slot, ...]:
    return tuple(s for s in storage(program, one.other) if s.axis not in one.product.over)


def _with_whole(program: Program, one: _Sliced) -> tuple[Program, Output]:
    """The program with a product with a whole weight beside its own, and how it is stored."""
    outer, summed, inner = one.parts
    taken = {a.name for a in program.axes}
    axes = [
        Axis(free_name(f"{one.product.name}_{side}", taken), extent)
        for side, slots in (("outer", outer), ("inner", inner))
        if (extent := ex.product(s.extent for s in slots)) != 1
    ]
    own = [Slot(a.name, a.extent) for a in axes]
    front = own[: ex.product(s.extent for s in outer) != 1]
    names = {*(i.name for i in program.inputs), *(n.name for n in program.nodes)}
    read, name = (free_name(f"{one.product.name}_{what}", names) for what in ("weight", "whole"))
    slots = (*_rows(program, one), *own)
    changed = replace(
        program,
        axes=(*program.axes, *axes),
        inputs=(*program.inputs, Input(read, one.weight.source, (*front, *summed, *own[len(front) :]))),
        nodes=(*program.nodes, replace(one.product, name=name, inputs=(read, one.other))),
        _axes_of={},
    )
    return changed, Output(name, slots, tuple(s.extent for s in slots), F32, name)
