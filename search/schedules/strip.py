"""The engine `strip`: which block graphs suit it, how their axes lie in matrices, and its schedules.

Each group of warps walks its own iterations of the loop with values in registers; what groups have accumulated is merged
behind the loop. Products are done by matrix instructions, so every axis of their results lies either along the rows (16
at a time) or along the columns (8 at a time) of a matrix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import F32, DType
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.program import Input, Program
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, GRID, PROLOGUE, BlockGraph, BlockOp
from mirage_cli.search.schedules import packed
from mirage_cli.search.schedules.cost import number
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.strip_warps import across_of
from mirage_cli.search.schedules.target import Target

RESERVED = 1024  #: bytes of shared memory that every block takes beside its own
MOST_RESIDENT = 4  #: blocks of a multiprocessor beyond which more gain nothing
OTHER_REGISTERS = 100  #: of a thread, for all but the results of products
Size = Callable[[str, str], int]  #: positions of an axis that a tile of a phase holds


@dataclass(frozen=True, slots=True)
class Sides:
    """The axes along the rows and along the columns of matrices."""

    rows: frozenset[str]
    cols: frozenset[str]


def products(graph: BlockGraph) -> list[BlockOp]:
    """The contractions of the loop's body."""
    return [o for o in graph.ops if o.op == "contract" and o.phase == BODY]


def made_of_products(graph: BlockGraph) -> frozenset[str]:
    """The values of the body that depend on a contraction there."""
    values: set[str] = set()
    for o in graph.ops:
        if o.phase == BODY and (o.op == "contract" or values & set(o.inputs)):
            values.add(o.name)
    return frozenset(values)


