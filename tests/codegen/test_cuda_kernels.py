"""CUDA kernels as they are printed, run by the interpreter in float32: right answers, nothing read or written outside of
tensors, no barrier missing."""

from __future__ import annotations

import re

import pytest

from mirage_cli.kernel_proof.run import Source
from mirage_cli.lax.dtypes import BF16, F16, F32

from . import gains, kernels
from .kernels import Case
from .programs import NAMED, SPLIT, program, random_build

SEEDS = (0, 1, 2, 3, 5, 6, 7)  #: of random programs; the 4th takes a third of the time of all kernels
EDGES = 9  #: inputs at the edges of numbers, of which some kernels take a third each


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
    for seed in SEEDS:
        build, dtype = random_build(seed)
        found += kernels.cases(f"random{seed}", program(build, dtype), "sm_80", 1, seed=seed)
    return found


@pytest.fixture(scope="module")
def all_cases() -> list[Case]:
    return every_case()


def test_every_program_has_a_kernel(all_cases: list[Case]) -> None:
    blocks = [c.graph.kernels[0].block for c in all_cases]
    split = [b for b in blocks if b.split]
    assert len(all_cases) > len(NAMED) + len(SEEDS)
    assert any(b.loop in b.split for b in split) and any(b.loop not in b.split for b in split)
    assert any(o.op == "running" for b in blocks for o in b.ops)


def test_kernels_are_right(all_cases: list[Case]) -> None:
    """With copies that land as late as they may, or (of some) at once; and on inputs at the edges of numbers."""
    assert kernels.problems(all_cases) == kernels.problems(all_cases[::6], at_once=True) == []
    split = [c for c in all_cases if c.graph.kernels[0].block.split]
    assert kernels.edges(kernels.answered, all_cases[: len(NAMED) : 4], EDGES, 3) == []
    assert kernels.edges(kernels.answered, split[1::2], EDGES, 3) == []


def test_rows_that_overflow_with_their_gain() -> None:
    assert gains.problem(gains.block()) == ""


@pytest.mark.parametrize(
    ("name", "wanted"), [("rms_linear", [False, False, False, True, True]), ("softmax", [False, *[True] * 4])]
)
def test_a_barrier_that_is_missing_is_found(name: str, wanted: list[bool]) -> None:
    """All but those behind copies that there are none of, and between what one thread does alone."""
    (case,) = kernels.cases("whole", program(NAMED[name], F16), "sm_80", 1, seed=3)
    text, arrays = case.render().text, case.inputs()
    places = [m.span() for m in re.finditer(r"__syncthreads\(\);", text)]
    found = [kernels.interpreted(case, Source(text[:a] + text[b:]), arrays) for a, b in places]
    assert [isinstance(f, str) and "no barrier between them" in f for f in found] == wanted
    assert all(isinstance(f, str) or case.problem(f, arrays) == "" for f in found)
