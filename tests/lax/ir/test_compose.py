"""Composite operators against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.dtypes import BOOL, F16, F32, I8, I64
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.evaluate import evaluate_graph
from mirage_cli.lax.ir.graph import Cast, Graph, Map
from mirage_cli.lax.ir.magnitudes import never_negative, whole_range

X = np.random.default_rng(0).uniform(0.2, 2.0, (2, 3, 4))
Y = np.random.default_rng(1).uniform(-2.0, 2.0, (4, 5))
Z = np.random.default_rng(2).uniform(-2.0, 2.0, (2, 5, 4))
MASK = np.random.default_rng(3).uniform(size=(3, 4)) < 0.5
Array = NDArray[Any]


def centred(x: Array) -> Array:
    """Minus the mean of the last dimension."""
    return x - x.mean(-1, keepdims=True)


def softmax(x: Array) -> Array:
    """Along the last dimension."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms(x: Array) -> Array:
    """Divided by the root of the mean square plus 1/2."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 0.5)


CASES: dict[str, tuple[Callable[[Graph, int, int, int, int], int], Callable[[], Array]]] = {
    "scale": (lambda g, x, y, z, m: compose.scale(g, x, 0.3), lambda: 0.3 * X),
    "shift": (lambda g, x, y, z, m: compose.shift(g, x, -2), lambda: X - 2),
    "mean": (lambda g, x, y, z, m: compose.mean(g, x, [0, 2]), lambda: X.mean((0, 2), keepdims=True)),
    "power 3": (lambda g, x, y, z, m: compose.power(g, x, 3), lambda: X**3),
    "power 1/2": (lambda g, x, y, z, m: compose.power(g, x, 0.5), lambda: X**0.5),
    "power -1/2": (lambda g, x, y, z, m: compose.power(g, x, -0.5), lambda: X**-0.5),
    "power -1": (lambda g, x, y, z, m: compose.power(g, x, -1), lambda: 1 / X),
    "power 1.7": (lambda g, x, y, z, m: compose.power(g, x, 1.7), lambda: X**1.7),
    "softmax": (lambda g, x, y, z, m: compose.softmax(g, x, [-1]), lambda: softmax(X)),
    "log softmax": (lambda g, x, y, z, m: compose.log_softmax(g, x, [-1]), lambda: np.log(softmax(X))),
    "log sum exp": (
        lambda g, x, y, z, m: compose.log_sum_exp(g, x, [1]),
        lambda: np.log(np.exp(X).sum(1, keepdims=True)),
    ),
    "rms norm": (lambda g, x, y, z, m: compose.rms_norm(g, x, [-1], 0.5), lambda: rms(X)),
    "layer norm": (lambda g, x, y, z, m: compose.layer_norm(g, x, [-1], 0.5), lambda: rms(centred(X))),
    "affine": (
        lambda g, x, y, z, m: compose.affine(g, z, g.slice(x, 1, 0, 1), g.slice(x, 1, 2, 1)),
        lambda: Z * X[:, :1] + X[:, 2:],
    ),
    "matmul": (lambda g, x, y, z, m: compose.matmul(g, x, y), lambda: X @ Y),
    "matmul of a vector": (
        lambda g, x, y, z, m: compose.matmul(g, g.reshape(g.slice(g.slice(x, 0, 1, 1), 1, 2, 1), (4,)), y),
        lambda: X[1, 2] @ Y,
    ),
    "matmul with a vector": (
        lambda g, x, y, z, m: compose.matmul(g, x, g.reshape(g.slice(y, 1, 3, 1), (4,))),
        lambda: X @ Y[:, 3],
    ),
    "batched matmul": (lambda g, x, y, z, m: compose.matmul(g, z, g.transpose(x, (0, 2, 1))), lambda: Z @ X.mT),
    "linear": (
        lambda g, x, y, z, m: compose.linear(g, x, g.transpose(y, (1, 0)), transposed=True),
        lambda: X @ Y,
    ),
    "boolean mask": (
        lambda g, x, y, z, m: compose.attention_mask(g, x, m),
        lambda: np.where(MASK, X, -np.inf),
    ),
    "additive mask": (lambda g, x, y, z, m: compose.attention_mask(g, x, x), lambda: 2 * X),
    "causal": (
        lambda g, x, y, z, m: compose.causal(g, x, 1),
        lambda: np.where(np.arange(4) <= np.arange(3)[:, None] + 1, X, -np.inf),
    ),
    "soft cap": (lambda g, x, y, z, m: compose.soft_cap(g, x, 5), lambda: 5 * np.tanh(X / 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    build, wanted = CASES[name]
    g = Graph()
    args = [g.input(n, a.shape, F32) for n, a in (("x", X), ("y", Y), ("z", Z))]
    g.outputs.append(build(g, *args, g.input("m", MASK.shape, BOOL)))
    feeds = {"x": X, "y": Y, "z": Z, "m": MASK.astype(float)}
    (found,) = evaluate_graph(g, Float64(), feeds)
    np.testing.assert_allclose(found, wanted(), rtol=1e-12)
    assert found.shape == wanted().shape == g.dims(g.outputs[0])


def test_mean_of_a_symbolic_number() -> None:
    g = Graph()
    g.outputs.append(compose.mean(g, g.input("x", (symbol("b"), 3, 4), F32), [0, 1]))
    (found,) = evaluate_graph(g, Float64(), {"x": X}, {"b": 2})
    np.testing.assert_allclose(found, X.mean((0, 1), keepdims=True))


def quotient(g: Graph) -> tuple[int, int]:
    """a / sum(a) along rows, and a zero."""
    a = g.input("a", (4, 2), F32)
    return g.map("div", a, g.reduce("sum", a, [1])), g.fill(0, F32)


@pytest.mark.parametrize(
    "build",
    [
        lambda g, q, zero: compose.select(g, g.map("isnan", q), zero, q),
        lambda g, q, zero: compose.select(g, g.map("not", g.map("isnan", q)), q, zero),
        lambda g, q, zero: compose.select(g, g.map("eq", q, q), q, zero),
        lambda g, q, zero: compose.select(g, g.map("not", g.map("eq", q, q)), zero, q),
    ],
)
def test_quotients_without_nan(build: Callable[[Graph, int, int], int]) -> None:
    g = Graph()
    g.outputs.append(build(g, *quotient(g)))
    assert [s for s in map(str, g.steps) if "div0" in s]
    a = np.array([[0.0, 0.0], [1.0, -1.0], [3.0, -1.0], [np.nan, 1.0]])
    (found,) = evaluate_graph(g, Float64(), {"a": a})
    np.testing.assert_array_equal(found, [[0.0, 0.0], [np.inf, -np.inf], [1.5, -0.5], [0.0, 0.0]])


def test_other_choices_stay() -> None:
    """A test of another value, another replacement than 0, or another quotient, is an ordinary choice."""
    g = Graph()
    q, zero = quotient(g)
    other, ratio = g.map("exp", q), g.map("div", g.input("b", (4, 2), F32), g.input("c", (4, 2), F32))
    one = g.fill(1, F32)
    for v in (
        compose.select(g, g.map("isnan", other), zero, q),
        compose.select(g, g.map("isnan", q), one, q),
        compose.select(g, g.map("isnan", q), q, zero),
        compose.select(g, g.map("isnan", other), zero, other),
        compose.select(g, g.map("isnan", ratio), zero, ratio),
    ):
        assert "where" in str(g.steps[v])


# --- what is known of numbers -----------------------------------------------------------------------------------------
def test_powers_that_are_roots() -> None:
    g = Graph()
    x, y = g.input("x", (3,), F32), g.input("y", (3,), F32)
    never = [compose.square(g, x), g.map("exp", x), g.map("abs", y), compose.mean(g, compose.square(g, x), [0])]
    never += [compose.shift(g, never[0], 1), g.map("mul", never[1], never[2]), g.reshape(never[0], (1, 3))]
    often = [x, g.map("mul", x, y), compose.shift(g, never[0], -1), g.map("max", x, g.fill(0, F32))]
    assert all(never_negative(g, v) for v in never) and not any(never_negative(g, v) for v in often)
    for exponent, root in ((0.5, "sqrt"), (-0.5, "rsqrt")):
        assert [g.steps[compose.power(g, v, exponent)] for v in never] == [Map(root)] * len(never)
        assert [g.steps[compose.power(g, v, exponent)] for v in often] == [Map("pow")] * len(often)


def test_ranges_of_whole_numbers() -> None:
    g = Graph()
    truth = g.map("lt", g.input("x", (4,), F32), g.input("y", (4,), F32))
    number, position = g.cast(truth, F32), g.iota(4, 0, 1, I64)
    assert whole_range(g, number) == (0, 1) and whole_range(g, g.cast(position, F32)) == (0, 3)
    turned = g.map("sub", g.fill(1, F32), number)
    assert whole_range(g, turned) == (0, 1)
    assert whole_range(g, g.map("mul", turned, g.fill(-9, F32))) == (-9, 0)
    assert whole_range(g, g.map("where", truth, g.fill(7, F32), g.cast(position, F32))) == (0, 7)
    assert whole_range(g, g.input("i", (4,), I8)) == (-128, 127)
    assert whole_range(g, g.input("x", (4,), F32)) is None and whole_range(g, g.fill(0.5, F32)) is None


def test_ranges_and_signs_of_long_chains_are_not_followed() -> None:
    g = Graph()
    v = g.fill(1, F32, (2,))
    for k in range(5000):
        v = g.map("add", v, g.fill(k + 2, F32, (2,)))
    assert whole_range(g, v) is None and not never_negative(g, v)


def test_what_is_left_of_rounded_numbers() -> None:
    g = Graph()
    x = g.input("x", (4, 2), F32)
    half = g.cast(x, F16)
    wide = compose.converted(g, g.transpose(half, (1, 0)), F32)
    assert g.steps[g.inputs[wide][0]] == Map("round_f16")
    again = compose.converted(g, g.cast(wide, F16), F32)
    assert g.steps[g.inputs[again][0]] == Cast()
    stored, sums = g.input("h", (2,), F16), g.map("add", half, half)
    assert compose.converted(g, stored, F32) == g.cast(stored, F32) and compose.rounded_to_type(g, sums) == sums
    assert compose.rounded_to_type(g, g.cast(g.iota(9, 0, 1, I64), F16)) == g.cast(g.iota(9, 0, 1, I64), F16)
    far = g.cast(g.iota(9999, 0, 1, I64), F16)
    assert g.steps[compose.rounded_to_type(g, far)] == Map("round_f16")
