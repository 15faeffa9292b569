"""Sources that callers give as other tensors.

1. In parts: two, one behind the other along a dimension, which callers take whole.
2. Chosen: rows of a stored table, one for each place, by an index (the weights of experts that a router chose). For a program
   these are tensors like others, so what is proved holds for every index; kernels read the table.

What an operator takes are its program's sources, of those in parts the first one, of those that are chosen the table, then the
second parts, then the indices; what it gives are the program's outputs, and then the sources in parts whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Array
from mirage_cli.lax.dtypes import I64
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
    at, lead = slot_of(source, access), places_of(source, access)
    parts = None if at is None or source.parts is None else replace(source.parts, dim=at)
    chosen = None if lead is None or source.chosen is None else replace(source.chosen, lead=lead)
    return replace(source, dims=dims, parts=parts, chosen=chosen)


# --- chosen rows --------------------------------------------------------------------------------------------------------
def places_of(source: Source, access: Sequence[Slot]) -> int | None:
    """How many slots of an access walk the places of a source's rows; None where a slot walks more."""
    if source.chosen is None:
        return None
    places = ex.product(source.dims[: source.chosen.lead])
    return next((n for n in range(len(access) + 1) if ex.product(s.extent for s in access[:n]) == places), None)


def place_axes(program: Program) -> frozenset[str]:
    """The axes that walk places of chosen rows: kernels have one of these at a time."""
    reads = ((program.sources[i.source], i.access) for i in program.inputs)
    return frozenset(
        s.axis for source, access in reads for s in access[: places_of(source, access) or 0] if s.axis is not None
    )


def stored_elements(source: Source, size: Callable[[Extent], Any]) -> Any:
    """Elements that there are in memory of a source: of chosen rows no more than the table has. An array where sizes are."""
    dims = [size(e) for e in source.dims]
    elements = math.prod(dims)
    return least(elements, math.prod((c.rows, *dims[c.lead :]))) if (c := source.chosen) else elements


def least(a: Any, b: Any) -> Any:
    """The lesser of two numbers, or of arrays of them one by one."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def numbered(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Sources whose indices have numbers in the order in which they come."""
    of = {by: n for n, by in enumerate(dict.fromkeys(s.chosen.by for s in sources if s.chosen))}
    return tuple(replace(s, chosen=replace(s.chosen, by=of[s.chosen.by])) if s.chosen else s for s in sources)


def index_sources(program: Program) -> list[Source]:
    """The indices as sources, in the order of their numbers. Raises InvalidGraph where one has two shapes, or a source cannot
    be chosen."""
    found = dict[int, Source]()
    for s in program.sources:
        if s.chosen is None:
            continue
        index = Source(s.chosen.names[1], s.dims[: s.chosen.lead], I64)
        same = found.setdefault(s.chosen.by, index)
        if not s.constant or s.parts or not 0 < s.chosen.lead < len(s.dims) or same.dims != index.dims:
            raise InvalidGraph(f"{s.name} cannot be rows that {index.name} chooses")
    if sorted(found) != list(range(len(found))):
        raise InvalidGraph(f"the indices have the numbers {sorted(found)}")
    return [found[n] for n in range(len(found))]


def index_place(program: Program, source: int) -> int:
    """The number of a chosen source's index among what callers give."""
    chosen = program.sources[source].chosen
    assert chosen is not None
    return len(program.sources) + len(in_parts(program)) + chosen.by


def table(source: Source) -> Source:
    """The table that a chosen source's rows are of; other sources as they are. Kernels serve tables of any number of rows."""
    chosen = source.chosen
    if chosen is None:
        return source
    dims = (ex.symbol(f"rows_{chosen.by}"), *source.dims[chosen.lead :])
    return replace(source, name=chosen.names[0], dims=dims, chosen=None)


def given_otherwise(program: Program) -> tuple[int, ...]:
    """The numbers of the sources that callers give as other tensors."""
    return tuple(k for k, s in enumerate(program.sources) if s.parts or s.chosen)


# --- what callers see ---------------------------------------------------------------------------------------------------
def input_count(program: Program) -> int:
    """How many tensors callers give."""
    return len(program.sources) + len(in_parts(program)) + len(index_sources(program))


def input_sources(program: Program) -> list[Source]:
    """What callers give, as sources. Raises InvalidGraph where the positions of a first part are not known."""
    sources, seconds = list(map(table, program.sources)), list[Source]()
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
    return [*sources, *seconds, *index_sources(program)]


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
    indices = dict[int, Array]()
    for k, s in enumerate(program.sources):
        if s.chosen:
            n, flat = s.chosen.lead, arrays[k].ndim == lead + 1
            places = [ex.value(e, symbols) for e in s.dims[:n]] if flat else arrays[k].shape[lead : lead + n]
            firsts[k], indices[s.chosen.by] = _rows(arrays[k], places, lead, flat)
    return [*firsts, *seconds, *(indices[n] for n in range(len(indices)))]


def _rows(a: Array, places: Sequence[int], lead: int, flat: bool) -> tuple[Array, Array]:
    """A table that has for each place the row which `a` has there, and their index: in another order than they are read."""
    front, count = a.shape[:lead], math.prod(places)
    index = np.arange(count)[::-1].reshape(-1 if flat else places)
    index = np.broadcast_to(index, (*front, *index.shape)).copy()
    rest = a.shape[lead + len(places) :] if not flat else ()
    if count == 0:
        return a.reshape((*front, 0, *rest)) if not flat else a, index
    rows = np.ascontiguousarray(np.flip(a.reshape((*front, count, a.size // max(1, math.prod((*front, count))))), lead))
    return rows.reshape((*front, -1) if flat else (*front, count, *rest)), index


def joined(
    program: Program, arrays: Sequence[Any], join: Callable[[list[Any], int], Any] = np.concatenate
) -> list[Any]:
    """The arrays of all sources, of what callers give; `join` makes one of two along a dimension."""
    count = len(program.sources)
    sources, seconds = list(arrays[:count]), iter(arrays[count:])
    for k in in_parts(program):
        parts = program.sources[k].parts
        assert parts is not None
        sources[k] = join([sources[k], next(seconds)], parts.dim)
    indices = list(seconds)
    return [a[indices[s.chosen.by]] if s.chosen else a for s, a in zip(program.sources, sources, strict=True)]
