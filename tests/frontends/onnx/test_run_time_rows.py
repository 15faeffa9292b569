"""Rows that are known at run time only: rotary embeddings at positions that are inputs, and tokens that are chosen before a
head. Each way as in onnxruntime, and by the fragments that read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import mirage_cli as mi
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.runtime import sessions
from mirage_cli.truth import evaluate
from tests.frontends.models import noise, parsed, read

HEADS, SIZE, TABLE = 3, 16, 40
FLAT, APART = f"float[b,s,{HEADS * SIZE}]", f"float[b,{HEADS},s,{SIZE}]"
LISTED, COUNTED = "int64[b,s]", "int64[1]"
MICROSOFT = "com.microsoft.RotaryEmbedding {0} (x, at, cos, sin)"
#: dimensions of x, positions, the operator
TURNS = {
    "halves": (FLAT, LISTED, MICROSOFT.format("")),
    "neighbours": (FLAT, LISTED, MICROSOFT.format("<interleaved = 1>")),
    "counted": (FLAT, COUNTED, MICROSOFT.format("")),
    "a part": (FLAT, LISTED, MICROSOFT.format(f"<num_heads = {HEADS}, rotary_embedding_dim = 8>")),
    "a part of neighbours": (
        FLAT,
        COUNTED,
        MICROSOFT.format(f"<num_heads = {HEADS}, rotary_embedding_dim = 8, interleaved = 1>"),
    ),
    "heads": (APART, LISTED, MICROSOFT.format("")),
    "heads, counted": (APART, COUNTED, MICROSOFT.format("<interleaved = 1>")),
    "of ONNX": (FLAT, LISTED, f"RotaryEmbedding <num_heads = {HEADS}> (x, cos, sin, at)"),
    "a part, of ONNX": (APART, LISTED, "RotaryEmbedding <rotary_embedding_dim = 8> (x, cos, sin, at)"),
}


def turning(form: str, sums: str = "z = Identity (y)") -> onnx.ModelProto:
    """x turned, and what is made of it."""
    dims, places, operator = TURNS[form]
    opset = 23 if "ONNX" in form else 21
    text = f"""<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>
    g ({dims} x, {places} at) => ({dims} z) {{
        y = {operator}
        {sums}
    }}"""
    half = 4 if "part" in form else SIZE // 2
    angles = np.outer(np.arange(TABLE), 0.4 ** np.arange(half)).astype(np.float32)
    return parsed(text, cos=np.cos(angles), sin=np.sin(angles), w=noise(SIZE, 24))


def arrays(form: str, batch: int, length: int) -> dict[str, Any]:
    """Two sequences and more, at positions that are not in a row where they are listed."""
    dims, places, _ = TURNS[form]
    shape = (batch, length, HEADS * SIZE) if dims == FLAT else (batch, HEADS, length, SIZE)
    at = np.random.default_rng(length).integers(0, TABLE, (batch, length)) if places == LISTED else np.array([7])
    return {"x": noise(*shape), "at": at}


@pytest.mark.parametrize("form", TURNS)
def test_a_rotation_is_taken_apart_to_the_same(form: str) -> None:
    before = turning(form)
    imported = read(before)
    assert not any(n.op_type == "RotaryEmbedding" for n in imported.model.graph)
    parts = ir.to_proto(imported.model)
    for batch, length in ((2, 5), (1, 1), (3, 1)):
        given = arrays(form, batch, length)
        (exact,) = evaluate.run(before, given).values()
        for m in (before, parts):
            (found,) = sessions.run(sessions.session(m.SerializeToString()), given).values()
            np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("one_isa")
@pytest.mark.parametrize("form", ["halves", "a part of neighbours", "heads"])
def test_a_fragment_has_the_rotation_inside(form: str, cache: Path, tmp_path: Path) -> None:
    """Products of each head, as attention begins; rows of tables are looked up once for two rotations."""
    dims = TURNS[form][0]
    per_head = (
        "apart = Reshape (y, dims) m = MatMul (apart, w) z = Reshape (m, joined)"
        if dims == FLAT
        else "z = MatMul (y, w)"
    )
    before = turning(form, per_head)
    shapes = {"dims": [0, 0, HEADS, SIZE], "joined": [0, 0, HEADS * 24]} if dims == FLAT else {}
    for name, shape in shapes.items():
        before.graph.initializer.append(onnx.numpy_helper.from_array(np.array(shape), name))
    before.graph.output[0].type.tensor_type.shape.dim[-1].dim_value = HEADS * 24 if dims == FLAT else 24
    onnx.save(before, tmp_path / "model.onnx")
    out = tmp_path / "out"
    report = mi.optimize(tmp_path / "model.onnx", out, target="cpu", force=True, jobs=1, cache=str(cache))
    assert [f.name for f in report.replaced] == ["linear"]
    after = onnx.load(out / MODEL)
    assert not any(n.op_type == "RotaryEmbedding" for n in after.graph.node)
    session = sessions.session(str(out / MODEL), library=out / LIBRARY)
    for batch, length in ((2, 5), (1, 1)):
        given = arrays(form, batch, length)
        (exact,) = evaluate.run(before, given).values()
        (found,) = sessions.run(session, given).values()
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)
    assert form != "halves" or mi.verify(out).passed


def test_layers_share_the_rows_of_tables() -> None:
    before = turning("halves", "y2 = com.microsoft.RotaryEmbedding (y, at, cos, sin) z = Identity (y2)")
    kinds = [n.op_type for n in read(before).model.graph]
    assert kinds.count("Gather") == 2 and "RotaryEmbedding" not in kinds


@pytest.mark.parametrize("form", ["halves", "counted"])
def test_a_tensor_with_the_name_of_such_rows_keeps_it(form: str) -> None:
    """A patched model has them where one of two rotations stays."""
    before = turning(form, "r = Gather <axis = 0> (sin, at) z = Add (y, r)")
    before.graph.node[-2].output[0] = before.graph.node[-1].input[1] = "y/cos/rows"
    before.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "y/cos_places/flat"))
    imported = read(before)
    (named,) = (n for n in imported.model.graph if n.outputs[0].name == "y/cos/rows")
    assert named.inputs[0] is not None and named.inputs[0].name == "sin"
    assert sum(n.op_type == "Gather" for n in imported.model.graph) == 3


@pytest.mark.parametrize(
    "told", ["is_packed_batching = 1", "num_heads = 5", "num_heads = 3, rotary_embedding_dim = 12"]
)
def test_other_rotations_stay(told: str) -> None:
    imported = read(
        turning("halves", f"y2 = com.microsoft.RotaryEmbedding <{told}> (y, at, cos, sin) z = Identity (y2)")
    )
    assert sum(n.op_type == "RotaryEmbedding" for n in imported.model.graph) == 1


NORM = "SimplifiedLayerNormalization <axis = -1> (x, gain)"
#: what chooses rows behind a norm, the dimensions of the result, and further inputs
CHOICES = {
    "the last token": (f"n = {NORM} r = Gather <axis = 1> (n, last)", "float[b,24]", ""),
    "a computed one": (f"n = {NORM} r = Gather <axis = 1> (n, at)", "float[b,24]", "int64 at, "),
    "some": (f"n = {NORM} r = Gather <axis = 1> (n, at)", "float[b,k,24]", "int64[k] at, "),
    "of two dimensions": (
        "n = LayerNormalization <axis = 2> (x, gain, gain) r = Gather <axis = -2> (n, at)",
        "float[b,k,c,24]",
        "int64[k,c] at, ",
    ),
    "converted": (
        "h = LayerNormalization <axis = -1> (x, gain, gain) n = Cast <to = 1> (h) r = Gather <axis = 1> (n, last)",
        "float[b,24]",
        "",
    ),
}


def heads(form: str) -> onnx.ModelProto:
    """A norm, a choice of its rows, a product."""
    chosen, dims, more = CHOICES[form]
    text = f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g ({more}float[b,s,48] x) => ({dims} z) {{
        {chosen}
        z = MatMul (r, w)
    }}"""
    return parsed(text, gain=1 + noise(48), w=noise(48, 24), last=np.array(-1))


