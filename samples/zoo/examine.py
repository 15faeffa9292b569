"""One cell: the export, and what mirage finds in it, as a record for the page."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from mirage_cli.errors import MirageError
from mirage_cli.inspection.summary import inspect
from mirage_cli.options.options import Options
from samples.building import cast, written
from samples.zoo.cells import ARCHITECTURES, Cell

Record = dict[str, Any]
REASON = 160  #: characters of an exporter's reason


def export(cell: Cell, folder: Path, fresh: bool = False) -> Path:
    """Write the cell's model unless it is there. Raises whatever the exporter raises."""
    path = folder / f"{cell.name}.onnx"
    if path.is_file() and not fresh:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(exported_model(cell))
    return path


def store(cell: Cell, folder: Path) -> Path:
    """Write a cell of `STORED` where tests find it."""
    path = folder / cell.file
    path.write_bytes(exported_model(cell))
    return path


def exported_model(cell: Cell) -> bytes:
    """The exported model. Raises whatever the exporter raises."""
    case = cast(ARCHITECTURES[cell.architecture].build(cell.form), cell.dtype)
    return written(case, cell.exporter, cell.opset, cell.name.replace("/", "_"))


def examine(cell: Cell, folder: Path, fresh: bool = False) -> Record:
    """The record of what was found, or why the cell has no model (`problem`): never an exception of the exporter or
    of mirage."""
    record: Record = {"name": cell.name, "seconds": {}}
    start = time.perf_counter()
    try:
        path = export(cell, folder, fresh)
    except Exception as error:  # exporters raise anything
        return record | {"problem": f"not exported: {reason(error)}"}
    record["seconds"]["export"] = round(time.perf_counter() - start, 1)
    start = time.perf_counter()
    try:
        seen = inspect(str(path), Options()).document
    except MirageError as error:
        return record | {"problem": f"not read: {error}"}
    record["seconds"]["inspect"] = round(time.perf_counter() - start, 1)
    return record | summary(seen)


def summary(seen: Record) -> Record:
    """The record of an inspected model: places by kind of fragment, keys, shares, what is left and why."""
    kinds: Counter[str] = Counter()
    for f in seen["fragments"]:
        kinds[f["name"]] += f["occurrences"]
    left = Counter({u["reason"]: len(u["nodes"]) for u in seen["unchanged"]})
    return {
        "opset": seen["model"]["opset"],
        "nodes": seen["model"]["nodes"],
        "kinds": dict(sorted(kinds.items())),
        "fragments": {f["id"]: f["name"] for f in seen["fragments"]},
        "coverage": {k: round(v, 4) for k, v in seen["coverage"].items()},
        "left": dict(left.most_common()),
    }


def reason(error: BaseException) -> str:
    """The innermost cause in one short line, without paths."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    text = re.sub(r"(/[\w.-]+)+/", "", re.sub(r"\x1b\[\d*m", "", text))
    return text if len(text) <= REASON else text[: REASON - 3] + "..."


def save(record: Record, folder: Path) -> None:
    """Keep a record beside its model."""
    path = folder / f"{record['name']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def load(cell: Cell, folder: Path) -> Record | None:
    """The record of an earlier run."""
    path = folder / f"{cell.name}.json"
    return json.loads(path.read_text()) if path.is_file() else None
