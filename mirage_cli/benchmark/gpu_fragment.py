"""A fragment of a user's model on a GPU beside PyTorch: the kernel by its C entry point, and its program as torch runs it.

The kernel is judged against the program's float64 result before it is timed and afterwards (`gpu.honest`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.benchmark.program_peer import TorchProgram
from mirage_cli.errors import CheckFailed, MirageError, ToolMissing
from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir.parts import in_parts, input_count, joined
from mirage_cli.lax.ir.program import Program
from mirage_cli.measurement import peers
from mirage_cli.measurement.gpu import COLD, GpuTimer, Prepared, honest
from mirage_cli.measurement.gpu_backends import HINT, TorchBackend
from mirage_cli.measurement.gpu_entry import Entry as KernelEntry
from mirage_cli.measurement.gpu_entry import Judged, Sets
from mirage_cli.measurement.timing import Distribution, Effort
from mirage_cli.optimization.fragment_models import FragmentModel
from mirage_cli.optimization.fragment_times import Entry
from mirage_cli.report.report import ISOLATED, KERNEL
from mirage_cli.runtime.sessions import numpy_type


def opened(number: int) -> GpuTimer:
    """A timer with torch. Raises ToolMissing, with the command that installs it, where there is no torch with CUDA."""
    try:
        backend = TorchBackend(number)
    except ImportError as e:
        raise ToolMissing(f"{e}", HINT) from None
    backend.torch.set_grad_enabled(False)
    return GpuTimer(number, backend)


def entries(
    timer: GpuTimer,
    fragment: FragmentModel,
    program: Program,
    library: Path,
    asked: tuple[str, ...],
    seconds: float,
    seed: int,
) -> tuple[Entry, ...]:
    """The kernel, chained and isolated, and the `asked` groups of peers that torch can be."""
    try:
        return _Fragment(timer, fragment, program, seed).run(
            library, asked, Effort(seconds, warm_seconds=0.01, least=15, most=200)
        )
    except MirageError as e:
        return (Entry(KERNEL, problem=f"failed: {e}"),)


class _Fragment:
    """A fragment's tensors in several sets."""

    def __init__(self, timer: GpuTimer, fragment: FragmentModel, program: Program, seed: int) -> None:
        assert isinstance(timer.backend, TorchBackend)
        self.timer, self.backend, self.spec = timer, timer.backend, fragment.spec
        self.sets = max(2, fragment.calls(COLD * self.backend.cache))
        symbols = self.spec.solve(fragment.shapes)
        given = fragment.inputs(self.sets, seed)
        self.inputs = []
        for i, (tensor, shape) in enumerate(zip(self.spec.inputs, fragment.shapes, strict=True)):
            sets = Sets(self.backend, tensor.dtype, shape, self.sets)
            for k in range(self.sets):
                name = f"in{i}_{k}"
                sets.put(k, given[name] if name in given else fragment.weight(i, k))
            self.inputs.append(sets)
        self.outputs = [
            Sets(self.backend, tensor.dtype, [ex.value(d, symbols) for d in tensor.dims], self.sets)
            for tensor in self.spec.outputs
        ]
        taken = self.inputs[: input_count(program)]  # what only the original nodes read comes behind them
        tensors = [[self.backend.tensor(tensor, k) for tensor in taken] for k in range(self.sets)]
        self.program, self.arguments = program, [joined(program, own, self.backend.torch.cat) for own in tensors]
        self.function = TorchProgram(self.backend.torch, program, self.backend.device, symbols)
        self.exact = TorchProgram(self.backend.torch, program, self.backend.device, symbols, wide=True)

    def wanted(self, number: int) -> list[tuple[NDArray[Any], NDArray[np.float64]]]:
        """The results of torch's operators for a set, one after the other, and in float64."""
        wholes = [self.arguments[number][k] for k in in_parts(self.program)]
        own, exact = ((*f(*self.arguments[number]), *wholes) for f in (self.function, self.exact))
        return [
            (self.backend.host(a, numpy_type(t.dtype)), np.asarray(b.double().cpu().numpy()))
            for t, a, b in zip(self.spec.outputs, own, exact, strict=True)
        ]

    def peers(self, asked: tuple[str, ...], effort: Effort) -> tuple[dict[str, Prepared], dict[str, str]]:
        """Peers that can run, and why others cannot."""
        right = self.exact(*self.arguments[0])
        torch = self.backend.torch
        makers: dict[str, Callable[[], Prepared]] = {}
        for group, make in (
            ("eager", lambda: self.function),
            ("compile", lambda: peers.compiled(torch, self.function)),
        ):
            if group in asked:
                name = peers.GROUPS[group][0]
                makers[name] = peers.torch_maker(self.timer, make, self.arguments, right, effort)
        return peers.prepare(self.timer, makers)

    def run(self, library: Path, asked: tuple[str, ...], effort: Effort) -> tuple[Entry, ...]:
        """All entries."""
        ready, problems = self.peers(asked, effort)
        times: dict[str, Distribution] | None = None
        entries_of_kernel: list[Entry] = []
        try:
            kernel = KernelEntry(self.backend, library, self.spec, self.inputs, self.outputs)
            subject = Judged(kernel.call, self.inputs, self.outputs, self.wanted, sorted({0, self.sets - 1}))
            timed = honest(self.timer, subject, self.sets, ready, effort)
            entries_of_kernel = [Entry(KERNEL, timed.chained), Entry(ISOLATED, timed.isolated)]
            times = dict(timed.others)
        except CheckFailed as e:
            entries_of_kernel = [Entry(KERNEL, problem=f"wrong: {e}")]
        except MirageError as e:
            entries_of_kernel = [Entry(KERNEL, problem=f"failed: {e}")]
        if times is None:
            times = self.timer.measure(ready, effort) if ready else {}
        entries_of_kernel += [Entry(n, us) for n, us in times.items()]
        return tuple(entries_of_kernel + [Entry(n, problem=text) for n, text in problems.items()])
