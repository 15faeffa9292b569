"""Contestants that `bench` times: an onnxruntime session on inputs that already lie where it computes.

A contestant owns several sets of inputs and outputs and moves on to the next set at every call. Its outputs are first
filled with NaN (integers with a pattern), so that a kernel that leaves elements unwritten does not find the right ones
in recycled memory. Its answers are compared with the original's before anything is timed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from mirage_cli.errors import MirageError
from mirage_cli.frontends.torchscript import archive, modules
from mirage_cli.processes import isolation
from mirage_cli.runtime import sessions

Arrays = Mapping[str, NDArray[Any]]
_BROKEN = 0x55  #: elements of an integer output before a call


@dataclass(frozen=True, slots=True)
class Place:
    """Where contestants run: a provider ("cpu" or "cuda") and, on CUDA, the GPU's number; threads of one operator; the
    OpenCL device PLATFORM:DEVICE that operators of the CPU's provider hand their work to, if any."""

    provider: str = "cpu"
    device: int = 0
    threads: int | None = None
    opencl: str = ""

    @property
    def target(self) -> str:
        """The kind of target whose kernels run here."""
        return "opencl" if self.opencl else self.provider


class Contestant(Protocol):
    """Something that computes the same as the original."""

    def call(self) -> None:
        """Compute the next set of inputs; done when it returns."""

    def answers(self) -> list[Arrays]:
        """The outputs by name for each set of inputs, computed anew. Raises MirageError."""


class OrtContestant:
    """A model in onnxruntime with its inputs and outputs bound to memory of the place where it runs."""

    def __init__(
        self, model: str | Path | bytes, library: Path | None, sets: Sequence[Arrays], place: Place, graph: bool = False
    ) -> None:
        """Load the model and bind `sets`; a CUDA `graph` takes exactly one of them. Raises MirageError."""
        title = "a fragment's model" if isinstance(model, bytes) else str(model)
        self._title = title if library is None else f"{title} with its library"
        isolation.doing(f"onnxruntime loaded {self._title}")
        self._session = sessions.session(
            model, library, place.provider, place.threads, device=place.device, exact=True, graph=graph
        )
        self._place = place
        self._sets = sets
        self._next = 0
        isolation.doing(f"onnxruntime ran {self._title}")
        try:
            self._inputs = [{n: to_device(a, place) for n, a in arrays.items()} for arrays in sets]
            self._outputs: list[list[tuple[str, Any]]] = []
            self._bindings = [self._bind(inputs) for inputs in self._inputs]
        except MirageError:
            raise
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise MirageError(f"onnxruntime failed: {error}") from error

    def _bind(self, inputs: Mapping[str, Any]) -> Any:
        """A binding of one set; its outputs take the shapes that a first run gives."""
        binding = self._session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        names = [o.name for o in self._session.get_outputs()]
        shapes = _output_shapes(self._session, inputs, self._place)
        outputs = [(n, to_device(poisoned_array(*shapes[n]), self._place)) for n in names]
        for name, value in outputs:
            binding.bind_ortvalue_output(name, value)
        self._outputs.append(outputs)
        return binding

    def call(self) -> None:
        """Compute the next set of inputs."""
        self._session.run_with_iobinding(self._bindings[self._next])
        self._next = (self._next + 1) % len(self._bindings)

    def answers(self) -> list[Arrays]:
        """The outputs for each set, written by one run into buffers that held none of them.

        Raises MirageError when onnxruntime fails, or when the run changed an input.
        """
        answers: list[Arrays] = []
        isolation.doing(f"onnxruntime ran {self._title}")
        for binding, outputs, inputs, arrays in zip(
            self._bindings, self._outputs, self._inputs, self._sets, strict=True
        ):
            try:
                self._session.run_with_iobinding(binding)
                answers.append({name: fetched(value, self._place) for name, value in outputs})
            except Exception as error:  # as above
                raise MirageError(f"onnxruntime failed: {error}") from error
            for name, value in inputs.items():
                if fetched(value, self._place).tobytes() != np.asarray(arrays[name]).tobytes():
                    raise MirageError(f"the run changed input {name!r}")
        return answers


class ScriptContestant:
    """A TorchScript module in PyTorch on the CPU; its outputs are called `names`."""

    def __init__(self, path: Path, sets: Sequence[Arrays], names: Sequence[str], place: Place) -> None:
        """Open the module, which is a program. Raises MirageError."""
        torch = self._torch = modules.import_torch()
        isolation.doing(f"torch loaded {path}")
        archive.check(str(path))
        self._module, self._names, self._next = modules.open_module(torch, str(path)), list(names), 0
        if place.threads:
            torch.set_num_threads(place.threads)
        order = modules.input_names(str(path), self._module)
        self._inputs = [[modules.to_tensor(torch, np.asarray(arrays[n])) for n in order] for arrays in sets]
        self._title = str(path)

    def call(self) -> None:
        """Compute the next set of inputs."""
        with self._torch.inference_mode():
            self._module(*self._inputs[self._next])
        self._next = (self._next + 1) % len(self._inputs)

    def answers(self) -> list[Arrays]:
        """The outputs for each set, of inputs that stay as they are. Raises MirageError when torch fails."""
        isolation.doing(f"torch ran {self._title}")
        answers: list[Arrays] = []
        for inputs in self._inputs:
            try:
                with self._torch.inference_mode(), modules.silent():
                    results = modules.flattened(self._module(*[t.clone() for t in inputs]))
            except Exception as error:  # torch raises whatever its operators do
                raise MirageError(f"torch failed: {modules.first_lines(error)}") from error
            arrays = [modules.to_array(self._torch, t) for t in results]
            answers.append(dict(zip(self._names, arrays, strict=True)))
        return answers


