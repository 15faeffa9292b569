"""The residues domain against Python's integers and fractions; its randomness."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_cli.lax.domains.exact import LONG, SHORT, Buffers, modular_product
from mirage_cli.lax.domains.field import LOWEST, PRIMES, Residue, Residues, ZeroDenominator, is_prime, random_primes

PROPERTY = settings(max_examples=60, derandomize=True, deadline=None, database=None)
P = PRIMES[:3]
numbers = st.integers(0, min(P) - 1)
extreme = st.one_of(numbers, st.sampled_from([0, 1, min(P) - 1, min(P) // 2, 1 << 16, (1 << 16) - 1, (1 << 30) + 1]))
fractions = st.fractions(max_denominator=10**6)


def domain(seed: int = 1, stream: str = "") -> Residues:
    return Residues(["a", "b"], seed, P, stream)


def element(x: int) -> Residue:
    return np.array([x % p for p in P], dtype=np.int64)


def integers(x: Residue) -> list[list[int]]:
    return [[int(v) for v in row] for row in x.reshape(len(P), -1)]


# --- arithmetic ---------------------------------------------------------------------------------------------------------
@PROPERTY
@given(extreme, extreme)
def test_arithmetic_is_that_of_integers(x: int, y: int) -> None:
    d = domain()
    a, b = element(x), element(y)
    for found, wanted in ((d.add(a, b), x + y), (d.sub(a, b), x - y), (d.mul(a, b), x * y)):
        assert found.tolist() == [wanted % p for p in P]
    c = element(x * y)
    assert d.select(c, a, b).tolist() == [(x * y * (x - y) + y) % p for p in P]


@PROPERTY
@given(st.lists(st.integers(1, min(P) - 1), min_size=1, max_size=9))
def test_inverses(values: list[int]) -> None:
    d = domain()
    y = np.array([[v % p for v in values] for p in P], dtype=np.int64)
    assert integers(d.inverse(y)) == [[pow(v, -1, p) for v in values] for p in P]
    assert np.all(d.mul(y, d.inverse(y)) == 1)


def test_inverses_keep_shapes() -> None:
    d = domain()
    for shape in ((), (1,), (0,), (2, 0, 3), (4, 3, 2)):
        y = d.random(f"{shape}", shape, nonzero=True)
        assert d.inverse(y).shape == y.shape
        assert np.all(d.mul(y, d.inverse(y)) == 1)


@pytest.mark.parametrize("where", range(5))
def test_zero_has_no_inverse(where: int) -> None:
    y = np.ones((3, 5), dtype=np.int64)
    y[1, where] = 0
    with pytest.raises(ZeroDenominator):
        domain().inverse(y)


@PROPERTY
@given(fractions, fractions)
def test_constants_are_exact(x: Fraction, y: Fraction) -> None:
    d = domain()
    assert np.array_equal(d.add(d.const(x), d.const(y)), d.const(x + y))
    assert np.array_equal(d.mul(d.const(x), d.const(y)), d.const(x * y))
    if y:
        assert np.array_equal(d.div(d.const(x), d.const(y)), d.const(x / y))


def test_constants_of_floats_are_exact() -> None:
    d = domain()
    assert np.array_equal(d.mul(d.const(0.1), d.const(Fraction(1 << 55))), d.const(Fraction(0.1) * (1 << 55)))


def test_a_denominator_may_be_divisible_by_a_prime() -> None:
    with pytest.raises(ZeroDenominator):
        domain().const(Fraction(1, P[1]))


def test_constants_that_are_no_numbers_are_arbitrary_but_fixed() -> None:
    d = domain()
    values = [tuple(d.const(v).tolist()) for v in (math.inf, -math.inf, math.nan)]
    assert len(set(values)) == 3
    assert np.array_equal(d.const(math.inf), domain(stream="other").const(math.inf))


# --- contractions -------------------------------------------------------------------------------------------------------
@PROPERTY
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.randoms(use_true_random=False))
def test_contractions_are_exact(m: int, k: int, n: int, random) -> None:  # type: ignore[no-untyped-def]
    d = Residues(["m", "k", "n"], 1, P)
    x = np.array([[[random.choice([p - 1, random.randrange(p)]) for _ in range(k)] for _ in range(m)] for p in P])
    y = np.array([[[random.choice([p - 1, random.randrange(p)]) for _ in range(n)] for _ in range(k)] for p in P])
    found = d.contract(x.reshape(3, m, k, 1), y.reshape(3, 1, k, n), ["k"]).reshape(3, m, n)
    for r, p in enumerate(P):
        wanted = [[sum(int(x[r, i, j]) * int(y[r, j, c]) for j in range(k)) % p for c in range(n)] for i in range(m)]
        assert found[r].tolist() == wanted


@pytest.mark.parametrize("count", [1, SHORT, SHORT + 1, 1000, LONG, LONG + 1, 3 * LONG + 5])
def test_contractions_of_the_largest_residues_are_exact(count: int) -> None:
    """Every product is (p - 1)**2 = 1: the result is the number of summands, and float64 would lose it without limbs."""
    d = Residues(["m", "k", "n"], 1, P)
    largest = np.array(P, dtype=np.int64).reshape(3, 1, 1, 1) - 1
    for m, n in ((1, 1), (2, 3), (3, 1)):
        x, y = np.broadcast_to(largest, (3, m, count, 1)), np.broadcast_to(largest, (3, 1, count, n))
        wanted = np.broadcast_to(np.array([count % p for p in P]).reshape(3, 1, 1, 1), (3, m, 1, n))
        assert np.array_equal(d.contract(x, y, ["k"]), wanted)


@pytest.mark.parametrize("modulus", [LOWEST + 3, P[0]])
def test_extreme_limbs_are_exact(modulus: int) -> None:
    """All limbs of the cut operand as large as they can be, below the modulus, times the largest residue."""
    ones, buffers = (1 << 31) - 1, Buffers()
    values = [modulus - 1, ones >> 1, (1 << 30) - 1, (1 << 22) - 1, 0xFFFF, 0x7FF, 1 << 30]
    p = np.array([modulus], dtype=np.int64)
    for count in (SHORT, LONG, 2 * LONG + 1):
        x = np.array([[[v] * count for v in values]], dtype=np.int64)
        y = np.full((1, count, 2 * len(values)), modulus - 1, dtype=np.int64)
        wanted = [[v * (modulus - 1) * count % modulus] * (2 * len(values)) for v in values]
        assert modular_product(x, y, p, buffers)[0].tolist() == wanted
        assert modular_product(y.transpose(0, 2, 1), x.transpose(0, 2, 1), p, buffers)[0].T.tolist() == wanted


@pytest.mark.parametrize(
    ("count", "m", "k", "n"),
    [
        (1, 5, 70, 9),
        (4, 300, 3, 40),
        (2, 2, 2500, 200),
        (3, 1, 64, 5000),
        (2, 600, 130, 7),
        (700, 2, 3, 300),
        (2, 3, 0, 4),
    ],
)
def test_products_in_pieces_are_exact(count: int, m: int, k: int, n: int) -> None:
    """Against Python's integers in places all over the result, for shapes that take every way of cutting."""
    rng = np.random.default_rng(5)
    p = np.array([P[i % 3] for i in range(count)], dtype=np.int64)
    x, y = (rng.integers(0, p.reshape(-1, 1, 1), (count, *s)) for s in ((m, k), (k, n)))
    x[:, -1], y[:, :, -1] = (p - 1).reshape(-1, 1), (p - 1).reshape(-1, 1)
    found = modular_product(x.astype(np.int32), y, p, Buffers())
    assert found.shape == (count, m, n)
    for b, i, j in {
        *zip(*(rng.integers(0, s, 60).tolist() for s in (count, m, n)), strict=True),
        (count - 1, m - 1, n - 1),
    }:
        pairs = zip(x[b, i].tolist(), y[b, :, j].tolist(), strict=True)
        assert int(found[b, i, j]) == sum(v * w for v, w in pairs) % int(p[b])


