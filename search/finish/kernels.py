"""Kernel graphs: one custom kernel for a whole fragment, or several with stored values between them.

A *cut* stores values of the program, those of a group by one kernel, and shares the outputs out; the parts before and behind
are programs of their own, searched by themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from mirage_cli.lax.dtypes import F32, DType
from mirage_cli.lax.ir.program import Input, Node, Output, Program, Slot, Source
from mirage_cli.lax.normal.identify import fuse_summed, prune
from mirage_cli.lax.ops import OPS
from mirage_cli.search.mugraph.mugraph import BlockGraph, CustomKernel, KernelGraph

MAX_ANY = 8  #: nodes of a program up to which any value may be stored
Part: TypeAlias = tuple[Program, tuple[str, ...]]  #: a part of a program, and what its sources are


def cuts(program: Program, max_kernels: int) -> Iterator[tuple[str, ...]]:
    """Sets of values to store, fewest first: none, then up to `max_kernels - 1` results of reductions or of elementwise
    regions that a contraction reads."""
    candidates = cut_values(program)
    for count in range(min(max_kernels - 1, len(candidates)) + 1):
        yield from itertools.combinations(candidates, count)


def cut_values(program: Program) -> list[str]:
    """Values that are worth storing between kernels, in program order: results of reductions, what contractions read, and
    in small programs elementwise values too."""
    outputs = {o.value for o in program.outputs}
    found: dict[str, None] = {}
    for n in program.nodes:
        if n.op in ("contract", "sum", "top", "max", "min") or (len(program.nodes) <= MAX_ANY and n.op != "stable_exp"):
            found[n.name] = None
        if n.op == "contract":
            found.update(dict.fromkeys(n.inputs))
    order = [n.name for n in program.nodes if n.over or program.axes_of(n.name)]
    return [v for v in order if v in found and v not in outputs]


def split(program: Program, stored: Sequence[str]) -> list[Part]:
    """The parts of a program with some values stored, each by a kernel of its own."""
    return Cuts(program).parts([(v,) for v in stored])


class Cuts:
    """The parts of one program under different sets of stored values; equal parts are made once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._defined = {n.name: n for n in program.nodes}
        self._parts: dict[tuple[tuple[Output, ...], tuple[str, ...]], Part] = {}

    def parts(self, groups: Sequence[Sequence[str]], outputs: Sequence[Sequence[int]] = ()) -> list[Part]:
        """The parts with groups of values stored, each by one kernel, and with groups of outputs (their numbers; by default
        all together): for each part its program and the names of what its sources are (`"source k"` for the fragment's, a
        value's name for a stored one). Parts are in order of execution, those that make the outputs last."""
        known: list[str] = []
        parts = []
        for group in groups:
            parts.append(self._part(tuple(self._stored(v) for v in group), known))
            known += group
        made = self.program.outputs
        return [*parts, *(self._part(tuple(made[k] for k in g), known) for g in outputs or [range(len(made))])]

    def _stored(self, v: str) -> Output:
        slots = storage(self.program, v)
        return Output(v, slots, tuple(s.extent for s in slots), stored_type(self.program, v), v)

    def _part(self, outputs: tuple[Output, ...], stored: Sequence[str]) -> Part:
        """The part that computes some results from what is stored."""
        todo, read = [o.value for o in outputs], set[str]()
        while todo:
            x = todo.pop()
            if x not in read:
                read.add(x)
                todo += () if x in stored or x not in self._defined else self._defined[x].inputs
        key = (outputs, tuple(v for v in stored if v in read))
        if key not in self._parts:
            self._parts[key] = part_for(self.program, *key)
        return self._parts[key]


def siblings(program: Program) -> list[Part]:
    """A part for each result of a program, where each has products and axes of its own; else none."""
    products = {n.name for n in program.nodes if n.op == "contract"}
    parts = Cuts(program).parts((), [[k] for k in range(len(program.outputs))]) if len(program.outputs) > 1 else []
    own = [products.intersection(n.name for n in part.nodes) for part, _ in parts]
    axes = {frozenset(s.axis for s in o.access) for o in program.outputs}
    apart = all(own) and sum(map(len, own)) == len(set().union(*own)) and len(axes) == len(parts)
    return parts if apart else []


def unpacked(program: Program) -> list[Part]:
    """A part for each operand of a product that is computed of weights alone, and one for the rest."""
    known = {i.name for i in program.inputs if (s := program.sources[i.source]).constant and not s.chosen}
    for n in program.nodes:
        if n.op in OPS and n.inputs and all(i in known or not program.axes_of(i) for i in n.inputs):
            known.add(n.name)
    products = [n for n in program.nodes if n.op == "contract"]
    computed = [n.name for n in program.nodes if n.name in known and any(n.name in p.inputs for p in products)]
    return Cuts(program).parts([(v,) for v in computed])


