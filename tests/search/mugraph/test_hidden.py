"""What a mask hides of a loop, read off block graphs, and how many iterations it leaves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest

from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.limits import Form
from mirage_cli.lax.dtypes import F16, F32, DType
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.hidden import limits
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.mugraph.visible import hiding, seen, shown, walked
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen.programs import behind, program

Mask = Callable[[Graph, int, int, int], int]  #: scores, positions of rows and of keys -> scores
ROWS, KEYS = 40, 90
INFINITE = float("-inf")


def _hidden(g: Graph, scores: int, keep: int, low: float = INFINITE) -> int:
    return g.map("where", keep, scores, g.fill(low, F32))


def _near(g: Graph, i: int, j: int) -> int:
    return g.map("and", g.map("le", j, i), g.map("lt", g.map("sub", i, j), g.fill(Fraction(8), F32)))


MASKS: dict[str, Mask] = {
    "causal": lambda g, s, i, j: _hidden(g, s, g.map("le", j, i)),
    "turned": lambda g, s, i, j: g.map("where", g.map("lt", i, j), g.fill(INFINITE, F32), s),
    "denied": lambda g, s, i, j: _hidden(g, s, g.map("not", g.map("lt", i, j))),
    "behind": lambda g, s, i, j: _hidden(g, s, g.map("le", j, compose.shift(g, i, 50))),
    "window": lambda g, s, i, j: _hidden(g, s, _near(g, i, j)),
    "twice": lambda g, s, i, j: _hidden(g, _hidden(g, s, g.map("le", j, i)), _near(g, i, j)),
    "added": lambda g, s, i, j: g.map("add", s, _hidden(g, g.fill(0, F32), g.map("le", j, i))),
    "lowest": lambda g, s, i, j: g.map("add", s, _hidden(g, g.fill(0, F32), g.map("le", j, i), -3e38)),
}
VISIBLE: dict[str, Callable[[int, int], bool]] = {
    "behind": lambda i, j: j <= i + 50,
    "window": lambda i, j: j <= i < j + 8,
    "twice": lambda i, j: j <= i < j + 8,
}
OPEN: dict[str, Mask] = {
    "finite": lambda g, s, i, j: _hidden(g, s, g.map("le", j, i), -1e9),
    "either": lambda g, s, i, j: _hidden(g, s, g.map("or", g.map("le", j, i), g.map("le", i, j))),
    "of scores": lambda g, s, i, j: _hidden(g, s, g.map("le", s, g.fill(0, F32))),
    "capped": lambda g, s, i, j: g.map("tanh", _hidden(g, s, g.map("le", j, i))),
    "halved": lambda g, s, i, j: _hidden(g, s, g.map("le", g.map("mul", j, g.fill(Fraction(1, 2), F32)), i)),
    "a square": lambda g, s, i, j: _hidden(g, s, g.map("le", g.map("mul", j, j), i)),
}


def attention(mask: Mask, rows: int = ROWS, keys: int = KEYS) -> Callable[[Graph, DType], Sequence[int]]:
    """Attention of two heads with a mask of positions."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        q, k, v = (g.input(n, (2, e, 16), t) for n, e in (("q", rows), ("k", keys), ("v", keys)))
        scores = compose.matmul(g, q, g.transpose(k, (0, 2, 1)))
        scores = mask(g, scores, g.iota(rows, 1, 3, t), g.iota(keys, 2, 3, t))
        return [compose.matmul(g, compose.softmax(g, scores, [2]), v)]

    return build


def _walking(mask: Mask) -> tuple[Program, list[tuple[BlockGraph, str, str]]]:
    """Block graphs that walk the keys, with the axes of keys and rows."""
    p = program(attention(mask), F32)
    extents = {a.extent: a.name for a in p.axes}
    keys, rows = extents[KEYS], extents[ROWS]
    graphs = [g for g in Searcher(SearchOptions()).blocks(p)[0] if g.loop == keys and not g.split]
    assert graphs
    return p, [(g, keys, rows) for g in graphs]


