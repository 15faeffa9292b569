"""Where what a runtime computes and what nodes mean part: the first node that makes something else of its own inputs than its
meaning in float64, by more than rounding explains.

An original is held to its word by this: its error against float64 may come from the types that it computes in and from the
order of its sums, but not from a node that does something else. Errors that grow from node to node part nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, inliner, numpy_helper

from mirage_cli.errors import MirageError
from mirage_cli.lax.dtypes import F32
from mirage_cli.runtime import sessions
from mirage_cli.truth.evaluate import run as evaluate

Array: TypeAlias = NDArray[Any]
Load: TypeAlias = Callable[[TensorProto], Array]
UNITS = 64.0  #: of the coarsest type, and times the square root of the summed terms those of the type that sums
TERMS = 1000  #: that are summed, at least
AS_ROUNDED = 16.0  #: times the error of a run that rounds every tensor to its type
SHARE = 0.1  #: of an integer result's elements, or of truth values, that may be others: those of numbers that are almost equal
#: operators that sum what may cancel: the sum of magnitudes is what their errors are measured with
SUMS = frozenset({"Add", "Conv", "CumSum", "Einsum", "Gemm", "MatMul", "Mean", "ReduceMean", "ReduceSum", "Sub", "Sum"})


def unit(model: onnx.ModelProto) -> float:
    """The coarsest unit of the floating-point types of a model's inputs, outputs, weights and casts."""
    graph = model.graph
    tensors = [v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)]
    tensors += [t.data_type for t in graph.initializer]
    nodes = [*graph.node, *(n for f in model.functions for n in f.node)]
    return sessions.coarsest_unit(tensors, nodes)


def within_rounding(
    own: Array, exact: Array, coarsest: float, terms: int, scale: float = 0.0, rounded: float = 0.0
) -> bool:
    """True if a result is as near to the exact one as types with this coarsest unit, and sums of so many terms,
    allow. `scale` is the size of what was summed, where that is more than the result's, `rounded` the error of
    rounding alone."""
    if own.shape != exact.shape:
        return False
    if own.dtype.kind in "biuOSUT":
        return own.size == 0 or float(np.mean(own != exact)) <= (SHARE if own.dtype.kind in "biu" else 0.0)
    o, t = (np.asarray(a, dtype=np.float64) for a in (own, exact))
    both = np.isfinite(o) & np.isfinite(t)
    if not both.any():
        return True
    allowed = UNITS * (coarsest + math.sqrt(max(terms, TERMS)) * min(coarsest, F32.epsilon))
    size = max(rms(t[both]), scale)
    return rms(o[both] - t[both]) <= max(allowed * size, AS_ROUNDED * rounded) + F32.normal


def rms(x: Array) -> float:
    """The root mean square, of large numbers too."""
    top = float(np.abs(x).max(initial=0.0))
    return top * float(np.sqrt(np.mean((x / top) ** 2))) if 0 < top < np.inf else top


def longest_dimension(arrays: Mapping[str, Array]) -> int:
    """The longest dimension of some tensors: about how many terms are summed."""
    return max((n for a in arrays.values() for n in a.shape), default=1)


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model with the bodies of its functions in their places."""
    return inliner.inline_local_functions(model) if model.functions else model


def showing_all(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model all of whose tensors are outputs."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    there = {o.name for o in probe.graph.output}
    hidden = dict.fromkeys(o for n in probe.graph.node for o in n.output if o and o not in there)
    probe.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in hidden)
    return probe


def first_divergence(model: onnx.ModelProto, values: Mapping[str, Array], load: Load | None = None) -> str:
    """The first node of a model's main graph that makes something else of its inputs than it means, in words, or nothing.
    `values` are the inputs and all that a runtime made of them; `load` reads weights that are outside of the file."""
    weights = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        names = [n for n in dict.fromkeys(tensors_read(node)) if n]
        if any(n not in values and n not in weights for n in names) or any(o not in values for o in node.output if o):
            continue
        given = {n: values[n] if n in values else _stored(weights[n], load) for n in names}
        if problem := _parts(model, node, given, {o: np.asarray(values[o]) for o in node.output if o}):
            return f"{node.op_type} {node.name or node.output[0]!r}: {problem}"
    return ""


def tensors_read(node: onnx.NodeProto) -> Iterator[str]:
    """The tensors that a node reads, those of its sub-graphs included that come from around them."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            own = {v.name for v in (*graph.input, *graph.initializer)} | {o for n in graph.node for o in n.output}
            yield from (n for inner in graph.node for n in tensors_read(inner) if n not in own)
            yield from (o.name for o in graph.output if o.name not in own)


