"""The schedules of the engine `strip` and their cost, of all at once, fitted to measurements of 532 kernels and of 59
attention kernels with few queries on one H200: for the latter the logarithm of prediction over measurement has a root mean
square of 0.15, and what the model chooses among them is 1.04 times slower than the best (geometric mean). Of 62 kernels with
quantised weights, whose steps took more instructions than now: 0.18, and 1.09 times. What matrix instructions take was fitted
to 85 kernels of published layers on an H100 (`samples/gpu_fit.py`)."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.hidden import given_limits
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, GRID, PROLOGUE, BlockGraph
from mirage_cli.search.mugraph.visible import shown
from mirage_cli.search.schedules import packed
from mirage_cli.search.schedules.cost import bytes_once, floor_us, number
from mirage_cli.search.schedules.fitted import Strip
from mirage_cli.search.schedules.model import Model
from mirage_cli.search.schedules.products import Floats, warps_of_sum
from mirage_cli.search.schedules.schedule import Prediction, Ranked, Schedule, block_count
from mirage_cli.search.schedules.strip import (
    CHUNK,
    NOMINAL,
    RESERVED,
    Roles,
    Shape,
    multiply_together,
    products,
    resident,
    roles,
    small_products,
    units_for,
)
from mirage_cli.search.schedules.target import Target

ATOM = 64  #: bytes that memory brings at least
PARTS = 4  #: parts of a multiprocessor that issue instructions
ROWS = (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256)  #: rows of a block's strips
CHAINED_ROWS = (16, 32, 64, 128, 256)  #: the same where products are multiplied again: others spill
COLUMNS = (8, 16, 32, 64)  #: columns of a block's strips where an axis is too long to be held whole
HELD_COLUMNS = 512  #: columns that a block may hold whole
OWN_COLUMNS = 64  #: columns of results that a warp has at least where several share them
ONE_WARP = 128  #: columns that one warp holds by itself
DEPTHS = (16, 32, 64)  #: positions of the loop in an iteration
WARPS = (4, 8)
CLUSTERS = (2, 4, 8)  #: blocks that share a split reduction
MOST_STAGES = 8
MATRIX_REGISTERS, PLAIN_REGISTERS = 160, 128  #: of a thread that strips may take; of products of loaded tiles alone


def shapes(program: Program, graph: BlockGraph, target: Target, r: Roles) -> Iterator[tuple[Shape, list[int]]]:
    """The schedules of a block graph with its roles that are worth a prediction, those that differ in their numbers of stages
    alone together. Raises Refused where clusters lack."""
    if graph.split and (len(graph.split) != 1 or not target.features.clusters):
        raise Refused("a reduction over blocks needs clusters")
    results = [*_results(program, graph, r.axes)]
    along_rows = [a for a in r.sides.rows & _result(program) if a != graph.loop]
    for tiles in itertools.product(*(_tiles(program, graph, r, a) for a in graph.grid)):
        tile = dict(zip(graph.grid, tiles, strict=True))
        rows = math.prod(_held(program, tile, a) for a in along_rows)
        cols = math.prod(tile[a] for a in r.sides.cols if a in tile and a not in graph.split)
        several = {a.name for a in program.axes if _held(program, tile, a.name) > 1}
        fit = all(len({own & several for own in axes}) == 1 for axes in results)
        if not 1 <= rows <= ROWS[-1] or (cols > HELD_COLUMNS) or not fit:
            continue
        depths = _depths(program, graph, r)
        for loop, warps in itertools.product(depths, WARPS):
            extent = program.extent(graph.loop or "")
            if isinstance(extent, int) and loop >= 2 * extent and loop > depths[0]:
                continue
            shares, numbers = _shared_out(program, graph, tile, loop)
            if graph.loop in graph.split and shares[graph.loop or ""] % loop:
                continue
            for members, across in itertools.product((1, 2, 4, 8), (1, 2, 4, 8)):
                if warps % (members * across) or (members > 1 and (rows < 16 * members or not (r.chained or r.packed))):
                    continue
                if across > 1 and not _shared(program, graph, r, tile, loop, across):
                    continue
                own = (("members", members), *((("across", across),) if across > 1 else ()), *numbers)
                s = Schedule(tuple(shares.items()), loop, warps, 2, "strip", own)
                shape = Shape(program, graph, s, r)
                if stages := _stages(shape, target):
                    yield shape, stages


def _results(
    program: Program, graph: BlockGraph, axes: Mapping[str, frozenset[str]]
) -> Iterator[frozenset[frozenset[str]]]:
    """For each output that is computed from strips behind the loop, the axes that it has and those that they have."""
    multiplied = {o.name for o in products(graph)}
    strips = {o.name: {o.name} for o in graph.ops if o.op == "accum" and o.inputs[0] in multiplied}
    strips |= {o.name: {o.name} for o in small_products(graph)}
    for o in graph.ops:
        if o.phase in (EPILOGUE, GRID) and o.op not in ("accum", "contract"):
            strips[o.name] = set[str]().union(*(strips.get(i, ()) for i in o.inputs))
    for n, name in enumerate(graph.outputs):
        if strips.get(name):
            stored = frozenset(s.axis for s in program.outputs[n].access if s.axis is not None)
            yield frozenset({axes[name] | stored, *(axes[v] for v in strips[name])})


def _summed_first(shape: Shape) -> float:
    """Elements that a lane sums in front of the loop of rows that are held along it: each row a warp, or several."""
    total = 0.0
    for o in shape.g.ops:
        if o.phase == PROLOGUE and o.op in ("sum", "top") and shape.g.loop in o.over:
            rows = math.prod(shape.size(a, PROLOGUE) for a in shape.axes[o.name])
            whole = math.prod(shape.size(a, PROLOGUE) for a in o.over)
            warps = warps_of_sum(rows, whole, shape.s.warps)
            total += math.ceil(rows / shape.s.warps) * whole / (32 * warps)
    return total


def _depths(program: Program, graph: BlockGraph, r: Roles) -> list[int]:
    """Positions of the loop in an iteration, the fewest first."""
    if not r.packed:
        return list(DEPTHS)
    each = max(packed.inner_depth(program, q) for q in r.packed.values())
    beside = {b for q in r.packed.values() for b in q.beside}
    depths = sorted({d // each for d in packed.DEPTHS if d >= each})
    return [d for d in depths if all(packed.may_be_copied(program, b, graph.loop or "", d) for b in beside)]


def _shared(program: Program, graph: BlockGraph, r: Roles, tile: Mapping[str, int], loop: int, across: int) -> bool:
    """True if so many warps may share the columns of scores and results: there have to be enough of both."""
    results = [
        math.prod(_held(program, tile, a) for a in r.axes[o.name] & r.sides.cols)
        for o in graph.ops
        if o.op == "accum" and o.inputs[0] in r.made
    ]
    most = max(results, default=0)
    narrow = all(o.dtype != F32 for o in products(graph))  # in float32 they were slower
    narrow = narrow and all(x.bits == 8 for x in r.columns.values())
    return narrow and r.chained and loop >= 8 * across and most > ONE_WARP and most >= OWN_COLUMNS * across


def _shared_out(
    program: Program, graph: BlockGraph, tile: Mapping[str, int], loop: int
) -> tuple[dict[str, int], tuple[tuple[str, int], ...]]:
    """The tiles of a schedule, and its number of `parts` where blocks share a loop of unknown length: `tile` has that number
    in the place of the share's length then."""
    if graph.loop not in graph.split or isinstance(program.extent(graph.loop or ""), int):
        return dict(tile), ()
    return dict(tile) | {graph.loop or "": 2 * loop}, (("parts", tile[graph.loop or ""]),)


