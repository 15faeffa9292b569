"""The engine `strip`: which block graphs suit it, how their axes lie in matrices, and its schedules.

Each group of warps walks its own iterations of the loop with values in registers; what groups have accumulated is merged
behind the loop. Products are done by matrix instructions, so every axis of their results lies either along the rows (16
at a time) or along the columns (8 at a time) of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mirage_cli.errors import Refused
from mirage_cli.lax.program import Program
from mirage_cli.search.mugraph import BODY, BlockGraph, BlockOp

Size = Callable[[str, str], int]  #: positions of an axis that a tile of a phase holds


@dataclass(frozen=True, slots=True)
class Sides:
    """The axes along the rows and along the columns of matrices."""

    rows: frozenset[str]
    cols: frozenset[str]

    def row_axes(self, axes: frozenset[str]) -> frozenset[str]:
        """Those of `axes` that lie along rows."""
        return axes & self.rows

    def col_axes(self, axes: frozenset[str]) -> frozenset[str]:
        """Those of `axes` that lie along columns."""
        return axes & self.cols


def products(graph: BlockGraph) -> list[BlockOp]:
    """The contractions of the loop's body."""
    return [o for o in graph.ops if o.op == "contract" and o.phase == BODY]


def made_of_products(graph: BlockGraph) -> frozenset[str]:
    """The values of the body that depend on a contraction there."""
    found: set[str] = set()
    for o in graph.ops:
        if o.phase == BODY and (o.op == "contract" or found & set(o.inputs)):
            found.add(o.name)
    return frozenset(found)


def orient(program: Program, graph: BlockGraph, size: Size) -> Sides:
    """How the axes of a block graph lie in matrices. Raises Refused where no way fits all contractions.

    A contraction of what another one made sums along its columns, whose rows are then those of the result. Otherwise the
    smaller side lies along the columns.
    """
    axes, made = graph.axes_of(program), made_of_products(graph)
    rows: set[str] = set()
    cols: set[str] = set()

    def wide(own: frozenset[str]) -> frozenset[str]:
        return frozenset(a for a in own if size(a, BODY) > 1)

    chained = [(o, i) for o in products(graph) for i in o.inputs if i in made]
    for o, i in chained:
        over = frozenset(o.over)
        other = next((j for j in o.inputs if j != i), i)
        if other in made:
            raise Refused(f"{o.name} multiplies two results of products")
        cols |= wide(axes[i] & over) | wide(axes[other] - over)
        rows |= wide(axes[i] - over)
    for o in products(graph):
        over = frozenset(o.over)
        x, y = (wide(axes[i] - over) for i in o.inputs)
        if x & y:
            raise Refused(f"axis {min(x & y)} is a batch of the contraction {o.name}")
        for one, two in ((x, y), (y, x)):
            if one & rows or two & cols:
                rows |= one
                cols |= two
                break
        else:
            small, large = sorted((x, y), key=lambda own: _count(own, size))
            rows |= large
            cols |= small
    if both := rows & cols:
        raise Refused(f"axis {min(both)} would lie along rows and columns")
    return Sides(frozenset(rows), frozenset(cols))


def _count(axes: frozenset[str], size: Size) -> int:
    total = 1
    for a in axes:
        total *= size(a, BODY)
    return total
