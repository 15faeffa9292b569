"""What a strip kernel costs, fitted to measurements of 532 kernels and of 59 attention kernels with few queries on one H200:
for the latter the logarithm of prediction over measurement has a root mean square of 0.15, and what the model chooses among
them is 1.04 times slower than the best (geometric mean)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from mirage_cli.errors import Refused
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.schedules.cost import SMALL, Prediction, Ranked, bytes_once, floor_us
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.strip import Shape, resident, roles, schedules
from mirage_cli.search.schedules.strip_warps import multiply_together
from mirage_cli.search.schedules.target import Target

LAUNCH = 1.27  #: microseconds from launch to launch, with nothing in between
WAVE = 3.28  #: of every further wave of blocks
CLUSTER = {2: 0.77, 4: 0.83, 8: 0.87}  #: of blocks that wait for one another, by their number
MERGE = 1.1e-5  #: of a byte that groups merge
LATENCY = 0.15  #: of an iteration
CHAINED = 0.143  #: of an iteration with a product of a product
SHARE = 0.1  #: of an iteration whose warps share columns: they meet twice
MULTIPLY = 0.0038  #: of a matrix instruction in an iteration of one warp
ELEMENT = 0.001  #: of an elementwise operation in an iteration of one warp
ISSUE_MULTIPLY = 0.002  #: of a matrix instruction on its part of a multiprocessor
ISSUE_ELEMENT = 0.0015  #: of an elementwise operation there
STREAM = 1.1  #: of the target's bandwidth that plain copies reach
SHALLOW = 0.3  #: how much longer memory takes over the squared number of stages: a group waits for each of few copies
IN_FLIGHT = 46 * 1024  #: bytes that every multiprocessor has to have on their way for that
MOST_IN_FLIGHT = 208 * 1024  #: bytes of one multiprocessor beyond which more bring nothing
SHARPNESS = 5.0  #: of the bend where the bandwidth is reached
PIECE = 0.0011  #: of a piece of a memory line that a multiprocessor copies
CACHE_FACTOR = 2.48  #: bandwidth of the second-level cache over that of memory
COPIED = 6.1e4  #: bytes in a microsecond that one multiprocessor copies at most
TOGETHER = 6.0  #: exponent with which what bounds a kernel adds up: the largest counts, equal ones count for more
OPERANDS = 1.9e5  #: bytes in a microsecond that many warps of a multiprocessor read of shared memory as operands
CLOCKS = 1200.0  #: of a multiprocessor's matrix units in a microsecond, where four warps multiply together
HALF_OPERANDS = 5.6  #: warps that reach half of that
PARTS = 4  #: parts of a multiprocessor that issue instructions
#: clusters of 2, 4 and 8 blocks that fit the multiprocessors of one H200 at a time, one block on each
CLUSTERS_THAT_FIT = {2: 66 / 132, 4: 30 / 132, 8: 15 / 132}


def predicted_us(shape: Shape, target: Target, once: float) -> float:
    """Microseconds of a kernel that reads and writes `once` bytes in all."""
    s, units = shape.s, target.units
    held = resident(target, shape.shared, 32 * s.warps, shape.registers())
    if shape.cluster > 1:  # the multiprocessors that clusters can have: some may get one more than others
        units = int(CLUSTERS_THAT_FIT.get(shape.cluster, 0.1) * units) * shape.cluster
    waves = math.ceil(shape.blocks / max(1, units * held))
    busiest = math.ceil(shape.blocks / max(1, units))
    together = min(held, busiest)
    used = min(units, shape.blocks)
    multiplies, elementwise = shape.multiplies(), shape.elementwise()
    issue = ISSUE_MULTIPLY * multiplies + ISSUE_ELEMENT * elementwise
    turn = LATENCY + CHAINED * shape.r.chained + SHARE * (shape.across > 1)
    turn += MULTIPLY * multiplies + ELEMENT * elementwise
    if multiply_together(s, target.name):
        turn = LATENCY + CHAINED + SHARE + shape.clocks() / CLOCKS + ISSUE_ELEMENT * elementwise * s.warps / PARTS
        loop = shape.turns * turn * together
    else:
        read = shape.operand_bytes() * (together * s.warps + HALF_OPERANDS) / OPERANDS if shape.across > 1 else 0.0
        loop = shape.turns * max(turn, issue * max(1.0, together * s.warps / PARTS), read)
    ahead = together * shape.groups * (s.stages - 1) * shape.stage
    x = used * min(ahead, MOST_IN_FLIGHT) / (target.units * IN_FLIGHT)
    reached = (
        min(1.0, 1.02 * x / (1 + x**SHARPNESS) ** (1 / SHARPNESS)) if shape.stage else 1.0
    )  # nothing is on its way
    memory = once * (shape.moved / max(1, shape.stage)) / (target.bandwidth * STREAM * reached) * 1e6
    memory *= 1 + SHALLOW / s.stages**2
    turns = shape.groups * shape.turns
    copies = busiest * turns * max(PIECE * shape.lines, shape.stage / COPIED)
    cache = shape.blocks * turns * shape.stage / (target.bandwidth * CACHE_FACTOR * used / target.units) * 1e6
    fixed = LAUNCH + WAVE * (waves - 1) + CLUSTER.get(shape.cluster, 0.0)
    bounds = (loop * waves, memory, cache, copies)
    slowest: float = math.fsum(b**TOGETHER for b in bounds) ** (1 / TOGETHER)
    return fixed + slowest + MERGE * shape.merge * waves


def schedule_us(
    program: Program, graph: BlockGraph, schedule: Schedule, target: Target, sizes: Mapping[str, int]
) -> float:
    """Microseconds of a schedule of the engine."""
    shape = Shape(program, graph, schedule, roles(program, graph), sizes)
    return predicted_us(shape, target, bytes_once(program, sizes))


def ranked(
    program: Program,
    graph: BlockGraph,
    target: Target,
    count: int,
    sizes: Mapping[str, int] = MappingProxyType({}),
    alone: bool = False,
) -> list[Ranked]:
    """The `count` best schedules of a block graph for the engine `strip`; none where it does not suit it."""
    if target.kind != "cuda":
        return []
    try:
        r = roles(program, graph)
        found = list(schedules(program, graph, target, r))
    except Refused:
        return []
    floor, once = floor_us(program, target, sizes), bytes_once(program, sizes)
    small = dict.fromkeys(program.symbols, SMALL)
    once_small = bytes_once(program, small)
    options = []
    for s in found:
        shape = Shape(program, graph, s, r, sizes)
        us = score = predicted_us(shape, target, once)
        if program.symbols and not alone:
            score = math.sqrt(us * predicted_us(Shape(program, graph, s, r, small), target, once_small))
        moved = float(shape.blocks * shape.groups * shape.turns * shape.stage)
        options.append(Ranked(s, Prediction(us, shape.shared, floor, moved), score))
    return sorted(options, key=lambda o: o.order)[:count]
