"""Patched models: valid, equal to the original without the library, and unchanged but for the fragments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mirage_cli.errors import InvalidGraph
from mirage_cli.frontends.imported import Options
from mirage_cli.frontends.onnx import front_end
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.optimization.task import group_fragments, regions_of, tensor_names
from mirage_cli.patching import patch, saving
from mirage_cli.patching.regions import Regions
from tests import alone
from tests.frontends.models import noise, parsed, read
from tests.patched_models import operators, patched, run

# --- single places ----------------------------------------------------------------------------------------------------
CHAIN = """g (float[b,4] x) => (float[b,3] y) {
    a = Mul(x, gain)
    h = MatMul(a, w)
    r = Relu(h)
    y = Add(r, bias)
}"""


def chain() -> onnx.ModelProto:
    return parsed(CHAIN, gain=noise(4), w=noise(4, 3), bias=noise(3))


def test_the_original_answers_without_the_library() -> None:
    model = chain()
    made = patched(read(model), ("norm_1", ["x", "gain", "w"], ["h"]))
    assert [node.op_type for node in made.graph.node] == ["norm_1", "Relu", "Add"]
    assert list(operators(made)[0].input) == ["x", "gain", "w"]
    x = noise(5, 4)
    assert np.array_equal(run(made, {"x": x})[0], run(model, {"x": x})[0])


def test_nothing_else_changes() -> None:
    model = chain()
    model.doc_string, model.producer_name, model.graph.doc_string = "about", "somebody", "graph"
    model.graph.output[0].doc_string = "result"
    model.graph.input[0].doc_string = "data"
    entry = model.graph.output[0].metadata_props.add()
    entry.key, entry.value = "unit", "volts"
    helper.set_model_props(model, {"license": "free"})
    untouched = model
    made = patched(read(model), ("f_1", ["h"], ["y"]))
    assert list(made.graph.input) == list(untouched.graph.input)
    assert list(made.graph.output) == list(untouched.graph.output)
    assert made.graph.output[0].metadata_props == model.graph.output[0].metadata_props
    assert (made.doc_string, made.producer_name, made.graph.doc_string) == ("about", "somebody", "graph")
    assert {p.key: p.value for p in made.metadata_props} == {"license": "free", "mirage.version": "test"}
    assert {o.domain: o.version for o in made.opset_import} == {"": 18, patch.DOMAIN: patch.DOMAIN_VERSION}
    kept = {t.name: t for t in made.graph.initializer}
    assert kept["w"] == next(t for t in untouched.graph.initializer if t.name == "w")
    assert list(made.graph.node)[:2] == list(untouched.graph.node)[:2]


def test_small_constants_live_in_the_function_and_weights_are_passed() -> None:
    made = patched(read(chain()), ("f_1", ["x", "w"], ["y"]))
    (function,) = made.functions
    assert list(operators(made)[0].input) == ["x", "w"]
    assert [node.op_type for node in function.node].count("Constant") == 2  # gain and bias
    assert {t.name for t in made.graph.initializer} == {"w"}


def test_functions_need_a_version_of_the_format_that_has_them() -> None:
    model = chain()
    model.ir_version = 7
    made = patched(read(model), ("f_1", ["x", "w"], ["y"]))
    assert made.ir_version == 8
    x = noise(2, 4)
    assert np.array_equal(run(made, {"x": x})[0], run(model, {"x": x})[0])


def test_several_outputs_some_of_them_outputs_of_the_model() -> None:
    model = parsed(
        """g (float[2,4] x) => (float[2,4] a, float[2,4] y) {
            a = Exp(x)
            b = Neg(a)
            c = Mul(a, b)
            y = Add(c, b)
        }"""
    )
    made = patched(read(model), ("f_1", ["x"], ["a", "b"]))
    assert [n.op_type for n in made.graph.node] == ["f_1", "Mul", "Add"]
    x = noise(2, 4)
    for ours, theirs in zip(run(made, {"x": x}), run(model, {"x": x}), strict=True):
        assert np.array_equal(ours, theirs)


def test_an_input_that_is_an_output_of_the_model_too() -> None:
    model = parsed("g (float[2] x) => (float[2] a, float[2] y) { a = Exp(x) b = Neg(a) y = Mul(a, b) }")
    made = patched(read(model), ("f_1", ["a"], ["y"]))
    assert [v.name for v in made.graph.output] == ["a", "y"]
    x = noise(2)
    assert np.array_equal(run(made, {"x": x})[1], run(model, {"x": x})[1])


def test_a_result_that_is_an_output_of_the_model_twice() -> None:
    model = parsed("g (float[2] x) => (float[2] y, float[2] y) { a = Exp(x) y = Neg(a) }")
    imported = read(model)
    made = patched(imported, ("f_1", ["x"], ["y"])) if len(imported.model.graph.outputs) == 2 else None
    assert made is not None and [v.name for v in made.graph.output] == ["y", "y"]


def test_neighbours_in_any_order() -> None:
    model = parsed("g (float[2] x) => (float[2] y) { a = Exp(x) b = Neg(a) c = Abs(b) y = Sqrt(c) }")
    for places in ([("f_1", ["x"], ["b"]), ("f_2", ["b"], ["y"])], [("f_2", ["b"], ["y"]), ("f_1", ["x"], ["b"])]):
        made = patched(read(model), *places)
        assert [n.op_type for n in made.graph.node] == ["f_1", "f_2"]
        assert list(operators(made)[1].input) == list(operators(made)[0].output)
        x = noise(2)
        assert np.array_equal(run(made, {"x": x})[0], run(model, {"x": x})[0])


def test_equal_regions_share_a_function() -> None:
    model = parsed(
        "g (float[2] x) => (float[2] y) { a = Exp(x) b = Mul(a, k1) c = Exp(b) y = Mul(c, k2) }",
        k1=np.float32([2, 3]),
        k2=np.float32([4, 5]),
    )
    made = patched(read(model), ("f_1", ["x", "k1"], ["b"]), ("f_1", ["b", "k2"], ["y"]))
    assert len(made.functions) == 1 and len(operators(made)) == 2
    x = noise(2)
    assert np.array_equal(run(made, {"x": x})[0], run(model, {"x": x})[0])


def test_names_that_are_taken_already() -> None:
    model = parsed("g (float[2] x) => (float[2] y, float[2] z) { a = Exp(x) y = Neg(a) z = Abs(y) }")
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "y/original"
    model.graph.node[2].name = "f_1_0"
    model.graph.output.append(helper.make_tensor_value_info("y/original", TensorProto.FLOAT, [2]))
    made = patched(read(model), ("f_1", ["y/original"], ["y"]))
    assert sorted(n.name for n in made.graph.node if n.op_type in ("f_1", "Abs")) == ["f_1_0", "f_1_0_1"]
    assert [v.name for v in made.graph.output] == ["y", "z", "y/original"]


def test_a_result_that_a_subgraph_reads() -> None:
    model = parsed(
        """g (float[2] x, bool c) => (float[2] y) {
            a = Exp(x)
            b = Neg(a)
            y = If(c) <
                then_branch = t () => (float[2] u) { u = Abs(b) },
                else_branch = e () => (float[2] v) { v = Identity(b) }
            >
        }"""
    )
    made = patched(read(model), ("f_1", ["x"], ["b"]))
    assert [n.op_type for n in made.graph.node] == ["f_1", "If"]
    for c in (True, False):
        feed = {"x": noise(2), "c": np.array(c)}
        assert np.array_equal(run(made, feed)[0], run(model, feed)[0])


def test_a_subgraph_inside_a_region_stays_outside_the_function() -> None:
    model = parsed(
        """g (float[2] x, bool c) => (float[2] y) {
            k = If(c) <
                then_branch = t () => (float[2] u) { u = Abs(x) },
                else_branch = e () => (float[2] v) { v = Identity(x) }
            >
            a = Exp(x)
            y = Mul(a, k)
        }"""
    )
    made = patched(read(model), ("f_1", ["x"], ["y"]))
    assert list(operators(made)[0].input) == ["x", "k"]
    feed = {"x": noise(2), "c": np.array(True)}
    assert np.array_equal(run(made, feed)[0], run(model, feed)[0])


def test_left_out_inputs_and_outputs() -> None:
    model = parsed(
        """g (float[2,4] x) => (float[2,4] y) {
            n, , d = LayerNormalization <axis = -1> (x, gain)
            m = Clip(n, , high)
            y = Mul(m, d)
        }""",
        gain=noise(4),
        high=np.float32(0.5),
    )
    made = patched(read(model), ("f_1", ["x"], ["y"]))
    assert [n.op_type for n in made.graph.node] == ["f_1"]
    x = noise(2, 4)
    assert np.allclose(run(made, {"x": x})[0], run(model, {"x": x})[0], rtol=1e-6)


def test_unknown_tensors_and_results_that_no_node_computes() -> None:
    imported = read(chain())
    regions = Regions(imported.model)
    with pytest.raises(InvalidGraph, match="no tensor 'nothing'"):
        regions.of(["nothing"], ["y"])
    with pytest.raises(InvalidGraph, match="output 'x'"):
        patch.patched(imported, [patch.Replacement("f_1", regions.of([], ["x"]))], {})


# --- what functions hold ----------------------------------------------------------------------------------------------
DYNAMIC = """g (int64[b,s] ids, float[b,s,8] x) => (float[b,s,8] y) {
    first = Neg(x)
    u = Exp(first)
    shape = Shape(u)
    i0 = Constant <value_ints = [0]> ()
    i1 = Constant <value_ints = [1]> ()
    batch = Gather(shape, i0)
    length = Gather(shape, i1)
    heads = Constant <value_ints = [2, 4]> ()
    split = Concat <axis = 0> (batch, length, heads)
    q = Reshape(first, split)
    t = Transpose <perm = [0, 2, 1, 3]> (q)
    k = Sqrt(u)
    p = Reshape(k, split)
    o = Transpose <perm = [0, 2, 1, 3]> (p)
    m = Mul(t, o)
    n = Transpose <perm = [0, 2, 1, 3]> (m)
    whole = Shape(x)
    y = Reshape(n, whole)
}"""


def test_sizes_come_from_the_inputs_and_not_from_where_the_model_took_them() -> None:
    model = parsed(DYNAMIC)
    imported = read(model)
    region = regions_of(imported).of(["first", "k"], ["m"])
    assert "Shape" not in [n.op_type for n in region.nodes] and len(region.inputs) == 2
    made = patched(imported, ("f_1", ["first", "k"], ["m"]))
    assert list(operators(made)[0].input) == ["first", "k"]
    assert "Exp" not in [n.op_type for n in made.functions[0].node]
    feed = {"ids": np.zeros((3, 5), np.int64), "x": noise(3, 5, 8)}
    assert np.array_equal(run(made, feed)[0], run(model, feed)[0], equal_nan=True)


def test_sizes_that_no_input_tells_come_the_way_the_model_takes_them() -> None:
    model = parsed(
        """g (float[s] x, float[b,4] z) => (float[b,s] y) {
            shape = Shape <start = 0, end = 1> (z)
            length = Shape(x)
            target = Concat <axis = 0> (shape, length)
            a = Exp(x)
            y = Expand(a, target)
        }"""
    )
    imported = read(model)
    assert [v.name for v in regions_of(imported).of(["x"], ["y"]).inputs] == ["x", "z"]
    made = patched(imported, ("f_1", ["x"], ["y"]))
    feed = {"x": noise(3), "z": noise(2, 4)}
    assert np.array_equal(run(made, feed)[0], run(model, feed)[0])


def test_products_and_multiples_of_sizes() -> None:
    model = parsed(
        """g (float[b,6,s] x) => (float[n] y, int64[1] z) {
            a = Exp(x)
            shape = Shape(x)
            count = ReduceProd <keepdims = 1> (shape)
            y = Reshape(a, count)
            z = Neg(count)
        }"""
    )
    made = patched(read(model), ("f_1", ["x"], ["y"]))
    assert "Mul" in [n.op_type for n in made.functions[0].node]
    x = noise(2, 6, 3)
    for ours, theirs in zip(run(made, {"x": x}), run(model, {"x": x}), strict=True):
        assert np.array_equal(ours, theirs)


def test_a_large_constant_of_one_number_is_not_passed() -> None:
    model = parsed(
        "g (float[64,64] x) => (float[64,64] y) { a = Exp(x) y = Add(a, mask) }",
        mask=np.full((64, 64), -1.5, np.float32),
    )
    imported = read(model)
    made = patched(imported, ("f_1", ["x"], ["y"]))
    assert list(operators(made)[0].input) == ["x"] and not made.graph.initializer
    x = noise(64, 64)
    assert np.array_equal(run(made, {"x": x})[0], run(model, {"x": x})[0])


def test_equal_tensors_are_the_same_input() -> None:
    model = parsed(
        """g (float[2] x) => (float[2] y) {
            a = Exp(x)
            b = Exp(x)
            c = Identity(b)
            d = Neg(a)
            e = Abs(c)
            y = Mul(d, e)
        }"""
    )
    imported = read(model)
    region = regions_of(imported).of(["a"], ["y"])
    assert sorted(n.op_type for n in region.nodes) == ["Abs", "Mul", "Neg"] and len(region.inputs) == 1
    made = patched(imported, ("f_1", ["a"], ["y"]))
    x = noise(2)
    assert np.array_equal(run(made, {"x": x})[0], run(model, {"x": x})[0])


def test_fragments_that_read_more_than_their_inputs_share_an_operator_only_if_they_read_the_same() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {{
        k = If(c) <then_branch = t () => (float[2] u) {{ u = Abs(x) }}, else_branch = e () => (float[2] v) {{ v = Neg(x) }}>
        a = Exp(x)
        b = {first}(a, k)
        d = Exp(b)
        y = {second}(d, k)
    }}"""

    def signatures(first: str, second: str) -> list[str]:
        regions = Regions(read(parsed(text.format(first=first, second=second))).model)
        return [regions.of(["x"], ["b"]).signature(), regions.of(["b"], ["y"]).signature()]

    same, other = signatures("Mul", "Mul"), signatures("Mul", "Add")
    assert same[0] == same[1] != "" and other[0] != other[1]


