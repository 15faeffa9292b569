"""Folders of models: of onnxruntime-genai, whose genai_config.json names its models, and of transformers.js, which has them in
`onnx/`. Reads names and the configuration, no model."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mirage_cli.errors import ModelError
from mirage_cli.files import codec
from mirage_cli.files.output import LIBRARY, MARK, MODEL

CONFIG = "genai_config.json"  #: what tells a folder of onnxruntime-genai
HERE = "."  #: the place of a model that is the only one
_SUFFIX, _SESSION, _PROVIDERS, _LIBRARY = ".onnx", "session_options", "provider_options", "custom_ops_library"


@dataclass(frozen=True, slots=True)
class Member:
    """A model of a folder: its file, and where its own output goes below that of the folder, both with slashes."""

    file: str
    place: str


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder with models. `config` is its genai_config.json (None: a folder of transformers.js), `notes` tell which models
    stay as they are, and why."""

    path: Path
    members: tuple[Member, ...]
    config: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()

    def others(self, taken: Collection[str]) -> Iterator[str]:
        """The files below the folder in order, but for the configuration, those `taken`, and hidden folders."""
        for folder, inner, names in os.walk(self.path):
            inner[:] = sorted(n for n in inner if not n.startswith("."))
            for name in sorted(names):
                file = (Path(folder) / name).relative_to(self.path).as_posix()
                if file not in taken and not (self.config is not None and file == CONFIG):
                    yield file

    def providers(self, file: str) -> set[str]:
        """The providers that the configuration names for a member's session, in small letters: CPUs' alone where it names
        none; nothing is known of a folder without one."""
        if self.config is None:
            return set()
        usual = self.config["model"].get("decoder", {}).get(_SESSION, {})
        parts = [p for p in _parts(self.config["model"]) if _normal(p["filename"]) == file]
        named = {name.lower() for p in parts for given in p.get(_SESSION, usual).get(_PROVIDERS, []) for name in given}
        return named or {"cpu"}

    def configured(self, patched: Mapping[str, bool]) -> dict[str, Any]:
        """The configuration with every model at its new place; `patched` says of each member's file whether it has a library.

        A session takes its library from options of its own; what has none goes by the decoder's, a copy of which it gets.
        """
        assert self.config is not None
        config: dict[str, Any] = copy.deepcopy(dict(self.config))
        usual = self.config["model"].get("decoder", {}).get(_SESSION, {})
        places = {m.file: PurePosixPath(m.place) for m in self.members}
        for part in _parts(config["model"]):
            file = _normal(part["filename"])
            if file not in places:
                continue
            part["filename"] = (places[file] / MODEL).as_posix()
            if patched[file]:
                options = copy.deepcopy(part.get(_SESSION, usual))
                part[_SESSION] = options | {_LIBRARY: (places[file] / LIBRARY).as_posix()}
        return config


def is_output(folder: Path) -> bool:
    """Whether a folder of models is one that mirage wrote."""
    return (folder / MARK).is_file()


def has_models(folder: Path) -> bool:
    """Whether a folder is one of either kind, and no output."""
    return not is_output(folder) and ((folder / CONFIG).is_file() or any(folder.glob(f"onnx/*{_SUFFIX}")))


def read(path: Path) -> ModelFolder:
    """The models of a folder. Raises ModelError where it is neither kind, or its configuration cannot be read."""
    if is_output(path):
        raise ModelError(f"{path}: this is an output folder of mirage already", "give the folder that it was made from")
    if (path / CONFIG).is_file():
        return _genai(path, read_config(path))
    names = sorted(p.relative_to(path).as_posix() for p in path.glob(f"onnx/*{_SUFFIX}"))
    if not names:
        expected = f"{CONFIG} (onnxruntime-genai) or onnx/*{_SUFFIX} (transformers.js)"
        raise ModelError(f"{path}: expected a folder with {expected}, found neither", "name the model in it")
    return ModelFolder(path, tuple(Member(n, n.removesuffix(_SUFFIX)) for n in names), None)


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's genai_config.json, with an object `model` in it. Raises ModelError."""
    path = folder / CONFIG
    try:
        config = codec.read(path)
    except FileNotFoundError:
        raise ModelError(f"{folder}: expected a folder of onnxruntime-genai, found no {CONFIG} in it") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise ModelError(f"{path}: expected an object `model` in it, found none")
    return config


def sessions(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(file of a model, the library of its session or nothing) for each model that a configuration names."""
    usual = config["model"].get("decoder", {}).get(_SESSION, {})
    for part in _parts(config["model"]):
        yield _normal(part["filename"]), part.get(_SESSION, usual).get(_LIBRARY, "")


def _genai(path: Path, config: dict[str, Any]) -> ModelFolder:
    """Each model once, though several parts may name it; those that bring operators of their own stay: a session takes one
    library."""
    named = dict.fromkeys(f for f, _ in sessions(config) if f.endswith(_SUFFIX))
    foreign = {f: library for f, library in sessions(config) if library}
    for file in named:
        if file.startswith("../") or os.path.isabs(file) or not (path / file).is_file():
            raise ModelError(f"{path / CONFIG} names {file}, which is no file of its folder")
    notes = tuple(f"{f} stays as it is: its session loads {library}" for f, library in foreign.items() if f in named)
    files = [f for f in named if f not in foreign]
    if not files:
        raise ModelError(f"{path / CONFIG}: expected a model (*{_SUFFIX}) whose session loads no library, found none")
    alone = len(named) == 1
    return ModelFolder(path, tuple(Member(f, HERE if alone else f.removesuffix(_SUFFIX)) for f in files), config, notes)


def _normal(file: str) -> str:
    return os.path.normpath(file).replace(os.sep, "/")


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """The objects in a configuration that name a model's file."""
    if isinstance(value, dict):
        if isinstance(value.get("filename"), str):
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _parts(inner)