def test_what_is_stored_in_less_memory_gives_the_same() -> None:
    d = Residues(["a", "b"], 1, P)
    x, y = d.random("x", (4, 3)), d.random("y", (4, 3), nonzero=True)
    small, other = d.stored("x", (4, 3)), y.astype(np.int32)
    assert small.dtype == np.int32
    assert np.array_equal(small, x)
    for one, two in (
        (d.add(x, y), d.add(small, other)),
        (d.sub(x, y), d.sub(small, other)),
        (d.mul(x, y), d.mul(small, other)),
        (d.div(x, y), d.div(small, other)),
        (d.select(x, y, x), d.select(small, other, small)),
        (d.exp(x), d.exp(small)),
        (d.call("pow", x, y), d.call("pow", small, other)),
        (d.extreme("max", x, ["a"]), d.extreme("max", small, ["a"])),
        (d.sum(x, ["a"]), d.sum(small, ["a"])),
        (d.contract(x, y, ["b"]), d.contract(small, other, ["b"])),
        (d.contract(x[:, :, :1], y, ["b"]), d.contract(small[:, :, :1], other, ["b"])),
    ):
        assert one.dtype == two.dtype == np.int64
        assert np.array_equal(one, two)


def test_sums_and_contractions_over_axes_of_one_operand() -> None:
    d = Residues(["a", "b"], 1, P)
    x, y = d.random("x", (4, 3)), d.random("y", (4, 1))
    found = d.contract(x, y, ["a", "b"]).ravel()
    for r, p in enumerate(P):
        assert int(found[r]) == sum(int(x[r, i, j]) * int(y[r, i, 0]) for i in range(4) for j in range(3)) % p
    assert np.array_equal(d.sum(x, ["a"]), np.sum(x, axis=1, keepdims=True) % np.array(P).reshape(3, 1, 1))


