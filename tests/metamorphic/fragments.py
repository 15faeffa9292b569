"""What of a model is compared: the keys of its fragments with how often each occurs, and their coverage."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from mirage_cli.frontends.imported import Options
from mirage_cli.frontends.onnx import front_end
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.optimization.coverage import flops_of
from mirage_cli.optimization.task import tensor_names
from samples.inputs import example_inputs
from tests.frontends.models import run

MODELS = Path(__file__).parents[2] / "samples" / "models"


@dataclass(frozen=True)
class Found:
    """Fragments by (name, key), the share of the products' work that they hold, values of which none could be made."""

    fragments: Counter[tuple[str, str]]
    flops: float
    left: int


def sample(name: str) -> onnx.ModelProto:
    """A checked-in model."""
    return onnx.load(MODELS / f"{name}.onnx")


def found(model: onnx.ModelProto | ir.Model) -> Found:
    """The fragments of a model."""
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    imported = front_end.from_proto(copy, Options(), "model.onnx")
    parts = partition(imported.graph, tensor_names(imported))
    work = {v: flops_of(imported.graph, v) for v in imported.graph.cone(imported.graph.outputs)}
    inside = {v for f in parts.fragments for v in f.steps}
    share = sum(n for v, n in work.items() if v in inside) / max(1, sum(work.values()))
    return Found(Counter((f.name, f.key) for f in parts.fragments), round(share, 6), len(parts.left))


def difference(one: Found, other: Found) -> str:
    """What the first has more, and what the second; empty when they are equal."""
    if one == other:
        return ""
    less, more = one.fragments - other.fragments, other.fragments - one.fragments
    return f"gone {dict(less)}, new {dict(more)}, flops {one.flops} -> {other.flops}, left {one.left} -> {other.left}"


def same_answers(original: onnx.ModelProto, edited: onnx.ModelProto, name: str) -> None:
    """Assert that onnxruntime gives the same answers for both, up to what float32 rounds."""
    inputs = example_inputs(MODELS / f"{name}.onnx", seed=0)
    for a, b in zip(run(original, inputs), run(edited, inputs), strict=True):
        assert a.shape == b.shape
        assert np.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True), np.abs(a - b).max()
