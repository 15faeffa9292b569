"""Schedules that were measured once and come with this program: of a program and its sizes, the fastest that was found.

`tunings/TARGET.json` has a row for each, a line long. A row chooses among what the search finds, which is proved and checked
as always: one whose muGraph or schedules are no candidates any more is as if it were not there. Keys are exact: nothing
is said of sizes that lie near.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from mirage_cli.files import codec
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.documents import graph_to_json
from mirage_cli.search.mugraph.mugraph import CustomKernel, KernelGraph
from mirage_cli.search.schedules.architectures import BLOCK
from mirage_cli.search.schedules.ranking import MODELS, engine_ranked
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target
from mirage_cli.search.search import Candidate

EVERY = 1 << 20  #: schedules of an engine, more than there are


@dataclass(frozen=True, slots=True)
class Row:
    """The fastest candidate of a program (by its `form`) where its symbols are `extents`: its muGraph (by `identity`), the
    schedules of its kernels, and microseconds on a `device`. `name` is for people, `version` says which sources it was
    measured with."""

    program: str
    extents: dict[str, int]
    mugraph: str
    schedules: list[dict[str, Any]]
    us: float
    name: str = ""
    device: str = ""
    version: str = ""

    @property
    def key(self) -> str:
        """What it holds for."""
        return key(self.program, self.extents)


def key(program: str, extents: Mapping[str, int]) -> str:
    """A program, by its `form`, at sizes."""
    return json.dumps([program, extents], sort_keys=True)


def form(program: Program) -> str:
    """A hash of all of a program that times depend on: neither the names of the model's tensors nor what constants are."""
    return _hash(_timeless(program.to_json()))


def identity(graph: KernelGraph) -> str:
    """The same of a kernel graph: equal fragments of all models have the same."""
    data = graph_to_json(graph)
    for kernel in data["kernels"]:
        _timeless(kernel["program"])
        for op in kernel["block"]["ops"]:
            _constants(op.get("thread", ()))
    return _hash(data)


def _timeless(program: dict[str, Any]) -> dict[str, Any]:
    """A program's document, from which names and constants are taken."""
    for item in (*program["sources"], *program["outputs"]):
        item.pop("name")
    _constants(program["nodes"])
    return program


def _constants(nodes: Iterable[dict[str, Any]]) -> None:
    for n in nodes:
        if "value" in n:
            n["value"] = "a number"


def _hash(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


# ---- the table -------------------------------------------------------------------------------------------------------
@functools.cache
def shipped(target: str) -> Mapping[str, Row]:
    """The rows for a target by their keys; none where nobody has measured there."""
    file = files("mirage_cli.planning").joinpath("tunings", f"{target}.json")
    return {r.key: r for r in read(file.read_text(encoding="utf-8"))} if file.is_file() else {}


def read(text: str) -> list[Row]:
    """The rows of a table. Raises ValueError for what is none."""
    return codec.checked(codec.decoded(text), list[Row])


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write a table: of several rows with one key the fastest, in the order of names and keys."""
    best: dict[str, Row] = {}
    for r in rows:
        if r.key not in best or r.us < best[r.key].us:
            best[r.key] = r
    lines = (json.dumps(asdict(r), sort_keys=True) for r in sorted(best.values(), key=lambda r: (r.name, r.key)))
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


# ---- among candidates ------------------------------------------------------------------------------------------------
def row(program: Program, target: Target, sizes: Mapping[str, int]) -> Row | None:
    """The row for a program where its symbols are `sizes`."""
    return shipped(target.name).get(key(form(program), {s: sizes[s] for s in program.symbols if s in sizes}))


def measured(
    program: Program, candidates: Sequence[Candidate], target: Target, sizes: Mapping[str, int]
) -> Candidate | None:
    """The candidate that the table has for a program where symbols are `sizes`, with its measured time as the prediction;
    None where it has none, or one that is not among the `candidates`, whatever their schedules."""
    found = row(program, target, sizes)
    if found is None:
        return None
    for graph, floor in {c.graph: c.floor_us for c in candidates}.items():
        if identity(graph) == found.mugraph and len(graph.kernels) == len(found.schedules):
            pairs = zip(graph.kernels, found.schedules, strict=True)
            schedules = tuple(s for k, wanted in pairs if (s := _schedule(k, wanted, target, sizes)) is not None)
            complete = len(schedules) == len(found.schedules)
            return Candidate(graph, schedules, found.us, floor, (found.us, 0.0)) if complete else None
    return None


def _schedule(
    kernel: CustomKernel, wanted: Mapping[str, Any], target: Target, sizes: Mapping[str, int]
) -> Schedule | None:
    """A kernel's schedule as its engine still has it."""
    engine = wanted.get("engine", BLOCK)
    ranks = engine_ranked(engine, kernel.program, kernel.block, target, EVERY, sizes) if engine in MODELS else []
    return next((r.schedule for r in ranks if r.schedule.to_json() == wanted), None)
