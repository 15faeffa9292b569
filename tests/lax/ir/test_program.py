"""Programs: files, access maps, checks, extents and element types."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax import dtypes
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Float64, contract_arrays
from mirage_cli.lax.dtypes import F16, F32
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.numbers import number_from_json, number_to_json
from mirage_cli.lax.ir.program import (
    Axis,
    Input,
    Node,
    Output,
    Program,
    Slot,
    Source,
    evaluate_program,
    program_from_json,
    read,
    write,
)
from mirage_cli.lax.normal.canonical import canonical
from tests.lax.programs import graphs, recorded

PROPERTY = settings(max_examples=60, derandomize=True, deadline=None, database=None)


def small() -> Program:
    """sum over h of x[a, h] * w[h, 1, b] scaled by 1/3, stored transposed."""
    n = ex.symbol("n")
    return Program(
        (Axis("a", n), Axis("b", 2), Axis("h", 4)),
        (Source("x", (n, 4), F32), Source("w", (4, 6), F16, True)),
        (
            Input("x0", 0, (Slot("a", n), Slot("h", 4))),
            Input("x1", 1, (Slot("h", 4), Slot(None, 3, 1), Slot("b", 2))),
        ),
        (
            Node("v0", "contract", ("x0", "x1"), ("h",), dtype=F16),
            Node("v1", "const", value=Fraction(1, 3)),
            Node("v2", "mul", ("v0", "v1")),
        ),
        (Output("v2", (Slot("b", 2), Slot("a", n)), (ex.product([2, n]),), F32, "y"),),
    ).validate()


def test_value() -> None:
    p = small()
    x, w = np.arange(20.0).reshape(5, 4), np.arange(24.0).reshape(4, 6)
    (y,) = evaluate_program(p, Float64(["a", "b", "h"]), {0: x, 1: w}, {"n": 5})
    np.testing.assert_allclose(y, ((x @ w[:, 2:4]) / 3).T.reshape(-1))


def test_text() -> None:
    assert str(small()).splitlines() == [
        "axes a=n b=2 h=4",
        "x0 = read f32 #0 [a, h]",
        "x1 = read f16 #1 [h, 1:3, b]",
        "v0 = contract(x0, x1; h) in f16",
        "v1 = const(1/3)",
        "v2 = mul(v0, v1)",
        "output v2 f32 [b, a]",
    ]


@PROPERTY
@given(graphs())
def test_json_round_trip(made: tuple[Graph, int]) -> None:
    g, out = made
    for p in (recorded(g, [out]), canonical(recorded(g, [out]))):
        data = json.loads(json.dumps(p.to_json()))
        assert program_from_json(data) == p
        assert program_from_json(data).key() == p.key()


def test_json_keeps_symbols_and_special_numbers() -> None:
    p = small()
    assert program_from_json(json.loads(json.dumps(p.to_json()))) == p
    for value in (Fraction(1, 3), Fraction(-7), float("inf"), float("-inf")):
        assert number_from_json(number_to_json(value)) == value
    assert np.isnan(float(number_from_json("nan")))


def test_the_key_ignores_names_of_tensors_only() -> None:
    p = small()
    renamed = replace(p, sources=tuple(replace(s, name=s.name + "!") for s in p.sources))
    assert renamed.key() == p.key()
    assert replace(p, outputs=(replace(p.outputs[0], name="z"),)).key() == p.key()
    other = (p.nodes[0], replace(p.nodes[1], value=Fraction(2, 3)), p.nodes[2])
    assert replace(p, nodes=other, _axes_of={}).key() != p.key()
    assert replace(p, sources=(p.sources[0], replace(p.sources[1], constant=False))).key() != p.key()


def test_weights_are_known_by_number() -> None:
    p = small()
    assert p.constants == {1}
    assert replace(p, sources=tuple(replace(s, constant=False) for s in p.sources)).constants == frozenset()


@st.composite
def accesses(draw: st.DrawFn) -> tuple[tuple[Axis, ...], tuple[Slot, ...]]:
    """Axes and an access map that walks some of them, in any order, in parts or whole."""
    axes = tuple(Axis(n, draw(st.integers(1, 4))) for n in "abc")
    slots = []
    for a in draw(st.permutations(axes)):
        kind = draw(st.sampled_from(("whole", "part", "fixed", "none")))
        assert isinstance(a.extent, int)
        if kind == "whole":
            slots.append(Slot(a.name, a.extent))
        elif kind == "part":
            before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
            slots.append(Slot(a.name, a.extent + before + after, before))
        elif kind == "fixed":
            slots.append(Slot(None, 3, draw(st.integers(0, 2))))
    return axes, tuple(slots)


@PROPERTY
@given(accesses())
def test_reads_are_indexing(made: tuple[tuple[Axis, ...], tuple[Slot, ...]]) -> None:
    axes, slots = made
    shape = [s.extent for s in slots if isinstance(s.extent, int)]
    stored = np.arange(int(np.prod(shape))).reshape(shape)
    p = Program(axes, (Source("x", tuple(shape), F32),), (Input("x", 0, slots),), (), ())
    value = read(p, slots, stored.reshape(-1), 0, {})
    size = {a.name: int(str(a.extent)) for a in axes}
    walked = [s.axis for s in slots]
    assert value.shape == tuple(size[a.name] if a.name in walked else 1 for a in axes)
    for at in np.ndindex(*value.shape):
        where = dict(zip((a.name for a in axes), at, strict=True))
        assert value[at] == stored[tuple(s.offset + (where[s.axis] if s.axis else 0) for s in slots)]
    whole = tuple(Slot(s.axis, size[s.axis]) for s in slots if s.axis)
    output = Output("x", whole, tuple(s.extent for s in whole), F32)
    again = read(p, whole, write(p, output, value, 0, {}), 0, {})
    np.testing.assert_array_equal(again, value)


def test_a_value_that_lacks_an_output_axis_is_repeated() -> None:
    axes = (Axis("a", 2), Axis("b", 3))
    p = Program(axes, (Source("x", (2,), F32),), (Input("x0", 0, (Slot("a", 2),)),), (), ())
    value = read(p, p.inputs[0].access, np.array([5.0, 6.0]), 0, {})
    stored = write(p, Output("x0", (Slot("b", 3), Slot("a", 2)), (3, 2), F32), value, 0, {})
    np.testing.assert_array_equal(stored, [[5.0, 6.0]] * 3)


BROKEN: dict[str, tuple[Callable[[Program], Program], str]] = {
    "two axes of one name": (lambda p: replace(p, axes=(*p.axes, p.axes[0])), "two axes of the program have one name"),
    "slots that do not cover": (
        lambda p: replace(p, sources=(replace(p.sources[0], dims=(9,)), p.sources[1])),
        "x0: slots .* do not cover",
    ),
    "unknown axis of a read": (lambda p: replace(p, axes=p.axes[1:], _axes_of={}), "x0: unknown axis 'a'"),
    "operand from nowhere": (
        lambda p: replace(p, nodes=(replace(p.nodes[0], inputs=("x0", "v9")), *p.nodes[1:])),
        "v0 = contract: operand 'v9' is not defined before it",
    ),
    "operand from later": (
        lambda p: replace(p, nodes=(p.nodes[2], *p.nodes[:2])),
        "v2 = mul: operand 'v0' is not defined before it",
    ),
    "number of operands": (
        lambda p: replace(p, nodes=(*p.nodes[:2], replace(p.nodes[2], inputs=("v0",)))),
        "v2 = mul: takes 2 operands, got 1",
    ),
    "number of operands of a reduction": (
        lambda p: replace(p, nodes=(replace(p.nodes[0], op="sum"), *p.nodes[1:])),
        "v0 = sum: takes 1 operands, got 2",
    ),
    "unknown operator": (
        lambda p: replace(p, nodes=(*p.nodes[:2], replace(p.nodes[2], op="nope"))),
        "unknown operator 'nope'",
    ),
    "reduced axis that is missing": (
        lambda p: replace(p, nodes=(replace(p.nodes[0], over=("h", "z")), *p.nodes[1:])),
        "v0 = contract: reduces axes",
    ),
    "positions of an unknown axis": (
        lambda p: replace(p, nodes=(*p.nodes, Node("v3", "iota", axis="z"))),
        "v3 = iota: unknown axis 'z'",
    ),
    "output from nowhere": (
        lambda p: replace(p, outputs=(replace(p.outputs[0], value="v7"),)),
        "output reads 'v7', which nothing defines",
    ),
    "output without an axis": (
        lambda p: replace(p, outputs=(replace(p.outputs[0], access=(Slot("b", 2),), dims=(2,)),)),
        "output v2 does not store its axes",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_programs_are_rejected(name: str) -> None:
    change, message = BROKEN[name]
    with pytest.raises(InvalidGraph, match=message):
        change(small()).validate()


def test_extents() -> None:
    n, m = ex.symbol("n"), ex.symbol("m")
    nm2 = ex.product([2, n, m])
    assert str(nm2) == "2*m*n"
    assert ex.value(nm2, {"n": 3, "m": 5}) == 30
    assert ex.names(nm2) == ("m", "n")
    assert ex.product([]) == 1
    assert ex.product([n, 0]) == 0
    for e in (nm2, 7, n):
        assert ex.from_json(ex.to_json(e)) == e
    assert ex.quotient(nm2, n) == ex.product([2, m])
    assert ex.quotient(nm2, 2) == ex.product([n, m])
    assert ex.quotient(nm2, nm2) == 1
    assert ex.quotient(nm2, 3) is None
    assert ex.quotient(n, m) is None
    assert ex.quotient(6, 0) is None
    assert ex.difference(ex.symbol("(past+1)"), ex.symbol("past")) == 1
    assert ex.difference(ex.symbol("(past-2)"), ex.symbol("past")) == -2
    assert ex.difference(ex.symbol("(past+1)"), n) is None
    assert ex.difference(n, n) is None


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_element_types(dtype: dtypes.DType) -> None:
    assert dtypes.BY_NAME[dtype.name] is dtype
    if dtype is dtypes.BF16 or dtype.per_byte > 1 or (dtype.is_float and dtype.bytes == 1):
        return  # numpy has them from ml_dtypes
    kinds: Any = {"f": "float", "i": "int", "u": "int", "b": "bool"}
    found = [np.dtype(t) for t in "efdbhilqBHILQ?" if dtypes.from_numpy(np.dtype(t)) is dtype]
    assert found
    assert all(t.itemsize == dtype.bytes and kinds[t.kind] == dtype.kind for t in found)
    assert dtype.epsilon == (np.finfo(found[0]).eps if dtype.is_float else 0)


def test_element_types_that_there_are_not() -> None:
    assert dtypes.from_numpy(np.dtype(np.complex64)) is None


@PROPERTY
@given(st.data())
def test_contractions_are_einsums(data: st.DataObject) -> None:
    size = [data.draw(st.integers(1, 3)) for _ in range(4)]
    shapes = [[n if data.draw(st.booleans()) else 1 for n in size] for _ in range(2)]
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=s) for s in shapes)
    over = tuple(d - 4 for d in range(4) if data.draw(st.booleans()))
    wanted = (x * y).sum(axis=over, keepdims=True)
    np.testing.assert_allclose(contract_arrays(x, y, over, np.matmul), wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(Float64().contract(x, y, over), wanted, rtol=1e-12, atol=1e-12)


def test_contractions_multiply_before_they_sum() -> None:
    """inf * 1 + inf * -2 is NaN, and inf * (1 - 2) would not be."""
    x, y = np.array([[np.inf], [3.0]]), np.array([[1.0, -2.0]])
    for a, b in ((x, y), (y, x), (x, y[0]), (y[0], x)):
        with np.errstate(invalid="ignore"):
            found = Float64().contract(a, b, (-1,))
        np.testing.assert_array_equal(found, [[np.nan], [-3.0]])
