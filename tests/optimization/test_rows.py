"""Softmaxes and greatest numbers of rows of any length, optimized, beside float64 and onnxruntime at the edges of numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from mirage_cli.options.options import Options
from mirage_cli.runtime import sessions
from mirage_cli.truth import evaluate
from tests.frontends.models import parsed
from tests.optimized import anew

pytestmark = pytest.mark.usefixtures("one_isa")

MODELS = {
    "bias": ("g (float[B, N] x, float[N] b) => (float[B, N] y) { t = Add (x, b) y = Softmax <axis = -1> (t) }", {}),
    "mask": (
        "g (float[B, N] x, bool[B, N] m) => (float[B, N] y) { t = Where (m, x, none) y = Softmax <axis = -1> (t) }",
        {"none": np.float32(-np.inf)},
    ),
    "columns": ("g (float16[2, N, 5] x) => (float16[2, N, 5] y) { y = Softmax <axis = 1> (x) }", {}),
    "logs": ("g (float[B, N] x, float[N] b) => (float[B, N] y) { t = Add (x, b) y = LogSoftmax <axis = -1> (t) }", {}),
    "greatest": (
        "g (float[B, N] x, float[N] b) => (float[B] y) { t = Add (x, b) y = ReduceMax <keepdims = 0> (t, axes) }",
        {"axes": np.array([1], np.int64)},
    ),
    "least": (
        "g (float16[2, N, 5] x) => (float16[2, 1, 5] y) { t = Abs (x) y = ReduceMin (t, axes) }",
        {"axes": np.array([1], np.int64)},
    ),
    "long": ("g (float[2, 40000] x) => (float[2, 40000] y) { y = Softmax <axis = 1> (x) }", {}),
}  # fmt: skip
LOST = ("greatest", "least")  #: where onnxruntime may lose a NaN
EDGES = (np.nan, np.inf, -np.inf, 6e4, -6e4)


def fed(model: onnx.ModelProto, n: int, edge: float, seed: int) -> dict[str, np.ndarray]:
    """Inputs of which some numbers of a row, and all of another one, are at an edge."""
    rng, found = np.random.default_rng(seed), {}
    for i in model.graph.input:
        dims = [d.dim_value or {"B": 5, "N": n}[d.dim_param] for d in i.type.tensor_type.shape.dim]
        if i.type.tensor_type.elem_type == onnx.TensorProto.BOOL:
            found[i.name] = rng.random(dims) < 0.7
            found[i.name][0] = False
            continue
        x = np.round(rng.normal(0, 192, dims)) / 64  # float32 holds their sums with any edge
        if len(dims) > 1:
            x[1, rng.integers(0, dims[1], 2)] = edge
            x[-1] = edge
        found[i.name] = x.astype(onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_any_length(name: str, tmp_path: Path, own_cache: Path) -> None:
    text, weights = MODELS[name]
    model = parsed(text, **weights)
    onnx.save(model, tmp_path / "m.onnx")
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(own_cache))
    report = anew(str(tmp_path / "m.onnx"), tmp_path / "out", options)
    assert [f.status for f in report.fragments] == ["replaced"]
    original = sessions.session(tmp_path / "m.onnx")
    patched = sessions.session(tmp_path / "out" / "model.onnx", tmp_path / "out" / "libmirage.so")
    for n, (k, edge) in ((n, e) for n in (1, 3, 257, 5000) for e in enumerate(EDGES)):
        inputs = fed(model, n, edge, k)
        with np.errstate(all="ignore"):
            exact = np.asarray(evaluate.run(model, inputs)["y"])
        made, wanted = (sessions.run(s, inputs)["y"] for s in (patched, original))
        unit = 2e-6 if wanted.dtype == np.float32 else 1e-3
        np.testing.assert_allclose(made, exact, rtol=50 * unit, atol=unit)
        np.testing.assert_array_equal(np.isnan(made), np.isnan(exact if name in LOST else wanted))
