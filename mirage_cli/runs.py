"""Everything that runs code of a library, in a form that another process can do. Imports little, so that it starts fast."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from mirage_cli import check, isolation, runtime
from mirage_cli.check import CheckJob, FloatCheck
from mirage_cli.errors import MirageError, ModelError
from mirage_cli.frontends import torchscript_file, torchscript_module

Arrays: TypeAlias = dict[str, NDArray[Any]]
_MORE = 20.0  #: seconds to start a process and to load a model; runs of onnxruntime end themselves in time
_SEPARATE = 1 << 46  #: bytes of address space: as good as no limit, but it asks for a process


@dataclass(frozen=True, slots=True)
class Job:
    """A run of a model in onnxruntime on the CPU, in a form that another process can take; `data` is the folder of the
    external data of a model given as bytes, and `seconds` what it may take (0: no limit)."""

    model: str | bytes
    inputs: Mapping[str, NDArray[Any]]
    library: Path | None = None
    data: Path | None = None
    seconds: float = 0


def run_job(job: Job) -> Arrays:
    """The outputs by name; a large model is run piece by piece. Raises ModelError, OutOfTime, MirageError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        large = _large(job)
        if large is not None:
            return large
        session = runtime.session(job.model, job.library, provider="cpu", data=job.data)
    expect_inputs({i.name for i in session.get_inputs()}, job.inputs)
    return runtime.run(session, job.inputs, job.seconds)


@dataclass(frozen=True, slots=True)
class ScriptJob:
    """A run of a TorchScript module on the CPU; `outputs` are names for its results, `library` registers operators."""

    model: str
    inputs: Mapping[str, NDArray[Any]]
    outputs: tuple[str, ...]
    library: Path | None = None


def run_script(job: ScriptJob) -> Arrays:
    """The outputs by name. Raises ModelError, MirageError, ToolMissing without torch."""
    torchscript_file.check(job.model)
    torch = torchscript_module.import_torch()
    if job.library is not None:
        try:
            torch.ops.load_library(str(job.library.absolute()))
        except OSError as error:
            raise ModelError(f"{job.library}: expected a shared library: {error}") from None
    module = torchscript_module.open_module(torch, job.model)
    try:
        given = [
            torchscript_module.to_tensor(torch, job.inputs[n])
            for n in torchscript_module.input_names(job.model, module)
        ]
        with torch.no_grad(), torchscript_module.silent():
            found = torchscript_module.flattened(module(*given))
    except (RuntimeError, KeyError) as error:
        raise ModelError(f"{job.model} does not run: {torchscript_module.first_lines(error)}") from None
    if len(found) != len(job.outputs):
        raise ModelError(f"{job.model}: expected {len(job.outputs)} outputs, found {len(found)}")
    return {name: torchscript_module.to_array(torch, t) for name, t in zip(job.outputs, found, strict=True)}


def _large(job: Job) -> Arrays | None:
    """The outputs of a model that is run in pieces; None for others. Raises ModelError, MirageError."""
    folder = job.data if isinstance(job.model, bytes) else Path(job.model).parent
    if folder is None:
        return None
    import onnx  # noqa: PLC0415

    from mirage_cli import pieces  # noqa: PLC0415

    if isinstance(job.model, bytes):
        model = onnx.load_from_string(job.model)
    else:
        model = onnx.load(job.model, load_external_data=False)
    if not pieces.is_large(model):
        return None
    weights = {t.name for t in model.graph.initializer}
    expect_inputs({v.name for v in model.graph.input} - weights, job.inputs)
    return pieces.run(model, folder, job.inputs, job.library, seconds=job.seconds)


def expect_inputs(known: set[str], given: Mapping[str, NDArray[Any]]) -> None:
    """Raise ModelError for inputs other than those of a model."""
    if known != set(given):
        raise ModelError(f"expected inputs {sorted(known)}, found {sorted(given)}")


def library_sources(library: Path) -> str:
    """What a library says of the sources that it was built from. Raises MirageError for a file that is no library of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = runtime.check_library(library)
    try:
        function = ctypes.CDLL(str(path)).mirage_sources
    except OSError as error:
        raise ModelError(f"{library}: expected a shared library: {error}") from None
    except AttributeError:
        raise ModelError(f"{library}: expected a library that mirage built, found one without mirage_sources") from None
    function.restype = ctypes.c_char_p
    text = function()
    if not isinstance(text, bytes):
        raise MirageError(f"{library}: mirage_sources returns nothing")
    return text.decode(errors="replace")


Task: TypeAlias = Path | CheckJob | Job | ScriptJob


def perform(task: Task) -> str | FloatCheck | Arrays | None:
    """What a library says of itself, the float check of a kernel, or the outputs of a model. Raises MirageError."""
    if isinstance(task, Path):
        return library_sources(task)
    if isinstance(task, ScriptJob):
        return run_script(task)
    return check.run_job(task) if isinstance(task, CheckJob) else run_job(task)


def separate(tasks: Sequence[Task], done: Callable[[Task], None] = lambda task: None, seconds: float = 0) -> list[Any]:
    """The results (or Lost) of tasks, done one after the other in a process of their own: what crashes it, or takes longer
    than `seconds` (0: no limit), is lost alone."""
    found: dict[int, Any] = {}
    longest = seconds and seconds + _MORE
    for k, result in isolation.each(perform, [(task,) for task in tasks], 1, _SEPARATE, seconds=longest):
        found[k] = result
        done(tasks[k])
    return [found[k] for k in range(len(tasks))]
