"""Which fragments are found in what exporters write: by algebra, so the same mathematics gives the same fragments."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mirage_cli import frontends
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.fragments.lax_fragment import LaxFragment, Partition
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.optimization import task

SAMPLES = Path(__file__).resolve().parents[3] / "samples"
LAYERS = 2


@cache
def parts_of(path: Path) -> Partition:
    imported = frontends.load(str(path))
    return partition(imported.graph, task.tensor_names(imported))


def fragments(name: str) -> list[LaxFragment]:
    path = next(p for folder in ("models", "operators") if (p := SAMPLES / folder / f"{name}.onnx").exists())
    return parts_of(path).fragments


def kinds(name: str) -> Counter[str]:
    return Counter(f.name for f in fragments(name))


def parts_of_proto(proto: onnx.ModelProto) -> Partition:
    imported = from_proto(proto, frontends.Options())
    return partition(imported.graph, task.tensor_names(imported))


def test_a_costly_value_that_several_read_through_views_is_stored() -> None:
    """Sines of positions, which every layer reads: computed once."""
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[8,16] x, float[8] p) => (float[8,32] y, float[8,32] z) {
        s = Sin(p) u = Unsqueeze(s, one) a = Mul(x, u) y = MatMul(a, w) b = Add(x, u) z = MatMul(b, w)
    }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(16, 32, dtype=np.float32), "w"))
    found = parts_of_proto(proto)
    assert len(found.fragments) == 2
    for f in found.fragments:
        assert "sin" not in {n.op for n in f.program.nodes}
        assert (8,) in {s.dims for s in f.program.sources}


def test_what_follows_from_a_size_that_no_input_shows_is_read() -> None:
    """Positions behind a cache whose length only an operator that is not read sees: the linear is found all the same."""
    text = """<ir_version: 9, opset_import: ["" : 20]>
    g (float[8,16] x, float[past,16] cache) => (float[8,32] y) {
        shape = Shape(cache) length = Gather(shape, zero) r = Range(zero, length, one) f = Cast<to: int = 1>(r)
        m = ReduceMax(f) a = Mul(x, m) y = MatMul(a, w)
    }"""
    proto = onnx.parser.parse_model(text)
    for name, value in (("zero", np.array(0)), ("one", np.array(1)), ("w", np.eye(16, 32, dtype=np.float32))):
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    (found,) = parts_of_proto(proto).fragments
    assert (found.name, found.program.unknown_symbols) == ("linear", [])
    assert {s.name for s in found.program.sources} == {"a", "w"}


#: what every layer of an architecture must have, by the name of the sample without its type
EVERY_LAYER = {
    "llama": ("attention", "norm_gated_mlp", "norm_linear"),
    "llama_decode": ("attention", "norm_gated_mlp", "norm_linear"),
    "llama_opset23": ("attention", "norm_gated_mlp", "norm_linear"),
    "llama_composite": ("attention", "norm_gated_mlp", "norm_linear"),
    "llama_traced": ("attention", "norm_gated_mlp", "norm_linear"),
    "llama_dynamic": ("attention", "norm_gated_mlp", "norm_linear"),
    "llama_decode_dynamic": ("attention", "norm_gated_mlp", "norm_linear"),
    "llama_eager": ("attention", "norm_gated_mlp", "norm_linear"),
    "llama_lora": ("attention", "norm_gated_mlp", "norm_lora", "norm_linear"),
    "qwen3": ("qknorm_attention", "norm_gated_mlp", "norm_linear"),
    "gemma2": ("attention", "norm_gated_mlp", "norm_linear"),
    "phi3": ("attention", "norm_gated_mlp", "norm_linear"),
    "gpt2": ("attention", "norm_mlp", "norm_linear"),
    "gpt_neox": ("attention", "norm_mlp", "norm_linear"),
    "vit": ("attention", "norm_mlp", "norm_linear"),
    "bert": ("attention", "mlp", "norm"),
    "bert_masked": ("attention", "mlp", "norm"),
    "qwen3_moe": ("qknorm_attention", "norm_linear"),
}
OPERATORS = {
    "attention_boolean": "attention",
    "attention_masked": "attention",
    "attention_scaled": "attention",
    "attention_softcap": "attention",
    "batch_norm_linear": "norm_linear",
    "gated_mlp": "gated_mlp",
    "gqa": "attention",
    "gqa_decode": "attention",
    "group_norm_linear": "norm_linear",
    "layer_norm_linear_gelu": "norm_mlp",
    "lora": "lora",
    "lora_adapters": "lora",
    "lora_scaled": "lora",
    "mha": "attention",
    "mqa": "attention",
    "norm_gated_mlp": "norm_gated_mlp",
    "ntrans": "norm",
    "ntrans_artifact": "norm",
    "qknorm_gqa": "qknorm_attention",
    "qknorm_gqa_artifact": "qknorm_attention",
    "rmsnorm_linear": "norm_linear",
    "rmsnorm_gain_linear": "norm_linear",
}


def test_every_model_sample_is_in_the_table() -> None:
    names = {p.stem.rpartition("_")[0] for p in (SAMPLES / "models").glob("*.onnx")}
    assert names == set(EVERY_LAYER)


@pytest.mark.parametrize("path", sorted((SAMPLES / "models").glob("*.onnx")), ids=lambda p: p.stem)
def test_every_layer_of_a_model_has_its_fragments(path: Path) -> None:
    found = Counter(f.name for f in parts_of(path).fragments)
    for kind in EVERY_LAYER[path.stem.rpartition("_")[0]]:
        assert found[kind] >= LAYERS, (kind, found)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_an_operator_is_one_fragment(name: str, dtype: str) -> None:
    assert kinds(f"{name}_{dtype}") == {OPERATORS[name]: 1}


@pytest.mark.parametrize("name", ["mla_fp32", "mla_fp16", "mla_absorbed_fp32", "mla_absorbed_fp16"])
def test_scores_may_be_a_sum_of_contractions(name: str) -> None:
    """Latent attention adds scores with positions to scores without; its two linears stay fragments of their own."""
    assert kinds(name) == {"attention": 1, "linear": 2}


@pytest.mark.parametrize("name", ["llama_fp32", "llama_dynamic_fp32", "gpt2_fp16", "bert_fp32"])
def test_equal_layers_have_equal_keys(name: str) -> None:
    keys = Counter(f.key for f in fragments(name) if f.name in ("attention", "norm_gated_mlp", "norm_mlp"))
    assert set(keys.values()) == {LAYERS}


def test_exporters_that_write_the_same_mathematics_differently_give_the_same_fragment() -> None:
    names = ["llama", "llama_opset23", "llama_eager", "llama_traced", "llama_composite", "llama_lora"]
    found = {f.key for n in names for f in fragments(f"{n}_fp32") if f.name == "norm_gated_mlp"}
    assert len(found) == 1


# --- graphs made here -------------------------------------------------------------------------------------------------
def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[int]], outputs: list[str], **weights: object
) -> onnx.ModelProto:
    """A float32 model whose weights are given as shapes."""
    rng = np.random.default_rng(0)
    tensors = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in weights.items()]  # type: ignore[call-overload]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def node(op: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), output.split(), name=output, **attributes)


def names_of(parts: Partition) -> list[str]:
    return sorted(f.name for f in parts.fragments)


def test_gate_and_up_may_be_one_projection() -> None:
    nodes = [
        node("MatMul", "x w", "both"),
        node("Split", "both", "gate up", axis=1, num_outputs=2),
        node("Sigmoid", "gate", "sig"),
        node("Mul", "gate sig", "act"),
        node("Mul", "act up", "y"),
    ]
    assert names_of(parts_of_proto(model(nodes, {"x": [4, 32]}, ["y"], w=(32, 128)))) == ["gated_mlp"]


def test_a_condition_that_modulates_all_rows_is_stored() -> None:
    """Scale and shift of an adaptive norm are computed once from the condition, not for every row of the norm."""
    nodes = [
        node("MatMul", "c w", "both"),
        node("Split", "both", "scale shift", axis=2, num_outputs=2),
        node("LayerNormalization", "x ones", "normed"),
        node("Mul", "normed scale", "scaled"),
        node("Add", "scaled shift", "adapted"),
        node("MatMul", "adapted v", "y"),
    ]
    inputs = {"x": [2, 16, 32], "c": [2, 1, 32]}
    parts = parts_of_proto(model(nodes, inputs, ["y"], w=(32, 64), v=(32, 48), ones=(32,)))
    assert names_of(parts) == ["linear", "norm_linear"] and parts.left == []


def test_low_rank_products_are_one_fragment_only_when_the_rank_is_low() -> None:
    nodes = [
        node("MatMul", "x w", "base"),
        node("MatMul", "x a", "down"),
        node("MatMul", "down b", "low"),
        node("Add", "base low", "y"),
    ]
    low = model(nodes, {"x": [4, 64]}, ["y"], w=(64, 64), a=(64, 4), b=(4, 64))
    high = model(nodes, {"x": [4, 64]}, ["y"], w=(64, 64), a=(64, 48), b=(48, 64))
    assert names_of(parts_of_proto(low)) == ["lora"]
    assert "lora" not in names_of(parts_of_proto(high))


def test_the_weights_of_a_low_rank_product_may_be_inputs() -> None:
    nodes = [
        node("MatMul", "x w", "base"),
        node("MatMul", "x a", "down"),
        node("MatMul", "down b", "low"),
        node("Add", "base low", "y"),
    ]
    inputs = {"x": [4, 64], "w": [64, 64], "a": [64, 4], "b": [4, 64]}
    assert names_of(parts_of_proto(model(nodes, inputs, ["y"]))) == ["lora"]


def test_scores_that_somebody_else_needs_are_stored() -> None:
    nodes = [
        node("MatMul", "q k", "scores"),
        node("Softmax", "scores", "p", axis=-1),
        node("MatMul", "p v", "y"),
    ]
    inputs = {"q": [2, 8, 16], "k": [2, 16, 24], "v": [2, 24, 16]}
    alone = names_of(parts_of_proto(model(nodes, inputs, ["y"])))
    shown = names_of(parts_of_proto(model(nodes, inputs, ["y", "p"])))
    assert alone == ["attention"]
    assert "attention" not in shown


def test_a_softmax_without_a_maximum_is_attention_too() -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[8,16] q, float[16,32] k, float[32,16] v) => (float[8,16] y) {
        s = MatMul(q, k) e = Exp(s) t = ReduceSum(e, last) p = Div(e, t) y = MatMul(p, v)
    }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "last"))
    assert [f.name for f in parts_of_proto(proto).fragments] == ["attention"]
    proto.graph.node[1].op_type = "Softplus"  # sums of other functions are no softmax
    assert "attention" not in [f.name for f in parts_of_proto(proto).fragments]


def test_a_norm_whose_result_is_an_output_is_a_fragment() -> None:
    nodes = [
        node("ReduceMean", "xx axes", "mean", keepdims=1),
        node("Mul", "x x", "xx"),
        node("Sqrt", "mean", "root"),
        node("Div", "x root", "y"),
    ]
    nodes = [nodes[1], nodes[0], *nodes[2:]]
    proto = model(nodes, {"x": [4, 32]}, ["y"])
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1]), "axes"))
    assert names_of(parts_of_proto(proto)) == ["norm"]


def test_what_is_left_has_a_reason() -> None:
    for path in sorted((SAMPLES / "models").glob("*.onnx")):
        assert all(left.reason for left in parts_of(path).left), path


def test_a_product_without_dimensions_behind_another_is_cut_like_any() -> None:
    g = Graph()
    x, w = g.input("x", (5,), F32), g.input("w", (5, 5), F32, constant=True)
    y = compose.matmul(g, x, w)
    g.outputs = [g.contract(y, g.input("v", (5,), F32, constant=True), [0], [0], [])]
    found = partition(g, {v: f"t{v}" for v in range(len(g.steps))})
    assert {f.outputs[0] for f in found.fragments} | {left.value for left in found.left} >= set(g.outputs)


def test_masks_of_positions_are_compared_again_in_every_layer() -> None:
    """A stored one that compares positions is no tensor that a second layer needs after the first."""
    layer = (
        "t{0} = Transpose <perm = [1, 0]> ({1})  s{0} = MatMul ({1}, t{0})  a{0} = Add (s{0}, m)  p{0} = Softmax (a{0})"
    )
    layers = " ".join(f"{layer}  h{{0}} = MatMul (p{{0}}, {{1}})".format(k, x) for k, x in ((1, "x"), (2, "h1")))
    text = f'<ir_version: 9, opset_import: ["" : 20]> g (float[100,16] x) => (float[100,16] h2) {{ {layers} }}'
    proto = onnx.parser.parse_model(text)
    mask = np.where(np.tril(np.ones((100, 100), bool)), 0, -np.inf).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(mask, "m"))
    fragments = parts_of_proto(proto).fragments
    assert [f.name for f in fragments] == ["attention", "attention"]
    assert {s.name for f in fragments for s in f.program.sources} == {"x", "h1"}


SIBLINGS = """<ir_version: 9, opset_import: ["" : 20]>
g (float[ROWS,16] x) => (float[ROWS,32] q, float[ROWS,8] k, float[ROWS,8] v) {
    s = Mul(x, x) q = MatMul(s, wq) k = MatMul(s, wk) m = MatMul(OPERAND, wv) v = Add(m, bias)
}"""


@pytest.mark.parametrize(
    ("rows", "operand", "results"),
    [("1", "s", [3]), ("8", "s", [3]), ("9", "s", [1, 1, 1]), ("n", "s", [1, 1, 1]), ("1", "k", [2, 1])],
)
def test_products_of_one_row_are_one_fragment(rows: str, operand: str, results: list[int]) -> None:
    """Few rows, which are known, and none that another one's result is needed for."""
    proto = onnx.parser.parse_model(SIBLINGS.replace("ROWS", rows).replace("OPERAND", operand))
    shapes = {"wq": (16, 32), "wk": (16, 8), "wv": (16 if operand == "s" else 8, 8), "bias": (8,)}
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        proto.graph.initializer.append(numpy_helper.from_array(random.standard_normal(shape, np.float32), name))
    found = parts_of_proto(proto).fragments
    assert sorted((len(f.program.outputs) for f in found), reverse=True) == results
    assert [len(f.outputs) for f in found] == [len(f.program.outputs) for f in found]


