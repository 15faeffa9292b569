"""Edits that only shuffle a graph: names, order, copies, and operators that pass their operand on."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, LiftConstantsToInitializersPass

from tests.metamorphic.rewriting import Editor, array, dims, edit, ints, is_float


@edit
def identities(e: Editor) -> int:
    """Identity, Dropout and Cast to the same type behind values."""
    count = 0
    for node in e.nodes(share=0.3):
        for i, x in enumerate(node.inputs):
            if x is None or not is_float(x) or array(x) is not None:
                continue
            kind = e.random.choice(["Identity", "Dropout", "Cast"])
            extra = {"to": x.dtype} if kind == "Cast" else {}
            y = e.call(node, kind, x, **extra)
            y.shape, y.type = x.shape, x.type
            node.replace_input_with(i, y)
            count += 1
    return count


@edit
def swapped(e: Editor) -> int:
    """Operands of commutative operators exchanged."""
    nodes = e.nodes("Add", "Mul", "Max", "Min", "Equal", share=0.6)
    for node in nodes:
        if len(node.inputs) == 2:
            a, b = node.inputs
            node.replace_input_with(0, b)
            node.replace_input_with(1, a)
    return len(nodes)


@edit
def renamed(e: Editor) -> int:
    """Other names for nodes and for tensors that are no inputs or outputs."""
    outer = {id(v) for v in (*e.graph.inputs, *e.graph.outputs)}
    for node in e.graph:
        node.name = e.name("node")
        for v in node.outputs:
            if id(v) not in outer and v.name:
                v.name = e.name("tensor")
    return 1


@edit
def reordered(e: Editor) -> int:
    """Another topological order."""
    left = list(e.graph)
    waiting = {n: {i.producer() for i in n.inputs if i is not None and i.producer() is not None} for n in left}
    done: list[ir.Node] = []
    while waiting:
        ready = [n for n in left if n in waiting and not waiting[n].difference(done)]
        chosen = e.random.choice(ready)
        del waiting[chosen]
        done.append(chosen)
    for node in done:
        e.graph.remove(node)
    e.graph.extend(done)
    return 1


@edit
def unused(e: Editor) -> int:
    """Branches that lead nowhere."""
    nodes = [n for n in e.nodes("MatMul", "Mul", "Add", share=0.4) if is_float(n.outputs[0])]
    for node in nodes:
        last = e.call(node, "Sigmoid", e.call(node, "Neg", node.inputs[0]))
        e.call(node, "Mul", last, last)
    return len(nodes)


@edit
def duplicated(e: Editor) -> int:
    """Nodes with several readers computed again for one of them."""
    count = 0
    for node in e.nodes(share=0.5):
        if len(node.outputs) != 1 or len(node.outputs[0].uses()) < 2 or node.op_type == "Constant":
            continue
        v = node.outputs[0]
        reader, index = e.random.choice([(u.node, u.idx) for u in v.uses()])
        again = e.call(node, node.op_type, *node.inputs, **{a.name: a.value for a in node.attributes.values()})
        again.shape, again.type = v.shape, v.type
        reader.replace_input_with(index, again)
        count += 1
    return count


@edit
def shared(e: Editor) -> int:
    """Equal nodes computed once."""
    return int(CommonSubexpressionEliminationPass()(e.model).modified)


@edit
def constants_as_nodes(e: Editor) -> int:
    """Weights as Constant and ConstantOfShape nodes, or computed from two halves."""
    count = 0
    for name, v in list(e.graph.initializers.items()):
        tensor = v.const_value
        if tensor is None or v.is_graph_input() or not v.uses() or e.random.random() < 0.5 or v.is_graph_output():
            continue
        first = e.graph[0]
        elements = tensor.numpy()
        if is_float(v) and 1 < elements.size <= 4096 and (elements == elements.flat[0]).all():
            made = e.call(first, "ConstantOfShape", ints(e, elements.shape), value=ir.tensor(elements.reshape(-1)[:1]))
        elif is_float(v) and elements.size <= 64 and elements.dtype == np.float32 and np.isfinite(elements).all():
            made = e.call(first, "Add", e.constant(elements / 2), e.constant(elements / 2))
        else:
            made = e.call(first, "Constant", value=tensor)
        made.shape, made.type = v.shape, v.type
        ir.convenience.replace_all_uses_with(v, made)
        del e.graph.initializers[name]
        count += 1
    return count


@edit
def constants_as_initializers(e: Editor) -> int:
    """Constant nodes as weights of the graph."""
    before = len(list(e.graph))
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(e.model)
    return before - len(list(e.graph))


@edit
def reshape_pairs(e: Editor) -> int:
    """Two Reshapes, or a Squeeze of an Unsqueeze, that undo each other."""
    count = 0
    for node in e.nodes("Add", "Mul", "MatMul", "Softmax", "LayerNormalization", share=0.4):
        x = node.inputs[0]
        shape = dims(x)
        if x is None or shape is None or array(x) is not None:
            continue
        if e.random.random() < 0.5:
            y = e.call(node, "Reshape", e.call(node, "Reshape", x, ints(e, [-1])), ints(e, shape))
        else:
            at = ints(e, [e.random.randrange(len(shape) + 1)])
            y = e.call(node, "Squeeze", e.call(node, "Unsqueeze", x, at), at)
        y.shape, y.type = x.shape, x.type
        node.replace_input_with(0, y)
        count += 1
    return count


@edit
def transpose_pairs(e: Editor) -> int:
    """Elementwise operators on transposed operands, and their results transposed back."""
    count = 0
    for node in e.nodes("Sigmoid", "Tanh", "Erf", "Gelu", "Neg", "Add", "Mul", "Sub", share=0.4):
        shapes = [dims(x) for x in node.inputs]
        if shapes[0] is None or len(shapes[0]) < 2 or any(s != shapes[0] for s in shapes):
            continue
        perm = list(range(len(shapes[0])))
        e.random.shuffle(perm)
        turned = [e.call(node, "Transpose", x, perm=perm) for x in node.inputs]
        result = e.call(node, node.op_type, *turned, **{a.name: a.value for a in node.attributes.values()})
        e.replace(node, e.call(node, "Transpose", result, perm=[perm.index(i) for i in range(len(perm))]))
        count += 1
    return count
