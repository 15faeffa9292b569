"""The drawings of a muGraph file: one for each muGraph that it holds, equal ones once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mirage_cli.exporters import svg
from mirage_cli.report.stored_plan import StoredPlan, plan_from_json
from mirage_cli.search.mugraph.mugraph import KernelGraph


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing as an SVG document, and what it shows."""

    caption: str
    svg: str


def pictures(data: Mapping[str, Any]) -> list[Picture]:
    """The drawings of `mugraphs/ID.json`, the main one first."""
    plan = plan_from_json(dict(data))
    return [Picture(f"muGraph for {title}", svg.drawing(graph, plan.program)) for title, graph in distinct(plan)]


def distinct(plan: StoredPlan) -> list[tuple[str, KernelGraph]]:
    """The different muGraphs of a file, each with the targets and sizes for which it is taken: those for most sizes
    first, CUDA's before the CPU's."""
    used: dict[str, list[str]] = {}
    first: dict[str, KernelGraph] = {}
    for way in sorted(plan.ways, key=lambda way: (bool(way.where), way.kind != "cuda")):
        kind, condition, graph = way.kind, way.where, way.graph
        text = graph.text()
        first.setdefault(text, graph)
        if kind not in used.setdefault(text, []):  # a muGraph that is taken anyway may have another schedule somewhere
            used[text].append(f"{kind}{condition}")
    return [(", ".join(used[text]), graph) for text, graph in first.items()]
