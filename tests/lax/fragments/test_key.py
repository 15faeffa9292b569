"""Keys name mathematics: equal for what only spelling tells apart, different for everything else."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.fragments.key import key
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.normal.canonical import canonical
from tests.lax.programs import recorded

Build = Callable[[Graph], int]


def normal(build: Build) -> Program:
    g = Graph()
    return canonical(recorded(g, [build(g)]))


def linear(dims: tuple[int, ...] = (5, 8), turned: bool = False, constant: bool = True) -> Build:
    def build(g: Graph) -> int:
        x = g.input("x", dims, F32)
        w = g.input("w", (6, 8) if turned else (8, 6), F32, constant=constant)
        return compose.linear(g, x, w, turned)

    return build


def test_layouts_do_not_matter() -> None:
    wanted = key(normal(linear()))
    assert key(normal(linear(turned=True))) == wanted
    assert key(normal(linear((1, 5, 8)))) == wanted
    assert normal(linear(turned=True)).key() != normal(linear()).key()


def test_dimensions_that_come_together_are_one() -> None:
    def heads(g: Graph) -> int:
        x, w = g.input("x", (5, 8), F32), g.input("w", (8, 6), F32, constant=True)
        return g.transpose(g.reshape(compose.linear(g, x, w), (5, 2, 3)), [1, 0, 2])

    assert key(normal(heads)) == key(normal(linear()))


def test_which_dimensions_meet_matters() -> None:
    def square(turned: bool) -> Build:
        def build(g: Graph) -> int:
            x, w = g.input("x", (5, 8), F32), g.input("w", (8, 8), F32, constant=True)
            return compose.linear(g, compose.linear(g, x, w), w, turned)

        return build

    assert key(normal(square(True))) != key(normal(square(False)))
    assert key(normal(linear((5, 8)))) != key(normal(linear((6, 8))))


def scaled(number: float) -> Build:
    return lambda g: compose.scale(g, g.input("x", (5, 8), F32), number)


def test_constants_are_compared_up_to_their_rounding() -> None:
    exact, rounded = math.sqrt(1 / 32), float(np.float32(math.sqrt(1 / 32)))
    assert key(normal(scaled(exact))) == key(normal(scaled(rounded)))
    assert key(normal(scaled(exact))) != key(normal(scaled(exact * 1.001)))
    assert key(normal(scaled(1 / 30))) == key(normal(scaled(float(np.float32(1 / 30)))))


@pytest.mark.parametrize("op", ["add", "mul"])
def test_sums_and_products_are_compared_without_their_order(op: str) -> None:
    def build(first: int) -> Build:
        def chain(g: Graph) -> int:
            a, b, c = g.input("a", (5, 8), F32), g.input("b", (8,), F32), g.map("exp", g.input("c", (5, 8), F32))
            order = [a, b, c][first:] + [a, b, c][:first]
            return g.map(op, g.map(op, order[0], order[1]), order[2])

        return chain

    assert len({key(normal(build(k))) for k in range(3)}) == 1
