"""Operators that ONNX's own reference evaluates well enough: texts, images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, meaning
from mirage_cli.truth.calls.values import Tensor, Value, tensor


@meaning("ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer")
def _by_reference(call: Call) -> Sequence[Value]:
    node = onnx.NodeProto(op_type=call.node.op_type)
    node.input.extend(f"x{i}" if call.given(i) else "" for i in range(len(call.inputs)))
    node.output.extend(f"y{i}" for i in range(len(call.node.output)))
    node.attribute.extend(call.attributes.values())
    given = {f"x{i}": call.tensor(i) for i in range(len(call.inputs)) if call.given(i)}
    inputs = [helper.make_tensor_value_info(name, value.type, None) for name, value in given.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "one", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", call.version)])
    results: Any = ReferenceEvaluator(model).run(None, {name: value.data for name, value in given.items()})
    return [_tensor(np.asarray(value)) for value in results]


def _tensor(value: np.ndarray[Any, np.dtype[Any]]) -> Tensor:
    return tensor(value, TensorProto.STRING if value.dtype.kind in "USO" else None)


@meaning("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
def _random(call: Call) -> Value:
    raise Refused("a random operator")
