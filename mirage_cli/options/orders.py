"""Orders: models to be optimized, each into a folder of its own, as the command line or a list in YAML names them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_cli.errors import ConfigError, UsageError
from mirage_cli.options import config, settings
from mirage_cli.options.options import Options


@dataclass(frozen=True, slots=True)
class Order:
    """A model to be optimized into a folder, with options."""

    model: str
    out: Path
    options: Options


def of(models: Sequence[str], out: Path, options: Options) -> list[Order]:
    """Models into folders below `out`: named like them, below folders named like theirs where they lie in several. Raises
    UsageError where two of them would share a folder."""
    parents = [os.path.dirname(os.path.abspath(m)) for m in models]
    common = os.path.commonpath(parents)
    names = [
        os.path.join(os.path.relpath(p, common), os.path.splitext(os.path.basename(m))[0])
        for p, m in zip(parents, models, strict=True)
    ]
    return _apart([Order(m, out / os.path.normpath(n), options) for m, n in zip(models, names, strict=True)])


def read(path: Path, given: Mapping[str, Any]) -> list[Order]:
    """The orders of a list: `output`, `options`, and `models`, which are paths or mappings with `model`, `output` and
    options. Paths are relative to the list; `given` options stand above all. Raises ConfigError, UsageError."""
    data = config.plain(str(path))
    if not isinstance(data, dict) or not isinstance(data.get("models"), list) or not data["models"]:
        raise ConfigError(f"{path}: expected `models`, a list with at least one")
    if unknown := data.keys() - {"output", "options", "models"}:
        raise ConfigError(f"{path}: unknown entry {min(unknown)!r}", "entries are output, options, models")
    usual = _fields(data.get("options") or {}, f"{path}: options")
    orders: list[Order] = []
    plain: list[str] = []
    output = data.get("output")
    for k, entry in enumerate(data["models"]):
        where = f"{path}: models[{k}]"
        own = {"model": entry} if isinstance(entry, str) else dict(entry) if isinstance(entry, dict) else {}
        model, out = own.pop("model", None), own.pop("output", None)
        if not isinstance(model, str) or not isinstance(out, str | None):
            raise ConfigError(f"{where}: expected the path of a model, or a mapping with `model`")
        options = settings.options({**usual, **_fields(own, where), **given})
        if out is None and not isinstance(output, str):
            raise ConfigError(f"{where}: there is no `output` to write to, here or in the list")
        orders.append(Order(os.path.join(path.parent, model), path.parent / (out or ""), options))
        plain += [] if out else [orders[-1].model]
    placed = iter(of(plain, path.parent / str(output), Options())) if plain else iter(())
    whole = [Order(o.model, next(placed).out, o.options) if o.out == path.parent else o for o in orders]
    return _apart(whole)


def _fields(entries: Any, where: str) -> dict[str, Any]:
    """The fields of `Options` that a mapping sets."""
    if not isinstance(entries, dict):
        raise ConfigError(f"{where}: expected options and their values")
    values: dict[str, Any] = {}
    for key, given in entries.items():
        try:
            entry = settings.normalised(str(key), given)
        except ValueError as e:
            raise ConfigError(f"{where}: {key}: {e}") from None
        if entry is None:
            message, hint = settings.unknown(str(key), settings.keys())
            raise ConfigError(f"{where}: {message}", hint)
        values.setdefault(*entry)
    return values


def _apart(orders: list[Order]) -> list[Order]:
    folders = [os.path.abspath(o.out) for o in orders]
    for k, own in enumerate(folders):
        for n, other in enumerate(folders):
            if n != k and (own == other or own.startswith(other + os.sep)):
                raise UsageError(f"{orders[k].model}: its folder {own} is that of {orders[n].model}, or in it")
    return orders
