"""GroupQueryAttention behind a cache whose lengths are known at run time, taken apart into two operators.

1. New rows: queries and keys are turned, and keys and values written into the caches behind what is filled, in place where a
   caller gives past and present one address. That is an operator of our own (`codegen/cache_rows.py`), with a function in
   standard operators; it tells how many positions of each sequence were `before` and which is the `last` one. Caches of a
   window's size, which drop positions, are written beside buffers that hold what they kept and all that is new: these are
   read, and their rows counted.
2. Attention in standard operators, over all positions for which the caches that are read have room: a query sees the keys
   up to its own place, within the window. What nothing was written to may hold anything and is not read. How far to go is
   a number in memory: kernels leave out what is behind it, and a graph of CUDA serves every step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from mirage_cli.codegen.cache_rows import DOMAIN, CacheRows
from mirage_cli.frontends.onnx.ops.registry import MICROSOFT
from mirage_cli.frontends.onnx.parts import texts
from mirage_cli.frontends.onnx.parts.cut_points import take_place
from mirage_cli.frontends.onnx.parts.splicing import END, INSIDE, OLDEST, Tensor, described, parsed, spliced

_READ = frozenset({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13})  #: inputs that are understood
_INPUTS = 16
_TYPES = {ir.DataType.FLOAT: "f32", ir.DataType.FLOAT16: "f16", ir.DataType.BFLOAT16: "bf16"}
#: element types of caches with scales and their bits: how they are stored, and the opset whose Cast has them
_STORED = {
    (ir.DataType.INT8, 8): ("i8", OLDEST),
    (ir.DataType.FLOAT8E4M3FN, 8): ("e4m3", 19),
    (ir.DataType.UINT8, 4): ("u4", OLDEST),
}


def take_apart(model: ir.Model, opset: int) -> None:
    """Take all such nodes apart, in place, where the opset has the operators."""
    for node in list(model.graph):
        if node.domain == MICROSOFT and node.op_type == "GroupQueryAttention" and opset >= OLDEST:
            _norms_before(node)
            layer = _layer(node, opset)
            if layer is not None:
                layer.take_place(model, opset)


def _norms_before(node: ir.Node) -> None:
    """Put the norms of queries and keys in front of a node that has them inside."""
    if len(node.inputs) < _INPUTS or None in node.inputs[14:16]:
        return
    q, k, gains = node.inputs[0], node.inputs[1], node.inputs[14:16]
    told = {name: a.value for name, a in node.attributes.items()}
    heads, shared, usual = told.get("num_heads", 0), told.get("kv_num_heads", 0), told.get("qk_norm_epsilon", 1e-6)
    epsilons = {f"{x}_epsilon": told.get(f"{x}_norm_epsilon", usual) for x in "qk"}
    size = _size(q, heads, 0 if k is not None else shared)
    if q is None or q.dtype is None or not size or not all(map(math.isfinite, epsilons.values())):
        return
    widths = {"width": heads * size, "shared_width": shared * size}
    text = texts.NORMED % {
        "given": "packed" if k is None else "query, k",
        "v": ", v" if k is None else "",
        "parts": texts.PACKED % {**widths, "query": "query"} if k is None else "",
        **epsilons,
        **{"heads": heads, "shared": shared, "size": size, **widths},
    }
    tensors = [(q.dtype, (_dim(q, 0, 3), _dim(q, 1, 3), n * size)) for n in (heads, shared, shared)]
    given, count = ([q], 3) if k is None else ([q, k], 2)
    for i, v in enumerate(spliced(node, "norms", text, [*given, *gains], tensors[:count])):
        node.replace_input_with(i, v)
    for i in (14, 15):
        node.replace_input_with(i, None)


def _layer(node: ir.Node, opset: int) -> _Layer | None:
    """A node that can be taken apart; None for others, which are read as they are or stay: of known lengths, with
    scores as an output, with a cache of the window's size that is none or a bias, which has all positions."""
    given: list[ir.Value | None] = [*node.inputs, *[None] * (_INPUTS - len(node.inputs))]
    told = {name: a.value for name, a in node.attributes.items()}
    heads, shared = told.get("num_heads", 0), told.get("kv_num_heads", 0)
    size = _size(given[0], heads, 0 if given[1] is not None else shared)
    past, new = _dim(given[3], 2, 4), _dim(given[0], 1, 3)
    understood = len(given) == _INPUTS and not any(v is not None for i, v in enumerate(given) if i not in _READ)
    more = told.get("qk_output") or len(node.outputs) > 3
    plain = told.get("causal", 1) == 1 and not more
    known = heads and shared and heads % shared == 0 and size and past is not None and new is not None
    if not (understood and plain and known) or any(given[i] is None for i in (0, 3, 4, 5, 6)):
        return None
    grown = _dim(node.outputs[1], 2, 4) if len(node.outputs) > 1 else None
    fixed = given[6] is None or given[6].const_value is not None
    if fixed or past == 0:
        return None
    windowed, window = told.get("sliding_window_cache", 0), told.get("local_window_size", -1)
    if windowed and (window < 1 or given[10] is not None or (isinstance(past, int) and past < window)):
        return None
    fits = _dim(given[10], 0, 4) in (1, _dim(given[0], 0, 3)) and _dim(given[10], 1, 4) in (1, heads)
    if given[10] is not None and not fits:
        return None
    rows = _rows(given, told, heads, shared, size, opset)
    longer = past + new if isinstance(past, int) and isinstance(new, int) else f"{past}+{new}"
    room = past if past == grown and not windowed else longer
    return None if rows is None else _Layer(node, given, told, rows, room)


