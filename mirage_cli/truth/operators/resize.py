"""Resizing by interpolation, axis by axis, and its older forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, at_axis, meaning
from mirage_cli.truth.calls.values import Array, Tensor


@dataclass(frozen=True)
class Axis:
    """One axis to resize: its length before and after, and how many new steps one old step is (`wide / narrow`)."""

    before: int
    after: int
    wide: float
    narrow: float
    start: float = 0.0
    end: float = 1.0

    def back(self, places: Array) -> Array:
        """New places over the scale: `x / scale` without a rounded scale in between."""
        return np.asarray(places * self.narrow / self.wide)

    @property
    def scale(self) -> float:
        """Number of new steps that are one old step."""
        return self.wide / self.narrow


@dataclass(frozen=True)
class Manner:
    """The attributes of Resize that say how to interpolate."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    outside: bool
    antialias: bool


@meaning("Resize", "Upsample")
def _resize(call: Call) -> Tensor:
    x = call.array(0)
    old = call.node.op_type == "Upsample" or call.version < 11
    if old:
        scales = call.numbers("scales") if call.version < 9 else [float(s) for s in call.array(1).reshape(-1)]
        axes = [_scaled(n, s) for n, s in zip(x.shape, scales or [], strict=True)]
        mode = call.text("mode", "nearest")
        manner = Manner("linear" if mode == "bilinear" else mode, "asymmetric", "simple", -0.75, False, False)
        return call.like(_resized(call, x, axes, list(range(x.ndim)), manner))
    chosen = call.integers("axes")
    places = list(range(x.ndim)) if chosen is None else [at_axis(a, x.ndim) for a in chosen]
    manner = Manner(
        call.text("mode", "nearest"),
        call.text("coordinate_transformation_mode", "half_pixel"),
        call.text("nearest_mode", "round_prefer_floor"),
        call.number("cubic_coeff_a", -0.75),
        bool(call.integer("exclude_outside", 0)),
        bool(call.integer("antialias", 0)),
    )
    return call.like(_resized(call, x, _axes(call, [x.shape[p] for p in places]), places, manner))


def _scaled(length: int, scale: float) -> Axis:
    """An axis whose new length follows from a scale; the product is one of float32, as everywhere in ONNX."""
    return Axis(length, int(np.floor(np.float32(length) * np.float32(scale))), scale, 1.0)


