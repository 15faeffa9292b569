"""Odd models: what is read, what is left with a reason, and what is refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mirage_cli.errors import ModelError, UsageError
from mirage_cli.frontends.imported import Options
from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir import graph as g
from tests.frontends import evaluation
from tests.frontends.models import agrees, noise, parsed, read, run

X = noise(2, 4)


# --- small and strange ------------------------------------------------------------------------------------------------
def test_no_nodes() -> None:
    imported = agrees(parsed("g (float[2,4] x) => (float[2,4] x) {}"), x=X)
    assert imported.node_count == 0 and len(imported.graph.steps) == 1


def test_an_output_that_is_a_weight() -> None:
    agrees(parsed("g (float[2,4] x) => (float[2] w) {}", w=np.float32([1, 2])), x=X)


def test_inputs_that_nothing_reads() -> None:
    imported = agrees(
        parsed("g (float[2,4] x, int64[7] z) => (float[2,4] y) { y = Identity(x) }"), x=X, z=np.zeros(7, int)
    )
    assert [v.name for v in imported.model.graph.inputs] == ["x", "z"]


def test_an_output_named_twice() -> None:
    imported = read(parsed("g (float[2,4] x) => (float[2,4] y, float[2,4] y) { y = Exp(x) }"))
    assert len(imported.graph.outputs) == 2 and len(set(imported.graph.outputs)) == 1


@pytest.mark.parametrize("operator", ["MatMul(x, w)", "ReduceSum <keepdims = 0> (x, axis)", "Softmax(x)", "Exp(x)"])
def test_tensors_without_rows(operator: str) -> None:
    text = f"g (float[n,4] x) => (float[a,b] y) {{ y = {operator} }}"
    if "ReduceSum" in operator:
        text = text.replace("float[a,b]", "float[a]")
    model = parsed(text, w=noise(4, 3), axis=np.array([1]))
    agrees(model, x=np.zeros((0, 4), np.float32))
    static = parsed(text.replace("[n,4]", "[0,4]"), w=noise(4, 3), axis=np.array([1]))
    agrees(static, x=np.zeros((0, 4), np.float32))


def test_reductions_over_nothing() -> None:
    text = """g (float[2,0] x) => (float[2] a, float[2] b) {
        a = ReduceSum <keepdims = 0> (x, d)
        b = ReduceMax <keepdims = 0> (x, d)
    }"""
    imported = read(parsed(text, opset=20, d=np.array([1])))
    a, b = evaluation.run(imported, {"x": np.zeros((2, 0))})
    assert a.tolist() == [0, 0] and b.tolist() == [-np.inf, -np.inf]


def test_scalars_and_integers_and_truth_values() -> None:
    agrees(parsed("g (float x, float z) => (float y) { a = Mul(x, z) y = Sqrt(a) }"), x=np.float32(4), z=np.float32(9))
    agrees(parsed("g (int64[2] x) => (int64[2] y) { a = Mul(x, x) y = Sub(a, x) }"), x=np.array([3, -4]))
    text = "g (bool[2,4] m, float[2,4] x) => (float[2,4] y) { n = Not(m) y = Where(n, x, low) }"
    agrees(parsed(text, low=np.float32(-np.inf)), m=X > 0, x=X)


@pytest.mark.parametrize("value", [[np.nan] * 4, [np.inf] * 4, [-np.inf, 1, np.nan, 0], [0.0] * 4])
def test_constants_that_are_no_numbers(value: list[float]) -> None:
    agrees(parsed("g (float[2,4] x) => (float[2,4] y) { a = Add(x, c) y = Mul(a, c) }", c=np.float32(value)), x=X)
    agrees(parsed("g (float[2,4] x) => (float[2,4] y) { y = Div(x, c) }", c=np.float32(value)), x=X)


def test_a_constant_read_in_several_places() -> None:
    text = "g (float[2,4] x) => (float[2,4] y) { a = Mul(x, c) b = Add(a, c) d = Sub(b, c) y = Div(d, c) }"
    imported = agrees(parsed(text, c=noise(4)), x=X)
    assert sum(isinstance(s, g.Input) and s.constant for s in imported.graph.steps) == 1


def test_optional_inputs_left_out() -> None:
    agrees(parsed("g (float[2,4] x) => (float[2,4] y) { y = Clip(x, , high) }", high=np.float32(0.25)), x=X)
    agrees(parsed("g (float[2,4] x) => (float[2,4] y) { y = Clip(x) }"), x=X)
    text = "g (float[2,4] x) => (float[2,3] y) { y = Slice(x, starts, ends, , steps) }"
    agrees(parsed(text, starts=np.array([0, 0]), ends=np.array([2, 3]), steps=np.array([1, 1])), x=X)


def test_inputs_that_have_defaults_stay_inputs() -> None:
    """A stored value of an input is a default, not a constant: nothing may be folded from it."""
    text = """g (float[2,4] x, float[4] w, bool c) => (float[2,4] y) {
        n = Neg(w)
        k = If(c) <then_branch = t () => (float[4] u) { u = Exp(n) }, else_branch = e () => (float[4] v) { v = Abs(n) }>
        y = Add(x, k)
    }"""
    imported = read(parsed(text, w=noise(4), c=np.array(True)))
    assert [n.op_type for n in imported.model.graph] == ["Neg", "Exp", "Abs", "If", "Add"]
    assert list(imported.reasons.values()) == ["it contains sub-graphs"]
    assert set(imported.model.graph.initializers) == {"w", "c"}
    assert [v.name for v in imported.model.graph.inputs] == ["x", "w", "c"]
    weights = [s for s in imported.graph.steps if isinstance(s, g.Input) and s.constant]
    assert weights == []


def test_old_files_in_which_weights_are_inputs() -> None:
    model = parsed(
        "g (float[2,4] x, float[4] w) => (float[2,4] y) { y = Add(x, w) }", ir_version=3, opset=9, w=noise(4)
    )
    imported = read(model)
    assert [v.name for v in imported.model.graph.inputs] == ["x"]
    assert np.allclose(evaluation.run(imported, {"x": X})[0], X + noise(4))


# --- invalid ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ("a = Exp(z) z = Neg(a) y = Neg(z)", "topologically sorted"),
        ("y = Exp(x) y = Neg(x)", "static single assignment|single static assignment"),
        ("y = Exp(nothing)", "nothing"),
        ("y = Blub(x)", "Blub"),
        ("y = Exp <alpha = 1.0> (x)", "alpha"),
        ("y = Exp(x, x)", "Exp"),
    ],
)
def test_graphs_that_the_checker_refuses(nodes: str, words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        read(parsed(f"g (float[2,4] x) => (float[2,4] y) {{ {nodes} }}"))
    assert "model.onnx" in str(caught.value)


@pytest.mark.parametrize("opset", [0, 10_000])
def test_opsets_that_do_not_exist(opset: int) -> None:
    model = parsed("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    model.opset_import[0].version = opset
    with pytest.raises(ModelError, match=f"found {opset}"):
        read(model)


def test_a_model_without_opset_or_of_a_new_format() -> None:
    model = parsed("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    del model.opset_import[:]
    with pytest.raises(ModelError, match="opset_import"):
        read(model)
    model = parsed("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    model.ir_version = 1000
    with pytest.raises(ModelError, match="IR version"):
        read(model)


@pytest.mark.parametrize("dims", [[-2], [-1, -2], [2**40, 2**40], [3]])
def test_weights_that_do_not_fit_their_dimensions(dims: list[int]) -> None:
    model = parsed("g (float[2] x) => (float[2] y) { y = Add(x, w) }", w=noise(2))
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend(dims)
    with pytest.raises(ModelError, match="'w'"):
        read(model)


def test_repeated_weights() -> None:
    model = parsed("g (float[2] x) => (float[2] y) { y = Add(x, w) }", w=noise(2))
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(ModelError, match="not unique"):
        read(model)


def sparse(model: onnx.ModelProto, dims: list[int], places: object) -> onnx.ModelProto:
    """The model with a weight `w` of which two elements are stored."""
    stored = model.graph.sparse_initializer.add(dims=dims)
    stored.values.CopyFrom(numpy_helper.from_array(np.array([2, 3], np.float32), "w"))
    stored.indices.CopyFrom(numpy_helper.from_array(np.asarray(places, np.int64), "w.places"))
    return model


@pytest.mark.parametrize("places", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_weights(places: object) -> None:
    text = "g (float[4, 2] x) => (float[4, 3] y) { y = MatMul(x, w) }"
    agrees(sparse(parsed(text), [2, 3], places), x=noise(4, 2))


def test_sparse_weights_that_are_none() -> None:
    model = sparse(
        parsed("g (float[4, 1048576] x) => (float[4, 1048576] y) { y = MatMul(x, w) }"), [1 << 20] * 2, [1, 5]
    )
    with pytest.raises(ModelError, match="sparse weight 'w': expected at most"):
        read(model)


def test_recursive_functions() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18, "my" : 1]> g (float[2] x) => (float[2] y) { y = my.f(x) }
    <domain: "my", opset_import: ["" : 18, "my" : 1]> f (a) => (b) { b = my.f(a) }"""
    with pytest.raises(ModelError, match=r"call each other without an end"):
        read(parsed(text))


