"""Rates of targets: what kernels can do of a type, and what libraries do."""

from __future__ import annotations

import pytest

from mirage_cli.lax.dtypes import F16, F32
from mirage_cli.search.schedules.target import load_target, target_names


@pytest.mark.parametrize("name", target_names())
def test_kernels_split_float32_where_there_are_matrix_instructions(name: str) -> None:
    target = load_target(name)
    assert target.rate(F16) == target.library_rate(F16)
    assert target.rate(None) == target.rate(F32)
    if target.kind == "cuda":  # three products for one
        assert target.library_rate(F32) < target.rate(F32) < target.rate(F16) / 3
    else:
        assert target.library_rate(F32) == target.rate(F32)
