"""Schedules of the engine `warpgroup`: block graphs with many rows where warpgroups multiply, with predicted times.

A graph suits when all its products stand in the loop, multiply 16-bit types, or loaded tiles of float32 (which are split into
parts), and share an axis of rows of which a block takes at least 64. Its numbers (see `codegen/warpgroup/engine.py`):
`cluster`, `band`, `turns`, `resident`, `ahead`, `kept`.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import BF16, F16, F32, DType
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.lax.ir.program import Input, Program
from mirage_cli.search.mugraph.hidden import given_limits, limits, shown_loads
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, GRID, PROLOGUE, BlockGraph, BlockOp, feeds
from mirage_cli.search.mugraph.visible import expected, walked
from mirage_cli.search.schedules.cost import bytes_once, floor_us, number
from mirage_cli.search.schedules.fitted import Clusters, Warpgroup
from mirage_cli.search.schedules.model import Model
from mirage_cli.search.schedules.schedule import Prediction, Schedule
from mirage_cli.search.schedules.target import Target
from mirage_cli.search.schedules.tiling import MOST_REGISTERS, batch_axes, consumer_registers, first_registers

PANEL = 64  #: positions of a contiguous axis come in multiples of this
LEAST_ROWS = 33  #: fewer are for strips, which multiply 16 at a time
GROUP_ROWS = 64  #: rows of a matrix instruction
CHUNK = 16  #: bytes that the copy engine moves at a time
SPARE_REGISTERS = 40  #: of a consumer's thread, beside fragments
INSTRUCTION_REGISTERS = 26  #: that a matrix instruction takes beside its results: as many are there when threads begin
AHEAD_REGISTERS = 24  #: the same, beside those, where products run ahead
COLUMNS = (256, 192, 128, 64)
STAGES = tuple(range(12, 1, -1))  #: the most that fit
LATE_STAGES = (6, 4, 3, 2)  #: the same where there are scores
PARTS = (2, 4)  #: blocks that reduce together
NUMBERS = ("cluster", "band", "turns", "resident", "ahead", "kept")  #: of a schedule, beside tiles, warps and stages
BARRIER_BYTES = 2048  #: of shared memory, beside tiles
TYPES = (F16, BF16, F32)
SPLIT_LOOP = 32  #: positions of an iteration whose products are split: sums of more lose digits
SPLIT_PARTS = 3  #: numbers of bfloat16 that a float32 is split into
SPLIT_PRODUCTS = 6  #: products of such numbers for one of float32
SPLIT_STAGES = 2  #: of the parts of a tile


def suits(target: Target) -> bool:
    """True if a target has what the engine needs."""
    return target.features.copy_engine and target.features.warpgroup_products


def rows_axis(program: Program, graph: BlockGraph, single: Collection[str]) -> str | None:
    """The axis whose positions are the rows of all products: on one side of each of them, the other side being loaded (or rows
    of a load and zeros), and not what is contiguous in results. `single` are the axes of which a block holds one position."""
    axes = graph.axes_of(program)
    loaded = {o.name for o in graph.ops if o.op == "load"} | shown_loads(program, graph).keys()
    shared: set[str] | None = None
    for o in graph.ops:
        if o.op != "contract":
            continue
        sides = set[str]()
        for mine, other in (o.inputs, o.inputs[::-1]):
            free = axes[mine] - set(o.over) - set(single)
            if len(free) == 1 and other in loaded:
                sides |= free
        shared = sides if shared is None else shared & sides
    contiguous = {_contiguous(program, k) for k, v in enumerate(graph.outputs) if len(axes[v] - set(single)) > 1}
    return min((a for a in shared or () if a in graph.grid and a not in contiguous), default=None)


def single_axes(program: Program, graph: BlockGraph) -> frozenset[str]:
    """The axes of which a block holds one position: those of batches; of several columns, as heads and their numbers are, all
    but the contiguous ones; and of several axes that are free in the same operand of all products, as the heads of a group and
    their rows are, all but the longest where symbols are what they are typically: a kernel holds rows of one axis whatever the
    sizes."""
    axes, batch = graph.axes_of(program), batch_axes(program, graph)
    if (rows := rows_axis(program, graph, batch)) is not None:
        return batch | _outer_columns(program, graph, batch | {rows})
    common: list[frozenset[str]] | None = None
    for o in graph.ops:
        if o.op == "contract":
            free = [axes[i] - frozenset(o.over) - batch for i in o.inputs]
            common = free if common is None else [x & y for x in common for y in free]
    extents = {a.name: number(a.extent, {}) for a in program.axes}
    for several in common or ():
        single = batch | (several - {max(several, key=lambda a: (extents[a], a), default="")})
        if single <= batch | set(graph.grid) and rows_axis(program, graph, single) is not None:
            return single
    return batch


def _outer_columns(program: Program, graph: BlockGraph, other: Collection[str]) -> frozenset[str]:
    """Of axes but `other` ones that are free in an operand of a product beside those that are contiguous in results, those of
    the grid."""
    axes = graph.axes_of(program)
    contiguous = {_contiguous(program, k) for k in range(len(graph.outputs))}
    found = set[str]()
    for o in graph.ops:
        for i in o.inputs if o.op == "contract" else ():
            free = axes[i] - frozenset(o.over) - frozenset(other)
            found |= free - contiguous if free & contiguous else frozenset()
    return frozenset(found & set(graph.grid) - {graph.loop})


def walk(program: Program, source: Input) -> tuple[int, list[tuple[str, Extent, Extent]]]:
    """Where a value lies in its source: the first element; and axis, extent and elements between neighbours of each dimension
    that is walked, innermost first. Raises Refused for a first element that depends on symbols."""
    stride: Extent = 1
    start, strides = 0, list[tuple[str, Extent, Extent]]()
    for s in reversed(source.access):
        if s.offset:
            moved = ex.product([stride, s.offset])
            if not isinstance(moved, int):
                raise Refused(f"{source.name} begins at a position that depends on symbols")
            start += moved
        extent = program.extent(s.axis) if s.axis is not None else 1
        if s.axis is not None and extent != 1:
            strides.append((s.axis, extent, stride))
        stride = ex.product([stride, s.extent])
    return start, strides


def aligned(start: int, walked: Sequence[tuple[str, Extent, Extent]], dtype: DType) -> bool:
    """True if the first element and all rows begin at multiples of 16 bytes, as the copy engine needs it."""
    factors, chunk = (s.factor if isinstance(s, Symbolic) else s for _, _, s in walked[1:]), CHUNK // dtype.bytes
    return start % chunk == 0 and all(f % chunk == 0 for f in factors)


def _brought(program: Program, value: str) -> bool:
    """True if the copy engine can bring tiles of a value."""
    try:
        source = program.input(value)
        return aligned(*walk(program, source), program.sources[source.source].dtype)
    except Refused:
        return False


def _contiguous(program: Program, output: int) -> str | None:
    """The innermost axis of an output."""
    return next((s.axis for s in reversed(program.outputs[output].access) if s.extent != 1), None)


class WarpgroupModel(Model):
    """Products of many rows for warpgroups. Raises Refused where there are no such products, or no warpgroups."""

    def __init__(self, program: Program, graph: BlockGraph, target: Target, sizes: Mapping[str, int]) -> None:
        if not suits(target):
            raise Refused(f"{target.name} has no products of warpgroups, or no copy engine")
        self.p, self.g, self.t = program, graph, target
        self.batch, self.axes = single_axes(program, graph), graph.axes_of(program)
        self.contractions = [o for o in graph.ops if o.op == "contract"]
        self.rows = self.checked_rows()
        self.ops = {o.name: o for o in graph.ops}
        self.fed, self.forms = feeds(graph), (*limits(program, graph), *given_limits(program, graph))
        self.late = any(self.fed.values())
        self.c = target.fitted(Warpgroup)
        self.split = self.contractions[0].dtype == F32
        self.rate = (
            target.library_rate(BF16) / SPLIT_PRODUCTS if self.split else target.rate(self.contractions[0].dtype)
        )
        self._known = dict[object, tuple[Schedule, ...]]()
        self._size(sizes)
        source = {i.name: program.sources[i.source].dtype for i in program.inputs}
        loads = [o.source_value or "" for o in self.operands()]
        if not all(source[v] in TYPES and _brought(program, v) for v in loads):
            raise Refused("an operand of a product is of another type, or has no rows that the copy engine can bring")
        if self.split and (self.late or any(o.phase != BODY for o in self.operands())):
            raise Refused("float32 products of computed values, or of what is loaded once")

    def _size(self, sizes: Mapping[str, int]) -> None:
        self.extents = {a.name: number(a.extent, sizes) for a in self.p.axes}
        self.limits = expected(self.p, self.forms, self.g.loop or "", dict.fromkeys(self.batch, 1), self.extents)
        self.once, self.floor = bytes_once(self.p, sizes), floor_us(self.p, self.t, sizes)

    def at(self, sizes: Mapping[str, int]) -> WarpgroupModel:
        """The same with other sizes of symbols."""
        other = copy.copy(self)
        other._size(sizes)
        return other

    def checked_rows(self) -> str:
        """The axis of rows. Raises Refused where products have none in common, or are none for warpgroups."""
        graph, loop, axes = self.g, self.g.loop, self.axes
        if loop is None or not self.contractions or set(graph.split) - {loop}:
            raise Refused("no products in a loop, or a reduction that is split along another axis")
        if graph.split and not isinstance(self.p.extent(loop), int):
            raise Refused(f"{loop}, which blocks share, has no known extent")
        types = {o.dtype for o in self.contractions}
        if any(o.phase != BODY for o in self.contractions) or len(types) > 1 or not types <= set(TYPES):
            raise Refused("a product outside the loop, or of another type than float32 and those of 16 bits")
        if any(o.op == "load" and o.phase != BODY and loop in axes[o.name] for o in graph.ops):
            raise Refused(f"an input would be held whole along {loop}")
        if any(not axes[i] - frozenset(o.over) - self.batch for o in self.contractions for i in o.inputs):
            raise Refused("a product with a vector")
        rows = rows_axis(self.p, graph, self.batch)
        if rows is None:
            raise Refused("products have no axis of rows in common")
        return rows

    # --- the space ----------------------------------------------------------------------------------------------------
    def schedules(self) -> Sequence[Schedule]:
        """Tiles, warps, stages and numbers that are worth a prediction; none for few rows, whose number decides heights."""
        if self.extents[self.rows] < LEAST_ROWS:
            return ()
        known = ((64, 1), (128, 2), (192, 3)) if self.late else ((128, 2), (256, 2), (192, 3), (64, 1))
        shapes = tuple(s for s in known if s[0] < self.extents[self.rows] + GROUP_ROWS)
        key = (shapes, *(n for a, n in self.extents.items() if a != self.rows))
        if key not in self._known:
            self._known[key] = tuple(self.shaped(shapes))
        return self._known[key]

    def shaped(self, shapes: Sequence[tuple[int, int]]) -> Iterator[Schedule]:
        """The same of rows and consumers of a block."""
        wide = [a for a in self.g.grid if a not in self.batch and a not in (self.rows, self.g.loop)]
        options = [self.columns(a) for a in wide]
        loops = (SPLIT_LOOP,) if self.split else (128, 64)
        stages = LATE_STAGES if self.late else STAGES
        for columns, (height, consumers), loop, parts in itertools.product(
            itertools.product(*options), shapes, loops, PARTS if self.g.split else (1,)
        ):
            tiles = dict(zip(wide, columns, strict=True)) | {self.rows: height}
            if self.g.split:
                share = -(-self.extents[self.g.loop or ""] // (parts * loop)) * loop
                if -(-self.extents[self.g.loop or ""] // share) != parts:
                    continue
                tiles[self.g.loop or ""] = share
            ordered = tuple((a, tiles.get(a, 1)) for a in self.g.grid)
            for numbers in self.numbers(consumers):
                staged = (Schedule(ordered, loop, 4 * (consumers + 1), n, "warpgroup", numbers) for n in stages)
                fitting = (s for s in staged if self.fits(s))
                yield from itertools.islice(fitting, 1)

    def columns(self, axis: str) -> list[int]:
        """Positions of an axis of columns in a block: scores of an iteration are computed once, so attention takes all."""
        whole = -(-self.extents[axis] // PANEL) * PANEL
        if self.late:
            return [min(whole, COLUMNS[0])]
        return sorted({min(c, whole) for c in COLUMNS})

    def numbers(self, consumers: int) -> Iterator[tuple[tuple[str, int], ...]]:
        """Numbers of the engine for so many consumers. What has equal predictions is for measurements to tell apart."""

        def made(*numbers: int) -> tuple[tuple[str, int], ...]:
            return tuple(zip(NUMBERS, numbers, strict=True))

        clusters = (1,) if self.g.split else (2, 1)
        if not self.late:
            turns = int(self.split and consumers > 1)
            yield from (made(cluster, 16 // cluster, turns, 1, 0, 0) for cluster in clusters)
            if consumers == (1 if self.split else 2) and not self.g.split:
                yield made(1, 16, 0, 2, 0, 0)
            return
        for kept in (1, 0) if self.keepable() else (0,):
            yield made(1, 0, int(consumers > 1), 1, 0, kept)
            yield made(1, 0, 0, 1, 1, kept)
            if consumers == 1:
                yield made(1, 0, 0, 2, 0, kept)
            elif not self.g.split:
                yield made(2, 0, 0, 1, 0, kept)

    def left(self, contraction: BlockOp) -> str:
        """The operand of a product that has the rows."""
        first, second = contraction.inputs
        return first if self.rows in self.axes[first] else second

    def keepable(self) -> bool:
        """True if a left operand is loaded once, so that it could stay in registers."""
        return any((o := self.ops[self.left(c)]).op == "load" and o.phase == PROLOGUE for c in self.contractions)

    @functools.cached_property
    def in_words(self) -> bool:
        """True if a left operand is computed before the loop: it is in registers then."""
        lefts = (self.ops[self.left(c)] for c in self.contractions)
        return any(o.op == "thread" and o.phase == PROLOGUE for o in lefts)

    def bytes(self, o: BlockOp) -> int:
        """Bytes of an element of a load."""
        return self.p.sources[self.p.input(o.source_value or "").source].dtype.bytes

    @functools.cached_property
    def scaled(self) -> int:
        """Multiplications of each score."""
        made = (
            o.thread
            for o in self.g.ops
            if o.phase == BODY and o.thread and {self.rows, self.g.loop} <= self.axes[o.name]
        )
        return sum(n.op == "mul" for t in made for n in t.nodes)

    # --- sizes ----------------------------------------------------------------------------------------------------------
    def size(self, axis: str, s: Schedule) -> int:
        """Positions of an axis in a tile of an iteration."""
        if axis == self.g.loop:
            return s.loop
        return s.tile(axis) or -(-self.extents[axis] // PANEL) * PANEL

    def elements(self, axes: Collection[str], s: Schedule) -> int:
        """Elements of a tile."""
        return math.prod(self.size(a, s) for a in axes)

    def operands(self) -> list[BlockOp]:
        """The loads that products read, directly or through what is computed of them."""
        names: dict[str, None] = {}

        def visit(name: str) -> None:
            o = self.ops[name]
            if o.op == "load" and len(self.axes[name] - self.batch) > 1:
                names[name] = None
            elif o.op != "contract":
                for i in o.inputs:
                    visit(i)

        for c in self.contractions:
            for i in c.inputs:
                visit(i)
        return [self.ops[n] for n in names]

    def fits(self, s: Schedule) -> bool:
        """True if shared memory and registers are enough: to begin with all threads have as many."""
        resident, consumers = s.number("resident"), s.warps // 4 - 1
        most = min(consumer_registers(consumers, resident), MOST_REGISTERS)
        held = self.fragments(s) + SPARE_REGISTERS + AHEAD_REGISTERS * s.number("ahead")
        if self.instruction(s) + INSTRUCTION_REGISTERS > first_registers(consumers, resident):
            return False
        return self.shared(s) * resident <= self.t.shared_bytes and held <= most

    def instruction(self, s: Schedule) -> int:
        """Registers of a thread that hold the results of the widest matrix instruction."""
        columns = (
            self.elements(frozenset().union(*(self.axes[i] for i in c.inputs)) - {*c.over, self.rows} - self.batch, s)
            for c in self.contractions
        )
        return max(columns) * GROUP_ROWS // 128

    def fragments(self, s: Schedule) -> int:
        """Registers of a consumer's thread that hold fragments: results of products, and left operands that are computed
        (words of two elements)."""
        total, lefts = 0, dict[str, int]()
        for o in self.contractions:
            left = self.left(o)
            threads = 128 * (s.warps // 4 - 1)
            twice = 2 if s.number("ahead") and not self.fed[o.name] else 1
            out = frozenset().union(*(self.axes[i] for i in o.inputs)) - frozenset(o.over) - self.batch
            total += (2 if self.split else twice) * self.elements(out, s) // threads
            if self.split:
                lefts[left] = SPLIT_PARTS * self.elements(self.axes[left] - self.batch, s) // (2 * threads)
            elif self.ops[left].op != "load" or (self.ops[left].phase == PROLOGUE and s.number("kept")):
                total += self.elements(self.axes[left] - self.batch, s) // (2 * threads)
        return total + sum(lefts.values())

    def shared(self, s: Schedule) -> int:
        """Bytes of shared memory of a block."""
        total = BARRIER_BYTES
        for o in self.operands():
            total += self.bytes(o) * self.elements(self.axes[o.name], s) * (s.stages if o.phase == BODY else 1)
            if self.split and self.rows not in self.axes[o.name]:
                total += SPLIT_STAGES * self.parts(o, s)
        if self.g.split:
            for o in self.g.ops:
                if o.op in ("grid_sum", "grid_top"):  # numbers of rows are published by each of four lanes
                    own = self.axes[o.name] - self.batch
                    total += 4 * self.elements(own, s) * (4 if own == {self.rows} else 1)
        return total

    def parts(self, o: BlockOp, s: Schedule) -> int:
        """Bytes of the parts of a tile, in whole panels."""
        source = self.p.input(o.source_value or "").access
        inner = next((a.axis for a in reversed(source) if a.extent != 1), None)
        size = self.size(inner, s) if inner is not None else 1
        return SPLIT_PARTS * 2 * self.elements(self.axes[o.name], s) // size * (-(-size // PANEL) * PANEL)

    # --- time -----------------------------------------------------------------------------------------------------------
    def predict(self, s: Schedule) -> Prediction:
        """Microseconds: what the matrix units do, at the share of their rate that such tiles reach, in whole waves."""
        cluster, resident, parts = s.number("cluster"), s.number("resident"), 1
        loop, units = self.g.loop or "", 1
        for a in self.g.grid:
            if a == loop:
                parts = -(-self.extents[a] // (s.tile(a) or 1))
            else:
                units *= -(-self.extents[a] // (self.size(a, s) * (cluster if a == self.rows else 1)))
        steps, most = self.steps(s)
        together = cluster * parts
        fit = self.t.fitted(Clusters).fit
        slots = fit[together] * self.t.units * resident // fit[1]
        waves = -(-units // slots)
        traffic = self.moved(s) * steps * units * together
        turns = waves * steps if steps == most else max(most, steps * units / slots)
        memory = self.once / self.t.bandwidth * 1e6
        if self.late:
            us = max(turns * self.late_step(s) * resident, memory)
        else:
            full = units * together / self.t.units
            us = self.accumulated(s, turns, memory, min(1.0, full), min(resident, max(1.0, full)))
        us += self.c.launch_us + (self.c.cluster_us if cluster > 1 else 0.0) + waves * self.unit(s, parts)
        return Prediction(us, self.shared(s), self.floor, float(traffic))

    def unit(self, s: Schedule, parts: int) -> float:
        """Microseconds of a unit beside its iterations, where so many blocks reduce together: what they read of one another,
        and what is computed of the results of products."""
        if self.late:
            return self.c.fixed_us + (self.c.exchange_us if parts > 1 else 0.0)
        tiles = (self.axes[c.inputs[0]] ^ self.axes[c.inputs[1]] for c in self.contractions)
        read = sum(4 * self.elements(axes - self.batch, s) for axes in tiles) * (parts - 1) / parts
        together = self.c.sums_us + read / self.c.summed if parts > 1 else 0.0
        own = (o for o in self.g.ops if o.thread is not None and o.phase in (EPILOGUE, GRID))
        work = sum(
            (o.thread.flops() if o.thread else 0) * self.elements(self.axes[o.name] - self.batch, s) for o in own
        )
        made = (self.axes[o.name] - self.batch for o in self.g.ops if o.thread is not None and o.phase == PROLOGUE)
        together += self.c.latency_us * any(len(axes) > 1 for axes in made)  # what these read is waited for
        return together + self.c.finish_us * work / (128 * (s.warps // 4 - 1)) + self.outer(s) / parts / self.c.stored

    def outer(self, s: Schedule) -> int:
        """Bytes of a unit's results, and of what is read for them behind its loop."""
        operands = {o.name for o in self.operands()}
        loads = (
            o
            for o in self.g.ops
            if o.op == "load" and o.name not in operands and len(self.axes[o.name] - self.batch) > 1
        )
        read = [(self.axes[o.name], self.bytes(o)) for o in loads]
        stored = [(frozenset(t.axis for t in o.access if t.axis is not None), o.dtype.bytes) for o in self.p.outputs]
        return sum(self.elements(axes - self.batch, s) * size for axes, size in read + stored)

    def moved(self, s: Schedule) -> int:
        """Bytes of the tiles of an iteration."""
        return sum(self.bytes(o) * self.elements(self.axes[o.name], s) for o in self.operands() if o.phase == BODY)

    def own_share(self, s: Schedule) -> float:
        """Bytes of an iteration's tiles that a block brings itself: those without rows come to all blocks of a cluster."""
        cluster = s.number("cluster")
        loads = (o for o in self.operands() if o.phase == BODY)
        return sum(
            self.bytes(o) * self.elements(self.axes[o.name], s) / (1 if self.rows in self.axes[o.name] else cluster)
            for o in loads
        )

    def outside(self, s: Schedule) -> float:
        """The share of the rows of all tiles that lies outside of the tensor."""
        rows, size = self.extents[self.rows], self.size(self.rows, s)
        return 1 - rows / (-(-rows // size) * size)

    def steps(self, s: Schedule) -> tuple[float, int]:
        """Iterations of a unit, in the mean and at most: those of which a mask shows something."""
        loop = self.g.loop or ""
        whole = -(-(s.tile(loop) or self.extents[loop]) // s.loop)
        if not self.limits:
            return whole, whole
        together = {self.rows: self.size(self.rows, s) * s.number("cluster")}
        mean, most = walked(self.limits, loop, s.loop, self.extents, dict(s.tiles) | together)
        return max(mean, 1.0), max(most, 1)

    def accumulated(self, s: Schedule, turns: float, memory: float, busy: float, beside: float) -> float:
        """Microseconds of so many iterations that only add up products of loaded tiles, by what bounds them: products
        and what is computed for them, requests of a ring that is short, bytes that multiprocessors are brought, of which a
        share is `busy`, memory; so many blocks run `beside` one another on a multiprocessor."""
        lefts = {left for c in self.contractions if self.ops[left := self.left(c)].op != "load" and not self.split}
        computed = sum(self.elements(self.axes[left] - self.batch, s) for left in lefts) / (s.warps // 4 - 1)
        deep = self.size(self.rows, s) > GROUP_ROWS * (s.warps // 4 - 1)
        own = self.products_us(s) / (self.c.deep_share if deep else 1.0) + self.c.computed_us * computed / 4096
        own = self.divided_us(s, beside) if self.split else own * beside
        ring = (self.c.latency_us + 2 * own) / s.stages  # a place is free when the next product is under way
        bounds = (own, ring, busy * beside * self.own_share(s) / self.c.copied)
        longer = turns * (1 + self.c.outside * self.outside(s))
        sums = math.fsum((longer * b) ** self.c.together for b in bounds) + memory**self.c.together
        return float(sums ** (1 / self.c.together))

    def divided_us(self, s: Schedule, beside: float) -> float:
        """Microseconds of an iteration whose numbers are split: products, and what is split for them, take turns at shared
        memory."""
        rows, others = 0, 0
        for o in self.operands():
            elements = self.elements(self.axes[o.name], s)
            rows, others = (rows + elements, others) if self.rows in self.axes[o.name] else (rows, others + elements)
        split = (self.c.split_rows_us * rows + self.c.split_us * others) / 4096
        return self.c.meet_split_us + beside * (self.products_us(s) + split)

    def late_step(self, s: Schedule) -> float:
        """Microseconds of an iteration with scores on a multiprocessor of its own: products, or what is computed of scores
        beside them."""
        scores = sum(self.elements({self.rows, self.g.loop or ""}, s) for c in self.contractions) / 2
        each = self.c.score_us + self.c.finish_us * self.scaled / (128 * (s.warps // 4 - 1))
        kept = self.c.kept_us * (s.number("kept") or self.in_words)
        return max(self.products_us(s), scores * each) + self.c.meet_us - kept

    def products_us(self, s: Schedule) -> float:
        """Microseconds of the products of an iteration on a multiprocessor of its own."""
        flops = 0.0
        for c in self.contractions:
            axes = frozenset(c.over).union(*(self.axes[i] for i in c.inputs))
            flops += 2.0 * self.elements(axes - self.batch, s)
        share = 1.0 if self.late else self.c.split_share if self.split else self.c.share
        return flops / (self.rate / self.t.units * share) * 1e6
