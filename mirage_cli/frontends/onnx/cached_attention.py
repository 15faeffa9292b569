"""GroupQueryAttention behind a cache whose lengths are known at run time, taken apart: what stands where in the cache is said
by integers, and attention compares positions with them.

1. `before` is how many positions of each sequence are filled, none where the new ones are all there are (a prompt), `last` is
   its last position; `keys` are the positions that count. Layers that read the same lengths share these.
2. Queries and keys are turned by onnxruntime's RotaryEmbedding where the operator does that.
3. New keys and values are written behind the filled positions: into a cache that has room for them (ScatterND copies nothing
   where a caller gives past and present one address, as onnxruntime-genai does), else into a longer copy. The dimension of
   what results is the sum of `keys` and of what is free.
4. Attention in standard operators: a query sees the keys up to its own place, within the window. What nothing was written to
   may hold anything and is not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir

from mirage_cli.frontends.onnx.cut_points import take_place
from mirage_cli.frontends.onnx.ops.registry import MICROSOFT

INSIDE = "inside"  #: the key under which a node knows the operator that it is a part of
OLDEST = 13  #: the opset whose forms of operators the texts below have
_READ = frozenset({0, 1, 2, 3, 4, 5, 6, 7, 8, 9})  #: inputs that are understood
_INPUTS = 16
Dims: TypeAlias = Sequence[int | str | None]

_LENGTHS = """(lengths, whole, q) => (before, last, keys, queries, total) {
    one = Constant <value = int64 {1}> ()
    none = Constant <value = int64 {0}> ()
    first = Constant <value_ints = [1]> ()
    behind = Constant <value_ints = [2]> ()
    flat = Constant <value_ints = [-1]> ()
    wide_lengths = Cast <to = 7> (lengths)
    ends = Reshape (wide_lengths, flat)
    wide_whole = Cast <to = 7> (whole)
    wholes = Reshape (wide_whole, flat)
    total = Squeeze (wholes)
    dims = Shape (q)
    counts = Slice (dims, first, behind)
    new = Squeeze (counts)
    prompt = Equal (new, total)
    before, last = If (prompt) <
        then_branch = all () => (b1, l1) { l1 = Identity (ends)  b1 = Sub (ends, ends) },
        else_branch = some () => (b2, l2) { l2 = Identity (ends)  n = Add (ends, one)  b2 = Sub (n, new) }>
    end = Max (total, new)
    keys = Range (none, end, one)
    queries = Range (none, new, one)
}"""
#: where new rows go in a cache [batch, heads, positions, size], as [batch, new, heads, 3]
_INDEX = """(before, queries) => (index, places) {
    one = Constant <value_ints = [1]> ()
    heads = Constant <value_ints = [%(shared)d]> ()
    scalar = Constant <value = int64 {0}> ()
    unit = Constant <value = int64 {1}> ()
    count = Constant <value = int64 {%(shared)d}> ()
    outer = Constant <value_ints = [1, 2, 3]> ()
    middle = Constant <value_ints = [0, 1, 3]> ()
    inner = Constant <value_ints = [2, 3]> ()
    begin = Unsqueeze (before, one)
    places = Add (begin, queries)
    batch_dims = Shape (before)
    batch = Squeeze (batch_dims)
    sequences = Range (scalar, batch, unit)
    sequence = Unsqueeze (sequences, outer)
    numbers = Range (scalar, count, unit)
    number = Unsqueeze (numbers, middle)
    place = Unsqueeze (places, inner)
    new_dims = Shape (queries)
    dims = Concat <axis = 0> (batch_dims, new_dims, heads, one)
    s = Expand (sequence, dims)
    h = Expand (number, dims)
    p = Expand (place, dims)
    index = Concat <axis = 3> (s, h, p)
}"""
_ROOM = """(past, total) => (room, fits) {
    two = Constant <value_ints = [2]> ()
    three = Constant <value_ints = [3]> ()
    dims = Shape (past)
    room = Slice (dims, two, three)
    fits = GreaterOrEqual (room, total)
}"""
_WRITTEN = """(past_k, past_v, k, v, index, before, total, room, fits) => (present_k, present_v) {
    dims = Constant <value_ints = [0, 0, %(shared)d, %(size)d]> ()
    new_k = Reshape (k, dims)
    new_v = Reshape (v, dims)
    present_k, present_v = If (fits) <
        then_branch = into () => (k1, v1) { k1 = ScatterND (past_k, index, new_k)  v1 = ScatterND (past_v, index, new_v) },
        else_branch = longer () => (k2, v2) {
            none = Constant <value = int64 {0}> ()
            one = Constant <value = int64 {1}> ()
            zeros = Constant <value_ints = [0, 0, 0, 0, 0, 0]> ()
            zero_end = Constant <value_ints = [0]> ()
            apart = Constant <value_ints = [1, 2, 3]> ()
            last_axis = Constant <value_ints = [1]> ()
            count = Squeeze (room)
            positions = Range (none, count, one)
            column = Unsqueeze (positions, last_axis)
            filled = Unsqueeze (before, apart)
            kept = Less (column, filled)
            nothing = Constant <value = float {0}> ()
            zero = Cast <to = %(type)d> (nothing)
            kept_k = Where (kept, past_k, zero)
            kept_v = Where (kept, past_v, zero)
            more = Sub (total, room)
            pads = Concat <axis = 0> (zeros, more, zero_end)
            longer_k = Pad (kept_k, pads)
            longer_v = Pad (kept_v, pads)
            k2 = ScatterND (longer_k, index, new_k)
            v2 = ScatterND (longer_v, index, new_v)
        }>
}"""
_ATTENTION = """(q, k, v, keys, before, last, queries) => (y) {
    apart = Constant <value_ints = [0, 0, %(shared)d, %(group)d, %(size)d]> ()
    joined = Constant <value_ints = [0, 0, %(width)d]> ()
    none = Constant <value_ints = [0]> ()
    two = Constant <value_ints = [2]> ()
    rows = Constant <value_ints = [1, 2, 4]> ()
    four = Constant <value_ints = [1, 2, 3, 4]> ()
    tall = Constant <value_ints = [1, 2, 3]> ()
    column = Constant <value_ints = [1]> ()
    grouped = Reshape (q, apart)
    own = Transpose <perm = [0, 2, 3, 1, 4]> (grouped)
    count = Shape (keys)
    counted_k = Slice (k, none, count, two)
    counted_v = Slice (v, none, count, two)
    wide_k = Unsqueeze (counted_k, two)
    across = Transpose <perm = [0, 1, 2, 4, 3]> (wide_k)
    product = MatMul (own, across)
    factor = Constant <value = float {%(scale)r}> ()
    factor_like = Cast <to = %(type)d> (factor)
    raw = Mul (product, factor_like)
    %(capped)s
    place = Unsqueeze (queries, column)
    begin = Unsqueeze (before, four)
    at = Add (begin, place)
    %(seen)s
    lowest = Constant <value = float {-inf}> ()
    lowest_like = Cast <to = %(type)d> (lowest)
    scores = Where (seen, capped, lowest_like)
    weights = Softmax <axis = -1> (scores)
    key = Unsqueeze (keys, column)
    end = Unsqueeze (last, tall)
    written = LessOrEqual (key, end)
    nothing = Constant <value = float {0}> ()
    nothing_like = Cast <to = %(type)d> (nothing)
    clean_v = Where (written, counted_v, nothing_like)
    wide_v = Unsqueeze (clean_v, two)
    mean = MatMul (weights, wide_v)
    turned = Transpose <perm = [0, 3, 1, 2, 4]> (mean)
    y = Reshape (turned, joined)
}"""

_PACKED = """(x) => (q, k, v) {
    sizes = Constant <value_ints = [%(width)d, %(shared_width)d, %(shared_width)d]> ()
    q, k, v = Split <axis = -1> (x, sizes)
}"""
_TURNED = """(x, places, cos, sin) => (y) {
    y = com.microsoft.RotaryEmbedding <interleaved = %(interleaved)d, num_heads = %(heads)d,
                                       rotary_embedding_dim = %(turned)d> (x, places, cos, sin)
}"""
#: parts of the text of attention: with a soft cap and without, and likewise
_CAPPED = """cap = Constant <value = float {%(cap)r}> ()
    cap_like = Cast <to = %(type)d> (cap)
    share = Div (raw, cap_like)
    bent = Tanh (share)
    capped = Mul (bent, cap_like)"""
_UNCAPPED = "capped = Identity (raw)"
_WINDOWED = """causal = LessOrEqual (keys, at)
    window = Constant <value = int64 {%(window)d}> ()
    start = Sub (at, window)
    near = Less (start, keys)
    seen = And (causal, near)"""
_CAUSAL = "seen = LessOrEqual (keys, at)"


def take_apart(model: ir.Model, opset: int) -> None:
    """Take all such nodes apart, in place, where the opset has the operators."""
    shared: dict[tuple[object, ...], list[ir.Value]] = {}
    for node in list(model.graph):
        if node.domain == MICROSOFT and node.op_type == "GroupQueryAttention" and opset >= OLDEST:
            layer = _layer(node)
            if layer is not None:
                layer.take_place(shared)


def _layer(node: ir.Node) -> _Layer | None:
    """A node that can be taken apart; None for others, which are read as they are or stay: of known lengths, with a mask of
    its own, a sink, a quantized cache, scores as an output."""
    given: list[ir.Value | None] = [*node.inputs, *[None] * (_INPUTS - len(node.inputs))]
    told = {name: a.value for name, a in node.attributes.items()}
    heads, shared = told.get("num_heads", 0), told.get("kv_num_heads", 0)
    width, past, new = _dim(given[0], 2, 3), _dim(given[3], 2, 4), _dim(given[0], 1, 3)
    understood = len(given) == _INPUTS and not any(v is not None for i, v in enumerate(given) if i not in _READ)
    more = told.get("qk_output") or told.get("smooth_softmax") or len(node.outputs) > 3
    plain = told.get("causal", 1) == 1 and not more
    known = heads and shared and heads % shared == 0 and isinstance(width, int) and past is not None and new is not None
    if not (understood and plain and known) or any(given[i] is None for i in (0, 3, 4, 5, 6)):
        return None
    grown = _dim(node.outputs[1], 2, 4) if len(node.outputs) > 1 else None
    fixed = given[6] is None or given[6].const_value is not None
    if fixed or past in (0, grown) or (isinstance(past, int) and isinstance(new, int)):
        return None
    size = width // (heads + 2 * shared if given[1] is None else heads)
    named = isinstance(grown, str) and grown.isidentifier() and grown not in (new, _dim(given[0], 0, 3))
    keys = str(grown) if named else re.sub(r"\W", "_", f"keys_of_{node.outputs[0].name}")
    return _Layer(node, given, told, heads, shared, size, keys)


def _dim(v: ir.Value | None, k: int, rank: int) -> int | str | None:
    """A dimension of a tensor that has `rank` of them, as far as it is known."""
    if v is None or v.shape is None or len(v.shape) != rank:
        return None
    d = v.shape[k]
    return d if isinstance(d, int) else d.value


@dataclass(frozen=True, slots=True)
class _Layer:
    """One node with its inputs and attributes, the numbers of heads and their size, and the name of the number of keys."""

    node: ir.Node
    given: Sequence[ir.Value | None]
    told: Mapping[str, Any]
    heads: int
    shared: int
    size: int
    keys: str

    def take_place(self, known: dict[tuple[object, ...], list[ir.Value]]) -> None:
        """Put the parts in front of the node, which goes; `known` are the integers of nodes before."""
        past_k, past_v, lengths, whole = self.given[3:7]
        before, last, keys, queries, total = self.lengths(known, lengths, whole)
        index, places = self.index(known, before, queries)
        q, k, v = self.operands(places)
        room, fits = self.room(known, past_k, total)
        given = [past_k, past_v, k, v, index, before, total, room, fits]
        present = self.part(_WRITTEN, "written", given, [self.cache(past_k)] * 2)
        y = self.part(self.attention(), "attention", [q, *present, keys, before, last, queries], [None])
        for v in self.node.outputs[1:]:
            v.shape = None  # the model says how many positions are counted, not how many there is room for
        take_place(self.node, list(zip(self.node.outputs, [*y, *present], strict=False)))

    def part(
        self, text: str, what: str, given: Sequence[ir.Value | None], tensors: Sequence[_Tensor | None], **numbers: Any
    ) -> list[ir.Value]:
        """The results of a text in front of the node, and what is known of them: no reader finds out of those that it does not
        read."""
        return _spliced(self.node, what, text % {**self.numbers(), **numbers}, given, tensors)

    def numbers(self) -> dict[str, Any]:
        """Numbers that texts have."""
        x = self.given[0]
        assert x is not None and x.dtype is not None
        return {
            "shared": self.shared,
            "group": self.heads // self.shared,
            "size": self.size,
            "width": self.heads * self.size,
            "shared_width": self.shared * self.size,
            "type": x.dtype.value,
            "cap": self.told.get("softcap", 0.0),
            "window": self.told.get("local_window_size", -1),
            "scale": self.told.get("scale", 0.0) or self.size**-0.5,
        }

    def lengths(
        self, known: dict[tuple[object, ...], list[ir.Value]], lengths: ir.Value | None, whole: ir.Value | None
    ) -> list[ir.Value]:
        """`before`, `last`, `keys`, `queries` and the whole length, case 1."""
        q = self.given[0]
        batch, new = (_dim(q, k, 3) for k in range(2))
        key = (lengths, whole, batch, new, self.keys)
        if key not in known:
            rows, integer = (batch,), ir.DataType.INT64
            tensors = [(integer, rows), (integer, rows), (integer, (self.keys,)), None, None]
            known[key] = self.part(_LENGTHS, "lengths", [lengths, whole, q], tensors)
        return known[key]

    def index(
        self, known: dict[tuple[object, ...], list[ir.Value]], before: ir.Value, queries: ir.Value
    ) -> list[ir.Value]:
        """Where new keys and values go in a cache of so many heads, and the positions of the queries."""
        key = (before, self.shared)
        if key not in known:
            known[key] = self.part(_INDEX, "index", [before, queries], [None, None])
        return known[key]

    def room(
        self, known: dict[tuple[object, ...], list[ir.Value]], past: ir.Value | None, total: ir.Value
    ) -> list[ir.Value]:
        """How many positions caches of this length have, and whether those are enough."""
        key = (total, _dim(past, 2, 4))
        if key not in known:
            known[key] = self.part(_ROOM, "room", [past, total], [None, None])
        return known[key]

    def operands(self, places: ir.Value) -> list[ir.Value | None]:
        """Queries, keys and values, each [batch, new, heads * size], as the products take them: case 2."""
        q, k, v = self.given[:3]
        if k is None:
            q, k, v = self.part(_PACKED, "packed", [q], [None] * 3)
        if self.told.get("do_rotary", 0):
            turns = (("q", q, self.heads), ("k", k, self.shared))
            q, k = (self.turned(what, x, n, places) for what, x, n in turns)
        return [q, k, v]

    def turned(self, what: str, x: ir.Value | None, heads: int, places: ir.Value) -> ir.Value:
        """Queries or keys of so many heads with rotary embeddings at their positions."""
        q, (cos, sin, at) = self.given[0], self.given[7:10]
        half = _dim(cos, 1, 2)
        turned = 2 * half if isinstance(half, int) and 2 * half != self.size else 0
        assert q is not None and q.dtype is not None
        tensor = (q.dtype, (_dim(q, 0, 3), _dim(q, 1, 3), heads * self.size))
        numbers = {"heads": heads, "turned": turned, "interleaved": self.told.get("rotary_interleaved", 0)}
        (y,) = self.part(_TURNED, f"{what}_turned", [x, places if at is None else at, cos, sin], [tensor], **numbers)
        return y

    def cache(self, past: ir.Value | None) -> _Tensor:
        """What is known of a cache with the new rows: it has the keys that count and what is free behind them."""
        length = _dim(past, 2, 4)
        assert past is not None and past.dtype is not None
        free = re.sub(r"\W", "_", f"free_{length}")
        return past.dtype, (_dim(past, 0, 4), self.shared, f"{free}+{self.keys}", self.size)

    def attention(self) -> str:
        """The text of case 4."""
        capped = _CAPPED if self.told.get("softcap", 0.0) > 0 else _UNCAPPED
        seen = _WINDOWED if self.told.get("local_window_size", -1) >= 0 else _CAUSAL
        return _ATTENTION.replace("%(capped)s", capped).replace("%(seen)s", seen)


# --- texts as nodes -----------------------------------------------------------------------------------------------------
_Tensor: TypeAlias = tuple[ir.DataType, Dims]


def _spliced(
    node: ir.Node, what: str, text: str, given: Sequence[ir.Value | None], tensors: Sequence[_Tensor | None]
) -> list[ir.Value]:
    """The results of a text whose nodes are put in front of `node`, with names of their own; constants become weights."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    head = f'<ir_version: 9, opset_import: ["" : {OLDEST}, "{MICROSOFT}" : 1]> part '
    part = ir.from_proto(onnx.parser.parse_model(head + text)).graph
    for own, value in zip(part.inputs, given, strict=False):
        if value is not None:
            ir.convenience.replace_all_uses_with(own, value)
    prefix = f"{node.outputs[0].name}/{what}"
    for inner in ir.traversal.RecursiveGraphIterator(part):
        inner.meta[INSIDE] = node.op_type
        inner.name = f"{prefix}/{inner.outputs[0].name}"
        for v in inner.outputs:
            v.name = f"{prefix}/{v.name}"
    results = list(part.outputs)
    for v, tensor in zip(results, tensors, strict=True):
        if tensor is not None:
            v.type, v.shape = ir.TensorType(tensor[0]), ir.Shape(list(tensor[1]))
    part.outputs.clear()
    for inner in list(part):
        part.remove(inner)
        if inner.op_type == "Constant":
            _stored(graph, inner.outputs[0])
        else:
            graph.insert_before(node, inner)
    return results


def _stored(graph: ir.Graph, v: ir.Value) -> None:
    """Let a weight take the place of the result of a Constant."""
    node = v.producer()
    assert node is not None
    ((kind, attribute),) = node.attributes.items()
    tensor = attribute.as_tensor() if kind == "value" else ir.tensor(attribute.as_ints(), ir.DataType.INT64)
    shape = ir.Shape(list(tensor.shape.numpy()))
    weight = ir.Value(name=v.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    ir.convenience.replace_all_uses_with(v, weight)
    graph.register_initializer(weight)
