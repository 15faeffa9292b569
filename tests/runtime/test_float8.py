"""Outputs of the 8-bit float type that onnxruntime hands over, as bytes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from mirage_cli.runtime import sessions


def test_outputs_are_numbers() -> None:
    kind = TensorProto.FLOAT8E4M3FN
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", kind, [4])
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=kind)], "g", [x], [y])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    session = sessions.session(model.SerializeToString(), optimize=False)
    values = np.array([-1.25, 0.5, 2.0, 0.0], np.float32)
    assert sessions.run(session, {"x": values})["y"].astype(np.float32).tolist() == values.tolist()