def _rows(
    given: Sequence[ir.Value | None], told: Mapping[str, Any], heads: int, shared: int, size: int, opset: int
) -> CacheRows | None:
    """The operator of case 1; None where a library has none."""
    q, cos = given[0], given[7]
    half = _dim(cos, 1, 2) if told.get("do_rotary", 0) else 0
    kind = _TYPES.get(q.dtype) if q is not None and q.dtype is not None else None
    ranks = [1 if v is None or v.shape is None else len(v.shape) for v in given[5:7]]
    if kind is None or not isinstance(half, int) or ranks[0] not in (1, 2) or ranks[1] > 1:
        return None
    turns = bool(half)
    kinds = (bool(told.get("rotary_interleaved", 0)) and turns, given[1] is None, given[9] is not None and turns)
    scales = _scales(given, told, opset)
    if scales is None:
        return None
    window = told["local_window_size"] if told.get("sliding_window_cache", 0) else 0
    rows = CacheRows(kind, heads, shared, size, 2 * half, *kinds, ranks[0], ranks[1], window, *scales)
    return None if rows.problem else rows


def _scales(given: Sequence[ir.Value | None], told: Mapping[str, Any], opset: int) -> tuple[int, str] | None:
    """How many scales each cache has, and of which type its numbers are: none for caches of the queries' type; None for
    other ones."""
    q, k, v = (given[i] for i in (0, 3, 4))
    kinds = {told.get(name, "NONE") for name in ("k_quant_type", "v_quant_type")}
    types = {x.dtype for x in (k, v) if x is not None}
    if kinds == {"NONE"}:
        return (0, "") if q is not None and types == {q.dtype} else None
    shapes = [
        x.shape.numpy() if x is not None and x.shape is not None and x.shape.is_static() else None for x in given[12:14]
    ]
    counts = {None if s is None else math.prod(s) for s in shapes}
    kind = types.pop() if len(types) == 1 else None
    stored, oldest = ("", 0) if kind is None else _STORED.get((kind, told.get("kv_cache_bit_width", 8)), ("", 0))
    ours = stored and opset >= oldest and len(kinds) == 1
    count = counts.pop() if ours and len(counts) == 1 else None
    return None if count is None else (count, stored)


def _size(q: ir.Value | None, heads: int, packed: int) -> int:
    """How many numbers a head has; 0 where that is not known. Behind the queries may lie `packed` heads of keys and values."""
    width, count = _dim(q, 2, 3), heads + 2 * packed
    return width // count if isinstance(width, int) and min(heads, count) > 0 and width % count == 0 else 0


def _dim(v: ir.Value | None, k: int, rank: int) -> int | str | None:
    """A dimension of a tensor that has `rank` of them, as far as it is known."""
    if v is None or v.shape is None or len(v.shape) != rank:
        return None
    d = v.shape[k]
    return d if isinstance(d, int) else d.value


