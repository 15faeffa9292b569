"""The extents at which a muGraph is compared with its program.

The real ones where they are numbers and the work is affordable. Symbols get three assignments: all 1, small and
different from each other, and large enough for several tiles and a partial one. What is too much work is done on a
stand-in: the same structure with shorter axes, on which every branch of the schedule still runs, see `_reduced`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.ops import OPS
from mirage_cli.lax.program import Axis, Program, Slot
from mirage_cli.search.evaluate import Tiles
from mirage_cli.search.mugraph import BODY, BlockOp, CustomKernel, KernelGraph

AFFORDABLE = 4e8  #: nanoseconds that one evaluation of program and kernels may take, for each field
HOPELESS = 5.0  #: a stand-in above this many times the affordable is not evaluated
STATEMENT = 1.5e4  #: nanoseconds of an operator on a tile however small
WIDE = 64  #: positions that are kept of an axis which blocks hold whole
_MULTIPLY_ADD, _ELEMENT, _DRAW, _CALL = 2.0, 6.0, 12.0, 60.0  #: nanoseconds


@dataclass(frozen=True, slots=True)
class Point:
    """A program and kernels at extents for which they can be evaluated, with values for symbols that are left."""

    program: Program
    graph: KernelGraph
    symbols: dict[str, int]
    real: bool


def points(program: Program, graph: KernelGraph, tiles: Sequence[Tiles]) -> list[Point]:
    """The extents to compare at. Raises Refused when even the stand-in is too large."""
    if not program.symbols:
        return [_point(program, graph, tiles, {})]
    return [replace(_point(program, graph, tiles, s), real=False) for s in assignments(program, graph, tiles)]


def assignments(program: Program, graph: KernelGraph, tiles: Sequence[Tiles]) -> list[dict[str, int]]:
    """Values for the symbols: 1, small, and large, where odd numbers leave partial tiles."""
    names = program.symbols
    steps = dict.fromkeys(names, 1.0)
    for kernel, tile in zip(graph.kernels, tiles, strict=True):
        for a in kernel.program.axes:
            wanted = (2.0 * _step(a.name, kernel, tile)) ** (1.0 / max(1, len(ex.names(a.extent))))
            steps.update((s, max(steps[s], wanted)) for s in ex.names(a.extent))
    small = {s: 3 + 2 * k for k, s in enumerate(names)}
    large = {s: (int(steps[s]) // 2 + 1 + k) * 2 + 5 for k, s in enumerate(names)}
    return [dict.fromkeys(names, 1), small, large]


def _step(axis: str, kernel: CustomKernel, tile: Tiles) -> int:
    """How many positions of an axis are one tile."""
    return max(tile.get("loop", 1) if kernel.block.loop == axis else 1, tile.get(axis, 1))


def _point(program: Program, graph: KernelGraph, tiles: Sequence[Tiles], symbols: dict[str, int]) -> Point:
    point = Point(program, graph, symbols, True)
    for whole in (2, 1):
        if cost(point.program, point.graph, tiles, symbols) <= AFFORDABLE:
            return point
        sizes = _sizes(program, graph, tiles, symbols, whole)
        kernels = tuple(replace(k, program=_resize(k.program, sizes)) for k in graph.kernels)
        point = Point(_resize(program, sizes), replace(graph, kernels=kernels), symbols, False)
    work = cost(point.program, point.graph, tiles, symbols)
    if work > HOPELESS * AFFORDABLE:
        raise Refused(
            f"a proof would take about {work * 3e-9:.0f} s even on the smallest extents with the same structure"
        )
    return point


# --- work -----------------------------------------------------------------------------------------------------------------
def cost(program: Program, graph: KernelGraph, tiles: Sequence[Tiles], symbols: Mapping[str, int]) -> float:
    """Nanoseconds, roughly, that evaluating a program and its kernels takes in one field."""
    size = {a.name: ex.value(a.extent, symbols) for a in program.axes}
    total = sum(_DRAW * math.prod(ex.value(e, symbols) for e in s.dims) for s in program.sources)
    for n in program.nodes:
        inside = frozenset(n.over).union(*(program.axes_of(i) for i in n.inputs))
        call = not (n.op in OPS and OPS[n.op].linear) and n.op not in ("sum", "contract", "const")
        total += STATEMENT + _operator(n.op, call, _volume(inside, size), _volume(program.axes_of(n.name), size))
    for kernel, tile in zip(graph.kernels, tiles, strict=True):
        total += _kernel_cost(kernel, tile, size | {a.name: ex.value(a.extent, symbols) for a in kernel.program.axes})
    return total


def _operator(op: str, call: bool, inside: float, made: float) -> float:
    if op == "contract":
        return _MULTIPLY_ADD * inside + _DRAW * made
    return (_CALL if call else _ELEMENT) * inside


def _kernel_cost(kernel: CustomKernel, tile: Tiles, size: Mapping[str, int]) -> float:
    g, axes = kernel.block, kernel.block.axes_of(kernel.program)
    part = {a: min(n, tile.get(a, n)) if a in g.grid else n for a, n in size.items()}
    blocks = math.prod(-(-size[a] // max(part[a], 1)) for a in g.grid)
    walked = part.get(g.loop or "", 1)
    inner = min(tile.get("loop", walked), walked)
    body = part | ({g.loop: inner} if g.loop else {})
    total = 0.0
    for o in g.ops:
        own, times = (body, blocks * -(-walked // max(inner, 1))) if o.phase == BODY else (part, blocks)
        inside = frozenset(o.over) | axes[o.name]
        total += times * (STATEMENT + _block_operator(o, _volume(inside, own), _volume(axes[o.name], own)))
    return total


def _block_operator(o: BlockOp, inside: float, made: float) -> float:
    if o.op == "load":
        return 0.0
    if o.thread is None:
        return _operator(o.op, False, inside, made)
    return sum(
        STATEMENT + _operator(n.op, not (n.op in OPS and OPS[n.op].linear), inside, made)
        for n in o.thread.nodes
        if n.op != "const"
    )


def _volume(axes: Iterable[str], size: Mapping[str, int]) -> float:
    return math.prod(float(size[a]) for a in axes)


# --- shorter axes ---------------------------------------------------------------------------------------------------------
def _sizes(
    program: Program, graph: KernelGraph, tiles: Sequence[Tiles], symbols: Mapping[str, int], whole: int
) -> dict[str, int]:
    """The extent of every axis, with so many whole tiles.

    Axes that walk a part of a stored run keep theirs, since its place would change; axes that walk one dimension of a
    tensor in different reads have one extent.
    """
    programs = [program, *(k.program for k in graph.kernels)]
    extent = {a.name: ex.value(a.extent, symbols) for p in programs for a in p.axes}
    fixed: set[str | None] = {
        s.axis
        for p in programs
        for access in [i.access for i in p.inputs] + [o.access for o in p.outputs]
        for s in access
        if s.axis is not None and (s.offset or s.extent != p.extent(s.axis))
    }
    group = {a: frozenset([a]) for a in extent}
    for accesses in _accesses(program, graph).values():
        for other in accesses[1:]:
            if [s.extent for s in accesses[0]] != [s.extent for s in other]:
                fixed.update(s.axis for s in (*accesses[0], *other))
                continue
            for s, t in zip(accesses[0], other, strict=True):
                if s.axis is not None and t.axis is not None:
                    joined = group[s.axis] | group[t.axis]
                    group.update(dict.fromkeys(joined, joined))
    return {a: n if group[a] & fixed else _reduced(group[a], n, graph, tiles, whole) for a, n in extent.items()}


def _accesses(program: Program, graph: KernelGraph) -> dict[int, list[tuple[Slot, ...]]]:
    """For each tensor of the kernel graph the ways in which it is read and written."""
    found: dict[int, list[tuple[Slot, ...]]] = {}
    for i in program.inputs:
        found.setdefault(i.source, []).append(i.access)
    for k, o in enumerate(program.outputs):
        found.setdefault(graph.sources + k, []).append(o.access)
    for kernel in graph.kernels:
        for i in kernel.program.inputs:
            found.setdefault(kernel.inputs[i.source], []).append(i.access)
        for t, o in zip(kernel.outputs, kernel.program.outputs, strict=True):
            found.setdefault(t, []).append(o.access)
    return found


def _reduced(axes: frozenset[str], extent: int, graph: KernelGraph, tiles: Sequence[Tiles], whole: int) -> int:
    """A shorter extent: `whole` tiles (2 or 1) and a part along a grid axis, an iteration more and a part along a loop, the
    part as long as in earnest or, where that is nothing, a whole tile: first, later and last ones differ as they do there."""
    wanted, steps = 2, {1}
    for kernel, tile in zip(graph.kernels, tiles, strict=True):
        for axis in axes & {a.name for a in kernel.program.axes}:
            inner = tile.get("loop", extent) if kernel.block.loop == axis else 0
            step = tile.get(axis, 0) if axis in kernel.block.grid else 0
            blocks = step + 1 if whole == 1 else whole * step
            wanted = max(wanted, (whole + 1) * inner, blocks if step else 0, 0 if inner or step else WIDE)
            steps |= {inner or 1, step or 1}
    return min(extent, wanted + (extent - wanted) % math.lcm(*steps))


def _resize(program: Program, sizes: Mapping[str, int]) -> Program:
    """The program with other extents of its axes."""

    def slots(access: Sequence[Slot]) -> tuple[Slot, ...]:
        return tuple(
            replace(s, extent=sizes[s.axis]) if s.axis is not None and s.extent == program.extent(s.axis) else s
            for s in access
        )

    sources = list(program.sources)
    inputs = [replace(i, access=slots(i.access)) for i in program.inputs]
    for i in inputs:
        sources[i.source] = replace(sources[i.source], dims=tuple(s.extent for s in i.access))
    outputs = [
        replace(o, access=slots(o.access), dims=tuple(s.extent for s in slots(o.access))) for o in program.outputs
    ]
    axes = tuple(Axis(a.name, sizes[a.name]) for a in program.axes)
    return replace(
        program, axes=axes, sources=tuple(sources), inputs=tuple(inputs), outputs=tuple(outputs), _axes_of={}
    )
