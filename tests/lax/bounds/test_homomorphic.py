"""Pairs of residues with exp(a) exp(b) = exp(a + b), against Python's integers; figures against sums multiplied out."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.bounds.bound import Arguments, Difference, PrimeRange, program_figures
from mirage_cli.lax.bounds.exponentials import (
    Exponential,
    Exponentials,
    Gap,
    HomomorphicBound,
    boxes,
    exponential,
    gap,
    largest,
)
from mirage_cli.lax.bounds.homomorphic import PAIRS, Homomorphic, pair_of, random_pair
from mirage_cli.lax.domains.field import Residue, ZeroDenominator, is_prime
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.lax.ops import OPS
from tests.lax.bounds.quotients import (
    ONE,
    Array,
    Functions,
    Poly,
    Quotient,
    Quotients,
    _elementwise,
    add,
    variable,
    variables,
)
from tests.lax.programs import graphs, recorded, symbols_of

PAIR = random_pair(np.random.default_rng(5))
SMALL = (11, 23, 29, 41, 53, 83, 89, 113)  #: primes q for which 2 q + 1 is prime


@pytest.fixture
def d() -> Homomorphic:
    return Homomorphic(("i", "j"), 3, PAIR)


def drawn(d: Homomorphic, name: str, *dims: int) -> Residue:
    return d.random(name, dims or (4, 5), nonzero=True)


# --- primes -------------------------------------------------------------------------------------------------------------
def test_pairs() -> None:
    rng = np.random.default_rng(0)
    pairs = [random_pair(rng) for _ in range(40)]
    assert len({x.q for x in pairs}) == 40
    for x in pairs:
        assert PAIRS.lowest <= x.q < 2 * PAIRS.lowest
        assert x.p == 2 * x.q + 1 < 2**31
        assert is_prime(x.q)
        assert is_prime(x.p)
        assert x.omega != 1
        assert pow(x.omega, x.q, x.p) == 1
    assert sum(x.q > 1.5 * PAIRS.lowest for x in pairs) in range(8, 32)


def test_every_element_of_order_q_is_as_frequent() -> None:
    rng = np.random.default_rng(0)
    found = [pair_of(11, rng).omega for _ in range(5000)]
    counts = np.bincount(found, minlength=23)
    squares = {x * x % 23 for x in range(2, 22)}
    assert set(np.flatnonzero(counts)) == squares
    assert len(squares) == 10
    assert counts[counts > 0].min() > 400


def test_the_number_of_pairs() -> None:
    """Hardy and Littlewood's estimate is good to a thousandth here."""
    x = np.linspace(PAIRS.lowest, 2 * PAIRS.lowest, 100001)
    twins = 0.6601618158
    assert np.trapezoid(2 * twins / (np.log(x) * np.log(2 * x)), x) == pytest.approx(PAIRS.count, rel=2e-3)


# --- values -------------------------------------------------------------------------------------------------------------
def test_exp_is_a_power_of_omega(d: Homomorphic) -> None:
    x = drawn(d, "x")
    wanted = [pow(PAIR.omega, int(v), PAIR.p) for v in x[1].ravel()]
    assert d.exp(x)[0].ravel().tolist() == wanted
    assert d.exp(x.astype(np.int32))[0].ravel().tolist() == wanted


@pytest.mark.parametrize("q", SMALL)
def test_exp_with_small_primes(q: int) -> None:
    pair = pair_of(q, np.random.default_rng(q))
    d = Homomorphic((), 0, pair)
    x = np.stack([np.zeros(q, dtype=np.int64), np.arange(q)])
    found = d.exp(x)[0].tolist()
    assert found == [pow(pair.omega, k, pair.p) for k in range(q)]
    assert len(set(found)) == q


