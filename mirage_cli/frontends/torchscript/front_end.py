"""The TorchScript front end: PyTorch's own exporter makes an ONNX model, which is then read like any other.

Tensors of the TorchScript graph are marked, so that it is known which tensor of the ONNX model each of them is: that is
what later puts operators into the TorchScript module too (`mirage_cli/patching/script_patch.py`).
"""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from mirage_cli.errors import ModelError, UsageError
from mirage_cli.files.staging import Scratch
from mirage_cli.frontends.imported import Imported, Options, Script
from mirage_cli.frontends.onnx import front_end as onnx_front_end
from mirage_cli.frontends.torchscript import archive, graph, operators
from mirage_cli.frontends.torchscript.modules import (
    SUFFIXES,
    TYPES,
    first_lines,
    import_torch,
    input_names,
    modes_of_training,
    open_module,
    silent,
)
from mirage_cli.options.dims import check_inputs
from mirage_cli.processes import isolation

suffixes = SUFFIXES

EXPORT = 'export the Python module to ONNX: torch.onnx.export(model, inputs, "model.onnx", dynamo=True)'
FAST_PATH = "trace the module without torch's fast path: torch.backends.mha.set_fastpath_enabled(False)"
#: operators of that path, as in inference torch.nn's attention and encoder layers call them
FUSED = ("aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention")
OPSET = 18  #: of the ONNX model: every exporter since torch 2.10 writes it


def load(path: str, options: Options) -> Imported:
    """Read the traced or scripted module at `path`, with `options.shapes` (and `types`) for its inputs.

    The module is a program, which runs and stays in a process of its own. Raises ModelError for a file that is no TorchScript
    archive or has operators that the exporter lacks, UsageError for inputs without a shape, ToolMissing without torch,
    OutOfTime and Crashed where the module does not end, or ends its process.
    """
    archive.check(path)
    place = Place(path, options)
    imported = _imported(path, onnx.ModelProto.FromString(place.exported()), options, place.file)
    imported.script = place
    imported.notes.extend(place.notes())
    return imported


class Place:
    """The process of a module, which ends with this object; `file` is the exported model, beside its weights."""

    def __init__(self, path: str, options: Options) -> None:
        self._folder = Scratch("mirage-torchscript-")
        self.file = self._folder.path / "model.onnx"
        self._seconds = options.seconds
        self._resident = isolation.Resident(Reading, (path, options, self.file), options.seconds, options.max_memory)
        weakref.finalize(self, self._resident.close)

    def exported(self) -> bytes:
        """The ONNX model. Raises MirageError."""
        return bytes(self._asked("exported"))

    def notes(self) -> list[str]:
        """What is worth telling of the module. Raises MirageError."""
        return list(self._asked("notes"))

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of a function there, of the model as it is imported there, and `args`. Raises MirageError."""
        return self._asked("call", function, *args)

    def _asked(self, method: str, *args: Any) -> Any:
        answer = self._resident.call(method, args, self._seconds)
        if isinstance(answer, isolation.Lost):
            raise answer.raised()
        return answer


class Reading:
    """A module that has been read and exported: what lives in a `Place`."""

    def __init__(self, path: str, options: Options, file: Path) -> None:
        """Raises MirageError."""
        torch = import_torch()
        isolation.doing(f"torch loaded {path}")
        module = open_module(torch, path)
        inputs = graph.example_inputs(torch, module, *_input_shapes_and_types(path, module, options))
        self._notes = modes_of_training(module)
        marked = graph.Marked(torch, module)
        isolation.doing(f"torch ran {path}")
        seen = _observed_tensors(torch, path, module, marked, inputs)
        isolation.doing(f"torch exported {path}")
        proto = _export(torch, path, marked, inputs, seen, file)
        names = graph.take_marks(proto)
        self._read = (path, options, file)
        self._model: bytes = proto.SerializeToString()
        self._script = Script(marked, names, seen)

    def exported(self) -> bytes:
        """The ONNX model, without marks."""
        return self._model

    def notes(self) -> list[str]:
        """What is worth telling of the module."""
        return self._notes

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """A function of the imported model."""
        path, options, file = self._read
        imported = _imported(path, onnx.ModelProto.FromString(self._model), options, file)
        imported.script = self._script
        return function(imported, *args)


def _imported(path: str, proto: onnx.ModelProto, options: Options, file: Path) -> Imported:
    """The model that was exported to `file` from the module at `path`. Raises ModelError."""
    try:
        imported = onnx_front_end.from_proto(proto, Options(dims=options.dims), str(file))
    except ModelError as error:
        raise ModelError(f"{path}: {str(error).replace(str(file.parent), 'exported')}") from None
    imported.path, imported.format, imported.external = path, "torchscript", {}
    imported.sha256 = archive.sha256(path)
    return imported


def _input_shapes_and_types(
    path: str, module: Any, options: Options
) -> tuple[Mapping[str, Sequence[int]], Mapping[str, str]]:
    """The shapes and torch's names of the types of a module's inputs. Raises UsageError where they do not fit."""
    names = input_names(path, module)
    check_inputs(options.shapes, names)
    missing = [n for n in names if n not in options.shapes]
    if missing:
        raise UsageError(
            f"{path}: TorchScript does not tell the shapes of its inputs: {', '.join(missing)}",
            " ".join(f"--shape {n}=1x128" for n in missing),
        )
    return options.shapes, {n: TYPES.get(t, t) for n, t in options.types.items()}


@contextlib.contextmanager
def _silent(torch: Any) -> Iterator[None]:
    """The exporter may print: from Python, and from C++ its whole graph when it fails, which it cannot be asked not to."""
    torch._C._jit_set_onnx_log_output_stream("stderr")
    told = os.dup(2)
    with silent(), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(told, 2)
            os.close(told)


def _observed_tensors(torch: Any, path: str, module: Any, marked: Any, inputs: Mapping[str, Any]) -> dict[int, Any]:
    """Run a module and then its marked form, which tells the types and shapes of its tensors. Raises ModelError for inputs
    that do not fit: torch can tell them of the module itself only."""
    given = ", ".join(f"{n}={graph.described(t)}" for n, t in inputs.items())
    try:
        with warnings.catch_warnings(), silent(), torch.no_grad():
            warnings.simplefilter("ignore")
            module(*inputs.values())
            values: dict[int, Any] = marked.run(torch, list(inputs.values()))
            return values
    except Exception as error:  # torch raises whatever its operators do
        raise ModelError(
            f"{path}: the module does not run for inputs {given}: {first_lines(error)}",
            "if an input has another type, say so: --shape NAME=1x128:i64",
        ) from None


def _export(
    torch: Any, path: str, marked: Any, inputs: Mapping[str, Any], seen: Mapping[int, Any], file: Path
) -> onnx.ModelProto:
    """The ONNX model of a marked module. Raises ModelError naming what the exporter cannot express."""
    try:
        with warnings.catch_warnings(), _silent(torch), operators.more_operators(torch, seen):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                marked.module,
                tuple(inputs.values()),
                str(file),
                dynamo=False,
                opset_version=OPSET,
                input_names=list(inputs),
                do_constant_folding=False,
                custom_opsets={graph.DOMAIN: 1},
            )
    except Exception as error:  # the exporter raises whatever its operators do
        text = first_lines(error)
        raise ModelError(
            f"{path}: torch.onnx.export cannot express the module: {text}",
            FAST_PATH if any(name in text for name in FUSED) else EXPORT,
        ) from None
    return onnx.load(file, load_external_data=False)
