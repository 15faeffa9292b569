"""Degrees, coefficients and function arguments against exact polynomials; the bound against what is measured."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings

from mirage_cli.lax import extents as ex
from mirage_cli.lax.bounds.bound import LEAST_LOG2, Arguments, Bound, Degree, Degrees, difference, program_degrees
from mirage_cli.lax.domains.field import LOWEST, PRIME_COUNT
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.lax.normal.canonical import canonical
from tests.lax.bounds.quotients import Array, Functions, Quotient, Quotients, variables
from tests.lax.programs import graphs, recorded, symbols_of

X = frozenset(["i"])


def exact(p: Program, functions: Functions | None = None) -> list[Array]:
    symbols = symbols_of(p)
    arrays = {k: variables(f"s{k}", [ex.value(e, symbols) for e in s.dims]) for k, s in enumerate(p.sources)}
    return evaluate_program(p, Quotients([a.name for a in p.axes], functions or Functions()), arrays, symbols)


def within(found: Quotient, d: Degree) -> None:
    assert found.num.degree <= d.num
    assert found.den.degree <= d.den
    assert found.num.bits <= d.num_bits + 1e-9
    assert found.den.bits <= d.den_bits + 1e-9
    assert len(found.arguments) <= d.applications


def size(p: Program) -> int:
    return sum(math.prod(ex.value(e, symbols_of(p)) for e in s.dims) for s in p.sources)


def check(p: Program) -> tuple[Array, Degree]:
    (found,), (degree,) = exact(p), program_degrees(p, symbols_of(p))
    for q in found.ravel():
        within(q, degree)
    return found, degree


# --- each rule ----------------------------------------------------------------------------------------------------------
def built(rows: int, record) -> Program:  # type: ignore[no-untyped-def]
    g = Graph()
    return recorded(g, [record(g, g.input("x", (2, rows), F32), g.input("y", (2, rows), F32))])


RULES = {
    "product": (lambda g, x, y: g.map("mul", x, y), 2, 0),
    "sum of products": (lambda g, x, y: g.reduce("sum", g.map("mul", x, y), [1]), 2, 0),
    "quotient": (lambda g, x, y: g.map("div", x, y), 1, 1),
    "guarded quotient": (lambda g, x, y: g.map("div0", x, y), 2, 1),
    "sum of quotients": (lambda g, x, y: g.reduce("sum", g.map("div", x, y), [1]), 3, 3),
    "sum over one denominator": (
        lambda g, x, y: g.reduce("sum", g.map("div", x, g.reduce("sum", y, [1])), [1]),
        1,
        1,
    ),
    "quotient of quotients": (lambda g, x, y: g.map("div", g.map("div", x, y), g.map("div", y, x)), 2, 2),
    "difference of quotients": (lambda g, x, y: g.map("sub", g.map("div", x, y), g.map("div", y, x)), 2, 2),
    "choice": (lambda g, x, y: g.map("where", g.map("lt", x, y), x, y), 2, 0),
    "function": (lambda g, x, y: g.map("sqrt", g.map("mul", x, y)), 1, 0),
    "sigmoid": (lambda g, x, y: g.map("sigmoid", x), 0, 1),
    "stabilised": (lambda g, x, y: g.stable_exp(x, [1]), 2, 0),
    "maximum": (lambda g, x, y: g.reduce("max", g.map("div", x, y), [1]), 1, 0),
    "logic": (lambda g, x, y: g.map("xor", g.map("lt", x, y), g.map("eq", x, y)), 2, 0),
    "contraction": (lambda g, x, y: g.contract(x, y, (0, 1), (2, 1), (0, 2)), 2, 0),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_are_exact(name: str) -> None:
    """The degrees of these forms are the bound, not below it."""
    record, num, den = RULES[name]
    found, degree = check(built(3, record))
    assert (degree.num, degree.den) == (num, den)
    assert max(q.num.degree for q in found.ravel()) == num
    assert max(q.den.degree for q in found.ravel()) == den


def test_arguments_of_functions_count_numerator_and_denominator() -> None:
    arguments = Arguments()
    p = built(3, lambda g, x, y: g.map("add", g.map("sqrt", g.map("div", x, y)), g.map("sqrt", g.map("mul", x, y))))
    program_degrees(p, {}, arguments)
    assert arguments.degree == 2 + 1  # xy against x/y: xy * y - x
    functions = Functions()
    exact(p, functions)
    degrees = []
    shown = [args[0] for (_, args) in functions.known]
    for a, b in ((a, b) for a in shown for b in shown if a != b):
        q, r = (Quotient(*s) for s in (a, b))
        degrees += [side.degree for side in q.differs(r)]
    assert max(degrees) == arguments.degree


def test_functions_of_different_names_do_not_collide() -> None:
    arguments = Arguments()
    program_degrees(
        built(3, lambda g, x, y: g.map("add", g.map("sqrt", g.map("div", x, y)), g.map("tanh", x))), {}, arguments
    )
    assert arguments.degree == 2  # two quotients under the root


def test_every_element_of_an_extreme_is_an_argument() -> None:
    _, degree = check(built(3, lambda g, x, y: g.reduce("max", g.map("sqrt", x), [1])))
    assert degree.applications == 3 + 3


def test_arguments_of_a_sum_are_all_counted() -> None:
    found, degree = check(built(5, lambda g, x, y: g.reduce("sum", g.map("exp", x), [1])))
    assert degree.applications == 5 == len(found.ravel()[0].arguments)


def test_coefficients_of_constants() -> None:
    d = Degrees({})
    third = d.const(Fraction(-5, 3))
    assert (third.num_bits, third.den_bits) == (math.log2(5), math.log2(3))
    assert d.const(0).num_bits == 0
    assert d.const(math.inf).num == 1  # arbitrary: a variable
    total = d.add(third, d.const(Fraction(1, 7)))
    assert total.num_bits >= math.log2(abs(-5 * 7 + 3))


def test_very_large_programs_have_no_bound() -> None:
    d = Degrees({"i": 1 << 40})
    x = d.div(d.variable(X), d.variable(X))
    for _ in range(3):
        x = d.mul(d.sum(x, ["i"]), d.div(d.variable(X), d.variable(X)))
    assert Bound(x.num, x.num_bits, 1, 0.0, 1, 8).log2 == 0.0


# --- programs -----------------------------------------------------------------------------------------------------------
@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(graphs(contractions=1))
def test_random_programs(made: tuple[Graph, int]) -> None:
    g, output = made
    p = canonical(recorded(g, [output]))
    degree = program_degrees(p, {})[0]
    assume(degree.num + degree.den < 14)  # what can be multiplied out
    check(p)


def test_programs_of_attention() -> None:
    g = Graph()
    scores = compose.matmul(g, g.input("q", (1, 2), F32), g.input("k", (2, 3), F32))
    out = compose.matmul(g, compose.softmax(g, scores, [-1]), g.input("v", (3, 1), F32))
    _, degree = check(canonical(recorded(g, [out])))
    assert (degree.num, degree.den) == (3, 2)


def test_differences() -> None:
    x, y = Degree(3, 1, X, X, 4, 10.0, 2.0), Degree(2, 5, X, X, 6, 1.0, 1.0)
    found = difference(x, y)
    assert (found.degree, found.applications) == (8, 10)
    assert found.bits == pytest.approx(math.log2(2.0**11 + 2.0**3))


# --- the bound ----------------------------------------------------------------------------------------------------------
def test_the_number_of_primes() -> None:
    """The logarithmic integral counts primes within a thousandth here."""
    points = np.linspace(LOWEST, 2 * LOWEST, 100001)
    assert np.trapezoid(1 / np.log(points), points) == pytest.approx(PRIME_COUNT, rel=1e-3)


def test_the_bound_is_the_sum_of_its_parts() -> None:
    chance, argument = 5 / (LOWEST - 2), 3 / (LOWEST - 2)
    wanted = 8 * (chance**3 + 100 * 99 / 2 * argument**3)
    assert 2.0 ** Bound(5, 0.0, 3, 0.0, 100, 3, 8).log2 == pytest.approx(wanted)
    assert 2.0 ** Bound(5, 0.0, 3, 0.0, 1, 3, 1).log2 == pytest.approx(chance**3)
    assert 2.0 ** Bound(5, 90.0, 0, 0.0, 0, 1).log2 == pytest.approx(chance + 3 / PRIME_COUNT)
    assert Bound(0, 29.0, 0, 0.0, 0, 3).log2 == 3 * LEAST_LOG2  # a constant below 2**29 has no such prime factor
    assert Bound(LOWEST, 0.0, 0, 0.0, 0, 3).log2 == 0.0


def test_more_of_anything_is_worse_and_more_fields_are_better() -> None:
    base = Bound(5, 100.0, 3, 100.0, 1000, 3, 8).log2
    for worse in (
        Bound(6, 100.0, 3, 100.0, 1000, 3, 8),
        Bound(5, 200.0, 3, 100.0, 1000, 3, 8),
        Bound(5, 100.0, 4, 100.0, 1000, 3, 8),
        Bound(5, 100.0, 3, 200.0, 1000, 3, 8),
        Bound(5, 100.0, 3, 100.0, 2000, 3, 8),
        Bound(5, 100.0, 3, 100.0, 1000, 3, 9),
    ):
        assert worse.log2 > base
    assert Bound(5, 100.0, 3, 100.0, 1000, 4, 8).log2 < base


@pytest.mark.parametrize("degree", [1, 2, 5])
def test_polynomials_vanish_as_rarely_as_the_theorem_says(degree: int) -> None:
    """(x - 1) (x - 2) ... over a small prime: exactly degree of p points, which no smaller bound allows."""
    p = 101
    x = np.arange(p)
    value = np.ones(p, dtype=np.int64)
    for root in range(degree):
        value = value * (x - root) % p
    assert (value == 0).mean() == pytest.approx(degree / p)