def test_sums_under_exp_are_products(d: Homomorphic) -> None:
    x, y = drawn(d, "x"), drawn(d, "y")
    assert np.array_equal(d.exp(d.add(x, y))[0], d.mul(d.exp(x), d.exp(y))[0])
    assert np.array_equal(d.exp(d.sub(x, y))[0], d.div(d.exp(x), d.exp(y))[0])
    assert np.array_equal(d.exp(d.mul(d.const(3), x))[0], d.mul(d.exp(x), d.mul(d.exp(x), d.exp(x)))[0])
    half = d.exp(d.mul(d.const(Fraction(1, 2)), x))
    assert np.array_equal(d.mul(half, half)[0], d.exp(x)[0])
    assert (d.exp(d.const(0))[0] == 1).all()
    assert not np.array_equal(d.exp(x)[0], d.exp(y)[0])


def test_both_fields_compute_as_integers_do(d: Homomorphic) -> None:
    x, y = drawn(d, "x"), drawn(d, "y")
    for row, p in enumerate((PAIR.p, PAIR.q)):
        a, b = x[row].astype(object), y[row].astype(object)
        assert np.array_equal(d.add(x, y)[row], (a + b) % p)
        assert np.array_equal(d.mul(x, y)[row], a * b % p)
        assert np.array_equal(d.sum(x, ["j"])[row], a.sum(axis=1, keepdims=True) % p)
        assert np.array_equal(d.contract(x, y, ["j"])[row], (a * b).sum(axis=1, keepdims=True) % p)
        assert np.array_equal(d.mul(d.div(x, y), y)[row], a)


def test_an_exponential_has_no_second_residue(d: Homomorphic) -> None:
    """Whatever is computed with it has none either, and what needs one is refused."""
    x, e = drawn(d, "x"), d.exp(drawn(d, "y"))
    top = d.running_max(None, x, ["j"])
    made = [
        e, top, d.add(e, x), d.sub(x, e), d.mul(x, e), d.div(x, e), d.div(e, x), d.div(e, x, guard="div0"),
        d.select(x, e, x), d.sum(e, ["j"]), d.contract(x, e, ["j"]), d.contract(e, x, ["i"]),
        d.stable_exp(x, ["j"]), d.exp_minus(x, top), d.exp_difference(top, d.running_max(top, x, ["j"])),
    ]  # fmt: skip
    for value in made:
        assert (value[1] < 0).all()
        assert (value[0] >= 0).all()
        with pytest.raises(Refused, match="lies under another"):
            d.exp(value)
        with pytest.raises(Refused, match="lies under sqrt"):
            d.call("sqrt", value)
        with pytest.raises(Refused, match="lies under pow"):
            d.call("pow", x, value)
        with pytest.raises(Refused, match="lies under max"):
            d.extreme("max", value, ["j"])
    for value in (d.call("sqrt", x), d.extreme("max", x, ["j"]), d.iota("i", 4), d.const(2), d.div(x, x)):
        assert (value[1] >= 0).all()


def test_the_factor_of_a_stabilised_exponential_cancels_or_shows(d: Homomorphic) -> None:
    x = drawn(d, "x")
    e = d.stable_exp(x, ["j"])
    softmax = d.div(e, d.sum(e, ["j"]))
    plain = d.div(d.exp(x), d.sum(d.exp(x), ["j"]))
    assert np.array_equal(softmax[0], plain[0])
    assert not np.array_equal(e[0], d.exp(x)[0])
    old = d.running_max(None, x, ["j"])
    new = d.running_max(old, x, ["j"])
    moved = d.mul(d.exp_minus(x, old), d.exp_difference(old, new))
    assert np.array_equal(moved[0], d.exp_minus(x, new)[0])


def test_functions_take_both_residues(d: Homomorphic) -> None:
    x = drawn(d, "x", 1, 1)
    for row in (0, 1):
        y = x.copy()
        y[row] = (y[row] + 1) % (PAIR.p, PAIR.q)[row]
        for found, other in (
            (d.call("tanh", x), d.call("tanh", y)),
            (d.extreme("max", x, ["j"]), d.extreme("max", y, ["j"])),
        ):
            assert (found != other).all()


def test_a_division_by_zero_in_either_field(d: Homomorphic) -> None:
    for row in (0, 1):
        y = drawn(d, "y")
        y[row, 2, 3] = 0
        with pytest.raises(ZeroDenominator):
            d.div(y, y)
    with pytest.raises(ZeroDenominator):
        d.const(Fraction(1, PAIR.q))


