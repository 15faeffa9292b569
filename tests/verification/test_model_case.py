"""Which runs of the original its patched model is held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mirage_cli import frontends
from mirage_cli.checks.model_runs import Arrays, Job
from mirage_cli.errors import ModelError
from mirage_cli.verification.model_case import Models
from tests.optimized import sample


class Optimizing:
    """A runtime that loads models with its optimizations only."""

    def arrays(self, job: Job) -> Arrays:
        if not job.optimize:
            raise ModelError("onnxruntime cannot load it")
        return {"y": np.ones(3)}


def test_an_original_that_loads_only_with_optimizations_is_run_with_them() -> None:
    original = frontends.load(str(sample("rmsnorm_linear_fp32")))
    places: Any = Optimizing()
    models = Models(original.original.proto(), original, Path("model.onnx"), Path("library.so"), original, places)
    assert models.own({})["y"].tolist() == [1, 1, 1]
