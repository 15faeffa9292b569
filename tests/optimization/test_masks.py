"""Fused attention with masks, optimized, where NaN and infinities come in: zeros are for rows that hide all, NaN stays NaN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import mirage_cli as mi
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.lax.ir.graph import Map
from mirage_cli.options.options import Options
from mirage_cli.runtime import sessions
from mirage_cli.truth import evaluate
from tests.frontends.models import parsed, read
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


#: attention in which every query sees a key: what is shared out is nothing where all scores are minus infinity
UNMASKED = {
    "plain": f"g ({_HEADS}) => (float[1, 2, 3, 8] y) {{ y = Attention (q, k, v) }}",
    "causal": f"g ({_HEADS}) => (float[1, 2, 3, 8] y) {{ y = Attention <is_causal = 1> (q, k, v) }}",
    "microsoft": f"g ({_FLAT}) => (float[1, 3, 16] y) {{ y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v) }}",
}


@pytest.mark.parametrize("name", UNMASKED)
def test_scores_that_are_all_minus_infinity(name: str, tmp_path: Path, own_cache: Path) -> None:
    model = parsed(f'<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> {UNMASKED[name]}')
    onnx.save(model, tmp_path / "m.onnx")
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(own_cache))
    report = anew(str(tmp_path / "m.onnx"), tmp_path / "out", options)
    assert [f.status for f in report.fragments] == ["replaced"]
    inputs = {n: np.abs(a) for n, a in fed(model, "nothing", 0).items()}
    inputs["q"][..., 1, :] = -np.inf
    patched = sessions.session(tmp_path / "out" / "model.onnx", tmp_path / "out" / "libmirage.so")
    wanted = evaluate.run(model, inputs)["y"]
    assert np.isnan(wanted[..., 1, :]).all()
    np.testing.assert_allclose(sessions.run(patched, inputs)["y"], wanted, rtol=1e-4, atol=1e-5)


#: scores of Megatron: masks of 0 and 1 that multiply them, and a layer's scale that is divided by and multiplied with
MULTIPLIED = {
    "mask": "w = Mul(a, m) hidden = Sub(one, m) n = Mul(hidden, low) t = Add(w, n)",
    "scale": "w = Div(a, m) t = Mul(w, m)",
}


@pytest.mark.parametrize("name", MULTIPLIED)
def test_masks_and_scales_that_multiply_scores(name: str, tmp_path: Path, own_cache: Path) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 17]> g ({_HEADS}, float[1, 1, 3, 5] m) => (float[1, 2, 3, 8] y) {{
        turned = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul (q, turned) a = Div (s, size)
        {MULTIPLIED[name]}
        p = Softmax <axis = -1> (t) y = MatMul (p, v)
    }}"""
    numbers = {"size": 2.8284, "one": 1, "low": -10000}
    model = parsed(text, **{k: np.float32(x) for k, x in numbers.items() if f" {k}" in text or f"({k}" in text})
    onnx.save(model, tmp_path / "m.onnx")
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(own_cache))
    report = anew(str(tmp_path / "m.onnx"), tmp_path / "out", options)
    assert [f.status for f in report.fragments] == ["replaced"]
    inputs = fed(model, "nothing", 0) | {"m": SEEN.astype(np.float32)[None, None]}
    paths = ((tmp_path / "out" / "model.onnx", tmp_path / "out" / "libmirage.so"), (tmp_path / "m.onnx", None))
    made, own = (sessions.run(sessions.session(*p), inputs)["y"] for p in paths)
    np.testing.assert_allclose(made, own, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("queries", "quotient"), [(5, "div"), (9, "share")])
def test_windows_behind_the_last_key_are_empty(queries: int, quotient: str) -> None:
    heads = f"float[1, 2, {queries}, 8] q, float[1, 2, 5, 8] k, float[1, 2, 5, 8] v"
    call = "{ y = Attention <is_causal = 1, left_window_size = 2> (q, k, v) }"
    model = parsed(f'<ir_version: 10, opset_import: ["" : 25]> g ({heads}) => (float[1, 2, {queries}, 8] y) {call}')
    used = {step.op for step in read(model).graph.steps if isinstance(step, Map)}
    assert used & {"div", "share"} == {quotient}


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
            for found in (own, made):
                known = [(np.isfinite(found) == np.isfinite(wanted)).all() for wanted in (read, unread)]
                assert any(known), (place, number)
            finite = np.isfinite(made)
            for wanted in (read, unread):
                both = finite & np.isfinite(wanted)
                np.testing.assert_allclose(made[both], wanted[both], rtol=1e-4, atol=1e-5)
            if place == "a key" and np.isnan(number):
                assert np.isnan(made.reshape(-1)[0])
            if place == "nothing":
                rows = np.moveaxis(np.atleast_3d(made.reshape(-1, *made.shape[-2:])), -2, 0)
                assert (np.isnan if name == "microsoft" else np.logical_not)(rows[2]).all(), "nothing is seen"


def test_a_past_may_be_empty(tmp_path: Path, cache: Path) -> None:
    inputs = "float[1, 2, 1, 8] q, float[1, 2, 1, 8] k, float[1, 2, 1, 8] v, float[1, 2, past, 8] pk, float[1, 2, past, 8] pv"
    steps = "keys = Concat <axis = 2> (pk, k) values = Concat <axis = 2> (pv, v) y = Attention (q, keys, values)"
    text = f"g ({inputs}) => (float[1, 2, 1, 8] y) {{ {steps} }}"
    path, out = tmp_path / "model.onnx", tmp_path / "out"
    onnx.save(model := parsed(text, opset=23, ir_version=11), path)
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(cache), dim=("past=0:4:16",))
    (fragment,) = anew(str(path), out, options).fragments
    assert fragment.status == "replaced"
    both = sessions.session(path.read_bytes()), sessions.session((out / MODEL).read_bytes(), library=out / LIBRARY)
    for length in (0, 4):
        rng = np.random.default_rng(length)
        shapes = {i.name: [d.dim_value or length for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
        given = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        original, ours = (sessions.run(s, given)["y"] for s in both)
        assert np.allclose(ours, original, atol=1e-5)


def test_a_stored_mask_that_only_the_original_reads(tmp_path: Path) -> None:
    """The kernel compares positions and reads its packed weights where it looks for them; `bench`'s calls all see the mask."""
    n = 96
    rng = np.random.default_rng(0)
    text = f"g (float[{n}, 64] x) => (float[{n}, {n}] y) {{ p = MatMul (x, w) y = Where (mask, p, zero) }}"
    numbers = {"w": rng.normal(size=(64, n)).astype(np.float32), "zero": np.float32(0)}
    onnx.save(parsed(text, mask=np.tril(np.ones((n, n), bool)), **numbers), tmp_path / "model.onnx")
    out = tmp_path / "out"
    anew(str(tmp_path / "model.onnx"), out, Options(target=("cpu",), force=True))
    (node,) = onnx.load(out / MODEL, load_external_data=False).graph.node
    assert "mask" in node.input
    result = mi.bench(out, cpu=True, seconds=0.01)
    assert not result.problems() and result.fragments[0].comparison.calls > 1