def grouped(program: Program, stored: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The values to store (in program order) in as few kernels as is natural: values that do not depend on one another
    (but for maxima, which are made with their exponentials) and read something in common are made together."""
    defined = {n.name: n for n in program.nodes}
    level: dict[str, int] = {}
    groups: list[tuple[int, set[str], list[str]]] = []
    for v in stored:
        reads: set[str] = set()
        todo = list(defined[v].inputs)
        while todo:
            x = todo.pop()
            if x not in defined or (x in level and defined[x].op != "top"):
                reads.add(x)
            else:
                todo += defined[x].inputs
        level[v] = 1 + max((level[x] for x in reads if x in level), default=0)
        home = next((g for g in groups if g[0] == level[v] and g[1] & reads), None)
        if home is None:
            groups.append((level[v], reads, [v]))
        else:
            home[1].update(reads)
            home[2].append(v)
    return tuple(tuple(g[2]) for g in sorted(groups, key=lambda g: g[0]))


def part_for(program: Program, outputs: tuple[Output, ...], stored: Sequence[str]) -> Part:
    """The part of a program that makes `outputs` from its sources and what is `stored`."""
    sources = list(program.sources)
    labels = [f"source {k}" for k in range(len(sources))]
    inputs = list(program.inputs)
    for v in stored:
        slots = storage(program, v)
        inputs.append(Input(v, len(sources), slots))
        dims = tuple(s.extent for s in slots)
        sources.append(Source(v, dims, stored_type(program, v), levels=_are_levels(program, v)))
        labels.append(v)
    nodes = tuple(n for n in program.nodes if n.name not in stored)
    part = replace(program, sources=tuple(sources), inputs=tuple(inputs), nodes=nodes, outputs=outputs, _axes_of={})
    used = needed_sources(part)
    return fuse_summed(prune(part)).validate(), tuple(labels[k] for k in used)


def needed_sources(part: Program) -> list[int]:
    """The numbers of the sources that the outputs of a part need."""
    needed = {o.value for o in part.outputs}
    for n in reversed(part.nodes):
        if n.name in needed:
            needed.update(n.inputs)
    return sorted({i.source for i in part.inputs if i.name in needed})


def _are_levels(program: Program, value: str) -> bool:
    """True for whole numbers that bytes hold, less one number for all."""
    n = program.node(value)
    if not isinstance(n, Node) or n.op not in OPS or not OPS[n.op].whole:
        return False
    return not any(program.axes_of(i) for i in n.inputs[1:])


def storage(program: Program, value: str) -> tuple[Slot, ...]:
    """The storage of an intermediate value: row-major in the program's order of axes."""
    own = program.axes_of(value)
    return tuple(Slot(a.name, a.extent) for a in program.axes if a.name in own)


def stored_type(program: Program, value: str) -> DType:
    """The type in which an intermediate value is stored: float32, or that of the products where only products read it,
    which would round it to their type anyway."""
    types = {n.dtype if n.op == "contract" else None for n in program.nodes if value in n.inputs}
    only = next(iter(types)) if len(types) == 1 else None
    return only or F32


def one_kernel(program: Program, block: BlockGraph) -> KernelGraph:
    """The kernel graph in which one kernel computes a whole program."""
    count, total = len(program.sources), len(program.sources) + len(program.outputs)
    kernel = CustomKernel(program, block, tuple(range(count)), tuple(range(count, total)))
    return KernelGraph(count, len(program.outputs), total, (kernel,))


def assemble(program: Program, parts: Sequence[Part], blocks: Sequence[BlockGraph]) -> KernelGraph:
    """The kernel graph of a split program with a block graph for each part."""
    return link(program, parts, [one_kernel(part, block) for (part, _), block in zip(parts, blocks, strict=True)])


def link(program: Program, parts: Sequence[Part], graphs: Sequence[KernelGraph]) -> KernelGraph:
    """The kernel graph of a split program with a kernel graph for each part."""
    count, outputs = len(program.sources), len(program.outputs)
    number = {f"source {k}": k for k in range(count)}
    total = count + outputs
    kernels: list[CustomKernel] = []
    left = dict(enumerate(program.outputs))
    for (part, labels), graph in zip(parts, graphs, strict=True):
        written = []
        for o in part.outputs:
            k = next((k for k, other in left.items() if other == o), None)
            if k is None:
                number[o.value] = total
                total += 1
            else:
                del left[k]
            written.append(number[o.value] if k is None else count + k)
        own = range(total, total + graph.tensors - graph.sources - graph.outputs)
        total = own.stop
        tensors = (*(number[label] for label in labels), *written, *own)
        kernels += [
            CustomKernel(c.program, c.block, tuple(tensors[t] for t in c.inputs), tuple(tensors[t] for t in c.outputs))
            for c in graph.kernels
        ]
    return KernelGraph(count, outputs, total, tuple(kernels)).validate()


def operators(graph: BlockGraph) -> int:
    """Operators of a block that count against the bound: not loads, nor what a stabiliser adds."""
    return sum(o.op not in ("load", "iota", "extent", "top", "running", "shrink", "grid_top") for o in graph.ops)
