"""Exact quotients of polynomials with integer coefficients: a domain that multiplies everything out and cancels nothing.

Equal denominators stay as they are in a sum, others are multiplied, as docs/proof.md says. Function values are new
variables, one for each different list of arguments.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax.domains.domain import ArrayDomain, Axes, Number
from mirage_cli.lax.ops import OPS

Array = NDArray[Any]
Monomial = tuple[str, ...]  #: names of variables, sorted, with repetition


@dataclass(frozen=True)
class Poly:
    """A polynomial by its monomials."""

    terms: tuple[tuple[Monomial, int], ...]

    @classmethod
    def of(cls, terms: Iterable[tuple[Monomial, int]]) -> Poly:
        found: Counter[Monomial] = Counter()
        for monomial, factor in terms:
            found[monomial] += factor
        return cls(tuple(sorted((m, c) for m, c in found.items() if c)))

    def __add__(self, other: Poly) -> Poly:
        return Poly.of([*self.terms, *other.terms])

    def __mul__(self, other: Poly) -> Poly:
        return Poly.of((tuple(sorted(m + n)), c * d) for m, c in self.terms for n, d in other.terms)

    def __neg__(self) -> Poly:
        return Poly(tuple((m, -c) for m, c in self.terms))

    @property
    def degree(self) -> int:
        return max((len(m) for m, _ in self.terms), default=0)

    @property
    def bits(self) -> float:
        """The logarithm of the sum of the coefficients' absolute values."""
        return math.log2(max(1, sum(abs(c) for _, c in self.terms)))


ONE = Poly((((), 1),))


@dataclass(frozen=True)
class Quotient:
    """A quotient, and the function arguments that it depends on (each list of arguments once)."""

    num: Poly
    den: Poly
    arguments: frozenset[Any] = frozenset()

    def differs(self, other: Quotient) -> tuple[Poly, Poly]:
        """The two products whose difference is the numerator of the difference."""
        return self.num * other.den, other.num * self.den


def variable(name: str) -> Quotient:
    return Quotient(Poly((((name,), 1),)), ONE)


def variables(name: str, dims: Sequence[int]) -> Array:
    """An array of independent variables."""
    made = np.empty(tuple(dims), dtype=object)
    for index in np.ndindex(*dims):
        made[index] = variable(f"{name}{list(index)}")
    return made


def _elementwise(function: Callable[..., Quotient], *args: Array) -> Array:
    vectorized = np.frompyfunc(function, len(args), 1)
    return np.asarray(vectorized(*args), dtype=object)


def add(x: Quotient, y: Quotient) -> Quotient:
    return Quotient(x.num * y.den + y.num * x.den, x.den * y.den, x.arguments | y.arguments)


def mul(x: Quotient, y: Quotient) -> Quotient:
    return Quotient(x.num * y.num, x.den * y.den, x.arguments | y.arguments)


def div(x: Quotient, y: Quotient) -> Quotient:
    return Quotient(x.num * y.den, x.den * y.num, x.arguments | y.arguments)


def total(values: Sequence[Quotient]) -> Quotient:
    """A sum: one denominator stays, different ones are multiplied."""
    arguments = frozenset[Any]().union(*(v.arguments for v in values))
    if len({v.den for v in values}) == 1:
        return Quotient(functools.reduce(lambda a, b: a + b, (v.num for v in values)), values[0].den, arguments)
    return functools.reduce(add, values)


@dataclass
class Functions:
    """Variables for function values, shared by all domains of one comparison."""

    known: dict[Any, str] = field(default_factory=dict)
    fresh: int = 0

    def value(self, name: str, args: Sequence[Quotient], unordered: bool = False) -> Quotient:
        shown = [(a.num, a.den) for a in args]
        key = (name, tuple(sorted(shown, key=repr)) if unordered else tuple(shown))
        made = self.known.setdefault(key, f"{name}#{len(self.known)}")
        below = frozenset[Any]().union(*(a.arguments for a in args))
        return Quotient(variable(made).num, ONE, below | {(made, k) for k in range(len(args))})

    def new(self) -> Quotient:
        self.fresh += 1
        return variable(f"fresh#{self.fresh}")


class Quotients(ArrayDomain):
    """The domain; arrays hold `Quotient`s."""

    def __init__(self, order: Sequence[Hashable], functions: Functions) -> None:
        super().__init__(order)
        self.functions = functions

    def const(self, value: Number) -> Array:
        if isinstance(value, float) and not math.isfinite(value):
            return np.array(variable(f"constant {value}"), dtype=object)
        exact = Fraction(value)
        made = Quotient(Poly.of([((), exact.numerator)]), Poly.of([((), exact.denominator)]))
        return np.array(made, dtype=object)

    def add(self, x: Array, y: Array) -> Array:
        return _elementwise(add, x, y)

    def sub(self, x: Array, y: Array) -> Array:
        return _elementwise(lambda a, b: add(a, Quotient(-b.num, b.den, b.arguments)), x, y)

    def mul(self, x: Array, y: Array) -> Array:
        return _elementwise(mul, x, y)

    def div(self, x: Array, y: Array, guard: str = "") -> Array:
        guarded = variable(f"guard {guard}")
        return _elementwise(lambda a, b: mul(div(a, b), guarded) if guard else div(a, b), x, y)

    def exp(self, x: Array) -> Array:
        return self.call("exp", x)

    def stable_exp(self, x: Array, over: Axes) -> Array:
        return self.mul(self.exp(x), self._fresh(x, over))

    def call(self, name: str, *args: Array) -> Array:
        return _elementwise(lambda *a: self.functions.value(name, a, OPS[name].commutative), *args)

    def select(self, condition: Array, x: Array, y: Array) -> Array:
        return self.add(self.mul(condition, self.sub(x, y)), y)

    def sum(self, x: Array, over: Axes) -> Array:
        return self._reduce(x, over, total)

    def extreme(self, kind: str, x: Array, over: Axes) -> Array:
        return self._reduce(x, over, lambda values: self.functions.value(kind, values, True))

    def contract(self, x: Array, y: Array, over: Axes) -> Array:
        return self.sum(self.mul(x, y), over)

    def iota(self, axis: Hashable, extent: int, offset: int = 0) -> Array:
        return self.along(axis, variables(f"position {axis}", (offset + extent,))[offset:])

    def running_max(self, previous: Array | None, x: Array, over: Axes) -> Array:
        return self._fresh(x, over)

    def exp_minus(self, x: Array, maximum: Array) -> Array:
        return self.div(self.exp(x), maximum)

    def exp_difference(self, old: Array, new: Array) -> Array:
        return self.div(old, new)

    def _fresh(self, x: Array, over: Axes) -> Array:
        shape = list(x.shape)
        for d in self.dims(over):
            shape[d] = 1
        return _elementwise(lambda _: self.functions.new(), np.zeros(shape))

    def _reduce(self, x: Array, over: Axes, function: Callable[[Sequence[Quotient]], Quotient]) -> Array:
        dims = [d % x.ndim for d in self.dims(over)]
        kept = [d for d in range(x.ndim) if d not in dims]
        moved = x.transpose([*kept, *dims]).reshape([x.shape[d] for d in kept] + [-1])
        made = np.empty(moved.shape[:-1], dtype=object)
        for index in np.ndindex(*made.shape):
            made[index] = function(list(moved[index]))
        return made.reshape([1 if d in dims else n for d, n in enumerate(x.shape)])
