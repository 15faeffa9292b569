"""Recurrent layers: RNN, GRU and LSTM, in both directions, with lengths for each sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, meaning
from mirage_cli.truth.calls.values import Array, Value
from mirage_cli.truth.operators.elementwise import sigmoid, softplus

State: TypeAlias = tuple[Array, ...]
Function: TypeAlias = Callable[[Array], Array]


@dataclass(frozen=True)
class Layer:
    """One direction of a layer: weights of the input (gates first), of the state, biases of both, peepholes, functions."""

    kernel: Array
    recurrent: Array
    bias: Array
    state_bias: Array
    peepholes: Array
    functions: tuple[Function, ...]
    clip: float


#: what an activation function takes for its alpha and beta where they are not given
DEFAULTS = {
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, 0.0),
    "thresholdedrelu": (1.0, 0.0),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, 0.0),
}


def _function(name: str, alpha: float, beta: float) -> Function:
    """An activation function by its name."""
    functions: dict[str, Function] = {
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
        "sigmoid": sigmoid,
        "affine": lambda x: alpha * x + beta,
        "leakyrelu": lambda x: np.where(x >= 0, x, alpha * x),
        "thresholdedrelu": lambda x: np.where(x > alpha, x, 0.0),
        "scaledtanh": lambda x: alpha * np.tanh(beta * x),
        "hardsigmoid": lambda x: np.clip(alpha * x + beta, 0, 1),
        "elu": lambda x: np.where(x >= 0, x, alpha * np.expm1(x)),
        "softsign": lambda x: x / (1 + np.abs(x)),
        "softplus": softplus,
    }
    if name not in functions:
        raise Refused(f"activation {name!r}")
    return functions[name]


#: which activations take an alpha, and which a beta, from the lists of the node
TAKE_ALPHA = frozenset(DEFAULTS)
TAKE_BETA = frozenset({"affine", "scaledtanh", "hardsigmoid"})


def _functions(call: Call, defaults: Sequence[str], directions: int) -> list[tuple[Function, ...]]:
    """The activation functions of each direction."""
    names = [name.lower() for name in (call.texts("activations") or list(defaults) * directions)]
    alphas, betas = list(call.numbers("activation_alpha") or []), list(call.numbers("activation_beta") or [])
    functions = []
    for name in names:
        alpha, beta = (float(np.float32(v)) for v in DEFAULTS.get(name, (0.0, 0.0)))
        if name in TAKE_ALPHA and alphas:
            alpha = alphas.pop(0)
        if name in TAKE_BETA and betas:
            beta = betas.pop(0)
        functions.append(_function(name, alpha, beta))
    count = len(defaults)
    return [tuple(functions[i * count : (i + 1) * count]) for i in range(directions)]


def _held(x: Array, clip: float) -> Array:
    """Sums before an activation, kept within a clip; 0 is none."""
    return np.clip(x, -clip, clip) if clip else x


def _layers(call: Call, gates: int, defaults: Sequence[str], peepholes: int) -> list[Layer]:
    """The layer of each direction."""
    kernel, recurrent = call.array(1), call.array(2)
    directions, size = kernel.shape[0], recurrent.shape[-1]
    bias = call.array(3) if call.given(3) else np.zeros((directions, 2 * gates * size))
    holes = call.array(peepholes) if peepholes and call.given(peepholes) else np.zeros((directions, 3 * size))
    functions = _functions(call, defaults, directions)
    clip = call.number("clip", 0.0)
    layers = []
    for i in range(directions):
        of_input, of_state = np.split(bias[i], 2)
        layers.append(Layer(kernel[i], recurrent[i], of_input, of_state, holes[i], functions[i], clip))
    return layers


def _run(
    call: Call, layers: Sequence[Layer], starts: Sequence[int], step: Callable[[Layer, Array, State], State]
) -> list[Value]:
    """A layer over its sequences: all states, then the last one of each kind."""
    x = call.array(0)
    batch_first = bool(call.integer("layout", 0))
    x = np.swapaxes(x, 0, 1) if batch_first else x
    length, batch = x.shape[:2]
    size = layers[0].recurrent.shape[-1]
    lengths = call.array(4).reshape(-1) if call.given(4) else np.full(batch, length)
    direction = call.text("direction", "forward")
    call.limits.check_work(float(length * batch * len(layers)) * layers[0].kernel.shape[0] * (x.shape[2] + size))
    first = [_start(call, i, len(layers), batch, size, batch_first) for i in starts]
    rows, lasts = [], []
    for i, layer in enumerate(layers):
        back = direction == "reverse" or i == 1
        y, last = _direction(call, layer, x, lengths, tuple(s[i] for s in first), step, back=back)
        rows.append(y)
        lasts.append(last)
    y = np.stack(rows, 1)
    ends = [np.stack(parts, 0) for parts in zip(*lasts, strict=True)]
    if batch_first:
        y, ends = y.transpose(2, 0, 1, 3), [np.swapaxes(end, 0, 1) for end in ends]
    return [call.like(y), *(call.like(end) for end in ends)]


def _start(call: Call, index: int, directions: int, batch: int, size: int, batch_first: bool) -> Array:
    """A state at the start: an input, or zeros; (directions, batch, size)."""
    if not call.given(index):
        return np.zeros((directions, batch, size))
    return np.swapaxes(call.array(index), 0, 1) if batch_first else call.array(index)


def _direction(
    call: Call,
    layer: Layer,
    x: Array,
    lengths: Array,
    state: State,
    step: Callable[[Layer, Array, State], State],
    *,
    back: bool,
) -> tuple[Array, State]:
    """One direction over all sequences; behind a sequence's end the output is zero and its state stays."""
    length, batch = x.shape[:2]
    y = np.zeros((length, batch, layer.recurrent.shape[-1]))
    for t in range(length):
        call.limits.check_time()
        going = t < lengths
        places = np.where(going, lengths - 1 - t if back else t, 0).astype(np.int64)
        new = step(layer, x[places, np.arange(batch)], state)
        state = tuple(np.where(going[:, None], n, s) for n, s in zip(new, state, strict=True))
        y[places[going], np.flatnonzero(going)] = new[0][going]
    return y, tuple(np.where((lengths > 0)[:, None], s, 0.0) for s in state)


