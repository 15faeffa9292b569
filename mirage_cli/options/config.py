"""Configuration files: the options of a run as YAML, read with messages that name the file, the line, the column and the
key.

A file is a mapping of option names (with dashes or underscores) to values. Options that may be given several times take
a list; `shape`, `dim` and `require-coverage` also a mapping, as in `dim: {batch: 4, seq: 1:128:4096}`. Scalars are read
by the rules of YAML 1.2, so `1:16:32` is a text and no base-60 number.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from mirage_cli.errors import ConfigError
from mirage_cli.options import settings
from mirage_cli.options.options import Options

DEEPEST = 4  #: levels of lists and mappings that a file may have
LARGEST = 1 << 18  #: bytes of a file
_RESOLVERS = (
    ("null", re.compile(r"~|null|Null|NULL|"), "~nN\0"),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF"),
    ("int", re.compile(r"[-+]?[0-9]+"), "-+0123456789"),
    ("float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), "-+.0123456789"),
)


class _Loader(yaml.SafeLoader):
    """Reads scalars by YAML 1.2. A value stands where it is used: a few lines of anchors could mean billions of values."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - as the base class declares it

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node. Raises ComposerError for an alias."""
        if self.check_event(yaml.AliasEvent):
            mark = self.current_event.start_mark
            raise yaml.composer.ComposerError(None, None, "anchors and their aliases are not supported", mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Quotes what a reader of YAML 1.1 or of 1.2 would take for something other than text, and escapes the line ends of
    Unicode, which a reader would turn into spaces."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, '"' if set(text) & set("\x85\u2028\u2029") else None)


_Dumper.add_representer(str, _text)
for _tag, _form, _first in _RESOLVERS:
    _pattern = re.compile(rf"(?:{_form.pattern})\Z")
    _starts = ["" if c == "\0" else c for c in _first]
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, _starts)
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, _starts)


def read(path: str) -> dict[str, Any]:
    """The fields of `Options` that a file sets. Raises ConfigError."""
    root = _compose(path)
    if root is None or root.tag.endswith(":null"):
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{_place(path, root)}: expected options and their values, found {_kind(root)}")
    values: dict[str, Any] = {}
    seen: dict[str, str] = {}
    for key_node, value_node in root.value:
        key = str(_plain(key_node, path, 1))
        place = f"{_place(path, key_node)}: {key}"
        given = _plain(value_node, path, 1)
        try:
            entry = settings.normalised(key, given)
        except ValueError as e:
            raise ConfigError(f"{_place(path, value_node)}: {key}: {e}") from None
        if entry is None:
            message, hint = settings.unknown(key.replace("_", "-"), settings.keys())
            raise ConfigError(f"{_place(path, key_node)}: {message}", hint)
        field, value = entry
        name = key.replace("_", "-")
        if name in seen:
            raise ConfigError(f"{place}: the option is set in line {seen[name]} already")
        if settings.contradicts(values, field, value):
            raise ConfigError(f"{place}: contradicts {settings.BY_NAME[field].key}")
        seen[name] = str(key_node.start_mark.line + 1)
        values.setdefault(field, value)
    return values


def plain(path: str) -> Any:
    """A file as plain data. Raises ConfigError."""
    root = _compose(path)
    return None if root is None else _plain(root, path, 0)


def written(options: Options) -> str:
    """The options as a file that `read` reads back."""
    header = "# Options of `mirage optimize`; read this file back with --config FILE.\n"
    text: str = yaml.dump(
        to_json(options), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=2**20
    )
    return header + text


def to_json(options: Options) -> dict[str, Any]:
    """The options by their names in a file."""
    return {s.key: _data(s.name, getattr(options, s.name)) for s in settings.SETTINGS}


def _data(name: str, value: Any) -> Any:
    if name == "cache" and value == "":
        return False
    return list(value) if isinstance(value, tuple) else value


def _compose(path: str) -> yaml.Node | None:
    """The file's node tree, None for an empty file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as e:
        raise ConfigError(f"{path}: the configuration file cannot be read: {e.strerror}") from None
    if len(data) > LARGEST:
        raise ConfigError(f"{path}: expected at most {LARGEST} bytes, which no configuration file needs")
    try:
        node: yaml.Node | None = yaml.compose(data, Loader=_Loader)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        raise ConfigError(f"{place}: broken YAML: {e.problem or e.context}") from None
    except (yaml.YAMLError, UnicodeError) as e:
        raise ConfigError(f"{path}: broken YAML: {str(e).splitlines()[0]}") from None
    except RecursionError:
        raise ConfigError(f"{path}: lists and mappings are nested too deeply") from None
    return node


def _plain(node: yaml.Node, path: str, depth: int) -> Any:
    """A node as data."""
    if depth > DEEPEST:
        raise ConfigError(f"{_place(path, node)}: lists and mappings are nested too deeply")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, path, depth + 1) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return {str(_plain(k, path, depth + 1)): _plain(v, path, depth + 1) for k, v in node.value}
    return _scalar(node, path)


def _scalar(node: yaml.Node, path: str) -> Any:
    tag, text = node.tag.rpartition(":")[2], str(node.value)
    if tag == "null":
        return None
    if tag == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        if tag in ("int", "float"):
            return int(text) if tag == "int" else float(text)
    except ValueError:
        raise ConfigError(f"{_place(path, node)}: {text!r} is no {tag}") from None
    if tag != "str":
        raise ConfigError(f"{_place(path, node)}: the tag {node.tag} is not supported")
    return text


def _place(path: str, node: yaml.Node) -> str:
    return f"{path}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _kind(node: yaml.Node) -> str:
    return "a list" if isinstance(node, yaml.SequenceNode) else repr(str(node.value)[:40])
