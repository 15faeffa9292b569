"""The float64 value of every sample's graph is what onnxruntime computes.

Lookups in embedding tables are not read: their results, and those of other such operators, come from onnxruntime.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from mirage_cli import frontends
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax.dtypes import from_numpy
from samples.inputs import example_inputs
from tests import alone
from tests.frontends import evaluation

Tensor = NDArray[Any]
SAMPLES = Path(__file__).resolve().parents[3] / "samples"
FILES = sorted([*(SAMPLES / "models").glob("*.onnx"), *(SAMPLES / "operators").glob("*.onnx")])
#: largest difference relative to the output's largest element
TOLERANCE = {"fp32": 1e-4, "fp16": 3e-2}


def test_all_samples_are_here() -> None:
    assert len(FILES) >= 77


def onnxruntime_values(imported: Imported, names: list[str], inputs: dict[str, Tensor]) -> list[Tensor]:
    """Tensors of the model that was read, which is not changed."""
    model = ir.to_proto(imported.model)
    declared = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in declared)
    session = alone.session(model)
    return list(session.run(names, inputs))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_graph_agrees_with_onnxruntime(path: Path) -> None:
    inputs = example_inputs(path)
    imported = frontends.load(str(path))
    opaque = evaluation.opaque_tensors(imported)
    assert len(opaque) <= 10
    stand_ins = dict(zip(opaque, onnxruntime_values(imported, opaque, inputs), strict=True)) if opaque else {}
    found = evaluation.run(imported, inputs, stand_ins)
    session = alone.session(path)
    expected = session.run(None, inputs)
    assert [value.name for value in session.get_outputs()] == [value.name for value in imported.model.graph.outputs]
    tolerance = TOLERANCE[path.stem.rpartition("_")[2]]
    for v, ours, theirs in zip(imported.graph.outputs, found, expected, strict=True):
        assert imported.graph.dtype(v) == from_numpy(theirs.dtype)
        assert ours.shape == theirs.shape
        assert np.isfinite(ours).all()
        assert np.abs(ours - theirs).max() <= tolerance * max(1.0, np.abs(theirs).max())
