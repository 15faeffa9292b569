"""A model evaluated in float64, node by node, each by the meaning that its own opset's version gives it.

`trace` yields every node of the main graph with its results; `run` keeps those that are asked for. Nothing of the
program's own reading of models is used here, so that what it makes of a model can be held against this.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import FunctionProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from mirage_cli.errors import MirageError, Refused
from mirage_cli.truth.calls.call import Call, Limits, Meaning, Results
from mirage_cli.truth.calls.values import FLOATS, Load, Series, Tensor, Value, stored, tensor
from mirage_cli.truth.calls.values import rounded as rounded_to

from .bodies import schema_body
from .plan import Plan, Step, describe, of_function, of_graph
from .table import meaning_of

#: how deep functions may call functions
DEEPEST = 40


@dataclass(frozen=True)
class Frame:
    """The surroundings of all nodes of a graph or function body: opsets by domain, the model's functions, options of
    the run."""

    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], FunctionProto]
    limits: Limits
    load: Load | None
    rounded: bool
    casts: bool
    hidden: bool
    overflows: bool
    depth: int = 0


def run(
    model: ModelProto,
    feeds: Mapping[str, NDArray[Any]],
    outputs: Sequence[str] | None = None,
    *,
    load: Load | None = None,
    seconds: float = 0.0,
    most_work: float = 0.0,
    most_elements: int = 0,
    rounded: bool = False,
    casts: bool = True,
    hidden: bool = True,
    overflows: bool = True,
) -> dict[str, NDArray[Any]]:
    """Tensors of a model's main graph (its outputs, where they are not named), of float types as float64.

    `load` reads a weight that lies outside the file. `rounded` rounds every float tensor to its declared element type on
    the way; without `casts` a Cast to a narrower float type keeps the number, without `overflows` one that is too large for
    the type; without `hidden` the scores of keys that a mask hides (one of attention, or what is added or chosen that is next
    to float32's lowest number) are not read, nor what weighs 0 in a mean, as kernels may do: no NaN comes of them, and a row
    whose other scores are all minus infinity is zero, or NaN. Raises OutOfTime after `seconds`; Refused, with the node, for
    an operator without a meaning here, one that needs more than `most_work` multiply-adds, and a value of more than
    `most_elements` elements (0: no limit), and for an output that is a sequence.
    """
    wanted = _output_names(model, outputs)
    values: dict[str, Value] = {}
    limits = (seconds, most_work, most_elements)
    frame = _frame(model, load, *limits, rounded=rounded, casts=casts, hidden=hidden, overflows=overflows)
    for _ in _values(model, feeds, wanted, frame, values):
        pass
    return {name: _numbers(name, values) for name in wanted}


def trace(
    model: ModelProto,
    feeds: Mapping[str, NDArray[Any]],
    outputs: Sequence[str] | None = None,
    *,
    load: Load | None = None,
    seconds: float = 0.0,
    most_work: float = 0.0,
    most_elements: int = 0,
    rounded: bool = False,
    casts: bool = True,
) -> Iterator[tuple[NodeProto, dict[str, NDArray[Any]]]]:
    """The nodes of the main graph that the outputs need, in order, each with those of its results that are tensors.

    Options and errors are those of `run`.
    """
    frame = _frame(model, load, seconds, most_work, most_elements, rounded=rounded, casts=casts)
    for node, results in _values(model, feeds, _output_names(model, outputs), frame, {}):
        yield node, {name: value.data for name, value in results.items() if isinstance(value, Tensor)}


def _output_names(model: ModelProto, outputs: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(v.name for v in model.graph.output) if outputs is None else tuple(outputs)


def _numbers(name: str, values: Mapping[str, Value]) -> NDArray[Any]:
    value = values.get(name)
    if not isinstance(value, Tensor):
        raise Refused(
            f"{name!r} is not a tensor" if name in values else f"no tensor of the main graph is named {name!r}"
        )
    return value.data


def _frame(
    model: ModelProto,
    load: Load | None,
    seconds: float,
    most_work: float,
    most_elements: int,
    *,
    rounded: bool,
    casts: bool,
    hidden: bool = True,
    overflows: bool = True,
) -> Frame:
    """The frame of the main graph of a model."""
    limits = Limits(time.monotonic() + seconds if seconds else 0.0, most_work, most_elements)
    functions = {(_domain(f.domain), f.name, f.overload): f for f in model.functions}
    return Frame(_opsets(model.opset_import), functions, limits, load, rounded, casts, hidden, overflows)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _opsets(imports: Sequence[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Versions by domain, with ONNX's own domain as the empty name."""
    return {_domain(entry.domain): int(entry.version) for entry in imports}


def _values(
    model: ModelProto,
    feeds: Mapping[str, NDArray[Any]],
    wanted: tuple[str, ...],
    frame: Frame,
    values: dict[str, Value],
) -> Iterator[tuple[NodeProto, dict[str, Value]]]:
    """Evaluate the main graph node by node; `found` takes up its values, and at the end holds those that are wanted."""
    plan = of_graph(model.graph, wanted, None)
    values.update({name: _fed(name, feeds[name], plan, frame) for name in plan.inputs if name in feeds})
    yield from _evaluated_steps(plan, values, frame)
    for name in wanted:
        if name not in values and name in plan.weights:
            values[name] = _weight(plan.weights[name], frame)


def _fed(name: str, array: NDArray[Any], plan: Plan, frame: Frame) -> Tensor:
    """A tensor that is fed, of the element type that the graph declares for it."""
    try:
        return _carried(tensor(np.asarray(array), plan.types.get(name) or None), frame)
    except (TypeError, ValueError) as error:
        raise Refused(f"input {name!r}: {error}") from error


def _carried(value: Tensor, frame: Frame) -> Tensor:
    """A value as it is carried on: rounded where that is asked for."""
    if not frame.rounded or value.type not in FLOATS:
        return value
    with np.errstate(all="ignore"):
        return Tensor(rounded_to(value.data, value.type), value.type)


def _weight(proto: TensorProto | SparseTensorProto, frame: Frame) -> Tensor:
    """A weight of a graph; Refused, with its name, where it cannot be read."""
    name = proto.name if isinstance(proto, TensorProto) else proto.values.name
    try:
        frame.limits.check_shape(proto.dims)
        return _carried(_read(proto, frame), frame)
    except Refused as error:
        raise type(error)(f"weight {name!r}: {error}", error.hint) from error
    except MirageError:
        raise
    except Exception as error:
        raise Refused(f"weight {name!r}: {error or type(error).__name__}") from error


def _read(proto: TensorProto | SparseTensorProto, frame: Frame) -> Tensor:
    """A weight as it is stored, with zeros where a sparse one has nothing."""
    if isinstance(proto, TensorProto):
        return stored(proto, frame.load)
    values, places = stored(proto.values, frame.load), stored(proto.indices, frame.load).data
    full = np.zeros(tuple(proto.dims), values.data.dtype)
    full[tuple(places.T) if places.ndim == 2 else np.unravel_index(places, full.shape)] = values.data
    return Tensor(full, values.type)


def _evaluated_steps(
    plan: Plan, values: dict[str, Value], frame: Frame
) -> Iterator[tuple[NodeProto, dict[str, Value]]]:
    """Evaluate the steps of a plan on the values in `found`, which takes up theirs and loses those done with."""
    for step in plan.steps:
        frame.limits.check_time()
        for name in step.reads:
            if name not in values:
                if name not in plan.weights:
                    raise Refused(f"{describe(step.node)}: reads {name!r}, which nothing makes or feeds")
                values[name] = _weight(plan.weights[name], frame)
        results = _results(step, values, frame)
        values.update(results)
        yield step.node, results
        for name in step.drops:
            values.pop(name, None)


def _results(step: Step, values: Mapping[str, Value], frame: Frame) -> dict[str, Value]:
    """The results of one node by name; whatever goes wrong in it is Refused, with the node."""
    try:
        with np.errstate(all="ignore"):
            results = _evaluated(step, values, frame)
        for value in results:
            if isinstance(value, Tensor):
                frame.limits.check_shape(value.data.shape)
    except Refused as error:
        raise _at(step.node, error) from error
    except MirageError:
        raise
    except MemoryError as error:
        raise Refused(f"{describe(step.node)}: needs more memory than there is") from error
    except Exception as error:
        raise Refused(f"{describe(step.node)}: {error or type(error).__name__}") from error
    names = step.node.output
    if len(results) < len(names) and any(names[len(results) :]):
        raise Refused(f"{describe(step.node)}: only {len(results)} of its {len(names)} outputs have a meaning here")
    kept = [_carried(value, frame) if isinstance(value, Tensor) else value for value in results]
    return {name: value for name, value in zip(names, kept, strict=False) if name}


def _at(node: NodeProto, error: Refused) -> Refused:
    """An error with the node in which it happened in front."""
    return type(error)(f"{describe(node)}: {error}", error.hint)


def _evaluated(step: Step, values: Mapping[str, Value], frame: Frame) -> list[Value]:
    """The results of one node, in order."""
    node, domain = step.node, _domain(step.node.domain)
    inputs = tuple(values[name] if name else None for name in node.input)
    function = frame.functions.get((domain, node.op_type, node.overload))
    if function is not None:
        return _function(function, step, inputs, frame)
    version = frame.opsets.get(domain, onnx.defs.onnx_opset_version() if not domain else 1)
    meaning = meaning_of(domain, node.op_type, version)
    if meaning is None:
        body = schema_body(domain, node, version, inputs, step.attributes)
        return _function(body, step, inputs, frame)
    return _called(meaning, step, inputs, version, values, frame)


def _called(
    function: Meaning, step: Step, inputs: tuple[Value, ...], version: int, around: Mapping[str, Value], frame: Frame
) -> list[Value]:
    """The results of an operator's meaning."""

    def evaluate(name: str, values: Sequence[Value]) -> list[Value]:
        return _body(step.bodies[name], values, around, frame)

    call = Call(
        step.node,
        version,
        inputs,
        step.attributes,
        frame.limits,
        frame.load,
        frame.casts,
        evaluate,
        frame.hidden,
        frame.overflows,
    )
    return _listed(function(call))


def _listed(results: Results) -> list[Value]:
    return [results] if results is None or isinstance(results, Tensor | Series) else list(results)


def _body(plan: Plan, operands: Sequence[Value], around: Mapping[str, Value], frame: Frame) -> list[Value]:
    """The outputs of a sub-graph, which may read values from around it."""
    values: dict[str, Value] = {name: around[name] for name in plan.free if name in around}
    values.update(zip(plan.inputs, operands, strict=False))
    for _ in _evaluated_steps(plan, values, frame):
        pass
    return [_output(name, plan, values, frame) for name in plan.outputs]


def _output(name: str, plan: Plan, values: Mapping[str, Value], frame: Frame) -> Value:
    if name in values:
        return values[name]
    if name in plan.weights:
        return _weight(plan.weights[name], frame)
    raise Refused(f"{name!r} is an output that nothing makes")


def _function(function: FunctionProto, step: Step, inputs: Sequence[Value], frame: Frame) -> list[Value]:
    """The outputs of a node that calls a function, evaluated through its body; None for those that nobody wants."""
    if frame.depth >= DEEPEST:
        raise Refused(f"functions call each other more than {DEEPEST} deep")
    defaults = {attribute.name: attribute for attribute in function.attribute_proto}
    asked = [bool(name) for name in step.node.output] + [False] * len(function.output)
    wanted = [name for name, is_asked in zip(function.output, asked, strict=False) if is_asked]
    plan = of_function(function, wanted, {**defaults, **step.attributes})
    missing = [None] * (len(plan.inputs) - len(inputs))
    inner = replace(frame, opsets={**frame.opsets, **_opsets(function.opset_import)}, depth=frame.depth + 1)
    results = dict(zip(wanted, _body(plan, [*inputs, *missing], {}, inner), strict=True))
    return [results.get(name) for name in function.output]