# --- functions ----------------------------------------------------------------------------------------------------------
def test_functions_are_functions() -> None:
    d = domain()
    x, y = d.random("x", (50,)), d.random("y", (50,))
    assert np.array_equal(d.call("sqrt", x), domain().call("sqrt", x.copy()))
    assert not np.array_equal(d.call("sqrt", x), d.call("log", x))
    assert not np.array_equal(d.call("sqrt", x), domain(2).call("sqrt", x))
    assert np.array_equal(d.call("max", x, y), d.call("max", y, x))
    assert not np.array_equal(d.call("pow", x, y), d.call("pow", y, x))
    assert not np.array_equal(d.call("lt", x, y), d.call("le", x, y))


def test_a_function_sees_the_whole_tuple() -> None:
    """Arguments that agree in all fields but one have independent values in every field."""
    d = domain()
    x = np.broadcast_to(element(5)[:, None], (3, 200)).copy()
    x[2] = np.arange(200)
    values = d.call("sqrt", x)
    assert all(len(set(row)) == 200 for row in values.tolist())


def test_values_are_uniform_and_exponentials_never_zero() -> None:
    d = Residues([], 3, (5, 2147483647))
    x = np.stack([np.arange(20000) % 5, np.arange(20000)])
    values, powers = (Counter(f[0].tolist()) for f in (d.call("sqrt", x), d.exp(x)))
    assert sorted(values) == [0, 1, 2, 3, 4]
    assert sorted(powers) == [1, 2, 3, 4]
    assert all(abs(n / 20000 - 1 / 5) < 0.02 for n in values.values())
    assert all(abs(n / 20000 - 1 / 4) < 0.02 for n in powers.values())


def test_extremes_are_symmetric_and_count() -> None:
    d = Residues(["a"], 1, P)
    x = d.random("x", (6,))
    value = d.extreme("max", x, ["a"])
    assert np.array_equal(value, d.extreme("max", x[:, ::-1], ["a"]))
    assert not np.array_equal(value, d.extreme("min", x, ["a"]))
    twice = np.concatenate([x, x[:, :1]], axis=1)
    assert not np.array_equal(value, d.extreme("max", twice, ["a"]))


