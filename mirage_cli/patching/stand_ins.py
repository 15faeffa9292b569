"""Operators that onnxruntime runs but loads no model-local function with: the same in standard operators of the model's opset.

onnxruntime ends with SIGSEGV where it inlines a function that holds, in ONNX's own domain, an operator that ONNX does not
have at that opset. Models have these in their graphs, where its own declaration is found:

1. LayerNormalization before opset 17;
2. SimplifiedLayerNormalization at any, which is RMSNormalization of opset 23.

Anything else of that kind is refused. And it refuses a function in which

3. onnxruntime's MultiHeadAttention returns grown caches: it does not infer their type. Without them it would not look at
   the past ones. So the caches are grown in front of it; a single query sees all of them, so that nothing lies in its future;
4. MeanVarianceNormalization is in another type than float32: ONNX's own function of it mixes types. It computes in
   float32, and its result is rounded. That function does not know the axes' default either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from mirage_cli.errors import Refused
from mirage_cli.patching.graph_message import unused_name

_EPSILON = float(np.float32(1e-5))  #: of both operators, where nothing else is said: attributes are float32
_AXES_INPUT = 18  #: the opset from which on ReduceMean takes axes as an input
_BROADCAST = 7  #: the opset from which on elementwise operators broadcast as numpy does
_CACHED = ("com.microsoft", "MultiHeadAttention")
_STANDARDIZED = "MeanVarianceNormalization"
_CAUSAL = "unidirectional"
_PAST, _CACHES = 6, 2  #: the first input that is a cache, how many there are
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def make_loadable(graph: ir.Graph) -> None:
    """Put stand-ins into the body of a function, in place. Raises Refused naming an operator that has none."""
    opset = graph.opset_imports.get("", 1)
    for node in list(graph):
        if (node.domain, node.op_type) == _CACHED and _grows(node):
            _caches_in_front(_Before(graph, node, opset))
            graph.remove(node, safe=False)
            continue
        if node.op_type == _STANDARDIZED and node.domain == "" and node.inputs[0] is not None:
            _in_float32(_Before(graph, node, opset), node.inputs[0])
            continue
        if any(a.type in _GRAPHS for a in node.attributes.values()):
            raise Refused(f"{node.op_type} has sub-graphs, which a function cannot hold here")
        if node.domain != "" or _is_declared(node.op_type, opset):
            continue
        stand_in = _STAND_INS.get(node.op_type)
        if stand_in is None or opset < _BROADCAST:
            raise Refused(
                f"onnxruntime loads no function with {node.op_type}, which ONNX does not have at opset {opset}"
            )
        stand_in(_Before(graph, node, opset))
        graph.remove(node, safe=False)


def _is_declared(op_type: str, opset: int) -> bool:
    return bool(onnx.defs.has(op_type, opset, ""))


class _Before:
    """New nodes in front of one that is to go."""

    def __init__(self, graph: ir.Graph, node: ir.Node, opset: int) -> None:
        self.graph, self.node, self.opset = graph, node, opset
        self.names = {v.name or "" for n in graph for v in (*n.inputs, *n.outputs) if v is not None}

    def add(self, op: str, *inputs: ir.Value, to: ir.Value | None = None, **attributes: Any) -> ir.Value:
        """A node of one result."""
        result = self.fresh(op) if to is None else to
        self.graph.insert_before(
            self.node, ir.node(op, list(inputs), attributes, outputs=[result], name=f"{result.name}/{op}")
        )
        return result

    def number(self, value: float, dtype: ir.DataType) -> ir.Value:
        """A scalar."""
        return self.add("Constant", value=ir.tensor(np.array(value, dtype.numpy()), dtype))

    def fresh(self, what: str) -> ir.Value:
        """A tensor with a name that is free."""
        return ir.Value(name=unused_name(f"{self.node.outputs[0].name}/{what}", self.names))

    def mean(self, x: ir.Value, axes: Sequence[int], to: ir.Value | None = None) -> ir.Value:
        """The mean over some axes, which stay with one element."""
        if self.opset < _AXES_INPUT:
            return self.add("ReduceMean", x, to=to, axes=list(axes), keepdims=1)
        listed = self.add("Constant", value=ir.tensor(np.array(axes, np.int64)))
        return self.add("ReduceMean", x, listed, to=to, keepdims=1)

    def cast(self, x: ir.Value, given: ir.DataType, wanted: ir.DataType, to: ir.Value | None = None) -> ir.Value:
        """A tensor in another type."""
        if given == wanted:
            return x
        converted = self.fresh("Cast") if to is None else to
        node = ir.node("Cast", [x], {"to": wanted.value}, outputs=[converted], name=f"{converted.name}/Cast")
        self.graph.insert_before(self.node, node)
        return converted

    def result(self, k: int) -> ir.Value | None:
        """A result of the node, as one of a new node."""
        if k >= len(self.node.outputs) or not self.node.outputs[k].name:
            return None
        old = self.node.outputs[k]
        new = ir.Value(name=old.name, shape=old.shape, type=old.type)
        for i, out in enumerate(self.graph.outputs):
            if out is old:
                self.graph.outputs[i] = new
        ir.convenience.replace_all_uses_with(old, new)
        return new


def _normalised(y: _Before, centred: bool) -> None:
    """Cases 1 and 2, in the type that the operator says, and rounded at the end only, as onnxruntime's kernels do."""
    node = y.node
    x, gain, *rest = node.inputs
    assert x is not None and gain is not None
    bias = rest[0] if rest else None
    told = {k: a.value for k, a in node.attributes.items()}
    kind, rank = x.dtype, None if x.shape is None else len(x.shape)
    axis = told.get("axis", -1)
    if kind is None or (axis >= 0 and rank is None):
        raise Refused(f"{node.op_type} reads a tensor whose type or number of dimensions is unknown")
    wide = ir.DataType(told.get("stash_type", ir.DataType.FLOAT))
    result = gain.dtype or kind
    axes = range(axis if axis < 0 else axis - (rank or 0), 0)
    centre = y.cast(x, kind, wide)
    if centred:
        centre = y.add("Sub", centre, y.mean(centre, axes, y.result(1)))
    variance = y.mean(y.add("Mul", centre, centre), axes)
    root = y.add("Sqrt", y.add("Add", variance, y.number(told.get("epsilon", _EPSILON), wide)))
    scaled = y.add("Mul", centre, y.add("Reciprocal", root, to=y.result(2 if centred else 1)))
    last = y.result(0)
    assert last is not None
    steps = [("Mul", gain)] if bias is None else [("Mul", gain), ("Add", bias)]
    for k, (op, by) in enumerate(steps):
        ends = k == len(steps) - 1 and result == wide
        scaled = y.add(op, scaled, y.cast(by, result, wide), to=last if ends else None)
    if result != wide:
        y.cast(scaled, wide, result, last)


