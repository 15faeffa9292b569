"""Positions of kernels for CPUs: the types of elements, loops over what lies inside tensors, how weights may be packed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mirage_cli.codegen.requests.request import Packing
from mirage_cli.codegen.terms.expressions import CPU_TYPES, CUDA_TYPES
from mirage_cli.codegen.terms.positions import Positions
from mirage_cli.codegen.tiles.tile import Buffer, Expr, Ref, Sizes
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.tokens import VECTOR_LOOP
from mirage_cli.lax.dtypes import F64


class CpuPositions(Positions):
    """Where a kernel's statements are, with the types of elements and the loops of CPUs."""

    types = CUDA_TYPES | CPU_TYPES

    def valid(self, axis: str, phase: str) -> ir.Expression:
        """The number of positions of a tile that lie inside an axis."""
        if self.shapes.exact(axis, phase):
            return ir.lift(self.shapes.size(axis, phase))
        return k.name(f"n_{axis}_step" if axis == self.g.loop else f"n_{axis}")

    def loops(self, axes: Sequence[str], phase: str) -> list[tuple[str, ir.Expression]]:
        """Index variables of axes with their ends."""
        return [(f"i_{a}", self.valid(a, phase)) for a in axes]

    def nest(self, domain: Sizes, *body: ir.Statement, phase: str) -> ir.Statement:
        """Statements for the valid positions of `domain`, on vectors along the innermost axis."""
        if not domain:
            return k.scope(*body)
        *outer, (variable, end) = self.loops([a for a, _ in domain], phase)
        return k.nested(outer, k.loop(variable, end, *body, unroll=VECTOR_LOOP))[0]

    def contiguous(self, e: Expr, axis: str) -> Buffer | None:
        """The buffer that an expression just reads, with neighbours along `axis` side by side."""
        if isinstance(e, Ref):
            b = self.t.buffers[e.buffer]
            if b.dtype != F64 and axis in dict(b.axes) and b.stride(axis) == 1:
                return b
        return None

    def packing(self, value: str, row: int, depth: int) -> Packing | None:
        """How a stored operand of a product may be packed, given how far its columns and summed positions lie apart (0: not
        known); None if it may not."""
        number = self.reads[value].source
        source, apart = self.p.sources[number], max(row, depth)
        dims = (source.chosen.rows, *source.dims[source.chosen.lead :]) if source.chosen else source.dims
        elements = math.prod(e if isinstance(e, int) else 0 for e in dims)
        turned = source.chosen is not None and depth != 1
        if (
            number not in self.r.constants
            or min(row, depth) != 1
            or apart == 1
            or not elements
            or elements % apart
            or turned
        ):
            return None
        return Packing(number, elements, source.dtype.bytes, row, depth)

    def row(self, b: Buffer, phase: str, axis: str) -> ir.Expression:
        """The place in a buffer where the current position's row along an axis begins."""
        return k.total([self.pointer(b), self.index(b, phase, [axis])])


def buffer_type(b: Buffer) -> str:
    """The C++ type of a buffer's elements."""
    return "double" if b.dtype == F64 else "float"
