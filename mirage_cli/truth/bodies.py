"""The meaning of an operator that has none of its own here: the function body that ONNX's own schema gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, helper

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.values import Series, Tensor, Value


def schema_body(
    domain: str, node: NodeProto, version: int, inputs: Sequence[Value], attributes: Mapping[str, AttributeProto]
) -> FunctionProto:
    """The function body of a node's operator in a version of its domain's opset; Refused where ONNX gives none."""
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError:
        raise Refused(f"no such operator in version {version} of {domain or 'ONNX'}") from None
    if schema.has_function:
        body = _message(schema.get_function_with_opset_version(schema.function_opset_versions[0]))
        body.attribute_proto.extend(a.default_value for a in schema.attributes.values() if a.default_value.name)
        return body
    if not schema.has_context_dependent_function:
        raise Refused("an operator without a meaning here")
    bare = NodeProto(op_type=node.op_type, domain=domain, name=node.name, input=node.input, output=node.output)
    bare.attribute.extend(attributes.values())
    for attribute, name in zip(bare.attribute, attributes, strict=True):
        attribute.name = name
    types = [_type(value).SerializeToString() for value in inputs]
    versions = schema.context_dependent_function_opset_versions
    fitting = max((v for v in versions if v <= version), default=max(versions))
    text: bytes = schema.get_context_dependent_function_with_opset_version(fitting, bare.SerializeToString(), types)
    return _message(text)


def _message(text: bytes) -> FunctionProto:
    """A function body that comes serialized."""
    function = FunctionProto()
    function.ParseFromString(text)
    return function


def _type(value: Value) -> onnx.TypeProto:
    """The type of a value, as a function body that depends on it wants to know it."""
    if isinstance(value, Tensor):
        return helper.make_tensor_type_proto(value.type, value.data.shape)
    if isinstance(value, Series):
        kind = value.items[0].type if value.items else TensorProto.FLOAT
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(kind, None))
    return onnx.TypeProto()
