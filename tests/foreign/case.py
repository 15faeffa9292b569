"""Models of a folder, with the test data that lie beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

MOST_SETS = 2  #: test data sets of a model that are used


@dataclass(frozen=True, slots=True)
class Draw:
    """Inputs of a model by name, and the outputs that are expected, where somebody wrote them down."""

    name: str
    feeds: dict[str, Any]
    expected: tuple[Any, ...] = ()
    edge: bool = False  #: whether a dimension has size 0


@dataclass(frozen=True, slots=True)
class Case:
    """A model file, called by its path within the folder."""

    name: str
    path: Path

    @property
    def digest(self) -> str:
        """The start of the file's SHA-256."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]


def cases(folder: Path, only: str = "*") -> Iterator[Case]:
    """Every model of a folder, sorted; what mirage wrote there is none of them."""
    for path in sorted(folder.rglob("*.onnx")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and fnmatch(name, only):
            yield Case(name, path)


def stored(path: Path, model: onnx.ModelProto) -> list[Draw]:
    """The test data beside a model: folders of `input_N.pb` and `output_N.pb`, or MODEL.npz with inputs by name."""
    weights = {t.name for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in weights]
    draws = []
    folders = sorted(path.parent.glob("test_data_set_*")) if len(list(path.parent.glob("*.onnx"))) == 1 else []
    for folder in folders[:MOST_SETS]:
        try:
            feeds = {v.name: _pb(folder / f"input_{k}.pb", v.type) for k, v in enumerate(inputs)}
            outputs = tuple(_pb(folder / f"output_{k}.pb", v.type) for k, v in enumerate(model.graph.output))
        except (OSError, ValueError, TypeError):
            continue  # named otherwise, or of types that are not read here
        draws.append(Draw(folder.name, feeds, outputs))
    npz = path.with_suffix(".npz")
    if npz.is_file():
        with np.load(npz) as arrays:
            draws.append(Draw(npz.name, {name: arrays[name] for name in arrays.files}))
    return draws


def _pb(path: Path, kind: onnx.TypeProto) -> Any:
    """One input or output of a test data set."""
    data = path.read_bytes()
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if which == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))
