"""Programs on shorter axes whose masks hide something there too: positions are compared with smaller numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from mirage_cli.lax.ir.program import Node, Program
from mirage_cli.search.mugraph.mugraph import BlockOp, CustomKernel, KernelGraph, ThreadNode
from mirage_cli.search.proof.resize import resized

LINEAR = ("add", "sub", "neg")
COMPARING = ("lt", "le", "eq")
Constant = TypeVar("Constant", Node, ThreadNode)
Numbers = dict[Fraction | float, Fraction]


def longer(
    real: Program, program: Program, graph: KernelGraph, tiles: Sequence[Mapping[str, int]]
) -> tuple[Program, KernelGraph]:
    """A stand-in of a `real` program in which all axes that are compared are shortened alike, by whole tiles; as it is where
    they walk dimensions together with others."""
    compared = {n.axis for n in real.nodes if n.op == "iota" and n.axis is not None}
    sizes = {a.name: e for a in program.axes if isinstance(e := a.extent, int)}
    whole = {a.name: e for a in real.axes if isinstance(e := a.extent, int)}
    if not compared or not compared <= sizes.keys():
        return program, graph
    longest = max(sorted(compared), key=lambda a: (whole[a], sizes[a]))
    for a in compared:
        wanted = -(-whole[a] * sizes[longest] // whole[longest])
        step = math.lcm(*(t.get(a, 1) for t in tiles))
        sizes[a] = min(whole[a], sizes[a] + -(-max(0, wanted - sizes[a]) // step) * step)
    made = resized(program, graph, sizes)
    walked = ([s.extent for s in i.access] == list(made[0].sources[i.source].dims) for i in made[0].inputs)
    return made if all(walked) else (program, graph)


def nearer(program: Program, graph: KernelGraph) -> tuple[Program, KernelGraph] | None:
    """A program and kernels in which the numbers that positions are compared with reach no further than half of the longest
    axis that is compared, or a single one to the next position; None where they do so already, or extents are symbols."""
    compared = _compared(program)
    extents = [program.extent(n.axis) for n in program.nodes if n.op == "iota" and n.axis is not None]
    lengths = [e for e in extents if isinstance(e, int)]
    most = max(map(abs, compared), default=Fraction(0))
    if len(lengths) < len(extents) or 2 * most <= max(lengths, default=0):
        return None
    share = (Fraction(max(lengths), 2) if len(set(map(abs, compared))) > 1 else 1) / most
    numbers: Numbers = {}
    for c in compared:
        near = Fraction(max(1, round(abs(c) * share)))
        numbers |= {abs(c): near, -abs(c): -near}
    kernels = tuple(_kernel(k, numbers) for k in graph.kernels)
    return _program(program, numbers), replace(graph, kernels=kernels)


def _compared(program: Program) -> set[Fraction]:
    """The whole numbers that are added to positions or compared with them."""
    numbers = {n.name: n.value for n in program.nodes if n.op == "const" and isinstance(n.value, Fraction)}
    placed, found = {n.name for n in program.nodes if n.op == "iota"}, set[Fraction]()
    for n in program.nodes:
        if n.op not in (*LINEAR, *COMPARING) or placed.isdisjoint(n.inputs):
            continue
        found |= {c for i in n.inputs if (c := numbers.get(i)) and c.denominator == 1}
        if n.op in LINEAR:
            placed.add(n.name)
    return found


def _changed(n: Constant, numbers: Numbers) -> Constant:
    return replace(n, value=numbers[n.value]) if n.op == "const" and n.value in numbers else n


def _program(p: Program, numbers: Numbers) -> Program:
    return replace(p, nodes=tuple(_changed(n, numbers) for n in p.nodes), _axes_of={})


def _kernel(kernel: CustomKernel, numbers: Numbers) -> CustomKernel:
    def op(o: BlockOp) -> BlockOp:
        if o.thread is None:
            return o
        return replace(o, thread=replace(o.thread, nodes=tuple(_changed(n, numbers) for n in o.thread.nodes)))

    block = replace(kernel.block, ops=tuple(map(op, kernel.block.ops)))
    return replace(kernel, program=_program(kernel.program, numbers), block=block)
