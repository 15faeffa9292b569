"""The reference's graphs (samples/golden.py): valid, equal to their programs, in the space or out of it for the reason given,
and no better than the best that is found."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import pytest

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.contains import contains
from mirage_cli.search.proof.verify import verify
from mirage_cli.search.schedules.ranking import ranked
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from samples import cases
from samples.cases import CASES, Case
from samples.golden import GOLDEN, Golden, inputs_accumulated

DRAWN = [g for g in GOLDEN if g.draw is not None]
SEARCHED = ("G1", "G2", "G3", "G4 silu behind", "G5", "G8", "G9", "G10", "G11", "G13", "G14", "G15", "G17", "G18")
SEARCHER = Searcher(SearchOptions())
ATTENTION = {"h": 2, "q": 48, "k": 256, "d": 16}  #: dimensions at which graphs are proved
LINEAR = {"h": 640, "d": 192}


def names(golden: Golden) -> str:
    """The name of a test."""
    return golden.name.replace(" ", "-")


@functools.cache
def program(name: str) -> Program:
    """The program of a golden graph's case."""
    return cases.program(next(g.case for g in GOLDEN if g.case.name == name))


def smaller(case: Case) -> Case:
    """A case at extents that leave several blocks and iterations, and take no time to prove."""
    most = ATTENTION if "k" in case.dims else LINEAR
    return replace(case, dims={d: min(n, most.get(d, n)) for d, n in case.dims.items()})


def test_all_are_there() -> None:
    assert {g.name.split()[0] for g in GOLDEN} == {f"G{k}" for k in range(1, 19)}
    assert len({g.name for g in GOLDEN}) == len(GOLDEN)
    assert all(g.outside for g in GOLDEN if g.draw is None)


@pytest.mark.parametrize("golden", DRAWN, ids=names)
def test_golden_graphs_are_contained_or_outside(golden: Golden) -> None:
    """At the published extents."""
    p = program(golden.case.name)
    answer = contains(SEARCHER, p, golden.build(p).validate())
    assert bool(answer) != bool(golden.outside), answer.reason
    assert golden.outside in answer.reason


@pytest.mark.parametrize("golden", DRAWN, ids=names)
def test_golden_graphs_are_proved(golden: Golden) -> None:
    """Also those outside our space are right."""
    p = cases.program(smaller(golden.case))
    verdict = verify(p, golden.build(p), golden.tiles(p))
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("golden", [g for g in DRAWN if g.name in SEARCHED], ids=names)
def test_none_is_better_than_the_best(golden: Golden) -> None:
    """By the cost model, each kernel with its best schedule; `make cases` compares them all."""
    target = load_target("sm_90a")
    p = program(golden.case.name)
    own = [ranked(k.program, k.block, target, 1)[0] for k in golden.build(p).kernels]
    assert best(golden.case.name) <= sum(r.prediction.us for r in own) * (1 + 1e-9)


@functools.cache
def best(name: str) -> float:
    """What the model predicts for the best that is found for a case."""
    searcher = Searcher(cases.search_options(CASES[name], program(name)))
    return searcher.search(program(name), load_target("sm_90a")).candidates[0].predicted_us


def test_inputs_do_not_accumulate() -> None:
    with pytest.raises(InvalidGraph, match=re.escape("accumulates a value along the loop axis c itself")):
        inputs_accumulated(cases.program(CASES["osdi_rmsnorm"]))