def _output_shapes(
    session: Any, inputs: Mapping[str, Any], place: Place
) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and element type of every output, from a run into memory that onnxruntime allocates."""
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    names = [o.name for o in session.get_outputs()]
    for name in names:
        binding.bind_output(name, place.provider, place.device)
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "-1")  # this run is not the one to be captured
    session.run_with_iobinding(binding, options)
    return {
        name: (tuple(value.shape()), onnx.helper.tensor_dtype_to_np_dtype(value.element_type()))
        for name, value in zip(names, binding.get_outputs(), strict=True)
    }


def poisoned_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array whose elements are hardly a right answer: NaN, or one unusual integer."""
    return np.full(shape, _BROKEN if dtype.kind in "iub" else np.nan, dtype)


# ---- moving arrays ---------------------------------------------------------------------------------------------------


def to_device(array: NDArray[Any], place: Place) -> Any:
    """An `OrtValue` of the place's memory with a copy of an array's elements."""
    if place.provider == "cpu":
        return sessions.to_ort(np.array(array, order="C"))
    if array.dtype.name != "bfloat16":
        from onnxruntime import OrtValue  # noqa: PLC0415

        return OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"), "cuda", place.device)
    return moved(sessions.to_ort(array), place, "cuda")


def fetched(value: Any, place: Place) -> NDArray[Any]:
    """A copy of the elements of an `OrtValue`, wherever it lies."""
    if place.provider != "cpu" and "bfloat16" in value.data_type():
        value = moved(value, place, "cpu")
    return np.array(sessions.from_ort(value))


def moved(value: Any, place: Place, to: str) -> Any:
    """A copy of a bfloat16 `OrtValue` in the memory of the CPU or of the place's GPU, which onnxruntime copies only
    for a model."""
    session = _identity(place.provider, place.device)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("y", to, place.device if to != "cpu" else 0)
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0]


@functools.lru_cache(maxsize=4)
def _identity(provider: str, device: int) -> Any:
    tensors = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.BFLOAT16, None) for n in "xy"]
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "identity", tensors[:1], tensors[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return sessions.session(model.SerializeToString(), None, provider, device=device)


# ---- the same answers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of answers with the original's but for rounding: the greatest relative error (root mean square of
    the difference over that of the original) of an output, and what is wrong."""

    error: float
    problem: str = ""

    @property
    def passed(self) -> bool:
        """True if nothing is wrong."""
        return not self.problem


def agreement(answers: Sequence[Arrays], wanted: Sequence[Arrays], unit: float = 0.0) -> Agreement:
    """Compare a contestant's answers with the original's, output by output, on every set of inputs.

    A coarse test that finds other answers, not inaccurate ones (`verify` judges accuracy): the relative error may be the
    square root of the type's unit (or of `unit`, if that is larger), half of its digits. Where the original's values are
    not finite anything finite is accepted, since a kernel may avoid an overflow; the other way round it is a difference.
    Integers must be equal.
    """
    worst = 0.0
    for k, (own, right) in enumerate(zip(answers, wanted, strict=True)):
        if set(own) != set(right):
            return Agreement(np.inf, f"outputs {sorted(own)} instead of {sorted(right)}")
        for name, array in right.items():
            error, problem = _difference(own[name], array, unit)
            if problem:
                return Agreement(error, f"output {name!r} of input set {k}: {problem}")
            worst = max(worst, error)
    return Agreement(worst)


def _difference(own: NDArray[Any], right: NDArray[Any], least: float) -> tuple[float, str]:
    """The relative error and what is wrong, or nothing."""
    if own.shape != right.shape or own.dtype != right.dtype:
        return np.inf, f"{own.dtype}{list(own.shape)} instead of {right.dtype}{list(right.shape)}"
    if right.dtype.kind in "iub":
        count = int((own != right).sum())
        return (np.inf, f"{count} of {right.size} elements differ") if count else (0.0, "")
    wide, exact = own.astype(np.float64), right.astype(np.float64)
    finite = np.isfinite(exact)
    lost = int((~np.isfinite(wide) & finite).sum())
    if lost:
        return np.inf, f"{lost} of {right.size} elements are not finite"
    size, error = _rms(exact[finite]), _rms(wide[finite] - exact[finite])
    unit = max(least, float(ml_dtypes.finfo(right.dtype).eps))  # type: ignore[no-untyped-call]
    relative = error / size if size > 0 else (0.0 if error <= unit else np.inf)
    limit = float(np.sqrt(unit))
    return relative, "" if relative <= limit else f"relative error {relative:.1e}, at most {limit:.1e} is rounding"


def _rms(x: NDArray[np.float64]) -> float:
    top = float(np.max(np.abs(x), initial=0.0))
    return top * float(np.sqrt(np.mean((x / top) ** 2))) if top > 0 else 0.0