@pytest.mark.parametrize("name", MASKS)
def test_iterations_that_are_walked_are_those_that_show_something(name: str) -> None:
    p, graphs = _walking(MASKS[name])
    visible = VISIBLE.get(name, lambda i, j: j <= i)
    extents = {a.name: int(str(a.extent)) for a in p.axes}
    for (g, keys, rows), (tall, step) in itertools.product(graphs, [(1, 1), (8, 16), (16, 8), (40, 90), (64, 32)]):
        forms = limits(p, g)
        assert forms
        counts, height = [], min(tall, ROWS)  # a part of a tile counts as a whole one
        for first in range(0, ROWS, tall):
            steps = [
                any(visible(i, j) for i in range(first, first + height) for j in range(at, min(at + step, KEYS)))
                for at in range(0, KEYS, step)
            ]
            walk = [n for n, s in enumerate(steps) if s]
            assert not walk or steps[walk[0] : walk[-1] + 1] == [True] * len(walk)
            counts.append(len(walk))
        if rows in g.grid:
            assert walked(forms, keys, step, extents, {rows: tall}) == (np.mean(counts), max(counts))


@pytest.mark.parametrize("name", OPEN)
def test_what_may_count_is_not_left_out(name: str) -> None:
    """Scores hidden by a finite number count in a row without others; not all comparisons are limits."""
    p, graphs = _walking(OPEN[name])
    assert not any(limits(p, g) for g, _, _ in graphs)


def test_sums_beside_the_mask_are_not_left_out() -> None:
    """The sum of all values, hidden or not, needs every iteration."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        (y,) = attention(MASKS["causal"])(g, t)
        total = g.reduce("sum", g.input("v", (2, KEYS, 16), t), [1])
        return [g.map("add", y, total)]

    p = program(build, F32)
    extents = {a.extent: a.name for a in p.axes}
    for g in Searcher(SearchOptions()).blocks(p)[0]:
        if g.loop == extents[KEYS] and sum(o.op == "accum" for o in g.ops) > 2:
            assert not limits(p, g)


def test_limits_that_cut_nothing_are_none() -> None:
    p, graphs = _walking(MASKS["behind"])
    for g, keys, rows in graphs:
        assert limits(p, g)
        if rows not in g.grid:
            continue
        tiles = {a: 16 if a == rows else 1 for a in g.grid}
        hides = {n: hiding(p, g, tiles, n) for n in (16, 32, 96)}
        assert hides[16] and not hides[32] and not hides[96], (keys, hides)


def test_the_share_that_is_read() -> None:
    """One block of rows is brought what its window shows; the windows of many together show all."""
    near = (Form((("i", -1), ("j", 1)), 7), Form((("i", 1), ("j", -1))))
    assert shown(near, "j", 8, {"i": 4, "j": 64}, {"i": 4}) == 1 / 8
    assert shown(near, "j", 8, {"i": 64, "j": 64}, {"i": 4}) == 1.0
    assert shown((), "j", 8, {"i": 4, "j": 64}, {"i": 4}) == 1.0


def test_lengths_are_taken_to_be_those_of_full_caches() -> None:
    """Rows are the last ones that fit: of as many keys they see half, of one of many all, in a window what it shows."""
    causal, window = (program(lambda g, t, w=w: behind(g, t, symbol("rows"), symbol("keys"), w), F16) for w in (0, 16))

    def share(p: Program, rows: int, count: int) -> tuple[float, float]:
        sizes = {"rows": rows, "keys": count}
        found = seen(p, {a.name: ex.value(a.extent, sizes) for a in p.axes})
        assert [str(p.extent(axis)) for axis in found] == ["keys"]
        return next(iter(found.values()))

    assert share(causal, 64, 64) == (65 / 128, 1.0)
    assert share(causal, 1, 64) == (1.0, 1.0)
    assert share(causal, 2, 64) == (127 / 128, 1.0)
    assert share(window, 1, 64) == (0.25, 0.25)
