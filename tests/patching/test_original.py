"""The patched file is the original with replaced nodes: what no fragment touches keeps its bytes, and the file loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mirage_cli import frontends
from mirage_cli.errors import Refused
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.optimization.task import group_fragments, regions_of, tensor_names
from mirage_cli.options.options import Options
from mirage_cli.patching import patch, stand_ins
from mirage_cli.verification.findings import VerifyOptions
from mirage_cli.verification.story import verify_folder
from tests import alone
from tests.frontends.models import noise, parsed, read
from tests.optimized import anew, sample
from tests.patched_models import operators, patched, run

pytestmark = pytest.mark.usefixtures("one_isa")


def untouched(before: onnx.ModelProto, after: onnx.ModelProto) -> list[str]:
    """Assert that all but the nodes is the same, but for what only replaced nodes read; the operators that stay."""
    stays = [n.SerializeToString() for n in after.graph.node if n.domain != patch.DOMAIN]
    left = iter(n.SerializeToString() for n in before.graph.node)
    assert all(n in left for n in stays), "nodes that stay are the original's, in its order"
    weights = {t.name: t.SerializeToString() for t in before.graph.initializer}
    assert all(weights.get(t.name) == t.SerializeToString() for t in after.graph.initializer)
    infos = [v.SerializeToString() for v in before.graph.value_info]
    assert all(v.SerializeToString() in infos for v in after.graph.value_info)
    one, other = onnx.ModelProto(), onnx.ModelProto()
    one.CopyFrom(before)
    other.CopyFrom(after)
    for m in (one, other):
        m.ClearField("ir_version")
        for name in ("node", "initializer", "value_info"):
            m.graph.ClearField(name)
    assert [f.domain for f in other.functions[len(one.functions) :]] == [patch.DOMAIN] * len(
        {n.op_type for n in operators(after)}
    )
    assert [o.domain for o in other.opset_import[len(one.opset_import) :]] == [patch.DOMAIN]
    for name in ("functions", "opset_import", "metadata_props"):
        field = getattr(other, name)
        del field[len(getattr(one, name)) :]
    assert one.SerializeToString() == other.SerializeToString()
    return [n.op_type for n in after.graph.node if n.domain != patch.DOMAIN]


@pytest.mark.parametrize("name", ["llama_fp32", "gpt2_fp16", "bert_masked_fp32", "qwen3_moe_fp32", "gated_mlp_fp32"])
def test_samples(name: str) -> None:
    before = onnx.load(sample(name))
    imported = frontends.load(str(sample(name)))
    work = group_fragments(partition(imported.graph, tensor_names(imported)).fragments, imported)
    places = [patch.Replacement(w.op_type, o.region) for w in work for o in w.occurrences]
    untouched(before, patch.patched(imported, places, {"mirage.version": "test"}))


ODD = """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
g (float[b,4] x, bool c) => (float[b,4] y) <float[4] unused = {1, 2, 3, 4}> {
    a = Exp(x)
    h = Neg(a)
    dead = Abs(x)
    deader = Abs(dead)
    deadest = Sqrt(h)
    y = If(c) <
        then_branch = t () => (float[b,4] u) { u = Abs(h) },
        else_branch = e () => (float[b,4] v) { w = Neg(h) v = Neg(w) }
    >
}"""


def odd() -> onnx.ModelProto:
    model = parsed(ODD)
    model.producer_name, model.doc_string, model.graph.doc_string = "somebody", "about", "of a graph"
    helper.set_model_props(model, {"license": "free"})
    model.graph.node[2].doc_string = "nobody reads it"
    model.graph.value_info.add(name="h")  # without a type
    model.graph.value_info.add(name="nowhere")
    model.graph.quantization_annotation.add(tensor_name="x")
    model.graph.node[2].metadata_props.add(key="k", value="v")
    # a field that the format does not have yet
    return onnx.ModelProto.FromString(model.SerializeToString() + b"\x9a\x3f\x03abc")


def test_everything_else_stays() -> None:
    before = odd()
    made = patched(read(before), ("f_1", ["x"], ["h"]))
    assert untouched(before, made) == ["Abs", "Abs", "Sqrt", "If"]
    assert made.SerializeToString().count(b"\x9a\x3f\x03abc") == 1
    for c in (True, False):
        feed = {"x": noise(3, 4), "c": np.array(c)}
        assert np.array_equal(run(made, feed)[0], run(before, feed)[0])


def test_a_dead_node_that_reads_what_is_replaced_goes_too() -> None:
    before = parsed("g (float[2] x) => (float[2] y) { a = Exp(x) dead = Abs(a) y = Neg(a) }")
    made = patched(read(before), ("f_1", ["x"], ["y"]))
    assert [n.op_type for n in made.graph.node] == ["f_1"]


@pytest.mark.parametrize("spelled", ["", "ai.onnx"])
def test_the_other_spelling_of_the_domain(spelled: str) -> None:
    before = parsed("g (float[2,8] x) => (float[2,8] y) { a = Exp(x) b = Abs(a) y = Neg(b) }")
    before.opset_import[0].domain = "ai.onnx"
    for node in before.graph.node:
        node.domain = spelled
    imported = read(before)
    made = patch.patched(imported, [patch.Replacement("f_1", regions_of(imported).of(["x"], ["b"]))], {})
    assert [o.domain for o in made.opset_import] == ["ai.onnx", patch.DOMAIN]
    assert untouched(before, made) == ["Neg"]
    x = noise(2, 8)
    assert np.array_equal(run(made, {"x": x})[0], run(before, {"x": x})[0])


def test_weights_of_the_old_format_are_no_defaults() -> None:
    before = parsed("g (float[2,4] x) => (float[2,3] y) { a = MatMul(x, w) y = Exp(a) }", ir_version=3, w=noise(4, 3))
    before.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3]))
    made = patched(read(before), ("f_1", ["x", "w"], ["y"]))
    assert made.ir_version == 8 and [v.name for v in made.graph.input] == ["x"]
    x = noise(2, 4)
    assert np.array_equal(run(made, {"x": x})[0], run(before, {"x": x})[0])


# --- functions of the model -------------------------------------------------------------------------------------------
CALLS = """<ir_version: 9, opset_import: ["" : 18, "local" : 1]>
g (float[2] x, float[2] z) => (float[2] y, float[2] t) {
    p = local.both(x)
    q = local.both(z)
    y = Neg(p)
    t = Neg(q)
}
<domain: "local", opset_import: ["" : 18]> both (i) => (o) { m = Exp(i) n = Abs(m) o = Sqrt(n) }"""


def test_only_the_call_that_a_fragment_touches_is_written_out() -> None:
    before = parsed(CALLS)
    imported = read(before)
    inner = next(n.outputs[0].name for n in imported.model.graph if n.op_type == "Abs")
    made = patched(imported, ("f_1", [inner or ""], ["y"]))
    assert sorted(n.op_type for n in made.graph.node) == ["Abs", "Exp", "Neg", "both", "f_1"]
    assert made.functions[0] == before.functions[0]
    feed = {"x": noise(2), "z": noise(2)[::-1].copy()}
    for ours, theirs in zip(run(made, feed), run(before, feed), strict=True):
        assert np.array_equal(ours, theirs)


def test_calls_that_are_replaced_as_a_whole() -> None:
    before = parsed(CALLS)
    made = patched(read(before), ("f_1", ["x"], ["y"]))
    assert sorted(n.op_type for n in made.graph.node) == ["Neg", "both", "f_1"]
    feed = {"x": noise(2), "z": noise(2)}
    assert np.array_equal(run(made, feed)[0], run(before, feed)[0])


def test_an_operator_that_is_several_in_one() -> None:
    """The sum inside a SkipSimplifiedLayerNormalization is where fragments are cut; the original has no tensor of it."""
    before = parsed(
        """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
        g (float[2,4,8] x, float[2,4,8] z) => (float[2,4,8] y, float[2,4,8] t) {
            a = MatMul(x, w)
            s = com.microsoft.SkipSimplifiedLayerNormalization(a, z, gain)
            t = Exp(s)
            y = MatMul(s, w)
        }""",
        w=noise(8, 8),
        gain=noise(8),
    )
    imported = read(before)
    total = next(n.outputs[0].name for n in imported.model.graph if n.op_type == "Add")
    region = regions_of(imported).of(["x", "w", "z"], [total or ""])
    made = patch.patched(imported, [patch.Replacement("f_1", region)], {})
    assert next(n.op_type for n in made.graph.node) == "f_1"
    assert [n.op_type for n in made.graph.node].count("MatMul") == 1
    feed = {"x": noise(2, 4, 8), "z": noise(2, 4, 8)}
    for ours, theirs in zip(run(made, feed), run(before, feed), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_declarations_of_other_symbols_than_are_read_go() -> None:
    """onnxruntime plans memory by them: onnxruntime-genai's builder declares joined caches with the length of what is new."""
    text = """g (float[b,past,4] x, float[b,new,4] z) => (float[b,all,3] y) {
        joined = Concat <axis = 1> (x, z)
        h = MatMul(joined, w)
        y = Relu(h)
    }"""
    model = parsed(text, w=noise(4, 3))
    model.graph.value_info.append(helper.make_tensor_value_info("joined", TensorProto.FLOAT, ["b", "new", 4]))
    model.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["b", "past + new", 3]))
    made = patched(read(model), ("f_1", ["h"], ["y"]))
    assert [v.name for v in made.graph.value_info] == ["h"] and made.graph.output == model.graph.output


