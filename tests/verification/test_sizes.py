"""The sizes of symbolic dimensions at which `mirage verify` compares whole models, and what it says where there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mirage_cli as mi
from mirage_cli.runtime import running_sizes
from tests.frontends.models import parsed

FAR = 30  #: a position that the sizes drawn first lack


def model(path: Path, index: str) -> Path:
    """A norm and a linear layer behind one position of a sequence, which the node `index` computes as `k`."""
    random = np.random.default_rng(0)
    weights: dict[str, Any] = {
        "w": random.standard_normal((16, 16)).astype(np.float32),
        "gain": np.ones(16, np.float32),
        "far": np.array(FAR, np.int64),
        "none": np.array(0, np.int64),
    }
    graph = f"""g (float[rows, seq, 16] x) => (float[rows, 16] y) {{
        k = {index}
        r = Gather <axis = 1> (x, k)
        n = LayerNormalization(r, gain)
        y = MatMul(n, w)
    }}"""
    onnx.save(parsed(graph, **weights), path)
    return path


@pytest.mark.parametrize("index", ["Identity(far)", "Add(far, none)"])
def test_outputs_are_compared_at_sizes_at_which_the_original_runs(index: str, tmp_path: Path, one_isa: None) -> None:
    mi.optimize(model(tmp_path / "m.onnx", index), tmp_path / "out", target="cpu", force=True, jobs=1)
    found = mi.verify(tmp_path / "out")
    assert found.passed and [c.reference for c in found.outputs] == ["float64"], found.text()
    assert "not compared" not in found.text()


def test_sizes_that_were_asked_for_stay(tmp_path: Path, one_isa: None) -> None:
    mi.optimize(model(tmp_path / "m.onnx", "Identity(far)"), tmp_path / "out", target="cpu", force=True, jobs=1)
    found = mi.verify(tmp_path / "out", dim=["seq=9"])
    assert found.passed and not found.outputs
    assert found.text().splitlines()[-1].startswith("not compared: the original refuses"), found.text()
    assert mi.verify(tmp_path / "out", dim=[f"seq={FAR + 1}"]).outputs


def test_other_sizes_begin_with_larger_ones() -> None:
    others = list(running_sizes.others({"batch": 2, "seq": 12}))
    assert others[:2] == [{"batch": 2, "seq": 24}, {"batch": 4, "seq": 12}]
    assert all(size > 0 for sizes in others for size in sizes.values())
    assert {"batch": 12, "seq": 12} in others and {"batch": 1, "seq": 1} in others
