"""Patched models for tests: made, checked, and run in onnxruntime without any library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnxruntime
from numpy.typing import NDArray

from mirage_cli.frontends.imported import Imported
from mirage_cli.optimization.task import regions_of
from mirage_cli.patching import patch
from tests import alone

Tensor = NDArray[Any]


def run(model: onnx.ModelProto, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """The outputs in onnxruntime, without any library."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(alone.session(model, options).run(None, dict(inputs)))


def patched(imported: Imported, *places: tuple[str, Sequence[str], Sequence[str]]) -> onnx.ModelProto:
    """The model with operators in the place of regions (operator, inputs, outputs), checked."""
    regions = regions_of(imported)
    replacements = [patch.Replacement(op, regions.of(inputs, outputs)) for op, inputs, outputs in places]
    model = patch.patched(imported, replacements, {"mirage.version": "test"})
    onnx.checker.check_model(model, full_check=True)
    names = [v for node in model.graph.node for v in node.output if v]
    assert len(set(names)) == len(names)
    called = [node.name for node in model.graph.node if node.name]
    assert len(set(called)) == len(called)
    return model


def operators(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.domain == patch.DOMAIN]
