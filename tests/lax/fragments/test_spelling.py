"""Softmaxes and scales in graphs have one spelling; what only looks like a softmax keeps its own."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.fragments.spelling import one_spelling
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir import graph as steps
from mirage_cli.lax.ir.evaluate import evaluate_graph
from mirage_cli.lax.ir.graph import Graph

SCORES = (3, 4, 5)
Arrays = dict[str, np.ndarray]  # type: ignore[type-arg]


def softmax(g: Graph, x: int, dim: int) -> tuple[int, int]:
    """The exponentials of a softmax that is spelled out, and its result."""
    e = g.map("exp", g.map("sub", x, g.reduce("max", x, [dim])))
    return e, g.map("div", e, g.reduce("sum", e, [dim]))


def spelled(build: Callable[[Graph], int]) -> Graph:
    """The graph after the pass, which keeps the value of the output."""
    g = Graph()
    g.outputs = [build(g)]
    new, to = one_spelling(g)
    assert new.outputs == [to[v] for v in g.outputs]
    random = np.random.default_rng(0)
    arrays: Arrays = {
        step.name: random.standard_normal(t.dims)  # type: ignore[call-overload]
        for step, t in zip(g.steps, g.tensors, strict=True)
        if isinstance(step, steps.Input)
    }
    before, after = (evaluate_graph(x, Float64(), arrays)[0] for x in (g, new))
    np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-12)
    return new


def has(g: Graph, kind: type[steps.Step]) -> bool:
    return any(isinstance(g.steps[v], kind) for v in g.cone(g.outputs))


def test_a_softmax_that_is_spelled_out_is_one() -> None:
    def build(g: Graph) -> int:
        return softmax(g, g.input("x", SCORES, F32), 2)[1]

    def composed(g: Graph) -> int:
        return compose.softmax(g, g.input("x", SCORES, F32), [2])

    one, other = spelled(build), spelled(composed)
    assert [one.steps[v] for v in one.cone(one.outputs)] == [other.steps[v] for v in other.cone(other.outputs)]


def test_its_factor_may_cancel_later() -> None:
    def build(g: Graph) -> int:
        e, _ = softmax(g, g.input("x", SCORES, F32), 2)
        values = g.input("v", (3, 5, 6), F32)
        weighted = g.contract(e, values, [0, 1, 2], [0, 2, 3], [0, 1, 3])
        return g.map("div", weighted, g.reduce("sum", e, [2]))

    assert has(spelled(build), steps.StableExp)


@pytest.mark.parametrize("use", ["exponentials", "logarithm", "other sum", "rows"])
def test_a_factor_that_does_not_cancel_keeps_the_maximum(use: str) -> None:
    def build(g: Graph) -> int:
        e, y = softmax(g, g.input("x", SCORES, F32), 2)
        if use == "exponentials":
            return g.map("add", y, e)
        if use == "logarithm":
            return g.map("log", g.reduce("sum", e, [2]))
        if use == "other sum":  # rows of other maxima are added
            return g.map("div", g.reduce("sum", e, [1]), g.reduce("sum", g.reduce("sum", e, [2]), [1]))
        return g.map("div", e, g.reduce("sum", e, [1]))

    assert not has(spelled(build), steps.StableExp)


def rotated(g: Graph, x: int) -> int:
    """A rotary embedding."""
    cos, sin = (g.input(name, (4, 6), F32) for name in ("cos", "sin"))
    a, b = (g.slice(x, 2, k, 3) for k in (0, 3))
    turned = g.concat([g.map("neg", b), a], 2)
    return g.map("add", g.map("mul", x, cos), g.map("mul", turned, sin))


def scores(on_q: float, on_k: float, on_scores: float) -> Callable[[Graph], int]:
    def build(g: Graph) -> int:
        q, k = (g.input(name, (3, 4, 6), F32) for name in "qk")
        q = rotated(g, compose.scale(g, q, on_q))
        k = compose.scale(g, rotated(g, k), on_k)
        return compose.scale(g, g.contract(q, k, [0, 1, 2], [0, 3, 2], [0, 1, 3]), on_scores)

    return build


@pytest.mark.parametrize("where", [(0.5, 0.5, 1.0), (0.25, 1.0, 1.0), (1.0, 0.25, 1.0), (4.0, 0.25, 0.25)])
def test_scales_of_queries_and_keys_are_scales_of_the_scores(where: tuple[float, float, float]) -> None:
    g = spelled(scores(*where))
    factors = [s.value for v in g.cone(g.outputs) if isinstance(s := g.steps[v], steps.Fill)]
    product = Fraction(1)
    for f in factors:
        assert isinstance(f, Fraction)
        product *= f
    behind = [v for v in g.cone(g.outputs) if isinstance(g.steps[v], steps.Contract)]
    assert product == Fraction(1, 4)
    assert not any(isinstance(g.steps[v], steps.Fill) for v in g.cone(behind))


def test_scales_of_what_a_weight_multiplies_stay() -> None:
    def build(g: Graph) -> int:
        x, w = g.input("x", (4, 6), F32), g.input("w", (6, 2), F32, constant=True)
        return compose.linear(g, compose.scale(g, x, 0.5), w)

    g = spelled(build)
    assert isinstance(g.steps[g.outputs[0]], steps.Contract)


def test_scales_of_what_a_packed_weight_multiplies_stay() -> None:
    """So fragments that read a scaled embedding read one tensor, whatever its product's weight is made of."""

    def build(g: Graph) -> int:
        x, (q, s) = g.input("x", (4, 6), F32), (g.input(n, (6, 2), F32, constant=True) for n in "qs")
        w = g.map("mul", g.map("centred", g.cast(q, F32), g.fill(8, F32)), s)
        return compose.linear(g, compose.scale(g, x, 0.5), g.reshape(g.reshape(w, (2, 3, 2)), (6, 2)))

    g = spelled(build)
    assert isinstance(g.steps[g.outputs[0]], steps.Contract)


def test_a_scaled_operand_that_something_else_adds_to_stays_scaled() -> None:
    def build(g: Graph) -> int:
        q, k = (g.input(name, (3, 4, 6), F32) for name in "qk")
        q = g.map("add", compose.scale(g, q, 0.5), k)
        return g.contract(q, k, [0, 1, 2], [0, 3, 2], [0, 1, 3])

    assert isinstance((g := spelled(build)).steps[g.outputs[0]], steps.Contract)
