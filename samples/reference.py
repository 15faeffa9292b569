"""Write docs/reference from the code: commands from their click declarations, report.json from its schema, the Python
interface from signatures and docstrings. `make reference` writes the pages; a test fails when they are stale."""

from __future__ import annotations

import dataclasses
import functools
import html
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mirage_cli as mi
from mirage_cli import errors
from mirage_cli.commands import schemas
from mirage_cli.commands.common import Command
from mirage_cli.main import COMMANDS, cli
from mirage_cli.report import report as reports

FOLDER = Path(__file__).resolve().parents[1] / "docs/reference"
_SECTION = "\n\nParameters\n"  #: where the parts of a docstring begin that need more than a line
_NOTE = "<!-- Written by samples/reference.py (make reference) from the code; do not edit. -->\n\n"
#: dataclasses that calls take and give, in the order of the page
_DATA = {
    "mirage_cli.options.options": ("Options",),
    "mirage_cli.verification.story": ("VerifyOptions",),
    "mirage_cli.benchmark.benchmark": ("BenchOptions",),
    "mirage_cli.report.report": ("Report", "FragmentReport"),
    "mirage_cli.verification.findings": ("Verification",),
    "mirage_cli.benchmark.report": ("BenchReport",),
    "mirage_cli.inspection.summary": ("Inspection",),
}


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


def pages() -> dict[str, str]:
    """The pages by file name."""
    return {
        "commands.md": commands(),
        "report.md": report(),
        "report.schema.json": json.dumps(reports.schema(), indent=2, ensure_ascii=False) + "\n",
        "json.md": documents(),
        "python.md": python(),
    }


# --- commands -----------------------------------------------------------------------------------------------------------
def commands() -> str:
    """The page of all commands."""
    context = click.Context(cli, info_name="mirage")
    named = [(f"mirage {name}", cli.get_command(context, name)) for name in COMMANDS]
    parts = [_NOTE + "# Commands\n\n" + _plain(cli.help or "") + "\n\n" + "\n".join(_contents(named))]
    for name, command in named:
        assert command is not None
        parts += _command(name, command, context)
    return "\n\n".join(parts) + "\n"


def _contents(named: Sequence[tuple[str, click.Command | None]]) -> Iterator[str]:
    yield from ("| command | what it does |", "|---|---|")
    for name, command in named:
        assert command is not None
        yield f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(command.get_short_help_str(200))} |"


def _command(name: str, command: click.Command, parent: click.Context, level: int = 2) -> Iterator[str]:
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield f"{'#' * level} {name}"
    yield f"    {usage}"
    yield _plain(command.help or command.get_short_help_str(200))
    rows = [r for p in command.params if (r := _option(p, context)) is not None]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows])
    if isinstance(command, Command) and command.examples:
        yield "Examples:"
        yield "\n".join(f"    {line}" for line in command.examples)
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            inner = command.get_command(context, sub)
            assert inner is not None
            yield from _command(f"{name} {sub}", inner, context, level + 1)


def _option(parameter: click.Parameter, context: click.Context) -> str | None:
    record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
    return None if record is None else f"| {_code(record[0])} | {_cell(record[1])} |"


def _plain(text: str) -> str:
    """A help text without click's marks, on lines as they come."""
    return inspect.cleandoc(text).replace("\b\n", "").replace("\f", "")


def _code(text: str) -> str:
    """Code in a table: backticks cannot hide a bar from all readers of Markdown."""
    line = " ".join(text.split())
    return f"<code>{html.escape(line, quote=False).replace('|', '&#124;')}</code>" if "|" in line else f"`{line}`"


