"""Instructions of `strip.cuh`, `strip_group.cuh` and `split.cuh`: tiles in shared memory, strips in registers, their products.

A matrix of a warp is [fields, warps, rows, columns]. Each lane reads its share of a tile's elements; which lane has which
element of a product's operand is not told, as the instructions of the hardware undo it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.instructions.common import CHUNK, bytes_of, over_lanes, stacked, vector
from mirage_cli.kernel_interpreter.instructions.common import put_vector as put_chunk
from mirage_cli.kernel_interpreter.memory import Cells, Fault, Pointer
from mirage_cli.kernel_interpreter.numbers import Array, Number
from mirage_cli.kernel_interpreter.registry import instruction, type_of

GROUP = 128  #: threads whose matrix instructions work together
PANEL = 1024  #: bytes at multiples of which their tiles begin

registry.ARRAYS["Strip"] = lambda args: (args[0], args[1], 4)
registry.ARRAYS["StripRows"] = lambda args: (args[0], 2)
registry.EACH["MIRAGE_STRIP"] = (("m_", "n_", "i_"), lambda args: (args[0], args[1], 4))
registry.EACH["MIRAGE_STRIP_HALF"] = (("m_", "n_", "i_"), lambda args: (args[0], args[1], 2))
registry.EACH["MIRAGE_STRIP_ROWS_HALF"] = (("m_", "h_"), lambda args: (args[0], 1))
registry.EACH["MIRAGE_STRIP_ROWS"] = (("m_", "h_"), lambda args: (args[0], 2))


# --- tiles --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TileType:
    """OUTER rows of INNER elements in chunks whose places are exchanged."""

    of: Any
    OUTER: int
    INNER: int

    def __post_init__(self) -> None:
        if self.INNER % self.VEC:
            raise Fault(f"rows of {self.INNER} elements are no whole chunks")

    @property
    def VEC(self) -> int:
        """Elements of a chunk."""
        return int(CHUNK / bytes_of(self.of.name))

    @property
    def group(self) -> int:
        """Chunks that change places with one another."""
        chunks = self.INNER // self.VEC
        return next(g for g in (8, 4, 2, 1) if chunks % g == 0)

    @property
    def panels(self) -> bool:
        """True if eight chunks of all rows lie together."""
        return self.group == 8 and self.OUTER % 8 == 0

    def index(self, outer: Any, inner: Any) -> Any:
        """Where an element lies, in elements."""
        chunk, group = inner // self.VEC, self.group
        low = chunk & (group - 1)
        place = low ^ ((outer // (8 // group)) & (group - 1))
        if self.panels:
            place = (chunk // 8 * self.OUTER + outer) * 8 + place
        else:
            place = outer * (self.INNER // self.VEC) + chunk - low + place
        return place * self.VEC + inner % self.VEC


registry.TYPES["Tile"] = TileType


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile in shared memory; `joint`: read by instructions of several warps, which see what was shown to them."""

    type: TileType
    at: Pointer
    joint: bool = False

    def element(self, s: Any, outer: Any, inner: Any) -> Pointer:
        """The place of an element. Raises Fault outside of the tile."""
        outside = (outer < 0) | (outer >= self.type.OUTER) | (inner < 0) | (inner >= self.type.INNER)
        if np.any(outside & s.active):
            raise Fault(f"an element outside of a tile of {self.type.OUTER} rows of {self.type.INNER}")
        return self.at.plus(self.type.index(outer, inner))

    def chunk(self, s: Any, outer: Any, number: Any) -> Pointer:
        """The place of a chunk."""
        return self.element(s, outer, number * self.type.VEC)

    def part(self, s: Any, outer: Any, inner: Any, rows: int, columns: int) -> Array:
        """Elements from (outer, inner) on, read by each warp: [fields, warps, rows, columns]."""
        s.aligned(self.at, CHUNK)
        for x in (self.at.at, outer, inner):
            of_warps = np.broadcast_to(x, s.active.shape).reshape(-1, 32)
            if ((of_warps != of_warps[:, :1]) & s.active.reshape(-1, 32)).any():
                raise Fault("the lanes of a warp multiply different parts of a tile")
        k = np.arange(rows * columns // 32)[:, None] * 32 + s.thread % 32
        place = self.element(s, outer + k // columns, inner + k % columns)
        values = s.load(place)
        if self.joint:
            shown = place.memory.shown[place.memory.cells(place, 0, s.block, s.active)]
            values = np.where(shown, values, s.arithmetic.arbitrary(shown.shape))
        return _of_warps(values).reshape(values.shape[0], -1, rows, columns)


def _tile(s: Any, static: Sequence[Any], at: Pointer) -> Tile:
    if at.type != static[0].name:
        raise Fault(f"a tile of {static[0].name} lies in memory of {at.type}")
    return Tile(TileType(*static), at)


registry.STRUCTS["Tile"] = _tile


def _of_warps(values: Array) -> Array:
    """[fields, n, lanes] as [fields, warps, n, 32]."""
    return np.moveaxis(values.reshape(*values.shape[:2], -1, 32), 2, 1)


@instruction("load_tile")
def _load_tile(s: Any, static: Sequence[Any], tile: Tile, thread: Any, any_: Pointer, valid: Any, row: Any) -> None:
    """Begin to copy a tile: rows without a place, of which `sure` says that there are none, and elements from `valid` on, are
    zero."""
    _bring(s, s.copy, static, tile, thread, valid, row)


@instruction("read_tile")
def _read_tile(s: Any, static: Sequence[Any], tile: Tile, thread: Any, valid: Any, row: Any) -> None:
    """The same at once."""
    _bring(s, s.store, (*static, 0, False), tile, thread, valid, row)


def _bring(
    s: Any, put: Callable[..., None], static: Sequence[Any], tile: Tile, thread: Any, valid: Any, row: Any
) -> None:
    of, (threads, pitch, sure) = tile.type, static
    chunks = of.INNER // of.VEC
    k = _chunks(s, of, threads, thread)
    s.aligned(tile.at, CHUNK)
    with s.only(s.active & (k < of.OUTER * chunks)):
        inner = k % chunks * of.VEC
        source = _places(s, of, pitch, row, k // chunks)
        within = np.arange(of.VEC)[:, None, None]
        known = s.active & (inner + within < valid)
        if sure and (source is None or (source.null is not None and (source.null & s.active).any())):
            raise Fault("a row that is sure to have a place has none")
        values = np.zeros((s.arithmetic.fields, *known.shape), dtype=s.arithmetic.dtype)
        if source is not None:
            known = known if source.null is None else known & ~source.null
            s.aligned(source.plus(inner), CHUNK, known.any(axis=0))
            values = np.where(known, s.load(source.plus(inner), within, known), values)
        put(tile.at.plus(of.index(k // chunks, inner)), within, values)


def _chunks(s: Any, of: TileType, threads: int, thread: Any) -> Array:
    """The numbers of the chunks of a tile that each lane takes: [chunks, lanes]."""
    return np.asarray(np.arange(-(-of.OUTER * (of.INNER // of.VEC) // threads))[:, None] * threads + thread)


def _places(s: Any, of: TileType, pitch: int, row: Any, o: Array) -> Pointer | None:
    """Where rows `o` lie: `pitch` elements apart (0: wherever `row` says) in a tile whose first and last row have a place."""
    told: Pointer | None = row(s, o)
    if told is None or not pitch:
        return told
    first, last = row(s, np.zeros_like(o)), row(s, np.full_like(o, of.OUTER - 1))
    lacking = np.zeros(o.shape, bool)
    for p in (first, last):
        lacking = lacking | (False if p.null is None else p.null)
    null = None if told.null is None else told.null & lacking
    return replace(told, at=np.where(lacking, told.at, first.at + o * pitch), null=null)


@instruction("load_parts")
def _load_parts(
    s: Any, static: Sequence[Any], tile: Tile, thread: Any, any_: Pointer, valid: Any, first: Any, next_: Any
) -> None:
    """Begin to copy a tile of a tensor in two parts: a row that the first one lacks is the second one's."""
    of = tile.type
    chunks, k = of.INNER // of.VEC, _chunks(s, of, static[0], thread)
    within = np.arange(of.VEC)[:, None, None]
    s.aligned(tile.at, CHUNK)
    with s.only(s.active & (k < of.OUTER * chunks)):
        inner = k % chunks * of.VEC
        left = np.broadcast_to(s.active & (inner + within < valid), (of.VEC, *k.shape))
        values = np.zeros((s.arithmetic.fields, *left.shape), dtype=s.arithmetic.dtype)
        for part in (first, next_):
            source = _places(s, of, static[1], part, k // chunks)
            if source is not None:
                known = left if source.null is None else left & ~source.null
                s.aligned(source.plus(inner), CHUNK, known.any(axis=0))
                values = np.where(known, s.load(source.plus(inner), within, known), values)
                left = left & ~known
        s.copy(tile.at.plus(of.index(k // chunks, inner)), within, values)


@instruction("store_tile")
def _store_tile(s: Any, static: Sequence[Any], tile: Tile, thread: Any, row: Any) -> None:
    """Store the rows of a tile that have a place."""
    of = tile.type
    chunks, k = of.INNER // of.VEC, _chunks(s, of, static[0], thread)
    within = np.arange(of.VEC)[:, None, None]
    with s.only(s.active & (k < of.OUTER * chunks)):
        inner = k % chunks * of.VEC
        to = _places(s, of, static[1], row, k // chunks)
        if to is not None:
            known = s.active if to.null is None else s.active & ~to.null
            s.aligned(to.plus(inner), CHUNK, known)
            known = np.broadcast_to(known, (of.VEC, *k.shape))
            s.store(to.plus(inner), within, s.load(tile.at.plus(of.index(k // chunks, inner)), within, known), known)


# --- elements of strips -------------------------------------------------------------------------------------------------
def _row(s: Any, mt: int, member: Any, m: Any, i: Any) -> Any:
    return (member * mt + m) * 16 + s.thread % 32 // 4 + (i >> 1) * 8


@instruction("strip_row")
def _strip_row(s: Any, static: Sequence[Any], member: Any, m: Any, i: Any) -> Any:
    return _row(s, static[0].args[0], member, m, i)


@instruction("strip_col")
def _strip_col(s: Any, static: Sequence[Any], *place: Any) -> Any:
    *share, n, i = place
    n = share[0] * static[0].args[1] + n if share else n
    return n * 8 + s.thread % 4 * 2 + (i & 1)


@instruction("over_row")
def _over_row(s: Any, static: Sequence[Any], x: Any) -> Number:
    s.whole_warps("over_row")
    return over_lanes(s, static[0], x, 4)


@instruction("put_share")
def _put_share(s: Any, static: Sequence[Any], place: Pointer, x: Cells, member: Any, share: Any) -> None:
    mt = x.dims[0]
    index = _each_row(s, mt, member) + share * (16 * static[0] * mt)
    s.store(place, index, stacked(s, x), s.active & (s.thread % 4 == 0))


@instruction("join_shares")
def _join_shares(s: Any, static: Sequence[Any], x: Cells, place: Pointer, member: Any) -> None:
    kind, across, members = static
    mt = x.dims[0]
    shares = np.arange(across)[:, None, None] * (16 * members * mt)
    put_all(s, x, type_of(kind).all(s.arithmetic, s.load(place, _each_row(s, mt, member) + shares), 1))


def _each_row(s: Any, mt: int, member: Any) -> Array:
    """The rows of a lane: [2 mt, lanes]."""
    k = np.arange(2 * mt)[:, None]
    return _row(s, mt, member, k // 2, k % 2 * 2)  # type: ignore[no-any-return]


@instruction("put_strip")
def _put_strip(s: Any, static: Sequence[Any], tile: Tile, strip: Cells, member: Any, share: Any) -> None:
    """A warp's share of a strip to the tile that holds all of it, in pairs of neighbours."""
    mt, nt, _ = strip.dims
    k = np.arange(4 * mt * nt)[:, None]
    m, n, i = k // (4 * nt), k // 4 % nt, k % 4
    to = tile.element(s, _row(s, mt, member, m, i), (share * nt + n) * 8 + s.thread % 4 * 2 + (i & 1))
    s.aligned(tile.at, 2 * tile.at.bytes)
    s.store(to, 0, stacked(s, strip))


def put_all(s: Any, cells: Cells, values: Array) -> None:
    """Give registers the values [fields, count, lanes]."""
    cells.set_all([s.merge(old, Number(values[:, k])) for k, old in enumerate(cells.all())])


# --- products -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Rows16:
    """The operand of rows from `first` on; `deep`: rows of the tile walk the depth, in an `order` that products may need."""

    tile: Tile
    first: Any
    deep: bool
    order: int = 0

    def matrix(self, s: Any, rows: int, depth: int) -> Array:
        """The operand of each warp: [fields, warps, rows, depth]."""
        if self.deep:
            return self.tile.part(s, self.first, 0, rows, depth)
        return self.tile.part(s, 0, self.first, depth, rows).swapaxes(2, 3)


@dataclass(slots=True)
class HeldRows:
    """The same, read before it is used."""

    values: Array | None = None
    warps: Any = False  #: those that have read it
    shape: tuple[int, int] = (0, 0)
    order: int = 0

    def read(self, s: Any, rows: Rows16) -> None:
        """Read it."""
        s.whole_warps("a read of an operand")
        own, new = s.active[::32], rows.matrix(s, *self.shape)
        self.values = new if self.values is None else np.where(own[:, None, None], new, self.values)
        self.order = rows.order
        self.warps = self.warps | own

    def matrix(self, s: Any, rows: int, depth: int) -> Array:
        """The operand of each warp."""
        if self.values is None or (s.active[::32] & ~self.warps).any() or (rows, depth) != self.shape:
            raise Fault(f"an operand of {rows} rows and {depth} positions was not read")
        return self.values


@dataclass(frozen=True, slots=True)
class StripOperand:
    """A strip as operand: its columns are the depth."""

    strip: Cells
    type: str

    def matrix(self, s: Any, rows: int, depth: int) -> Array:
        """The operand of each warp."""
        mt, nt, _ = self.strip.dims
        if rows != 16 * mt or depth > 8 * nt:
            raise Fault(f"a strip of {16 * mt} rows and {8 * nt} columns as one of {rows} and {depth}")
        values = s.arithmetic.held(
            stacked(s, self.strip), self.type
        )  # lanes of a warp are 8 rows of 4 pairs of columns
        parts = values.reshape(values.shape[0], mt, nt, 2, 2, -1, 8, 4)
        matrix: Array = parts.transpose(0, 5, 1, 3, 6, 2, 7, 4).reshape(values.shape[0], -1, rows, 8 * nt)
        return matrix[..., :depth]


@dataclass(frozen=True, slots=True)
class Columns8:
    """The operand of columns from the `first` eight on; `deep`: rows of the tile walk the depth."""

    tile: Tile
    first: Any
    deep: bool

    def matrix(self, s: Any, depth: int, columns: int) -> Array:
        """The operand of each warp: [fields, warps, depth, columns]."""
        if self.deep:
            return self.tile.part(s, self.first * 8, 0, columns, depth).swapaxes(2, 3)
        return self.tile.part(s, 0, self.first * 8, depth, columns)


registry.STRUCTS["Rows16"] = lambda s, static, tile, first: Rows16(tile, first, static[1])
registry.STRUCTS["Columns8"] = lambda s, static, tile, first=0: Columns8(tile, first, static[1])
registry.STRUCTS["HeldRows"] = lambda s, static: HeldRows(shape=(16 * static[1], 16 * static[2]))
registry.STRUCTS["StripOperand"] = lambda s, static, strip: StripOperand(strip, static[0].name)


@instruction("contract_exactly")
@instruction("strip_contract")
def _contract(s: Any, static: Sequence[Any], out: Cells, a: Any, b: Any) -> None:
    """out += a * b over 16 static[0] positions, which lie in the same order in both."""
    s.whole_warps("a product")
    if getattr(a, "order", 0) != getattr(b, "order", 0):
        raise Fault("the positions of operands lie in different orders")
    mt, nt, _ = out.dims
    x, y = a.matrix(s, 16 * mt, 16 * static[0]), b.matrix(s, 16 * static[0], 8 * nt)
    fields = x.shape[0]
    product = s.arithmetic.product(x.reshape(-1, *x.shape[2:]), y.reshape(-1, *y.shape[2:]))
    parts = product.reshape(fields, -1, mt, 2, 8, nt, 4, 2).transpose(0, 2, 5, 3, 7, 1, 4, 6)
    both = np.stack([stacked(s, out), parts.reshape(fields, 4 * mt * nt, s.count)], 1)
    put_all(s, out, s.arithmetic.total(both, 1))


@instruction("strip_contract_together")
def _contract_together(s: Any, static: Sequence[Any], out: Cells, a: Rows16, b: Columns8) -> None:
    """The same by four warps, which have 16 of 64 rows each; both tiles were shown to the instructions."""
    of_groups = s.active.reshape(-1, GROUP)
    if (of_groups.any(axis=1) != of_groups.all(axis=1)).any():
        raise Fault("a product of four warps: not all of them take part")
    if ((a.first % 64 != s.thread // 32 % 4 * 16) & s.active).any() or out.dims[0] != 1 or not a.deep:
        raise Fault("a product of four warps: a warp has other rows")
    for tile in (a.tile, b.tile):
        if not tile.type.panels:
            raise Fault("a product of four warps: a tile has no panels")
        s.aligned(tile.at, PANEL)
    left, right = replace(a.tile, joint=True), replace(b.tile, joint=True)
    _contract(s, static, out, replace(a, tile=left), replace(b, tile=right))


@instruction("show_products")
def _show_products(s: Any, static: Sequence[Any]) -> None:
    s.world.shared.show(s.lanes[s.active])


# --- reductions and vectors ---------------------------------------------------------------------------------------------
@instruction("chunk_floats")
def _chunk_floats(s: Any, static: Sequence[Any], x: Cells, at: Pointer) -> None:
    if x.size * at.bytes != CHUNK:
        raise Fault(f"{x.size} elements of {at.type} are no chunk")
    _get_vector(s, static, x, at)


@instruction("get_vector")
@instruction("copy_vector")
def _get_vector(s: Any, static: Sequence[Any], x: Cells, at: Pointer) -> None:
    put_all(s, x, vector(s, at, x.size))


@instruction("floats_of")
def _floats_of(s: Any, static: Sequence[Any], x: Cells, raw: Cells) -> None:
    put_all(s, x, stacked(s, raw))


@instruction("tile_floats")
def _tile_floats(s: Any, static: Sequence[Any], x: Cells, tile: Tile, outer: Any, first: Any) -> None:
    step = min(x.size, tile.type.VEC)
    parts = [vector(s, tile.element(s, outer, first + e), step) for e in range(0, x.size, step)]
    put_all(s, x, np.concatenate(parts, 1))


@instruction("put_vector")
@instruction("put_floats")
def _put_vector(s: Any, static: Sequence[Any], to: Pointer, x: Cells) -> None:
    put_chunk(s, to, stacked(s, x))


@instruction("add_scaled")
def _add_scaled(s: Any, static: Sequence[Any], x: Cells, at: Pointer, by: Any) -> None:
    terms = vector(s, at, x.size)
    for k, old in enumerate(x.all()):
        term = s.arithmetic.apply("mul", Number(terms[:, k]), by)
        x.values[x.first + k] = s.merge(old, s.arithmetic.apply("add", old, term))
