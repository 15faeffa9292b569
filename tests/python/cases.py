"""Every operator of the graph interface beside numpy's in float64, on small inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax.dtypes import BOOL, F32, DType
from mirage_cli.python.kernel_graph import KernelGraph, new_kernel_graph
from mirage_cli.python.recording import Tensor
from mirage_cli.runtime.sessions import numpy_type

Array = NDArray[Any]
X, Y, ROW, COLUMN = (3, 4, 8), (3, 4, 8), (8,), (4, 1)


@dataclass(frozen=True)
class Case:
    """An operator on inputs of some shapes; `build` and `numpy` take the graph's tensors and the arrays."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    build: Callable[..., Tensor]
    numpy: Callable[..., Array]
    positive: bool = False
    masked: bool = False  #: whether the first input is a tensor of bool


def softmax(x: Array, dim: int = -1) -> Array:
    e = np.exp(x - x.max(dim, keepdims=True))
    return np.asarray(e / e.sum(dim, keepdims=True))


def gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


def gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def rms(x: Array, axes: Any = -1, eps: float = 1e-5) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axes, keepdims=True) + eps))


def layer(x: Array, axes: Any = -1, eps: float = 1e-5) -> Array:
    return np.asarray((x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps))


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def unary(name: str, build: Callable[..., Tensor], numpy: Callable[..., Array], positive: bool = False) -> Case:
    return Case(name, (X,), build, numpy, positive)


def binary(name: str, build: Callable[..., Tensor], numpy: Callable[..., Array], positive: bool = False) -> Case:
    return Case(name, (X, COLUMN), build, numpy, positive)


