"""Symbols that no shape tells apart: a product of them that a program has as a whole is one symbol."""

from __future__ import annotations

import pytest

from mirage_cli.backends.spec import OperatorSpec, TensorSpec
from mirage_cli.frontends import sizes
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.extents import Extent, product, symbol
from mirage_cli.lax.fragments.symbols import named_as
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.normal.canonical import order
from tests.lax.programs import recorded

BATCH, SEQUENCE, PAST = symbol("batch"), symbol("sequence"), symbol("(past+1)")
ROWS = product([BATCH, SEQUENCE])


def normed(dims: tuple[Extent, ...], *others: tuple[Extent, ...]) -> Program:
    """A norm over the last dimension, and sums of other tensors as results of their own."""
    g = Graph()
    first = compose.rms_norm(g, g.input("x", dims, F32), [len(dims) - 1], 1e-5)
    rest = [compose.square(g, g.input(f"y{k}", d, F32)) for k, d in enumerate(others)]
    return recorded(g, [first, *rest])


def specified(p: Program) -> OperatorSpec:
    inputs, outputs = ([TensorSpec(t.name, t.dtype, t.dims) for t in ts] for ts in (p.sources, p.outputs))
    return OperatorSpec("abc", "op", tuple(inputs), tuple(outputs), p.symbols)


def test_a_product_that_is_never_apart_is_one_symbol() -> None:
    p = normed((ROWS, 8), (product([2, ROWS]), 4))
    assert p.symbols == ("(batch·sequence)",) and p.unknown_symbols == []
    assert specified(p).solve([[15, 8], [30, 4]]) == {"(batch·sequence)": 15}
    size = sizes.from_extent(symbol("(batch·sequence)"))
    assert sizes.substitute(size, {"batch": 3, "sequence": 5}) == 15


def test_products_of_sums_and_powers() -> None:
    p = normed((product([BATCH, PAST]), 8), (product([BATCH, BATCH, PAST, PAST]),))
    assert p.symbols == ("((past+1)·batch)",)
    assert sizes.names(sizes.from_extent(symbol(p.symbols[0]))) == ["batch", "past"]
    assert specified(p).solve([[6, 8], [36]]) == {"((past+1)·batch)": 6}


@pytest.mark.parametrize("other", [(BATCH, SEQUENCE), (BATCH, 3), (product([SEQUENCE, 7]),)])
def test_symbols_that_a_shape_tells_stay_apart(other: tuple[Extent, ...]) -> None:
    p = normed((ROWS, 8), other)
    assert set(p.symbols) == {"batch", "sequence"} and p.unknown_symbols == []
    specified(p).validate()


def test_symbols_that_nothing_tells_are_named() -> None:
    p = normed((ROWS, 8), (product([BATCH, PAST]),))
    assert p.unknown_symbols == ["(past+1)", "batch", "sequence"]


def test_the_names_of_another_programs_symbols() -> None:
    """What else a model holds numbers its unnamed dimensions; symbols that differ stay so."""
    a, b, c, d = (symbol(f"unk__{k}") for k in (2, 9, 1, 5))
    p, q = normed((product([a, b]), 8), (b, 4)), normed((product([c, d]), 8), (d, 4))
    assert p.key() != q.key() and named_as(p, q).symbols == q.symbols
    assert order(named_as(p, q)).key() == order(q).key() and named_as(q, q) is q
    same = normed((product([c, c]), 8), (c, 4))
    assert order(named_as(p, same)).key() != order(same).key()
    swapped = normed((a, 8), (b, 4))
    assert named_as(normed((b, 8), (product([a, b]), 4)), swapped).symbols == ("unk__2", "unk__9")
