"""Where the nodes of a file change what they do: bounds, thresholds, limits of types, where functions saturate.

Taken from the original nodes as they stand, so that what a reader made of them has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

Array: TypeAlias = NDArray[Any]
Constant: TypeAlias = Callable[[str], Array | None]  #: the elements of a tensor that does not depend on any input
FAR = 1e4  #: where functions that saturate have long done so
VALUES = 4  #: of a constant operand that are looked at, the smallest and largest first
#: magnitudes of the operand at which functions saturate, overflow or change their form
FUNCTIONS: Mapping[str, tuple[float, ...]] = {
    "Exp": (10.0, 88.0),
    "Sigmoid": (17.0, 88.0, FAR),
    "Tanh": (9.0, FAR),
    "Erf": (4.0, FAR),
    "Gelu": (5.0, FAR),
    "FastGelu": (5.0, FAR),
    "QuickGelu": (10.0, FAR),
    "BiasGelu": (5.0, FAR),
    "Silu": (17.0, 88.0, FAR),
    "Swish": (17.0, 88.0, FAR),
    "Mish": (17.0, 88.0, FAR),
    "Softplus": (17.0, 88.0, FAR),
    "HardSwish": (3.0,),
    "Elu": (17.0,),
    "Selu": (17.0,),
    "Celu": (17.0,),
    "Sinh": (9.0, 88.0),
    "Cosh": (9.0, 88.0),
    "Round": (0.5,),
    "Floor": (0.5,),
    "Ceil": (0.5,),
}
#: operators that do something else for numbers of the other sign, or that are not defined for them
SIGNED = frozenset(
    {"Abs", "Elu", "Celu", "LeakyRelu", "Log", "Pow", "PRelu", "Reciprocal", "Relu", "Selu", "Sign", "Sqrt"}
)
COMPARED = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "Min", "Max"})
_TYPES: Mapping[int, tuple[float, ...]] = {
    TensorProto.INT8: (127.0,),
    TensorProto.UINT8: (255.0,),
    TensorProto.INT16: (32767.0,),
    TensorProto.UINT16: (65535.0,),
    TensorProto.INT32: (2.0**24, 2.0**31),
    TensorProto.UINT32: (2.0**24, 2.0**32),
    TensorProto.INT64: (2.0**24,),
    TensorProto.FLOAT16: (65504.0,),
    TensorProto.BOOL: (),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """A magnitude `at` of a tensor at which a node that reads it changes what it does; 0 where its sign decides. `sharp` where
    it does so from one number to the next."""

    operand: str
    at: float
    sharp: bool = False


def turns(node: onnx.NodeProto, constant: Constant) -> Iterator[Turn]:
    """Where a node changes what it does."""
    kind, first = node.op_type, node.input[0] if node.input else ""
    if not first:
        return
    yield from (Turn(first, at) for at in FUNCTIONS.get(kind, ()))
    if kind in SIGNED:
        yield Turn(first, 0.0)
    if kind == "Div" and constant(node.input[1]) is None:
        yield Turn(node.input[1], 0.0)
    if kind == "Cast":
        yield from (Turn(first, at, True) for at in _TYPES.get(int(_attribute(node, "to", 0)), ()))
    if kind == "Clip":
        yield from _at(first, np.array([a.f for a in node.attribute if a.name in ("min", "max")]))
        for name in node.input[1:]:
            yield from _at(first, constant(name) if name else None)
    if kind in COMPARED:
        for name in node.input:
            for other in node.input:
                if other != name and constant(name) is None:
                    yield from _at(name, constant(other))
    if kind in ("ThresholdedRelu", "Shrink"):
        yield from _at(first, np.array([_attribute(node, *_BOUND[kind])]))
    if kind == "HardSigmoid":
        slope, middle = float(_attribute(node, "alpha", 0.2)), float(_attribute(node, "beta", 0.5))
        yield from _at(first, np.array([-middle / slope, (1 - middle) / slope]) if slope else None)


_BOUND = {"ThresholdedRelu": ("alpha", 1.0), "Shrink": ("lambd", 0.5)}


def _at(operand: str, values: Array | None) -> Iterator[Turn]:
    """The magnitudes of constants, as far as there are few of them."""
    if values is None or values.dtype.kind not in "fiu" or values.size == 0:
        return
    magnitudes = np.unique(np.abs(values.astype(np.float64)))
    magnitudes = magnitudes[np.isfinite(magnitudes) & (magnitudes < 1e30)]
    picked = magnitudes if len(magnitudes) <= VALUES else magnitudes[[0, 1, -2, -1]]
    yield from (Turn(operand, float(v), True) for v in picked)


def _attribute(node: onnx.NodeProto, name: str, default: float) -> float:
    for a in node.attribute:
        if a.name == name:
            return float(onnx.helper.get_attribute_value(a))
    return default


def constants(model: onnx.ModelProto, known: frozenset[str]) -> frozenset[str]:
    """The tensors of a model that depend on no input: its weights, inputs that are `known` to be constant, and what nodes make
    of them alone."""
    names = {t.name for t in model.graph.initializer} | set(known)
    for node in model.graph.node:
        if node.op_type not in _DRAWN and all(n in names for n in node.input if n):
            names.update(o for o in node.output if o)
    return frozenset(names)


_DRAWN = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
