"""Windows of large programs: what they compute is what the whole computes there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_cli.checks import kernel_check as checks
from mirage_cli.checks.kernel_check import check
from mirage_cli.errors import Refused
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.dtypes import F32, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.numerics import windows
from tests.codegen.programs import program

Arrays = Sequence[NDArray[Any]]


def _norm_linear(g: Graph, t: DType) -> Sequence[int]:
    x = compose.rms_norm(g, g.input("x", (40, 24), t), [1], 1e-5)
    return [compose.matmul(g, x, g.input("w", (24, 50), t))]


def _heads(g: Graph, t: DType) -> Sequence[int]:
    """A batched product whose result is stored with the batch inside."""
    y = compose.matmul(g, g.input("x", (20, 33, 5), t), g.input("w", (20, 5, 3), t))
    return [g.reshape(g.transpose(y, (1, 0, 2)), (33, 60))]


def _total(g: Graph, t: DType) -> Sequence[int]:
    return [g.reduce("sum", g.input("x", (40, 24), t), [0, 1])]


def arrays_of(p: Program) -> dict[int, NDArray[np.float64]]:
    random = np.random.default_rng(1)
    return {k: random.standard_normal([int(str(d)) for d in s.dims]) for k, s in enumerate(p.sources)}


def evaluated(p: Program, arrays: Mapping[int, NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    return evaluate_program(p, Float64([a.name for a in p.axes]), arrays)


@pytest.mark.parametrize("build", [_norm_linear, _heads])
def test_a_window_shows_what_the_whole_computes(build: Any) -> None:
    p = program(build, F32)
    arrays = arrays_of(p)
    (whole,) = evaluated(p, arrays)
    axes = windows.free_axes(p, {})
    assert len(axes) == 2
    parts = [p]
    for axis in axes:
        parts = [w for part in parts for w in windows.both_ends(part, {}, axis)]
        for part in parts:
            (found,) = evaluated(windows.compact(part).validate(), arrays)
            np.testing.assert_allclose(found, windows.shown_by_window(part, part.outputs[0], whole, {}), rtol=1e-12)
            assert found.size < whole.size
    assert not np.array_equal(*(windows.shown_by_window(part, part.outputs[0], whole, {}) for part in parts[::3]))


def test_axes_that_are_summed_are_not_free() -> None:
    assert windows.free_axes(program(_total, F32), {}) == []


# --- in the float check -----------------------------------------------------------------------------------------------
def kernel(arrays: Arrays, symbols: Mapping[str, int]) -> list[NDArray[Any]]:
    x, w = arrays if arrays[0].shape == (40, 24) else arrays[::-1]
    normal = x / np.sqrt((x**2).mean(1, keepdims=True) + np.float32(1e-5))
    return [(normal @ w).astype(np.float32)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs count as too large soon."""
    monkeypatch.setattr(checks, "MAX_WORK", 20 * 24 * 50)


@pytest.mark.usefixtures("small")
def test_a_case_of_a_large_program_compares_its_ends() -> None:
    p = program(_norm_linear, F32)
    arrays = [a.astype(np.float32) for a in arrays_of(p).values()]
    case = checks.case_of(p, checks.TYPICAL, arrays, {}, kernel)
    assert len(case.windows) == 2
    right = kernel(arrays, {})
    assert case.compared(p, right).passed
    for row in (0, 15, 24, 39):
        wrong = right[0].copy()
        wrong[row, 7] += 0.5
        assert not case.compared(p, [wrong]).passed
    assert check(p, kernel, kernel, {}, 1).skipped  # on a machine without a GPU nothing as large is run


@pytest.mark.usefixtures("small")
def test_a_program_without_free_axes_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_WORK", 100)
    p = program(_total, F32)
    arrays = list(arrays_of(p).values())
    with pytest.raises(Refused, match="too large for a float64 run"):
        checks.case_of(p, checks.TYPICAL, arrays, {}, lambda a, s: [a[0].sum()])
