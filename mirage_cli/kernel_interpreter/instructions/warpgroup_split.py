"""Instructions of `warpgroup_split.cuh`: float32 numbers as three of bfloat16, in registers and in tiles, and products of whom
these are not enough. Which numbers are in range nobody knows: some warps find so, others not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.instructions.barriers import BASE
from mirage_cli.kernel_interpreter.instructions.boxes import ROW
from mirage_cli.kernel_interpreter.instructions.common import stacked
from mirage_cli.kernel_interpreter.memory import Cells, Fault, Pointer
from mirage_cli.kernel_interpreter.numbers import Array, Number
from mirage_cli.kernel_interpreter.registry import instruction

PARTS, PART, CHUNK, PANEL = 3, "__nv_bfloat16", 8, 64
TELLERS = 3  #: warps that tell whether numbers are in range
_KNOWN = 0x9E3779B1  #: odd, so that its multiples look like anything


@dataclass(slots=True)
class Reach:
    """Whether numbers that were split are in range."""

    asked: int = 0

    def tell(self, s: Any, at: Any) -> None:
        """Tell others, by a number in shared memory."""
        s.whole_warps("tell")
        s.store(_word(s, at), 0, 0, s.active & (s.thread % 32 == 0))

    def whole(self, s: Any, told: Any) -> Array:
        """What a warp finds of its own numbers and of what others have told."""
        s.whole_warps("whole")
        for k in range(TELLERS):
            s.load(_word(s, told), k)
        count = s.world.barriers["reach", s.number] = s.world.barriers.get(("reach", s.number), 0) + 1
        found: Array = (s.thread // 32 + count) * _KNOWN >> 7 & 1 == 1
        return found


registry.STRUCTS["Reach"] = lambda s, static: Reach()


def _word(s: Any, at: Any) -> Pointer:
    return Pointer(s.world.shared, np.asarray(at) - BASE, "char").of("int")


def parts_of(s: Any, x: Array) -> list[Array]:
    """Three numbers of bfloat16 whose sum a number is, large ones first."""
    parts = list[Array]()
    for _ in range(PARTS):
        parts.append(s.arithmetic.held(x, PART))
        x = s.arithmetic.apply("sub", Number(x), Number(parts[-1])).a
    return parts


@instruction("split_words")
def _split_words(s: Any, static: Sequence[Any], words: Cells, k: Any, x: Any, y: Any, reach: Reach) -> None:
    """The words of two numbers' parts."""
    pairs = zip(*(parts_of(s, s.wide(z)) for z in (x, y)), strict=True)
    for p, pair in enumerate(pairs):
        part = words.part(p)
        place = part.place(int(k))
        part.values[place] = s.merge(part.values[place], Number(np.concatenate(pair)))


def floats(s: Any, tile: Any, rows: int, row: Any, column: Any) -> Array:
    """Elements of a tile of panels of 32 columns: [fields, ..., lanes]."""
    chunk = column // 4 & 7 ^ row & 7
    at = tile + column // 32 * rows * ROW + row * ROW + (chunk << 4) + column % 4 * 4
    return s.load(Pointer(s.world.shared, 0, "float"), (at - BASE) // 4)  # type: ignore[no-any-return]


@instruction("load_floats")
def _load_floats(s: Any, static: Sequence[Any], to: Cells, tile: Any, rows: int, row: Any, column: Any) -> None:
    """Sixteen columns of a fragment of 64 rows."""
    n, i = (x[..., None] for x in np.indices((2, 4)))
    r = row + s.thread // 32 % 4 * 16 + s.thread % 32 // 4 + i // 2 * 8
    c = column + 8 * n + s.thread % 4 * 2 + i % 2
    values = floats(s, tile, rows, c, r) if static[0] else floats(s, tile, rows, r, c)
    values = values.reshape(values.shape[0], 8, s.count)
    to.set_all([s.merge(old, Number(values[:, k])) for k, old in enumerate(to.all())])


@instruction("split_tile")
def _split_tile(s: Any, static: Sequence[Any], parts: Any, tile: Any, thread: Any, reach: Reach) -> None:
    """The parts of a tile of so many rows and columns, by so many threads."""
    rows, columns, threads = static
    part = -(-columns // PANEL) * rows * ROW
    for first in range(0, rows * columns // CHUNK, threads):
        k = first + thread
        here = s.active & (k < rows * columns // CHUNK)
        with s.only(here):
            if not here.any():
                continue
            row, eight = k % rows, np.where(here, k // rows, 0)
            one = np.arange(CHUNK)[:, None]
            for p, values in enumerate(parts_of(s, floats(s, tile, rows, row, eight * CHUNK + one))):
                at = parts + p * part + (eight >> 3) * rows * ROW + row * ROW + (((eight & 7) ^ (row & 7)) << 4)
                s.store(Pointer(s.world.shared, 0, PART), (at + one * 2 - BASE) // 2, values)


@instruction("multiply_floats")
def _multiply_floats(s: Any, static: Sequence[Any], c: Cells, a: Cells, tile: Any, rows: int) -> None:
    """c = a * b of 16 rows of each warp and so many summed positions."""
    columns, depth, turned = static
    s.whole_warps("multiply_floats")
    if (c.size, a.size) != (columns // 2, depth // 2):
        raise Fault(f"{c.size} and {a.size} registers for {columns} columns and {depth} positions")
    own = stacked(s, a)  # [fields, depth / 2, lanes]
    fields, warps = own.shape[0], s.count // 32
    left = own.reshape(fields, depth // 8, 2, 2, warps, 8, 4).transpose(0, 4, 3 - 1, 5, 1, 6, 3)
    left = left.reshape(fields * warps, 16, depth)  # rows 8 h + lane / 4; columns 8 n + 2 (lane % 4) + i
    n, i = (x[..., None] for x in np.indices((columns // 8, 2)))
    over = np.arange(depth)[:, None, None, None]
    column = n * 8 + s.thread % 4 * 2 + i
    both = floats(s, tile, rows, over, column) if turned else floats(s, tile, rows, column, over)
    right = both.reshape(fields, depth, columns // 8, 2, warps, 8, 4)[..., 0, :]  # what lanes 0 to 3 have read
    right = right.transpose(0, 4, 1, 2, 5, 3).reshape(fields * warps, depth, columns)
    made = s.arithmetic.product(left, right).reshape(fields, warps, 2, 8, columns // 8, 4, 2)
    made = made.transpose(0, 4, 2, 6, 1, 3, 5).reshape(fields, columns // 2, s.count)
    c.set_all([s.merge(old, Number(made[:, k])) for k, old in enumerate(c.all())])
