"""Smoke: one small sample through every command, in seconds. Run this first: `pytest tests/test_tiny.py`."""

from __future__ import annotations

import json

import numpy as np

from mirage_cli.benchmark import benchmark
from mirage_cli.benchmark.benchmark import BenchOptions
from mirage_cli.inspection import summary
from mirage_cli.options.options import Options
from mirage_cli.runtime import sessions
from mirage_cli.verification import story
from mirage_cli.verification.findings import VerifyOptions
from samples.inputs import example_inputs
from tests.optimized import Optimized, sample

NAME = "rmsnorm_linear_fp32"


def test_optimize_replaces_the_fragment(optimized: Optimized) -> None:
    report = json.loads((optimized(NAME) / "report.json").read_text())
    (fragment,) = report["fragments"]
    assert (fragment["name"], fragment["status"], fragment["occurrences"]) == ("norm_linear", "replaced", 1)
    assert fragment["verification"]["passed"]
    assert report["coverage"]["flops"] == 1.0


def test_onnxruntime_gives_the_original_answers(optimized: Optimized) -> None:
    folder, original = optimized(NAME), sample(NAME)
    feeds = example_inputs(original, seed=3)
    (wanted,) = sessions.run(sessions.session(original), feeds).values()
    for library in (folder / "libmirage.so", None):
        (found,) = sessions.run(sessions.session(folder / "model.onnx", library), feeds).values()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_verify_passes(optimized: Optimized) -> None:
    found = story.verify_folder(optimized(NAME), VerifyOptions())
    assert found.passed, found.text()
    json.dumps(found.to_json())


def test_inspect_names_the_fragment(optimized: Optimized) -> None:
    for path in (sample(NAME), optimized(NAME)):
        found = summary.inspect(str(path), Options(target=("cpu",), jobs=1))
        assert "norm_linear" in found.text()
        assert "norm_linear" in json.dumps(found.to_json())


def test_bench_measures_both(optimized: Optimized) -> None:
    found = benchmark.bench_folder(optimized(NAME), BenchOptions(cpu=True, runs=3, seconds=0.1, threads=1))
    assert found.text()
    json.dumps(found.to_json())