@pytest.mark.usefixtures("one_isa")
@pytest.mark.parametrize("form", CHOICES)
def test_rows_are_chosen_before_their_norm(form: str, cache: Path, tmp_path: Path) -> None:
    onnx.save(before := heads(form), tmp_path / "model.onnx")
    out = tmp_path / "out"
    report = mi.optimize(tmp_path / "model.onnx", out, target="cpu", force=True, jobs=1, cache=str(cache))
    assert [f.name for f in report.replaced] == ["norm_linear"]
    session = sessions.session(str(out / MODEL), library=out / LIBRARY)
    for batch, length in ((2, 5), (3, 1)):
        at = np.random.default_rng(0).integers(
            -1, length - 1, {"some": (4,), "of two dimensions": (2, 3)}.get(form, ())
        )
        given = {"x": noise(batch, length, 48)} | ({"at": np.array(at)} if "at" in CHOICES[form][2] else {})
        wanted, found = (
            next(iter(sessions.run(s, given).values())) for s in (sessions.session(before.SerializeToString()), session)
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert form not in ("converted", "some") or mi.verify(out).passed


@pytest.mark.parametrize(
    "chosen",
    [
        f"n = {NORM} r = Gather <axis = 1> (n, last) other = Neg (n)",  # others read the norm
        f"n = {NORM} r = Gather <axis = 2> (n, at)",  # along the normalised dimension
        "n = LayerNormalization <axis = 1> (x, wide) r = Gather <axis = 1> (n, last)",  # rows together
    ],
)
def test_other_choices_stay(chosen: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (int64[48] at, float[2,3,48] x) => (float[b,48] r{", float[2,3,48] other" if "other" in chosen else ""}) {{
        {chosen}
    }}"""
    model = read(parsed(text, gain=1 + noise(48), wide=1 + noise(3, 48), last=np.array(-1))).model
    kinds = [n.op_type for n in model.graph]
    assert kinds.index("Gather") > kinds.index(
        "LayerNormalization" if "wide" in chosen else "SimplifiedLayerNormalization"
    )
