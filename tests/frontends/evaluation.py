"""Float64 values of a model that has been read: what tests compare with onnxruntime and the onnx package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.errors import InvalidGraph
from mirage_cli.frontends import sizes
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.ir import graph as g
from mirage_cli.lax.ir.evaluate import evaluate_graph

Tensor = NDArray[Any]


def run(imported: Imported, inputs: Mapping[str, Tensor], opaque: Mapping[str, Tensor] | None = None) -> list[Tensor]:
    """The model's outputs on `inputs`, evaluated in float64; `opaque` gives tensors from operators that are not read.

    Raises InvalidGraph when one is missing.
    """
    graph, given = with_inputs_for(imported, opaque or {}), {**inputs, **(opaque or {})}
    arrays: dict[str, Tensor] = {}
    for v in graph.cone(graph.outputs):
        step = graph.steps[v]
        if isinstance(step, g.Opaque):
            raise InvalidGraph(f"{step.label} is not read")
        if isinstance(step, g.Input):
            if not step.constant and step.name not in imported.values:
                raise InvalidGraph(f"input {step.name!r} is not read")
            array = imported.constant(step.name) if step.constant else np.asarray(given[step.name])
            arrays[step.name] = array.astype(np.float64)
    return evaluate_graph(graph, Float64(), arrays, symbols(imported, graph, given))


def opaque_tensors(imported: Imported) -> list[str]:
    """The tensors that come from operators that are not read."""
    return [name for name, v in imported.values.items() if isinstance(imported.graph.steps[v], g.Opaque)]


def with_inputs_for(imported: Imported, names: Iterable[str]) -> g.Graph:
    """The graph with inputs in the place of the opaque steps that compute the named tensors."""
    graph = imported.graph
    steps, inputs = list(graph.steps), list(graph.inputs)
    for name in names:
        steps[imported.values[name]], inputs[imported.values[name]] = g.Input(name), ()
    return g.Graph(steps, inputs, graph.tensors, graph.outputs)


def symbols(imported: Imported, graph: g.Graph, inputs: Mapping[str, Tensor]) -> dict[str, int]:
    """The numbers that the inputs' shapes give to the graph's symbols."""
    found: dict[str, int] = {}
    for v, step in enumerate(graph.steps):
        if isinstance(step, g.Input) and not step.constant and step.name in imported.values:
            for extent, size in zip(graph.dims(v), np.shape(inputs[step.name]), strict=True):
                _solve(sizes.from_extent(extent), int(size), found)
    names = {n for tensor in graph.tensors for e in tensor.dims for n in ex.names(e)}
    for name in sorted(names - found.keys()):
        value = sizes.substitute(sizes.from_extent(ex.symbol(name)), found)
        if isinstance(value, int):
            found[name] = value
    return found


def _solve(size: sizes.Size, number: int, found: dict[str, int]) -> None:
    rest = sizes.substitute(size, found)
    unknown = sizes.names(rest)
    if len(unknown) != 1:
        if rest != number and not unknown:
            raise InvalidGraph(f"a dimension of {size} is {number}")
        return
    offset = sizes.substitute(rest, {unknown[0]: 0})
    factor = sizes.substitute(rest, {unknown[0]: 1}) - offset
    assert isinstance(factor, int) and isinstance(offset, int)
    found[unknown[0]] = (number - offset) // factor