# --- figures ------------------------------------------------------------------------------------------------------------
class Sums(Quotients):
    """Everything multiplied out; exp(a) is a variable `exp#k`, and a product of such variables has the sum of the a as its
    exponent."""

    def __init__(self, order: Any, functions: Functions, exponents: dict[Any, tuple[str, Quotient]]) -> None:
        super().__init__(order, functions)
        self.exponents = exponents

    def exp(self, x: Array) -> Array:
        def value(a: Quotient) -> Quotient:
            name, _ = self.exponents.setdefault((a.num, a.den), (f"exp#{len(self.exponents)}", a))
            return Quotient(variable(name).num, ONE, a.arguments)

        return _elementwise(value, x)


def sums(p: Program) -> tuple[list[Array], dict[str, Quotient]]:
    """The outputs multiplied out, and what each exponential is of."""
    symbols = symbols_of(p)
    arrays = {k: variables(f"s{k}", [ex.value(e, symbols) for e in s.dims]) for k, s in enumerate(p.sources)}
    exponents: dict[Any, tuple[str, Quotient]] = {}
    domain = Sums([a.name for a in p.axes], Functions(), exponents)
    return evaluate_program(p, domain, arrays, symbols), dict(exponents.values())


def figures(p: Program) -> list[Exponential]:
    arguments = Arguments()
    return program_figures(p, symbols_of(p), lambda extents: Exponentials(extents, arguments))


def within(side: Poly, terms: Any, degree: int, exponents: dict[str, Quotient]) -> None:
    """A sum is within its figures."""
    powers = {tuple(v for v in m if v in exponents) for m, _ in side.terms}
    assert len(powers) <= terms.count
    assert max((sum(v not in exponents for v in m) for m, _ in side.terms), default=0) <= degree
    for names in powers - {()}:
        total = exponents[names[0]]
        for name in names[1:]:
            total = add(total, exponents[name])
        assert total.num.degree <= terms.exponent.num
        assert total.den.degree <= terms.exponent.den
        assert total.num.bits <= terms.exponent.num_bits + 1e-9
        assert total.den.bits <= terms.exponent.den_bits + 1e-9


def check(p: Program) -> tuple[Array, Exponential]:
    (found,), exponents = sums(p)
    (figure,) = figures(p)
    for q in found.ravel():
        within(q.num, figure.num, figure.base.num, exponents)
        within(q.den, figure.den, figure.base.den, exponents)
        assert q.num.bits <= figure.base.num_bits + 1e-9
        assert q.den.bits <= figure.base.den_bits + 1e-9
        assert len(q.arguments) <= figure.base.applications
    return found, figure


def built(record: Callable[[Graph, int, int], int], rows: int = 3) -> Program:
    g = Graph()
    return recorded(g, [record(g, g.input("x", (2, rows), F32), g.input("y", (2, rows), F32))])


def _exp(g: Graph, x: int) -> int:
    return g.map("exp", x)


