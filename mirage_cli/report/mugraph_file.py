"""mugraphs/ID.json read back, whoever wrote it: the one reader of all commands.

What it returns has the types that `SCHEMA` states. Whether it says something is for those who take it apart:
`plan.plan_from_json`, `program_from_json` and `operator_spec`, which raise InvalidGraph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from mirage_cli.errors import ModelError
from mirage_cli.report.reader import plain_text, violations
from mirage_cli.report.schema import IDENTIFIER

MAX_BYTES = 1 << 24  #: of a file; those of large fragments have a hundredth of it
Schema: TypeAlias = dict[str, Any]


def _object(needed: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    return {"type": "object", "properties": {**needed, **(optional or {})}, "required": list(needed)}


def _list(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_INTEGER: Schema = {"type": "integer"}
_EXTENT: Schema = {"type": ["integer", "string"]}
_TEXTS, _COUNTS, _EXTENTS = _list(_TEXT), _list(_COUNT), _list(_EXTENT)
_OPTIONAL_TEXT: Schema = {"type": ["string", "null"]}
_SLOT = _list({"type": ["string", "integer", "null"]}, minItems=3, maxItems=3)  # axis, extent, offset
_SOURCE = _object({"name": _TEXT, "dims": _EXTENTS, "dtype": _TEXT, "constant": {"type": "boolean"}})
_NODE = _object(
    {"name": _TEXT, "op": _TEXT}, {"inputs": _TEXTS, "over": _TEXTS, "value": _TEXT, "axis": _TEXT, "dtype": _TEXT}
)
_PROGRAM = _object(
    {
        "axes": _map(_EXTENT),
        "sources": _list(_SOURCE),
        "inputs": _list(_object({"name": _TEXT, "source": _COUNT, "access": _list(_SLOT)})),
        "nodes": _list(_NODE),
        "outputs": _list(
            _object({"value": _TEXT, "access": _list(_SLOT), "dims": _EXTENTS, "dtype": _TEXT, "name": _TEXT})
        ),
    }
)
_THREAD = _list(_object({"op": _TEXT, "inputs": _COUNTS}, {"value": _TEXT}))
_BLOCK = _object(
    {
        "grid": _TEXTS,
        "split": _TEXTS,
        "loop": _OPTIONAL_TEXT,
        "ops": _list(
            _object(
                {"name": _TEXT, "op": _TEXT, "phase": _TEXT},
                {"inputs": _TEXTS, "over": _TEXTS, "thread": _THREAD, "value": _TEXT, "axis": _TEXT, "dtype": _TEXT},
            )
        ),
        "outputs": _TEXTS,
    }
)
_KERNEL = _object({"program": _PROGRAM, "block": _BLOCK, "inputs": _COUNTS, "outputs": _COUNTS})
_GRAPH = _object({"sources": _COUNT, "outputs": _COUNT, "tensors": _COUNT, "kernels": _list(_KERNEL)})
_SCHEDULE = _object(
    {"tiles": _map(_INTEGER), "loop": _INTEGER, "warps": _INTEGER, "stages": _INTEGER},
    {"engine": _TEXT, "numbers": _map(_INTEGER)},
)
_BOUND = _list({"type": ["integer", "null"]}, minItems=2, maxItems=2)
_OTHER = _object({"when": _map(_BOUND), "graph": _GRAPH, "schedules": _list(_SCHEDULE)}, {"target": _TEXT})
_TENSOR = _object({"name": _TEXT, "dtype": _TEXT, "dims": _EXTENTS})
SCHEMA = _object(
    {
        "id": {"type": "string", "pattern": IDENTIFIER, "description": "A hash of what is computed."},
        "name": _TEXT,
        "program": _PROGRAM,
        "without": _TEXTS,
        "targets": _map(
            _object(
                {"target": _TEXT, "shared_bytes": _COUNT, "graph": _GRAPH, "schedules": _list(_SCHEDULE)},
                {"others": _list(_OTHER)},
            )
        ),
        "operator": _object({"op_type": _TEXT, "inputs": _list(_TENSOR), "outputs": _list(_TENSOR), "symbols": _TEXTS}),
    }
)


def read(path: Path) -> dict[str, Any]:
    """A muGraph file. Raises ModelError, naming the file, what was expected and what was found."""
    try:
        data = json.loads(plain_text(path, MAX_BYTES))
    except FileNotFoundError:
        raise ModelError(f"{path}: the file is missing") from None
    except RecursionError:
        raise ModelError(f"{path}: it cannot be read: lists in lists without an end") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: it cannot be read: {error}") from None
    wrong = next(violations(data, SCHEMA), None)
    if wrong is not None:
        raise ModelError(f"{path}: {wrong}")
    checked: dict[str, Any] = data
    return checked
