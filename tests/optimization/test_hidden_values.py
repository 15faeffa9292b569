"""A causal model written in plain nodes keeps its kernel, which does not read what is hidden, NaN or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import mirage_cli as mi
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.runtime import sessions
from mirage_cli.truth import evaluate

PLACES = """dims = Shape (q)  from = Constant <value_ints = [1]> ()  to = Constant <value_ints = [2]> ()
    counts = Slice (dims, from, to)  count = Squeeze (counts)
    none = Constant <value = int64 {0}> ()  one = Constant <value = int64 {1}> ()
    key = Range (none, count, one)  row = Unsqueeze (key, from)  keep = LessOrEqual (key, row)
    low = Constant <value = float {-inf}> ()"""
TEXT = f"""<ir_version: 9, opset_import: ["" : 18]>
g (float[2,n,16] q, float[2,n,16] k, float[2,n,16] v) => (float[2,n,16] y) {{
    {PLACES}
    turned = Transpose <perm = [0, 2, 1]> (k)  product = MatMul (q, turned)  scores = Where (keep, product, low)
    weights = Softmax <axis = -1> (scores)  y = MatMul (weights, v)
}}"""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def test_its_kernel_is_kept(model: onnx.ModelProto, cache: Path, tmp_path: Path) -> None:
    onnx.save(model, tmp_path / "model.onnx")
    out = tmp_path / "out"
    report = mi.optimize(tmp_path / "model.onnx", out, target="cpu", force=True, jobs=1, cache=str(cache))
    assert [f.name for f in report.replaced] == ["attention"]
    assert any("const int end = " in p.read_text() for p in (out / "src").glob("*.cpp"))
    both = sessions.session(str(out / MODEL), library=out / LIBRARY), sessions.session(model.SerializeToString())
    random = np.random.default_rng(0)
    feeds = {n: random.standard_normal((2, 300, 16)).astype(np.float32) for n in "qkv"}
    ours, theirs = (sessions.run(s, feeds)["y"] for s in both)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    feeds["v"][:, -1] = np.nan
    spoiled = sessions.run(both[0], feeds)["y"]
    np.testing.assert_array_equal(spoiled[:, :64], ours[:, :64])
    assert np.isnan(spoiled[:, -1]).all()


def test_what_weighs_nothing_may_be_read_or_not(model: onnx.ModelProto) -> None:
    random = np.random.default_rng(0)
    feeds = {n: random.standard_normal((2, 5, 16)).astype(np.float32) for n in "qkv"}
    usual = evaluate.run(model, feeds)["y"]
    feeds["v"][:, 3] = np.inf
    read, unread = (evaluate.run(model, feeds, hidden=h)["y"] for h in (True, False))
    assert not np.isfinite(read).any()
    np.testing.assert_allclose(unread[:, :3], usual[:, :3])
    assert not np.isfinite(unread[:, 3:]).any()
