"""Changes of ONNX models: of any field of the message, and of what fields mean together."""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from mirage_cli.frontends.onnx.ops import READERS
from tests.fuzz.mutations import INTEGERS, NUMBERS, TEXTS, raw, text

_WHOLE = {
    FieldDescriptor.CPPTYPE_INT32: (32, True),
    FieldDescriptor.CPPTYPE_UINT32: (32, False),
    FieldDescriptor.CPPTYPE_INT64: (64, True),
    FieldDescriptor.CPPTYPE_UINT64: (64, False),
}
_EMPTY: dict[int, Any] = {FieldDescriptor.TYPE_BYTES: b"", FieldDescriptor.TYPE_STRING: ""}
Change = Callable[[Random, Any], None]


# ---- protobuf messages -----------------------------------------------------------------------------------------------


def model(rng: Random, data: bytes) -> bytes:
    """An ONNX model with one to three changes to its fields, or to what they mean together; sometimes only bytes."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        return raw(rng, data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(_MEANT) if rng.random() < 0.7 else field
        with contextlib.suppress(ValueError, TypeError, IndexError):  # a change that does not fit this model
            change(rng, proto)
    written: bytes = proto.SerializeToString()
    return raw(rng, written) if rng.random() < 0.03 else written


def field(rng: Random, proto: Message) -> None:
    """One field of some message inside changed, whatever it means."""
    messages = list(_messages(proto))
    chosen = rng.choice(messages)
    one = rng.choice(chosen.DESCRIPTOR.fields)
    present = [f for f, _ in chosen.ListFields()]
    if present and rng.random() < 0.8:
        one = rng.choice(present)
    if one.is_repeated:
        _repeated(rng, chosen, one, messages)
    elif rng.random() < 0.15:
        chosen.ClearField(one.name)
    elif one.message_type is not None:
        like = [m for m in messages if m.DESCRIPTOR is one.message_type]
        getattr(chosen, one.name).CopyFrom(_copied(rng.choice(like))) if like else getattr(
            chosen, one.name
        ).SetInParent()
    else:
        setattr(chosen, one.name, _scalar(rng, one, getattr(chosen, one.name), proto))


def _messages(proto: Message) -> Iterator[Message]:
    """A message and all inside it."""
    yield proto
    for one, value in proto.ListFields():
        if one.message_type is not None:
            for inner in value if one.is_repeated else [value]:
                yield from _messages(inner)


def _copied(proto: Message) -> Message:
    made = type(proto)()
    made.CopyFrom(proto)
    return made


def _repeated(rng: Random, holder: Message, one: FieldDescriptor, messages: Sequence[Message]) -> None:
    """An element left out, repeated, moved, put in from elsewhere, or changed where it is a scalar."""
    values = getattr(holder, one.name)
    items = [_copied(v) if one.message_type is not None else v for v in values]
    place = rng.randrange(len(items) + 1)
    match rng.randrange(4):
        case 0:
            del items[place : place + 1]
        case 1 if items:
            items.insert(place, rng.choice(items))
        case 2 if items:
            items.insert(place, items.pop(rng.randrange(len(items))))
        case _ if one.message_type is not None:
            like = [m for m in messages if m.DESCRIPTOR is one.message_type]
            items[place : place + rng.randrange(2)] = [_copied(rng.choice(like))] if like else []
        case _:
            old = items[place] if place < len(items) else rng.choice(items) if items else _EMPTY.get(one.type, 0)
            items[place : place + 1] = [_scalar(rng, one, old, messages[0])]
    del values[:]
    values.extend(items)


def _scalar(rng: Random, one: FieldDescriptor, old: Any, proto: Message) -> Any:
    """A value for a scalar field."""
    if one.cpp_type in _WHOLE:
        bits, signed = _WHOLE[one.cpp_type]
        value = rng.choice((*INTEGERS, *range(-3, 30), old + 1, old - 1, old * 2))
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return min(max(value, low), high)
    match one.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return not old
        case FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice([v.number for v in one.enum_type.values])
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return rng.choice((*NUMBERS, old + 1, old / 2))
    if one.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice((raw(rng, old), old[:-1], old * 2, b"", rng.choice(_names(proto)).encode()))
    return rng.choice((text(rng, old), rng.choice(_names(proto)), rng.choice(_names(proto)), rng.choice(operators())))


def _names(proto: Message) -> list[str]:
    """Names of tensors in a model, and texts that are trouble elsewhere."""
    graph = getattr(proto, "graph", None)
    if graph is None:
        return [t for t in TEXTS if "\ud800" not in t]
    found = [n for node in graph.node for n in (*node.input, *node.output)]
    return [*found, *(t for t in TEXTS if "\ud800" not in t)]


@functools.cache
def operators() -> tuple[str, ...]:
    """Names of operators: those that are read twice as often as others."""
    ours = sorted({name for _, name in READERS})
    return (*ours, *ours, *sorted({s.name for s in onnx.defs.get_all_schemas()}))


# ---- what fields of a model mean together ----------------------------------------------------------------------------


def _graphs(proto: onnx.ModelProto) -> list[Any]:
    """The main graph, inner graphs and functions that have nodes."""
    return [m for m in _messages(proto) if isinstance(m, onnx.GraphProto | onnx.FunctionProto) and m.node]


def _node(rng: Random, proto: onnx.ModelProto) -> onnx.NodeProto:
    found: onnx.NodeProto = rng.choice(rng.choice(_graphs(proto)).node)
    return found


def _other_operator(rng: Random, proto: onnx.ModelProto) -> None:
    """Another operator on the same tensors."""
    _node(rng, proto).op_type = rng.choice(operators())


def _other_edge(rng: Random, proto: onnx.ModelProto) -> None:
    """An operand that is another tensor, of this graph or of none; cycles too."""
    node = _node(rng, proto)
    place = rng.randrange(len(node.input) + 1)
    name = rng.choice(_names(proto))
    node.input.append(name) if place == len(node.input) else node.input.__setitem__(place, name)


def _other_shape(rng: Random, proto: onnx.ModelProto) -> None:
    """A dimension of some tensor: a number, a symbol, none, or one dimension more or less."""
    values = [m for m in _messages(proto) if isinstance(m, onnx.TensorShapeProto)]
    shape = rng.choice(values)
    match rng.randrange(4):
        case 0:
            shape.dim.add(dim_value=rng.choice(INTEGERS))
        case 1:
            del shape.dim[rng.randrange(len(shape.dim))]
        case 2:
            shape.dim[rng.randrange(len(shape.dim))].dim_param = rng.choice(TEXTS[:16])
        case _:
            shape.dim[rng.randrange(len(shape.dim))].dim_value = rng.choice((*INTEGERS, *range(1, 9)))


def _other_type(rng: Random, proto: onnx.ModelProto) -> None:
    """Another element type of one tensor, or of all that have its type."""
    tensors = [m for m in _messages(proto) if isinstance(m, onnx.TypeProto.Tensor)]
    old, new = rng.choice(tensors).elem_type, rng.randrange(1, 27)
    for tensor in tensors if rng.random() < 0.5 else [rng.choice(tensors)]:
        tensor.elem_type = new if tensor.elem_type == old else tensor.elem_type


def _other_weight(rng: Random, proto: onnx.ModelProto) -> None:
    """A weight of small integers, floats or nothing, stored in one of the ways that there are."""
    name = rng.choice(_names(proto))
    held = [t for t in proto.graph.initializer if t.name == name]
    dims = rng.choice(([], [0], [1], [2], [3], [4], [2, 2], [1, 4, 1], [2**40], [2**31, 2**31, 0], [-1]))
    count = min(64, max(0, int(functools.reduce(lambda a, b: a * b, dims, 1))))
    kind = rng.choice((onnx.TensorProto.INT64, onnx.TensorProto.FLOAT, rng.randrange(28)))
    made = onnx.TensorProto(name=name, data_type=kind, dims=dims)
    integers = [rng.choice((*range(-4, 9), *INTEGERS)) for _ in range(count)]
    match rng.randrange(4):
        case 0:
            made.int64_data.extend(integers)
        case 1:
            made.float_data.extend(map(float, integers))
        case 2:
            made.raw_data = rng.randbytes(count * rng.choice((1, 2, 4, 8)))
        case _:
            made.raw_data = struct.pack(f"<{count}q", *integers)
    for tensor in held:
        proto.graph.initializer.remove(tensor)
    proto.graph.initializer.append(made)


def _other_attribute(rng: Random, proto: onnx.ModelProto) -> None:
    """An attribute that the operator (or another one) knows, with a value of some kind."""
    node = _node(rng, proto)
    known = sorted({n for s in onnx.defs.get_all_schemas() if s.name == node.op_type for n in s.attributes})
    name = rng.choice(known) if known and rng.random() < 0.9 else rng.choice(("axis", "perm", "to", "x"))
    for attribute in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(attribute)
    few = [rng.choice((*range(-3, 6), *INTEGERS)) for _ in range(rng.randrange(5))]
    value: Any = rng.choice((rng.choice(INTEGERS), rng.choice(range(-3, 12)), rng.choice(NUMBERS), few, "x", b"\xff"))
    if isinstance(value, list) and not value:
        node.attribute.add(name=name, type=onnx.AttributeProto.INTS)
    else:
        node.attribute.append(onnx.helper.make_attribute(name, value))


def _in_a_branch(rng: Random, proto: onnx.ModelProto) -> None:
    """Some nodes moved into the branches of an If, or the body of a Loop."""
    graph = proto.graph
    first = rng.randrange(len(graph.node))
    inner = graph.node[first : first + rng.randint(1, 4)]
    made = onnx.GraphProto(name="inner")
    made.node.extend(inner)
    outputs = [o for node in inner for o in node.output][-rng.randint(1, 2) :]
    made.output.extend(onnx.ValueInfoProto(name=o) for o in outputs)
    node = onnx.NodeProto(op_type=rng.choice(("If", "If", "Loop", "Scan")), name="b", output=outputs)
    node.input.append(rng.choice(_names(proto)))
    for name in ("then_branch", "else_branch") if node.op_type == "If" else ("body",):
        node.attribute.add(name=name, type=onnx.AttributeProto.GRAPH).g.CopyFrom(made)
    rest = [*graph.node[:first], node, *graph.node[first + len(inner) :]]
    copies = [_copied(n) for n in rest]
    del graph.node[:]
    graph.node.extend(copies)


def _in_a_function(rng: Random, proto: onnx.ModelProto) -> None:
    """Some nodes moved into a function of the model, which may call itself."""
    graph = proto.graph
    first = rng.randrange(len(graph.node))
    inner = [_copied(n) for n in graph.node[first : first + rng.randint(1, 5)]]
    made = {o for node in inner for o in node.output}
    inputs = list(dict.fromkeys(i for node in inner for i in node.input if i and i not in made))
    outputs = [o for node in inner for o in node.output if o][-rng.randint(1, 2) :]
    domain = rng.choice(("local", "local", "mirage", ""))
    name = rng.choice(("f", "f", "Relu", inner[0].op_type))
    call = onnx.NodeProto(op_type=name, domain=domain, input=inputs, output=outputs, name="call")
    body = [*inner, call] if rng.random() < 0.1 else inner
    proto.functions.add(name=name, domain=domain, input=inputs, output=outputs, node=body)
    proto.functions[-1].opset_import.extend(proto.opset_import)
    proto.opset_import.add(domain=domain, version=1)
    copies = [_copied(n) for n in (*graph.node[:first], call, *graph.node[first + len(inner) :])]
    del graph.node[:]
    graph.node.extend(copies)


def _other_version(rng: Random, proto: onnx.ModelProto) -> None:
    """Another version of the operators or of the format."""
    if rng.random() < 0.8:
        rng.choice(proto.opset_import).version = rng.choice((*range(1, 28), *INTEGERS))
    else:
        proto.ir_version = rng.choice((*range(1, 14), *INTEGERS))


def _less(rng: Random, proto: onnx.ModelProto) -> None:
    """Everything before or behind some node left out, so that its tensors become inputs or nothing."""
    place = rng.randrange(len(proto.graph.node))
    if rng.random() < 0.5:
        del proto.graph.node[place:]
        if place:
            for output in list(proto.graph.output)[:1]:
                output.name = proto.graph.node[-1].output[0]
    else:
        del proto.graph.node[:place]


def _chain(rng: Random, proto: onnx.ModelProto) -> None:
    """A node behind one of the tensors, in front of everything that reads it."""
    node = _node(rng, proto)
    name = node.output[rng.randrange(len(node.output))]
    made = onnx.NodeProto(op_type=rng.choice(operators()), input=[name], output=[f"{name}'"], name=f"{name}/new")
    extra = rng.choice(_names(proto))
    if rng.random() < 0.6:
        made.input.insert(rng.randrange(2), extra)
    for other in proto.graph.node:
        other.input[:] = [f"{name}'" if i == name else i for i in other.input]
    items = [_copied(n) for n in proto.graph.node]
    place = next((k for k, n in enumerate(items) if name in n.output), len(items) - 1)
    items.insert(place + 1, made)
    del proto.graph.node[:]
    proto.graph.node.extend(items)


_MEANT: tuple[Change, ...] = (
    *(_other_operator, _other_edge, _other_shape, _other_type, _other_weight, _other_attribute),
    *(_other_operator, _other_shape, _other_weight, _other_attribute, _chain, _chain),
    *(_in_a_branch, _in_a_function, _other_version, _less),
)
