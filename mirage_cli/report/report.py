"""The report of a run: plain data that becomes report.json, the page report.html and the text in the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mirage_cli import __version__
from mirage_cli.errors import CheckFailed, UsageError
from mirage_cli.options.options import Options

SCHEMA_VERSION = 1
REPLACED, KEPT, FAILED = "replaced", "kept", "failed"
KERNEL, ISOLATED = "kernel", "kernel isolated"  #: peers in `measured` that are our own kernel without ONNX Runtime
OWN = (KERNEL, ISOLATED)

#: What a fragment's report holds when nothing is known: every key of the contract is there all the same.
_SEARCH: dict[str, Any] = {"mappings": 0, "values": 0, "muGraphs": 0, "seconds": 0.0}
_MUGRAPH: dict[str, Any] = {"file": None, "kernels": 0, "grid": [], "loop": None, "text": []}
_FLOAT: dict[str, Any] = {"target": None, "error": None, "original_error": None}
_VERIFICATION: dict[str, Any] = {
    "mode": None,
    "primes": [],
    "degree": None,
    "applications": None,
    "rounds": 0,
    "error_bound": None,
    "seconds": 0.0,
}
_ORIGINAL: dict[str, Any] = {"inputs": [], "outputs": [], "nodes": []}


@dataclass(slots=True)
class FragmentReport:
    """What became of one distinct fragment. `status` is "replaced", "kept" (proved, but not predicted to be faster),
    or "failed"; `reason` says why it was not replaced."""

    id: str
    name: str
    status: str
    occurrences: int
    nodes: list[list[str]]
    program: dict[str, Any]
    search: dict[str, Any] = field(default_factory=dict)
    mugraph: dict[str, Any] = field(default_factory=dict)
    verification: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    predicted_us: float = 0.0
    original_us: float = 0.0
    floor_us: float = 0.0
    measured: list[dict[str, Any]] = field(default_factory=list)
    tuning: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    original: dict[str, Any] = field(default_factory=dict)  #: its nodes at the first place
    predictions: dict[str, Any] = field(default_factory=dict)  #: by kind of target

    def to_json(self, written: bool = True) -> dict[str, Any]:
        """The contract's form, with all keys; `mugraph.file` is null for what is not replaced or not `written`."""
        proof = _VERIFICATION | self.verification
        graph = _MUGRAPH | self.mugraph
        data = {
            "id": self.id,
            "name": self.name,
            "status": self.status,
            "occurrences": self.occurrences,
            "nodes": self.nodes,
            "program": self.program,
            "search": _SEARCH | self.search,
            "mugraph": graph if written and self.status == REPLACED else graph | {"file": None},
            "verification": proof | {"float": _FLOAT | proof.get("float", {})},
            "schedule": self.schedule,
            "predicted_us": round(self.predicted_us, 3),
            "original_us": round(self.original_us, 3),
            "floor_us": round(self.floor_us, 3),
            "measured": self.measured,
            "original": _ORIGINAL | self.original,
            "predictions": self.predictions,
        }
        data |= {"tuning": self.tuning} if self.tuning else {}
        return data | ({"reason": self.reason} if self.reason else {})


@dataclass(slots=True)
class Report:
    """Everything that `mirage optimize` found, searched, proved, chose and left."""

    model: dict[str, Any]
    options: dict[str, Any]
    seconds: dict[str, float] = field(default_factory=dict)
    fragments: list[FragmentReport] = field(default_factory=list)
    unchanged: list[dict[str, Any]] = field(default_factory=list)
    coverage: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    toolchain: dict[str, str] = field(default_factory=dict)
    operators: dict[str, str] = field(default_factory=dict)  #: of every node by its name, in the order of the model
    files: dict[str, str] = field(default_factory=dict)  #: sha256 of every file of the output, but for the reports
    seal: str = ""  #: of `files` and of what was read, by which this user's mirage knows its own work

    def to_json(self) -> dict[str, Any]:
        """The contract's `report.json`; numbers that JSON lacks (an infinite error) are null."""
        data = {
            "mirage": __version__,
            "schema_version": SCHEMA_VERSION,
            "model": self.model,
            "options": self.options,
            "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
            "fragments": [f.to_json(not self.options.get("dry_run")) for f in self.fragments],
            "unchanged": self.unchanged,
            "coverage": {k: round(v, 4) for k, v in self.coverage.items()},
            "notes": self.notes,
            "toolchain": self.toolchain,
            "operators": self.operators,
            "files": self.files,
            "seal": self.seal,
        }
        found: dict[str, Any] = finite(data)
        return found

    def text(self) -> str:
        """report.json."""
        return as_text(self.to_json())

    @property
    def replaced(self) -> list[FragmentReport]:
        """The fragments that the patched model has as operators."""
        return [f for f in self.fragments if f.status == REPLACED]


def from_json(data: dict[str, Any]) -> Report:
    """The report of a `report.json` that `reader.read` has read."""
    known = {f.name for f in fields(FragmentReport)}
    fragments = [FragmentReport(**{k: v for k, v in f.items() if k in known}) for f in data["fragments"]]
    own = {f.name: data[f.name] for f in fields(Report) if f.name in data}
    return Report(**own | {"fragments": fragments})


def sealed(files: Mapping[str, str], model: Mapping[str, Any]) -> list[Any]:
    """What the seal of a report is of: the hashes of all files that were written, and of the model that was read."""
    return [dict(files), model["sha256"]]


def enforce(report: Report, options: Options) -> None:
    """Raise CheckFailed when a required coverage is missed or, with `strict`, when a fragment failed."""
    for text in options.require_coverage:
        kind, _, share = text.partition("=")
        try:
            wanted = float(share)
        except ValueError:
            raise UsageError(f"--require-coverage {text}: expected KIND=SHARE, such as flops=0.95") from None
        if kind not in report.coverage:
            raise UsageError(f"--require-coverage {text}: kinds are {', '.join(sorted(report.coverage))}")
        if report.coverage[kind] < wanted:
            raise CheckFailed(f"coverage of {kind} is {report.coverage[kind]:.3f}, below {wanted:g}")
    failed: list[FragmentReport] = [f for f in report.fragments if f.status == "failed"]
    if options.strict and failed:
        raise CheckFailed(f"{len(failed)} fragments failed; the first: {failed[0].name} ({failed[0].reason})")


def finite(data: Any) -> Any:
    """The same JSON document with None in the place of infinities and NaNs."""
    if isinstance(data, dict):
        return {k: finite(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [finite(v) for v in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def as_text(data: Mapping[str, Any]) -> str:
    """A report as text that is valid UTF-8, whatever the names in it."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate becomes its JSON escape
