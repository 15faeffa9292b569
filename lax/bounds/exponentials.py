"""The error bound of the homomorphic test: sums of exponentials, propagated through a program.

Every value is a quotient of sums f_1 exp(g_1) + ... + f_k exp(g_k), with integer polynomials f and quotients of such
polynomials g, built by the rules of `lax.bound` without cancelling anything. Beside the figures of the f, taken together,
numerator and denominator carry the number k of terms and the figures of the exponents g. docs/proof.md states the theorem.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_cli.errors import Refused
from mirage_cli.lax.bounds.bound import (
    LIMIT,
    NONE,
    Arguments,
    Degree,
    Degrees,
    Difference,
    PrimeRange,
    difference,
    largest_difference,
    log2,
    log_pairs,
)
from mirage_cli.lax.bounds.homomorphic import PAIRS, refusal
from mirage_cli.lax.domains.domain import Axes, Number
from mirage_cli.lax.ops import OPS


@dataclass(frozen=True, slots=True)
class Terms:
    """A sum of `count` terms; `exponent` has the largest figures of their exponents. None: there is no exponential, and
    one term."""

    count: int = 1
    exponent: Degree | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", min(self.count, LIMIT))


@dataclass(frozen=True, slots=True)
class Exponential:
    """A value as a quotient of sums of exponentials: `base` has the figures of the polynomials and the axes."""

    base: Degree
    num: Terms = Terms()
    den: Terms = Terms()

    @property
    def plain(self) -> bool:
        """True if there is no exponential in it."""
        return self.num.exponent is None and self.den.exponent is None


@dataclass(slots=True)
class Exponentials:
    """The domain. `extents` gives every axis that is summed its number of positions, `arguments` takes note of what
    functions get."""

    extents: Mapping[Hashable, int]
    arguments: Arguments
    figures: Degrees = field(init=False)

    def __post_init__(self) -> None:
        self.figures = Degrees(self.extents, self.arguments)

    def const(self, value: Number) -> Exponential:
        return Exponential(self.figures.const(value))

    def variable(self, axes: frozenset[Hashable], applications: int = 0) -> Exponential:
        return Exponential(self.figures.variable(axes, applications))

    def stored(self, x: Exponential, axes: frozenset[Hashable]) -> Exponential:
        """A stored value read again along `axes`."""
        num, den = (
            t if t.exponent is None else replace(t, exponent=replace(t.exponent, axes=axes)) for t in (x.num, x.den)
        )
        return Exponential(self.figures.stored(x.base, axes), num, den)

    def add(self, x: Exponential, y: Exponential) -> Exponential:
        num = _sum(_product(x.num, y.den), _product(y.num, x.den))
        return Exponential(self.figures.add(x.base, y.base), num, _product(x.den, y.den))

    sub = add

    def mul(self, x: Exponential, y: Exponential) -> Exponential:
        return Exponential(self.figures.mul(x.base, y.base), _product(x.num, y.num), _product(x.den, y.den))

    def div(self, x: Exponential, y: Exponential, guard: str = "") -> Exponential:
        base = self.figures.div(x.base, y.base, guard)
        return Exponential(base, _product(x.num, y.den), _product(x.den, y.num))

    def exp(self, x: Exponential) -> Exponential:
        one = replace(self.figures.const(1), axes=x.base.axes, applications=x.base.applications)
        return Exponential(one, Terms(1, _plain("exp", x).base))

    def stable_exp(self, x: Exponential, over: Axes) -> Exponential:
        return self.mul(self.exp(x), self.variable(x.base.axes - set(over)))

    def exp_minus(self, x: Exponential, maximum: Exponential) -> Exponential:
        return self.div(self.exp(x), maximum)

    def exp_difference(self, old: Exponential, new: Exponential) -> Exponential:
        return self.div(old, new)

    def running_max(self, previous: Exponential | None, x: Exponential, over: Axes) -> Exponential:
        return self.variable(x.base.axes - set(over))

    def call(self, name: str, *args: Exponential) -> Exponential:
        return Exponential(self.figures.call(name, *(_plain(name, a).base for a in args)))

    def extreme(self, kind: str, x: Exponential, over: Axes) -> Exponential:
        return Exponential(self.figures.extreme(kind, _plain(kind, x).base, over))

    def select(self, condition: Exponential, x: Exponential, y: Exponential) -> Exponential:
        return self.add(self.mul(condition, self.sub(x, y)), y)

    def iota(self, axis: Hashable, extent: int, offset: int = 0) -> Exponential:
        return self.variable(frozenset([axis]))

    def contract(self, x: Exponential, y: Exponential, over: Axes) -> Exponential:
        return self.sum(self.mul(x, y), over)

    def sum(self, x: Exponential, over: Axes) -> Exponential:
        """Terms of one exponent are one term; other denominators multiply, as in `Degrees.sum`."""
        base = self.figures.sum(x.base, over)
        num, den = x.num, x.den
        if x.base.den_axes & set(over):
            n = max(1, math.prod(self.extents[a] for a in over))
            num, den = _product(num, _power(den, n - 1)), _power(den, n)
        varying = NONE if num.exponent is None else num.exponent.axes & set(over)
        times = max(1, math.prod(self.extents[a] for a in varying))
        return Exponential(base, replace(num, count=num.count * times), den)

    def accumulate(self, x: Exponential, weight: Exponential | None, step: Hashable) -> Exponential:
        """The last of total = total * weight + x, once for each position of `step`; weights have no exponentials."""
        total = self.sum(x, [step])
        if weight is None:
            return total
        base = self.figures.accumulate(x.base, _plain("a weight", weight).base, step)
        return Exponential(base, total.num, total.den)


def _plain(name: str, x: Exponential) -> Exponential:
    if not x.plain:
        raise Refused(refusal(name))
    return x


def _product(x: Terms, y: Terms) -> Terms:
    """The terms of a product: exponents add."""
    if x.exponent is None or y.exponent is None:
        return Terms(x.count * y.count, x.exponent or y.exponent)
    return Terms(x.count * y.count, Degrees({}).add(x.exponent, y.exponent))


def _power(x: Terms, n: int) -> Terms:
    """The terms of a product of n different sums, each with the figures of x."""
    count = x.count**n if n * math.log2(x.count) < math.log2(LIMIT) else LIMIT
    if x.exponent is None or n <= 1:
        return Terms(count, x.exponent if n else None)
    e = x.exponent
    bits = e.num_bits + (n - 1) * e.den_bits + math.log2(n)
    return Terms(count, replace(e, num=e.num + (n - 1) * e.den, den=n * e.den, num_bits=bits, den_bits=n * e.den_bits))


def _sum(x: Terms, y: Terms) -> Terms:
    """The terms of a sum: those of both."""
    if x.exponent is None and y.exponent is None:
        return Terms()
    return Terms(x.count + y.count, _larger(x.exponent, y.exponent))


def _larger(x: Degree | None, y: Degree | None) -> Degree | None:
    """Figures that cover both."""
    if x is None or y is None:
        return x or y
    return Degree(
        max(x.num, y.num),
        max(x.den, y.den),
        x.axes | y.axes,
        x.den_axes | y.den_axes,
        max(x.applications, y.applications),
        max(x.num_bits, y.num_bits),
        max(x.den_bits, y.den_bits),
    )


def exponential(op: str) -> bool:
    """True if the operator of the registry that is called `op` has an exponential in its meaning."""
    domain = Exponentials({}, Arguments())
    value: Exponential = OPS[op].apply(domain, *[domain.variable(NONE)] * OPS[op].arity)
    return not value.plain


@dataclass(frozen=True, slots=True)
class Gap:
    """The difference of two results: `sides` of its numerator's polynomials, `terms` of it, and degree and coefficients of a
    difference of two of their exponents."""

    sides: Difference
    terms: int
    exponent: int
    exponent_bits: float


def gap(x: Exponential, y: Exponential) -> Gap:
    """The figures of `x - y`."""
    numerator = _sum(_product(x.num, y.den), _product(y.num, x.den))
    e = numerator.exponent
    sides = difference(x.base, y.base)
    if e is None:
        return Gap(sides, 1, 0, 0.0)
    return Gap(sides, numerator.count, e.num + e.den, e.num_bits + e.den_bits + 1)


def largest(gaps: Sequence[Gap]) -> Gap:
    """Figures that cover all."""
    return Gap(
        largest_difference([g.sides for g in gaps]),
        max((g.terms for g in gaps), default=1),
        max((g.exponent for g in gaps), default=0),
        max((g.exponent_bits for g in gaps), default=0.0),
    )


@dataclass(frozen=True, slots=True)
class HomomorphicBound:
    """The theorem of docs/proof.md for so many rounds, each with a pair of primes and a point of its own, of which
    `redraws` in all may be drawn again."""

    gap: Gap
    argument: int
    argument_bits: float
    rounds: int
    redraws: int
    pairs: PrimeRange = PAIRS

    @property
    def log2(self) -> float:
        """log2 of the error bound (at most 0)."""
        ways = math.log2(math.comb(self.rounds + self.redraws, self.redraws))
        return min(0.0, self.rounds * log2(self.round) + ways)

    @property
    def round(self) -> float:
        """A bound of the chance that one round at a point without a division by zero accepts."""
        q, p = self.pairs, PrimeRange(2 * self.pairs.lowest + 1, self.pairs.count)
        sides, others = self.gap.sides, self.gap.terms - 1
        chance = p.root(sides.degree) + p.divides(sides.bits)
        chance += others * (q.root(self.gap.exponent) + q.divides(self.gap.exponent_bits))
        chance += 2 / boxes(q.lowest, others) if others else 0.0
        if sides.applications > 1:
            chance += 2.0 ** (log_pairs(sides.applications) + log2(self._collision(p, q)))
        return min(1.0, chance)

    def _collision(self, p: PrimeRange, q: PrimeRange) -> float:
        """The chance that two arguments agree in both fields: roots in both, or a prime divides all coefficients."""
        root, bits = q.root(self.argument), self.argument_bits
        twice = math.floor(bits / math.log2(p.lowest * q.lowest)) / q.count
        return root * p.root(self.argument) + root * (p.divides(bits) + q.divides(bits)) + twice

    @property
    def paper(self) -> float:
        """log2 of the bound of the paper's Theorem 2 for as many rounds: 8 d k^4 / q + q^(-1/k^2) for each one."""
        q, k = self.pairs.lowest, self.gap.terms
        chance = 8 * max(self.gap.sides.degree, self.gap.exponent) * k**4 / q + 2.0 ** (-math.log2(q) / k**2)
        return min(0.0, self.rounds * log2(chance))


def boxes(q: int, others: int) -> int:
    """The largest s with s**others < q: what Dirichlet's argument divides an interval into."""
    if others >= q.bit_length():
        return 1
    s = int(2.0 ** (math.log2(q) / others)) + 1
    while s > 1 and s**others >= q:
        s -= 1
    return s
