"""Parts of a program that is too large for a float64 run: a few positions of axes that nothing sums over.

Along such an axis the program does the same at every position, so that the results at some positions need these
positions of the inputs only. A window is the same program with a shorter axis, read from the same stored tensors at an
offset: `evaluate_program` takes the arrays of the whole program, and `shown_by_window` cuts its results out
of those of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir.program import Axis, Output, Program, Slot, read

POSITIONS = 16  #: of an axis, in one window


def free_axes(program: Program, symbols: Mapping[str, int]) -> list[str]:
    """Axes of all outputs that nothing sums over or counts, of more than `POSITIONS` positions, longest first."""
    used = {a for n in program.nodes for a in (*n.over, n.axis)}
    common = frozenset.intersection(*(program.axes_of(o.value) for o in program.outputs))
    sizes = {a.name: ex.value(a.extent, symbols) for a in program.axes if a.name in common - used}
    return sorted((a for a in sizes if sizes[a] > POSITIONS), key=lambda a: (-sizes[a], a))


def window(program: Program, axis: str, start: int) -> Program:
    """The program at `POSITIONS` positions of an axis, from `start` on; the source arrays are those of the whole."""

    def shifted(access: tuple[Slot, ...]) -> tuple[Slot, ...]:
        return tuple(replace(s, offset=s.offset + start) if s.axis == axis else s for s in access)

    axes = tuple(Axis(a.name, POSITIONS) if a.name == axis else a for a in program.axes)
    inputs = tuple(replace(i, access=shifted(i.access)) for i in program.inputs)
    outputs = tuple(replace(o, access=shifted(o.access)) for o in program.outputs)
    return Program(axes, program.sources, inputs, program.nodes, outputs)


def both_ends(program: Program, symbols: Mapping[str, int], axis: str) -> tuple[Program, Program]:
    """The first and the last positions of an axis."""
    extent = ex.value(program.extent(axis), symbols)
    return window(program, axis, 0), window(program, axis, extent - POSITIONS)


def compact(program: Program) -> Program:
    """A window whose outputs are stored without the positions outside of it."""
    return replace(program, outputs=tuple(_compact(program, o) for o in program.outputs), _axes_of={})


def _compact(program: Program, o: Output) -> Output:
    access = tuple(Slot(s.axis, program.extent(s.axis)) if s.axis is not None else Slot(None, 1) for s in o.access)
    return replace(o, access=access, dims=tuple(s.extent for s in access))


def shown_by_window(program: Program, o: Output, whole: NDArray[Any], symbols: Mapping[str, int]) -> NDArray[Any]:
    """The part of the stored result of the whole program that a window shows, in the form of the compact one's
    result."""
    part = read(program, o.access, whole, 0, symbols)
    names = [s.axis for s in o.access if s.axis is not None]
    order = [a.name for a in program.axes]
    rest = [k for k, n in enumerate(order) if n not in names]
    sizes = [ex.value(s.extent, symbols) for s in _compact(program, o).access]
    return part.transpose([*(order.index(n) for n in names), *rest]).reshape(sizes)
