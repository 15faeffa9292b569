"""What onnxruntime joins: counted here, and as the nodes of the model that it saves when it has done so."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from mirage_cli.runtime import fusions
from tests.frontends.models import parsed

X = "g (float[4,32] x) => "
INTEGERS = "v, k, z = DynamicQuantizeLinear(x) i = MatMulInteger(v, b, z) r = Mul(k, t) c = Cast <to = 1> (i)"
CASES = {
    "int4": f"{X}(float[4,16] y) {{ w = DequantizeLinear <axis = 0, block_size = 16> (q, s) y = MatMul(x, w) }}",
    "int8": f"{X}(float[4,16] y) {{ w = DequantizeLinear <axis = 1> (b, t) y = MatMul(x, w) }}",
    "silu": f"{X}(float[4,16] y) {{ m = MatMul(x, f) sig = Sigmoid(m) a = Mul(m, sig) n = MatMul(x, h) y = Mul(a, n) }}",
    "gate": f"{X}(float[4,16] y) {{ m = MatMul(x, f) n = MatMul(x, h) sig = Sigmoid(m) y = Mul(sig, n) }}",
    "gelu": f"{X}(float[4,32] y) {{ d = Div(x, root) e = Erf(d) o = Add(e, one) p = Mul(x, o) y = Mul(p, half) }}",
    "skip": "g (float[2,4,32] x) => (float[2,4,32] y) { u = Add(x, x) y = LayerNormalization <axis = -1> (u, gain) }",
    "norm": f"{X}(float[4,32] y) {{ a = Neg(x) u = Add(x, a) y = LayerNormalization <axis = -1> (u, gain) }}",
    "bias": f"{X}(float[4,16] y) {{ m = MatMul(x, f) y = Add(m, bias) }}",
    "integers": f"{X}(float[4,16] y) {{ {INTEGERS} o = Mul(c, r) y = Add(o, bias) }}",
    "shared": f"{X}(float[4,16] y, uint8[4,32] v) {{ {INTEGERS} y = Mul(r, c) }}",
    "sum": f"{X}(float[4,32] y) {{ a = Neg(x) y = Add(x, a) }}",
}


def model_of(case: str) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    floats = {"f": (32, 16), "h": (32, 16), "s": (2, 16), "t": (16,), "gain": (32,), "bias": (16,)}
    weights = {name: random.random(shape).astype(np.float32) for name, shape in floats.items()}
    weights |= {name: np.float32(x) for name, x in (("root", 2**0.5), ("one", 1), ("half", 0.5))}
    weights["q"] = random.integers(-8, 8, (32, 16)).astype(ml_dtypes.int4)
    weights["b"] = random.integers(-8, 8, (32, 16)).astype(np.int8)
    names = {name for node in parsed(CASES[case]).graph.node for name in node.input}
    return parsed(CASES[case], opset=21, ir_version=10, **{n: w for n, w in weights.items() if n in names})


@pytest.mark.parametrize("case", CASES)
def test_as_many_operators_as_onnxruntime_runs(case: str, tmp_path: Path) -> None:
    model = model_of(case)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "joined.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    joined = onnx.load(tmp_path / "joined.onnx").graph.node
    assert fusions.launched(ir.from_proto(onnx.shape_inference.infer_shapes(model)).graph) == len(joined)


BYTES = "q1 = QuantizeLinear(x, one, zero) d = DequantizeLinear(q1, one, zero)"
WEIGHT = "w = DequantizeLinear <axis = 1> (b, t)"
TURNED = "r = Transpose <perm = [1, 0]> (q1) u = DequantizeLinear(r, one, zero)"
CENTRED = "w = DequantizeLinear <axis = 1> (b, t, z)"
OUT = "q2 = QuantizeLinear(m, one, zero) y = DequantizeLinear(q2, one, zero)"
PRODUCTS = {
    "rounded": f"{X}(float[4,16] y) {{ {BYTES} {WEIGHT} m = MatMul(d, w) {OUT} }}",
    "sums": f"{X}(float[4,16] y) {{ {BYTES} {WEIGHT} y = MatMul(d, w) }}",
    "both": f"{X}(float[4,4] y) {{ {BYTES} {TURNED} y = MatMul(d, u) }}",
    "gemm": f"{X}(float[4,16] y) {{ {BYTES} {CENTRED} m = Gemm(d, w) {OUT} }}",
    "gemm_bias": f"{X}(float[4,16] y) {{ {BYTES} {CENTRED} m = Gemm(d, w, bias) {OUT} }}",
    "gemm_float": f"{X}(float[4,16] y) {{ {BYTES} {CENTRED} y = Gemm(d, w, bias) }}",
    "gemm_without_zero_points": f"{X}(float[4,16] y) {{ {BYTES} {WEIGHT} m = Gemm(d, w) {OUT} }}",
    "floats": f"{X}(float[4,16] y) {{ {BYTES} m = MatMul(d, f) {OUT} }}",
    "weights": f"{X}(float[4,16] y) {{ {WEIGHT} y = MatMul(x, w) }}",
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_products_that_onnxruntime_computes_in_bytes(case: str, tmp_path: Path) -> None:
    """Which they are, as the model says that it saves: those that are left have no product of floats."""
    random = np.random.default_rng(0)
    weights = {"b": random.integers(-8, 8, (32, 16)).astype(np.int8), "t": np.full(16, 0.1, np.float32)}
    weights |= {"z": np.zeros(16, np.int8), "bias": np.ones(16, np.float32)}
    weights |= {"f": random.random((32, 16)).astype(np.float32), "one": np.float32(0.1), "zero": np.uint8(128)}
    names = {name for node in parsed(PRODUCTS[case]).graph.node for name in node.input}
    model = parsed(PRODUCTS[case], opset=21, ir_version=10, **{n: w for n, w in weights.items() if n in names})
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "joined.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    kinds = {n.op_type for n in onnx.load(tmp_path / "joined.onnx").graph.node}
    read = ir.from_proto(onnx.shape_inference.infer_shapes(model)).graph
    assert fusions.multiplies_integers(read) == (not kinds & {"MatMul", "Gemm", "FusedMatMul", "MatMulNBits"}), kinds
