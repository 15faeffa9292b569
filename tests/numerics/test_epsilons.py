"""Numbers that show small constants: which ones, and where there are none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirage_cli.lax.dtypes import F32, DType
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.numerics.epsilons import inputs_showing_constants
from tests.codegen.programs import program


@pytest.mark.parametrize("epsilon", [1e-3, 1e-5, 1e-8])
def test_rows_of_a_norm_are_about_the_root_of_epsilon(epsilon: float) -> None:
    p = program(lambda g, t: [compose.rms_norm(g, g.input("x", (symbol("rows"), 61), t), [1], epsilon)], F32)
    ((a, b),) = (found[0] for found in inputs_showing_constants(p, {}, {"rows": 5}))
    assert epsilon / 16 < (a * a + b * b) / 2 < epsilon


def test_numbers_of_a_layer_norm_differ() -> None:
    p = program(lambda g, t: [compose.layer_norm(g, g.input("x", (5, 61), t), [1], 1e-5)], F32)
    ((a, b),) = (found[0] for found in inputs_showing_constants(p, {}, {}))
    assert 1e-6 < (a - b) ** 2 / 4 < 1e-4


def test_weights_stay_and_signs_are_found() -> None:
    """Sigmoids are as small as an epsilon where all their arguments are negative."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        w = g.input("w", (40,), t, constant=True)
        s = g.map("sigmoid", g.map("mul", g.input("x", (9, 40), t), w))
        return [compose.rms_norm(g, s, [1], 1e-5)]

    p = program(build, F32)
    (weight,) = p.constants
    (found,) = inputs_showing_constants(p, {weight: 0.5}, {})
    assert set(found) == {1 - weight}
    assert max(found[1 - weight]) < -4


def test_large_constants_and_such_as_do_not_show_call_for_nothing() -> None:
    one = program(lambda g, t: [g.map("add", g.input("x", (5, 9), t), g.fill(1, t))], F32)
    assert inputs_showing_constants(one, {}, {}) == []
    tiny = program(lambda g, t: [g.map("add", g.map("exp", g.input("x", (5, 9), t)), g.fill(1e-12, t))], F32)
    assert inputs_showing_constants(tiny, {}, {}) == []
    assert inputs_showing_constants(one, {0: 1.0}, {}) == []
