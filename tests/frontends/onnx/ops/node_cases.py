"""The `onnx` package's own node tests run through the reader: what becomes of each case."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase

from mirage_cli.errors import InvalidGraph, ModelError
from mirage_cli.frontends.imported import Imported, Options
from mirage_cli.frontends.onnx import front_end
from mirage_cli.frontends.onnx.ops import READERS
from mirage_cli.frontends.onnx.ops.registry import ELEMENT_TYPES
from tests import node_tests
from tests.frontends import evaluation

PASSED, STORED, REFUSED, NOT_READ, WRONG = (
    "passed",
    "passed with its parameters stored in the model",
    "refused",
    "not read",
    "wrong",
)
#: relative and absolute error by the expected output's type; the onnx package itself allows 1e-3
TOLERANCE = {"float64": 1e-6, "float32": 1e-4, "float16": 4e-3, "bfloat16": 2e-2}
#: a number in the middle of two whole ones goes to one of them in float32, to the other in float64
HALVES = ("DynamicQuantizeLinear",)
SMALL = 64  #: elements up to which an integer input may be a parameter
Tensor = NDArray[Any]


@functools.cache
def collect() -> dict[str, TestCase]:
    """All cases by name, sorted; those of pools, which are not read, left out."""
    assert not {("", name) for name in node_tests.POOLS} & READERS.keys()
    return {case.name: case for case in node_tests.collect()}


def outcome(case: TestCase, model: onnx.ModelProto | None = None, expected: Sequence[Any] | None = None) -> str:
    """What becomes of a case: one of the words above, with a reason where it does not pass.

    `model` may be another one of the same meaning, or one that has other `expected` outputs on the same inputs.
    Exporters store shapes, axes and indices as constants, while the cases pass everything as inputs: a case that is
    refused as it stands is tried again with its integer inputs stored, the first one excepted, then with that one too.
    """
    inputs, recorded = ([array(x) for x in part] for part in case.data_sets[0])
    job = functools.partial(_outcome, model or case.model, inputs, recorded if expected is None else expected)
    found = job(())
    for first in (1, 0):
        if found.startswith(REFUSED):
            stored = [i for i, x in enumerate(inputs) if i >= first and _is_parameter(x)]
            if stored and job(stored) == PASSED:
                return STORED
    return found


def _outcome(proto: onnx.ModelProto, inputs: list[Any], expected: Sequence[Any], stored: Sequence[int]) -> str:
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for i in stored:
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(inputs[i]), model.graph.input[i].name))
    fed = {value.name: x for i, (value, x) in enumerate(zip(model.graph.input, inputs, strict=True)) if i not in stored}
    for i in sorted(stored, reverse=True):
        del model.graph.input[i]
    try:
        imported = front_end.from_proto(model, Options())
    except ModelError as error:
        return f"{NOT_READ}: {error}"
    try:
        found = evaluation.run(imported, fed)
    except InvalidGraph:
        if not imported.reasons:
            raise
        return why(imported)
    return compare(imported, found, expected)


def array(x: Any) -> Any:
    """An input or output of a case as an array; sequences stay lists."""
    if isinstance(x, onnx.TensorProto):
        return numpy_helper.to_array(x)
    return x if isinstance(x, list) else np.asarray(x)


def _is_parameter(x: object) -> bool:
    return isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind in "ib" and x.size <= SMALL


def why(imported: Imported) -> str:
    """Why a model is not read as a whole: operators without reader first, else the reasons of those with one."""
    nodes = {node.name: node for node in ir.traversal.RecursiveGraphIterator(imported.model.graph)}
    unknown = {_title(nodes[n]) for n in imported.reasons if n in nodes and _key(nodes[n]) not in READERS}
    if unknown:
        return f"{NOT_READ}: {', '.join(sorted(unknown))}"
    reasons = {f"{_title(nodes[name])}: {reason}" for name, reason in imported.reasons.items()}
    return f"{REFUSED}: {'; '.join(sorted(reasons))}"


def _key(node: ir.Node) -> tuple[str, str]:
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type)


def _title(node: ir.Node) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def compare(imported: Imported, found: Sequence[Tensor], expected: Sequence[Any]) -> str:
    """PASSED, or WRONG with the first difference in type, shape or value."""
    if len(found) != len(expected):
        return f"{WRONG}: {len(found)} outputs, expected {len(expected)}"
    for k, (v, ours, theirs) in enumerate(zip(imported.graph.outputs, found, expected, strict=True)):
        wanted = np.asarray(theirs)
        dtype = ELEMENT_TYPES.get(ir.DataType.from_numpy(wanted.dtype))
        if imported.graph.dtype(v) != dtype:
            return f"{WRONG}: output {k} is {imported.graph.dtype(v)}, expected {dtype}"
        if ours.shape != wanted.shape:
            return f"{WRONG}: output {k} has shape {ours.shape}, expected {wanted.shape}"
        tolerance = TOLERANCE.get(wanted.dtype.name, 0.0)
        if any(n.op_type in HALVES for n in imported.model.graph) and dtype is not None and not dtype.is_float:
            tolerance = 1.0
        if not np.allclose(ours, wanted.astype(np.float64), rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"{WRONG}: output {k} differs"
    return PASSED
