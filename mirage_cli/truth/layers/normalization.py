"""Normalizations: over batches, layers, groups, instances, and by roots of mean squares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, at_axis, meaning
from mirage_cli.truth.calls.values import Array, Tensor, Value


def _along(vector: Array, axis: int, rank: int) -> Array:
    """A vector as a tensor of a rank, along one of its axes."""
    return vector.reshape([-1 if i == axis else 1 for i in range(rank)])


def _standardized(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """x less its mean over axes and over its deviation; the mean; one over the deviation."""
    if not x.size:
        kept = np.mean(np.ones_like(x), axis=axes, keepdims=True)
        return x, kept, kept
    mean = np.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    inverse = 1 / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + epsilon)
    return centred * inverse, mean, inverse


@meaning("BatchNormalization")
def _batch_normalization(call: Call) -> Sequence[Value]:
    x, scale, bias, mean, variance = (call.array(i) for i in range(5))
    epsilon, momentum = call.number("epsilon", 1e-5), call.number("momentum", 0.9)
    if call.version < 9 and not call.integer("spatial", 1):
        return [call.like((x - mean) / np.sqrt(variance + epsilon) * scale + bias)]
    axes = tuple(i for i in range(x.ndim) if i != 1)
    training = bool(call.integer("training_mode", 0))
    if call.version < 14 and any(call.wants(i) for i in range(1, 5)):
        raise Refused("outputs of training")
    now_mean, now_variance = (np.mean(x, axis=axes), np.var(x, axis=axes)) if training else (mean, variance)
    centred = (x - _along(now_mean, 1, x.ndim)) / np.sqrt(_along(now_variance, 1, x.ndim) + epsilon)
    y = centred * _along(scale, 1, x.ndim) + _along(bias, 1, x.ndim)
    if not training:
        return [call.like(y)]
    return [
        call.like(y),
        call.like(mean * momentum + now_mean * (1 - momentum), 3),
        call.like(variance * momentum + now_variance * (1 - momentum), 4),
    ]


@meaning("InstanceNormalization")
def _instance_normalization(call: Call) -> Tensor:
    x = call.array(0)
    y, _, _ = _standardized(x, tuple(range(2, x.ndim)), call.number("epsilon", 1e-5))
    return call.like(y * _along(call.array(1), 1, x.ndim) + _along(call.array(2), 1, x.ndim))


@meaning("LayerNormalization", since=1)
def _layer_normalization(call: Call) -> Sequence[Value]:
    x, bias = call.array(0), call.maybe(2)
    axis = at_axis(call.integer("axis", -1), x.ndim)
    y, mean, inverse = _standardized(x, tuple(range(axis, x.ndim)), call.number("epsilon", 1e-5))
    stash = call.integer("stash_type", TensorProto.FLOAT)
    y = y * call.array(1)
    return [call.like(y if bias is None else y + bias), Tensor(mean, stash), Tensor(inverse, stash)]


def root_mean_square(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array]:
    """x over the root of the mean of its squares, and one over that root."""
    if not x.size:
        return x, np.mean(np.ones_like(x), axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + epsilon)
    return x * inverse, inverse


@meaning("RMSNormalization")
@meaning("SimplifiedLayerNormalization", since=1)
def _rms_normalization(call: Call) -> Sequence[Value]:
    x = call.array(0)
    axis = at_axis(call.integer("axis", -1), x.ndim)
    y, inverse = root_mean_square(x, tuple(range(axis, x.ndim)), call.number("epsilon", 1e-5))
    return [call.like(y * call.array(1), 1), Tensor(inverse, call.integer("stash_type", TensorProto.FLOAT))]


@meaning("GroupNormalization")
def _group_normalization(call: Call) -> Tensor:
    x, groups = call.array(0), call.integer("num_groups")
    if not x.size:
        return call.like(x)
    parted = x.reshape((x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    y, _, _ = _standardized(parted, tuple(range(2, parted.ndim)), call.number("epsilon", 1e-5))
    scale, bias = call.array(1), call.array(2)
    if call.version < 21:  # one number for each group
        return call.like((y * _along(scale, 1, y.ndim) + _along(bias, 1, y.ndim)).reshape(x.shape))
    return call.like(y.reshape(x.shape) * _along(scale, 1, x.ndim) + _along(bias, 1, x.ndim))


@meaning("GroupNorm", domain="com.microsoft")
def _microsoft_group_norm(call: Call) -> Tensor:
    x = call.array(0) if not call.integer("channels_last", 1) else np.moveaxis(call.array(0), -1, 1)
    groups = call.integer("groups")
    parted = x.reshape((x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    y, _, _ = _standardized(parted, tuple(range(2, parted.ndim)), call.number("epsilon", 1e-5))
    y = y.reshape(x.shape) * _along(call.array(1), 1, x.ndim) + _along(call.array(2), 1, x.ndim)
    y = y / (1 + np.exp(-y)) if call.integer("activation") else y
    return call.like(np.moveaxis(y, 1, -1) if call.integer("channels_last", 1) else y)


@meaning("MeanVarianceNormalization")
def _mean_variance_normalization(call: Call) -> Tensor:
    x = call.array(0)
    chosen = call.integers("axes")
    axes = tuple(at_axis(a, x.ndim) for a in ([0, 2, 3] if chosen is None else chosen))
    centred = x - np.mean(x, axis=axes, keepdims=True)
    deviation = np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True))
    return call.like(centred / np.where(deviation == 0, 0.0, deviation + 1e-9))  # NaN of constants, as onnxruntime


@meaning("LpNormalization")
def _lp_normalization(call: Call) -> Tensor:
    x = call.array(0)
    axis = at_axis(call.integer("axis", -1), x.ndim)
    squares = call.integer("p", 2) == 2
    size = np.sqrt(np.sum(x * x, axis=axis, keepdims=True)) if squares else np.sum(np.abs(x), axis=axis, keepdims=True)
    return call.like(np.where(size == 0, 0.0, x / np.where(size == 0, 1.0, size)))


@meaning("LRN")
def _lrn(call: Call) -> Tensor:
    x, size = call.array(0), call.integer("size")
    alpha, beta, bias = call.number("alpha", 1e-4), call.number("beta", 0.75), call.number("bias", 1.0)
    before, channels = (size - 1) // 2, x.shape[1]
    squares = np.pad(x * x, [(0, 0), (before, size - 1 - before)] + [(0, 0)] * (x.ndim - 2))
    total = sum((squares[:, i : i + channels] for i in range(size)), np.zeros_like(x))
    return call.like(x / (bias + alpha / size * total) ** beta)


def _skip(call: Call, last_bias: int) -> tuple[Array, Tensor]:
    """The sum that a skip normalization normalizes, as numbers and as its output."""
    x, skip = call.array(0), call.array(1)
    total = x + (skip if skip.ndim == x.ndim or x.ndim < 3 else skip[None])
    bias = call.maybe(last_bias)
    total = total if bias is None else total + bias
    return total, call.like(total)


@meaning("SkipLayerNormalization", domain="com.microsoft")
def _skip_layer_normalization(call: Call) -> Sequence[Value]:
    total, output = _skip(call, 4)
    y, mean, inverse = _standardized(total, (total.ndim - 1,), call.number("epsilon", 1e-12))
    beta = call.maybe(3)
    y = y * call.array(2)
    kept = TensorProto.FLOAT
    return [call.like(y if beta is None else y + beta), Tensor(mean, kept), Tensor(inverse, kept), output]


@meaning("SkipSimplifiedLayerNormalization", domain="com.microsoft")
def _skip_rms_normalization(call: Call) -> Sequence[Value]:
    total, output = _skip(call, 3)
    y, inverse = root_mean_square(total, (total.ndim - 1,), call.number("epsilon", 1e-12))
    kept = Tensor(inverse, TensorProto.FLOAT)
    return [call.like(y * call.array(2)), Tensor(np.zeros_like(inverse), TensorProto.FLOAT), kept, output]


@meaning("EmbedLayerNormalization", domain="com.microsoft")
def _embed_layer_normalization(call: Call) -> Sequence[Value]:
    ids, segments, mask, places = call.array(0), call.maybe(1), call.maybe(7), call.maybe(8)
    length = ids.shape[1]
    positions = np.arange(length)[None] if places is None else places
    total = call.array(2)[ids] + call.array(3)[positions]
    if segments is not None:
        total = total + call.array(4)[segments]
    y, _, _ = _standardized(total, (2,), call.number("epsilon", 1e-12))
    counts = np.zeros(len(ids), np.int32) if mask is None else np.sum(mask != 0, axis=1).astype(np.int32)
    return [
        call.like(y * call.array(5) + call.array(6), 2),
        Tensor(counts, TensorProto.INT32),
        call.like(np.broadcast_to(total, y.shape), 2),
    ]
