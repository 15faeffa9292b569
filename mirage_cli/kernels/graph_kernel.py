"""A graph that consists of kernels, as a function on tensors: what `superoptimize` gives, also loaded from its folder.

Kernels are called one after the other on the caller's stream; what passes between them is allocated by the library of the
caller's tensors, as the outputs are. See `kernel.py` for what is taken and what is refused.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mirage_cli.errors import ModelError, UsageError, WrongTensor
from mirage_cli.files import codec, staging
from mirage_cli.files.output import MODEL, claimed, replaced
from mirage_cli.kernels import call_order, tensors, torch_operator
from mirage_cli.kernels import kernel as kernels
from mirage_cli.kernels.kernel import SUFFIXES, Kernel
from mirage_cli.report import reader
from mirage_cli.report.report import Report

_Call: TypeAlias = tuple[Kernel, tuple[int, ...], tuple[int, ...]]  #: a kernel, the numbers of its inputs and outputs


class GraphKernel:
    """The kernels of a graph. `spec` says what it takes and gives.

        kernel = graph.superoptimize()
        y = kernel(x, w)                       # or kernel(inputs=[x, w]), or kernel(x, w, out=y)

    `report` is what was found, searched, proved and chosen; `proof` the proof of each fragment, `error_bound` the
    probability that any of them is wrong; `mugraph` the chosen programs as text; `sources` the generated files, `folder`
    where all of it lies, as `mirage optimize` writes it. Several threads may call a kernel at once.
    """

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        """From an output folder. `threads` is how many a call on the CPU uses (one by default). Raises ModelError for a
        folder that is none of a graph."""
        steps = call_order.read(folder)
        self.folder, self.spec = folder, steps.spec
        loaded = {c.id: kernels.load_kernel(folder, c.id, threads) for c in steps.calls}
        names = [t.name for t in steps.spec.inputs] + list(steps.weights)
        numbers: dict[str, int] = {}
        for name in (*names, *(o for c in steps.calls for o in c.outputs)):
            numbers.setdefault(name, len(numbers))
        self._calls: list[_Call] = [
            (loaded[c.id], tuple(numbers[n] for n in c.inputs), tuple(numbers[n] for n in c.outputs))
            for c in steps.calls
        ]
        self._results = tuple(numbers[n] for n in steps.results)
        self._count, self._size = len(steps.spec.inputs), len(numbers)
        self._weights = steps.weights
        self._placed: dict[Any, list[Any]] = {}
        alone = len(self._calls) == 1 and not steps.weights and self._calls[0][2] == self._results
        self._alone = (self._calls[0][0].run, self._calls[0][1]) if alone else None

    # --- calling ------------------------------------------------------------------------------------------------------
    def __call__(self, *args: Any, inputs: Sequence[Any] | None = None, out: Any = None) -> Any:
        """The output, a tuple when there are several, of tensors given one by one or as `inputs`.

        `out` is what to write to: a tensor, or one for each output. Raises WrongTensor, naming the tensor, what was expected
        and what was found, for one that does not fit, and MirageError when a kernel fails.
        """
        if inputs is not None:
            if args:
                raise UsageError("tensors are given one by one or as inputs=[...], not both")
            args = tuple(inputs)
        if out is not None and not isinstance(out, (tuple, list)):
            out = (out,)
        results = self.run(args, out)
        return results[0] if len(results) == 1 else results

    def run(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """The same for lists of tensors: a tuple of all outputs."""
        if len(inputs) != self._count:
            names = ", ".join(map(str, self.spec.inputs)) or "none"
            raise WrongTensor(f"{len(inputs)} inputs, expected {self._count}: {names}")
        if self._alone is not None:
            run, order = self._alone
            return run([inputs[k] for k in order], out)
        if out is not None and len(out) != len(self._results):
            raise WrongTensor(f"{len(out)} outputs, expected {len(self._results)}")
        given = dict(zip(self._results, out or (), strict=False))
        values = [*map(tensors.as_known_tensor, inputs), *([None] * (self._size - self._count))]
        if self._weights:
            values[self._count : self._count + len(self._weights)] = self._weights_like(values)
        for kernel, reads, writes in self._calls:
            wanted = [given[k] for k in writes] if given and all(k in given for k in writes) else None
            results = kernel.run([values[k] for k in reads], wanted)
            for k, tensor in zip(writes, results, strict=True):
                values[k] = tensor
        return tuple([values[k] for k in self._results])

    def has(self, place: str) -> bool:
        """True if the library holds kernels for `cpu`, `cuda` or `opencl`."""
        return all(kernel.has(place) for kernel, _, _ in self._calls)

    def as_torch_op(self, name: str) -> Any:
        """The kernel as an operator of PyTorch, such as "mirage::norm": see `torch_operator.register`."""
        return torch_operator.register(self, name)

    def _weights_like(self, values: Sequence[Any]) -> list[Any]:
        """The weights where the first input is; put there by the first call, with or without inputs from there."""
        like = values[0] if self._count else None
        framework = tensors.framework_of(like) if self._count else tensors.NUMPY
        assert framework is not None
        where = framework.where(like)
        weights = self._placed.get((framework, where))
        if weights is None:
            held = _weights(self.folder, self._weights)
            weights = self._placed[framework, where] = [framework.copy(like, array) for array in held]
        return weights

    # --- what is known of it ------------------------------------------------------------------------------------------
    @functools.cached_property
    def report(self) -> Report:
        """The report of the run that made it, as `report.json` has it."""
        return codec.checked(reader.read(self.folder), Report)

    @property
    def proof(self) -> dict[str, dict[str, Any]]:
        """The verification of each fragment by its identifier, as in the report."""
        return {f.id: dict(f.verification) for f in self.report.replaced}

    @property
    def error_bound(self) -> float:
        """A bound on the probability that any of the kernels, on any target, is not equal to what it stands for."""
        return math.fsum(t["error_bound"] for v in self.proof.values() for t in v["targets"].values())

    @property
    def mugraph(self) -> str:
        """The chosen muGraphs as text."""
        return "\n\n".join("\n".join(f.mugraph["text"]) for f in self.report.replaced)

    @property
    def sources(self) -> list[Path]:
        """The generated sources of the kernels."""
        names = {kernel.spec.id for kernel, _, _ in self._calls}
        return sorted(p for p in (self.folder / "src").iterdir() if p.stem in names and p.suffix != ".o")

    def save(self, folder: str | PathLike[str]) -> None:
        """Copy the output folder, as `mirage optimize` would have written it: `load_kernel(folder)` reads it back, `mirage
        verify` and `mirage bench` take it. Raises UsageError for a folder that holds something else, Busy while another
        process writes it."""
        place = Path(folder)
        with claimed(place), replaced(place) as draft:
            staging.copy_tree(self.folder, draft)

    def __repr__(self) -> str:
        places = " and ".join(p for p in SUFFIXES if self.has(p))
        given, outputs = (", ".join(map(str, ts)) for ts in (self.spec.inputs, self.spec.outputs))
        count = len(self._calls)
        return f"<{count} kernel{'s' * (count != 1)} for {places}: ({given}) -> {outputs}>"


def load_kernel(
    folder: str | PathLike[str], identifier: str | None = None, threads: int | None = None
) -> Kernel | GraphKernel:
    """The kernel of a folder that `superoptimize` saved, or of a fragment of an output folder of `mirage optimize`.

    `identifier` is the fragment's, its beginning, its name, or that of its operator (`norm_linear_0123456789abcdef`); it can
    be left out where the folder has one fragment only. `threads` is how many a call on the CPU uses (one by default). Raises
    UsageError for what no fragment is called, ModelError for a folder that is none of `optimize`, Refused for a library that
    anybody could have replaced.
    """
    if identifier is None and (Path(folder) / call_order.FILE).exists():
        return GraphKernel(Path(folder), threads)
    return kernels.load_kernel(folder, identifier, threads)


def _weights(folder: Path, names: Sequence[str]) -> list[NDArray[Any]]:
    """The elements of weights of the folder's model. Raises ModelError where they are missing."""
    import onnx_ir as ir  # noqa: PLC0415

    path = folder / MODEL
    try:
        held = ir.load(path).graph.initializers
        tensors_of_model = [held[name].const_value for name in names]
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path}: its weights cannot be read: {error}") from None
    return [np.array(t.numpy(), order="C") for t in tensors_of_model if t is not None]
