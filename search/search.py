"""The search as a whole: from a program to kernel graphs with schedules, cheapest first.

The block graphs of a program do not depend on a target and are found once for each distinct program; every target ranks
them, with schedules, by its own cost model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.lax.program import Program
from mirage_cli.search.closure import MAX_VALUES, Closure
from mirage_cli.search.extract import block_graphs
from mirage_cli.search.form import search_form
from mirage_cli.search.fuse import thread_graphs
from mirage_cli.search.kernels import assemble, cuts, operators, split
from mirage_cli.search.mapping import mappings
from mirage_cli.search.mugraph import BlockGraph, KernelGraph
from mirage_cli.search.schedule import Schedule
from mirage_cli.search.stabilise import stabilise
from mirage_cli.search.target import Target
from mirage_cli.search.tiling import Ranked, ranked
from mirage_cli.search.wanted import Wanted

FAR_FROM_FLOOR = 10.0  #: a kernel above the floor by this many launches, and above twice the floor, may be several


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Bounds: kernels of a fragment, operators of a block, block graphs kept for each mapping, schedules for each block
    graph, seconds for a fragment (0: no limit). `sizes` says what symbols are typically."""

    max_kernels: int = 4
    max_ops: int = 16
    candidates: int = 4
    schedules: int = 4
    budget: float = 0.0
    sizes: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class SearchStatistics:
    """What the search of one fragment did."""

    mappings: int = 0
    values: int = 0
    mugraphs: int = 0
    seconds: float = 0.0
    refused: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The report's form."""
        return {
            "mappings": self.mappings,
            "values": self.values,
            "muGraphs": self.mugraphs,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel graph with a schedule for each kernel, and what the model predicts for it."""

    graph: KernelGraph
    schedules: tuple[Schedule, ...]
    predicted_us: float
    floor_us: float
    order: tuple[float, float]  #: what candidates are ranked by: score, bytes moved


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What the search of a program for a target found: candidates, cheapest first."""

    program: Program
    candidates: list[Candidate]
    statistics: SearchStatistics


class Searcher:
    """Searches programs; equal parts are searched once. One instance serves one run."""

    def __init__(self, options: SearchOptions) -> None:
        self.options = options
        self._blocks: dict[str, tuple[list[BlockGraph], SearchStatistics]] = {}

    def blocks(self, program: Program) -> tuple[list[BlockGraph], SearchStatistics]:
        """The block graphs that compute a whole program in one kernel."""
        key = program.key()
        if key not in self._blocks:
            self._blocks[key] = self._search(program)
        return self._blocks[key]

    def _search(self, program: Program) -> tuple[list[BlockGraph], SearchStatistics]:
        start, statistics = time.perf_counter(), SearchStatistics()
        found: dict[BlockGraph, None] = {}
        try:
            form = search_form(program)
        except Refused as e:
            statistics.refused.append(str(e))
            return [], statistics
        wanted = Wanted(form)
        for mapping in mappings(form):
            if self.options.budget and time.perf_counter() - start > self.options.budget:
                statistics.refused.append(f"{mapping}: the budget of {self.options.budget:g} s was spent")
                continue
            statistics.mappings += 1
            try:
                closure = Closure(form, mapping, MAX_VALUES, wanted).run()
                statistics.values += len(closure.values)
                graphs = block_graphs(closure, self.options.candidates)
            except Refused as e:
                statistics.refused.append(f"{mapping}: {e}")
                continue
            for graph in graphs:
                try:
                    finished = thread_graphs(stabilise(graph, program), program)
                except (Refused, InvalidGraph) as e:
                    statistics.refused.append(f"{mapping}: {e}")
                    continue
                if operators(finished) <= self.options.max_ops:
                    found[finished] = None
                else:
                    statistics.refused.append(f"{mapping}: {operators(finished)} operators in a block")
        statistics.mugraphs = len(found)
        statistics.seconds = time.perf_counter() - start
        return list(found), statistics

    def search(self, program: Program, target: Target) -> SearchResult:
        """Kernel graphs for a program on a target, cheapest first, with the statistics of the search.

        Several kernels are tried where one does not do, or where the best one is far from the floor.
        """
        total = SearchStatistics()
        found: list[Candidate] = []
        for stored in cuts(program, self.options.max_kernels):
            if stored and found and any(near_floor(c, target) for c in found):
                break
            found += self._with_cut(program, target, stored, total)
        found.sort(key=lambda c: c.order)
        total.mugraphs = max(total.mugraphs, len({c.graph for c in found}))
        return SearchResult(program, found, total)

    def _with_cut(
        self, program: Program, target: Target, stored: tuple[str, ...], total: SearchStatistics
    ) -> Iterator[Candidate]:
        parts = split(program, stored)
        options: list[list[tuple[BlockGraph, Ranked]]] = []
        for part, _ in parts:
            graphs, statistics = self.blocks(part)
            total.mappings += statistics.mappings
            total.values += statistics.values
            total.seconds += statistics.seconds
            total.mugraphs += statistics.mugraphs if not stored else 0
            total.refused += statistics.refused
            own = [
                (graph, r)
                for graph in graphs
                if not graph.split or target.kind == "cuda"
                for r in ranked(part, graph, target, self.options.schedules, dict(self.options.sizes))
            ]
            if not own:
                return
            options.append(sorted(own, key=lambda x: x[1].order))
        count = max(map(len, options)) if len(options) == 1 else self.options.schedules
        for k in range(count):
            chosen = [o[min(k, len(o) - 1)] for o in options]
            graph = assemble(program, parts, [g for g, _ in chosen])
            best = [r for _, r in chosen]
            yield Candidate(
                graph,
                tuple(r.schedule for r in best),
                sum(r.prediction.us for r in best),
                max(r.prediction.floor_us for r in best),
                (sum(r.score for r in best), sum(r.prediction.moved for r in best)),
            )


def near_floor(c: Candidate, target: Target) -> bool:
    """Whether several kernels in the place of one would gain little."""
    return c.predicted_us - c.floor_us < max(FAR_FROM_FLOOR * target.launch_us, c.floor_us)