# --- dimensions -------------------------------------------------------------------------------------------------------
def test_huge_dimensions_are_numbers_like_others() -> None:
    huge = 2**63 - 1
    imported = read(parsed(f"g (float[{huge},4] x) => (float[{huge},4] y) {{ y = Exp(x) }}"))
    assert imported.graph.dims(imported.graph.outputs[0]) == (huge, 4)


@pytest.mark.parametrize(
    "nodes",
    [
        "c = ConstantOfShape(size) y = Add(x, c)",
        "y = Expand(x, size)",
        "y = Tile(x, size)",
        "s = Squeeze(size) r = Range(zero, s, one) f = Cast <to = 1> (r) y = Add(x, f)",
    ],
)
def test_huge_tensors_are_not_made(nodes: str) -> None:
    """A few bytes that ask for terabytes: sizes are only numbers."""
    text = f"g (float[1] x) => (float[n] y) {{ {nodes} }}"
    imported = read(parsed(text, size=np.array([2**40]), zero=np.array(0), one=np.array(1)))
    assert imported.reasons == {}
    assert imported.graph.dims(imported.graph.outputs[0]) == (2**40,)


@pytest.mark.parametrize("dim", [-1, -5])
def test_negative_dimensions_are_unknown_ones(dim: int) -> None:
    model = parsed("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = dim
    imported = read(model)
    assert imported.reasons == {}
    assert not isinstance(imported.graph.dims(imported.graph.outputs[0])[0], int)


def test_dimensions_without_names_differ() -> None:
    model = parsed("g (float[?,4] x, float[?,4] z) => (float[?,4] y) { a = Exp(x) y = Add(a, z) }")
    imported = read(model)
    assert list(imported.reasons) == ["node_Add"] and "do not broadcast" in imported.reasons["node_Add"]


def test_inputs_without_dimensions() -> None:
    model = parsed("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.ClearField("shape")
    assert list(read(model).reasons.values()) == ["input 'x' has an unknown number of dimensions"]
    imported = read(model, Options(shapes={"x": (2, 3)}))
    assert imported.reasons == {} and imported.graph.dims(imported.graph.outputs[0]) == (2, 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(dims={"nothing": 2}), "no such symbol; they have b"),
        (Options(shapes={"z": (2, 4)}), "no such input; it has x"),
        (Options(shapes={"x": (2,)}), "2 dimensions and not 1"),
        (Options(shapes={"x": (2, 5)}), "says 4, which cannot be 5"),
        (Options(shapes={"x": (2, 4)}, dims={"b": 3}), "says b, which cannot be 2"),
    ],
)
def test_numbers_that_do_not_fit(options: Options, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read(parsed("g (float[b,4] x) => (float[b,4] y) { y = Exp(x) }"), options)


def test_a_type_that_the_input_has_not() -> None:
    model = parsed("m (float16[2] x) => (float16[2] y) { y = Neg(x) }")
    assert read(model, Options(shapes={"x": (2,)}, types={"x": "f16"})).node_count == 1
    with pytest.raises(UsageError, match="input has type f16, which cannot be i64"):
        read(model, Options(shapes={"x": (2,)}, types={"x": "i64"}))


def test_shapes_by_way_of_filled_tensors_are_known() -> None:
    """As older exporters write x.expand(-1, 3)."""
    nodes = """
        ones = ConstantOfShape<value = int64[1] {1}>(two)
        all = Mul(ones, less)
        kept = Equal(wanted, all)
        shape = Where(kept, ones, wanted)
        y = Expand(x, shape)
    """
    weights = {"two": [2], "less": -1, "wanted": [-1, 3]}
    graph = read(parsed(f"m (float[2, 1] x) => (float[n, k] y) {{ {nodes} }}", **weights)).graph
    assert graph.dims(graph.outputs[0]) == (2, 3)


def test_constants_are_dense() -> None:
    text = "m (float[2, 3] x) => (float[2, 2] y) { t = Transpose(w) y = MatMul(x, t) }"
    imported = read(parsed(text, w=np.arange(6, dtype=np.float32).reshape(2, 3)))
    constants = [imported.constant(name) for name in imported.model.graph.initializers]
    assert constants and all(c.flags.c_contiguous for c in constants)


def test_a_sum_is_solved_for_its_symbol() -> None:
    model = parsed("g (float[n] mask, float[past] k) => (float[n] y, float[past] z) { y = Exp(mask) z = Exp(k) }")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "past + 1"
    imported = read(model, Options(shapes={"mask": (10,)}))
    assert [imported.graph.dims(v) for v in imported.graph.outputs] == [(10,), (9,)]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("y = Reshape(x, s)", "cannot reshape"),
        ("y = MatMul(x, w)", "pairs a dimension of 4 with one of 5"),
        ("y = Gather <axis = 1> (x, s)", "indices outside a dimension of 4"),
        ("y = Transpose <perm = [1, 1]> (x)", "no permutation"),
        ("y = Squeeze(x, s)", "axis 3 does not exist"),
        ("y = Add(x, w)", "do not broadcast"),
    ],
)
def test_nodes_that_do_not_fit_their_operands_are_left(nodes: str, reason: str) -> None:
    text = f"g (float[2,4] x) => (float[a,b] y) {{ {nodes} }}"
    (found,) = read(parsed(text, s=np.array([3, 7]), w=noise(5, 3))).reasons.values()
    assert reason in found


