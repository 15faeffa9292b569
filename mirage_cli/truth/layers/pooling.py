"""Convolutions and pools, over any number of spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, meaning
from mirage_cli.truth.calls.values import Array, Tensor, Value, plain
from mirage_cli.truth.operators.linear import activation

#: how many elements the windows of a convolution have that are laid out at once
LARGEST_PART = 1 << 24
#: attributes of causal convolutions of which only their defaults are computed
CUDA_ALONE = ("state_window", "state_update_capacity", "state_length", "input_channel_offset", "input_channels")


@dataclass(frozen=True)
class Window:
    """Sizes of a sliding window, one number for each spatial axis; `over` is by how much it may stick out at the end."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    over: tuple[int, ...]

    def spans(self) -> tuple[int, ...]:
        """The number of elements that a window spans along each axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.sizes, self.dilations, strict=True))


def window(call: Call, lengths: Sequence[int], sizes: Sequence[int]) -> Window:
    """The window of a convolution or pool over spatial axes of some lengths."""
    rank = len(lengths)
    strides = tuple(call.integers("strides") or [1] * rank)
    dilations = tuple(call.integers("dilations") or [1] * rank)
    spans = [d * (k - 1) + 1 for k, d in zip(sizes, dilations, strict=True)]
    auto = call.text("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-n // stride) - 1) * stride + e - n, 0) for n, stride, e in zip(lengths, strides, spans, strict=True)
        ]
        begins = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in totals]
        ends = [t - b for t, b in zip(totals, begins, strict=True)]
    else:
        pads = (call.integers("pads") if auto == "NOTSET" else None) or [0] * (2 * rank)
        begins, ends = pads[:rank], pads[rank:]
    over = [0] * rank
    if call.integer("ceil_mode", 0):
        for i, (n, stride, e) in enumerate(zip(lengths, strides, spans, strict=True)):
            rest = n + begins[i] + ends[i] - e
            count = -(-rest // stride) + 1
            count -= (count - 1) * stride >= n + begins[i]  # no window starts behind the end
            over[i] = max((count - 1) * stride - rest, 0)
    return Window(tuple(sizes), strides, dilations, tuple(begins), tuple(ends), tuple(over))


def windows(call: Call, x: Array, w: Window, fill: Any) -> Array:
    """The elements in each window: (batch, channels, places..., sizes...)."""
    grown = [(0, 0), (0, 0), *((b, e + o) for b, e, o in zip(w.begins, w.ends, w.over, strict=True))]
    cuts = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, grown, strict=True))
    y = np.pad(x[cuts], [(max(a, 0), max(b, 0)) for a, b in grown], constant_values=fill)
    axes = tuple(range(2, x.ndim))
    spans = w.spans()
    if any(n < s for n, s in zip(y.shape[2:], spans, strict=True)):
        raise Refused(f"a window of {spans} over {y.shape[2:]}")
    seen = sliding_window_view(y, spans, axis=axes)
    places = tuple(slice(None, None, s) for s in w.strides)
    inside = tuple(slice(None, None, d) for d in w.dilations)
    elements: Array = seen[(slice(None), slice(None), *places, *inside)]
    call.limits.check_shape(elements.shape[: x.ndim])
    return elements


def convolution(call: Call, x: Array, kernel: Array) -> Array:
    """The convolution of x with kernels, both in one type; without bias."""
    groups, rank = call.integer("group", 1), x.ndim - 2
    batch, filters = x.shape[0], kernel.shape[0]
    seen = windows(call, x, window(call, x.shape[2:], kernel.shape[2:]), 0)
    places = seen.shape[2 : 2 + rank]
    deep = kernel.shape[1] * math.prod(kernel.shape[2:])
    call.limits.check_work(float(batch) * filters * math.prod(places) * deep)
    if batch * filters * math.prod(places) == 0:
        return np.zeros((batch, filters, *places), x.dtype)
    parts = np.array_split(np.arange(places[0]), min(places[0], 1 + seen.size // LARGEST_PART))
    products = []
    for part in parts:
        call.limits.check_time()
        products.append(_product(seen[:, :, part[0] : part[-1] + 1], kernel, groups))
    return np.concatenate(products, 2)


def _product(seen: Array, kernel: Array, groups: int) -> Array:
    """The products of what windows see with kernels, (batch, filters, places...)."""
    rank, filters = kernel.ndim - 2, kernel.shape[0]
    batch, places = seen.shape[0], seen.shape[2 : 2 + rank]
    rows = np.moveaxis(seen, 1, 1 + rank).reshape(batch, math.prod(places), groups, -1)
    weights = kernel.reshape(groups, filters // groups, -1).swapaxes(1, 2)
    product: Array = np.matmul(np.moveaxis(rows, 2, 1), weights)
    return product.swapaxes(2, 3).reshape(batch, filters, *places)


def _with_bias(y: Array, bias: Array | None) -> Array:
    return y if bias is None else y + bias.reshape((-1,) + (1,) * (y.ndim - 2))


@meaning("Conv")
def _conv(call: Call) -> Tensor:
    return call.like(_with_bias(convolution(call, call.array(0), call.array(1)), call.maybe(2)))


@meaning("FusedConv", domain="com.microsoft")
def _fused_conv(call: Call) -> Tensor:
    y = _with_bias(convolution(call, call.array(0), call.array(1)), call.maybe(2))
    y = y + call.array(3) if call.given(3) else y
    alpha, beta = [*(call.numbers("activation_params") or []), 0.0, 0.0][:2]
    name = call.text("activation", "")
    return call.like(activation(name, y, alpha, beta) if name else y)


@meaning("CausalConvWithState")
@meaning("CausalConvWithState", domain="com.microsoft")
def _causal_conv(call: Call) -> Sequence[Value]:
    x, kernel, apart, last = call.array(0), call.array(1), call.integer("dilation", 1), call.integer("channels_last", 0)
    other = call.integer("state_channels_last", -1) not in (-1, last)
    if x.ndim < 3 or kernel.ndim != 3 or other or any(call.integer(name, 0) for name in CUDA_ALONE):
        raise Refused("a causal convolution over several axes, of a part of its input, or with states of another form")
    rows, taps = _sequences(x, last), kernel.shape[2]
    reach = (taps - 1) * apart
    past = _sequences(call.array(3), last) if call.given(3) else np.zeros((*rows.shape[:2], reach))
    long = np.concatenate([past, rows], 2)
    call.limits.check_work(float(math.prod(x.shape)) * taps)
    y = np.zeros_like(rows)
    for i in range(taps):
        y = y + long[:, :, i * apart : i * apart + rows.shape[2]] * kernel[:, 0, i, None]
    y = _with_bias(y, call.maybe(2))
    if call.text("activation", "none") in ("silu", "swish"):
        y = y / (1 + np.exp(-y))
    results = (y, long[:, :, long.shape[2] - reach :])
    return [call.like(np.moveaxis(z, 1, 2).reshape(len(z), -1, *x.shape[2:]) if last else z) for z in results]


def _sequences(x: Array, last: int) -> Array:
    """[batch, channels, sequence] of a tensor whose channels may be its `last` axes."""
    return np.moveaxis(x.reshape(*x.shape[:2], -1), 2, 1) if last else x


@meaning("ConvTranspose")
def _conv_transpose(call: Call) -> Tensor:
    x, kernel = call.array(0), call.array(1)
    rank, groups = x.ndim - 2, call.integer("group", 1)
    strides = call.integers("strides") or [1] * rank
    dilations = call.integers("dilations") or [1] * rank
    extra = call.integers("output_padding") or [0] * rank
    spans = [d * (k - 1) + 1 for k, d in zip(kernel.shape[2:], dilations, strict=True)]
    full = [s * (n - 1) + e + p for n, s, e, p in zip(x.shape[2:], strides, spans, extra, strict=True)]
    begins, lengths = _transposed_pads(call, x.shape[2:], full, strides)
    parts = [
        _spread(call, a, b, strides, dilations, full)
        for a, b in zip(np.split(x, groups, 1), np.split(kernel, groups, 0), strict=True)
    ]
    y = np.concatenate(parts, 1)
    cuts = tuple(slice(max(b, 0), max(b, 0) + n) for b, n in zip(begins, lengths, strict=True))
    y = y[(slice(None), slice(None), *cuts)]
    missing = [(0, n - m) for n, m in zip(lengths, y.shape[2:], strict=True)]
    return call.like(_with_bias(np.pad(y, [(0, 0), (0, 0), *missing]), call.maybe(2)))


def _transposed_pads(
    call: Call, lengths: Sequence[int], full: Sequence[int], strides: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Where a transposed convolution's result begins in its full one, and its lengths."""
    rank, auto = len(lengths), call.text("auto_pad", "NOTSET")
    shape = call.integers("output_shape")
    if shape is None and auto not in ("SAME_UPPER", "SAME_LOWER"):
        pads = (call.integers("pads") if auto == "NOTSET" else None) or [0] * (2 * rank)
        return pads[:rank], [f - pads[i] - pads[i + rank] for i, f in enumerate(full)]
    wanted = [n * s for n, s in zip(lengths, strides, strict=True)] if shape is None else shape[-rank:]
    totals = [max(f - n, 0) for f, n in zip(full, wanted, strict=True)]
    upper = auto == "SAME_UPPER"
    return [t // 2 if upper else t - t // 2 for t in totals], wanted


def _spread(
    call: Call, x: Array, kernel: Array, strides: Sequence[int], dilations: Sequence[int], full: Sequence[int]
) -> Array:
    """The full transposed convolution of one group: each element adds its kernel where it lies."""
    call.limits.check_shape([x.shape[0], kernel.shape[1], *full])
    call.limits.check_work(float(math.prod(x.shape)) * kernel.shape[1] * math.prod(kernel.shape[2:]))
    y = np.zeros((x.shape[0], kernel.shape[1], *full), x.dtype)
    for place in np.ndindex(*kernel.shape[2:]):
        call.limits.check_time()
        product = np.einsum("nc...,cm->nm...", x, kernel[(slice(None), slice(None), *place)])
        cuts = tuple(
            slice(p * d, p * d + s * (n - 1) + 1, s)
            for p, d, s, n in zip(place, dilations, strides, x.shape[2:], strict=True)
        )
        y[(slice(None), slice(None), *cuts)] += product
    return y


@meaning("MaxPool")
def _max_pool(call: Call) -> Sequence[Value]:
    x = call.array(0)
    rank = x.ndim - 2
    w = window(call, x.shape[2:], call.integers("kernel_shape") or [])
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    seen = windows(call, x, w, lowest)
    flat = seen.reshape((*seen.shape[: 2 + rank], -1))
    y = call.like(np.max(flat, axis=-1, initial=lowest))
    return [y, _max_places(call, x, w, flat)] if call.wants(1) else [y]


def _max_places(call: Call, x: Array, w: Window, flat: Array) -> Tensor:
    """Where in the flattened input each maximum lies (the first of equal ones)."""
    best = np.argmax(flat, axis=-1)
    inside = np.unravel_index(best, w.sizes)
    rank, shape = x.ndim - 2, x.shape
    place = np.zeros(best.shape, np.int64)
    order = list(range(rank))
    steps = [math.prod(shape[2 + i + 1 :]) for i in order]
    if call.integer("storage_order", 0):
        steps = [math.prod(shape[2 : 2 + i]) for i in order]
    for axis in order:
        start = np.arange(best.shape[2 + axis]) * w.strides[axis] - w.begins[axis]
        along = start.reshape([-1 if i == 2 + axis else 1 for i in range(best.ndim)])
        place = place + (along + inside[axis] * w.dilations[axis]) * steps[axis]
    front = np.arange(shape[0] * shape[1]).reshape(shape[0], shape[1], *(1,) * rank)
    return plain(place + front * math.prod(shape[2:]))


@meaning("AveragePool")
def _average_pool(call: Call) -> Tensor:
    x = call.array(0)
    w = window(call, x.shape[2:], call.integers("kernel_shape") or [])
    axes = tuple(range(x.ndim, 2 * x.ndim - 2))
    total = np.sum(windows(call, x, w, 0), axis=axes)
    return call.like(total / _counted(call, x, w, bool(call.integer("count_include_pad", 0))))


def _counted(call: Call, x: Array, w: Window, padding: bool) -> Array:
    """Number of elements that each window averages over; what sticks out beyond the padding never counts."""
    ones = np.ones((1, 1, *x.shape[2:]))
    if padding:
        grown = [(0, 0), (0, 0), *zip(w.begins, w.ends, strict=True)]
        ones = np.pad(ones, grown, constant_values=1.0)
        w = Window(w.sizes, w.strides, w.dilations, (0,) * len(w.sizes), (0,) * len(w.sizes), w.over)
    return np.asarray(np.sum(windows(call, ones, w, 0), axis=tuple(range(x.ndim, 2 * x.ndim - 2))))


@meaning("LpPool")
def _lp_pool(call: Call) -> Tensor:
    x, p = call.array(0), call.integer("p", 2)
    seen = windows(call, x, window(call, x.shape[2:], call.integers("kernel_shape") or []), 0)
    return call.like(np.sum(np.abs(seen) ** p, axis=tuple(range(x.ndim, 2 * x.ndim - 2))) ** (1 / p))


@meaning("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(call: Call) -> Tensor:
    x = call.array(0)
    axes = tuple(range(2, x.ndim))
    if call.node.op_type == "GlobalAveragePool":
        return call.like(np.mean(x, axis=axes, keepdims=True))
    if call.node.op_type == "GlobalMaxPool":
        return call.like(np.max(x, axis=axes, keepdims=True))
    p = call.integer("p", 2)
    return call.like(np.sum(np.abs(x) ** p, axis=axes, keepdims=True) ** (1 / p))


@meaning("MaxUnpool")
def _max_unpool(call: Call) -> Tensor:
    x, places = call.array(0), call.array(1)
    rank = x.ndim - 2
    sizes = call.integers("kernel_shape") or []
    strides = call.integers("strides") or [1] * rank
    pads = call.integers("pads") or [0] * (2 * rank)
    inferred = [
        (n - 1) * s - pads[i] - pads[i + rank] + k
        for i, (n, s, k) in enumerate(zip(x.shape[2:], strides, sizes, strict=True))
    ]
    shape = call.index_list(2) if call.given(2) else [*x.shape[:2], *inferred]
    call.limits.check_shape(shape)
    y = np.zeros([*x.shape[:2], *inferred])
    y.reshape(-1)[places.reshape(-1)] = x.reshape(-1)
    full = np.zeros(shape)
    full[tuple(slice(0, n) for n in y.shape)] = y
    return call.like(full)


@meaning("Col2Im")
def _col2im(call: Call) -> Tensor:
    x, image, block = call.array(0), call.index_list(1), call.index_list(2)
    rank = len(image)
    strides, dilations = call.integers("strides") or [1] * rank, call.integers("dilations") or [1] * rank
    pads = call.integers("pads") or [0] * (2 * rank)
    long = [n + pads[i] + pads[i + rank] for i, n in enumerate(image)]
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, d, k, s in zip(long, dilations, block, strides, strict=True)]
    parts = x.reshape(x.shape[0], -1, *block, *counts)
    y = np.zeros((x.shape[0], parts.shape[1], *long))
    for place in np.ndindex(*block):
        cuts = tuple(
            slice(p * d, p * d + s * (n - 1) + 1, s)
            for p, d, s, n in zip(place, dilations, strides, counts, strict=True)
        )
        y[(slice(None), slice(None), *cuts)] += parts[(slice(None), slice(None), *place)]
    return call.like(y[(slice(None), slice(None), *(slice(pads[i], pads[i] + n) for i, n in enumerate(image)))])
