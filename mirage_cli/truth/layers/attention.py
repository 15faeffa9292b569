"""Attention and the rotation of its operands by position, as ONNX has them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, Limits, meaning
from mirage_cli.truth.calls.values import Array, Tensor, Value
from mirage_cli.truth.operators.linear import matmul, product


def heads(x: Array, count: int) -> Array:
    """(batch, length, count * size) as (batch, count, length, size)."""
    batch, length, width = x.shape
    if count < 1 or width % count:
        raise Refused(f"a width of {width} for {count} heads")
    return x.reshape(batch, length, count, width // count).transpose(0, 2, 1, 3)


def joined(x: Array) -> Array:
    """(batch, count, length, size) as (batch, length, count * size)."""
    batch, count, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, count * size)


def shared(x: Array, count: int) -> Array:
    """Heads of keys or values, each repeated for the queries that share it."""
    if x.shape[1] == count:
        return x
    if not x.shape[1] or count % x.shape[1]:
        raise Refused(f"{count} heads of queries on {x.shape[1]} of keys")
    return np.repeat(x, count // x.shape[1], axis=1)


def scores(limits: Limits, q: Array, k: Array, scale: float) -> Array:
    """The scaled products of queries and keys, (batch, heads, queries, keys)."""
    return matmul(limits, q * scale, shared(k, q.shape[1]).swapaxes(-1, -2))


def capped(x: Array, cap: float) -> Array:
    """Scores kept within a cap by tanh; 0 is no cap."""
    return x if cap == 0 else cap * np.tanh(x / cap)


def with_bias(call: Call, x: Array, bias: Array) -> Array:
    """Scores with what a mask adds to them."""
    return x + bias if call.hidden else np.where(np.isneginf(bias), -np.inf, x + bias)


def weights(x: Array) -> Array:
    """Softmax along the last axis; NaN where every score is minus infinity."""
    if not x.shape[-1]:
        return x
    e: Array = np.exp(x - np.max(x, axis=-1, keepdims=True))
    total: Array = np.sum(e, axis=-1, keepdims=True)
    return e / total


def weighted(call: Call, p: Array, v: Array) -> Array:
    """The sum of values with their weights."""
    return product(call, p, shared(v, p.shape[1]))


def frontier(queries: int, keys: int, offset: Array | int) -> Array:
    """0 where a query may see a key (up to its own place plus `offset`), else minus infinity; (..., queries, keys)."""
    i, j = np.arange(queries)[:, None], np.arange(keys)[None]
    return np.where(j <= i + np.asarray(offset)[..., None, None], 0.0, -np.inf)


def additive(mask: Array) -> Array:
    """A mask of bools as numbers to add to scores; others as they are."""
    return np.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else mask


@meaning("Attention")
def _attention(call: Call) -> Sequence[Value]:
    flat = call.array(0).ndim == 3
    q, k, v = (call.array(i) for i in range(3))
    if flat:
        q, k, v = (heads(x, call.integer(f"{kind}_num_heads")) for x, kind in ((q, "q"), (k, "kv"), (v, "kv")))
    if call.given(4):
        k, v = np.concatenate([call.array(4), k], 2), np.concatenate([call.array(5), v], 2)
    scale = call.number("scale") if call.has("scale") else 1 / math.sqrt(q.shape[-1])
    products = scores(call.limits, q, k, scale)
    soft = capped(products, call.number("softcap", 0.0))
    bias = _bias(call, q.shape[2], k.shape[2])
    biased = with_bias(call, soft, bias)
    seen = biased if not call.hidden and (call.given(3) or call.given(6)) else bias
    p = np.where(np.isneginf(np.max(seen, axis=-1, keepdims=True, initial=-np.inf)), 0.0, weights(biased))
    y = weighted(call, p, v)
    shown = (products, soft, biased, p)[call.integer("qk_matmul_output_mode", 0)]
    return [call.like(joined(y) if flat else y), call.like(k, 1), call.like(v, 2), call.like(shown)]


def _bias(call: Call, queries: int, keys: int) -> Array:
    """The bias that ONNX's Attention adds to its scores: mask, causal frontier, window, the end of the keys that
    count."""
    bias = np.zeros((queries, keys))
    if call.given(3):
        mask = additive(call.array(3))
        missing = keys - mask.shape[-1]
        if missing > 0:
            mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=-np.inf)
        bias = bias + mask
    counted = call.maybe(6)
    offset: Array | int = call.array(4).shape[2] if call.given(4) else 0
    if counted is not None and not call.given(4):
        offset = counted.reshape(-1, 1).astype(np.int64) - queries
    if call.integer("is_causal", 0):
        bias = bias + frontier(queries, keys, offset)
    for name, sign in (("left_window_size", 1), ("right_window_size", -1)):
        size = call.integer(name, -1)
        if size >= 0:
            distance = np.arange(queries)[:, None] - np.arange(keys) + np.asarray(offset)[..., None, None]
            bias = bias + np.where(sign * distance <= size, 0.0, -np.inf)
    if counted is not None:
        bias = bias + np.where(np.arange(keys) < counted.reshape(-1, 1, 1, 1), 0.0, -np.inf)
    return bias


def rotated(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Pairs of the last axis turned by angles: neighbours where `interleaved`, else the two halves.

    `cos` and `sin` cover the front of the axis, of which they have half the size; the rest stays as it is.
    """
    size = 2 * cos.shape[-1]
    front, rest = x[..., :size], x[..., size:]
    a, b = (front[..., 0::2], front[..., 1::2]) if interleaved else np.split(front, 2, -1)
    real, imaginary = a * cos - b * sin, a * sin + b * cos
    turned = (
        np.stack([real, imaginary], -1).reshape(front.shape) if interleaved else np.concatenate([real, imaginary], -1)
    )
    return np.concatenate([turned, rest], -1)