# --- randomness ---------------------------------------------------------------------------------------------------------
def test_arbitrary_factors_of_different_streams_differ() -> None:
    x = domain().random("x", (4, 3))
    one, again, other = (domain(stream=s).stable_exp(x, ["b"]) for s in ("a", "a", "b"))
    assert np.array_equal(one, again)
    assert not np.any(one == other)
    assert np.array_equal(domain(stream="a").exp(x), domain(stream="b").exp(x))
    maxima = [domain(stream=s).running_max(None, x, ["b"]) for s in ("a", "b")]
    assert maxima[0].shape == (3, 4, 1)
    assert not np.any(maxima[0] == maxima[1])


def test_a_softmax_does_not_depend_on_its_stream() -> None:
    x = domain().random("x", (4, 3))

    def softmax(d: Residues) -> Residue:
        e = d.stable_exp(x, ["b"])
        return d.div(e, d.sum(e, ["b"]))

    assert np.array_equal(softmax(domain(stream="a")), softmax(domain(stream="b")))


@pytest.mark.parametrize("p", [PRIMES[0], LOWEST + 3, 1610612741, 65537, 7])
def test_inputs_are_spread_over_the_whole_field(p: int) -> None:
    """Below 2**30 evenly; above, the residues below 2**31 - p twice as often, none with more than 2**-30."""
    d = Residues([], 3, (p,))
    for low in (0, 1):
        x = d.random("x", (40001,), nonzero=low == 1)[0]
        assert x.min() >= low
        assert x.max() < p
        twice = (1 << 31) - (p - low) if p > LOWEST else 0
        for q in (0.1, 0.5, 0.9):
            edge = int(q * p)
            wanted = (edge + min(edge, twice)) / (1 << 31) if p > LOWEST else edge / p
            assert abs(np.mean(x < edge + low) - wanted) < 0.02 + 1 / p


def test_chunks_do_not_matter() -> None:
    """Arrays longer than what is hashed at a time."""
    d = domain()
    x = d.random("long", (3, 20000))
    whole = d.exp(x)
    for part in (slice(0, 7), slice(16000, 16500), slice(19999, 20000)):
        assert np.array_equal(d.exp(x[:, :, part]), whole[:, :, part])
    y = d.random("y", (3, 1))
    assert np.array_equal(d.call("pow", x, y)[:, :, 17000:], d.call("pow", x[:, :, 17000:], y))


def test_inputs_depend_on_seed_and_name_only() -> None:
    assert np.array_equal(domain().random("x", (5,)), domain(stream="b").random("x", (5,)))
    assert not np.array_equal(domain().random("x", (5,)), domain().random("y", (5,)))
    assert not np.array_equal(domain(1).random("x", (5,)), domain(2).random("x", (5,)))
    assert np.array_equal(domain().iota("a", 4), domain(stream="b").iota("a", 4))
    whole, part = domain().iota("a", 4), domain().iota("a", 4)[:, 2:]
    assert np.array_equal(whole[:, 2:], part)


def test_guarded_quotients_equal_no_others() -> None:
    d = domain()
    x, y = d.random("x", (5,)), d.random("y", (5,), nonzero=True)
    found = [d.div(x, y, guard) for guard in ("", "div0", "share")]
    assert not any(np.any(a == b) for a, b in itertools.combinations(found, 2))
    assert np.array_equal(found[1], domain(stream="b").div(x, y, "div0"))


def test_primes() -> None:
    small = [n for n in range(2000) if n > 1 and all(n % q for q in range(2, math.isqrt(n) + 1))]
    assert [n for n in range(2000) if is_prime(n)] == small
    assert all(map(is_prime, PRIMES))
    assert not any(is_prime(n) for n in (2147483646, 25326001, 3215031751 // 151, 46337 * 46337))


def test_random_primes() -> None:
    found = random_primes(1, 16)
    assert found == random_primes(1, 16)
    assert found[:3] == random_primes(1, 3)
    assert not set(found) & set(random_primes(2, 16))
    assert all(is_prime(p) and LOWEST <= p < 2 * LOWEST for p in found)
