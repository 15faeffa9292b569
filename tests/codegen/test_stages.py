"""Kernels that follow one another as stages of one: how they are printed, that they are proved, and what is refused."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_cli.codegen.render import include_dir
from mirage_cli.codegen.requests.passes import without
from mirage_cli.codegen.source import source
from mirage_cli.errors import Refused
from mirage_cli.kernel_proof import prove
from mirage_cli.kernel_proof.prove import prove_kernels
from mirage_cli.lax.dtypes import F16, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.search.schedules.fitted import Strip
from mirage_cli.search.schedules.schedule import launches, schedule_from_json, staged
from mirage_cli.search.search import Searcher, SearchOptions

from .programs import program
from .staged_programs import HOPPER, NAMED, made


def _text(name: str, *passes: str) -> str:
    m = made(name)
    return source("s", m.program, m.graph, m.schedules, HOPPER, "", without(passes)).text


@pytest.mark.parametrize("name", NAMED)
def test_one_launch_is_proved(name: str) -> None:
    m, text = made(name), _text(name)
    assert text.count("__global__") == text.count("mirage::launch_resident(") == 1
    assert text.count("grid_arrive(") == len(staged(m.schedules, launches(m.graph, m.schedules))[0]) - 1
    run = prove_kernels(m.program, m.graph, m.schedules, HOPPER)
    assert run.passed and run.compared, run.reason


def test_each_is_a_launch_without_the_pass() -> None:
    text = _text("rows and products", "stages")
    assert text.count("mirage::launch(") == 3 and "grid_" not in text


def test_constants_are_asked_for_in_front_of_the_wait() -> None:
    """Weights, and what was there before the launch; only what a stage writes is read behind it."""
    last = _text("rows and products").split("for (unsigned task = blockIdx.x")[3]
    before, _, behind = last.partition("grid_wait(task")
    assert "load_constants(turn, turn);" in before and "load_others(turn, turn);" in behind
    assert re.search(r"const __half\* const v\d+ = ", last) and "restrict__ x0 = " in last


def test_stages_are_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much work it is: by themselves they would have no barriers."""
    m = made("product and rows")
    real = prove.source

    def broken(*arguments: object) -> object:
        rendered = real(*arguments)  # type: ignore[arg-type]
        return replace(rendered, text=re.sub(r"\n *grid_arrive\(.*", "", rendered.text))

    monkeypatch.setattr(prove, "AFFORDABLE", 0)
    assert prove_kernels(m.program, m.graph, m.schedules, HOPPER).passed
    monkeypatch.setattr(prove, "source", broken)
    assert prove_kernels(m.program, m.graph, m.schedules, HOPPER).refuted


def test_blocks_of_other_threads_are_refused() -> None:
    m, other = made("rows and products"), made("rows and products", 8)
    mixed = (*m.schedules[:2], other.schedules[2])
    with pytest.raises(Refused, match="other threads"):
        source("s", m.program, m.graph, mixed, HOPPER, "")


def test_schedules_say_which_are_stages() -> None:
    m = made("siblings")
    assert staged(m.schedules, launches(m.graph, m.schedules)) == [[range(2), range(2, 3), range(3, 4)]]
    assert tuple(schedule_from_json(s.to_json()) for s in m.schedules) == m.schedules
    assert [s.stage for s in m.schedules] == [False, False, True, True]


@pytest.mark.nvcc
def test_it_compiles(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    assert nvcc is not None
    (tmp_path / "s.cu").write_text(_text("clusters"))
    command = [nvcc, "-std=c++17", "-arch=sm_90a", "-Werror", "all-warnings", "-I", str(include_dir()), "-c", "s.cu"]
    subprocess.run([*command, "-o", "s.o"], cwd=tmp_path, check=True, capture_output=True)


def _products(g: Graph, t: DType) -> list[int]:
    x = g.input("x", (1, 1024), t)
    y = compose.linear(g, x, g.input("w", (1024, 4096), t, constant=True))
    return [compose.linear(g, g.map("relu", y), g.input("v", (4096, 1024), t, constant=True))]


def test_stages_are_chosen_where_they_are_predicted_to_win() -> None:
    p = program(_products, F16)
    free = tuple(replace(s, barrier_us=0.0) if isinstance(s, Strip) else s for s in HOPPER.sections)
    usual, other = (Searcher(SearchOptions()).search(p, t).candidates for t in (HOPPER, replace(HOPPER, sections=free)))
    assert not any(s.stage for c in usual for s in c.schedules)
    best = other[0]
    first, *later = (s.stage for s in best.schedules)
    assert not first and later and all(later) and best.predicted_us < usual[0].predicted_us
    assert source("s", p, best.graph, best.schedules, HOPPER, "").text.count("mirage::launch_resident(") == 1
