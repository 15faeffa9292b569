"""Tiles for the copy engine: tensor maps that the host makes, and the boxes of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_cli.codegen.requests.request import FAILED
from mirage_cli.codegen.warpgroup.plan import HELD, MAX_BOX, Plan, Tile
from mirage_cli.codegen.warpgroup.values import Values
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.ir import Value
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import BF16, F16, F32
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE
from mirage_cli.search.schedules.warpgroup import aligned, walk

MAX_RANK = 5
DATA_TYPES = {
    F16: "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
    BF16: "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
    F32: "CU_TENSOR_MAP_DATA_TYPE_FLOAT32",
}
INTS = k.of_type("int", const=True)


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension of a tensor map: the axis that walks it, its extent, elements between neighbours, positions of a box."""

    axis: str
    extent: Extent
    stride: Extent
    box: int


@dataclass(frozen=True, slots=True)
class Map:
    """A tensor map: dimensions innermost first; `start` is the first element, `parts` says how many blocks of a cluster bring
    parts of the tile."""

    tile: Tile
    dimensions: tuple[Dimension, ...]
    start: Extent
    parts: int

    @property
    def name(self) -> str:
        """Its name among the kernel's parameters."""
        return f"map_{self.tile.name}"

    def field(self) -> ir.Field:
        """The member of the kernel's parameters."""
        return ir.Field(ir.Type("CUtensorMap"), self.name)

    def setup(self, values: Values) -> list[ir.Statement]:
        """Statements of the host that set it."""
        t, rank, p, boxes = self.tile, len(self.dimensions), k.name("p"), f"boxes_{self.tile.name}"
        start = k.total([p.member(t.value), *([] if self.start == 0 else [_number(self.start, values)])])
        extents = k.array(*(_number(d.extent, values) for d in self.dimensions))
        strides = k.array(0, *(_number(ex.product([d.stride, t.dtype.bytes]), values) for d in self.dimensions[1:]))
        described = k.array(start, extents, strides, k.array(*(d.box for d in self.dimensions)))
        made = k.name(self.name).member("make")(p.member(self.name), DATA_TYPES[t.dtype], boxes)
        return [
            k.declare(k.of_type("TensorMap", rank), self.name, storage="thread_local"),
            k.let(k.of_type("Boxes", rank), boxes, described),
            k.assign("status", made),
            FAILED,
        ]

    def loads(self, plan: Plan, values: Values) -> list[ir.Statement]:
        """Statements of the producer that bring the tile; of a cluster that shares it each block brings a part to all."""
        t, rank = self.tile, len(self.dimensions)
        phase = PROLOGUE if t.ring == HELD else BODY
        height = next(d.box for d in self.dimensions if d.axis == t.outer)
        places = [(c, r) for c in range(0, t.cols, t.panel) for r in range(0, t.rows, height)]
        loads, count = list[ir.Statement](), len(places) // self.parts
        static, mask = ((rank, True), [(1 << self.parts) - 1]) if self.parts > 1 else ((rank,), [])
        for n in range(count):
            own = places[n::count]
            first = {t.inner: _by_rank([c for c, _ in own]), t.outer: _by_rank([r for _, r in own])}
            to = k.name(t.name) + _by_rank([(c * t.rows + r * t.panel) * t.dtype.bytes for c, r in own])
            at = (k.total([*values.base(d.axis, phase), first.get(d.axis, 0)]) for d in self.dimensions)
            positions = k.array(*(k.cast("int", p) for p in at))
            load = k.call("load_box", to, k.name("parameters").member(self.name), "full", "at", *mask, static=static)
            loads.append(k.scope(k.declare(INTS, "at", positions, dims=[k.number("")]), k.do(load)))
        return loads


def _by_rank(numbers: Sequence[int]) -> Value:
    """A number that depends evenly on the block's place in the cluster."""
    if len(set(numbers)) == 1:
        return numbers[0]
    return numbers[0] + k.name("rank") * (numbers[1] - numbers[0])


def _number(e: Extent, values: Values) -> ir.Expression:
    if not isinstance(e, Symbolic):
        return k.number(f"{e}ull")
    return k.cast("uint64_t", k.product([e.factor, *(f"s_{values.symbols.index(n)}" for n in e.names)]))


def tensor_map(plan: Plan, tile: Tile, shared: bool) -> Map:
    """The map of a tile. Raises Refused where rows or the first element are at no multiples of 16 bytes."""
    source = plan.program.input(tile.value)
    start, strides = walk(plan.program, source)
    parts = plan.cluster if shared else 1
    height = min(tile.rows, MAX_BOX)
    panels = tile.cols // tile.panel
    if parts > 1 and panels * (tile.rows // height) % parts:
        height = height // parts
        if height % 8:
            raise Refused(f"{tile.name}: {tile.rows} rows for {parts} blocks of a cluster")
    if tile.rows % height:
        raise Refused(f"{tile.name}: {tile.rows} rows")
    if len({axis for axis, _, _ in strides}) < len(strides):
        raise Refused(f"{tile.name} reads a diagonal")
    boxes = {tile.inner: tile.panel, tile.outer: height}
    dimensions = [Dimension(axis, extent, stride, boxes.get(axis, 1)) for axis, extent, stride in strides]
    if not 2 <= len(dimensions) <= MAX_RANK or dimensions[0].axis != tile.inner or dimensions[0].stride != 1:
        raise Refused(f"{tile.name}: {len(dimensions)} dimensions, or none that is contiguous")
    if not aligned(start, strides, tile.dtype):
        raise Refused(f"{tile.name}: rows do not begin at multiples of 16 bytes")
    return Map(tile, tuple(dimensions), start, parts)
