"""The proof's first half: programs in normal form are what their nodes state, and changed ones are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.fragments.instantiate import untidied
from mirage_cli.lax.fragments.spelling import one_spelling
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.evaluate import evaluate_graph
from mirage_cli.lax.ir.graph import Graph, Input
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.lax.ops import OPS
from mirage_cli.search.proof.shrink import numbered, shrunk
from mirage_cli.search.proof.statement import prove_statement
from tests.lax.programs import graphs

Pair = tuple[Program, Program]


def pair(g: Graph, out: int) -> Pair:
    """The program as the steps state it, and the one that is searched and proved."""
    spelled, new = one_spelling(g)
    return _untidied(g, out), canonical(_untidied(spelled, new[out]))


def _untidied(g: Graph, out: int) -> Program:
    inputs = {v: step.name for v, step in enumerate(g.steps) if isinstance(step, Input)}
    return untidied(g, [out], inputs, inputs | {out: "out"})


@settings(max_examples=60)
@given(graphs())
def test_normal_forms_are_what_their_steps_state(drawn: tuple[Graph, int]) -> None:
    stated, program = pair(*drawn)
    found = prove_statement(stated, program, "a")
    assert found.passed or "division by zero" in found.reason, found.reason
    assert found.log2_bound <= -40 or not found.passed


def test_each_of_many_sums_has_an_axis_of_its_own() -> None:
    """As steps state them; arrays have no more than 32 dimensions."""
    g, products = Graph(), 36
    x = total = g.input("x", (2, 3), F32)
    for k in range(products):
        total = g.map("add", total, compose.matmul(g, x, g.input(f"w{k}", (3, 3), F32)))
    stated, program = pair(g, total)
    assert len(stated.axes) > products
    assert prove_statement(stated, program, "a").passed
    fewer = replace(stated, outputs=(replace(stated.outputs[0], value=stated.nodes[-2].name),), _axes_of={})
    assert not prove_statement(fewer, program, "a").passed


def changes(p: Program) -> Iterator[Program]:
    """Programs with one node changed."""
    for k, n in enumerate(p.nodes):
        others = []
        if n.op == "const" and isinstance(n.value, Fraction):
            others.append(replace(n, value=n.value + Fraction(1, 1 << 30)))
        if n.op in ("add", "mul", "div", "max"):
            others += [replace(n, op=o) for o in ("add", "mul", "sub", "min") if o != n.op]
        if n.op in OPS and OPS[n.op].arity == 1:
            others += [replace(n, op=o) for o in ("gelu", "gelu_tanh", "silu", "relu", "tanh") if o != n.op]
        if len(n.inputs) == 2 and n.op in OPS and not OPS[n.op].commutative:
            others.append(replace(n, inputs=n.inputs[::-1]))
        for other in others:
            yield replace(p, nodes=(*p.nodes[:k], other, *p.nodes[k + 1 :]), _axes_of={})


@settings(max_examples=25)
@given(graphs())
def test_what_differs_is_refuted(drawn: tuple[Graph, int]) -> None:
    stated, program = pair(*drawn)
    random = np.random.default_rng(1)
    arrays = {s.name: random.uniform(0.5, 1.5, [int(str(e)) for e in s.dims]) for s in stated.sources}
    wanted = value(program, arrays)
    for other in changes(program):
        found = value(other, arrays)
        if np.isfinite(found).all() and np.abs(found - wanted).max() > 1e-6 * np.abs(wanted).max():
            assert not prove_statement(stated, other, "a").passed


def value(p: Program, arrays: dict[str, np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        own = {k: arrays[s.name] for k, s in enumerate(p.sources)}
        return evaluate_program(p, Float64([a.name for a in p.axes]), own)[0]


# --- functions that are another on one stretch ------------------------------------------------------------------------
Function = Callable[[Graph, int], int]


def _one_more(g: Graph, x: int, name: str) -> int:
    return compose.shift(g, g.map(name, compose.scale(g, x, 0.70710677)), 1)


def _cubic(g: Graph, x: int) -> int:
    inner = g.map("add", x, compose.scale(g, compose.power(g, x, 3), 0.044715))
    return compose.shift(g, g.map("tanh", compose.scale(g, inner, 0.7978846)), 1)


ACTIVATIONS: dict[str, Function] = {
    "erf": lambda g, x: g.map("mul", compose.scale(g, x, 0.5), _one_more(g, x, "erf")),
    "tanh": lambda g, x: compose.scale(g, g.map("mul", x, _cubic(g, x)), 0.5),
    "silu": lambda g, x: g.map("mul", x, g.map("sigmoid", x)),
    "by exp": lambda g, x: g.map("div", x, compose.shift(g, g.map("exp", g.map("neg", x)), 1)),
    "sigmoid": lambda g, x: g.map("sigmoid", x),
    "relu": lambda g, x: g.map("relu", x),
    "gelu": lambda g, x: g.map("gelu", x),
    "norm": lambda g, x: compose.rms_norm(g, x, [-1], 1e-5),
    "softmax": lambda g, x: compose.softmax(g, x, [-1]),
    "mask": lambda g, x: compose.softmax(g, compose.causal(g, x), [-1]),
}


def _between(g: Graph, x: int, low: float, high: float) -> int:
    return g.map("and", g.map("lt", g.fill(low, F32), x), g.map("lt", x, g.fill(high, F32)))


def _clipped(g: Graph, x: int, low: float, high: float) -> int:
    return g.map("min", g.map("max", x, g.fill(low, F32)), g.fill(high, F32))


#: what makes another function of one, on a stretch from `low` to `high`
TWISTS: dict[str, Callable[[Graph, int, Function, float, float], int]] = {
    "clipped": lambda g, x, f, low, high: f(g, _clipped(g, x, low, high)),
    "results clipped": lambda g, x, f, low, high: _clipped(g, f(g, x), low, high),
    "at most": lambda g, x, f, low, high: f(g, g.map("min", x, g.fill(high, F32))),
    "fifty times": lambda g, x, f, low, high: g.map(
        "where", _between(g, x, low, high), compose.scale(g, f(g, x), 50), f(g, x)
    ),
    "another": lambda g, x, f, low, high: g.map("where", _between(g, x, low, high), g.map("tanh", x), f(g, x)),
    "a bit more": lambda g, x, f, low, high: g.map("add", f(g, x), compose.scale(g, x, 2e-8 * abs(high))),
    "whole": lambda g, x, f, low, high: g.map("where", _between(g, x, low, high), f(g, g.map("trunc", x)), f(g, x)),
    "inner half": lambda g, x, f, low, high: g.map("mul", _clipped(g, x, low, high), g.map("sigmoid", f(g, x))),
}


@pytest.mark.parametrize("seed", range(4))
def test_functions_that_differ_on_a_stretch_are_told_apart_at_every_scale(seed: int, count: int = 250) -> None:
    """Each normal form is what its steps state, gives the same numbers on the stretch, and is not taken for the function
    without its twist."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        activation = ACTIVATIONS[str(random.choice(list(ACTIVATIONS)))]
        twist = TWISTS[str(random.choice(list(TWISTS)))]
        middle = float(np.float32(10.0 ** random.uniform(-4, 4) * random.choice([-1, 1])))
        width = abs(middle) * 10.0 ** random.uniform(-3, 0)
        low, high = float(np.float32(middle - width)), float(np.float32(middle + width))
        g, plain = Graph(), Graph()
        out = twist(g, g.input("x", (6, 6), F32), activation, low, high)
        stated, program = pair(g, out)
        found = prove_statement(stated, program, str(seed))
        assert found.passed, found.reason
        x = random.uniform(middle - 3 * width, middle + 3 * width, (6, 6))
        with np.errstate(all="ignore"):
            (wanted,) = evaluate_graph(replaced(g, out), Float64(), {"x": x})
        atol = 1e-7 * np.abs(x).max()  # what the rounded root of a GELU makes
        np.testing.assert_allclose(value(program, {"x": x}), wanted, rtol=1e-6, atol=atol)
        _, other = pair(plain, activation(plain, plain.input("x", (6, 6), F32)))
        assert not prove_statement(stated, other, str(seed)).passed