CASES = [
    Case("matmul", ((3, 4, 8), (8, 5)), lambda g, a, b: g.matmul(a, b), np.matmul),
    Case("matmul-batched", ((2, 1, 4, 8), (3, 8, 5)), lambda g, a, b: a @ b, np.matmul),
    unary("reduction", lambda g, a: g.reduction(a, 1), lambda x: x.sum(1, keepdims=True)),
    unary("reduction-last", lambda g, a: g.reduction(a, -1, keepdim=False), lambda x: x.sum(-1)),
    unary("mean", lambda g, a: g.mean(a, 0), lambda x: x.mean(0, keepdims=True)),
    unary("exp", lambda g, a: g.exp(a), np.exp),
    unary("log", lambda g, a: g.log(a), np.log, positive=True),
    unary("sqrt", lambda g, a: g.sqrt(a), np.sqrt, positive=True),
    unary("square", lambda g, a: g.square(a), np.square),
    unary("neg", lambda g, a: -a, np.negative),
    unary("abs", lambda g, a: g.abs(a), np.abs),
    unary("tanh", lambda g, a: g.tanh(a), np.tanh),
    unary("sigmoid", lambda g, a: g.sigmoid(a), sigmoid),
    unary("relu", lambda g, a: g.relu(a), lambda x: np.maximum(x, 0)),
    unary("silu", lambda g, a: g.silu(a), lambda x: x * sigmoid(x)),
    unary("gelu", lambda g, a: g.gelu(a), gelu),
    unary("gelu-tanh", lambda g, a: g.gelu(a, approximate="tanh"), gelu_tanh),
    unary("clamp", lambda g, a: g.clamp(a, -0.5, 0.75), lambda x: np.clip(x, -0.5, 0.75)),
    unary("clamp-above", lambda g, a: g.clamp(a, max=0.25), lambda x: np.minimum(x, 0.25)),
    binary("add", lambda g, a, b: g.add(a, b), np.add),
    binary("sub", lambda g, a, b: a - b, np.subtract),
    binary("mul", lambda g, a, b: g.mul(b, a), np.multiply),
    binary("div", lambda g, a, b: a / b, np.divide, positive=True),
    binary("pow", lambda g, a, b: a**b, np.power, positive=True),
    binary("minimum", lambda g, a, b: g.minimum(a, b), np.minimum),
    binary("maximum", lambda g, a, b: g.maximum(a, b), np.maximum),
    unary("numbers", lambda g, a: 1 - 2 * a / 3 + (0.5 + a) * 4, lambda x: 1 - 2 * x / 3 + (0.5 + x) * 4),
    unary("over", lambda g, a: 2 / a - (a - 1), lambda x: 2 / x - (x - 1), positive=True),
    binary("less", lambda g, a, b: g.where(g.less(a, b), a, 1.0), lambda x, y: np.where(x < y, x, 1.0)),
    binary("equal", lambda g, a, b: g.where(g.equal(a, b), 1.0, a), lambda x, y: np.where(x == y, 1.0, x)),
    binary("less-equal", lambda g, a, b: g.where(g.less_equal(a, b), a, b), lambda x, y: np.minimum(x, y + 0 * x)),
    Case("where", (X, X, ROW), lambda g, m, a, b: g.where(m, a, b), np.where, masked=True),
    Case("mask", ((4, 8), X), lambda g, m, a: g.mask(a, m, -3.0), lambda m, x: np.where(m, x, -3.0), masked=True),
    unary("softmax", lambda g, a: g.softmax(a), softmax),
    unary("softmax-1", lambda g, a: g.softmax(a, dim=1), lambda x: softmax(x, 1)),
    unary("rms-norm", lambda g, a: g.rms_norm(a, (8,)), rms),
    unary("rms-norm-2", lambda g, a: g.rms_norm(a, (4, 8), eps=0.1), lambda x: rms(x, (-2, -1), 0.1)),
    Case("rms-norm-weight", (X, ROW), lambda g, a, w: g.rms_norm(a, weight=w), lambda x, w: rms(x) * w),
    unary("layer-norm", lambda g, a: g.layer_norm(a), layer),
    Case(
        "layer-norm-weight-bias",
        (X, (4, 8), (4, 8)),
        lambda g, a, w, b: g.layer_norm(a, (4, 8), w, b, eps=1e-3),
        lambda x, w, b: layer(x, (-2, -1), 1e-3) * w + b,
    ),
    unary("transpose", lambda g, a: g.transpose(a), np.transpose),
    unary("transpose-axes", lambda g, a: g.transpose(a, (0, -1, 1)), lambda x: x.transpose(0, 2, 1)),
    unary("reshape", lambda g, a: g.reshape(a, (3, -1, 2, 2)), lambda x: x.reshape(3, -1, 2, 2)),
    unary("slice", lambda g, a: g.slice(a, -1, 1, 7, 2), lambda x: x[..., 1:7:2]),
    unary("slice-from", lambda g, a: g.slice(a, 1, -3), lambda x: x[:, -3:]),
    Case("concat", (X, Y), lambda g, a, b: g.concat([a, b], 1), lambda x, y: np.concatenate([x, y], 1)),
    unary("view-and-result", lambda g, a: g.transpose(g.exp(a)), lambda x: np.exp(x).T),
]


def graph_of(case: Case, dtype: DType = F32) -> KernelGraph:
    """A graph of the case's operator alone."""
    graph = new_kernel_graph()
    types = [BOOL if case.masked and k == 0 else dtype for k in range(len(case.shapes))]
    case.build(graph, *(graph.new_input(s, t) for s, t in zip(case.shapes, types, strict=True)))
    return graph


def arrays_of(case: Case, dtype: DType = F32) -> list[Array]:
    """Random inputs of a case."""
    random = np.random.default_rng(len(case.name))
    found = [random.standard_normal(s) for s in case.shapes]
    if case.positive:
        found = [np.abs(a) + 0.5 for a in found]
    return [a > 0 if case.masked and k == 0 else a.astype(numpy_type(dtype)) for k, a in enumerate(found)]


def wanted(case: Case, arrays: Sequence[Array]) -> Array:
    """What numpy makes of inputs in float64."""
    return case.numpy(*(a if a.dtype == bool else a.astype(np.float64) for a in arrays))
