"""Old spellings: each operator that mirage reads at each of its versions, alone and between products of matrices.

They are made of the newest node tests of the `onnx` package: what was an attribute once is made one again. What an old
version means is not said here: onnxruntime says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, checker, defs, helper, numpy_helper
from onnx.backend.test.case.test_case import TestCase

from tests import node_tests

from . import nodes

OLDEST = 7
MOST = 3  #: tests of an operator's version
FORMS = ("alone", "between", "named")
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Spelled:
    """An operator's node at one opset. `inputs` are arrays by name, of which `stored` are part of the model."""

    node: onnx.NodeProto
    opset: int
    inputs: dict[str, Array]
    stored: frozenset[str]
    outputs: tuple[Any, ...]


def write(folder: Path, operators: frozenset[str] = frozenset()) -> None:
    """Write the models of all operators, or of some: FOLDER/FORM/OPERATOR-VERSION-TEST/model.onnx with inputs beside it."""
    for title, found in spelled(operators):
        for form in FORMS:
            if form == "named" and not title.endswith("-0"):
                continue
            place = folder / form / title
            made = None if place.exists() else model(found, form)
            if made is None:
                continue
            place.mkdir(parents=True)
            onnx.save(made, place / "model.onnx")
            fed = {name: x for name, x in found.inputs.items() if name not in found.stored}
            np.savez(place / "model.npz", **fed)  # type: ignore[arg-type]


def spelled(operators: frozenset[str] = frozenset()) -> Iterator[tuple[str, Spelled]]:
    """The nodes with a title each."""
    from mirage_cli.frontends.onnx.ops import READERS

    known = {name for domain, name in READERS if domain == ""}
    by_name: dict[str, list[TestCase]] = {}
    for case in node_tests.collect():
        node = case.model.graph.node
        if len(node) == 1 and node[0].domain == "" and node[0].op_type in (operators or known):
            by_name.setdefault(node[0].op_type, []).append(case)
    for name, cases in sorted(by_name.items()):
        for version in versions(name):
            found = [s for case in cases if (s := at(case, version)) is not None]
            for k, s in enumerate(_varied(found)[:MOST]):
                yield f"{name}-{version}-{k}", s


def versions(name: str) -> list[int]:
    """The opsets at which an operator means, or is written, something of its own, from OLDEST on."""
    history = [s for s in defs.get_all_schemas_with_history() if s.name == name and s.domain == "" and not s.deprecated]
    return sorted({max(s.since_version, OLDEST) for s in history})


def _varied(found: Sequence[Spelled]) -> list[Spelled]:
    """Nodes with other attributes, inputs or ranks first."""
    first, rest, seen = list[Spelled](), list[Spelled](), set[object]()
    for s in found:
        key = (
            tuple(sorted(a.name for a in s.node.attribute)),
            len(s.node.input),
            tuple(x.dtype.kind for x in s.inputs.values()),
        )
        (rest if key in seen else first).append(s)
        seen.add(key)
    return first + rest


# --- a test at another version ----------------------------------------------------------------------------------------
def at(case: TestCase, opset: int) -> Spelled | None:
    """A test's node as it was written at an opset; None where that could not say it."""
    new = case.model.graph.node[0]
    own = next(o.version for o in case.model.opset_import if o.domain == "")
    schema, now = (defs.get_schema(new.op_type, v, "") for v in (opset, max(own, opset)))
    given = dict(zip((v.name for v in case.model.graph.input), nodes.values(case), strict=True))
    if not all(isinstance(x, np.ndarray) for x in given.values()):
        return None
    made = _respelled(new, now, schema, given)
    if made is None:
        return None
    inputs = {name: given[name] for name in made.input if name}
    if any(not _allowed(schema, k, inputs[name]) for k, name in enumerate(made.input) if name):
        return None
    first = next((name for name in made.input if name), "")
    stored = frozenset(n for n, x in inputs.items() if n != first and x.dtype.kind in "ib" and x.size <= nodes.SMALL)
    return Spelled(made, opset, inputs, stored, tuple(nodes.values(case, outputs=True)))


def _respelled(
    new: onnx.NodeProto, now: defs.OpSchema, schema: defs.OpSchema, given: dict[str, Array]
) -> onnx.NodeProto | None:
    """A node in the words of an older schema; None where these do not suffice."""
    attributes = {a.name: helper.get_attribute_value(a) for a in new.attribute}
    inputs: list[str] = []
    for k, name in enumerate(new.input):
        formal = now.inputs[min(k, len(now.inputs) - 1)].name
        if formal in schema.attributes and formal not in {i.name for i in schema.inputs}:
            if name:
                attributes[formal] = _attribute(schema.attributes[formal], given[name])
        elif k < len(schema.inputs) or schema.max_input > len(schema.inputs):
            inputs.append(name)
        elif name:
            return None
    while inputs and not inputs[-1]:
        inputs.pop()
    if not set(attributes) <= set(schema.attributes) or len(inputs) < schema.min_input:
        return None
    if len([o for o in new.output if o]) > schema.max_output:
        return None
    try:
        node = helper.make_node(new.op_type, inputs, list(new.output), **attributes)
        checker.check_node(node, _context(schema.since_version))
    except (ValueError, TypeError, checker.ValidationError):
        return None
    return node


