"""JSON documents and their forms: types of Python with constraints, which msgspec checks and makes JSON Schema of. A form lets
pass entries that it does not know, as later versions may write."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mirage_cli.files.rawfile import LARGEST, content

MAX_DEPTH = 32  #: of lists and objects in each other
_LARGEST = 1 << 63  #: whole numbers stay below, so that arithmetic with them does not overflow
_SHOWN = 40  #: characters of a value that messages repeat
T = TypeVar("T")


def says(text: str, **limits: Any) -> msgspec.Meta:
    """A description of an entry of a form, for people, and what it keeps to (`ge`, `le`, `pattern` ...)."""
    return msgspec.Meta(description=text, **limits)


def decoded(text: str | bytes) -> Any:
    """A JSON text as plain data. Raises ValueError for what is none, and for numbers and nesting that no document has."""
    try:
        data = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("lists in lists without an end") from None
    if (path := _beyond(data)) is not None:
        expected = f"finite numbers, whole ones of 64 bits, in lists and objects at most {MAX_DEPTH} deep"
        raise ValueError(f"Expected {expected} - at `${path[:1000]}`")
    return data


def read(path: Path, most: int = LARGEST) -> Any:
    """The data of a regular file of at most `most` bytes. Raises OSError and ValueError."""
    return decoded(content(path, most).decode())


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _beyond(data: Any, depth: int = MAX_DEPTH) -> str | None:
    """The path to the first value that is nested too deeply, or a number out of range."""
    if not depth or (isinstance(data, int) and abs(data) >= _LARGEST):
        return ""
    if isinstance(data, float):
        return None if math.isfinite(data) else ""
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            if (inner := _beyond(value, depth - 1)) is not None:
                return f".{key}{inner}" if isinstance(data, dict) else f"[{key}]{inner}"
    return None


def checked(data: Any, form: type[T]) -> T:
    """Plain data as what a form says. Raises ValueError with the path to what is not so, what was expected and found."""
    try:
        return msgspec.convert(data, form)
    except msgspec.ValidationError as error:
        raise ValueError(f"{error}{_found(data, str(error))}") from None


def _found(data: Any, message: str) -> str:
    """The value that stands where a message points to, unless the message says it, or points into a map."""
    _, at, path = message.rstrip("`").rpartition(" - at `$")
    if not at or "got" in message or "missing" in message or "[...]" in path:
        return ""
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        data = data[name or int(index)]
    return f", found {shown(data)}"


def shown(data: Any) -> str:
    """A value as messages repeat it."""
    text = json.dumps(data)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def schema(form: Any, kinds: Mapping[str, Any], title: str, open: Collection[str] = ()) -> dict[str, Any]:
    """The JSON Schema of a form's documents for those who write them: objects have no entries but those that are listed, in
    the order of `kinds` (the forms of objects by name), needed ones first; those that are `open` may have others."""
    document = msgspec.json.schema(form)
    for name, part in document["$defs"].items():
        del part["title"]  # its name
        order = sorted(kinds[name].__annotations__, key=lambda k: k not in part.get("required", ()))
        part |= {"properties": {k: part["properties"][k] for k in order}, "additionalProperties": name in open}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **_short(document)}


def _short(part: Any) -> Any:
    """A part of a schema with a choice of bare types as a list of types."""
    if isinstance(part, list):
        return [_short(p) for p in part]
    if not isinstance(part, dict):
        return part
    kinds = part.get("anyOf", ())
    if kinds and all(k.keys() == {"type"} for k in kinds):
        part = {k: v for k, v in part.items() if k != "anyOf"} | {"type": [k["type"] for k in kinds]}
    return {k: _short(v) for k, v in part.items()}
