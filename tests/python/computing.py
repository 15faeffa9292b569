"""A graph computed without compiling anything: by onnxruntime, and by its fragments' programs in the order of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mirage_cli.frontends import Options
from mirage_cli.frontends.onnx import front_end
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.optimization import kernels_only
from mirage_cli.optimization import task as works
from mirage_cli.optimization.task import Work
from mirage_cli.python.kernel_graph import KernelGraph
from mirage_cli.runtime import sessions
from tests.lax.programs import in_floats

Array = NDArray[Any]


def by_onnxruntime(graph: KernelGraph, *arrays: Array) -> Array:
    """The first output of a graph as onnxruntime computes it."""
    model = ir.to_proto(graph.model()).SerializeToString()
    found = sessions.run(sessions.session(model), {t.name: a for t, a in zip(graph.inputs, arrays, strict=True)})
    return next(iter(found.values()))


def computed(graph: KernelGraph, arrays: Sequence[Array]) -> tuple[list[Array], list[Work]]:
    """The outputs of a graph, and its fragments. Raises Refused where not everything is a fragment."""
    imported = front_end.from_proto(ir.to_proto(graph.model()), Options())
    parts = partition(imported.graph, works.tensor_names(imported), complete=True)
    work = works.group_fragments(parts.fragments, imported)
    kernels_only.check_complete(imported, parts, work)
    for w in work:
        w.replace = True
    found = kernels_only.ordered_steps(imported, work, "0")
    values: dict[str, Any] = dict(zip((t.name for t in found.spec.inputs), arrays, strict=True))
    values |= {name: imported.constant(name) for name in found.weights}
    programs = {w.id: w.program for w in work}
    for call in found.calls:
        program = programs[call.id]
        named = {s.name: values[name].astype(np.float64) for s, name in zip(program.sources, call.inputs, strict=False)}
        values |= dict(zip(call.outputs, in_floats(program, named), strict=True))
    return [values[name] for name in found.results], work
