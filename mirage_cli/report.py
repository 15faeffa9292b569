"""The report of a run: plain data that becomes report.json, the page report.html and the text in the terminal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from mirage_cli import __version__

SCHEMA_VERSION = 1


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
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """The contract's form."""
        data = {
            "id": self.id,
            "name": self.name,
            "status": self.status,
            "occurrences": self.occurrences,
            "nodes": self.nodes,
            "program": self.program,
            "search": self.search,
            "mugraph": self.mugraph,
            "verification": self.verification,
            "schedule": self.schedule,
            "predicted_us": round(self.predicted_us, 3),
            "original_us": round(self.original_us, 3),
            "floor_us": round(self.floor_us, 3),
            "measured": self.measured,
        }
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

    def to_json(self) -> dict[str, Any]:
        """The contract's `report.json`."""
        return {
            "mirage": __version__,
            "schema_version": SCHEMA_VERSION,
            "model": self.model,
            "options": self.options,
            "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
            "fragments": [f.to_json() for f in self.fragments],
            "unchanged": self.unchanged,
            "coverage": {k: round(v, 4) for k, v in self.coverage.items()},
            "notes": self.notes,
            "toolchain": self.toolchain,
        }

    def text(self) -> str:
        """report.json as text."""
        return json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n"

    @property
    def replaced(self) -> list[FragmentReport]:
        """The fragments that the patched model has as operators."""
        return [f for f in self.fragments if f.status == "replaced"]
