"""Operators that the onnx package's node tests do not reach, and older forms: onnxruntime's answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage_cli.frontends.onnx.ops import READERS
from mirage_cli.frontends.onnx.ops.registry import MICROSOFT
from mirage_cli.lax.ir import graph as g
from tests.frontends.models import agrees, noise, parsed

HEAD = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>'
VECTORS: dict[str, Any] = {"gain": 1 + noise(8) / 8, "bias": noise(8)}
CONTRIBUTED = {
    "Gelu": ["com.microsoft.Gelu(x)"],
    "BiasGelu": ["com.microsoft.BiasGelu(x, bias)"],
    "FastGelu": ["com.microsoft.FastGelu(x)", "com.microsoft.FastGelu(x, bias)"],
    "QuickGelu": ["com.microsoft.QuickGelu(x)", "com.microsoft.QuickGelu <alpha = 1.0> (x)"],
    "FusedGemm": [
        'com.microsoft.FusedGemm <activation = "Relu", transB = 1, alpha = 0.5> (x, z, row)',
        'com.microsoft.FusedGemm <activation = "Tanh"> (x, zt)',
    ],
    "FusedMatMul": [
        "com.microsoft.FusedMatMul <transB = 1, alpha = 0.25> (x, z)",
        "com.microsoft.FusedMatMul <transA = 1> (x, x)",
    ],
    "SimplifiedLayerNormalization": ["SimplifiedLayerNormalization <axis = -1> (x, gain)"],
    "SkipLayerNormalization": [
        "com.microsoft.SkipLayerNormalization <epsilon = 1e-3> (cube, cube2, gain, bias)",
        "com.microsoft.SkipLayerNormalization (cube, cube2, gain, bias, bias)",
    ],
    "SkipSimplifiedLayerNormalization": ["com.microsoft.SkipSimplifiedLayerNormalization (cube, cube2, gain, bias)"],
}
CALLS = [(name, call) for name, calls in CONTRIBUTED.items() for call in calls]


#: operators that become a sum and another one when a model is read
APART = {
    "SkipLayerNormalization": "LayerNormalization",
    "SkipSimplifiedLayerNormalization": "SimplifiedLayerNormalization",
}
ELSEWHERE = {
    "Attention",
    "MultiHeadAttention",
    "GroupQueryAttention",
    "RotaryEmbedding",
    "DequantizeLinear",
    *("DynamicQuantizeMatMul", "GatherBlockQuantized", "MatMulIntegerToFloat", "MatMulNBits", "MoE", "QMoE"),
}  #: test_microsoft_attention.py, test_quantized.py


def test_every_contributed_operator_is_here() -> None:
    assert {name for domain, name in READERS if domain == MICROSOFT} == CONTRIBUTED.keys() - APART.keys() | ELSEWHERE


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_contributed_operators(name: str, call: str) -> None:
    cubes = "cube" in call
    inputs = "float[2,3,8] cube, float[2,3,8] cube2" if cubes else "float[4,8] x, float[4,8] z"
    text = f"{HEAD} g ({inputs}) => (float[{'a,b,c' if cubes else 'a,b'}] y) {{ y = {call} }}"
    first = noise(2, 3, 8) if cubes else noise(4, 8)
    names = ("cube", "cube2") if cubes else ("x", "z")
    weights = {"zt": noise(8, 3), "row": noise(4), **VECTORS}
    imported = agrees(parsed(text, **weights), **dict(zip(names, (first, first[::-1].copy()), strict=True)))
    assert [n.op_type for n in imported.model.graph if n.op_type != "Add"] == [APART.get(name, name)]


@pytest.mark.parametrize("folded", ["", "two = Constant <value_floats = [2.0]> () half = Reciprocal (two)"])
def test_outputs_of_a_skip_normalization(folded: str) -> None:
    text = f"""{HEAD} g (float[2,3,8] x, float[2,3,8] z) => (float[2,3,8] y, float[2,3,8] s) {{
        {folded} w = {"Mul (z, half)" if folded else "Identity (z)"}
        n, , , s = com.microsoft.SkipLayerNormalization (x, w, gain, bias) y = Neg (n)
    }}"""
    imported = agrees(parsed(text, **VECTORS), x=noise(2, 3, 8), z=noise(2, 3, 8)[::-1].copy())
    assert [len(n.outputs) for n in imported.model.graph if n.op_type == "LayerNormalization"] == [1]
    agrees(parsed(text, **VECTORS), x=noise(2, 3, 8), z=noise(2, 3, 8)[::-1].copy())


def test_a_convolution_with_one_kernel_element() -> None:
    text = "g (float[2,4,3,5] x) => (float[2,6,3,5] y) { y = Conv(x, w, b) }"
    agrees(parsed(text, w=noise(6, 4, 1, 1), b=noise(6)), x=noise(2, 4, 3, 5))
    agrees(parsed("g (float[n,4,l] x) => (float[n,6,l] y) { y = Conv(x, w) }", w=noise(6, 4, 1)), x=noise(2, 4, 7))


@pytest.mark.parametrize(
    ("kernel", "attributes", "dims"),
    [
        ((6, 4, 2, 3), "strides = [2, 3]", (2, 4, 4, 9)),  # patches
        ((6, 4, 2, 3), "strides = [3, 3]", (2, 4, 6, 9)),  # a part of each stride
        ((6, 4, 1, 1), "strides = [2, 3]", (2, 4, 5, 8)),  # single elements, the last ones not at the end
        ((6, 2, 2, 2), "strides = [2, 2], group = 2", (2, 4, 4, 6)),
        ((4, 1, 2, 2), "strides = [2, 2], group = 4", (2, 4, 4, 6)),  # every channel by itself
        ((6, 4, 3), 'strides = [3], auto_pad = "VALID"', (2, 4, 9)),
    ],
)
def test_convolutions_whose_windows_do_not_overlap(
    kernel: tuple[int, ...], attributes: str, dims: tuple[int, ...]
) -> None:
    text = f"g (float{list(dims)} x) => (float{[0] * len(dims)} y) {{ y = Conv <{attributes}> (x, w, b) }}"
    text = text.replace(str([0] * len(dims)), f"[{','.join('abcd'[: len(dims)])}]")
    imported = agrees(parsed(text, w=noise(*kernel), b=noise(kernel[0])), x=noise(*dims))
    assert sum(isinstance(step, g.Contract) for step in imported.graph.steps) == 1


def test_patches_of_symbolic_images() -> None:
    text = "g (float[n,4,l] x) => (float[n,6,m] y) { y = Conv <strides = [1]> (x, w) }"
    agrees(parsed(text, w=noise(6, 4, 1)), x=noise(2, 4, 7))
    text = "g (float[n,4,8] x) => (float[n,6,m] y) { y = Conv <strides = [4]> (x, w) }"
    agrees(parsed(text, w=noise(6, 4, 4)), x=noise(3, 4, 8))


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize(
    "operator",
    [f"Reduce{kind}" for kind in ("Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")],
)
@pytest.mark.parametrize("attributes", ["axes = [1]", "axes = [-1, 0], keepdims = 0", "keepdims = 0"])
def test_reductions_whose_axes_are_an_attribute(opset: int, operator: str, attributes: str) -> None:
    rank = 3 if "keepdims" not in attributes else 1 if "axes" in attributes else 0
    dims = f"[{','.join('abc'[:rank])}]" if rank else ""
    text = f"g (float[2,3,4] x) => (float{dims} y) {{ y = {operator} <{attributes}> (x) }}"
    agrees(parsed(text, opset=opset, ir_version=8), x=np.abs(noise(2, 3, 4)) + 0.5)


@pytest.mark.parametrize("opset", [13, 14, 15, 18])
def test_batch_normalization_at_every_form(opset: int) -> None:
    text = "g (float[2,4,3] x) => (float[2,4,3] y) { y = BatchNormalization <epsilon = 1e-3> (x, s, b, m, v) }"
    agrees(parsed(text, opset=opset, s=noise(4), b=noise(4), m=noise(4), v=noise(4) ** 2), x=noise(2, 4, 3))


@pytest.mark.parametrize(("opset", "parameters"), [(18, 2), (20, 2), (21, 4), (22, 4)])
def test_group_normalization_by_group_and_by_channel(opset: int, parameters: int) -> None:
    text = "g (float[2,4,3] x) => (float[2,4,3] y) { y = GroupNormalization <num_groups = 2> (x, s, b) }"
    agrees(parsed(text, opset=opset, s=1 + noise(parameters), b=noise(parameters)), x=noise(2, 4, 3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "double", "int32", "int64"])
def test_casts_that_change_numbers(dtype: str) -> None:
    codes = {"float16": 10, "bfloat16": 16, "double": 11, "int32": 6, "int64": 7}
    text = f"g (float[2,4] x) => (float[2,4] y) {{ a = Cast <to = {codes[dtype]}> (x) y = Cast <to = 1> (a) }}"
    exact = np.array([[1.5, -2.5, 0.25, 3], [-0.75, 2, -8, 100]], np.float32)
    agrees(parsed(text), x=exact)
