"""Parts of a strip kernel: tiles in shared memory, strips in registers, vectors, and where all of it lies."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mirage_cli.codegen.tiles.tile import Sizes, count
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.program import Input
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE

CHUNK = 16  #: bytes that are copied at a time
MOST_EVEN = 1 << 31  #: elements of the rows of a tile whose places are found by constants
SWIZZLED = 1024  #: bytes at multiples of which tiles for matrix instructions of a warpgroup begin


def padded(n: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-n // unit) * unit


@dataclass(frozen=True, slots=True)
class OperandTile:
    """A tile of 16-bit or 32-bit elements that products or sums read: `outer` rows of `inner` elements, padded to
    `n_outer` and `n_inner`. It is loaded or computed in a phase: in every iteration, or once before the loop."""

    name: str
    value: str
    dtype: DType
    outer: Sizes
    inner: Sizes
    n_outer: int
    n_inner: int
    phase: str
    computed: bool = False
    constant: bool = False
    unit: int = 128  #: bytes of which tiles are multiples
    at: int = 0  #: its place in a stage of the ring
    kind: str = "Tile"
    copied: int = CHUNK  #: bytes that are copied at a time

    @property
    def ring(self) -> bool:
        """True if the loop loads it anew for every iteration."""
        return self.phase == BODY and not self.computed

    def along(self, loop: str) -> bool:
        """True if it is held whole along the loop."""
        return self.phase == PROLOGUE and not self.computed and any(a == loop for a, _ in self.inner)

    @property
    def whole(self) -> bool:
        """True if it has numbers of less than 16 bits as they are stored."""
        return self.kind == "ColumnTile" or (self.kind != "Tile" and self.dtype.kind == "int")

    @property
    def type(self) -> str:
        """The name of its type."""
        return f"Tile_{self.name}"

    @property
    def vector(self) -> ir.Name:
        """Elements of a chunk."""
        return k.name(f"{self.type}::VEC")

    @property
    def bytes(self) -> int:
        """Bytes of one stage."""
        return padded(math.ceil(self.n_outer * self.n_inner * self.dtype.size), self.unit)

    @property
    def panels(self) -> bool:
        """True if it lies in memory as matrix instructions of a warpgroup read it."""
        return self.unit == SWIZZLED and self.n_outer % 8 == 0 and self.n_inner * self.dtype.bytes % 128 == 0

    @property
    def chunks(self) -> int:
        """Chunks of a row."""
        return int(self.n_inner * self.dtype.size) // CHUNK


def even_pitch(source: Input, tile: OperandTile) -> int:
    """Elements between the rows of a tile in its source; 0 where they are not the same between all of them, or not known."""
    strides, behind = dict[str | None, Extent](), ex.ONE
    for slot in reversed(source.access):
        strides[slot.axis] = 0 if slot.axis in strides else behind
        behind = ex.product([behind, slot.extent])
    step: Extent = 0  # from what all positions of the axes behind take to the next one
    for a, n in reversed(tile.outer):
        if step not in (0, strides[a]):
            return 0
        step = ex.product([strides[a], n])
    pitch = strides[tile.outer[-1][0]] if tile.outer else 0
    known = isinstance(pitch, int) and pitch % tile.dtype.per_byte == 0 and pitch * tile.n_outer < MOST_EVEN
    return pitch if isinstance(pitch, int) and known else 0


@dataclass(frozen=True, slots=True)
class Matrix:
    """A value in registers with `rows` and `cols`: `mt` x `nt` matrices of 16 x 8 for each warp; `across` warps lie side by
    side along the columns."""

    name: str
    rows: Sizes
    cols: Sizes
    mt: int
    nt: int
    across: int = 1
    slab: int = 1  #: matrices whose columns alternate
    half: bool = False  #: no more than the upper half of a matrix has rows

    @property
    def type(self) -> ir.Type:
        """Its type, which the kernel calls `own`."""
        return k.of_type("Strip", self.mt, self.nt)

    @property
    def own(self) -> str:
        """The name of its type."""
        return f"S_{self.name}"

    @property
    def element(self) -> ir.Index:
        """A lane's element."""
        return k.name(self.name).member("v")["m_"]["n_"]["i_"]

    @property
    def width(self) -> int:
        """Columns of all warps, with padding."""
        return 8 * self.nt * self.across

    @property
    def column(self) -> ir.Call:
        """The column of a lane's element."""
        if self.slab > 1:
            return k.call("slab_col", "n_", "i_", static=[self.slab])
        if self.across == 1:
            return k.call("strip_col", "n_", "i_")
        return k.call("strip_col", "share", "n_", "i_", static=[self.own])

    @property
    def row(self) -> ir.Call:
        """The row of a lane's element."""
        return k.call("strip_row", "member", "m_", "i_", static=[self.own])

    @property
    def short(self) -> ir.Binary | None:
        """The condition that an element's column is no padding; None where none is."""
        return self.column < count(self.cols) if count(self.cols) < self.width else None

    def each(self, *body: ir.Statement) -> ir.Each:
        """Every lane visits its elements."""
        return k.each("MIRAGE_STRIP_HALF" if self.half else "MIRAGE_STRIP", self.own, *body)

    @property
    def axes(self) -> frozenset[str]:
        """All its axes."""
        return frozenset(a for a, _ in self.rows + self.cols)


