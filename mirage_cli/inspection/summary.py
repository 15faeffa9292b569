"""Summaries that `mirage inspect` shows: the fragments of a model (`model_summary.py`) or of all models of a folder, or what
an output folder holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_cli import __version__
from mirage_cli.exporters import text, wording
from mirage_cli.frontends import folders
from mirage_cli.options.options import Options
from mirage_cli.report import reader
from mirage_cli.report.report import SCHEMA_VERSION

#: the parts of a fragment's report that an output folder's inspection repeats
BRIEF = ("id", "name", "status", "occurrences", "predicted_us", "original_us", "floor_us", "measured")


@dataclass(frozen=True, slots=True)
class Inspection:
    """A document for programs and lines for people; `kind` in the document is "model", "models" or "folder"."""

    document: dict[str, Any]
    lines: tuple[str, ...]

    def __repr__(self) -> str:
        if "models" in self.document:
            return f"<inspection of {self.document['folder']}: {', '.join(self.document['models'])}>"
        found = f"{len(self.document['fragments'])} distinct fragments"
        return f"<inspection of {self.document['model']['path']}: {found}>"

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return self.document

    def text(self) -> str:
        """The lines."""
        return "\n".join(self.lines) + "\n"


def inspect(path: str, options: Options) -> Inspection:
    """Inspect a model file ("-": standard input), every model of a folder of onnxruntime-genai or transformers.js, or an
    output folder.

    Raises ModelError when it cannot be read, UsageError for shapes and dimensions that do not fit the model.
    """
    if path != "-" and Path(path).is_dir():
        return _models(Path(path), options) if folders.has_models(Path(path)) else _folder(Path(path))
    from mirage_cli.inspection import model_summary  # noqa: PLC0415 - reading models takes a second of imports

    document, lines = model_summary.inspect(path, options)
    return Inspection(document, tuple(lines))


def _models(folder: Path, options: Options) -> Inspection:
    """Each model of a folder as a file alone, with the options that `mirage optimize` gives it; of a model alone its own."""
    from mirage_cli.optimization import folder_story  # noqa: PLC0415 - as above

    source = folders.read(folder)
    own = folder_story.options_of(source, options)
    found = {m.file: inspect(str(folder / m.file), own[m.file]) for m in source.members}
    (first, *more), notes = found.values(), list(source.notes)
    lines = [line for each in found.values() for line in (*each.lines, "")]
    if not more:
        return Inspection(first.document | {"notes": [*first.document["notes"], *notes]}, (*first.lines, *notes))
    told = {"mirage": __version__, "schema_version": SCHEMA_VERSION, "kind": "models", "folder": str(folder)}
    models = {file: each.document for file, each in found.items()}
    return Inspection({**told, "models": models, "notes": notes}, (*lines[:-1], *notes))


# --- an output folder ---------------------------------------------------------------------------------------------------
def _folder(folder: Path) -> Inspection:
    report = reader.read(folder)
    document = {
        "mirage": report["mirage"],
        "schema_version": SCHEMA_VERSION,
        "kind": "folder",
        "model": report["model"],
        "files": sorted(p.name for p in folder.iterdir()),
        "seconds": report["seconds"],
        "fragments": [_brief(f) for f in report["fragments"]],
        "coverage": report["coverage"],
        "unchanged": [{"count": len(u["nodes"]), "reason": u["reason"]} for u in report["unchanged"]],
        "notes": report["notes"],
    }
    blocks = [
        [text.model(report["model"]), *text.outcome(report)],
        text.fragments(report["fragments"]),
        text.reasons(report["fragments"]),
        ["Coverage", *(f"  {line}" for line in wording.covered(report["coverage"]))],
        text.left_alone(report["unchanged"]),
    ]
    return Inspection(document, tuple("\n\n".join("\n".join(b) for b in blocks if b).splitlines()))


def _brief(f: Mapping[str, Any]) -> dict[str, Any]:
    proof = f["verification"]
    told = {k: f[k] for k in BRIEF}
    told["error_bound"] = proof["error_bound"]
    told["error"], told["original_error"] = proof["float"]["error"], proof["float"]["original_error"]
    return told | ({"reason": f["reason"]} if "reason" in f else {})