#: terms above and below the line, degrees of the polynomials, degrees of the exponents' numerator and denominator
RULES: dict[str, tuple[Callable[[Graph, int, int], int], tuple[int, ...]]] = {
    "exponential": (lambda g, x, y: _exp(g, x), (1, 1, 0, 0, 1, 0)),
    "no exponential": (lambda g, x, y: g.map("add", g.map("mul", x, y), x), (1, 1, 2, 0, 0, 0)),
    "product": (lambda g, x, y: g.map("mul", _exp(g, x), _exp(g, y)), (1, 1, 0, 0, 1, 0)),
    "sum": (lambda g, x, y: g.map("add", _exp(g, x), g.map("mul", x, _exp(g, y))), (2, 1, 1, 0, 1, 0)),
    "product of sums": (
        lambda g, x, y: g.map("mul", g.map("add", _exp(g, x), x), g.map("sub", _exp(g, y), y)),
        (4, 1, 2, 0, 1, 0),
    ),
    "quotient": (lambda g, x, y: g.map("div", _exp(g, x), g.map("add", x, _exp(g, y))), (1, 2, 0, 1, 1, 0)),
    "of quotients": (
        lambda g, x, y: g.map("mul", _exp(g, g.map("div", x, y)), _exp(g, g.map("div", y, x))),
        (1, 1, 0, 0, 2, 2),
    ),
    "sum along an axis": (lambda g, x, y: g.reduce("sum", g.map("mul", y, _exp(g, x)), [1]), (3, 1, 1, 0, 1, 0)),
    "sum along an axis of equal exponents": (
        lambda g, x, y: g.reduce("sum", g.map("mul", y, _exp(g, g.reduce("sum", x, [1]))), [1]),
        (1, 1, 1, 0, 1, 0),
    ),
    "sum of quotients": (lambda g, x, y: g.reduce("sum", g.map("sigmoid", x), [1]), (12, 8, 0, 0, 1, 0)),
    "softmax": (lambda g, x, y: compose.softmax(g, x, [1]), (1, 3, 1, 1, 1, 0)),
    "contraction": (lambda g, x, y: g.contract(_exp(g, x), _exp(g, y), (0, 1), (2, 1), (0, 2)), (3, 1, 0, 0, 1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rules(name: str) -> None:
    """Numbers of terms and degrees are the bound, not below it."""
    record, wanted = RULES[name]
    found, f = check(built(record))
    e = f.num.exponent
    assert (f.num.count, f.den.count, f.base.num, f.base.den) == wanted[:4]
    assert (e.num if e else 0, e.den if e else 0) == wanted[4:]
    _, exponents = sums(built(record))
    terms = [len({tuple(v for v in m if v in exponents) for m, _ in q.num.terms}) for q in found.ravel()]
    assert max(terms) == f.num.count or name == "sum of quotients"


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(graphs(contractions=1))
def test_random_programs(made: tuple[Graph, int]) -> None:
    g, output = made
    p = canonical(recorded(g, [output]))
    try:
        (f,) = figures(p)
    except Refused:
        assume(False)
    assume(f.base.num + f.base.den + f.num.count + f.den.count < 16)  # what can be multiplied out
    check(p)


def test_functions_of_exponentials_are_refused() -> None:
    for op, match in (("exp", "another"), ("sqrt", "sqrt"), ("sigmoid", "another")):
        with pytest.raises(Refused, match=match):
            figures(built(lambda g, x, y, op=op: g.map(op, g.map("mul", y, _exp(g, x)))))  # type: ignore[misc]
    with pytest.raises(Refused, match="max"):
        figures(built(lambda g, x, y: g.reduce("max", _exp(g, x), [1])))
    (f,) = figures(built(lambda g, x, y: _exp(g, g.map("sqrt", x))))
    assert (f.num.count, f.base.applications) == (1, 1)


def test_very_large_sums_have_no_bound() -> None:
    d = Exponentials({"i": 1 << 50}, Arguments())
    x = d.exp(d.variable(frozenset(["i"])))
    y = d.sum(d.div(d.const(1), d.add(d.const(1), x)), ["i"])
    for _ in range(4):
        y = d.mul(y, y)
    found = HomomorphicBound(gap(y, y), 0, 0.0, 64, 3)
    assert found.log2 == 0.0
    assert found.paper == 0.0


def test_which_operators_have_exponentials() -> None:
    assert {op for op in OPS if exponential(op)} == {"exp", "sigmoid", "silu"}


def test_accumulation_with_weights() -> None:
    """Weights have no exponentials; their degrees count once for each further iteration."""
    d = Exponentials({"step": 4, "i": 4}, Arguments())
    x = d.exp(d.variable(frozenset(["step"])))
    weight = d.exp_difference(d.variable(frozenset(["step"])), d.variable(frozenset(["step"])))
    total = d.accumulate(x, weight, "step")
    assert (total.num.count, total.den.count) == (4, 1)
    assert (total.base.num, total.base.den) == (3, 3)
    assert d.accumulate(x, None, "step").num.count == 4
    with pytest.raises(Refused, match="weight"):
        d.accumulate(x, x, "step")


# --- the bound ----------------------------------------------------------------------------------------------------------
def test_boxes() -> None:
    for q in (11, 83, 113, 1 << 29):
        for others in (1, 2, 3, 5, 28, 29, 30, 1 << 40):
            s = boxes(q, others)
            assert s == 1 or s**others < q
            assert others > 40 or (s + 1) ** others >= q
    assert boxes(83, 1) == 82


def test_sparse_polynomials_have_as_few_roots_as_the_theorem_says() -> None:
    """Over all elements of order q: for two exponents every polynomial, for three and four many of them."""
    rng = np.random.default_rng(0)
    for q in (11, 41, 83, 113):
        p = 2 * q + 1
        omegas = np.array([x * x % p for x in range(2, q + 1)])
        assert len(set(omegas)) == q - 1
        powers = np.ones((q, q - 1), dtype=np.int64)
        for k in range(1, q):
            powers[k] = powers[k - 1] * omegas % p
        for terms in (2, 3, 4):
            exponents = np.array([rng.choice(q, terms, replace=False) for _ in range(1000)])
            factors = rng.integers(1, p, (1000, terms))
            value = sum(factors[:, k, None] * powers[exponents[:, k]] for k in range(terms)) % p
            worst = (value == 0).mean(axis=1).max()
            assert 0 < worst <= min(1.0, 2 / boxes(q, terms - 1))


def found_bound(**changed: Any) -> HomomorphicBound:
    figures = {"degree": 2, "bits": 3.0, "applications": 0, "terms": 2, "exponent": 3, "exponent_bits": 4.0} | changed
    sides = Difference(figures["degree"], figures["bits"], figures["applications"])
    gap = Gap(sides, figures["terms"], figures["exponent"], figures["exponent_bits"])
    return HomomorphicBound(
        gap, figures.get("argument", 1), figures.get("argument_bits", 1.0), figures.get("rounds", 2), 3
    )


def test_the_bound_is_the_sum_of_its_parts() -> None:
    q = PAIRS.lowest
    one = 2 / (2 * q - 1) + 3 / (q - 2) + 2 / (q - 1)
    assert found_bound().round == pytest.approx(one)
    assert found_bound().log2 == pytest.approx(2 * math.log2(one) + math.log2(math.comb(5, 3)))
    collisions = 100 * 99 / 2 / (q - 2) / (2 * q - 1)
    assert found_bound(applications=100).round == pytest.approx(one + collisions)
    assert found_bound(terms=1, exponent=0).round == pytest.approx(2 / (2 * q - 1))
    paper = 8 * 3 * 2**4 / q + q ** (-1 / 4)
    assert found_bound().paper == pytest.approx(2 * math.log2(paper))
    assert found_bound(bits=31.0).round == pytest.approx(one + 1 / PAIRS.count)


def test_more_of_anything_is_worse_and_more_rounds_are_better() -> None:
    base = found_bound(applications=1000).log2
    for worse in (
        {"degree": 3}, {"bits": 99.0}, {"terms": 3}, {"exponent": 4}, {"exponent_bits": 99.0}, {"argument": 1 << 20},
        {"argument_bits": 99.0}, {"applications": 1 << 22},
    ):  # fmt: skip
        assert found_bound(**({"applications": 1000} | worse)).log2 > base, worse
    assert found_bound(applications=1000, rounds=3).log2 < base


def test_the_largest_of_several_outputs() -> None:
    a, b = found_bound(terms=5, degree=1).gap, found_bound(exponent=9, bits=7.5).gap
    both = largest([a, b])
    assert (both.terms, both.exponent, both.sides.degree, both.sides.bits) == (5, 9, 2, 7.5)
    assert largest([]).terms == 1


def test_a_small_field_needs_more_rounds() -> None:
    small = HomomorphicBound(found_bound().gap, 1, 1.0, 2, 3, PrimeRange(11, 8))
    assert small.log2 > found_bound().log2
