"""float32 products by matrix instructions: as accurate as multiply-adds, and the same infinities and NaNs. In the interpreter
these are of the kernels around them; on a GPU of `split.cuh` itself."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_cli.lax.dtypes import F32, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.numerics.accuracy import compare
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.schedules.cost import number
from mirage_cli.search.schedules.schedule import Schedule

from . import gpu_verdicts, kernels
from .kernels import Answer, Case, single
from .programs import program
from .strip_programs import HOPPER, block_graphs

Floats = NDArray[np.float32]
ROWS, DEPTH, COLUMNS = 19, 272, 24
LARGEST = float(np.finfo(np.float32).max)


def _linear(g: Graph, t: DType) -> Sequence[int]:
    return [compose.matmul(g, g.input("x", (ROWS, DEPTH), t), g.input("w", (DEPTH, COLUMNS), t))]


def _chained(g: Graph, t: DType) -> Sequence[int]:
    """The left operand of the second product is in registers."""
    x, y, w = (g.input(n, e, t) for n, e in (("x", (ROWS, 16)), ("y", (16, DEPTH)), ("w", (DEPTH, COLUMNS))))
    return [compose.matmul(g, g.map("relu", compose.matmul(g, x, y)), w)]


@functools.cache
def _cases() -> dict[str, Case]:
    p, q = program(_linear, F32), program(_chained, F32)
    whole = next(b for b in block_graphs(p) if not b.split)
    chain = next(b for b in block_graphs(q) if not b.split)
    strip = Schedule(_tiles(p, whole), 32, 2, 2, "strip", (("members", 1),))
    chained = Schedule(_tiles(q, chain), 16, 2, 2, "strip", (("members", 1),))
    block = Schedule(_tiles(p, whole), 64, 4, 2)
    return {
        "strip": Case("strip", p, single(p, whole), (strip,), HOPPER),
        "block": Case("block", p, single(p, whole), (block,), HOPPER),
        "chained": Case("chained", q, single(q, chain), (chained,), HOPPER),
    }


def _tiles(p: Program, b: BlockGraph) -> tuple[tuple[str, int], ...]:
    return tuple((a, {ROWS: 32, COLUMNS: 24}[number(p.extent(a))]) for a in b.grid)


@pytest.fixture(scope="module", params=["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def answer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """What makes results of inputs."""
    assert all("contract" in c.render().text for c in _cases().values())
    if request.param == "interpreter":
        return kernels.answered
    if pytest.importorskip("cupy").cuda.runtime.getDeviceCount() == 0:
        pytest.skip("no GPU")
    made = {name: gpu_verdicts.library(c.render().text, tmp_path_factory.mktemp(name)) for name, c in _cases().items()}
    return lambda case, arrays: gpu_verdicts.runner(case, made[case.name] or Path())(arrays, {})


def _result(answer: Answer, name: str, *arrays: Floats) -> Floats:
    case = _cases()[name]
    by_shape = {a.shape: a for a in arrays}
    found = answer(case, [by_shape[tuple(map(number, s.dims))] for s in case.program.sources])
    assert not isinstance(found, str), found
    return found[0]


def _added(x: Floats, w: Floats) -> Floats:
    """One multiply-add after the other, each rounded once."""
    total = np.zeros((len(x), w.shape[1]), np.float32)
    for k in range(x.shape[1]):
        total = (total.astype(np.float64) + x[:, k : k + 1].astype(np.float64) * w[k].astype(np.float64)).astype("f4")
    return total


def _operands(seed: int = 0) -> tuple[Floats, Floats]:
    random = np.random.default_rng(seed)
    return (
        random.standard_normal((ROWS, DEPTH)).astype(np.float32),
        random.standard_normal((DEPTH, COLUMNS)).astype(np.float32),
    )


@pytest.mark.parametrize("name", ["strip", "block"])
@pytest.mark.parametrize("positive", [False, True])
def test_errors_are_those_of_multiply_adds(answer: Answer, name: str, positive: bool) -> None:
    x, w = _operands()
    x, w = (abs(x), abs(w)) if positive else (x, w)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    found = compare(_result(answer, name, x, w), _added(x, w), exact, F32)
    assert found.passed, found
    assert found.rmse <= 1.25 * found.original_rmse


def _special(x: Floats, w: Floats) -> None:
    """Infinities, NaNs, and numbers next to the largest one, where they meet zeros, signs and one another."""
    x[0, 3], x[1, 3], x[1, 50], x[2, 200], x[5, 7] = np.inf, np.inf, -np.inf, np.nan, LARGEST
    x[6, 7], x[7, 7] = -LARGEST, 3e38
    w[3, 1], w[10, 4], w[20, 5], w[7, 6], w[7, 7] = 0.0, np.inf, np.nan, 0.25, 1.0
    x[8, 10] = 0.0
    x[9] = 0.0
    w[:, 8] = 0.0
    x[10] = np.float32(2.0**60)
    w[:, 9] = np.float32(2.0**70)


SCALES = {
    "small": (2.0**-130, 2.0**100),
    "both": (2.0**-70, 2.0**-70),
    "large": (2.0**60, 1.46 * 2.0**60),
    "least": (2.0**-148, 1.0),
}


@pytest.mark.parametrize("name", ["strip", "block"])
@pytest.mark.parametrize("kind", ["special", *SCALES])
def test_what_is_no_ordinary_number_is_as_it_was(answer: Answer, name: str, kind: str) -> None:
    """Compared number by number: an error of a few units of what was added up."""
    x, w = _operands(1)
    if kind == "special":
        _special(x, w)
    else:
        x, w = x * np.float32(SCALES[kind][0]), w * np.float32(SCALES[kind][1])
    if kind == "large":  # of one sign, so that no order of the sum overflows but for the result
        x, w = abs(x), abs(w)
    with np.errstate(all="ignore"):
        exact = x.astype(np.float64) @ w.astype(np.float64)
        size = abs(x.astype(np.float64)) @ abs(w.astype(np.float64))
        wanted = exact.astype(np.float32)
    found = _result(answer, name, x, w)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))
    np.testing.assert_array_equal(found[np.isinf(wanted)], wanted[np.isinf(wanted)])
    known = np.isfinite(wanted)
    bound = DEPTH / 8 * 2.0**-24 * size[known] + DEPTH * 2.0**-149
    assert (abs(found[known].astype(np.float64) - exact[known]) <= bound).all()
    assert known.sum() > 100


@pytest.mark.parametrize("special", [False, True])
def test_results_in_registers_are_operands(answer: Answer, special: bool) -> None:
    random = np.random.default_rng(2)
    x, y, w = (random.standard_normal(s).astype(np.float32) for s in ((ROWS, 16), (16, DEPTH), (DEPTH, COLUMNS)))
    if special:
        x[0, 3], w[100, 4], y[:, 30] = np.inf, np.inf, y[:, 30] * np.float32(2.0**90)
    with np.errstate(all="ignore"):
        left = np.maximum(_added(x, y), np.float32(0.0))
        original = _added(left, w)
        exact = np.maximum(x.astype(np.float64) @ y.astype(np.float64), 0.0) @ w.astype(np.float64)
        found = compare(_result(answer, "chained", x, y, w), original, exact, F32)
    assert found.passed, found
