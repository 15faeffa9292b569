"""Stored tensors that contractions on the CPU read where they lie, without a copy.

A contraction walks an operand with two strides, one along its free axis and one along the summed axis; a stored tensor
serves as it is when a tile of it has one axis of each kind, or free ones that make one, the innermost one side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirage_cli.codegen.tiles.shapes import Shapes
from mirage_cli.codegen.tiles.tile import Apply, Buffer, Expr, Global, Position, Ref, Sizes
from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import BF16, F16, F32, DType
from mirage_cli.lax.ir.program import Input, Program
from mirage_cli.search.mugraph.mugraph import BlockOp
from mirage_cli.search.schedules.target import Target

MATRIX_TYPES = (F16, BF16, F32)
LINE = 16  #: float32 numbers of a line of a CPU's cache
ALIASED = 256  #: rows of a multiple of so many float32 numbers share places of a CPU's first-level cache


def storage_order(source: Input) -> list[str]:
    """The axes of a stored tensor, outermost first."""
    return [s.axis for s in source.access if s.axis is not None]


def pitch(cols: int, target: Target) -> int:
    """Elements between rows of a plain tile. On the CPU longer rows begin at lines, as vectors across two are slow, and
    those that are a large power of two long get a line more: they would fall into the same places of the first-level cache."""
    if target.threaded or cols < LINE:
        return max(1, cols)
    return cols + LINE if cols % ALIASED == 0 else -(-cols // LINE) * LINE


def matrix_type(contraction: BlockOp, target: Target) -> DType:
    """The type in which a contraction multiplies on a target. Raises Refused."""
    dtype = contraction.dtype or F32
    if dtype not in MATRIX_TYPES:
        raise Refused(f"contractions of type {dtype} are not rendered")
    return dtype if target.threaded else F32


@dataclass(frozen=True, slots=True)
class Product:
    """A sum of products of a stored matrix and a vector along the summed axis."""

    matrix: Global
    vector: Expr
    over: Sizes


@dataclass(frozen=True, slots=True)
class StoredReads:
    """The operands that can be read where they are stored, in a kernel of a program with these tile shapes."""

    program: Program
    shapes: Shapes

    def sizes(self, source: Input, phase: str) -> Sizes:
        """The axes of which a tile of a stored tensor holds more than one position."""
        sizes = ((a, self.shapes.size(a, phase)) for a in storage_order(source))
        return tuple((a, n) for a, n in sizes if n > 1)

    def direct(self, source: Input, over: Collection[str], phase: str) -> bool:
        """True if a contraction over `over` can read the stored tensor itself: two strides, one of them 1."""
        stored = [a for a, _ in self.sizes(source, phase)]
        summed = [a for a in stored if a in over]
        if len(summed) > 1 or not stored or not self.one_stride(source, [a for a in stored if a not in over], phase):
            return False
        last = next((s for s in reversed(source.access) if s.extent != 1), None)
        return last is not None and last.axis == stored[-1]

    def one_stride(self, source: Input, axes: Sequence[str], phase: str) -> bool:
        """True if positions along axes, the last one changing first, lie equally far apart: the axes are neighbours in the
        tensor, and a tile holds all but the first one whole."""
        if len(axes) < 2:
            return True
        slots = [s for s in source.access if s.extent != 1]
        first = next(k for k, s in enumerate(slots) if s.axis == axes[0])
        inner = slots[first + 1 : first + len(axes)]
        return [s.axis for s in inner] == list(axes[1:]) and all(
            s.extent == self.shapes.size(s.axis, phase) for s in inner if s.axis is not None
        )

    def varies(self, e: Expr, buffers: Mapping[str, Buffer], phase: str) -> frozenset[str]:
        """The axes along which an expression changes within a tile."""
        match e:
            case Ref(b):
                return frozenset(a for a, _ in buffers[b].axes)
            case Global(v):
                return frozenset(a for a, _ in self.sizes(self.program.input(v), phase))
            case Position(a):
                return frozenset([a])
            case Apply(_, args):
                return frozenset().union(*(self.varies(x, buffers, phase) for x in args))
        return frozenset()

    def product(self, e: Expr, over: Collection[str], buffers: Mapping[str, Buffer], phase: str) -> Product | None:
        """The matrix and the vector of which `e` is the product, when its sum over `over` is a contraction of one row."""
        for matrix, vector in _factors(e):
            source = self.program.input(matrix.value)
            sizes = self.sizes(source, phase)
            summed = tuple((a, n) for a, n in sizes if a in over)
            if (
                len(summed) < len(sizes)
                and self.program.sources[source.source].dtype in MATRIX_TYPES
                and self.direct(source, over, phase)
                and self.varies(vector, buffers, phase) == {a for a, _ in summed}
            ):
                return Product(matrix, vector, summed)
        return None


def _factors(e: Expr) -> Iterator[tuple[Global, Expr]]:
    """The ways to see an expression as a stored tensor times something."""
    if isinstance(e, Apply) and e.op == "mul":
        for x, y in (e.args, e.args[::-1]):
            if isinstance(x, Global):
                yield x, y
