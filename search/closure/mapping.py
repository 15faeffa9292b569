"""Mappings: which axis the loop walks and which reduced axis the grid splits.

Grid axes that no reduction touches leave the set of computable values alone, so they are chosen later, by the schedule;
only mappings that differ in reduced axes have closures of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_cli.lax import extents as ex
from mirage_cli.search.closure.form import Form


@dataclass(frozen=True, slots=True)
class Mapping:
    """`loop` is the axis that the body walks (or none), `split` the reduced axis that the grid splits (or none)."""

    loop: str | None = None
    split: str | None = None

    def __str__(self) -> str:
        return f"loop {self.loop or '-'} split {self.split or '-'}"


def mappings(form: Form, max_whole: int = 16384) -> list[Mapping]:
    """All mappings of a fragment, simplest first.

    `max_whole` is the largest number of positions that a block may hold of one axis; a reduced axis that is longer, or
    symbolic, has to be the loop axis (so a fragment with two of them has no mapping).
    """
    program = form.program
    unbounded = []
    for a in form.reduced:
        e = program.extent(a)
        if not isinstance(e, int) or e > max_whole:
            unbounded.append(a)
    candidates = [Mapping(), *(Mapping(a) for a in form.reduced)]
    candidates += [Mapping(loop, a) for a in form.reduced for loop in (a, None)]
    return [m for m in candidates if all(a == m.loop for a in unbounded)]


def numeric(extent: ex.Extent, typical: int = 1024) -> int:
    """An extent as a number for estimates: a symbol counts as `typical`."""
    return extent if isinstance(extent, int) else typical
