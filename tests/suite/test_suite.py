"""`mirage bench --suite`: rows are optimized, judged and timed; what is printed. Without a GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_cli.backends.spec import OperatorSpec, TensorSpec
from mirage_cli.errors import MirageError, ModelError, ToolMissing, UsageError
from mirage_cli.lax.dtypes import F16, F32
from mirage_cli.machine import devices
from mirage_cli.options.options import Options
from mirage_cli.processes import isolation
from mirage_cli.report.stages import Silent
from mirage_cli.suite import build as suite_build
from mirage_cli.suite import cases as suite_cases
from mirage_cli.suite import measure, suite, suites
from mirage_cli.suite.build import Built, Operator, Row
from mirage_cli.suite.cases import Case, Tensor
from mirage_cli.suite.measure import MeasureOptions
from mirage_cli.suite.report import SuiteReport, SuiteRow, write_markdown
from mirage_cli.suite.suite import SuiteOptions
from tests.gpu_fake import FakeBackend

SETTINGS = {"suite": "paper", "dtype": "fp16", "allow_tf32": False, "tuned": False, "peers_from": None, "part": None}
LIMITS = {"bandwidth": 4e12, "flops": {"fp16": 8e14}, "launch_us": 1.0, "gpu_state": {"device": "H200", "driver": "1"}}


def us(median: float) -> dict[str, Any]:
    return {"median": median, "q1": median, "q3": median, "min": median, "samples": 3}


def row(name: str, ours: float | None, peers: dict[str, float], decode: bool = True, **found: Any) -> SuiteRow:
    """40 MB: a floor of 10 us."""
    mirage = {"us": us(ours), "isolated_us": us(ours + 1)} if ours else {"problem": "WRONG: rmse 1"}
    data = {
        "mirage": mirage,
        "kernels": [{"tiles": {}}, {"tiles": {}, "engine": "strip"}],
        "predicted_us": 10.0,
    } | found
    return SuiteRow(name, "x[1]", decode, 40_000_000, 8e8, data, {n: {"us": us(t)} for n, t in peers.items()})


REPORT = SuiteReport(
    "1",
    SETTINGS,
    LIMITS,
    (
        row("a", 20.0, {"torch eager": 80.0, "sdpa flash": 40.0}),
        row("b", 12.5, {"torch eager": 100.0}),
        row("c", None, {"torch eager": 5.0}),
        row("d", 40.0, {"torch eager": 20.0}, decode=False),
    ),
)


# ---- the report ------------------------------------------------------------------------------------------------------


def test_a_row_is_compared_with_its_fastest_peer_and_its_floor() -> None:
    first = REPORT.to_json()["rows"][0]
    assert (first["best_peer"], first["ratio"]) == ("sdpa flash", 2.0)
    assert (first["floor_us"], first["share_of_floor"]) == (10.0, 0.5)
    compute = replace(REPORT.rows[0], flops=8e10)
    assert compute.floor(LIMITS) == pytest.approx(100.0)


def test_means_leave_out_rows_without_a_time_and_keep_decode_apart() -> None:
    means = REPORT.means
    assert means["ratio_decode"] == pytest.approx((2.0 * 8.0) ** 0.5)
    assert means["ratio_prefill"] == pytest.approx(0.5)
    assert means["share_of_floor_decode"] == pytest.approx((0.5 * 0.8) ** 0.5)
    assert means["prediction_decode"] == pytest.approx((2.0 * 1.25) ** 0.5)


def test_the_table_marks_the_fastest_peer_and_wrong_rows() -> None:
    lines = REPORT.text().splitlines()
    head = next(line for line in lines if line.startswith("us for one call"))
    assert head.split()[-4:] == ["torch", "eager", "sdpa", "flash"]
    a, c = (next(line.split() for line in lines if line.startswith(f"{n} ")) for n in "ac")
    assert a == ["a", "10.00", "20.00", "21.00", "2.00", "50%", "10.00", "block+strip", "80.00", "*40.00"]
    assert c[:4] == ["c", "10.00", "WRONG", "-"]
    assert "c: WRONG: rmse 1" in lines
    assert REPORT.wrong and not replace(REPORT, rows=REPORT.rows[:2]).wrong


def test_a_document_takes_the_table_between_its_marks(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- suite paper fp16 -->\nold\n<!-- end of suite paper fp16 -->\nafter\n")
    for _ in range(2):
        write_markdown(REPORT, REPORT.markdown(), path)
    text = path.read_text()
    assert text.startswith("before\n") and text.endswith("-->\nafter\n") and "old" not in text
    assert text.count("| a | 10.00 | 20.00 |") == 1
    path.write_text("nothing")
    with pytest.raises(UsageError, match="expected the lines"):
        write_markdown(REPORT, REPORT.markdown(), path)


def document(name: str, peers: dict[str, Any]) -> dict[str, Any]:
    """That of a run that found these peers' times for a row."""
    return {**REPORT.to_json(), "rows": [{"name": name, "peers": peers}]}


