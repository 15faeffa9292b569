"""Tiles for the copy engine: tensor maps that the host makes, and the boxes of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_cli.codegen.warpgroup.plan import MAX_BOX, PANEL, Plan, Tile
from mirage_cli.codegen.warpgroup.text import Text, ctype
from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE
from mirage_cli.search.schedules.warpgroup import aligned, walk

MAX_RANK = 5


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension of a tensor map: the axis that walks it, its extent, elements between neighbours, positions of a box."""

    axis: str
    extent: Extent
    stride: Extent
    box: int


@dataclass(frozen=True, slots=True)
class Map:
    """A tensor map: dimensions innermost first; `start` is the first element, `cut` says that blocks of a cluster bring
    parts of each panel."""

    tile: Tile
    dimensions: tuple[Dimension, ...]
    start: Extent
    cut: int

    def members(self) -> list[str]:
        """Members of the kernel's parameters."""
        return [f"CUtensorMap map_{self.tile.name};"]

    def setup(self, text: Text) -> list[str]:
        """Statements of the host that set them."""
        rank = len(self.dimensions)
        kind = "FLOAT16" if self.tile.dtype.name == "f16" else "BFLOAT16"
        start = "" if self.start == 0 else f" + {_number(self.start, text)}"
        extents = ", ".join(_number(d.extent, text) for d in self.dimensions)
        strides = ", ".join(["0", *(_number(ex.product([d.stride, 2]), text) for d in self.dimensions[1:])])
        box = ", ".join(str(d.box) for d in self.dimensions)
        name = self.tile.name
        return [
            f"thread_local TensorMap<{rank}> map_{name};",
            f"const Boxes<{rank}> boxes_{name} = {{p.{self.tile.value}{start}, {{{extents}}}, {{{strides}}}, {{{box}}}}};",
            f"status = map_{name}.make(p.map_{name}, CU_TENSOR_MAP_DATA_TYPE_{kind}, boxes_{name});",
            "if (status != cudaSuccess) return static_cast<int>(status);",
        ]

    def loads(self, plan: Plan, text: Text, shared: bool) -> list[str]:
        """Statements of the producer that bring the tile; with `shared` each block of the cluster brings a part of it to
        all of them."""
        t, lines = self.tile, []
        phase = PROLOGUE if t.ring == "held" else BODY
        parts = plan.cluster if shared else 1
        height = next(d.box for d in self.dimensions if d.axis == t.outer)
        places = [(c, r) for c in range(0, t.cols, PANEL) for r in range(0, t.rows, height)]
        rank = len(self.dimensions)
        for k in range(len(places) // parts):
            own = [places[k + p * (len(places) // parts)] for p in range(parts)]
            inner, outer = _by_rank([c for c, _ in own]), _by_rank([r for _, r in own])
            to = _by_rank([(c * t.rows + r * PANEL) * 2 for c, r in own])
            at = ", ".join(self.coordinate(d, phase, inner, outer, text) for d in self.dimensions)
            mask = f", {(1 << parts) - 1}" if parts > 1 else ""
            kind = f"<{rank}, true>" if parts > 1 else f"<{rank}>"
            lines.append(f"{{ const int at[] = {{{at}}};")
            lines.append(f"  load_box{kind}({t.name} + {to}, parameters.map_{t.name}, full, at{mask}); }}")
        return lines

    def coordinate(self, d: Dimension, phase: str, inner: str, outer: str, text: Text) -> str:
        """The first position of a box along a dimension."""
        own = {self.tile.inner: inner, self.tile.outer: outer}.get(d.axis, "0")
        return f"static_cast<int>({' + '.join([*text.base(d.axis, phase), own])})"


def _by_rank(numbers: Sequence[int]) -> str:
    """A number that depends evenly on the block's place in the cluster."""
    if len(numbers) == 1 or len(set(numbers)) == 1:
        return str(numbers[0])
    return f"({numbers[0]} + rank * {numbers[1] - numbers[0]})"


def _number(e: Extent, text: Text) -> str:
    if not isinstance(e, Symbolic):
        return f"{e}ull"
    names = [f"s_{text.symbols.index(n)}" for n in e.names]
    return f"static_cast<uint64_t>({' * '.join([str(e.factor), *names])})"


def tensor_map(plan: Plan, tile: Tile, shared: bool) -> Map:
    """The map of a tile. Raises Refused where rows or the first element are at no multiples of 16 bytes."""
    source = next(i for i in plan.program.inputs if i.name == tile.value)
    ctype(tile.dtype)
    start, strides = walk(plan.program, source)
    parts = plan.cluster if shared else 1
    height = min(tile.rows, MAX_BOX)
    panels = tile.cols // PANEL
    if parts > 1 and panels * (tile.rows // height) % parts:
        height = height // parts
        if height % 8:
            raise Refused(f"{tile.name}: {tile.rows} rows for {parts} blocks of a cluster")
    if tile.rows % height:
        raise Refused(f"{tile.name}: {tile.rows} rows")
    if len({axis for axis, _, _ in strides}) < len(strides):
        raise Refused(f"{tile.name} reads a diagonal")
    boxes = {tile.inner: PANEL, tile.outer: height}
    dimensions = [Dimension(axis, extent, stride, boxes.get(axis, 1)) for axis, extent, stride in strides]
    if not 2 <= len(dimensions) <= MAX_RANK or dimensions[0].axis != tile.inner or dimensions[0].stride != 1:
        raise Refused(f"{tile.name}: {len(dimensions)} dimensions, or none that is contiguous")
    if not aligned(start, strides):
        raise Refused(f"{tile.name}: rows do not begin at multiples of 16 bytes")
    return Map(tile, tuple(dimensions), start, parts)