# --- what is not read -------------------------------------------------------------------------------------------------
BODIES = {
    "If": """k = If(c) <then_branch = t () => (float[2,4] u) { u = Neg(a) },
             else_branch = e () => (float[2,4] v) { v = Identity(x) }>""",
    "Loop": """n = Constant <value_int = 3> ()
             k = Loop(n, c, x) <body = l (int64 i, bool m, float[2,4] s) => (bool o, float[2,4] r) {
               o = Identity(m) r = Add(s, a) }>""",
    "Scan": """k, z = Scan <num_scan_inputs = 1, body = l (float[4] s, float[4] e) => (float[4] r, float[4] p) {
               r = Add(s, e) p = Identity(r) }> (w, a)""",
}


@pytest.mark.parametrize("kind", sorted(BODIES))
def test_subgraphs_stay_closed_and_what_they_read_is_kept(kind: str) -> None:
    rest = "y = Add(a, k)"
    model = parsed(f"g (float[2,4] x, bool c) => (float[2,4] y) {{ a = Exp(x) {BODIES[kind]} {rest} }}", w=noise(4))
    imported = read(model)
    assert next(iter(imported.reasons.values())) == "it contains sub-graphs"
    cone = imported.graph.cone(imported.graph.outputs)
    assert any(
        imported.values["a"] in imported.graph.inputs[v] for v in cone if imported.graph.steps[v] != g.Map("add")
    )
    if kind == "Loop":  # what it carries may have other dimensions after each round
        assert "unknown number of dimensions" in list(imported.reasons.values())[1]
        return
    assert len(imported.reasons) == 1
    inputs = {"x": X, "c": np.array(True)}
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, None))
    y, k = run(probe, inputs)
    assert np.allclose(evaluation.run(imported, inputs, {"k": k})[0], y, atol=1e-5)


