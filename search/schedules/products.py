"""How operands of products lie: what they take on one core of a CPU, in seconds, and how GPUs bring them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax.dtypes import F32, DType
from mirage_cli.lax.ir.program import Program, Source
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE, BlockGraph, BlockOp
from mirage_cli.search.schedules.fitted import Cpu
from mirage_cli.search.schedules.target import Target

STREAMED_ROWS = 18  #: up to so many rows are streamed, as in include/mirage/cpu/contract.hpp
STREAMS = 8  #: summed positions between two times that sums of streamed rows are read and written
PANEL = 16  #: columns of a panel of packed weights
SPLIT_ROWS = 64  #: rows from which packed float32 is split for matrix instructions; fewer wait for memory
SPLIT_STEP = 32  #: summed positions of one of these, as in include/mirage/cpu/split.hpp
FEW = 16  #: rows from which on products take all of what rows do not add to; a single row takes nothing of it
SPLIT_BYTES = 1.5  #: bytes of split numbers over those of float32
SECTOR = 32  #: bytes that a GPU's second-level cache gives at least
FEWEST = 4  #: bytes of a chunk of a GPU: what has no whole ones is loaded element by element
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of products, one for each schedule."""

    rows: Floats
    columns: Floats
    depth: Floats

    @property
    def flops(self) -> Floats:
        """Multiply-adds, times two."""
        return 2.0 * self.rows * self.columns * self.depth


def as_stored(sizes: Sizes, rows_are_left: bool | None, target: Target, dtype: DType | None) -> Floats:
    """Seconds with operands that are not packed. None: the smaller one is that of the rows."""
    c, left, right = target.fitted(Cpu), sizes.rows, sizes.columns
    rows = np.minimum(left, right) if rows_are_left is None else left if rows_are_left else right
    few = rows <= STREAMED_ROWS
    streamed, packed = rows / (rows + c.streamed_half), rows / (rows + c.packed_half)
    rate = target.library_rate(dtype) * np.where(few, c.streamed_rate * streamed, c.packed_rate * packed)
    spilled = few & (4 * left * right > c.first_cache)
    sums = left * right * np.ceil(sizes.depth / STREAMS) * c.sum_seconds
    return sizes.flops / rate + np.where(spilled, sums, 0.0)


def in_panels(sizes: Sizes, target: Target, dtype: DType | None) -> Floats:
    """Seconds with columns that are packed."""
    c = target.fitted(Cpu)
    reached = c.panel_rate * sizes.rows / (sizes.rows + besides(sizes.rows, c.panel_half))
    return sizes.flops / (target.library_rate(dtype) * reached)


def besides(rows: Floats | float, half: float) -> Floats:
    """What products take besides their rows, in rows; `half`: from FEW rows on."""
    taken: Floats = half * np.clip((rows - 1) / (FEW - 1), 0.0, 1.0)
    return taken


def by_matrices(sizes: Sizes, target: Target) -> Floats:
    """Seconds with columns that are split for matrix instructions: whole matrices are multiplied, and rows are split first."""
    c = target.fitted(Cpu)
    parts = ((sizes.rows, 16), (sizes.columns, 2 * PANEL), (sizes.depth, SPLIT_STEP))
    flops = 2.0 * math.prod(np.ceil(n / size) * size for n, size in parts)
    return flops / (target.split * c.split_rate) + sizes.rows * sizes.depth * c.split_flops / target.special


def splits(dtype: DType, rows: Floats | int, depth: Floats | int, deep: int) -> Bools:
    """Whether products of so many rows, `depth` of `deep` summed positions at a time, may split a packed weight for matrix
    instructions."""
    whole = (np.asarray(depth) % SPLIT_STEP == 0) | (np.asarray(depth) == deep)
    return np.asarray(whole & (np.asarray(rows) >= SPLIT_ROWS) & (dtype == F32), bool)


def along_rows(program: Program, graph: BlockGraph, o: BlockOp, axes: frozenset[str]) -> tuple[bool, bool, bool]:
    """What makes the operand of a product with these axes its columns, the weightiest first: its free axes are the innermost
    ones that are stored, the loop's, summed later."""
    free = axes - frozenset(o.over)
    last = next((s.axis for s in reversed(program.outputs[0].access) if s.axis is not None), None)
    later = frozenset(a for r in graph.ops if r.name != o.name for a in r.over)
    return last in free, graph.loop in free, bool(free & later)


def may_be_packed(source: Source) -> bool:
    """True if sessions pack a weight for products on a CPU."""
    return source.constant and source.dtype.per_byte == 1 and source.dtype.name in ("f32", "f16", "bf16")


def held_along(graph: BlockGraph, o: BlockOp, axes: Mapping[str, frozenset[str]]) -> bool:
    """True for a load in front of the loop of what the loop walks: rows whose sums it needs from the first iteration on."""
    return o.op == "load" and o.phase != BODY and graph.loop in axes[o.name]


def may_hold(program: Program, graph: BlockGraph, o: BlockOp) -> bool:
    """True if such a load may be a tile: of a known length, walked by every block alone, and summed in front of the loop."""
    summed = any(o.name in r.inputs and r.op == "sum" and r.phase == BODY for r in graph.ops)
    known = all(isinstance(s.extent, int) for s in program.input(o.source_value).access)
    return o.phase == PROLOGUE and not summed and known and graph.loop not in graph.split


def warps_of_sum(results: int, terms: int, warps: int) -> int:
    """Warps of a block that share each of so many sums in front of its loop: a power of two, where lanes have terms enough."""
    return 1 << ((warps // results).bit_length() - 1) if 2 * results <= warps and terms >= 64 else 1


def sectors(segment: Floats, apart: Floats) -> Floats:
    """How many times as many bytes come to a GPU's multiprocessor than a tile takes whose runs of `segment` bytes begin
    `apart` from one another: whole sectors do."""
    times: Floats = np.maximum(1.0, np.minimum(apart, SECTOR) / segment)
    return times


def by_elements(segment: Floats, apart: Floats) -> Bools:
    """Whether a GPU loads such a tile element by element, since its runs are no whole chunks."""
    alone: Bools = (segment % FEWEST != 0) | (apart % FEWEST != 0)
    return alone
