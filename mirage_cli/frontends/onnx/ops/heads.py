"""Attention over heads, as ONNX's Attention and onnxruntime's own operators share it."""

from __future__ import annotations

from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import I64
from mirage_cli.lax.extents import Extent, product, quotient
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph


def split_heads(graph: Graph, x: int, heads: int) -> int:
    """[batch, sequence, heads * size] as [batch, heads, sequence, size]. Raises Refused."""
    batch, length, hidden = graph.dims(x)
    size = quotient(hidden, heads) if heads else None
    if size is None:
        raise Refused(f"{hidden} channels do not divide into {heads} heads")
    return graph.transpose(graph.reshape(x, [batch, length, heads, size]), [0, 2, 1, 3])


def join_heads(graph: Graph, x: int) -> int:
    """[batch, heads, sequence, size] as [batch, sequence, heads * size]."""
    y = graph.transpose(x, [0, 2, 1, 3])
    batch, length, heads, size = graph.dims(y)
    return graph.reshape(y, [batch, length, product([heads, size])])


def repeated(graph: Graph, x: int, heads: Extent) -> int:
    """Each key or value head of [batch, heads, sequence, size] repeated for the query heads that share it."""
    batch, own, length, size = graph.dims(x)
    groups = quotient(heads, own)
    if groups is None:
        raise Refused(f"{heads} query heads do not divide among {own} key and value heads")
    if groups == 1:
        return x
    wide = graph.expand(graph.reshape(x, [batch, own, 1, length, size]), [batch, own, groups, length, size])
    return graph.reshape(wide, [batch, heads, length, size])


def scores(graph: Graph, q: int, k: int, scale: float) -> int:
    """Products of queries and keys [b, h, m, d] and [b, h, n, d], scaled; `scale` 0 stands for 1 / sqrt(d)."""
    size = graph.dims(q)[3]
    if not scale and not isinstance(size, int):
        raise Refused("a symbolic head size without scale")
    b, h, m, n, d = range(5)
    factor = scale or float(size if isinstance(size, int) else 1) ** -0.5
    return compose.scale(graph, graph.contract(q, k, [b, h, m, d], [b, h, n, d], [b, h, m, n]), factor)


def weighted(graph: Graph, weights: int, v: int) -> int:
    """Values [b, h, n, d] weighted with [b, h, m, n]."""
    b, h, m, n, d = range(5)
    return graph.contract(weights, v, [b, h, m, n], [b, h, n, d], [b, h, m, d])


def query_and_key_positions(graph: Graph, queries: Extent, keys: Extent, past: Extent) -> tuple[int, int]:
    """Positions of the queries [1, 1, q, 1], which begin at `past`, and of the keys [1, 1, 1, k]."""
    rows, columns = graph.iota(queries, 2, 4, I64), graph.iota(keys, 3, 4, I64)
    return (rows if past == 0 else graph.map("add", rows, counted(graph, past))), columns


def counted(graph: Graph, extent: Extent) -> int:
    """An extent as a scalar."""
    if isinstance(extent, int):
        return graph.fill(extent, I64)
    ones = graph.expand(graph.fill(1, I64, (1,)), (extent,))
    return graph.reshape(graph.reduce("sum", ones, [0]), ())
