"""Positions of a strip kernel's iteration as short integers, where integers that are inputs say which of them are shown."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from mirage_cli.codegen.terms.positions import Positions
from mirage_cli.codegen.terms.visible import held
from mirage_cli.codegen.tiles.tile import Apply, Expr, Global, Number, Position
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.search.mugraph.mugraph import BODY
from mirage_cli.search.schedules.schedule import Schedule

MOST_WHOLE = 1 << 28  #: of numbers that are added to positions


class StripCounts(Positions):
    """Comparisons with positions along the loop."""

    s: Schedule
    loop_axis: str

    @property
    def counted(self) -> bool:
        """True if an iteration counts its positions by what integers that are inputs say."""
        return any(f.given for f in self.limits) and not self.shapes.exact(self.loop_axis, BODY)

    def counts(self) -> list[ir.Statement]:
        """The first position of an iteration along the loop, and how many there are from it on, no more than a tile has."""
        if not self.counted:
            return []
        axis, base = self.loop_axis, k.total(self.base(self.loop_axis, BODY))
        left = k.converted("offset_t", self.extent(self.p.extent(axis)) - base)
        most = k.call("min", left, k.converted("offset_t", self.s.loop))
        here, rest = k.cast("int", base), k.cast("int", most)
        return [k.lets("int", {f"{axis}_here": here, f"{axis}_left": rest}, unused=True)]

    def inside_strip(self, axes: Sequence[str]) -> ir.Expression | None:
        """As `inside` for positions of an iteration."""
        if not self.counted or self.loop_axis not in axes:
            return self.inside(axes, BODY)
        loop = self.loop_axis
        return k.both(self.inside([a for a in axes if a != loop], BODY), k.name(f"i_{loop}") < f"{loop}_left")

    def whole_numbers(self, args: Sequence[Expr]) -> list[ir.Expression]:
        """Expressions of positions and of integers that a block has as integers; none where one is another."""
        if not self.counted or not any(_walks(a, self.loop_axis) for a in args):
            return []
        found = [self.whole_number(a) for a in args]
        return [x for x in found if x is not None] if None not in found else []

    def whole_number(self, e: Expr) -> ir.Expression | None:
        """Such an expression; None for another one."""
        match e:
            case Position(a) if a == self.loop_axis:
                return k.name(f"{a}_here") + f"i_{a}"
            case Position(a):
                return k.cast("int", self.position(a, BODY))
            case Global(v) if any(v == x for f in self.limits for x, _ in f.given):
                return held(v)
            case Number(Fraction() as n) if n.denominator == 1 and abs(n) < MOST_WHOLE:
                return ir.lift(int(n))
            case Apply("add", (x, y)):
                one, two = self.whole_number(x), self.whole_number(y)
                return None if one is None or two is None else one + two
        return None


def _walks(e: Expr, axis: str) -> bool:
    """True if an expression has positions along an axis."""
    return e == Position(axis) or (isinstance(e, Apply) and any(_walks(a, axis) for a in e.args))
