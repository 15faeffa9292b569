"""Attention and rotary embeddings of onnxruntime's own operators.

Masks follow onnxruntime's CPU kernels: padding adds `mask_filter_value`, keys in the future are hidden. The lengths of
sequences may be known at run time only where a cache takes one new token: it stands behind the positions that are
filled, and hides what follows. In a prompt they tell only which results have no meaning. Elsewhere they are refused: what
has caches of any length was taken apart before (`cached_attention`).
"""

from __future__ import annotations

from mirage_cli.errors import Refused
from mirage_cli.frontends import sizes
from mirage_cli.frontends.onnx.ops import heads
from mirage_cli.frontends.onnx.ops.registry import MICROSOFT, Call, reads
from mirage_cli.frontends.onnx.ops.rotary import rotate
from mirage_cli.frontends.onnx.ops.views import joined, picked
from mirage_cli.lax.dtypes import I64
from mirage_cli.lax.extents import Extent, quotient
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph

_FILTER = -10000.0  #: the default of `mask_filter_value`


# --- Attention ----------------------------------------------------------------------------------------------------------
@reads("Attention", domain=MICROSOFT)
def _attention(call: Call) -> int:
    """Taken apart before; not with a cache of fixed size, rotary embeddings, or a mask that MultiHeadAttention refuses."""
    mask = f"a mask of {call.graph.tensors[call.arg(3)]}, " if call.has(3) else ""
    raise Refused(f"{mask}a cache of fixed size or rotary embeddings inside")


# --- MultiHeadAttention -------------------------------------------------------------------------------------------------
@reads("MultiHeadAttention", domain=MICROSOFT)
def _multi_head_attention(call: Call) -> list[int | None]:
    """Contraction, scale, bias, masks, softmax, contraction; packed operands are `Slice`s, the cache is a `Concat`."""
    graph = call.graph
    _refuse(call, {3: "a bias", 8: "a cache of fixed size", 9: "a cache of beams"}, outputs=4)
    q, k, v = _operands(call)
    past = graph.dims(call.arg(6))[2] if call.has(6) else 0
    if past != 0:
        k, v = (joined(graph, [call.arg(i), x], 2) for i, x in ((6, k), (7, v)))
    raw = heads.scores(graph, q, k, call.real("scale", 0.0))
    hidden = call.real("mask_filter_value", _FILTER)
    biased = raw if not call.has(4) else graph.map("add", raw, _padding(call, hidden))
    biased = biased if not call.has(5) else graph.map("add", biased, call.arg(5))
    if call.integer("unidirectional", 0):
        biased = compose.attention_mask(graph, biased, _causal(graph, q, k, past))
        if call.wants(3):
            raise Refused("its scores are read, of which keys in the future have no number")
    y = heads.join_heads(graph, heads.weighted(graph, compose.softmax(graph, biased, [3]), v))
    return [y, k, v, biased]


def _operands(call: Call) -> tuple[int, int, int]:
    """Queries, keys and values as [batch, heads, sequence, size]."""
    graph, count = call.graph, call.integer("num_heads", 0)
    if len(call.dims(0)) == 5:  # [batch, sequence, heads, 3, size]
        q, k, v = (_unpacked(graph, call.arg(0), i) for i in range(3))
        return q, k, v
    q = heads.split_heads(graph, call.arg(0), count)
    if len(call.dims(1)) == 5:
        return q, _unpacked(graph, call.arg(1), 0), _unpacked(graph, call.arg(1), 1)
    k, v = (x if len(graph.dims(x)) == 4 else heads.split_heads(graph, x, count) for x in (call.arg(1), call.arg(2)))
    return q, k, v


def _unpacked(graph: Graph, x: int, i: int) -> int:
    """Part `i` of [batch, sequence, heads, parts, size] as [batch, heads, sequence, size]."""
    batch, length, count, _, size = graph.dims(x)
    part = graph.reshape(graph.slice(x, 3, i, 1), [batch, length, count, size])
    return graph.transpose(part, [0, 2, 1, 3])


def _padding(call: Call, hidden: float) -> int:
    """A mask [batch, keys] as what is added to the scores."""
    graph, mask = call.graph, call.arg(4)
    if len(graph.dims(mask)) != 2:
        raise Refused(f"a padding mask of {graph.tensors[mask]}")
    dtype = call.dtype(0)
    seen = graph.map("lt", graph.fill(0, graph.dtype(mask)), mask)
    batch, keys = graph.dims(mask)
    return graph.reshape(graph.map("where", seen, graph.fill(0, dtype), graph.fill(hidden, dtype)), [batch, 1, 1, keys])