@dataclass(frozen=True, slots=True)
class _Layer:
    """One node with its inputs and attributes, the operator of case 1, and the positions that caches have room for, those that
    are read."""

    node: ir.Node
    given: Sequence[ir.Value | None]
    told: Mapping[str, Any]
    rows: CacheRows
    room: int | str | None

    def take_place(self, model: ir.Model, opset: int) -> None:
        """Put both operators in front of the node, which goes."""
        q = self.given[0]
        results = self.new_rows(model, opset)
        queries = results.pop(0) if self.rows.writes_queries else q
        more = [self.given[11], self.padded_bias(results[0]), *self.given[12:14]]
        caches = results[4:] or results[:2]
        text = self.attention() % self.numbers()
        y = spliced(self.node, "attention", text, [queries, *results[:4], *more], [None])
        last = y[0].producer()
        assert last is not None
        last.meta[END] = True
        for v in self.node.outputs[1:]:
            v.shape = None  # the model says how many positions are counted, not how many there is room for
        take_place(self.node, list(zip(self.node.outputs, [*y, *caches], strict=False)))

    def padded_bias(self, k: ir.Value) -> ir.Value | None:
        """The bias for all keys that a present cache has room for."""
        bias = self.given[10]
        if bias is None:
            return None
        assert bias.dtype is not None
        dims = (*(_dim(bias, i, 4) for i in range(3)), self.room)
        text = texts.PADDED % {"cache_dims": texts.DIMS[self.rows.stored] % {"x": "cache"}}
        return spliced(self.node, "bias", text, [bias, k], [(bias.dtype, dims)])[0]

    def numbers(self) -> dict[str, Any]:
        """Numbers that texts have."""
        r, alike = self.rows, _dim(self.given[10], 1, 4) == 1
        return {
            "bias_shared": 1 if alike else r.shared,
            "bias_group": 1 if alike else r.heads // r.shared,
            "shared": r.shared,
            "group": r.heads // r.shared,
            "size": r.size,
            "block": r.size & -r.size,
            "blocks": r.size // (r.size & -r.size),
            "width": r.heads * r.size,
            "shared_width": r.shared * r.size,
            "type": next(t for t, name in _TYPES.items() if name == r.dtype).value,
            "channels": f"{r.shared}, 1, {r.size}" if r.scales > 1 else "1",
            "cap": self.told.get("softcap", 0.0),
            "window": self.told.get("local_window_size", -1),
            "scale": self.told.get("scale", 0.0) or r.size**-0.5,
        }

    def new_rows(self, model: ir.Model, opset: int) -> list[ir.Value]:
        """The results of case 1, whose function the model gets."""
        q, past, rows = self.given[0], self.given[3], self.rows
        assert q is not None and past is not None and q.dtype is not None and isinstance(self.node.graph, ir.Graph)
        dtype = past.dtype or q.dtype
        read = [
            *([0] if rows.writes_queries else []),
            *([] if rows.packed else [1, 2]),
            *(3, 4, 5),
            *([] if rows.window else [6]),
            *([7, 8] if rows.turned else []),
        ]
        inputs = [self.given[i] for i in (*read, *([9] if rows.listed else []))]
        if rows.scales:
            inputs += spliced(
                self.node, "scales", texts.FLAT, self.given[12:14], [(ir.DataType.FLOAT, (rows.scales,))] * 2
            )
        batch, new, integer = _dim(q, 0, 3), _dim(q, 1, 3), ir.DataType.INT64
        row = rows.size // rows.cache.per_byte

        def caches(name: str, positions: int | str | None) -> list[tuple[str, Tensor]]:
            tensor: Tensor = (dtype, (_dim(past, 0, 4), rows.shared, positions, row))
            return [(f"{name}_{x}", tensor) for x in "kv"]

        tensors = caches("read" if rows.window else "present", self.room)
        tensors += [("before", (integer, (batch,))), ("last", (integer, (batch,)))]
        tensors += caches("present", _dim(past, 2, 4)) if rows.window else []
        if rows.writes_queries:
            tensors.insert(0, ("turned", (q.dtype, (batch, new, rows.heads * rows.size))))
        prefix = f"{self.node.outputs[0].name}/rows"
        outputs = [described(ir.Value(name=f"{prefix}/{name}"), tensor) for name, tensor in tensors]
        node = ir.Node(DOMAIN, rows.op_type, inputs, outputs=outputs, name=prefix)
        node.meta[INSIDE] = self.node.op_type
        self.node.graph.insert_before(self.node, node)
        model.functions[DOMAIN, rows.op_type, ""] = rows_function(rows, opset)
        model.opset_imports[DOMAIN] = 1
        return outputs

    def attention(self) -> str:
        """The text of case 2."""
        sunk = self.given[11] is not None or self.told.get("smooth_softmax", 0) == 1
        parts = {
            "read": texts.READ[self.rows.stored],
            "capped": texts.CAPPED if self.told.get("softcap", 0.0) > 0 else texts.UNCAPPED,
            "biased": texts.UNBIASED if self.given[10] is None else texts.BIASED,
            "seen": texts.WINDOWED if self.told.get("local_window_size", -1) >= 0 else texts.CAUSAL,
            "sunk": texts.SUNK if sunk else texts.NO_SINK,
            "kept": texts.SHARED if sunk else texts.UNSHARED,
            "sink": texts.SMOOTH if self.given[11] is None else texts.SINK,
        }
        text = texts.ATTENTION
        for name, part in parts.items():
            text = text.replace(f"%({name})s", part)
        return text