def _stored(tensor: TensorProto, load: Load | None) -> Array:
    outside = tensor.data_location == TensorProto.EXTERNAL and load is not None
    return np.asarray(load(tensor) if outside and load is not None else numpy_helper.to_array(tensor))


def _parts(
    model: onnx.ModelProto, node: onnx.NodeProto, given: Mapping[str, Array], results: Mapping[str, Array]
) -> str:
    """The difference between the results of a node and what it means for its own inputs, in words; nothing where
    nobody can tell."""
    alone = _single(model, node, given)
    try:
        exact = evaluate(alone, given, list(results))
        scales = _magnitudes(alone, node, given, list(results))
        rounded = evaluate(alone, given, list(results), rounded=True)
    except MirageError:
        return ""
    for name, own in results.items():
        floats = [a.dtype for a in (own, *given.values()) if a.dtype.kind not in "biuOSU"]
        units = [float(_epsilon(t)) for t in floats] or [F32.epsilon]
        coarsest = max(sessions.activation_unit(node), *units)
        off = _apart(rounded[name], exact[name])
        if not within_rounding(own, exact[name], coarsest, longest_dimension(given), scales.get(name, 0.0), off):
            return _difference(own, exact[name])
    return ""


def _apart(rounded: Array, exact: Array) -> float:
    """The error of rounding alone, where it is finite."""
    if exact.dtype.kind != "f" or rounded.shape != exact.shape:
        return 0.0
    both = np.isfinite(rounded) & np.isfinite(exact)
    return _finite(rms(rounded[both] - exact[both]))


def _finite(x: float) -> float:
    return x if math.isfinite(x) else 0.0


def _epsilon(dtype: np.dtype[Any]) -> float:
    from ml_dtypes import finfo  # noqa: PLC0415 - of numpy's types too

    return float(finfo(dtype).eps)  # type: ignore[no-untyped-call]


def _magnitudes(
    alone: onnx.ModelProto, node: onnx.NodeProto, given: Mapping[str, Array], names: Sequence[str]
) -> dict[str, float]:
    """The size of what a node sums: of its results for the magnitudes of its inputs."""
    if node.op_type not in SUMS:
        return {}
    sizes = {n: np.abs(a) if a.dtype.kind not in "biuOSU" else a for n, a in given.items()}
    return {n: _finite(rms(a)) for n, a in evaluate(alone, sizes, list(names)).items()}


def _single(model: onnx.ModelProto, node: onnx.NodeProto, given: Mapping[str, Array]) -> onnx.ModelProto:
    """A model of one node."""
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), list(a.shape))
        for n, a in given.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(o) for o in node.output if o]
    graph = helper.make_graph([node], "node", inputs, outputs)
    return helper.make_model(
        graph, opset_imports=model.opset_import, functions=model.functions, ir_version=model.ir_version
    )


def _difference(own: Array, exact: Array) -> str:
    """The difference of two results, in words."""
    if own.shape != exact.shape:
        return f"shape {own.shape} in place of {exact.shape}"
    if own.dtype.kind in "OSUT":
        k = int(np.argmax(own != exact))
        return f"{np.ravel(own)[k]!r} in place of {np.ravel(exact)[k]!r}"
    with np.errstate(invalid="ignore"):
        off = np.abs(np.asarray(own, dtype=np.float64) - np.asarray(exact, dtype=np.float64))
    k = int(np.nan_to_num(off, nan=0.0, posinf=0.0).argmax())
    return f"{np.ravel(own)[k]:.6g} in place of {np.ravel(exact)[k]:.6g}"
