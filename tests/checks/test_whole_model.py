"""Whole models in float64 against onnxruntime, and the comparison of outputs."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mirage_cli import frontends
from mirage_cli.checks import whole_model
from mirage_cli.checks.model_runs import Job, library_sources, run_job
from mirage_cli.checks.whole_model import compare_outputs, float64_run, rounded_run, stated, unrounded_run
from mirage_cli.errors import ModelError, Refused, UsageError
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.runtime.example import example_inputs
from tests.optimized import Optimized, sample

MODELS = (
    "llama_fp32",
    "llama_decode_dynamic_fp32",
    "bert_masked_fp32",
    "gpt2_fp32",
    "gemma2_fp32",
    "qwen3_moe_fp32",
    "vit_fp32",
    "attention_boolean_fp32",
    "group_norm_linear_fp32",
)


@pytest.mark.parametrize("name", MODELS)
def test_float64_is_what_onnxruntime_computes(name: str) -> None:
    path = str(sample(name))
    imported = frontends.load(path)
    inputs = example_inputs(imported.model, {}, 1)
    exact, found = float64_run(imported, inputs), run_job(Job(path, inputs))
    assert exact.keys() == found.keys()
    for n, own in found.items():
        scale = np.sqrt(np.mean(exact[n] ** 2))
        error = np.sqrt(np.mean((own - exact[n]) ** 2)) / scale
        assert error < 3e-6
        assert error > 1e-9 or name.endswith("boolean_fp32")  # it is float64, not the same run again


def test_float64_knows_sizes_from_its_inputs() -> None:
    path = str(sample("llama_dynamic_fp32"))
    imported = frontends.load(path)
    for dims in ({"batch": 1, "sequence": 3}, {"batch": 3, "sequence": 1}):
        inputs = example_inputs(imported.model, dims, 0)
        exact, found = float64_run(imported, inputs), run_job(Job(path, inputs))
        for n in found:
            assert exact[n].shape == found[n].shape
            assert np.allclose(exact[n], found[n], rtol=1e-3, atol=1e-4)


def two_products(size: int, op: str = "MatMul") -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [size, size])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, [size, size])
    nodes = [helper.make_node(op, ["x", "x"], ["y"], name="first"), helper.make_node("MatMul", ["y", "x"], ["out"])]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [out]), opset_imports=[helper.make_opsetid("", 18)])


def test_what_is_too_large_is_not_run() -> None:
    imported = from_proto(two_products(1 << 13), frontends.Options({}, {}))
    with pytest.raises(Refused, match="multiply-adds"):
        float64_run(imported, {"x": np.broadcast_to(np.float32(1), (1 << 13, 1 << 13))})


def test_inputs_of_another_shape_are_an_error() -> None:
    imported = from_proto(two_products(4), frontends.Options({}, {}))
    for inputs in ({}, {"x": np.zeros(4, np.float32)}):
        with pytest.raises(UsageError, match="'x'"):
            float64_run(imported, inputs)


def test_roundings_that_onnxruntime_leaves_out() -> None:
    """A float16 between two float32: its CPU computes both operators in float32, a kernel that reads it gets float16."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[1,64] x) => (float[1,64] y) {
        h = Cast <to = 10> (x) t = Tanh(h) w = Cast <to = 1> (t) y = Exp(w)
    }"""
    imported = from_proto(onnx.parser.parse_model(text), frontends.Options({}, {}))
    x = np.linspace(-2, 2, 64, dtype=np.float32)[None]
    exact, rounded = float64_run(imported, {"x": x}), rounded_run(stated(imported), {"x": x})
    assert rounded is not None
    wanted = np.exp(np.tanh(x.astype(np.float16)).astype(np.float64))
    np.testing.assert_allclose(rounded["y"], wanted, rtol=1e-3)
    assert np.abs(rounded["y"] - exact["y"]).max() > 1e-4
    own = {"y": exact["y"].astype(np.float32)}
    found = {"y": rounded["y"].astype(np.float32)}
    (bad,) = compare_outputs(found, own, exact)
    (good,) = compare_outputs(found, own, exact, rounded=lambda: rounded)
    assert (bad.accuracy.passed, good.accuracy.passed) == (False, True)
    assert "roundings" in str(good)
    far = {"y": found["y"] + np.float32(0.01)}
    assert not compare_outputs(far, own, exact, rounded=lambda: rounded)[0].accuracy.passed
    plain = stated(from_proto(two_products(4), frontends.Options({}, {})))
    assert rounded_run(plain, {"x": np.eye(4, dtype=np.float32)}) is None
    assert unrounded_run(plain, {"x": np.eye(4, dtype=np.float32)}) is None


def test_casts_that_are_passed_on_the_way_may_keep_their_numbers() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[1,64] x) => (float[1,64] y) {
        h = Cast <to = 10> (x) w = Cast <to = 1> (h) y = %s
    }"""
    x = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    for last, own, passes in (("Tanh (w)", np.tanh(x), True), ("Sub (x, w)", np.zeros_like(x), False)):
        of = stated(from_proto(onnx.parser.parse_model(text % last), frontends.Options({}, {})))
        exact = of.run({"x": x})
        original = {"y": exact["y"].astype(np.float32)}
        (found,) = compare_outputs({"y": own}, original, exact, unrounded=lambda of=of: unrounded_run(of, {"x": x}))  # type: ignore[misc]
        assert found.accuracy.passed == passes


