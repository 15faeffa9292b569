"""The error bound of the uninterpreted test: degrees and function arguments, propagated through a program.

Every value is a quotient of integer polynomials in independent variables (inputs, positions, function values, factors of
stabilised exponentials), built by fixed rules without cancelling anything. The rules below bound the degree of numerator
and denominator, and the size of their coefficients; docs/proof.md states the theorem that these figures enter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Axes, Number
from mirage_cli.lax.domains.field import LOWEST, PRIME_COUNT
from mirage_cli.lax.ir.program import Program, node_value

LIMIT = 1 << 60  #: degrees and bits from which on no bound is worth having; larger ones count as this
LEAST_LOG2 = -1024.0  #: chances below 2 to this power are told as this one, a chance of 0 too
NONE: frozenset[Hashable] = frozenset()


@dataclass(frozen=True, slots=True)
class PrimeRange:
    """Primes of which one is drawn, each with the same probability: `count` ones, none below `lowest`."""

    lowest: int
    count: int

    def divides(self, bits: float) -> float:
        """The chance that a prime divides a number other than 0 that is at most 2**bits."""
        return math.floor(bits / math.log2(self.lowest)) / self.count

    def root(self, degree: int) -> float:
        """The chance that a point of one field is a root of a polynomial that is not 0 there. Values are uniform among
        at least p - 1, up to a bias that p - 2 covers."""
        return degree / (self.lowest - 2)


PRIMES = PrimeRange(LOWEST, PRIME_COUNT)  #: those of `field.random_primes`


@dataclass(frozen=True, slots=True)
class Degree:
    """A value as a quotient of polynomials.

    `num` and `den` are the degrees of numerator and denominator, `num_bits` and `den_bits` the logarithms of the sums of
    their coefficients' absolute values; `axes` are those along which the value varies, `den_axes` those along which the
    denominator does; `applications` counts the function arguments that one entry depends on.
    """

    num: int
    den: int
    axes: frozenset[Hashable]
    den_axes: frozenset[Hashable] = NONE
    applications: int = 0
    num_bits: float = 0.0
    den_bits: float = 0.0

    def __post_init__(self) -> None:
        for name in ("num", "den", "applications", "num_bits", "den_bits"):
            if getattr(self, name) > LIMIT:
                object.__setattr__(self, name, LIMIT)


@dataclass(slots=True)
class Arguments:
    """The largest figures among the arguments of each function; shared by everything that is compared."""

    seen: dict[str, tuple[int, int, float, float]] = field(default_factory=dict)

    def add(self, name: str, x: Degree) -> None:
        """Take note of an argument of the function `name`."""
        old = self.seen.get(name, (0, 0, 0.0, 0.0))
        self.seen[name] = (
            max(old[0], x.num),
            max(old[1], x.den),
            max(old[2], x.num_bits),
            max(old[3], x.den_bits),
        )

    @property
    def degree(self) -> int:
        """The degree of the numerator of a difference of two arguments of one function."""
        return max((num + den for num, den, _, _ in self.seen.values()), default=0)

    @property
    def bits(self) -> float:
        """The size of that numerator's coefficients."""
        return max((num + den + 1 for _, _, num, den in self.seen.values()), default=0.0)


