"""Constants are found again from times that were predicted with others."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from mirage_cli.errors import MirageError
from mirage_cli.lax.dtypes import F16, DType
from mirage_cli.lax.ir import compose
from mirage_cli.search.schedules.ranking import engine_ranked, total_us
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from samples import gpu_fit
from tests.codegen.kernels import single
from tests.codegen.programs import program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mirage_cli.lax.ir.graph import Graph

HOPPER = load_target("sm_90a")


def _linear(rows: int) -> list[gpu_fit.Timed]:
    def build(g: Graph, t: DType) -> Sequence[int]:
        x, w = g.input("x", (rows, 512), t), g.input("w", (512, 1024), t, constant=True)
        return [compose.scale(g, compose.matmul(g, x, w), Fraction(1, 2))]

    p = program(build, F16)
    return [
        gpu_fit.Timed(f"{rows} {k}", "linear", rows, single(p, g), (r.schedule,), 1.0, k == 0)
        for g in Searcher(SearchOptions()).blocks(p)[0]
        for k, r in enumerate(engine_ranked("strip", p, g, HOPPER, 2))
    ]


def test_a_constant_is_found_again() -> None:
    true = gpu_fit.changed(HOPPER, {"strip.launch_us": 2.6, "bandwidth": 3e12})
    kernels = [replace(t, us=total_us(t.graph, t.schedules, true, {})) for rows in (1, 8, 16) for t in _linear(rows)]
    slow = gpu_fit.changed(HOPPER, {"bandwidth": 3e12})
    fitted = gpu_fit.fit(kernels, slow, ["strip.launch_us"])
    assert gpu_fit.mean([t.error(slow) for t in kernels]) > 1.2
    assert gpu_fit.mean([t.error(fitted) for t in kernels]) < 1.01
    assert gpu_fit.constant(fitted, "strip.launch_us") == pytest.approx(2.6, rel=0.02)
    assert any("strip 1-16: " in line for line in gpu_fit.judged(kernels, fitted))


def test_an_unknown_constant_is_an_error() -> None:
    with pytest.raises(MirageError, match="no constant"):
        gpu_fit.constant(HOPPER, "strip.lunch_us")
