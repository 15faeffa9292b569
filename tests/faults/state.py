"""What a run of `optimize` leaves: which of the folders that it may leave, and what lies about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

LITTER = (".part", ".old", ".lock")


def files(folder: Path) -> dict[str, str]:
    """The digest of every file of an output folder, but for the reports, which hold times."""
    found = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.stem != "report")
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


def standing(out: Path, known: Mapping[str, Mapping[str, str]]) -> str:
    """What an output folder is: `absent`, the name of one of the known ones, or what is wrong with it."""
    if not out.exists():
        return "absent"
    found = files(out)
    for name, expected in known.items():
        if found == expected:
            return name if _reported(out, found) else f"{name}, but for its report"
    return f"half-written: {sorted(found)}"


def complete(out: Path) -> bool:
    """Whether an output folder is whole, whatever it holds: its report names the files that are there."""
    return _reported(out, files(out))


def _reported(out: Path, found: Mapping[str, str]) -> bool:
    try:
        report = json.loads((out / "report.json").read_text(encoding="utf-8"))
        page = (out / "report.html").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    named: dict[str, str] = report["files"]
    return named == {k: v for k, v in found.items() if not k.endswith(".svg")} and page.rstrip().endswith("</html>")


def litter(*folders: Path) -> list[str]:
    """What is not complete, or locks something, in folders and below."""
    return sorted(str(p) for f in folders for p in f.rglob("*") if p.name.endswith(LITTER))
