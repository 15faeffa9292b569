"""Mixtures of experts: every row by the experts that its router chooses, weighed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, meaning
from mirage_cli.truth.calls.values import Array, Tensor
from mirage_cli.truth.layers.quantized import unpacked
from mirage_cli.truth.operators.linear import matmul

_GELU = np.sqrt(2 / np.pi)
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": lambda x: x / 2 * (1 + np.tanh(_GELU * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "identity": lambda x: x,
}


@meaning("MoE", domain="com.microsoft")
def _moe(call: Call) -> Tensor:
    logits = call.array(1)
    shares = None if call.integer("normalize_routing_weights", 0) else _softmax(logits)
    _check_gate(call, 6)
    return _mixture(call, (call.array(2), call.maybe(3)), (call.array(4), call.maybe(5)), shares)


@meaning("QMoE", domain="com.microsoft")
def _qmoe(call: Call) -> Tensor:
    given, normalized = call.maybe(14), bool(call.integer("normalize_routing_weights", 0))
    if call.text("quant_type", "int") != "int" or call.integer("weights_prepacked", -1) > 0:
        raise Refused("experts that are stored in another form than integers side by side")
    if given is None and not normalized:
        raise Refused("shares of experts that execution providers compute in different ways")
    _check_gate(call, 8)
    first, second = (_weights(call, *at) for at in ((2, 11, "fc1"), (5, 12, "fc2")))
    return _mixture(call, (first, call.maybe(4)), (second, call.maybe(7)), given)


def _check_gate(call: Call, third: int) -> None:
    """Raise Refused for a gate with weights of its own, which onnxruntime does not compute on CPUs."""
    if call.given(third):
        raise Refused("a third product of experts")


def _weights(call: Call, i: int, zero: int, name: str) -> Array:
    """The matrices [experts, N, K] that are input `i`, with scales behind it: (q - z) s, by columns or blocks along K."""
    bits = call.integer(f"{name}_expert_weight_bits", call.integer("expert_weight_bits", 4))
    packed, scale = call.array(i), call.array(i + 1)
    q = unpacked(packed, bits, packed.shape[-1] * 8 // bits)
    middle = np.array(1 << (bits - 1))
    z = unpacked(call.array(zero), bits, scale.shape[-1]) if call.given(zero) else middle
    if scale.ndim == 2:
        return np.asarray((q - (z[..., None] if z.ndim else z)) * scale[..., None])
    size = q.shape[-1] // scale.shape[-1]
    return np.asarray((q - (np.repeat(z, size, -1) if z.ndim else z)) * np.repeat(scale, size, -1))


def _softmax(x: Array) -> Array:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return np.asarray(e / np.sum(e, axis=-1, keepdims=True))


def _mixture(
    call: Call, first: tuple[Array, Array | None], second: tuple[Array, Array | None], shares: Array | None
) -> Tensor:
    """Each row by the `k` experts whose logits are largest, times their `shares`: without any the softmax of these logits, and
    where they are an input, and to be normalised, over their sum."""
    x, logits = call.array(0), call.array(1)
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, : call.integer("k", 1)]
    weights = _softmax(np.take_along_axis(logits, chosen, 1))
    if shares is not None:
        weights = np.take_along_axis(shares, chosen, 1)
        if call.integer("normalize_routing_weights", 0):
            weights = weights / np.sum(weights, axis=1, keepdims=True)
    rows = x.reshape(-1, x.shape[-1])
    y = np.zeros((len(rows), second[0].shape[1]))
    for expert in np.unique(chosen):
        row, place = np.nonzero(chosen == expert)
        hidden = _activated(call, _linear(call, rows[row], first, expert))
        y[row] += _linear(call, hidden, second, expert) * weights[row, place][:, None]
    return call.like(y.reshape(*x.shape[:-1], -1))


def _linear(call: Call, x: Array, layer: tuple[Array, Array | None], expert: int) -> Array:
    weights, bias = layer
    y = matmul(call.limits, x, weights[expert].T)
    return y if bias is None else y + bias[expert]


def _activated(call: Call, x: Array) -> Array:
    """The activation; in `swiglu` gates and what they gate lie side by side (1), or one half behind the other (2)."""
    kind, form = call.text("activation_type", "relu"), call.integer("swiglu_fusion", 0)
    if kind != "swiglu":
        return ACTIVATIONS[kind](x)
    if form not in (1, 2):
        raise Refused("a gate in a product of its own")
    gate, linear = (x[:, ::2], x[:, 1::2]) if form == 1 else np.split(x, 2, axis=1)
    limit = call.number("swiglu_limit", np.inf)
    after, linear = bool(call.integer("swiglu_limit_after_activation", 0)), np.clip(linear, -limit, limit)
    gate = gate if after else np.minimum(gate, limit)
    gated = gate / (1 + np.exp(-call.number("activation_alpha", 1.0) * gate))
    gated = np.minimum(gated, limit) if after else gated
    return np.asarray(gated * (linear + call.number("activation_beta", 0.0)))
