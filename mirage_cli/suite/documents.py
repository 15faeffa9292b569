"""JSON documents of earlier runs of a suite: peers' times taken out of one, rows of several put together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_cli.errors import ModelError, UsageError
from mirage_cli.files import rawfile
from mirage_cli.suite.cases import Case
from mirage_cli.suite.report import SuiteReport, row_of

_SAME = ("suite", "dtype", "allow_tf32")  #: settings without which times do not compare
_FIGURES = ("sets", "accuracy", "kernels", "predicted_us", "tuning", "mirage")


@dataclass(frozen=True, slots=True)
class Document:
    """What an earlier run found: its version, settings and limits, its rows as they were written, by name."""

    version: str
    settings: Mapping[str, Any]
    limits: Mapping[str, Any]
    rows: Mapping[str, dict[str, Any]]

    @property
    def peers(self) -> dict[str, dict[str, Any]]:
        """The peers' times by row."""
        return {name: dict(r["peers"]) for name, r in self.rows.items()}

    @property
    def machine(self) -> dict[str, Any]:
        """The device that the peers' times are of and the versions that ran there."""
        return dict(self.limits.get("gpu_state", {}))


def read(path: Path, settings: Mapping[str, Any]) -> Document:
    """The document of an earlier run. Raises ModelError for one that is none, UsageError for one of another suite, type
    or precision of peers."""
    try:
        data = json.loads(rawfile.content(path))
        rows = {str(r["name"]): {**r, "peers": {str(n): dict(p) for n, p in r["peers"].items()}} for r in data["rows"]}
        found = Document(str(data["mirage"]), dict(data["settings"]), dict(data["limits"]), rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path}: expected the JSON document of `mirage bench --suite`, found {error}") from None
    for name in _SAME:
        if found.settings.get(name) != settings[name]:
            raise UsageError(f"{path}: its {name} is {found.settings.get(name)}, not {settings[name]}")
    return found


def merged(paths: Sequence[Path], cases: Mapping[str, Case], settings: Mapping[str, Any]) -> SuiteReport:
    """The rows of several documents that are among the cases, each from the last one that has it; settings and limits are
    the first one's. Raises what `read` raises, ModelError for documents of another version, UsageError where none is left."""
    found = [read(path, settings) for path in paths]
    rows = {name: r for d in found for name, r in d.rows.items() if name in cases}
    if not rows:
        raise UsageError(f"--results {paths[0]}: it has none of the rows that were asked for")
    limits = dict(found[0].limits)
    try:
        limits["flops"] = {dtype: rate for d in reversed(found) for dtype, rate in d.limits["flops"].items()}
        reported = [
            row_of(c, str(r["dtype"]), {k: r[k] for k in _FIGURES if k in r}, r["peers"])
            for name, c in cases.items()
            if (r := rows.get(name)) is not None
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"--results {', '.join(map(str, paths))}: expected documents of this version, found {error}"
        ) from None
    return SuiteReport(
        found[0].version, {**found[0].settings, "results": [str(p) for p in paths]}, limits, tuple(reported)
    )