def resident(target: Target, shared: int, threads: int, floats: float) -> int:
    """Number of blocks that a multiprocessor holds at a time, each of so much shared memory and so many threads with so many
    registers of products."""
    by_registers = int(target.registers / (threads * min(255.0, OTHER_REGISTERS + 1.25 * floats)))
    return max(1, min(target.shared_total // (shared + RESERVED), by_registers, MOST_RESIDENT))


def orient(program: Program, graph: BlockGraph, size: Size) -> Sides:
    """The sides of matrices on which the axes of a block graph lie. Raises Refused where no way fits all contractions.

    A contraction of what another one made sums along its columns, whose rows are then those of the result. Otherwise the
    smaller side lies along the columns, and what is quantised along the rows.
    """
    axes, made, quantised = graph.axes_of(program), made_of_products(graph), packed.operands(program, graph)
    rows: set[str] = set()
    cols: set[str] = set()

    def wide(own: frozenset[str]) -> frozenset[str]:
        return frozenset(a for a in own if size(a, BODY) > 1)

    chained = [(o, i) for o in products(graph) for i in o.inputs if i in made]
    for o, i in chained:
        over = frozenset(o.over)
        other = next((j for j in o.inputs if j != i), i)
        if other in made:
            raise Refused(f"{o.name} multiplies two results of products")
        cols |= wide(axes[i] & over) | wide(axes[other] - over)
        rows |= wide(axes[i] - over)
    for o in products(graph):
        over = frozenset(o.over)
        x, y = (wide(axes[i] - over) for i in o.inputs)
        if x & y:
            raise Refused(f"axis {min(x & y)} is a batch of the contraction {o.name}")
        for one, two in ((x, y), (y, x)):
            if one & rows or two & cols:
                rows |= one
                cols |= two
                break
        else:
            sides = [(i in quantised, _count(own, size), n, own) for n, (i, own) in enumerate(zip(o.inputs, (x, y)))]
            small, large = sorted(sides)
            rows |= large[-1]
            cols |= small[-1]
    if both := rows & cols:
        raise Refused(f"axis {min(both)} would lie along rows and columns")
    return Sides(frozenset(rows), frozenset(cols))


def _count(axes: frozenset[str], size: Size) -> int:
    total = 1
    for a in axes:
        total *= size(a, BODY)
    return total


# --- schedules --------------------------------------------------------------------------------------------------------
ROWS = (16, 32, 64, 128, 256)  #: rows of a block's strips
COLUMNS = (8, 16, 32, 64)  #: columns of a block's strips where an axis is too long to be held whole
HELD_COLUMNS = 512  #: columns that a block may hold whole
OWN_COLUMNS = 64  #: columns of results that a warp has at least where several share them
ONE_WARP = 128  #: columns that one warp holds by itself
DEPTHS = (16, 32, 64)  #: positions of the loop in an iteration
WARPS = (4, 8)
CLUSTERS = (2, 4, 8)  #: blocks that share a split reduction
MOST_STAGES = 8
CHUNK = 16  #: bytes that are copied at a time
LINE = 128  #: bytes of a line of memory
NOMINAL = 1024  #: what a symbol counts as where axes are told apart
MATRIX_REGISTERS = 160  #: registers of a thread that strips may take


@dataclass(frozen=True, slots=True)
class Roles:
    """The role of each grid axis in the products of a block graph; the axes of its values, and those made of products."""

    sides: Sides
    batch: frozenset[str]
    chained: bool
    axes: Mapping[str, frozenset[str]]
    made: frozenset[str]
    packed: Mapping[str, packed.Quantised]  #: operands that are read as they are stored


def roles(program: Program, graph: BlockGraph) -> Roles:
    """The roles of a block graph's axes. Raises Refused where the engine does not suit it."""
    if graph.loop is None or not products(graph):
        raise Refused("no loop with a product")
    if any(o.dtype is None or o.dtype.name not in ("f16", "bf16", "f32") for o in products(graph)):
        raise Refused("products are not of a type that kernels multiply")
    axes = graph.axes_of(program)
    if any(o.op == "load" and o.phase != BODY and graph.loop in axes[o.name] for o in graph.ops):
        raise Refused("a tile would be held whole along the loop")
    _check_outside(graph)
    _check_aligned(program, graph)
    batch = frozenset(a for o in products(graph) for a in (axes[o.inputs[0]] & axes[o.inputs[1]]) - frozenset(o.over))

    def size(axis: str, phase: str) -> int:
        if axis in batch:
            return 1
        extent = program.extent(axis)
        return extent if isinstance(extent, int) else NOMINAL

    made = made_of_products(graph)
    chained = any(i in made for o in products(graph) for i in o.inputs)
    return Roles(orient(program, graph, size), batch, chained, axes, made, _packed(program, graph, axes))


def _packed(program: Program, graph: BlockGraph, axes: Mapping[str, frozenset[str]]) -> Mapping[str, packed.Quantised]:
    """The quantised operands. Raises Refused for packed numbers that are read otherwise."""
    found = packed.operands(program, graph)
    numbers = {q.numbers for q in found.values()}
    for i in program.inputs:
        if program.sources[i.source].dtype.per_byte > 1 and i.name not in numbers | {
            b for q in found.values() for b in q.beside
        }:
            raise Refused(f"{i.name} is packed and no operand of a product in the loop")
    return found


def _check_aligned(program: Program, graph: BlockGraph) -> None:
    """Raises Refused where an operand cannot be copied in whole chunks."""
    axes = graph.axes_of(program)
    operands = {i for o in products(graph) for i in o.inputs}
    for o in reversed(graph.ops):  # what is stored like an operand that is computed of it is copied in chunks as well
        if o.op == "thread" and o.name in operands:
            operands.update(i for i in o.inputs if axes[i] == axes[o.name])
    for o in graph.ops:
        if o.op != "load" or o.name not in operands:
            continue
        source = next(i for i in program.inputs if i.name == o.source_value)
        vector = int(CHUNK / program.sources[source.source].dtype.size)
        slots = [s for s in source.access if s.extent != 1]
        stride: Extent = ex.ONE
        for k, slot in enumerate(reversed(slots)):
            factor = stride.factor if isinstance(stride, ex.Symbolic) else stride
            if (k == 0 and (slot.axis is None or slot.offset % vector)) or (k > 0 and factor % vector):
                raise Refused(f"rows of {o.source_value} are not aligned to {CHUNK} bytes")
            stride = ex.product([stride, slot.extent])


def _check_outside(graph: BlockGraph) -> None:
    """Raises Refused for operators outside of the loop that the engine does not make, and for sums that it does not carry
    through the loop: only products and sums are accumulated, not what is computed from them."""
    kinds = {o.name: o.op for o in graph.ops}
    accumulated = {o.name for o in graph.ops if o.op == "accum"}
    loaded = {o.name for o in graph.ops if o.op == "load"}
    allowed = {
        PROLOGUE: ("load", "iota", "extent", "thread", "sum", "top"),
        EPILOGUE: ("load", "iota", "extent", "thread", "accum", "contract"),
        GRID: ("thread", "grid_sum", "grid_top"),
    }
    for o in graph.ops:
        if o.op not in allowed.get(o.phase, (o.op,)):
            raise Refused(f"{o.name}: {o.op} in the {o.phase}")
        if o.op == "accum" and kinds[o.inputs[0]] not in ("contract", "sum"):
            raise Refused(f"{o.name} accumulates what is computed from products or sums")
        if o.op == "contract" and o.phase == EPILOGUE and not (accumulated & set(o.inputs) and loaded & set(o.inputs)):
            raise Refused(f"{o.name} is no product of an accumulator and an input")


def schedules(program: Program, graph: BlockGraph, target: Target, r: Roles) -> Iterator[Schedule]:
    """The schedules of a block graph with its roles that are worth a prediction. Raises Refused where clusters lack."""
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
                yield from _with_stages(program, graph, target, r, s)


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


def _with_stages(program: Program, graph: BlockGraph, target: Target, r: Roles, s: Schedule) -> Iterator[Schedule]:
    """A schedule with as many stages as one block, or two, on a multiprocessor have memory for."""
    shape = Shape(program, graph, s, r)
    counts = set()
    for blocks in (1, 2, 3, 4) if r.packed else (1, 2):
        room = min(target.shared_total // blocks - RESERVED, target.shared_bytes) - shape.kept
        stages = min(MOST_STAGES, room // max(1, shape.stage * shape.groups))
        registers = shape.registers() * (2 if r.packed else 1)  # sums of blocks are there besides
        if stages >= 2 and shape.merge <= room and stages not in counts and registers <= MATRIX_REGISTERS:
            counts.add(stages)
            yield replace(s, stages=stages)


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
    if axis in r.sides.rows:
        if not isinstance(extent, int):
            return [x for x in ROWS if x <= 128]
        return sorted({min(x, extent) for x in ROWS})
    if not isinstance(extent, int):
        return list(COLUMNS)
    if r.chained and extent <= HELD_COLUMNS:
        return [extent]
    return [extent] if extent <= COLUMNS[1] else sorted({min(x, extent) for x in COLUMNS[1:]})


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
        self._padded: dict[tuple[frozenset[str], int], int] = {}
        self.members = s.number("members")
        self.across = across_of(s)
        self.groups = s.warps // (self.members * self.across)
        reads = {i.name: program.sources[i.source].dtype.size for i in program.inputs}
        types = {i: o.dtype for o in products(graph) for i in o.inputs}
        operands = set(types)
        self.column_unit = 1 if packed.in_every_product(graph, r.packed) else 8 * self.across
        self.stage = self.kept = 0
        self.rings: list[tuple[int, float]] = []  # bytes of a stage's tiles, and those of them that lie side by side
        self.lines = 0.0  # pieces of memory lines that a stage takes
        for o in graph.ops:
            if o.op == "load" and (o.name in operands or self._feeds(o.name, operands)):
                bytes_ = math.ceil(self.elements(self.axes[o.name], o.phase) * reads[o.source_value or ""] / 128) * 128
                if o.phase == BODY:
                    self.stage += bytes_
                    run = self.run(o.source_value or "")
                    self.rings.append((bytes_, run))
                    self.lines += bytes_ / min(LINE, run)
                else:
                    self.kept += bytes_
        for o in graph.ops:
            converted = o.op == "load" and o.name in operands and self.dtype(o.source_value or "") != types[o.name]
            if converted or (o.op == "thread" and o.name in operands - r.made - r.packed.keys()):
                bytes_ = self.elements(self.axes[o.name], o.phase) * (4 if self.exact() else 2)
                self.kept += (self.groups if o.phase == BODY else 1) * -(-bytes_ // 128) * 128
        if self.across > 1:
            self.kept += self.groups * self._exchanged(r.made)
        self.results = [o for o in graph.ops if o.op == "accum" and o.inputs[0] in r.made]
        self.merge = sum(
            self.groups * 4 * self.rows(self.axes[o.name]) * (self.cols(self.axes[o.name]) + 4) for o in self.results
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

    def source(self, value: str) -> Input:
        """A program's input by name."""
        return next(i for i in self.p.inputs if i.name == value)

    def dtype(self, value: str) -> DType:
        """The type of an input's elements."""
        return self.p.sources[self.source(value).source].dtype

    def run(self, value: str) -> float:
        """Bytes of an input that lie side by side in a tile."""
        n = self.dtype(value).size
        for slot in reversed(self.source(value).access):
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
        return tile if tile is not None else self.extents[axis]

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

    def elements(self, axes: frozenset[str], phase: str) -> int:
        """Elements of an operand's tile with padding."""
        n = 1
        for own, unit in (
            (axes & self.r.sides.rows, 16 * self.members),
            (axes & self.r.sides.cols, self.column_unit),
            (axes - self.r.sides.rows - self.r.sides.cols, 1 if self.r.packed else 16),
        ):
            held = math.prod(self.size(a, phase) for a in own)
            n *= -(-held // unit) * unit if held > 1 else 1
        return n

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        total = 1
        for a, tile in self.s.tiles:
            shared = self.s.parts and a == self.g.loop
            total *= self.s.parts if shared else -(-self.extents[a] // tile)
        return total

    @property
    def cluster(self) -> int:
        """Blocks that reduce together."""
        if not self.g.split:
            return 1
        if self.s.parts:
            return self.s.parts
        return -(-self.extents[self.g.split[0]] // (self.s.tile(self.g.split[0]) or 1))

    @property
    def shared(self) -> int:
        """Shared memory of a block."""
        return max(self.stage * self.s.stages * self.groups, self.merge) + self.kept

    @property
    def turns(self) -> float:
        """Iterations of a group."""
        whole = self.extents[self.g.loop or ""]
        if self.g.loop in self.g.split:
            share = self.s.tile(self.g.loop or "") or whole
            whole = -(-whole // self.s.parts) if self.s.parts else share
        return math.ceil(math.ceil(whole / self.s.loop) / self.groups)

    def multiplies(self, exact_price: float, split_price: float) -> float:
        """Matrix instructions of a warp in an iteration; one for float32, plain or split, counts as many as its price says."""
        total = 0.0
        for o in products(self.g):
            own, columns = self.axes[o.name], self.cols(self.axes[o.name]) / 8
            depth = math.prod(self.size(a, BODY) for a in o.over)
            exact = split_price if columns > self.across else exact_price
            total += (exact if o.dtype == F32 else 1.0) * self.rows(own) / 16 * columns * math.ceil(depth / 16)
        return total / self.members / self.across

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

    def elementwise(self) -> float:
        """Elementwise operations of a lane in an iteration, each times its price."""
        made, total = self.r.made, 0.0
        for o in self.g.ops:
            own = self.axes[o.name]
            n = self.rows(own) * self.cols(own) / 32 / self.members / self.across
            if o.phase == BODY and o.op == "thread" and o.thread is not None and o.name in made:
                total += n * o.thread.flops()
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
