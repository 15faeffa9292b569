"""What earlier runs found out of fragments: their plans (search, rendering and proof) and the float checks of their kernels.

Both are kept under everything that they depend on, this version of mirage included, so that a kept result is what a new run
would give, byte by byte. A search with a time limit depends on the machine's speed and is not kept.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from mirage_cli.checks.kernel_check import Edges, FloatCheck, Limits
from mirage_cli.codegen.requests.passes import Passes
from mirage_cli.codegen.source import Memory
from mirage_cli.files.output import digest
from mirage_cli.files.result_store import Kept, key
from mirage_cli.lax.ir.program import Program
from mirage_cli.machine import devices
from mirage_cli.numerics.accuracy import Accuracy
from mirage_cli.planning.plan import FragmentPlan, Other, PlanOptions, Slower, TargetPlan
from mirage_cli.processes.isolation import Lost
from mirage_cli.search.mugraph.mugraph import KernelGraph, graph_from_json, graph_to_json
from mirage_cli.search.proof.verify import Verdict
from mirage_cli.search.schedules.alternatives import alternative_from_json
from mirage_cli.search.schedules.schedule import Schedule, schedule_from_json
from mirage_cli.search.search import Candidate, SearchStatistics

_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")  #: packages; asking for versions loads nothing


# --- plans ------------------------------------------------------------------------------------------------------------
def plan_key(identifier: str, name: str, program: Program, operators: int, options: PlanOptions) -> str:
    """The name of a fragment's plan: of all that `plan_fragment` is given, but for the number of processes and the entropy."""
    told = repr(replace(options, search=replace(options.search, jobs=1), entropy=""))
    libraries = [np.__version__, platform.python_version()]
    return key("plan", identifier, name, program.to_json(), operators, told, libraries)


def lasting(options: PlanOptions) -> bool:
    """Whether plans with these options depend on nothing else."""
    return not options.search.budget


def find_plan(store: Kept, name: str, program: Program) -> FragmentPlan | None:
    """The plan of a program that is kept under a name."""
    data = store.get(name)
    return None if data is None else replace(plan_from_json(data, program), kept=True)


def plan_to_json(plan: FragmentPlan) -> dict[str, Any]:
    """A plan as a JSON document that `plan_from_json` reads back; muGraphs that candidates share are written once."""
    graphs = list(dict.fromkeys(c.graph for c in plan.pool))
    numbers = {g: k for k, g in enumerate(graphs)}
    return {
        "id": plan.id,
        "name": plan.name,
        "statistics": asdict(plan.statistics),
        "plans": {kind: _target_to_json(p) for kind, p in plan.plans.items()},
        "reasons": plan.reasons,
        "passes": asdict(plan.passes),
        "graphs": [graph_to_json(g) for g in graphs],
        "pool": [
            [numbers[c.graph], [s.to_json() for s in c.schedules], c.predicted_us, c.floor_us, list(c.order)]
            for c in plan.pool
        ],
    }


def plan_from_json(data: Mapping[str, Any], program: Program) -> FragmentPlan:
    """The inverse of `plan_to_json`, for the program that the plan was made for."""
    graphs = [graph_from_json(g) for g in data["graphs"]]
    return FragmentPlan(
        data["id"],
        data["name"],
        program,
        SearchStatistics(**data["statistics"]),
        {kind: _target_from_json(p, program) for kind, p in data["plans"].items()},
        dict(data["reasons"]),
        Passes(**data["passes"]),
        tuple(_candidate(graphs, *row) for row in data["pool"]),
    )


def _candidate(
    graphs: Sequence[KernelGraph], number: int, schedules: list[Any], us: float, floor: float, order: list[float]
) -> Candidate:
    return Candidate(graphs[number], _schedules(schedules), us, floor, (order[0], order[1]))


def _schedules(data: Sequence[Mapping[str, Any]]) -> tuple[Schedule, ...]:
    return tuple(map(schedule_from_json, data))


def _target_to_json(p: TargetPlan) -> dict[str, Any]:
    return {
        "target": p.target,
        "shared_bytes": p.shared_bytes,
        "graph": graph_to_json(p.graph),
        "schedules": [s.to_json() for s in p.schedules],
        "text": p.text,
        "verdict": asdict(p.verdict),
        "us": [p.predicted_us, p.floor_us, p.original_us],
        "others": [[o.alternative.to_json(), asdict(o.verdict)] for o in p.others],
        "memory": [asdict(m) for m in p.memory],
        "slower": [asdict(s) for s in p.slower],
    }


def _target_from_json(data: Mapping[str, Any], program: Program) -> TargetPlan:
    others = tuple(Other(alternative_from_json(a, program.symbols), _verdict(v)) for a, v in data["others"])
    predicted, floor, original = data["us"]
    return TargetPlan(
        data["target"],
        data["shared_bytes"],
        graph_from_json(data["graph"]),
        _schedules(data["schedules"]),
        data["text"],
        _verdict(data["verdict"]),
        predicted,
        floor,
        original,
        others,
        tuple(Memory(**m) for m in data["memory"]),
        tuple(Slower(**s) for s in data["slower"]),
    )


def _verdict(data: Mapping[str, Any]) -> Verdict:
    return Verdict(**{**data, "primes": tuple(data["primes"])})


# --- float checks -----------------------------------------------------------------------------------------------------
class Checks:
    """The passed float checks of a library's kernels. A check depends on the library's bytes, on what the weights and the
    original nodes come from (`identity`: hashes of the model, what was said of its inputs, the seed), on the limits of
    symbols, and on the machine, whose instructions and onnxruntime take part."""

    def __init__(self, store: Kept | None, library: Path, identity: Sequence[Any], limits: Limits) -> None:
        self._store = store
        if store is not None:
            machine = [devices.processor(), platform.platform(), platform.python_version()]
            libraries = [np.__version__, *map(_version, _RUNTIMES)]
            self._told = [digest(library), list(identity), sorted(limits.items()), machine, libraries]

    def get(self, fragment: str) -> FloatCheck | None:
        """The check of a fragment's kernel, where an earlier run made it."""
        data = None if self._store is None else self._store.get(self._key(fragment))
        return None if data is None else check_from_json(data)

    def put(self, fragment: str, check: FloatCheck | Lost | None) -> None:
        """Keep a check that passed."""
        if self._store is not None and isinstance(check, FloatCheck) and check.passed and check.worst is not None:
            self._store.put(self._key(fragment), asdict(check))

    def _key(self, fragment: str) -> str:
        return key("check", fragment, *self._told)


def check_from_json(data: Mapping[str, Any]) -> FloatCheck:
    """A float check that was written as a mapping of its fields."""
    found = data.get("edges")
    edges = None
    if found is not None:
        accuracy = Accuracy(**found["accuracy"])
        edges = Edges(tuple(found["kinds"]), found["worst"], accuracy, tuple(found["better"]))
    return FloatCheck(**{**data, "worst": Accuracy(**data["worst"]), "edges": edges})


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
