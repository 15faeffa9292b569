"""Views become indices on named axes: a program has the value of the graph that it was made from, or is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_cli.errors import Refused
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.dtypes import F32, I64
from mirage_cli.lax.extents import Extent, product, symbol, value
from mirage_cli.lax.ir.evaluate import evaluate_graph
from mirage_cli.lax.ir.graph import Graph, Input, Tensor
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.normal.identify import share_axes
from tests.lax.programs import in_floats, recorded, symbols_of

SHAPES = ((2, 6), (4, 3), (2, 2, 3), (12,), (2, 3, 4))


def check(g: Graph, out: int) -> Program:
    """The program of a value, whose float64 value is compared with the graph's."""
    program = recorded(g, [out])
    symbols = symbols_of(program)
    rng = np.random.default_rng(0)
    graph = Graph(g.steps, g.inputs, g.tensors, [out])
    arrays: dict[str, Any] = {}
    named: dict[str, Any] = {}
    for v in graph.cone([out]):
        step = g.steps[v]
        if isinstance(step, Input):
            dims = [value(e, symbols) for e in g.dims(v)]
            arrays[step.name] = named[f"t{v}"] = rng.uniform(0.5, 1.5, dims)
    (expected,) = evaluate_graph(graph, Float64(), arrays, symbols)
    found = in_floats(program, named, symbols)[0]
    assert np.allclose(found.reshape(expected.shape), expected)
    assert np.array_equal(in_floats(share_axes(program), named, symbols)[0], found)
    return program


def divisions(draw: st.DrawFn, total: int) -> list[int]:
    """Dimensions of that many elements."""
    dims = []
    while total > 1:
        part = draw(st.sampled_from([d for d in range(2, total + 1) if total % d == 0]))
        dims.append(part)
        total //= part
    return dims or [1]


def turned(g: Graph, v: int, dim: int, size: int, at: int, count: int) -> int:
    """A value of which `count` positions from `at` on are others."""
    parts = [g.slice(v, dim, a, n) for a, n in ((0, at), (at, count), (at + count, size - at - count)) if n]
    parts[at > 0] = g.map("neg", parts[at > 0])
    return g.concat(parts, dim)