def _axes(call: Call, lengths: Sequence[int]) -> list[Axis]:
    """The axes to resize, from scales or sizes, with the part of the input that is looked at."""
    scales, sizes = call.maybe(2), call.maybe(3)
    if sizes is not None and sizes.size:
        axes = _sized(lengths, [int(n) for n in sizes], call.text("keep_aspect_ratio_policy", "stretch"))
    elif scales is not None and scales.size:
        axes = [_scaled(n, float(s)) for n, s in zip(lengths, scales.reshape(-1), strict=True)]
    else:
        raise Refused("neither scales nor sizes")
    if call.text("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize":
        return axes
    region = [float(r) for r in call.array(1).reshape(-1)]
    ends = zip(axes, region[: len(axes)], region[len(axes) :], strict=True)
    return [Axis(a.before, a.after, a.wide, a.narrow, start, end) for a, start, end in ends]


def _sized(lengths: Sequence[int], sizes: Sequence[int], policy: str) -> list[Axis]:
    """Axes of given new lengths, which a policy may change to keep the aspect."""
    if policy == "stretch":
        return [Axis(n, m, m, n) for n, m in zip(lengths, sizes, strict=True)]
    ratios = [(m / n, m, n) for n, m in zip(lengths, sizes, strict=True)]
    _, wide, narrow = min(ratios) if policy == "not_larger" else max(ratios)
    return [Axis(n, int(np.floor(n * wide / narrow + 0.5)), wide, narrow) for n in lengths]


def _resized(call: Call, x: Array, axes: Sequence[Axis], places: Sequence[int], manner: Manner) -> Array:
    """A tensor with some axes resized, one after the other."""
    shape = list(x.shape)
    for place, axis in zip(places, axes, strict=True):
        shape[place] = axis.after
    call.limits.check_shape(shape)
    outside = np.zeros((1,) * x.ndim, np.bool_)
    y = x
    for place, axis in zip(places, axes, strict=True):
        if axis.before == axis.after and axis.scale == 1 and (axis.start, axis.end) == (0.0, 1.0):
            continue
        where = _origins(axis, manner.coordinates)
        y = _along(call, y, place, axis, where, manner)
        if manner.coordinates == "tf_crop_and_resize":
            off = (where < 0) | (where > axis.before - 1)
            outside = outside | off.reshape([-1 if i == place else 1 for i in range(x.ndim)])
    return np.where(outside, call.number("extrapolation_value", 0.0), y).astype(x.dtype) if outside.any() else y


def _origins(axis: Axis, coordinates: str) -> Array:
    """Where each new place lies in the old axis."""
    places = np.arange(axis.after, dtype=np.float64)
    match coordinates:
        case "asymmetric":
            return axis.back(places)
        case "half_pixel":
            return axis.back(places + 0.5) - 0.5
        case "pytorch_half_pixel":
            return axis.back(places + 0.5) - 0.5 if axis.after > 1 else places * 0
        case "tf_half_pixel_for_nn":
            return axis.back(places + 0.5)
        case "align_corners":
            return places * (axis.before - 1) / (axis.after - 1) if axis.after > 1 else places * 0
        case "half_pixel_symmetric":
            exact = axis.before * axis.wide / axis.narrow
            return axis.before / 2 * (1 - axis.after / exact) + axis.back(places + 0.5) - 0.5
        case "tf_crop_and_resize":
            if axis.after > 1:
                step = (axis.end - axis.start) * (axis.before - 1) / (axis.after - 1)
                return axis.start * (axis.before - 1) + places * step
            return places * 0 + 0.5 * (axis.start + axis.end) * (axis.before - 1)
    raise Refused(f"coordinates by {coordinates!r}")


def _along(call: Call, x: Array, place: int, axis: Axis, where: Array, manner: Manner) -> Array:
    """A tensor resized along one axis, whose new places lie at `where`."""
    if not axis.after or not x.size:
        return np.zeros([axis.after if i == place else n for i, n in enumerate(x.shape)], x.dtype)
    if manner.mode == "nearest":
        return np.take(x, np.clip(_nearest(where, axis, manner.nearest), 0, axis.before - 1), place)
    matrix = _matrix(axis, where, manner)
    call.limits.check_work(float(x.size) * axis.after)
    y = np.moveaxis(np.tensordot(x.astype(np.float64), matrix, (place, 1)), -1, place)
    return y if x.dtype.kind == "f" else _truncated_to(y, x.dtype)


def _truncated_to(y: Array, kind: np.dtype[np.generic]) -> Array:
    """Interpolated integers, as C casts them."""
    return np.asarray(np.trunc(y).astype(np.int64).astype(kind))


def _nearest(where: Array, axis: Axis, how: str) -> Array:
    """The old place that stands for each new one."""
    match how:
        case "simple":  # before version 11, as onnxruntime has it
            nearest = np.ceil(where) if axis.scale < 1 else np.trunc(where)
        case "floor":
            nearest = np.floor(where)
        case "ceil":
            nearest = np.ceil(where)
        case "round_prefer_floor":
            nearest = np.ceil(where - 0.5)
        case "round_prefer_ceil":
            nearest = np.floor(where + 0.5)
        case _:
            raise Refused(f"the nearest by {how!r}")
    return nearest.astype(np.int64)


def _matrix(axis: Axis, where: Array, manner: Manner) -> Array:
    """The weights of old places, a row for each new one."""
    reach = 2 if manner.mode == "cubic" else 1
    narrowing = min(axis.scale, 1.0) if manner.antialias else 1.0
    taps = int(np.ceil(reach / narrowing)) + 1
    base = np.floor(where).astype(np.int64)
    matrix = np.zeros((axis.after, axis.before))
    for offset in range(-taps, taps + 1):
        old = base + offset
        weight = _weight((old - where) * narrowing, manner)
        inside = (old >= 0) & (old < axis.before)
        if manner.outside:
            weight = np.where(inside, weight, 0.0)
        matrix[np.arange(axis.after), np.clip(old, 0, axis.before - 1)] += weight
    if manner.outside or manner.antialias:
        matrix = matrix / np.sum(matrix, axis=1, keepdims=True)
    return matrix


def _weight(distance: Array, manner: Manner) -> Array:
    """The weight of an old place at a distance."""
    d, a = np.abs(distance), manner.cubic
    if manner.mode == "linear":
        return np.asarray(np.maximum(1 - d, 0))
    if manner.mode != "cubic":
        raise Refused(f"mode {manner.mode!r}")
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