def _in_float32(y: _Before, x: ir.Value) -> None:
    """Case 4, in place."""
    kind, wide = x.dtype, ir.DataType.FLOAT
    if kind is None:
        raise Refused(f"{_STANDARDIZED} reads a tensor whose type is unknown")
    node = y.node
    axes = node.attributes.setdefault("axes", ir.AttrInt64s("axes", [0, 2, 3])).as_ints()
    last = None if kind == wide else y.result(0)
    if last is None:
        return
    normalized = y.add(node.op_type, y.cast(x, kind, wide), axes=list(axes))
    y.cast(normalized, wide, kind, last)
    y.graph.remove(node, safe=False)


def _grows(node: ir.Node) -> bool:
    """True if a MultiHeadAttention has past keys and values, new ones, and nothing that tells queries apart by
    position."""
    given: list[ir.Value | None] = [*node.inputs, *[None] * 10]
    caches = given[_PAST : _PAST + _CACHES]
    causal = _CAUSAL in node.attributes and node.attributes[_CAUSAL].as_int()
    plain = all(v is not None for v in (*given[:3], *caches)) and given[3] is None
    known = all(v is not None and v.shape is not None and len(v.shape) == 4 for v in caches)
    alone = known and all(v is not None and v.shape is not None and v.shape.is_static() for v in (given[0], *caches))
    alone = alone and given[0] is not None and given[0].shape is not None and given[0].shape[1] == 1
    return plain and known and (alone or not causal) and not any(given[_PAST + _CACHES :])


def _caches_in_front(y: _Before) -> None:
    """Case 3: keys and values of all positions, with heads in front of positions as this operator takes them too."""
    node = y.node
    heads, whole = node.attributes["num_heads"].as_int(), list(node.inputs[:_PAST])
    for k, past in enumerate(node.inputs[_PAST : _PAST + _CACHES]):
        new = node.inputs[1 + k]
        assert new is not None and past is not None and past.shape is not None
        size = past.shape[3] if isinstance(past.shape[3], int) else -1
        dims = y.add("Constant", value=ir.tensor(np.array([0, 0, heads, size], np.int64)))
        turned = y.add("Transpose", y.add("Reshape", new, dims), perm=[0, 2, 1, 3])
        whole[1 + k] = y.add("Concat", past, turned, to=y.result(1 + k), axis=2)
    last = y.result(0)
    assert last is not None
    attributes = [a for name, a in node.attributes.items() if name != _CAUSAL]
    y.graph.insert_before(node, ir.Node(node.domain, node.op_type, whole, attributes, outputs=[last], name=node.name))


_STAND_INS: dict[str, Callable[[_Before], None]] = {
    "LayerNormalization": lambda y: _normalised(y, True),
    "SimplifiedLayerNormalization": lambda y: _normalised(y, False),
}
