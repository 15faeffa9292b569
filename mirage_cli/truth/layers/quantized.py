"""Quantized tensors: to them, from them, and products of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, at_axis, meaning
from mirage_cli.truth.calls.values import FLOATS, NARROW, SMALL_FLOATS, Array, Tensor, Value, carrier, plain, rounded
from mirage_cli.truth.layers.pooling import convolution
from mirage_cli.truth.operators.linear import matmul


def _spread(call: Call, x: Array, factors: Array, axis: int) -> Array:
    """Scales or zero points (one, one for each place of an axis, or one for each block) as they apply to x."""
    if factors.ndim == 0 or (factors.size == 1 and factors.ndim == 1):
        return factors.reshape(())
    at, size = at_axis(axis, x.ndim), call.integer("block_size", 0)
    if factors.ndim == 1 and not size:
        return factors.reshape([-1 if i == at else 1 for i in range(x.ndim)])
    if not size:
        size = -(-x.shape[at] // factors.shape[at])
    return np.take(np.repeat(factors, size, at), range(x.shape[at]), at)


def _limits(kind: int) -> tuple[int, int]:
    """The lowest and highest number of an integer type."""
    if kind in NARROW:
        return NARROW[kind]
    info = np.iinfo(carrier(kind))
    return int(info.min), int(info.max)


def quantized(ratio: Array, zero: Array | int, kind: int) -> Tensor:
    """Numbers over their scale as integers: the nearest (ties to even), moved by a zero point, within the type."""
    low, high = _limits(kind)
    moved = np.clip(np.rint(ratio) + np.asarray(zero).astype(np.float64), low, high)
    return Tensor(np.nan_to_num(moved, nan=low).astype(np.int64).astype(carrier(kind)), kind)


@meaning("QuantizeLinear")
@meaning("QuantizeLinear", domain="com.microsoft")
def _quantize(call: Call) -> Tensor:
    x, axis = call.array(0), call.integer("axis", 1)
    kind = call.tensor(2).type if call.given(2) else call.integer("output_dtype", 0) or TensorProto.UINT8
    ratio = x.astype(np.float64) / _spread(call, x, call.array(1), axis)
    if kind in FLOATS:
        zero = _spread(call, x, call.array(2), axis) if call.given(2) and kind not in SMALL_FLOATS else 0
        return Tensor(rounded(ratio + zero, kind, bool(call.integer("saturate", 1))), kind)
    return quantized(ratio, _spread(call, x, call.array(2), axis) if call.given(2) else 0, kind)


def _less(x: Array, zero: Array | int) -> Array:
    """Integers less their zero point, without overflow."""
    return x.astype(np.int64) - np.asarray(zero).astype(np.int64)


@meaning("DequantizeLinear")
@meaning("DequantizeLinear", domain="com.microsoft")
def _dequantize(call: Call) -> Tensor:
    x, axis = call.array(0), call.integer("axis", 1)
    kind = call.integer("output_dtype", 0) or call.tensor(1).type
    scale = _spread(call, x, call.array(1), axis)
    if x.dtype.kind == "f" or not call.given(2):
        return Tensor(x.astype(np.float64) * scale, kind)
    return Tensor(_less(x, _spread(call, x, call.array(2), axis)) * scale, kind)


@meaning("DynamicQuantizeLinear")
def _dynamic_quantize(call: Call) -> Sequence[Value]:
    y, scale, zero = _dynamic(call.array(0))
    return [y, Tensor(scale, call.tensor(0).type), plain(zero.astype(np.uint8))]


def _dynamic(x: Array) -> tuple[Tensor, Array, Array]:
    """A tensor as uint8 with the scale and zero point that its own range asks for."""
    low, high = min(float(np.min(x, initial=0.0)), 0.0), max(float(np.max(x, initial=0.0)), 0.0)
    scale = np.array((high - low) / 255 if high > low else 1.0)
    zero = np.nan_to_num(np.clip(np.rint(-low / scale), 0, 255), nan=255)  # NaN is of -inf: so does onnxruntime
    return quantized(x / scale, zero, TensorProto.UINT8), scale, zero


def _rows(zero: Array | None, rank: int) -> Array | int:
    """Zero points or scales of a left operand: one for all, or one for each row."""
    if zero is None:
        return 0
    if zero.size == 1:
        return zero.reshape(())
    return zero.reshape(-1, 1) if zero.ndim == 1 and rank > 1 else zero


def _columns(zero: Array | None) -> Array | int:
    """Zero points or scales of a right operand: one for all, or one for each column."""
    return 0 if zero is None else zero.reshape(()) if zero.size == 1 else zero


@meaning("MatMulInteger")
def _matmul_integer(call: Call) -> Tensor:
    a = _less(call.array(0), _rows(call.maybe(2), call.array(0).ndim))
    b = _less(call.array(1), _columns(call.maybe(3)))
    return Tensor(matmul(call.limits, a, b).astype(np.int32), TensorProto.INT32)


@meaning("QLinearMatMul")
def _qlinear_matmul(call: Call) -> Tensor:
    a, b = call.array(0), call.array(3)
    product = matmul(call.limits, _less(a, _rows(call.array(2), a.ndim)), _less(b, _columns(call.array(5))))
    scale = _rows(call.array(1), a.ndim) * _columns(call.array(4)) / call.array(6)
    return quantized(product * scale, call.array(7), call.tensor(7).type)


def _filters(factors: Array | None, rank: int) -> Array | int:
    """Zero points or scales of kernels: one for all, or one for each filter."""
    if factors is None:
        return 0
    return factors.reshape(()) if factors.size == 1 else factors.reshape(-1, *(1,) * (rank - 1))


@meaning("ConvInteger")
def _conv_integer(call: Call) -> Tensor:
    x, kernel = call.array(0), call.array(1)
    zero = call.maybe(2)
    a = _less(x, 0 if zero is None else zero.reshape(()))
    return Tensor(
        convolution(call, a, _less(kernel, _filters(call.maybe(3), x.ndim))).astype(np.int32), TensorProto.INT32
    )


@meaning("QLinearConv")
@meaning("QLinearConv", domain="com.microsoft")
def _qlinear_conv(call: Call) -> Tensor:
    x, kernel, bias = call.array(0), call.array(3), call.maybe(8)
    if call.integer("channels_last", 0):
        raise Refused("channels in the last place")
    a = _less(x, call.array(2).reshape(()))
    product = convolution(call, a, _less(kernel, _filters(call.array(5), x.ndim)))
    if bias is not None:
        product = product + bias.reshape(-1, *(1,) * (x.ndim - 2))
    scale = call.array(1).reshape(()) * _filters(call.array(4), x.ndim - 1) / call.array(6).reshape(())
    return quantized(product * scale, call.array(7), call.tensor(7).type)


@meaning("MatMulIntegerToFloat", domain="com.microsoft")
def _matmul_integer_to_float(call: Call) -> Tensor:
    a = _less(call.array(0), _columns(call.maybe(4))) * _columns(call.array(2))
    b = _less(call.array(1), _columns(call.maybe(5))) * _columns(call.array(3))
    y, bias = matmul(call.limits, a, b), call.maybe(6)
    return call.like(y if bias is None else y + bias, 2)


@meaning("DynamicQuantizeMatMul", domain="com.microsoft")
def _dynamic_quantize_matmul(call: Call) -> Tensor:
    y, scale, zero = _dynamic(call.array(0))
    b = _less(call.array(1), _columns(call.maybe(3))) * _columns(call.array(2))
    product, bias = matmul(call.limits, _less(y.data, zero) * scale, b), call.maybe(4)
    return call.like(product if bias is None else product + bias)


@meaning("QLinearAdd", "QLinearMul", domain="com.microsoft")
def _qlinear_binary(call: Call) -> Tensor:
    a = _less(call.array(0), call.array(2) if call.given(2) else 0) * call.array(1)
    b = _less(call.array(3), call.array(5) if call.given(5) else 0) * call.array(4)
    y = (a + b if call.node.op_type == "QLinearAdd" else a * b) / call.array(6)
    return quantized(y, call.array(7) if call.given(7) else 0, call.tensor(0).type)


@meaning("QGemm", domain="com.microsoft")
def _qgemm(call: Call) -> Tensor:
    a = _less(call.array(0), call.array(2)) * call.array(1)
    b, scale = call.array(3), call.array(4)
    b = _less(b, call.array(5)[:, None] if call.array(5).ndim and call.integer("transB", 0) else call.array(5))
    a, b = a.T if call.integer("transA", 0) else a, b.T if call.integer("transB", 0) else b
    y = call.number("alpha", 1.0) * matmul(call.limits, a, b * scale)
    if call.given(6):
        y = y + call.array(6) * (call.number("alpha", 1.0) * call.array(1) * scale)
    if not call.given(7):
        return call.like(y, 1)
    return quantized(y / call.array(7), call.array(8), call.tensor(8).type)


def unpacked(packed: Array, bits: int, count: int) -> Array:
    """Unsigned integers of 2, 4 or 8 bits from bytes along the last axis, the low bits first; the first `count`."""
    if bits not in (2, 4, 8):
        raise Refused(f"integers of {bits} bits")
    shifts = np.arange(0, 8, bits)
    of_byte = (np.arange(256)[:, None] >> shifts) & ((1 << bits) - 1)
    values = of_byte.astype(np.int16)[packed.astype(np.uint8)]
    return values.reshape(*packed.shape[:-1], packed.shape[-1] * len(shifts))[..., :count]


@meaning("MatMulNBits", domain="com.microsoft")
def _matmul_n_bits(call: Call) -> Tensor:
    deep, wide = call.integer("K"), call.integer("N")
    bits, size = call.integer("bits", 4), call.integer("block_size")
    if call.integer("weight_prepacked", 0):
        raise Refused("weights in the layout of a GPU's kernel")
    blocks = -(-deep // size)
    packed = call.array(1).reshape(wide, blocks, -1)
    whole = unpacked(packed, bits, size)
    scale, zero = call.array(2).reshape(wide, blocks), _zero_points(call, wide, blocks, bits)
    if call.given(4):
        groups = call.array(4).astype(np.int64)
        weights = (whole.reshape(wide, -1)[:, :deep] - zero[:, groups].astype(np.float64)) * scale[:, groups]
    else:
        weights = whole - zero[:, :, None].astype(np.float64)
        weights *= scale[:, :, None]
        weights = weights.reshape(wide, -1)[:, :deep]
    y, bias = matmul(call.limits, call.array(0), weights.T), call.maybe(5)
    return call.like(y if bias is None else y + bias)


def _zero_points(call: Call, wide: int, blocks: int, bits: int) -> Array:
    """The zero points of MatMulNBits for each column and block: given as numbers, packed, or the middle of the range."""
    if not call.given(3):
        return np.full((wide, blocks), 1 << (bits - 1))
    given = call.array(3)
    return given.reshape(wide, blocks) if given.dtype.kind == "f" else unpacked(given.reshape(wide, -1), bits, blocks)


@meaning("GatherBlockQuantized", domain="com.microsoft")
def _gather_block_quantized(call: Call) -> Tensor:
    x, indices, scale, zero = call.array(0), call.array(1).astype(np.int64), call.array(2), call.maybe(3)
    if call.tensor(0).type == TensorProto.UINT8:
        bits = call.integer("bits", 4)
        x = unpacked(x, bits, x.shape[-1] * 8 // bits)
        zero = np.array(1 << (bits - 1)) if zero is None else unpacked(zero, bits, scale.shape[-1])
    at = at_axis(call.integer("quantize_axis", 1), x.ndim)
    size = call.integer("block_size", 128) or x.shape[at]

    def each(factors: Array) -> Array:
        return np.take(np.repeat(factors, size, at), range(x.shape[at]), at) if factors.ndim else factors

    numbers = x.astype(np.float64) - (0 if zero is None else each(zero).astype(np.float64))
    axis = at_axis(call.integer("gather_axis", 0), x.ndim)
    there = (indices >= -x.shape[axis]) & (indices < x.shape[axis])
    shape = [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]]
    call.limits.check_shape(shape)
    found = np.take(numbers * each(scale), np.where(there, indices, 0), axis).reshape(shape)
    known = there.reshape([1] * axis + [*there.shape] + [1] * (x.ndim - axis - 1))
    return call.like(np.where(known, found, 0.0), 2)
