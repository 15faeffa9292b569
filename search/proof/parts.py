"""A proof in parts: along axes on which positions do not meet, one range of them after the other.

An axis is *independent* if no operator of the program or of the kernels reduces, counts or numbers its positions, no loop
walks it, no blocks share it, every tensor has it in one place or lacks it, and no maximum lacks it in a kernel whose grid
has it. Then what is computed at a position comes from the inputs at this position and from those that lack the axis, by the
same formula at every position. So outputs that are equal as formulas at one position are equal at all, and the comparison of
all outputs is that of the outputs at all ranges, each from its own part of the inputs, which are drawn only while it is
compared. It does not matter whether a part ends where a tile does: the blocks along such an axis could all be one, see
`search.evaluate`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir.program import Program, Slot
from mirage_cli.search.mugraph.evaluate import Tiles
from mirage_cli.search.mugraph.mugraph import MAXIMA, KernelGraph
from mirage_cli.search.proof.evaluation_cost import cost, memory
from mirage_cli.search.proof.resize import accesses, resized

MEMORY_LIMIT = 4 << 30  #: bytes that a proof may hold
COMFORTABLE = 1 << 30  #: bytes above which a proof is cut into parts where that is hardly more work
_MORE_WORK = 1.25  #: what hardly more work is
_LESS_MEMORY = 0.9  #: a cut has to save that much


@dataclass(frozen=True, slots=True)
class Part:
    """A program and kernels for one range of positions of each axis that is cut; `names` tells the inputs of different
    parts apart, by source number; `where` says which part it is, in words (nothing if it is all)."""

    program: Program
    graph: KernelGraph
    names: tuple[str, ...]
    where: str = ""


def parts(
    program: Program, graph: KernelGraph, tiles: Sequence[Tiles], symbols: Mapping[str, int], fields: int
) -> Iterator[Part]:
    """The parts of a comparison in so many fields. Raises Refused when even a part takes more than `MEMORY_LIMIT`."""
    extents = {a.name: ex.value(a.extent, symbols) for p in _programs(program, graph) for a in p.axes}
    sizes = _cut(program, graph, tiles, symbols, fields, extents)
    own = [
        frozenset(s.axis for i in program.inputs if i.source == k for s in i.access)
        for k in range(len(program.sources))
    ]
    cut = [a for a in extents if sizes[a] < extents[a]]
    ranges = [range(0, extents[a], sizes[a]) for a in cut]
    for starts in itertools.product(*ranges):
        at = dict(zip(cut, starts, strict=True))
        here = extents | {a: min(sizes[a], extents[a] - start) for a, start in at.items()}
        names = tuple(
            " ".join([f"source {k}", *(f"{a}={start}" for a, start in at.items() if a in axes)])
            for k, axes in enumerate(own)
        )
        where = " ".join(f"{a}={start}.." for a, start in at.items())
        yield Part(*resized(program, graph, here), names, where) if cut else Part(program, graph, names)


def independent_axes(program: Program, graph: KernelGraph) -> list[str]:
    """The independent axes of a program and its kernels, in the program's order."""
    dependent: set[str | None] = set()
    for p in _programs(program, graph):
        for n in p.nodes:
            dependent.update((*n.over, n.axis))
        for access in [i.access for i in p.inputs] + [output.access for output in p.outputs]:
            dependent.update(_not_whole(p, access))
    for kernel in graph.kernels:
        axes = kernel.block.axes_of(kernel.program)
        dependent.update((*kernel.block.split, kernel.block.loop))
        for output in kernel.block.ops:
            dependent.update((*output.over, output.axis))
            dependent.update(set(kernel.block.grid) - axes[output.name] if output.op in MAXIMA else ())
    for ways in accesses(program, graph).values():
        dependent.update(_in_several_places(ways))
    return [a.name for a in program.axes if a.name not in dependent]


def _programs(program: Program, graph: KernelGraph) -> list[Program]:
    return [program, *(k.program for k in graph.kernels)]


def _not_whole(p: Program, access: Sequence[Slot]) -> set[str | None]:
    """Axes that walk a part of a stored run, or two runs."""
    walked = [s.axis for s in access]
    return {s.axis for s in access if s.axis and (s.offset or s.extent != p.extent(s.axis) or walked.count(s.axis) > 1)}


def _in_several_places(ways: Sequence[tuple[Slot, ...]]) -> set[str | None]:
    """Axes that not all ways of reading and writing a tensor have in the same place."""
    everything = {s.axis for access in ways for s in access}
    if any([s.extent for s in access] != [s.extent for s in ways[0]] for access in ways):
        return everything
    return {axis for column in zip(*ways, strict=True) if len(axes := {s.axis for s in column}) > 1 for axis in axes}


def _cut(
    program: Program,
    graph: KernelGraph,
    tiles: Sequence[Tiles],
    symbols: Mapping[str, int],
    fields: int,
    extents: dict[str, int],
) -> dict[str, int]:
    """Positions of each axis in a part: independent axes are halved, the one that makes the least work first."""
    sizes = dict(extents)
    held = memory(program, graph, tiles, symbols, fields)
    if held <= COMFORTABLE:
        return sizes
    least = cost(program, graph, tiles, symbols)
    axes = independent_axes(program, graph)
    while held > COMFORTABLE:
        options = []
        for a in axes:
            half = -(-sizes[a] // 2)
            smaller = resized(program, graph, sizes | {a: half})
            less = memory(*smaller, tiles, symbols, fields)
            if half < sizes[a] and less < _LESS_MEMORY * held:
                count = math.prod(-(-extents[b] // (half if b == a else sizes[b])) for b in axes)
                options.append((count * cost(*smaller, tiles, symbols), less, a, half))
        if not options or (min(options)[0] > _MORE_WORK * least and held <= MEMORY_LIMIT):
            break
        _, held, axis, sizes[axis] = min(options)
    if held > MEMORY_LIMIT:
        raise Refused(
            f"a proof at these extents would take about {held / (1 << 30):.1f} GB, {MEMORY_LIMIT >> 30} are allowed"
        )
    return sizes
