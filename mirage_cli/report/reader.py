"""report.json of an output folder read back, whoever wrote it: the one reader of all commands.

What it returns is as the form `Report` says, and stays in the folder wherever it names a file there, so that its readers
need not ask again. Entries that this version does not know are left in it unread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mirage_cli.errors import ModelError
from mirage_cli.files import codec
from mirage_cli.files.output import MARK, MUGRAPHS
from mirage_cli.report.report import SCHEMA_VERSION, Report

_OPTIMIZE = "mirage optimize MODEL -o DIR writes one"
_AGAIN = "optimize the model again with this version of mirage"


def read(folder: Path) -> dict[str, Any]:
    """The report of an output folder. Raises ModelError, naming the file, what was expected and what was found."""
    path = folder / MARK
    try:
        data = codec.read(path)
        _check_version(data)
        if "models" in data:
            raise ModelError(
                f"{folder}: it has the outputs of {len(data['models'])} models",
                f"name that of one: {_places(folder, data)}",
            )
        _check_names(codec.checked(data, Report))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(
            f"{folder}: expected an output folder of mirage optimize, found no {MARK} in it", _hint(folder)
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: expected a report of mirage, found what cannot be read: {error}", _AGAIN) from None
    report: dict[str, Any] = data
    return report


def _hint(folder: Path) -> str:
    """What to do with a folder that is no output: it may be one with models."""
    models = sorted([*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")])
    return f"mirage optimize {folder} -o DIR writes one; a model of this folder is {models[0]}" if models else _OPTIMIZE


def _places(folder: Path, data: Any) -> str:
    """The outputs of models below a folder."""
    return ", ".join(str(folder / str(place)) for place in data["models"])


def _check_version(data: Any) -> None:
    """Raise ValueError for another version's document: nothing else of it is looked at."""
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(data, dict) and version != SCHEMA_VERSION:
        said = "one without schema_version" if version is None else codec.shown(version)
        raise ValueError(f"Expected schema version {SCHEMA_VERSION}, found {said}")


def _check_names(report: Report) -> None:
    """Raise ValueError for files of fragments that are not theirs, and for two fragments of one identifier."""
    seen: set[str] = set()
    for k, f in enumerate(report.fragments):
        file, own = f.mugraph["file"], f"{MUGRAPHS}/{f.id}.json"
        if f.id in seen:
            raise ValueError(f"Expected an identifier of its own - at `$.fragments[{k}].id`, found {f.id} once more")
        if file not in (None, own):
            place = f"`$.fragments[{k}].mugraph.file`"
            raise ValueError(f"Expected `{own}` or `null` - at {place}, found {codec.shown(file)}")
        seen.add(f.id)
