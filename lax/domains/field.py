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
import math
from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax.domains.domain import Array, ArrayDomain, Axes, Number, contract_arrays
from mirage_cli.lax.domains.exact import Buffers, modular_product
from mirage_cli.lax.ops import OPS

Residue: TypeAlias = NDArray[np.int64]
Stored: TypeAlias = NDArray[np.int32]
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
_CHUNK = 1 << 13  #: elements that are hashed at a time, so that what is between stays in the cache
_DRAWN = 1 << 15  #: elements that are drawn at a time


class ZeroDenominator(ArithmeticError):
    """A division by zero at this random point: draw another."""


def is_prime(n: int) -> bool:
    """True if `n` (below 3.2e9) is prime."""
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
    primes: list[int] = []
    while len(primes) < count:
        n = int(generator.integers(LOWEST, 2 * LOWEST))
        if is_prime(n):
            primes.append(n)
    return tuple(primes)


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
        self._stream = np.random.SFC64(_seed(seed, "stream", stream))
        self._buffers = Buffers()
        self._iotas: dict[Hashable, Residue] = {}
        self._keys: dict[tuple[str, str, int], tuple[np.uint64, np.uint64]] = {}

    # --- randomness -----------------------------------------------------------------------------------------------------
    def random(self, name: str, dims: Sequence[int], nonzero: bool = False) -> Residue:
        """A random array of `dims` for every prime, determined by the seed and `name`; see `_fill`."""
        return self._draw(np.random.SFC64(_seed(self.seed, "input", name)), dims, nonzero, np.int64)

    def stored(self, name: str, dims: Sequence[int]) -> Stored:
        """The same in half the memory: what large inputs are made of. Only operations of this domain take it."""
        drawn: Stored = self._draw(np.random.SFC64(_seed(self.seed, "input", name)), dims, False, np.int32)
        return drawn

    def fresh(self, dims: Sequence[int]) -> Residue:
        """A random nonzero array that nothing else depends on."""
        return self._draw(self._stream, dims, True, np.int64)

    def keyed(self, name: str, index: NDArray[np.int64]) -> Residue:
        """The random values that `random` would give a large array, at some places of it: one for each number in `index`."""
        same = np.broadcast_to(index, (len(self.primes), *index.shape))
        return self._function(f"place {name}", (0,), (same,))

    def _draw(self, bits: np.random.BitGenerator, dims: Sequence[int], nonzero: bool, dtype: Any) -> Array:
        low = 1 if nonzero else 0
        out = np.empty((len(self.primes), *dims), dtype=dtype)
        for row, p in zip(out.reshape(len(self.primes), math.prod(dims)), self.primes, strict=True):
            _fill(bits, row.view(np.uint32) if dtype == np.int32 else row, p - low)
            if nonzero:
                row += low
        return out

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
        return _reduced(np.add(x, y, dtype=np.int64), p)

    def sub(self, x: Residue, y: Residue) -> Residue:
        x, y, p = self._pair(x, y)
        return _reduced(np.subtract(x, y, dtype=np.int64), p)

    def mul(self, x: Residue, y: Residue) -> Residue:
        x, y, p = self._pair(x, y)
        return _reduced(np.multiply(x, y, dtype=np.int64), p)

    def div(self, x: Residue, y: Residue, guard: str = "") -> Residue:
        """x / y; with a `guard` times a constant of its own, so that a guarded quotient equals no other."""
        q = self.mul(x, self.inverse(y))
        return self.mul(q, self.random(f"quotient {guard}", (), nonzero=True)) if guard else q

    def inverse(self, y: Residue) -> Residue:
        """1 / y, all elements at once. Raises ZeroDenominator."""
        if not np.all(y):
            raise ZeroDenominator
        return self._inverses(y.astype(np.int64, copy=False).reshape(len(self.primes), -1)).reshape(y.shape)

    def _inverses(self, y: Residue) -> Residue:
        """Inverses of the columns of `y`: of x and y from that of xy (Montgomery), so that only one is taken in earnest."""
        count = y.shape[1]
        if count <= 1:
            inverses = [[pow(int(v), -1, p) for v in row] for row, p in zip(y, self.primes, strict=True)]
            return np.array(inverses, dtype=np.int64).reshape(y.shape)
        half, p = count // 2, self.modulus(1)
        x, z, rest = y[:, :half], y[:, half : 2 * half], y[:, 2 * half :]
        inner = self._inverses(np.concatenate([x * z % p, rest], axis=1))
        product = inner[:, :half]
        return np.concatenate([product * z % p, product * x % p, inner[:, half:]], axis=1)

    def select(self, condition: Residue, x: Residue, y: Residue) -> Residue:
        return self.add(self.mul(condition, self.sub(x, y)), y)

    def sum(self, x: Residue, over: Axes) -> Residue:
        return self._total(x, self.dims(over))

    def contract(self, x: Residue, y: Residue, over: Axes) -> Residue:
        x, y, _ = self._pair(x, y)
        dims = self.dims(over)
        return contract_arrays(self._alone(x, y, dims), self._alone(y, x, dims), dims, self._product)

    def _alone(self, x: Residue, y: Residue, dims: tuple[int, ...]) -> Residue:
        """`x` summed over those of `dims` that it has and `y` lacks."""
        own = tuple(d for d in dims if x.shape[d] != 1 and y.shape[d] == 1)
        return self._total(x, own) if own else x

    def _total(self, x: Residue, dims: tuple[int, ...]) -> Residue:
        total: Residue = np.sum(x, axis=dims, keepdims=True, dtype=np.int64)
        return _reduced(total, self.modulus(x.ndim - 1))

    def _product(self, x: Residue, y: Residue) -> Residue:
        return modular_product(x, y, np.repeat(self._p, x.shape[0] // len(self.primes)), self._buffers)

    # --- functions ------------------------------------------------------------------------------------------------------
    def exp(self, x: Residue) -> Residue:
        return self._function("exp", (0,), (x,), low=1)

    def stable_exp(self, x: Residue, over: Axes) -> Residue:
        dims = list(x.shape[1:])
        for d in self.dims(over):
            dims[d] = 1
        return self.mul(self.exp(x), self.fresh(dims))

    def call(self, name: str, *args: Residue) -> Residue:
        places = (0,) * len(args) if OPS[name].commutative else tuple(range(len(args)))
        return self._function(name, places, args)

    def _function(self, name: str, places: tuple[int, ...], args: tuple[Residue, ...], low: int = 0) -> Residue:
        """The values of function `name`, from `low` on, at arguments in these places, a chunk at a time."""
        rank, fields = max(a.ndim for a in args) - 1, len(self.primes)
        args = tuple(a.reshape((fields,) + (1,) * (rank + 1 - a.ndim) + a.shape[1:]) for a in args)
        shape = np.broadcast_shapes(*(a.shape for a in args))
        count = math.prod(shape[1:])
        flat = [np.broadcast_to(a, shape).reshape(fields, count) for a in args]
        out = np.empty((fields, count), dtype=np.int64)
        for start in range(0, count, _CHUNK):
            part = slice(start, start + _CHUNK)
            first, second = self._words(name, places[0], flat[0][:, part])
            for k, a in zip(places[1:], flat[1:], strict=True):
                more = self._words(name, k, a[:, part], "other ")
                first += more[0]
                second += more[1]
            self._values(name, (first, second), low, out[:, part])
        return out.reshape(shape)

    def extreme(self, kind: str, x: Residue, over: Axes) -> Residue:
        """A symmetric function of the elements along `over`."""
        words = self._words(f"each of {kind}", 0, x.reshape(len(x), math.prod(x.shape[1:])))
        dims = self.dims(over)
        low, high = (np.sum(w.reshape(x.shape[1:]), axis=dims, keepdims=True) for w in words)
        out = np.empty((len(x), *low.shape), dtype=np.int64)
        self._values(kind, (low.ravel(), high.ravel()), 0, out.reshape(len(x), low.size))
        return out

    def iota(self, axis: Hashable, extent: int, offset: int = 0) -> Residue:
        """Positions along an axis as arbitrary distinct-by-chance values: what holds for them holds for 0, 1, 2, ..."""
        known = self._iotas.get(axis)
        if known is None or known.shape[1] < offset + extent:
            known = self.random(f"positions along {axis}", (offset + extent,))
            self._iotas[axis] = known
        return self.along(axis, known[:, offset : offset + extent])

    def _words(self, name: str, place: int, x: Residue, kept: str = "") -> tuple[Words, Words]:
        """128 hashed bits of the residue tuple of each column of `x`, in buffers; residues are taken in pairs."""
        key = self._key("function", name, place)
        low, high, residues, other = (
            self._buffers.take(kept + n, x.shape[1:], np.uint64) for n in ("low", "high", "residues", "other")
        )
        low[...], high[...] = key
        for k in range(0, len(x), 2):
            np.copyto(residues, x[k], casting="unsafe")
            if k + 1 < len(x):
                np.copyto(other, x[k + 1], casting="unsafe")
                other <<= np.uint64(32)
                residues |= other
            low ^= residues
            residues *= np.uint64(0x9E3779B97F4A7C15)
            high += residues
            _mix(low, other)
            _mix(high, other)
        return low, high

    def _values(self, name: str, words: tuple[Words, Words], low: int, out: Residue) -> None:
        """Put a value in each field for each pair of words into `out`: uniform from `low` on, up to a bias of 2**-33."""
        first, second = words
        value, other = (self._buffers.take(n, first.shape, np.uint64) for n in ("value", "other"))
        for number, (row, p) in enumerate(zip(out, self.primes, strict=True)):
            key = self._key("value", name, number)
            np.multiply(first, key[0] | np.uint64(1), out=value)
            value += second
            value ^= key[1]
            _mix(value, other)
            value %= np.uint64(p - low)
            np.copyto(row, value, casting="unsafe")
            row += low

    def _key(self, kind: str, name: str, number: int) -> tuple[np.uint64, np.uint64]:
        words = self._keys.get((kind, name, number))
        if words is None:
            first, second, *_ = _seed(self.seed, kind, name, str(number))
            words = self._keys[kind, name, number] = np.uint64(first), np.uint64(second)
        return words

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


def _reduced(x: Residue, p: Residue) -> Residue:
    """`x` modulo `p`, in place."""
    x %= p
    return x


def _fill(bits: np.random.BitGenerator, out: Array, bound: int) -> None:
    """Draw the elements of a one-dimensional array below `bound`.

    31 random bits modulo a bound from 2**30 to 2**31 take no value with a probability above 2**-30, which is what the
    theorem asks; 64 bits modulo a smaller one are uniform up to 2**-33.
    """
    less = np.empty(min(out.size, _DRAWN), dtype=np.uint32)
    for start in range(0, out.size, _DRAWN):
        part = out[start : start + _DRAWN]
        if bound >= LOWEST:
            words = bits.random_raw((part.size + 1) // 2).view(np.uint32)[: part.size]
            words >>= np.uint32(1)
            np.subtract(words, np.uint32(bound), out=less[: part.size])  # wraps around where it is negative
            np.minimum(words, less[: part.size], out=part, casting="unsafe")
        else:
            part[...] = bits.random_raw(part.size) % np.uint64(bound)


def _mix(x: Words, other: Words) -> None:
    """The finaliser of splitmix64, a bijection of 64-bit words, in place; `other` is overwritten."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        np.right_shift(x, np.uint64(shift), out=other)
        x ^= other
        if factor != 1:
            x *= np.uint64(factor)


def _seed(*parts: object) -> list[int]:
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return [int.from_bytes(digest[i : i + 8], "little") for i in (0, 8, 16, 24)]
