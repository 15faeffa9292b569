"""Scores that a very low number hides count as minus infinity where every row shows one, however that is spelled, else not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.fragments.instantiate import instantiate
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph, Input
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.lax.normal.hiding import hidden_scores
from mirage_cli.search.proof.statement import prove_statement

ROWS, KEYS, BEHIND, DEPTH = 6, 9, 3, 4
LOWEST, INFINITE = float(np.finfo(np.float32).min), float("-inf")
Mask = Callable[[Graph, int, int, int], int]  #: scores, positions of rows and of keys -> scores


def _number(g: Graph, x: float) -> int:
    return g.fill(x, F32)


def _where(g: Graph, keep: int, s: int, low: float = LOWEST) -> int:
    return g.map("where", keep, s, _number(g, low))


def _causal(g: Graph, i: int, j: int) -> int:
    return g.map("le", j, i)


def _near(g: Graph, i: int, j: int, window: int = 4) -> int:
    return g.map("lt", g.map("sub", i, j), _number(g, window))


def _bias(g: Graph, keep: int, low: float = LOWEST) -> int:
    return _where(g, keep, _number(g, 0), low)


def _denied(g: Graph, s: int, keep: int, low: float) -> int:
    """s + (1 - keep) low, as older exporters write it."""
    hidden = g.map("sub", _number(g, 1), _where(g, keep, _number(g, 1), 0))
    return g.map("add", s, g.map("mul", hidden, _number(g, low)))


def _clamped(g: Graph, s: int, i: int, j: int) -> int:
    return g.map("max", g.map("add", s, _bias(g, _causal(g, i, j))), _number(g, LOWEST))


#: spellings, and how many keys up to its own place a row sees
HIDDEN: dict[str, tuple[Mask, int]] = {
    "where": (lambda g, s, i, j: _where(g, _causal(g, i, j), s), KEYS),
    "the other way round": (lambda g, s, i, j: g.map("where", g.map("lt", i, j), _number(g, LOWEST), s), KEYS),
    "added": (lambda g, s, i, j: g.map("add", s, _bias(g, _causal(g, i, j))), KEYS),
    "denied": (lambda g, s, i, j: _denied(g, s, _causal(g, i, j), -1e38), KEYS),
    "scaled": (
        lambda g, s, i, j: compose.scale(g, g.map("add", compose.scale(g, s, 4), _bias(g, _causal(g, i, j))), 0.25),
        KEYS,
    ),
    "a window": (lambda g, s, i, j: _where(g, g.map("and", _causal(g, i, j), _near(g, i, j)), s), 4),
    "two masks": (
        lambda g, s, i, j: g.map("add", g.map("add", s, _bias(g, _causal(g, i, j))), _bias(g, _near(g, i, j))),
        4,
    ),
    "with infinity": (lambda g, s, i, j: _where(g, _causal(g, i, j), _where(g, _near(g, i, j), s, INFINITE)), 4),
}
#: what is left: numbers that scores may reach, masks that may hide what is shown
OPEN: dict[str, Mask] = {
    "not low enough": lambda g, s, i, j: _where(g, _causal(g, i, j), s, -1e9),
    "a mask of its own": lambda g, s, i, j: g.map("add", _where(g, _causal(g, i, j), s), g.input("m", (KEYS,), F32)),
    "a condition": lambda g, s, i, j: _where(
        g, g.map("and", _causal(g, i, j), g.map("le", g.input("m", (KEYS,), F32), _number(g, 0))), s
    ),
    "either": lambda g, s, i, j: _where(g, g.map("or", _causal(g, i, j), _near(g, i, j)), s),
    "a square": lambda g, s, i, j: _where(g, g.map("le", g.map("mul", j, j), i), s),
    "positions that scores decide": lambda g, s, i, j: _where(g, g.map("le", s, i), s),
}


def stated(mask: Mask, spelled: bool = False) -> Program:
    """Attention with a mask; its softmax may be spelled out."""
    g = Graph()
    q, k, v = (g.input(n, (2, e, DEPTH), F32) for n, e in (("q", ROWS), ("k", KEYS), ("v", KEYS)))
    i = compose.shift(g, g.iota(ROWS, 1, 3, F32), BEHIND)
    scores = mask(g, compose.matmul(g, q, g.transpose(k, (0, 2, 1))), i, g.iota(KEYS, 2, 3, F32))
    e = g.map("exp", g.map("sub", scores, g.reduce("max", scores, [2]))) if spelled else g.stable_exp(scores, [2])
    out = compose.matmul(g, g.map("div", e, g.reduce("sum", e, [2])), v)
    inputs = {n: s.name for n, s in enumerate(g.steps) if isinstance(s, Input)}
    return instantiate(g, [out], inputs, inputs | {out: "out"})


def _infinite(window: int) -> Program:
    def mask(g: Graph, s: int, i: int, j: int) -> int:
        keep = _causal(g, i, j) if window == KEYS else g.map("and", _causal(g, i, j), _near(g, i, j, window))
        return _where(g, keep, s, INFINITE)

    return stated(mask)


@pytest.mark.parametrize("spelled", [False, True])
@pytest.mark.parametrize("name", HIDDEN)
def test_hidden(name: str, spelled: bool) -> None:
    """One normal form with masks of minus infinity; equal numbers for scores up to the promised size, and an assumption."""
    mask, window = HIDDEN[name]
    p = stated(mask, spelled)
    made, numbers = hidden_scores(p)
    assert numbers and all(n <= -1e37 for n in numbers)
    assert canonical(p).key() == canonical(_infinite(window)).key()
    proof = prove_statement(p, canonical(p), "a")
    assert proof.passed and "hides weigh nothing" in proof.assumptions[0], proof
    for size in (1.0, 2.0**30, 2.0**59):
        random = np.random.default_rng(0)
        arrays = {n: random.normal(size=s.dims) * size for n, s in enumerate(p.sources)}
        results = [evaluate_program(x, Float64([a.name for a in x.axes]), arrays) for x in (p, made)]
        np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("name", OPEN)
def test_what_may_count_stays(name: str) -> None:
    p = stated(OPEN[name])
    assert hidden_scores(p) == (p, ())


@pytest.mark.parametrize("behind", range(-2, 12))
@pytest.mark.parametrize("window", [1, 2, 4, KEYS])
def test_every_row_has_to_show_a_key(window: int, behind: int) -> None:
    def mask(g: Graph, s: int, i: int, j: int) -> int:
        i = compose.shift(g, i, behind - BEHIND)
        return _where(g, g.map("and", _causal(g, i, j), _near(g, i, j, window)), s)

    row, key = np.arange(ROWS)[:, None] + behind, np.arange(KEYS)[None]
    shown = ((key <= row) & (row - key < window)).any(axis=1).all()
    assert bool(hidden_scores(stated(mask))[1]) == shown


def test_a_clamp_keeps_what_is_shown() -> None:
    p = stated(_clamped)
    assert hidden_scores(p)[1] == (LOWEST,)
    assert prove_statement(p, canonical(p), "a").passed
    assert sum(n.op == "max" for n in canonical(p).nodes) == 1


def test_another_mask_is_refuted() -> None:
    """What is proved has to hide what the nodes hide: a window of one key more or less is another one."""
    p = stated(HIDDEN["a window"][0])
    assert prove_statement(p, canonical(_infinite(4)), "a").passed
    for window in (3, 5, KEYS):
        assert "differs" in prove_statement(p, canonical(_infinite(window)), "a").reason