# ---- a run -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SuiteOptions:
    """A run whose rows are not optimized and whose GPU says what the script has for each row."""
    monkeypatch.setattr(devices, "device", lambda n: devices.Device(n, "GPU-1", "NVIDIA H200", "580", "9.0", "1 MiB"))

    def build(
        name: str, cases: Sequence[Case], dtype: str, folder: Path, options: Options, progress: Any, until: float
    ) -> list[Row]:
        assert (options.arch, options.gpu) == (("sm_90a",), None)
        return [Row(c.name, dtype, folder / c.name) for c in cases]

    def each(
        function: Any, jobs: Sequence[Any], workers: int, apart: bool = False, seconds: float = 0
    ) -> Iterator[Any]:
        assert workers == 1 and apart and jobs[0][0] == "ceilings"
        yield 0, LIMITS
        for k, job in enumerate(jobs[1:], 1):
            case = job[3].case
            if case == "gqa_b1":
                yield k, isolation.Lost("its process ended with exit code 86")
            else:
                yield (
                    k,
                    {"mirage": {"us": us(10.0), "isolated_us": us(11.0)}, "peers": {"torch eager": {"us": us(20.0)}}},
                )

    monkeypatch.setattr(suite_build, "build", build)
    monkeypatch.setattr(isolation, "each", each)
    return SuiteOptions(only=("gqa_b*",), build=tmp_path)


def test_a_row_that_breaks_the_gpu_does_not_end_the_run(scripted: SuiteOptions) -> None:
    found = suite.run(scripted)
    assert [r.name for r in found.rows] == ["gqa_b1", "gqa_b8"]
    assert found.rows[0].problem == "failed: it left the GPU unusable"
    assert found.rows[1].ratio == 2.0
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["rows"][1]["ratio"] == 2.0


@pytest.mark.torch
def test_peers_of_an_earlier_run_fill_what_was_not_measured(scripted: SuiteOptions, tmp_path: Path) -> None:
    path = tmp_path / "earlier.json"
    peers = {"torch.compile": {"us": us(5.0)}, "torch eager": {"us": us(1.0)}}
    path.write_text(json.dumps(document("gqa_b8", peers)))
    found = suite.run(replace(scripted, peers_from=path))
    last = found.rows[1]
    assert last.best == ("torch.compile", 5.0)
    assert last.peers["torch eager"]["us"]["median"] == 20.0  # measured now
    assert "*5.00'" in found.text() and f"' taken from {path}" in found.text()
    with pytest.raises(UsageError, match="its dtype is fp16, not bf16"):
        suite.run(replace(scripted, peers_from=path, dtype="bf16"))
    path.write_text("{}")
    with pytest.raises(ModelError, match="expected the JSON document"):
        suite.run(replace(scripted, peers_from=path))


def test_a_run_ends_in_time_with_the_rows_that_it_has(scripted: SuiteOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 31.0])
    monkeypatch.setattr(suite.time, "monotonic", lambda: next(clock))
    assert [r.name for r in suite.run(replace(scripted, within=30.0)).rows] == ["gqa_b1"]


