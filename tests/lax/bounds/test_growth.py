"""How fast values grow with the inputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirage_cli.lax.bounds.growth import growth
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.fragments.instantiate import instantiate
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph, Input


def _x(g: Graph) -> int:
    return g.input("x", (3, 8), F32)


def _softsign(g: Graph, x: int) -> int:
    return g.map("div", x, g.map("add", g.map("abs", x), g.fill(1, F32)))


BUILT: dict[str, tuple[Callable[[Graph], int], float]] = {
    "the input": (lambda g: g.map("neg", _x(g)), 1),
    "a cube": (lambda g: g.map("pow", _x(g), g.fill(3, F32)), 3),
    "a norm: its squares": (lambda g: compose.rms_norm(g, _x(g), [1], 1e-5), 2),
    "a norm of a norm": (lambda g: compose.rms_norm(g, compose.rms_norm(g, _x(g), [1], 1e-5), [1], 1e-5), 2),
    "quotients multiplied": (lambda g: g.map("mul", _softsign(g, x := _x(g)), _softsign(g, x)), 1),
    "a product with weights": (lambda g: compose.linear(g, _x(g), g.input("w", (8, 4), F32, constant=True)), 1),
    "a product of inputs": (lambda g: compose.linear(g, _x(g), g.input("w", (8, 4), F32)), 2),
    "an exponential": (lambda g: g.map("mul", g.map("exp", x := _x(g)), x), 1),
}


@pytest.mark.parametrize("name", BUILT)
def test_powers(name: str) -> None:
    build, wanted = BUILT[name]
    g = Graph()
    out = build(g)
    inputs = [v for v, step in enumerate(g.steps) if isinstance(step, Input)]
    assert growth(instantiate(g, [out], inputs, {v: f"t{v}" for v in [*inputs, out]})) == wanted