def test_a_branch_that_a_constant_chooses_is_read() -> None:
    text = "g (float[2,4] x) => (float[2,4] y) { a = Exp(x) " + BODIES["If"] + " y = Add(a, k) }"
    agrees(parsed(text, c=np.array(True)), x=X)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)", "the operator is not read"),
        ("y, i = TopK(x, k)", "the operator is not read"),
        ("u = Unsqueeze(x, k) y = Conv(u, w)", "windows overlap: 2 elements, stride 1"),
        ("u = Unsqueeze(x, k) y = Conv <pads = [1, 0]> (u, w)", "a convolution with padding"),
        ("u = Unsqueeze(x, first) y = Conv <strides = [3]> (u, pair)", "do not fill a dimension of 4"),
        ("y = Conv(x, w)", "a kernel of rank 3 for a tensor of rank 2"),
        ('y = Einsum <equation = "ii->i"> (x)', "diagonal"),
        ("i = Cast <to = 7> (x) y = Div(i, i)", "integer arithmetic that rounds"),
        ("i = Cast <to = 12> (x) y = Identity(i)", "depends on their place"),
        ("i = Cast <to = 3> (x) y = Add(i, i)", "wraps around"),
        ("n, m, v = BatchNormalization <training_mode = 1> (x, p, p, p, p) y = Add(n, m)", "training mode"),
        ("y = Dropout(x, r, t)", "training mode"),
    ],
)
def test_operators_and_forms_that_are_not_read_have_a_reason(nodes: str, reason: str) -> None:
    text = f"g (float[2,4] x) => (float[a,b] y) {{ {nodes} }}"
    weights = {"s": np.float32(0.1), "z": np.uint8(3), "k": np.array([2]), "w": noise(1, 4, 3), "p": noise(4) ** 2}
    weights |= {"r": np.float32(0.5), "t": np.array(True), "first": np.array([0]), "pair": noise(1, 2, 2)}
    if "Unsqueeze" in nodes:
        weights["w"] = noise(1, 4, 2)
    assert reason in next(iter(read(parsed(text, **weights)).reasons.values()))


