"""The report of a folder of models: where each one's own report is, and the hashes of what else there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as A
from typing import Any, Literal

from mirage_cli.errors import ModelError
from mirage_cli.files import codec
from mirage_cli.files.codec import says
from mirage_cli.files.output import MARK
from mirage_cli.report import forms
from mirage_cli.report.report import SCHEMA_VERSION, Report, as_text


@dataclass(frozen=True, slots=True)
class Index:
    """report.json of a folder with several models."""

    mirage: A[str, says("The version that wrote it.")]
    schema_version: A[Literal[1], says("Raised when an entry changes its meaning.")]
    folder: A[str, says("The folder that was read, as it was given.")]
    models: A[
        forms.Files, says("The folders of the models' own outputs below this one, and the files that they are of.")
    ]
    notes: A[list[str], says("What stays as it is, and why.")]
    files: A[forms.Files, says("Hash of every other file that was written.")]

    def text(self) -> str:
        """report.json."""
        return as_text({name: getattr(self, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class FolderReport:
    """The record of a run on a folder: the reports of its models, by their files; `notes` tell what stays as it is."""

    folder: str
    models: Mapping[str, Report]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The document of `mirage optimize FOLDER --json`: of a model alone its own report, of several all of theirs."""
        own = {name: report.to_json() for name, report in self.models.items()}
        (first, *more) = own.values()
        if not more:
            return first
        version = {"mirage": first["mirage"], "schema_version": SCHEMA_VERSION}
        return {**version, "folder": self.folder, "models": own, "notes": list(self.notes)}

    def __repr__(self) -> str:
        return f"<reports of {self.folder}: {', '.join(map(repr, self.models.values()))}>"


def index(folder: Path) -> Index | None:
    """The index of an output folder; None where it is the output of one model. Raises ModelError for an index that cannot be
    read."""
    try:
        data = codec.read(folder / MARK)
        if not isinstance(data, dict) or "models" not in data:
            return None
    except (OSError, ValueError):
        return None  # the reader of reports tells what is wrong
    try:
        return codec.checked(data, Index)
    except ValueError as error:
        raise ModelError(f"{folder / MARK}: expected the report of a folder of models: {error}") from None
