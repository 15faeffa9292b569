"""Fourier transforms and the windows that belong to them."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, at_axis, meaning
from mirage_cli.truth.calls.values import Array, Tensor

_REAL = 1e-6  #: share of a spectrum up to which the imaginary part of its ends is rounding


def _complex(x: Array) -> Array:
    """(..., 1) or (..., 2) as complex numbers."""
    return np.asarray(x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0].astype(np.complex128))


def _pairs(x: Array) -> Array:
    """Complex numbers as (..., 2)."""
    return np.stack([x.real, x.imag], -1)


@meaning("DFT")
def _dft(call: Call) -> Tensor:
    x = call.array(0)
    if call.version >= 20:
        axis = int(call.scalar(2)) if call.given(2) else -2
    else:
        axis = call.integer("axis", 1)
    axis = at_axis(axis, x.ndim)
    length = int(call.scalar(1)) if call.given(1) else None
    inverse, half = bool(call.integer("inverse", 0)), bool(call.integer("onesided", 0))
    if inverse and half:
        count = length or 2 * (x.shape[axis] - 1)
        spectrum = _complex(x)
        ends = np.take(spectrum, [0] if count % 2 else [0, count // 2], axis, mode="clip")
        if np.iscomplexobj(ends) and np.abs(ends.imag).max(initial=0) > _REAL * np.abs(spectrum).max(initial=0):
            raise Refused("what an inverse transform makes of half a spectrum that is none of real numbers")
        return call.like(np.fft.irfft(spectrum, count, axis)[..., None])
    spectrum_of_all = (np.fft.ifft if inverse else np.fft.fft)(_complex(x), length, axis)
    if half:
        spectrum_of_all = np.take(spectrum_of_all, range(spectrum_of_all.shape[axis] // 2 + 1), axis)
    return call.like(_pairs(spectrum_of_all))


@meaning("STFT")
def _stft(call: Call) -> Tensor:
    x, step = call.array(0), int(call.scalar(1))
    window = call.maybe(2)
    if call.given(3):
        length = int(call.scalar(3))
    else:
        length = x.shape[1] if window is None else window.shape[0]
    count = (x.shape[1] - length) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(length)
    call.limits.check_shape([x.shape[0], count, length, 2])
    frames = _complex(x if x.ndim > 2 else x[..., None])[:, places]
    spectrum = np.fft.fft(frames if window is None else frames * window, axis=-1)
    return call.like(_pairs(spectrum[..., : length // 2 + 1] if call.integer("onesided", 1) else spectrum))


@meaning("HannWindow", "HammingWindow", "BlackmanWindow")
def _window(call: Call) -> Tensor:
    size = int(call.scalar(0))
    call.limits.check_shape([size])
    kind = call.integer("output_datatype", TensorProto.FLOAT)
    weights = {
        "HannWindow": (0.5, 0.5, 0.0),
        "HammingWindow": (25 / 46, 21 / 46, 0.0),
        "BlackmanWindow": (0.42, 0.5, 0.08),
    }[call.node.op_type]
    steps = size if call.integer("periodic", 1) else size - 1
    angle = 2 * np.pi * np.arange(size) / max(steps, 1)
    return Tensor(weights[0] - weights[1] * np.cos(angle) + weights[2] * np.cos(2 * angle), kind)


@meaning("MelWeightMatrix")
def _mel_weight_matrix(call: Call) -> Tensor:
    bins, length, rate = (int(call.scalar(i)) for i in range(3))
    low, high = (2595 * np.log10(1 + float(call.scalar(i)) / 700) for i in (3, 4))
    step = (high - low) / (bins + 2)
    edges = 700 * (10 ** ((low + np.arange(bins + 2) * step) / 2595) - 1)
    places = ((length + 1) * edges // rate).astype(np.int64)
    call.limits.check_shape([length // 2 + 1, bins])
    y = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        left, centre, right = places[i : i + 3]
        if centre == left:
            y[centre, i] = 1
        else:
            y[left : centre + 1, i] = (np.arange(left, centre + 1) - left) / (centre - left)
        if right > centre:
            y[centre:right, i] = (right - np.arange(centre, right)) / (right - centre)
    return Tensor(y, call.integer("output_datatype", TensorProto.FLOAT))
