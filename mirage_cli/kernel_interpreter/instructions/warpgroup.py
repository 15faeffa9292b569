"""Instructions of `warpgroup.cuh` beside barriers and products: fragments and words, rows, what blocks of a cluster exchange,
results."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.instructions import products  # noqa: F401 - products register themselves
from mirage_cli.kernel_interpreter.instructions.barriers import BASE, of_cluster, touch
from mirage_cli.kernel_interpreter.instructions.boxes import ROW
from mirage_cli.kernel_interpreter.instructions.common import Max, Sum, stacked, vector
from mirage_cli.kernel_interpreter.memory import Cells, Fault, Pointer
from mirage_cli.kernel_interpreter.numbers import Array, Number
from mirage_cli.kernel_interpreter.registry import instruction

CHUNK = 8  #: elements of 16 bytes

for _name in ("take_registers", "give_registers"):
    instruction(_name)(lambda s, static: None)
for _name in ("Yes", "No"):
    instruction(_name)(lambda s, static, value=_name == "Yes": SimpleNamespace(value=value))
registry.TYPES["decltype"] = lambda value: value


@instruction("uniform")
def _uniform(s: Any, static: Sequence[Any], x: Any) -> Array:
    """The value of a warp's first lane, for all its lanes."""
    return np.repeat(np.broadcast_to(x, s.active.shape)[::32], 32)


