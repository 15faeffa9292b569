"""Small models to start from: operator samples, texts with control flow and shape arithmetic, and pieces of samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

ROOT = Path(__file__).resolve().parents[2]
WINDOW = 10  #: nodes of a piece of a model

INNER = """<ir_version: 9, opset_import: ["" : 18, "local" : 1]>
g (float[N,4] x, bool c, int64 n) => (float[N,4] y) {
    a = local.f (x)
    b = If (c) <then_branch = t () => (float[N,4] p) { p = Add(a, a) },
                else_branch = e () => (float[N,4] q) { q = Softmax(a) }>
    d = Loop (n, c, b) <body = l (int64 i, bool k, float[N,4] s) => (bool k2, float[N,4] s2) {
        k2 = Identity(k)
        s2 = Mul(s, a) }>
    y = MatMul(d, w)
}
<domain: "local", opset_import: ["" : 18]> f (x) => (y) { h = Relu(x) y = Mul(h, x) }
"""
SHAPES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch,PAST,8] x, int64[batch,PAST] ids) => (float[batch,rows,4,2] y, float[batch,M,8] z) {
    s = Shape(x)
    zero = Constant <value = int64 {0}> ()
    first = Gather(s, zero)
    axes = Constant <value = int64[1] {0}> ()
    one = Unsqueeze(first, axes)
    rest = Constant <value = int64[3] {-1, 4, 2}> ()
    to = Concat <axis = 0> (one, rest)
    y = Reshape(x, to)
    e = Gather(table, ids)
    mean = ReduceMean <keepdims = 1, axes = [-1]> (x)
    low = Constant <value = int64[1] {0}> ()
    high = Constant <value = int64[1] {7}> ()
    cut = Slice(x, low, high, high)
    m = Sub(e, mean)
    z = Concat <axis = 1> (m, cut)
}"""
OLD = """<ir_version: 4, opset_import: ["" : 9]>
g (float[2,3,4] x, float[2,3,4] u) => (float[2,12] y, float[2,3] s) {
    a = Unsqueeze <axes = [0]> (x)
    b = Squeeze <axes = [0]> (a)
    d = Dropout <ratio = 0.5> (b)
    p = Clip <min = 0.0, max = 6.0> (d)
    q = Pad <pads = [0,0,0,0,0,0]> (p)
    v = Upsample(q, scales)
    t = Add(v, u)
    y = Flatten(t)
    s = ReduceSum <axes = [2], keepdims = 0> (t)
}"""
DYNAMIC = """<ir_version: 9, opset_import: ["" : 18]>
g (float[batch,PAST,8] x, float[batch,8,4] w, float[k,m] u) => (float[batch,PAST,4] y, float[k,m] v) {
    y = MatMul(x, w)
    v = Relu(u)
}"""


def seeds() -> list[bytes]:
    """Small models: the operator samples, texts with control flow, shape arithmetic, external data, and pieces of models."""
    weights = {
        "w": np.ones((4, 4), np.float32),
        "table": np.zeros((3, 8), np.float32),
        "scales": np.ones(3, np.float32),
    }
    found = [p.read_bytes() for p in sorted((ROOT / "samples" / "operators").glob("*_fp32.onnx"))]
    for text in (INNER, SHAPES, OLD, DYNAMIC):
        model = parsed(text)
        used = {i for node in model.graph.node for i in node.input} - {v.name for v in model.graph.input}
        model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items() if n in used)
        if model.ir_version < 4 or text is OLD:
            model.graph.input.extend(
                onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in model.graph.initializer
            )
        found.append(model.SerializeToString())
    return [*found, _with_external_data(), *pieces(ROOT / "samples" / "models" / "llama_dynamic_fp32.onnx", 5)]


def parsed(text: str) -> onnx.ModelProto:
    """A model of onnx's text form, which has no sums as dimensions: `PAST` stands for one."""
    model: onnx.ModelProto = parser.parse_model(text)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "PAST":
                dim.dim_param = "past+1"
    return model


def _with_external_data() -> bytes:
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[2,8] x) => (float[2,16] y) { y = MatMul(x, w) }'
    )
    weight = model.graph.initializer.add(name="w", dims=(8, 16), data_type=onnx.TensorProto.FLOAT)
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "512"), ("length", "512")):
        weight.external_data.add(key=key, value=value)
    data: bytes = model.SerializeToString()
    return data


def pieces(path: Path, step: int = 1) -> list[bytes]:
    """Runs of `WINDOW` nodes of a model as models of their own: what they need from outside is an input."""
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    values = {v.name: v for v in (*graph.value_info, *graph.input, *graph.output)}
    weights = {t.name: t for t in graph.initializer}
    found = []
    for first in range(0, len(graph.node), WINDOW * step):
        nodes = graph.node[first : first + WINDOW]
        made = {o for node in nodes for o in node.output}
        read = dict.fromkeys(i for node in nodes for i in node.input if i and i not in made)
        piece = onnx.ModelProto(ir_version=model.ir_version)
        piece.opset_import.extend(model.opset_import)
        piece.graph.name = "piece"
        piece.graph.node.extend(nodes)
        for name in read:
            if name in weights and weights[name].ByteSize() <= 256:
                piece.graph.initializer.append(weights[name])
            elif name in weights:
                tensor = weights[name]
                info = onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
                piece.graph.input.append(info)
            elif name in values:
                piece.graph.input.append(values[name])
        used = {i for node in nodes for i in node.input}
        piece.graph.output.extend(values[o] for o in sorted(made - used) if o in values)
        found.append(piece.SerializeToString())
    return found