def _causal(graph: Graph, q: int, k: int, past: Extent) -> int:
    """Which keys each query sees: those up to its own position."""
    rows, columns = heads.query_and_key_positions(graph, graph.dims(q)[2], graph.dims(k)[2], past)
    return graph.map("le", columns, rows)


def _refuse(call: Call, inputs: dict[int, str], outputs: int) -> None:
    """Raise Refused for inputs and outputs that are not read."""
    for i, what in inputs.items():
        if call.has(i):
            raise Refused(what)
    if any(call.wants(i) for i in range(outputs, len(call.node.outputs))):
        raise Refused("its scores are read")


# --- GroupQueryAttention ------------------------------------------------------------------------------------------------
@reads("GroupQueryAttention", domain=MICROSOFT)
def _group_query_attention(call: Call) -> list[int | None]:
    """As ONNX's Attention with a causal mask, a window, rotary embeddings and a cache, of lengths that are known or inputs."""
    graph = call.graph
    inputs = {
        12: "a quantized cache",
        13: "a quantized cache",
        14: "norms inside",
        16: "sequences of unequal new tokens",
    }
    _refuse(call, inputs, outputs=3)
    for name, usual, what in (
        ("qk_output", 0, "scores as an output"),
        ("causal", 1, "no causal mask"),
        ("sliding_window_cache", 0, "a cache of the window's size"),
    ):
        if call.integer(name, usual) != usual:
            raise Refused(what)
    q, k, v = _grouped(call)
    past = graph.dims(call.arg(3))[2] if call.has(3) else 0
    known = _known_past(call, past, graph.dims(q)[2])
    if call.integer("do_rotary", 0):
        q, k = (_turned(call, x, known) for x in (q, k))
    if known is None:
        filled = graph.reshape(graph.cast(call.arg(5), I64), [graph.dims(q)[0], 1, 1, 1])
        k, v = (_inserted(call, call.arg(i), x, filled) for i, x in ((3, k), (4, v)))
        rows, columns = filled, graph.iota(graph.dims(k)[2], 3, 4, I64)
    else:
        k, v = (joined(graph, [call.arg(i), x], 2) if past != 0 else x for i, x in ((3, k), (4, v)))
        rows, columns = heads.query_and_key_positions(graph, graph.dims(q)[2], graph.dims(k)[2], known)
    wide = [heads.repeated(graph, x, graph.dims(q)[1]) for x in (k, v)]
    raw = heads.scores(graph, q, wide[0], call.real("scale", 0.0))
    cap = call.real("softcap", 0.0)
    biased = compose.soft_cap(graph, raw, cap) if cap > 0 else raw
    biased = biased if not call.has(10) else graph.map("add", biased, call.arg(10))
    biased = compose.attention_mask(graph, biased, graph.map("le", columns, rows))
    window = call.integer("local_window_size", -1)
    if window >= 0:
        biased = compose.attention_mask(graph, biased, graph.map("lt", compose.shift(graph, rows, -window), columns))
    y = heads.join_heads(graph, heads.weighted(graph, _shares(call, biased), wide[1]))
    return [y, k, v]


def _shares(call: Call, scores: int) -> int:
    """The softmax over keys; a sink, which `smooth_softmax` puts at 0, takes its share too."""
    graph = call.graph
    if call.has(11):
        sink = graph.reshape(call.arg(11), [1, graph.dims(scores)[1], 1, 1])
    elif call.integer("smooth_softmax", 0) == 1:
        sink = graph.fill(0, graph.dtype(scores))
    else:
        return compose.softmax(graph, scores, [3])
    top = graph.map("max", graph.reduce("max", scores, [3]), sink)
    parts, own = (graph.map("exp", graph.map("sub", x, top)) for x in (scores, sink))
    return graph.map("div", parts, graph.map("add", graph.reduce("sum", parts, [3]), own))


def _grouped(call: Call) -> tuple[int, int, int]:
    """Queries, and keys and values with heads of their own, as [batch, heads, sequence, size]."""
    graph, own, shared = call.graph, call.integer("num_heads", 0), call.integer("kv_num_heads", 0)
    if call.has(1):
        q, k, v = (heads.split_heads(graph, call.arg(i), n) for i, n in ((0, own), (1, shared), (2, shared)))
        return q, k, v
    every = heads.split_heads(graph, call.arg(0), own + 2 * shared)
    q, k, v = (graph.slice(every, 1, first, n) for first, n in ((0, own), (own, shared), (own + shared, shared)))
    return q, k, v


