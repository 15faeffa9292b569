"""The normal form: it keeps the value, is reached in one step, and does not depend on names, order or spelling."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.domains.field import ZeroDenominator
from mirage_cli.lax.dtypes import BOOL, F32
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.evaluate import evaluate_graph
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.normal.canonical import canonical
from tests.lax.programs import graphs, in_field, in_floats, positive, recorded, residues, scrambled, symbols_of

PROPERTY = settings(max_examples=120, derandomize=True, deadline=None, database=None)
Build = Callable[[Graph], int]


def normal(build: Build) -> Program:
    """The normal form of what `build` records."""
    g = Graph()
    return canonical(recorded(g, [build(g)]))


def same_in_field(p: Program, q: Program) -> bool:
    """Whether two programs of the same sources agree at a random point."""
    symbols = symbols_of(p)
    arrays = residues(p, symbols)
    wanted, found = in_field(p, arrays, symbols), in_field(q, arrays, symbols)
    return all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))


@PROPERTY
@given(graphs())
def test_value_is_kept(made: tuple[Graph, int]) -> None:
    g, out = made
    p = recorded(g, [out])
    c = canonical(p)
    with contextlib.suppress(ZeroDenominator):
        assert same_in_field(p, c)
    arrays = positive(p, {})
    named = {
        step.name: arrays[f"t{v}"] for v, step in enumerate(g.steps) if hasattr(step, "name") and f"t{v}" in arrays
    }
    g.outputs[:] = [out]
    (wanted,) = evaluate_graph(g, Float64(), {"x": 0, "y": 0, "g": 0, "w": 0, "u": 0, **named})
    np.testing.assert_allclose(in_floats(p, arrays)[0], wanted, rtol=1e-9, atol=1e-12)
    if np.all(np.isfinite(wanted)) and np.max(np.abs(wanted), initial=0) < 1e6:
        np.testing.assert_allclose(in_floats(c, arrays)[0], wanted, rtol=1e-6, atol=1e-8)


@PROPERTY
@given(graphs(), st.integers(0, 1 << 20))
def test_names_and_orders_do_not_matter(made: tuple[Graph, int], seed: int) -> None:
    g, out = made
    p = recorded(g, [out])
    c = canonical(p)
    assert canonical(c) == c
    assert canonical(scrambled(p, seed)).key() == c.key()


def test_sources_used_differently_are_told_apart() -> None:
    def build(g: Graph, swap: bool) -> int:
        a, b, c = (g.input(n, (3, 4), F32) for n in "abc")
        return g.map("add", g.map("mul", *((b, a) if swap else (a, b))), g.map("mul", *((a, c) if swap else (c, a))))

    assert normal(lambda g: build(g, True)).key() == normal(lambda g: build(g, False)).key()


def x_of(g: Graph, *dims: int) -> int:
    """An input."""
    return g.input("x", dims or (3, 4), F32)


def _two(g: Graph) -> tuple[int, int]:
    return x_of(g), g.input("y", (3, 4), F32)


def _softmax_by_hand(g: Graph) -> int:
    e = g.map("exp", g.map("sub", x_of(g), g.reduce("max", x_of(g), [1])))
    return g.map("div", e, g.reduce("sum", e, [1]))


SPELLINGS: dict[str, tuple[Build, Build]] = {
    "rsqrt": (
        lambda g: g.map("mul", x_of(g), g.map("rsqrt", compose.square(g, x_of(g)))),
        lambda g: g.map("div", x_of(g), g.map("sqrt", compose.square(g, x_of(g)))),
    ),
    "reciprocal": (
        lambda g: g.map("mul", x_of(g), g.map("recip", g.map("exp", x_of(g)))),
        lambda g: g.map("div", x_of(g), g.map("exp", x_of(g))),
    ),
    "quotient of a quotient": (
        lambda g: g.map("div", x_of(g), g.map("div", g.fill(1, F32), g.map("exp", x_of(g)))),
        lambda g: g.map("mul", x_of(g), g.map("exp", x_of(g))),
    ),
    "silu": (
        lambda g: g.map("mul", x_of(g), g.map("sigmoid", x_of(g))),
        lambda g: g.map("silu", x_of(g)),
    ),
    "silu of a multiple": (
        lambda g: g.map("mul", compose.scale(g, x_of(g), 3), g.map("sigmoid", compose.scale(g, x_of(g), 3))),
        lambda g: g.map("silu", compose.scale(g, x_of(g), 3)),
    ),
    "scale twice": (
        lambda g: compose.scale(g, g.reduce("sum", compose.scale(g, x_of(g), 0.5), [1]), 8),
        lambda g: compose.scale(g, g.reduce("sum", x_of(g), [1]), 4),
    ),
    "mean": (
        lambda g: compose.mean(g, x_of(g), [1]),
        lambda g: g.map("div", g.reduce("sum", x_of(g), [1]), g.fill(4, F32)),
    ),
    "common denominator of a sum": (
        lambda g: g.map(
            "add",
            g.map("div", x_of(g), g.map("exp", x_of(g))),
            g.map("mul", g.map("div", g.map("tanh", x_of(g)), g.map("exp", x_of(g))), x_of(g)),
        ),
        lambda g: g.map(
            "div", g.map("add", x_of(g), g.map("mul", g.map("tanh", x_of(g)), x_of(g))), g.map("exp", x_of(g))
        ),
    ),
    "common denominator of a choice": (
        lambda g: g.map(
            "where", g.input("c", (3, 4), BOOL), *(g.map("div", y, g.map("exp", x_of(g))) for y in _two(g))
        ),
        lambda g: g.map("div", g.map("where", g.input("c", (3, 4), BOOL), *_two(g)), g.map("exp", x_of(g))),
    ),
    "choice between equals": (
        lambda g: g.map("where", g.map("lt", x_of(g), _two(g)[1]), x_of(g), x_of(g)),
        lambda g: g.map("mul", x_of(g), g.fill(1, F32)),
    ),
    "constant condition": (
        lambda g: g.map("where", g.fill(True, BOOL), g.map("exp", x_of(g)), x_of(g)),
        lambda g: g.map("exp", x_of(g)),
    ),
    "logic with constants": (
        lambda g: g.map("where", g.map("and", g.fill(True, BOOL), g.map("lt", *_two(g))), *_two(g)),
        lambda g: g.map("where", g.map("or", g.map("lt", *_two(g)), g.fill(False, BOOL)), *_two(g)),
    ),
    "comparison of constants": (
        lambda g: g.map("where", g.map("le", g.fill(2, F32), g.fill(1, F32)), *_two(g)),
        lambda g: g.map("sub", _two(g)[1], g.fill(0, F32)),
    ),
    "sum of ones": (
        lambda g: g.map("mul", x_of(g), g.reduce("sum", g.expand(g.fill(1, F32, (1, 7)), (3, 7)), [1])),
        lambda g: compose.scale(g, x_of(g), 7),
    ),
    "contraction with a constant": (
        lambda g: compose.matmul(g, x_of(g), g.expand(g.fill(2, F32, (1, 1)), (4, 5))),
        lambda g: g.expand(compose.scale(g, g.reduce("sum", x_of(g), [1]), 2), (3, 5)),
    ),
    "softmax with its maximum": (
        _softmax_by_hand,
        lambda g: compose.softmax(g, x_of(g), [1]),
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_agree(name: str) -> None:
    left, right = SPELLINGS[name]
    assert str(normal(left)) == str(normal(right))


def test_a_maximum_that_does_not_cancel_stays() -> None:
    p = normal(lambda g: g.map("exp", g.map("sub", x_of(g), g.reduce("max", x_of(g), [1]))))
    assert "stable_exp" not in str(p)


def test_constants_are_exact() -> None:
    p = normal(lambda g: compose.scale(g, compose.scale(g, x_of(g), 0.1), 10))
    (constant,) = [n.value for n in p.nodes if n.op == "const"]
    assert constant == Fraction(0.1) * 10 != 1


def test_equal_reductions_over_different_axes_are_one() -> None:
    """Two norms of the same state, read along axes of their own, behind products with weights of two lengths."""

    def build(g: Graph) -> int:
        x, total = x_of(g, 3, 4), 0
        for k, name in enumerate("uv"):
            spelled = g.transpose(g.reshape(x, (3, 4)), (1, 0)) if k else x
            norm = g.reduce("sum", compose.square(g, spelled), [0 if k else 1])
            norm = g.reshape(norm, (3, 1))
            w = g.input(name, (4, 5), F32)
            part = g.map("div", compose.matmul(g, x, w), g.map("sqrt", norm))
            total = g.map("mul", total, part) if k else part
        return total

    p = normal(build)
    assert [n.op for n in p.nodes].count("sum") == 1
    assert len(p.axes) == 3


def test_reductions_with_swapped_roles_stay_two() -> None:
    """sum over rows of x[r, c] and sum over columns are different although both bind one axis of extent 4."""

    def build(g: Graph) -> int:
        x = g.map("exp", x_of(g, 4, 4))
        rows = g.reshape(g.reduce("sum", x, [0]), (4,))
        return g.map("sub", rows, g.reshape(g.reduce("sum", x, [1]), (4,)))

    p = normal(build)
    assert [n.op for n in p.nodes].count("sum") == 2


def test_a_choice_that_loses_an_axis_keeps_its_sum() -> None:
    """where(mask, a, a) lacks the mask's axis; a sum over that axis still counts every position."""

    def build(g: Graph) -> int:
        a = g.input("a", (3, 1), F32)
        choice = g.map("where", g.map("lt", x_of(g), g.fill(1, F32)), a, a)
        return g.map("add", g.reduce("sum", choice, [1]), g.reduce("max", choice, [1]))

    g = Graph()
    p = recorded(g, [build(g)])
    arrays = positive(p, {})
    (value,) = in_floats(canonical(p), arrays)
    a = next(v for v in arrays.values() if v.shape == (3, 1))
    np.testing.assert_allclose(value, 5 * a, rtol=1e-12)