@pytest.mark.parametrize(
    "kind", ["string[2]", "seq(float[2])", "optional(float[2])", "float8e4m3fnuz[2]", "complex64[2]"]
)
def test_element_types_and_values_that_are_not_read(kind: str) -> None:
    imported = read(parsed(f"g ({kind} x) => ({kind} y) {{ y = Identity(x) }}"))
    assert len(imported.reasons) == 1 and "input 'x'" in next(iter(imported.reasons.values()))


def test_operators_of_other_domains() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18, "foo.bar" : 1]>
    g (float[2,4] x) => (float[2,4] y) <float[2,4] k> { a = Exp(x) k = foo.bar.Baz(a) y = Neg(k) }"""
    imported = read(parsed(text))
    assert list(imported.reasons.values()) == ["the operator of domain foo.bar is not read"]
    assert np.allclose(evaluation.run(imported, {"x": X}, {"k": X})[0], -X)


def test_nodes_without_and_with_equal_names() -> None:
    model = parsed("g (float[2,4] x) => (float[2,4] y) { a = Exp(x) b = Exp(a) y = Exp(b) }")
    model.graph.node[1].name = model.graph.node[2].name = "same"
    assert [n.name for n in read(model).model.graph] == ["node_Exp", "same", "same_1"]


# --- functions and older opsets ---------------------------------------------------------------------------------------
def test_functions_within_functions() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
    g (float[2,4] x) => (float[2,4] y) { a = my.twice <k = 0.5> (x) y = my.scaled <k = 3.0> (a) }
    <domain: "my", opset_import: ["" : 18, "my" : 1]> twice <k> (a) => (c) {
        b = my.scaled <k : float = @k> (a) c = my.scaled <k : float = @k> (b) }
    <domain: "my", opset_import: ["" : 18]> scaled <k> (a) => (b) {
        f = Constant <value_float : float = @k> () e = Softmax(a) b = Mul(e, f) }"""
    imported = agrees(parsed(text), x=X)
    assert imported.node_count == 2
    assert [n.op_type for n in imported.model.graph] == ["Softmax", "Mul"] * 3


