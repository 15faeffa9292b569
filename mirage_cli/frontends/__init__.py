"""Front ends by file suffix. Importing this package is cheap; a front end's module is imported when it is asked for."""

from __future__ import annotations

import importlib
import os
from pathlib import PurePath
from typing import Protocol

from mirage_cli.errors import ModelError, UnsupportedFormat
from mirage_cli.frontends.imported import Imported, Options

__all__ = ["FRONT_ENDS", "HINTS", "FrontEnd", "Imported", "Options", "check_there", "front_end", "load"]

STANDARD_INPUT = "-"


class FrontEnd(Protocol):
    """A module that reads one file format."""

    suffixes: tuple[str, ...]

    def load(self, path: str, options: Options) -> Imported:
        """Read the model at `path` ("-": standard input). Raises ModelError, or UsageError for wrong options."""


#: suffix -> module with `suffixes` and `load`
FRONT_ENDS = {
    ".onnx": "mirage_cli.frontends.onnx.front_end",
    ".pt": "mirage_cli.frontends.torchscript.front_end",
    ".ts": "mirage_cli.frontends.torchscript.front_end",
    STANDARD_INPUT: "mirage_cli.frontends.onnx.front_end",
}

#: suffixes of formats that are known and not read, with what to do about it
HINTS = {
    ".pth": 'a TorchScript module is called .pt or .ts: torch.jit.trace(model, example_inputs).save("model.pt")',
    ".pt2": 'export it to ONNX: torch.onnx.export(torch.export.load("model.pt2"), (), "model.onnx", dynamo=True)',
    ".safetensors": "this file holds weights only; export the model to ONNX",
    ".ort": "this is onnxruntime's own format; give the .onnx file that it was made from",
}


def front_end(path: str) -> FrontEnd:
    """The front end for a file, by its suffix. Raises UnsupportedFormat naming the known suffixes."""
    module: FrontEnd = importlib.import_module(_module(path))
    return module


def check_there(path: str) -> None:
    """Raise ModelError where there is no such file, and UnsupportedFormat where it would not be read either: at once,
    without importing what reads it."""
    if path != STANDARD_INPUT and not os.path.lexists(path):
        _module(path)
        raise ModelError(f"{path}: no such file")


def _module(path: str) -> str:
    """The name of a front end's module. Raises UnsupportedFormat."""
    suffix = STANDARD_INPUT if path == STANDARD_INPUT else PurePath(path).suffix.lower()
    if suffix in FRONT_ENDS:
        return FRONT_ENDS[suffix]
    known = ", ".join(s for s in FRONT_ENDS if s != STANDARD_INPUT)
    given = "a folder" if os.path.isdir(path) else f"suffix {suffix!r}" if suffix else "no suffix"
    raise UnsupportedFormat(
        f"{path}: expected a model file ({known}, or - for ONNX on standard input), found {given}", HINTS.get(suffix)
    )


def load(path: str, options: Options | None = None) -> Imported:
    """Read a model file. Raises UnsupportedFormat, ModelError or UsageError."""
    return front_end(path).load(path, options or Options())
