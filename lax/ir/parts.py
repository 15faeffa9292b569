"""Sources in parts: tensors that callers give as two, one behind the other along a dimension, and take whole.

What an operator takes are its program's sources, of those in parts the first one, and then the second ones; what it gives are
the program's outputs, and then those sources whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Array
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.joints import Parts
from mirage_cli.lax.ir.program import Program, Slot, Source


@dataclass(frozen=True, slots=True)
class Joint:
    """Where a source is joined: its positions, those of them in the second part, what lies in front of the dimension (how
    often parts alternate) and behind it (elements of a position)."""

    whole: Extent
    second: int
    outer: Extent
    inner: Extent


def in_parts(program: Program) -> tuple[int, ...]:
    """The numbers of the sources that callers give in two parts. Raises InvalidGraph for one that cannot be."""
    for s in program.sources:
        if s.parts and (
            s.constant or s.unwritten or s.packed or s.parts.dim not in range(len(s.dims)) or s.parts.second < 0
        ):
            raise InvalidGraph(f"{s.name} cannot be in two parts along dimension {s.parts.dim}")
    return tuple(k for k, s in enumerate(program.sources) if s.parts)


def parted(program: Program, parts: Mapping[int, Parts]) -> Program:
    """A program some of whose sources, by number, are in parts. Raises InvalidGraph for one that cannot be."""
    sources = tuple(replace(s, parts=parts.get(k, s.parts)) for k, s in enumerate(program.sources))
    new = replace(program, sources=sources, _axes_of={})
    in_parts(new)
    return new


def joint(source: Source) -> Joint | None:
    """The joint of a source in parts; None for others."""
    if source.parts is None:
        return None
    dim, second = source.parts.place
    whole = source.dims[dim]
    second = min(second, whole) if isinstance(whole, int) else second  # shorter extents have new positions first
    return Joint(whole, second, ex.product(source.dims[:dim]), ex.product(source.dims[dim + 1 :]))


def slot_of(source: Source, access: Sequence[Slot]) -> int | None:
    """The number of the slot that is the dimension along which a source is joined; None where none is."""
    if source.parts is None:
        return None
    dim = source.parts.dim
    outer = ex.product(source.dims[:dim])
    places = (n for n, s in enumerate(access) if s.extent == source.dims[dim])
    return next((n for n in places if ex.product(s.extent for s in access[:n]) == outer), None)


def with_slots(source: Source, access: Sequence[Slot], dims: tuple[Extent, ...]) -> Source:
    """A source with a dimension for each slot of an access, of other extents."""
    at = slot_of(source, access)
    parts = None if at is None or source.parts is None else replace(source.parts, dim=at)
    return replace(source, dims=dims, parts=parts)


# --- what callers see ---------------------------------------------------------------------------------------------------
def input_count(program: Program) -> int:
    """How many tensors callers give."""
    return len(program.sources) + len(in_parts(program))


def input_sources(program: Program) -> list[Source]:
    """What callers give, as sources. Raises InvalidGraph where the positions of a first part are not known."""
    sources, seconds = list(program.sources), list[Source]()
    for k in in_parts(program):
        s, parts = program.sources[k], program.sources[k].parts
        assert parts is not None
        first = ex.less(s.dims[parts.dim], parts.second)
        if first is None:
            raise InvalidGraph(f"{parts.names[0]} has {s.dims[parts.dim]} positions but for {parts.second}")
        sources[k], second = (
            replace(s, name=n, dims=(*s.dims[: parts.dim], e, *s.dims[parts.dim + 1 :]), parts=None)
            for n, e in zip(parts.names, (first, parts.second), strict=True)
        )
        seconds.append(second)
    return [*sources, *seconds]


def input_names(program: Program) -> list[str]:
    """The model's names of what callers give."""
    return [s.name for s in input_sources(program)]


def output_names(program: Program) -> list[str]:
    """The model's names of what callers take."""
    return [o.name for o in program.outputs] + [s.name for s in program.sources if s.parts]


def apart(
    program: Program, arrays: Sequence[Any], symbols: Mapping[str, int] = MappingProxyType({}), lead: int = 0
) -> list[Any]:
    """What callers give for the arrays of all sources, each with the source's dimensions or flat behind `lead` others."""
    firsts, seconds = list(arrays), list[Array]()
    for k in in_parts(program):
        s, parts, a = program.sources[k], program.sources[k].parts, arrays[k]
        assert parts is not None
        dims = a.shape[lead:] if a.ndim == lead + len(s.dims) else [ex.value(e, symbols) for e in s.dims]
        cut, front = max(0, dims[parts.dim] - parts.second), (slice(None),) * (lead + parts.dim)
        whole = a.reshape(a.shape[:lead] + tuple(dims))
        pair = [np.ascontiguousarray(whole[(*front, part)]) for part in (slice(0, cut), slice(cut, None))]
        firsts[k], second = pair if a.ndim == whole.ndim else [x.reshape((*a.shape[:lead], -1)) for x in pair]
        seconds.append(second)
    return [*firsts, *seconds]


def joined(
    program: Program, arrays: Sequence[Any], join: Callable[[list[Any], int], Any] = np.concatenate
) -> list[Any]:
    """The arrays of all sources, of what callers give; `join` makes one of two along a dimension."""
    sources, seconds = list(arrays[: len(program.sources)]), iter(arrays[len(program.sources) :])
    for k in in_parts(program):
        parts = program.sources[k].parts
        assert parts is not None
        sources[k] = join([sources[k], next(seconds)], parts.dim)
    return sources
