"""Fused attention with masks, optimized, where NaN and infinities come in: zeros are for rows that hide all, NaN stays NaN."""

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

_HEADS = "float[1, 2, 3, 8] q, float[1, 2, 5, 8] k, float[1, 2, 5, 8] v"
_FLAT = "float[1, 3, 16] q, float[1, 5, 16] k, float[1, 5, 16] v"
MODELS = {
    "boolean": f"g ({_HEADS}, bool[3, 5] m) => (float[1, 2, 3, 8] y) {{ y = Attention (q, k, v, m) }}",
    "additive": f"g ({_HEADS}, float[3, 5] m) => (float[1, 2, 3, 8] y) {{ y = Attention (q, k, v, m) }}",
    "window": f"g ({_HEADS}, bool[3, 5] m) => (float[1, 2, 3, 8] y) {{ y = Attention <is_causal = 1> (q, k, v, m) }}",
    "microsoft": f"g ({_FLAT}, float[1, 1, 3, 5] m) => (float[1, 3, 16] y) "
    "{ y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, , , m) }",
}
SEEN = np.array([[1, 1, 0, 0, 0], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0]], bool)  #: the last row hides all
PLACES = {
    "a key": ("k", 0),
    "a hidden key": ("k", 4),
    "a value": ("v", 0),
    "a hidden value": ("v", 4),
    "nothing": ("q", None),
}


def fed(model: onnx.ModelProto, place: str, number: float) -> dict[str, np.ndarray]:
    """Inputs with a number in one key or value."""
    rng, found = np.random.default_rng(7), {}
    for i in model.graph.input:
        dims = [d.dim_value for d in i.type.tensor_type.shape.dim]
        if i.name == "m":
            boolean = i.type.tensor_type.elem_type == onnx.TensorProto.BOOL
            found["m"] = (SEEN if boolean else np.where(SEEN, 0, -np.inf).astype(np.float32)).reshape(dims)
        else:
            found[i.name] = rng.normal(size=dims).astype(np.float32)
    name, at = PLACES[place]
    if at is not None:
        found[name][..., at, 3] = number
    return found


@pytest.mark.parametrize("name", MODELS)
def test_numbers_that_are_none(name: str, tmp_path: Path, own_cache: Path) -> None:
    head = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'
    model = parsed(f"{head} {MODELS[name]}")
    onnx.save(model, tmp_path / "m.onnx")
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(own_cache))
    report = anew(str(tmp_path / "m.onnx"), tmp_path / "out", options)
    assert [f.status for f in report.fragments] == ["replaced"]
    patched = sessions.session(tmp_path / "out" / "model.onnx", tmp_path / "out" / "libmirage.so")
    original = sessions.session(tmp_path / "m.onnx")
    for place in PLACES:
        for number in (np.nan, np.inf):
            inputs = fed(model, place, number)
            made, own = (sessions.run(s, inputs)["y"] for s in (patched, original))
            with np.errstate(all="ignore"):
                read, unread = (evaluate.run(model, inputs, hidden=h)["y"] for h in (True, False))
            np.testing.assert_array_equal(np.isfinite(own), np.isfinite(read))
            finite = np.isfinite(made)
            assert (finite == np.isfinite(read)).all() or (finite == np.isfinite(unread)).all(), (place, number)
            for wanted in (read, unread):
                both = finite & np.isfinite(wanted)
                np.testing.assert_allclose(made[both], wanted[both], rtol=1e-4, atol=1e-5)
            if place == "a key" and np.isnan(number):
                assert np.isnan(made.reshape(-1)[0])
            if place == "nothing":
                rows = np.moveaxis(np.atleast_3d(made.reshape(-1, *made.shape[-2:])), -2, 0)
                assert (np.isnan if name == "microsoft" else np.logical_not)(rows[2]).all(), "nothing is seen"
