"""Rotary position embeddings."""

from __future__ import annotations

from mirage_cli.errors import Refused
from mirage_cli.frontends.onnx.ops.registry import Call, reads
from mirage_cli.frontends.onnx.ops.views import joined, picked
from mirage_cli.lax.extents import quotient
from mirage_cli.lax.ir.graph import Graph


@reads("RotaryEmbedding")
def _rotary_embedding(call: Call) -> int:
    """Products of the two halves (or of even and odd elements) with cosine and sine, whose rows inputs may choose."""
    graph, x = call.graph, call.arg(0)
    dims = graph.dims(x)
    if len(dims) == 3:
        heads = call.integer("num_heads", 0)
        size = quotient(dims[2], heads) if heads else None
        if size is None:
            raise Refused(f"{dims[2]} channels do not divide into {heads} heads")
        x = graph.reshape(x, [*dims[:2], heads, size])
    else:
        x = graph.transpose(x, [0, 2, 1, 3])
    size = graph.dims(x)[3]
    turned = call.integer("rotary_embedding_dim", 0) or size
    if not isinstance(turned, int) or turned % 2:
        raise Refused(f"a rotation of {turned} elements")
    cos, sin = (_table(call, i, turned) for i in (1, 2))
    y = rotate(graph, graph.slice(x, 3, 0, turned), cos, sin, bool(call.integer("interleaved", 0)))
    if turned != size:
        if not isinstance(size, int):
            raise Refused(f"a rotation of {turned} of {size} elements")
        y = joined(graph, [y, graph.slice(x, 3, turned, size - turned)], 3)
    return graph.reshape(y, dims) if len(dims) == 3 else graph.transpose(y, [0, 2, 1, 3])


def _table(call: Call, i: int, turned: int) -> int:
    """A cache of cosines or sines as [batch, sequence, 1, turned / 2]."""
    graph, table = call.graph, call.arg(i)
    if call.has(3):
        known = call.scope.known(call.tensor(3))
        if known is None:
            raise Refused("its position_ids are not known when the model is read")
        table = picked(call, table, 0, call.ints(3), known.shape)
    dims = graph.dims(table)
    if len(dims) != 3 or dims[2] != turned // 2:
        raise Refused(f"a cache of {graph.tensors[table]} for a rotation of {turned} elements")
    return graph.reshape(table, [*dims[:2], 1, dims[2]])


def rotate(graph: Graph, x: int, cos: int, sin: int, interleaved: bool) -> int:
    """x rotated in pairs of elements of its last dimension: neighbours when `interleaved`, else across the halves."""
    last = len(graph.dims(x)) - 1
    size = graph.dims(x)[last]
    if not isinstance(size, int):
        raise Refused(f"a rotation of {size} elements")
    half = size // 2
    if interleaved:
        a, b = (graph.slice(x, last, start, half, 2) for start in (0, 1))
    else:
        a, b = (graph.slice(x, last, start, half) for start in (0, half))
    first = graph.map("sub", graph.map("mul", a, cos), graph.map("mul", b, sin))
    second = graph.map("add", graph.map("mul", a, sin), graph.map("mul", b, cos))
    if not interleaved:
        return joined(graph, [first, second], last)
    pairs = [graph.reshape(v, [*graph.dims(v), 1]) for v in (first, second)]
    return graph.reshape(joined(graph, pairs, last + 1), graph.dims(x))
