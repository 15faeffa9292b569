"""Everything that runs models, or code of a library, in a form that another process can do. Imports little, so that it starts
fast.

onnxruntime and torch are large programs in C++ that some models bring down, so that no model is run by a process that has
anything to lose.
"""

from __future__ import annotations

import contextlib
import ctypes
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from mirage_cli.checks import kernel_check
from mirage_cli.checks.kernel_check import CheckJob, FloatCheck
from mirage_cli.errors import MirageError, ModelError
from mirage_cli.frontends.torchscript import archive, modules
from mirage_cli.processes import isolation
from mirage_cli.runtime import sessions

Arrays: TypeAlias = dict[str, NDArray[Any]]
_MORE = 20.0  #: seconds to start a process and to load a model; runs of onnxruntime end themselves in time
_START = 120.0  #: seconds in which a process has to begin


@dataclass(frozen=True, slots=True)
class Job:
    """A run of a model in onnxruntime on the CPU, in a form that another process can take; `data` is the folder of the
    external data of a model given as bytes, and `seconds` what it may take (0: no limit). Without `optimize` onnxruntime takes
    the nodes as they stand."""

    model: str | bytes
    inputs: Mapping[str, NDArray[Any]]
    library: Path | None = None
    data: Path | None = None
    seconds: float = 0
    optimize: bool = True

    @property
    def title(self) -> str:
        """The model in words."""
        return "a part of the model" if isinstance(self.model, bytes) else self.model


def run_job(job: Job) -> Arrays:
    """The outputs by name; a large model is run piece by piece. Raises ModelError, OutOfTime, MirageError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        large = _large(job)
        if large is not None:
            return large
        isolation.doing(f"onnxruntime loaded {job.title}")
        session = sessions.session(job.model, job.library, provider="cpu", data=job.data, optimize=job.optimize)
    expect_inputs({i.name for i in session.get_inputs()}, job.inputs)
    isolation.doing(f"onnxruntime ran {job.title}")
    return sessions.run(session, job.inputs, job.seconds)


@dataclass(frozen=True, slots=True)
class ScriptJob:
    """A run of a TorchScript module on the CPU; `outputs` are names for its results, `library` registers operators."""

    model: str
    inputs: Mapping[str, NDArray[Any]]
    outputs: tuple[str, ...]
    library: Path | None = None


def run_script(job: ScriptJob) -> Arrays:
    """The outputs by name. Raises ModelError, MirageError, ToolMissing without torch."""
    archive.check(job.model)
    torch = modules.import_torch()
    if job.library is not None:
        try:
            torch.ops.load_library(str(job.library.absolute()))
        except OSError as error:
            raise ModelError(f"{job.library}: expected a shared library: {error}") from None
    isolation.doing(f"torch loaded {job.model}")
    module = modules.open_module(torch, job.model)
    isolation.doing(f"torch ran {job.model}")
    try:
        given = [modules.to_tensor(torch, job.inputs[n]) for n in modules.input_names(job.model, module)]
        with torch.no_grad(), modules.silent():
            outputs = modules.flattened(module(*given))
    except (RuntimeError, KeyError) as error:
        raise ModelError(f"{job.model} does not run: {modules.first_lines(error)}") from None
    if len(outputs) != len(job.outputs):
        raise ModelError(f"{job.model}: expected {len(job.outputs)} outputs, found {len(outputs)}")
    return {name: modules.to_array(torch, t) for name, t in zip(job.outputs, outputs, strict=True)}


def _large(job: Job) -> Arrays | None:
    """The outputs of a model that is run in pieces; None for others. Raises ModelError, MirageError."""
    folder = job.data if isinstance(job.model, bytes) else Path(job.model).parent
    if folder is None:
        return None
    import onnx  # noqa: PLC0415

    from mirage_cli.runtime import piecewise  # noqa: PLC0415

    if isinstance(job.model, bytes):
        model = onnx.load_from_string(job.model)
    else:
        model = onnx.load(job.model, load_external_data=False)
    if not piecewise.is_large(model):
        return None
    weights = {t.name for t in model.graph.initializer}
    expect_inputs({v.name for v in model.graph.input} - weights, job.inputs)
    isolation.doing(f"onnxruntime ran {job.title} in pieces")
    return piecewise.run(model, folder, job.inputs, job.library, seconds=job.seconds, optimize=job.optimize)


def expect_inputs(known: set[str], given: Mapping[str, NDArray[Any]]) -> None:
    """Raise ModelError for inputs other than those of a model."""
    if known != set(given):
        raise ModelError(f"expected inputs {sorted(known)}, found {sorted(given)}")


def library_sources(library: Path) -> str:
    """The digest of its sources that a library tells. Raises MirageError for a file that is no library of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = sessions.check_library(library)
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
    """The sources that a library tells, the float check of a kernel, or the outputs of a model. Raises MirageError."""
    if isinstance(task, Path):
        isolation.doing(f"{task} was loaded")
        return library_sources(task)
    if isinstance(task, ScriptJob):
        return run_script(task)
    return kernel_check.run_job(task) if isinstance(task, CheckJob) else run_job(task)


class Performer:
    """The resident of the process of a `Place`."""

    def perform(self, task: Task) -> str | FloatCheck | Arrays | None:
        """Do a task. Raises MirageError."""
        return perform(task)


class Place:
    """A process in which tasks are done one after the other: what crashes it, or takes longer than `seconds` (0: no limit), is
    lost alone, and the next task finds a new one. `max_memory` is as in `isolation.limit_memory`. It is begun by `begin`,
    or by the first task."""

    def __init__(self, seconds: float = 0, max_memory: int = 0) -> None:
        self._seconds = seconds and seconds + _MORE
        self._resident = isolation.Resident(Performer, (), _START, max_memory)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *error: object) -> None:
        self._resident.close()

    def begin(self) -> None:
        """Let the process start, without waiting for it."""
        self._resident.begin()

    def do(self, task: Task) -> Any:
        """The result of a task, or Lost."""
        return self._resident.call("perform", (task,), self._seconds)

    def arrays(self, job: Job | ScriptJob) -> Arrays:
        """The outputs of a model. Raises MirageError."""
        outputs: Arrays | isolation.Lost = self.do(job)
        if isinstance(outputs, isolation.Lost):
            raise outputs.raised()
        return outputs


@contextlib.contextmanager
def places(seconds: float, max_memory: int) -> Iterator[tuple[Place, Place]]:
    """A place for originals and one for what uses the library, both begun at once: they are ready when they are needed."""
    with Place(seconds, max_memory) as originals, Place(seconds, max_memory) as kernels:
        originals.begin()
        kernels.begin()
        yield originals, kernels
