"""Cases of the smaller operators of ONNX, in the forms that their versions have."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.truth.case import Case, case

RNG = np.random.default_rng(7)
INT64 = TensorProto.INT64
FLOAT = TensorProto.FLOAT


def f(*shape: int) -> np.ndarray:
    """Normal numbers in float32."""
    return RNG.standard_normal(shape).astype(np.float32)


def pos(*shape: int) -> np.ndarray:
    """Numbers from 0.2 to 2 in float32."""
    return RNG.uniform(0.2, 2, shape).astype(np.float32)


def unit(*shape: int) -> np.ndarray:
    """Numbers from -0.95 to 0.95 in float32."""
    return RNG.uniform(-0.95, 0.95, shape).astype(np.float32)


def i(*values: int) -> np.ndarray:
    """Integers as int64."""
    return np.array(values, np.int64)


def n(high: int, *shape: int, dtype: type = np.int64) -> np.ndarray:
    """Integers below a number."""
    return RNG.integers(0, high, shape).astype(dtype)


def s(value: float, dtype: type = np.float32) -> np.ndarray:
    """A scalar."""
    return np.array(value, dtype)


def b(*shape: int) -> np.ndarray:
    """Bools."""
    return RNG.integers(0, 2, shape).astype(np.bool_)


def texts(*values: str) -> np.ndarray:
    """Strings."""
    return np.array(values, np.object_)


def elementwise() -> list[Case]:
    """Functions of one element, and of two that are broadcast."""
    found = [
        case(op, f(2, 3))
        for op in [
            "Abs",
            "Atan",
            "Asinh",
            "Ceil",
            "Cos",
            "Cosh",
            "Elu",
            "Erf",
            "Exp",
            "Floor",
            "HardSigmoid",
            "HardSwish",
            "Identity",
            "LeakyRelu",
            "Mish",
            "Neg",
            "Relu",
            "Selu",
            "Shrink",
            "Sigmoid",
            "Sign",
            "Sin",
            "Sinh",
            "Softplus",
            "Softsign",
            "Tan",
            "Tanh",
            "ThresholdedRelu",
            "Gelu",
            "Swish",
            "Celu",
            "IsNaN",
            "IsInf",
            "Round",
        ]
    ]
    found += [case(op, pos(2, 3)) for op in ("Log", "Sqrt", "Reciprocal")]
    found += [case(op, unit(2, 3)) for op in ("Acos", "Asin", "Atanh")]
    found += [case("Acosh", 1 + pos(5)), case("Not", b(2, 3))]
    extreme = np.array([np.nan, np.inf, -np.inf, 0.0, 88.0, -104.0, 1e-20], np.float32)
    found += [
        case(op, extreme)
        for op in [
            "Abs",
            "Exp",
            "Log",
            "Sigmoid",
            "Tanh",
            "Relu",
            "Neg",
            "Sqrt",
            "Floor",
            "Softsign",
            "Elu",
            "LeakyRelu",
            "IsNaN",
            "IsInf",
            "Erf",
            "Sign",
        ]
    ]
    found += [
        case("IsInf", extreme, detect_negative=0),
        case("IsInf", extreme, detect_positive=0),
        case("Elu", f(5), alpha=0.3),
        case("Selu", f(5), alpha=1.1, gamma=0.7),
        case("Celu", f(5), alpha=0.3),
        case("LeakyRelu", f(5), alpha=0.3),
        case("HardSigmoid", f(5), alpha=0.3, beta=0.1),
        case("ThresholdedRelu", f(5), alpha=0.3),
        case("Shrink", f(9), bias=0.2, lambd=0.4),
        case("Swish", f(9), alpha=0.4),
        case("Gelu", f(9), approximate="tanh"),
        case("Round", np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)),
        case("Abs", i(3, -4)),
        case("Neg", i(3, -4)),
        case("Sign", i(3, 0, -4)),
        case("Relu", np.array([3, -4], np.int32), since=14),
        case("PRelu", f(2, 3, 4), f(3, 1)),
        case("PRelu", f(2, 3, 4), f(4)),
    ]
    for op in ("Add", "Sub", "Mul", "Div"):
        found += [case(op, f(2, 3), f(3)), case(op, i(7, -8, 9), i(2, 3, -4)), case(op, f(2, 0), f(1, 1))]
    found += [
        case("Add", np.array([2**31 - 1], np.int32), np.array([5], np.int32)),
        case("Mul", i(2**62), i(6)),
        case("Div", np.array([-7, 7, -8], np.int32), np.array([2, -2, 3], np.int32)),
        case("Pow", pos(2, 3), f(3)),
        case("Pow", f(2, 3), s(2.0)),
        case("Pow", pos(2, 3), n(3, 3), since=12),
        case("Pow", np.array([2, -3, 5], np.int32), np.array([3, 3, 0], np.int32), since=12),
        case("Pow", i(2, -3, 5, 7), i(3, 3, 0, -1), since=12),
        case("Pow", i(2, 3, 5), np.array([0.5, 1.5, 2], np.float32), since=12),
        case("Mod", np.array([5, -5, 5, -5], np.int32), np.array([3, 3, -3, -3], np.int32)),
        case("Mod", np.array([5, -5, 5, -5], np.int32), np.array([3, 3, -3, -3], np.int32), fmod=1),
        case("Mod", f(6), pos(6), fmod=1, loose=8),
        case("BitShift", np.array([16, 4, 1], np.uint8), np.array([1, 2, 9], np.uint8), direction="RIGHT"),
        case("BitShift", np.array([16, 4, 1], np.uint32), np.array([1, 2, 31], np.uint32), direction="LEFT"),
        case("BitwiseNot", np.array([5, -3], np.int32)),
        case("Where", b(2, 3), f(3), f(2, 1)),
        case("Where", b(2, 3), n(5, 3), n(5, 2, 1)),
        case("SwiGLU", f(5), f(5)),
    ]
    found += [case(op, np.array([6, -3], np.int32), np.array([3, 9], np.int32)) for op in ("BitwiseAnd", "BitwiseOr")]
    found += [case("BitwiseXor", np.array([6, 3], np.uint8), np.array([3, 9], np.uint8))]
    found += [case(op, b(2, 3), b(3)) for op in ("And", "Or", "Xor")]
    compared = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
    nans = np.array([1, np.nan, 3], np.float32)
    found += [case(op, i(1, 2, 3), i(3, 2, 1), since=9 if op in ("Less", "Greater") else 1) for op in compared]
    found += [case(op, nans, np.array([1, 2, 2], np.float32), since=11 if op == "Equal" else 1) for op in compared]
    found += [case("Equal", b(3), b(3)), case("Equal", texts("a", "b"), texts("a", "c"), since=19)]
    found += [case(op, f(2, 3), f(3), f(2, 1), since=8) for op in ("Max", "Min", "Sum", "Mean")]
    found += [case(op, f(2, 3), f(2, 3)) for op in ("Max", "Min", "Sum", "Mean")]
    found += [case(op, i(3, 4), i(4, 3), since=12) for op in ("Max", "Min")]
    found += [case(op, nans, nans[::-1].copy(), since=8) for op in ("Max", "Min")]
    found += [
        case("Clip", f(7), min=-0.4, max=0.3, until=10),
        case("Clip", f(7), max=0.3, until=10),
        case("Clip", f(7), s(-0.4), s(0.3), since=11),
        case("Clip", f(7), None, s(0.3), since=11),
        case("Clip", f(7), s(0.3), s(-0.4), since=11),
        case("Clip", i(-9, 3, 9), s(-4, np.int64), s(4, np.int64), since=12),
        case("Clip", nans, s(-4), s(2), since=11),
    ]
    return found


def casts() -> list[Case]:
    """Changes of the element type."""
    wild = np.array([1.5, -2.5, np.nan, np.inf, -np.inf, 3e9, -3e9, 300.7, -300.7, 1e20, 0, 0.3], np.float32)
    kinds = (2, 3, 4, 5, 6, 7, 9, 10, 11, 13)
    found = [case("Cast", wild, to=kind) for kind in kinds]
    found += [case("Cast", wild.astype(np.float64), to=kind) for kind in kinds]
    word = np.where(np.abs(wild) < 2**31, wild, np.float32(3e9))
    found += [case("Cast", x, to=12) for x in (word, word.astype(np.float64))]
    found += [case("Cast", i(1, 0, -1, 300, 2**40 + 5), to=kind) for kind in (1, 2, 3, 5, 6, 9, 10, 11, 12, 13)]
    found += [case("Cast", b(4), to=kind) for kind in (1, 6, 7, 10, 11)]
    found += [case("Cast", np.array([1.5, 0.1, 70000, np.nan], np.float32), to=10)]
    found += [case("Cast", np.array([1.5, 0.1, -7000], np.float16), to=kind) for kind in (1, 6, 11)]
    found += [case("Cast", np.array([1.5, 0.1, 1e-10, 1e300]), to=1)]
    found += [case("Cast", 1e3 * f(9), to=16, since=13, widened=True)]
    found += [case("Cast", f(9) * 300, to=kind, since=19, widened=True) for kind in (17, 18, 19, 20)]
    found += [case("Cast", f(9) * 300, to=kind, since=19, saturate=0, widened=True) for kind in (17, 18, 19, 20)]
    found += [
        case("Cast", np.array([0.0, 1, 5, 7, 3.7, -2.5, 20, -9.7, 0.5], np.float32), to=kind, since=21, widened=True)
        for kind in (21, 22)
    ]
    found += [case("Cast", f(5), to=8, since=9), case("Cast", texts("1.5", "-INF", "nan"), to=1, since=9)]
    found += [case("Cast", texts("15", "-3"), to=7, since=9), case("CastLike", f(5), i(0))]
    found += [case("CastLike", f(5), s(0, np.float16)), case("BitCast", f(5), to=6)]
    return found


def linear() -> list[Case]:
    """Products."""
    return [
        case("MatMul", f(2, 3), f(3, 4)),
        case("MatMul", f(3), f(3)),
        case("MatMul", f(5, 2, 3), f(3)),
        case("MatMul", f(3), f(5, 3, 2)),
        case("MatMul", f(5, 1, 2, 3), f(4, 3, 2)),
        case("MatMul", f(2, 0), f(0, 3)),
        case("MatMul", n(9, 2, 3), n(9, 3, 2), since=9),
        case("Gemm", f(2, 3), f(3, 4), f(4)),
        case("Gemm", f(3, 2), f(4, 3), f(2, 1), transA=1, transB=1, alpha=0.3, beta=0.7),
        case("Gemm", f(2, 3), f(3, 4), since=11),
        case("Einsum", f(2, 3), f(3, 4), equation="ij,jk->ik"),
        case("Einsum", f(2, 3, 4), f(2, 4, 5), equation="bij, bjk -> bik"),
        case("Einsum", f(2, 3, 3), equation="...ii->...i"),
        case("Einsum", f(2, 3), f(3), equation="ij,j"),
        case("Det", f(2, 3, 3)),
        case("MatMulInteger", n(9, 2, 3, dtype=np.uint8), n(9, 3, 2, dtype=np.uint8)),
        case(
            "MatMulInteger",
            n(255, 2, 3, dtype=np.uint8),
            n(9, 3, 2, dtype=np.int8),
            s(7, np.uint8),
            np.array([3, -2], np.int8),
        ),
    ]


def reductions() -> list[Case]:
    """Reductions and what walks along an axis."""
    found = []
    kinds = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]
    for op in kinds:
        change = 13 if op == "Sum" else 18
        x = pos(2, 3, 4)
        found += [
            case(f"Reduce{op}", x, axes=[1], until=change - 1),
            case(f"Reduce{op}", x, axes=[0, -1], keepdims=0, since=11, until=change - 1),
            case(f"Reduce{op}", x),
            case(f"Reduce{op}", x, keepdims=0),
            case(f"Reduce{op}", x, i(1), since=change),
            case(f"Reduce{op}", x, i(0, -1), keepdims=0, since=change),
            case(f"Reduce{op}", x, i(), since=change, noop_with_empty_axes=1),
            case(f"Reduce{op}", x, i(), since=change),
            case(f"Reduce{op}", n(9, 2, 3, dtype=np.int32), keepdims=0),
        ]
    found += [
        case("ReduceSum", np.zeros((2, 0), np.float32), i(1), since=13),
        case("ReduceProd", np.zeros((2, 0), np.float32), i(1), since=18),
        case("ReduceMax", np.zeros((2, 0), np.float32), i(1), since=18),
        case("ReduceMin", np.zeros((2, 0), np.float32), i(1), since=18),
        case("ReduceMax", b(2, 3), i(1), since=20),
        case("ReduceMin", b(2, 3), i(1), since=20),
        case("ReduceLogSumExp", 300 * f(2, 3)),
    ]
    ties = np.array([[1, 3, 3], [2, 2, 0]], np.float32)
    for op in ("ArgMax", "ArgMin"):
        found += [
            case(op, ties),
            case(op, ties, axis=1),
            case(op, ties, axis=-1, keepdims=0, since=11),
            case(op, ties, axis=1, select_last_index=1, since=12),
        ]
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        found += [
            case(op, f(2, 3, 4)),
            case(op, f(2, 3, 4), axis=2),
            case(op, f(2, 3, 4), axis=0),
            case(op, f(2, 3, 4), axis=-2, since=11),
            case(op, f(2, 0)),
        ]
    found += [
        case("Softmax", 300 * f(2, 3)),
        case("CumSum", f(2, 3), s(1, np.int32)),
        case("CumSum", f(2, 3), s(-2, np.int64), exclusive=1),
        case("CumSum", n(9, 2, 3), s(1, np.int32), reverse=1),
        case("CumSum", f(2, 3), s(1, np.int32), reverse=1, exclusive=1),
        case("CumProd", f(2, 3), s(1, np.int32), exclusive=1),
        case("TopK", f(2, 5), k=3, outputs=2, until=9),
        case("TopK", f(2, 5), i(3), outputs=2, since=10),
        case("TopK", f(5, 2), i(3), outputs=2, axis=0, since=10),
        case("TopK", f(2, 5), i(2), outputs=2, largest=0, since=11),
        case("TopK", np.array([3, 1, 3, 2], np.float32), i(3), outputs=2, since=10),
    ]
    return found


def shapes() -> list[Case]:
    """Making, cutting and joining."""
    x = f(2, 3, 4)
    value = helper.make_tensor("v", INT64, [1], [7])
    return [
        case("Constant", value=helper.make_tensor("v", FLOAT, [2], [1.5, 2])),
        case("Constant", value_float=1.5, since=12),
        case("Constant", value_ints=[1, 2], since=12),
        case("Constant", value_int=1, since=12),
        case("Constant", value_floats=[1.5, 2], since=12),
        case("Constant", value_strings=["a", "b"], since=12),
        case("ConstantOfShape", i(2, 3)),
        case("ConstantOfShape", i(2, 0), value=value),
        case("ConstantOfShape", i(), value=value),
        case("Range", s(3), s(9.5), s(1.5)),
        case("Range", s(0), s(0.6), s(0.2)),
        case("Range", s(0), s(0.9), s(0.3)),
        case("Range", s(0.1), s(1), s(0.1)),
        case("Range", s(10, np.int64), s(3, np.int64), s(-3, np.int64)),
        case("Range", s(3, np.int32), s(3, np.int32), s(1, np.int32)),
        case("Shape", x),
        case("Shape", x, start=-2, end=9, since=15),
        case("Size", x),
        case("Reshape", x, i(3, -1)),
        case("Reshape", x, i(0, 12)),
        case("Reshape", f(2, 0), i(0, 5), allowzero=1, since=14),
        case("Reshape", f(2, 0), i(4, 0)),
        case("Flatten", x),
        case("Flatten", x, axis=0),
        case("Flatten", x, axis=-1, since=11),
        case("Transpose", x),
        case("Transpose", x, perm=[1, 2, 0]),
        case("Squeeze", f(1, 2, 1), axes=[0], until=12),
        case("Squeeze", f(1, 2, 1), axes=[-1], since=11, until=12),
        case("Squeeze", f(1, 2, 1)),
        case("Squeeze", f(1, 2, 1), i(-1), since=13),
        case("Unsqueeze", f(2, 3), axes=[0, 2], until=12),
        case("Unsqueeze", f(2, 3), axes=[-1], since=11, until=12),
        case("Unsqueeze", f(2, 3), i(3, 0), since=13),
        case("Expand", f(3, 1), i(2, 1, 4)),
        case("Expand", f(3, 1), i(1, 0)),
        case("Tile", f(2, 3), i(2, 2)),
        case("Concat", f(2, 3), f(1, 3), axis=0),
        case("Concat", f(2, 3), f(2, 0), axis=-1, since=11),
        case("Split", f(6), outputs=3, until=17),
        case("Split", f(2, 6), outputs=2, axis=1, split=[2, 4], until=12),
        case("Split", f(2, 6), i(2, 4), outputs=2, axis=-1, since=13),
        case("Split", f(7), outputs=3, num_outputs=3, since=18),
        case("Slice", x, starts=[1, 0], ends=[3, -1], axes=[1, 2], until=9),
        case("Slice", x, starts=[0, 1], ends=[2000, 2], until=9),
        case("Slice", x, i(1, 0), i(3, -1), i(1, 2), since=10),
        case("Slice", x, i(-1), i(-1000), i(-1), i(-2), since=10),
        case("Slice", x, i(0), i(2**62), None, i(2), since=10),
        case("Slice", x, i(5), i(9), i(1), since=10),
        case("Slice", x, i(1), i(-9), i(2), i(-1), since=10),
        case("Pad", f(2, 3), pads=[1, 0, 0, 2], value=1.5, until=10),
        case("Pad", f(3, 4), pads=[1, 2, 1, 1], mode="reflect", until=10),
        case("Pad", f(3, 4), pads=[-1, 2, 1, -1], until=10),
        case("Pad", f(2, 3), i(1, 0, 0, 2), s(1.5), since=11),
        case("Pad", f(2, 3), i(1, 0, 0, 2), since=11),
        case("Pad", f(3, 4), i(1, 2, 1, 1), mode="reflect", since=11),
        case("Pad", f(3, 4), i(1, 2, 1, 5), mode="edge", since=11),
        case("Pad", f(3, 4), i(1, 2, 1, 5), mode="wrap", since=19),
        case("Pad", f(3, 4), i(2, 1), None, i(-1), since=18),
        case("Pad", f(3, 4), i(-1, 1, 0, -2), since=11),
        case("Pad", n(5, 3), i(1, 1), s(9, np.int64), since=11),
        case("EyeLike", f(2, 3)),
        case("EyeLike", f(3, 3), k=-1, dtype=7),
        case("Trilu", f(2, 3, 4)),
        case("Trilu", f(3, 4), s(-1, np.int64), upper=0),
        case("DepthToSpace", f(1, 8, 2, 3), blocksize=2),
        case("DepthToSpace", f(1, 8, 2, 3), blocksize=2, mode="CRD", since=11),
        case("SpaceToDepth", f(1, 2, 4, 6), blocksize=2),
        case("CenterCropPad", f(5, 6), i(3, 9)),
        case("CenterCropPad", f(5, 6, 3), i(8, 1), axes=[1, 2]),
        case("ReverseSequence", f(4, 3, 2), i(2, 4, 1)),
        case("ReverseSequence", f(3, 4), i(2, 4, 1), batch_axis=0, time_axis=1),
        case("Dropout", f(2, 3)),
        case("Dropout", f(2, 3), outputs=2),
        case("Dropout", f(2, 3), ratio=0.3, until=11),
        case("Dropout", f(2, 3), s(0.4), since=12),
        case("Dropout", f(2, 3), s(0.4), s(False, np.bool_), outputs=2, since=12),
        case("Identity", texts("a", "b")),
        case("OptionalHasElement", f(2), since=18),
        case("OptionalHasElement", None, since=18),
        case("OptionalGetElement", f(2), since=18),
    ]


def gathering() -> list[Case]:
    """Indices."""
    x = f(3, 4)
    found = [
        case("Gather", x, i(0, 2)),
        case("Gather", x, np.array([[1, -1]], np.int32), axis=1, since=11),
        case("Gather", x, s(1, np.int64), axis=1),
        case("Gather", texts("a", "b"), i(1)),
        case("Gather", x, np.zeros((0, 2), np.int64)),
        case("GatherElements", x, i(0, -1, 2).reshape(3, 1), axis=1),
        case("GatherElements", x, n(3, 2, 4)),
        case("GatherND", x, np.array([[0, 1], [-1, 2]])),
        case("GatherND", x, np.array([[1], [2]])),
        case("GatherND", f(2, 3, 4), np.array([[1], [-1]]), batch_dims=1, since=12),
        case("Scatter", x, n(3, 2, 4), f(2, 4), until=10),
        case("ScatterElements", x, np.array([[0, 1, 2, 0], [1, 2, 0, -1]]), f(2, 4)),
        case("ScatterElements", x, np.array([[3], [0], [-2]]), f(3, 1), axis=1),
        case("ScatterND", x, np.array([[0], [2]]), f(2, 4)),
        case("ScatterND", x, np.array([[0, 1], [-1, 2]]), f(2)),
        case("TensorScatter", f(2, 5, 3), f(2, 2, 3), i(1, 3)),
        case("TensorScatter", f(2, 5, 3), f(2, 2, 3), i(1, 4), mode="circular"),
        case("OneHot", i(0, 2, -1), s(4, np.int64), np.array([0, 5], np.float32)),
        case("OneHot", n(4, 2, 3), s(4, np.int64), i(1, 0), axis=0),
        case("OneHot", i(0, 9), s(4, np.int64), np.array([0, 5], np.float32)),
        case("NonZero", b(2, 3)),
        case("NonZero", f(2, 3)),
        case("Compress", x, np.array([True, False, True]), axis=0),
        case("Compress", x, np.array([True, False, True])),
        case("Compress", x, np.array([False, True]), axis=-1, since=11),
        case("Unique", np.array([2, 1, 1, 3, 4, 3], np.float32), outputs=4),
        case("Unique", np.array([2, 1, 1, 3, 4, 3], np.float32), outputs=4, sorted=0),
        case("Unique", np.array([[2, 1, 2], [1, 3, 1]], np.int64), outputs=4, axis=1),
        case("NonMaxSuppression", pos(1, 6, 4), pos(1, 2, 6), s(3, np.int64), s(0.3), s(0.1)),
        case("NonMaxSuppression", pos(1, 6, 4), pos(1, 2, 6), s(3, np.int64), s(0.3), center_point_box=1),
    ]
    for how, since in (("add", 16), ("mul", 16), ("max", 18), ("min", 18)):
        found += [
            case("ScatterElements", x, np.array([[0, 1, 2, 0], [0, 2, 0, -3]]), f(2, 4), since=since, reduction=how),
            case("ScatterND", x, np.array([[0], [0]]), f(2, 4), since=since, reduction=how),
        ]
    return found


CASES = [*elementwise(), *casts(), *linear(), *reductions(), *shapes(), *gathering()]