def test_new_tensors_have_the_shapes_that_no_runtime_infers() -> None:
    """Behind an operator that is not read, by which they are known to the reader only."""
    before = parsed(
        """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1, "other" : 1]>
        g (float[2,4,8] x) => (float[2,4,8] y) {
            a = other.Unknown(x)
            s = com.microsoft.SkipSimplifiedLayerNormalization(x, a, gain)
            y = MatMul(s, w)
        }""",
        w=noise(8, 8),
        gain=noise(8),
    )
    imported = read(before)
    total = next(n.outputs[0].name or "" for n in imported.model.graph if n.op_type == "Add")
    assert total in imported.values
    region = regions_of(imported).of([total, "gain", "w"], ["y"])
    made = patch.patched(imported, [patch.Replacement("f_1", region)], {})
    again = read(made)
    assert total in again.values and again.graph.tensors[again.values[total]].dims == (2, 4, 8)


# --- constants --------------------------------------------------------------------------------------------------------
def test_a_folded_weight_takes_the_place_of_what_computes_it() -> None:
    before = parsed(
        "g (float[2,8] x) => (float[2,8] y) { turned = Transpose <perm = [1, 0]> (w) y = MatMul(x, turned) }",
        w=noise(8, 8),
    )
    imported = read(before)
    assert "turned" in imported.model.graph.initializers
    made = patched(imported, ("f_1", ["x", "turned"], ["y"]))
    assert [n.op_type for n in made.graph.node] == ["f_1"] and [t.name for t in made.graph.initializer] == ["turned"]
    x = noise(2, 8)
    assert np.array_equal(run(made, {"x": x})[0], run(before, {"x": x})[0])


