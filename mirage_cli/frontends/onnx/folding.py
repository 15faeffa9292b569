"""Constants folded by onnxscript's pass, at the model's own opset.

The pass evaluates by `onnx.reference`, which for some operators knows the newest version only (Softmax, Hardmax, Resize),
and for others is not what onnxruntime computes. So what it may evaluate is a list of operators whose every version from
`OLDEST_OPSET` on is one that it knows: those by which exporters compute shapes, masks, positions and weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript import optimizer

from mirage_cli.frontends.onnx.ops.registry import ELEMENT_TYPES

INPUT_ELEMENTS = 8192
OUTPUT_ELEMENTS = 512 * 512
AGAIN = 8  #: times, where what was folded shows how long sequences are
SMALL_FILL = 64  #: elements of a ConstantOfShape that becomes a constant
#: what `onnx.reference` computes as onnxruntime does, in all versions; tests/frontends/onnx/test_folding.py runs them
FOLDED = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "ConstantOfShape", "Cos", "CumSum", "Div"),
        *("Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater"),
        *("GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Log", "MatMul", "Max", "Min", "Mod", "Mul", "Neg"),
        *("Not", "Or", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin"),
        *("ReduceProd", "ReduceSum", "Relu", "Reshape", "Round", "ScatterElements", "ScatterND", "Shape", "Sigmoid"),
        *(
            "Sign",
            "Sin",
            "Size",
            "Slice",
            "Split",
            "Sqrt",
            "Squeeze",
            "Sub",
            "Sum",
            "Tanh",
            "Tile",
            "Transpose",
            "Trilu",
        ),
        *("Unsqueeze", "Where", "Xor"),
    )
)


def fold_constants(model: ir.Model, notes: list[str], shown: Callable[[], bool], kept: Collection[str] = ()) -> None:
    """Fold, in place, and again while `shown` finds nodes that may be folded by what is known then; what reads the
    weights that are `kept` is not."""
    _fold_once(model, notes, kept)
    for _ in range(AGAIN):
        if not shown():
            return
        _fold_once(model, notes, kept)


def _fold_once(model: ir.Model, notes: list[str], kept: Collection[str]) -> None:
    left_out = [v for n in ir.traversal.RecursiveGraphIterator(model.graph) for v in n.outputs if not v.name]
    try:
        optimizer.fold_constants(
            model,
            onnx_shape_inference=True,
            input_size_limit=INPUT_ELEMENTS,
            output_size_limit=OUTPUT_ELEMENTS,
            should_fold=lambda node: _may_fold(node, kept),
        )
    except Exception as error:  # raises what operators do; nodes are replaced one at a time: the model is whole
        notes.append(f"constants are folded in part only: {error}")
    for v in left_out:
        v.name = ""  # results that nodes leave out are given names, which others count


def _may_fold(node: ir.Node, kept: Collection[str]) -> bool | None:
    """False for what is not in the list, for what reads a tensor that is kept, and for what would read or make large
    tensors: the pass looks at the result's size only afterwards."""
    if any(v is not None and v.name in kept for v in node.inputs):
        return False
    if node.domain not in ("", "ai.onnx") or node.op_type not in FOLDED:
        return False
    if sum(stored.size for stored in _stored(node)) > INPUT_ELEMENTS:
        return False
    for value in node.outputs:
        dims = [d if isinstance(d, int) else d.value for d in value.shape] if value.shape is not None else [None]
        if not all(isinstance(d, int) for d in dims):
            return False
        if math.prod(d for d in dims if isinstance(d, int)) > OUTPUT_ELEMENTS:
            return False
    if node.op_type in _CONDITIONS and not _CONDITIONS[node.op_type](node):
        return False
    return True if node.op_type == "ConstantOfShape" and _is_small_fill(node) else None


def _stored(node: ir.Node) -> Iterable[ir.TensorProtocol]:
    return [v.const_value for v in node.inputs if v is not None and v.const_value is not None]


def _converts_alike(node: ir.Node) -> bool:
    """True if everybody converts a constant alike: between types that are read, to integers that hold the numbers,
    and not from float64 to a type of 16 bits, which onnxruntime rounds twice."""
    source = node.inputs[0].const_value if node.inputs and node.inputs[0] is not None else None
    to = node.outputs[0].dtype
    if source is None or to not in ELEMENT_TYPES or source.dtype not in ELEMENT_TYPES:
        return False
    target = ELEMENT_TYPES[to]
    if source.dtype == ir.DataType.DOUBLE and target.is_float and target.bytes == 2:
        return False
    if not ELEMENT_TYPES[source.dtype].is_float or target.kind != "int":
        return True
    numbers = source.numpy().astype(np.float64)
    bits = target.bits
    low, high = (0.0, 2.0**bits) if target.name.startswith("u") else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1))
    return bool(np.all((numbers >= low) & (numbers < high)))  # false for NaN


def _numbers(node: ir.Node, i: int) -> NDArray[np.float64]:
    """The elements of a stored operand; none where it is left out."""
    value = node.inputs[i] if i < len(node.inputs) else None
    stored = None if value is None else value.const_value
    return np.zeros(0) if stored is None else stored.numpy().astype(np.float64)


#: of operators whose results are the same for some operands only: infinities are cut, powers of them are not roots
_CONDITIONS: dict[str, Callable[[ir.Node], bool]] = {
    "Cast": _converts_alike,
    "CastLike": _converts_alike,
    "Clip": lambda node: bool(np.isfinite(_numbers(node, 0)).all()),
    "Pow": lambda node: bool((np.isfinite(_numbers(node, 0)) & (_numbers(node, 0) > 0)).all()),
}


def _is_small_fill(node: ir.Node) -> bool:
    """True if a ConstantOfShape gives a few numbers: shapes are computed from such, and the pass leaves them alone."""
    shape = node.inputs[0].const_value if node.inputs[0] is not None else None
    return shape is not None and math.prod(shape.numpy().tolist()) <= SMALL_FILL
