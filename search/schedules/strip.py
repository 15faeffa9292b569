"""The engine `strip`: which block graphs suit it, how their axes lie in matrices, and the sizes of kernels.

Each group of warps walks its own iterations of the loop with values in registers; what groups have accumulated is merged
behind the loop. Products are done by matrix instructions, so every axis of their results lies either along the rows (16
at a time) or along the columns (8 at a time) of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.limits import Form
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.parts import place_axes
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.hidden import given_limits, limits, shown_loads
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, GRID, PROLOGUE, BlockGraph, BlockOp
from mirage_cli.search.mugraph.visible import expected, walked
from mirage_cli.search.schedules import packed
from mirage_cli.search.schedules.cost import number
from mirage_cli.search.schedules.fitted import Clusters
from mirage_cli.search.schedules.products import held_along, may_hold
from mirage_cli.search.schedules.schedule import Schedule, padded_depths
from mirage_cli.search.schedules.target import Target

HALF = 8  #: rows of which each lane has one element of a matrix beside another
RESERVED = 1024  #: bytes of shared memory that every block takes beside its own
MOST_RESIDENT = 4  #: blocks of a multiprocessor beyond which more gain nothing
OTHER_REGISTERS = 100  #: of a thread, for all but the results of products
LINE = 128  #: bytes of a line of memory
Size = Callable[[str, str], int]  #: positions of an axis that a tile of a phase holds


@dataclass(frozen=True, slots=True)
class Sides:
    """The axes along the rows and along the columns of matrices."""

    rows: frozenset[str]
    cols: frozenset[str]


def products(graph: BlockGraph) -> list[BlockOp]:
    """The contractions of the loop's body."""
    return [o for o in graph.ops if o.op == "contract" and o.phase == BODY]


def small_products(graph: BlockGraph) -> list[BlockOp]:
    """The contractions behind the loop: of an accumulator and an input that the block holds."""
    return [o for o in graph.ops if o.op == "contract" and o.phase == EPILOGUE]


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


def units_for(target: Target, cluster: int) -> int:
    """Multiprocessors that clusters of so many blocks can have; some may get one more than others."""
    return int(target.fitted(Clusters).share(cluster) * target.units) * cluster if cluster > 1 else target.units


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
            either = zip((x, y), o.inputs, strict=True)
            (small, _), (large, _) = sorted(either, key=lambda side: (side[1] in quantised, _count(side[0], size)))
            rows |= large
            cols |= small
    if both := rows & cols:
        raise Refused(f"axis {min(both)} would lie along rows and columns")
    return Sides(frozenset(rows), frozenset(cols))


def _count(axes: frozenset[str], size: Size) -> int:
    total = 1
    for a in axes:
        total *= size(a, BODY)
    return total


# --- roles ------------------------------------------------------------------------------------------------------------
CHUNK = 16  #: bytes that are copied at a time
NOMINAL = 1024  #: what a symbol counts as where axes are told apart


@dataclass(frozen=True, slots=True)
class Roles:
    """The role of each grid axis in the products of a block graph; the axes of its values, and those made of products."""

    sides: Sides
    batch: frozenset[str]
    chained: bool
    axes: Mapping[str, frozenset[str]]
    made: frozenset[str]
    columns: Mapping[str, packed.Columns]  #: operands along columns that are read as they are stored
    packed: Mapping[str, packed.Quantised]  #: the same along rows
    limits: tuple[Form, ...]  #: those with integers that are inputs too
    shown: frozenset[str]  #: values that are rows of a load, and zeros


def roles(program: Program, graph: BlockGraph) -> Roles:
    """The roles of a block graph's axes. Raises Refused where the engine does not suit it."""
    if graph.loop is None or not products(graph):
        raise Refused("no loop with a product")
    if any(o.dtype is None or o.dtype.name not in ("f16", "bf16", "f32") for o in products(graph)):
        raise Refused("products are not of a type that kernels multiply")
    axes = graph.axes_of(program)
    early = {o.name for o in graph.ops if o.phase != BODY and graph.loop in axes[o.name]}
    held_operand = any(not early.isdisjoint(o.inputs) for o in products(graph))
    if held_operand or not all(may_hold(program, graph, o) for o in graph.ops if held_along(graph, o, axes)):
        raise Refused("a tile would be held whole along the loop")
    _check_outside(graph)
    _check_aligned(program, graph)
    batch = place_axes(program).union(*((axes[o.inputs[0]] & axes[o.inputs[1]]) - {*o.over} for o in products(graph)))

    def held(axis: str) -> int:
        extent = program.extent(axis)
        return extent if isinstance(extent, int) else NOMINAL

    padded = padded_depths(graph, held, NOMINAL)

    def size(axis: str, phase: str) -> int:
        return 1 if axis in batch else padded.get(axis, held(axis))

    made = made_of_products(graph)
    if any(o.op == "top" and o.phase == BODY and o.inputs[0] not in made for o in graph.ops):
        raise Refused("a maximum over a loaded tile")
    chained = any(i in made for o in products(graph) for i in o.inputs)
    columns = packed.columns(program, graph) if chained else {}
    own = _packed(program, graph, {x.numbers for x in columns.values()})
    shown = frozenset(shown_loads(program, graph))
    return Roles(
        orient(program, graph, size),
        batch,
        chained,
        axes,
        made,
        columns,
        own,
        (*limits(program, graph), *given_limits(program, graph)),
        shown,
    )


