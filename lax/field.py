"""The residues domain: programs evaluated at random points of several prime fields at once.

Every value is an array with a leading dimension for the primes (a residue number system). Functions that the algebra
does not look into, exp among them, are keyed random functions of the whole residue tuple with an independent uniform
value in each field; exp is never 0. Programs that are equal under this reading are equal over the reals for every
interpretation of the functions, the true one included; `lax.bound` gives the probability that unequal ones pass, and
docs/proof.md the theorem.

A stabilised exponential stands for exp(x - c) with a c that only range decides: it is U(x) times a random factor that is
common along the softmax axis, so a program in which that factor does not cancel is not equal to anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax.domain import ArrayDomain, Axes, Number, contract_arrays
from mirage_cli.lax.ops import OPS

Residue: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]

#: The largest primes below 2**31; products of two residues stay below 2**62.
PRIMES = (
    2147483647,
    2147483629,
    2147483587,
    2147483579,
    2147483563,
    2147483549,
    2147483543,
    2147483497,
)
LOWEST = 1 << 30  #: random primes lie between this and twice this
PRIME_COUNT = 50_697_537  #: how many primes lie there
_WITNESSES = (2, 3, 5, 7)  #: Miller and Rabin's test with these is exact below 3.2e9
_LIMB = 16  #: bits of the low limb in exact matrix products
MAX_CONTRACTION = 1 << 21  #: summands for which limb products stay exact in float64


class ZeroDenominator(ArithmeticError):
    """A division by zero at this random point: draw another."""


def is_prime(n: int) -> bool:
    """Whether `n` (below 3.2e9) is prime."""
    if n < 11 or n % 2 == 0:
        return n in (2, 3, 5, 7)
    twos = ((n - 1) & -(n - 1)).bit_length() - 1
    odd = (n - 1) >> twos
    for w in _WITNESSES:
        x = pow(w, odd, n)
        if x not in (1, n - 1) and all((x := x * x % n) != n - 1 for _ in range(twos - 1)):
            return False
    return True


def random_primes(seed: int, count: int) -> tuple[int, ...]:
    """Independent uniform primes from `LOWEST` to twice that, determined by the seed."""
    generator = np.random.default_rng(_seed(seed, "primes"))
    found: list[int] = []
    while len(found) < count:
        n = int(generator.integers(LOWEST, 2 * LOWEST))
        if is_prime(n):
            found.append(n)
    return tuple(found)


class Residues(ArrayDomain):
    """Arithmetic modulo each of `primes`. `order` names the axes, as in `Float64`; `seed` fixes all randomness.

    Domains of one seed share inputs, positions and functions; `stream` tells apart what must not be shared between them,
    the arbitrary factors of stabilised exponentials.
    """

    lead = 1

    def __init__(
        self, order: Sequence[Hashable], seed: int, primes: Sequence[int] = PRIMES[:3], stream: str = ""
    ) -> None:
        super().__init__(order)
        self.primes = tuple(primes)
        self.seed = seed
        self._p = np.array(primes, dtype=np.int64)
        self._stream = np.random.default_rng(_seed(seed, "stream", stream))
        self._iotas: dict[Hashable, Residue] = {}

    # --- randomness -----------------------------------------------------------------------------------------------------
    def random(self, name: str, dims: Sequence[int], nonzero: bool = False) -> Residue:
        """A uniform array of `dims` for every prime, determined by the seed and `name`."""
        generator = np.random.default_rng(_seed(self.seed, "input", name))
        return self._draw(generator, dims, nonzero)

    def fresh(self, dims: Sequence[int]) -> Residue:
        """A uniform nonzero array that nothing else depends on."""
        return self._draw(self._stream, dims, nonzero=True)

    def _draw(self, generator: np.random.Generator, dims: Sequence[int], nonzero: bool) -> Residue:
        low = 1 if nonzero else 0
        return np.stack([generator.integers(low, p, tuple(dims), dtype=np.int64) for p in self.primes])

    # --- arithmetic -----------------------------------------------------------------------------------------------------
    def modulus(self, rank: int) -> Residue:
        """The primes, shaped to broadcast with arrays of `rank` own dimensions."""
        return self._p.reshape((-1,) + (1,) * rank)

    def _pair(self, x: Residue, y: Residue) -> tuple[Residue, Residue, Residue]:
        rank = max(x.ndim, y.ndim) - 1
        x, y = (a.reshape(a.shape[:1] + (1,) * (rank + 1 - a.ndim) + a.shape[1:]) for a in (x, y))
        return x, y, self.modulus(rank)

    def const(self, value: Number) -> Residue:
        if isinstance(value, float) and not np.isfinite(value):
            return self.random(f"constant {value}", ())
        exact = Fraction(value)
        if any(exact.denominator % p == 0 for p in self.primes):
            raise ZeroDenominator
        return np.array([exact.numerator * pow(exact.denominator, -1, p) % p for p in self.primes], dtype=np.int64)

    def add(self, x: Residue, y: Residue) -> Residue:
        x, y, p = self._pair(x, y)
        return (x + y) % p

    def sub(self, x: Residue, y: Residue) -> Residue:
        x, y, p = self._pair(x, y)
        return (x - y) % p

    def mul(self, x: Residue, y: Residue) -> Residue:
        x, y, p = self._pair(x, y)
        return x * y % p

    def div(self, x: Residue, y: Residue, guard: bool = False) -> Residue:
        """x / y; with `guard` times a constant of its own, so that a guarded quotient equals no other."""
        q = self.mul(x, self.inverse(y))
        return self.mul(q, self.random("guarded quotient", (), nonzero=True)) if guard else q

    def inverse(self, y: Residue) -> Residue:
        """1 / y, all elements at once. Raises ZeroDenominator."""
        if not np.all(y):
            raise ZeroDenominator
        return self._inverses(y.reshape(len(self.primes), -1)).reshape(y.shape)

    def _inverses(self, y: Residue) -> Residue:
        """Inverses of the columns of `y`: of x and y from that of xy (Montgomery), so that only one is taken in earnest."""
        count = y.shape[1]
        if count <= 1:
            found = [[pow(int(v), -1, p) for v in row] for row, p in zip(y, self.primes, strict=True)]
            return np.array(found, dtype=np.int64).reshape(y.shape)
        half, p = count // 2, self.modulus(1)
        x, z, rest = y[:, :half], y[:, half : 2 * half], y[:, 2 * half :]
        inner = self._inverses(np.concatenate([x * z % p, rest], axis=1))
        product = inner[:, :half]
        return np.concatenate([product * z % p, product * x % p, inner[:, half:]], axis=1)

    def select(self, condition: Residue, x: Residue, y: Residue) -> Residue:
        return self.add(self.mul(condition, self.sub(x, y)), y)

    def sum(self, x: Residue, over: Axes) -> Residue:
        total: Residue = np.sum(x, axis=self.dims(over), keepdims=True)
        return total % self.modulus(x.ndim - 1)

    def contract(self, x: Residue, y: Residue, over: Axes) -> Residue:
        x, y, _ = self._pair(x, y)
        return contract_arrays(x, y, self.dims(over), self._matmul)

    def _matmul(self, x: Residue, y: Residue) -> Residue:
        """Exact products of [batch, m, k] and [batch, k, n] modulo the primes, by 16-bit limbs in float64."""
        p = np.repeat(self._p, x.shape[0] // len(self.primes)).reshape(-1, 1, 1)
        x, y = x % p, y % p
        if x.shape[2] > MAX_CONTRACTION:
            middle = MAX_CONTRACTION
            low_part, high_part = (
                self._matmul(x[..., :middle], y[:, :middle]),
                self._matmul(x[..., middle:], y[:, middle:]),
            )
            return (low_part + high_part) % p
        (x1, x0), (y1, y0) = (_limbs(a) for a in (x, y))
        high, low = _exact(x1, y1) % p, _exact(x0, y0) % p
        cross = (_exact(x1, y0) + _exact(x0, y1)) % p
        shift = 1 << _LIMB
        return ((high * shift + cross) % p * shift + low) % p

    # --- functions ------------------------------------------------------------------------------------------------------
    def exp(self, x: Residue) -> Residue:
        return self._values("exp", self._words("exp", 0, x), low=1)

    def stable_exp(self, x: Residue, over: Axes) -> Residue:
        dims = list(x.shape[1:])
        for d in self.dims(over):
            dims[d] = 1
        return self.mul(self.exp(x), self.fresh(dims))

    def call(self, name: str, *args: Residue) -> Residue:
        words = [self._words(name, k, a) for k, a in enumerate(args)]
        if len(words) > 1:
            if OPS[name].commutative:
                words = [self._words(name, 0, a) for a in args]
            joined = words[0]
            for w in words[1:]:
                joined = _pair_words(joined, w)
            return self._values(name, joined)
        return self._values(name, words[0])

    def extreme(self, kind: str, x: Residue, over: Axes) -> Residue:
        """A symmetric function of the elements along `over`."""
        low, high = self._words(f"each of {kind}", 0, x)
        dims = self.dims(over)
        return self._values(kind, (np.sum(low, axis=dims, keepdims=True), np.sum(high, axis=dims, keepdims=True)))

    def iota(self, axis: Hashable, extent: int, offset: int = 0) -> Residue:
        """Positions along an axis as arbitrary distinct-by-chance values: what holds for them holds for 0, 1, 2, ..."""
        known = self._iotas.get(axis)
        if known is None or known.shape[1] < offset + extent:
            known = self.random(f"positions along {axis}", (offset + extent,))
            self._iotas[axis] = known
        return self.along(axis, known[:, offset : offset + extent])

    def _words(self, name: str, place: int, x: Residue) -> tuple[Words, Words]:
        """128 hashed bits of the residue tuple of each element."""
        key = _seed(self.seed, "function", name, str(place))
        low = np.full(x.shape[1:], key[0], dtype=np.uint64)
        high = np.full(x.shape[1:], key[1], dtype=np.uint64)
        with np.errstate(over="ignore"):  # numpy warns where a value without axes wraps around
            for residue in x.astype(np.uint64):
                low = _mix(low ^ residue)
                high = _mix(high + residue * np.uint64(0x9E3779B97F4A7C15))
        return low, high

    def _values(self, name: str, words: tuple[Words, Words], low: int = 0) -> Residue:
        """A value in each field for each pair of words: uniform from `low` on, up to a bias of 2**-33."""
        first, second = words
        out = []
        for number, p in enumerate(self.primes):
            key = _seed(self.seed, "value", name, str(number))
            with np.errstate(over="ignore"):
                word = _mix(_mix(first ^ np.uint64(key[0])) + (second ^ np.uint64(key[1])))
            out.append((word % np.uint64(p - low)).astype(np.int64) + low)
        return np.stack(out)

    # --- stabilisers ----------------------------------------------------------------------------------------------------
    def running_max(self, previous: Residue | None, x: Residue, over: Axes) -> Residue:
        """exp(c) for a new arbitrary c in place of the maximum."""
        dims = list(x.shape[1:])
        for d in self.dims(over):
            dims[d] = 1
        return self.fresh(dims)

    def exp_minus(self, x: Residue, maximum: Residue) -> Residue:
        return self.mul(self.exp(x), self.inverse(maximum))

    def exp_difference(self, old: Residue, new: Residue) -> Residue:
        return self.mul(old, self.inverse(new))


def _limbs(a: Residue) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return (a >> _LIMB).astype(np.float64), (a & ((1 << _LIMB) - 1)).astype(np.float64)


def _exact(x: NDArray[np.float64], y: NDArray[np.float64]) -> Residue:
    product: Residue = np.matmul(x, y).astype(np.int64)
    return product


def _pair_words(a: tuple[Words, Words], b: tuple[Words, Words]) -> tuple[Words, Words]:
    with np.errstate(over="ignore"):
        return a[0] + b[0], a[1] + b[1]


def _mix(x: Words) -> Words:
    """The finaliser of splitmix64: a bijection of 64-bit words."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Words = x ^ (x >> np.uint64(31))
    return result


def _seed(*parts: object) -> list[int]:
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return [int.from_bytes(digest[i : i + 8], "little") for i in (0, 8, 16, 24)]