def test_softmax_along_an_axis_that_was_lost() -> None:
    def build(g: Graph) -> int:
        a = g.input("a", (3, 1), F32)
        return compose.softmax(g, g.map("where", g.map("lt", x_of(g), g.fill(1, F32)), a, a), [1])

    g = Graph()
    p = recorded(g, [build(g)])
    (value,) = in_floats(canonical(p), positive(p, {}))
    np.testing.assert_allclose(value, np.full((3, 4), 0.25), rtol=1e-12)


def test_softmax_over_one_element_is_nan_where_it_is_not_finite() -> None:
    p = normal(lambda g: compose.softmax(g, g.input("x", (4, 1), F32), [1]))
    (value,) = in_floats(p, {"t0": np.array([[2.0], [np.nan], [np.inf], [-1e4]])})
    np.testing.assert_array_equal(value, [[1.0], [np.nan], [np.nan], [1.0]])


def test_mean_over_a_symbolic_axis() -> None:
    def build(g: Graph) -> int:
        return compose.layer_norm(g, g.input("x", (3, symbol("n")), F32), [1], 0.5)

    p = normal(build)
    assert [n.op for n in p.nodes].count("extent") == 1
    assert [n.op for n in p.nodes].count("sum") == 2
    arrays = positive(p, {"n": 6})
    x = next(iter(arrays.values()))
    centred = x - x.mean(axis=1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 0.5)
    np.testing.assert_allclose(in_floats(p, arrays, {"n": 6})[0], wanted, rtol=1e-12)
    assert canonical(p) == p


def test_an_extent_that_inputs_show_in_a_sum_only() -> None:
    """The number of positions `past` is that of `(past+1)` less one."""

    def build(g: Graph) -> int:
        x = g.input("x", (symbol("(past+1)"), 4), F32)
        ones = g.expand(g.fill(1, F32, (1,)), (symbol("past"),))
        return g.map("mul", x, g.reduce("sum", ones, [0]))

    p = normal(build)
    assert p.symbols == ("(past+1)",)
    arrays = positive(p, {"(past+1)": 8})
    np.testing.assert_allclose(in_floats(p, arrays, {"(past+1)": 8})[0], 7 * next(iter(arrays.values())))
