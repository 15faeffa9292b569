"""The engine `rows`: in the emulator, under nvcc, as golden text, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_cli.lax.dtypes import BF16, F16, F32
from mirage_cli.search.search import Searcher, SearchOptions

from . import kernels
from .kernels import Case
from .programs import program
from .row_programs import NAMED, random_rows, row_cases

BACKWARDS = "b"
RANDOM = 24


@pytest.fixture(scope="module")
def all_cases() -> list[Case]:
    found: list[Case] = []
    for k, (name, build) in enumerate(NAMED.items()):
        dtype = (F16, F32, BF16)[k % 3]
        made, target = program(build, dtype), ("sm_80", "sm_90a")[k % 2]
        graphs = [g for g in Searcher(SearchOptions()).blocks(made)[0] if not g.split]
        found += row_cases(f"{name}{dtype.name}", made, target, 3, k, graphs)
    for seed in range(RANDOM):
        build, dtype = random_rows(seed)
        found += row_cases(f"random{seed}", program(build, dtype), "sm_90a", 1, seed)
    return found


def test_rows_are_right_in_two_orders(all_cases: list[Case], tmp_path: Path) -> None:
    assert len(all_cases) == 3 * len(NAMED) + RANDOM
    texts = {c.name: kernels.emulated(c, separate=False) for c in all_cases}
    harness = kernels.build(texts, tmp_path, [*kernels.EMULATOR_FLAGS, *kernels.ADDRESSES], cuda=True)
    assert kernels.run(harness, all_cases) == []
    assert kernels.run(harness, all_cases, BACKWARDS) == []
