"""Tensors inside of a model, as a run of it computes them: their shapes, and the values of some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper

from mirage_cli.errors import MirageError
from mirage_cli.processes import isolation
from mirage_cli.runtime import example, sessions

_SHAPE, _VALUE = "mirage_shape_", "mirage_value_"
SECONDS = 60.0  #: of a run that only asks for sizes


def computed(
    model: onnx.ModelProto,
    data: Path,
    feeds: Mapping[str, NDArray[Any]],
    names: Sequence[str],
    valued: Mapping[str, int],
) -> tuple[dict[str, tuple[int, ...]], dict[str, NDArray[Any]]]:
    """The shapes of the tensors called `names`, and the values of those that are `valued`, by their types in ONNX, for some
    inputs of a model, with external data in the folder `data`. Raises MirageError."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    for k, name in enumerate(names):
        probe.graph.node.append(helper.make_node("Shape", [name], [f"{_SHAPE}{k}"]))
        probe.graph.output.append(helper.make_tensor_value_info(f"{_SHAPE}{k}", onnx.TensorProto.INT64, None))
        if name in valued:
            probe.graph.node.append(helper.make_node("Identity", [name], [f"{_VALUE}{k}"]))
            probe.graph.output.append(helper.make_tensor_value_info(f"{_VALUE}{k}", valued[name], None))
    results = sessions.run(sessions.session(probe.SerializeToString(), data=data), feeds)
    shapes = {n: tuple(int(d) for d in results[f"{_SHAPE}{k}"]) for k, n in enumerate(names)}
    return shapes, {n: results[f"{_VALUE}{k}"] for k, n in enumerate(names) if n in valued}


def sizes(
    model: bytes, data: str, given: Mapping[str, int], places: Mapping[str, tuple[str, int]], max_memory: int = 0
) -> dict[str, int]:
    """The sizes of symbols that no input has, each told by a tensor and the number of a dimension, in a run with inputs of the
    sizes `given`; nothing where the model does not run. It does so in a process of its own."""
    jobs = [(model, data, dict(given), dict(places))]
    for _, outcome in isolation.each(_sizes, jobs, 1, max_memory, apart=True, seconds=SECONDS):
        if isinstance(outcome, dict):
            return outcome
    return {}


def _sizes(model: bytes, data: str, given: dict[str, int], places: dict[str, tuple[str, int]]) -> dict[str, int]:
    """The same, in this process."""
    isolation.doing("onnxruntime computed the sizes of tensors inside of the model")
    proto = onnx.ModelProto.FromString(model)
    made = {o for node in proto.graph.node for o in node.output}
    asked = {symbol: place for symbol, place in places.items() if place[0] in made}
    try:
        feeds = example.example_inputs(proto, given, 0)
        shapes, _ = computed(proto, Path(data), feeds, sorted({name for name, _ in asked.values()}), {})
    except MirageError:
        return {}
    return {symbol: shapes[name][k] for symbol, (name, k) in asked.items() if k < len(shapes[name])}
