"""Layouts: which axes of a shared tile are contiguous, and how far apart its rows are; the cheapest by `traffic.py`.

What is free, tile by tile (`choices`):
1. An operand of contractions is two groups of axes, summed ones and free ones, since matrix instructions (and the plain
   loop) walk either with one stride. Either group may be the contiguous one, where every contraction that reads the tile
   separates the same groups. The order within a group is not free: both operands of a contraction sum in one order. Operands
   of 32 bits keep their groups: the model would turn computed ones, and turned ones are slower (docs/codegen.md).
2. Of any other tile, each axis may be the contiguous one.
3. The pitch: what the columns need, or up to three chunks of 16 bytes more.
What blocks exchange, scratch memory and tiles of one row stay as they are. So do all tiles on the CPU, where rows follow
what is stored and contractions turn blocks of operands themselves.

The cost is a sum of terms over one or two tiles each. It is minimised exactly by eliminating one tile after the other: the
terms that name it are replaced by a table of their least sum, for each choice of the other tiles that they name. Only when
a table would have more than `TABLE` rows, tiles are improved one at a time instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from mirage_cli.codegen.tiles.access import accesses
from mirage_cli.codegen.tiles.tile import (
    RING,
    SHARED,
    Buffer,
    Contract,
    Exchange,
    GridSum,
    GridTop,
    Reduce,
    TileProgram,
)
from mirage_cli.codegen.tiles.traffic import terms

CHUNK = 16  #: bytes of the widest access
HALF = 2  #: bytes of the numbers that matrix instructions take
PADDING = (0, 1, 2, 3)  #: chunks that a pitch may be longer
TABLE = 4096  #: rows of the largest table of the exact method

Choice: TypeAlias = tuple[int, ...]  #: for each tile of a factor the number of its layout


@dataclass(frozen=True, slots=True)
class Factor:
    """A part of the cost: a number for each choice of the layouts of some tiles."""

    scope: tuple[str, ...]
    costs: dict[Choice, int]


def layouts(t: TileProgram) -> TileProgram:
    """The program with the cheapest layouts of its shared tiles (nothing changes on targets without shared memory)."""
    if not t.target.threaded:
        return t
    options = {name: several for name in t.buffers if len(several := choices(t, name)) > 1}
    best = minimise(factors(t, options), {name: len(several) for name, several in options.items()})
    changed = {name: options[name][k] for name, k in best.items()}
    return replace(t, buffers=t.buffers | changed)


# --- what is free -----------------------------------------------------------------------------------------------------------
def choices(t: TileProgram, name: str) -> list[Buffer]:
    """The layouts that a buffer may have, the present one first."""
    b = t.buffers[name]
    if b.place not in (SHARED, RING) or not b.rows or not b.cols or name in _fixed(t):
        return [b]
    nodes = [n for n in (*t.prologue, *t.body, *t.epilogue) if isinstance(n, Contract) and name in (n.a, n.b)]
    if nodes:
        summed = [{a for a, _ in n.over} for n in nodes]
        turned = replace(b, rows=b.cols, cols=b.rows).whole_matrices()
        free = b.dtype.bytes == HALF and all(_separate(b, s) for s in summed)
        shapes = [b, turned] if free else [b]
    else:
        shapes = [b]
        for axis in reversed(b.axes[:-1]):
            rest = tuple(x for x in b.axes if x != axis)
            shapes.append(replace(b, rows=rest, cols=(axis,), pitch=axis[1]))
    step = max(1, CHUNK // b.dtype.bytes)
    return [replace(s, pitch=s.pitch + step * k) for s in shapes for k in PADDING]


def _fixed(t: TileProgram) -> set[str]:
    """Buffers whose places other blocks or the kernel's own functions know."""
    names: set[str] = set()
    for n in (*t.prologue, *t.body, *t.epilogue):
        if isinstance(n, Reduce):
            names.add(n.scratch)
        elif isinstance(n, GridTop | GridSum):
            names |= set().union(*accesses(n)) | {n.source} | ({n.own} if isinstance(n, GridSum) else set())
        elif isinstance(n, Exchange):
            names |= set(n.buffers)
    return names


def _separate(b: Buffer, summed: set[str]) -> bool:
    """True if one of the two groups of axes is summed, and the other one is not."""
    rows, cols = ({a for a, _ in g} for g in (b.rows, b.cols))
    return (rows <= summed and not cols & summed) or (cols <= summed and not rows & summed)


# --- the cheapest -----------------------------------------------------------------------------------------------------------
def factors(t: TileProgram, options: Mapping[str, Sequence[Buffer]]) -> list[Factor]:
    """The cost of the program's layouts, as far as it depends on those that are free."""
    parts = []
    for term in terms(t):
        scope = tuple(dict.fromkeys(b for b in term.scope if b in options))
        if not scope:
            continue
        costs: dict[Choice, int] = {}
        for choice in itertools.product(*(range(len(options[b])) for b in scope)):
            taken = dict(zip(scope, choice, strict=True))
            costs[choice] = term.cost([options[b][taken[b]] if b in taken else t.buffers[b] for b in term.scope])
        parts.append(Factor(scope, costs))
    return parts


def minimise(parts: Sequence[Factor], sizes: Mapping[str, int]) -> dict[str, int]:
    """For each tile the number of its layout, of `sizes` many, so that the sum of all parts is least (the first ones among
    equals)."""
    left, rows = list(parts), 0
    steps: list[tuple[str, tuple[str, ...], dict[Choice, int]]] = []
    for _ in sizes:
        name, scope = min(
            ((b, _neighbours(left, b)) for b in sizes if b not in {s[0] for s in steps}),
            key=lambda x: (math.prod(sizes[b] for b in x[1]), x[0]),
        )
        rows = max(rows, math.prod(sizes[b] for b in (*scope, name)))
        if rows > TABLE:
            return _one_at_a_time(parts, sizes)
        mine = [f for f in left if name in f.scope]
        best: dict[Choice, int] = {}
        costs: dict[Choice, int] = {}
        for choice in itertools.product(*(range(sizes[b]) for b in scope)):
            taken = dict(zip(scope, choice, strict=True))
            sums = [sum(_cost(f, taken | {name: k}) for f in mine) for k in range(sizes[name])]
            costs[choice] = min(sums)
            best[choice] = sums.index(costs[choice])
        left = [f for f in left if name not in f.scope] + [Factor(scope, costs)]
        steps.append((name, scope, best))
    choices: dict[str, int] = {}
    for name, scope, best in reversed(steps):
        choices[name] = best[tuple(choices[b] for b in scope)]
    return choices


def _neighbours(parts: Sequence[Factor], name: str) -> tuple[str, ...]:
    return tuple(sorted({b for f in parts if name in f.scope for b in f.scope} - {name}))


def _cost(f: Factor, taken: Mapping[str, int]) -> int:
    return f.costs[tuple(taken[b] for b in f.scope)]


def _one_at_a_time(parts: Sequence[Factor], sizes: Mapping[str, int]) -> dict[str, int]:
    """From the present layouts on, the best one for each tile while the others stay, until nothing changes."""
    choices = dict.fromkeys(sizes, 0)
    while True:
        before = dict(choices)
        for name, size in sizes.items():
            mine = [f for f in parts if name in f.scope]
            costs = [sum(_cost(f, choices | {name: k}) for f in mine) for k in range(size)]
            if min(costs) < costs[choices[name]]:
                choices[name] = costs.index(min(costs))
        if choices == before:
            return choices