class Degrees:
    """The domain of degrees. `extents` gives every axis that is summed its number of positions."""

    def __init__(self, extents: Mapping[Hashable, int], arguments: Arguments | None = None) -> None:
        self.extents = extents
        self.arguments = Arguments() if arguments is None else arguments

    def const(self, value: Number) -> Degree:
        if isinstance(value, float) and not math.isfinite(value):
            return self.variable(NONE)
        exact = Fraction(value)
        return Degree(0, 0, NONE, NONE, 0, math.log2(max(abs(exact.numerator), 1)), math.log2(exact.denominator))

    def variable(self, axes: frozenset[Hashable], applications: int = 0) -> Degree:
        """An input, a function's value or an arbitrary factor."""
        return Degree(1, 0, axes, NONE, applications)

    def add(self, x: Degree, y: Degree) -> Degree:
        num = max(x.num + y.den, y.num + x.den)
        bits = log_sum(x.num_bits + y.den_bits, y.num_bits + x.den_bits)
        return self._join(x, y, num, x.den + y.den, bits, x.den_bits + y.den_bits)

    sub = add

    def mul(self, x: Degree, y: Degree) -> Degree:
        return self._join(x, y, x.num + y.num, x.den + y.den, x.num_bits + y.num_bits, x.den_bits + y.den_bits)

    def div(self, x: Degree, y: Degree, guard: str = "") -> Degree:
        """A quotient; a guarded one has a variable of its own as a factor."""
        num, den = x.num + y.den + bool(guard), x.den + y.num
        joined = self._join(x, y, num, den, x.num_bits + y.den_bits, x.den_bits + y.num_bits)
        return replace(joined, den_axes=x.den_axes | y.axes)

    def exp(self, x: Degree) -> Degree:
        return self.call("exp", x)

    def stable_exp(self, x: Degree, over: Axes) -> Degree:
        return self.mul(self.exp(x), self.variable(x.axes - set(over)))

    def call(self, name: str, *args: Degree) -> Degree:
        axes, applications = NONE, len(args)
        for a in args:
            self.arguments.add(name, a)
            axes, applications = axes | a.axes, applications + a.applications
        return self.variable(axes, applications)

    def select(self, condition: Degree, x: Degree, y: Degree) -> Degree:
        return self.add(self.mul(condition, self.sub(x, y)), y)

    def sum(self, x: Degree, over: Axes) -> Degree:
        """Summands with one denominator keep it; others get the product of all."""
        n = max(1, math.prod(self.extents[a] for a in over))
        num, den, num_bits, den_bits = x.num, x.den, x.num_bits + math.log2(n), x.den_bits
        if x.den_axes & set(over):
            num, den = x.num + (n - 1) * x.den, n * x.den
            num_bits, den_bits = num_bits + (n - 1) * x.den_bits, n * x.den_bits
        gone = set(over)
        return Degree(num, den, x.axes - gone, x.den_axes - gone, x.applications * n, num_bits, den_bits)

    def extreme(self, kind: str, x: Degree, over: Axes) -> Degree:
        """A symmetric function of all elements along `over`: each counts as an argument."""
        self.arguments.add(kind, x)
        n = max(1, math.prod(self.extents[a] for a in over))
        return self.variable(x.axes - set(over), (x.applications + 1) * n)

    def contract(self, x: Degree, y: Degree, over: Axes) -> Degree:
        return self.sum(self.mul(x, y), over)

    def iota(self, axis: Hashable, extent: int, offset: int = 0) -> Degree:
        return self.variable(frozenset([axis]))

    def stored(self, x: Degree, axes: frozenset[Hashable]) -> Degree:
        """A stored value read again along `axes`."""
        return replace(x, axes=axes, den_axes=axes)

    def running_max(self, previous: Degree | None, x: Degree, over: Axes) -> Degree:
        return self.variable(x.axes - set(over))

    def exp_minus(self, x: Degree, maximum: Degree) -> Degree:
        return self.div(self.exp(x), maximum)

    def exp_difference(self, old: Degree, new: Degree) -> Degree:
        return self.div(old, new)

    def accumulate(self, x: Degree, weight: Degree | None, step: Hashable) -> Degree:
        """The last of total = total * weight + x, once for each position of `step`; the first total is x."""
        total = self.sum(x, [step])
        if weight is None:
            return total
        n = max(1, self.extents[step])
        joined = self._join(
            total,
            weight,
            total.num + (n - 1) * max(weight.num, weight.den),
            total.den + (n - 1) * weight.den,
            total.num_bits + (n - 1) * max(weight.num_bits, weight.den_bits),
            total.den_bits + (n - 1) * weight.den_bits,
        )
        gone = {step}
        applications = total.applications + n * weight.applications
        return replace(joined, axes=joined.axes - gone, den_axes=joined.den_axes - gone, applications=applications)

    def _join(self, x: Degree, y: Degree, num: int, den: int, num_bits: float, den_bits: float) -> Degree:
        applications = x.applications + y.applications
        return Degree(num, den, x.axes | y.axes, x.den_axes | y.den_axes, applications, num_bits, den_bits)


