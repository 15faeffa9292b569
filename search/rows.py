"""Schedules of the engine `rows`: how threads share the rows of a block graph without contractions.

Numbers of a schedule: `lanes` threads share a row, each has `slots` chunks of `width` neighbours; `cluster` blocks share it
where one is not enough; `ahead` asks for what is read before the kernel in front of this one has ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.ops import OPS
from mirage_cli.lax.program import Program
from mirage_cli.search.cost import SMALL, Prediction, Ranked, bytes_once, floor_us, number
from mirage_cli.search.mugraph import BlockGraph
from mirage_cli.search.row_values import LEAVES, REDUCTIONS, Rows, rows_of, widths
from mirage_cli.search.schedule import Schedule
from mirage_cli.search.target import Target

ENGINE = "rows"
THREADS = (64, 128, 256, 512, 1024)
LANES_ACROSS = (1, 2, 4, 8, 16, 32)
SLOTS = (1, 2, 4)  #: chunks of a thread where nothing is reduced
CLUSTERS = (2, 4, 8)
SPARE = 32  #: registers of a thread for addresses and the like
SCRATCH = 12288  #: floats that a block's threads may exchange
FULL = 0.9  #: share of the memory's bandwidth that many blocks reach
UNIT_RATE = 2.5  #: times its share of the memory's bandwidth that one multiprocessor can read
START_US = 1.1  #: from the end of the kernel before to the first read
READ_US = 0.6  #: from the first read to its answer
MEET_US = (0.06, 0.12, 0.9)  #: a reduction over lanes of a warp, of a block, of a cluster


@dataclass(frozen=True, slots=True)
class Shape:
    """How threads share rows; see `codegen/rows.py`."""

    threads: int
    lanes: int
    slots: int
    width: int
    cluster: int = 1
    ahead: int = 0

    def units(self, rows: Rows) -> int:
        """Rows (chunks of rows where these are neighbours in memory) of a block or a cluster."""
        return self.threads * self.slots if not rows.row else self.threads // self.lanes

    def numbers(self) -> tuple[tuple[str, int], ...]:
        """The numbers of a schedule that stand for the shape."""
        return (
            ("lanes", self.lanes),
            ("slots", self.slots),
            ("width", self.width),
            ("cluster", self.cluster),
            ("ahead", self.ahead),
        )

    def text(self) -> str:
        """One readable line."""
        return f"threads {self.threads}, " + ", ".join(f"{name} {n}" for name, n in self.numbers())


def shape_of(schedule: Schedule) -> Shape:
    """The shape that a schedule stands for."""
    lanes, slots, width, cluster, ahead = (schedule.number(n) for n in ("lanes", "slots", "width", "cluster", "ahead"))
    return Shape(schedule.warps * 32, lanes, slots, width, cluster, ahead)


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
    if shape.cluster > 1 and not (rows.along and rows.levels and shape.lanes == shape.threads and hopper(target)):
        raise Refused("blocks share rows that lie along memory, one at a time, on targets with clusters")
    if registers(rows, shape) > available(shape, target):
        raise Refused(f"about {registers(rows, shape)} registers for each thread")
    if exchanged(rows, shape) > SCRATCH:
        raise Refused(f"{exchanged(rows, shape)} numbers that threads exchange")


def held(rows: Rows, shape: Shape) -> int:
    """Positions of a row that its threads have room for."""
    return shape.lanes * shape.cluster * shape.slots * (shape.width if rows.along else 1)


def hopper(target: Target) -> bool:
    """Whether a target has clusters and dependent launches."""
    return target.kind == "cuda" and int("".join(c for c in target.name if c.isdigit()) or "0") >= 90


def available(shape: Shape, target: Target) -> int:
    """Registers of a thread."""
    return min(255, target.registers // max(shape.threads, 128))


def registers(rows: Rows, shape: Shape) -> int:
    """About how many registers a thread needs: what it loads, what it keeps, a chunk of everything on the way."""
    total, slotted = SPARE, frozenset(rows.row or rows.kept)
    inputs = {i.name: rows.program.sources[i.source].dtype.bytes for i in rows.program.inputs}
    for v in rows.values.values():
        many = (shape.slots if v.axes & slotted else 1) * (shape.width if rows.vector in v.axes else 1)
        if v.op == "load":
            total += -(-many * inputs[v.read] // 4)
        elif v.op not in LEAVES and (rows.later(v.name) or not v.axes & slotted):
            total += many
    return total + 2 * shape.width


def exchanged(rows: Rows, shape: Shape) -> int:
    """Floats that the threads of a block exchange in all reductions."""
    total = 0
    for v in rows.values.values():
        if v.op in REDUCTIONS and rows.along and shape.lanes > 32:
            total += shape.threads // 32 * shape.cluster
        elif v.op in REDUCTIONS and not rows.along and shape.lanes > 1:
            total += shape.threads * (shape.width if rows.vector in v.axes else 1)
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
    ahead = int(hopper(target))
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
                yield Shape(threads, lanes, -(-chunks // lanes), width, 1, ahead)

    if hopper(target):
        for threads in THREADS[1:]:
            for cluster in (c for c in CLUSTERS if threads * c < 2 * chunks):
                yield Shape(threads, threads, -(-chunks // (threads * cluster)), width, cluster, ahead)


# --- predictions ----------------------------------------------------------------------------------------------------------
def predicted_us(
    program: Program, rows: Rows, shape: Shape, target: Target, sizes: Mapping[str, int] = MappingProxyType({})
) -> float:
    """Microseconds of a kernel: memory, the waves of blocks that wait for it, arithmetic, reductions."""
    units = number(ex.product(program.extent(a) for a in rows.kept), sizes)
    if rows.vector in rows.kept:
        units = -(-units // shape.width)
    blocks = -(-units // shape.units(rows)) * shape.cluster
    needed = registers(rows, shape)
    resident = max(1, min(target.threads // shape.threads, target.registers // (shape.threads * needed), 32))
    waves = math.ceil(blocks / (target.units * resident))
    moved = bytes_once(program, sizes)
    busy = min(1.0, blocks / target.units)
    rate = min(target.bandwidth * FULL, target.bandwidth / target.units * UNIT_RATE * blocks)
    price = sum(OPS[v.op].flops if v.op in OPS else 8 for v in rows.values.values() if v.op not in LEAVES)
    work = price * number(ex.product(a.extent for a in program.axes), sizes) / (target.special * busy)
    kind = 2 if shape.cluster > 1 else 1 if shape.lanes > 32 or not rows.along else 0
    slowest = max(moved / rate * 1e6, work * 1e6)
    start = START_US if hopper(target) else target.launch_us
    return start + waves * (READ_US + rows.levels * MEET_US[kind]) + slowest


def ranked(
    program: Program,
    graph: BlockGraph,
    target: Target,
    count: int,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> list[Ranked]:
    """The `count` best schedules of the engine for a block graph; none where it does not suit."""
    if target.kind != "cuda":
        return []
    try:
        rows = rows_of(program, graph)
        found = list(shapes(rows, target))
    except Refused:
        return []
    floor, moved = floor_us(program, target, sizes), bytes_once(program, sizes)
    made = []
    for shape in found:
        us = score = predicted_us(program, rows, shape, target, sizes)
        if program.symbols:
            small = dict.fromkeys(program.symbols, SMALL)
            score = math.sqrt(us * predicted_us(program, rows, shape, target, small))
        schedule = schedule_of(program, graph, shape, sizes)
        made.append(Ranked(schedule, Prediction(us, exchanged(rows, shape) * 4, floor, moved), score))
    return sorted(made, key=lambda r: r.order)[:count]
