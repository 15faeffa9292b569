"""Models for the tests of the reader, from onnx's text form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper, parser

from mirage_cli.frontends.imported import Imported, Options
from mirage_cli.frontends.onnx import front_end
from tests import alone
from tests.frontends import evaluation

Tensor = NDArray[Any]


def parsed(text: str, *, opset: int = 18, ir_version: int = 9, **weights: Any) -> onnx.ModelProto:
    """A model of one graph (or with a header of its own, from `<` on) and its weights."""
    head = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>'
    model: onnx.ModelProto = parser.parse_model(text if text.lstrip().startswith("<") else f"{head} {text}")
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def read(model: onnx.ModelProto, options: Options | None = None) -> Imported:
    """The model through the reader, which works on a copy."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return front_end.from_proto(copy, options or Options(), "model.onnx")


def run(model: onnx.ModelProto, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """The outputs in onnxruntime; where it joins dequantized weights and products, activations stay floats. Those of 2 bits
    are not joined: the products that onnxruntime 1.31 makes of them are wrong."""
    options = onnxruntime.SessionOptions()
    if any(t.data_type in (TensorProto.INT2, TensorProto.UINT2) for t in model.graph.initializer):
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return list(alone.session(model, options).run(None, dict(inputs)))


def agrees(model: onnx.ModelProto, **inputs: Any) -> Imported:
    """Assert that the model is read as a whole and that its float64 value is onnxruntime's; return the reading."""
    arrays = {name: np.asarray(x) for name, x in inputs.items()}
    imported = read(model)
    assert imported.reasons == {}
    for ours, theirs in zip(evaluation.run(imported, arrays), run(model, arrays), strict=True):
        assert ours.shape == theirs.shape
        assert np.allclose(ours, theirs.astype(np.float64), rtol=1e-4, atol=1e-5, equal_nan=True)
    return imported


def noise(*shape: int) -> Tensor:
    """Normal noise, always the same."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
