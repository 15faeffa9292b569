"""Schedules of the engine `rows`: how threads share the rows of a block graph without contractions.

Numbers of a schedule: `lanes` threads share a row, each has `slots` chunks of `width` neighbours; `cluster` blocks share it
where one is not enough; a block takes `turns` rows one after the other, with what they share read once; `ahead` asks for
what is read before the kernel in front of this one has ended.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.ops import OPS
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.mugraph.row_values import LEAVES, REDUCTIONS, Rows, rows_of, widths
from mirage_cli.search.mugraph.subtracted_sums import wide_row_sums
from mirage_cli.search.schedules.cost import bytes_once, floor_us, number
from mirage_cli.search.schedules.fitted import Rows as RowConstants
from mirage_cli.search.schedules.model import Model
from mirage_cli.search.schedules.schedule import Prediction, Schedule
from mirage_cli.search.schedules.target import Target

ENGINE = "rows"
THREADS = (64, 128, 256, 512, 1024)
LANES_ACROSS = (1, 2, 4, 8, 16, 32)
TURNS = (1, 2, 4, 8)
SLOTS = (1, 2, 4, 8)  #: chunks of a thread where nothing is reduced
CLUSTERS = (2, 4, 8)
SPARE = 32  #: registers of a thread for addresses and the like
SCRATCH = 12288  #: floats that a block's threads may exchange
SCHEDULERS = 4  #: instructions of warps that it issues at a time


@dataclass(frozen=True, slots=True)
class Shape:
    """The division of rows among threads; see `codegen/rows/engine.py`."""

    threads: int
    lanes: int
    slots: int
    width: int
    cluster: int = 1
    ahead: int = 0
    turns: int = 1

    def units(self, rows: Rows) -> int:
        """Rows (chunks of rows where these are neighbours in memory) of a block or a cluster."""
        return self.threads * self.slots if not rows.row else self.threads // self.lanes * self.turns

    def numbers(self) -> tuple[tuple[str, int], ...]:
        """The numbers of a schedule that stand for the shape."""
        return (
            ("lanes", self.lanes),
            ("slots", self.slots),
            ("width", self.width),
            ("cluster", self.cluster),
            ("ahead", self.ahead),
            ("turns", self.turns),
        )

    def text(self) -> str:
        """One readable line."""
        return f"threads {self.threads}, " + ", ".join(f"{name} {n}" for name, n in self.numbers())


def shape_of(schedule: Schedule) -> Shape:
    """The shape that a schedule stands for."""
    numbers = dict(schedule.numbers)
    return Shape(
        schedule.warps * 32, **{n: numbers[n] for n in ("lanes", "slots", "width", "cluster", "ahead", "turns")}
    )


def schedule_of(program: Program, graph: BlockGraph, shape: Shape, sizes: Mapping[str, int]) -> Schedule:
    """The schedule that stands for a shape: blocks of one row, which they hold whole."""
    loop = number(program.extent(graph.loop), sizes) if graph.loop is not None else 0
    return Schedule(tuple((a, 1) for a in graph.grid), loop, shape.threads // 32, 1, ENGINE, shape.numbers())


def check(rows: Rows, shape: Shape, target: Target) -> None:
    """Raises Refused where threads of a target cannot hold rows in this shape."""
    if shape.width not in widths(rows):
        raise Refused(f"chunks of {shape.width} elements: memory gives {widths(rows)}")
    if rows.row and held(rows, shape) < rows.length():
        raise Refused(f"threads hold {held(rows, shape)} of a row's {rows.length()} positions")
    if shape.cluster > 1 and not (
        rows.along and rows.levels and shape.lanes == shape.threads and target.features.clusters
    ):
        raise Refused("blocks share rows that lie along memory, one at a time, on targets with clusters")
    if shape.turns > 1 and (shape.cluster > 1 or not rows.row):
        raise Refused("rows that clusters share, and chunks of no row, take no turns")
    if registers(rows, shape) > available(shape, target):
        raise Refused(f"about {registers(rows, shape)} registers for each thread")
    if exchanged(rows, shape) * min(shape.turns, 2) > SCRATCH:
        raise Refused(f"{exchanged(rows, shape)} numbers that threads exchange")


def held(rows: Rows, shape: Shape) -> int:
    """Positions of a row that its threads have room for."""
    return shape.lanes * shape.cluster * shape.slots * (shape.width if rows.along else 1)


def available(shape: Shape, target: Target) -> int:
    """Registers of a thread."""
    return min(255, target.registers // max(shape.threads, 128))


def registers(rows: Rows, shape: Shape) -> int:
    """About how many registers a thread needs: what it loads, what it keeps, a chunk of everything on the way; or what threads
    that lie apart show one another, which each of them reads at once."""
    total, slotted = SPARE, frozenset(rows.row or rows.kept)
    inputs = {i.name: rows.program.sources[i.source].dtype.bytes for i in rows.program.inputs}
    for v in rows.values.values():
        many = (shape.slots if v.axes & slotted else 1) * (shape.width if rows.vector in v.axes else 1)
        if v.op == "load":
            total += -(-many * inputs[v.read] // 4)
        elif v.op not in LEAVES and (rows.later(v.name) or not v.axes & slotted):
            total += many
    return max(total + 2 * shape.width, SPARE + shown(rows, shape))


def shown(rows: Rows, shape: Shape) -> int:
    """Floats that a thread reads in the largest reduction over threads that lie apart."""
    if rows.along or shape.lanes == 1:
        return 0
    doubles = wide_row_sums(rows)
    reductions = [v for v in rows.values.values() if v.op in REDUCTIONS]
    words = [(2 if v.name in doubles else 1) * (shape.width if rows.vector in v.axes else 1) for v in reductions]
    return shape.lanes * max(words, default=0)


def exchanged(rows: Rows, shape: Shape) -> int:
    """Floats that the threads of a block exchange in all reductions."""
    total, doubles = 0, wide_row_sums(rows)
    for v in rows.values.values():
        words = 2 if v.name in doubles else 1
        if v.op in REDUCTIONS and rows.along and shape.lanes > 32:
            total += words * shape.threads // 32 * shape.cluster
        elif v.op in REDUCTIONS and not rows.along and shape.lanes > 1:
            total += words * shape.threads * (shape.width if rows.vector in v.axes else 1)
    return total


# --- candidates -----------------------------------------------------------------------------------------------------------
def shapes(rows: Rows, target: Target) -> Iterator[Shape]:
    """Shapes that are worth a prediction."""
    for width in widths(rows)[:2]:
        for shape in _shapes(rows, width, target):
            try:
                check(rows, shape, target)
            except Refused:
                continue
            yield shape


def _shapes(rows: Rows, width: int, target: Target) -> Iterator[Shape]:
    ahead = int(target.features.dependent_launch)
    if not rows.row:
        yield from (Shape(t, 1, s, width, 1, ahead) for t in THREADS[:3] for s in SLOTS)
        return
    length = rows.length()
    if not rows.along:
        for threads in THREADS:
            for lanes in LANES_ACROSS:
                if lanes <= min(length, threads // 32):
                    yield Shape(threads, lanes, -(-length // lanes), width, 1, ahead)
        return
    chunks = -(-length // width)
    for lanes in (1, 2, 4, 8, 16, 32, *THREADS):
        if lanes < 2 * chunks:
            for threads in (t for t in THREADS if t == lanes or (t > lanes and t <= 256)):
                for turns in TURNS if shared(rows) and not threads > max(lanes, 128) else (1,):
                    yield Shape(threads, lanes, -(-chunks // lanes), width, 1, ahead, turns)

    if target.features.clusters:
        for threads in THREADS[1:]:
            for cluster in (c for c in CLUSTERS if threads * c < 2 * chunks):
                yield Shape(threads, threads, -(-chunks // (threads * cluster)), width, cluster, ahead)


def shared(rows: Rows) -> bool:
    """True if all rows read something together, such as a gain."""
    kept = frozenset(rows.kept)
    return bool(kept) and any(v.op == "load" and v.axes and not v.axes & kept for v in rows.values.values())


# --- predictions ----------------------------------------------------------------------------------------------------------
def predicted_us(
    program: Program, rows: Rows, shape: Shape, target: Target, sizes: Mapping[str, int] = MappingProxyType({})
) -> float:
    """Microseconds of a kernel: a fixed part, reductions one after the other, and memory and instructions, which overlap.

    Fitted to an H200: 1.1 to 50 us within a factor of 1.25 for the shapes that win."""
    c, units = target.fitted(RowConstants), number(ex.product(program.extent(a) for a in rows.kept), sizes)
    if rows.vector in rows.kept:
        units = -(-units // shape.width)
    blocks = -(-units // shape.units(rows)) * shape.cluster
    busy = min(1.0, blocks / target.units)
    moved = max(bytes_once(program, sizes), carried(rows, shape, sizes) / c.cache_factor)
    memory = moved / (target.bandwidth * c.full * math.sqrt(busy)) * 1e6
    warps = shape.threads // 32
    resident = max(1, min(-(-blocks // target.units), target.registers // (shape.threads * registers(rows, shape))))
    reached = min(1.0, c.alone + (1 - c.alone) * warps * resident / c.enough_warps)
    rate = c.clock * SCHEDULERS * target.units * busy * reached
    elements = number(ex.product(a.extent for a in program.axes), sizes)
    across = shape.lanes * shape.cluster // 32 if rows.along else shape.lanes
    work = (
        (
            elements * price(rows, shape.width, c.access) / 32
            + blocks * shape.turns * warps * rows.levels * (c.meet + 2 * min(across, 32))
        )
        / rate
        * 1e6
    )
    meet_us = c.meet_cluster_us if shape.cluster > 1 else c.meet_block_us if across > 1 else c.meet_warp_us
    start = target.launch_us
    if target.features.dependent_launch:
        start = c.ahead_us if shape.ahead else c.start_us
    start += (shape.turns - 1) * c.turn_us
    waits = 0.0 if rows.along or not rows.row else (shape.slots - 1) * c.slot_us
    started = 0.0 if rows.row else blocks * c.block_us  # those that reduce live longer
    return start + rows.levels * meet_us + waits + math.hypot(memory, work, started)


def carried(rows: Rows, shape: Shape, sizes: Mapping[str, int]) -> float:
    """Bytes through the second-level cache: each row reads what all rows share anew."""
    inputs = {i.name: rows.program.sources[i.source].dtype.size for i in rows.program.inputs}
    kept, total = frozenset(rows.kept) - {rows.vector}, 0.0
    used = [(frozenset(s.axis for s in o.access if s.axis), o.dtype.size, 1) for o in rows.program.outputs]
    for v in rows.values.values():
        if v.op == "load" and v.axes:
            turns = 1 if v.axes & frozenset(rows.kept) else shape.turns
            used.append((v.axes | kept, inputs[v.read], turns))
    for axes, bytes_, turns in used:
        total += bytes_ * float(number(ex.product(rows.program.extent(a) for a in axes), sizes)) / turns
    return total


def price(rows: Rows, width: int, access: float) -> float:
    """Instructions for one position of the axes, where an access to memory counts for so many."""
    slotted = frozenset(rows.row or rows.kept)
    access = 1 + access / width
    total = access * len(rows.outputs)
    for v in rows.values.values():
        if v.op in REDUCTIONS:
            total += 1
        elif v.op == "load" and rows.vector in v.axes:
            total += access
        elif v.op not in LEAVES and v.axes & slotted:
            shared = v.op == "div" and not rows.values[v.args[1]].axes & slotted
            total += 2 if shared else OPS[v.op].flops if v.op in OPS else 12
    return total


class RowsModel(Model):
    """Rows of a block graph in registers. Raises Refused where the graph has products, or there is no CUDA."""

    def __init__(self, program: Program, graph: BlockGraph, target: Target, sizes: Mapping[str, int]) -> None:
        if target.kind != "cuda":
            raise Refused(f"{target.name} has no threads that share rows")
        self.p, self.g, self.t = program, graph, target
        self.rows = rows_of(program, graph)
        self._shapes = list[Shape]()
        self._size(sizes)

    def _size(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.floor, self.moved = floor_us(self.p, self.t, sizes), bytes_once(self.p, sizes)

    def at(self, sizes: Mapping[str, int]) -> RowsModel:
        """The same with other sizes of symbols."""
        other = copy.copy(self)
        other._size(sizes)
        return other

    def schedules(self) -> Iterator[Schedule]:
        """How rows may be shared out to threads."""
        if not self._shapes:
            self._shapes += shapes(self.rows, self.t)
        return (schedule_of(self.p, self.g, shape, self.sizes) for shape in self._shapes)

    def predict(self, schedule: Schedule) -> Prediction:
        """Microseconds, and the bytes that lanes exchange."""
        shape = shape_of(schedule)
        us = predicted_us(self.p, self.rows, shape, self.t, self.sizes)
        return Prediction(us, exchanged(self.rows, shape) * 4, self.floor, self.moved)