@dataclass(frozen=True, slots=True)
class RowVector:
    """A number for each row of strips, in registers."""

    name: str
    rows: Sizes
    mt: int
    cols: Sizes = ()
    half: bool = False

    @property
    def type(self) -> ir.Type:
        """Its type."""
        return k.of_type("StripRows", self.mt)

    @property
    def element(self) -> ir.Index:
        """A lane's number."""
        return k.name(self.name).member("v")["m_"]["h_"]

    @property
    def beside(self) -> ir.Index:
        """The number of the row of a strip's element."""
        return k.name(self.name).member("v")["m_"][k.binary(">>", "i_", 1)]

    @property
    def row(self) -> ir.Call:
        """The row of a lane's number."""
        return k.call("strip_row", "member", "m_", k.name("h_") * 2, static=[self.type])

    def each(self, *body: ir.Statement) -> ir.Each:
        """Every lane visits its numbers."""
        return k.each("MIRAGE_STRIP_ROWS_HALF" if self.half else "MIRAGE_STRIP_ROWS", self.type, *body)


@dataclass(frozen=True, slots=True)
class Vector:
    """Numbers in shared memory, one for each position of `axes`; a group has its own where `grouped`."""

    name: str
    axes: Sizes
    grouped: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return count(self.axes)


@dataclass(frozen=True, slots=True)
class TileSum:
    """A sum over one side of a tile that a group's threads carry through the loop in parts; `axes` are kept.

    `along` is the side that is summed, "inner" or "outer"; a thread has `parts` chunks with `width` numbers each."""

    name: str
    tile: OperandTile
    axes: Sizes
    along: str
    parts: int
    width: int


class Memory:
    """Places in a block's shared memory: what is alive during the loop and what only behind it share their part."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str, int]] = []
        self.late: list[tuple[str, str, int]] = []
        self._kept = self._late = 0
        self.unit = 128  #: bytes of which places are multiples

    def keep(self, name: str, type_: str, bytes_: int) -> None:
        """A place of its own."""
        self.kept.append((name, type_, self._kept))
        self._kept += padded(bytes_, self.unit)

    def reuse(self, name: str, type_: str, bytes_: int) -> None:
        """A place that the ring has left."""
        self.late.append((name, type_, self._late))
        self._late += padded(bytes_, 128)

    def places(self, ring: int) -> tuple[list[tuple[str, str, int]], int]:
        """(names, types of elements and places; bytes) with a ring of so many bytes."""
        base = padded(max(ring, self._late), self.unit)
        return [*((n, t, base + at) for n, t, at in self.kept), *self.late], base + self._kept
