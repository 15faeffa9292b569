"""CUDA kernels in the emulator: right answers, nothing read or written outside of tiles and tensors, no barrier missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.codegen.requests.passes import Passes
from mirage_cli.codegen.tiles.optimize import optimized
from mirage_cli.codegen.tiles.tile import Barrier, TileProgram
from mirage_cli.lax.dtypes import BF16, F16, F32

from . import gains, kernels
from .kernels import Case
from .programs import NAMED, SPLIT, program, random_build

LAZY, BACKWARDS = "l", "b"
RANDOM = 8
EDGES = 9  #: inputs at the edges of numbers for each of some kernels
PHASES = ("prologue", "body", "epilogue")


def every_case() -> list[Case]:
    """Kernels of all named programs, of loops split over blocks, and of random programs."""
    found: list[Case] = []
    for k, (name, build) in enumerate(NAMED.items()):
        dtype = (F16, F32, BF16)[k % 3]
        label = f"{name.replace('_', '')}{dtype.name}"
        found += kernels.cases(label, program(build, dtype), ("sm_80", "sm_90a")[k % 2], 1, seed=k)
    for k, name in enumerate(SPLIT):
        label, dtype = f"{name.replace('_', '')}split", (F16, F32)[k % 2]
        found += kernels.cases(label, program(NAMED[name], dtype), "sm_80", 2, 7, lambda g: bool(g.split))
    for seed in range(RANDOM):
        build, dtype = random_build(seed)
        found += kernels.cases(f"random{seed}", program(build, dtype), "sm_80", 1, seed=seed)
    return found


@pytest.fixture(scope="module")
def all_cases() -> list[Case]:
    return every_case()


def test_every_program_has_a_kernel(all_cases: list[Case]) -> None:
    blocks = [c.graph.kernels[0].block for c in all_cases]
    split = [b for b in blocks if b.split]
    assert len(all_cases) > len(NAMED) + RANDOM
    assert any(b.loop in b.split for b in split) and any(b.loop not in b.split for b in split)
    assert any(o.op == "running" for b in blocks for o in b.ops)


def test_tiles_are_not_left(all_cases: list[Case], tmp_path: Path) -> None:
    """Every buffer lies alone between bytes that nobody may touch; copies arrive as late as they may."""
    texts = {c.name: kernels.emulated(c, separate=True) for c in all_cases}
    flags = [*kernels.EMULATOR_FLAGS, *kernels.ADDRESSES]
    harness = kernels.build(texts, tmp_path, flags, cuda=True)
    assert kernels.run(harness, all_cases, LAZY) == []


def test_memory_plan_and_barriers_in_two_orders(all_cases: list[Case], tmp_path: Path) -> None:
    texts = {c.name: kernels.emulated(c, separate=False) for c in all_cases}
    harness = kernels.build(texts, tmp_path, kernels.EMULATOR_FLAGS, cuda=True)
    assert kernels.run(harness, all_cases, LAZY) == []
    assert kernels.run(harness, all_cases, BACKWARDS) == []
    split = [c for c in all_cases if c.graph.kernels[0].block.split]
    assert kernels.edges(harness, [*all_cases[: len(NAMED) : 4], *split[1::2]], LAZY, EDGES) == []


def test_rows_that_overflow_with_their_gain(tmp_path: Path) -> None:
    gained = gains.block()
    texts = {gained.name: kernels.emulated(gained, separate=False)}
    harness = kernels.build(texts, tmp_path, [*kernels.EMULATOR_FLAGS, "-O1"], cuda=True)  # a kernel of many operations
    assert gains.problem(harness, gained) == ""


@pytest.mark.parametrize("name", ["attention", "rms_linear", "softmax"])
def test_a_barrier_that_is_missing_is_found(name: str, tmp_path: Path) -> None:
    (case,) = kernels.cases("whole", program(NAMED[name], F16), "sm_80", 1, seed=3)
    (tile,) = case.render().tiles
    spots = [(p, i) for p in PHASES for i, n in enumerate(getattr(tile, p)) if isinstance(n, Barrier)]
    assert spots
    texts, broken = {case.name: kernels.emulated(case, separate=False)}, []
    for k, (phase, place) in enumerate(spots):
        broken.append(replace(case, name=f"without{k}"))
        texts[broken[-1].name] = kernels.emulated(broken[-1], False, _without(phase, place))
    harness = kernels.build(texts, tmp_path, kernels.EMULATOR_FLAGS, cuda=True)
    assert kernels.run(harness, [case], LAZY) == kernels.run(harness, [case], BACKWARDS) == []
    for case in broken:
        assert kernels.run(harness, [case], LAZY) or kernels.run(harness, [case], BACKWARDS), case.name


def _without(phase: str, place: int) -> kernels.Finish:
    def dropped(tile: TileProgram, passes: Passes) -> TileProgram:
        made = optimized(tile, passes)
        nodes = list(getattr(made, phase))
        assert isinstance(nodes.pop(place), Barrier)
        changed: dict[str, Any] = {phase: tuple(nodes)}
        return replace(made, **changed)

    return dropped


def test_reading_outside_of_a_tile_is_found(tmp_path: Path) -> None:
    (case,) = kernels.cases("small", program(NAMED["vector"], F32), "sm_80", 1, kind=lambda g: g.loop is None)
    text = kernels.emulated(case, separate=True)
    broken = text.replace("mirage::contract<", "mirage::contract<16 + ", 1)
    assert broken != text
    flags = [*kernels.EMULATOR_FLAGS, *kernels.ADDRESSES]
    harness = kernels.build({case.name: broken}, tmp_path, flags, cuda=True)
    (problem,) = kernels.run(harness, [case], LAZY)
    assert "AddressSanitizer: use-after-poison" in problem
