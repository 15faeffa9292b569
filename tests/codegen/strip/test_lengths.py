"""Attention behind caches whose lengths are in memory: kernels walk what these show, blocks share that, and what is behind a
sequence's end is not read into results, whatever it holds."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from mirage_cli.kernel_proof.compare import compare
from mirage_cli.lax.dtypes import F16
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.hidden import given_limits, limits
from mirage_cli.search.mugraph.visible import left_out
from mirage_cli.search.schedules.ranking import engine_ranked
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen import kernels
from tests.codegen.kernels import Case, single
from tests.codegen.programs import behind, program

ROWS, KEYS = 3, 200
END = re.compile(r"const int end = ([^;]+);")
BEGIN = re.compile(r"const int first = ([^;]*whole[^;]*);")
FORMS = {
    "shared out": (0, True, "strip"),
    "whole": (0, False, "strip"),
    "window": (40, True, "strip"),
    "block": (40, False, "block"),
    "rows": (0, False, "warpgroup"),
    "rows in a window": (40, False, "warpgroup"),
}


def attention(window: int) -> Program:
    """Rows behind caches, as many as symbols say."""
    return program(lambda g, t: behind(g, t, symbol("rows"), symbol("keys"), window), F16)


@cache
def case(form: str) -> Case:
    """The first kernel that is printed for a form."""
    window, split, engine = FORMS[form]
    p, target = attention(window), load_target("sm_90a")
    rows = next(a.name for a in p.axes if str(a.extent) == "rows")
    for g in Searcher(SearchOptions()).blocks(p)[0]:
        if bool(g.split) != split:
            continue
        for r in engine_ranked(engine, p, g, target, 40):
            c = Case("lengths", p, single(p, g), (r.schedule,), target, sizes=(("rows", ROWS), ("keys", KEYS)))
            tile = r.schedule.tile(rows) or 16
            small = (
                (r.schedule.loop, tile) == (64, 64) if engine == "warpgroup" else r.schedule.loop < 64 and tile <= 16
            )
            if small and c.renders() and END.search(c.render().text):
                return c
    raise AssertionError(f"no kernel of {form}")


@pytest.mark.parametrize("form", FORMS)
def test_iterations_are_those_that_lengths_show(form: str) -> None:
    """Less are refuted (of the last two one may be of rows that a tile has and the program has not), one more is not."""
    c = case(form)
    text = c.render().text
    assert "whole_number(" in text and ("steps_each" in text) == FORMS[form][1]
    passed = compare(text, c.program, c.graph, c.symbols)
    assert passed.passed, passed.reason
    spoiled = {END: (r"const int end = (\1) - 2;", r"const int end = (\1) < whole ? (\1) + 1 : whole;")}
    if FORMS[form][0]:
        spoiled[BEGIN] = (r"const int first = (\1) + 1;", r"const int first = (\1) > 0 ? (\1) - 1 : 0;")
    for limit, (less, more) in spoiled.items():
        assert limit.search(text)
        assert "differs" in compare(limit.sub(less, text), c.program, c.graph, c.symbols).reason
        assert compare(limit.sub(more, text), c.program, c.graph, c.symbols).passed


@pytest.mark.parametrize("lengths", [(0, 140), (197, 5), (31, 32)], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_behind_the_end_may_be_anything(form: str, lengths: tuple[int, int]) -> None:
    c = case(form)
    kernel, arrays = c.graph.kernels[0], c.inputs()
    for x in (i for i in c.program.inputs if len(i.access) == 1):
        is_before = any(x.name == v for f in given_limits(kernel.program, kernel.block) for v, _ in f.given)
        arrays[x.source] = np.array(lengths) + (0 if is_before else ROWS - 1)
    (wanted,) = c.reference(arrays)
    for a in arrays:
        if a.shape[1:2] == (KEYS,):
            for row, n in enumerate(lengths):
                a[row, n + ROWS :] = np.nan
    answer = kernels.answered(c, arrays)
    assert not isinstance(answer, str), answer
    np.testing.assert_allclose(answer[0], wanted, rtol=2e-2, atol=2e-2)


def test_integers_of_which_a_block_has_several_say_nothing() -> None:
    p = attention(0)
    g = next(g for g in Searcher(SearchOptions()).blocks(p)[0] if g.loop and not limits(p, g))
    names = {str(a.extent): a.name for a in p.axes}
    tiles = dict.fromkeys(g.grid, 1)
    assert left_out(p, g, tiles, 16)
    assert not left_out(p, g, tiles | {names["2"]: 2}, 16)
