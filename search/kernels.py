"""Kernel graphs: one custom kernel for a whole fragment, or several with stored values between them.

A *cut* stores one value of the program; the parts before and behind it are programs of their own, searched by themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.identify import prune
from mirage_cli.lax.program import Input, Output, Program, Slot, Source
from mirage_cli.search.mugraph import BlockGraph, CustomKernel, KernelGraph


def cuts(program: Program, max_kernels: int) -> Iterator[tuple[str, ...]]:
    """Sets of values to store, fewest first: none, then up to `max_kernels - 1` results of reductions or of elementwise
    regions that a contraction reads."""
    candidates = cut_values(program)
    for count in range(min(max_kernels - 1, len(candidates)) + 1):
        yield from itertools.combinations(candidates, count)


def cut_values(program: Program) -> list[str]:
    """Values that are worth storing between kernels, in program order."""
    outputs = {o.value for o in program.outputs}
    found: dict[str, None] = {}
    for n in program.nodes:
        if n.op in ("contract", "sum"):
            found[n.name] = None
        if n.op == "contract":
            found.update((i, None) for i in n.inputs if i.startswith("v"))
    order = [n.name for n in program.nodes]
    return [v for v in order if v in found and v not in outputs and program.axes_of(v)]


def split(program: Program, stored: Sequence[str]) -> list[tuple[Program, tuple[str, ...]]]:
    """The parts of a program with some values stored: for each part its program and the names of what its sources are
    (`"source k"` for the fragment's, a value's name for a stored one). Parts are in order of execution; the last one
    computes the program's outputs."""
    order = [n.name for n in program.nodes]
    parts = [_part(program, [v], [w for w in stored if order.index(w) < order.index(v)]) for v in stored]
    return [*parts, _part(program, None, stored)]


def _part(program: Program, goals: Sequence[str] | None, stored: Sequence[str]) -> tuple[Program, tuple[str, ...]]:
    sources = list(program.sources)
    labels = [f"source {k}" for k in range(len(sources))]
    inputs = list(program.inputs)
    for v in stored:
        slots = storage(program, v)
        inputs.append(Input(v, len(sources), slots))
        sources.append(Source(v, tuple(s.extent for s in slots), F32))
        labels.append(v)
    nodes = tuple(n for n in program.nodes if n.name not in stored)
    outputs = program.outputs
    if goals is not None:
        made = []
        for v in goals:
            slots = storage(program, v)
            made.append(Output(v, slots, tuple(s.extent for s in slots), F32, v))
        outputs = tuple(made)
    part = replace(program, sources=tuple(sources), inputs=tuple(inputs), nodes=nodes, outputs=outputs, _axes_of={})
    used = _needed_sources(part)
    pruned = prune(part)
    return pruned.validate(), tuple(labels[k] for k in used)


def _needed_sources(part: Program) -> list[int]:
    needed = {o.value for o in part.outputs}
    for n in reversed(part.nodes):
        if n.name in needed:
            needed.update(n.inputs)
    return sorted({i.source for i in part.inputs if i.name in needed})


def storage(program: Program, value: str) -> tuple[Slot, ...]:
    """How an intermediate value is stored: row-major in the program's order of axes."""
    own = program.axes_of(value)
    return tuple(Slot(a.name, a.extent) for a in program.axes if a.name in own)


def assemble(
    program: Program,
    parts: Sequence[tuple[Program, tuple[str, ...]]],
    blocks: Sequence[BlockGraph],
) -> KernelGraph:
    """The kernel graph of a split program with a block graph for each part."""
    count, outputs = len(program.sources), len(program.outputs)
    number = {f"source {k}": k for k in range(count)}
    kernels = []
    for k, ((part, labels), block) in enumerate(zip(parts, blocks, strict=True)):
        last = k == len(parts) - 1
        inputs = tuple(number[label] for label in labels)
        if last:
            made = tuple(range(count, count + outputs))
        else:
            number[part.outputs[0].value] = count + outputs + k
            made = (count + outputs + k,)
        kernels.append(CustomKernel(part, block, inputs, made))
    return KernelGraph(count, outputs, count + outputs + len(parts) - 1, tuple(kernels)).validate()


def operators(graph: BlockGraph) -> int:
    """Operators of a block that count against the bound: not loads, nor what a stabiliser adds."""
    return sum(o.op not in ("load", "iota", "extent", "top", "running", "shrink", "grid_top") for o in graph.ops)