def _stages(shape: Shape, target: Target) -> list[int]:
    """Numbers of stages for which one block, or two, on a multiprocessor have memory; no more than a group has iterations, and
    one: the memory is left to the blocks of the next kernel, which ask for its weights meanwhile."""
    r = shape.r
    known = isinstance(shape.p.extent(shape.g.loop or ""), int) and not r.packed
    most = min(MOST_STAGES, 1 + int(shape.turns(shape.extents))) if known else MOST_STAGES
    registers = shape.registers() * (2 if r.packed else 1)  # sums of blocks are there besides
    counts: dict[int, None] = {}
    for blocks in (1, 2, 3, 4) if r.packed else (1, 2):
        room = min(target.shared_total // blocks - RESERVED, target.shared_bytes) - shape.kept
        held = room // max(1, shape.stage * shape.groups)
        stages = most if shape.iterations < most <= held + 1 else min(most, held)
        allowed = MATRIX_REGISTERS if r.chained else PLAIN_REGISTERS
        if stages >= 2 and shape.merge <= room and registers <= allowed:
            counts[stages] = None
    return [*counts]


def _result(program: Program) -> frozenset[str]:
    """The axes of what is stored."""
    return frozenset(s.axis for o in program.outputs for s in o.access if s.axis is not None)


def _held(program: Program, tile: Mapping[str, int], axis: str) -> int:
    extent = program.extent(axis)
    return tile.get(axis, extent if isinstance(extent, int) else NOMINAL)


def _tiles(program: Program, graph: BlockGraph, r: Roles, axis: str) -> list[int]:
    extent = program.extent(axis)
    if axis in graph.split:
        if not isinstance(extent, int):
            return list(CLUSTERS) if axis == graph.loop else []  # see `_shared_out`
        least, most = DEPTHS[0], DEPTHS[-1]
        if r.packed:
            least = most = max([1, *(packed.UNIT // packed.inner_depth(program, q) for q in r.packed.values())])
        unit = most if extent >= most * CLUSTERS[0] else least
        shares = {-(-extent // (parts * unit)) * unit for parts in CLUSTERS if extent >= parts * unit}
        return sorted(x for x in shares if x < extent)
    if axis in r.batch or (axis not in r.sides.rows and axis not in r.sides.cols):
        return [1]
    by_rows = {v for q in r.packed.values() for v in (q.numbers, *q.beside)}  # which are copied one by one
    loads = {o.source_value or "" for o in graph.ops if o.op == "load" and o.phase == BODY}
    if any(_parted(program, v, axis) for v in loads - by_rows):
        return [1]
    if axis in r.sides.rows:
        if not isinstance(extent, int):
            one = [1] if given_limits(program, graph) else []  # behind a cache most runs have a single row
            return [*one, *(x for x in CHAINED_ROWS if x <= 128)]
        return sorted({min(x, extent) for x in (CHAINED_ROWS if r.chained else ROWS)})
    if not isinstance(extent, int):  # of packed operands most runs have a single row beside, and tiles are not padded
        return [*([1] if packed.in_every_product(graph, r.packed) else []), *COLUMNS]
    if r.chained and extent <= HELD_COLUMNS:
        return [extent]
    return [extent] if extent <= COLUMNS[1] else sorted({min(x, extent) for x in COLUMNS[1:]})


def _parted(program: Program, value: str, axis: str) -> bool:
    """True if what is read behind a position of an axis is a part of what is stored there: no tile holds two of them."""
    access = program.input(value).access
    behind = [s for k, s in enumerate(access) if axis in {before.axis for before in access[:k]} and s.extent != 1]
    return any(s.axis is None or s.extent != program.extent(s.axis) for s in behind)


# --- cost -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Table:
    """Schedules, which differ from others in their number of `stages` alone where they have one shape, and what kernels with
    them hold and do whatever the sizes of symbols are: see `_numbers`. Those of one kind walk their loops alike."""

    shapes: Sequence[Shape]
    kinds: Sequence[Shape]
    shape_of: NDArray[np.int64]  #: for each schedule
    kind_of: NDArray[np.int64]
    stages: Floats
    numbers: Mapping[str, Floats]

    def schedule(self, n: int) -> Schedule:
        """Schedule number n."""
        return replace(self.shapes[int(self.shape_of[n])].s, stages=int(self.stages[n]))

    def each(self, value: Callable[[Shape], float]) -> Floats:
        """A number of each kind, for every schedule."""
        numbers: Floats = np.array([value(x) for x in self.kinds], float)
        return numbers[self.kind_of]


def table(found: Iterable[tuple[Shape, Sequence[int]]], target: Target) -> Table:
    """The table of shapes with numbers of stages."""
    pairs = list(found)
    own = [shape for shape, _ in pairs]
    shape_of = np.repeat(np.arange(len(pairs)), [len(stages) for _, stages in pairs])
    keys = [(x.s.tiles, x.s.loop, x.s.parts, x.groups) for x in own]
    kinds = dict(zip(keys, own, strict=True))
    places = {key: n for n, key in enumerate(kinds)}
    kind_of = np.array([places[key] for key in keys], int)[shape_of]
    stages = np.array([n for _, stages in pairs for n in stages], float)
    rows = [_numbers(shape, target) for shape in own]
    numbers = {name: np.array([row[name] for row in rows], float)[shape_of] for name in (rows[0] if rows else ())}
    return Table(own, [*kinds.values()], shape_of, kind_of, stages, numbers)


def _numbers(shape: Shape, target: Target) -> dict[str, float]:
    """What kernels of a shape hold and do: bytes, warps, and work of an iteration."""
    c, s = target.fitted(Strip), shape.s
    return {
        "warps": s.warps,
        "groups": shape.groups,
        "members": shape.members,
        "across": shape.across,
        "stage": shape.stage,
        "kept": shape.kept,
        "merge": shape.merge,
        "stored": shape.stored,
        "lines": shape.lines,
        "moved": sum(bytes_ * max(_brought(run, c.beside), c.sector / run) for bytes_, run in shape.rings),
        "registers": shape.registers(),
        "cluster": shape.cluster,
        "iterations": shape.iterations,
        "multiplies": shape.multiplies(c.exact_price, c.split_price),
        "elementwise": shape.elementwise(c.computed_price),
        "steps": shape.steps(),
        "clocks": shape.clocks() if multiply_together(s, target) else 0.0,
        "first": _summed_first(shape),
        "operands": shape.operand_bytes() if shape.across > 1 else 0.0,
    }


def _brought(run: float, beside: float) -> float:
    """Bytes that memory brings for each of so many side by side: it brings ATOM at a time, and neighbours of tiles whose rows
    begin within one need it as well, of which the share `beside` comes to them anew."""
    return 1 + beside * (ATOM - math.gcd(math.ceil(run), ATOM)) / run


@dataclass(frozen=True, slots=True)
class Predictions:
    """Microseconds, shared memory of a block and bytes that all blocks bring, for each schedule of a table."""

    us: Floats
    shared: Floats
    moved: Floats


def predictions(
    own: Table, target: Target, once: float, extents: Mapping[str, int], chained: bool, packed: bool
) -> Predictions:
    """The predictions where kernels read and write `once` bytes in all, and axes have these extents."""
    c, n, s = target.fitted(Strip), own.numbers, own.stages
    warps, groups, members, across, stage = (n[x] for x in ("warps", "groups", "members", "across", "stage"))
    ring = np.where(n["iterations"] < s, n["iterations"], s)
    shared = np.maximum(stage * ring * groups, n["merge"]) + n["kept"]
    blocks = own.each(lambda x: block_count(x.g, x.s, extents))
    turns = own.each(lambda x: x.turns(extents))
    moved = once * own.each(lambda x: shown(x.expected(extents), x.g.loop or "", x.s.loop, extents, dict(x.s.tiles)))
    blocks_held = [*zip(shared, 32 * warps, n["registers"], strict=True)]
    room = {key: resident(target, int(key[0]), int(key[1]), key[2]) for key in set(blocks_held)}
    held = np.array([room[key] for key in blocks_held])
    by_cluster = {int(k): units_for(target, int(k)) for k in set(n["cluster"])}
    units = np.maximum(1, np.array([by_cluster[int(k)] for k in n["cluster"]]))
    slots = np.maximum(1, units * held)
    waves, busiest = np.ceil(blocks / slots), np.ceil(blocks / units)
    together, used = np.minimum(held, busiest), np.minimum(units, blocks)
    issue = c.issue_multiply_us * n["multiplies"] + c.issue_element_us * n["elementwise"] + c.issue_step_us * n["steps"]
    turn = c.latency_us + c.chained_us * chained + c.share_us * (across > 1)
    turn = turn + c.multiply_us * n["multiplies"] + c.element_us * n["elementwise"] + c.step_us * n["steps"]
    turn = turn + c.store_us * n["stored"] / (CHUNK * 32 * members * across)
    read = n["operands"] * (together * warps + c.half_operands) / c.operands
    alone = np.maximum(turn, np.maximum(issue * np.maximum(1.0, together * warps / PARTS), read))
    both = c.latency_us + c.chained_us + c.share_us + n["clocks"] / c.clocks
    both = both + c.issue_element_us * n["elementwise"] * warps / PARTS
    loop = turns * np.where(n["clocks"] > 0, both * together, alone)
    ahead = together * groups * (s - 1) * stage
    x = used * np.minimum(ahead, c.most_in_flight) / (target.units * c.in_flight)
    at_once = (s > turns) & (not packed)  # all that a group reads is on its way before the loop
    bent = np.minimum(1.0, c.rise * x / (1 + x**c.sharpness) ** (1 / c.sharpness))
    reached = np.where((stage > 0) & ~at_once, bent, 1.0)
    memory = moved * (n["moved"] / np.maximum(1, stage)) / (target.bandwidth * c.stream * reached) * 1e6
    memory = memory * np.where(at_once, 1.0, 1 + c.shallow / s**2)
    all_turns = groups * turns
    each = np.divide(all_turns * stage / c.copied, memory, out=np.zeros_like(memory), where=memory > 0)
    memory = memory * _longer(blocks, slots, units, each)
    copies = busiest * all_turns * np.maximum(c.piece_us * n["lines"], stage / c.copied)
    cache = blocks * all_turns * stage / (target.bandwidth * c.cache_factor * used / target.units) * 1e6
    fixed = c.launch_us + c.wave_us * (waves - 1) + np.array([_met_us(c, int(k)) for k in n["cluster"]])
    fixed = fixed + np.where(n["first"] > 0, c.latency_us + c.element_us * n["first"], 0.0) * waves
    slowest = sum(b**c.together for b in (loop * waves, memory, cache, copies)) ** (1 / c.together)
    return Predictions(fixed + slowest + c.merge_us * n["merge"] * waves, shared, blocks * all_turns * stage)


def _met_us(c: Strip, cluster: int) -> float:
    """Microseconds of blocks that wait for one another, as many as a cluster of the next size that was measured."""
    sizes = [k for k in c.cluster_us if k >= cluster] or [*c.cluster_us]
    return c.cluster_us[min(sizes, key=lambda k: abs(k - cluster))] if cluster > 1 else 0.0


def _longer(blocks: Floats, slots: Floats, units: Floats, alone: Floats) -> Floats:
    """How much longer memory takes where the last wave of blocks is a small one, which cannot use all of its bandwidth: one
    block takes at least `alone` of the time of all."""
    rest = blocks % slots
    share = rest / blocks
    longer: Floats = 1 - share + np.maximum(share, np.ceil(rest / units) * alone)
    return np.where((blocks < slots) | (rest == 0), 1.0, longer)


class StripModel(Model):
    """A block graph whose warps walk the loop on their own. Raises Refused where products do not suit strips."""

    def __init__(self, program: Program, graph: BlockGraph, target: Target, sizes: Mapping[str, int]) -> None:
        if target.kind != "cuda":
            raise Refused(f"{target.name} has no matrix instructions of warps")
        self.p, self.g, self.t = program, graph, target
        self.roles = roles(program, graph)
        self.stores = not self.roles.limits  # a mask leaves tiles out
        tiled = {*graph.grid, graph.loop}
        self.held = any(not isinstance(a.extent, int) for a in program.axes if a.name not in tiled)
        self._known: dict[Schedule | None, Table] = {}
        self._size(sizes)

    def _size(self, sizes: Mapping[str, int]) -> None:
        self.sizes, self.extents = sizes, {a.name: number(a.extent, sizes) for a in self.p.axes}
        self.floor, self.once = floor_us(self.p, self.t, sizes), bytes_once(self.p, sizes)
        if self.held:  # then shapes are others
            self._known = {}

    def at(self, sizes: Mapping[str, int]) -> StripModel:
        """The same with other sizes of symbols."""
        other = copy.copy(self)
        other._size(sizes)
        return other

    def table(self, schedule: Schedule | None = None) -> Table:
        """All schedules, or one."""
        if schedule not in self._known:
            every = shapes(self.p, self.g, self.t, self.roles)
            found = every if schedule is None else [(self.shape(schedule), [schedule.stages])]
            pairs = ((self.shape(x.s) if self.held else x, stages) for x, stages in found)
            self._known[schedule] = table(pairs, self.t)
        return self._known[schedule]

    def shape(self, schedule: Schedule) -> Shape:
        """The shape of kernels with a schedule at these sizes."""
        return Shape(self.p, self.g, schedule, self.roles, self.sizes)

    def schedules(self) -> Iterator[Schedule]:
        """Tiles, groups of warps and stages that fit."""
        own = self.table()
        return (self.named(own.schedule(n)) for n in range(len(own.stages)))

    def named(self, schedule: Schedule) -> Schedule:
        """A schedule that says whether the kernel is `late`: what its loop reads beside constants takes longer than a launch,
        and the next kernels, which ask for theirs as soon as they begin, would delay it."""
        loads, own = {o.source_value for o in self.g.ops if o.op == "load" and o.phase == BODY}, 0.0
        for i in self.p.inputs:
            if i.name in loads and i.source not in self.p.early:
                own += math.prod(self.extents[a] for a in self.p.axes_of(i.name)) * self.p.sources[i.source].dtype.size
        late = self.t.features.dependent_launch and own / self.t.bandwidth * 1e6 > self.t.fitted(Strip).launch_us
        return replace(schedule, numbers=(*schedule.numbers, ("late", 1))) if late else schedule

    def predicted(self, own: Table) -> Predictions:
        """The predictions for a table at these sizes."""
        return predictions(own, self.t, self.once, self.extents, self.roles.chained, bool(self.roles.packed))

    def predict(self, schedule: Schedule) -> Prediction:
        """Microseconds, and the bytes of all stages that blocks bring."""
        return self.prediction(self.predicted(self.table(schedule)), 0)

    def prediction(self, all_: Predictions, n: int) -> Prediction:
        """That of schedule number n."""
        return Prediction(float(all_.us[n]), int(all_.shared[n]), self.floor, float(all_.moved[n]))

    def ranked(self, count: int, small: Model | None) -> list[Ranked]:
        """The best schedules, all predicted at once."""
        own = self.table()
        if not len(own.stages):
            return []
        found = self.predicted(own)
        scores = np.sqrt(found.us * small.predicted(own).us) if isinstance(small, StripModel) else found.us
        best = np.sort(scores)[:count][-1]
        near = (int(n) for n in np.flatnonzero(scores <= best))
        chosen = (Ranked(self.named(own.schedule(n)), self.prediction(found, n), float(scores[n])) for n in near)
        return sorted(chosen, key=lambda r: r.order)[:count]
