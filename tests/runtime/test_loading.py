"""Patched models are tried in onnxruntime before they are handed over; what keeps them from being loaded is left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mirage_cli.checks import derivation
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.optimization.task import group_fragments, tensor_names
from mirage_cli.options.options import Options
from mirage_cli.patching import patch
from mirage_cli.runtime import loading, sessions
from mirage_cli.runtime.loading import Trial
from tests.frontends.models import noise, parsed, read
from tests.optimized import anew

pytestmark = pytest.mark.usefixtures("one_isa")


@pytest.mark.parametrize(
    ("bad", "found"),
    [((), ()), (("b",), ("b",)), (("a", "d"), ("a", "d")), (("a", "b", "c", "d", "e"), ("a", "b", "c", "d", "e"))],
)
def test_what_is_to_blame(bad: Sequence[str], found: Sequence[str]) -> None:
    def fails(parts: Sequence[str]) -> str:
        return "it is bad" if set(parts) & set(bad) else ""

    assert loading.to_blame("abcde", fails) == [(p, "it is bad") for p in found]


def test_parts_that_fail_together_only() -> None:
    def fails(parts: Sequence[str]) -> str:
        return "both" if {"a", "d"} <= set(parts) else ""

    assert [p for p, _ in loading.to_blame("abcd", fails)] == list("abcd")


def test_a_function_that_ends_the_process(tmp_path: Path) -> None:
    """onnxruntime ends where it inlines a LayerNormalization of opset 13; a file that it refuses is an error like others."""
    node = helper.make_node("LayerNormalization", ["x", "w"], ["y"])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(patch.DOMAIN, 1)]
    function = helper.make_function(patch.DOMAIN, "f_1", ["x", "w"], ["y"], [node], opsets[:1])
    info = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 8]), ("w", [8]), ("y", [2, 8]))
    ]
    call = helper.make_node("f_1", ["x", "w"], ["y"], domain=patch.DOMAIN)
    graph = helper.make_graph([call], "g", info[:2], info[2:])
    crashing = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)
    good = parsed("g (float[2,8] x) => (float[2,8] y) { y = Neg(x) }")
    onnx.save(good, tmp_path / "good.onnx")
    trials = [Trial(crashing.SerializeToString()), Trial(b"nonsense"), Trial(str(tmp_path / "good.onnx"))]
    crashed, refused, fine = loading.problems(trials, 0)
    assert "onnxruntime loaded the model without the library" in crashed and "process ended" in crashed
    assert "cannot load the model" in refused and fine == ""


def test_a_fragment_whose_function_does_not_load_is_left(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here without the stand-in that the function has otherwise; the other fragment is replaced."""
    monkeypatch.setattr("mirage_cli.patching.stand_ins.make_loadable", lambda graph: None)
    before = parsed(
        """g (float[8,64] x) => (float[8,64] y, float[8,32] t) {
            n = LayerNormalization <axis = -1> (x, gain, bias)
            y = MatMul(n, w)
            a = Erf(y)
            b = Erf(a)
            s = MatMul(b, v)
            t = Relu(s)
        }""",
        opset=13,
        gain=noise(64),
        bias=noise(64),
        w=noise(64, 64),
        v=noise(64, 32),
    )
    onnx.save(before, tmp_path / "model.onnx")
    out = tmp_path / "out"
    report = anew(str(tmp_path / "model.onnx"), out, Options(target=("cpu",), force=True, cache=cache))
    left = [f for f in report.fragments if f.status == "failed"]
    assert left and all("the patched model does not load" in f.reason for f in left)
    assert any(f.status == "replaced" for f in report.fragments)
    bare, full = (Trial(str(out / "model.onnx"), library) for library in ("", str(out / "libmirage.so")))
    assert loading.problems([bare, full], 0) == ["", ""]


@pytest.mark.parametrize(("op", "opset"), [("SimplifiedLayerNormalization", 19), ("LayerNormalization", 13)])
def test_a_stand_in_says_what_its_operator_does(op: str, opset: int) -> None:
    """Without attributes too, whose defaults are float32 as those that are stored are."""
    before = parsed(f"g (float16[2,4] x, float16[4] w) => (float16[2,4] y) {{ y = {op}(x, w) }}", opset=opset)
    imported = read(before)
    (work,) = group_fragments(partition(imported.graph, tensor_names(imported)).fragments, imported)
    made = patch.patched(imported, [patch.Replacement("f_1", work.occurrences[0].region)], {})
    assert op not in {n.op_type for n in made.functions[0].node}
    (node,) = made.graph.node
    assert derivation.derived_program(read(made), list(node.input), node.output).key() == work.program.key()