# --- in and out of files ----------------------------------------------------------------------------------------------
def test_a_tensor_that_the_original_nodes_compute_themselves() -> None:
    """The squares of a norm, which is one node, are an output too: no check could give both sides the same numbers."""
    imported = read(
        parsed(
            "m (float[4, 8] x, float[8] g) => (float[4, 8] s, float[4, 8] y) { s = Mul(x, x) y = RMSNormalization(x, g) }",
            opset=23,
            ir_version=10,
        )
    )
    found = group_fragments(partition(imported.graph, tensor_names(imported)).fragments, imported)
    assert [w.reason for w in found if w.failed] == ["it reads s, which its original nodes compute themselves"]


@pytest.mark.parametrize("external", [False, True])
def test_weights_are_stored_as_they_were(tmp_path: Path, external: bool) -> None:
    text = "g (float[2,64] x) => (float[2,64] y) { a = MatMul(x, w) y = Exp(a) }"
    model = parsed(text, w=noise(64, 64))
    source = tmp_path / "in" / "model.onnx"
    source.parent.mkdir()
    onnx.save(model, source, save_as_external_data=external, location="weights.bin", size_threshold=0)
    imported = front_end.load(str(source), Options())
    region = regions_of(imported).of(["x", "w"], ["a"])
    made = patch.patched(imported, [patch.Replacement("f_1", region)], {})
    assert imported.original is not None
    saving.save(made, imported.original.files, tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx.data").exists() == external
    stored = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    (w,) = stored.graph.initializer
    assert (w.data_location == TensorProto.EXTERNAL) == external
    onnx.checker.check_model(tmp_path / "model.onnx")
    session = alone.session(tmp_path / "model.onnx")
    x = noise(2, 64)
    assert np.allclose(session.run(None, {"x": x})[0], run(parsed(text, w=noise(64, 64)), {"x": x})[0], rtol=1e-5)


def test_weights_that_a_file_cannot_hold_go_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "PROTOBUF_LIMIT", 1000)
    imported = read(parsed("g (float[2,64] x) => (float[2,64] y) { y = MatMul(x, w) }", w=noise(64, 64)))
    saving.save_ir(imported.model, tmp_path / "model.onnx", external=False)
    assert (tmp_path / "model.onnx.data").stat().st_size >= 64 * 64 * 4
