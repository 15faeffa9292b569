"""Samples whose weights onnxruntime's quantiser packed: replaced as a whole, read as they are, as accurate as floats."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from mirage_cli import frontends
from mirage_cli.checks import whole_model
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.options.options import Options
from mirage_cli.runtime import sessions
from mirage_cli.verification.findings import VerifyOptions
from mirage_cli.verification.story import verify_folder
from tests.frontends.models import parsed
from tests.optimized import anew, sample

pytestmark = pytest.mark.usefixtures("one_isa")
PACKED = {"is_symmetric": True, "accuracy_level": 4}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "norm_gated_mlp": ("norm_gated_mlp_fp32", PACKED),
    "zero_points": ("rmsnorm_gain_linear_fp32", {"is_symmetric": False}),
    "lora": ("lora_fp32", {"is_symmetric": False}),
    "8_bits": ("rmsnorm_linear_fp32", {"bits": 8, "is_symmetric": True}),
    "half": ("rmsnorm_gain_linear_fp16", {"is_symmetric": True, "groups": True}),
    "int4": ("rmsnorm_linear_fp32", {"is_symmetric": True, "quant_format": QuantFormat.QDQ}),
    "uint4": ("rmsnorm_linear_fp32", {"is_symmetric": False, "quant_format": QuantFormat.QDQ}),
}

ROUNDED = (
    "norm_gated_mlp",
    "int4",
    "uint4",
)  #: whose activations onnxruntime rounds: at level 4, and where it joins two nodes
WEIGHTS = {"float8": (ml_dtypes.float8_e4m3fn, 1), "float4": (ml_dtypes.float4_e2m1fn, 1), "int2": (ml_dtypes.int2, 0)}


def quantized(name: str, path: Path, **how: Any) -> Path:
    """A sample with its matrices as weights, packed in blocks of 16, or in groups of 16 positions that lie anywhere."""
    groups = how.pop("groups", False)
    model = onnx.load(sample(name))
    random = np.random.default_rng(3)
    matrices = [v for v in model.graph.input if v.name[0] in "wab"]
    for v in matrices:
        dims = [d.dim_value for d in v.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
        model.graph.initializer.append(numpy_helper.from_array(random.standard_normal(dims).astype(kind), v.name))
        model.graph.input.remove(v)
    model.opset_import[0].version = 21
    quantizer = MatMulNBitsQuantizer(model, block_size=16, **how)
    quantizer.process()
    if groups:
        (product,) = (n for n in model.graph.node if n.op_type == "MatMulNBits")
        deep = next(a.i for a in product.attribute if a.name == "K")
        model.graph.initializer.append(
            numpy_helper.from_array(random.permutation(deep).astype(np.int32) // 16, "groups")
        )
        product.input.extend(["", "groups"])
    onnx.save(model, path)
    return path


def dequantized(path: Path, kind: Any, axis: int) -> Path:
    """A product with a weight that has a scale for each column, or for each row (onnxruntime joins nothing then)."""
    random = np.random.default_rng(5)
    q, scale = random.standard_normal((64, 48)), 0.1 + random.random((64, 48)[axis]).astype(np.float32)
    text = (
        "g (float[4,64] x) => (float[4,48] y)"
        f"{{ n = Relu(x) w = DequantizeLinear <axis = {axis}> (q, s) p = MatMul(n, w) y = Tanh(p) }}"
    )
    onnx.save(parsed(text, opset=25, ir_version=13, q=np.clip(q, -2, 1).astype(kind), s=scale), path)
    return path


@pytest.mark.parametrize("case", [*WEIGHTS, *CASES])
def test_replaced_as_packed(case: str, tmp_path: Path, cache: Path) -> None:
    path, out = tmp_path / "model.onnx", tmp_path / "out"
    if case in WEIGHTS:
        path = dequantized(path, *WEIGHTS[case])
    else:
        path = quantized(CASES[case][0], path, **CASES[case][1])
    report = anew(str(path), out, Options(target=("cpu",), force=True, jobs=1, cache=str(cache)))
    assert {f.name: f.reason for f in report.fragments if f.status != "replaced"} == {}
    assert report.coverage["flops"] == 1.0
    imported = frontends.load(str(path))
    random = np.random.default_rng(11)
    inputs = {
        v.name: random.standard_normal([int(d) for d in v.shape]).astype(v.dtype.numpy())
        for v in imported.model.graph.inputs
    }
    exact = whole_model.float64_run(imported, inputs)
    original = sessions.run(sessions.session(path.read_bytes()), inputs)
    patched = (out / MODEL).read_bytes()
    ours = sessions.run(sessions.session(patched, library=out / LIBRARY), inputs)
    for output, wanted in exact.items():
        assert error(ours[output], wanted) <= 2 * error(original[output], wanted) + 1e-6
        rounds = error(ours[output], wanted) > 1e-3
        assert rounds == (case in ROUNDED) and (not rounds or error(ours[output], original[output]) < 1e-4)
    assert any("to_bytes(" in f.read_text() for f in (out / "src").glob("*.cpp")) == (case in ROUNDED)
    assert weights(onnx.load_from_string(patched)) <= weights(onnx.load(path))  # nothing is unpacked
    if case in WEIGHTS or case == "norm_gated_mlp":
        assert verify_folder(out, VerifyOptions()).passed


def shared_products(source: Path) -> set[str]:
    """How the object of a kernel names the products that it shares: U for those that another one has."""
    built = source.with_suffix(".o")
    command = ["c++", "-std=c++17", "-O0", "-DMIRAGE_ISA=base", "-Iinclude", "-c", source.name, "-o", str(built)]
    subprocess.run(command, check=True, cwd=source.parent)
    named = subprocess.run(["nm", "-C", str(built)], check=True, capture_output=True, text=True).stdout
    built.unlink()
    return {line[17] for line in named.splitlines() if "shared_products<" in line}


@pytest.mark.parametrize("rows", [1, 40])
def test_activations_in_bytes(rows: int, tmp_path: Path, cache: Path) -> None:
    random = np.random.default_rng(5)
    quantised = "n = LayerNormalization (x, gain) v, k, z = DynamicQuantizeLinear (n) i = MatMulInteger (v, q, z, w)"
    scaled = "c = Cast <to = 1> (i) m = Mul (k, s) p = Mul (c, m) y = Add (p, bias)"
    text = f"g (float[{rows},64] x) => (float[{rows},80] y) {{ {quantised} {scaled} }}"
    tensors = {"gain": 64, "s": 80, "bias": 80}
    weights = {name: random.random(n).astype(np.float32) for name, n in tensors.items()}
    weights |= {name: random.integers(0, 256, dims).astype(np.uint8) for name, dims in (("q", (64, 80)), ("w", (80,)))}
    path, out = tmp_path / "model.onnx", tmp_path / "out"
    onnx.save(parsed(text, opset=21, ir_version=10, **weights), path)
    report = anew(str(path), out, Options(target=("cpu",), force=True, jobs=1, cache=str(cache)))
    assert {f.name: f.reason for f in report.fragments if f.status != "replaced"} == {}
    assert report.coverage["nodes"] == 1.0
    x = {"x": random.standard_normal((rows, 64)).astype(np.float32)}
    (exact,) = whole_model.float64_run(frontends.load(str(path)), x).values()
    original = sessions.run(sessions.session(path.read_bytes()), x)["y"]
    ours = sessions.run(sessions.session((out / MODEL).read_bytes(), library=out / LIBRARY), x)["y"]
    assert error(ours, exact) <= 2 * error(original, exact) + 1e-6
    sources = [f for f in (out / "src").glob("*.cpp") if "in_levels(" in f.read_text()]
    assert sources
    assert {kind for f in sources for kind in shared_products(f)} == ({"U"} if rows > 16 else set())
    assert verify_folder(out, VerifyOptions()).passed


def test_quantize_dynamic_with_symbols(tmp_path: Path, cache: Path) -> None:
    """What onnxruntime's own quantiser makes of rows whose number is a symbol, on inputs of all kinds: a whole tensor of -inf
    has another zero point than one with a few."""
    random = np.random.default_rng(5)
    weights = {n: random.standard_normal(d).astype(np.float32) for n, d in (("w", (32, 48)), ("b", (48,)))}
    text = "g (float[batch,seq,32] x) => (float[batch,seq,48] y) { m = MatMul (x, w) a = Add (m, b) y = Tanh (a) }"
    onnx.save(parsed(text, opset=17, ir_version=8, **weights), tmp_path / "float.onnx")
    path, out = tmp_path / "model.onnx", tmp_path / "out"
    quantize_dynamic(tmp_path / "float.onnx", path, weight_type=QuantType.QUInt8)  # signed ones overflow without VNNI
    report = anew(str(path), out, Options(target=("cpu",), force=True, jobs=1, cache=str(cache)))
    assert {f.name: f.reason for f in report.fragments if f.status != "replaced"} == {}
    assert report.coverage["nodes"] == 1.0
    original = sessions.session(path.read_bytes())
    ours = sessions.session((out / MODEL).read_bytes(), library=out / LIBRARY)
    for batch, seq, low in ((1, 1, 0.0), (2, 9, 0.0), (3, 40, -3.0), (2, 5, -np.inf), (0, 4, 0.0)):
        x = random.standard_normal((batch, seq, 32)).astype(np.float32) * (1.0 + abs(low) if low > -9 else 1.0)
        x = x if low > -9 else np.full_like(x, low)
        wanted, found = (sessions.run(s, {"x": x})["y"] for s in (original, ours))
        np.testing.assert_allclose(found, wanted, atol=2e-6, rtol=0)


def error(found: Any, wanted: Any) -> float:
    """The root mean square error beside the size of what is wanted."""
    return float(np.sqrt(np.mean((found.astype(np.float64) - wanted) ** 2) / np.mean(wanted**2)))


def weights(model: onnx.ModelProto) -> int:
    """Bytes of a model's weights."""
    return sum(len(t.raw_data) for t in model.graph.initializer)


