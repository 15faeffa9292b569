"""Abstract expressions: properties on random terms, and examples. `test_expr_exhaustive.py` has all small terms."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_cli.lax.domains.expr import Expr, Expressions

PROPERTY = settings(max_examples=150, derandomize=True, deadline=None, database=None)
Term: TypeAlias = tuple  # ("leaf", name) | ("sum", factor, t) | (function, t) | ("add" | "mul" | "div", t, u)
LEAVES = ("x", "y", "z")
FACTORS = ("i", "j")


def terms(leaves: int) -> st.SearchStrategy[Term]:
    """Random terms with so many leaves at most."""
    leaf = st.tuples(st.just("leaf"), st.sampled_from(LEAVES))

    def grow(inner: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
        return st.one_of(
            st.tuples(st.sampled_from(("add", "mul", "div")), inner, inner),
            st.tuples(st.just("sum"), st.sampled_from(FACTORS), inner),
            st.tuples(st.sampled_from(("f", "exp", "sqrt")), inner),
        )

    return st.recursive(leaf, grow, max_leaves=leaves)


ALL = terms(6)
LARGE = terms(12)


def form(e: Expressions, t: Term) -> Expr:
    """The normal form of a term."""
    match t:
        case ("leaf", name):
            return e.leaf(name)
        case ("sum", factor, x):
            return e.sum(form(e, x), [factor])
        case ("add", x, y):
            return e.add(form(e, x), form(e, y))
        case ("mul", x, y):
            return e.mul(form(e, x), form(e, y))
        case ("div", x, y):
            return e.div(form(e, x), form(e, y))
        case (function, x):
            return e.call(function, form(e, x))
    raise AssertionError(t)


def number(t: Term) -> float:
    """The value in a model of the axioms: a sum over i multiplies by a constant, f is one function of its own."""
    match t:
        case ("leaf", name):
            return {"x": 0.731, "y": 1.229, "z": 0.517}[name]
        case ("sum", factor, x):
            return {"i": 1.37, "j": 0.83}[factor] * number(x)
        case ("add", x, y):
            return number(x) + number(y)
        case ("mul", x, y):
            return number(x) * number(y)
        case ("div", x, y):
            return number(x) / number(y)
        case ("exp", x):
            return math.exp(number(x))
        case ("sqrt", x):
            return math.sqrt(number(x))
        case ("f", x):
            return 1.5 + math.sin(number(x))
    raise AssertionError(t)


def rewrites(t: Term) -> Iterator[Term]:
    """Every term that one axiom makes of `t` at its root, in both directions."""
    match t:
        case ("add" | "mul" as op, x, y):
            yield (op, y, x)
    match t:
        case ("add" | "mul" as op, (inner, x, y), z) if inner == op:
            yield (op, x, (op, y, z))
    match t:
        case ("mul" | "div" as op, ("add", x, y), z):
            yield ("add", (op, x, z), (op, y, z))
        case ("add", ("mul" | "div" as op, x, z), (other, y, w)) if other == op and z == w:
            yield (op, ("add", x, y), z)
    match t:
        case ("div", ("div", x, y), z):
            yield ("div", x, ("mul", y, z))
        case ("div", x, ("mul", y, z)):
            yield ("div", ("div", x, y), z)
    match t:
        case ("mul", x, ("div", y, z)):
            yield ("div", ("mul", x, y), z)
        case ("div", ("mul", x, y), z):
            yield ("mul", x, ("div", y, z))
    match t:
        case ("sum", i, ("sum", j, x)):
            yield ("sum", j, ("sum", i, x))
    match t:
        case ("sum", i, ("add", x, y)):
            yield ("add", ("sum", i, x), ("sum", i, y))
        case ("sum", i, ("mul" | "div" as op, x, y)):
            yield (op, ("sum", i, x), y)
        case ("add", ("sum", i, x), ("sum", j, y)) if i == j:
            yield ("sum", i, ("add", x, y))
        case ("mul" | "div" as op, ("sum", i, x), y):
            yield ("sum", i, (op, x, y))
    match t:
        case ("mul", ("exp", x), ("exp", y)):
            yield ("exp", ("add", x, y))
        case ("exp", ("add", x, y)):
            yield ("mul", ("exp", x), ("exp", y))
        case ("mul", ("sqrt", x), ("sqrt", y)):
            yield ("sqrt", ("mul", x, y))
        case ("sqrt", ("mul", x, y)):
            yield ("mul", ("sqrt", x), ("sqrt", y))


def anywhere(t: Term) -> Iterator[Term]:
    """Every term that one axiom makes of `t` at any place."""
    yield from rewrites(t)
    for k, child in enumerate(t):
        if isinstance(child, tuple):
            for changed in anywhere(child):
                yield (*t[:k], changed, *t[k + 1 :])


def subterms(t: Term) -> Iterator[Term]:
    """The term and everything inside."""
    yield t
    for child in t:
        if isinstance(child, tuple):
            yield from subterms(child)


def walk(t: Term, seed: int, steps: int) -> Term:
    """A random sequence of rewrites."""
    rng = random.Random(seed)
    for _ in range(steps):
        t = rng.choice([t, *anywhere(t)])
    return t


@PROPERTY
@given(ALL, st.integers(0, 1 << 20))
def test_rewriting_keeps_the_normal_form(t: Term, seed: int) -> None:
    e = Expressions()
    assert form(e, walk(t, seed, 8)) == form(e, t)


@PROPERTY
@given(ALL, st.data())
def test_equal_forms_are_equal_numbers(t: Term, data: st.DataObject) -> None:
    """Nothing is equated that the axioms do not equate: a model of them gives equal numbers."""
    e = Expressions()
    u = data.draw(st.one_of(ALL, st.sampled_from([t, *anywhere(t)])))
    if form(e, t) == form(e, u):
        assert math.isclose(number(t), number(u), rel_tol=1e-9)


@PROPERTY
@given(LARGE, st.integers(0, 1 << 20))
def test_parts_of_equal_terms_are_found(t: Term, seed: int) -> None:
    """Pruning by `is_part` loses nothing: x is found in e when any term equal to e contains x."""
    e = Expressions()
    whole = form(e, t)
    for part in subterms(walk(t, seed, 16)):
        assert e.is_part(form(e, part), whole), part


@PROPERTY
@given(ALL, ALL, ALL)
def test_factors_below_a_line_and_under_a_root_are_found(x: Term, y: Term, z: Term) -> None:
    """x/(yz) is (x/y)/z, sqrt(yz) is sqrt(y) sqrt(z), and exp(y + z) is exp(y) exp(z), also where sums were multiplied out."""
    e = Expressions()
    top, a, b = form(e, x), form(e, y), form(e, z)
    assert e.is_part(e.div(top, a), e.div(top, e.mul(a, b)))
    assert e.is_part(e.call("sqrt", a), e.call("sqrt", e.mul(a, b)))
    assert e.is_part(e.call("exp", a), e.call("exp", e.add(a, b)))


@PROPERTY
@given(ALL, ALL, ALL)
def test_parts_of_parts_are_parts(x: Term, y: Term, z: Term) -> None:
    e = Expressions()
    a, b, c = form(e, x), form(e, y), form(e, z)
    for middle in (a, e.mul(a, b), e.div(b, a), e.sum(a, ["i"])):
        for whole in (c, e.add(middle, c), e.div(c, e.mul(middle, b)), e.call("sqrt", e.mul(middle, middle))):
            if e.is_part(middle, whole):
                assert e.is_part(a, whole)


@PROPERTY
@given(ALL)
def test_what_a_term_lacks_is_no_part(t: Term) -> None:
    e = Expressions()
    whole = form(e, t)
    for name in LEAVES:
        if ("leaf", name) not in subterms(t):
            assert not e.is_part(e.leaf(name), whole)
            assert not e.is_part(e.mul(e.leaf(name), whole), whole)
    assert not e.is_part(e.call("g", whole), whole)
    assert not e.is_part(e.sum(whole, ["i", "j", "k"]), whole)


@PROPERTY
@given(ALL, ALL, ALL, st.sampled_from((None, "div0")))
def test_quick_tests_deny_no_part(t: Term, x: Term, y: Term, tag: str | None) -> None:
    e = Expressions()
    whole, a, b = form(e, t), form(e, x), form(e, y)
    hosts = [whole, e.sum(e.mul(a, b), ["i"]), e.div(a, b, tag), e.mul(a, e.div(whole, b, tag))]
    hosts += [e.add(a, b), e.add(a, a), e.add(e.div(whole, e.mul(e.add(a, b), a), tag), b)]
    for host in hosts:
        if e.is_part(e.sum(e.mul(a, b), ["i"]), host):
            assert e.may_hold_product(a, b, ["i"], host)
        if e.is_part(e.div(a, b, tag), host):
            assert e.may_hold_quotient(a, b, tag, host)
        if e.is_part(e.add(a, b), host):
            assert e.may_hold_sum(a, b, host)


def test_examples_of_the_reference() -> None:
    """The queries of its program `egg_tests`, which prints answers and states none. E is the gated MLP
    silu(sum(4096, a b)) * sum(4096, a c); sum(k, .) is a sum factor for each prime factor of k, and 4096 = 2^12."""
    e = Expressions()
    a, b, c = (e.leaf(n) for n in "abc")

    def total(log: int, x: Expr) -> Expr:
        """sum(2^log, x)."""
        return e.sum(x, ["2"] * log)

    gate = e.call("silu", total(12, e.mul(a, b)))
    whole = e.mul(gate, total(12, e.mul(a, c)))
    mul = e.mul
    # The argument of silu.
    assert e.is_part(total(12, mul(a, b)), whole)
    # sum(32, a) sum(128, c) = sum(4096, a c), the right factor.
    assert e.is_part(mul(total(5, a), total(7, c)), whole)
    # = sum(64, a c); sum(64, .) of it is the right factor.
    assert e.is_part(total(2, mul(total(2, a), total(2, c))), whole)
    # = sum(512, a b); sum(8, .) of it is the argument of silu.
    assert e.is_part(total(1, mul(total(4, b), total(4, a))), whole)
    # = sum(64, a b), likewise.
    assert e.is_part(total(2, mul(total(2, b), total(2, a))), whole)
    # = sum(8192, a c): more is summed than in either factor.
    assert not e.is_part(total(1, mul(total(6, c), total(6, a))), whole)
    # = sum(2^20, silu(..) c): E's only monomial is sum(2^12, silu(..) a c).
    assert not e.is_part(total(12, mul(total(4, gate), total(4, c))), whole)
    # = sum(2^11, silu(..) c): times a, summed over 2, it is E.
    assert e.is_part(total(3, mul(total(4, gate), total(4, c))), whole)


def test_examples_of_the_paper() -> None:
    """For X Z + Y Z, X Y is pruned and X + Y is kept."""
    e = Expressions()
    x, y, z = (e.leaf(n) for n in LEAVES)
    whole = e.sum(e.add(e.mul(x, z), e.mul(y, z)), ["k"])
    assert not e.is_part(e.mul(x, y), whole)
    assert e.is_part(e.add(x, y), whole)
    assert not e.is_part(e.add(e.mul(x, z), y), whole)


def test_products_below_a_line_need_not_factor_in_one_way() -> None:
    """(x + y)(x^4 + x^2 y^2 + y^4) = (x^3 + y^3)(x^2 + x y + y^2), and with positive coefficients none of the four is a
    product: the factors cannot be read off a normal form."""
    e = Expressions()
    x, y, z = (e.leaf(n) for n in LEAVES)

    def polynomial(*powers: tuple[int, int]) -> Expr:
        """The sum of x^m y^n."""
        return functools.reduce(e.add, (functools.reduce(e.mul, [x] * m + [y] * n) for m, n in powers))

    pairs = [
        (polynomial((1, 0), (0, 1)), polynomial((4, 0), (2, 2), (0, 4))),
        (polynomial((3, 0), (0, 3)), polynomial((2, 0), (1, 1), (0, 2))),
    ]
    wholes = {e.div(z, e.mul(a, b)) for a, b in pairs}
    assert len(wholes) == 1
    assert all(e.is_part(e.div(z, factor), whole) for whole in wholes for pair in pairs for factor in pair)
    assert not any(e.is_part(e.div(z, polynomial((2, 0), (0, 2))), whole) for whole in wholes)


def test_division_of_sums_of_quotients_starts_where_there_is_one_way() -> None:
    """(x/y + x/z)^2 holds 2 x^2/(y z), which each summand of the root can make; the squares can come from one only."""
    e = Expressions()
    x, y, z = (e.leaf(n) for n in LEAVES)
    e.div(x, e.mul(y, z))  # so that 1/(y z) has the lowest number
    root = e.add(e.div(x, y), e.div(x, z))
    assert e.is_part(e.div(x, root), e.div(x, e.mul(root, root)))
    assert e.is_part(e.call("sqrt", root), e.call("sqrt", e.mul(root, root)))


def test_a_sum_below_a_line_stays_with_a_factor() -> None:
    """z / sum(i, x y) is (z/x) / sum(i, y) and (z / sum(i, x)) / y, but sum(i, .) alone is nothing to divide by."""
    e = Expressions()
    x, y, z = (e.leaf(n) for n in LEAVES)
    whole = e.div(z, e.sum(e.mul(x, y), ["i"]))
    assert all(e.is_part(e.div(z, p), whole) for p in (x, y, e.sum(x, ["i"]), e.sum(y, ["i"])))
    assert not e.is_part(e.div(z, x), e.div(z, e.sum(x, ["i"])))
    assert not e.is_part(e.sum(e.div(z, x), ["i"]), whole)


def test_no_cancellation() -> None:
    e = Expressions()
    x, y = e.leaf("x"), e.leaf("y")
    assert e.div(e.mul(x, y), y) != x
    assert e.add(x, x) != x


def test_guarded_quotients_are_others() -> None:
    e = Expressions()
    x, y = e.leaf("x"), e.leaf("y")
    assert e.div(x, y) != e.div(x, y, "div0")


def test_text() -> None:
    e = Expressions()
    x, y = e.leaf("x"), e.leaf("y")
    assert e.text(e.sum(e.div(e.mul(x, e.call("f", y)), e.add(x, y)), ["h"])) == "sum[h](x*f(y)/(x + y))"
    assert e.text(e.add(x, x)) == "2*x"
    assert e.text(e.sum(x, [])) == "x"


@pytest.mark.parametrize("function", ["exp", "sqrt"])
def test_merging_below_the_line(function: str) -> None:
    e = Expressions()
    x, y, z = (e.leaf(n) for n in LEAVES)
    fx, fy = e.call(function, x), e.call(function, y)
    joined = e.call(function, e.add(x, y) if function == "exp" else e.mul(x, y))
    assert e.div(e.div(z, fx), fy) == e.div(z, e.mul(fx, fy)) == e.div(z, joined)
