"""Models in bfloat16 on the CPU, where onnxruntime has no kernels for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mirage_cli.benchmark import benchmark, rows
from mirage_cli.options.options import Options
from mirage_cli.runtime import sessions
from mirage_cli.runtime.bfloat16 import holds_bfloat16, in_float32
from tests.optimized import anew

pytestmark = pytest.mark.usefixtures("one_isa")

BF16, FLOAT, BOOL = TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.BOOL
Array = NDArray[Any]


def _bf16(values: Any) -> Array:
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16)


def _info(name: str, *shape: int, kind: int = BF16) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(graph: onnx.GraphProto, functions: list[onnx.FunctionProto] | None = None) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 20), *([helper.make_opsetid("own", 1)] if functions else [])]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets, functions=functions or [])


def _run(model: onnx.ModelProto, **inputs: Array) -> Array:
    return sessions.run(sessions.session(model.SerializeToString(), optimize=False), inputs)["y"]


def _wide(x: Array) -> Array:
    return np.asarray(x, np.float32)


@pytest.fixture
def x() -> Array:
    return _bf16(np.random.default_rng(0).standard_normal((3, 8)))


def test_every_operator_rounds_once(x: Array) -> None:
    weight = _bf16(np.random.default_rng(1).standard_normal((8, 5)))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Mul", ["p", "p"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [_info("x", 3, 8)], [_info("y", 3, 5)], [numpy_helper.from_array(weight, "w")]
    )
    product = _bf16(_wide(x) @ _wide(weight))
    expected = _bf16(_wide(product) * _wide(product))
    assert _run(_model(graph), x=x).tolist() == expected.tolist()
    assert _wide(expected).tolist() != _bf16((_wide(x) @ _wide(weight)) ** 2).astype(np.float32).tolist()


def test_branches_read_what_lies_outside(x: Array) -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["d"], ["b"])], name, [], [_info("b", 3, 8)])

    choose = helper.make_node("If", ["c"], ["y"], then_branch=branch("t", "Neg"), else_branch=branch("e", "Abs"))
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["d"]), choose],
        "g",
        [_info("x", 3, 8), _info("c", kind=BOOL)],
        [_info("y", 3, 8)],
    )
    for chosen, expected in ((True, -2 * _wide(x)), (False, abs(2 * _wide(x)))):
        assert _wide(_run(_model(graph), x=x, c=np.asarray(chosen))).tolist() == expected.tolist()


def test_functions_and_constants(x: Array) -> None:
    body = [
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["k"], value=helper.make_tensor("v", BF16, [1], [0.5])),
        helper.make_node("Add", ["a", "k"], ["b"]),
    ]
    function = helper.make_function("own", "Half", ["a"], ["b"], body, [helper.make_opsetid("", 20)])
    graph = helper.make_graph(
        [helper.make_node("Half", ["x"], ["y"], domain="own")], "g", [_info("x", 3, 8)], [_info("y", 3, 8)]
    )
    assert _run(_model(graph, [function]), x=x).tolist() == _bf16(_wide(x) + 0.5).tolist()


def test_conversions_stay(x: Array) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["f"], to=FLOAT), helper.make_node("Exp", ["f"], ["y"])]
    model = _model(helper.make_graph(nodes, "g", [_info("x", 3, 8)], [_info("y", 3, 8, kind=FLOAT)]))
    assert [n.op_type for n in in_float32(model, False).graph.node] == ["Cast", "Exp"]
    np.testing.assert_allclose(_run(model, x=x), np.exp(_wide(x)), rtol=1e-6)


def test_other_models_are_not_touched() -> None:
    node = helper.make_node("Abs", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [_info("x", 2, kind=FLOAT)], [_info("y", 2, kind=FLOAT)])
    assert not holds_bfloat16(_model(graph))


def test_a_model_is_optimized_checked_and_timed(x: Array, tmp_path: Path, cache: Path) -> None:
    weight = _bf16(np.random.default_rng(1).standard_normal((8, 64)))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Sigmoid", ["p"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [_info("x", 3, 8)], [_info("y", 3, 64)], [numpy_helper.from_array(weight, "w")]
    )
    onnx.save(_model(graph), tmp_path / "m.onnx")
    report = anew(
        str(tmp_path / "m.onnx"), tmp_path / "out", Options(target=("cpu",), force=True, jobs=1, cache=str(cache))
    )
    assert [(f.status, f.reason) for f in report.fragments] == [("replaced", "")]
    found = benchmark.bench_folder(tmp_path / "out", benchmark.BenchOptions(cpu=True, runs=1, seconds=0.01))
    assert found.model.notes == (rows.WIDENED,)
