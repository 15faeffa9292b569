"""Every published case: the search yields muGraphs, within bounds, and the best one is proved.

Proofs at the extents and tiles of a run belong to `python samples/cases.py --table`; here they are on stand-ins with small
tiles, several of each kind.
"""

from __future__ import annotations

import functools

import pytest

from mirage_cli.lax.ir.program import Program
from mirage_cli.search.proof import stand_in
from mirage_cli.search.proof.verify import verify
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions, SearchResult
from samples.case_table import ALL, BEGIN, DOCS, END
from samples.cases import program, search_options

AGAIN = "run: python samples/cases.py --table --write"
MOST_VALUES = 10_000  #: values of all closures of a case; one core takes a millisecond for each


@functools.cache
def searched(p: Program, options: SearchOptions) -> SearchResult:
    """Several cases of the papers are one program."""
    return Searcher(options).search(p, load_target("sm_90a"))


@pytest.mark.parametrize("name", ALL)
def test_the_best_mugraph_of_a_case_is_proved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = program(ALL[name])
    result = searched(p, search_options(ALL[name], p))
    assert result.candidates, result.statistics.refused
    assert result.statistics.values <= MOST_VALUES
    best = result.candidates[0]
    tiles = [{a: min(t, 2 if a == "loop" else 4) for a, t in s.as_tiles().items()} for s in best.schedules]
    monkeypatch.setattr(stand_in, "AFFORDABLE", 1e6)  # nothing at its real extents
    monkeypatch.setattr(stand_in, "HOPELESS", 1e4)
    verdict = verify(result.program, best.graph, tiles)
    assert verdict.passed, verdict.reason
    assert verdict.log2_bound < -40


def test_the_table_of_the_documentation_holds_every_case() -> None:
    lines = DOCS.read_text().split(BEGIN)[1].split(END)[0].splitlines()
    assert [line.split("`")[1] for line in lines if line.startswith("| `")] == [*ALL], AGAIN
    assert not [line for line in lines if " refused " in line or "(no)" in line], AGAIN