def test_sizes_that_are_fixed_are_declared(tmp_path: Path) -> None:
    before = parsed("g (float[b,8] x) => (float[b,8] y) { a = Exp(x) y = Neg(a) }")
    onnx.save(before, tmp_path / "model.onnx")
    imported = frontends.load(str(tmp_path / "model.onnx"), frontends.Options(dims={"b": 3}))
    made = patch.patched(imported, [patch.Replacement("f_1", regions_of(imported).of(["x"], ["y"]))], {})
    for value in (made.graph.input[0], made.graph.output[0]):
        assert [d.dim_value for d in value.type.tensor_type.shape.dim] == [3, 8]
    with pytest.raises(Exception, match="dimension"):
        run(made, {"x": noise(2, 8)})


# --- places of one key ------------------------------------------------------------------------------------------------
def test_places_with_other_nodes_have_functions_of_their_own() -> None:
    text = """g (float[2,64] x) => (float[2,64] y) {{
        a = MatMul(x, w)
        i = Cast <to = {first}> (a)
        b = Cast <to = 1> (i)
        c = MatMul(b, w)
        j = Cast <to = {second}> (c)
        y = Cast <to = 1> (j)
    }}"""
    for second, functions in ((TensorProto.INT32, 1), (TensorProto.INT64, 2)):
        before = parsed(text.format(first=TensorProto.INT32, second=second), w=noise(64, 64))
        regions = regions_of(read(before))
        places = [regions.of(["x", "w"], ["b"]), regions.of(["b", "w"], ["y"])]
        assert len({r.signature() for r in places}) == functions


def test_equal_nodes_in_another_order_are_the_same() -> None:
    text = """g (float[2] x, float[2] z) => (float[2] y, float[2] t) {{
        {0} c = Add(a, b) y = Neg(c)
        {1} f = Add(d, e) t = Neg(f)
    }}"""
    regions = regions_of(read(parsed(text.format("a = Exp(x) b = Abs(x)", "e = Abs(z) d = Exp(z)"))))
    assert regions.of(["x"], ["y"]).signature() == regions.of(["z"], ["t"]).signature()