def _known_past(call: Call, past: Extent, queries: Extent) -> int | None:
    """The number of past positions, which every sequence fills; None where that is known at run time only, for one new
    token. Raises Refused for several."""
    if past == 0:
        return 0
    if isinstance(past, int) and isinstance(queries, int):
        lengths = [(call.scope.known(call.tensor(i)), past + queries - less) for i, less in ((5, 1), (6, 0))]
        if all(known is not None and all(n == wanted for n in known.ravel()) for known, wanted in lengths):
            return past
    if queries != 1:
        raise Refused(f"{queries} new tokens behind lengths (input 5) that are not known when the model is read")
    return None


def _inserted(call: Call, cache: int, x: int, filled: int) -> int:
    """A cache with one new element in each sequence behind the positions that are filled, and zeros behind it. Raises
    Refused where it is not known how long the result is."""
    graph, past = call.graph, call.graph.dims(cache)[2]
    total = call.scope.known(call.tensor(6))
    more = total.item() - sizes.from_extent(past) if total is not None and total.size == 1 else None
    if not isinstance(more, int) or more > 1 or (more == 1 and not isinstance(past, int)):
        raise Refused(
            f"a cache of {past} positions, of which it is not known whether they hold the whole length (input 6)"
        )
    zero = graph.fill(0, graph.dtype(x))
    parts = []
    for start, count in ((0, past), *([(past, 1)] if more == 1 else [])):
        at = compose.shift(graph, graph.iota(count, 2, 4, I64), start if isinstance(start, int) else 0)
        new = graph.map("where", graph.map("eq", at, filled), x, zero)
        parts.append(graph.map("where", graph.map("lt", at, filled), cache, new) if start == 0 else new)
    return joined(graph, parts, 2)


def _turned(call: Call, x: int, past: int | None) -> int:
    """Queries or keys with rotary embeddings at their positions."""
    graph = call.graph
    length = graph.dims(x)[2]
    if past is None or not isinstance(length, int):
        raise Refused("rotary embeddings inside, at positions that are not known when the model is read")
    if call.has(9):
        positions = call.ints(9)
        shape = call.scope.known(call.tensor(9))
        assert shape is not None
        dims: tuple[int, ...] = shape.shape
    else:
        positions, dims = list(range(past, past + length)), (1, length)
    return _rotated(call, x, (7, 8), positions, dims, bool(call.integer("rotary_interleaved", 0)))


# --- RotaryEmbedding ----------------------------------------------------------------------------------------------------
@reads("RotaryEmbedding", domain=MICROSOFT)
def _rotary_embedding(call: Call) -> int:
    """As ONNX's operator; positions are counted from a number or listed."""
    graph, x = call.graph, call.arg(0)
    flat = len(graph.dims(x)) == 3
    if call.integer("is_packed_batching", 0):
        raise Refused("packed batches")
    if flat:
        width = call.dims(2)[1]
        count = call.integer("num_heads", 0) or quotient(graph.dims(x)[2], 2 * width if isinstance(width, int) else 0)
        if not isinstance(count, int):
            raise Refused("the number of heads is not known")
        x = heads.split_heads(graph, x, count)
    known, length = call.scope.known(call.tensor(1)), graph.dims(x)[2]
    positions = call.ints(1)
    dims = known.shape if known is not None else ()
    if len(dims) < 2:
        if not isinstance(length, int):
            raise Refused("positions of a sequence of symbolic length")
        positions, dims = list(range(positions[0], positions[0] + length)), (1, length)
    y = _rotated(call, x, (2, 3), positions, dims, bool(call.integer("interleaved", 0)))
    return heads.join_heads(graph, y) if flat else y


def _rotated(
    call: Call, x: int, caches: tuple[int, int], positions: list[int], dims: tuple[int, ...], interleaved: bool
) -> int:
    """[batch, heads, sequence, size] rotated at known positions [batch or 1, sequence], as far as the caches go."""
    graph = call.graph
    tables = []
    for i in caches:
        rows = picked(call, call.arg(i), 0, positions, dims)
        batch, length, width = graph.dims(rows)
        tables.append(graph.reshape(rows, [batch, 1, length, width]))
    half, size = graph.dims(tables[0])[3], graph.dims(x)[3]
    if not isinstance(half, int) or not isinstance(size, int):
        raise Refused(f"a rotation of {half} of {size} elements")
    y = rotate(graph, graph.slice(x, 3, 0, 2 * half), tables[0], tables[1], interleaved)
    if 2 * half == size:
        return y
    return joined(graph, [y, graph.slice(x, 3, 2 * half, size - 2 * half)], 3)
