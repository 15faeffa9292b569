"""The guarantee of the closure, by brute force: every value that operators make of values, and that is an abstract
subexpression, is in it, with every way to make it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.evaluate import fit
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.closure.closure import Closure, Value
from mirage_cli.search.closure.extract import block_graphs
from mirage_cli.search.closure.form import Fn, Reduction, StableExp, search_form
from mirage_cli.search.closure.mapping import Mapping, mappings
from mirage_cli.search.closure.space import AFTER, BEFORE, BODY, GRID, P
from mirage_cli.search.mugraph.evaluate import run_thread
from tests.search.programs import attention, built, normed, program_of

Made = tuple[int, frozenset[str], bytes, str, tuple[int, ...]]  #: phase, axes, array, operator, operands


def gated() -> Program:
    """silu(x w) * (x u)."""

    def build(g: Graph) -> int:
        x = g.input("x", (3, 4), F32)
        gate, up = (compose.matmul(g, x, g.input(n, (4, 5), F32)) for n in "wu")
        return g.map("mul", g.map("silu", gate), up)

    return built(build)


def low_rank() -> Program:
    """x w + (x a) b."""

    def build(g: Graph) -> int:
        x = g.input("x", (3, 8), F32)
        low = compose.matmul(g, compose.matmul(g, x, g.input("a", (8, 2), F32)), g.input("b", (2, 5), F32))
        return g.map("add", compose.matmul(g, x, g.input("w", (8, 5), F32)), low)

    return built(build)


PROGRAMS = {"norm": normed, "attention": attention, "gated": gated, "low rank": low_rank}


class Naive:
    """All operators on all values and pairs of a finished closure, without its indices, memories and quick tests."""

    def __init__(self, closure: Closure) -> None:
        self.c = closure
        self.e = closure.expressions
        self.space, self.target, self.exprs = closure.space, closure.target, closure.pruning.exprs
        self.groups = {(frozenset(t.over), t.dtype is not None) for t in closure.form.terms if isinstance(t, Reduction)}
        self.groups = {(g, any(m for h, m in self.groups if h == g)) for g, _ in self.groups}

    def wanted(self, expr: int) -> bool:
        """Whether an expression is a part of an output's."""
        return any(self.e.is_part(expr, e) for e in self.c.pruning.outputs)

    def small(self, axes: frozenset[str]) -> bool:
        """Whether some value of the program has these axes, or as many, and positions, as the largest."""
        p = self.c.form.program
        size = lambda a: math.prod(int(p.extent(x)) for x in a)  # type: ignore[call-overload]
        own = [p.axes_of(n.name) for n in [*p.inputs, *p.nodes]]
        few = len(axes) <= max(map(len, own)) and size(axes) <= max(map(size, own))
        return few or any(axes <= o for o in own)

    def one(self, v: Value) -> Iterator[Made]:
        """What operators make of one value."""
        for group, _ in self.groups:
            expr = self.e.sum(v.expr, self.space.tile_factors(group, v.phase))
            if group <= v.live and self.wanted(expr):
                yield v.phase, v.live - group, self.space.sum(v.array, group, v.phase).tobytes(), "sum", (v.number,)
        loop, split = self.c.mapping.loop, self.c.mapping.split
        walks = loop and v.phase == BODY and loop not in v.live and self.space.depends(v.array, loop, "l")
        if walks and self.wanted(self.e.sum(v.expr, [(loop, "l")])):
            yield AFTER, v.live, self.space.total(v.array, loop or "", "l").tobytes(), "accum", (v.number,)
        last = AFTER if loop else BEFORE
        parts = split and v.phase in (last, AFTER) and split not in v.live and self.space.depends(v.array, split, "g")
        if parts and self.wanted(self.e.sum(v.expr, [(split, "g")])):
            yield GRID, v.live, self.space.total(v.array, split or "", "g").tobytes(), "grid_sum", (v.number,)

    def phase(self, values: tuple[Value, ...]) -> int | None:
        """Where values can meet."""
        phases = {v.phase for v in values}
        if BODY in phases and phases & {AFTER, GRID}:
            return None
        split = self.c.mapping.split
        if (
            GRID in phases
            and split
            and any(v.phase != GRID and self.space.depends(v.array, split, "g") for v in values)
        ):
            return None
        return max(phases)

    def two(self, u: Value, v: Value) -> Iterator[Made]:
        """What operators make of two values, in this order for quotients."""
        phase = self.phase((u, v))
        if phase is None:
            return
        axes, both = u.live | v.live, tuple(sorted((u.number, v.number)))
        for group, multiplies in self.groups:
            if multiplies and group <= u.live & v.live and u.live != v.live and self.small(axes - group):
                expr = self.e.sum(self.e.mul(u.expr, v.expr), self.space.tile_factors(group, phase))
                if self.wanted(expr):
                    array = self.space.sum(u.array * v.array % P, group, phase)
                    yield phase, axes - group, array.tobytes(), "contract", both
        if not self.small(axes):
            return
        if self.wanted(self.e.mul(u.expr, v.expr)):
            yield phase, axes, (u.array * v.array % P).tobytes(), "mul", both
        if (u.live == v.live or self.c.form.opened) and self.wanted(self.e.add(u.expr, v.expr)):
            yield phase, axes, ((u.array + v.array) % P).tobytes(), "add", both
        if "div" in self.c.pruning.quotients and self.wanted(self.e.div(u.expr, v.expr)):
            inverse = self.target.domain.inverse(v.array[None])[0]
            yield phase, axes, (u.array * inverse % P).tobytes(), "div", (u.number, v.number)

    def functions(self) -> Iterator[Made]:
        """The functions of the form on all values with the expressions of their arguments."""
        for number, t in enumerate(self.c.form.terms):
            if not isinstance(t, Fn | StableExp):
                continue
            choices = [[v for v in self.c.values if v.expr == self.exprs[a]] for a in t.args]
            for args in itertools.product(*choices):
                axes = frozenset[str]().union(*(v.live for v in args))
                phase = self.phase(args) if args else BEFORE
                if phase is None or not axes <= t.axes:
                    continue
                arrays = [v.array[None] for v in args]
                if isinstance(t, Fn):
                    array = fit(run_thread(t.thread, self.target.domain, arrays), len(self.space.shape), 1)[0]
                else:
                    array = self.target.domain.exp(arrays[0])[0]
                yield phase, axes, array.tobytes(), f"fn{number}", tuple(v.number for v in args)


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_missing(name: str) -> None:
    form = search_form(PROGRAMS[name]())
    for mapping in mappings(form):
        closure = Closure(form, mapping).run()
        naive = Naive(closure)
        known = {(v.phase, v.live, v.array.tobytes()): v for v in closure.values}
        made = [m for v in closure.values for m in naive.one(v)]
        made += [m for u in closure.values for v in closure.values for m in naive.two(u, v)]
        made += naive.functions()
        assert made
        for phase, live, array, op, args in made:
            value = known.get((phase, live, array))
            assert value is not None, f"{mapping}: {op} of values {args} is missing"
            names = {f"fn{w.term}" if w.op == "fn" else w.op: w for w in value.ways}
            assert op in names, f"{mapping}: value {value.number} is not known as {op}"
            ways = [w for w in value.ways if (f"fn{w.term}" if w.op == "fn" else w.op) == op]
            assert args in [w.args for w in ways]