def test_what_onnxruntime_joins_is_not_taken_apart_by_force(tmp_path: Path, cache: Path) -> None:
    random = np.random.default_rng(5)
    steps = "n = LayerNormalization (x, gain) w = DequantizeLinear <axis = 0, block_size = 16> (q, s) y = MatMul(n, w)"
    q, s, gain = random.integers(-8, 8, (256, 256)).astype(np.int8), random.random((16, 256)), random.random(256)
    weights = {"q": q, "s": s.astype(np.float32), "gain": gain.astype(np.float32)}
    model = parsed(f"g (float[rows,256] x) => (float[rows,256] y) {{ {steps} }}", opset=21, ir_version=10, **weights)
    onnx.save(model, tmp_path / "model.onnx")
    file = tmp_path / "cpu.yaml"  # a CPU on which onnxruntime multiplies slowly, and starts an operator at once
    file.write_text("{name: cpu, kernel_us: 0, cpu: {library_rate: 0.2, library_step: 0, library_bandwidth: 9}}")
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(cache), dry_run=True, target_file=str(file))
    options = replace(options, dim=("rows=1:64:128",))
    (fragment,) = anew(str(tmp_path / "model.onnx"), tmp_path / "out", options).fragments
    assert fragment.status == "kept" and "on cpu at rows 1:" in fragment.reason
    assert fragment.reason.endswith("(onnxruntime makes one product of it)")


