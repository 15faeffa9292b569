"""Operators that pick and place elements by indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from onnx import TensorProto

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, at_axis, meaning
from mirage_cli.truth.calls.values import Array, Tensor, Value, plain


def _places(indices: Array, length: int) -> Array:
    """Indices that may count from the end, counted from the front; Refused outside the axis."""
    if indices.size and (indices.min() < -length or indices.max() >= length):
        raise Refused(f"an index outside an axis of {length}")
    return np.where(indices < 0, indices + length, indices).astype(np.int64)


@meaning("Gather")
def _gather(call: Call) -> Tensor:
    x, indices = call.array(0), call.array(1)
    axis = at_axis(call.integer("axis", 0), x.ndim)
    call.limits.check_shape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])
    return call.like(np.take(x, _places(indices, x.shape[axis]), axis))


def _cells(indices: Array, shape: tuple[int, ...], axis: int) -> tuple[Array, ...]:
    """Where GatherElements and ScatterElements read and write: each index in its own place but for one axis."""
    grid: list[Array] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = _places(indices, shape[axis])
    return tuple(grid)


@meaning("GatherElements")
def _gather_elements(call: Call) -> Tensor:
    x, indices = call.array(0), call.array(1)
    axis = at_axis(call.integer("axis", 0), x.ndim)
    return call.like(x[_cells(indices, x.shape, axis)])


@meaning("GatherND")
def _gather_nd(call: Call) -> Tensor:
    x, indices, batch = call.array(0), call.array(1), call.integer("batch_dims", 0)
    deep = indices.shape[-1]
    front: tuple[Array, ...] = np.indices(indices.shape[:batch], sparse=True)
    rank = indices.ndim - 1
    places: list[Array] = [g.reshape(g.shape + (1,) * (rank - batch)) for g in front]
    places += [_places(indices[..., i], x.shape[batch + i]) for i in range(deep)]
    if not places:
        return call.like(np.broadcast_to(x, (*indices.shape[:-1], *x.shape)))
    call.limits.check_shape([*indices.shape[:-1], *x.shape[batch + deep :]])
    return call.like(x[tuple(places)])


_COMBINE: dict[str, Callable[[Array, tuple[Array, ...], Array], None]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _scattered(x: Array, places: tuple[Array, ...], updates: Array, how: str) -> Array:
    """A copy of x with updates at places, which replace or are combined with what is there, in order."""
    y = x.copy()
    if how == "none":
        y[places] = updates
    else:
        _COMBINE[how](y, places, updates)
    return y


@meaning("Scatter", "ScatterElements")
def _scatter_elements(call: Call) -> Tensor:
    x, indices = call.array(0), call.array(1)
    axis = at_axis(call.integer("axis", 0), x.ndim)
    cells = _cells(indices, x.shape, axis)
    return call.like(_scattered(x, cells, call.array(2), call.text("reduction", "none")))


@meaning("ScatterND")
def _scatter_nd(call: Call) -> Tensor:
    x, indices = call.array(0), call.array(1)
    places = tuple(_places(indices[..., i], x.shape[i]) for i in range(indices.shape[-1]))
    updates = call.array(2).reshape((*indices.shape[:-1], *x.shape[indices.shape[-1] :]))
    return call.like(_scattered(x, places, updates, call.text("reduction", "none")))


@meaning("TensorScatter")
def _tensor_scatter(call: Call) -> Tensor:
    cache, update = call.array(0), call.array(1)
    axis = at_axis(call.integer("axis", -2), cache.ndim)
    starts = call.index_list(2) if call.given(2) else [0] * cache.shape[0]
    circular = call.text("mode", "linear") == "circular"
    y = np.moveaxis(cache, axis, 1).copy()
    moved = np.moveaxis(update, axis, 1)
    for batch, start in enumerate(starts):
        places = start + np.arange(moved.shape[1])
        y[batch, places % y.shape[1] if circular else _places(places, y.shape[1])] = moved[batch]
    return call.like(np.moveaxis(y, 1, axis))


@meaning("OneHot")
def _one_hot(call: Call) -> Tensor:
    indices, depth = call.array(0), int(call.scalar(1))
    off, on = call.array(2)
    axis = at_axis(call.integer("axis", -1), indices.ndim + 1)
    call.limits.check_shape([*indices.shape, depth])
    places = np.trunc(indices).astype(np.int64)
    places = np.expand_dims(np.where(places < 0, places + depth, places), axis)
    grid = np.arange(depth).reshape([-1 if i == axis else 1 for i in range(indices.ndim + 1)])
    return call.like(np.where(places == grid, on, off).astype(call.array(2).dtype), 2)


@meaning("NonZero")
def _non_zero(call: Call) -> Tensor:
    x = call.array(0)
    indices = np.nonzero(x if x.ndim else x[None])
    return plain(
        np.array(indices, np.int64).reshape(len(indices), -1) if x.ndim else np.zeros((0, indices[0].size), np.int64)
    )


@meaning("TopK")
def _top_k(call: Call) -> Sequence[Value]:
    x = call.array(0)
    count = int(call.scalar(1)) if call.version >= 10 else call.integer("k")
    axis = at_axis(call.integer("axis", -1), x.ndim)
    if count > x.shape[axis]:
        raise Refused(f"the first {count} of {x.shape[axis]}")
    largest = bool(call.integer("largest", 1))
    order = _ordered(x, axis, largest)
    places = np.take(order, range(count), axis)
    return [call.like(np.take_along_axis(x, places, axis)), plain(places.astype(np.int64))]


def _ordered(x: Array, axis: int, largest: bool) -> Array:
    """The places of elements along an axis, largest or smallest first, of equal ones the one in front first."""
    if not largest:
        return np.argsort(x, axis=axis, kind="stable")
    back = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.asarray(np.flip(x.shape[axis] - 1 - back, axis))


@meaning("Compress")
def _compress(call: Call) -> Tensor:
    x, kept = call.array(0), np.flatnonzero(call.array(1))
    if not call.has("axis"):
        return call.like(x.reshape(-1)[kept[kept < x.size]])
    axis = at_axis(call.integer("axis"), x.ndim)
    return call.like(np.take(x, kept[kept < x.shape[axis]], axis))


@meaning("Unique")
def _unique(call: Call) -> Sequence[Value]:
    x = call.array(0)
    axis = at_axis(call.integer("axis"), x.ndim) if call.has("axis") else None
    flat = x.reshape(-1) if axis is None else x
    _, first, inverse, counts = np.unique(
        flat, return_index=True, return_inverse=True, return_counts=True, axis=axis or 0
    )
    inverse = inverse.reshape(-1)
    order = np.arange(len(first)) if call.integer("sorted", 1) else np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    first = first[order]
    results = (first, rank[inverse], counts[order])
    return [call.like(np.take(flat, first, axis or 0)), *(plain(r.astype(np.int64)) for r in results)]


@meaning("NonMaxSuppression")
def _non_max_suppression(call: Call) -> Tensor:
    boxes, scores = call.array(0), call.array(1)
    most = int(call.scalar(2)) if call.given(2) else 0
    overlap = float(call.scalar(3)) if call.given(3) else 0.0
    least = float(call.scalar(4)) if call.given(4) else -math.inf
    centre = bool(call.integer("center_point_box", 0))
    rows = []
    for batch in range(scores.shape[0]):
        corners = _corners(boxes[batch], centre)
        for kind in range(scores.shape[1]):
            call.limits.check_time()
            chosen = _suppressed(corners, scores[batch, kind], most, overlap, least)
            rows += [(batch, kind, place) for place in chosen]
    return Tensor(np.array(rows, np.int64).reshape(-1, 3), TensorProto.INT64)


def _corners(boxes: Array, centre: bool) -> Array:
    """Boxes by their lower and upper corner."""
    if centre:
        middle, half = boxes[:, :2], boxes[:, 2:] / 2
        return np.concatenate([middle - half, middle + half], 1)
    a, b = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], 1)


def _suppressed(corners: Array, scores: Array, most: int, overlap: float, least: float) -> list[int]:
    """The boxes that are kept: the best first, each where none before it overlaps it too much."""
    chosen: list[int] = []
    for place in np.argsort(-scores, kind="stable"):
        if len(chosen) >= most:
            break
        if scores[place] > least and all(_common(corners[place], corners[c]) <= overlap for c in chosen):
            chosen.append(int(place))
    return chosen


def _common(a: Array, b: Array) -> float:
    """The area that two boxes share, over what they cover together."""
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    shared = float(np.prod(sides))
    total = float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2])) - shared
    return shared / total if total > 0 and shared > 0 else 0.0
