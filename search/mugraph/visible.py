"""How much of a loop a mask shows to blocks (`search/mugraph/hidden.py`)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax.domains.limits import Form
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.hidden import held_limits, limits, masked_sums
from mirage_cli.search.mugraph.mugraph import BlockGraph

Counts: TypeAlias = NDArray[np.int64]
FEW = 1 << 8  #: blocks along an axis of a mask, of which more are counted in evenly spaced ones


def hiding(program: Program, graph: BlockGraph, tiles: Mapping[str, int], step: int) -> tuple[Form, ...]:
    """Those limits of a block graph by which blocks may leave iterations of `step` positions out: all where extents are
    symbols, else those that hide a whole iteration from some block."""
    loop = graph.loop
    return tuple(f for f in limits(program, graph) if loop is not None and _hides(program, loop, tiles, step, f))


def left_out(program: Program, graph: BlockGraph, tiles: Mapping[str, int], step: int) -> tuple[Form, ...]:
    """The same, and limits by integers that are inputs, which are known when a kernel runs: predictions count what these
    hide as shown."""
    given = held_limits(program, graph, tiles) if graph.loop is not None and _is_long(program, graph.loop, step) else ()
    return (*hiding(program, graph, tiles, step), *given)


def expected(
    program: Program, forms: Sequence[Form], loop: str, tiles: Mapping[str, int], extents: Mapping[str, int]
) -> tuple[Form, ...]:
    """Limits that predictions count with. Integers that are inputs, where blocks with these tiles hold one each, are taken to
    be such that the last positions of all axes are just shown to one another: those of a cache that is full behind its new
    rows. Limits that hide nothing are left out."""
    last = {a: n - 1 for a, n in extents.items()}
    single = {a for a, n in tiles.items() if n == 1}
    held = [f for f in forms if abs(f.of(loop)) == 1 and all(program.axes_of(v) <= single for v, _ in f.given)]
    numbers = dict[str, int]()
    for f in held:
        if len(f.given) == 1 and f.of(loop) == -1:
            ((v, n),) = f.given
            numbers.setdefault(v, -(f.constant + sum(k * last[a] for a, k in f.terms)) // n)
    known = (f for f in held if all(v in numbers for v, _ in f.given))
    found = (Form(f.terms, f.constant + sum(n * numbers[v] for v, n in f.given)) for f in known)
    return tuple(f for f in found if f.constant + sum(min(0, k * last[a]) for a, k in f.terms) < 0)


def seen(program: Program, extents: Mapping[str, int]) -> dict[str, tuple[float, float]]:
    """For axes that products sum over the share of their positions that masks show: to a row, in the mean; and to any."""
    found, rows = dict[str, tuple[float, float]](), dict.fromkeys(extents, 1)
    for axis, hiding in masked_sums(program).items():
        alone = rows | {axis: extents[axis]}
        forms = expected(program, sorted(hiding, key=str), axis, rows, extents)
        shares = (walked(forms, axis, 1, extents, tiles)[0] / extents[axis] for tiles in (alone, {axis: extents[axis]}))
        mean, any_ = shares
        found[axis] = (mean, any_)
    return found


def _is_long(program: Program, loop: str, step: int) -> bool:
    extent = program.extent(loop)
    return not isinstance(extent, int) or extent > step


def _hides(program: Program, loop: str, tiles: Mapping[str, int], step: int, form: Form) -> bool:
    extents = {a.name: a.extent for a in program.axes}
    own = {a: e for a, e in extents.items() if isinstance(e, int)}
    if any(a not in own for a, _ in form.terms):
        return True
    if own[loop] <= step:
        return False
    least = form.constant  # of the largest value in a block, over all blocks
    for axis, factor in form.terms:
        if axis != loop:
            tile = min(tiles.get(axis, own[axis]), own[axis])
            last = (own[axis] - 1) // tile * tile
            least += factor * (tile - 1 if factor > 0 else last)
    if form.of(loop) < 0:  # shown are positions up to `least`
        return least // step < (own[loop] - 1) // step
    return -least >= step


def walked(
    forms: Sequence[Form], loop: str, step: int, extents: Mapping[str, int], tiles: Mapping[str, int]
) -> tuple[float, int]:
    """Iterations of `step` positions that a block walks, in the mean of all blocks and at most; `tiles` says how many
    positions of an axis a block holds, where that is not all of them."""
    axes = sorted({a for f in forms for a, _ in f.terms} | {loop})
    sizes = tuple((a, extents[a], tiles[a]) if a in tiles else (a, extents[a]) for a in axes)
    return _walked(tuple(forms), loop, step, sizes)


@functools.lru_cache(maxsize=1 << 12)
def _walked(forms: tuple[Form, ...], loop: str, step: int, sizes: tuple[tuple[Any, ...], ...]) -> tuple[float, int]:
    """The same, of axes with their extents and tiles."""
    extents, tiles = {s[0]: s[1] for s in sizes}, {s[0]: s[2] for s in sizes if len(s) > 2}
    whole = math.ceil(tiles.get(loop, extents[loop]) / step)
    if not forms:
        return whole, whole
    axes = sorted({a for f in forms for a, _ in f.terms if a in tiles} | {loop})
    size = {a: min(tiles.get(a, extents[a]), extents[a]) for a in {a for f in forms for a, _ in f.terms} | {loop}}
    first = dict(zip(axes, np.meshgrid(*(_firsts(extents[a], size[a]) for a in axes), indexing="ij"), strict=True))
    start, end, begin = first[loop], np.full_like(first[loop], whole), np.zeros_like(first[loop])
    for f in forms:
        most = np.full_like(start, f.constant)
        for axis, factor in f.terms:
            if axis != loop:
                most = most + factor * first.get(axis, 0) + max(0, factor * (size[axis] - 1))
        if f.of(loop) < 0:
            end = np.minimum(end, (most - start) // step + 1)
        else:
            begin = np.maximum(begin, (-most - start) // step)
    counts = np.maximum(end - begin, 0)
    return float(counts.mean()), int(counts.max())


def shown(forms: Sequence[Form], loop: str, step: int, extents: Mapping[str, int], tiles: Mapping[str, int]) -> float:
    """The share of the loop's positions that some block is shown: all where blocks have different rows."""
    whole = dict(tiles) | {loop: extents[loop]}
    if not forms or any(whole.get(a, extents[a]) < extents[a] for f in forms for a, _ in f.terms):
        return 1.0
    return walked(forms, loop, step, extents, whole)[0] / math.ceil(extents[loop] / step)


def _firsts(extent: int, size: int) -> Counts:
    blocks = math.ceil(extent / size)
    return np.unique(np.linspace(0, blocks - 1, min(blocks, FEW)).astype(np.int64)) * size
