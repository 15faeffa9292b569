"""Models with weights in float4e2m1, for which onnxruntime's CPU provider has no operators: each number is one of float8e4m3fn
too, which it dequantizes, so the answers are the same."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import onnx
import onnx.inliner
from onnx import TensorProto, numpy_helper

_MOVED = TensorProto.FLOAT4E2M1


def holds_float4(model: onnx.ModelProto) -> bool:
    """True if a weight of the model is of that type."""
    return any(t.data_type == _MOVED for t in model.graph.initializer)


def in_float8(model: onnx.ModelProto, keep_functions: bool, folder: Path) -> onnx.ModelProto:
    """A copy in which operators of ONNX's own domain read such weights as float8e4m3fn; `folder` has what lies outside.

    Functions of the model are put in their callers' places, unless `keep_functions` says that kernels stand for them."""
    own = onnx.ModelProto()
    own.CopyFrom(model if keep_functions else onnx.inliner.inline_local_functions(model))
    weights = {t.name: t for t in own.graph.initializer if t.data_type == _MOVED}
    wide: dict[str, str] = {}
    for node in own.graph.node:
        for k, name in enumerate(node.input if node.domain in ("", "ai.onnx") else ()):
            if name in weights:
                node.input[k] = wide.setdefault(name, f"{name}/float8")
    for name, new in wide.items():
        numbers = numpy_helper.to_array(weights[name], base_dir=str(folder)).astype(ml_dtypes.float8_e4m3fn)
        own.graph.initializer.append(numpy_helper.from_array(numbers, new))
    return own
