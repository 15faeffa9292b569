"""Growth of the values of a program with its inputs: the highest power of a huge number among them.

A quotient grows with the difference of two powers, so that what a norm gives does not grow at all. Weights of a model are
numbers of size one, and so is what an exponential gives: where it is not, it is infinite.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from mirage_cli.lax.domains.domain import Axes, Number
from mirage_cli.lax.ir.program import Program, node_value
from mirage_cli.lax.ops import lookup


def growth(p: Program) -> float:
    """The highest power of the inputs that are no weights among the values of a program."""
    extents = dict.fromkeys((a.name for a in p.axes), 1)  # sums grow as their terms
    powers = {i.name: Power(float(i.source not in p.constants)) for i in p.inputs}
    for n in p.nodes:
        powers[n.name] = node_value(n, Powers(), [powers[i] for i in n.inputs], extents)
    return max((x.of for x in powers.values()), default=0.0)


class Power(NamedTuple):
    """A value that grows with this power of the inputs; `number` is that of a constant."""

    of: float
    number: Number | None = None


class Powers:
    """The domain of powers, as far as programs need it."""

    def const(self, value: Number) -> Power:
        return Power(0.0, value)

    def add(self, x: Power, y: Power) -> Power:
        return Power(max(x.of, y.of))

    sub = add

    def mul(self, x: Power, y: Power) -> Power:
        return Power(x.of + y.of)

    def div(self, x: Power, y: Power, guard: str = "") -> Power:
        return Power(max(0.0, x.of - y.of))

    def exp(self, x: Power) -> Power:
        return Power(0.0)

    def stable_exp(self, x: Power, over: Axes) -> Power:
        return Power(0.0)

    def call(self, name: str, *args: Power) -> Power:
        """A function grows as its operands do, unless more is known."""
        op, top = lookup(name), max(x.of for x in args)
        if op.predicate or op.slow:
            return Power(0.0)
        if name == "sqrt":
            return Power(top / 2)
        if name == "pow" and args[1].number is not None:
            return Power(args[0].of * max(0.0, float(args[1].number)))
        return Power(top)

    def select(self, condition: Power, x: Power, y: Power) -> Power:
        return self.add(x, y)

    def sum(self, x: Power, over: Axes) -> Power:
        return x

    def extreme(self, kind: str, x: Power, over: Axes) -> Power:
        return x

    def contract(self, x: Power, y: Power, over: Axes) -> Power:
        return self.mul(x, y)

    def iota(self, axis: Hashable, extent: int, offset: int = 0) -> Power:
        return Power(0.0)