@st.composite
def views(draw: st.DrawFn) -> tuple[Graph, int]:
    """An input or two under chains of views, joined by elementwise operators, sums and products."""
    g = Graph()
    known = [g.input(f"x{k}", draw(st.sampled_from(SHAPES)), F32) for k in range(2)]
    for _ in range(draw(st.integers(1, 6))):
        v = draw(st.sampled_from(known))
        dims = [value(e, {}) for e in g.dims(v)]
        kind = draw(
            st.sampled_from(("reshape", "transpose", "slice", "concat", "turn", "expand", "sum", "square", "product"))
        )
        if kind == "reshape":
            known.append(g.reshape(v, divisions(draw, math.prod(dims))))
        elif kind == "transpose":
            known.append(g.transpose(v, draw(st.permutations(range(len(dims))))))
        elif kind == "slice":
            dim = draw(st.integers(0, len(dims) - 1))
            start = draw(st.integers(0, dims[dim] - 1))
            step = draw(st.sampled_from((1, 1, 2)))
            count = draw(st.integers(1, (dims[dim] - start + step - 1) // step))
            known.append(g.slice(v, dim, start, count, step))
        elif kind == "concat":
            known.append(g.concat([v, g.map("neg", v)], draw(st.integers(0, len(dims) - 1))))
        elif kind == "turn":
            dim = draw(st.integers(0, len(dims) - 1))
            unit = draw(st.sampled_from([d for d in range(1, dims[dim] + 1) if dims[dim] % d == 0]))
            known.append(turned(g, v, dim, dims[dim], draw(st.integers(0, dims[dim] // unit - 1)) * unit, unit))
        elif kind == "expand":
            known.append(g.expand(g.reshape(v, (1, *dims)), (2, *dims)))
        elif kind == "sum":
            known.append(g.reduce("sum", v, [draw(st.integers(0, len(dims) - 1))]))
        elif kind == "square":
            known.append(g.map("mul", v, v))
        elif len(dims) == 2:
            known.append(g.contract(v, v, [0, 1], [2, 1], [0, 2]))
    return g, known[-1]


@settings(max_examples=250, deadline=None, derandomize=True, database=None)
@given(views())
def test_any_views(made: tuple[Graph, int]) -> None:
    g, out = made
    try:
        check(g, out)
    except Refused as refusal:
        assert str(refusal)


Build = Callable[[Graph, int, Extent], int]
EXPRESSIBLE: dict[str, Build] = {
    "heads split, moved and joined": lambda g, x, n: g.reshape(
        g.transpose(g.reshape(x, (n, 2, 4)), (1, 0, 2)), (2, product([n, 4]))
    ),
    "heads repeated": lambda g, x, n: g.reshape(g.expand(g.reshape(x, (n, 2, 1, 4)), (n, 2, 3, 4)), (n, 24)),
    "halves exchanged": lambda g, x, n: g.concat([g.map("neg", g.slice(x, 1, 4, 4)), g.slice(x, 1, 0, 4)], 1),
    "a part turned": lambda g, x, n: turned(g, x, 1, 8, 0, 2),
    "the last part turned": lambda g, x, n: turned(g, x, 1, 8, 6, 2),
    "a part between others turned": lambda g, x, n: turned(g, x, 1, 8, 4, 2),
    "every second element": lambda g, x, n: g.slice(x, 1, 1, 4, 2),
    "rows against rows": lambda g, x, n: g.contract(x, x, [0, 1], [2, 1], [0, 2]),
    "rows against rows by heads": lambda g, x, n: g.contract(
        g.reshape(x, (n, 2, 4)), g.reshape(x, (n, 2, 4)), [0, 1, 2], [3, 1, 2], [1, 0, 3]
    ),
    "a part of a fused projection": lambda g, x, n: g.map("mul", g.slice(x, 1, 0, 4), g.slice(x, 1, 4, 4)),
    "positions": lambda g, x, n: g.map("add", x, g.iota(n, 0, 2, F32)),
}


@pytest.mark.parametrize("rows", [5, symbol("s")], ids=["number", "symbol"])
@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_views_of_exporters_are_expressible(name: str, rows: Extent) -> None:
    g = Graph()
    check(g, EXPRESSIBLE[name](g, g.input("x", (rows, 8), F32), rows))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda g, x, n: g.reshape(g.transpose(x, (1, 0)), (5, 8)), "no common refinement|straddle|cut"),
        (lambda g, x, n: g.map("mul", g.reshape(x, (4, 10)), g.reshape(x, (4, 10))), "no common refinement|cut"),
        (lambda g, x, n: g.concat([x, g.slice(x, 1, 0, 3)], 1), "across its joint"),
        (lambda g, x, n: g.concat([g.map("neg", g.slice(x, 1, 0, 2)), g.slice(x, 1, 1, 6)], 1), "across its joint"),
        (lambda g, x, n: g.map("neg", g.opaque("TopK", [x], Tensor((5, 8), F32))), "operator TopK is not read"),
    ],
)
def test_refusals_have_reasons(build: Build, reason: str) -> None:
    g = Graph()
    x = g.map("exp", g.input("x", (5, 8), F32))
    with pytest.raises(Refused, match=reason):
        recorded(g, [build(g, x, 5)])


def test_long_chains() -> None:
    g = Graph()
    x = v = g.input("x", (3,), F32)
    for k in range(5000):
        v = g.map("add", v, x) if k % 2 else g.map("sub", v, x)
    assert len(check(g, v).nodes) == 5000


def test_integers_and_constants() -> None:
    g = Graph()
    n = g.input("n", (3,), I64)
    check(g, g.map("add", g.cast(n, F32), g.fill(0.5, F32)))
