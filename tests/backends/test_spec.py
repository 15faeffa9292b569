"""Recovering symbols from shapes, and what is refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_cli.backends.spec import OperatorSpec, Recovery, TensorSpec, operator_spec
from mirage_cli.errors import InvalidGraph, Refused, WrongTensor
from mirage_cli.lax import extents
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.extents import Extent, product, symbol

from .kernels import REVERSE

A, B = symbol("a"), symbol("b")


def spec(*inputs: tuple[Extent, ...], symbols: tuple[str, ...] = ("a", "b")) -> OperatorSpec:
    tensors = tuple(TensorSpec(f"x{i}", F32, dims) for i, dims in enumerate(inputs))
    return OperatorSpec("f0", "op", tensors, (TensorSpec("y", F32, (A,)),), symbols)


def test_a_plain_dimension_is_preferred() -> None:
    steps = spec((product([A, B]), 2), (product([2, A]), B), (B, A)).recoveries()
    assert steps == (Recovery("b", 1, 1), Recovery("a", 2, 1))


def test_known_symbols_are_divided_out() -> None:
    op = spec((product([2, A, B]),), (product([3, A]),))
    assert op.recoveries() == (Recovery("a", 1, 0), Recovery("b", 0, 0))
    assert op.solve([(40,), (12,)]) == {"a": 4, "b": 5}
    assert REVERSE.solve([(12, 3), (2, 5)]) == {"batch": 2, "seq + past": 3}


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ([(41,), (12,)], r"input 0 'x0' has shape \[41\], expected \[2\*a\*b\] with a = 4"),
        ([(40,), (13,)], r"input 1 'x1' has shape \[13\], expected \[3\*a\]"),
        ([(40, 1), (12,)], r"input 0 'x0' has shape \[40, 1\], expected \[2\*a\*b\]"),
        ([(0,), (0,)], "input 0"),
        ([(40,)], "1 inputs, expected 2"),
    ],
)
def test_shapes_that_do_not_fit(shapes: list[tuple[int, ...]], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        spec((product([2, A, B]),), (product([3, A]),)).solve(shapes)


def test_a_symbol_that_no_input_tells_is_refused() -> None:
    with pytest.raises(Refused, match="the value of b cannot be computed"):
        spec((A, 4)).validate()
    with pytest.raises(Refused, match=r"the value of a cannot be computed from the inputs' shapes \(x0: f32\[a\*a\]\)"):
        spec((product([A, A]),), symbols=("a",)).validate()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (OperatorSpec("a-b", "op", (), (TensorSpec("y", F32, ()),)), "fragment identifier"),
        (OperatorSpec("ab", 'op"', (), (TensorSpec("y", F32, ()),)), "operator name"),
        (OperatorSpec("ab", "op", (), (TensorSpec("y", F32, (A,)),)), "symbols"),
        (OperatorSpec("ab", "op", (), ()), "without outputs"),
        (OperatorSpec("ab", "op", (), (TensorSpec("y", F32, (-1,)),)), "y: f32"),
    ],
)
def test_contradictions(broken: OperatorSpec, reason: str) -> None:
    with pytest.raises(InvalidGraph, match=reason):
        broken.validate()


def test_sizes_of_the_tables() -> None:
    with pytest.raises(Refused, match="17 dimensions; a library holds at most 16"):
        OperatorSpec("ab", "op", (), (TensorSpec("y", F32, (1,) * 17),)).validate()
    with pytest.raises(Refused, match="7 symbols in one dimension"):
        spec((A,), (product([A] * 7),), symbols=("a",)).validate()


@given(st.data())
def test_solving_inverts_evaluating(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True))
    values = {name: data.draw(st.integers(1, 9)) for name in names}
    order = data.draw(st.permutations(names))
    dims = [
        product(
            [
                data.draw(st.integers(1, 4)),
                symbol(name),
                *map(symbol, data.draw(st.sets(st.sampled_from(order[:i]))) if i else []),
            ]
        )
        for i, name in enumerate(order)
    ]
    op = spec(tuple(data.draw(st.permutations(dims))), symbols=tuple(names))
    shape = [extents.value(d, values) for d in op.inputs[0].dims]
    assert op.solve([shape]) == values


def test_positions_that_have_to_be_there() -> None:
    op = replace(spec((product([2, A]), 3), symbols=("a",)), least=((product([2, A]), 5),))
    op.validate()
    assert operator_spec(op.id, op.to_json()) == op
    assert op.solve([(6, 3)]) == {"a": 3}
    with pytest.raises(WrongTensor, match=r"2\*a is 4, and 5 positions are read"):
        op.solve([(4, 3)])
