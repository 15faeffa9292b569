"""Sources that code generation prints: the goldens by file name."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "codegen" / "golden"
GOLDENS = {p.name: p.read_text() for p in sorted([*FOLDER.glob("*.cu"), *FOLDER.glob("*.cpp")])}