TURNED = """<ir_version: 9, opset_import: ["" : 20]>
g (float[ROWS,16] x, float[1,8] cos, float[1,8] sin, float[past,8] cache) => (float[all,8] y) {
    k = MatMul(x, w) first = Slice(k, zero, four, one) second = Slice(k, four, eight, one) less = Neg(second)
    halves = Concat<axis = 1>(less, first) a = Mul(k, cos) b = Mul(halves, sin) turned = Add(a, b)
    END
}"""


@pytest.mark.parametrize(
    ("rows", "end", "products"),
    [
        ("1", "y = Concat<axis = 0>(cache, turned)", {"turned": 2}),
        ("1", "s = MatMul(turned, v) y = Concat<axis = 0>(cache, s)", {"k": 1, "s": 1}),
        ("9", "y = Concat<axis = 0>(cache, turned)", {"k": 1, "turned": 0}),
    ],
)
def test_keys_are_turned_where_they_are_computed(rows: str, end: str, products: dict[str, int]) -> None:
    """Few of them, where they are stored turned: each half is multiplied once."""
    proto = onnx.parser.parse_model(TURNED.replace("ROWS", rows).replace("END", end))
    random = np.random.default_rng(0)
    for name, shape in {"w": (16, 8), "v": (8, 8)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(random.standard_normal(shape, np.float32), name))
    for name, at in {"zero": 0, "one": 1, "four": 4, "eight": 8}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array([at]), name))
    found = {f.program.outputs[0].name: f.program for f in parts_of_proto(proto).fragments}
    assert {name: sum(n.op == "contract" for n in p.nodes) for name, p in found.items()} == products


