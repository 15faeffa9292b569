"""Memory plan: byte offsets of shared tiles, so that tiles that are alive together do not overlap.

A tile's life is measured either in nodes or in *intervals* between barriers. Two tiles whose intervals are apart have a
barrier between the last use of one and the first of the other, so sharing memory asks for no further barrier. Lives in
nodes are shorter, so that less memory does, and barriers may have to be added (`order.barriers`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mirage_cli.codegen.tiles.access import shared_halves, synchronises
from mirage_cli.codegen.tiles.allocate import Allocation, Block, allocate, lower_bound
from mirage_cli.codegen.tiles.tile import RING, Barrier, TileProgram

ALIGNMENT = 128


def live_ranges(t: TileProgram, intervals: bool = False) -> dict[str, tuple[int, int]]:
    """The first and last time at which each shared buffer holds something: nodes numbered through the phases, or the
    intervals between barriers.

    What is touched in the body and also before or after it lives through all iterations.
    """
    ranges: dict[str, tuple[int, int]] = {}

    def touch(names: frozenset[str], at: int) -> None:
        for b in names:
            low, high = ranges.get(b, (at, at))
            ranges[b] = (min(low, at), max(high, at))

    at = 0 if intervals else -1
    starts = []
    for k, nodes in enumerate((t.prologue, t.body, t.epilogue)):
        # The loop has a barrier of its own at the start of each iteration, and one behind it.
        at += bool(intervals and k > 0 and t.graph.loop)
        starts.append(at if intervals else at + 1)
        for n in nodes:
            at += isinstance(n, Barrier) or not intervals
            before, behind = shared_halves(t, n)
            touch(before[0] | before[1], at)
            at += intervals and synchronises(n)
            touch(behind[0] | behind[1], at)
    body, last = starts[1], starts[2] - 1
    for b, (low, high) in ranges.items():
        if t.buffers[b].place == RING:
            ranges[b] = (0, max(high, last))
        elif t.body and low <= last and high >= body and (low < body or high > last):
            ranges[b] = (min(low, body), max(high, last))
    return ranges


def nbytes(t: TileProgram, name: str) -> int:
    """Bytes that a buffer takes, all stages of a ring included."""
    b = t.buffers[name]
    stages = t.schedule.stages if b.place == RING else 1
    return -(-b.elements * b.dtype.bytes // ALIGNMENT) * ALIGNMENT * stages


def blocks_of(t: TileProgram, ranges: dict[str, tuple[int, int]]) -> tuple[list[str], list[Block]]:
    """The buffers of live ranges, in order of their names, as blocks of memory."""
    names = sorted(ranges)
    return names, [Block(nbytes(t, b), *ranges[b]) for b in names]


def plan(
    t: TileProgram, intervals: bool = False, method: Callable[[Sequence[Block]], Allocation] = allocate
) -> TileProgram:
    """The program with offsets of its shared buffers and their total size."""
    names, blocks = blocks_of(t, live_ranges(t, intervals))
    allocation = method(blocks)
    return replace(t, offsets=dict(zip(names, allocation.offsets, strict=True)), shared_bytes=allocation.total)


def apart(t: TileProgram) -> TileProgram:
    """The program with memory of its own for each shared buffer."""
    offsets, at = {}, 0
    for name in sorted(live_ranges(t)):
        offsets[name] = at
        at += nbytes(t, name)
    return replace(t, offsets=offsets, shared_bytes=at)


def least_bytes(t: TileProgram, intervals: bool = False) -> int:
    """The most bytes that are alive at one time: no plan needs less."""
    return lower_bound(blocks_of(t, live_ranges(t, intervals))[1])
