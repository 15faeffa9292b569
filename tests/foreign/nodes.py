"""The `onnx` package's node tests, and its other small models, as files with test data."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase

from tests import node_tests

SMALL = 64  #: elements up to which an integer input may be a parameter
#: folders of the package with models that nobody wrote for one operator
OTHERS = ("simple", "light", "pytorch-converted", "pytorch-operator")


def write(folder: Path, names: frozenset[str] = frozenset()) -> None:
    """Write the tests (those of `names` only, if there are any): as they are, and with integer parameters stored in the
    model, as exporters write shapes, axes and indices. The other models of the package come with all of them."""
    for case in node_tests.collect(pools=not names):
        if not names or str(case.name) in names:
            _write(folder / "node" / str(case.name), case, ())
            stored = list(parameters(case))
            if stored:
                _write(folder / "stored" / str(case.name), case, stored)
    if not names:
        for path in others():
            target = folder / path.parent.parent.name / path.parent.name
            if not target.exists():
                shutil.copytree(path.parent, target)


def others() -> Iterator[Path]:
    """The package's other models that are there as files."""
    from onnx.backend import test

    for kind in OTHERS:
        yield from sorted((Path(test.__file__).parent / "data" / kind).glob("*/model.onnx"))


def parameters(case: TestCase) -> Iterator[int]:
    """The positions of small integer inputs behind the first one."""
    for k, value in enumerate(values(case)):
        if k and isinstance(value, np.ndarray) and value.dtype.kind in "ib" and value.size <= SMALL:
            yield k


def values(case: TestCase, outputs: bool = False) -> list[Any]:
    """The inputs (or outputs) of a test, as arrays where they are tensors."""
    return [array(x) for x in case.data_sets[0][int(outputs)]]


def array(x: Any) -> Any:
    """A value of a test as an array; sequences and optional values stay what they are."""
    if isinstance(x, onnx.TensorProto):
        return numpy_helper.to_array(x)
    return np.asarray(x) if isinstance(x, np.ndarray | np.generic | int | float | bool) else x


def _write(folder: Path, case: TestCase, stored: Any) -> None:
    """A test in the layout of the package; inputs at positions `stored` are part of the model."""
    data = folder / "test_data_set_0"
    if data.exists():
        return
    data.mkdir(parents=True)
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    inputs = values(case)
    for k in stored:
        model.graph.initializer.append(numpy_helper.from_array(inputs[k], model.graph.input[k].name))
    for k in sorted(stored, reverse=True):
        del model.graph.input[k]
    fed = [x for k, x in enumerate(inputs) if k not in stored]
    _data(data, "input", fed, list(model.graph.input))
    _data(data, "output", values(case, outputs=True), list(model.graph.output))
    onnx.save(model, folder / "model.onnx")


def _data(folder: Path, kind: str, found: list[Any], infos: list[onnx.ValueInfoProto]) -> None:
    for k, (value, info) in enumerate(zip(found, infos, strict=True)):
        (folder / f"{kind}_{k}.pb").write_bytes(_proto(value, info).SerializeToString())


def _proto(value: Any, info: onnx.ValueInfoProto) -> Any:
    which = info.type.WhichOneof("value")
    if which == "sequence_type":
        return value if isinstance(value, onnx.SequenceProto) else numpy_helper.from_list(value, info.name)
    if which == "optional_type":
        return value if isinstance(value, onnx.OptionalProto) else numpy_helper.from_optional(value, info.name)
    return numpy_helper.from_array(np.asarray(value), info.name)