def replaced(g: Graph, out: int) -> Graph:
    """The graph with this one output."""
    g.outputs = [out]
    return g


# --- extents ----------------------------------------------------------------------------------------------------------
def test_what_takes_too_long_is_compared_on_shorter_axes() -> None:
    g = Graph()
    x, gate, up, down = (
        g.input("x", (2, 4096), F32),
        g.input("gate", (4096, 14336), F32, True),
        g.input("up", (4096, 14336), F32, True),
        g.input("down", (14336, 4096), F32, True),
    )
    normed = compose.rms_norm(g, x, [-1], 1e-6)
    hidden = g.map("mul", ACTIVATIONS["silu"](g, compose.linear(g, normed, gate)), compose.linear(g, normed, up))
    stated, program = pair(g, compose.linear(g, hidden, down))
    assert prove_statement(stated, program, "a").passed
    short = shrunk([stated, program])
    assert short is not None and max(int(str(a.extent)) for p in short for a in p.axes) <= 4
    wrong = next(c for c in changes(program) if c.nodes != program.nodes)
    assert not prove_statement(stated, wrong, "a").passed


def test_symbols_are_numbers_that_fit() -> None:
    from mirage_cli.lax import extents as ex

    g = Graph()
    x = g.input("x", (ex.symbol("rows"), 8), F32)
    stated, program = pair(g, compose.softmax(g, compose.scale(g, x, 0.5), [-1]))
    sizes = [{"rows": 1}, {"rows": 3}]
    assert prove_statement(stated, program, "a", sizes=sizes).passed
    assert not prove_statement(stated, numbered_softly(program), "a", sizes=sizes).passed


