"""TorchScript modules as they are opened and run. Imports little: other processes run modules too."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mirage_cli.errors import ModelError, UsageError
from mirage_cli.frontends.torchscript import archive
from mirage_cli.machine.packages import imported

SUFFIXES = (".pt", ".ts")
INSTALL = "pip install 'mirage-cli[torch]'"
#: names of types on the command line -> torch's
TYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "i8": "int8",
    "u8": "uint8",
    "i32": "int32",
    "i64": "int64",
}


def is_script(path: PurePath | str) -> bool:
    """True if a file of this name is read as a TorchScript module, which is a program."""
    return PurePath(path).suffix.lower() in SUFFIXES


def import_torch() -> Any:
    """The package torch. Raises ToolMissing with the command that installs it."""
    return imported("torch", "TorchScript models", INSTALL)


def open_module(torch: Any, path: str, device: str = "cpu") -> Any:
    """The module in a TorchScript archive that has been checked, ready for inference. Its code is checked once more as torch
    reads it, which need not be as Python's reader of zip archives does. Raises ModelError."""
    try:
        reader = torch._C.PyTorchFileReader(path)
        names = [name for name in reader.get_all_records() if archive.is_code(name)]
        archive.check_code(path, ((name, reader.get_record(name)) for name in names))
        with warnings.catch_warnings(), silent():
            warnings.simplefilter("ignore")
            return torch.jit.load(path, map_location=device).eval()
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{path}: torch.jit.load refuses the file: {first_lines(error)}") from None


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep to oneself what a module prints, when it is opened and when it runs: standard output is for data."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def input_names(path: str, module: Any) -> list[str]:
    """The names of a module's inputs. Raises UsageError for one that is no tensor."""
    names = []
    for argument in module.forward.schema.arguments[1:]:
        if str(argument.type) != "Tensor":
            raise UsageError(
                f"{path}: input {argument.name!r} is {argument.type}, expected a tensor",
                "trace the module with tensors as its inputs",
            )
        names.append(str(argument.name))
    return names


def modes_of_training(module: Any) -> list[str]:
    """Notes on what a trace has kept of a module in train mode, which `eval` cannot change any more."""
    graph = module.inlined_graph
    kept = {
        kind: sum(bool(n.inputsAt(k).toIValue()) for n in graph.findAllNodes(f"aten::{kind}"))
        for kind, k in (("dropout", 2), ("batch_norm", 5))
    }
    told = " and ".join(f"{count} x {kind}" for kind, count in kept.items() if count)
    return [f"traced in train mode: {told} stay so; trace the module after model.eval()"] if told else []


def to_tensor(torch: Any, elements: NDArray[Any]) -> Any:
    """A tensor with a copy of the elements, also of those that numpy has no type for."""
    if elements.dtype.name == "bfloat16":
        return torch.from_numpy(elements.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(elements))


def to_array(torch: Any, tensor: Any) -> NDArray[Any]:
    """The elements of a tensor."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        bits: NDArray[Any] = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return bits
    return np.asarray(tensor.numpy())


def flattened(result: Any) -> list[Any]:
    """The tensors of what a module returns, in order."""
    if isinstance(result, dict):
        result = list(result.values())
    return [t for r in result for t in flattened(r)] if isinstance(result, list | tuple) else [result]


def first_lines(error: BaseException, count: int = 6) -> str:
    """The first lines of an error of torch, without its traceback through C++."""
    return "; ".join(line.strip() for line in str(error).splitlines()[:count] if line.strip()) or type(error).__name__