def _context(version: int) -> checker.C.CheckerContext:
    context = checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {"": version}
    return context


def _attribute(schema: defs.OpSchema.Attribute, value: Array) -> Any:
    """A tensor as the attribute that it once was."""
    kinds = defs.OpSchema.AttrType
    if schema.type in (kinds.INTS, kinds.FLOATS):
        return [x.item() for x in value.reshape(-1)]
    return value.reshape(-1)[0].item() if schema.type in (kinds.INT, kinds.FLOAT) else value


def _allowed(schema: defs.OpSchema, k: int, value: Array) -> bool:
    """Whether an old version takes an input of this type."""
    if not schema.inputs:
        return False
    formal = schema.inputs[min(k, len(schema.inputs) - 1)]
    try:
        element = helper.np_dtype_to_tensor_dtype(value.dtype)
    except (KeyError, ValueError):
        return False
    return f"tensor({TensorProto.DataType.Name(element).lower()})" in formal.types


# --- models -----------------------------------------------------------------------------------------------------------
def model(s: Spelled, form: str) -> onnx.ModelProto | None:
    """A node as a model: "alone", "between" two products of matrices (as far as its types allow), or so with the domain's
    long name; None where there is no such model."""
    node = onnx.NodeProto()
    node.CopyFrom(s.node)
    before, after, weights = list[onnx.NodeProto](), list[onnx.NodeProto](), dict[str, Array]()
    if form != "alone":
        _product_before(s, node, before, weights)
        _products_after(s, node, after, weights)
        if not weights:
            return None
    made = [*before, node, *after]
    domain = "ai.onnx" if form == "named" else ""
    for n in made:
        n.domain = domain
    used = {name for n in made for name in n.input}
    result = [name for n in made for name in n.output if name and name not in used]
    ir_version = helper.find_min_ir_version_for([helper.make_opsetid("", s.opset)], ignore_unknown=True)
    held = {n: x for n, x in s.inputs.items() if n in s.stored} | weights
    given = [_info(n, x) for n, x in s.inputs.items() if n not in s.stored]
    given += [_info(n, x) for n, x in held.items()] if ir_version < 4 else []
    graph = helper.make_graph(
        made,
        "spelling",
        given,
        [_result(name, s) for name in result],
        [numpy_helper.from_array(x, n) for n, x in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, s.opset)], ir_version=ir_version)


def _product_before(s: Spelled, node: onnx.NodeProto, before: list[onnx.NodeProto], weights: dict[str, Array]) -> None:
    """The node's first float input is a product."""
    for k, name in enumerate(node.input):
        x = s.inputs.get(name)
        if x is not None and name not in s.stored and _multiplied(x):
            weights["W"] = mixing(x.shape[-1], x.shape[-1], x.dtype)
            before.append(helper.make_node("MatMul", [name, "W"], ["before"]))
            node.input[k] = "before"
            return


def _products_after(s: Spelled, node: onnx.NodeProto, after: list[onnx.NodeProto], weights: dict[str, Array]) -> None:
    """Its first result goes into a product, as float32 where it is none of floats."""
    value, name = s.outputs[0], node.output[0]
    if not isinstance(value, np.ndarray) or not value.ndim or not value.size or value.dtype.kind == "O":
        return
    if not _multiplied(value):
        if value.dtype.kind not in "biu":
            return
        after.append(helper.make_node("Cast", [name], ["cast"], to=TensorProto.FLOAT))
        name = "cast"
    dtype = value.dtype if _multiplied(value) else np.dtype(np.float32)
    weights["V"] = mixing(value.shape[-1], 3, dtype)
    after.append(helper.make_node("MatMul", [name, "V"], ["after"]))


def _multiplied(x: Array) -> bool:
    return x.dtype.name in ("float16", "float32", "float64") and x.ndim > 0 and x.size > 0


def mixing(rows: int, columns: int, dtype: np.dtype[Any]) -> Array:
    """Weights that leave numbers of their size, and positive ones positive."""
    return (np.eye(rows, columns) * 0.5 + 0.5 / rows + np.arange(columns) / 64).astype(dtype)


def _info(name: str, x: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)


def _result(name: str, s: Spelled) -> onnx.ValueInfoProto:
    if name == "after":
        first = s.outputs[0]
        dtype = first.dtype if _multiplied(first) else np.dtype(np.float32)
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), None)
    k = [o for o in s.node.output if o].index(name)
    value = np.asarray(s.outputs[k]) if k < len(s.outputs) else np.zeros(0, np.float32)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), None)
