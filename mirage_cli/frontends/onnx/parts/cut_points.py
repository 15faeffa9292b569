"""Tensors where fragments can be cut: edits of the model that keep its answers.

Only what is a tensor of the model can be stored between fragments, so what one exporter stores and another does not
would cut them in other places.

1. A normalisation that adds a skip connection inside is a sum and a normalisation. Where the sum is among the results, what
   is normalised is that, rounded as it is stored, as in onnxruntime's CUDA provider. Else, of 16-bit operands both are
   computed in float32, as on a CPU there, and rounded when they are stored.
2. A multiplication by a number stands behind the views of its result, not before them: the value without the factor is
   then there in the layout in which it is read.
3. onnxruntime's Attention is a product with its weight, a bias, a split, and a MultiHeadAttention; its cache is two.
4. The bias of a MultiHeadAttention is added to queries, keys and values in front of it.
5. Rows that are chosen when the model runs, or counted from the end of a dimension (of the last token), are chosen before they
   are normalised or converted, each by itself: the chosen ones are a tensor then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mirage_cli.frontends.onnx.ops.registry import MICROSOFT

SPLIT_BY_INPUT = 13  #: the opset from which on sizes of a Split and axes are inputs
SUM_OUTPUT = 3  #: of the operators below
_EPSILON = 1e-12  #: and their default
_SKIPS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
_NARROW, _WIDE = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16), ir.DataType.FLOAT
_VIEWS = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity")
_SCALES = ("Mul", "Div")
_NORMS = ("SimplifiedLayerNormalization", "LayerNormalization", "RMSNormalization")


def store_what_is_cut_at(model: ir.Model, opset: int) -> None:
    """Make the edits, in place, in the forms of an opset."""
    for node in list(model.graph):
        if node.domain == MICROSOFT and node.op_type in _SKIPS:
            _apart_from_sum(node)
        elif node.domain == MICROSOFT and node.op_type == "Attention":
            _parts_of_attention(node, opset)
        elif node.domain == MICROSOFT and node.op_type == "MultiHeadAttention":
            _bias_in_front(node, opset)
        elif node.domain in ("", "ai.onnx") and node.op_type == "Gather":
            _rows_first(node)
        elif node.domain in ("", "ai.onnx") and node.op_type in _VIEWS:
            _before_scales(node)


def _apart_from_sum(node: ir.Node) -> None:
    """Case 1: the sum, and its normalisation with the same further results."""
    centred = node.op_type == "SkipLayerNormalization"
    given: list[ir.Value | None] = [*node.inputs, *[None] * 3]
    x, skip, gain, *rest = given
    beta, bias = rest[:2] if centred else (None, rest[0])
    if x is None or skip is None:
        return
    before = _Before(node)
    stored = node.outputs[SUM_OUTPUT] if len(node.outputs) > SUM_OUTPUT and node.outputs[SUM_OUTPUT].name else None
    narrow = x.dtype if x.dtype in _NARROW and (stored is None or bias is not None) else None
    if narrow is not None:
        x, skip, bias = (None if v is None else before.cast(v, _WIDE) for v in (x, skip, bias))
        assert x is not None and skip is not None
    total = before.add("Add", [x, skip], x.shape)
    total = total if bias is None else before.add("Add", [total, bias], x.shape)
    if narrow is not None and stored is not None:
        total, narrow = before.cast(total, narrow), None
    elif narrow is not None:
        gain, beta = (None if v is None else before.cast(v, _WIDE) for v in (gain, beta))
    epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else _EPSILON
    kind = "LayerNormalization" if centred else "SimplifiedLayerNormalization"
    count = max(k + 1 for k, v in enumerate(node.outputs[:SUM_OUTPUT]) if v.name or not k)
    results = [ir.Value(name="" if not v.name else None) for v in node.outputs[:count]]
    inputs = [total, gain, beta] if beta is not None else [total, gain]
    norm = ir.node(kind, inputs, {"epsilon": epsilon, "axis": -1}, outputs=results, name=node.name)
    before.graph.insert_before(node, norm)
    if narrow is not None:
        results[0].type, results[0].shape = ir.TensorType(_WIDE), x.shape
        results[0].name = f"{node.outputs[0].name}/wide"
        results[0] = before.cast(results[0], narrow)
    pairs = list(zip(node.outputs, results, strict=False))
    if stored is not None:
        pairs.append((stored, total))
    take_place(node, pairs)


def _before_scales(view: ir.Node) -> None:
    """Case 2: views are met in order, so a chain of them moves one by one."""
    scaled = view.inputs[0]
    scale = scaled.producer() if scaled is not None else None
    if scaled is None or scale is None or scale.op_type not in _SCALES or scale.domain not in ("", "ai.onnx"):
        return
    x, c = scale.inputs
    if c is not None and x is not None and _is_number(x) and scale.op_type == "Mul":
        x, c = c, x
    alone = len(scaled.uses()) == 1 and not scaled.is_graph_output()
    result = view.outputs[0]
    if not alone or x is None or c is None or not _is_number(c) or not _same_shape(x, scaled):
        return
    if result.is_graph_output() or result.shape is None or c.shape is None or len(c.shape) > len(result.shape):
        return
    viewed = ir.Value(name=f"{result.name}/unscaled", shape=result.shape, type=result.type)
    moved = ir.Node(
        "", view.op_type, [x, *view.inputs[1:]], list(view.attributes.values()), outputs=[viewed], name=view.name
    )
    graph = view.graph
    assert graph is not None
    again = ir.Node("", scale.op_type, [viewed, c], name=scale.name, num_outputs=1)
    graph.insert_after(view, [moved, again])
    name = result.name
    ir.convenience.replace_all_uses_with(result, again.outputs[0])
    again.outputs[0].shape, again.outputs[0].type = result.shape, result.type
    graph.remove([view, scale], safe=True)
    again.outputs[0].name = name


def _rows_first(gather: ir.Node) -> None:
    """Case 5: the operator in front, if nothing else reads its result, comes to stand behind."""
    indices, axis = gather.inputs[1], gather.attributes.get_int("axis", 0)
    stored = None if indices is None or indices.is_graph_input() else indices.const_value
    if indices is None or (stored is not None and bool((stored.numpy() >= 0).all())):
        return
    while (y := gather.inputs[0]) is not None and (maker := y.producer()) is not None:
        x, result, graph = maker.inputs[0], gather.outputs[0], gather.graph
        rank = next((len(v.shape) for v in (y, x) if v is not None and v.shape is not None), None)  # both have it
        alone = len(y.uses()) == 1 and not y.is_graph_output() and maker.graph is graph
        if not alone or x is None or rank is None or axis % rank == rank - 1 or not _by_rows(maker, rank):
            return
        assert graph is not None
        rows = ir.Value(name=f"{result.name}/rows", shape=result.shape, type=x.type)
        chosen = ir.Node("", "Gather", [x, indices], list(gather.attributes.values()), outputs=[rows], name=gather.name)
        told = [a for a in maker.attributes.values() if a.name != "axis"]
        told += [ir.AttrInt64("axis", -1)] if maker.op_type in _NORMS else []
        behind = ir.Node(maker.domain, maker.op_type, [rows, *maker.inputs[1:]], told, name=maker.name, num_outputs=1)
        graph.insert_after(gather, [chosen, behind])
        take_place(gather, [(result, behind.outputs[0])])
        graph.remove(maker, safe=True)
        gather = chosen


def _by_rows(maker: ir.Node, rank: int) -> bool:
    """True for what computes one result of each row by itself: a normalisation along the last of so many dimensions, with a
    gain and a bias of these alone, or a conversion."""
    if maker.domain not in ("", "ai.onnx") or any(v.name and v.uses() for v in maker.outputs[1:]):
        return False
    alike = all(v is None or (v.shape is not None and len(v.shape) == 1) for v in maker.inputs[1:])
    last = maker.attributes.get_int("axis", -1) in (-1, rank - 1) and alike
    return maker.op_type == "Cast" or (maker.op_type in _NORMS and last)


# --- 3 and 4: attention with more inside ------------------------------------------------------------------------------
_KEPT = ("num_heads", "mask_filter_value", "scale", "unidirectional")
_INSIDE = ("do_rotary", "past_present_share_buffer")
_BIAS = 3  #: of MultiHeadAttention


def _parts_of_attention(node: ir.Node, opset: int) -> None:
    """Case 3; a node with a cache of fixed size, rotary embeddings inside or a mask of its own stays as it is."""
    given: list[ir.Value | None] = [*node.inputs, *[None] * 7]
    x, w, bias, mask, past, added, *rest = given
    inside = any(n in node.attributes and node.attributes[n].as_int() for n in _INSIDE)
    present = node.outputs[1] if len(node.outputs) > 1 and node.outputs[1].name else None
    if x is None or w is None or w.shape is None or any(rest) or inside or not _mask_fits(mask, x):
        return
    width = w.shape[1]
    if not isinstance(width, int):
        return
    sizes = (
        list(node.attributes["qkv_hidden_sizes"].as_ints())
        if "qkv_hidden_sizes" in node.attributes
        else [width // 3] * 3
    )
    y = _Before(node)
    total = y.add("MatMul", [x, w], _shaped(x, width))
    if bias is not None:
        total = y.add("Add", [total, bias], _shaped(x, width))
    parts = y.parts(total, sizes, opset)
    inputs = [*parts, None, mask, added]
    if past is not None:
        rest_of = None if past.shape is None else ir.Shape(list(past.shape)[1:])
        numbers = (y.weight(np.array(i), "part") for i in range(2))
        inputs += [y.add("Gather", [past, n], rest_of) for n in numbers]
    attributes = [a for name, a in node.attributes.items() if name in _KEPT]
    count = 1 if present is None else 3
    attention = ir.Node(MICROSOFT, "MultiHeadAttention", inputs, attributes, num_outputs=count, name=node.name)
    y.graph.insert_before(node, attention)
    results = [(node.outputs[0], attention.outputs[0])]
    if present is not None:
        for k, v in enumerate(attention.outputs[1:]):
            v.name, v.type = f"{present.name}/{k}", x.type
        results.append((present, y.stacked(attention.outputs[1:], opset)))
    take_place(node, results)


def _mask_fits(mask: ir.Value | None, x: ir.Value) -> bool:
    """True if MultiHeadAttention takes a mask too, as far as its dimensions are known: neither the ends and starts of
    rows, nor one that stands for none, nor one of four dimensions."""
    if mask is None or mask.shape is None:
        return True
    dims = list(mask.shape)
    if len(dims) == 1:
        batch, count = None if x.shape is None else x.shape[0], dims[0]
        return not (isinstance(batch, int) and isinstance(count, int)) or count in (batch, 3 * batch + 2)
    return len(dims) == 3 or (len(dims) == 2 and dims[1] != 1)


def _bias_in_front(node: ir.Node, opset: int) -> None:
    """Case 4, where queries, keys and values are apart."""
    bias = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
    operands = [v for v in node.inputs[:3] if v is not None]
    sizes = [n for v in operands if (n := _width(v)) is not None]
    if bias is None or len(sizes) != 3:
        return
    y = _Before(node)
    for i, (v, part) in enumerate(zip(operands, y.parts(bias, sizes, opset), strict=True)):
        node.replace_input_with(i, y.add("Add", [v, part], v.shape))
    node.replace_input_with(_BIAS, None)


def _width(v: ir.Value) -> int | None:
    """The last dimension of three; behind operators without shape inference, that of the weight that made it."""
    producer = v.producer()
    weight = producer.inputs[1] if producer is not None and producer.op_type == "MatMul" else None
    shape = v.shape if v.shape is not None else weight.shape if weight is not None else None
    expected = 3 if v.shape is not None else 2
    last = shape[-1] if shape is not None and len(shape) == expected else None
    return last if isinstance(last, int) else None


def _shaped(x: ir.Value, width: int) -> ir.Shape | None:
    return None if x.shape is None else ir.Shape([*list(x.shape)[:-1], width])


def take_place(old: ir.Node, results: Sequence[tuple[ir.Value, ir.Value]]) -> None:
    """Let what reads an old result read the new one, which takes its name; the old node goes."""
    graph = old.graph
    assert graph is not None
    named = [(result, new, result.name) for result, new in results if result.name]
    for result, new, _ in named:
        new.shape, new.type = result.shape or new.shape, result.type or new.type
        for i, out in enumerate(graph.outputs):
            if out is result:
                graph.outputs[i] = new
        ir.convenience.replace_all_uses_with(result, new)
    graph.remove(old, safe=True)
    for _, new, name in named:
        new.name = name


class _Before:
    """New nodes in front of one, named after its first result."""

    def __init__(self, node: ir.Node) -> None:
        assert node.graph is not None and isinstance(node.graph, ir.Graph)
        self.node, self.graph, self.count = node, node.graph, 0

    def add(self, op: str, inputs: list[ir.Value], shape: ir.Shape | None) -> ir.Value:
        """A node of one result, of the type of its first operand."""
        self.count += 1
        name = f"{self.node.outputs[0].name}/{op}_{self.count}"
        result = ir.Value(name=name, shape=shape, type=inputs[0].type)
        self.graph.insert_before(self.node, ir.node(op, inputs, outputs=[result], name=name))
        return result

    def cast(self, x: ir.Value, to: ir.DataType) -> ir.Value:
        """A value in another element type; a weight stays one."""
        stored = None if x.is_graph_input() else x.const_value
        if stored is not None:
            return self.weight(stored.numpy().astype(to.numpy()), "cast")
        converted = self.add("Cast", [x], x.shape)
        node = converted.producer()
        assert node is not None
        node.attributes["to"] = ir.AttrInt64("to", to.value)
        converted.type = ir.TensorType(to)
        return converted

    def parts(self, x: ir.Value, sizes: list[int], opset: int) -> list[ir.Value]:
        """A value cut along its last dimension: a weight into weights."""
        stored = None if x.is_graph_input() else x.const_value
        if stored is not None:
            cuts = np.split(stored.numpy(), np.cumsum(sizes)[:-1], -1)
            return [self.weight(np.ascontiguousarray(c), "part") for c in cuts]
        self.count += 1
        name = f"{self.node.outputs[0].name}/Split_{self.count}"
        parts = [ir.Value(name=f"{name}/{k}", shape=_shaped(x, n), type=x.type) for k, n in enumerate(sizes)]
        if opset < SPLIT_BY_INPUT:
            split = ir.node("Split", [x], {"axis": -1, "split": sizes}, outputs=parts, name=name)
        else:
            counts = self.weight(np.array(sizes, np.int64), "sizes")
            split = ir.node("Split", [x, counts], {"axis": -1}, outputs=parts, name=name)
        self.graph.insert_before(self.node, split)
        return parts

    def stacked(self, values: Sequence[ir.Value], opset: int) -> ir.Value:
        """Values one after the other along a new first dimension."""
        parts = []
        for v in values:
            self.count += 1
            name = f"{self.node.outputs[0].name}/Unsqueeze_{self.count}"
            unsqueezed = ir.Value(name=name, type=v.type)
            if opset < SPLIT_BY_INPUT:
                more = ir.node("Unsqueeze", [v], {"axes": [0]}, outputs=[unsqueezed], name=name)
            else:
                more = ir.node(
                    "Unsqueeze", [v, self.weight(np.zeros(1, np.int64), "axis")], outputs=[unsqueezed], name=name
                )
            self.graph.insert_before(self.node, more)
            parts.append(unsqueezed)
        joined = ir.Value(name=f"{self.node.outputs[0].name}/Concat", type=values[0].type)
        self.graph.insert_before(self.node, ir.node("Concat", parts, {"axis": 0}, outputs=[joined], name=joined.name))
        return joined

    def weight(self, elements: NDArray[Any], what: str) -> ir.Value:
        """A new weight."""
        self.count += 1
        name = f"{self.node.outputs[0].name}/{what}_{self.count}"
        tensor = ir.tensor(elements, name=name)
        v = ir.Value(
            name=name, shape=ir.Shape(list(elements.shape)), type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        self.graph.register_initializer(v)
        return v


def _is_number(v: ir.Value) -> bool:
    tensor = v.const_value
    return tensor is not None and not v.is_graph_input() and tensor.size == 1


def _same_shape(x: ir.Value, y: ir.Value) -> bool:
    return x.shape is not None and y.shape is not None and x.shape == y.shape
