"""Shapes of tiles: positions of each axis that a block holds, and those that can lie outside the tensor."""

from __future__ import annotations

import math

from mirage_cli.codegen.tiles.tile import Buffer
from mirage_cli.errors import Refused
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BODY, BlockGraph, BlockOp
from mirage_cli.search.schedules.products import along_rows
from mirage_cli.search.schedules.schedule import Schedule, padded_depths
from mirage_cli.search.schedules.target import Target


def fragment_shape(b: Buffer, warps: int) -> tuple[int, int, int, int]:
    """(M, N, warps along M, warps along N) of a fragment: as many warps as divide it, least operand traffic."""
    m, n = -(-b.n_rows // 16) * 16, -(-b.n_cols // 8) * 8
    best = (1, 1)
    for wm in range(1, warps + 1):
        wn = 1
        for w in range(1, warps // wm + 1):
            if (n // 8) % w == 0:
                wn = w
        if (m // 16) % wm == 0 and (wm * wn, -(m // wm + n // wn)) > (
            best[0] * best[1],
            -(m // best[0] + n // best[1]),
        ):
            best = (wm, wn)
    return m, n, *best


class Shapes:
    """Static sizes under a schedule.

    Matrix instructions of 16-bit types sum over multiples of 16 positions; a contracted group of axes that a block
    holds whole is padded up to that, and loads put zeros there.
    """

    def __init__(self, program: Program, graph: BlockGraph, schedule: Schedule, target: Target) -> None:
        self.p, self.g, self.s, self.t = program, graph, schedule, target
        for a in graph.split:
            portion = schedule.tile(a) or 1
            if not isinstance(program.extent(a), int) and not (a == graph.loop and schedule.parts):
                raise Refused(f"axis {a} of symbolic extent is split over blocks that reduce together")
            if a == graph.loop and portion % schedule.loop:
                raise Refused(f"a block's share of axis {a} is {portion} positions, no multiple of {schedule.loop}")
        self.padded = padded_depths(graph, self._extent, schedule.loop) if target.threaded else {}

    def check_batch(self, contraction: BlockOp, both: frozenset[str]) -> None:
        """Raise Refused where a tile holds several positions of an axis that `both` operands have and nothing sums."""
        wide = [a for a in sorted(both - frozenset(contraction.over)) if self.size(a, contraction.phase) > 1]
        if wide:
            name = contraction.name
            raise Refused(
                f"axis {wide[0]} is a batch of the contraction {name} and has to be split to single positions"
            )

    def size(self, axis: str, phase: str) -> int:
        """Positions of an axis that a tile of this phase holds. Raises Refused for a symbolic axis held whole."""
        if axis == self.g.loop and phase == BODY:
            return self.s.loop
        tile = self.s.tile(axis)
        if tile is not None:
            return tile
        extent = self.p.extent(axis)
        if not isinstance(extent, int):
            raise Refused(f"a block would have to hold axis {axis} of symbolic extent {extent} whole")
        if axis == self.g.loop and self.t.threaded:
            return -(-extent // self.s.loop) * self.s.loop  # the body reads whole iterations of it
        return self.padded.get(axis, extent)

    def exact(self, axis: str, phase: str) -> bool:
        """True if every position of every tile lies within the axis."""
        extent = self.p.extent(axis)
        if not isinstance(extent, int) or extent % self.size(axis, phase):
            return False
        return axis not in self.g.split or extent % (self.s.tile(axis) or 1) == 0

    def several_blocks(self, but: frozenset[str]) -> tuple[str, ...]:
        """The grid axes, `but` some, along which there may be more than one block."""
        tiles = ((a, self.s.tile(a) or 1, self.p.extent(a)) for a in self.g.grid if a not in but)
        return tuple(a for a, tile, extent in tiles if not isinstance(extent, int) or extent > tile)

    def _extent(self, axis: str) -> int:
        tile = self.s.tile(axis)
        if tile is not None:
            return tile
        extent = self.p.extent(axis)
        if not isinstance(extent, int):
            raise Refused(f"a block would have to hold axis {axis} of symbolic extent {extent} whole")
        return extent

    def sides(self, o: BlockOp) -> tuple[str, str]:
        """Of a contraction's operands, the one whose free axes become rows, and the one whose become columns: the innermost
        stored ones; on a CPU those that are summed later, as sums run along rows."""
        axes = self.g.axes_of(self.p)

        def weight(v: str) -> tuple[bool, bool, bool, int]:
            last, loop, later = along_rows(self.p, self.g, o, axes[v])
            size = math.prod(self.size(a, o.phase) for a in axes[v] - frozenset(o.over))
            return last, loop, later and not self.t.threaded, size

        x, y = o.inputs
        return (x, y) if weight(y) >= weight(x) else (y, x)
