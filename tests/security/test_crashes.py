"""Models at which onnxruntime ends its process, or takes all memory, and libraries that do: it costs a run in a process of its
own, and is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mirage_cli.benchmark.benchmark import BenchOptions, bench_folder
from mirage_cli.checks import model_runs
from mirage_cli.checks.kernel_check import CheckJob
from mirage_cli.errors import Crashed, ModelError
from mirage_cli.files.output import LIBRARY, digest
from mirage_cli.optimization import pipeline
from mirage_cli.options.options import Options
from mirage_cli.processes.isolation import Lost
from mirage_cli.report import reader
from mirage_cli.runtime.example import example_inputs
from mirage_cli.verification import story as verification
from mirage_cli.verification.findings import Verification, VerifyOptions
from tests.optimized import Optimized, anew, sample
from tests.security import models as m

SAMPLE = "rmsnorm_linear_fp32"
X = {"x": np.ones(2, np.float32)}


@pytest.fixture(params=[("loaded", True), ("ran", False)], ids=["load", "run"], scope="module")
def crashing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A model, and the reason that is told of it."""
    done, folded = request.param
    path = tmp_path_factory.mktemp("crashing") / "model.onnx"
    onnx.save(m.dividing(onnx.load(sample(SAMPLE)), folded), path)
    inputs = example_inputs(onnx.load(path), {}, 0)
    with model_runs.Place() as place:
        found = place.do(model_runs.Job(str(path), inputs))
        assert place.do(model_runs.Job(m.looping(3).SerializeToString(), X))["y"].tolist() == [8, 8], (
            "the place goes on"
        )
    if not isinstance(found, Lost) or not isinstance(found.error, Crashed):
        pytest.skip(f"this onnxruntime survives the model: {found}")
    assert found.reason == f"its process ended with SIGFPE while onnxruntime {done} {path}"
    return path, found.reason


def failed(found: Verification) -> list[str]:
    return [f.text for f in found.findings if not f.passed]


def test_verify_tells_of_it(crashing: tuple[Path, str], optimized: Optimized) -> None:
    path, reason = crashing
    found = verification.verify_pair(path, path, optimized(SAMPLE) / LIBRARY, VerifyOptions())
    # without its optimizations onnxruntime computes nothing when it loads a model
    assert failed(found) == [f"the original does not run: {reason.replace('onnxruntime loaded', 'onnxruntime ran')}"]
    assert Crashed.hint in found.notes


def test_bench_tells_of_it_and_measures_the_rest(crashing: tuple[Path, str], copied: Optimized) -> None:
    path, reason = crashing
    folder = copied(SAMPLE)
    report = reader.read(folder)
    report["model"] |= {"path": str(path), "sha256": digest(path)}
    (folder / "report.json").write_text(json.dumps(report))
    found = bench_folder(folder, BenchOptions(cpu=True, runs=2, threads=1, seconds=0.01))
    assert found.fragments[0].comparison.speedup is not None
    assert [e.problem for e in found.model.entries] == [f"crashed: {reason}"] * 2
    assert found.wrong, "the command's exit code is 1"


def ended(job: CheckJob) -> Any:
    """A float check that ends its process."""
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.parametrize("jobs", [1, 2])
def test_optimize_leaves_a_fragment_whose_check_ends(
    jobs: int, cache: Path, optimized: Optimized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimized(SAMPLE)  # its objects are compiled
    monkeypatch.setattr(pipeline, "CHECK", replace(pipeline.CHECK, function=ended))
    monkeypatch.setattr(pipeline.fragment_cache.Checks, "get", lambda *_: None)
    options = Options(target=("cpu",), force=True, jobs=jobs, seed=7, cache=str(cache))
    report = anew(str(sample(SAMPLE)), tmp_path / "out", options)
    (fragment,) = report.fragments
    assert (fragment.status, fragment.reason) == (
        "failed",
        "the check could not run: its process ended with SIGSEGV",
    )


def test_memory_is_limited(optimized: Optimized, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(m.filling(1 << 31), path)
    found = verification.verify_pair(path, path, optimized(SAMPLE) / LIBRARY, VerifyOptions(max_memory=2 << 30))
    (text,) = failed(found)
    assert text.startswith("the original does not run: onnxruntime failed")
    assert "allocate memory" in text


def test_a_library_that_ends_its_process(optimized: Optimized, tmp_path: Path) -> None:
    source, library = tmp_path / "end.c", tmp_path / "end.so"
    source.write_text("#include <stdlib.h>\n__attribute__((constructor)) static void end(void) { abort(); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    with pytest.raises(ModelError, match=r"ended with SIGABRT while .*end\.so was loaded"):
        verification.verify_pair(sample(SAMPLE), optimized(SAMPLE) / "model.onnx", library, VerifyOptions())
