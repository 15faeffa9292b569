"""Fragments as OpenCL kernels: of models, of packed weights, of small and of random programs."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from mirage_cli.frontends.imported import Options
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.optimization import task
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen.kernels import Case

OPENCL = "opencl"


def of_model(name: str, model: onnx.ModelProto, kind: str = OPENCL) -> Iterator[Case]:
    """The kernels of a model's fragments, each with the best candidate that renders."""
    imported = from_proto(model, Options(), name)
    parts = partition(imported.graph, task.tensor_names(imported))
    target = load_target(kind)
    for k, work in enumerate(task.group_fragments(parts.fragments, imported)):
        assert not work.failed, work.reason
        sizes = tuple((s, 7) for s in work.program.symbols)
        for c in Searcher(SearchOptions()).search(work.program, target).candidates:
            case = Case(f"{name}x{k}", work.program, c.graph, c.schedules, target, sizes=sizes)
            if case.renders():
                yield case
                break
        else:
            raise AssertionError(f"{name}: no candidate of fragment {k} renders")