@pytest.mark.parametrize("opset", range(7, 13))
def test_older_opsets_are_read_as_they_are(opset: int) -> None:
    text = "g (float[2,4] x) => (float[2,4] y) { a = Softmax <axis = 1> (x) b = Mul(a, x) y = Add(b, w) }"
    imported = agrees(parsed(text, opset=opset, ir_version=4, w=noise(4)), x=X)
    assert imported.opset == opset and imported.notes == []


def test_forms_that_changed() -> None:
    text = """g (float[2,4] x) => (float[2] y) {
        s = ReduceSum <axes = [1], keepdims = 0> (x)
        u = Unsqueeze <axes = [0]> (s)
        q = Squeeze <axes = [0]> (u)
        y = Clip <min = 0.0, max = 1.0> (q)
    }"""
    agrees(parsed(text, opset=10, ir_version=5), x=X)
    flat = "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax <axis = 1> (x) }"
    agrees(parsed(flat, opset=11, ir_version=6), x=noise(2, 3, 4))


@pytest.mark.parametrize("opset", range(1, 7))
def test_models_of_the_oldest_opsets_are_accepted_and_left(opset: int) -> None:
    imported = read(parsed("g (float[2,4] x) => (float[2,4] y) { a = Exp(x) y = Neg(a) }", opset=opset, ir_version=3))
    reason = f"operators of opset {opset} are not read (from 7 on)"
    assert imported.opset == opset and imported.notes == [reason]
    assert list(imported.reasons.values()) == [reason] * 2


@pytest.mark.parametrize("operator", ["Hardmax", "Softmax", "LogSoftmax"])
def test_constants_of_operators_that_changed_are_not_folded(operator: str) -> None:
    """onnx.reference knows their newest version only."""
    text = f"g (float[2,3,4] x) => (float[2,3,4] y) {{ a = {operator} (w) y = Add(x, a) }}"
    imported = read(parsed(text, opset=11, ir_version=6, w=noise(2, 3, 4)))
    assert [n.op_type for n in imported.model.graph] == [operator, "Add"]


@pytest.mark.parametrize("operator", ["Resize(x, s)", "Upsample(x, s)"])
def test_operators_that_resize_are_not_read(operator: str) -> None:
    opset = 9 if "Upsample" in operator else 10
    text = f"g (float[1,1,2,4] x) => (float[1,1,4,8] y) {{ y = {operator} }}"
    found = read(parsed(text, opset=opset, ir_version=5, s=np.float32([1, 1, 2, 2])))
    assert list(found.reasons.values()) == ["the operator is not read"]


# --- names and places --------------------------------------------------------------------------------------------------
def test_an_equation_that_is_none_is_told_with_its_place() -> None:
    with pytest.raises(
        ModelError, match=r"the node that computes 'y' has the equation 'i2->i2', which is none: expected"
    ):
        read(parsed('g (float[2,4] x) => (float[2,4] y) { y = Einsum <equation = "i2->i2"> (x) }'))


def test_constants_by_name() -> None:
    imported = read(parsed("g (float[2,4] x) => (float[2,4] y) { y = Add(x, w) }", w=noise(4)))
    assert np.array_equal(imported.constant("w"), noise(4))
    with pytest.raises(UsageError, match="no constant called 'x'"):
        imported.constant("x")


def test_made_up_names_of_dimensions_give_way_to_what_was_read() -> None:
    """The tracing exporter's inference names dimensions of lookups anew; they are those of the indices."""
    text = """<ir_version: 9, opset_import: ["" : 17]> g (int64[batch,1] ids, float[batch,1,8] x) => (float[batch,1,8] y)
    <float[unk_0,unk_1,8] rows> { rows = Gather(table, ids) y = Add(rows, x) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((5, 8), np.float32), "table"))
    found = read(proto)
    assert found.reasons.keys() <= {n.name for n in found.model.graph if n.op_type == "Gather"}
    assert found.graph.dims(found.values["rows"]) == (ex.symbol("batch"), 1, 8)
