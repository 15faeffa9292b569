"""report.json of an output folder read back, whoever wrote it: the one reader of all commands.

What it returns has the types, ranges and names that `schema.SCHEMA` states, and stays in the folder wherever it names
a file there, so that its readers need not ask again. Entries that this version does not know are left in it unread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_cli.errors import ModelError
from mirage_cli.files.output import MARK, MUGRAPHS
from mirage_cli.files.rawfile import LARGEST, content
from mirage_cli.report.report import SCHEMA_VERSION
from mirage_cli.report.schema import SCHEMA

MAX_DEPTH = 32  #: of lists and objects in each other
_LARGEST = 1 << 63  #: whole numbers stay below, so that arithmetic with them does not overflow
_SHOWN = 40  #: characters of a value that messages repeat
_OPTIMIZE = "mirage optimize MODEL -o DIR writes one"
_AGAIN = "optimize the model again with this version of mirage"
#: JSON Schema's names of types: what they are in words
_KINDS = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "null": "null",
}


@dataclass(frozen=True, slots=True)
class Wrong:
    """The first place of a document that breaks its schema, what belongs there and what was found."""

    place: str
    expected: str
    found: str

    def __str__(self) -> str:
        where = f" at {self.place}" if self.place else ""
        return f"expected {self.expected}{where}, found {self.found}"


def read(folder: Path) -> dict[str, Any]:
    """The report of an output folder. Raises ModelError, naming the file, what was expected and what was found."""
    path = folder / MARK
    try:
        data = json.loads(plain_text(path), parse_constant=_refuse)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(
            f"{folder}: expected an output folder of mirage optimize, found no {MARK} in it", _OPTIMIZE
        ) from None
    except RecursionError:
        raise ModelError(f"{path}: expected a report of mirage, found lists in lists without an end", _AGAIN) from None
    except (OSError, ValueError) as error:
        found = f"found a file that cannot be read: {error}"
        raise ModelError(f"{path}: expected a report of mirage, {found}", _AGAIN) from None
    wrong = _wrong_version(data) or next(violations(data, SCHEMA), None) or next(_beyond(data), None)
    if wrong is not None:
        raise ModelError(f"{path}: {wrong}", _AGAIN)
    report: dict[str, Any] = data
    return report


def plain_text(path: Path, most: int = LARGEST) -> str:
    """The content of a regular file of at most `most` bytes. Raises OSError and ValueError."""
    return content(path, most).decode()


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _wrong_version(data: Any) -> Wrong | None:
    """What to say of another document, or of another version's: nothing else of it is looked at."""
    if not isinstance(data, dict):
        return Wrong("", "a report of mirage", _kind(data))
    if "schema_version" not in data:
        return Wrong("", f"a report of schema version {SCHEMA_VERSION}", "one without schema_version")
    if data["schema_version"] != SCHEMA_VERSION:
        return Wrong("", f"a report of schema version {SCHEMA_VERSION}", _value(data["schema_version"]))
    return None


# --- the schema -------------------------------------------------------------------------------------------------------
def violations(data: Any, schema: Mapping[str, Any], place: str = "") -> Iterator[Wrong]:
    """What of a JSON document breaks a schema, of the part of JSON Schema that ours are written in; entries of objects that
    are not described are admitted."""
    kinds = schema.get("type", list(_KINDS))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not any(_is(data, k) for k in kinds):
        yield Wrong(place, " or ".join(_KINDS[k] for k in kinds), _kind(data))
        return
    yield from (Wrong(place, expected, _value(data)) for expected in _limits(data, schema))
    if isinstance(data, dict):
        for name in schema.get("required", ()):
            if name not in data:
                yield Wrong(f"{place}.{name}" if place else name, "an entry", "none")
        own, others = schema.get("properties", {}), schema.get("additionalProperties")
        names = schema.get("propertyNames", {})
        for name, value in data.items():
            inner = own.get(name, others)
            yield from violations(name, names, place)
            if isinstance(inner, Mapping):
                yield from violations(value, inner, f"{place}.{_short(name)}" if place else _short(name))
    elif isinstance(data, list) and "items" in schema:
        for k, value in enumerate(data):
            yield from violations(value, schema["items"], f"{place}[{k}]")


def _is(data: Any, kind: str) -> bool:
    """Whether a value is of one of JSON Schema's types; a number is finite."""
    match kind:
        case "object":
            return isinstance(data, dict)
        case "array":
            return isinstance(data, list)
        case "string":
            return isinstance(data, str)
        case "boolean":
            return isinstance(data, bool)
        case "null":
            return data is None
        case "integer":
            return isinstance(data, int) and not isinstance(data, bool) and -_LARGEST < data < _LARGEST
    return _is(data, "integer") or (isinstance(data, float) and abs(data) != float("inf"))


def _limits(data: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    """What is expected of a value beyond its type, where it is not so."""
    if "const" in schema and data != schema["const"]:
        yield repr(schema["const"])
    if "enum" in schema and data not in schema["enum"]:
        yield " or ".join(map(repr, schema["enum"]))
    if isinstance(data, int | float):
        if data < schema.get("minimum", data):
            yield f"at least {schema['minimum']}"
        if data > schema.get("maximum", data):
            yield f"at most {schema['maximum']}"
    if isinstance(data, str) and "pattern" in schema and not re.fullmatch(schema["pattern"], data):
        yield str(schema.get("description", schema["pattern"])).removesuffix(".")
    if isinstance(data, list) and not schema.get("minItems", 0) <= len(data) <= schema.get("maxItems", len(data)):
        yield f"a list of {schema['minItems']}"


# --- what a schema cannot say -----------------------------------------------------------------------------------------
def _beyond(data: dict[str, Any]) -> Iterator[Wrong]:
    """Files of fragments that are not theirs, two fragments of one identifier, and nesting that nobody needs."""
    seen: set[str] = set()
    for k, f in enumerate(data["fragments"]):
        file, own = f["mugraph"]["file"], f"{MUGRAPHS}/{f['id']}.json"
        if file not in (None, own):
            yield Wrong(f"fragments[{k}].mugraph.file", f"{own!r} or null", _value(file))
        if f["id"] in seen:
            yield Wrong(f"fragments[{k}].id", "an identifier of its own", f"{_value(f['id'])} once more")
        seen.add(f["id"])
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        level = [v for x in level if isinstance(x, dict | list) for v in (x.values() if isinstance(x, dict) else x)]
    if level:
        yield Wrong("", f"lists and objects at most {MAX_DEPTH} deep", "deeper ones")


def _kind(data: Any) -> str:
    """A value's type in words, or the value where it is a number out of range."""
    fits = next((words for kind, words in _KINDS.items() if kind != "number" and _is(data, kind)), None)
    if fits is not None:
        return fits
    return "a number out of range" if isinstance(data, int) or abs(data) == float("inf") else "a number"


def _value(data: Any) -> str:
    return _short(json.dumps(data)) if isinstance(data, str | int | float | None) else _kind(data)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
