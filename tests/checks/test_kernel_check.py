"""The float check, with kernels that are right, slightly wrong, or wrong in one case only."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from mirage_cli.backends.spec import OperatorSpec
from mirage_cli.checks import kernel_check as checks
from mirage_cli.checks.kernel_check import Runner, check
from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import BF16, BOOL, F16, F32, I64, DType
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.joints import Chosen
from mirage_cli.lax.ir.program import Program, Source
from mirage_cli.numerics.accuracy import rounded_figure
from mirage_cli.runtime import sessions
from tests.codegen.programs import NAMED, program

Arrays = Sequence[NDArray[Any]]


def _norm(g: Graph, t: DType) -> Sequence[int]:
    return [compose.rms_norm(g, g.input("x", (symbol("rows"), 33), t), [1], 1e-5)]


def _reference(arrays: Arrays, symbols: Mapping[str, int]) -> list[NDArray[Any]]:
    (x,) = arrays
    assert x.shape == (symbols["rows"], 33)
    wide = x.astype(np.float32)
    with np.errstate(all="ignore"):
        return [(wide / np.sqrt((wide**2).mean(1, keepdims=True) + np.float32(1e-5))).astype(x.dtype)]


@pytest.fixture(scope="module")
def norm() -> Program:
    return program(_norm, F32)


def test_a_right_kernel_passes(norm: Program) -> None:
    found = check(norm, _reference, _reference, {}, 1)
    assert found.passed
    assert found.worst is not None
    assert 0 < found.worst.rmse < 1e-6
    assert found.case in checks.PLAIN
    assert found.to_json()["error"] == rounded_figure(found.worst.rmse)
    assert found.to_json()["original_error"] == rounded_figure(found.worst.original_rmse)


def test_every_case_is_tried(norm: Program) -> None:
    seen: list[tuple[float, int]] = []

    def record(arrays: Arrays, symbols: Mapping[str, int]) -> list[NDArray[Any]]:
        seen.append((float(np.abs(arrays[0]).max(initial=0.0)), symbols["rows"]))
        return _reference(arrays, symbols)

    assert check(norm, record, _reference, {}, 1).passed
    names = [d.name for d in checks.draws(norm, {}, 1)]
    assert len(seen) == len(names) > len(checks.CASES) + 10
    largest, rows = dict(zip(checks.CASES, seen, strict=False)), [n for _, n in seen[: len(checks.CASES)]]
    assert largest["large"][0] > 50
    assert 10 > largest["random"][0] > 1
    assert 1e-2 > largest["tiny"][0] > largest["zero"][0] == 0
    assert max(rows) == largest["longer"][1] > 2 * largest["random"][1]


@pytest.mark.parametrize("case", checks.CASES)
def test_a_kernel_that_is_wrong_in_one_case_fails_there(norm: Program, case: str) -> None:
    number = itertools.count()

    def wrong(arrays: Arrays, symbols: Mapping[str, int]) -> list[NDArray[Any]]:
        (y,) = _reference(arrays, symbols)
        if next(number) == checks.CASES.index(case):
            y[-1, -1] += 1e-2
        return [y]

    found = check(norm, wrong, _reference, {}, 1)
    assert not found.passed
    assert found.case == case
    assert found.worst is not None
    assert found.worst.max_error == pytest.approx(1e-2, rel=1e-3)


def test_sums_in_another_order_may_be_worse_on_extreme_inputs(norm: Program) -> None:
    """Five times the original's error: too much for random inputs, allowed for large ones."""

    def noisy(error: float, large: bool) -> Runner:
        def run(arrays: Arrays, symbols: Mapping[str, int]) -> list[NDArray[Any]]:
            here = (max(float(np.abs(a).max(initial=0.0)) for a in arrays) > 100) == large
            return [y * np.float32(1 + error * here) for y in _reference(arrays, symbols)]

        return run

    assert check(norm, noisy(5e-4, True), noisy(1e-4, True), {}, 1).passed
    assert not check(norm, noisy(5e-4, False), noisy(1e-4, False), {}, 1).passed


def test_a_result_that_is_not_finite_fails(norm: Program) -> None:
    def infinite(arrays: Arrays, symbols: Mapping[str, int]) -> list[NDArray[Any]]:
        return [np.full_like(y, np.inf) for y in _reference(arrays, symbols)]

    found = check(norm, infinite, _reference, {}, 1)
    assert not found.passed
    assert found.worst is not None
    assert "not finite" in found.worst.note


def test_originals_that_would_end_the_process_are_not_run() -> None:
    """onnxruntime's Einsum divides by an extent of 0."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[2,n] x, float[3,n] y) => (float[2,3] z) {
        z = Einsum <equation = "in,jn->ij"> (x, y)
    }"""

    def build(g: Graph, t: DType) -> Sequence[int]:
        x, y = (g.input(name, (k, symbol("n")), t) for name, k in (("x", 2), ("y", 3)))
        return [compose.linear(g, x, y, transposed=True)]

    p = program(build, F32)
    model = onnx.parser.parse_model(text).SerializeToString()
    spec = OperatorSpec("0123456789abcdef", "linear_0123456789abcdef", (), (), ())
    job = checks.CheckJob(
        replace(p, outputs=(replace(p.outputs[0], name="z"),)), spec, Path(), model, ("x", "y"), {}, (), 1, {}
    )
    original = checks.original_runner(job)
    x, y = (np.ones((k, 4), np.float32) for k in (2, 3))
    assert original([x, y], {"n": 4})[0].tolist() == [[4.0] * 3] * 2
    with pytest.raises(Refused, match="Einsum"):
        original([x[:, :0], y[:, :0]], {"n": 0})


