"""What is known of a fragment's weights when it is planned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from mirage_cli import frontends, suite_cases
from mirage_cli import work as works
from mirage_cli.lax.dtypes import F16, F32, DType
from mirage_cli.lax.fragment import partition


def _largest(dtype: DType, gain: list[float], folder: Path) -> list[tuple[tuple[int, ...], float]]:
    """For the norm of a small model with this gain: dimensions of weights, and what their numbers do not exceed."""
    model = suite_cases.norm_mlp_down("small", 2, 8, 16).model(dtype, 0)
    (stored,) = [t for t in model.graph.initializer if t.name == "g"]
    stored.CopyFrom(numpy_helper.from_array(np.resize(gain, 8).astype(numpy_helper.to_array(stored).dtype), "g"))
    onnx.save(model, folder / "m.onnx")
    imported = frontends.load(str(folder / "m.onnx"))
    work = works.group(partition(imported.graph, works.tensor_names(imported)).fragments, imported)[0]
    return [(work.program.sources[k].dims, top) for k, top in work.largest(imported)]


@pytest.mark.parametrize(
    ("gain", "top"), [([0.5, -5.0], 8.0), ([1.0, 0.9], 1.0), ([0.3, 0.2], 0.5), ([-65504.0, 1.0], 65536.0)]
)
def test_gains_are_below_a_power_of_two(gain: list[float], top: float, tmp_path: Path) -> None:
    assert _largest(F16, gain, tmp_path) == [((8,), top)]


@pytest.mark.parametrize("gain", [[0.0, -0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_of_these_gains_nothing_is_said(gain: list[float], tmp_path: Path) -> None:
    assert _largest(F16, gain, tmp_path) == []


def test_of_float32_nothing_need_be_known(tmp_path: Path) -> None:
    assert _largest(F32, [3.0, 1.0], tmp_path) == []
