"""Symbols that a model's own products ask to be equal are one; what broadcasts says nothing of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from mirage_cli.errors import MirageError
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.options.options import Options
from mirage_cli.runtime import sessions
from mirage_cli.runtime.example import with_caches
from mirage_cli.verification.findings import VerifyOptions
from mirage_cli.verification.story import verify_folder
from tests.frontends.models import parsed, read
from tests.optimized import anew

INPUTS = "float[b,4,n,16] q, float[b,4,past,16] k, float[b,4,past_1,16] v, float[b,4,1,16] k1, float[b,4,1,16] v1"
STEPS = """keys = Concat <axis = 2> (k, k1) values = Concat <axis = 2> (v, v1) kt = Transpose <perm = [0, 1, 3, 2]> (keys)
s = MatMul (q, kt) p = Softmax <axis = -1> (s) y = MatMul (p, values)"""
ATTENTION = f"g ({INPUTS}) => (float[b,4,n,16] y) {{ {STEPS} }}"


def test_lengths_of_caches_with_names_of_their_own() -> None:
    imported = read(parsed(ATTENTION, opset=17, ir_version=8))
    assert imported.reasons == {} and imported.same == {"past_1": "past"}
    assert imported.notes == ["past_1 is taken to be past: the model fails where they differ"]
    assert imported.of_original({"b": 2, "past": 9}) == {"b": 2, "past": 9, "past_1": 9}


@pytest.mark.parametrize(
    "node",
    ["y = Add (x, z)", 'y = Einsum <equation = "ij,kj->ik"> (x, z)', "y = Concat <axis = 1> (x, z)", "y = Mul (x, z)"],
)
def test_what_broadcasts_says_nothing(node: str) -> None:
    text = f"g (float[2,s] x, float[2,t] z) => (float[u,w] y) {{ {node} }}"
    assert read(parsed(text, opset=17, ir_version=8)).same == {}


def test_a_chain_of_them_is_one() -> None:
    steps = "a = MatMul (x, w) c = MatMul (v, z) d = MatMul (p, o) e = Add (a, c) y = Add (e, d)"
    inputs = "float[r,s] x, float[t,4] w, float[r,t] v, float[u,4] z, float[r,u] p, float[m,4] o"
    text = f"g ({inputs}) => (float[r,4] y) {{ {steps} }}"
    assert read(parsed(text, opset=17, ir_version=8)).same == {"t": "s", "u": "s", "m": "s"}


def test_attention_over_them_is_replaced_and_refuses_what_the_model_does(tmp_path: Path, cache: Path) -> None:
    path, out = tmp_path / "model.onnx", tmp_path / "out"
    onnx.save(parsed(ATTENTION, opset=17, ir_version=8), path)
    report = anew(str(path), out, Options(target=("cpu",), force=True, jobs=1, cache=str(cache)))
    assert {f.name: f.reason for f in report.fragments if f.status != "replaced"} == {}
    assert "attention" in {f.name for f in report.fragments}
    original = sessions.session(path.read_bytes())
    ours = sessions.session((out / MODEL).read_bytes(), library=out / LIBRARY)
    random = np.random.default_rng(3)

    def feeds(b: int, n: int, past: int, past_1: int) -> dict[str, np.ndarray]:
        dims = {"q": (n,), "k": (past,), "v": (past_1,), "k1": (1,), "v1": (1,)}
        return {name: random.standard_normal((b, 4, *d, 16)).astype(np.float32) for name, d in dims.items()}

    for case in ((1, 1, 0), (2, 3, 9), (3, 1, 40)):
        x = feeds(*case, case[-1])
        wanted, found = (sessions.run(s, x)["y"] for s in (original, ours))
        np.testing.assert_allclose(found, wanted, atol=2e-6, rtol=0)
    for session in (original, ours):
        with pytest.raises(MirageError):
            sessions.run(session, feeds(2, 3, 9, 8))
    verified = verify_folder(out, VerifyOptions())
    assert verified.passed and verified.outputs


def test_what_is_joined_to_a_number_is_that_number() -> None:
    text = (
        "g (float[b,2,past,size] k, float[b,2,n,16] new, float[b,other] x) => (float[b,2,all,size] y, float[b,u] z) {"
    )
    text += " y = Concat <axis = 2> (k, new) z = Concat <axis = -1> (x, x) }"
    imported = read(parsed(text, opset=17, ir_version=8))
    assert [str(d) for d in imported.model.graph.inputs[0].shape or ()] == ["b", "2", "past", "16"]
    assert [str(d) for d in imported.graph.dims(imported.values["y"])] == ["b", "2", "(n+past)", "16"]
    assert [str(d) for d in imported.graph.dims(imported.values["z"])] == ["b", "2*other"]
    model = ir.from_proto(parsed(text, opset=17, ir_version=8))
    assert with_caches(model, {}) == {"size": 16}, "verification draws it so"
