"""Numbers of a kernel: one for each lane, in a domain. Integers and truth values stay numpy's own (or Python's, where all
lanes have the same one); a `Number` is an element type's value, [fields, lanes] or [fields, 1]."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mirage_cli.kernel_interpreter.rounding import Single, product, rounded
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.domains.field import Residues
from mirage_cli.lax.ops import OPS, QUOTIENTS, lookup

Array: TypeAlias = NDArray[Any]
_NUMBER = re.compile(r"(?P<hex>0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?)|(?P<dec>[\d.]+(?:[eE][+-]?\d+)?)")


@dataclass(frozen=True, slots=True)
class Number:
    """Values of lanes: `a` is [fields, lanes], or [fields, 1] where all lanes have the same."""

    a: Array


class Arithmetic:
    """Arithmetic of kernels: a domain (`Residues` or `Float64`), the exact numbers behind rounded literals, and
    arbitrary values for what nobody wrote and for quotients by zero."""

    def __init__(self, domain: Any, exact: Mapping[float, Fraction] | None = None) -> None:
        self.domain = domain
        self.exact = dict(exact or {})
        self.residues = isinstance(domain, Residues)
        self.fields = len(domain.primes) if self.residues else 1
        self.rounds = isinstance(domain, Single)
        self.dtype: Any = np.int64 if self.residues else np.float32 if self.rounds else np.float64
        self.stored: Any = np.float64 if self.rounds else self.dtype  #: of memory, which holds numbers of all types
        self._garbage = np.random.default_rng(20251)
        self._literals: dict[tuple[str, bool], Any] = {}
        self._below: tuple[Any, Any] = (
            None,
            None,
        )  #: the last maximum that exponentials were below, and what it divides by

    # --- making numbers -------------------------------------------------------------------------------------------------
    def number(self, x: Any) -> Number:
        """A number from a number, an integer (of each lane) or a truth value; arbitrary where nobody has set it."""
        if isinstance(x, Number):
            return x
        if x is None:
            return Number(self.arbitrary((1,)))
        if isinstance(x, np.ndarray):
            values = x.astype(np.int64).reshape(1, -1)
            return Number(values % self.modulus if self.residues else values.astype(self.dtype))
        return self.const(x if isinstance(x, float | Fraction) else int(x))

    @property
    def modulus(self) -> Array:
        """The primes, a row each."""
        return self.domain.modulus(1)  # type: ignore[no-any-return]

    def const(self, x: float | Fraction | int) -> Number:
        """The same number in all lanes."""
        return Number(np.asarray(self.domain.const(x)).reshape(self.fields, 1))

    def literal(self, text: str, negative: bool = False) -> Any:
        """The value of a literal: an integer, a truth value, or the exact number whose rounding is printed."""
        if (text, negative) not in self._literals:
            self._literals[text, negative] = self._read(text, negative)
        return self._literals[text, negative]

    def _read(self, text: str, negative: bool) -> Any:
        if text in ("true", "false"):
            return text == "true"
        if text in ("INFINITY", "NAN"):
            x = float("inf") if text == "INFINITY" else float("nan")
            return self.const(-x if negative else x)
        match = _NUMBER.match(text)
        if match is None:
            raise ValueError(f"{text} is no number")
        body, suffix = match[0], text[match.end() :].lower()
        real = "." in body or "p" in body.lower() or (match["dec"] and "e" in body.lower()) or suffix == "f"
        if not real:
            return -int(body, 0) if negative else int(body, 0)
        value = float.fromhex(body) if match["hex"] else float(body)
        number = self.exact.get(value, Fraction(value) if suffix == "f" else _quotient(value))
        if self.rounds and suffix != "f":
            return Number(np.full((1, 1), -value if negative else value))
        return self.const(-number if negative else number)

    def cast(self, x: Any, type_: str) -> Number:
        """A number as an element type holds it."""
        if not self.rounds:
            return self.number(x)
        whole = isinstance(x, int | np.integer) or (isinstance(x, np.ndarray) and x.dtype.kind in "iub")
        a = np.asarray(x, np.float64).reshape(1, -1) if whole else self.number(x).a
        return Number(rounded(a, type_))

    def held(self, x: Array, type_: str) -> Array:
        """Numbers as memory of an element type holds them."""
        return rounded(x, type_) if self.rounds else x

    def read(self, x: Array, type_: str) -> Array:
        """What memory holds, to compute with."""
        return x.astype(np.float32) if self.rounds and type_ != "double" else x

    def arbitrary(self, shape: tuple[int, ...]) -> Array:
        """Values that nobody can know; in floats no numbers, which stay so times 0."""
        if self.residues:
            return self._garbage.integers(1, int(min(self.domain.primes)), (self.fields, *shape))
        return np.full((1, *shape), np.nan, self.dtype)

    # --- arithmetic -----------------------------------------------------------------------------------------------------
    def apply(self, op: str, *args: Any) -> Number:
        """An operator of the registry."""
        numbers = [self.number(x).a for x in args]
        if op == "recip" or op in QUOTIENTS:
            above = numbers[0] if op != "recip" else self.const(1).a
            return self.divide(Number(above), Number(numbers[-1]), op if op in QUOTIENTS[1:] else "")
        with np.errstate(all="ignore"):
            return Number(np.asarray(lookup(op).apply(self.domain, *numbers)))

    def divide(self, x: Number, y: Number, guard: str = "") -> Number:
        """A quotient; arbitrary where the divisor is 0 in some field (in some but not all, where the domain divides by 0)."""
        if not self.residues:
            with np.errstate(all="ignore"):
                return Number(self.domain.div(x.a, y.a, guard))
        zero = (y.a == 0).any(axis=0, keepdims=True)
        if getattr(self.domain, "masked", False):
            zero = zero & (y.a != 0).any(axis=0, keepdims=True)
        if not zero.any():
            return Number(self.domain.div(x.a, y.a, guard))
        q = self.domain.div(x.a, np.where(zero, 1, y.a), guard)
        return Number(np.where(zero, self.arbitrary(q.shape[1:]), q))

    def exp_minus(self, x: Any, maximum: Any) -> Number:
        """exp(x - maximum) for a maximum that only range decides; 0 of -infinity."""
        x, maximum = self.number(x), self.number(maximum)
        if not self.residues:
            with np.errstate(all="ignore"):
                return Number(self.domain.exp_minus(x.a, maximum.a))
        if maximum.a is not self._below[0]:
            self._below = maximum.a, self.domain.inverse(self._level(maximum))
        below = self.domain.mul(self.domain.exp(x.a), self._below[1])
        return Number(np.where((x.a == self._lowest).all(axis=0), 0, below))

    def exp_difference(self, old: Any, new: Any) -> Number:
        """exp(old - new) for two such maxima."""
        old, new = self.number(old), self.number(new)
        if not self.residues:
            with np.errstate(all="ignore"):
                return Number(self.domain.exp_difference(old.a, new.a))
        return Number(self.domain.mul(self._level(old), self.domain.inverse(self._level(new))))

    def _level(self, maximum: Number) -> Array:
        """exp(c) for a c that is arbitrary, but the same wherever the maximum is."""
        level: Array = self.domain._function("level of a maximum", (0,), (maximum.a,), low=1)
        return level

    def exp_below(self, x: Any, level: Any) -> Number:
        """exp(x - maximum) of the `level` of a maximum; what is no number stays so below -infinity."""
        if self.residues:
            return self.exp_minus(x, level)
        x, base = self.number(x), self.level_of(level)
        with np.errstate(all="ignore"):
            return Number(self.domain.exp(x.a - base.a))

    def level_of(self, maximum: Any) -> Number:
        """A maximum as what is taken away from its numbers: 0 where there is none."""
        a = self.number(maximum).a
        return Number(a if self.residues else np.where(a == -np.inf, np.zeros_like(a), a))

    def maximum(self, x: Any, y: Any, quiet: bool = False) -> Number:
        """The larger of two; over residues a commutative, associative and idempotent function that nothing is known of.
        What is no number wins, or (`quiet`) loses."""
        x, y = self.number(x), self.number(y)
        if not self.residues:
            return Number((np.fmax if quiet else np.maximum)(x.a, y.a))
        a, b = np.broadcast_arrays(x.a, y.a)
        return Number(np.where(_rank(a, self._lowest) >= _rank(b, self._lowest), a, b))

    @functools.cached_property
    def _lowest(self) -> Array:
        return self.const(float("-inf")).a

    def greatest(self, a: Array, axis: int, quiet: bool = False) -> Array:
        """The largest of [fields, ...] along an axis, in the order of `maximum`."""
        if not self.residues:
            return (np.fmax if quiet else np.maximum).reduce(a, axis=axis)  # type: ignore[no-any-return]
        return greatest(a, self._lowest, axis)

    def compare(self, op: str, x: Any, y: Any) -> Array:
        """A comparison, one truth value for each lane."""
        a, b = self.number(x).a, self.number(y).a
        if op in ("==", "!="):
            same: Array = (a == b).all(axis=0)
            return same if op == "==" else ~same
        if self.residues:
            raise ArithmeticError(f"residues have no {op}")
        table: dict[str, Callable[[Array, Array], Array]] = {
            "<": np.less,
            "<=": np.less_equal,
            ">": np.greater,
            ">=": np.greater_equal,
        }
        compared: Array = table[op](a, b)[0]
        return compared

    def total(self, a: Array, axis: int) -> Array:
        """The sum of [fields, ...] along an axis."""
        if self.rounds:
            return _joined(np.moveaxis(a, axis, 0))
        summed: Array = a.sum(axis=axis)
        return summed % self.domain.modulus(summed.ndim - 1) if self.residues else summed

    def product(self, x: Array, y: Array) -> Array:
        """The matrix product of [fields, m, k] and [fields, k, n]."""
        if self.residues:
            return self.domain._product(x, y)  # type: ignore[no-any-return]
        if self.rounds:
            return product(x, y)
        with np.errstate(all="ignore"):
            return x @ y


def _joined(a: Array) -> Array:
    """The sum along the first axis, neighbours first (`join_parts` in `rows.cuh`)."""
    if len(a) < 2:
        return a[0] if len(a) else np.zeros(a.shape[1:], a.dtype)
    half = len(a) // 2
    with np.errstate(all="ignore"):
        return _joined(a[:half]) + _joined(a[half:])


def _rank(a: Array, lowest: Array) -> Array:
    """Where residues [fields, ...] stand in the order of maxima, which is as good as any: that of the first residues, with
    the lowest number ([fields, 1]) before all."""
    none = lowest.reshape(-1, *(1,) * (a.ndim - 1))
    rank: Array = np.where((a == none).all(axis=0), -1, a[0])
    return rank


def greatest(a: Array, lowest: Array, axis: int) -> Array:
    """The residues of [fields, ...] that come last along an axis."""
    place = _rank(a, lowest).argmax(axis=axis - 1)
    found = np.take_along_axis(a, np.expand_dims(place, axis - 1)[None], axis)
    return np.squeeze(found, axis)


@functools.lru_cache(maxsize=1024)
def _quotient(value: float) -> Fraction:
    """The reciprocal of a whole number that a float64 is the rounding of, or the float64 itself."""
    if value and abs(1 / value) < 2**52 and 1 / round(1 / value) == value:
        return Fraction(1, round(1 / value))
    return Fraction(value)


def float64() -> Arithmetic:
    """Kernels over float64."""
    return Arithmetic(Float64())


def float32() -> Arithmetic:
    """Kernels over the numbers that they compute with, each operation rounded by itself."""
    return Arithmetic(Single())


def operator_of(name: str) -> str | None:
    """The operator of the registry that a function `m_...` of the headers computes."""
    return name[2:] if name.startswith("m_") and name[2:] in OPS else None
