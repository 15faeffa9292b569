"""Products with quantized weights as the reader makes them: onnxruntime's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import mirage_cli as mi
from mirage_cli.lax.dtypes import I4, PACKED, U2, U4, packed, unpacked
from mirage_cli.lax.ir import graph as g
from mirage_cli.runtime import sessions
from mirage_cli.truth import evaluate
from tests.frontends import evaluation
from tests.frontends.models import Tensor, agrees, noise, parsed, read

RANDOM = np.random.default_rng(7)
DEEP, WIDE = 64, 6


def whole(high: int, *shape: int, dtype: Any = np.uint8) -> Tensor:
    return RANDOM.integers(0, high, shape).astype(dtype)


def model(node: onnx.NodeProto, weights: dict[str, Tensor | TensorProto], *, deep: int = DEEP) -> onnx.ModelProto:
    """x times the weight that the node makes, or the node itself where it takes x."""
    tensors = [
        w if isinstance(w, TensorProto) else numpy_helper.from_array(w, name)
        for name, w in weights.items()
        if w is not None
    ]
    nodes = [node] if node.op_type == "MatMulNBits" else [node, helper.make_node("MatMul", ["x", "w"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b", deep])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b", WIDE])
    opset = 25 if any(t.data_type in (TensorProto.INT2, TensorProto.UINT2) for t in tensors) else 21
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=opsets, ir_version=13 if opset == 25 else 10)


def n_bits(bits: int, size: int, deep: int, others: dict[int, Tensor]) -> onnx.ModelProto:
    blocks = -(-deep // size)
    given = [whole(256, WIDE, blocks, size * bits // 8), (0.1 + RANDOM.random((WIDE, blocks))).astype(np.float32)]
    weights = dict(zip(("q", "s"), given, strict=True)) | {f"w{k}": w for k, w in others.items()}
    names = ["x", "q", "s", *(f"w{k}" if k in others else "" for k in range(3, max(others, default=2) + 1))]
    own = {"K": deep, "N": WIDE, "bits": bits, "block_size": size}
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **own)
    return model(node, weights, deep=deep)


@pytest.mark.parametrize(("bits", "size", "deep"), [(4, 16, 64), (4, 32, 40), (8, 16, 48), (2, 16, 32), (4, 64, 64)])
@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
def test_products_of_packed_blocks(bits: int, size: int, deep: int, zeros: str) -> None:
    blocks = -(-deep // size)
    others: dict[int, Tensor] = {5: noise(WIDE)}
    if zeros == "packed":
        others[3] = whole(256, WIDE, -(-blocks * bits // 8))
    if zeros == "float":
        if bits != 4:
            pytest.skip("onnxruntime has zero points that are numbers for 4 bits")
        others[3] = (8 + noise(WIDE, blocks)).astype(np.float32)
    imported = agrees(n_bits(bits, size, deep, others), x=noise(2, 3, deep))
    stored = imported.graph.tensors[imported.values["q"]]
    assert stored.dims == (WIDE, blocks, size * bits // 8)  # nothing is unpacked


def test_zero_points_that_are_one_number() -> None:
    imported = agrees(n_bits(4, 16, 64, {3: np.full((WIDE, 2), 0x77, np.uint8)}), x=noise(2, 3, 64))
    assert not any(isinstance(s, g.Input) and s.name == "w3" for s in imported.graph.steps)


def test_groups_of_positions() -> None:
    agrees(n_bits(4, 16, 64, {4: np.arange(64, dtype=np.int32) // 16}), x=noise(2, 3, 64))
    scattered = np.random.default_rng(2).permutation(64).astype(np.int32) // 16
    for others in ({4: scattered}, {4: np.arange(64, dtype=np.int32) % 4, 3: (8 + noise(WIDE, 4)).astype(np.float32)}):
        agrees(n_bits(4, 16, 64, others), x=noise(2, 3, 64))
    packed = n_bits(2, 16, 64, {4: scattered, 3: whole(256, WIDE, 1)})  # for which onnxruntime ignores zero points
    x = {"x": noise(2, 3, 64)}
    (ours,), (exact,) = evaluation.run(read(packed), x), evaluate.run(packed, x).values()
    assert np.allclose(ours, exact, rtol=1e-9)
    outside = n_bits(4, 16, 64, {4: scattered})
    outside.graph.input.append(helper.make_tensor_value_info("w4", TensorProto.INT32, [64]))
    outside.graph.node.append(helper.make_node("Neg", ["y"], ["z"]))
    outside.graph.output[0].name = "z"
    stays = read(outside)
    assert list(stays.reasons.values()) == ["groups of positions of a weight that the model does not hold"]
    assert str(stays.graph.tensors[stays.values["y"]]) == "f32[a, b, 6]"


@pytest.mark.usefixtures("one_isa")
def test_groups_whose_zero_points_onnxruntime_ignores(cache: Path, tmp_path: Path) -> None:
    """Verification names the node of which onnxruntime's CPU computes something else; the fragment is what the node means."""
    scattered = np.random.default_rng(2).permutation(64).astype(np.int32) // 16
    onnx.save(n_bits(4, 16, 64, {4: scattered, 3: whole(256, WIDE, 2)}), tmp_path / "model.onnx")
    out = tmp_path / "out"
    mi.optimize(tmp_path / "model.onnx", out, target="cpu", force=True, jobs=1, cache=str(cache))
    failed = [f for f in mi.verify(out).findings if not f.passed]
    assert [f.check for f in failed] == ["reference"]
    assert "something else than its nodes mean: MatMulNBits 'y'" in failed[0].text


