"""What onnxruntime's own optimizer writes into models has the same fragments as the model it was given."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest

from tests import alone
from tests.metamorphic.fragments import MODELS, difference, found, sample

LEVELS = onnxruntime.GraphOptimizationLevel
CASES = [
    ("bert_fp32", "extended"),  # SkipLayerNormalization, FusedMatMul, FusedGemm
    ("gpt2_fp32", "basic"),  # weights transposed
    ("gpt2_fp32", "extended"),  # FastGelu
    ("gpt_neox_fp32", "extended"),
    ("gemma2_fp32", "extended"),
    ("llama_traced_fp32", "extended"),  # QuickGelu
    ("phi3_fp32", "basic"),
    ("qwen3_fp32", "extended"),
    ("vit_fp32", "basic"),
    ("vit_fp32", "extended"),
]


@pytest.mark.parametrize(("name", "level"), CASES)
def test_optimized_models_have_the_same_fragments(name: str, level: str, tmp_path: Path) -> None:
    path = tmp_path / "optimized.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVELS.ORT_ENABLE_BASIC if level == "basic" else LEVELS.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    alone.session(MODELS / f"{name}.onnx", options)
    assert difference(found(sample(name)), found(onnx.load(path))) == ""
