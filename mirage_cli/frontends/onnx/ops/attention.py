"""Attention (opset 23 to 25), by the steps of its specification.

Scores, soft cap, masks, softmax, values. A row whose keys are all masked gives zeros: the quotient of the softmax is
`share` where there may be such rows, else `div`, which gives NaN for scores that are all minus infinity.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_cli.errors import Refused
from mirage_cli.frontends.onnx.ops import heads
from mirage_cli.frontends.onnx.ops.registry import Call, element_type, reads
from mirage_cli.frontends.onnx.ops.views import joined
from mirage_cli.lax.dtypes import BOOL, I64
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph

_LOWEST = float("-inf")


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the queries stand among the keys: query i is at position i + `offset` (a value; None: 0)."""

    graph: Graph
    queries: Extent
    keys: Extent
    offset: int | None

    def positions(self) -> tuple[int, int]:
        """Positions of the queries [.., q, 1] and of the keys [1, 1, 1, k]."""
        graph = self.graph
        rows, columns = graph.iota(self.queries, 2, 4, I64), graph.iota(self.keys, 3, 4, I64)
        return (rows if self.offset is None else graph.map("add", rows, self.offset)), columns


@reads("Attention")
def _attention(call: Call) -> list[int | None]:
    """Contraction, scale, soft cap, masks, softmax, contraction; grouped heads are views; the cache is a `Concat`."""
    graph = call.graph
    flat = len(call.dims(0)) == 3
    q, k, v = (_heads(call, i, "q_num_heads" if i == 0 else "kv_num_heads") for i in range(3))
    past = graph.dims(call.arg(4))[2] if call.has(4) else None
    fresh = graph.dims(k)[2]
    if past is not None:
        k, v = (joined(graph, [call.arg(i), x], 2) for i, x in ((4, k), (5, v)))
    present = (k, v)
    k, v = (heads.repeated(graph, x, graph.dims(q)[1]) for x in (k, v))
    raw = heads.scores(graph, q, k, call.real("scale", 0.0))
    cap = call.real("softcap", 0.0)
    capped = compose.soft_cap(graph, raw, cap) if cap > 0 else raw
    frame = _Frame(graph, graph.dims(q)[2], graph.dims(k)[2], _offset(call, past, graph.dims(q)[2]))
    biased = _masked(call, capped, frame)
    weights = _softmax(call, biased, guarded=_may_see_none(call, frame.queries, fresh))
    y = heads.weighted(graph, weights, v)
    y = heads.join_heads(graph, y) if flat else y
    mode = call.integer("qk_matmul_output_mode", 0)
    if mode not in range(4):
        raise Refused(f"qk_matmul_output_mode {mode}")
    return [y, *present, (raw, capped, biased, weights)[mode] if call.wants(3) else None]


def _heads(call: Call, i: int, attribute: str) -> int:
    """Queries, keys or values as [batch, heads, sequence, size]."""
    graph, x = call.graph, call.arg(i)
    return x if len(graph.dims(x)) == 4 else heads.split_heads(graph, x, call.integer(attribute, 0))


def _offset(call: Call, past: Extent | None, queries: Extent) -> int | None:
    """The position of the first query: behind the past keys, or so that the last query is at the last valid key."""
    graph = call.graph
    if past is not None:
        return None if past == 0 else heads.counted(graph, past)
    if call.has(6):
        return graph.map("sub", _valid(call), heads.counted(graph, queries))
    return None


def _valid(call: Call) -> int:
    """The number of valid keys of each batch entry as [batch, 1, 1, 1]."""
    graph = call.graph
    v = graph.cast(call.arg(6), I64)
    return graph.reshape(v, [graph.dims(v)[0], 1, 1, 1])


def _masked(call: Call, scores: int, frame: _Frame) -> int:
    """Scores with everything applied that hides keys."""
    graph = call.graph
    if call.has(3):
        scores = _with_mask(graph, scores, _full_mask(call, frame.keys))
    conditions = _conditions(call, frame)
    for keep in conditions:
        scores = compose.attention_mask(graph, scores, keep)
    return scores


def _with_mask(graph: Graph, scores: int, mask: int) -> int:
    """Scores with a mask; what it hides is hidden whatever its score is."""
    masked = compose.attention_mask(graph, scores, mask)
    if not graph.dtype(mask).is_float:
        return masked
    hidden = graph.map("eq", mask, graph.fill(_LOWEST, graph.dtype(mask)))
    return graph.map("where", hidden, graph.fill(_LOWEST, graph.dtype(scores)), masked)


def _conditions(call: Call, frame: _Frame) -> list[int]:
    """Truth values [.., q, k] that must all hold for a key to be seen."""
    graph = call.graph
    left, right = call.integer("left_window_size", -1), call.integer("right_window_size", -1)
    keep: list[int] = []
    rows, columns = frame.positions()
    if call.integer("is_causal", 0):
        keep.append(graph.map("le", columns, rows))
    if left >= 0:
        keep.append(graph.map("le", compose.shift(graph, rows, -left), columns))
    if right >= 0:
        keep.append(graph.map("le", columns, compose.shift(graph, rows, right)))
    if call.has(6):
        keep.append(graph.map("lt", columns, _valid(call)))
    return keep


def _may_see_none(call: Call, queries: Extent, fresh: Extent) -> bool:
    """Whether some query may see no key at all: a mask hides them, few of them count, or the window of a query starts behind
    the last of the `fresh` keys. Up to its own place each query sees the first key."""
    return call.has(3) or call.has(6) or (call.integer("left_window_size", -1) >= 0 and queries != fresh)


def _full_mask(call: Call, keys: Extent) -> int:
    """The mask, filled up to all keys: those behind its end are hidden."""
    graph, mask = call.graph, call.arg(3)
    dims = graph.dims(mask)
    if dims[-1] in (1, keys):
        return mask
    if not (isinstance(keys, int) and isinstance(dims[-1], int)):
        raise Refused(f"a mask for {dims[-1]} of {keys} keys")
    hidden = 0 if graph.dtype(mask) == BOOL else _LOWEST
    rest = graph.fill(hidden, graph.dtype(mask), [*dims[:-1], keys - dims[-1]])
    return joined(graph, [mask, rest], len(dims) - 1)


def _softmax(call: Call, scores: int, guarded: bool) -> int:
    """Softmax over the keys, in the type that the node asks for."""
    graph, own = call.graph, call.graph.dtype(scores)
    precision = call.integer("softmax_precision", 0)
    x = compose.converted(graph, scores, element_type(precision)) if precision else scores
    e = graph.stable_exp(x, [3])
    return graph.cast(graph.map("share" if guarded else "div", e, graph.reduce("sum", e, [3])), own)
