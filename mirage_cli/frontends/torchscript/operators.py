"""Operators of TorchScript that torch's exporter to ONNX lacks, or knows in part, written as ONNX operators.

The functions have the form that torch.onnx asks for: a graph context, then the operator's arguments as graph values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mirage_cli.frontends.torchscript.graph import DOMAIN, MARK, ONNX_MARK

_FROM_OPSET = 14


@contextmanager
def more_operators(torch: Any, seen: Mapping[int, Any]) -> Iterator[None]:
    """Let torch's exporter write marks and the operators of this module; `seen` holds for each mark a tensor of its shape
    and type, which the exporter may not find out by itself."""
    table: dict[str, Callable[..., Any]] = {
        MARK: functools.partial(_mark, torch, seen),
        "aten::diff": functools.partial(_diff, torch),
        "aten::rms_norm": functools.partial(_rms_norm, torch),
        "aten::scaled_dot_product_attention": functools.partial(_attention, torch),
    }
    for name, function in table.items():
        torch.onnx.register_custom_op_symbolic(name, function, _FROM_OPSET)
    try:
        yield
    finally:
        for name in table:
            torch.onnx.unregister_custom_op_symbolic(name, _FROM_OPSET)


def _mark(torch: Any, seen: Mapping[int, Any], g: Any, x: Any, index: Any) -> Any:
    number = int(_constant(torch, index, "i"))
    kind = torch._C.TensorType.create_from_tensor(seen[number]) if number in seen else x.type()
    marked = g.op(f"{DOMAIN}::{ONNX_MARK}", x, index_i=number)
    marked.setType(kind)
    return marked


def _diff(torch: Any, g: Any, x: Any, n: Any, dim: Any, prepend: Any = None, append: Any = None) -> Any:
    """torch.diff: neighbours' differences, `n` times."""
    times, axis = _constant(torch, n, "i"), _constant(torch, dim, "i")
    parts = [v for v in (prepend, x, append) if not _none(torch, v)]
    joined = g.op("Concat", *parts, axis_i=axis) if len(parts) > 1 else x
    axes, first, second = (_integers(torch, g, k) for k in (axis, 0, 1))
    last, end = _integers(torch, g, -1), _integers(torch, g, torch.iinfo(torch.int64).max)
    for _ in range(times):
        joined = g.op("Sub", g.op("Slice", joined, second, end, axes), g.op("Slice", joined, first, last, axes))
    return joined


