"""Operators of graphs: what they mean to onnxruntime, that all of them become fragments, what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mirage_cli as mi
from mirage_cli.lax.dtypes import BF16, F16, F32, DType
from mirage_cli.runtime import sessions
from tests.python.cases import CASES, Case, arrays_of, graph_of, wanted
from tests.python.computing import by_onnxruntime, computed

NAMES = [c.name for c in CASES]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_meaning(case: Case) -> None:
    arrays = arrays_of(case)
    graph = graph_of(case)
    found = by_onnxruntime(graph, *arrays)
    np.testing.assert_allclose(found, wanted(case, arrays), rtol=2e-5, atol=2e-6)
    (output,) = graph.outputs
    assert (tuple(found.shape), output.dtype) == (output.dims, F32)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_small_types(case: Case, dtype: DType) -> None:
    arrays = arrays_of(case, dtype)
    graph = graph_of(case, dtype)
    found = by_onnxruntime(graph, *arrays)
    assert found.dtype == sessions.numpy_type(dtype)
    error = np.abs(found.astype(np.float64) - wanted(case, arrays)).max()
    assert error <= 8 * dtype.epsilon * max(1.0, np.abs(wanted(case, arrays)).max())


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_everything_is_a_fragment(case: Case) -> None:
    """Each operator becomes fragments, whose programs compute it."""
    arrays = arrays_of(case)
    (result,), _ = computed(graph_of(case), arrays)
    np.testing.assert_allclose(result, wanted(case, arrays), rtol=1e-6, atol=1e-7)


# --- what does not fit ------------------------------------------------------------------------------------------------
def _tensors(g: mi.KernelGraph) -> tuple[mi.Tensor, ...]:
    return g.new_input((3, 4), mi.float32, "a"), g.new_input((4, 5), mi.float32, "b")


WRONG: list[tuple[Callable[..., Any], str]] = [
    (lambda g, a, b: g.matmul(b, a), r"matmul: expected the last dimension of the first \(5\) and the last but one of"),
    (lambda g, a, b: g.matmul(a, 2), "matmul: expected tensors of two or more dimensions"),
    (
        lambda g, a, b: g.matmul(g.new_input((2, 3, 4), "float32"), g.new_input((3, 4, 5), "float32")),
        r"matmul: expected batch dimensions that are equal or 1, found input_1 f32\[2, 3, 4\] and input_2",
    ),
    (lambda g, a, b: a + b, r"add: expected dimensions that are equal or 1, .* found a f32\[3, 4\] and b f32\[4, 5\]"),
    (lambda g, a, b: g.mul(a, g.new_input((3, 4), "float16")), r"mul: expected operands of one type, found a f32\[3, 4\]"),
    (lambda g, a, b: g.add(1, 2), "add: expected a tensor among the operands, found numbers only"),
    (lambda g, a, b: g.exp("a"), "exp: expected a tensor of the graph, found str"),
    (lambda g, a, b: g.add(a, True), "add: expected a tensor of the graph, found bool"),
    (lambda g, a, b: mi.new_kernel_graph().exp(a), r"exp: a f32\[3, 4\] belongs to another graph"),
    (lambda g, a, b: g.new_input((2,), mi.float16) * 1e6, "mul: 1e[+]06 is beyond the range of float16"),
    (lambda g, a, b: g.reduction(a, 2), r"reduction: expected a dimension from -2 to 1 of a f32\[3, 4\], found 2"),
    (lambda g, a, b: g.softmax(a, "last"), "softmax: expected a dimension from -2 to 1"),
    (lambda g, a, b: g.gelu(a, "fast"), "gelu: expected approximate='none' or 'tanh', found 'fast'"),
    (lambda g, a, b: g.clamp(a), "clamp: expected min, max or both"),
    (lambda g, a, b: g.where(a, a, a), r"where: expected a condition of type bool, found a f32\[3, 4\]"),
    (lambda g, a, b: g.rms_norm(a, (3,)), r"rms_norm: expected a normalized_shape that ends the dimensions of a .* \[3\]"),
    (lambda g, a, b: g.rms_norm(a, weight=b), r"rms_norm: expected a weight and a bias with dimensions \[4\], found b"),
    (lambda g, a, b: g.layer_norm(g.new_input(("n",), "float32")), "layer_norm: expected a weight for dimensions without"),
    (lambda g, a, b: g.transpose(a, (0, 0)), r"transpose: expected each dimension of a .* once, found \[0, 0\]"),
    (lambda g, a, b: g.reshape(a, (5, -1)), r"reshape: expected as many elements as a f32\[3, 4\] has, found \[5, -1\]"),
    (lambda g, a, b: g.reshape(a, (-1, -1)), r"reshape: expected one -1 at most"),
    (lambda g, a, b: g.reshape(a, 12), r"reshape: expected dims such as \(64, 128\), found 12"),
    (lambda g, a, b: g.slice(a, 0, 3), "slice: 3:None:1 leaves nothing of dimension 0"),
    (lambda g, a, b: g.slice(a, 0, 0, 1, 0), "slice: expected numbers, the step a positive one"),
    (lambda g, a, b: g.slice(a, 1, None, None, -1), "found None:None:-1 of dimension 1 of a"),
    (lambda g, a, b: g.concat([a, b], 0), "concat: expected tensors that differ in dimension 0 only"),
    (lambda g, a, b: g.cast(a, "int8"), "dtype: expected float16, bfloat16, float32, bool, found 'int8'"),
    (lambda g, a, b: g.new_input((0, 4)), "input 'input_1': expected a dimension that is a positive number or a name"),
    (lambda g, a, b: g.new_input((2.5,)), "input 'input_1': expected a dimension that is a positive number"),
    (lambda g, a, b: g.new_input(4), r"input 'input_1': expected dims such as \(64, 128\), found 4"),
    (lambda g, a, b: g.new_input((4,), name="a"), "name: another tensor of the graph is called 'a'"),
    (lambda g, a, b: g.new_input((4,), name="1 a"), "name: expected letters, digits, _ and dots"),
    (lambda g, a, b: g.new_weight(np.zeros(3)), r"weight 'weight_1': expected elements of type .* found float64\[3\]"),
    (lambda g, a, b: g.new_weight([1.0]), "weight 'weight_1': expected an array, found list"),
    (lambda g, a, b: g.mark_output(a), "mark_output: expected the result of an operator, found the input or weight a"),
    (lambda g, a, b: g.mark_output(g.exp(a)) or g.mark_output(g.outputs[0]), "mark_output: exp_1 .* is an output already"),
    (lambda g, a, b: g.model(), "the graph computes nothing: add an operator"),
    (lambda g, a, b: mi.new_kernel_graph().model(), "the graph has no input: add one with new_input"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "message"), WRONG, ids=[m.partition(":")[0] + str(k) for k, (_, m) in enumerate(WRONG)]
)
def test_what_does_not_fit(build: Callable[..., Any], message: str) -> None:
    graph = mi.new_kernel_graph()
    tensors = _tensors(graph)
    with pytest.raises(mi.UsageError, match=message):
        build(graph, *tensors)


# --- graphs as objects ------------------------------------------------------------------------------------------------
def test_a_printed_graph() -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=("n", 8), dtype="bfloat16", name="x")
    w = graph.new_weight(np.ones((8, 4), ml_dtypes.bfloat16), name="w")
    y = graph.softmax(graph.rms_norm(x, weight=graph.new_weight(np.ones(8, ml_dtypes.bfloat16))) @ w) + 1
    graph.reshape(graph.clamp(y, max=2.5), (2, -1))
    assert str(graph).splitlines() == [
        "x bf16[n, 8] = input",
        "w bf16[8, 4] = weight",
        "weight_1 bf16[8] = weight",
        "rms_norm_1 bf16[n, 8] = rms_norm(x, weight=weight_1, eps=1e-05)",
        "matmul_1 bf16[n, 4] = matmul(rms_norm_1, w)",
        "softmax_1 bf16[n, 4] = softmax(matmul_1, dim=1)",
        "add_1 bf16[n, 4] = add(softmax_1, 1)",
        "clamp_1 bf16[n, 4] = clamp(add_1, None, 2.5)",
        "reshape_1 bf16[2, 2*n] = reshape(clamp_1, [2, 2*n])",
        "outputs reshape_1",
    ]
    assert repr(graph) == "<graph of 6 operators: (x bf16[n, 8]) -> (reshape_1 bf16[2, 2*n])>"
    assert repr(mi.new_kernel_graph()) == "<graph of 0 operators: () -> ()>"


def test_outputs() -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input((4,), np.float32)
    a, b = graph.exp(x), graph.relu(x)
    c = a + b
    d = graph.sqrt(x)
    assert graph.outputs == [c, d]
    graph.mark_output(d)
    graph.mark_output(a)
    assert graph.outputs == [d, a]
    assert [v.name for v in graph.model().graph.outputs] == [d.name, a.name]
    assert graph.inputs == [x]


def test_symbolic_dimensions() -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input(("batch", "length", 8), mi.float32)
    y = graph.reshape(x, ("batch", "length", 2, 4))
    z = graph.reshape(graph.transpose(y, (0, 2, 1, 3)), ("batch", 2, -1))
    assert [str(d) for d in z.dims] == ["batch", "2", "4*length"]
    array = np.arange(2 * 3 * 8, dtype=np.float32).reshape(2, 3, 8)
    found = by_onnxruntime(graph, array)
    assert np.array_equal(found, array.reshape(2, 3, 2, 4).transpose(0, 2, 1, 3).reshape(2, 2, 12))
    with pytest.raises(mi.UsageError, match="expected one named dimension at most"):
        graph.reshape(graph.transpose(y, (1, 2, 0, 3)), ("batch", "length", 2, 4))
    with pytest.raises(mi.UsageError, match="slice: expected numbers"):
        graph.slice(x, 0, 1)
    with pytest.raises(mi.UsageError, match="concat: expected tensors"):
        graph.concat([x, x], 0)