def _packed(program: Program, graph: BlockGraph, columns: Collection[str]) -> Mapping[str, packed.Quantised]:
    """The quantised operands. Raises Refused for packed numbers that are read otherwise, but by the loads of `columns`."""
    found = packed.operands(program, graph)
    numbers = {q.numbers for q in found.values()} | {o.source_value for o in graph.ops if o.name in columns}
    for i in program.inputs:
        if program.sources[i.source].dtype.per_byte > 1 and i.name not in numbers | {
            b for q in found.values() for b in q.beside
        }:
            raise Refused(f"{i.name} is packed and no operand of a product in the loop")
    return found


def _check_aligned(program: Program, graph: BlockGraph) -> None:
    """Raises Refused where an operand cannot be copied in whole chunks."""
    axes, made = graph.axes_of(program), made_of_products(graph)
    operands = {i for o in products(graph) for i in o.inputs}
    for o in reversed(graph.ops):  # what is stored like an operand that is computed of it is copied in chunks as well
        if o.op == "thread" and o.name in operands - made:
            operands.update(i for i in o.inputs if axes[i] == axes[o.name])
    for o in graph.ops:
        if o.op != "load" or o.name not in operands:
            continue
        source = program.input(o.source_value)
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


# --- rings ------------------------------------------------------------------------------------------------------------
def iterations(s: Schedule, walked: Extent | None, groups: int) -> float:
    """A group's iterations over a block's positions of the loop; infinite where these are not known."""
    return -(-walked // (s.loop * groups)) if isinstance(walked, int) and not s.parts else math.inf


# --- warps ------------------------------------------------------------------------------------------------------------
def across_of(s: Schedule) -> int:
    """The warps of a group that share the columns of its strips."""
    return dict(s.numbers).get("across", 1)


def multiply_together(s: Schedule, target: Target) -> bool:
    """True if the four warps of 64 rows multiply together, as matrix instructions of a warpgroup: where columns are shared,
    since operands lie in shared memory then."""
    return target.features.warpgroup_products and across_of(s) > 1 and s.number("members") % 4 == 0


# --- sizes of kernels -------------------------------------------------------------------------------------------------
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
        self.columns = {n: x for n, x in r.columns.items() if x.in_registers(self.members, self.across)}
        if any(x.bits < 8 for n, x in r.columns.items() if n not in self.columns):
            raise Refused("warps that share columns read no packed ones")
        operands, smalls = set(types), {i for o in small_products(graph) for i in o.inputs}
        self.column_unit = 1 if packed.in_every_product(graph, r.packed) else 8 * self.across
        self.stage = self.kept = self.stored = 0  # bytes; `stored` are those of a stage that go on to memory
        self.rings: list[tuple[int, float]] = []  # bytes of a stage's tiles, and those of them that lie side by side
        self.lines = 0.0  # pieces of memory lines that a stage takes
        for o in graph.ops:
            if held_along(graph, o, self.axes):
                elements = math.prod(self.size(a, PROLOGUE) for a in self.axes[o.name])
                self.kept += math.ceil(elements * reads[o.source_value or ""] / 128) * 128
            elif o.op == "load" and (o.name in operands | smalls or self._feeds(o.name, operands)):
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
            if o.name in self.columns:
                continue
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

    def visited(self, axes: frozenset[str]) -> int:
        """Rows of whose elements lanes compute something: no lower halves of matrices that have no rows."""
        n = self._held(axes & self.r.sides.rows, HALF)
        return n if n <= HALF and self.members == 1 else self.rows(axes)

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

    @property
    def iterations(self) -> float:
        """Iterations of a group, whatever a mask shows; where there are more stages, its ring has a tile for each of them."""
        loop = self.g.loop or ""
        return iterations(self.s, self.s.tile(loop) or self.p.extent(loop), self.groups)

    def expected(self, extents: Mapping[str, int]) -> tuple[Form, ...]:
        """The limits of a mask that predictions count with."""
        return expected(self.p, self.r.limits, self.g.loop or "", dict(self.s.tiles), extents) if self.r.limits else ()

    def turns(self, extents: Mapping[str, int]) -> float:
        """Iterations of a group, those of which a mask shows something, where axes have these extents."""
        loop, tiles = self.g.loop or "", dict(self.s.tiles)
        if self.s.parts:
            tiles[loop] = -(-extents[loop] // self.s.parts)
        steps = walked(self.expected(extents), loop, self.s.loop, extents, tiles)[0]
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
            n = self.visited(own) * self.cols(own) / 32 / self.members / self.across
            if o.phase == BODY and o.op == "thread" and o.thread is not None and o.name in made:
                total += n * o.thread.flops()
            elif o.name in self.columns:
                total += packed.UNPACKING[self.columns[o.name].bits] * self.elements(own, BODY) / 32
            elif o.phase == BODY and o.op == "thread" and o.name in operands:
                total += computed_price * self.elements(own, BODY) / 32 / self.members
            elif o.phase == BODY and o.op in ("sum", "top"):
                read = self.axes[o.inputs[0]]
                if o.inputs[0] in made:
                    total += self.visited(read) * self.cols(read) / 32 / self.members / self.across
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
