"""muGraph files read back: what `mugraphs/ID.json` says of a fragment, without what it takes to search or render one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from mirage_cli.codegen.requests.passes import Passes, without
from mirage_cli.errors import InvalidGraph, UsageError
from mirage_cli.lax.ir.program import Program, program_from_json
from mirage_cli.search.mugraph.documents import graph_from_json
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.schedules.alternatives import Alternative, alternative_from_json
from mirage_cli.search.schedules.schedule import Schedule, schedule_from_json
from mirage_cli.search.schedules.target import Target, load_target


@dataclass(frozen=True, slots=True)
class Way:
    """A muGraph with its schedules: its kind of target, for which sizes it is taken (empty: elsewhere), and the architecture
    that its sources were made for where that is another one than the plan's."""

    kind: str
    where: str
    graph: KernelGraph
    schedules: tuple[Schedule, ...]
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A muGraph file read back: for each kind of target its name, kernel graph and schedules; the shared memory that its
    sources were made for, the passes that made them, and the muGraphs for other sizes."""

    id: str
    name: str
    program: Program
    targets: dict[str, tuple[str, KernelGraph, tuple[Schedule, ...]]]
    shared_bytes: dict[str, int]
    passes: Passes
    others: dict[str, tuple[Alternative, ...]]

    @property
    def ways(self) -> Iterator[Way]:
        """Every muGraph with its schedules."""
        for kind in self.targets:
            yield self.own(kind)
            for o in self.others[kind]:
                yield Way(kind, f" where {o.condition}", o.graph, o.schedules, o.target)

    def own(self, kind: str) -> Way:
        """The muGraph of a kind that is taken where no other is."""
        _, graph, schedules = self.targets[kind]
        return Way(kind, "", graph, schedules)

    def target_of(self, way: Way) -> Target:
        """The target that the sources of a muGraph were made for. Raises UsageError for an unknown one."""
        return load_target(way.architecture) if way.architecture else self.target(way.kind)

    def target(self, kind: str) -> Target:
        """The target that the sources of a kind were made for. Raises UsageError for an unknown one."""
        return replace(load_target(self.targets[kind][0]), shared_bytes=self.shared_bytes[kind])


def plan_from_json(data: dict[str, Any]) -> StoredPlan:
    """Take `mugraphs/ID.json` (`mugraph_file.read`) apart. Raises InvalidGraph when it is not well-formed."""
    try:
        targets = {
            kind: (
                t["target"],
                graph_from_json(t["graph"]),
                tuple(schedule_from_json(s) for s in t["schedules"]),
            )
            for kind, t in data["targets"].items()
        }
        limits = {kind: int(t["shared_bytes"]) for kind, t in data["targets"].items()}
        program = program_from_json(data["program"])
        others = {
            kind: tuple(alternative_from_json(o, program.symbols) for o in t.get("others", ()))
            for kind, t in data["targets"].items()
        }
        plan = StoredPlan(data["id"], data["name"], program, targets, limits, without(data["without"]), others)
    except (UsageError, KeyError, TypeError, ValueError, AttributeError) as e:
        raise InvalidGraph(f"muGraph file: missing or wrong field {e}") from None
    graphs = [graph for _, graph, _ in targets.values()] + [o.graph for ways in others.values() for o in ways]
    for graph in graphs:
        if (graph.sources, graph.outputs) != (len(program.sources), len(program.outputs)):
            raise InvalidGraph("muGraph file: a muGraph has other inputs or outputs than the program")
    return plan
