"""Shape values: what small integer tensors are known to hold when the model is read.

A known tensor is an array of objects: integers, polynomials of named dimensions (`sizes.Poly`) and `UNKNOWN`. Only the
operators by which exporters compute shapes are followed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mirage_cli.frontends import sizes
from mirage_cli.frontends.sizes import Poly

Known: TypeAlias = NDArray[np.object_]
MAX_ELEMENTS = 1024  #: larger tensors are data
_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


class _Unknown:
    """An integer that is not known; arithmetic with it is not known either."""

    def _absorb(self, *_: Any) -> Any:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _absorb

    def __repr__(self) -> str:
        return "?"


UNKNOWN = _Unknown()


def array(elements: Any) -> Known:
    """A known tensor from (nested) elements."""
    return np.array(elements, dtype=object)


def is_known(known: Known) -> bool:
    """True if every element is."""
    return not any(isinstance(e, _Unknown) for e in known.ravel())


def constant(tensor: ir.TensorProtocol | None) -> Known | None:
    """The elements of a stored integer tensor, if it is small."""
    if tensor is None or tensor.dtype not in _INTEGERS or tensor.size > MAX_ELEMENTS:
        return None
    return tensor.numpy().astype(object)


def propagate(node: ir.Node, operands: Sequence[Known | None]) -> list[Known] | None:
    """The node's outputs from its inputs (None: not known or absent); None where nothing is known of them."""
    rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if rule is None or not operands or operands[0] is None:
        return None
    try:
        result = rule(node, list(operands))
    except (
        IndexError,
        ValueError,
        TypeError,
        OverflowError,
    ):  # an operand is unknown, or the node does not fit its operands
        return None
    results = result if isinstance(result, list) else [result]
    return [_within(r) for r in results] if all(r.size <= MAX_ELEMENTS for r in results) else None


def _within(known: Known) -> Known:
    """The tensor without numbers that no integer of a model holds: what overflows is not known."""
    return _each(_held, known) if any(_held(e) is UNKNOWN for e in known.ravel()) else known


def _held(element: Any) -> Any:
    return UNKNOWN if isinstance(element, int) and not -(1 << 63) <= element < 1 << 63 else element


