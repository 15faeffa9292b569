"""The fit of the CPU's constants: it finds those with which times were made up, and tells how far predictions are off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_cli.lax.dtypes import F32
from mirage_cli.search.schedules.fitted import Cpu
from mirage_cli.search.schedules.target import load_target
from samples import cpu_fit
from samples.cpu_fit import Timed
from tests.codegen.programs import program
from tests.search.schedules.test_original import linear

TARGET = load_target("cpu")
TRUE = cpu_fit.with_constants(TARGET, {"kernel_us": 5.0, "library_rate": 0.4})


def samples() -> list[Timed]:
    """Times of products of many depths and rows as `TRUE` says them, from four models."""
    shapes = [(depth, rows) for depth in (128, 512, 1024) for rows in (1, 16, 256, 1024)]
    made = [
        Timed(f"model {k % 4}", "linear", str(k), program(linear(*s), F32), 2, {}, 1.0) for k, s in enumerate(shapes)
    ]
    return [replace(s, us=s.predicted(TRUE)) for s in made]


def test_the_fit_finds_the_constants_that_times_were_made_with() -> None:
    assert cpu_fit.loss(samples(), TRUE) == 0.0
    found = cpu_fit.fitted(samples(), TARGET, ("kernel_us", "library_rate"))
    assert found.kernel_us == pytest.approx(5.0, rel=0.02)
    assert found.fitted(Cpu).library_rate == pytest.approx(0.4, rel=0.02)


def test_errors_count_both_ways_and_short_times_do_not() -> None:
    first, *rest = (s for s in samples() if s.us > cpu_fit.SHORT_US)
    off = [replace(first, us=1.5 * first.us), *rest, replace(rest[0], us=cpu_fit.SHORT_US - 1)]
    count = len(rest) + 1
    share = f"{len(rest) / count:.0%}"
    assert cpu_fit.judged("some", off, TRUE).startswith(f"| some | {count} | 0% | {share} | {share} |")


def test_half_of_the_models_is_judged_by_the_other_half() -> None:
    text, both = cpu_fit.document("made up", samples(), TARGET, ("kernel_us", "library_rate"))
    assert [line.split(" | ")[0] for line in text.splitlines()] == [
        "| made up, models of the fit",
        "| made up, other models",
        "| made up, all, fitted to all",
    ]
    assert cpu_fit.constants(both, ("kernel_us",))["kernel_us"] == pytest.approx(5.0, rel=0.05)