@meaning("RNN")
def _rnn(call: Call) -> Sequence[Value]:
    def step(layer: Layer, x: Array, state: State) -> State:
        total = x @ layer.kernel.T + state[0] @ layer.recurrent.T + layer.bias + layer.state_bias
        return (layer.functions[0](_held(total, layer.clip)),)

    return _run(call, _layers(call, 1, ["Tanh"], 0), [5], step)


@meaning("GRU")
def _gru(call: Call) -> Sequence[Value]:
    linear = bool(call.integer("linear_before_reset", 0))

    def step(layer: Layer, x: Array, state: State) -> State:
        (h,) = state
        f, g = layer.functions
        size = h.shape[-1]
        inner = x @ layer.kernel.T + layer.bias
        gates = inner[:, : 2 * size] + h @ layer.recurrent[: 2 * size].T + layer.state_bias[: 2 * size]
        z, r = (f(_held(gate, layer.clip)) for gate in np.split(gates, 2, 1))
        if linear:
            hidden = r * (h @ layer.recurrent[2 * size :].T + layer.state_bias[2 * size :])
        else:
            hidden = (r * h) @ layer.recurrent[2 * size :].T + layer.state_bias[2 * size :]
        return ((1 - z) * g(_held(inner[:, 2 * size :] + hidden, layer.clip)) + z * h,)

    return _run(call, _layers(call, 3, ["Sigmoid", "Tanh"], 0), [5], step)


@meaning("LSTM")
def _lstm(call: Call) -> Sequence[Value]:
    coupled = bool(call.integer("input_forget", 0))

    def step(layer: Layer, x: Array, state: State) -> State:
        h, c = state
        f, g, out = layer.functions
        total = x @ layer.kernel.T + h @ layer.recurrent.T + layer.bias + layer.state_bias
        i, o, forget, new = np.split(total, 4, 1)
        hole_i, hole_o, hole_f = np.split(layer.peepholes, 3)
        i = f(_held(i + hole_i * c, layer.clip))
        forget = 1 - i if coupled else f(_held(forget + hole_f * c, layer.clip))
        cell = forget * c + i * g(_held(new, layer.clip))
        o = f(_held(o + hole_o * cell, layer.clip))
        return o * out(cell), cell

    return _run(call, _layers(call, 4, ["Sigmoid", "Tanh", "Tanh"], 7), [5, 6], step)