def _rms_norm(torch: Any, g: Any, x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    """torch.rms_norm over the last dimensions; the half types in float32, as PyTorch computes them."""
    dtype = _dtype(torch, x)
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    small = torch.finfo(wide).eps if _none(torch, eps) else _constant(torch, eps, "f")
    y = _cast(torch, g, x, wide)
    axes = _integers(torch, g, *range(-len(_constant(torch, shape, "is")), 0))
    mean = g.op("ReduceMean", g.op("Mul", y, y), axes, keepdims_i=1)
    normed = g.op("Div", y, g.op("Sqrt", g.op("Add", mean, _number(torch, g, small, wide))))
    if not _none(torch, weight):
        normed = g.op("Mul", normed, _cast(torch, g, weight, wide))
    return _cast(torch, g, normed, dtype)


def _attention(
    torch: Any,
    g: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout: Any = None,
    causal: Any = None,
    scale: Any = None,
    grouped: Any = None,
) -> Any:
    """torch.nn.functional.scaled_dot_product_attention for inference: a row that sees no key is 0."""
    dtype = _dtype(torch, query)
    if not _none(torch, grouped) and _constant(torch, grouped, "b"):
        key, value = (_repeated(torch, g, query, v) for v in (key, value))
    if _none(torch, scale):
        width = g.op("Cast", _size(torch, g, query, -1), to_i=_onnx_type(torch, torch.float32))
        factor = _cast_to(torch, g, g.op("Reciprocal", g.op("Sqrt", width)), dtype)
    else:
        factor = _number(torch, g, _constant(torch, scale, "f"), dtype)
    rank = _rank(torch, key)
    turned = g.op("Transpose", key, perm_i=[*range(rank - 2), rank - 1, rank - 2])
    scores = g.op("Mul", g.op("MatMul", query, turned), factor)
    seen = None
    if not _none(torch, causal) and _constant(torch, causal, "b"):
        sizes = g.op("Concat", _size(torch, g, query, -2), _size(torch, g, key, -2), axis_i=0)
        everything = g.op("Expand", g.op("Constant", value_t=torch.tensor(True)), sizes)
        seen = g.op("Trilu", everything, upper_i=0)
    elif not _none(torch, mask) and _dtype(torch, mask) == torch.bool:
        seen = mask
    elif not _none(torch, mask):
        scores = g.op("Add", scores, _cast(torch, g, mask, dtype))
    if seen is None:
        return g.op("MatMul", g.op("Softmax", scores, axis_i=-1), value)
    scores = g.op("Where", seen, scores, _number(torch, g, -math.inf, dtype))
    weights = g.op("Softmax", scores, axis_i=-1)
    weights = g.op("Where", g.op("IsNaN", weights), _number(torch, g, 0.0, dtype), weights)
    return g.op("MatMul", weights, value)


def _repeated(torch: Any, g: Any, query: Any, x: Any) -> Any:
    """Keys or values of grouped heads, repeated for the heads of the query."""
    rank = _rank(torch, x)
    dims = [_size(torch, g, x, axis) for axis in range(rank)]
    batch, own, last = dims[: rank - 3], dims[rank - 3], dims[rank - 2 :]
    heads = _size(torch, g, query, -3)
    apart = g.op("Unsqueeze", x, _integers(torch, g, rank - 2))
    wide = g.op("Expand", apart, g.op("Concat", *batch, own, g.op("Div", heads, own), *last, axis_i=0))
    return g.op("Reshape", wide, g.op("Concat", *batch, heads, *last, axis_i=0))


# ---- reading and writing values --------------------------------------------------------------------------------------
def _none(torch: Any, value: Any) -> bool:
    return value is None or bool(torch.onnx.symbolic_helper._is_none(value))


def _constant(torch: Any, value: Any, kind: str) -> Any:
    return torch.onnx.symbolic_helper._get_const(value, kind, "argument")


def _dtype(torch: Any, value: Any) -> Any:
    return torch.onnx.JitScalarType.from_value(value).dtype()


def _rank(torch: Any, value: Any) -> int:
    """The number of dimensions of a tensor. Raises ValueError where the exporter does not know it."""
    rank = torch.onnx.symbolic_helper._get_tensor_rank(value)
    if rank is None:
        raise ValueError(f"the number of dimensions of {value.debugName()} is not known")
    return int(rank)


def _size(torch: Any, g: Any, value: Any, axis: int) -> Any:
    """One dimension of a tensor, as a tensor of one integer."""
    return g.op("Gather", g.op("Shape", value), _integers(torch, g, axis), axis_i=0)


def _integers(torch: Any, g: Any, *numbers: int) -> Any:
    return g.op("Constant", value_t=torch.tensor(numbers, dtype=torch.int64))


def _number(torch: Any, g: Any, number: float, dtype: Any) -> Any:
    return g.op("Constant", value_t=torch.tensor(number, dtype=dtype))


def _cast(torch: Any, g: Any, x: Any, dtype: Any) -> Any:
    return x if _dtype(torch, x) == dtype else _cast_to(torch, g, x, dtype)


def _cast_to(torch: Any, g: Any, x: Any, dtype: Any) -> Any:
    return g.op("Cast", x, to_i=_onnx_type(torch, dtype))


def _onnx_type(torch: Any, dtype: Any) -> Any:
    return torch.onnx.JitScalarType.from_dtype(dtype).onnx_type()
