"""Dimensions of a symbolic number of positions of which a program reads some: how many there have to be."""

from __future__ import annotations

from collections.abc import Iterator

from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.lax.ir.program import Program


def partial_reads(program: Program) -> Iterator[tuple[Symbolic, Extent, int]]:
    """(positions that there are, positions that are read, the first of these) of dimensions that are not read whole."""
    for slot in (s for i in program.inputs for s in i.access):
        count = 1 if slot.axis is None else program.extent(slot.axis)
        if isinstance(slot.extent, Symbolic) and count != slot.extent:
            yield slot.extent, count, slot.offset


def least_positions(program: Program) -> tuple[tuple[Extent, int], ...]:
    """Extents with the number of positions that the program reads of them: a kernel reads beyond the end of tensors that have
    fewer, where the model's own operator fails."""
    least: dict[Symbolic, int] = {}
    for extent, count, first in partial_reads(program):
        if isinstance(count, int):
            least[extent] = max(first + count, least.get(extent, 0))
    return tuple(sorted(least.items()))