@pytest.mark.parametrize("name", PROGRAMS)
def test_ways_are_right(name: str) -> None:
    """Every way to make a value makes its array."""
    form = search_form(PROGRAMS[name]())
    closure = Closure(form, Mapping(form.reduced[0], form.reduced[0])).run()
    naive = Naive(closure)
    for v in closure.values:
        for w in v.ways:
            args = [closure.values[a] for a in w.args]
            if w.op in ("load", "fn"):
                continue
            made = [m for a in args for m in naive.one(a)] if len(args) == 1 else [*naive.two(args[0], args[1])]
            found = {(m[0], m[1], m[2], m[3]) for m in made}
            assert (v.phase, v.live, v.array.tobytes(), w.op) in found


def test_outputs_are_the_fragment_s() -> None:
    form = search_form(normed())
    for mapping in mappings(form):
        closure = Closure(form, mapping).run()
        goal = closure.target.arrays[form.outputs[0]]
        for number in closure.outputs[0]:
            value = closure.values[number]
            assert np.array_equal(value.array, goal)
            assert value.phase in ((BEFORE, GRID) if mapping.loop is None else (AFTER, GRID))


def test_cheapest_graphs_come_first_and_once() -> None:
    closure = Closure(search_form(program_of("rmsnorm_linear_fp32")), Mapping("c")).run()
    few, many = block_graphs(closure, 1), block_graphs(closure, 6)
    assert few[0] == many[0]
    assert len({g.ops for g in many}) == len(many) > len(few)
