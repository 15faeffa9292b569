"""The README's Python: every block runs as it stands, against an optimized sample."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_cli.optimization import environment
from mirage_cli.runtime import sessions
from samples.inputs import example_inputs
from tests.optimized import Optimized, sample

README = Path(__file__).resolve().parents[1] / "README.md"
NAME = "rmsnorm_linear_fp32"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.fixture
def place(copied: Optimized, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `model.onnx` and its output folder `out`, as the README has them."""
    shutil.copy(sample(NAME), tmp_path / "model.onnx")
    shutil.move(copied(NAME), tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "cache_folder", lambda options: cache)
    return tmp_path


def block(part: str) -> str:
    """The one block of the README that holds a text."""
    (found,) = (b for b in BLOCKS if part in b)
    return found


def run(code: str, **names: Any) -> dict[str, Any]:
    """The names that a block defines."""
    exec(compile(code, "README.md", "exec"), names)
    return names


def test_every_block_is_tried_here() -> None:
    assert len(BLOCKS) == 3


def test_loading_with_onnxruntime(place: Path) -> None:
    feeds = example_inputs("model.onnx", seed=5)
    (wanted,) = sessions.run(sessions.session("model.onnx"), feeds).values()
    (found,) = run(block("register_custom_ops_library"), feeds=feeds)["outputs"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_python_interface(place: Path) -> None:
    shutil.rmtree("out")
    names = run(block("mi.optimize"))
    assert names["report"].replaced
    assert (place / "out/model.onnx").exists()


def test_a_graph_built_in_python(place: Path) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s).astype(np.float16) for s in ((2, 1, 8), (2, 8, 32), (2, 32, 8)))
    found = run(block("new_kernel_graph"), q=q, k=k, v=v)["o"]
    assert found.shape == (2, 1, 8)
    scores = np.exp((q @ k).astype(np.float64))
    np.testing.assert_allclose(found, scores / scores.sum(-1, keepdims=True) @ v, atol=5e-3)
