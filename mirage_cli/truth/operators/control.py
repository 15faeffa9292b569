"""Operators with sub-graphs: branches, loops, scans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Call, at_axis, meaning
from mirage_cli.truth.calls.values import Series, Tensor, Value, carrier, plain


@meaning("If")
def _if(call: Call) -> Sequence[Value]:
    return call.evaluate("then_branch" if bool(call.scalar(0)) else "else_branch", [])


@meaning("Loop")
def _loop(call: Call) -> Sequence[Value]:
    most = int(call.scalar(0)) if call.given(0) else None
    going = bool(call.scalar(1)) if call.given(1) else True
    state: list[Value] = list(call.inputs[2:])
    count = len(state)
    collected: list[list[Tensor]] = [[] for _ in range(len(call.node.output) - count)]
    turn = 0
    while going and (most is None or turn < most):
        call.limits.check_time()
        values = call.evaluate("body", [plain(np.array(turn, np.int64)), plain(np.array(going)), *state])
        going = bool(_tensor(values[0]).data.reshape(-1)[0])
        state = values[1 : 1 + count]
        for kept, value in zip(collected, values[1 + count :], strict=True):
            kept.append(_tensor(value))
        turn += 1
    return [*state, *(_stacked(kept, 0, call, 1 + count + i) for i, kept in enumerate(collected))]


def _tensor(value: Value) -> Tensor:
    if not isinstance(value, Tensor):
        raise Refused("a body gives what is not a tensor where one has to be")
    return value


def _stacked(kept: Sequence[Tensor], axis: int, call: Call, output: int) -> Tensor:
    """The results of all turns, stacked along an axis; without a turn the shape is what the body declares for its
    output."""
    if kept:
        return Tensor(np.stack([item.data for item in kept], axis), kept[0].type)
    declared = call.attributes["body"].g.output[output].type.tensor_type
    shape = [dim.dim_value for dim in declared.shape.dim]
    at = at_axis(axis, len(shape) + 1)
    return Tensor(np.zeros((*shape[:at], 0, *shape[at:]), carrier(declared.elem_type)), declared.elem_type)


@meaning("Scan")
def _scan(call: Call) -> Sequence[Value]:
    if call.version < 9:
        return _scan_batches(call)
    scanned = call.integer("num_scan_inputs")
    count = len(call.inputs) - scanned
    outputs = len(call.node.output) - count
    state = [call.tensor(i) for i in range(count)]
    inputs = [call.tensor(count + i) for i in range(scanned)]
    axes = call.integers("scan_input_axes") or [0] * scanned
    back = call.integers("scan_input_directions") or [0] * scanned
    out_axes = call.integers("scan_output_axes") or [0] * outputs
    out_back = call.integers("scan_output_directions") or [0] * outputs
    pieces = [_scan_slices(x, axis, bool(b)) for x, axis, b in zip(inputs, axes, back, strict=True)]
    state, collected = _scanned(call, state, pieces, outputs)
    results = []
    for i, (kept, axis, turned) in enumerate(zip(collected, out_axes, out_back, strict=True)):
        results.append(_stacked(kept[::-1] if turned else kept, axis, call, count + i))
    return [*state, *results]


def _scan_slices(x: Tensor, axis: int, back: bool) -> list[Tensor]:
    """The slices that a scan reads, turn by turn."""
    moved = np.moveaxis(x.data, at_axis(axis, x.data.ndim), 0)
    return [Tensor(np.asarray(piece), x.type) for piece in (moved[::-1] if back else moved)]


def _scanned(
    call: Call, state: list[Tensor], pieces: Sequence[Sequence[Tensor]], outputs: int
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """The state after all turns, and what each output collects."""
    collected: list[list[Tensor]] = [[] for _ in range(outputs)]
    for turn in zip(*pieces, strict=True):
        call.limits.check_time()
        values = [_tensor(value) for value in call.evaluate("body", [*state, *turn])]
        for kept, value in zip(collected, values[len(state) :], strict=True):
            kept.append(value)
        state = values[: len(state)]
    return state, collected


def _scan_batches(call: Call) -> Sequence[Value]:
    """Scan of version 8: batches come first, and each has its own length."""
    scanned = call.integer("num_scan_inputs")
    tensors = [call.tensor(i) for i in range(1, len(call.inputs))]
    first, inputs = tensors[: len(tensors) - scanned], tensors[len(tensors) - scanned :]
    outputs = len(call.node.output) - len(first)
    batches, longest = inputs[0].data.shape[:2]
    lengths = call.index_list(0) if call.given(0) else [longest] * batches
    back = call.integers("directions") or [0] * scanned
    results = []
    for batch, length in enumerate(lengths):
        state = [Tensor(x.data[batch], x.type) for x in first]
        cut = [Tensor(x.data[batch][:length], x.type) for x in inputs]
        pieces = [_scan_slices(x, 0, bool(b)) for x, b in zip(cut, back, strict=True)]
        last, collected = _scanned(call, state, pieces, outputs)
        stacked = [_stacked(kept, 0, call, len(first) + i) for i, kept in enumerate(collected)]
        results.append([*last, *(_filled(x, longest) for x in stacked)])
    return [_stacked(column, 0, call, i) for i, column in enumerate(zip(*results, strict=True))]


def _filled(x: Tensor, length: int) -> Tensor:
    """A tensor with zeros behind it up to a length."""
    widths = [(0, length - x.data.shape[0])] + [(0, 0)] * (x.data.ndim - 1)
    return Tensor(np.pad(x.data, widths), x.type)


@meaning("SequenceMap")
def _sequence_map(call: Call) -> Sequence[Value]:
    first = call.series(0).items
    rest = [call.value(i) for i in range(1, len(call.inputs))]
    rows = []
    for turn, item in enumerate(first):
        call.limits.check_time()
        others = [value.items[turn] if isinstance(value, Series) else value for value in rest]
        rows.append([_tensor(value) for value in call.evaluate("body", [item, *others])])
    if not rows:
        return [Series(()) for _ in call.node.output]
    return [Series(tuple(column)) for column in zip(*rows, strict=True)]
