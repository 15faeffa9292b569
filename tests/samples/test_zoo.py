"""The zoo's checked-in models, one layer of each architecture in one form: every attention, norm + linear and MLP is
found, and what was read of each is what onnxruntime computes."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mirage_cli import frontends
from mirage_cli.checks import whole_model
from mirage_cli.inspection.summary import inspect
from mirage_cli.options.options import Options
from mirage_cli.runtime import sessions
from mirage_cli.runtime.example import example_inputs

FOLDER = Path(__file__).resolve().parents[2] / "samples" / "zoo" / "models"
FILES = sorted(FOLDER.glob("*.onnx"))
#: at least these, by the architecture; two projections and an MLP's second half are plain linears; of one row (gemma3)
#: queries, keys and values are one
FOUND = {
    "chameleon": {"qknorm_attention": 1, "norm_linear": 4, "norm_gated_mlp": 1, "linear": 2},
    "clip": {"attention": 2, "norm_linear": 6, "norm_mlp": 2, "linear": 4},
    "cohere": {"qknorm_attention": 1, "norm_linear": 4, "norm_gated_mlp": 1, "linear": 2},
    "deepseek_v3": {"attention": 1, "norm_linear": 5, "norm_gated_mlp": 1, "linear": 2},
    "gemma3": {"qknorm_attention": 1, "norm_linear": 2, "norm_gated_mlp": 1, "linear": 2, "norm": 2},
    "mistral": {"attention": 1, "norm_linear": 4, "norm_gated_mlp": 1, "linear": 2},
    "modernbert": {"attention": 1, "norm_gated_mlp": 1, "linear": 3},
    "olmo2": {"qknorm_attention": 1, "gated_mlp": 1, "linear": 5, "norm_linear": 1},
    "t5": {"attention": 3, "norm_linear": 10, "norm_mlp": 2, "linear": 5},
    "whisper": {"attention": 3, "norm_linear": 10, "norm_mlp": 2, "linear": 4},
}
#: shares of the multiply-adds, where it is not all of them: convolutions stay with onnxruntime
LEAST = {"whisper": 0.8}
SIZE_LIMIT = 300_000
MACHINE_PATH = re.compile(rb"site-packages|\.py\b|/(tmp|root|home|Users|opt|usr|work)/|[A-Z]:\\")


def architecture(path: Path) -> str:
    return re.split(r"_(?:dynamo|tracing)\d", path.stem)[0]


@cache
def seen(path: Path) -> dict[str, Any]:
    return inspect(str(path), Options()).document


def test_there_is_one_model_of_each() -> None:
    assert sorted(map(architecture, FILES)) == sorted(FOUND)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_part_of_a_layer_is_found(path: Path) -> None:
    found: Counter[str] = Counter()
    for f in seen(path)["fragments"]:
        found[f["name"]] += f["occurrences"]
    wanted = FOUND[architecture(path)]
    assert {kind: found[kind] for kind in wanted if found[kind] < wanted[kind]} == {}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_all_products_are_covered(path: Path) -> None:
    assert seen(path)["coverage"]["flops"] >= LEAST.get(architecture(path), 0.999)
    assert all(u["reason"] for u in seen(path)["unchanged"])


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_what_was_read_is_what_onnxruntime_computes(path: Path) -> None:
    """The original's own outputs agree with a float64 run of the graph that was read from it."""
    imported = frontends.load(str(path))
    inputs = example_inputs(imported.model, {}, 0)
    found = sessions.run(sessions.session(path), inputs)
    exact = whole_model.float64_run(imported, inputs)
    tolerance = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 8e-2}
    for name, value in found.items():
        ours, theirs = exact[name], value.astype(np.float64)
        assert ours.shape == theirs.shape
        assert np.isfinite(theirs).all()
        assert np.sqrt(np.mean((ours - theirs) ** 2)) <= tolerance[value.dtype.name] * np.sqrt(np.mean(ours**2))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_file_is_small_and_carries_no_paths(path: Path) -> None:
    assert path.stat().st_size < SIZE_LIMIT
    model = onnx.load(path)
    assert {entry.key for entry in model.metadata_props} == {"torch", "transformers"}
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
    assert MACHINE_PATH.search(model.SerializeToString()) is None
