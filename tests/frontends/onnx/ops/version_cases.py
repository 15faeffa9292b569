"""One-node models for every operator that is read, at any opset: the operands and attributes of the form that it has there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.frontends.models import noise

Tensor = NDArray[Any]
INF = np.inf
EDGES = np.array([[-INF, -2.5, -1.0, -0.0], [0.0, 0.5, 3.0, INF], [np.nan, 1e-9, -1e9, 7.0]], np.float32)


@dataclass(frozen=True)
class Stored:
    """An operand that models store."""

    array: Tensor


@dataclass(frozen=True)
class Case:
    """A node: its operands (None: left out), how many outputs it has, its attributes."""

    inputs: tuple[Any, ...]
    outputs: int = 1
    attributes: dict[str, Any] = field(default_factory=dict)
    only_inside: bool = False  #: compared where all elements are finite, not at the edges


def case(*inputs: Any, outputs: int = 1, **attributes: Any) -> Case:
    return Case(inputs, outputs, attributes)


def s(*elements: Any) -> Stored:
    return Stored(np.array(elements, np.int64))


def bools(*shape: int) -> Tensor:
    return noise(*shape) > 0


X = noise(2, 3, 4)
Z = np.asarray(noise(7, 4)[3:6] + 0.25)
UP = np.abs(X) + 0.5
V3 = np.asarray(noise(3) / 4 + 1)
Cases = Callable[[int], list[Case]]


def always(*cases: Case) -> Cases:
    return lambda _: list(cases)


def _axes_form(since: int) -> Callable[..., Cases]:
    """Cases of an operator whose axes are an attribute before an opset and then an input."""

    def made(x: Tensor, *axes: Sequence[int], **attributes: Any) -> Cases:
        def cases(opset: int) -> list[Case]:
            if opset < since:
                return [case(x, axes=[a if opset >= 11 else a % x.ndim for a in ax], **attributes) for ax in axes]
            return [case(x, s(*ax), **attributes) for ax in axes]

        return cases

    return made


def _both(*parts: Cases) -> Cases:
    return lambda opset: [c for part in parts for c in part(opset)]


def _reduction(since: int, x: Tensor = X) -> Cases:
    form = _axes_form(since)
    empty = [case(x, None, noop_with_empty_axes=1)]
    return _both(
        form(x, [1], [-1, 0]),
        form(x, [-2], keepdims=0),
        always(case(x), case(x, keepdims=0)),
        lambda opset: empty if opset >= since else [],
    )


def _clip(opset: int) -> list[Case]:
    if opset < 11:
        return [case(EDGES), case(EDGES, min=-0.5), case(EDGES, max=0.75), case(X, min=-0.5, max=0.5)]
    low, high = Stored(np.float32(-0.5)), Stored(np.float32(0.75))
    return [case(EDGES), case(EDGES, low), case(EDGES, None, high), case(X, low, high), case(X, np.float32(0))]


def _dropout(opset: int) -> list[Case]:
    if opset < 12:
        return [case(X), case(X, ratio=0.25), case(X, outputs=2)]
    return [case(X), case(X, Stored(np.float32(0.25))), case(X, outputs=2), case(X, None, Stored(np.array(False)))]


def _slice(opset: int) -> list[Case]:
    if opset < 10:
        return [
            case(X, starts=[1, 0], ends=[3, -1], axes=[1, 2]),
            case(X, starts=[0, 1], ends=[1, 1000]),
            case(X, starts=[-2], ends=[2**31], axes=[2]),
        ]
    return [
        case(X, s(1, 0), s(3, -1), s(1, 2)),
        case(X, s(0, 1), s(1, 1000)),
        case(X, s(-1), s(-1000), s(2), s(-1)),
        case(X, s(-2), s(2**31), s(2), None),
    ]


def _split(opset: int) -> list[Case]:
    if opset < 13:
        return [case(X, outputs=2, axis=2), case(X, outputs=3, axis=2, split=[1, 2, 1]), case(X, outputs=2)]
    cases = [case(X, s(1, 2, 1), outputs=3, axis=-1)]
    if opset < 18:
        return [*cases, case(X, outputs=2, axis=2), case(X, outputs=2)]
    return [*cases, case(X, outputs=2, axis=1, num_outputs=2), case(X, outputs=3, axis=-1, num_outputs=3)]


def _squeeze(opset: int) -> list[Case]:
    x = noise(1, 3, 1, 4)
    return [case(x), *_axes_form(13)(x, [0], [0, 2], [-2])(opset)]


def _unsqueeze(opset: int) -> list[Case]:
    if opset < 13:
        return [case(X, axes=[0, 3]), *([case(X, axes=[-1])] if opset >= 11 else [])]
    return [case(X, s(0, 3)), case(X, s(-1))]


def _softmax(opset: int) -> list[Case]:
    cases = [case(X), case(X, axis=1), case(X, axis=2), case(X, axis=0), case(noise(5, 1, 3))]
    return cases if opset < 11 else [*cases, case(X, axis=-2)]


def _batch_normalization(opset: int) -> list[Case]:
    statistics = (V3, noise(3), noise(3) / 2, np.abs(V3))
    cases = [case(X, *statistics), case(X, *map(Stored, statistics), epsilon=1e-3)]
    return [*cases, case(X, *statistics, spatial=1)] if opset < 9 else cases


def _gemm(opset: int) -> list[Case]:
    a, b, c = noise(3, 4), noise(5, 4), noise(5)
    cases = [case(a, b, c, transB=1, alpha=0.5, beta=2.0), case(a.T.copy(), b, noise(3, 1), transA=1, transB=1)]
    return [*cases, case(a, b, transB=1)] if opset >= 11 else cases


def _group_normalization(opset: int) -> list[Case]:
    x = noise(2, 4, 3)
    n = 2 if opset < 21 else 4
    return [case(x, noise(n) + 1, noise(n), num_groups=2), case(x, noise(n) + 1, noise(n), num_groups=2, epsilon=0.5)]


def _attention(opset: int) -> list[Case]:
    q, k, v = noise(2, 4, 3, 8), noise(2, 2, 5, 8), noise(2, 2, 5, 6)
    flat = {"q_num_heads": 2, "kv_num_heads": 1}
    past = (noise(2, 2, 4, 8), noise(2, 2, 4, 6))
    return [
        case(q, k, v),
        case(q, k, v, noise(3, 5), scale=0.5, softcap=2.0),
        case(q, k, v, is_causal=1),
        case(noise(2, 3, 16), noise(2, 5, 8), noise(2, 5, 6), **flat),
        case(q, k, v, None, *past, outputs=3),
        case(q, k, v, bools(3, 9), *past, outputs=3, is_causal=1),
    ]


def _cast(opset: int) -> list[Case]:
    numbers = np.array([[1.5, -2.5, 0.25], [-0.75, 100, 3]], np.float32)
    types = [1, 6, 7, 9, 10, 11] + ([16] if opset >= 13 else [])
    return [
        *(case(numbers, to=t) for t in types),
        *(case(np.array([0, 3, -5], np.int64), to=t) for t in (1, 6, 9)),
        case(np.array([True, False]), to=1),
    ]


def _constant(opset: int) -> list[Case]:
    tensor = numpy_helper.from_array(X)
    forms: list[dict[str, Any]] = [{"value": tensor}]
    if opset >= 12:
        forms += [{"value_float": 2.5}, {"value_floats": [1.0, 2.0]}, {"value_int": 3}, {"value_ints": [4, 5]}]
    return [Case((), 1, form) for form in forms]


def _layer_normalization(opset: int) -> list[Case]:
    first = case(X, noise(4), noise(4))
    return [first, case(X, noise(3, 4), axis=1, epsilon=0.1), case(X, noise(4), outputs=3)]


def _pow(opset: int) -> list[Case]:
    exponents = [2.0, 3.0, 0.5, -0.5, -1.0, 1.0, 0.0, 4.0, -2.0]
    cases = [case(EDGES, Stored(np.float32(e))) for e in exponents]
    cases += [case(UP, noise(4)), case(UP, Stored(np.full((1, 4), 2, np.float32)))]
    if opset >= 12:
        cases += [case(UP, Stored(np.array(2, np.int64))), case(np.array([2, -3], np.int64), Stored(np.array(2)))]
    return cases


def _scatter_nd(_: int) -> list[Case]:
    return [case(noise(5, 4), s([1], [3]), noise(2, 4) + 1)]


def _reshape(opset: int) -> list[Case]:
    return [case(X, s(0, -1)), case(X, s(4, 6)), *([case(X, s(4, 6), allowzero=1)] if opset >= 14 else [])]


def _shape(opset: int) -> list[Case]:
    return [case(X), *([case(X, start=1), case(X, start=-2, end=-1)] if opset >= 15 else [])]


def _depth_to_space(opset: int) -> list[Case]:
    x = noise(1, 8, 2, 3)
    modes = [{"mode": m} for m in ("DCR", "CRD")] if opset >= 11 else []
    return [case(x, blocksize=2), *(case(x, blocksize=2, **m) for m in modes)]


def _mean_variance(_: int) -> list[Case]:
    x = noise(2, 3, 4, 5)
    x[:, 1] = 2.0
    return [case(x), case(x, axes=[1, 3])]


def _variadic(opset: int) -> list[Case]:
    same = [case(X), case(X, X[::-1].copy()), case(X, X * 2, X[:, ::-1].copy())]
    return [*same, case(X, V3.reshape(3, 1), noise(4))] if opset >= 8 else same


def _rotary(_: int) -> list[Case]:
    cos, sin = noise(6, 4), noise(6, 4) + 1
    ids = s([0, 1, 2], [1, 2, 3])
    return [
        case(noise(2, 2, 3, 8), cos, sin, ids),
        case(noise(2, 3, 16), cos, sin, ids, num_heads=2, interleaved=1),
        case(noise(2, 2, 3, 8), noise(2, 3, 2), noise(2, 3, 2) + 1, rotary_embedding_dim=4),
    ]


def _is_inf(_: int) -> list[Case]:
    return [case(EDGES), case(EDGES, detect_negative=0), case(EDGES, detect_positive=0)]


UNARY = (
    *("Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Mish"),
    *("Neg", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
    *("Celu", "Gelu", "Shrink", "Swish"),
)


def _dequantize(opset: int) -> list[Case]:
    numbers = np.arange(24, dtype=np.uint8).reshape(2, 3, 4) * 9
    cases = [case(numbers, np.float32(0.5)), case(numbers.astype(np.int8), np.float32(0.5), np.int8(7))]
    if opset >= 13:
        cases.append(case(numbers, V3.astype(np.float32), np.array([1, 100, 255], np.uint8), axis=-2))
    return cases + [case(numbers, UP[:, :, :2], axis=2, block_size=2)] * (opset >= 21)


BINARY = ("Add", "Sub", "Mul", "Div")
COMPARISONS = ("Less", "Greater", "LessOrEqual", "GreaterOrEqual")
CASES: dict[str, Cases] = {
    **{op: always(case(X)) for op in UNARY},
    **{op: always(case(UP)) for op in ("Log", "Sqrt", "Reciprocal")},
    **{op: always(case(X, Z + 2), case(X, V3.reshape(3, 1)), case(np.float32(2), UP)) for op in BINARY},
    **{op: always(case(X, Z), case(EDGES, noise(4))) for op in COMPARISONS},
    **{op: always(case(bools(2, 3), bools(3))) for op in ("And", "Or", "Xor")},
    **dict.fromkeys(("Min", "Max", "Sum", "Mean"), _variadic),
    **{
        f"Reduce{kind}": _reduction(18, UP if "Log" in kind else X)
        for kind in ("Max", "Min", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    },
    "ReduceSum": _reduction(13),
    "Not": always(case(bools(2, 3))),
    "Equal": always(case(np.arange(6).reshape(2, 3), np.array([0, 4, 2]))),
    "Where": always(case(bools(3, 1), X, Z)),
    "Pow": _pow,
    "PRelu": always(case(X, np.abs(V3).reshape(3, 1)), case(X, Stored(noise(4)))),
    "Clip": _clip,
    "IsNaN": always(case(EDGES)),
    "IsInf": _is_inf,
    "Cast": _cast,
    "CastLike": always(case(X, np.zeros(1, np.int64)), case(np.arange(4), np.zeros(1, np.float32))),
    "SwiGLU": always(case(X, X[::-1].copy())),
    "Dropout": _dropout,
    "Transpose": always(case(X), case(X, perm=[1, 0, 2])),
    "Reshape": _reshape,
    "Flatten": lambda opset: [case(X), case(X, axis=0), case(X, axis=3), *([case(X, axis=-1)] if opset >= 11 else [])],
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Expand": always(case(noise(3, 1), s(2, 1, 4))),
    "Tile": always(case(X, s(1, 2, 3))),
    "Concat": lambda opset: [case(X, X, axis=1), *([case(X, X, axis=-1)] if opset >= 11 else [])],
    "Split": _split,
    "Slice": _slice,
    "Gather": lambda opset: [case(X, s(2, 0), axis=1), *([case(X, s([1, -1], [0, 2]), axis=-1)] if opset >= 11 else [])],
    "GatherElements": always(case(X, Stored(np.ones((2, 3, 4), np.int64)), axis=1)),
    "GatherND": always(case(X, s([0, 1], [1, 1]))),
    "ScatterND": _scatter_nd,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": always(case(noise(1, 2, 4, 6), blocksize=2)),
    "Shape": _shape,
    "Size": always(case(X)),
    "Constant": _constant,
    "ConstantOfShape": always(
        case(s(2, 3)), case(s(2), value=numpy_helper.from_array(np.array([3], np.int64)))
    ),
    "Range": always(case(*(Stored(np.array(n)) for n in (1, 9, 3))), case(*(Stored(np.float32(n)) for n in (0.5, 3, 0.75)))),
    "Trilu": always(case(X), case(X, Stored(np.array(1)), upper=0)),
    "EyeLike": always(case(noise(3, 4)), case(noise(3, 4), k=1, dtype=7)),
    "MatMul": always(case(X, noise(4, 5)), case(X, noise(4))),
    "Gemm": _gemm,
    "Einsum": always(case(X, noise(4, 5), equation="abc,cd->abd"), case(X, equation="...c->c...")),
    "Conv": always(case(noise(2, 3, 4, 6), noise(5, 3, 2, 3), noise(5), strides=[2, 3])),
    "GlobalAveragePool": always(case(noise(2, 3, 4, 5))),
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": always(case(X, V3, noise(3)), case(X, V3, noise(3), epsilon=0.5)),
    "LayerNormalization": _layer_normalization,
    "SimplifiedLayerNormalization": always(case(X, noise(4)), case(X, noise(4), epsilon=0.5)),
    "RMSNormalization": always(case(X, noise(4)), case(X, noise(3, 4), axis=1, epsilon=0.5)),
    "GroupNormalization": _group_normalization,
    "MeanVarianceNormalization": _mean_variance,
    "LpNormalization": always(case(X), case(X, p=1, axis=1)),
    "Attention": _attention,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": always(case(X.astype(np.float32), outputs=3)),
    "MatMulInteger": always(
        case(np.arange(12, dtype=np.uint8).reshape(3, 4) * 21, np.arange(8, dtype=np.int8).reshape(4, 2), np.uint8(9)),
    ),
    "RotaryEmbedding": _rotary,
}  # fmt: skip


def model(op: str, c: Case, opset: int, stored: bool = False) -> onnx.ModelProto:
    """The case as a model; `stored`: with all of its operands in it."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(c.inputs)]
    while names and not names[-1]:
        names.pop()
    outputs = [f"y{i}" for i in range(c.outputs)]
    node = helper.make_node(op, names, outputs, name="node", **c.attributes)
    graph = helper.make_graph([node], "g", [], [])
    for name, x in zip(names, c.inputs, strict=False):
        if x is None:
            continue
        array = np.asarray(x.array if isinstance(x, Stored) else x)
        if stored or isinstance(x, Stored):
            graph.initializer.append(numpy_helper.from_array(array, name))
        else:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
    for name in outputs:  # without a type, which onnxruntime infers
        graph.output.add(name=name)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def feeds(c: Case) -> dict[str, Tensor]:
    """What is fed to the model."""
    pairs = ((f"x{i}", x) for i, x in enumerate(c.inputs))
    return {name: np.asarray(x) for name, x in pairs if x is not None and not isinstance(x, Stored)}


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