@meaning("RotaryEmbedding")
def _rotary_embedding(call: Call) -> Tensor:
    x, cos, sin = (call.array(i) for i in range(3))
    flat = x.ndim == 3
    y = heads(x, call.integer("num_heads", 0)) if flat else x
    if call.given(3):
        cos, sin = cos[call.array(3)], sin[call.array(3)]
    size = call.integer("rotary_embedding_dim", 0) or y.shape[-1]
    if 2 * cos.shape[-1] != size or cos.shape != sin.shape:
        raise Refused(f"angles of {cos.shape[-1]} and {sin.shape[-1]} pairs for {size} numbers")
    y = rotated(y, cos[:, None], sin[:, None], bool(call.integer("interleaved", 0)))
    return call.like(joined(y) if flat else y)


@meaning("LinearAttention")
def _linear_attention(call: Call) -> Sequence[Value]:
    count, rule = call.integer("kv_num_heads"), call.text("update_rule", "gated_delta")
    q = heads(call.array(0), call.integer("q_num_heads"))
    k, v = heads(call.array(1), count), heads(call.array(2), count)
    decay, beta = call.maybe(4), call.maybe(5)
    scale = call.number("scale", 0.0) or 1 / math.sqrt(q.shape[-1])
    past = call.maybe(3)
    state = np.zeros((q.shape[0], count, k.shape[-1], v.shape[-1])) if past is None else past
    call.limits.check_work(float(math.prod(q.shape)) * v.shape[-1] * 3)
    rows = []
    for position in range(q.shape[2]):
        call.limits.check_time()
        key, value = k[:, :, position], v[:, :, position]
        if decay is not None:
            state = state * np.exp(heads(decay, count)[:, :, position])[..., None]
        if rule.endswith("delta") and beta is not None:
            retrieved = np.einsum("bhdm,bhd->bhm", state, key)
            value = heads(beta, beta.shape[-1])[:, :, position] * (value - retrieved)
        state = state + key[..., :, None] * value[..., None, :]
        rows.append(scale * np.einsum("bhd,bhdm->bhm", q[:, :, position], shared(state, q.shape[1])))
    y = np.stack(rows, 2) if rows else np.zeros((*q.shape[:3], v.shape[-1]))
    return [call.like(joined(y)), Tensor(state, call.tensor(3 if past is not None else 0).type)]