def _int(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def _numbers(known: Known | None) -> list[int]:
    """The elements when all are numbers; raises TypeError otherwise."""
    if known is None or not all(isinstance(e, (int, bool)) for e in known.ravel()):
        raise TypeError
    return [int(e) for e in known.ravel()]


def _elementwise(function: Callable[..., Any]) -> Callable[[ir.Node, list[Any]], Known]:
    def rule(_: ir.Node, operands: list[Any]) -> Known:
        if any(x is None for x in operands):
            raise TypeError
        return _each(function, *operands)

    return rule


def _each(function: Callable[..., Any], *operands: Known) -> Known:
    """The results of a function for the elements of operands, which are broadcast. Raises ValueError for too many."""
    if math.prod(np.broadcast_shapes(*(x.shape for x in operands))) > MAX_ELEMENTS:
        raise ValueError
    return np.asarray(np.frompyfunc(function, len(operands), 1)(*operands), dtype=object)


def _chain(function: Callable[[Any, Any], Any]) -> Callable[[ir.Node, list[Any]], Known]:
    def rule(node: ir.Node, operands: list[Any]) -> Known:
        result: Known = operands[0]
        for x in operands[1:]:
            result = _elementwise(function)(node, [result, x])
        return result

    return rule


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and b:
        return math.trunc(a / b) if abs(a) < 2**52 else (a // b if (a < 0) == (b < 0) else -(-a // b))
    if isinstance(a, (int, Poly)) and isinstance(b, (int, Poly)):
        quotient = sizes.exact_quotient(a, b)
        if quotient is None and isinstance(b, int) and b > 0 and sizes.counts(a):
            # what is cut off is what is below a whole part, of a size that is not negative
            return sizes.floor_quotient(a, b)
        return UNKNOWN if quotient is None else quotient
    return UNKNOWN


def _modulo(node: ir.Node, operands: list[Any]) -> Known:
    if _int(node, "fmod", 0):
        raise TypeError
    return _elementwise(_remainder)(node, operands)


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and b:
        return a % b
    if isinstance(a, Poly) and isinstance(b, int) and b > 0 and sizes.counts(a):
        return a - b * sizes.floor_quotient(a, b)
    return UNKNOWN


def _equal(a: Any, b: Any) -> Any:
    if isinstance(a, _Unknown) or isinstance(b, _Unknown):
        return UNKNOWN
    difference = a - b
    if isinstance(difference, int):
        return difference == 0
    signs = {factor > 0 for _, factor in difference.terms}
    constant_term = any(not names for names, _ in difference.terms)
    return False if len(signs) == 1 and constant_term else UNKNOWN  # sizes are not negative: s + 1 is never 0


def _absolute(a: Any) -> Any:
    if isinstance(a, int):
        return abs(a)
    return a if isinstance(a, Poly) and all(factor > 0 for _, factor in a.terms) else UNKNOWN


def _larger(a: Any, b: Any) -> Any:
    """UNKNOWN where sizes do not tell."""
    if isinstance(a, _Unknown) or isinstance(b, _Unknown):
        return UNKNOWN
    for first, other in ((a, b), (b, a)):
        with contextlib.suppress(ValueError):
            return other + sizes.at_least(first - other, 0)
    return UNKNOWN


def _smaller(a: Any, b: Any) -> Any:
    return a + b - _larger(a, b)


def _where(condition: Any, a: Any, b: Any) -> Any:
    if isinstance(condition, _Unknown):
        return a if _equal(a, b) is True else UNKNOWN
    return a if condition else b


def _gather(node: ir.Node, operands: list[Any]) -> Known:
    data, index = operands
    numbers = np.array(_numbers(index), dtype=np.int64).reshape(index.shape)
    return np.asarray(np.take(data, numbers, axis=_int(node, "axis", 0)), dtype=object)


def _listed(node: ir.Node, operands: list[Any], name: str, i: int) -> list[int] | None:
    """The elements of an attribute of older opsets, or of operand `i` of newer ones; None when neither is there."""
    attribute = node.attributes.get(name)
    if attribute is not None:
        return list(attribute.as_ints())
    return _numbers(operands[i]) if i < len(node.inputs) and node.inputs[i] is not None else None


def _slice(node: ir.Node, operands: list[Any]) -> Known:
    data = operands[0]
    starts, ends, axes, steps = (
        _listed(node, operands, name, i + 1) for i, name in enumerate(("starts", "ends", "axes", "steps"))
    )
    if starts is None or ends is None:
        raise TypeError
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    index = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        last = None if step < 0 and end < -data.shape[axis] else end
        index[axis] = slice(start, last, step)
    return np.asarray(data[tuple(index)], dtype=object)


def _concat(node: ir.Node, operands: list[Any]) -> Known:
    if any(x is None for x in operands) or sum(x.size for x in operands) > MAX_ELEMENTS:
        raise TypeError
    return np.asarray(np.concatenate(operands, axis=_int(node, "axis", 0)), dtype=object)


def _squeeze(node: ir.Node, operands: list[Any]) -> Known:
    axes = _listed(node, operands, "axes", 1)
    return np.asarray(np.squeeze(operands[0], axis=None if axes is None else tuple(axes)), dtype=object)


def _unsqueeze(node: ir.Node, operands: list[Any]) -> Known:
    axes = _listed(node, operands, "axes", 1)
    if axes is None:
        raise TypeError
    return np.expand_dims(operands[0], tuple(axes))


def _reshape(_: ir.Node, operands: list[Any]) -> Known:
    return np.asarray(operands[0].reshape(_numbers(operands[1])), dtype=object)


def _expand(_: ir.Node, operands: list[Any]) -> Known:
    shape = np.broadcast_shapes(operands[0].shape, tuple(_numbers(operands[1])))
    if math.prod(shape) > MAX_ELEMENTS:
        raise ValueError
    return np.broadcast_to(operands[0], shape)


def _cast(node: ir.Node, operands: list[Any]) -> Known:
    if ir.DataType(_int(node, "to", 0)) not in (ir.DataType.INT64, ir.DataType.INT32):
        raise TypeError
    return _elementwise(lambda x: int(x) if isinstance(x, bool) else x)(node, operands[:1])


def _reduce(function: Callable[[Any], Any]) -> Callable[[ir.Node, list[Any]], Known]:
    def rule(node: ir.Node, operands: list[Any]) -> Known:
        data, noop = operands[0], _int(node, "noop_with_empty_axes", 0)
        if data.ndim > 1 or (noop and len(operands) < 2):
            raise TypeError
        result = array(function(list(data.ravel())))
        return result.reshape((1,) * data.ndim) if _int(node, "keepdims", 1) else result

    return rule


def _product(elements: list[Any]) -> Any:
    result: Any = 1
    for e in elements:
        result = result * e
    return result


def _constant_of_shape(node: ir.Node, operands: list[Any]) -> Known:
    shape = _numbers(operands[0])
    value = node.attributes["value"].as_tensor() if "value" in node.attributes else None
    if value is None or value.dtype not in _INTEGERS or math.prod(shape) > MAX_ELEMENTS:
        raise TypeError
    return np.full(shape, value.numpy().item(), dtype=object)


def _split(node: ir.Node, operands: list[Any]) -> list[Known]:
    axis, n = _int(node, "axis", 0), len(node.outputs)
    if _int(node, "num_outputs", n) != n:
        raise ValueError
    total = operands[0].shape[axis]
    chunk = math.ceil(total / n)
    counts = _listed(node, operands, "split", 1) or [chunk] * (n - 1)
    return [np.asarray(a, dtype=object) for a in np.split(operands[0], np.cumsum(counts)[: n - 1], axis=axis)]


_RULES: dict[str, Callable[[ir.Node, list[Any]], Known | list[Known]]] = {
    "Add": _elementwise(lambda a, b: a + b),
    "Sub": _elementwise(lambda a, b: a - b),
    "Mul": _elementwise(lambda a, b: a * b),
    "Div": _elementwise(_divide),
    "Mod": _modulo,
    "Neg": _elementwise(lambda a: -a),
    "Abs": _elementwise(_absolute),
    "Equal": _elementwise(_equal),
    "Not": _elementwise(lambda a: UNKNOWN if isinstance(a, _Unknown) else not a),
    "Where": _elementwise(_where),
    "Min": _chain(_smaller),
    "Max": _chain(_larger),
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Expand": _expand,
    "Cast": _cast,
    "Identity": lambda _, operands: operands[0],
    "ReduceProd": _reduce(_product),
    "ReduceSum": _reduce(sum),
    "ConstantOfShape": _constant_of_shape,
    "Split": _split,
}
