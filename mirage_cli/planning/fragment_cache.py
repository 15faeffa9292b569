"""Results of earlier runs for fragments: their plans (search, rendering and proof) and the float checks of their kernels.

Both are kept under everything that they depend on, this version of mirage included, so that a kept result is what a new run
would give, byte by byte. A search with a time limit depends on the machine's speed and is not kept.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mirage_cli.checks.kernel_check import FloatCheck, Limits
from mirage_cli.codegen.source import Memory
from mirage_cli.files import codec
from mirage_cli.files.output import digest
from mirage_cli.files.result_store import Kept, key
from mirage_cli.kernel_proof import prove
from mirage_cli.lax.ir.program import Program
from mirage_cli.machine import devices
from mirage_cli.planning.plan import FragmentPlan, Other, PlanOptions, Slower, TargetPlan
from mirage_cli.processes.isolation import Lost
from mirage_cli.report import stored_plan
from mirage_cli.search.mugraph.documents import graph_from_json, graph_to_json
from mirage_cli.search.progress import SearchStatistics
from mirage_cli.search.proof.verify import Verdict
from mirage_cli.search.schedules.schedule import schedule_from_json
from mirage_cli.search.search import Candidate

_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")  #: packages; asking for versions loads nothing


# --- plans ------------------------------------------------------------------------------------------------------------
def plan_key(identifier: str, name: str, program: Program, operators: int, options: PlanOptions) -> str:
    """The name of a fragment's plan: of all that `plan_fragment` is given, but for the number of processes and the entropy."""
    told = repr(replace(options, search=replace(options.search, jobs=1), entropy=""))
    libraries = [np.__version__, platform.python_version(), os.environ.get(prove.VARIABLE)]
    return key("plan", identifier, name, program.to_json(), operators, told, libraries)


def lasting(options: PlanOptions) -> bool:
    """True if plans with these options depend on nothing else."""
    return not options.search.budget


def find_plan(store: Kept, name: str, program: Program) -> FragmentPlan | None:
    """The plan of a program that is kept under a name."""
    data = store.get(name)
    return None if data is None else replace(plan_from_json(data, program), kept=True)


@dataclass(frozen=True, slots=True)
class _Told:
    """The part of a target's plan that the muGraph file does not hold; the verdicts are its own and those of its others."""

    text: str
    verdicts: tuple[Verdict, ...]
    predicted_us: float
    floor_us: float
    original_us: float
    memory: tuple[Memory, ...]
    slower: tuple[Slower, ...]
    margin: float
    gain: float
    alone: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class _Kept:
    """A plan as it is kept: its muGraph file and what that does not say; muGraphs that candidates share are there once."""

    file: dict[str, Any]
    statistics: SearchStatistics
    told: dict[str, _Told]
    reasons: dict[str, str]
    graphs: list[dict[str, Any]]
    pool: list[tuple[int, list[dict[str, Any]], tuple[float, float, tuple[float, float]]]]


def plan_to_json(plan: FragmentPlan) -> Any:
    """A plan as a JSON document that `plan_from_json` reads back."""
    numbers = {g: k for k, g in enumerate(dict.fromkeys(c.graph for c in plan.pool))}
    told = {kind: _Told(*(getattr(p, f.name) for f in fields(_Told))) for kind, p in plan.plans.items()}
    pool = [
        (numbers[c.graph], [s.to_json() for s in c.schedules], (c.predicted_us, c.floor_us, c.order)) for c in plan.pool
    ]
    kept = _Kept(plan.to_json(), plan.statistics, told, plan.reasons, list(map(graph_to_json, numbers)), pool)
    return msgspec.to_builtins(kept)


def plan_from_json(data: Any, program: Program) -> FragmentPlan:
    """The inverse of `plan_to_json`, for the program that the plan was made for."""
    kept = codec.checked(data, _Kept)
    stored, graphs = stored_plan.plan_from_json(kept.file), [graph_from_json(g) for g in kept.graphs]
    plans = {
        kind: TargetPlan(
            stored.targets[kind][0],
            stored.shared_bytes[kind],
            *stored.targets[kind][1:],
            t.text,
            t.verdicts[0],
            t.predicted_us,
            t.floor_us,
            t.original_us,
            tuple(map(Other, stored.others[kind], t.verdicts[1:])),
            t.memory,
            t.slower,
            t.margin,
            t.gain,
            t.alone,
        )
        for kind, t in kept.told.items()
    }
    pool = tuple(Candidate(graphs[k], tuple(map(schedule_from_json, s)), *more) for k, s, more in kept.pool)
    return FragmentPlan(stored.id, stored.name, program, kept.statistics, plans, kept.reasons, stored.passes, pool)


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

    def name(self, fragment: str) -> str:
        """What the check of a fragment's kernel is known by; empty where nothing is kept."""
        return "" if self._store is None else self._key(fragment)

    def get(self, fragment: str) -> FloatCheck | None:
        """The check of a fragment's kernel, where an earlier run made it."""
        data = None if self._store is None else self._store.get(self._key(fragment))
        return None if data is None else codec.checked(data, FloatCheck)

    def put(self, fragment: str, check: FloatCheck | Lost | None) -> None:
        """Keep a check that passed."""
        if self._store is not None and isinstance(check, FloatCheck) and check.passed and check.worst is not None:
            self._store.put(self._key(fragment), msgspec.to_builtins(check))

    def _key(self, fragment: str) -> str:
        return key("check", fragment, *self._told)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