# --- words --------------------------------------------------------------------------------------------------------------
class Words:
    """Words of two elements: a number with the lower and the upper one, one after the other, in its fields."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def pack(self, s: Any, static: Sequence[Any], low: Any, high: Any) -> Number:
        """A word."""
        return Number(np.concatenate([s.arithmetic.held(s.wide(x), self.of.name) for x in (low, high)]))

    def low(self, s: Any, static: Sequence[Any], word: Any) -> Number:
        """Its lower element."""
        return self._half(s, word, 0)

    def high(self, s: Any, static: Sequence[Any], word: Any) -> Number:
        """Its upper element."""
        return self._half(s, word, 1)

    def _half(self, s: Any, word: Any, k: int) -> Number:
        fields = s.arithmetic.fields
        return Number(word.a[k * fields : (k + 1) * fields] if word is not None else s.arithmetic.arbitrary((s.count,)))


registry.TYPES["Words"] = Words


def put_words(s: Any, to: Cells, values: Array) -> None:
    """Put elements [fields, words, 2, lanes] into words."""
    words = [Number(np.concatenate([values[:, k, 0], values[:, k, 1]])) for k in range(values.shape[1])]
    to.set_all([s.merge(old, new) for old, new in zip(to.all(), words, strict=True)])


# --- tiles --------------------------------------------------------------------------------------------------------------
def elements(s: Any, tile: Any, rows: int, row: Any, column: Any) -> Array:
    """Elements of a tile of panels of 64 columns: [fields, ..., lanes]."""
    return s.load(Pointer(s.world.shared, 0, "__half"), place(tile, rows, row, column))  # type: ignore[no-any-return]


def place(tile: Any, rows: int, row: Any, column: Any) -> Any:
    """The number of an element of a tile among those of 16 bits in shared memory."""
    chunk = column // CHUNK
    at = tile + (chunk >> 3) * rows * ROW + row * ROW + (((chunk & 7) ^ (row & 7)) << 4) + column % CHUNK * 2
    return (at - BASE) // 2


def fragment(s: Any, turned: bool, tile: Any, rows: int, row: Any, column: Any) -> Array:
    """Sixteen columns of a fragment of 64 rows: [fields, words, 2, lanes]."""
    n, h, p = (x[..., None] for x in np.indices((2, 2, 2)))
    r = row + s.thread // 32 % 4 * 16 + s.thread % 32 // 4 + 8 * h
    c = column + 8 * n + s.thread % 4 * 2 + p
    values = elements(s, tile, rows, c, r) if turned else elements(s, tile, rows, r, c)
    return values.reshape(values.shape[0], 4, 2, s.count)


@instruction("load_fragment")
def _load_fragment(s: Any, static: Sequence[Any], to: Cells, tile: Any, rows: int, row: Any, column: Any) -> None:
    put_words(s, to, fragment(s, bool(static[0]), tile, rows, row, column))


instruction("load_words")(_load_fragment)


@instruction("load_eight")
def _load_eight(s: Any, static: Sequence[Any], to: Cells, tile: Any, rows: int, row: Any, q: Any) -> None:
    """Eight elements of a row, or of a column."""
    k = np.broadcast_to(q * CHUNK + np.arange(CHUNK)[:, None], (CHUNK, s.count))
    row = np.broadcast_to(row, k.shape)
    values = elements(s, tile, rows, k, row) if static[0] else elements(s, tile, rows, row, k)
    put_words(s, to, values.reshape(values.shape[0], 4, 2, s.count))


@instruction("clear_row")
def _clear_row(s: Any, static: Sequence[Any], tile: Any, rows: int, row: Any, columns: int) -> None:
    """Elements of a row become 0."""
    column = np.broadcast_to(np.arange(columns)[:, None], (columns, s.count))
    s.store(Pointer(s.world.shared, 0, "__half"), place(tile, rows, row, column), s.wide(0)[:, None])


# --- rows ---------------------------------------------------------------------------------------------------------------
def _of_row(kind: Any) -> registry.Meaning:
    def run(s: Any, static: Sequence[Any], x: Any) -> Number:
        a = s.wide(x)
        joined = kind.all(s.arithmetic, a.reshape(a.shape[0], -1, 4), 2)
        return Number(np.repeat(joined, 4, axis=1))

    return run


instruction("sum_of_row")(_of_row(Sum))
instruction("top_of_row")(_of_row(Max))


# --- blocks of a cluster ------------------------------------------------------------------------------------------------
def _float_at(s: Any, at: Any, block: Array | None = None) -> Pointer:
    return Pointer(s.world.shared, at - BASE, "char", block).of("float")


@instruction("store_shared")
def _store_shared(s: Any, static: Sequence[Any], at: Any, x: Any) -> None:
    s.store(_float_at(s, at), 0, x)


@instruction("load_of_block")
def _load_of_block(s: Any, static: Sequence[Any], rank: Any, at: Any) -> Number:
    block = of_cluster(s, rank)
    warps = s.active.reshape(-1, 32).any(axis=1)
    agents, there, own = (x[::32][warps] for x in (s.warps, block, s.block))
    touch(s, agents[there != own], there[there != own])
    return Number(s.load(_float_at(s, at, block)))


@instruction("of_pair")
def _of_pair(s: Any, static: Sequence[Any], pair: Pointer, which: Any) -> Number:
    """One of two elements that are read together."""
    both = s.arithmetic.cast(Number(vector(s, pair, 2)), "float").a
    return Number(np.where(np.asarray(which) != 0, both[:, 1], both[:, 0]))


# --- results ------------------------------------------------------------------------------------------------------------
@instruction("store_rows")
def _store_rows(s: Any, static: Sequence[Any], v: Cells, row: Any, columns: Any) -> None:
    """Write a fragment: `row(h)` is where row h of a thread begins; so many columns exist."""
    count, quarter = v.dims[0], s.thread % 4
    values = stacked(s, v).reshape(-1, count, 2, 2, s.count)
    for h in range(2):
        to = row(s, h)
        if to is None:
            continue
        chunks, pairs = (bool(static[0]) and to.bytes == size for size in (2, 4))
        chunks = chunks and count % 4 == 0
        here = s.active if to.null is None else s.active & ~to.null
        if chunks:
            n = np.arange(0, count, 4)[:, None, None] + quarter  # the lane's chunks
            c = n * CHUNK + np.arange(CHUNK)[:, None]
            _check_together(s, to, n * CHUNK, here & (n * CHUNK + CHUNK <= columns), CHUNK)
            given = _turned(values[:, :, h])
        else:
            c = np.arange(count)[:, None, None] * CHUNK + quarter * 2 + np.arange(2)[:, None]
            given = values[:, :, h]
            if pairs:
                _check_together(s, to, c[:, :1], here & (c[:, 1:] < columns), 2)
        s.store(to, c, given, here & (c < columns))


def _turned(values: Array) -> Array:
    """Pairs of lanes [fields, n, 2, lanes] as chunks: [fields, n / 4, 8, lanes], where lane q of four has chunk q of four."""
    fields, n, _, lanes = values.shape
    parts = values.reshape(fields, n // 4, 4, 2, lanes // 4, 4)  # chunk, element of a pair, and the lane that has it
    return parts.transpose(0, 1, 5, 3, 4, 2).reshape(fields, n // 4, CHUNK, lanes)


def _check_together(s: Any, to: Pointer, at: Array, whole: Array, count: int) -> None:
    """Raises Fault where so many elements that are written as one do not begin at a multiple of their size."""
    if ((((np.asarray(to.at) + at) * to.bytes) % (count * to.bytes) != 0) & whole).any():
        raise Fault(f"{count} elements of {to.type} are written as one where none begins")