@pytest.mark.parametrize(
    ("kind", "elements"),
    [(TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz), (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz)],
)
def test_numbers_of_other_ranges_are_not_read(kind: int, elements: Any) -> None:
    """Of the forms without a negative zero the same bits are other numbers: the type is named, and float64 has its meaning."""
    numbers = noise(DEEP, WIDE).astype(elements)
    stored = helper.make_tensor("q", kind, [DEEP, WIDE], numbers.tobytes(), raw=True)
    node = helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1)
    scales, x = 1 + abs(noise(WIDE)), noise(2, 3, DEEP)
    before = model(node, {"q": stored, "s": scales})
    (reason,) = read(before).reasons.values()
    assert reason == f"constant 'q' has element type {np.dtype(elements).name.replace('_', '')}, which is not read"
    (found,) = evaluate.run(before, {"x": x}).values()
    np.testing.assert_allclose(found, x @ (numbers.astype(np.float64) * scales), rtol=1e-6, atol=1e-6)
    cast = model(helper.make_node("Cast", ["q"], ["w"], to=TensorProto.FLOAT), {"q": stored})
    assert "fnuz" in next(iter(read(cast).reasons.values()))


@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
@pytest.mark.parametrize(("bits", "deep"), [(4, 64), (4, 56), (8, 64), (2, 64)])
def test_groups_that_have_not_as_many_as_a_block(bits: int, deep: int, zeros: str) -> None:
    """More than a block has, fewer, none; an infinite activation stays where it is."""
    draw = np.random.default_rng(3).permutation(deep)
    for group in (np.maximum(np.arange(deep) // 16, 1), draw % 3, np.minimum(draw // 9, 3), np.full(deep, 3)):
        others: dict[int, Tensor] = {4: group.astype(np.int32)}
        if zeros == "packed":
            others[3] = whole(256, WIDE, -(-4 * bits // 8))
        if zeros == "float":
            others[3] = (1 << bits - 1) + noise(WIDE, 4)
        given = n_bits(bits, 16, deep, others)
        x = noise(2, 3, deep)
        x[0, 0] = np.where(np.arange(deep) == 0, np.inf, 0)
        imported = read(given)
        assert "MatMulNBits" not in " ".join(imported.reasons.values())
        places = imported.model.graph.initializers["y/sorted/positions"].const_value.numpy()
        (ours,) = evaluation.run(imported, {"x": x}, {"y/sorted/activations": x[..., places]})
        (exact,) = evaluate.run(given, {"x": x}).values()
        assert np.allclose(ours, exact, rtol=1e-9, equal_nan=True)
        if bits == 4 and zeros != "packed":  # what onnxruntime has on CPUs, without rounding activations
            models = (ir.to_proto(imported.model), given)
            new, old = (sessions.run(sessions.session(m.SerializeToString()), {"x": x})["y"] for m in models)
            assert np.allclose(new, old, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
@pytest.mark.parametrize(("bits", "deep"), [(4, 80), (4, 100), (8, 66), (2, 80)])
def test_more_than_one_full_block_and_a_part(bits: int, deep: int, zeros: str) -> None:
    """The last block is filled up with activations that are 0; what the file has there does not matter."""
    blocks = -(-deep // 32)
    others: dict[int, Tensor] = {} if zeros == "none" else {3: whole(256, WIDE, -(-blocks * bits // 8))}
    if zeros == "float":
        others[3] = (1 << bits - 1) + noise(WIDE, blocks)
    given, x = n_bits(bits, 32, deep, others), noise(2, 3, deep)
    given.graph.node[0].attribute.append(helper.make_attribute("accuracy_level", 4))
    imported = read(given)
    places = imported.model.graph.initializers["y/sorted/positions"].const_value.numpy()
    (ours,) = evaluation.run(imported, {"x": x}, {"y/sorted/activations": x[..., places]})
    (exact,) = evaluate.run(given, {"x": x}).values()
    assert np.allclose(ours, exact, rtol=1e-9)
    rounds = any(isinstance(s, g.Input) and s.rounds for s in imported.graph.steps)
    assert rounds == (bits != 2 and zeros != "float")  # as the operator does, unlike beside groups
    if bits == 4:
        models = (ir.to_proto(imported.model), given)
        new, old = (sessions.run(sessions.session(m.SerializeToString()), {"x": x})["y"] for m in models)
        assert np.allclose(new, old, rtol=1e-5, atol=1e-5)


def test_a_part_of_a_block_of_an_unknown_weight() -> None:
    given = n_bits(4, 32, 80, {})
    given.graph.input.append(helper.make_tensor_value_info("q", TensorProto.UINT8, [WIDE, 3, 16]))
    assert list(read(given).reasons.values()) == [
        "blocks of 32, of which the last is not full, of a weight that the model does not hold"
    ]


@pytest.mark.parametrize(
    "name", ["int2", "uint2", "int4", "uint4", "int8", "uint8", "float8e4m3fn", "float8e5m2", "float4e2m1"]
)
@pytest.mark.parametrize(
    ("scales", "attributes"),
    [((), {}), ((WIDE,), {"axis": 1}), ((DEEP,), {"axis": -2}), ((4, WIDE), {"axis": 0, "block_size": 16})],
)
@pytest.mark.parametrize("zeros", [False, True])
def test_dequantized_weights(name: str, scales: tuple[int, ...], attributes: dict[str, int], zeros: bool) -> None:
    kind = getattr(TensorProto, name.upper())
    bits = 0 if name.startswith("float") else int(name.removeprefix("u").removeprefix("int"))
    low = 0 if name.startswith("u") else -(1 << bits - 1) if bits else -9
    high = low + (1 << bits) if bits else 10
    if zeros and name.startswith("float"):
        pytest.skip("floats have no zero points")

    def stored(label: str, dims: tuple[int, ...]) -> TensorProto:
        numbers = RANDOM.integers(low, high, dims).astype(helper.tensor_dtype_to_np_dtype(kind))
        return numpy_helper.from_array(numbers, label)

    weights: dict[str, Tensor | TensorProto] = {"q": stored("q", (DEEP, WIDE))}
    weights["s"] = (0.01 + RANDOM.random(scales) / 10).astype(np.float32)
    if zeros:
        weights["z"] = stored("z", scales)
    node = helper.make_node("DequantizeLinear", [*weights], ["w"], **attributes)
    given = model(node, weights)
    if name != "float4e2m1":
        agrees(given, x=noise(2, 3, DEEP))
        return
    given.opset_import[0].version = 23  # onnxruntime's CPU provider has no such operator
    x = {"x": noise(2, 3, DEEP)}
    (ours,), (exact,) = evaluation.run(read(given), x), evaluate.run(given, x).values()
    assert np.allclose(ours, exact, rtol=1e-9)


def rounded_weights(given: onnx.ModelProto) -> set[str]:
    """The weights whose products round what they multiply, as the reader says."""
    return {s.name for s in read(given).graph.steps if isinstance(s, g.Input) and s.rounds}


def differ(one: onnx.ModelProto, other: onnx.ModelProto) -> bool:
    """Whether onnxruntime's results differ by more than float32's last bits."""
    x = {"x": noise(2, 3, one.graph.input[0].type.tensor_type.shape.dim[-1].dim_value)}
    y, z = (sessions.run(sessions.session(m.SerializeToString()), x)["y"] for m in (one, other))
    return bool(np.abs(y - z).max() > 1e-4 * np.abs(y).max())


@pytest.mark.parametrize(("bits", "size"), [(4, 16), (4, 32), (4, 256), (8, 32), (2, 64)])
@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
def test_activations_round_where_onnxruntime_rounds_them(bits: int, size: int, zeros: str) -> None:
    """Beside numbers of 2 bits it does in some blocks."""
    others: dict[int, Tensor] = {3: whole(256, WIDE, -(-512 // size * bits // 8))} if zeros == "packed" else {}
    if zeros == "float":
        if bits == 8:
            pytest.skip("onnxruntime has no zero points that are numbers for 8 bits")
        others[3] = (8 + noise(WIDE, 512 // size)).astype(np.float32)
    exact = n_bits(bits, size, 512, others)
    rounding = onnx.ModelProto()
    rounding.CopyFrom(exact)
    rounding.graph.node[0].attribute.append(helper.make_attribute("accuracy_level", 4))
    assert rounded_weights(exact) == set()
    assert rounded_weights(rounding) == ({"q"} if bits != 2 and differ(exact, rounding) else set())
    assert (zeros != "float" and bits != 2) == bool(rounded_weights(rounding))


def test_activations_stay_where_a_weight_is_read_without_rounding_too() -> None:
    given = n_bits(4, 32, 64, {})
    other = given.graph.node.add()
    other.CopyFrom(given.graph.node[0])
    other.output[0] = "z"
    for node, level in zip(given.graph.node, (4, 4), strict=True):
        node.attribute.append(helper.make_attribute("accuracy_level", level))
    given.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["a", "b", WIDE]))
    assert rounded_weights(given) == {"q"}
    next(a for a in other.attribute if a.name == "accuracy_level").i = 1
    assert rounded_weights(given) == set()


def test_rows_that_are_looked_up_in_a_weight_change_no_rounding() -> None:
    """The embedding and the head of a decoder may be one tensor."""
    text = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float[a,64] x, int64[n] i) => (float[a,9] y, float[n,64] e) {
        y = com.microsoft.MatMulNBits <K = 64, N = 9, bits = 4, block_size = 32, accuracy_level = 4> (x, q, s)
        e = com.microsoft.GatherBlockQuantized <block_size = 32, bits = 4, quantize_axis = 1> (q, %s, s)
    }"""
    tensors = {"q": whole(256, 9, 32), "s": noise(9, 2)}
    assert rounded_weights(parsed(text % "i", **tensors)) == {"q"}
    assert rounded_weights(parsed(text % "known", **tensors, known=np.array([1, 2]))) == set()


@pytest.mark.parametrize(
    ("kind", "axis", "size"),
    [("int4", 0, 16), ("uint4", 0, 64), ("int4", 1, 16), ("int4", 0, 8), ("int8", 0, 16), ("uint8", 0, 32)],
)
def test_dequantized_weights_round_where_onnxruntime_makes_such_products(kind: str, axis: int, size: int) -> None:
    code = getattr(TensorProto, kind.upper())
    q = RANDOM.integers(0, 8, (64, 64)).astype(helper.tensor_dtype_to_np_dtype(code))
    scales = (0.1 + RANDOM.random([64 // size if k == axis else 64 for k in (0, 1)])).astype(np.float32)
    node = helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=axis, block_size=size)
    given = model(node, {"q": numpy_helper.from_array(q, "q"), "s": scales})
    given.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 64
    plain = model(node, {"q": numpy_helper.from_array(q, "q"), "s": scales})
    plain.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 64
    plain.graph.node.add(op_type="Neg", input=["w"], output=["n"])  # another reader: nothing is joined
    plain.graph.output.append(helper.make_tensor_value_info("n", TensorProto.FLOAT, [64, 64]))
    assert rounded_weights(plain) == set()
    assert rounded_weights(given) == ({"q"} if differ(given, plain) else set())


@pytest.mark.parametrize("dtype", PACKED.values(), ids=str)
def test_packing(dtype: Any) -> None:
    top = 1 << (dtype.bits - (not dtype.name.startswith("u")))
    numbers = np.arange(top - (1 << dtype.bits), top)
    assert np.array_equal(unpacked(packed(numbers, dtype), dtype), numbers)


def test_the_first_number_has_the_low_bits() -> None:
    assert unpacked(np.array([0x2F], np.uint8), U4).tolist() == [15, 2]
    assert unpacked(np.array([0x2F], np.uint8), I4).tolist() == [-1, 2]
    assert unpacked(np.array([0b11_10_01_00], np.uint8), U2).tolist() == [0, 1, 2, 3]


def test_packed_numbers_that_the_model_does_not_hold_are_left() -> None:
    given = n_bits(4, 16, 64, {})
    q = next(t for t in given.graph.initializer if t.name == "q")
    given.graph.input.append(helper.make_tensor_value_info("q", TensorProto.UINT8, q.dims))
    given.graph.initializer.remove(q)
    assert "that the model does not hold" in str(read(given).reasons)


TABLE = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> g (int64[a,b] i) => (float[a,b,32] y) {
    e = com.microsoft.GatherBlockQuantized <block_size = 16, bits = 4> (q, %s, s, z)
    y = LayerNormalization (e, gain)
}"""


@pytest.mark.parametrize("wanted", ["i", "p"])
def test_tables_in_blocks(wanted: str) -> None:
    """Rows that are known are a view, here in front of a norm; of others the type and dimensions are known."""
    tensors = {"q": whole(256, 9, 16), "s": noise(9, 2), "z": whole(256, 9, 1), "gain": noise(32)}
    given = parsed(TABLE % wanted, **tensors, p=np.array([[2, 3, 4], [5, 6, 7]]))
    if wanted == "p":
        agrees(given, i=np.zeros((2, 3), np.int64))
        return
    imported = read(given)
    assert list(imported.reasons.values()) == ["its indices are not known when the model is read"]
    assert str(imported.graph.tensors[imported.values["e"]]) == "f32[a, b, 32]"


HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> g (float[a,b,32] x, float[n,4] r)'
QUANTISED = "v, k, z = DynamicQuantizeLinear(x)"
#: products of activations in bytes: columns share a zero point or have their own, and scales likewise
DYNAMIC = {
    "apart": QUANTISED
    + "i = MatMulInteger(v, q, z) m = Mul(k, s) c = Cast <to = 1> (i) p = Mul(c, m) y = Add(p, bias)",
    "no zero": QUANTISED + "i = MatMulInteger(v, q) c = Cast <to = 1> (i) y = Mul(c, s)",
    "of columns": QUANTISED + "i = MatMulInteger(v, q, z, w) m = Mul(k, t) c = Cast <to = 1> (i) y = Mul(c, m)",
    "signed": QUANTISED + "i = MatMulInteger(v, n, z, one) m = Mul(k, t) c = Cast <to = 1> (i) y = Mul(c, m)",
    "joined": QUANTISED + "y = com.microsoft.MatMulIntegerToFloat (v, q, k, t, z, w, bias)",
    "whole": "y = com.microsoft.DynamicQuantizeMatMul (x, q, t, w, bias)",
    "back": QUANTISED + "y = DequantizeLinear(v, k, z)",
}


@pytest.mark.parametrize("form", DYNAMIC)
@pytest.mark.parametrize("range_", ["both", "positive", "negative", "zero", "-inf", "inf"])
def test_activations_in_bytes(form: str, range_: str) -> None:
    """Signed weights have 7 bits: of 8, pairs of products overflow in onnxruntime on AVX2 without VNNI."""
    weights = {"q": whole(256, 32, 32), "n": whole(128, 32, 32).astype(np.int8) - 64, "w": whole(256, 32)}
    weights |= {"one": np.array(-3, np.int8), "s": noise(1), "t": noise(32), "bias": noise(32)}
    text = f"{HEAD} => (float[a,b,32] y) {{ {DYNAMIC[form]} }}"
    x = noise(2, 3, 32)
    x = {"both": x, "positive": abs(x) + 1, "negative": -abs(x), "zero": 0 * x}.get(range_, x)
    if range_.endswith("inf"):
        x[0, 1] = float(range_)
    imported = agrees(parsed(text, **{k: v for k, v in weights.items() if k in DYNAMIC[form]}), x=x, r=noise(1, 4))
    assert not imported.reasons


def test_sums_of_integers_that_floats_do_not_hold_stay_with_what_scales_them() -> None:
    text = f"g (float[a,b,288] x) => (float[a,b,32] y, int32[a,b,32] i) {{ {DYNAMIC['apart']} }}"
    imported = read(parsed(text, opset=21, ir_version=10, q=whole(256, 288, 32), s=noise(32), bias=noise(32)))
    part = "it is a part of a product of integers, of which runtimes make one operator"
    sums = "sums of whole numbers that are not read as floats: float32 does not hold them all"
    assert [*imported.reasons.values()] == [sums, part, part, part]
    assert isinstance(imported.graph.steps[imported.values["y"]], g.Map)  # the bias is read


STAYS = {"com.microsoft.QMoE (x, r, e, t, , e, t)": ("which experts a row takes is chosen at run time", 32)}


@pytest.mark.parametrize("node", STAYS)
def test_results_of_what_stays_have_a_type(node: str) -> None:
    weights = {"e": whole(256, 4, 32, 16), "t": noise(4, 32)}
    text = f"{HEAD} => (float[a,b,c] y) {{ o = {node} y = Neg(o) }}"
    imported = read(parsed(text, **weights))
    reason, wide = STAYS[node]
    assert list(imported.reasons.values()) == [reason]
    assert str(imported.graph.tensors[imported.values["y"]]) == f"f32[a, b, {wide}]"
