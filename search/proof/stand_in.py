"""The extents at which a muGraph is compared with its program.

The real ones where they are numbers and the work is affordable; of axes whose positions do not meet as many positions as are
affordable, since the others compute the same formulas. Symbols get three assignments: all 1, small and different from each
other, and large enough for several tiles and a partial one. What is still too much work is done on a stand-in: the same
structure with shorter axes, on which every branch of the schedule still runs, see `_reduced`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Symbolic
from mirage_cli.lax.ir.program import Program, Slot
from mirage_cli.lax.ir.room import partial_reads
from mirage_cli.search.mugraph.evaluate import Tiles
from mirage_cli.search.mugraph.mugraph import CustomKernel, KernelGraph
from mirage_cli.search.proof.evaluation_cost import cost
from mirage_cli.search.proof.parts import Part, independent_axes, parts
from mirage_cli.search.proof.resize import accesses, resized

AFFORDABLE = 4e8  #: nanoseconds that evaluating program and kernels at all points may take, for each field
PATIENT = 2e9  #: the same where real extents are asked for
ENOUGH = 0.25  #: share of it that fewer positions may take
HOPELESS = 5.0  #: a stand-in above this many times the affordable is not evaluated
FEW = 8  #: positions of an independent axis that are enough to see one of them overflow
CHUNK = 16  #: positions of which memory moves as many at once as their number and place are multiples of
ANY = 1 << 40  #: more positions than an axis has
TINY = 1e-9  #: what roots may be off by
WIDE = 64  #: positions that are kept of an axis which blocks hold whole


@dataclass(frozen=True, slots=True)
class Point:
    """A program and kernels at extents for which they can be evaluated, with values for symbols that are left."""

    program: Program
    graph: KernelGraph
    symbols: dict[str, int]
    real: bool

    def parts(self, tiles: Sequence[Tiles], fields: int) -> Iterator[Part]:
        """The parts that are compared, piece by piece. Raises Refused for too much memory, see `search.parts`."""
        return parts(self.program, self.graph, tiles, self.symbols, fields)


def points(program: Program, graph: KernelGraph, tiles: Sequence[Tiles], real: bool = False) -> list[Point]:
    """The extents to compare at; with `real` the real ones (and the assignments of symbols) however long that takes.

    Raises Refused when even the stand-in is too large.
    """
    values = assignments(program, graph, tiles) if program.symbols else [{}]
    if real:
        return [_shortened(Point(program, graph, s, not s), tiles, PATIENT, PATIENT) for s in values]
    found = (_point(program, graph, tiles, s, AFFORDABLE / len(values)) for s in values)
    return [replace(p, real=p.real and not p.symbols) for p in found]


def shortest(program: Program, graph: KernelGraph, tiles: Sequence[Tiles]) -> Point:
    """The shortest extents on which every branch of the schedule still runs, with few positions of independent axes; symbols
    small."""
    symbols = assignments(program, graph, tiles)[1] if program.symbols else {}
    sizes = _sizes(program, graph, tiles, symbols, 1)
    sizes |= {a: min(sizes[a], FEW) for a in independent_axes(program, graph)}
    return Point(*resized(program, graph, sizes), symbols, False)


def structured(
    program: Program, graph: KernelGraph, tiles: Sequence[Tiles], symbols: Mapping[str, int], whole: int
) -> tuple[Program, KernelGraph]:
    """A program and kernels with extents of so many (1 or 2) whole tiles and a part, of the same remainders; axes that blocks
    hold whole keep theirs, and neighbours in memory lie at the same multiples of a chunk."""
    return resized(program, graph, _sizes(program, graph, tiles, symbols, whole, True))


def beside_symbols(
    program: Program, graph: KernelGraph, tiles: Sequence[Tiles], whole: int
) -> tuple[Program, KernelGraph]:
    """The same of axes whose extents are numbers; others keep theirs, which have symbols."""
    symbols = assignments(program, graph, tiles)[1]
    axes = [a for p in (program, *(k.program for k in graph.kernels)) for a in p.axes]
    kept = {a.name: a.extent for a in axes if isinstance(a.extent, Symbolic)}
    return resized(program, graph, {**_sizes(program, graph, tiles, symbols, whole, True), **kept})


def assignments(program: Program, graph: KernelGraph, tiles: Sequence[Tiles]) -> list[dict[str, int]]:
    """Values for the symbols: 1, small, and large, where odd numbers leave partial tiles; more where the program reads
    positions that have to be there."""
    names, steps = program.symbols, _roots(program, graph, tiles, 2, 0)
    small = {s: 3 + 2 * k for k, s in enumerate(names)}
    large = {s: (int(steps[s]) // 2 + 1 + k) * 2 + 5 for k, s in enumerate(names)}
    given = (dict.fromkeys(names, 1), small, large)
    return [with_room(program, values, spare) for values, spare in zip(given, (0, 1, 1), strict=True)]


def beyond_a_tile(program: Program, graph: KernelGraph, tiles: Sequence[Tiles]) -> dict[str, int]:
    """Odd values for the symbols, different from each other, with which axes have their longest tile and a part of another."""
    roots = _roots(program, graph, tiles, 1, 1)
    return with_room(
        program, {s: max(3, math.ceil(roots[s] - TINY) | 1) + 2 * k for k, s in enumerate(program.symbols)}, 1
    )


def _roots(program: Program, graph: KernelGraph, tiles: Sequence[Tiles], whole: int, more: int) -> dict[str, float]:
    """For each symbol the number with which axes have so many whole tiles and `more` positions: where an axis has several
    symbols, what those with axes of their own leave to be multiplied is shared out equally."""
    steps = dict.fromkeys(program.symbols, 1.0)
    axes = [
        (a.extent, whole * _step(a.name, kernel, tile) + more)
        for kernel, tile in zip(graph.kernels, tiles, strict=True)
        for a in kernel.program.axes
        if isinstance(a.extent, Symbolic)
    ]
    for extent, positions in sorted(axes, key=lambda axis: len(axis[0].names)):
        lacking = positions / (extent.factor * math.prod(steps[n] for n in extent.names))
        for n in dict.fromkeys(extent.names) if lacking > 1 else ():
            steps[n] *= lacking ** (1.0 / len(extent.names))
    return steps


def with_room(program: Program, values: Mapping[str, int], spare: int) -> dict[str, int]:
    """Values of symbols at which the positions that are read of a dimension are there; `spare` more where an axis of symbolic
    extent walks a part of them."""
    values = dict(values)
    for extent, count, first in partial_reads(program):
        more = spare if isinstance(count, Symbolic) else 0
        each = math.ceil((first + ex.value(count, values) + more) / extent.factor)
        values.update((n, max(each, values[n])) for n in extent.names)
    return values


def _step(axis: str, kernel: CustomKernel, tile: Tiles) -> int:
    """Number of positions of an axis that are one tile."""
    return max(tile.get("loop", 1) if kernel.block.loop == axis else 1, tile.get(axis, 1))


def _point(program: Program, graph: KernelGraph, tiles: Sequence[Tiles], symbols: dict[str, int], most: float) -> Point:
    point = _shortened(Point(program, graph, symbols, True), tiles, most, ENOUGH * most)
    for whole in (2, 1):
        if cost(point.program, point.graph, tiles, symbols) <= most:
            return point
        sizes = _sizes(program, graph, tiles, symbols, whole)
        point = _shortened(Point(*resized(program, graph, sizes), symbols, False), tiles, most, ENOUGH * most)
    work = cost(point.program, point.graph, tiles, symbols)
    if work > HOPELESS * AFFORDABLE:
        raise Refused(
            f"a proof would take about {work * 3e-9:.0f} s even on the smallest extents with the same structure"
        )
    return point


def _shortened(point: Point, tiles: Sequence[Tiles], most: float, enough: float) -> Point:
    """A point as it is if it takes at most so many nanoseconds; else with so many positions of independent axes as are
    enough (at least one): the formulas of all are the same, see `search.parts`."""
    program, graph, symbols = point.program, point.graph, point.symbols
    work = cost(program, graph, tiles, symbols)
    if work <= most:
        return point
    sizes = {
        a.name: ex.value(a.extent, symbols) for p in (program, *(k.program for k in graph.kernels)) for a in p.axes
    }

    def cut(axis: str, count: int) -> float:
        return cost(*resized(program, graph, sizes | {axis: count}), tiles, symbols)

    axes = [a for a in independent_axes(program, graph) if sizes[a] > 1]
    for axis, least in sorted(((a, cut(a, 1)) for a in axes), key=lambda found: found[1]):
        for share in (0.95, 0.5, 0.0):
            if work <= enough or sizes[axis] == 1:
                break
            count = int(sizes[axis] * share * (enough - least) / max(work - least, 1.0))
            sizes[axis] = max(1, min(count, sizes[axis] - 1))
            work = cut(axis, sizes[axis])
    smaller = resized(program, graph, sizes)
    return replace(point, program=smaller[0], graph=smaller[1])


# --- shorter axes ---------------------------------------------------------------------------------------------------------
def _sizes(
    program: Program,
    graph: KernelGraph,
    tiles: Sequence[Tiles],
    symbols: Mapping[str, int],
    whole: int,
    faithful: bool = False,
) -> dict[str, int]:
    """The extent of every axis, with so many whole tiles; a `faithful` one has all positions where blocks hold them whole.

    Axes that walk a part of a stored run keep theirs, since its place would change, and so do those of dimensions that
    another read cuts up differently or takes one position of; axes that walk one dimension of a tensor in different reads have
    one extent.
    """
    programs = [program, *(k.program for k in graph.kernels)]
    extent = {a.name: ex.value(a.extent, symbols) for p in programs for a in p.axes}
    fixed: set[str | None] = {
        s.axis
        for p in programs
        for access in _reads_and_writes(p)
        for s in access
        if s.axis is not None and (s.offset or s.extent != p.extent(s.axis))
    }
    group = {a: frozenset([a]) for a in extent}
    for ways in accesses(program, graph).values():
        for other in ways[1:]:
            pairs, left = _alike(ways[0], other)
            fixed.update(s.axis for s in left)
            for s, t in pairs:
                if s.axis is None or t.axis is None:
                    fixed.update((s.axis, t.axis))
                else:
                    joined = group[s.axis] | group[t.axis]
                    group.update(dict.fromkeys(joined, joined))
    inner = {access[-1].axis for p in programs for access in _reads_and_writes(p) if access} if faithful else set()

    def kept(axes: frozenset[str]) -> tuple[int, int]:
        return ANY if faithful else WIDE, CHUNK if axes & inner else 1

    return {
        a: n if group[a] & fixed else _reduced(group[a], n, graph, tiles, whole, *kept(group[a]))
        for a, n in extent.items()
    }


def _reads_and_writes(p: Program) -> list[tuple[Slot, ...]]:
    """The accesses with which a program reads its inputs and writes its outputs."""
    ways = [i.access for i in p.inputs] + [o.access for o in p.outputs]
    return [tuple(s for s in access if s.extent != 1) for access in ways]


def _alike(one: Sequence[Slot], two: Sequence[Slot]) -> tuple[list[tuple[Slot, Slot]], list[Slot]]:
    """(pairs of slots that walk one dimension in two reads, those between that cut a run of dimensions up differently)."""
    shorter = min(len(one), len(two))
    first = next((k for k in range(shorter) if one[k].extent != two[k].extent), shorter)
    rest = shorter - first
    last = next((k for k in range(rest) if one[-1 - k].extent != two[-1 - k].extent), rest)
    pairs = [*zip(one[:first], two[:first], strict=True)]
    pairs += zip(one[len(one) - last :], two[len(two) - last :], strict=True)
    return pairs, [*one[first : len(one) - last], *two[first : len(two) - last]]


def _reduced(
    axes: frozenset[str], extent: int, graph: KernelGraph, tiles: Sequence[Tiles], whole: int, wide: int, unit: int
) -> int:
    """A shorter extent: `whole` tiles (2 or 1) and a part along a grid axis, an iteration more and a part along a loop, the
    part as long as in earnest or, where that is nothing, a whole tile: first, later and last ones differ as they do there."""
    wanted, steps = 2, {unit}
    for kernel, tile in zip(graph.kernels, tiles, strict=True):
        for axis in axes & {a.name for a in kernel.program.axes}:
            inner = tile.get("loop", extent) if kernel.block.loop == axis else 0
            step = tile.get(axis, 0) if axis in kernel.block.grid else 0
            blocks = step + 1 if whole == 1 else whole * step
            wanted = max(wanted, (whole + 1) * inner, blocks if step else 0, 0 if inner or step else wide)
            steps |= {inner or 1, step or 1}
    return min(extent, wanted + (extent - wanted) % math.lcm(*steps))
