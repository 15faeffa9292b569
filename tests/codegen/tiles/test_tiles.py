"""Memory plans, names, and what the targets refuse."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_cli.codegen import render
from mirage_cli.codegen.requests.passes import Passes
from mirage_cli.codegen.tiles.memory import ALIGNMENT, live_ranges, nbytes
from mirage_cli.codegen.tiles.optimize import tile_program
from mirage_cli.codegen.tiles.tile import FRAGMENT, TileProgram
from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.lax.dtypes import F16, F32, DType
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.schedules.target import load_target
from tests.codegen.kernels import cases
from tests.codegen.programs import NAMED, program

HOSTILE = 'a */ #include "/etc/passwd"\n#error " ?? /* \\'


def _tiles(name: str, target: str) -> list[TileProgram]:
    return [t for c in cases("k", program(NAMED[name], F16), target, 4, 2) for t in c.render().tiles]


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
@pytest.mark.parametrize("name", ["attention_boolean", "layer_norm_gelu", "lora", "two_outputs"])
def test_buffers_that_live_together_do_not_overlap(name: str, target: str) -> None:
    tiles = _tiles(name, target)
    assert len(tiles) == 4
    for tile in tiles:
        ranges = live_ranges(tile)
        assert set(tile.offsets) == set(ranges)
        for x, (first, last) in ranges.items():
            assert tile.offsets[x] % ALIGNMENT == 0
            assert tile.offsets[x] + nbytes(tile, x) <= tile.shared_bytes <= tile.target.shared_bytes
            for y, (low, high) in ranges.items():
                apart = tile.offsets[x] + nbytes(tile, x) <= tile.offsets[y] or (
                    tile.offsets[y] + nbytes(tile, y) <= tile.offsets[x]
                )
                assert x == y or apart or last < low or high < first, f"{x} and {y} of\n{tile.text()}"


def test_text_names_every_buffer_and_node() -> None:
    for tile in _tiles("attention", "sm_80"):
        lines = tile.text().splitlines()
        assert len([x for x in lines if x.startswith("buffer ")]) == len(tile.buffers)
        assert len([x for x in lines if x.split(":")[0] in ("prologue", "body", "epilogue")]) == sum(
            len(nodes) for nodes in (tile.prologue, tile.body, tile.epilogue)
        )


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
@pytest.mark.parametrize("name", ["rms_linear", "symbolic"])
def test_names_of_a_model_never_reach_a_source(name: str, target: str) -> None:
    plain = [c.render().text for c in cases("k", program(NAMED[name], F32), target, 2, 4)]
    hostile = [c.render().text for c in cases("k", program(NAMED[name], F32, HOSTILE), target, 2, 4)]
    assert plain and plain == hostile
    assert not any("passwd" in text for text in hostile)


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
def test_names_of_symbols_never_reach_a_source(target: str) -> None:
    def build(named: str) -> Program:
        def record(g: Graph, t: DType) -> Sequence[int]:
            return [g.map("exp", g.map("mul", g.input("x", (symbol(named), 3), t), g.input("y", (3,), t)))]

        return program(record, F32)

    plain, hostile = ([c.render().text for c in cases("k", build(n), target, 2, 4)] for n in ("n", HOSTILE))
    assert plain and plain == hostile


def test_too_much_memory_is_refused() -> None:
    (case,) = cases("k", program(NAMED["rms_linear"], F16), "sm_80", 1)
    (kernel,) = case.graph.kernels
    small = replace(case.target, shared_bytes=256)
    with pytest.raises(Refused, match=r"bytes of shared memory, sm_80 has 256"):
        tile_program(kernel.program, kernel.block, case.schedules[0], small)


def test_a_split_reduction_leaves_room_for_its_counter() -> None:
    (case,) = cases("k", program(NAMED["deep"], F16), "sm_80", 1, 0, lambda g: bool(g.split))
    (kernel,) = case.graph.kernels
    plain = Passes(layouts=False, order=False, memory=False)  # one plan, no smaller one to fall back on
    tile = tile_program(kernel.program, kernel.block, case.schedules[0], case.target, plain)
    exact = replace(case.target, shared_bytes=tile.shared_bytes)
    with pytest.raises(Refused, match="bytes of shared memory"):
        tile_program(kernel.program, kernel.block, case.schedules[0], exact, plain)


def test_a_schedule_of_another_grid_is_invalid() -> None:
    (case,) = cases("k", program(NAMED["rms_linear"], F16), "sm_80", 1)
    (kernel,) = case.graph.kernels
    with pytest.raises(InvalidGraph, match="schedule tiles axes"):
        tile_program(kernel.program, kernel.block, replace(case.schedules[0], tiles=(("zz", 1),)), case.target)


def test_a_split_reduction_is_refused_on_the_cpu() -> None:
    (case,) = cases("k", program(NAMED["deep"], F16), "sm_80", 1, 0, lambda g: bool(g.split))
    (kernel,) = case.graph.kernels
    with pytest.raises(Refused, match="blocks of this target do not reduce together"):
        tile_program(kernel.program, kernel.block, case.schedules[0], load_target("cpu"))


@pytest.mark.parametrize("header", ["cpu/math.hpp", "cpu/tile.hpp", "entry.h"])
def test_header_compiles_alone(header: str, tmp_path: Path) -> None:
    (tmp_path / "alone.cpp").write_text(f'#include "mirage/{header}"\n')
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-c", f"-I{render.include_dir()}", "alone.cpp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_fragments_take_no_shared_memory() -> None:
    for tile in _tiles("attention", "sm_80"):
        assert not any(tile.buffers[b].place == FRAGMENT for b in tile.offsets)