def test_weights_are_the_models_own() -> None:
    matmul = program(NAMED["matmul"], F32)
    weight = next(k for k, s in enumerate(matmul.sources) if s.dims == (33, 65))
    matmul = replace(matmul, sources=tuple(replace(s, constant=k == weight) for k, s in enumerate(matmul.sources)))
    own = np.full((33, 65), 0.25, np.float32)

    def product(arrays: Arrays, _: Mapping[str, int]) -> list[NDArray[Any]]:
        assert arrays[weight] is own
        with np.errstate(all="ignore"):
            return [arrays[1 - weight] @ own]

    assert check(matmul, product, product, {weight: own}, 1).passed


def test_what_is_too_large_is_skipped_and_says_so(monkeypatch: pytest.MonkeyPatch, norm: Program) -> None:
    monkeypatch.setattr(checks, "MAX_ELEMENTS", 100)
    found = check(norm, _reference, _reference, {}, 1)
    assert found.passed
    assert found.worst is None
    assert "too large for a float64 run" in found.skipped
    assert found.to_json() == {"target": "cpu", "skipped": found.skipped}


def test_symbols_fit_each_other_and_their_limits() -> None:
    values = checks.symbol_values(["past", "(past+1)", "batch"])
    assert values["(past+1)"] == values["past"] + 1
    assert values["batch"] != values["past"]
    limited = checks.symbol_values(["batch", "past"], "longer", {"batch": (1, 2), "past": (500, None)})
    assert limited == {"batch": 2, "past": 500}


def test_sizes_at_which_a_table_is_copied_for_every_row_are_smaller() -> None:
    """Experts of published models have 33 million elements, which the original nodes copy for each of 70 x 33 rows."""

    def rows(g: Graph, t: DType) -> Sequence[int]:
        return [
            compose.matmul(g, g.input("x", (symbol("rows"), 1, 64), t), g.input("w", (symbol("rows"), 64, 1 << 16), t))
        ]

    plain = program(rows, F32)
    sources = tuple(replace(s, chosen=Chosen(1, 4)) if s.name.startswith("t1") else s for s in plain.sources)
    chosen = replace(plain, sources=sources)
    assert any(s.chosen for s in sources)
    assert checks.case_sizes(plain, ["rows"], "longer", None) == {"rows": 70}
    assert checks.case_sizes(chosen, ["rows"], "longer", None)["rows"] == 8
    assert checks.case_sizes(chosen, ["rows"], "longer", {"rows": (12, None)})["rows"] == 12


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_drawn_numbers_are_normal_and_of_their_type(dtype: DType) -> None:
    drawn = checks.draw(Source("x", (1000,), dtype), [1000], "random", np.random.default_rng(1))
    wide = drawn.astype(np.float64)
    assert drawn.dtype.itemsize == dtype.bytes
    assert abs(wide.mean()) < 0.1
    assert abs(wide.std() - 1) < 0.1


def test_drawn_masks_leave_no_row_empty_and_integers_are_small() -> None:
    random = np.random.default_rng(1)
    mask = checks.draw(Source("m", (50, 7), BOOL), [50, 7], "random", random)
    assert mask.dtype == bool
    assert mask.any(axis=1).all()
    assert not mask.all()
    numbers = checks.draw(Source("n", (50,), I64), [50], "large", random)
    assert numbers.dtype == np.int64
    assert set(numbers.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("dims", [(3, 0), (0,), (0, 4)])
def test_masks_without_elements_are_drawn(dims: tuple[int, ...]) -> None:
    """A symbolic axis has no positions in the case "empty"."""
    assert checks.draw(Source("m", dims, BOOL), dims, "random", np.random.default_rng(0)).shape == dims


def test_constants_are_not_scaled() -> None:
    drawn = checks.draw(Source("w", (100,), F32, constant=True), [100], "zero", np.random.default_rng(1))
    assert np.abs(drawn).max() > 1


def test_the_seed_decides() -> None:
    fragment = program(NAMED["matmul"], F32)
    first, again, other = (checks.inputs(fragment, "random", seed, {}, {}) for seed in (1, 1, 2))
    assert all(np.array_equal(first[k], again[k]) for k in first)
    assert not any(np.array_equal(first[k], other[k]) for k in first)


def test_kernels_do_not_find_zeros_in_memory_that_they_have_not_written() -> None:
    with sessions.unclean_memory():
        assert set(_fresh(1 << 20)) == {0xFF}
    assert set(_fresh(1 << 20)) != {0xFF}


def _fresh(size: int) -> bytes:
    """What C's memory of this size holds when it is given."""
    c = ctypes.CDLL(None)
    c.aligned_alloc.restype = ctypes.c_void_p
    at = c.aligned_alloc(ctypes.c_size_t(128), ctypes.c_size_t(size))
    try:
        return ctypes.string_at(at, size)
    finally:
        c.free(ctypes.c_void_p(at))


def test_checked_kernels_are_called_so(monkeypatch: pytest.MonkeyPatch, norm: Program) -> None:
    """The outputs of a kernel that adds what it finds in its memory are not right."""

    class Found:
        def __init__(self, *_: object) -> None: ...

        def has(self, place: str) -> bool:
            return place == "cpu"

        def run(self, arrays: Arrays) -> tuple[NDArray[Any], ...]:
            (made,) = _reference(arrays, {"rows": arrays[0].shape[0]})
            return (made + np.frombuffer(_fresh(1 << 20), np.float32)[0],)

    job = checks.CheckJob(norm, cast(Any, SimpleNamespace(symbols=("rows",))), Path(), b"", (), {}, (), 1, {})
    monkeypatch.setattr(checks, "Kernel", Found)
    monkeypatch.setattr(checks, "original_runner", lambda job: _reference)
    found = checks.run_job(job)
    assert found is not None and not found.passed
