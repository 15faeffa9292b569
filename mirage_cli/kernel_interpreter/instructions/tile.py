"""Instructions of `tile.cuh`: fragments of tiles in registers, copies of rows, matrix products, and reductions over threads,
fragments and blocks. Lanes read and write what they do in the header, so that what they race for is seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.instructions.common import CHUNK, bytes_of, over_lanes, unknown
from mirage_cli.kernel_interpreter.memory import Cells, Fault, Pointer
from mirage_cli.kernel_interpreter.numbers import Array, Number
from mirage_cli.kernel_interpreter.registry import instruction, type_of

SPLIT_DEPTH = 16  #: positions that products of float32 take at a time


# --- fragments ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Fragment:
    """M x N numbers spread over WM x WN warps, as 16 x 8 matrices of which each lane has two neighbours of two rows."""

    M: int
    N: int
    WM: int
    WN: int

    @property
    def MT(self) -> int:
        """Matrices of a warp, one below the other."""
        return self.M // (16 * self.WM)

    @property
    def NT(self) -> int:
        """Matrices of a warp, side by side."""
        return self.N // (8 * self.WN)

    def warps(self, s: Any) -> Array:
        """Which lanes are of warps that have a part."""
        return s.thread // 32 < self.WM * self.WN  # type: ignore[no-any-return]

    def first_row(self, s: Any) -> Array:
        """Of the warp's part."""
        return s.thread // 32 % self.WM * (16 * self.MT)  # type: ignore[no-any-return]

    def first_col(self, s: Any) -> Array:
        """Of the warp's part."""
        return s.thread // 32 // self.WM * (8 * self.NT)  # type: ignore[no-any-return]

    def row(self, s: Any, static: Sequence[Any], m: Any, i: Any) -> Array:
        """Of register i of matrix m."""
        return np.asarray(self.first_row(s) + m * 16 + s.thread % 32 // 4 + i // 2 * 8)

    def col(self, s: Any, static: Sequence[Any], n: Any, i: Any) -> Array:
        """Of register i of matrix n."""
        return np.asarray(self.first_col(s) + n * 8 + s.thread % 4 * 2 + i % 2)


class Registers(Cells):
    """The registers of a fragment: v[MT][NT][4]."""

    def __init__(self, of: Fragment) -> None:
        super().__init__((of.MT, of.NT, 4))
        self.of = of


registry.TYPES["Fragment"] = Fragment
registry.STRUCTS["Fragment"] = lambda s, static: Registers(Fragment(*static))
registry.EACH["MIRAGE_EACH"] = ("m_", "n_", "i_"), lambda args: ((f := Fragment(*args)).MT, f.NT, 4)
registry.LANES["MIRAGE_EACH"] = lambda s, args: Fragment(*args).warps(s)


# --- copies -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Row:
    """Where a row comes from (None, or null for a lane: it is zero) and its first element's place in a tile."""

    source: Pointer | None
    to: Any


registry.STRUCTS["Row"] = lambda s, static, source, to: Row(source, to)


@instruction("load_rows")
def _load_rows(
    s: Any, static: Sequence[Any], tile: Pointer, origin: Pointer, valid: Any, row: Callable[..., Row]
) -> None:
    """Begin to copy rows in chunks; columns from `valid` on are zero."""
    type_, rows, cols, bytes_, threads = static
    width = bytes_ // bytes_of(type_.name)
    chunks = cols // width
    s.aligned(origin, bytes_)
    for first in range(0, rows * chunks, threads):
        i = first + s.thread
        with s.only(s.active & (i < rows * chunks)):
            if s.active.any():
                column = i % chunks * width
                _copy_chunk(s, tile, row(s, i // chunks), column, width, np.clip(valid - column, 0, width))


def _copy_chunk(s: Any, tile: Pointer, row: Row, column: Array, width: int, left: Array) -> None:
    """Begin to copy `width` elements of a row, of which `left` are there."""
    element, to = np.arange(width)[:, None], tile.plus(row.to + column)
    s.aligned(to, width * to.bytes)
    values = np.zeros((s.arithmetic.fields, width, s.count), dtype=s.arithmetic.dtype)
    if row.source is not None:
        source = row.source.plus(column)
        left = left if source.null is None else np.where(source.null, 0, left)
        s.aligned(source, width * to.bytes, s.active & (left > 0))
        there = s.active & (element < left)
        values = np.where(there, s.load(source, element, there), 0)
    s.copy(to, element, values)


# --- matrix products ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Operand:
    """A tile in memory: rows of K positions (`rows`), or K rows of what the others are, `stride` elements apart. The part of
    each lane's warp begins at row `first`; what is read of it goes to matrix number `warp` of [fields, warps, rows, K]."""

    at: Pointer
    rows: bool
    stride: int
    first: Array
    warp: Array
    matrices: Array

    def only(self, some: Array) -> Operand:
        """As some lanes see it."""
        return replace(self, at=_of_lanes(self.at, some), first=self.first[some], warp=self.warp[some])

    def read(self, s: Any, row: Any, depth: Any, vector: int = 0) -> None:
        """Elements (row, depth) that lanes (the last dimension) read of their warp's part; with `vector` so many bytes at a
        time, the first ones at number 0 of the last dimension but one."""
        place = (self.first + row) * self.stride + depth if self.rows else depth * self.stride + self.first + row
        if vector:
            s.aligned(self.at.plus(place[..., 0, :]), vector)
        self.matrices[:, np.broadcast_to(self.warp, place.shape), row, depth] = s.load(self.at, place)

    def check_vectors(self, s: Any) -> None:
        """Rows are read as vectors where numbers are not in range."""
        if self.stride % 4:
            raise Fault(f"rows of {self.stride} floats are read as vectors")
        s.aligned(self.at.plus(self.first * (self.stride if self.rows else 1)), CHUNK)


@instruction("contract", statics=(5,))
def _contract(s: Any, static: Sequence[Any], out: Registers, a: Pointer, b: Pointer) -> None:
    """out += a * b: each warp reads its rows of a and its columns of b."""
    depth, a_rows, a_stride, b_rows, b_stride = static
    of, active = out.of, s.active & out.of.warps(s)
    with s.only(active):
        s.whole_warps("contract")
    part, warp, fields = s.part(active), np.arange(active.sum()) // 32, s.arithmetic.fields
    left, right = (
        Operand(p, rows, stride, first, warp, np.zeros((fields, len(warp) // 32, count, depth), s.arithmetic.dtype))
        for p, rows, stride, first, count in (
            (_of_lanes(a, active), a_rows, a_stride, of.first_row(part), 16 * of.MT),
            (_of_lanes(b, active), not b_rows, b_stride, of.first_col(part), 8 * of.NT),
        )
    )
    (_read_floats if a.bytes == 4 else _read_halves)(part, of, depth, left, right)
    x, y = (m.reshape(-1, *m.shape[2:]) for m in (left.matrices, right.matrices))
    product = s.arithmetic.product(x, np.swapaxes(y, 1, 2)).reshape(fields, -1, 16 * of.MT, 8 * of.NT)
    lane = part.thread % 32
    with s.only(active):
        for k, (m, n, i) in enumerate(np.ndindex(*out.dims)):
            more = np.zeros((fields, s.count), dtype=s.arithmetic.dtype)
            more[:, active] = product[:, warp, m * 16 + lane // 4 + i // 2 * 8, n * 8 + lane % 4 * 2 + i % 2]
            old = out.values[k]
            out.values[k] = s.merge(old, s.arithmetic.apply("add", unknown(s) if old is None else old, Number(more)))


def _of_lanes(p: Pointer, some: Array) -> Pointer:
    """A pointer as some lanes have it."""
    return replace(p, at=p.at[some]) if np.ndim(p.at) else p


def _read_halves(s: Any, of: Fragment, depth: int, left: Operand, right: Operand) -> None:
    """By load_matrices: a lane brings the address of one row of 8 elements; for two matrices only the first 16 do."""
    one, k = np.arange(8)[:, None], np.arange(0, depth, 16)[:, None, None, None]
    m, n = 16 * np.arange(of.MT)[:, None, None], 8 * np.arange(of.NT)[:, None, None]
    low, second, third = s.thread % 8, s.thread % 32 // 8 % 2, s.thread % 32 // 16
    if left.rows:
        left.read(s, m + low + second * 8, k + third * 8 + one, CHUNK)
    else:
        left.read(s, m + second * 8 + one, k + low + third * 8, CHUNK)
    some = third == 0
    low, second, right, s = low[some], second[some], right.only(some), s.part(some)
    if right.rows:
        right.read(s, n + low, k + second * 8 + one, CHUNK)
    else:
        right.read(s, n + one, k + low + second * 8, CHUNK)


def _read_floats(s: Any, of: Fragment, depth: int, left: Operand, right: Operand) -> None:
    """Read the operands: 16 positions at a time for split instructions, the rest, or single columns, by multiply-adds."""
    lane, whole = s.thread % 32, depth // SPLIT_DEPTH * SPLIT_DEPTH if of.NT > 1 else 0
    rows, cols = (8 * np.arange(n)[:, None, None] for n in (2 * of.MT, of.NT))
    split, rest = np.arange(0, whole, 4)[:, None] + lane % 4, np.arange(whole, depth)[:, None] + 0 * lane
    for k in (split, rest):
        left.read(s, rows + lane // 4, k)
    right.read(s, cols + lane // 4, split)
    for i in range(2):
        right.read(s, cols + lane % 4 * 2 + i, rest)
    for operand in (left, right) if whole else ():
        operand.check_vectors(s)


# --- reductions ---------------------------------------------------------------------------------------------------------
@instruction("reduce", statics=(4, 5))
def _reduce(s: Any, static: Sequence[Any], value: Callable[..., Any], put: Callable[..., Any]) -> None:
    """For each of so many results over `value(o, k)`: a group of lanes for each."""
    kind, results, terms, threads = static[:4]
    of, lanes = type_of(kind), next(n for n in (32, 16, 8, 4, 2, 1) if terms >= n)
    lane, group = s.thread % lanes, s.thread // lanes
    for first in range(0, results, threads // lanes):
        o, x = first + group, of.none(s, ())
        s.whole_warps("reduce")
        for k in range(0, terms, lanes):
            with s.only(s.active & (o < results) & (k + lane < terms)):
                if s.active.any():
                    x = s.merge(x, of.join(s, (), x, value(s, o, k + lane)))
        x = over_lanes(s, kind, x, lanes)
        with s.only(s.active & (o < results) & (lane == 0)):
            if s.active.any():
                put(s, o, x)


@instruction("reduce_shared")
def _reduce_shared(s: Any, static: Sequence[Any], scratch: Pointer, value: Callable[..., Any], put: Any) -> None:
    """`reduce` of few results: several warps for each, what they have meets in scratch[shares][results]."""
    kind, results, terms, threads = static
    of, shares = type_of(kind), 1 << ((threads // 32 // results).bit_length() - 1)
    o, share = np.divmod(s.thread // 32, shares)
    s.whole_warps("reduce_shared")
    x = of.none(s, ())
    for k in range(0, terms, 32 * shares):
        term = k + 32 * share + s.thread % 32
        with s.only(s.active & (o < results) & (term < terms)):
            if s.active.any():
                x = s.merge(x, of.join(s, (), x, value(s, o, term)))
    x = over_lanes(s, kind, x, 32)
    s.store(scratch, share * results + o, x, s.active & (o < results) & (s.thread % 32 == 0))
    _reduce_shown(s, kind, scratch, results, shares, threads, put)


@instruction("reduce_rows")
def _reduce_rows(s: Any, static: Sequence[Any], scratch: Pointer, value: Callable[..., Any], put: Any) -> None:
    """For each row of a fragment; what warps side by side have meets in scratch[WN][M]."""
    kind, of, threads = static[0], Fragment(*static[1].args), static[2]
    for m, h in np.ndindex(of.MT, 2):
        places = [(m, n, 2 * h + i) for n in range(of.NT) for i in range(2)]
        x = over_lanes(s, kind, _over_registers(s, kind, of, value, places), 4)
        at = of.first_col(s) // (8 * of.NT) * of.M + of.row(s, (), m, 2 * h)
        s.store(scratch, at, x, s.active & of.warps(s) & (s.thread % 4 == 0))
    _reduce_shown(s, kind, scratch, of.M, of.WN, threads, put)


@instruction("reduce_cols")
def _reduce_cols(s: Any, static: Sequence[Any], scratch: Pointer, value: Callable[..., Any], put: Any) -> None:
    """For each column; scratch[WM][N]."""
    kind, of, threads = static[0], Fragment(*static[1].args), static[2]
    for n, h in np.ndindex(of.NT, 2):
        places = [(m, n, h + 2 * i) for m in range(of.MT) for i in range(2)]
        a = s.wide(_over_registers(s, kind, of, value, places))
        joined = type_of(kind).all(s.arithmetic, a.reshape(len(a), -1, 8, 4), 2)
        x = Number(np.repeat(joined[:, :, None], 8, axis=2).reshape(a.shape))
        at = of.first_row(s) // (16 * of.MT) * of.N + of.col(s, (), n, h)
        s.store(scratch, at, x, s.active & of.warps(s) & (s.thread % 32 < 4))
    _reduce_shown(s, kind, scratch, of.N, of.WM, threads, put)


def _over_registers(
    s: Any, kind: Any, of: Fragment, value: Callable[..., Any], places: Sequence[tuple[int, int, int]]
) -> Number:
    """Over registers (m, n, i) of each lane."""
    joined: Number = type_of(kind).none(s, ())
    with s.only(s.active & of.warps(s)):
        s.whole_warps("a reduction of a fragment")
        for m, n, i in places:
            x = value(s, of.row(s, (), m, i), of.col(s, (), n, i), m, n, i)
            joined = s.merge(joined, type_of(kind).join(s, (), joined, x))
    return joined


def _reduce_shown(s: Any, kind: Any, scratch: Pointer, count: int, parts: int, threads: int, put: Any) -> None:
    """Behind a barrier, over scratch[parts][count]."""
    s.together(s.block, "__syncthreads")
    for first in range(0, count, threads):
        r = first + s.thread
        with s.only(s.active & (r < count)):
            if s.active.any():
                values = s.load(scratch, np.arange(parts)[:, None] * count + r)
                put(s, r, Number(type_of(kind).all(s.arithmetic, values, 1)))


# --- reductions over blocks ---------------------------------------------------------------------------------------------
registry.GRID.add("last_to_arrive")


@instruction("last_to_arrive")
def _last_to_arrive(s: Any, static: Sequence[Any], arrivals: Pointer, count: Any) -> Array:
    """Mask of the lanes whose block is the last one of `count`. Blocks come in another order than that of their numbers."""
    s.together(s.block, "last_to_arrive")
    world, blocks = s.world, s.count // s.world.launch.threads
    counters, first = np.broadcast_to(arrivals.at, (s.count,)), s.active & (s.thread == 0)
    seen, world.sees = world.sees, np.ones((blocks, blocks), dtype=np.int32)  # counters are atomic
    before, last = s.load(arrivals, 0, first), np.zeros(blocks, dtype=bool)
    seen = np.zeros((blocks, blocks), dtype=np.int32) if seen is None else seen
    for counter in np.unique(counters[first]):
        lanes = np.roll(np.flatnonzero(first & (counters == counter)), -1)
        old, order = before[:, lanes[0]], np.arange(len(lanes))
        last[s.block[lanes]] = ((old[:, None] + order) == np.asarray(count) - 1).all(axis=0)
        seen[np.ix_(s.block[lanes], s.block[lanes])] |= order[:, None] > order
        s.store(arrivals, 0, s.wide(Number(old[:, None] + len(lanes))), first & (counters == counter))
    world.sees = seen
    s.together(s.block, "last_to_arrive")
    return last[s.block]  # type: ignore[no-any-return]
