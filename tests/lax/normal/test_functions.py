"""GELUs are recognised by their structure: in every spelling, and nothing else is taken for one."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from mirage_cli.lax.dtypes import F16, F32, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.normal.canonical import canonical, stabilise
from mirage_cli.lax.normal.functions import described, expanded, recognise, recognised
from mirage_cli.lax.normal.normalise import normalise
from tests.lax.programs import recorded

Function = Callable[[Graph, int], int]
ROOT2, ROOT2PI = float(np.float32(math.sqrt(2))), float(np.float32(math.sqrt(2 / math.pi)))


def program(spell: Function, dtype: DType = F32) -> Program:
    g = Graph()
    return recorded(g, [spell(g, g.input("x", (5, 8), dtype))])


def one_more(g: Graph, x: int, name: str, scale: float) -> int:
    return compose.shift(g, g.map(name, compose.scale(g, x, scale)), 1)


def cubic(g: Graph, x: int, factor: float = 0.044715) -> int:
    return g.map("add", x, compose.scale(g, compose.power(g, x, 3), factor))


def factored(g: Graph, x: int) -> int:
    inner = compose.shift(g, compose.scale(g, compose.square(g, x), float(np.float32(0.044715))), 1)
    return g.map("mul", compose.scale(g, x, ROOT2PI), inner)


def by_tanh(g: Graph, x: int, inner: Function = lambda g, x: compose.scale(g, cubic(g, x), ROOT2PI)) -> int:
    return compose.scale(g, g.map("mul", x, compose.shift(g, g.map("tanh", inner(g, x)), 1)), 0.5)


def by_erf(g: Graph, x: int, root: float = ROOT2) -> int:
    ratio = g.map("div", x, g.fill(root, F32))
    return g.map("mul", compose.scale(g, x, 0.5), compose.shift(g, g.map("erf", ratio), 1))


SPELLINGS: dict[str, tuple[Function, str]] = {
    "erf of a quotient": (by_erf, "gelu"),
    "erf of a product": (
        lambda g, x: compose.scale(g, g.map("mul", x, one_more(g, x, "erf", 0.70710677)), 0.5),
        "gelu",
    ),
    "half of the sum": (lambda g, x: g.map("mul", x, compose.scale(g, one_more(g, x, "erf", 0.70710677), 0.5)), "gelu"),
    "written out": (
        lambda g, x: compose.scale(
            g, g.map("add", x, g.map("mul", x, g.map("erf", compose.scale(g, x, 0.70710677)))), 0.5
        ),
        "gelu",
    ),
    "tanh": (by_tanh, "gelu_tanh"),
    "tanh, factored": (lambda g, x: by_tanh(g, x, factored), "gelu_tanh"),
    "of a sum": (lambda g, x: by_erf(g, g.map("add", x, g.input("b", (8,), F32))), "gelu"),
    "of a quotient": (lambda g, x: by_erf(g, g.map("div", x, g.input("d", (5, 1), F32))), "gelu"),
    "tanh of a sum": (lambda g, x: by_tanh(g, g.map("add", x, g.input("b", (8,), F32))), "gelu_tanh"),
    "silu": (lambda g, x: g.map("div", x, compose.shift(g, g.map("exp", g.map("neg", x)), 1)), "silu"),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_are_named(name: str) -> None:
    spell, function = SPELLINGS[name]
    ops = [n.op for n in canonical(program(spell)).nodes]
    assert function in ops and not {"erf", "tanh", "exp"} & set(ops)


def clipped(g: Graph, x: int, bound: float) -> int:
    return g.map("min", g.map("max", x, g.fill(-bound, F32)), g.fill(bound, F32))


#: functions that agree with one of the registry on a long stretch, at rounding or nearly everywhere
ADVERSARIES: dict[str, Function] = {
    "outside clipped": lambda g, x: g.map(
        "mul", compose.scale(g, clipped(g, x, 50), 0.5), one_more(g, x, "erf", 0.70710677)
    ),
    "inside clipped": lambda g, x: g.map(
        "mul", compose.scale(g, x, 0.5), one_more(g, clipped(g, x, 50), "erf", 0.70710677)
    ),
    "another root": lambda g, x: by_erf(g, x, ROOT2 * (1 + 1e-5)),
    "another cubic": lambda g, x: by_tanh(g, x, lambda g, y: compose.scale(g, cubic(g, y, 0.0447155), ROOT2PI)),
    "a bit more": lambda g, x: g.map(
        "mul", x, compose.shift(g, compose.scale(g, one_more(g, x, "erf", 0.70710677), 0.5), 2e-8)
    ),
    "a choice": lambda g, x: g.map("where", g.map("lt", x, g.fill(0.96, F32)), by_erf(g, x), g.map("relu", x)),
    "tanh of twice": lambda g, x: compose.scale(g, g.map("mul", x, compose.shift(g, g.map("tanh", x), 1)), 0.5),
}


@pytest.mark.parametrize("name", ADVERSARIES)
def test_what_is_another_function_keeps_what_makes_it_one(name: str) -> None:
    p = canonical(program(ADVERSARIES[name]))
    ops = {n.op for n in p.nodes}
    assert name == "a choice" or not ops & {"gelu", "gelu_tanh", "silu"}
    assert "clipped" not in name or {"max", "min"} <= ops
    assert name != "a choice" or {"where", "lt", "relu"} <= ops


def test_nothing_to_recognise_is_the_same_program() -> None:
    p = normalise(program(ADVERSARIES["tanh of twice"]))
    assert recognised(p) is p


def test_a_clip_in_front_of_a_gelu_stays_in_front_of_it() -> None:
    p = canonical(program(lambda g, x: by_erf(g, clipped(g, x, 50))))
    assert sorted(n.op for n in p.nodes if n.op != "const") == ["gelu", "max", "min"]


def test_constants_that_stand_for_roots_are_told_and_may_be_off_as_their_type_rounds() -> None:
    found, stands = recognise(normalise(stabilise(program(by_erf))))
    assert described(stands) == ["0.707106793 in gelu stands for sqrt(1/2)"]
    written = expanded(found, stands)
    assert "erf" in {n.op for n in written.nodes} and "gelu" not in {n.op for n in written.nodes}
    half = float(np.float16(math.sqrt(2)))
    assert "gelu" in {n.op for n in canonical(program(lambda g, x: by_erf(g, x, half), F16)).nodes}
    assert "gelu" not in {n.op for n in canonical(program(lambda g, x: by_erf(g, x, half))).nodes}


def test_two_places_with_other_constants_are_not_both_recognised() -> None:
    p = canonical(
        program(lambda g, x: g.map("mul", by_erf(g, x), by_erf(g, x, float(np.nextafter(np.float32(ROOT2), 2)))))
    )
    ops = [n.op for n in p.nodes]
    assert ops.count("gelu") == 1 and ops.count("erf") == 1
