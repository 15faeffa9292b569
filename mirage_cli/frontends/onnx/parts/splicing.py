"""Operators written as onnx's text form, put in the place of a node of a model.

Lines `let a = 1, b = [2, 3], c = 0.5` are constants, numbers like the last of the type of what the text is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import onnx
import onnx_ir as ir

from mirage_cli.frontends.names import Names
from mirage_cli.frontends.onnx.ops.registry import MICROSOFT

INSIDE = "inside"  #: the key under which a node knows the operator that it is a part of
WHOLE = "whole"  #: and, where its parts take its place together or not at all, which one of the model
END = "end"  #: the key of nodes whose results are what their operator gives, which may stay: others read these alone
_PREFIXES = "prefixes"  #: the key under which a graph keeps those of its tensors' names
OLDEST = 13  #: the opset whose forms of operators texts have
ON_CPUS = "cpus"  #: the key of nodes whose weights may lie in another layout for other devices
Dims: TypeAlias = Sequence[int | str | None]
Tensor: TypeAlias = tuple[ir.DataType, Dims]


def spliced(
    node: ir.Node,
    what: str,
    text: str,
    given: Sequence[ir.Value | None],
    tensors: Sequence[Tensor | None],
    kind: ir.DataType | None = None,
    together: bool = False,
) -> list[ir.Value]:
    """The results of a text whose nodes are put in front of `node`, with names of their own; constants become weights.
    Numbers are of the type `kind`, or that of the first operand; `together`: fragments take the place of all of these nodes or
    of none."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    kind = kind or next(v.dtype for v in given if v is not None)
    part = parsed(text, kind or ir.DataType.FLOAT)
    for own, value in zip(part.inputs, given, strict=False):
        if value is not None:
            ir.convenience.replace_all_uses_with(own, value)
    prefix = _own_prefix(graph, f"{node.outputs[0].name}/{what}")
    for inner in ir.traversal.RecursiveGraphIterator(part):
        inner.meta[INSIDE] = node.op_type
        if together:
            inner.meta[WHOLE] = prefix
        inner.name = f"{prefix}/{inner.outputs[0].name}"
        for v in inner.outputs:
            v.name = f"{prefix}/{v.name}"
    results = list(part.outputs)
    for v, tensor in zip(results, tensors, strict=True):
        if tensor is not None:
            described(v, tensor)
    part.outputs.clear()
    for inner in list(part):
        part.remove(inner)
        if inner.op_type == "Constant":
            _stored(graph, inner.outputs[0])
        else:
            graph.insert_before(node, inner)
    return results


def _own_prefix(graph: ir.Graph, wanted: str) -> str:
    """The prefix, or another one where tensors of the model have it: a patched model has those of parts that became nodes."""
    if _PREFIXES not in graph.meta:
        there = (*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs))
        graph.meta[_PREFIXES] = Names((v.name or "").rpartition("/")[0] for v in there)
    names = graph.meta[_PREFIXES]
    assert isinstance(names, Names)
    return names.new(wanted)


def mark(model: ir.Model, whole: str, key: str) -> None:
    """Say something of all parts of an operator."""
    for node in model.graph:
        if node.meta.get(WHOLE) == whole:
            node.meta[key] = True


def between(model: ir.Model) -> Iterator[ir.Value]:
    """What operators whose parts are replaced together read and give, and the results that an operator is said to END in."""
    for node in model.graph:
        whole = node.meta.get(WHOLE)
        yield from node.outputs if END in node.meta else ()
        if whole is not None:
            makers = ((v, v.producer()) for v in node.inputs if v is not None)
            yield from (v for v, maker in makers if maker is not None and maker.meta.get(WHOLE) != whole)
            yield from (v for v in node.outputs if any(u.meta.get(WHOLE) != whole for u, _ in v.uses()))


def parsed(text: str, kind: ir.DataType) -> ir.Graph:
    """A text as a graph. Its lines `let a = 1, b = [2, 3], c = 0.5` are constants, numbers like the last of type `kind`."""
    text = re.sub(r"^ *let (.*)$", lambda line: _constants(line[1], kind), text, flags=re.MULTILINE)
    head = f'<ir_version: 9, opset_import: ["" : {OLDEST}, "{MICROSOFT}" : 1]> part '
    return ir.from_proto(onnx.parser.parse_model(head + text)).graph


def _constants(listed: str, kind: ir.DataType) -> str:
    """A list of constants as nodes."""
    made = []
    for name, value in re.findall(r"(\w+) = (\[.*?\]|[^,]+)", listed):
        if value.startswith("["):
            made.append(f"{name} = Constant <value_ints = {value}> ()")
        elif value.isdigit():
            made.append(f"{name} = Constant <value = int64 {{{value}}}> ()")
        else:
            made.append(f"{name}_f32 = Constant <value = float {{{value}}}> ()")
            made.append(f"{name} = Cast <to = {kind.value}> ({name}_f32)")
    return "\n".join(made)


def described(v: ir.Value, tensor: Tensor) -> ir.Value:
    """A value with what is known of it."""
    v.type, v.shape = ir.TensorType(tensor[0]), ir.Shape(list(tensor[1]))
    return v


def _stored(graph: ir.Graph, v: ir.Value) -> None:
    """Let a weight take the place of the result of a Constant."""
    node = v.producer()
    assert node is not None
    ((kind, attribute),) = node.attributes.items()
    tensor = attribute.as_tensor() if kind == "value" else ir.tensor(attribute.as_ints(), ir.DataType.INT64)
    shape = ir.Shape(list(tensor.shape.numpy()))
    weight = ir.Value(name=v.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    ir.convenience.replace_all_uses_with(v, weight)
    graph.register_initializer(weight)