def numbered_softly(p: Program) -> Program:
    """The program with another scale."""
    nodes = tuple(replace(n, value=Fraction(1, 4)) if n.value == Fraction(1, 2) else n for n in p.nodes)
    return replace(p, nodes=nodes, _axes_of={})


def test_numbered_programs_have_no_symbols() -> None:
    from mirage_cli.lax import extents as ex

    g = Graph()
    _, program = pair(g, compose.softmax(g, g.input("x", (ex.symbol("rows"), 8), F32), [-1]))
    assert not numbered(program, {"rows": 5}).symbols


@pytest.mark.parametrize(
    ("op", "offset", "decided"),
    [
        *[("lt", 7, False), ("lt", 8, True), ("le", 7, True), ("le", 6, False), ("lt", -6, True), ("le", -6, False)],
        *[("eq", 8, True), ("eq", 7, False), ("eq", -7, True)],
    ],
)
def test_comparisons_of_positions_that_all_decide_alike(op: str, offset: int, decided: bool) -> None:
    """Columns, 0 to 7, against twice the rows, 0 to 6: such comparisons go, and what is left in their place is proved."""
    g = Graph()
    x = g.input("x", (4, 8), F32)
    rows = compose.shift(g, compose.scale(g, g.iota(4, 0, 2, F32), 2), offset)
    keep = g.map(op, g.iota(8, 1, 2, F32), rows)
    stated, program = pair(g, g.map("where", keep, x, g.map("mul", x, x)))
    assert any(n.op == op for n in program.nodes) is not decided
    assert prove_statement(stated, program).passed


def _windowed(window: int, length: int = 4096) -> Pair:
    g = Graph()
    q, k, v = (g.input(n, (2, length, 64), F32) for n in "qkv")
    i, j = g.iota(length, 1, 3, F32), g.iota(length, 2, 3, F32)
    near = g.map("lt", g.map("sub", i, j), g.fill(window, F32))
    keep = g.map("and", g.map("le", j, i), near)
    scores = compose.attention_mask(g, compose.matmul(g, q, g.transpose(k, (0, 2, 1))), keep)
    return pair(g, compose.matmul(g, compose.softmax(g, scores, [2]), v))


@pytest.mark.parametrize("window", [1024, 4095, 4096, 5000])
def test_windows_of_long_sequences(window: int) -> None:
    """Also those that are as long as the sequence, which hide nothing; another window is another program."""
    stated, program = _windowed(window)
    assert prove_statement(stated, program).passed
    assert prove_statement(stated, _windowed(4999)[1]).passed == (window >= 4096)
    for other in (1023, 1025, 4094):
        assert not prove_statement(stated, _windowed(other)[1]).passed


def test_very_long_sequences_are_compared_on_shorter_axes() -> None:
    """Positions are variables there, and what they are compared with is as it was."""
    stated, program = _windowed(4096, 1 << 20)
    assert prove_statement(stated, program).passed
    assert not prove_statement(stated, _windowed(4095, 1 << 20)[1]).passed
    for exact, longest in ((False, 3), (True, 1 << 20)):
        short = shrunk([stated, program], exact)
        assert short is not None and max(int(str(a.extent)) for p in short for a in p.axes) == longest