def log2(chance: float) -> float:
    """log2 of what bounds a probability, between `LEAST_LOG2` and 0."""
    return max(LEAST_LOG2, min(0.0, math.log2(chance))) if chance > 0 else LEAST_LOG2


def log_sum(x: float, y: float) -> float:
    """log2(2**x + 2**y)."""
    top = max(x, y)
    if top == -math.inf:
        return top
    return top + math.log2(1.0 + 2.0 ** (min(x, y) - top))


DomainOf = Callable[[Mapping[Hashable, int]], Any]  #: a domain of figures for given extents of the axes


def program_figures(p: Program, symbols: Mapping[str, int], domain_of: DomainOf) -> list[Any]:
    """The figures of a program's outputs at given extents, in the domain of `Degrees` or one like it."""
    extents: dict[Hashable, int] = {a.name: ex.value(a.extent, symbols) for a in p.axes}
    domain = domain_of(extents)
    values: dict[str, Any] = {i.name: domain.variable(frozenset(p.axes_of(i.name))) for i in p.inputs}
    for n in p.nodes:
        values[n.name] = node_value(n, domain, [values[i] for i in n.inputs], extents)
    return [values[o.value] for o in p.outputs]


def program_degrees(p: Program, symbols: Mapping[str, int], arguments: Arguments | None = None) -> list[Degree]:
    """The degrees of a program's outputs at given extents; `arguments` takes note of what its functions get."""
    noted = Arguments() if arguments is None else arguments
    return program_figures(p, symbols, lambda extents: Degrees(extents, noted))


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two results: its numerator's degree and coefficients, and the function arguments of both."""

    degree: int
    bits: float
    applications: int


def difference(x: Degree, y: Degree) -> Difference:
    """The figures of `x - y`."""
    degree = max(x.num + y.den, y.num + x.den)
    bits = log_sum(x.num_bits + y.den_bits, y.num_bits + x.den_bits)
    return Difference(degree, bits, x.applications + y.applications)


def largest_difference(differences: Sequence[Difference]) -> Difference:
    """Figures that cover all."""
    return Difference(
        max((d.degree for d in differences), default=0),
        max((d.bits for d in differences), default=0.0),
        max((d.applications for d in differences), default=0),
    )


@dataclass(frozen=True, slots=True)
class Bound:
    """The theorem of docs/proof.md: `fields` random primes of the range `primes`, up to `draws` random points.

    `degree` and `bits` are those of a difference of outputs, `argument` and `argument_bits` of a difference of function
    arguments, of which there are `applications`.
    """

    degree: int
    bits: float
    argument: int
    argument_bits: float
    applications: int
    fields: int
    draws: int = 1
    primes: PrimeRange = PRIMES

    @property
    def log2(self) -> float:
        """log2 of the error bound (at most 0)."""
        total = self._vanish(self.degree, self.bits)
        if self.applications > 1:
            total = log_sum(total, log_pairs(self.applications) + self._vanish(self.argument, self.argument_bits))
        return min(0.0, total + math.log2(self.draws))

    def _vanish(self, degree: int, bits: float) -> float:
        """log2 of the chance that a polynomial other than 0 vanishes in all fields: in each one a prime divides all its
        coefficients, or the point is a root."""
        return self.fields * log2(self.primes.root(degree) + self.primes.divides(bits))


def log_pairs(count: int) -> float:
    """log2 of the number of pairs of `count` things, two at least."""
    return math.log2(count) + math.log2(count - 1) - 1
