"""Schedules that come with this program: taken without a GPU where they are candidates, and not there otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from mirage_cli.codegen.requests.passes import without
from mirage_cli.lax.dtypes import F16, F32, DType
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.planning import plan as plans
from mirage_cli.planning import tuned
from mirage_cli.planning.plan import PlanOptions, plan_fragment
from mirage_cli.planning.tuned import Row, form, identity
from mirage_cli.search.schedules.architectures import architectures
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Candidate, SearchOptions
from tests.codegen.programs import NAMED, program

OPTIONS = PlanOptions({"cuda": ("sm_90a",)}, pool=200)
Ship = Callable[[Row], None]


@pytest.fixture(scope="module")
def fragment() -> Program:
    return program(NAMED["rms_linear"], F16)


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch) -> Ship:
    """Puts one row in the place of the table."""
    return lambda row: monkeypatch.setattr(tuned, "shipped", lambda target: {row.key: row})


@pytest.fixture(scope="module")
def pool(fragment: Program) -> tuple[Candidate, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuned, "shipped", lambda target: {})
        return plan_fragment("abc", "norm_linear", fragment, 6, OPTIONS).pool


def other(pool: tuple[Candidate, ...]) -> Candidate:
    """The last candidate of the pool with the graph of the model's own choice."""
    return [c for c in pool if c.graph == pool[0].graph][-1]


def row_of(p: Program, c: Candidate) -> Row:
    sizes = dict.fromkeys(p.symbols, 8)
    return Row(form(p), sizes, identity(c.graph), [s.to_json() for s in c.schedules], 0.75, "norm_linear")


def test_a_measured_schedule_is_taken_without_a_gpu(fragment: Program, pool: tuple[Candidate, ...], ship: Ship) -> None:
    wanted = other(pool)
    assert wanted.schedules != pool[0].schedules
    ship(row_of(fragment, wanted))
    found = plan_fragment("abc", "norm_linear", fragment, 6, OPTIONS)
    chosen = found.plans["cuda"]
    assert (chosen.graph, chosen.schedules, chosen.predicted_us) == (wanted.graph, wanted.schedules, 0.75)
    assert chosen.verdict.passed
    # with a GPU it is the first to be tried, with what the model says of it
    assert (found.pool[0].schedules, found.pool[0].predicted_us) == (wanted.schedules, wanted.predicted_us)
    left_out = replace(OPTIONS, passes=without(["tunings"]))
    own = plan_fragment("abc", "norm_linear", fragment, 6, left_out).plans["cuda"]
    assert own.schedules == pool[0].schedules


@pytest.mark.parametrize("change", ["mugraph", "tile", "engine", "kernels"])
def test_a_row_that_is_no_candidate_any_more_is_not_there(
    change: str, fragment: Program, pool: tuple[Candidate, ...], ship: Ship
) -> None:
    row = row_of(fragment, other(pool))
    (first, *rest) = row.schedules
    rows = {
        "mugraph": replace(row, mugraph="0" * 16),
        "tile": replace(row, schedules=[first | {"tiles": dict.fromkeys(first["tiles"], 7)}, *rest]),
        "engine": replace(row, schedules=[first | {"engine": "no such"}, *rest]),
        "kernels": replace(row, schedules=[first, first, *rest]),
    }
    ship(rows[change])
    chosen = plan_fragment("abc", "norm_linear", fragment, 6, OPTIONS).plans["cuda"]
    assert (chosen.schedules, chosen.predicted_us) == (pool[0].schedules, pytest.approx(pool[0].predicted_us))


def test_a_measured_schedule_that_is_not_proved_is_passed_over(
    fragment: Program, pool: tuple[Candidate, ...], ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = other(pool)
    ship(row_of(fragment, wanted))
    real = plans.planned

    def doubtful(name: str, p: Program, c: Candidate, *rest: object) -> object:
        if c.schedules == wanted.schedules:
            raise plans.CheckFailed("made to fail")
        return real(name, p, c, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(plans, "planned", doubtful)
    assert plan_fragment("abc", "norm_linear", fragment, 6, OPTIONS).plans["cuda"].schedules == pool[0].schedules


def test_with_symbols_it_is_taken_for_typical_sizes_beside_what_others_take(ship: Ship) -> None:
    def build(g: Graph, t: DType) -> Sequence[int]:
        x, w = g.input("x", (symbol("n"), 512), t), g.input("w", (512, 1024), t, True)
        return [compose.linear(g, compose.rms_norm(g, x, [1], Fraction(1, 1 << 17)), w)]

    p = program(build, F16)
    options = replace(OPTIONS, search=SearchOptions(sizes=(("n", 8),)), pool=400)
    own = plan_fragment("abc", "norm_linear", p, 6, options)
    wanted = [c for c in own.pool if c.graph == own.pool[0].graph][-1]
    ship(replace(row_of(p, wanted), extents={"n": 8}))
    chosen = plan_fragment("abc", "norm_linear", p, 6, options).plans["cuda"]
    assert (chosen.schedules, chosen.predicted_us) == (wanted.schedules, 0.75)
    ship(replace(row_of(p, wanted), extents={"n": 16}))
    assert [tuned.row(p, load_target("sm_90a"), {"n": n}) is None for n in (8, 16)] == [True, False]


def test_sizes_and_types_make_another_row(fragment: Program, pool: tuple[Candidate, ...], ship: Ship) -> None:
    row = row_of(fragment, other(pool))
    ship(replace(row, extents={"rows": 3}))
    assert tuned.row(fragment, load_target("sm_90a"), {}) is None
    assert form(program(NAMED["rms_linear"], F16)) == row.program
    assert form(program(NAMED["rms_linear"], F32)) != row.program


def test_names_and_constants_make_no_other_row(fragment: Program) -> None:
    sources = tuple(replace(s, name=f"model.{s.name}") for s in fragment.sources)
    numbers = tuple(replace(n, value=n.value * 2) if n.value is not None else n for n in fragment.nodes)
    assert any(n.value is not None for n in fragment.nodes)
    assert form(replace(fragment, sources=sources, nodes=numbers)) == form(fragment)


def test_of_two_rows_with_one_key_the_faster_is_written(tmp_path: Path) -> None:
    slow = Row("p", {"n": 1}, "m", [{"tiles": {"a": 1}}], 2.0, "b")
    rows = [slow, replace(slow, us=1.0), replace(slow, extents={}, name="a")]
    tuned.write(tmp_path / "t.json", rows)
    text = (tmp_path / "t.json").read_text()
    assert tuned.read(text) == [rows[2], rows[1]]
    assert len(text.splitlines()) == 4
    with pytest.raises(ValueError, match="us"):
        tuned.read(json.dumps([{"program": "p"}]).replace("}", ', "us": "x"}'))


@pytest.mark.parametrize("name", architectures())
def test_the_table_can_be_read(name: str) -> None:
    rows = tuned.shipped(name)
    assert all(r.us > 0 and r.schedules and r.device for r in rows.values())
