"""Edits of matrix products, of scales around them, and of views: layouts, repeats, parts."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from tests.metamorphic.rewriting import Editor, array, dims, edit, ints, is_float, number


def _linear(e: Editor, share: float = 1.0) -> list[tuple[ir.Node, ir.Value, np.ndarray]]:  # type: ignore[type-arg]
    """Products of a value of static dimensions with a two-dimensional weight."""
    found = []
    for node in e.nodes("MatMul", share=share):
        x, w = node.inputs[0], array(node.inputs[1])
        shape = dims(x)
        if x is not None and w is not None and w.ndim == 2 and shape is not None and len(shape) >= 2:
            found.append((node, x, w))
    return found


@edit
def gemms(e: Editor) -> int:
    """MatMul as Gemm between Reshapes, its weight transposed or not."""
    found = _linear(e, 0.7)
    for node, x, w in found:
        shape = dims(x)
        assert shape is not None
        flat = e.call(node, "Reshape", x, ints(e, [-1, shape[-1]]))
        turned = e.random.random() < 0.5
        y = e.call(node, "Gemm", flat, e.constant(w.T if turned else w, w.dtype), transB=int(turned))
        e.replace(node, e.call(node, "Reshape", y, ints(e, [*shape[:-1], w.shape[1]])))
    return len(found)


@edit
def einsums(e: Editor) -> int:
    """MatMul as Einsum."""
    count = 0
    for node in e.nodes("MatMul", share=0.7):
        ranks = [len(s) for s in (dims(node.inputs[0]), dims(node.inputs[1])) if s is not None]
        if len(ranks) != 2 or min(ranks) < 2:
            continue
        letters = "abcdefgh"[: max(ranks) - 2]
        left, right = letters[len(letters) - ranks[0] + 2 :], letters[len(letters) - ranks[1] + 2 :]
        if dims(node.inputs[0])[:-2] != dims(node.inputs[1])[:-2] and right:  # type: ignore[index]
            continue
        e.replace(node, e.call(node, "Einsum", *node.inputs, equation=f"{left}mk,{right}kn->{letters}mn"))
        count += 1
    return count


@edit
def matmuls(e: Editor) -> int:
    """Gemm as MatMul and Add."""
    count = 0
    for node in e.nodes("Gemm", share=0.8):
        plain = all(a.value == 1 for a in node.attributes.values() if a.name in ("alpha", "beta"))
        flags = [node.attributes[k].as_int() if k in node.attributes else 0 for k in ("transA", "transB")]
        if not plain or flags[0]:
            continue
        w = node.inputs[1]
        y = e.call(node, "MatMul", node.inputs[0], e.call(node, "Transpose", w, perm=[1, 0]) if flags[1] else w)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        e.replace(node, e.call(node, "Add", bias, y) if bias is not None else y)
        count += 1
    return count


@edit
def transposed_weights(e: Editor) -> int:
    """Weights stored transposed, with a Transpose in front of the product."""
    found = _linear(e, 0.5)
    for node, _, w in found:
        node.replace_input_with(1, e.call(node, "Transpose", e.constant(w.T, w.dtype), perm=[1, 0]))
    return len(found)


@edit
def transposed_products(e: Editor) -> int:
    """x W as the transpose of W^T x^T."""
    found = _linear(e, 0.5)
    for node, x, w in found:
        rank = len(dims(x) or ())
        perm = [*range(rank - 2), rank - 1, rank - 2]
        y = e.call(node, "MatMul", e.constant(w.T, w.dtype), e.call(node, "Transpose", x, perm=perm))
        e.replace(node, e.call(node, "Transpose", y, perm=perm))
    return len(found)


@edit
def convolutions(e: Editor) -> int:
    """MatMul as a convolution with one kernel element."""
    found = [(n, x, w) for n, x, w in _linear(e, 0.5) if len(dims(x) or ()) == 3]
    for node, x, w in found:
        kernel = e.constant(w.T[:, :, None], w.dtype)
        y = e.call(node, "Conv", e.call(node, "Transpose", x, perm=[0, 2, 1]), kernel)
        e.replace(node, e.call(node, "Transpose", y, perm=[0, 2, 1]))
    return len(found)


# --- scales -------------------------------------------------------------------------------------------------------------
@edit
def scales(e: Editor) -> int:
    """Scores multiplied by 1 in parts: on the queries, the keys and the scores, as powers of two."""
    count = 0
    for node in e.nodes("MatMul", share=0.8):
        x, y = node.inputs
        if x is None or y is None or array(x) is not None or array(y) is not None or dims(y) is None:
            continue
        if len(dims(y) or ()) < 3 or not is_float(x) or _is_weight(y):
            continue
        powers = [2.0 ** e.random.randrange(-2, 3) for _ in range(2)]
        node.replace_input_with(0, e.call(node, "Mul", x, e.like(x, powers[0])))
        node.replace_input_with(1, e.call(node, "Div", y, e.like(y, 1 / powers[1])))
        product = e.call(node, "MatMul", *node.inputs)
        e.replace(node, e.call(node, "Mul", product, e.like(x, 1 / (powers[0] * powers[1]))))
        count += 1
    return count


def _is_weight(v: ir.Value) -> bool:
    producer = v.producer()
    return producer is not None and array(producer.inputs[0] if producer.inputs else None) is not None


@edit
def split_scales(e: Editor) -> int:
    """A number multiplied in as its root, twice."""
    count = 0
    for node in e.nodes("Mul", share=0.7):
        for x, c in (node.inputs, node.inputs[::-1]):
            value = number(c)
            if value is None or value <= 0 or x is None or not is_float(x) or array(x) is not None:
                continue
            root = e.like(x, math.sqrt(value))
            e.replace(node, e.call(node, "Mul", e.call(node, "Mul", root, x), root))
            count += 1
            break
    return count


# --- views --------------------------------------------------------------------------------------------------------------
@edit
def slices(e: Editor) -> int:
    """Split as Slices or Gathers, and Slices as Gathers."""
    count = 0
    for node in e.nodes("Split", "Slice", share=0.8):
        x = node.inputs[0]
        shape, parts = dims(x), [dims(o) for o in node.outputs]
        if x is None or shape is None or any(p is None for p in parts) or array(x) is not None or not is_float(x):
            continue
        if node.op_type == "Split":
            axis = (node.attributes["axis"].as_int() if "axis" in node.attributes else 0) % len(shape)
            start, results = 0, []
            for p in parts:
                assert p is not None
                results.append(_part(e, node, x, axis, start, p[axis]))
                start += p[axis]
            e.replace(node, *results)
        else:
            starts, axes = array(node.inputs[1]), array(node.inputs[3] if len(node.inputs) > 3 else None)
            steps = array(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1)
            if starts is None or axes is None or steps is None or axes.size != 1 or steps[0] != 1:
                continue
            axis = int(axes[0]) % len(shape)
            start = int(starts[0]) if starts[0] >= 0 else shape[axis] + int(starts[0])
            e.replace(node, _part(e, node, x, axis, start, parts[0][axis]))  # type: ignore[index]
        count += 1
    return count


def _part(e: Editor, at: ir.Node, x: ir.Value, axis: int, start: int, extent: int) -> ir.Value:
    if e.random.random() < 0.5:
        return e.call(at, "Gather", x, ints(e, range(start, start + extent)), axis=axis)  # type: ignore[no-any-return]
    arguments = (ints(e, [k]) for k in (start, start + extent, axis))
    return e.call(at, "Slice", x, *arguments)  # type: ignore[no-any-return]


@edit
def repeats(e: Editor) -> int:
    """Expand of a dimension as Tile, or as Gather of position 0 again and again."""
    count = 0
    for node in e.nodes("Expand", share=0.9):
        x = node.inputs[0]
        before, after = dims(x), dims(node.outputs[0])
        if x is None or before is None or after is None or len(before) != len(after) or not is_float(x):
            continue
        wide = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        if len(wide) != 1:
            continue
        if e.random.random() < 0.5:
            e.replace(node, e.call(node, "Tile", x, ints(e, [b // a for a, b in zip(before, after, strict=True)])))
        else:
            e.replace(node, e.call(node, "Gather", x, ints(e, [0] * after[wide[0]]), axis=wide[0]))
        count += 1
    return count


@edit
def grouped_heads(e: Editor) -> int:
    """Repeated heads, Unsqueeze, Expand, Reshape, as one Gather of heads."""
    count = 0
    for node in e.nodes("Reshape", share=0.8):
        wide = node.inputs[0].producer() if node.inputs[0] is not None else None
        raised = wide.inputs[0].producer() if wide is not None and wide.op_type == "Expand" and wide.inputs[0] else None
        if wide is None or raised is None or raised.op_type not in ("Unsqueeze", "Reshape"):
            continue
        x, shape, after = raised.inputs[0], dims(wide.inputs[0]), dims(node.outputs[0])
        repeated = dims(wide.outputs[0])
        own = dims(x)
        if x is None or shape is None or after is None or repeated is None or own is None or len(shape) != 5:
            continue
        if shape[2] != 1 or len(own) != 4 or len(after) != 4 or after[1] != own[1] * repeated[2]:
            continue
        heads = [h for h in range(own[1]) for _ in range(repeated[2])]
        e.replace(node, e.call(node, "Gather", x, ints(e, heads), axis=1))
        count += 1
    return count