def test_an_original_parts_at_the_node_that_is_wrong() -> None:
    of = stated(from_proto(two_products(4), frontends.Options({}, {})))
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    right = {"y": x @ x, "out": x @ x @ x}
    exact = of.run({"x": x})
    assert of.parted({"x": x}, {"out": right["out"]}, exact, lambda data: right) == ""
    wrong = {"y": x @ x * np.float32(1.01), "out": (x @ x * np.float32(1.01)) @ x}
    assert "'first'" in of.parted({"x": x}, {"out": wrong["out"]}, exact, lambda data: wrong)


def test_nodes_that_are_not_read_have_values() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[1,2,5] x) => (float[1,3,5] y) {
        h = Conv <pads = [1, 1]> (x, w)
        y = Exp(h)
    }"""
    proto, w = onnx.parser.parse_model(text), np.arange(18, dtype=np.float32).reshape(3, 2, 3) / 8
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    imported = from_proto(proto, frontends.Options({}, {}))
    assert any(node.op_type == "Conv" for node in imported.model.graph if node.name in imported.reasons)
    x = np.linspace(-1, 1, 10, dtype=np.float32).reshape(1, 2, 5)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1))), 3, axis=2)
    assert np.allclose(float64_run(imported, {"x": x})["y"], np.exp(np.einsum("ncpk,mck->nmp", windows, w)), rtol=1e-6)


def test_nodes_that_are_not_read_get_their_integers_as_they_are() -> None:
    """The last seven of a cache of unknown length, "to the end" written as the largest integer."""
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[2,past] x) => (float[2,n] y) {
        tail = Slice(x, start, end, axis) y = Mul(tail, tail)
    }"""
    proto = onnx.parser.parse_model(text)
    for name, number in (("start", -7), ("end", 2**63 - 1), ("axis", 1)):
        proto.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [1], [number]))
    x = np.arange(18, dtype=np.float32).reshape(2, 9)
    found = float64_run(from_proto(proto, frontends.Options()), {"x": x})
    np.testing.assert_array_equal(found["y"], x[:, -7:] ** 2)


def test_nodes_that_nobody_knows_have_no_value() -> None:
    proto = two_products(4)
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "Secret", "elsewhere"
    proto.opset_import.append(helper.make_opsetid("elsewhere", 1))
    proto.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4]))
    imported = from_proto(proto, frontends.Options({}, {}))
    with pytest.raises(Refused, match="first"):
        float64_run(imported, {"x": np.ones((4, 4), np.float32)})


def outputs(scale: float = 0.0, shape: tuple[int, ...] = (50, 50), dtype: str = "float32") -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    rng = np.random.default_rng(1)
    return {"y": (rng.standard_normal(shape) + scale * rng.standard_normal(shape)).astype(dtype)}