def _keeps(rows: CacheRows) -> str:
    """What caches of a window's size keep."""
    wide = rows.stored == "e4m3"
    text = texts.WIDE_KEPT if wide else texts.KEPT
    return texts.KEPT_ROWS + "".join(text % {"x": x, "all": "wide_" if wide else ""} for x in "kv")


def rows_function(rows: CacheRows, opset: int) -> ir.Function:
    """The operator of case 1 in standard operators of an opset."""
    width, kind = rows.heads * rows.size, next(t for t, name in _TYPES.items() if name == rows.dtype)
    turned: dict[str, Any] = {"interleaved": rows.interleaved, "part": rows.turned if rows.turned != rows.size else 0}
    turned |= {"places": "listed" if rows.listed else "places"}
    turns = (("turned", "query", rows.heads), ("turned_k", "k", rows.shared)) if rows.turned else ()
    query = "query" if rows.turned else "turned"
    parts = {"width": width, "shared_width": rows.shared * rows.size, "query": query}
    kept, new, read = ("\n    ".join(text % {"x": x} for x in "kv") for text in texts.CACHES[rows.stored])
    channels = f"{rows.shared}, {rows.size}" if rows.scales > 1 else "1"
    half = 1 << (rows.cache.bits - 1)
    steps = {"scale_dims": channels, "least": -half, "most": half - 1}
    text = texts.ROWS % {
        "given": "packed" if rows.packed else "query, k, v" if rows.turned else "k, v",
        "first": "packed" if rows.packed else "k",
        "tables": ("" if rows.window else ", whole")
        + (", cos, sin" if rows.turned else "")
        + (", listed" if rows.listed else "")
        + (", k_scale, v_scale" if rows.scales else ""),
        "past_dims": texts.DIMS[rows.stored] % {"x": "past"},
        "kept": (texts.STEPS % steps if rows.scales else "") + kept,
        "new": new,
        "read": read,
        "kept_caches": ", present_k, present_v" if rows.window else "",
        "counted_rows": texts.WINDOW_ROWS % {"window_less_one": rows.window - 1} if rows.window else "",
        "newest": "newest" if rows.window else "last",
        "earlier": "earlier" if rows.window else "before",
        "more": texts.WINDOW_MORE if rows.window else texts.MORE_ROWS,
        "keeps": _keeps(rows) if rows.window else "",
        "turned": "turned, " if rows.writes_queries else "",
        "parts": texts.PACKED % parts if rows.packed else "",
        "rotary": "\n    ".join(texts.TURNED % {**turned, "y": y, "x": x, "heads": heads} for y, x, heads in turns),
        "k": "turned_k" if rows.turned else "k",
        "shared": rows.shared,
        "size": rows.size,
    }
    graph = parsed(text, kind)
    graph.opset_imports.update({"": opset, MICROSOFT: 1})
    return ir.Function(DOMAIN, rows.op_type, graph=graph, attributes=[])
