"""A fragment of a user's model beside PyTorch, on torch's CPU: the kernel is the CPU one behind the CUDA entry point."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.benchmark import gpu_fragment, rows
from mirage_cli.benchmark.report import BenchReport
from mirage_cli.benchmark.rows import BenchFragment, BenchOptions
from mirage_cli.errors import ToolMissing
from mirage_cli.measurement.contestant import Place
from mirage_cli.optimization.fragment_times import Comparison, Entry
from tests.optimized import Optimized

SHIM = """
#include <stdint.h>
int64_t mirage_ID_workspace_cpu(const int64_t* e);
int mirage_ID_cpu(const void* const* in, void* const* out, void* w, const int64_t* e, const void* pool);
int64_t mirage_ID_workspace(const int64_t* e) { return mirage_ID_workspace_cpu(e); }
int mirage_ID(const void* const* in, void* const* out, void* w, const int64_t* e, void* stream) {
    int code = mirage_ID_cpu(in, out, w, e, 0);
    BREAK
    return code;
}
"""


def fragment_of(folder: Path) -> BenchFragment:
    """The only fragment of an output folder."""
    report = json.loads((folder / "report.json").read_text())
    model = rows.read_model(folder / "model.onnx")
    feeds = rows.input_sets(model, BenchOptions(), 1)[0]
    (found,) = rows.fragment_rows(folder, model, report["fragments"], feeds, Place(), True, {})
    return found


def shim(folder: Path, to: Path, identifier: str, wrong: str = "") -> Path:
    """A library whose CUDA entry point calls the CPU kernel of an output folder."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (to / "shim.c").write_text(SHIM.replace("ID", identifier).replace("BREAK", wrong))
    command = [compiler, "-shared", "-fPIC", "-o", to / "libshim.so", to / "shim.c"]
    subprocess.run([*command, f"-L{folder}", "-l:libmirage.so", f"-Wl,-rpath,{folder}"], check=True)
    return to / "libshim.so"


def measured(folder: Path, to: Path, wrong: str = "") -> dict[str, Entry]:
    pytest.importorskip("torch", reason="torch is not installed")
    from mirage_cli.measurement.gpu import GpuTimer
    from tests.torch_fake import CpuTorch

    fragment = fragment_of(folder)
    library = shim(folder, to, fragment.models.spec.id, wrong)
    timer = GpuTimer(backend=CpuTorch())
    found = gpu_fragment.entries(timer, fragment.models, fragment.program, library, ("eager",), 0.001, 3)
    return {e.name: e for e in found}


@pytest.mark.torch
@pytest.mark.torch
def test_the_kernel_is_judged_and_timed_beside_torch(optimized: Optimized, tmp_path: Path) -> None:
    found = measured(optimized("rmsnorm_linear_fp32"), tmp_path)
    assert list(found) == ["kernel", "kernel isolated", "torch eager"]
    assert all(e.us is not None and e.us.median >= 0 and not e.problem for e in found.values())


@pytest.mark.torch
def test_a_wrong_kernel_is_no_result(optimized: Optimized, tmp_path: Path) -> None:
    found = measured(optimized("rmsnorm_linear_fp32"), tmp_path, "((float*)out[0])[7] += 1.0f;")
    assert found["kernel"].problem.startswith("wrong: wrong answers before it was timed")
    assert found["torch eager"].us is not None


@pytest.mark.torch
def test_a_kernel_that_fails_says_so(optimized: Optimized, tmp_path: Path) -> None:
    found = measured(optimized("rmsnorm_linear_fp32"), tmp_path, "return 700;")
    assert found["kernel"].problem.startswith("failed: norm_linear_")
    assert found["kernel"].problem.endswith("the kernel ended with CUDA error 700")


def test_wrong_kernels_make_the_report_wrong(optimized: Optimized) -> None:
    fragment = fragment_of(optimized("rmsnorm_linear_fp32"))
    row = fragment.row(Comparison((Entry("original"), Entry("kernel", problem="wrong: rmse 1"))))
    report = BenchReport("GPU", {}, "", (row,), Comparison(()), {})
    assert report.wrong and not replace(report, fragments=()).wrong


def test_why_torch_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows.opened(Place(), BenchOptions()) == (None, {"torch": rows.NO_TORCH})

    def absent(number: int) -> Any:
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(gpu_fragment, "TorchBackend", absent)
    with pytest.raises(ToolMissing, match="No module named 'torch'"):
        gpu_fragment.opened(0)
    timer, reasons = rows.opened(Place("cuda", 0), BenchOptions())
    assert timer is None and "pip install torch" in reasons["torch"]
