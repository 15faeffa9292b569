"""The drawings of a muGraph file: different muGraphs once each, with what they are taken for."""

from __future__ import annotations

from dataclasses import replace

from mirage_cli.codegen.requests.passes import ALL
from mirage_cli.exporters.pictures import distinct
from mirage_cli.lax.extents import Symbolic
from mirage_cli.report.stored_plan import StoredPlan
from mirage_cli.search.schedules.alternatives import Alternative, Bound
from mirage_cli.search.schedules.schedule import Schedule
from tests.exporters.graphs import looped, norm_linear


def test_equal_muGraphs_are_told_once() -> None:
    program = norm_linear()
    graph = looped(program)
    kernel = graph.kernels[0]
    other = replace(graph, kernels=(replace(kernel, block=replace(kernel.block, grid=("a",))),))
    small = (Bound(Symbolic(1, ("n",)), 0, 8),)
    schedules = (Schedule((("a", 5), ("b", 40)), 16),)
    plan = StoredPlan(
        "abc",
        "norm_linear",
        program,
        {"cpu": ("cpu", graph, schedules), "cuda": ("sm_90a", graph, schedules)},
        {},
        ALL,
        {"cpu": (Alternative(small, graph, schedules),), "cuda": (Alternative(small, other, schedules),)},
    )
    assert distinct(plan) == [("cuda, cpu", graph), ("cuda where n <= 8", other)]
    plan = replace(plan, targets={**plan.targets, "cpu": ("cpu", other, schedules)})
    assert distinct(plan) == [("cuda, cpu where n <= 8", graph), ("cpu, cuda where n <= 8", other)]
