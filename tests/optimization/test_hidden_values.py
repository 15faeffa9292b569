"""Causal models, their masks compared in nodes or stored with float32's lowest number, keep kernels that do not read what is
hidden, NaN or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import mirage_cli as mi
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.runtime import sessions
from mirage_cli.truth import evaluate
from tests.frontends.models import parsed

PLACES = """dims = Shape (q)  from = Constant <value_ints = [1]> ()  to = Constant <value_ints = [2]> ()
    counts = Slice (dims, from, to)  count = Squeeze (counts)
    none = Constant <value = int64 {0}> ()  one = Constant <value = int64 {1}> ()
    key = Range (none, count, one)  row = Unsqueeze (key, from)  keep = LessOrEqual (key, row)
    low = Constant <value = float {-inf}> ()"""
KEYS = 300
MASK = np.where(np.tril(np.ones((1, KEYS, KEYS), bool)), 0, np.finfo(np.float32).min).astype(np.float32)


def _text(count: int | str, mask: str) -> str:
    kind = f"float[2,{count},16]"
    return f"""g ({kind} q, {kind} k, {kind} v) => ({kind} y) {{
        turned = Transpose <perm = [0, 2, 1]> (k)  product = MatMul (q, turned)  {mask}
        weights = Softmax <axis = -1> (scores)  y = MatMul (weights, v)
    }}"""


MODELS = {
    "compared": lambda: parsed(_text("n", f"{PLACES} scores = Where (keep, product, low)")),
    "stored": lambda: parsed(_text(KEYS, "scores = Add (product, m)"), m=MASK),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> onnx.ModelProto:
    return MODELS[request.param]()


@pytest.mark.usefixtures("one_isa")
def test_its_kernel_is_kept(model: onnx.ModelProto, cache: Path, tmp_path: Path) -> None:
    onnx.save(model, tmp_path / "model.onnx")
    out = tmp_path / "out"
    report = mi.optimize(tmp_path / "model.onnx", out, target="cpu", force=True, jobs=1, cache=str(cache))
    assert [f.name for f in report.replaced] == ["attention"]
    assert any("const int end = " in p.read_text() for p in (out / "src").glob("*.cpp"))
    both = sessions.session(str(out / MODEL), library=out / LIBRARY), sessions.session(model.SerializeToString())
    random = np.random.default_rng(0)
    feeds = {n: random.standard_normal((2, KEYS, 16)).astype(np.float32) for n in "qkv"}
    ours, theirs = (sessions.run(s, feeds)["y"] for s in both)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    feeds["v"][:, -1] = np.nan
    spoiled = sessions.run(both[0], feeds)["y"]
    np.testing.assert_array_equal(spoiled[:, :64], ours[:, :64])
    assert np.isnan(spoiled[:, -1]).all()


def test_what_weighs_nothing_may_be_read_or_not(model: onnx.ModelProto) -> None:
    random = np.random.default_rng(0)
    feeds = {n: random.standard_normal((2, KEYS, 16)).astype(np.float32) for n in "qkv"}
    usual = evaluate.run(model, feeds)["y"]
    feeds["v"][:, 3] = np.inf
    read, unread = (evaluate.run(model, feeds, hidden=h)["y"] for h in (True, False))
    assert not np.isfinite(read).any()
    np.testing.assert_allclose(unread[:, :3], usual[:, :3])
    assert not np.isfinite(unread[:, 3:]).any()