# --- functions that a runtime loads -----------------------------------------------------------------------------------
NORMS = {
    "layer": ("LayerNormalization <axis = {axis}, epsilon = 0.01> (x, gain, bias)", range(11, 18)),
    "no bias": ("LayerNormalization <axis = {axis}> (x, gain)", (11, 13, 16)),
    "simplified": ("SimplifiedLayerNormalization <axis = {axis}, epsilon = 0.01> (x, gain)", (11, 13, 17, 18, 21)),
}


@pytest.mark.parametrize("axis", [-1, 2])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_norms_that_onnx_does_not_have(kind: str, axis: int, dtype: type[np.generic]) -> None:
    call, opsets = NORMS[kind]
    letters = {np.float32: "float", np.float16: "float16"}[dtype]
    x = (noise(2, 3, 8) * 3 + 1).astype(dtype)
    for opset in opsets:
        text = f"g ({letters}[2,3,8] x) => ({letters}[2,3,8] y) {{ n = {call.format(axis=axis)} y = Neg(n) }}"
        before = parsed(text, opset=opset, gain=noise(8).astype(dtype), bias=noise(8)[::-1].astype(dtype))
        made = patch.patched(
            imported := read(before), [patch.Replacement("f_1", regions_of(imported).of(["x", "gain"], ["y"]))], {}
        )
        (function,) = made.functions
        assert (
            not {"LayerNormalization", "SimplifiedLayerNormalization"} & {n.op_type for n in function.node}
            or opset == 17
        )
        ours, theirs = (alone.session(m).run(None, {"x": x})[0] for m in (made, before))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5 if dtype is np.float32 else 2e-3, atol=1e-5)


def test_an_operator_without_a_stand_in_is_refused() -> None:
    imported = read(parsed("g (float[2] x) => (float[2] y) { a = Exp(x) y = Neg(a) }"))
    region = regions_of(imported).of(["x"], ["y"])
    graph = patch.function_of(imported.model, region, "f_1").graph
    next(n for n in graph if n.op_type == "Neg").op_type = "Nothing"
    with pytest.raises(Refused, match="Nothing, which ONNX does not have"):
        stand_ins.make_loadable(graph)


# --- runs -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("location", ["", "weights.bin", "sub/weights.bin", "model.onnx.data", "report.json"])
def test_nothing_replaced(tmp_path: Path, location: str, cache: Path) -> None:
    before = parsed("g (float[2,64] x) => (float[2,64] y) { a = Erf(x) y = Add(a, w) }", w=noise(2, 64))
    place = tmp_path / "in" / "model.onnx"
    (place.parent / "sub").mkdir(parents=True)
    data = {"save_as_external_data": True, "location": location, "size_threshold": 0} if location else {}
    onnx.save(before, place, **data)  # type: ignore[arg-type]
    out = tmp_path / "out"
    report = anew(str(place), out, Options(target=("cpu",), skip=("*",), cache=cache))
    assert not [f for f in report.fragments if f.status == "replaced"]
    assert not location or location == "report.json" or (out / location).is_file()
    if location != "report.json":
        assert (out / "model.onnx").read_bytes() == place.read_bytes()
    x = noise(2, 64)
    ours, theirs = (alone.session(p).run(None, {"x": x})[0] for p in (out / "model.onnx", place))
    assert np.array_equal(ours, theirs)


def test_a_constant_of_a_node_is_a_weight(tmp_path: Path, cache: Path) -> None:
    """It stays a node, and verification takes it for what it is."""
    before = parsed("g (float[2,64] x) => (float[2,64] y) { a = MatMul(x, w) y = Relu(a) }")
    weight = numpy_helper.from_array(noise(64, 64), "w")
    before.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=weight))
    onnx.save(before, tmp_path / "model.onnx")
    out = tmp_path / "out"
    anew(str(tmp_path / "model.onnx"), out, Options(target=("cpu",), force=True, cache=cache))
    made = onnx.load(out / "model.onnx")
    assert [n.op_type for n in made.graph.node if n.domain != patch.DOMAIN] == ["Constant"]
    assert [list(n.input) for n in operators(made)] == [["x", "w"]]
    assert verify_folder(out, VerifyOptions()).passed
