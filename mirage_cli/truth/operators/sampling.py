"""Reading images at places between their elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, meaning
from mirage_cli.truth.calls.values import Array, Tensor


@meaning("GridSample")
@meaning("GridSample", domain="com.microsoft")
def _grid_sample(call: Call) -> Tensor:
    x, grid = call.array(0), call.array(1)
    mode, padding = call.text("mode", "linear"), call.text("padding_mode", "zeros")
    corners = bool(call.integer("align_corners", 0))
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    lengths = x.shape[2:]
    call.limits.check_shape([*x.shape[:2], *grid.shape[1:-1]])
    places = [
        (grid[..., -1 - i] + 1) / 2 * (n - 1) if corners else ((grid[..., -1 - i] + 1) * n - 1) / 2
        for i, n in enumerate(lengths)
    ]
    if mode == "nearest":
        places = [np.rint(p) for p in places]
    borders = [(0.0, n - 1.0) if corners else (-0.5, n - 0.5) for n in lengths]
    if padding == "border" and mode != "cubic":  # its elements are looked for at the border one by one
        places = [
            np.where((p < low) | (p > high), np.clip(p, 0, n - 1), p)
            for p, (low, high), n in zip(places, borders, lengths, strict=True)
        ]
    if padding == "reflection":
        places = [_reflected(p, *b) for p, b in zip(places, borders, strict=True)]
    taps = [_taps(p, mode) for p in places]
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for choice in itertools.product(*taps):
        weight = math.prod((w for _, w in choice), start=np.ones(()))
        y = y + weight[:, None] * _pixels(x, [i for i, _ in choice], borders, padding)
    return call.like(y)


def _reflected(places: Array, low: float, high: float) -> Array:
    """Places mirrored at both ends until they lie between them."""
    span = high - low
    if span <= 0:
        return np.full_like(places, low)
    over = np.where(places < low, low - places, places - high)
    turns = np.floor(over / span)
    rest = over - turns * span
    even = turns % 2 == 0
    below = np.where(even, low + rest, high - rest)
    above = np.where(even, high - rest, low + rest)
    return np.where(places < low, below, np.where(places > high, above, places))


def _taps(places: Array, mode: str) -> list[tuple[Array, Array]]:
    """The elements that a place is read from along one axis, with their weights."""
    base = np.floor(places)
    t = places - base
    if mode == "nearest":
        return [(base, np.ones_like(base))]
    if mode == "linear":
        return [(base, 1 - t), (base + 1, t)]
    if mode != "cubic":
        raise Refused(f"mode {mode!r}")
    return [(base + k, _cubic(np.abs(t - k))) for k in (-1, 0, 1, 2)]


def _cubic(d: Array, a: float = -0.75) -> Array:
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, far)


def _pixels(x: Array, places: Sequence[Array], borders: Sequence[tuple[float, float]], padding: str) -> Array:
    """The elements of (batch, channels, lengths...) at whole places (batch, ...), as (batch, channels, ...)."""
    inside = np.ones(places[0].shape, np.bool_)
    indices = []
    for place, (low, high), length in zip(places, borders, x.shape[2:], strict=True):
        inside = inside & (place >= 0) & (place < length)
        inside_borders = _reflected(place, low, high) if padding == "reflection" else place
        indices.append(np.clip(np.nan_to_num(inside_borders), 0, length - 1).astype(np.int64))
    batch = np.arange(x.shape[0]).reshape(-1, *(1,) * (indices[0].ndim - 1))
    inside_borders = np.moveaxis(np.moveaxis(x, 1, -1)[(batch, *indices)], -1, 1)
    return np.where(inside[:, None], inside_borders, 0.0) if padding == "zeros" else inside_borders


@meaning("AffineGrid")
def _affine_grid(call: Call) -> Tensor:
    theta, size = call.array(0), call.index_list(1)
    lengths = size[2:]
    call.limits.check_shape([size[0], *lengths, len(lengths)])
    corners = bool(call.integer("align_corners", 0))
    lines = [
        (np.linspace(-1, 1, n) if n > 1 else np.zeros(n)) if corners else (2 * np.arange(n) + 1) / n - 1
        for n in lengths
    ]
    grid = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*grid[::-1], np.ones_like(grid[0])], -1)
    return call.like(np.einsum("...k,nik->n...i", points, theta))


@meaning("RoiAlign")
def _roi_align(call: Call) -> Tensor:
    x, regions, batches = call.array(0), call.array(1), call.array(2)
    height, width = call.integer("output_height", 1), call.integer("output_width", 1)
    ratio, scale = call.integer("sampling_ratio", 0), call.number("spatial_scale", 1.0)
    mode = call.text("coordinate_transformation_mode", "half_pixel" if call.version >= 16 else "output_half_pixel")
    half = mode == "half_pixel"
    largest = call.text("mode", "avg") == "max"
    y = np.zeros((len(regions), x.shape[1], height, width))
    for n, (region, batch) in enumerate(zip(regions, batches, strict=True)):
        x1, y1, x2, y2 = region * scale - (0.5 if half else 0.0)
        tall, wide = (y2 - y1, x2 - x1) if half else (max(y2 - y1, 1.0), max(x2 - x1, 1.0))
        rows = _samples(y1, tall, height, ratio)
        columns = _samples(x1, wide, width, ratio)
        y[n] = _pooled(x[batch], rows, columns, largest)
    return call.like(y)


def _samples(start: float, length: float, bins: int, ratio: int) -> Array:
    """Where a region is sampled along one axis: (bins, samples)."""
    size = length / bins
    count = ratio if ratio > 0 else max(math.ceil(size), 0)
    return start + np.arange(bins)[:, None] * size + (np.arange(count) + 0.5) * size / max(count, 1)


def _pooled(image: Array, rows: Array, columns: Array, largest: bool) -> Array:
    """The mean of interpolated samples in each bin, or of their weighted corners the largest."""
    taps = [_clamped_taps(rows, image.shape[1]), _clamped_taps(columns, image.shape[2])]
    parts = []
    for (i, a), (j, b) in itertools.product(*taps):
        weight = a[:, :, None, None] * b[None, None]
        parts.append(weight * image[:, i[:, :, None, None], j[None, None]])
    if not parts[0].size:
        return np.zeros((image.shape[0], rows.shape[0], columns.shape[0]))
    if largest:
        return np.asarray(np.max(np.maximum.reduce(parts), axis=(2, 4)))
    return np.asarray(np.mean(np.add.reduce(parts), axis=(2, 4)))


def _clamped_taps(places: Array, length: int) -> list[tuple[Array, Array]]:
    """The two elements on both sides of a place and their weights; nothing beyond one step outside."""
    inside = ((places >= -1) & (places <= length)).astype(np.float64)
    near = np.maximum(places, 0)
    low = np.minimum(np.floor(near).astype(np.int64), length - 1)
    high = np.minimum(low + 1, length - 1)
    t = np.where(low >= length - 1, 0.0, near - low)
    return [(low, inside * (1 - t)), (high, inside * t)]


@meaning("MaxRoiPool")
def _max_roi_pool(call: Call) -> Tensor:
    x, regions = call.array(0), call.array(1)
    height, width = call.integers("pooled_shape") or [1, 1]
    scale = call.number("spatial_scale", 1.0)
    y = np.zeros((len(regions), x.shape[1], height, width))
    for n, region in enumerate(regions):
        x1, y1, x2, y2 = (math.floor(v * scale + 0.5) for v in region[1:])
        rows = _bins(y1, max(y2 - y1 + 1, 1), height, x.shape[2])
        columns = _bins(x1, max(x2 - x1 + 1, 1), width, x.shape[3])
        for (i, (a, b)), (j, (c, d)) in itertools.product(enumerate(rows), enumerate(columns)):
            part = x[int(region[0]), :, a:b, c:d]
            y[n, :, i, j] = part.max(axis=(1, 2)) if part.size else 0.0
    return call.like(y)


def _bins(start: int, length: int, count: int, limit: int) -> list[tuple[int, int]]:
    """The parts of an axis that each bin of a region covers."""
    size = length / count
    edges = [(math.floor(i * size) + start, math.ceil((i + 1) * size) + start) for i in range(count)]
    return [(min(max(a, 0), limit), min(max(b, 0), limit)) for a, b in edges]


@meaning("DeformConv")
def _deform_conv(call: Call) -> Tensor:
    x, kernel, offsets = call.array(0), call.array(1), call.array(2)
    bias, mask = call.maybe(3), call.maybe(4)
    if x.ndim != 4:
        raise Refused(f"a deformed convolution over {x.ndim - 2} axes")
    batch, channels = x.shape[:2]
    size = kernel.shape[2:]
    strides, dilations = call.integers("strides") or [1, 1], call.integers("dilations") or [1, 1]
    pads = call.integers("pads") or [0, 0, 0, 0]
    groups, parts = call.integer("group", 1), call.integer("offset_group", 1)
    out = offsets.shape[2:]
    shifts = offsets.reshape(batch, parts, *size, 2, *out)
    weights = np.ones((batch, parts, *size, *out)) if mask is None else mask.reshape(batch, parts, *size, *out)
    call.limits.check_work(float(batch * kernel.shape[0] * kernel.shape[1]) * math.prod(size) * math.prod(out))
    columns = np.zeros((batch, channels, *size, *out))
    for i, j in np.ndindex(*size):
        for part in range(parts):
            chosen = slice(part * channels // parts, (part + 1) * channels // parts)
            places = [
                (np.arange(out[0]) * strides[0] - pads[0] + i * dilations[0])[:, None] + shifts[:, part, i, j, 0],
                (np.arange(out[1]) * strides[1] - pads[1] + j * dilations[1])[None] + shifts[:, part, i, j, 1],
            ]
            sampled = np.zeros((batch, channels // parts, *out))
            for (a, u), (b, v) in itertools.product(*(_taps(p, "linear") for p in places)):
                sampled = sampled + (u * v)[:, None] * _pixels(x[:, chosen], [a, b], [(0.0, 0.0)] * 2, "zeros")
            columns[:, chosen, i, j] = sampled * weights[:, part, i, j][:, None]
    rows = columns.reshape(batch, groups, -1, math.prod(out))
    y = np.matmul(kernel.reshape(groups, kernel.shape[0] // groups, -1), rows).reshape(batch, kernel.shape[0], *out)
    return call.like(y if bias is None else y + bias.reshape(-1, 1, 1))
