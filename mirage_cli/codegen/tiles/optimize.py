"""The passes over a tile program, one after the other: layouts, order, memory plan, barriers.

Layouts are chosen first; a kernel that does not fit its target with them gets plain ones. The order comes with the
barriers that it needs, and the memory plan first tries to add none (`memory.plan` over intervals). Where that takes so much
memory that the kernel does not fit, or that fewer blocks fit a multiprocessor, lives are measured in nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from mirage_cli.codegen.requests.passes import ALL, Passes
from mirage_cli.codegen.tiles.layouts import layouts
from mirage_cli.codegen.tiles.lower import lower
from mirage_cli.codegen.tiles.memory import apart, plan
from mirage_cli.codegen.tiles.order import barrier_counts, barriers, loads_first, ordered
from mirage_cli.codegen.tiles.tile import TileProgram
from mirage_cli.errors import Refused
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target

ARRIVAL_BYTES = 16  #: shared memory of `last_to_arrive` beside the tiles
MOST_RESIDENT = 8  #: blocks of a multiprocessor beyond which more of them gain nothing


def tile_program(
    program: Program, block: BlockGraph, schedule: Schedule, target: Target, passes: Passes = ALL
) -> TileProgram:
    """The finished tile program of one kernel. Raises Refused when it does not fit the target."""
    tile = optimized(lower(program, block, schedule, target, passes.fusion), passes)
    if not fits(tile):
        raise Refused(f"{needed_bytes(tile)} bytes of shared memory, {target.name} has {target.shared_bytes}")
    return tile


def optimized(t: TileProgram, passes: Passes = ALL) -> TileProgram:
    """The finished program: layouts, order, offsets and barriers. It may be too large for its target."""
    plain = loads_first(t)
    best = _arranged(layouts(plain) if passes.layouts else plain, passes)
    return best if fits(best) or not passes.layouts else _arranged(plain, passes)


def _arranged(t: TileProgram, passes: Passes) -> TileProgram:
    return min(_candidates(t, passes), key=price)


def _candidates(t: TileProgram, passes: Passes) -> Iterator[TileProgram]:
    """The given order and the best one, with every memory plan; all are right."""
    for order in [t, ordered(t)] if passes.order else [t]:
        if not passes.memory:
            yield _synchronised(apart(order))
            continue
        if t.target.threaded:
            yield _synchronised(plan(barriers(order), intervals=True))
        yield _synchronised(plan(order))


def _synchronised(t: TileProgram) -> TileProgram:
    return barriers(t) if t.target.threaded else t


def price(t: TileProgram) -> tuple[int, ...]:
    """The key that is least for the best program: misfit, (negative) blocks that fit a multiprocessor, barriers of an
    iteration, other barriers, bytes."""
    return (not fits(t), -resident(t), *barrier_counts(t), t.shared_bytes)


def needed_bytes(t: TileProgram) -> int:
    """Shared memory that a kernel asks for."""
    return t.shared_bytes + (ARRIVAL_BYTES if t.graph.split else 0)


def fits(t: TileProgram) -> bool:
    """True if the target has the shared memory that a kernel asks for."""
    return needed_bytes(t) <= t.target.shared_bytes


def resident(t: TileProgram) -> int:
    """Number of blocks that a multiprocessor holds at a time, as far as memory and threads go; 1 on the CPU."""
    if not t.target.threaded:
        return 1
    threads = t.target.threads // (32 * t.schedule.warps)
    return min(t.target.shared_total // max(needed_bytes(t), 1), threads, MOST_RESIDENT)
