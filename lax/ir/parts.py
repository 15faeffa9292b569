"""Sources in parts: tensors that callers give as two, one behind the other along a dimension, and take whole.

`Source.parts` says along which dimension, and how many positions the second one has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Array
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.program import Program, Slot, Source


@dataclass(frozen=True, slots=True)
class Joint:
    """Where a source is joined: positions of the first and of the second part, what lies in front of the dimension (how often
    parts alternate) and behind it (elements of a position)."""

    first: int
    second: int
    outer: Extent
    inner: Extent


def in_parts(program: Program) -> tuple[int, ...]:
    """The numbers of the sources that callers give in two parts. Raises InvalidGraph for one that cannot be."""
    for s in program.sources:
        if s.parts and (
            s.constant or s.unwritten or s.packed or s.parts[0] not in range(len(s.dims)) or s.parts[1] < 0
        ):
            raise InvalidGraph(f"{s.name} cannot be in two parts along dimension {s.parts[0]}")
    return tuple(k for k, s in enumerate(program.sources) if s.parts)


def joint(source: Source) -> Joint | None:
    """The joint of a source in parts, whose dimension has a known number of positions; None for others."""
    if source.parts is None:
        return None
    dim, second = source.parts
    whole = source.dims[dim]
    if not isinstance(whole, int):
        return None
    second = min(second, whole)  # a program of shorter extents has its new positions first
    return Joint(whole - second, second, ex.product(source.dims[:dim]), ex.product(source.dims[dim + 1 :]))


def slot_of(source: Source, access: Sequence[Slot]) -> int | None:
    """The number of the slot that is the dimension along which a source is joined; None where none is."""
    if source.parts is None:
        return None
    dim, _ = source.parts
    outer = ex.product(source.dims[:dim])
    places = (n for n, s in enumerate(access) if s.extent == source.dims[dim])
    return next((n for n in places if ex.product(s.extent for s in access[:n]) == outer), None)


def with_slots(source: Source, access: Sequence[Slot], dims: tuple[Extent, ...]) -> Source:
    """A source with a dimension for each slot of an access, of other extents."""
    at = slot_of(source, access)
    parts = None if at is None or source.parts is None else (at, source.parts[1])
    return replace(source, dims=dims, parts=parts)


def given(program: Program, arrays: Sequence[Array]) -> list[Array]:
    """What callers give for flat sources [fields, elements]: of those in parts the first part in the place of the whole, and
    all second parts behind the sources."""
    firsts, seconds = list(arrays), list[Array]()
    for k in in_parts(program):
        at, a = joint(program.sources[k]), arrays[k]
        if at is not None:
            runs = a.reshape(a.shape[0], -1, (at.first + at.second) * _number(at.inner))
            cut = at.first * _number(at.inner)
            firsts[k] = runs[:, :, :cut].reshape(a.shape[0], -1)
            seconds.append(runs[:, :, cut:].reshape(a.shape[0], -1))
    return [*firsts, *seconds]


def _number(e: Extent) -> int:
    assert isinstance(e, int)
    return e