@pytest.mark.parametrize(
    ("normal", "products"),
    [
        ("Identity(product)", {"product": 1, "head": 0}),
        ("Div(product, mean)", {"product": 1, "wide": 0, "turned": 0}),
    ],
)
def test_keys_of_which_a_part_is_turned_are_multiplied_once(normal: str, products: dict[str, int]) -> None:
    """Of such a head more than there is would be multiplied: it is turned by a fragment of its own, whole, but where it is
    normalised in front of that."""
    text = TURNED.replace("ROWS", "1").replace(",8] cache", ",24] cache").replace("all,8", "all,24")
    square = "square = Mul(product, product) mean = ReduceMean<keepdims = 1>(square, one)"
    wide = f"product = MatMul(x, w) {square} wide = {normal} k = Slice(wide, zero, eight, one)"
    end = "rest = Slice(wide, eight, end, one) head = Concat<axis = 1>(turned, rest) y = Concat<axis = 0>(cache, head)"
    proto = onnx.parser.parse_model(text.replace("k = MatMul(x, w)", wide).replace("END", end))
    proto.graph.initializer.append(numpy_helper.from_array(np.random.default_rng(0).random((16, 24), np.float32), "w"))
    for name, at in {"zero": 0, "one": 1, "four": 4, "eight": 8, "end": 24}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array([at]), name))
    found = {f.program.outputs[0].name: f.program for f in parts_of_proto(proto).fragments}
    assert {name: sum(n.op == "contract" for n in p.nodes) for name, p in found.items()} == products


