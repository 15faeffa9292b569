"""Attention as onnxruntime's own operators (com.microsoft) have it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, meaning
from mirage_cli.truth.calls.values import Array, Tensor, Value, rounded
from mirage_cli.truth.layers.attention import (
    capped,
    frontier,
    heads,
    joined,
    rotated,
    scores,
    weighted,
    weights,
    with_bias,
)
from mirage_cli.truth.layers.normalization import root_mean_square
from mirage_cli.truth.operators.linear import matmul

DOMAIN = "com.microsoft"
#: element types of quantized caches and bits of a number: of 4 bits it is the number + 8, two a byte, the first one low
_CACHES = ((TensorProto.INT8, 8), (TensorProto.FLOAT8E4M3FN, 8), (TensorProto.UINT8, 4))


def _scale(call: Call, size: int) -> float:
    return call.number("scale", 0.0) or 1 / math.sqrt(size)


def _mask(mask: Array | None, batch: int, queries: int, keys: int, masked: float) -> Array:
    """The bias that a mask of any of its layouts adds to scores: `masked` where keys do not count."""
    if mask is None:
        return np.zeros((1, 1, 1, keys))
    place = np.arange(keys)
    if mask.ndim == 1:
        ends = mask[:batch].reshape(-1, 1)
        counts = place < ends
        if mask.size == 2 * batch:
            counts = counts & (place >= mask[batch:].reshape(-1, 1))
        elif mask.size != batch:
            raise Refused(f"a mask of shape {mask.shape}")
        return np.where(counts, 0.0, masked)[:, None, None]
    if mask.ndim == 2:
        return np.where(mask > 0, 0.0, masked)[:, None, None]
    if mask.ndim == 3:
        return np.where(mask > 0, 0.0, masked)[:, None]
    return np.where(mask[:, :, keys - queries : keys, :keys] > 0, 0.0, masked)


def _attend(call: Call, q: Array, k: Array, v: Array, bias: Array, mask: Array, past: int) -> tuple[Array, Array]:
    """Attention of heads with what is added to its scores, and the scores before softmax."""
    bias = bias + mask
    if call.integer("unidirectional", 0):
        bias = bias + frontier(q.shape[2], k.shape[2], past)
    total = with_bias(call, scores(call.limits, q, k, _scale(call, q.shape[-1])), bias)
    return weighted(call, weights(total), v), total


@meaning("Attention", domain=DOMAIN)
def _attention(call: Call) -> Sequence[Value]:
    x, count = call.array(0), call.integer("num_heads")
    product = matmul(call.limits, x, call.array(1))
    product = product + call.array(2) if call.given(2) else product
    sizes = call.integers("qkv_hidden_sizes") or [product.shape[-1] // 3] * 3
    if call.integer("do_rotary", 0):
        raise Refused("rotation inside Attention")
    q, k, v = (heads(part, count) for part in np.split(product, np.cumsum(sizes)[:-1], -1))
    past = 0
    if call.given(4):
        past = call.array(4).shape[3]
        k, v = np.concatenate([call.array(4)[0], k], 2), np.concatenate([call.array(4)[1], v], 2)
    bias = call.array(5) if call.given(5) else np.zeros(())
    masked = call.number("mask_filter_value", -10000.0)
    mask = _mask(call.maybe(3), x.shape[0], x.shape[1], k.shape[2], masked)
    y, _ = _attend(call, q, k, v, bias, mask, past)
    results = [call.like(joined(y))]
    return [*results, call.like(np.stack([k, v]))] if call.wants(1) else results


@meaning("MultiHeadAttention", domain=DOMAIN)
def _multi_head_attention(call: Call) -> Sequence[Value]:
    q, k, v = _operands(call, call.integer("num_heads"))
    past = 0
    if call.given(6):
        past = call.array(6).shape[2]
        if call.given(8):
            raise Refused("a past that shares its buffer with the present")
        k, v = np.concatenate([call.array(6), k], 2), np.concatenate([call.array(7), v], 2)
    bias = call.array(5) if call.given(5) else np.zeros(())
    masked = call.number("mask_filter_value", -10000.0)
    mask = _mask(call.maybe(4), q.shape[0], q.shape[2], k.shape[2], masked)
    y, total = _attend(call, q, k, v, bias, mask, past)
    return [call.like(joined(y)), call.like(k), call.like(v), call.like(total)]


@meaning("DecoderMaskedMultiHeadAttention", domain=DOMAIN)
def _decoder_attention(call: Call) -> Sequence[Value]:
    if call.given(9):
        raise Refused("beams whose past is elsewhere")
    count, shares = call.integer("num_heads"), bool(call.integer("past_present_share_buffer", 0))
    q, k, v = (call.array(0), *(call.array(i) for i in (1, 2)))
    if k.ndim == 3:
        q, k, v = _biased([heads(q, count), heads(k, count), heads(v, count)], call.maybe(10), count)
    else:
        q = heads(q if not call.given(10) else q + call.array(10)[: q.shape[-1]], count)
    keys, values = k, v
    if call.given(5):
        end = int(call.scalar(7)) if shares else call.array(5).shape[2]
        keys = np.concatenate([call.array(5)[:, :, :end], k], 2)
        values = np.concatenate([call.array(6)[:, :, :end], v], 2)
    bias = call.array(4) if call.given(4) else np.zeros(())
    masked = call.number("mask_filter_value", -10000.0)
    mask = _mask(call.maybe(3), q.shape[0], q.shape[2], keys.shape[2], masked)
    y, total = _attend(call, q, keys, values, bias, mask, keys.shape[2] - q.shape[2])
    if shares and call.given(5):
        rest = slice(keys.shape[2], None)
        keys = np.concatenate([keys, call.array(5)[:, :, rest]], 2)
        values = np.concatenate([values, call.array(6)[:, :, rest]], 2)
    return [call.like(joined(y)), call.like(keys), call.like(values), call.like(total)]


def _operands(call: Call, count: int) -> tuple[Array, Array, Array]:
    """Queries, keys and values of MultiHeadAttention, (batch, heads, length, size), from any of its layouts."""
    q, bias = call.array(0), call.maybe(3)
    if q.ndim == 5:  # all three in one, (batch, length, heads, 3, size)
        parts = [q[:, :, :, i] for i in range(3)]
        return _biased([p.transpose(0, 2, 1, 3) for p in parts], bias, count)
    k = call.array(1)
    if k.ndim == 5:  # keys and values in one, (batch, length, heads, 2, size)
        parts = [heads(q, count), *(k[:, :, :, i].transpose(0, 2, 1, 3) for i in range(2))]
        return _biased(parts, bias, count)
    v = call.array(2)
    if k.ndim == 4:  # heads already apart: nothing is added to keys and values
        query = q if bias is None else q + bias[: q.shape[-1]]
        return heads(query, count), k, v
    return _biased([heads(q, count), heads(k, count), heads(v, count)], bias, count)


def _biased(parts: Sequence[Array], bias: Array | None, count: int) -> tuple[Array, Array, Array]:
    q, k, v = parts
    if bias is None:
        return q, k, v
    ends = np.cumsum([count * part.shape[-1] for part in parts])[:-1]
    added = [b.reshape(count, 1, -1) for b in np.split(bias, ends)]
    return q + added[0], k + added[1], v + added[2]


@meaning("GroupQueryAttention", domain=DOMAIN)
def _group_query_attention(call: Call) -> Sequence[Value]:
    count, shared = call.integer("num_heads"), call.integer("kv_num_heads")
    if call.given(16) or not call.integer("causal", 1):
        raise Refused("sequences of unequal new tokens, or no causal mask")
    q, k, v = _grouped(call, count, shared)
    if call.given(14):
        usual = call.number("qk_norm_epsilon", 1e-6)
        parts = ((q, 14, "q_norm_epsilon"), (k, 15, "k_norm_epsilon"))
        q, k = (root_mean_square(x, (-1,), call.number(e, usual))[0] * call.array(i) for x, i, e in parts)
    batch, _, length, size = q.shape
    totals = call.array(5).reshape(-1).astype(np.int64) + 1
    whole = int(call.scalar(6))
    before = np.zeros(batch, np.int64) if length == whole else totals - length
    if call.integer("do_rotary", 0):
        q, k = _turned(call, q, k, before)
    past_keys = call.array(3) if call.given(3) else np.zeros((batch, shared, 0, size))
    past_values = call.array(4) if call.given(4) else np.zeros((batch, shared, 0, v.shape[-1]))
    slots = past_keys.shape[2] if call.integer("sliding_window_cache", 0) else 0
    if slots:
        past_keys, past_values = (_at_places(call, x, before, whole) for x in (past_keys, past_values))
    room = max(whole, past_keys.shape[2])
    if (before + length > room).any():
        raise Refused(f"sequences of {totals.max()} positions in caches of {room}")
    scales = [_scale_of_cache(call, name, i) for name, i in (("k_quant_type", 12), ("v_quant_type", 13))]
    k, v = (x if s is None else _in_units(call, x, s) for x, s in zip((k, v), scales, strict=True))
    keys, values = _present(past_keys, k, before, room), _present(past_values, v, before, room)
    read_k, read_v = (
        (x if s is None else _numbers(call, x) * s)[:, :, :whole] for x, s in zip((keys, values), scales, strict=True)
    )
    y, total = _grouped_attention(call, q, read_k, read_v, before, totals)
    if slots:
        keys, values = (_most_recent(call, x, totals, slots) for x in (keys, values))
    kept = 3 if call.given(3) else 0
    return [call.like(joined(y)), call.like(keys, kept), call.like(values, kept), call.like(total)]


def _resident(call: Call, totals: Array, slots: int) -> Array:
    """How many positions a cache of the window's size keeps of so many: it drops several at once when it is full."""
    dropped = slots - call.integer("local_window_size") + 1
    if dropped < 1:
        raise Refused(f"a cache of {slots} positions for a window of {call.integer('local_window_size')}")
    over = np.maximum(totals - slots, 0)
    return np.asarray(totals - dropped * -(-over // dropped))


def _at_places(call: Call, past: Array, before: Array, whole: int) -> Array:
    """A cache of the window's size as one of all positions, zero at those that it has dropped."""
    every = np.zeros((*past.shape[:2], whole, past.shape[3]))
    for i, (end, count) in enumerate(zip(before, _resident(call, before, past.shape[2]), strict=True)):
        every[i, :, end - count : end] = past[i, :, :count]
    return every


def _most_recent(call: Call, every: Array, totals: Array, slots: int) -> Array:
    """The positions that a cache of the window's size keeps, in order, and zeros behind them."""
    present = np.zeros((*every.shape[:2], slots, every.shape[3]))
    for i, (end, count) in enumerate(zip(totals, _resident(call, totals, slots), strict=True)):
        present[i, :, :count] = every[i, :, end - count : end]
    return present


def _scale_of_cache(call: Call, name: str, index: int) -> Array | None:
    """What the numbers of a quantized cache are multiples of, (1, heads, 1, size) or one; None for others."""
    kind = call.text(name, "NONE")
    if kind == "NONE":
        return None
    if not call.given(3) or (call.tensor(3).type, call.integer("kv_cache_bit_width", 8)) not in _CACHES:
        raise Refused("a quantized past of another type than int8, int4 and float8e4m3fn")
    scale = call.array(index).astype(np.float64)
    return scale.reshape(1, call.integer("kv_num_heads"), 1, -1) if kind == "PER_CHANNEL" else scale.reshape(())


def _in_units(call: Call, x: Array, scale: Array) -> Array:
    """New rows as a cache holds them, the nearest numbers of its type; of a scale of 0 everything is 0."""
    steps = np.divide(x, scale, out=np.zeros_like(x), where=scale != 0)
    if call.tensor(3).type == TensorProto.INT8:
        return np.clip(np.rint(steps), -128, 127)
    if call.tensor(3).type == TensorProto.UINT8:
        number = np.clip(np.rint(steps), -8, 7) + 8
        return np.asarray(number[..., ::2] + 16 * number[..., 1::2])
    return rounded(steps, TensorProto.FLOAT8E4M3FN, saturate=True)


def _numbers(call: Call, stored: Array) -> Array:
    """The numbers that a quantized cache holds."""
    if call.tensor(3).type != TensorProto.UINT8:
        return stored
    return np.stack([stored % 16, stored // 16], -1).reshape(*stored.shape[:-1], -1) - 8


def _grouped(call: Call, count: int, shared: int) -> tuple[Array, Array, Array]:
    """Queries, keys and values of GroupQueryAttention, packed in one or apart."""
    if call.given(1):
        return heads(call.array(0), count), heads(call.array(1), shared), heads(call.array(2), shared)
    size = call.array(0).shape[-1] // (count + 2 * shared)
    q, k, v = np.split(call.array(0), [count * size, (count + shared) * size], -1)
    return heads(q, count), heads(k, shared), heads(v, shared)


def _turned(call: Call, q: Array, k: Array, before: Array) -> tuple[Array, Array]:
    """Queries and keys turned by their positions."""
    places = before[:, None] + np.arange(q.shape[2])
    if call.given(9):
        places = call.array(9)
    places = np.minimum(places, call.array(7).shape[0] - 1)
    cos, sin = call.array(7)[places][:, None], call.array(8)[places][:, None]
    interleaved = bool(call.integer("rotary_interleaved", 0))
    return rotated(q, cos, sin, interleaved), rotated(k, cos, sin, interleaved)


def _present(past: Array, new: Array, before: Array, room: int) -> Array:
    """The past, as far as it counts, with new keys or values behind it, in a buffer of a length that is zero behind
    them."""
    present = np.zeros((past.shape[0], past.shape[1], room, past.shape[3]))
    for i, start in enumerate(before):
        count = min(new.shape[2], room - start)
        present[i, :, :start] = past[i, :, :start]
        present[i, :, start : start + count] = new[i, :, :count]
    return present


def _grouped_attention(call: Call, q: Array, k: Array, v: Array, before: Array, totals: Array) -> tuple[Array, Array]:
    """Attention up to each query's own place, within a window, with a sink; and its scores."""
    total = capped(scores(call.limits, q, k, _scale(call, q.shape[-1])), call.number("softcap", 0.0))
    bias = call.array(10) if call.given(10) else np.zeros(())
    total = total + (bias[..., : k.shape[2]] if bias.ndim else bias)
    place = before[:, None, None, None] + np.arange(q.shape[2])[:, None]
    seen = (np.arange(k.shape[2]) <= place) & (np.arange(k.shape[2]) < totals[:, None, None, None])
    window = call.integer("local_window_size", -1)
    if window >= 0:
        seen = seen & (np.arange(k.shape[2]) > place - window)
    total = np.where(seen, total, -np.inf)
    sink = call.array(11).reshape(1, -1, 1, 1) if call.given(11) else None
    if sink is None and call.integer("smooth_softmax", 0) == 1:
        sink = np.zeros((1, 1, 1, 1))
    if sink is None:
        return weighted(call, weights(total), v), total
    sunk = np.concatenate([total, np.broadcast_to(sink, (*total.shape[:3], 1))], -1)
    return weighted(call, weights(sunk)[..., :-1], v), total


@meaning("RotaryEmbedding", domain=DOMAIN)
def _rotary_embedding(call: Call) -> Tensor:
    x, places, cos, sin = (call.array(i) for i in range(4))
    if call.integer("is_packed_batching", 0):
        raise Refused("packed batches")
    count, size = call.integer("num_heads", 0), call.integer("rotary_embedding_dim", 0)
    flat = x.ndim == 3
    y = heads(x, count or x.shape[-1] // (2 * cos.shape[-1])) if flat else x
    if size and size != 2 * cos.shape[-1]:
        raise Refused(f"angles of {cos.shape[-1]} pairs for {size} numbers")
    chosen = int(places.reshape(-1)[0]) + np.arange(y.shape[2])[None] if places.size == 1 else places
    y = rotated(y, cos[chosen][:, None], sin[chosen][:, None], bool(call.integer("interleaved", 0)))
    return call.like(joined(y) if flat else y)
