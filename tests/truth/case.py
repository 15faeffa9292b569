"""One operator on its own as a model, run in float64 by the program and in its types by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from mirage_cli.truth import evaluate
from mirage_cli.truth.calls.values import FLOATS, FORMATS, tensor

#: the newest opset that the installed onnxruntime takes, for which it has kernels
NEWEST = 26


@dataclass(frozen=True)
class Case:
    """A node with its inputs (None: left out), for versions `since` to `until` of the opset."""

    op: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    since: int = 1
    until: int = 999
    domain: str = ""
    loose: float = 1.0  # how much wider than usual the tolerance is
    compared: int = 999  # how many results are, the others may hold anything
    widened: bool = False  # a Cast to float32 follows, of types that numpy does not have


def case(
    op: str,
    *inputs: Any,
    outputs: int = 1,
    since: int = 1,
    until: int = 999,
    loose: float = 1.0,
    widened: bool = False,
    **attributes: Any,
) -> Case:
    """A case of an operator of ONNX."""
    return Case(op, inputs, attributes, outputs, since, until, loose=loose, widened=widened)


def microsoft(
    op: str, *inputs: Any, outputs: int = 1, loose: float = 1.0, compared: int = 999, **attributes: Any
) -> Case:
    """A case of an operator of onnxruntime's own."""
    return Case(op, inputs, attributes, outputs, domain="com.microsoft", loose=loose, compared=compared)


def model(case: Case, version: int) -> onnx.ModelProto:
    """The case as a model of one node, in a version of the opset."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(case.inputs)]
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, name="node", domain=case.domain, **case.attributes)
    inputs = [
        helper.make_tensor_value_info(name, kind(x), x.shape)
        for name, x in zip(names, case.inputs, strict=True)
        if x is not None
    ]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    nodes = [node]
    if case.widened:
        nodes.append(helper.make_node("Cast", ["y0"], ["wide"], to=TensorProto.FLOAT))
        results = [onnx.ValueInfoProto(name="wide")]
    graph = helper.make_graph(nodes, "graph", inputs, results)
    imports = [helper.make_opsetid("", version)]
    imports += [helper.make_opsetid(case.domain, 1)] if case.domain else []
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def kind(x: np.ndarray) -> int:
    """The element type of an array."""
    return TensorProto.STRING if x.dtype == np.object_ else helper.np_dtype_to_tensor_dtype(x.dtype)


def feeds(case: Case) -> dict[str, Any]:
    """The inputs of a case by name."""
    return {f"x{i}": x for i, x in enumerate(case.inputs) if x is not None}


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """onnxruntime on the CPU, without its optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def by_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """What onnxruntime gives."""
    return session(model).run(None, dict(feeds))


def compare(model: onnx.ModelProto, feeds: Mapping[str, Any], wanted: Sequence[Any], loose: float = 1.0) -> None:
    """Assert that the model in float64 gives what was given, within the rounding of its types."""
    got = evaluate.run(model, feeds, seconds=30)
    for value, expected in zip(model.graph.output, wanted, strict=True):
        if expected is None:
            continue
        same(got[value.name], np.asarray(expected), loose)


def same(got: np.ndarray, wanted: np.ndarray, loose: float = 1.0) -> None:
    """Assert that an array in float64 is another one within the rounding of the other's type."""
    assert got.shape == wanted.shape
    element = kind(wanted)
    if element not in FLOATS:
        np.testing.assert_array_equal(got, tensor(wanted, element).data)
        return
    assert got.dtype == np.float64
    expected = tensor(wanted, element).data
    finite = np.abs(expected[np.isfinite(expected)])
    step = 2.0 ** (1 - FORMATS[element].bits) if element in FORMATS else 2.0**-52
    step = max(step * 16 * loose, 1e-13)
    np.testing.assert_allclose(got, expected, rtol=step, atol=step * (float(finite.max()) if finite.size else 1.0))
