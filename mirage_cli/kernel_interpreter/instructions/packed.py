"""Instructions of `strip_packed.cuh`: tiles of quantised numbers as they are stored, and products with them.

Numbers are elements of their own; which bits of a word they are is part of the instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.instructions import strip
from mirage_cli.kernel_interpreter.instructions.common import bytes_of
from mirage_cli.kernel_interpreter.memory import Cells, Fault, Pointer
from mirage_cli.kernel_interpreter.numbers import Array, Number
from mirage_cli.kernel_interpreter.registry import instruction

STEP = 32  #: positions that a step of the product sums


@instruction("packed_at")
def _packed_at(s: Any, static: Sequence[Any], tensor: Pointer, at: Any) -> Pointer:
    """Number `at` of a tensor, which has an element for each."""
    return replace(tensor, at=tensor.at + at, type=static[0].name)


# --- tiles --------------------------------------------------------------------------------------------------------------
def _packed_tile(s: Any, static: Sequence[Any], at: Pointer) -> strip.Tile:
    return strip.Tile(strip.TileType(*static), at.of(static[0].name))


registry.TYPES["PackedTile"] = strip.TileType
registry.STRUCTS["PackedTile"] = _packed_tile
registry.INSTRUCTIONS["load_packed"] = registry.INSTRUCTIONS["load_tile"]


@dataclass(frozen=True, slots=True)
class BlockTileType:
    """OUTER rows of INNER elements, copied UNIT bytes at a time."""

    of: Any
    OUTER: int
    INNER: int
    UNIT: int


@dataclass(frozen=True, slots=True)
class BlockTile:
    """Such a tile in shared memory."""

    type: BlockTileType
    at: Pointer

    def part(self, s: Any, outer: Any, rows: int) -> Array:
        """Rows from `outer` on, read by each warp: [fields, warps, rows, INNER]."""
        k = np.arange(-(-rows * self.type.INNER // 32))[:, None] * 32 + s.thread % 32
        with s.only(s.active & (k < rows * self.type.INNER)):
            values = s.load(self.at, outer * self.type.INNER + k)
        values = strip._of_warps(values)
        return values.reshape(*values.shape[:2], -1)[:, :, : rows * self.type.INNER].reshape(
            *values.shape[:2], rows, -1
        )


registry.TYPES["BlockTile"] = BlockTileType
registry.STRUCTS["BlockTile"] = lambda s, static, at: BlockTile(BlockTileType(*static), at.of(static[0].name))


@instruction("load_blocks")
def _load_blocks(
    s: Any, static: Sequence[Any], tile: BlockTile, thread: Any, any_: Pointer, valid: Any, row: Any
) -> None:
    """Begin to copy a tile: rows without a place, and elements from `valid` on, are zero."""
    of, threads = tile.type, static[0]
    piece = int(of.UNIT / bytes_of(of.of.name))
    pieces = of.INNER // piece
    if of.INNER % piece:
        raise Fault(f"rows of {of.INNER} elements are no whole copies of {of.UNIT} bytes")
    k = np.arange(-(-of.OUTER * pieces // threads))[:, None] * threads + thread
    s.aligned(tile.at, of.UNIT)
    with s.only(s.active & (k < of.OUTER * pieces)):
        outer, inner, within = k // pieces, k % pieces * piece, np.arange(piece)[:, None, None]
        source = row(s, outer)
        known = s.active & (inner + within < valid)
        values = np.zeros((s.arithmetic.fields, *known.shape), dtype=s.arithmetic.dtype)
        if source is not None:
            known = known if source.null is None else known & ~source.null
            s.aligned(source.plus(inner), of.UNIT, known.any(axis=0))
            values = np.where(known, s.load(source.plus(inner), within, known), values)
        s.copy(tile.at.plus(outer * of.INNER + inner), within, values)


# --- products -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of (numbers - zero) scale from `first` on."""

    numbers: strip.Tile
    scales: BlockTile
    zeros: Any
    first: Any

    def matrix(self, s: Any, rows: int, depth: int) -> Array:
        """The operand of each warp: [fields, warps, rows, depth]."""
        block, rest = divmod(self.numbers.type.INNER, self.scales.type.INNER)
        if rest or block % STEP:
            raise Fault(f"blocks of {block} numbers are no whole steps")

        def spread(of_blocks: Array) -> Number:
            return Number(np.repeat(of_blocks, block, axis=-1))

        q = Number(self.numbers.part(s, self.first, 0, rows, depth))
        zero = spread(self.zeros.part(s, self.first, rows)) if isinstance(self.zeros, BlockTile) else self.zeros
        centred = s.arithmetic.apply("sub", q, zero)
        return s.arithmetic.apply("mul", centred, spread(self.scales.part(s, self.first, rows))).a  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class PackedColumns:
    """Columns, so many of which are rows of a tile; what is multiplied in others nobody may read."""

    tile: strip.Tile
    count: int

    def matrix(self, s: Any, depth: int, columns: int) -> Array:
        """The operand of each warp: [fields, warps, depth, columns]."""
        if self.count > columns:
            raise Fault(f"{self.count} columns of {columns}")
        read = self.tile.part(s, 0, 0, self.count, depth)
        others = s.arithmetic.arbitrary((read.shape[1], columns - self.count, depth))
        return np.concatenate([read, others], 2).swapaxes(2, 3)


def _same_zero(s: Any, static: Sequence[Any]) -> Number:
    return Number(s.arithmetic.const(static[0]).a.reshape(-1, 1, 1, 1))


registry.STRUCTS["SameZero"] = _same_zero
registry.STRUCTS["ZeroOf"] = lambda s, static, tile: tile
registry.STRUCTS["PackedRows"] = lambda s, static, *parts: PackedRows(*parts)
registry.STRUCTS["PackedColumns"] = lambda s, static, tile: PackedColumns(tile, static[1])


@instruction("packed_contract")
def _packed_contract(s: Any, static: Sequence[Any], out: Cells, a: PackedRows, b: PackedColumns) -> None:
    """out += a * b over the positions of a tile's rows."""
    strip._contract(s, (a.numbers.type.INNER // 16,), out, a, b)