def _cell(text: str) -> str:
    """A text that may stand in a table: one line, no bars that end a cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


# --- report.json --------------------------------------------------------------------------------------------------------
def report() -> str:
    """The page of report.json."""
    schema = _resolved(reports.schema())
    head = (
        f"{_NOTE}# report.json\n\n{schema['description']} As [JSON Schema](report.schema.json). Entries that are *optional* "
        "are there only where they say something; `null` stands for what is not known, and for numbers that JSON lacks."
    )
    return "\n\n".join([head, *_objects("report.json", schema)]) + "\n"


def documents() -> str:
    """The page of the other JSON documents."""
    head = (
        f"{_NOTE}# JSON\n\nWhat commands print with `--json`. `mirage optimize` prints [report.json](report.md), `mirage show "
        "DIR ID` a fragment of it with the lines of its muGraphs, `mirage cache` paths and counts."
    )
    parts = [head]
    for command, schema in schemas.SCHEMAS.items():
        parts += _objects(command, _resolved(schema))
    return "\n\n".join(parts) + "\n"


def _resolved(schema: Any, known: Mapping[str, Any] | None = None) -> Any:
    """A JSON Schema with what it refers to in its place."""
    if isinstance(schema, list):
        return [_resolved(s, known) for s in schema]
    if not isinstance(schema, dict):
        return schema
    parts = known or schema["$defs"]
    whole = parts.get(schema.get("$ref", "").rpartition("/")[2], {}) | schema
    return {k: _resolved(v, parts) for k, v in whole.items() if k not in ("$ref", "$defs")}


def _objects(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """A table for an object, then those of the objects in it, each under its own heading."""
    needed = set(schema.get("required", ()))
    rows, inner = ["| entry | type | what it says |", "|---|---|---|"], []
    for key, entry in schema["properties"].items():
        nested, kind = _nested(entry)
        optional = "" if key in needed or not needed else ", optional"
        said = entry.get("description") or entry.get("items", {}).get("description", "")
        rows.append(f"| `{key}` | {kind}{optional} | {_cell(said)} |")
        if nested is not None:
            inner.append(
                (
                    f"{'' if name == 'report.json' else name + (': ' if ' ' in name and ':' not in name else '.')}{key}",
                    nested,
                )
            )
    yield f"## {name}"
    if name != "report.json":  # the page has said it
        yield str(schema["description"])
    yield "\n".join(rows)
    for path, nested in inner:
        yield from _objects(path, nested)


def _nested(entry: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
    """The object with listed entries that an entry is or holds, and the entry's type in words."""
    if "enum" in entry:
        return None, " or ".join(f"`{value}`" for value in entry["enum"])
    if "anyOf" in entry:
        return None, " or ".join(_nested(part)[1] for part in entry["anyOf"])
    if entry.get("type") == "array":
        nested, kind = _nested(entry.get("items", {}))
        return nested, f"list of {kind}"
    if "properties" in entry:
        return (entry if entry["properties"] else None), "object"
    inner = entry.get("additionalProperties")
    if isinstance(inner, Mapping):
        nested, kind = _nested(inner)
        return nested, f"map to {kind}"
    kinds = entry.get("type", "any")
    return None, kinds if isinstance(kinds, str) else " or ".join(kinds)


# --- Python -------------------------------------------------------------------------------------------------------------
def python() -> str:
    """The page of the Python interface."""
    names = [n for n in mi.__all__ if not _is_error(getattr(mi, n))]
    functions = [n for n in names if inspect.isfunction(getattr(mi, n))]
    parts = [_NOTE + "# Python\n\n    import mirage_cli as mi", "## Functions"]
    for name in sorted(functions):
        parts += _function(f"mi.{name}", getattr(mi, name))
    classes = sorted(n for n in names if inspect.isclass(getattr(mi, n)) and n not in _data_names())
    parts += ["## Classes"] + [text for n in classes for text in _class(f"mi.{n}", getattr(mi, n))]
    parts += ["## Options and results"]
    for module, kinds in _DATA.items():
        for kind in kinds:
            parts += _class(kind, getattr(importlib.import_module(module), kind))
    others = [n for n in names if n not in functions and n not in classes and n not in _data_names()]
    parts += ["## Constants", "\n".join(f"- `mi.{n}` = `{getattr(mi, n)!r}`" for n in sorted(others))] if others else []
    parts += [
        "## Errors",
        "All are `mi.MirageError`s; [the guide](../guide.md#when-something-goes-wrong) says what to do.",
    ]
    parts.append("\n".join(_error_rows()))
    return "\n\n".join(parts) + "\n"


def _data_names() -> set[str]:
    return {n for names in _DATA.values() for n in names}