@pytest.mark.parametrize("force", [False, True])
def test_products_between_quantised_tensors_stay(force: bool, tmp_path: Path, cache: Path) -> None:
    """What `quantize_static` writes: a CPU has one operator of integers of the three, and kernels of floats made it 1.6 times
    as long beside what was left."""
    random = np.random.default_rng(5)
    floats = {"w": (256, 512), "b": (512,), "v": (512, 256)}
    weights = {name: random.standard_normal(dims).astype(np.float32) for name, dims in floats.items()}
    text = "g (float[rows,256] x) => (float[rows,256] y) { m = MatMul (x, w) a = Add (m, b) r = Relu (a) y = MatMul (r, v) }"
    onnx.save(parsed(text, opset=17, ir_version=8, **weights), tmp_path / "float.onnx")
    path = tmp_path / "model.onnx"
    quantize_static(tmp_path / "float.onnx", path, Rows([random.standard_normal((4, 256)).astype(np.float32)]))
    options = Options(target=("cpu",), force=force, jobs=1, cache=str(cache), dry_run=True, dim=("rows=1:1:1",))
    fragments = anew(str(path), tmp_path / "out", options).fragments
    assert {f.reason for f in fragments} == {"onnxruntime computes its product in integers of 8 bits on CPUs"}
    cuda = replace(options, target=("cuda",), arch=("sm_90a",), force=True)
    assert {f.status for f in anew(str(path), tmp_path / "out", cuda).fragments} == {"replaced"}


class Rows(CalibrationDataReader):  # type: ignore[misc]
    """Inputs to calibrate with, one after the other."""

    def __init__(self, inputs: list[np.ndarray[Any, Any]]) -> None:
        self.inputs = iter(inputs)

    def get_next(self) -> dict[str, Any] | None:
        """The next one."""
        return next(({"x": x} for x in self.inputs), None)


def test_packed_products_stay_on_gpus_where_prompts_that_are_asked_for_would_lose(tmp_path: Path, cache: Path) -> None:
    """A runtime unpacks weights for many rows; what gains at a decoder's steps is not to lose there."""
    random = np.random.default_rng(5)
    b, scales = random.integers(0, 256, (1024, 32, 16), np.uint8), random.random((1024, 32)).astype(np.float16)
    steps = "y = com.microsoft.MatMulNBits <K = 1024, N = 1024, bits = 4, block_size = 32> (x, b, s)"
    text = f"g (float16[rows,1024] x) => (float16[rows,1024] y) {{ {steps} }}"
    onnx.save(parsed(text, opset=21, ir_version=10, b=b, s=scales), tmp_path / "model.onnx")
    options = Options(
        target=("cuda",), arch=("sm_90a",), jobs=1, cache=str(cache), dry_run=True, dim=("rows=1:1:1024",)
    )
    (fragment,) = anew(str(tmp_path / "model.onnx"), tmp_path / "out", options).fragments
    assert fragment.status == "kept" and "on sm_90a at rows " in fragment.reason
    assert fragment.predicted_us is not None and fragment.original_us is not None
    assert fragment.predicted_us < fragment.original_us  # of one row
