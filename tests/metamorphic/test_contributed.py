"""Attention blocks written with onnxruntime's own operators have the fragments of the same blocks without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from mirage_cli.options.options import Options
from mirage_cli.runtime import sessions
from tests.frontends.models import noise, parsed, run
from tests.metamorphic.fragments import difference, found
from tests.optimized import anew

pytestmark = pytest.mark.usefixtures("one_isa")

HEAD = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>'
S, N, H, D = 6, 2, 16, 32
LINEARS = "q = MatMul(a, wq) k = MatMul(a, wk) v = MatMul(a, wv)"
HEADS = " ".join(
    f"{x}r = Reshape({x}, heads) {x}h = Transpose <perm = [{perm}]> ({x}r)"
    for x, perm in (("q", "0, 2, 1, 3"), ("k", "0, 2, 3, 1"), ("v", "0, 2, 1, 3"))
)
SCORES = "s = MatMul(qh, kh) t = Mul(s, scale)"
VALUES = "w = Softmax(t) o = MatMul(w, vh) ot = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(ot, flat)"
BIASED = "qb = Add(q, bq) kb = Add(k, bk) vb = Add(v, bv)"
SPELLED = {
    "SkipLayerNormalization": "b = Add(x, z) a = LayerNormalization <epsilon = 1e-5> (b, gain, beta)",
    "SkipSimplifiedLayerNormalization": (
        "b = Add(z, x) sq = Mul(b, b) m = ReduceMean(sq, last) me = Add(m, eps) r = Sqrt(me) n = Div(b, r) a = Mul(n, gain)"
    ),
}
FUSED = {
    "SkipLayerNormalization": ("a, , , b = com.microsoft.SkipLayerNormalization <epsilon = 1e-5> (x, z, gain, beta)"),
    "SkipSimplifiedLayerNormalization": (
        "a, , , b = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 1e-5> (x, z, gain)"
    ),
}


def weights() -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    draw = np.random.default_rng(1)
    square = {f"w{x}": (draw.standard_normal((D, D)) / 6).astype(np.float32) for x in "qkvo"}
    vectors = {n: draw.standard_normal(D).astype(np.float32) for n in ("gain", "beta", "bq", "bk", "bv")}
    numbers = {"scale": np.float32(H**-0.5), "eps": np.float32(1e-5)}
    shapes = {"heads": np.array([0, 0, N, H]), "flat": np.array([0, 0, D]), "last": np.array([-1])}
    return {**square, **vectors, **numbers, **shapes, "bias": np.concatenate([vectors[n] for n in ("bq", "bk", "bv")])}


def block(norm: str, attention: str) -> onnx.ModelProto:
    """x + z, a norm, attention, and its output projection with the residual."""
    end = "p = MatMul(y, wo) out = Add(p, b)"
    text = f"{HEAD} g (float[1,{S},{D}] x, float[1,{S},{D}] z) => (float[1,{S},{D}] out) {{ {norm} {attention} {end} }}"
    used = {
        n: w for n, w in weights().items() if n in text.replace(",", " ").replace(")", " ").replace("(", " ").split()
    }
    return parsed(text, **used)


PLAIN = f"{LINEARS} {HEADS} {SCORES} {VALUES}"
WITH_BIAS = (
    f"{LINEARS} {BIASED} {HEADS.replace('(q,', '(qb,').replace('(k,', '(kb,').replace('(v,', '(vb,')} {SCORES} {VALUES}"
)
MHA = f"{LINEARS} y = com.microsoft.MultiHeadAttention <num_heads = {N}> (q, k, v"
CASES = [
    ("SkipLayerNormalization", PLAIN, f"{MHA})"),
    ("SkipLayerNormalization", WITH_BIAS, f"{MHA}, bias)"),
    ("SkipSimplifiedLayerNormalization", PLAIN, f"{MHA})"),
]


@pytest.mark.parametrize(("norm", "spelled", "fused"), CASES)
def test_a_block_has_the_same_fragments(norm: str, spelled: str, fused: str) -> None:
    one, other = block(SPELLED[norm], spelled), block(FUSED[norm], fused)
    inputs = {"x": noise(1, S, D), "z": noise(1, S, D)[:, ::-1].copy()}
    np.testing.assert_allclose(run(other, inputs)[0], run(one, inputs)[0], rtol=1e-4, atol=1e-5)
    assert difference(found(one), found(other)) == ""


def test_a_patched_model_of_contributed_operators_gives_its_answers(tmp_path: Path, cache: Path) -> None:
    model = block(FUSED["SkipLayerNormalization"], f"{MHA}, bias)")
    onnx.save(model, tmp_path / "model.onnx")
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(cache))
    report = anew(str(tmp_path / "model.onnx"), tmp_path / "out", options)
    assert {f.status: f.reason for f in report.fragments} == {"replaced": ""}
    inputs = {"x": noise(1, S, D), "z": noise(1, S, D)[:, ::-1].copy()}
    session = sessions.session(tmp_path / "out" / "model.onnx", tmp_path / "out" / "libmirage.so")
    (wanted,), (got,) = run(model, inputs), session.run(None, inputs)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
