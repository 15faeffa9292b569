"""The analytic model: what a block graph under a schedule costs on a target, in microseconds.

Terms: bytes from memory once, bytes through the second-level cache for every block, matrix and elementwise work at the
rates of the target, waves of blocks over its units, the latency of a block's iterations, launches. Only the order of
candidates matters, and the comparison with what the original operators would cost.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import I8, DType
from mirage_cli.lax.ir.parts import least, stored_elements
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.hidden import limits
from mirage_cli.search.mugraph.mugraph import BODY, EXTREMES, BlockGraph, BlockOp
from mirage_cli.search.mugraph.visible import walked
from mirage_cli.search.schedules.fitted import Block, Cpu
from mirage_cli.search.schedules.packed import weights
from mirage_cli.search.schedules.products import (
    PANEL,
    SPLIT_BYTES,
    Bools,
    Floats,
    Sizes,
    along_rows,
    as_stored,
    by_elements,
    by_matrices,
    in_panels,
    may_be_packed,
    sectors,
    splits,
)
from mirage_cli.search.schedules.schedule import Prediction, Schedule
from mirage_cli.search.schedules.target import Target

TYPICAL = 1024  #: what a symbol counts as where nothing is said of it
SMALL = 16  #: what every symbol counts as when small sizes are considered
LARGE_PAGES = 1 << 16  #: bytes from which packed weights lie in large pages, as in include/mirage/pack.hpp
LINE = 64  #: bytes of a line of a CPU's caches
UNPACK_FLOPS = 4  #: vector operations on a GPU for an element that shares its byte with others
BARRIER_OPS = ("top", "sum", "running", "contract", *EXTREMES)


@dataclass(frozen=True, slots=True)
class Batch:
    """Many schedules of one block graph at once: element k of every array belongs to schedule k."""

    tiles: dict[str, Floats]
    loop: Floats
    warps: Floats
    stages: Floats

    def at(self, k: int) -> Schedule:
        """Schedule number k."""
        tiles = tuple((a, int(t[k])) for a, t in self.tiles.items())
        return Schedule(tiles, int(self.loop[k]), int(self.warps[k]), int(self.stages[k]))


def repeated(schedule: Schedule, count: int = 1) -> Batch:
    """A batch of one schedule so many times."""
    tiles = {a: np.full(count, float(t)) for a, t in schedule.tiles}
    return Batch(tiles, *(np.full(count, float(n)) for n in (schedule.loop, schedule.warps, schedule.stages)))


@dataclass(frozen=True, slots=True)
class Predictions:
    """Microseconds, shared memory of a block and bytes moved for each schedule of a batch."""

    us: Floats
    shared: Floats
    moved: Floats


class CostModel:
    """Predictions for one block graph on one target; `sizes` says what symbols count as: numbers, or an array with one for
    each schedule (`over`)."""

    def __init__(
        self, program: Program, graph: BlockGraph, target: Target, sizes: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self.p, self.g, self.t = program, graph, target
        self._take(sizes, bytes_once(program, sizes))
        self.axes = graph.axes_of(program)
        self.reads = {i.name: i for i in program.inputs}
        self.source = {i.name: program.sources[i.source] for i in program.inputs}
        self.loads = {o.name: o.source_value or "" for o in graph.ops if o.op == "load"}
        self.contracted = {i for o in graph.ops if o.op == "contract" for i in o.inputs}
        self.panels = {
            o.name
            for o in graph.ops
            if o.op == "load" and o.name in self.contracted and may_be_packed(self.source[o.source_value or ""])
        }
        self.weights = {} if target.threaded else weights(program, graph)
        quantised = {i for o in graph.ops if o.name in self.weights for i in (*o.inputs, o.name)}
        self.words = {o.name for o in graph.ops if o.op == "load" and o.name in quantised}
        self.panels = self.panels | self.words
        self.staged = [
            o for o in graph.ops if o.name in self.contracted and o.op != "load" and o.name not in self.weights
        ]
        self.rows = {o.name: v for o in graph.ops if o.op == "contract" and (v := self.left(o)) is not None}
        self.limits = limits(program, graph)

    def _take(self, sizes: Mapping[str, Any], once: Any) -> None:
        self.sizes, self.once = sizes, once
        self.extents: dict[str, Any] = {a.name: number(a.extent, sizes) for a in self.p.axes}

    def at(self, sizes: Mapping[str, Any]) -> CostModel:
        """The same with other sizes of symbols."""
        other = copy.copy(self)
        other._take(sizes, bytes_once(self.p, sizes))
        return other

    def over(self, at: Sequence[Mapping[str, int]]) -> CostModel:
        """The same for batches of schedules, the k-th with the k-th sizes of symbols."""
        return self.at({n: np.array([float(s.get(n, TYPICAL)) for s in at]) for n in self.p.symbols})

    def left(self, o: BlockOp) -> str | None:
        """The operand of a product whose free axes become rows whatever their number (see `Shapes.sides`); None if that is
        not said by where they go."""
        x, y = o.inputs
        left, right = (along_rows(self.p, self.g, o, self.axes[v]) for v in o.inputs)
        return None if left == right else x if left < right else y

    def predict(self, schedule: Schedule) -> Prediction:
        """The prediction for a schedule."""
        predictions = self.predict_all(repeated(schedule))
        return Prediction(
            float(predictions.us[0]), int(predictions.shared[0]), self.floor(), float(predictions.moved[0])
        )

    def predict_all(self, schedules: Batch) -> Predictions:
        """The predictions for a batch of schedules."""
        return _Estimate(self, schedules).run()

    def parallel(self, schedule: Schedule) -> bool:
        """True if the blocks of a schedule are worth more than one thread of a CPU."""
        estimate = _Estimate(self, repeated(schedule))
        return bool(estimate.parallel(estimate.task_us())[0])

    def floor(self) -> float:
        """The least time that the fragment can take; an array where sizes are."""
        return floor_us(self.p, self.t, self.sizes)


class _Estimate:
    """The terms of the model for a batch of schedules. Numbers of elements are floats that hold integers."""

    def __init__(self, model: CostModel, schedules: Batch) -> None:
        self.m, self.t, self.g, self.axes, self.s = model, model.t, model.g, model.axes, schedules
        self.extents, self.ones = model.extents, np.ones_like(schedules.loop)
        self.counts: dict[tuple[frozenset[str], bool], Floats] = {}
        self.shares: dict[frozenset[str], Floats] = {}
        self.blocks = self.ones
        for a, t in schedules.tiles.items():
            self.blocks = self.blocks * np.ceil(self.extents[a] / t)
        self.steps = self.ones
        if (loop := self.g.loop) is not None:
            self.steps = np.ceil(schedules.tiles.get(loop, self.extents[loop] * self.ones) / schedules.loop)
            if model.limits:
                self.steps = self.shown(loop)

    def shown(self, loop: str) -> Floats:
        """Iterations of a block in the mean, those of which a mask shows something."""
        known: dict[tuple[float, ...], float] = {}
        axes = [a for a in self.s.tiles if any(f.of(a) for f in self.m.limits)]
        whole = [self.ones * n for n in self.extents.values()]
        keys = list(zip(self.s.loop, *(self.s.tiles[a] for a in axes), *whole, strict=True))
        for key in set(keys):
            tiles = {a: int(n) for a, n in zip(axes, key[1:], strict=False)}
            extents = {a: int(n) for a, n in zip(self.extents, key[1 + len(axes) :], strict=True)}
            known[key] = walked(self.m.limits, loop, int(key[0]), extents, tiles)[0]
        return np.array([known[key] for key in keys])

    def tile(self, axis: str, phase: str) -> Floats | float:
        """Positions of an axis in a tile."""
        if axis == self.g.loop and phase == BODY:
            return self.s.loop
        extent: Floats | float = 1.0 * self.extents[axis]
        if axis in self.s.tiles:
            return np.minimum(self.s.tiles[axis], -(-extent // 16) * 16 if self.t.threaded else extent)
        return extent

    def elements(self, axes: frozenset[str], phase: str) -> Floats:
        """Elements of a tile."""
        key = (axes, phase == BODY)
        if key not in self.counts:
            self.counts[key] = math.prod((self.ones * self.tile(a, phase) for a in sorted(axes)), start=self.ones)
        return self.counts[key]

    def partial(self, axes: Set[str]) -> Floats:
        """The share of a tile that exists in the mean: the last one along an axis may be partial, and a CPU does no more."""
        tiled = frozenset(() if self.t.threaded else self.s.tiles.keys() & axes - {self.g.loop})
        share = self.shares.setdefault(tiled, self.ones)
        for a in sorted(tiled) if share is self.ones else ():
            tile = np.minimum(self.s.tiles[a], self.extents[a])
            share = self.shares[tiled] = share * self.extents[a] / (np.ceil(self.extents[a] / tile) * tile)
        return share

    def mean(self, axes: frozenset[str], phase: str) -> Floats:
        """Elements of a tile in the mean."""
        return self.elements(axes, phase) * self.partial(axes)

    def own(self, o: BlockOp) -> Floats:
        """Elements of what an operator makes."""
        return self.elements(self.axes[o.name], o.phase)

    def read(self, o: BlockOp) -> Floats:
        """Elements of what an operator with one operand reads."""
        return self.elements(self.axes[o.inputs[0]], o.phase)

    def kept(self, o: BlockOp) -> bool:
        """True if an elementwise value is a tile of its own, since others than one operator on the same axes read it."""
        readers = [r for r in self.g.ops if o.name in r.inputs]
        return len(readers) > 1 or any(self.axes[r.name] != self.axes[o.name] for r in readers if r.op == "thread")

    def repeat(self, o: BlockOp) -> Floats:
        """Number of times that a block runs an operator."""
        return self.steps if o.phase == BODY else self.ones

    def run(self) -> Predictions:
        """Time, memory and traffic."""
        traffic = work = shared = fragment = alone = 0.0 * self.ones
        matrix: dict[str, Floats] = {}
        for o in self.g.ops:
            repeat, n = self.repeat(o), self.own(o)
            if o.op == "load":
                dtype = self.m.source[o.source_value or ""].dtype
                bytes_ = n * dtype.size
                runs = self.segment(o) if self.t.threaded else None
                traffic = traffic + bytes_ * repeat * (sectors(*runs) if runs else 1.0)
                alone = alone + n * repeat * (by_elements(*runs) if runs else 0.0)
                if o.name in self.m.words:
                    continue  # read where sessions have packed them
                if dtype.per_byte > 1:
                    work = work + UNPACK_FLOPS * n * repeat
                    shared = shared + 4 * n * (not self.t.threaded)
                if o.phase != BODY or self.t.threaded:  # on a CPU the loop reads tensors where they are stored
                    shared = shared + bytes_ * (self.s.stages if o.phase == BODY else 1)
            elif o.op == "contract":
                size, depth = self.matrix(o)
                name = o.dtype.name if o.dtype else "f32"
                matrix[name] = matrix.get(name, 0.0) + 2.0 * size * depth * repeat
                fragment = fragment + size
            elif o.op == "thread" and o.thread is not None:
                work = work + n * o.thread.flops() * repeat
                if not self.t.threaded and self.kept(o):
                    shared = shared + 4 * n
            elif o.op in ("sum", "top", *EXTREMES):
                work = work + self.read(o) * repeat
                shared = shared + 4 * n
            elif o.op == "accum":
                work = work + 0.5 * n * repeat
        for o in self.m.staged:
            n = self.own(o)
            shared = shared + (2 * n if self.t.threaded else 4 * n)
            work = work + 2.0 * n * self.repeat(o)
        if not self.t.threaded:
            shared = shared + 4 * fragment
        exchange = 0.0
        if self.g.split:  # shares are written once and read once by the last block
            traffic = traffic + 8 * sum(self.own(o) for o in self.g.ops if o.op == "grid_sum")
            exchange = (self.t.fitted(Block) if self.t.threaded else self.t.fitted(Cpu)).exchange_us
        if self.t.threaded:
            us = self.gpu_time(matrix, traffic, work, shared, fragment, alone)
        else:
            us = self.cpu_time(shared)
        return Predictions(us + exchange, np.floor(shared), traffic * self.blocks)

    def matrix(self, o: BlockOp) -> tuple[Floats, Floats]:
        """(elements of the result with padding to whole matrices, depth)."""
        over = frozenset(o.over)
        x, y = (self.elements(self.axes[i] - over, o.phase) for i in o.inputs)
        depth = self.elements(over, o.phase)
        if self.t.threaded:
            return np.ceil(x / 16) * 16 * (np.ceil(y / 16) * 16), np.ceil(depth / 16) * 16
        return x * y, depth

    # --- CPU ----------------------------------------------------------------------------------------------------------
    def task_us(self) -> Floats:
        """One block on one core: vector work, conversions of loaded operands, fixed time of every statement."""
        t, c, seconds = self.t, self.t.fitted(Cpu), 0.0 * self.ones
        for o in self.g.ops:
            repeat, n = self.repeat(o), self.mean(self.axes[o.name], o.phase)
            if o.name in self.m.words or o.name in self.m.weights:
                continue  # unpacked where it is multiplied
            if o.op == "load":
                dtype = self.m.source[o.source_value or ""].dtype
                copied = c.convert_flops if dtype.name != "f32" and o.name in self.m.contracted else c.copy_flops
                seconds = seconds + repeat * n / t.special * (copied if dtype.per_byte == 1 else c.unpack_flops)
                continue
            seconds = seconds + repeat * c.statement_us * 1e-6
            if o.op == "contract":
                over = frozenset(o.over)
                x, y = (self.mean(self.axes[i] - over, o.phase) for i in o.inputs)
                depth = self.elements(over, o.phase)
                if not self.m.weights.keys().isdisjoint(o.inputs):
                    wide, rows = (x, y) if o.inputs[0] in self.m.weights else (y, x)
                    columns = o.inputs[o.inputs[0] not in self.m.weights]
                    # others begin inside of a panel
                    whole = self.elements(self.axes[columns] - over, o.phase) % PANEL == 0
                    (own,) = (w for v, w in self.m.weights.items() if v in o.inputs)
                    rounds, moved = whole & own.in_bytes, c.level_flops if own.levels else c.round_flops
                    flops = wide * np.where(rounds, c.bytes_flops, np.where(whole, c.words_flops, c.unpack_flops))
                    flops = repeat * depth * (flops + np.where(rounds, rows * moved, 0.0))
                    rate = np.where(rounds, t.rate(I8) * c.bytes_rate, t.library_rate(o.dtype) * c.panel_rate)
                    seconds = seconds + flops / t.special + repeat * 2.0 * x * y * depth / rate
                    continue
                sizes, left = Sizes(x, y, depth), self.m.rows.get(o.name)
                plainly = repeat * as_stored(sizes, None if left is None else left == o.inputs[0], t, o.dtype)
                if not self.m.panels.isdisjoint(o.inputs):
                    plainly = np.where(self.in_place(o), repeat * self.in_panels(o, sizes), plainly)
                seconds = seconds + plainly
            elif o.op == "accum" and len(o.inputs) > 1:  # what was there before shrinks in every iteration
                seconds = seconds + self.steps * c.shrink_flops * n / t.special
            elif o.op == "thread" and o.thread is not None:
                seconds = seconds + repeat * n * o.thread.flops() / t.special
            elif o.op in ("sum", "top", *EXTREMES):
                seconds = (
                    seconds
                    + repeat * (self.read(o) * self.partial(self.axes[o.inputs[0]]) + c.row_flops * n) / t.special
                )
        return seconds * 1e6

    def in_panels(self, o: BlockOp, sizes: Sizes) -> Floats:
        """Seconds of a product with a packed weight."""
        if o.inputs[0] in self.m.panels:
            sizes = replace(sizes, rows=sizes.columns, columns=sizes.rows)
        by_vectors = in_panels(sizes, self.t, o.dtype)
        return np.where(self.split(o), by_matrices(sizes, self.t), by_vectors) if self.t.split else by_vectors

    def in_place(self, o: BlockOp) -> Bools:
        """Mask of the schedules under which a product reads a packed weight where it lies: positions along its free axes lie
        equally far apart, as in `codegen/tiles/stored.py`. Others copy a part of the weight."""
        weight = next(i for i in o.inputs if i in self.m.panels)
        one, whole, seen, between = self.ones > 0, self.ones > 0, False, False
        for s in reversed(self.m.reads[self.m.loads[weight]].access):
            if s.axis is None:  # one of several parts has what lies in front of it apart
                one, whole = one & (seen or s.extent == 1), whole & (s.extent == 1)
            elif s.axis in o.over:
                between = between or seen
            if s.extent == 1 or s.axis is None or s.axis in o.over:
                continue
            several = self.ones * self.tile(s.axis, o.phase) > 1
            one = one & (~several | (whole & (not between)))
            whole = whole & (self.tile(s.axis, o.phase) >= self.extents[s.axis])
            seen = True
        summed = sum((self.ones * self.tile(a, o.phase) > 1).astype(int) for a in o.over)
        return one & (summed <= 1)

    def split(self, o: BlockOp) -> Bools:
        """Mask of the schedules under which a product with a packed weight is done by matrix instructions."""
        weight = next(i for i in o.inputs if i in self.m.panels)
        over, other = frozenset(o.over), o.inputs[weight == o.inputs[0]]
        rows, depth = self.elements(self.axes[other] - over, o.phase), self.elements(over, o.phase)
        kind = self.m.source[self.m.loads[weight]].dtype
        whole = math.prod(self.extents[a] for a in over)
        return splits(kind, rows, depth, whole) & (self.t.split > 0) & self.in_place(o)

    def parallel(self, task: Floats) -> Bools:
        """Mask of the schedules whose blocks, taking so long, are worth more than one thread."""
        return (self.t.units > 1) & (self.blocks > 1) & (self.blocks * task > 2 * self.t.fork_us)

    def segment(self, o: BlockOp) -> tuple[Floats, Floats]:
        """Bytes that lie side by side in what a load reads, and bytes from there to the next ones."""
        source = self.m.reads[o.source_value or ""]
        bytes_, whole = self.ones * self.m.p.sources[source.source].dtype.size, self.ones > 0
        apart = bytes_
        for s in reversed(source.access):
            extent = number(s.extent, self.m.sizes)
            taken = self.ones * (1 if s.axis is None else np.minimum(self.tile(s.axis, o.phase), extent))
            apart = np.where(whole, bytes_ * extent, apart)
            bytes_ = np.where(whole, bytes_ * taken, bytes_)
            whole = whole & (taken >= extent)
        return bytes_, apart

    def readers(self, o: BlockOp) -> list[BlockOp]:
        """The products that multiply a packed weight as it is loaded."""
        return [r for r in self.g.ops if r.op == "contract" and o.name in self.m.panels and o.name in r.inputs]

    def packed_bytes(self, o: BlockOp) -> Floats:
        """How many times as many bytes a load reads than its tensor has, since a session has packed that."""
        split = [self.split(r) for r in self.readers(o) if r.name not in self.m.weights]
        return np.where(np.any(split, axis=0), SPLIT_BYTES, 1.0) if split else self.ones

    def memory_us(self) -> Floats:
        """All blocks' reads and writes on a CPU: what comes from memory, and what the caches give again."""
        t, c, time = self.t, self.t.fitted(Cpu), 0.0 * self.ones
        for o in self.g.ops:
            if o.op != "load":
                continue
            source = self.m.source[o.source_value or ""]
            size = source.dtype.size * self.packed_bytes(o)
            total = self.mean(self.axes[o.name], o.phase) * size * self.repeat(o) * self.blocks
            segment, apart = self.segment(o)
            placed = np.all([self.in_place(r) for r in self.readers(o)], axis=0) & (o.name in self.m.panels)
            lines = np.where(placed, 1.0, np.maximum(1.0, np.minimum(apart, LINE) / segment))  # whole ones come
            total = total * lines
            first = np.minimum(total, math.prod(number(e, self.m.sizes) for e in source.dims) * size)
            share = c.scattered + (1 - c.scattered) * segment / (segment + c.segment)
            share = np.where(placed, np.where(first < LARGE_PAGES, 1.0, c.large_pages), share)  # others are copied
            time = time + first / (t.bandwidth * share) + (total - first) / (t.bandwidth * c.cache_factor)
        return (time + bytes_written(self.m.p, self.m.sizes) / t.bandwidth) * 1e6

    def cpu_time(self, shared: Floats) -> Floats:
        """Microseconds on a CPU."""
        t, c, task = self.t, self.t.fitted(Cpu), self.task_us()
        slowed = task * np.where(shared <= t.shared_bytes / 2, 1.0, c.crowded)
        largest = slowed / self.partial(self.s.tiles.keys())
        shares = t.fork_us + np.maximum(largest, np.ceil(self.blocks / t.units) * slowed)
        time = np.where(self.parallel(task), shares, self.blocks * slowed)
        memory = self.memory_us()
        return t.launch_us + np.maximum(time, memory) + (1 - c.overlap) * np.minimum(time, memory)

    # --- GPUs ---------------------------------------------------------------------------------------------------------
    def gpu_time(self, matrix: Mapping[str, Floats], *each: Floats) -> Floats:
        """Microseconds on a GPU; `each` block's bytes, work, shared memory, results, and elements that are loaded alone."""
        traffic, work, shared, fragment, alone = each
        t, c, blocks, warps = self.t, self.t.fitted(Block), self.blocks, self.s.warps
        fit = np.minimum(t.shared_total // np.maximum(shared, 1), np.minimum(t.threads // (32 * warps), 8))
        resident = np.maximum(1, fit)
        waves = np.ceil(blocks / (t.units * resident))
        used = np.minimum(1.0, blocks / t.units)
        memory = self.m.once / t.bandwidth / np.maximum(used, 1e-9) ** 0.5 * 1e6
        cache = traffic * blocks / (t.bandwidth * c.cache_factor) / used * 1e6
        multiplied = sum(f / t.rate(DType(name, 0, "float")) for name, f in matrix.items()) / c.matrix_efficiency
        compute = blocks * (multiplied + work / t.special) / used * 1e6
        barriers = len([o for o in self.g.ops if o.phase == BODY and o.op in BARRIER_OPS])
        chain = waves * (t.latency_us + self.steps * (c.step_us / np.minimum(resident, 2) + c.barrier_us * barriers))
        chain = chain + waves * c.single_us * alone / (32 * warps)
        spill = np.where(fragment / (32 * warps) <= 128, 1.0, c.spilled)
        terms = np.stack(np.broadcast_arrays(memory, cache, compute * spill, chain))  # of one step nothing overlaps
        slowest: Floats = np.where(self.steps > 1, terms.max(axis=0), terms.sum(axis=0))
        return t.launch_us + c.slower * slowest


def bytes_once(program: Program, sizes: Mapping[str, Any] = MappingProxyType({})) -> float:
    """Bytes of what a program reads and writes, each source once, sources in parts twice. An array where sizes are."""
    extents = {a.name: number(a.extent, sizes) for a in program.axes}
    total, read = 0.0, dict[int, float]()
    for i in program.inputs:
        read[i.source] = read.get(i.source, 0.0) + math.prod(extents[a] for a in program.axes_of(i.name))
    for k, count in read.items():
        source = program.sources[k]
        total += least(count, stored_elements(source, lambda e: number(e, sizes))) * source.dtype.size
    return total + bytes_written(program, sizes)


def bytes_written(program: Program, sizes: Mapping[str, Any] = MappingProxyType({})) -> float:
    """Bytes of what a program stores."""
    results = sum(math.prod(number(e, sizes) for e in o.dims) * o.dtype.bytes for o in program.outputs)
    return results + bytes_in_parts(program, sizes)


def bytes_in_parts(program: Program, sizes: Mapping[str, Any] = MappingProxyType({})) -> float:
    """Bytes of the sources that callers give in parts."""
    return sum(math.prod(number(e, sizes) for e in s.dims) * s.dtype.size for s in program.sources if s.parts)


def products(
    program: Program, sizes: Mapping[str, Any] = MappingProxyType({}), target: Target | None = None
) -> dict[str, float]:
    """Multiply-adds of a program's contractions, times two, for each type in which it multiplies: integers of 8 bits where
    weights say that their products round, and a target has a rate for them."""
    extents = {a.name: number(a.extent, sizes) for a in program.axes}
    flops: dict[str, float] = {}
    rounding = {i.name for i in program.inputs if target and I8.name in target.flops and i.source in program.rounds}
    for n in program.nodes:
        rounds = not rounding.isdisjoint(n.inputs)
        if n.op != "contract":
            rounding |= {n.name} if rounds else set()
        else:
            axes = frozenset(n.over).union(*(program.axes_of(i) for i in n.inputs))
            name = I8.name if rounds else n.dtype.name if n.dtype else "f32"
            flops[name] = flops.get(name, 0.0) + 2.0 * math.prod(extents[a] for a in axes)
    return flops


def floor_us(program: Program, target: Target, sizes: Mapping[str, Any] = MappingProxyType({})) -> float:
    """The least time that a program can take: its bytes once, or its products at the full rate. An array where sizes are."""
    cores = target.units if not target.threaded else 1  # a CPU's rates are those of one core
    flops = products(program, sizes, target).items()
    compute = sum(f / (target.rate(DType(name, 0, "float")) * cores) for name, f in flops)
    longest: float = -least(-bytes_once(program, sizes) / target.bandwidth, -compute) * 1e6
    return longest


def number(e: ex.Extent, sizes: Mapping[str, Any] = MappingProxyType({})) -> int:
    """An extent as a number for estimates (or an array, as sizes are); a symbol without a size counts as `TYPICAL`."""
    return e.factor * math.prod([sizes.get(n, TYPICAL) for n in e.names]) if isinstance(e, ex.Symbolic) else e
