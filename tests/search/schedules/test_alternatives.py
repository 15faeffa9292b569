"""Several muGraphs for one program: how sizes are shared out to candidates, and files that say it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_cli.lax.dtypes import F16, F32
from mirage_cli.lax.extents import Symbolic, symbol
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.schedules import alternatives
from mirage_cli.search.schedules.alternatives import Alternative, Bound, Leaf, alternative_from_json, divided
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen.programs import NAMED, behind, program

ROWS = Symbolic(1, ("rows",))
POINTS = [{"rows": n} for n in (64, 1, 4, 16, 256, 1024)]  #: the first one is typical


@pytest.fixture(scope="module")
def symbolic() -> Program:
    return program(NAMED["symbolic"], F32)


def times(*functions: tuple[float, float]) -> np.ndarray:
    """Candidates that take a fixed time and one for each row."""
    return np.array([[fixed + each * p["rows"] for p in POINTS] for fixed, each in functions])


def test_what_is_told_apart_are_extents_of_axes(symbolic: Program) -> None:
    assert ROWS in alternatives.quantities(symbolic)
    assert alternatives.quantities(program(NAMED["matmul"], F32)) == []


def test_few_rows_and_many_have_candidates_of_their_own(symbolic: Program) -> None:
    few, many = divided(symbolic, POINTS, times((100, 1), (1, 10)), 4, 0)
    assert (few.candidate, few.when) == (1, (Bound(ROWS, 0, 4),))
    assert (many.candidate, many.when) == (0, (Bound(ROWS, 5, None),))
    assert 0 in many.points  # what is typical comes last


def test_the_typical_sizes_come_last(symbolic: Program) -> None:
    leaves = divided(symbolic, [{"rows": n} for n in (1, 4, 16, 64)], times((100, 1), (1, 10))[:, [1, 2, 3, 0]], 4, 0)
    assert leaves[-1].when == (Bound(ROWS, 0, 4),)


@pytest.mark.parametrize(
    ("most", "least", "second"), [(1, 0, (1, 10)), (4, 1e6, (1, 10)), (4, 0, (99, 1)), (4, 0, (1000, 1000))]
)
def test_one_candidate_serves_all_where_a_cut_does_not_pay(
    symbolic: Program, most: int, least: float, second: tuple[float, float]
) -> None:
    (leaf,) = divided(symbolic, POINTS, times((100, 1), second), most, 0, least)
    assert leaf.when == () and len(leaf.points) == len(POINTS)


def test_a_range_may_lie_between_two(symbolic: Program) -> None:
    found = np.array([[9, 1, 1, 9, 99, 99], [1, 9, 9, 1, 9, 99], [9, 99, 99, 99, 1, 1.0]])
    leaves = divided(symbolic, POINTS, found, 4, 0)
    assert [(leaf.candidate, leaf.when) for leaf in leaves] == [
        (0, (Bound(ROWS, 0, 4),)),
        (2, (Bound(ROWS, 65, None),)),
        (1, (Bound(ROWS, 5, 64),)),
    ]


def test_single_rows_behind_caches_are_told_apart() -> None:
    """Of others, whose times would decide for all: a cut by rows alone would gain too little."""
    p = program(lambda g, t: behind(g, t, symbol("rows"), symbol("keys")), F16)
    (rows,) = alternatives.rows_behind_caches(p)
    assert str(rows) == "rows" and alternatives.rows_behind_caches(program(NAMED["symbolic"], F32)) == []
    points = [{"rows": n, "keys": 512} for n in (64, 1, 2, 4, 16, 128)]
    found = np.array([[9, 9.5, 9, 9, 9, 9], [99, 9, 99, 99, 99, 99.0]])
    assert len(divided(p, points, found, 6, 0)) == 1
    one, several = divided(p, points, found, 6, 0, apart=[rows])
    assert (one.when, one.candidate, several.candidate) == ((Bound(rows, 0, 1),), 1, 0)


def test_a_single_row_may_have_a_candidate_of_its_own(symbolic: Program) -> None:
    """Beside as many as there may be: a decoder's steps have one, and most of its runs are steps."""
    found = np.array(
        [[9, 1, 1, 9, 99, 99], [1, 9, 9, 1, 9, 99], [9, 99, 99, 99, 1, 1.0], [999, 0.4, 999, 999, 999, 999]]
    )
    points = [{"rows": n} for n in (64, 1, 2, 4, 16, 128)]
    before = divided(symbolic, points, found, 1, 0)
    assert len(before) == 1
    (one,) = (leaf for leaf in divided(symbolic, points, found, 1, 0, single=True) if 1 in leaf.points)
    assert one.when == (Bound(ROWS, 0, 1),) and one.candidate == 3
    assert len(divided(symbolic, points, found, 1, 0, 1e3, single=True)) == 1


@given(st.integers(1, 4), st.lists(st.lists(st.floats(0.1, 1e4), min_size=6, max_size=6), min_size=1, max_size=5))
def test_every_size_has_one_leaf_and_no_worse_a_time(most: int, drawn: list[list[float]]) -> None:
    p, found = program(NAMED["symbolic"], F32), np.array(drawn)
    leaves = divided(p, POINTS, found, most, 0)
    assert 1 <= len(leaves) <= most
    for k, point in enumerate(POINTS):
        assert [leaf for leaf in leaves if all(b.holds(point) for b in leaf.when)] == [_of(leaves, k)]
    one = np.log(found).sum(axis=1).min()
    assert sum(np.log(found[_of(leaves, k).candidate, k]) for k in range(len(POINTS))) <= one + 1e-9


def _of(leaves: list[Leaf], point: int) -> Leaf:
    (found,) = [leaf for leaf in leaves if point in leaf.points]
    return found


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        (Bound(ROWS, 0, 4), "rows <= 4"),
        (Bound(ROWS, 5, None), "rows >= 5"),
        (Bound(Symbolic(2, ("batch", "rows")), 5, 64), "5 <= 2*batch*rows <= 64"),
    ],
)
def test_bounds_print_readably(bound: Bound, text: str) -> None:
    assert str(bound) == text


def test_files_are_read_back(symbolic: Program) -> None:
    c = Searcher(SearchOptions()).search(symbolic, load_target("cpu")).candidates[0]
    whole = Alternative((Bound(ROWS, 5, None), Bound(Symbolic(3, ("rows",)), 0, 64)), c.graph, c.schedules)
    data = json.loads(json.dumps(whole.to_json()))
    assert alternative_from_json(data, ["rows"]) == whole
    assert whole.condition == "rows >= 5 and 3*rows <= 64"
    with pytest.raises(ValueError, match="rows is no extent with symbols of the program"):
        alternative_from_json(data, ["keys"])
    for broken in (data | {"when": {"7": [0, 1]}}, data | {"when": {"rows": [0]}}):
        with pytest.raises(ValueError):
            alternative_from_json(broken, ["rows"])