def test_a_run_that_is_interrupted_reports_the_rows_that_it_has(
    scripted: SuiteOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(after: int) -> SuiteReport:
        def each(*given: Any, **options: Any) -> Iterator[tuple[int, Any]]:
            for n, result in enumerate(whole(*given, **options)):
                if n == after:
                    raise KeyboardInterrupt
                yield result

        monkeypatch.setattr(isolation, "each", each)
        return suite.run(scripted)

    whole = isolation.each
    found = stopped(2)
    assert [r.name for r in found.rows] == ["gqa_b1"] and found.interrupted
    with pytest.raises(KeyboardInterrupt):
        stopped(1)


def test_rows_that_are_not_optimized_in_time_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(suite_build, "build_row", lambda *arguments: "")
    cases, options = suites.chosen("paper", ("gqa_*", "mha_*")), Options(gpu=0)
    made = suite_build.build("paper", cases, "fp16", tmp_path, options, Silent(), suite.time.monotonic())
    assert [r.case for r in made] == [cases[0].name]
    assert len(suite_build.build("paper", cases, "fp16", tmp_path, options, Silent())) == len(cases)


def test_peers_alone_need_no_build(scripted: SuiteOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_build, "build", None)
    assert suite.run(replace(scripted, peers_only=True)).rows[1].best == ("torch eager", 20.0)


def test_without_a_gpu_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "devices", lambda: [])
    with pytest.raises(ToolMissing, match="no NVIDIA GPU"):
        suite.run(SuiteOptions())
    with pytest.raises(UsageError, match="--dtype int8"):
        suite.run(SuiteOptions(dtype="int8"))


# ---- optimizing a row ------------------------------------------------------------------------------------------------


def _triangle(net: suite_cases.Net, x: str, w: str) -> str:
    """rms(X) W where the column is not behind the row: a mask that is folded, and too large for a node of the copy."""
    rows, columns = (net("Range", net.whole(0), net.whole(n), net.whole(1)) for n in (180, 24))
    at = net("Unsqueeze", rows, net.integers(1)), net("Unsqueeze", columns, net.integers(0))
    return net("Where", net("GreaterOrEqual", *at), net("MatMul", net.rms(x), w), net.number(0))


def test_a_row_goes_through_optimize_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = replace(suite_cases.rmsnorm_linear("small", 180, 32, 24), graph=_triangle)
    monkeypatch.setitem(suites.SUITES, "small", lambda: (small,))
    options = Options(target=("cpu",), force=True, jobs=2, cache="")
    folder = tmp_path / "small-fp32"
    assert suite_build.build_row("small", "small", "fp32", folder, options) == ""
    made = (folder / "out" / "libmirage.so").stat().st_mtime_ns
    assert suite_build.build_row("small", "small", "fp32", folder, options) == ""
    assert (folder / "out" / "libmirage.so").stat().st_mtime_ns == made
    built = suite_build.read(Row("small", "fp32", folder))
    (operator,) = built.operators
    (stored,) = sorted(set(operator.inputs) - {"w", "x"})
    assert operator.outputs == ("output",)
    assert {t.name: t.dims for t in operator.spec.inputs} == {"x": (180, 32), "w": (32, 24), stored: (180, 24)}
    given = measure.stored_sets(built, FakeBackend(), 2)
    assert set(given) == {stored}
    assert all((given[stored].get(k) == np.tri(180, 24)).all() for k in range(2))
    assert built.library.exists() and built.predicted_us > 0
    monkeypatch.setattr(suite_build, "sources_digest", lambda: "changed")
    assert suite_build.build_row("small", "small", "fp32", folder, replace(options, skip=("*",))) == ""
    assert (folder / "out" / "report.json").exists()
    with pytest.raises(ModelError, match=r"left to the runtime: .*Pow"):
        suite_build.read(Row("small", "fp32", folder))
    with pytest.raises(MirageError, match="too large"):
        suite_build.read(Row("small", "fp32", folder, "too large"))


# ---- measuring a row, on torch's CPU ---------------------------------------------------------------------------------

KERNEL = """
#include <stdint.h>
long long mirage_ab_workspace(const int64_t* e) { return 0; }
int mirage_ab(const void* const* in, void* const* out, void* w, const int64_t* e, void* stream) {
    for (int i = 0; i < 48; ++i) ((float*)out[0])[i] = FACTOR * ((const float*)in[1])[0] * ((const float*)in[0])[i];
    return 0;
}
"""
TWICE = Case(
    "twice",
    (Tensor("x", (4, 12)),),
    (4, 12),
    lambda net, x: net("Mul", x, net.number(2)),
    lambda torch, f, x: x * 2,
    0.0,
    sdpa=lambda torch, f, x: x + x,
    own=lambda torch, x: (x,),
)


