"""The error bound of the uninterpreted test: degrees and applications of functions, propagated through a program.

Theorem (docs/proof.md). Let two programs differ as rational functions of inputs and function values in some output entry
whose difference has a numerator of degree at most d, in which n function applications with arguments of degree at most a
take part. A test with uniform inputs and keyed random functions over primes p_1 .. p_m accepts them with probability at
most n^2/2 * prod(a / p_i) + prod(d / p_i).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_cli.lax import extents as ex
from mirage_cli.lax.domain import Axes, Number
from mirage_cli.lax.ops import lookup
from mirage_cli.lax.program import Program


@dataclass(frozen=True, slots=True)
class Degree:
    """A value as a quotient: degrees of numerator and denominator, the axes on which each denominator depends, and how
    many function applications one entry depends on."""

    num: int
    den: int
    axes: frozenset[Hashable]
    den_axes: frozenset[Hashable]
    applications: int


class Degrees:
    """The domain of degrees; `argument` is the largest degree of a difference of two arguments seen so far."""

    def __init__(self, extents: Mapping[Hashable, int]) -> None:
        self.extents = extents
        self.argument = 1

    def const(self, value: Number) -> Degree:
        return Degree(0, 0, frozenset(), frozenset(), 0)

    def variable(self, axes: frozenset[Hashable], applications: int = 0, degree: int = 1) -> Degree:
        """An input, or a function's value."""
        return Degree(degree, 0, axes, frozenset(), applications)

    def add(self, x: Degree, y: Degree) -> Degree:
        if x.den == 0 and y.den == 0:
            return self._join(x, y, max(x.num, y.num), 0)
        return self._join(x, y, max(x.num + y.den, y.num + x.den), x.den + y.den)

    sub = add

    def mul(self, x: Degree, y: Degree) -> Degree:
        return self._join(x, y, x.num + y.num, x.den + y.den)

    def div(self, x: Degree, y: Degree, guard: bool = False) -> Degree:
        joined = self._join(x, y, x.num + y.den + guard, x.den + y.num)
        return Degree(joined.num, joined.den, joined.axes, x.den_axes | y.axes, joined.applications)

    def exp(self, x: Degree) -> Degree:
        return self.call("exp", x)

    def stable_exp(self, x: Degree, over: Axes) -> Degree:
        e = self.call("exp", x)
        return Degree(2, 0, e.axes, frozenset(), e.applications)

    def call(self, name: str, *args: Degree) -> Degree:
        axes, applications = frozenset[Hashable](), 1
        for a in args:
            self.argument = max(self.argument, a.num + a.den)
            axes, applications = axes | a.axes, applications + a.applications
        return self.variable(axes, applications)

    def select(self, condition: Degree, x: Degree, y: Degree) -> Degree:
        return self.add(self.mul(condition, self.sub(x, y)), y)

    def sum(self, x: Degree, over: Axes) -> Degree:
        n = math.prod(self.extents[a] for a in over)
        num, den = x.num, x.den
        if x.den_axes & set(over):
            num, den = x.num + (n - 1) * x.den, n * x.den
        return Degree(num, den, x.axes - set(over), x.den_axes - set(over), x.applications * n)

    def extreme(self, kind: str, x: Degree, over: Axes) -> Degree:
        total = self.sum(Degree(x.num, 0, x.axes, frozenset(), x.applications), over)
        self.argument = max(self.argument, x.num + x.den)
        return self.variable(total.axes, total.applications + 1)

    def contract(self, x: Degree, y: Degree, over: Axes) -> Degree:
        return self.sum(self.mul(x, y), over)

    def iota(self, axis: Hashable, extent: int, offset: int = 0) -> Degree:
        return self.variable(frozenset([axis]))

    def running_max(self, previous: Degree | None, x: Degree, over: Axes) -> Degree:
        return self.variable(x.axes - set(over))

    def exp_minus(self, x: Degree, maximum: Degree) -> Degree:
        return self.mul(self.exp(x), maximum)

    def exp_difference(self, old: Degree, new: Degree) -> Degree:
        return self.mul(old, new)

    def _join(self, x: Degree, y: Degree, num: int, den: int) -> Degree:
        return Degree(num, den, x.axes | y.axes, x.den_axes | y.den_axes, x.applications + y.applications)


def program_degrees(p: Program, symbols: Mapping[str, int]) -> tuple[list[Degree], Degrees]:
    """The degrees of a program's outputs at given extents, and the domain that saw its arguments."""
    domain = Degrees({a.name: ex.value(a.extent, symbols) for a in p.axes})
    values: dict[str, Degree] = {i.name: domain.variable(frozenset(p.axes_of(i.name))) for i in p.inputs}
    for n in p.nodes:
        values[n.name] = _apply(domain, n.op, n.over, n.axis, [values[i] for i in n.inputs])
    return [values[o.value] for o in p.outputs], domain


def _apply(d: Degrees, op: str, over: Sequence[str], axis: str | None, args: list[Degree]) -> Degree:
    match op:
        case "const":
            return d.const(0)
        case "iota":
            return d.iota(axis, 0)
        case "stable_exp":
            return d.stable_exp(args[0], over)
        case "contract":
            return d.contract(args[0], args[1], over)
        case "sum":
            return d.sum(args[0], over)
        case "max" | "min" | "prod" if over:
            return d.extreme(op, args[0], over)
        case _:
            result: Any = lookup(op).apply(d, *args)
            return result if isinstance(result, Degree) else d.const(0)


@dataclass(frozen=True, slots=True)
class Bound:
    """The figures of the theorem, and its value as a power of two."""

    degree: int
    argument: int
    applications: int
    primes: tuple[int, ...]

    @property
    def log2(self) -> float:
        """log2 of the error bound (at most 0)."""
        fields = sum(math.log2(p) for p in self.primes)
        collide = -math.inf
        if self.applications > 1:
            collide = 2 * math.log2(self.applications) - 1 + len(self.primes) * math.log2(self.argument) - fields
        vanish = len(self.primes) * math.log2(max(self.degree, 1)) - fields
        top = max(collide, vanish)
        return min(0.0, top + math.log2(sum(2.0 ** (x - top) for x in (collide, vanish))))

    @property
    def value(self) -> float:
        """The bound itself (0 when it underflows)."""
        return 2.0**self.log2 if self.log2 > -1000 else 0.0
