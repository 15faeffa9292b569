"""The engine `strip`: which block graphs suit it, and how their axes lie in matrices.

Each group of warps walks its own iterations of the loop with values in registers; what groups have accumulated is merged
behind the loop. Products are done by matrix instructions, so every axis of their results lies either along the rows (16
at a time) or along the columns (8 at a time) of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.limits import Form
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.hidden import limits, shown_loads
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, GRID, PROLOGUE, BlockGraph, BlockOp
from mirage_cli.search.schedules import packed
from mirage_cli.search.schedules.fitted import Clusters
from mirage_cli.search.schedules.schedule import Schedule, padded_depths
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
    packed: Mapping[str, packed.Quantised]  #: operands that are read as they are stored
    limits: tuple[Form, ...]
    shown: frozenset[str]  #: values that are rows of a load, and zeros


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
    own = _packed(program, graph, axes)
    shown = shown_loads(program, graph)
    return Roles(orient(program, graph, size), batch, chained, axes, made, own, limits(program, graph), shown)


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


# --- warps ------------------------------------------------------------------------------------------------------------
def across_of(s: Schedule) -> int:
    """The warps of a group that share the columns of its strips."""
    return dict(s.numbers).get("across", 1)


def multiply_together(s: Schedule, target: Target) -> bool:
    """True if the four warps of 64 rows multiply together, as matrix instructions of a warpgroup: where columns are shared,
    since operands lie in shared memory then."""
    return target.features.warpgroup_products and across_of(s) > 1 and s.number("members") % 4 == 0
