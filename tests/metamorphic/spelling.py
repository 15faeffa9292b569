"""Edits that write operators in other operators: normalisations, activations, softmax, quotients, sums."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from tests.metamorphic.rewriting import Editor, array, dims, edit, ints, is_float, number


def _mean_square(e: Editor, at: ir.Node, x: ir.Value, axis: int) -> ir.Value:
    power = e.call(at, "Pow", x, e.like(x, 2.0)) if e.random.random() < 0.5 else None
    squared = power or e.call(at, "Mul", x, x)
    return e.call(at, "ReduceMean", squared, ints(e, [axis]), keepdims=1)  # type: ignore[no-any-return]


def _divided(e: Editor, at: ir.Node, x: ir.Value, variance: ir.Value, like: ir.Value) -> ir.Value:
    """x / sqrt(variance) in one of its spellings."""
    kind = e.random.randrange(3)
    if kind == 0:
        return e.call(at, "Div", x, e.call(at, "Sqrt", variance))  # type: ignore[no-any-return]
    if kind == 1:
        return e.call(at, "Mul", x, e.call(at, "Reciprocal", e.call(at, "Sqrt", variance)))  # type: ignore[no-any-return]
    return e.call(at, "Mul", x, e.call(at, "Pow", variance, e.like(like, -0.5)))  # type: ignore[no-any-return]


@edit
def layer_norms(e: Editor) -> int:
    """LayerNormalization spelled out."""
    nodes = [n for n in e.nodes("LayerNormalization", share=0.8) if len([o for o in n.outputs if o.name]) == 1]
    for node in nodes:
        x, gain = node.inputs[0], node.inputs[1]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        assert x is not None
        epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
        mean = e.call(node, "ReduceMean", x, ints(e, [-1]), keepdims=1)
        centred = e.call(node, "Sub", x, mean)
        shifted = e.call(node, "Add", _mean_square(e, node, centred, -1), e.like(x, epsilon))
        y = e.call(node, "Mul", _divided(e, node, centred, shifted, x), gain)
        e.replace(node, e.call(node, "Add", y, bias) if bias is not None else y)
    return len(nodes)


@edit
def rms_norms(e: Editor) -> int:
    """RMSNormalization spelled out."""
    nodes = e.nodes("RMSNormalization", share=0.8)
    for node in nodes:
        x, gain = node.inputs[:2]
        assert x is not None
        epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
        shifted = e.call(node, "Add", _mean_square(e, node, x, -1), e.like(x, epsilon))
        e.replace(node, e.call(node, "Mul", gain, _divided(e, node, x, shifted, x)))
    return len(nodes)


@edit
def gelus(e: Editor) -> int:
    """Gelu by Erf or Tanh."""
    nodes = e.nodes("Gelu", share=0.8)
    for node in nodes:
        x = node.inputs[0]
        assert x is not None
        kind = node.attributes["approximate"].as_string() if "approximate" in node.attributes else "none"
        half = e.like(x, 0.5)
        other = e.random.random() < 0.5
        if kind == "none":
            by_root = e.call(node, "Div", x, e.like(x, math.sqrt(2))) if other else None
            inner = e.call(node, "Erf", by_root or e.call(node, "Mul", x, e.like(x, math.sqrt(0.5))))
        else:
            power = e.call(node, "Pow", x, e.like(x, 3.0)) if other else None
            cube = power or e.call(node, "Mul", e.call(node, "Mul", x, x), x)
            total = e.call(node, "Add", x, e.call(node, "Mul", cube, e.like(x, 0.044715)))
            inner = e.call(node, "Tanh", e.call(node, "Mul", total, e.like(x, math.sqrt(2 / math.pi))))
        factor = e.call(node, "Add", inner, e.like(x, 1.0))
        order = e.random.randrange(3)
        if order == 0:
            y = e.call(node, "Mul", e.call(node, "Mul", x, half), factor)
        elif order == 1:
            y = e.call(node, "Mul", e.call(node, "Mul", x, factor), half)
        else:
            y = e.call(node, "Mul", x, e.call(node, "Mul", factor, half))
        e.replace(node, y)
    return len(nodes)


@edit
def sigmoids(e: Editor) -> int:
    """Sigmoid by Exp."""
    nodes = e.nodes("Sigmoid", share=0.8)
    for node in nodes:
        x = node.inputs[0]
        assert x is not None
        below = e.call(node, "Add", e.call(node, "Exp", e.call(node, "Neg", x)), e.like(x, 1.0))
        if e.random.random() < 0.5:
            e.replace(node, e.call(node, "Reciprocal", below))
        else:
            e.replace(node, e.call(node, "Div", e.like(x, 1.0), below))
    return len(nodes)


@edit
def softmaxes(e: Editor) -> int:
    """Softmax by ReduceMax, Exp and ReduceSum."""
    nodes = [n for n in e.nodes("Softmax", share=0.9) if is_float(n.inputs[0])]
    for node in nodes:
        x = node.inputs[0]
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
        top = e.call(node, "ReduceMax", x, *_axes(e, [axis]), keepdims=1, **_axes_attribute(e, [axis]))
        power = e.call(node, "Exp", e.call(node, "Sub", x, top))
        total = e.call(node, "ReduceSum", power, ints(e, [axis]), keepdims=1)
        e.replace(node, e.call(node, "Div", power, total))
    return len(nodes)


def _axes(e: Editor, axes: list[int]) -> list[ir.Value]:
    return [ints(e, axes)] if e.model.opset_imports[""] >= 18 else []


def _axes_attribute(e: Editor, axes: list[int]) -> dict[str, list[int]]:
    return {} if e.model.opset_imports[""] >= 18 else {"axes": axes}


@edit
def squares(e: Editor) -> int:
    """Pow by Mul, and the reverse."""
    count = 0
    for node in e.nodes("Pow", "Mul", share=0.7):
        x, y = node.inputs
        if node.op_type == "Pow" and number(y) == 2.0:
            e.replace(node, e.call(node, "Mul", x, x))
        elif node.op_type == "Mul" and x is y and x is not None and is_float(x):
            e.replace(node, e.call(node, "Pow", x, e.like(x, 2.0)))
        else:
            continue
        count += 1
    return count


@edit
def quotients(e: Editor) -> int:
    """Div by Mul with a Reciprocal or with the inverse number, and Reciprocal by Div."""
    count = 0
    for node in e.nodes("Div", "Reciprocal", share=0.7):
        if not is_float(node.inputs[0]):
            continue
        if node.op_type == "Reciprocal":
            x = node.inputs[0]
            assert x is not None
            e.replace(node, e.call(node, "Div", e.like(x, 1.0), x))
        else:
            x, y = node.inputs
            value = array(y)
            if value is not None:
                assert y is not None
                e.replace(node, e.call(node, "Mul", x, e.constant(1 / value.astype(np.float64), value.dtype)))
            else:
                e.replace(node, e.call(node, "Mul", e.call(node, "Reciprocal", y), x))
        count += 1
    return count


@edit
def differences(e: Editor) -> int:
    """Sub by Add with Neg, and Neg by Mul or Sub."""
    count = 0
    for node in e.nodes("Sub", "Neg", share=0.7):
        x = node.inputs[0]
        if x is None or not is_float(x):
            continue
        if node.op_type == "Sub":
            e.replace(node, e.call(node, "Add", x, e.call(node, "Neg", node.inputs[1])))
        elif e.random.random() < 0.5:
            e.replace(node, e.call(node, "Mul", x, e.like(x, -1.0)))
        else:
            e.replace(node, e.call(node, "Sub", e.like(x, 0.0), x))
        count += 1
    return count


@edit
def reassociated(e: Editor) -> int:
    """(a + b) + c as a + (b + c), where a + b has no other reader."""
    count = 0
    for node in e.nodes("Add", share=0.8):
        for i in (0, 1):
            x = node.inputs[i]
            inner = x.producer() if x is not None else None
            if x is None or inner is None or inner.op_type != "Add" or len(x.uses()) != 1 or not is_float(x):
                continue
            if x.is_graph_output() or dims(x) is None or dims(inner.inputs[0]) != dims(x):
                continue
            a, b = inner.inputs
            e.replace(node, e.call(node, "Add", a, e.call(node, "Add", b, node.inputs[1 - i])))
            count += 1
            break
    return count
