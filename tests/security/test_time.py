"""Models that run forever: whoever runs them gets an answer within a time."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from mirage_cli import frontends
from mirage_cli.checks import model_runs, whole_model
from mirage_cli.errors import OutOfTime
from mirage_cli.files.output import LIBRARY
from mirage_cli.processes import isolation
from mirage_cli.verification import story as verification
from mirage_cli.verification.findings import VerifyOptions
from tests.optimized import Optimized
from tests.security import models as m

X = {"x": np.ones(2, np.float32)}


def endless(folder: Path, name: str = "endless.onnx") -> Path:
    path = folder / name
    onnx.save(m.looping(1 << 62), path)
    return path


def test_onnxruntime_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(OutOfTime, match="longer than"):
        model_runs.run_job(model_runs.Job(str(endless(tmp_path)), X, seconds=0.2))


def test_time_that_suffices_changes_nothing(tmp_path: Path) -> None:
    model = m.looping(3).SerializeToString()
    assert np.array_equal(model_runs.run_job(model_runs.Job(model, X, seconds=600))["y"], [8, 8])


def test_the_float64_run_is_stopped(tmp_path: Path) -> None:
    imported = frontends.load(str(endless(tmp_path)))
    with pytest.raises(OutOfTime, match="float64"):
        whole_model.float64_run(imported, X, 0.2)


def test_a_process_is_stopped() -> None:
    """What onnxruntime cannot end, such as a kernel that does not return."""
    found = isolation.each(time.sleep, [(60,), (0,)], 1, apart=True, seconds=2)
    assert dict(found) == {0: isolation.Lost("it took longer than 2 s"), 1: None}


def test_verify_ends_with_a_finding(optimized: Optimized, tmp_path: Path) -> None:
    library = optimized("rmsnorm_linear_fp32") / LIBRARY
    original, patched = endless(tmp_path), endless(tmp_path, "patched.onnx")
    found = verification.verify_pair(original, patched, library, VerifyOptions(timeout=0.2))
    assert [f.text for f in found.findings if not f.passed] == ["the original does not run: it took longer than 0.2 s"]
