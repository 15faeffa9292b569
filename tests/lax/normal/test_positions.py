"""Products that others hold position by position."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_cli.lax.dtypes import F16, F32
from mirage_cli.lax.ir.program import Axis, Input, Node, Output, Program, Slot, Source
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.lax.normal.positions import assembled
from tests.lax.programs import in_floats, positive


def _turned(second: int = 1, dtype: object = F32) -> Program:
    """x[f] w[f, c, d], and the same at position 0 and at another one of c, which are added to it."""
    slots = (Slot("f", 5), Slot("c", 2), Slot("d", 3))
    reads = [slots, *((slots[0], Slot(None, 2, at), slots[2]) for at in (0, second))]
    inputs = (Input("x", 0, (Slot("f", 5),)), *(Input(f"w{n}", 1, a) for n, a in enumerate(reads)))
    products = [Node(f"p{n}", "contract", ("x", f"w{n}"), ("f",), dtype=F32) for n in range(3)]
    products[2] = Node("p2", "contract", ("w2", "x"), ("f",), dtype=dtype)  # type: ignore[arg-type]
    sums = (Node("s0", "add", ("p0", "p1")), Node("s1", "mul", ("s0", "p2")))
    return Program(
        (Axis("c", 2), Axis("d", 3), Axis("f", 5)),
        (Source("x", (5,), F32), Source("w", (5, 2, 3), F32)),
        inputs,
        (*products, *sums),
        (Output("s1", (Slot("c", 2), Slot("d", 3)), (2, 3), F32),),
    ).validate()


def _products(p: Program) -> int:
    return sum(n.op == "contract" for n in p.nodes)


def test_the_whole_is_a_choice_of_its_positions() -> None:
    p = _turned()
    made = assembled(p).validate()
    assert (_products(p), _products(made), _products(canonical(p))) == (3, 2, 2)
    arrays = positive(p, {})
    for own in (made, canonical(p)):
        (wanted,), (got,) = (in_floats(q, arrays) for q in (p, own))
        np.testing.assert_allclose(got, wanted)


@pytest.mark.parametrize("other", [_turned(second=0), _turned(dtype=F16)])
def test_each_position_has_to_be_there_and_of_the_same_product(other: Program) -> None:
    assert assembled(other) is other