@pytest.mark.parametrize(("kind", "axes"), [("bfloat16", ""), ("float16", "<axes = [1, 3]>"), ("float", "")])
def test_mean_variance_normalization_has_one_type_and_axes_in_functions(kind: str, axes: str) -> None:
    before = parsed(f"g ({kind}[2,3,4,5] x) => ({kind}[2,3,4,5] y) {{ y = MeanVarianceNormalization{axes}(x) }}")
    imported = read(before)
    (work,) = group_fragments(partition(imported.graph, tensor_names(imported)).fragments, imported)
    made = patch.patched(imported, [patch.Replacement("f_1", work.occurrences[0].region)], {})
    assert loading.problems([Trial(made.SerializeToString())], 0) == [""]


@pytest.mark.parametrize(("queries", "loads"), [(1, True), (3, False)])
def test_one_query_sees_all_of_a_grown_cache(queries: int, loads: bool) -> None:
    """Its attention need not be causal, which it cannot be in a function."""
    cache, new = "float[2,2,5,8]", f"float[2,{queries},16]"
    before = parsed(f"""<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        g ({new} q, {new} k, {new} v, {cache} pk, {cache} pv) => ({new} y, float[2,2,t,8] nk, float[2,2,t,8] nv) {{
            y, nk, nv = com.microsoft.MultiHeadAttention <num_heads = 2, unidirectional = 1> (q, k, v, , , , pk, pv)
        }}""")
    imported = read(before)
    (work,) = group_fragments(partition(imported.graph, tensor_names(imported)).fragments, imported)
    assert not {n.op for n in work.program.nodes} & {"le", "where"} or not loads
    made = patch.patched(imported, [patch.Replacement("f_1", work.occurrences[0].region)], {})
    assert (loading.problems([Trial(made.SerializeToString())], 0) == [""]) is loads


def test_operators_that_only_optimizations_take_away() -> None:
    """onnxruntime has no kernel for Identity of four bits, and drops it: such a model runs with the basic optimizations."""
    text = "g (float[2,4] x) => (float[2,4] y) <float s = {0.5}> {"
    before = parsed(text + "v = Identity(w) d = DequantizeLinear(v, s) y = Add(x, d) }", opset=21, ir_version=10)
    before.graph.initializer.append(onnx.helper.make_tensor("w", onnx.TensorProto.INT4, [4], [1, -2, 3, 4]))
    session = sessions.session(before.SerializeToString(), optimize=False)
    assert sessions.run(session, {"x": np.zeros((2, 4), np.float32)})["y"].tolist() == [[0.5, -1, 1.5, 2]] * 2


ASYMMETRIC = """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
    g (float[2,8,64] x, int32[4] mask) => (float[2,8,64] y) {
        y = com.microsoft.Attention <num_heads = 4> (x, w, bias, mask)
    }"""


def test_a_model_that_loads_is_run_too() -> None:
    """Its reason says so; a run that takes too long has not failed."""
    model = parsed(ASYMMETRIC, w=noise(64, 192), bias=noise(192)).SerializeToString()
    good = {"x": noise(2, 8, 64), "mask": np.array([4, 8, 0, 1], np.int32)}
    trials = [Trial(model), Trial(model, inputs=good), Trial(model, inputs=good | {"mask": np.ones(3, np.int32)})]
    loaded, fine, refused = loading.problems([*trials], 0)
    assert loaded == fine == ""
    assert loading.what_failed(refused) == "run" and loading.what_failed("cannot load the model") == "load"
    assert loading.what_failed("its process ended while onnxruntime ran the model without the library") == "run"


def test_fragments_with_which_the_model_loads_but_does_not_run_are_left(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MultiHeadAttention does not take the mask that Attention takes. Where the original does not run either, because of its
    inputs, it is enough to load."""
    monkeypatch.setattr("mirage_cli.frontends.onnx.parts.cut_points._mask_fits", lambda mask, x: True)
    onnx.save(parsed(ASYMMETRIC, w=noise(64, 192), bias=noise(192)), tmp_path / "model.onnx")
    options = Options(target=("cpu",), force=True, cache=cache)
    report = anew(str(tmp_path / "model.onnx"), tmp_path / "out", options)
    (fragment,) = report.fragments
    assert fragment.status == "failed" and "the patched model does not run: " in fragment.reason
    assert (tmp_path / "out/model.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()
    before = parsed(ASYMMETRIC.replace("int32[4]", "int32[3]"), w=noise(64, 192), bias=noise(192))
    onnx.save(before, tmp_path / "other.onnx")
    report = anew(str(tmp_path / "other.onnx"), tmp_path / "out2", options)
    assert [f.status for f in report.fragments] == ["replaced"]
