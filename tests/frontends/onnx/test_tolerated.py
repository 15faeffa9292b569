"""Models that onnxruntime loads although ONNX's checker would not have them: they are read."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from tests.frontends.models import agrees, noise, parsed, read, run

X = noise(2, 4)


def test_domains_that_nothing_imports_are_of_version_1() -> None:
    head = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>'
    model = parsed(f"{head} g (float[2,4] x) => (float[2,4] y) {{ a = com.microsoft.Gelu(x) y = Neg(a) }}")
    del model.opset_import[1:]
    agrees(model, x=X)
    unknown = read(parsed("g (float[2,4] x) => (float[2,4] y) <float[2,4] a> { a = other.Blub(x) y = Neg(a) }"))
    assert list(unknown.reasons.values()) == ["the operator of domain other is not read"]


def test_nodes_in_any_order() -> None:
    text = """g (float[2,4] x, bool c) => (float[2,4] y) { y = Exp(z) z = Add(k, a)
        k = If(c) <then_branch = t () => (float[2,4] u) { u = Neg(a) }, else_branch = e () => (float[2,4] v) {
            v = Identity(x) }> a = Abs(x) }"""
    imported = read(parsed(text))
    assert [n.op_type for n in imported.model.graph] == ["Abs", "Neg", "Identity", "If", "Add", "Exp"]
    assert list(imported.reasons.values()) == ["it contains sub-graphs"]
    agrees(parsed("g (float[2,4] x) => (float[2,4] y) { y = Exp(z) z = Neg(x) }"), x=X)


@pytest.mark.parametrize("place", ["import", "node", "both"])
def test_the_long_name_of_the_domain_without_a_name(place: str) -> None:
    model = parsed("g (float[2,4] x) => (float[2,4] y) { a = Softmax(x) y = MatMul(a, w) }", w=noise(4, 4))
    if place != "node":
        model.opset_import[0].domain = "ai.onnx"
    if place != "import":
        model.graph.node[0].domain = "ai.onnx"
    agrees(model, x=X)


def test_operators_that_only_onnxruntime_has() -> None:
    text = """g (float[2,4] x, bool c) => (float[2,4] y) { y = If(c)
        <then_branch = t () => (float[2,4] u) { u = LayerNormalization(x, w) },
         else_branch = e () => (float[2,4] v) { v = Affine(x) }> }"""
    imported = read(parsed(text, opset=11, ir_version=6, w=noise(4)))
    assert list(imported.reasons.values()) == [
        "the operator is not read",
        "it contains sub-graphs",
    ]
    text = "g (float[2,4] x) => (float[2,4] y) <float[2,4] a> { a = Affine <alpha = 2.0> (x) y = Exp(a) }"
    imported = read(parsed(text, opset=9, ir_version=4))
    assert list(imported.reasons.values()) == ["the operator is not read"]
    text = "g (float[2,4] x) => (float[2,4] y) { y = LayerNormalization(x, w) }"
    agrees(parsed(text, opset=11, ir_version=6, w=noise(4)), x=X)
    text = "g (float[1,2,2,2] x) => (float[1,2,2,2] y) { y = MeanVarianceNormalization <across_channels = 1> (x) }"
    imported = read(parsed(text, opset=8, ir_version=4))
    assert list(imported.reasons.values()) == ["opset 8 has no such operator"]


@pytest.mark.parametrize("what", ["value_info", "output"])
def test_declarations_without_a_type(what: str) -> None:
    model = parsed("g (float[2,4] x) => (float[2,4] y) { a = Exp(x) y = Neg(a) }")
    if what == "output":
        model.graph.output[0].ClearField("type")
    else:
        model.graph.value_info.add(name="a")
    agrees(model, x=X)


def test_outputs_that_hold_maps() -> None:
    """As classifiers of scikit-learn have: the node that makes them is left as it is, the rest is read."""
    text = """<ir_version: 8, opset_import: ["" : 15, "ai.onnx.ml" : 1]> g (float[2,4] x) => (float[2,3] y, float[2,3] z) {
        y = MatMul(x, w) z = ai.onnx.ml.ZipMap <classlabels_int64s = [1, 2, 3]> (y)
    }"""
    model = parsed(text, w=noise(4, 3))
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    model.graph.output[1].type.CopyFrom(helper.make_sequence_type_proto(kind))
    assert run(model, {"x": X})
    assert list(read(model).reasons.values()) == ["the operator of domain ai.onnx.ml is not read"]


def test_an_output_declared_with_other_dimensions() -> None:
    """onnxruntime warns of it, and computes what the operator says."""
    for dims in ("2,4,1", "8", "2,5"):
        agrees(
            parsed(f"g (float[2,4] x) => (float[{dims}] y) {{ a = MatMul(x, w) y = Softmax(a) }}", w=noise(4, 4)), x=X
        )
