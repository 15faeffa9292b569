"""The paper's reading of exp over two prime fields, in which exp(a) exp(b) = exp(a + b) (OSDI'25, section 5).

Every value is a pair of residues, modulo primes p = 2q + 1 and q; exp(x) is omega ** x_q modulo p for a random omega of order
q, and has no residue modulo q. So no exponential may lie under another one, nor under a function that the algebra does
not look into; a function of anything else is a keyed random function of the pair, as in `lax.field`. The factor exp(-c) of a
stabilised exponential is an arbitrary number modulo p. `lax.exponentials` gives the error bound.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from mirage_cli.errors import Refused
from mirage_cli.lax.bounds.bound import PrimeRange
from mirage_cli.lax.domains.domain import Axes
from mirage_cli.lax.domains.field import Residue, Residues, is_prime

PAIRS = PrimeRange(1 << 29, 1_634_069)  #: the primes q from 2**29 to 2**30 for which 2 q + 1 is prime
_P, _Q = 0, 1  #: rows of a value
_UNDEFINED = -1  #: in the second row: a value with an exponential
_DIGIT = 15  #: bits of an exponent that one table of powers covers


@dataclass(frozen=True, slots=True)
class Pair:
    """Primes q and p = 2q + 1, and an element `omega` of order q modulo p."""

    p: int
    q: int
    omega: int


def random_pair(generator: np.random.Generator) -> Pair:
    """A uniform pair of primes from `PAIRS`, and a uniform omega."""
    while True:
        q = int(generator.integers(PAIRS.lowest, 2 * PAIRS.lowest))
        if is_prime(q) and is_prime(2 * q + 1):
            return pair_of(q, generator)


def pair_of(q: int, generator: np.random.Generator) -> Pair:
    """The pair of a prime q for which p = 2q + 1 is prime. The squares but 1 are the elements of order q."""
    p = 2 * q + 1
    return Pair(p, q, pow(int(generator.integers(2, p - 1)), 2, p))


class Homomorphic(Residues):
    """Pairs of residues. Domains of one seed and one pair share inputs, functions and omega, see `Residues`."""

    def __init__(self, order: Sequence[Hashable], seed: int, pair: Pair, stream: str = "") -> None:
        super().__init__(order, seed, (pair.p, pair.q), stream)
        self.pair = pair
        digits = (pair.q.bit_length() + _DIGIT - 1) // _DIGIT
        self._powers = [_powers(pow(pair.omega, 1 << (_DIGIT * k), pair.p), pair.p) for k in range(digits)]

    def add(self, x: Residue, y: Residue) -> Residue:
        return _marked(super().add(x, y), x, y)

    def sub(self, x: Residue, y: Residue) -> Residue:
        return _marked(super().sub(x, y), x, y)

    def mul(self, x: Residue, y: Residue) -> Residue:
        return _marked(super().mul(x, y), x, y)

    def inverse(self, y: Residue) -> Residue:
        return _marked(super().inverse(y), y)

    def sum(self, x: Residue, over: Axes) -> Residue:
        return _marked(super().sum(x, over), x)

    def contract(self, x: Residue, y: Residue, over: Axes) -> Residue:
        return _marked(super().contract(x, y, over), x, y)

    def fresh(self, dims: Sequence[int]) -> Residue:
        """An arbitrary factor: a nonzero residue modulo p."""
        factor = super().fresh(dims)
        factor[_Q] = _UNDEFINED
        return factor

    def exp(self, x: Residue) -> Residue:
        _check(x, "exp")
        power = np.full(x.shape, _UNDEFINED, dtype=np.int64)
        rest, power[_P] = x[_Q], 1
        for table in self._powers:
            power[_P] = power[_P] * table[rest & ((1 << _DIGIT) - 1)] % self.pair.p
            rest = rest >> _DIGIT
        return power

    def call(self, name: str, *args: Residue) -> Residue:
        for a in args:
            _check(a, name)
        return super().call(name, *args)

    def extreme(self, kind: str, x: Residue, over: Axes) -> Residue:
        _check(x, kind)
        return super().extreme(kind, x, over)


def _powers(base: int, p: int) -> Residue:
    """The powers of `base` from 0 to 2**_DIGIT - 1, by doubling."""
    powers = np.ones(1, dtype=np.int64)
    for k in range(_DIGIT):
        powers = np.concatenate([powers, powers * pow(base, 1 << k, p) % p])
    return powers


def _undefined(x: Residue) -> bool:
    """True if a value has no residue modulo q; all its elements have one, or none."""
    return bool(x.size and x[_Q].flat[0] < 0)


def _marked(result: Residue, *operands: Residue) -> Residue:
    """A result; undefined modulo q where an operand is."""
    if any(_undefined(x) for x in operands):
        result[_Q] = _UNDEFINED
    return result


def _check(x: Residue, name: str) -> None:
    if _undefined(x):
        raise Refused(refusal(name))


def refusal(name: str) -> str:
    """The reason why `name` of a value with an exponential is refused."""
    if name == "exp":
        return "an exponential lies under another one, and exp(a) exp(b) = exp(a + b) is tested for one on a path"
    return f"an exponential lies under {name}, and exp(a) exp(b) = exp(a + b) is tested under no such function"