FUSED = """<ir_version: 9, opset_import: ["" : 20]>
g (float[ROWS,16] x, float[past,8] keys, float[past,8] values) => (float[all,8] allk, float[all,8] allv, float[ROWS,8] y) {
    qkv = MatMul(x, w) q, k, v = Split<axis = 1, num_outputs = 3>(qkv) KEYS VALUES
    kt = Transpose<perm = [1, 0]>(allk) s = MatMul(q, kt) p = Softmax(s) y = MatMul(p, allv)
}"""
CACHED = ("allk = Concat<axis = 0>(keys, k)", "allv = Concat<axis = 0>(values, v)")


@pytest.mark.parametrize(
    ("rows", "new", "results"),
    [
        ("1", CACHED, ("q", "k", "v")),
        ("9", CACHED, ("qkv",)),
        ("1", ("allk = Add(keys, k)", "allv = Add(values, v)"), ("qkv",)),  # no part is stored by itself
    ],
)
def test_parts_of_one_product_are_results_of_their_own(
    rows: str, new: tuple[str, str], results: tuple[str, ...]
) -> None:
    """Of few rows, where a part is kept: nobody splits them in between."""
    text = FUSED.replace("ROWS", rows).replace("KEYS", new[0]).replace("VALUES", new[1])
    proto = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((16, 24), np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    first = parts_of_proto(proto).fragments[0]
    assert tuple(o.name for o in first.program.outputs) == results


@pytest.mark.parametrize(("first", "results"), [("Neg(a)", [["t"], ["y"]]), ("MatMul(a, v)", [["x"], ["t"], ["y"]])])
def test_what_is_normalised_twice_is_stored_between(first: str, results: list[list[str]]) -> None:
    """The sum of a residual stream and a normalised value, that of a product or not, which the norm in front of one reads."""
    norm = "s{0} = Mul({1}, {1}) m{0} = ReduceMean<keepdims = 1>(s{0}, last) r{0} = Sqrt(m{0}) n{0} = Div({1}, r{0})"
    text = f"""<ir_version: 9, opset_import: ["" : 20]> g (float[1,16] a, float[1,16] h) => (float[1,32] y) {{
        x = {first} {norm.format(1, "x")} t = Add(h, n1) {norm.format(2, "t")} y = MatMul(n2, w)
    }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "last"))
    weight = np.random.default_rng(0).standard_normal((16, 32), np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(16, dtype=np.float32) + 1, "v"))
    assert [[o.name for o in f.program.outputs] for f in parts_of_proto(proto).fragments] == results
