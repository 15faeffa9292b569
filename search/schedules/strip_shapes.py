"""The schedules of the engine `strip`, and the sizes of their kernels: bytes and work of one block."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.hidden import given_limits
from mirage_cli.search.mugraph.mugraph import BODY, BlockGraph
from mirage_cli.search.mugraph.visible import walked
from mirage_cli.search.schedules import packed
from mirage_cli.search.schedules.cost import number
from mirage_cli.search.schedules.schedule import Schedule, padded_depths
from mirage_cli.search.schedules.strip import NOMINAL, RESERVED, Roles, across_of, products, small_products
from mirage_cli.search.schedules.target import Target

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
LINE = 128  #: bytes of a line of memory
MATRIX_REGISTERS, PLAIN_REGISTERS = 160, 128  #: of a thread that strips may take; of products of loaded tiles alone


def shapes(program: Program, graph: BlockGraph, target: Target, r: Roles) -> Iterator[tuple[Shape, list[int]]]:
    """The schedules of a block graph with its roles that are worth a prediction, those that differ in their numbers of stages
    alone together. Raises Refused where clusters lack."""
    if graph.split and (len(graph.split) != 1 or not target.features.clusters):
        raise Refused("a reduction over blocks needs clusters")
    along_rows = [a for a in r.sides.rows & _result(program) if a != graph.loop]
    for tiles in itertools.product(*(_tiles(program, graph, r, a) for a in graph.grid)):
        tile = dict(zip(graph.grid, tiles, strict=True))
        rows = math.prod(_held(program, tile, a) for a in along_rows)
        cols = math.prod(tile[a] for a in r.sides.cols if a in tile and a not in graph.split)
        if not 1 <= rows <= ROWS[-1] or (cols > HELD_COLUMNS):
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
        stages = min(most, room // max(1, shape.stage * shape.groups))
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
    if any(_parted(program, o.source_value or "", axis) for o in graph.ops if o.op == "load" and o.phase == BODY):
        return [1]
    if axis in r.sides.rows:
        if not isinstance(extent, int):
            one = [1] if given_limits(program, graph) else []  # behind a cache most runs have a single row
            return [*one, *(x for x in CHAINED_ROWS if x <= 128)]
        return sorted({min(x, extent) for x in (CHAINED_ROWS if r.chained else ROWS)})
    if not isinstance(extent, int):
        return list(COLUMNS)
    if r.chained and extent <= HELD_COLUMNS:
        return [extent]
    return [extent] if extent <= COLUMNS[1] else sorted({min(x, extent) for x in COLUMNS[1:]})


def _parted(program: Program, value: str, axis: str) -> bool:
    """True if what is read behind a position of an axis is a part of what is stored there: no tile holds two of them."""
    access = program.input(value).access
    behind = [s for k, s in enumerate(access) if axis in {before.axis for before in access[:k]} and s.extent != 1]
    return any(s.axis is None or s.extent != program.extent(s.axis) for s in behind)


class Shape:
    """The sizes of a kernel: bytes and work of one block, as its lowering will have them."""

    def __init__(
        self,
        program: Program,
        graph: BlockGraph,
        s: Schedule,
        r: Roles,
        sizes: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.p, self.g, self.s, self.r = program, graph, s, r
        self.extents, self.axes = {a.name: number(a.extent, sizes) for a in program.axes}, r.axes
        self.held = self.extents | padded_depths(graph, lambda a: s.tile(a) or self.extents[a], s.loop)
        self._padded: dict[tuple[frozenset[str], int], int] = {}
        self.members = s.number("members")
        self.across = across_of(s)
        self.groups = s.warps // (self.members * self.across)
        reads = {i.name: program.sources[i.source].dtype.size for i in program.inputs}
        types = {i: o.dtype for o in products(graph) for i in o.inputs}
        operands, smalls = set(types), {i for o in small_products(graph) for i in o.inputs}
        self.column_unit = 1 if packed.in_every_product(graph, r.packed) else 8 * self.across
        self.stage = self.kept = self.stored = 0  # bytes; `stored` are those of a stage that go on to memory
        self.rings: list[tuple[int, float]] = []  # bytes of a stage's tiles, and those of them that lie side by side
        self.lines = 0.0  # pieces of memory lines that a stage takes
        for o in graph.ops:
            if o.op == "load" and (o.name in operands | smalls or self._feeds(o.name, operands)):
                whole = o.name in operands | smalls or any(
                    o.name in u.inputs and u.name not in operands for u in graph.ops
                )
                elements = self.elements(self.axes[o.name], o.phase, whole)
                bytes_ = math.ceil(elements * reads[o.source_value or ""] / 128) * 128
                if o.phase == BODY:
                    self.stage += bytes_
                    self.stored += bytes_ if program.sources[self.p.input(o.source_value or "").source].parts else 0
                    run = self.run(o.source_value or "")
                    self.rings.append((bytes_, run))
                    self.lines += bytes_ / min(LINE, run)
                else:
                    self.kept += bytes_
        for o in graph.ops:
            converted = (
                o.op == "load" and o.name in operands and packed.type_of(self.p, o.source_value or "") != types[o.name]
            )
            if converted or (o.op == "thread" and o.name in operands - r.made - r.packed.keys() - self.r.shown):
                bytes_ = self.elements(self.axes[o.name], o.phase, True) * (4 if self.exact() else 2)
                self.kept += (self.groups if o.phase == BODY else 1) * -(-bytes_ // 128) * 128
        if self.across > 1:
            self.kept += self.groups * self._exchanged(r.made)
        self.results = [o for o in graph.ops if o.op == "accum" and o.inputs[0] in r.made]
        self.merge = sum(
            4 * self.rows(own) * (self.groups * (self.cols(own) + 4) + (self.cols(own) if o.name in smalls else 0))
            for o in self.results
            for own in (self.axes[o.name],)
        )
        if graph.split:
            summed = [o for o in graph.ops if o.op == "grid_sum"]
            self.kept += sum(4 * math.prod(self.size(a, BODY) for a in self.axes[o.name]) + 512 for o in summed)
        self.kept += 4096 if self.across == 1 else 1024  # of several warps across the vectors are counted above

    def _exchanged(self, made: frozenset[str]) -> int:
        """Bytes through which the warps of a group that share columns show one another operands, maxima and sums."""
        operands = {i for o in products(self.g) for i in o.inputs} & made
        size = 4 if self.exact() else 2
        bytes_ = sum(size * self.rows(self.axes[n]) * self.cols(self.axes[n]) for n in operands)
        return bytes_ + 4 * self.across * sum(
            self.rows(self.axes[o.name]) for o in self.g.ops if o.op in ("top", "sum") and o.inputs[0] in made
        )

    def run(self, value: str) -> float:
        """Bytes of an input that lie side by side in a tile."""
        n = packed.type_of(self.p, value).size
        for slot in reversed(self.p.input(value).access):
            held = 1 if slot.axis is None else self.size(slot.axis, BODY)
            n *= held
            if slot.extent != held:
                break
        return n

    def exact(self) -> bool:
        """True if products are done in float32."""
        return any(o.dtype is not None and o.dtype.bytes == 4 for o in products(self.g))

    def _feeds(self, load: str, operands: set[str]) -> bool:
        return any(o.name in operands and load in o.inputs and o.op == "thread" for o in self.g.ops)

    def size(self, axis: str, phase: str) -> int:
        """Positions of an axis in a tile."""
        if axis == self.g.loop and phase == BODY:
            return self.s.loop
        tile = self.s.tile(axis)
        return tile if tile is not None else self.held[axis]

    def rows(self, axes: frozenset[str]) -> int:
        """Rows of a block's strip with padding."""
        return self._held(axes & self.r.sides.rows, 16 * self.members)

    def cols(self, axes: frozenset[str]) -> int:
        """Columns of a strip with padding."""
        return self._held(axes & self.r.sides.cols, 8 * self.across)

    def _held(self, axes: frozenset[str], unit: int) -> int:
        """Positions of axes in a tile of the body, up to a multiple."""
        key = (axes, unit)
        if key not in self._padded:
            self._padded[key] = -(-math.prod(self.size(a, BODY) for a in axes) // unit) * unit
        return self._padded[key]

    def elements(self, axes: frozenset[str], phase: str, whole: bool = False) -> int:
        """Elements of a tile with padding; a `whole` one, which products read, has all columns of a matrix even for one."""
        n = 1
        for own, unit in (
            (axes & self.r.sides.rows, 16 * self.members),
            (axes & self.r.sides.cols, self.column_unit),
            (axes - self.r.sides.rows - self.r.sides.cols, 1 if self.r.packed else 16),
        ):
            held = math.prod(self.size(a, phase) for a in own)
            n *= -(-held // unit) * unit if held > 1 else 1
        alone = whole and all(self.size(a, phase) == 1 for a in axes & (self.r.sides.rows | self.r.sides.cols))
        return n * self.column_unit if alone else n

    @property
    def cluster(self) -> int:
        """Blocks that reduce together."""
        if not self.g.split:
            return 1
        if self.s.parts:
            return self.s.parts
        return -(-self.extents[self.g.split[0]] // (self.s.tile(self.g.split[0]) or 1))

    def turns(self, extents: Mapping[str, int]) -> float:
        """Iterations of a group, those of which a mask shows something, where axes have these extents."""
        loop, tiles = self.g.loop or "", dict(self.s.tiles)
        if self.s.parts:
            tiles[loop] = -(-extents[loop] // self.s.parts)
        steps = walked(self.r.limits, loop, self.s.loop, extents, tiles)[0]
        return math.ceil(steps / self.groups)

    def multiplies(self, exact_price: float, split_price: float) -> float:
        """Matrix instructions of a warp in an iteration; one for float32, plain or split, counts as many as its price says."""
        total = 0.0
        for o in products(self.g):
            own, columns = self.axes[o.name], self.cols(self.axes[o.name]) / 8
            depth = math.prod(self.size(a, BODY) for a in o.over)
            exact = split_price if columns > self.across else exact_price
            total += (exact if o.dtype == F32 else 1.0) * self.rows(own) / 16 * columns * math.ceil(depth / 16)
        return total / self.members / self.across

    def steps(self) -> float:
        """Steps of 16 rows and 32 positions of quantised numbers in an iteration of a warp; preparing 8 columns of as many
        positions counts for a part of one."""
        total = 0.0
        for o in products(self.g):
            if self.r.packed.keys() & set(o.inputs):
                own, depth = self.axes[o.name], math.prod(self.size(a, BODY) for a in o.over)
                matrices = self.rows(own) / 16 / self.members
                total += (matrices + packed.COLUMNS * self.cols(own) / 8) * depth / packed.STEP
        return total

    def operand_bytes(self) -> float:
        """Bytes of shared memory that a warp reads as operands of products in an iteration."""
        made, total = self.r.made, 0.0
        for o in products(self.g):
            own = self.axes[o.name]
            rows, cols = self.rows(own) / self.members, self.cols(own) / self.across
            chained = any(i in made for i in o.inputs) and self.across == 1
            depth = math.prod(self.size(a, BODY) for a in o.over)
            total += (cols + (0 if chained else rows)) * 16 * math.ceil(depth / 16) * (4 if self.exact() else 2)
        return total

    def clocks(self) -> float:
        """Clocks of a multiprocessor for a block's iteration, where four warps multiply together: what the matrix units or
        reading both operands from shared memory takes."""
        total = 0.0
        for o in products(self.g):
            own = self.axes[o.name]
            depth, cols = math.prod(self.size(a, BODY) for a in o.over), self.cols(own) / self.across
            total += math.ceil(depth / 16) * max(cols / 2, 16 * math.ceil(cols / 128) + cols / 4)
        return total * self.groups * self.across * self.members / 4

    def elementwise(self, computed_price: float) -> float:
        """Elementwise operations of a lane in an iteration, each times its price; an element of a tile that is computed of
        tiles counts as many as its price says."""
        made, total = self.r.made, 0.0
        operands = {i for o in products(self.g) for i in o.inputs} - self.r.packed.keys() - self.r.shown
        for o in self.g.ops:
            own = self.axes[o.name]
            n = self.rows(own) * self.cols(own) / 32 / self.members / self.across
            if o.phase == BODY and o.op == "thread" and o.thread is not None and o.name in made:
                total += n * o.thread.flops()
            elif o.phase == BODY and o.op == "thread" and o.name in operands:
                total += computed_price * self.elements(own, BODY) / 32 / self.members
            elif o.phase == BODY and o.op in ("sum", "top"):
                read = self.axes[o.inputs[0]]
                if o.inputs[0] in made:
                    total += self.rows(read) * self.cols(read) / 32 / self.members / self.across
                else:
                    total += 4.0 * self.elements(read, BODY) / 32 / self.members
            elif o.op == "accum" and len(o.inputs) > 1:
                total += n
        return total

    def registers(self) -> float:
        """Registers of a thread that strips take."""
        strips = {o.name for o in products(self.g)}
        lanes = 32 * self.members * self.across
        return sum(self.rows(self.axes[n]) * self.cols(self.axes[n]) / lanes for n in strips)