def measured(monkeypatch: pytest.MonkeyPatch, folder: Path, factor: str, case: Case = TWICE) -> dict[str, Any]:
    """The row of `case` with a kernel that multiplies by `factor`, and by a stored 0.5."""
    pytest.importorskip("torch", reason="torch is not installed")
    from mirage_cli.measurement.gpu import GpuTimer
    from tests.torch_fake import CpuTorch

    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / "k.c").write_text(KERNEL)
    library = folder / "libk.so"
    subprocess.run([compiler, "-shared", "-fPIC", f"-DFACTOR={factor}", "-o", library, folder / "k.c"], check=True)
    inputs = (TensorSpec("x", F32, (4, 12)), TensorSpec("half", F32, (1,)))
    spec = OperatorSpec("ab", "Twice_ab", inputs, (TensorSpec("output", F32, (4, 12)),))
    report = {"predicted_us": 3.0, "schedule": {"cuda": [{"engine": "strip"}]}}
    stored = {"half": np.array([0.5], np.float32)}
    built = Built(library, (Operator(spec, ("x", "half"), ("output",)),), (report,), stored)
    monkeypatch.setattr(measure, "read", lambda row: built)
    monkeypatch.setattr(measure.peers, "fused", lambda torch, column, function: function)
    backend = CpuTorch()
    asked = MeasureOptions(0, ("eager", "sdpa"), seconds=0.001)
    timer = GpuTimer(backend=backend)
    return measure.Measurement(case, F32, timer, backend, asked).run(Row("twice", "fp32", folder))


@pytest.mark.torch
def test_a_row_is_judged_and_timed_beside_its_peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = measured(monkeypatch, tmp_path, "4.0f")
    assert found["accuracy"]["passed"] and found["sets"] > 2
    assert found["mirage"]["us"]["median"] > 0 and found["mirage"]["isolated_us"]["samples"] > 0
    assert set(found["peers"]) == {"torch eager", "sdpa flash", "sdpa cudnn", "sdpa efficient"}
    assert all(p["us"]["median"] > 0 for p in found["peers"].values())
    assert (found["predicted_us"], found["kernels"]) == (3.0, [{"engine": "strip"}])


@pytest.mark.torch
def test_a_wrong_row_has_no_time_but_its_peers_have(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = measured(monkeypatch, tmp_path, "4.002f")
    assert found["mirage"]["problem"].startswith("WRONG: wrong answers before it was timed: rmse")
    assert found["peers"]["torch eager"]["us"]["median"] > 0


@pytest.mark.torch
def test_a_peer_that_is_wrong_has_no_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = measured(monkeypatch, tmp_path, "4.0f", replace(TWICE, sdpa=lambda torch, f, x: x + 0.9 * x))
    assert found["peers"]["sdpa flash"]["problem"].startswith("failed: wrong: relative error 5.0e-02")
    assert found["mirage"]["us"]["median"] > 0


@pytest.mark.torch
def test_large_outputs_are_compared_at_random_positions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure, "COMPARED", 20)
    assert measured(monkeypatch, tmp_path, "4.0f")["accuracy"]["passed"]
    assert "WRONG" in measured(monkeypatch, tmp_path / "..", "4.002f")["mirage"]["problem"]


@pytest.mark.torch
def test_reference_and_original_are_those_of_a_half_precision_model() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from mirage_cli.measurement.gpu import GpuTimer
    from tests.torch_fake import CpuTorch

    backend = CpuTorch()
    case = suite_cases.rmsnorm_linear("small", 3, 32, 24)
    made = measure.Measurement(case, F16, GpuTimer(backend=backend), backend, MeasureOptions(0, ()))
    ((own, exact),) = made.wanted(1)
    assert own.dtype == np.float16 and exact.dtype == np.float64
    assert 0 < np.abs(own - exact).max() < 0.02
