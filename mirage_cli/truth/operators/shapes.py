"""Operators that make, cut, join and turn tensors without looking at their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, at_axis, meaning
from mirage_cli.truth.calls.values import Array, Series, Tensor, Value, carrier, plain


@meaning("Constant")
def _constant(call: Call) -> Value:
    if call.has("value"):
        return call.stored("value")
    if call.has("value_float"):
        return Tensor(np.array(call.number("value_float")), TensorProto.FLOAT)
    if call.has("value_floats"):
        return Tensor(np.array(call.numbers("value_floats"), np.float64), TensorProto.FLOAT)
    if call.has("value_int"):
        return plain(np.array(call.integer("value_int"), np.int64))
    if call.has("value_ints"):
        return plain(np.array(call.integers("value_ints"), np.int64))
    if call.has("value_string"):
        return plain(np.array(call.text("value_string"), np.object_))
    if call.has("value_strings"):
        return plain(np.array(call.texts("value_strings"), np.object_))
    raise Refused("a constant without a value that has a meaning here")


@meaning("ConstantOfShape")
def _constant_of_shape(call: Call) -> Tensor:
    shape = call.index_list(0)
    call.limits.check_shape(shape)
    value = call.stored("value") or Tensor(np.zeros(1), TensorProto.FLOAT)
    return Tensor(np.full(shape, value.data.reshape(-1)[0], value.data.dtype), value.type)


@meaning("Range")
def _range(call: Call) -> Tensor:
    start, limit, delta = (call.scalar(i) for i in range(3))
    if isinstance(start, np.floating):
        count = max(math.ceil((limit - start) / delta), 0)
    else:
        count = max(-((int(start) - int(limit)) // int(delta)), 0)
    call.limits.check_shape([count])
    return call.like((start + np.arange(count).astype(call.array(0).dtype) * delta).astype(call.array(0).dtype))


@meaning("Identity")
def _identity(call: Call) -> Value:
    return call.value(0)


@meaning("Dropout")
def _dropout(call: Call) -> Sequence[Value]:
    if call.version >= 12 and call.given(2) and bool(call.scalar(2)) and not (call.given(1) and not call.scalar(1)):
        raise Refused("a random operator")
    mask = np.full(call.array(0).shape, call.version >= 12)  # False before, as onnxruntime has it
    return [call.tensor(0), plain(mask) if call.version >= 10 else call.like(mask.astype(call.array(0).dtype))]


@meaning("Shape")
def _shape(call: Call) -> Tensor:
    shape = call.array(0).shape
    start, end = call.integer("start", 0), call.integer("end", len(shape))
    return plain(np.array(shape[_clamped(start, len(shape)) : _clamped(end, len(shape))], np.int64))


def _clamped(place: int, length: int) -> int:
    return min(max(place + length if place < 0 else place, 0), length)


@meaning("Size")
def _size(call: Call) -> Tensor:
    return plain(np.array(call.array(0).size, np.int64))


@meaning("Reshape")
def _reshape(call: Call) -> Tensor:
    x, shape = call.array(0), call.index_list(1)
    if not call.integer("allowzero", 0):
        shape = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    if -1 in shape:
        rest = math.prod(n for n in shape if n != -1)
        shape = [(x.size // rest if rest else 0) if n == -1 else n for n in shape]
    return call.like(x.reshape(shape))


@meaning("Flatten")
def _flatten(call: Call) -> Tensor:
    x = call.array(0)
    axis = call.integer("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return call.like(x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@meaning("Transpose")
def _transpose(call: Call) -> Tensor:
    return call.like(np.transpose(call.array(0), call.integers("perm")))


@meaning("Squeeze")
def _squeeze(call: Call) -> Tensor:
    x = call.array(0)
    axes = call.integers("axes") if call.version < 13 else (call.index_list(1) if call.given(1) else None)
    if axes is None:
        return call.like(np.squeeze(x))
    return call.like(np.squeeze(x, axis=tuple({at_axis(a, x.ndim) for a in axes})))


@meaning("Unsqueeze")
def _unsqueeze(call: Call) -> Tensor:
    axes = (call.integers("axes") or []) if call.version < 13 else call.index_list(1)
    return call.like(np.expand_dims(call.array(0), tuple(axes)))


@meaning("Expand")
def _expand(call: Call) -> Tensor:
    x = call.array(0)
    shape = np.broadcast_shapes(x.shape, tuple(call.index_list(1)))
    call.limits.check_shape(shape)
    return call.like(np.broadcast_to(x, shape))


@meaning("Tile")
def _tile(call: Call) -> Tensor:
    x, repeats = call.array(0), call.index_list(1)
    call.limits.check_shape([n * r for n, r in zip(x.shape, repeats, strict=True)])
    return call.like(np.tile(x, repeats))


@meaning("Concat")
def _concat(call: Call) -> Tensor:
    arrays = call.arrays()
    axis = at_axis(call.integer("axis"), arrays[0].ndim)
    return call.like(np.concatenate(arrays, axis))


@meaning("Split")
def _split(call: Call) -> Sequence[Value]:
    x = call.array(0)
    axis = at_axis(call.integer("axis", 0), x.ndim)
    sizes = call.integers("split") if call.version < 13 else (call.index_list(1) if call.given(1) else None)
    if sizes is None:
        count = call.integer("num_outputs", len(call.node.output))
        part = -(-x.shape[axis] // count)
        sizes = [max(min(part, x.shape[axis] - i * part), 0) for i in range(count)]
    if sum(sizes) != x.shape[axis]:
        raise Refused(f"parts of {sizes} do not make up {x.shape[axis]}")
    ends = np.cumsum(sizes)[:-1]
    return [call.like(part) for part in np.split(x, ends, axis)]


@meaning("Slice")
def _slice(call: Call) -> Tensor:
    x = call.array(0)
    if call.version < 10:
        starts, ends = call.integers("starts") or [], call.integers("ends") or []
        axes, steps = call.integers("axes"), None
    else:
        starts, ends = call.index_list(1), call.index_list(2)
        axes = call.index_list(3) if call.given(3) else None
        steps = call.index_list(4) if call.given(4) else None
    cuts = [slice(None)] * x.ndim
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        at = at_axis(axis, x.ndim)
        cuts[at] = _cut(starts[i], ends[i], steps[i] if steps else 1, x.shape[at])
    return call.like(x[tuple(cuts)])


def _cut(start: int, end: int, step: int, length: int) -> slice:
    """The places that Slice takes of an axis: negative ones count from the end, and all are clamped to it."""
    if step == 0:
        raise Refused("a step of zero")
    start = start + length if start < 0 else start
    end = end + length if end < 0 else end
    if step > 0:
        return slice(min(max(start, 0), length), min(max(end, 0), length), step)
    start, end = min(max(start, 0), length - 1), min(max(end, -1), length - 1)
    if not length or end >= start:
        return slice(0, 0)
    return slice(start, None if end < 0 else end, step)


@meaning("Pad")
def _pad(call: Call) -> Tensor:
    x, mode = call.array(0), call.text("mode", "constant")
    if call.version < 11:
        value: Any = call.number("value", 0.0)
        pads = call.integers("pads") or []
    else:
        pads = call.index_list(1)
        value = call.scalar(2) if call.given(2) else "" if x.dtype == np.object_ else 0
    axes = [at_axis(a, x.ndim) for a in call.index_list(3)] if call.given(3) else list(range(x.ndim))
    count = len(axes)
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(axes):
        widths[axis] = (pads[i], pads[i + count])
    return call.like(padded(call, x, widths, mode, value))


def padded(call: Call, x: Array, widths: Sequence[tuple[int, int]], mode: str, value: object) -> Array:
    """A tensor padded on all sides; where a width is negative, cut."""
    call.limits.check_shape([n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)])
    cuts = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, widths, strict=True))
    inner, grown = x[cuts], [(max(a, 0), max(b, 0)) for a, b in widths]
    if mode == "constant":
        y = np.full([n + a + b for n, (a, b) in zip(inner.shape, grown, strict=True)], value, x.dtype)
        y[tuple(slice(a, a + n) for n, (a, _) in zip(inner.shape, grown, strict=True))] = inner
        return y
    for axis, (before, after) in enumerate(grown):
        if before or after:
            inner = np.take(inner, _places(inner.shape[axis], before, after, mode), axis)
    return inner


def _places(length: int, before: int, after: int, mode: str) -> Array:
    """Where the elements of a padded axis come from."""
    places = np.arange(-before, length + after)
    if not length:
        raise Refused(f"nothing to pad from in mode {mode!r}")
    if mode == "edge":
        return np.clip(places, 0, length - 1)
    if mode == "wrap":
        return places % length
    if mode != "reflect":
        raise Refused(f"mode {mode!r}")
    period = max(2 * (length - 1), 1)
    folded = places % period
    return np.where(folded < length, folded, period - folded)


@meaning("Trilu")
@meaning("Trilu", domain="com.microsoft")
def _trilu(call: Call) -> Tensor:
    x = call.array(0)
    rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])[None]
    k = int(call.scalar(1)) if call.given(1) else 0
    kept = columns - rows >= k if call.integer("upper", 1) else columns - rows <= k
    return call.like(np.where(kept, x, x.dtype.type(0)))


@meaning("EyeLike")
def _eye_like(call: Call) -> Tensor:
    x, kind = call.array(0), call.integer("dtype", call.tensor(0).type)
    return Tensor(np.eye(x.shape[0], x.shape[1], k=call.integer("k", 0), dtype=carrier(kind)), kind)


@meaning("DepthToSpace")
def _depth_to_space(call: Call) -> Tensor:
    x, size = call.array(0), call.integer("blocksize")
    n, c, h, w = x.shape
    depth = c // size**2
    if call.text("mode", "DCR") == "DCR":
        y = x.reshape(n, size, size, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, depth, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
    return call.like(y.reshape(n, depth, h * size, w * size))


@meaning("SpaceToDepth")
def _space_to_depth(call: Call) -> Tensor:
    x, size = call.array(0), call.integer("blocksize")
    n, c, h, w = x.shape
    y = x.reshape(n, c, h // size, size, w // size, size)
    order = (0, 3, 5, 1, 2, 4) if call.text("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return call.like(y.transpose(order).reshape(n, c * size * size, h // size, w // size))


@meaning("CenterCropPad")
def _center_crop_pad(call: Call) -> Tensor:
    x, shape = call.array(0), call.index_list(1)
    chosen = call.integers("axes")
    for axis, length in zip(range(x.ndim) if chosen is None else chosen, shape, strict=True):
        at = at_axis(axis, x.ndim)
        over = x.shape[at] - length
        if over > 0:
            x = np.take(x, range(over // 2, over // 2 + length), at)
        widths = [(0, 0)] * x.ndim
        if over < 0:
            widths[at] = (-over // 2, -over - -over // 2)
            x = padded(call, x, widths, "constant", 0)
    return call.like(x)


@meaning("ReverseSequence")
def _reverse_sequence(call: Call) -> Tensor:
    x, lengths = call.array(0), call.index_list(1)
    batch, time = call.integer("batch_axis", 1), call.integer("time_axis", 0)
    turned = np.moveaxis(x, (batch, time), (0, 1)).copy()
    for i, length in enumerate(lengths):
        turned[i, :length] = turned[i, :length][::-1]
    return call.like(np.moveaxis(turned, (0, 1), (batch, time)))


@meaning("SequenceConstruct")
def _sequence_construct(call: Call) -> Series:
    return Series(tuple(call.tensor(i) for i in range(len(call.inputs))))


@meaning("SequenceEmpty")
def _sequence_empty(call: Call) -> Series:
    return Series(())


@meaning("SequenceLength")
def _sequence_length(call: Call) -> Tensor:
    return plain(np.array(len(call.series(0).items), np.int64))


def _place(call: Call, index: int, length: int) -> int:
    """A place in a sequence, which may count from its end."""
    place = int(call.scalar(index))
    if not -length <= place <= length:
        raise Refused(f"place {place} in a sequence of {length}")
    return place + length if place < 0 else place


@meaning("SequenceAt")
def _sequence_at(call: Call) -> Tensor:
    items = call.series(0).items
    return items[_place(call, 1, len(items))]


@meaning("SequenceErase")
def _sequence_erase(call: Call) -> Series:
    items = call.series(0).items
    place = _place(call, 1, len(items)) if call.given(1) else len(items) - 1
    return Series(items[:place] + items[place + 1 :])


@meaning("SequenceInsert")
def _sequence_insert(call: Call) -> Series:
    items = call.series(0).items
    place = _place(call, 2, len(items)) if call.given(2) else len(items)
    return Series((*items[:place], call.tensor(1), *items[place:]))


@meaning("ConcatFromSequence")
def _concat_from_sequence(call: Call) -> Tensor:
    items = call.series(0).items
    arrays = [item.data for item in items]
    join = np.stack if call.integer("new_axis", 0) else np.concatenate
    return Tensor(np.asarray(join(arrays, axis=call.integer("axis"))), items[0].type)


@meaning("SplitToSequence")
def _split_to_sequence(call: Call) -> Series:
    x = call.array(0)
    axis = at_axis(call.integer("axis", 0), x.ndim)
    length = x.shape[axis]
    if not call.given(1):
        parts = np.split(x, length, axis) if length else []
        keep = call.integer("keepdims", 1)
        return Series(tuple(call.like(p if keep else np.squeeze(p, axis)) for p in parts))
    if call.array(1).ndim:
        ends = np.cumsum(call.index_list(1))[:-1]
    else:
        ends = np.arange(int(call.scalar(1)), length, int(call.scalar(1)))
    return Series(tuple(call.like(part) for part in np.split(x, ends, axis)))


@meaning("Optional")
def _optional(call: Call) -> Value:
    return call.value(0)


@meaning("OptionalHasElement")
def _optional_has_element(call: Call) -> Tensor:
    return plain(np.array(call.given(0)))


@meaning("OptionalGetElement")
def _optional_get_element(call: Call) -> Value:
    if not call.given(0):
        raise Refused("the value of an optional that has none")
    return call.value(0)
