"""The analytic model: what a block graph under a schedule costs on a target, in microseconds.

Terms: bytes from memory once, bytes through the second-level cache for every block, matrix and elementwise work at the
rates of the target, waves of blocks over its units, the latency of a block's iterations, launches. Only the order of
candidates matters, and the comparison with what the original operators would cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.ops import OPS
from mirage_cli.lax.program import Program
from mirage_cli.search.mugraph import BODY, BlockGraph, BlockOp
from mirage_cli.search.schedule import Schedule
from mirage_cli.search.target import Target

TYPICAL = 1024  #: what a symbol counts as where nothing is said of it
SMALL = 16  #: what every symbol counts as when small sizes are considered
CACHE_FACTOR = 2.5  #: bandwidth of the second-level cache over that of memory
MATRIX_EFFICIENCY = 0.35  #: share of the matrix rate that generated CUDA loops reach
STEP_US = 0.35  #: fixed time of one iteration on a GPU: barriers, first bytes
STATEMENT_US = 0.03  #: fixed time of one statement over a tile on a CPU
STREAMED = (
    0.65  #: share of a CPU's memory bandwidth that generated loops reach; onnxruntime's packed weights set the rate
)
CONVERT_FLOPS = 3.0  #: converting an element of another type to float32
EXCHANGE_US = 2.5  #: clearing the counters and reading the shares of other blocks
BARRIER_OPS = ("top", "sum", "running", "contract")


@dataclass(frozen=True, slots=True)
class Prediction:
    """Microseconds, the shared memory that a block needs, the floor (bytes once or matrix work, whichever is more), and
    the bytes that all blocks together move."""

    us: float
    shared: int
    floor_us: float
    moved: float = 0.0


class CostModel:
    """Predictions for one block graph on one target; `sizes` says what symbols count as."""

    def __init__(
        self, program: Program, graph: BlockGraph, target: Target, sizes: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self.p, self.g, self.t, self.sizes = program, graph, target, sizes
        self.extents = {a.name: number(a.extent, sizes) for a in program.axes}
        self.axes = graph.axes_of(program)
        self.source = {i.name: program.sources[i.source] for i in program.inputs}
        self.source_number = {i.name: i.source for i in program.inputs}
        self.contracted = {i for o in graph.ops if o.op == "contract" for i in o.inputs}
        self.staged = [o for o in graph.ops if o.name in self.contracted and o.op != "load"]
        self.once = self._bytes_once()
        self._schedule: Schedule | None = None  # what the memos below are for
        self._counts: dict[tuple[frozenset[str], bool], int] = {}
        self._task: float | None = None

    def _bytes_once(self) -> float:
        total = 0.0
        seen: set[int] = set()
        for i in self.p.inputs:
            if i.source not in seen:
                seen.add(i.source)
                read = math.prod(self.extents[a] for a in self.p.axes_of(i.name))
                total += read * self.p.sources[i.source].dtype.bytes
        for o in self.p.outputs:
            total += math.prod(number(e, self.sizes) for e in o.dims) * o.dtype.bytes
        return total

    # --- sizes --------------------------------------------------------------------------------------------------------
    def tile(self, axis: str, phase: str, s: Mapping[str, int], loop: int) -> int:
        """Positions of an axis in a tile."""
        if axis == self.g.loop and phase == BODY:
            return loop
        return min(s.get(axis, self.extents[axis]), -(-self.extents[axis] // 16) * 16)

    def elements(self, axes: frozenset[str], phase: str, s: Mapping[str, int], loop: int) -> int:
        """Elements of a tile."""
        key = (axes, phase == BODY)
        if key not in self._counts:
            self._counts[key] = math.prod(self.tile(a, phase, s, loop) for a in axes)
        return self._counts[key]

    def _turn_to(self, schedule: Schedule) -> None:
        if schedule is not self._schedule:
            self._schedule, self._counts, self._task = schedule, {}, None

    def predict(self, schedule: Schedule) -> Prediction:
        """The prediction for a schedule."""
        self._turn_to(schedule)
        s, loop = dict(schedule.tiles), schedule.loop
        steps, blocks = self._steps(schedule), self._blocks(schedule)
        traffic = work = shared = fragment = 0.0
        matrix: dict[str, float] = {}
        for o in self.g.ops:
            repeat = steps if o.phase == BODY else 1
            n = self.elements(self.axes[o.name], o.phase, s, loop)
            if o.op == "load":
                bytes_ = n * self.source[o.source_value or ""].dtype.bytes
                traffic += bytes_ * repeat
                stages = schedule.stages if o.phase == BODY else 1
                shared += bytes_ * stages
            elif o.op == "contract":
                m, k = self._matrix(o, s, loop)
                name = o.dtype.name if o.dtype else "f32"
                matrix[name] = matrix.get(name, 0.0) + 2.0 * m * k * repeat
                fragment += m
            elif o.op == "thread" and o.thread is not None:
                work += n * o.thread.flops() * repeat
            elif o.op in ("sum", "top"):
                work += self.elements(self.axes[o.inputs[0]], o.phase, s, loop) * repeat
                shared += 4 * n
            elif o.op == "accum":
                work += 0.5 * n * repeat
        for o in self.staged:
            n = self.elements(self.axes[o.name], o.phase, s, loop)
            shared += 2 * n if self.t.kind == "cuda" else 4 * n
            work += 2.0 * n * (steps if o.phase == BODY else 1)
        if self.t.kind == "cpu":
            shared += 4 * fragment
        if self.g.split:  # shares are written once and read once by the last block
            traffic += 8 * sum(
                self.elements(self.axes[o.name], o.phase, s, loop) for o in self.g.ops if o.op == "grid_sum"
            )
        us = self._time(schedule, blocks, steps, traffic, work, matrix, shared, fragment)
        us += EXCHANGE_US if self.g.split else 0.0
        return Prediction(us, int(shared), self.floor(), traffic * blocks)

    def _matrix(self, o: BlockOp, s: Mapping[str, int], loop: int) -> tuple[float, float]:
        """(elements of the result with padding to whole matrices, depth)."""
        over = frozenset(o.over)
        sides = [self.elements(self.axes[i] - over, o.phase, s, loop) for i in o.inputs]
        depth = self.elements(over, o.phase, s, loop)
        if self.t.kind == "cuda":
            small, large = sorted(sides)
            return -(-small // 16) * 16 * (-(-large // 16) * 16), -(-depth // 16) * 16
        return float(sides[0] * sides[1]), float(depth)

    def parallel(self, schedule: Schedule) -> bool:
        """Whether the blocks of a schedule are worth more than one thread of a CPU."""
        self._turn_to(schedule)
        steps, blocks = self._steps(schedule), self._blocks(schedule)
        return blocks > 1 and blocks * self._task_us(schedule, steps) > 2 * self.t.fork_us

    def _steps(self, schedule: Schedule) -> int:
        if self.g.loop is None:
            return 1
        return -(-(schedule.tile(self.g.loop) or self.extents[self.g.loop]) // schedule.loop)

    def _blocks(self, schedule: Schedule) -> int:
        return math.prod(-(-self.extents[a] // t) for a, t in schedule.tiles)

    def _task_us(self, schedule: Schedule, steps: int) -> float:
        """One block on one core: vector work, conversions of loaded operands, fixed time of every statement."""
        if self._task is not None:
            return self._task
        s, loop, t = dict(schedule.tiles), schedule.loop, self.t
        seconds = 0.0
        for o in self.g.ops:
            repeat = steps if o.phase == BODY else 1
            n = self.elements(self.axes[o.name], o.phase, s, loop)
            if o.op == "load":
                converted = self.source[o.source_value or ""].dtype.name != "f32" and o.name in self.contracted
                seconds += repeat * n / t.special * (CONVERT_FLOPS if converted else 0.2)
                continue
            seconds += repeat * STATEMENT_US * 1e-6
            if o.op == "contract":
                over = frozenset(o.over)
                sides = [self.elements(self.axes[i] - over, o.phase, s, loop) for i in o.inputs]
                few = min(1.0, 0.2 + 0.15 * min(sides))  # few rows: operands come from memory for every product
                depth = self.elements(over, o.phase, s, loop)
                seconds += repeat * 2.0 * sides[0] * sides[1] * depth / (t.rate(o.dtype) * few)
            elif o.op == "thread" and o.thread is not None:
                seconds += repeat * n * o.thread.flops() / t.special
            elif o.op in ("sum", "top"):
                seconds += repeat * self.elements(self.axes[o.inputs[0]], o.phase, s, loop) / t.special
        self._task = seconds * 1e6
        return self._task

    def _cpu_time(self, schedule: Schedule, shared: float, traffic: float) -> float:
        steps, blocks = self._steps(schedule), self._blocks(schedule)
        task = self._task_us(schedule, steps) * (1.0 if shared <= self.t.shared_bytes / 2 else 2.0)
        time = blocks * task
        if self.parallel(schedule):
            time = self.t.fork_us + -(-blocks // self.t.units) * task
        memory = max(self.once, traffic * blocks / CACHE_FACTOR) / (self.t.bandwidth * STREAMED) * 1e6
        return float(self.t.launch_us + max(time, memory))

    def _time(
        self,
        schedule: Schedule,
        blocks: int,
        steps: int,
        traffic: float,
        work: float,
        matrix: Mapping[str, float],
        shared: float,
        fragment: float,
    ) -> float:
        t = self.t
        if t.kind == "cpu":
            return self._cpu_time(schedule, shared, traffic)
        resident = max(1, min(int(t.shared_total // max(shared, 1)), t.threads // (32 * schedule.warps), 8))
        slots = t.units * resident
        waves = -(-blocks // slots)
        used = min(1.0, blocks / t.units)
        memory = self.once / t.bandwidth / max(used, 1e-9) ** 0.5 * 1e6
        cache = traffic * blocks / (t.bandwidth * CACHE_FACTOR) / used * 1e6
        compute = sum(f * blocks / (t.rate(_dtype(name)) * MATRIX_EFFICIENCY) for name, f in matrix.items())
        compute = (compute + work * blocks / t.special) / used * 1e6
        barriers = len([o for o in self.g.ops if o.phase == BODY and o.op in BARRIER_OPS])
        chain = waves * (t.latency_us + steps * (STEP_US / min(resident, 2) + 0.05 * barriers))
        registers = fragment / (32 * schedule.warps)
        spill = 1.0 if registers <= 128 else 4.0
        return float(t.launch_us + max(memory, cache, compute * spill, chain))

    def floor(self) -> float:
        """The least time that the fragment can take: its bytes once, or its matrix products at the full rate."""
        flops: dict[str, float] = {}
        for n in self.p.nodes:
            if n.op == "contract":
                axes = frozenset(n.over).union(*(self.p.axes_of(i) for i in n.inputs))
                name = n.dtype.name if n.dtype else "f32"
                flops[name] = flops.get(name, 0.0) + 2.0 * math.prod(self.extents[a] for a in axes)
        cores = self.t.units if self.t.kind == "cpu" else 1  # a CPU's rates are those of one core
        compute = sum(f / (self.t.rate(_dtype(name)) * cores) for name, f in flops.items())
        return max(self.once / self.t.bandwidth, compute) * 1e6


def original_us(
    program: Program, operators: int, target: Target, sizes: Mapping[str, int] = MappingProxyType({})
) -> float:
    """What the original operators would cost one after the other: each reads and writes its tensors, each is launched."""
    extents = {a.name: number(a.extent, sizes) for a in program.axes}

    def size(v: str) -> int:
        return math.prod(extents[a] for a in program.axes_of(v))

    total = 0.0
    for n in program.nodes:
        if n.op in ("const", "iota", "extent"):
            continue
        moved = 4.0 * (size(n.name) + sum(size(i) for i in n.inputs))
        time = moved / target.bandwidth
        if n.op == "contract":
            axes = frozenset(n.over).union(*(program.axes_of(i) for i in n.inputs))
            cores = target.units if target.kind == "cpu" else 1
            time = max(time, 2.0 * math.prod(extents[a] for a in axes) / (target.rate(n.dtype) * cores * 0.8))
        elif n.op in OPS:
            time = max(time, size(n.name) * OPS[n.op].flops / target.special)
        total += time * 1e6
    return total + operators * target.kernel_us


def number(e: ex.Extent, sizes: Mapping[str, int] = MappingProxyType({})) -> int:
    """An extent as a number for estimates; a symbol without a size counts as `TYPICAL`."""
    return e if isinstance(e, int) else ex.value(e, {n: sizes.get(n, TYPICAL) for n in ex.names(e)})


def _dtype(name: str) -> DType | None:
    return DType(name, 0, "float")
