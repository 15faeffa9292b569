"""Instructions of `strip_columns.cuh`: columns of strips as they are stored, and products with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.instructions import packed, strip
from mirage_cli.kernel_interpreter.instructions.common import CHUNK, bytes_of
from mirage_cli.kernel_interpreter.memory import Fault, Pointer
from mirage_cli.kernel_interpreter.numbers import Array, Number
from mirage_cli.kernel_interpreter.registry import instruction

registry.TYPES["ColumnTile"] = strip.TileType
registry.STRUCTS["ColumnTile"] = packed._packed_tile


@instruction("load_columns")
def _load_columns(s: Any, static: Sequence[Any], tile: strip.Tile, thread: Any, any_: Pointer, row: Any) -> None:
    """Begin to copy a tile: rows without a place are one number."""
    of, (threads, pitch, fill) = tile.type, static
    chunks, k = of.INNER // of.VEC, strip._chunks(s, tile.type, threads, thread)
    within = np.arange(of.VEC)[:, None, None]
    s.aligned(tile.at, CHUNK)
    with s.only(s.active & (k < of.OUTER * chunks)):
        inner = k % chunks * of.VEC
        known = np.broadcast_to(s.active, (of.VEC, *k.shape))
        filled = s.arithmetic.const(fill).a.reshape(-1, *(1,) * known.ndim).astype(s.arithmetic.dtype)
        values = np.broadcast_to(filled, (s.arithmetic.fields, *known.shape))
        source = strip._places(s, of, pitch, row, k // chunks)
        if source is not None and source.type != of.of.name:
            raise Fault(f"numbers of {source.type} in a tile of {of.of.name}")
        if source is not None:
            known = known if source.null is None else known & ~source.null
            s.aligned(source.plus(inner), CHUNK, known.any(axis=0))
            values = np.where(known, s.load(source.plus(inner), within, known), values)
        s.copy(tile.at.plus(of.index(k // chunks, inner)), within, values)


@instruction("slab_col")
def _slab_col(s: Any, static: Sequence[Any], n: Any, i: Any) -> Any:
    slab = static[0]
    return n // slab * (8 * slab) + (s.thread % 4 * 2 + (i & 1)) * slab + n % slab


# --- operands -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class StoredColumns:
    """(numbers - zero) of a tile, whose rows walk what is summed (`deep`) or are summed."""

    tile: strip.Tile
    zero: int
    deep: bool

    @property
    def bits(self) -> int:
        """Bits of a number."""
        return int(8 * bytes_of(self.tile.type.of.name))

    @property
    def order(self) -> int:
        """The order of what is summed: as numbers of some bits are unpacked (0: as it lies)."""
        return self.bits if self.deep else 0

    def matrix(self, s: Any, depth: int, columns: int) -> Array:
        """The operand of each warp: [fields, warps, depth, columns]; matrices unpacked together alternate."""
        size = (columns, depth) if self.deep else (depth, columns)
        if size != (self.tile.type.OUTER, self.tile.type.INNER):
            raise Fault(f"{depth} positions of {columns} columns in a tile of {self.tile.type.OUTER} rows")
        q = Number(self.tile.part(s, 0, 0, *size))
        zero = Number(s.arithmetic.const(self.zero).a.reshape(-1, 1, 1, 1))
        values: Array = s.arithmetic.apply("sub", q, zero).a
        if self.deep:
            return values.swapaxes(2, 3)
        slab = 16 // self.bits
        n, g = np.arange(columns) // 8, np.arange(columns) % 8
        return values[..., n // slab * (8 * slab) + slab * g + n % slab]


registry.STRUCTS["UnpackedRows"] = lambda s, static, tile, first: strip.Rows16(tile, first, True, static[1])
registry.STRUCTS["DeepColumns"] = lambda s, static, tile: StoredColumns(tile, static[1], True)
registry.STRUCTS["WideColumns"] = lambda s, static, tile: StoredColumns(tile, static[1], False)
registry.INSTRUCTIONS["contract_stored"] = registry.INSTRUCTIONS["strip_contract"]