def test_outputs_are_judged_against_float64() -> None:
    exact = outputs(dtype="float64")
    own = {"y": (exact["y"] + 1e-6 * outputs(1.0, dtype="float64")["y"]).astype(np.float32)}
    same, far = (exact["y"] + f * (own["y"] - exact["y"]) for f in (1.5, 4.0))
    (good,) = compare_outputs({"y": same.astype(np.float32)}, own, exact)
    (bad,) = compare_outputs({"y": far.astype(np.float32)}, own, exact)
    assert good.accuracy.passed
    assert good.reference == "float64"
    assert not bad.accuracy.passed


@pytest.mark.parametrize(("dtype", "close", "far"), [("float32", 1e-6, 1e-3), ("float16", 2e-3, 0.1)])
def test_without_float64_outputs_may_be_so_far_apart(dtype: str, close: float, far: float) -> None:
    original = outputs(dtype=dtype)
    (near,) = compare_outputs(outputs(close, dtype=dtype), original, None)
    (wrong,) = compare_outputs(outputs(far, dtype=dtype), original, None)
    assert near.accuracy.passed
    assert near.reference == "original"
    assert not wrong.accuracy.passed
    broken = {"y": np.full_like(original["y"], np.nan)}
    assert not compare_outputs(broken, original, None)[0].accuracy.passed


def test_sequences_are_compared_by_element_and_maps_are_not() -> None:
    """Texts and what is absent are the same or not."""
    x = np.float32([1, 2])
    original: dict[str, Any] = {"s": [x, [x]], "m": [{"a": 1.0}], "n": None, "e": [], "t": np.array(["a"], object)}
    same = compare_outputs(original, original, None)
    assert all(c.accuracy.passed for c in same)
    assert {c.output for c in same} == {"s[0]", "s[1][0]", "m", "n", "e", "t"}
    assert [c.output for c in same if "not compared" in str(c)] == ["m"]
    for name, other in {"s": [x, [x + 1]], "n": [x], "e": [x], "t": np.array(["b"], object)}.items():
        assert not all(c.accuracy.passed for c in compare_outputs(original | {name: other}, original, None)), name
        assert not all(c.accuracy.passed for c in compare_outputs(original, original | {name: other}, None)), name
    assert not all(c.accuracy.passed for c in compare_outputs(original | {"s": [x]}, original, None))
    assert not all(c.accuracy.passed for c in compare_outputs(original | {"n": {"a": 1.0}}, original, None))


def test_only_some_operators_use_the_library(optimized: Optimized) -> None:
    """Where nothing is kept the library makes no difference at all."""
    folder = optimized("llama_fp32")
    model = onnx.load(folder / "model.onnx")
    inputs = example_inputs(model, {}, 2)
    library = folder / "libmirage.so"
    names = [n.name for n in model.graph.node if n.domain == "mirage"]
    plain = run_job(Job(str(folder / "model.onnx"), inputs))
    kept = {
        k: run_job(Job(whole_model.with_kernels_of(model, names[:k], "mirage").SerializeToString(), inputs, library))
        for k in (0, 1, len(names))
    }
    assert np.array_equal(kept[0]["logits"], plain["logits"])
    assert not np.array_equal(kept[len(names)]["logits"], plain["logits"])
    assert np.allclose(kept[1]["logits"], plain["logits"], atol=1e-4)


def test_libraries_tell_their_sources(optimized: Optimized, tmp_path) -> None:  # type: ignore[no-untyped-def]
    folder = optimized("rmsnorm_linear_fp32")
    (line,) = library_sources(folder / "libmirage.so").splitlines()
    assert (folder / "src" / line.split()[0]).is_file()
    other = tmp_path / "other.so"
    other.write_text("none")
    with pytest.raises(ModelError, match="shared library"):
        library_sources(other)


def test_a_model_gets_the_inputs_that_it_has(optimized: Optimized) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    with pytest.raises(ModelError, match="expected inputs"):
        run_job(Job(str(folder / "model.onnx"), {"z": np.zeros(1)}))
