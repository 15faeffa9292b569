"""Programs and kernel graphs with other extents of their axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.parts import with_slots
from mirage_cli.lax.ir.program import Axis, Program, Slot
from mirage_cli.search.mugraph.mugraph import KernelGraph


def resized(program: Program, graph: KernelGraph, sizes: Mapping[str, Extent]) -> tuple[Program, KernelGraph]:
    """A program and its kernels with other extents of their axes, and of the tensors that these walk."""
    kernels = tuple(replace(k, program=_resized(k.program, sizes)) for k in graph.kernels)
    return _resized(program, sizes), replace(graph, kernels=kernels)


def accesses(program: Program, graph: KernelGraph) -> dict[int, list[tuple[Slot, ...]]]:
    """For each tensor of the kernel graph the ways in which it is read and written."""
    ways: dict[int, list[tuple[Slot, ...]]] = {}
    for i in program.inputs:
        ways.setdefault(i.source, []).append(i.access)
    for k, o in enumerate(program.outputs):
        ways.setdefault(graph.sources + k, []).append(o.access)
    for kernel in graph.kernels:
        for i in kernel.program.inputs:
            ways.setdefault(kernel.inputs[i.source], []).append(i.access)
        for t, o in zip(kernel.outputs, kernel.program.outputs, strict=True):
            ways.setdefault(t, []).append(o.access)
    return ways


def _resized(program: Program, sizes: Mapping[str, Extent]) -> Program:
    """The program with other extents of its axes."""

    def slots(access: Sequence[Slot]) -> tuple[Slot, ...]:
        return tuple(
            replace(s, extent=sizes[s.axis]) if s.axis is not None and s.extent == program.extent(s.axis) else s
            for s in access
        )

    sources = list(program.sources)
    inputs = [replace(i, access=slots(i.access)) for i in program.inputs]
    for old, i in zip(program.inputs, inputs, strict=True):
        sources[i.source] = with_slots(program.sources[i.source], old.access, tuple(s.extent for s in i.access))
    outputs = [
        replace(o, access=slots(o.access), dims=tuple(s.extent for s in slots(o.access))) for o in program.outputs
    ]
    axes = tuple(Axis(a.name, sizes[a.name]) for a in program.axes)
    return replace(
        program, axes=axes, sources=tuple(sources), inputs=tuple(inputs), outputs=tuple(outputs), _axes_of={}
    )