def _is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, errors.MirageError)


def _function(name: str, function: Any, level: int = 3) -> Iterator[str]:
    yield f"{'#' * level} {name}"
    yield f"```python\n{name.rpartition('.')[2]}{_signature(function)}\n```"
    if text := inspect.getdoc(function):
        yield _markdown(text)


def _markdown(text: str) -> str:
    """A docstring whose sections (Parameters ...) are paragraphs with a bold name, and whose examples are code."""
    text = re.sub(r"^(\w+)\n-{3,}$", r"**\1**\n", text, flags=re.MULTILINE)
    text = re.sub(r"^(\w+)\n    (.+(?:\n    .+)*)", _item, text, flags=re.MULTILINE)
    blocks = re.sub(
        r"((?:^(?:>>>|\.\.\.).*\n?(?:(?!>>>|\.\.\.).+\n?)*)+)", r"```python\n\1```\n", text + "\n", flags=re.MULTILINE
    )
    return blocks.strip()


def _item(match: re.Match[str]) -> str:
    """A parameter with what is said of it, or a result's type."""
    return f"\n- `{match[1]}`: {' '.join(match[2].split())}"


class _Written(str):
    """An annotation as it stands in the source."""

    __repr__ = str.__str__


def _signature(function: Any, width: int = 100) -> str:
    signature = inspect.signature(function)
    kept = [p.replace(annotation=_Written(p.annotation)) for n, p in signature.parameters.items() if n != "self"]
    text = str(signature.replace(parameters=kept, return_annotation=_Written(signature.return_annotation)))
    if len(text) <= width or not kept:
        return text
    return "(\n" + "".join(f"    {p},\n" for p in kept) + f") -> {signature.return_annotation}"


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"### {name}"
    if text := inspect.getdoc(kind):
        yield _markdown(text)
    if dataclasses.is_dataclass(kind):
        types = [re.sub(r"^A\[(.*?), says\(.*$", r"\1", str(f.type)) for f in dataclasses.fields(kind)]
        rows = [
            f"| `{f.name}` | {_code(t)} | {_default(f)} |" for f, t in zip(dataclasses.fields(kind), types, strict=True)
        ]
        yield "\n".join(["| field | type | default |", "|---|---|---|", *rows])
    else:
        yield f"```python\n{kind.__name__}{_signature(kind).removesuffix(' -> None')}\n```"
    own = [c for c in kind.__mro__[::-1] if c.__module__.startswith("mirage_cli")]
    members = [(n, m) for c in own for n, m in vars(c).items() if not n.startswith("_") or n == "__call__"]
    rows, longer = [], []
    for n, m in members:
        value = isinstance(m, property | functools.cached_property)
        what = m
        if value:
            what = m.fget if isinstance(m, property) else m.func
        elif isinstance(m, staticmethod | classmethod):
            what = m.__func__
        if inspect.isfunction(what) and (text := inspect.getdoc(what)):
            call = f".{n}" if value else f".{n}{_signature(what, 1000)}"
            rows.append(f"- {_code(call.replace('.__call__', ''))}: {' '.join(text.partition(_SECTION)[0].split())}")
            longer += [f"`.{n}`, in full: {_markdown(text)}"] if _SECTION in text else []
    if rows:
        yield "\n".join(rows)
    yield from longer


def _default(f: dataclasses.Field[Any]) -> str:
    if f.default is not dataclasses.MISSING:
        return f"`{f.default!r}`"
    if f.default_factory is dataclasses.MISSING:
        return ""
    return "number of cores" if f.name == "jobs" else f"`{f.default_factory()!r}`"


def _error_rows() -> Iterator[str]:
    yield from ("| class | derived from | code | exit code | when |", "|---|---|---|---|---|")
    for name in sorted(n for n in mi.__all__ if _is_error(getattr(mi, n))):
        kind = getattr(mi, name)
        base = kind.__mro__[1].__name__
        yield f"| `mi.{name}` | `{base}` | `{kind.code}` | {kind.exit_code} | {_cell(inspect.getdoc(kind) or '')} |"


if __name__ == "__main__":
    main()
