"""Outputs of 8-bit float types, which onnxruntime hands over as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from mirage_cli.runtime import sessions

TYPES = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")


@pytest.mark.parametrize("name", TYPES)
def test_outputs_are_numbers(name: str) -> None:
    kind = getattr(TensorProto, name)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", kind, [4])
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=kind)], "g", [x], [y])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    session = sessions.session(model.SerializeToString(), optimize=False)
    values = np.array([-1.25, 0.5, 2.0, 0.0], np.float32)
    assert sessions.run(session, {"x": values})["y"].astype(np.float32).tolist() == values.tolist()
