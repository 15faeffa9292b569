"""Candidates on the GPU: checked against float64, then timed. The work is done in a process of its own, so that a kernel
that crashes, or never ends, costs its own result only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mirage_cli.backends.spec import OperatorSpec
from mirage_cli.checks import kernel_check as checks
from mirage_cli.checks.kernel_check import Case, CheckJob, FloatCheck, Runner
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import from_numpy
from mirage_cli.lax.ir.parts import input_count, input_sources, joined
from mirage_cli.measurement import gpu_backends
from mirage_cli.measurement.gpu import Call, GpuTimer, Prepared, sets_for
from mirage_cli.measurement.gpu_entry import Entry, Sets, entry
from mirage_cli.measurement.timing import Distribution, Effort
from mirage_cli.measurement.turns import turn
from mirage_cli.numerics import edges
from mirage_cli.processes.isolation import Lost, Resident
from mirage_cli.runtime import sessions
from mirage_cli.tuning.cache import Measurement
from mirage_cli.tuning.candidates import LOST

Array: TypeAlias = NDArray[Any]
START_SECONDS, CHECK_SECONDS, TIME_SECONDS = 180.0, 180.0, 60.0  #: after which a process is ended
QUICK_WORK = 2e8  #: multiply-adds of an operator from which on the ends of free axes stand for a candidate's answers
_ALONE = "\0"  #: the name of the other kernel's chain among the contestants
_LEAST = 1e-3  #: microseconds
WRONG = "wrong"  #: how a problem begins that is one of the answers
WARM = Effort(warm_up=1, warm_seconds=2e-3, sample_seconds=5e-4)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The fragment in front of one in the model: its description, and what its symbols typically are."""

    spec: OperatorSpec
    symbols: dict[str, int]


@dataclass(frozen=True, slots=True)
class BenchJob:
    """A fragment to be timed on GPU `device`: its check (the library of it is not read), what its symbols typically are, the
    provider of onnxruntime that runs the original nodes, where it is installed, else the CPU does, and what is in front."""

    check: CheckJob
    symbols: dict[str, int]
    device: int = 0
    provider: str = "cuda"
    beside: Neighbour | None = None


class Measured:
    """A fragment on the GPU: inputs and outputs in enough sets to be cold, the cases of its check, its right answers.

    Lives in a process of its own (`IsolatedBench`).
    """

    def __init__(self, job: BenchJob) -> None:
        """Raises MirageError where the GPU or onnxruntime fails."""
        self.job = job
        self.backend = gpu_backends.opened(job.device)
        self.timer = GpuTimer(job.device, self.backend)
        provider = job.provider if job.provider in sessions.providers() else "cpu"
        self.original = self._in_turn(checks.original_runner(job.check, provider, job.device))
        spec, given = job.check.spec, job.check
        shapes = [[ex.value(d, job.symbols) for d in t.dims] for t in (*spec.inputs, *spec.outputs)]
        tensors = [*zip((*spec.inputs, *spec.outputs), shapes, strict=True)]
        size = sum(math.prod(shape) * t.dtype.bytes for t, shape in tensors)
        self.sets = sets_for(size, self.backend.cache)
        with turn(job.device, alone=False):
            sets = [Sets(self.backend, t.dtype, shape, self.sets) for t, shape in tensors]
            self.inputs, self.outputs = sets[: len(spec.inputs)], sets[len(spec.inputs) :]
            self._draw(given)
            arrays = joined(given.program, [t.get(0) for t in self.inputs[: input_count(given.program)]])
            self.sums = [t.backend.checksum(t.memory) for t in self.inputs]
        self.reference = checks.case_of(given.program, checks.TYPICAL, arrays, job.symbols, self.original, QUICK_WORK)
        self._cases: list[Case | str] | None = None
        self._neighbours: dict[Path, Entry] = {}

    def _in_turn(self, original: Runner) -> Runner:
        """The original, which waits where others time."""

        def run(arrays: Sequence[NDArray[Any]], symbols: Mapping[str, int]) -> Sequence[NDArray[Any]]:
            with turn(self.job.device, alone=False):
                return original(arrays, symbols)

        return run

    def _draw(self, given: CheckJob) -> None:
        """Draw the inputs of every set."""
        random, sources = np.random.default_rng(given.seed), input_sources(given.program)
        extra = checks.extra_arrays(given, self.job.symbols)
        for k, tensor in enumerate(self.inputs):
            constant = given.constants.get(k) if k < len(sources) else extra[k - len(sources)]
            if constant is None and tensor.dtype.is_float:
                tensor.draw(given.seed + k)
                continue
            for number in range(self.sets):
                drawn = constant if constant is not None else edges.draw(sources[k], tensor.shape, "random", random)
                tensor.put(number, drawn)

    def ready(self) -> str:
        """The name of what times calls: it is there once this can be asked. Raises MirageError when a kernel has left
        the device in a state that it does not come out of."""
        with self.backend.failures():
            self.backend.synchronize()
        return self.backend.name

    # --- answers ------------------------------------------------------------------------------------------------------
    def check(self, library: Path) -> str:
        """The fault in a library's answers in any case of the check; nothing when they are right."""
        verdict = self.checked(library)
        return "" if verdict.passed else f"{WRONG} ({verdict.case} inputs): {verdict.worst}"

    def checked(self, library: Path) -> FloatCheck:
        """The verdict over the cases of the check."""
        return checks.judge(self.job.check.program, self._runner(library), self.cases)

    @property
    def cases(self) -> list[Case | str]:
        """The cases of the check, made when they are first asked for: most candidates are held against one only."""
        if self._cases is None:
            self._cases = list(checks.cases_of(self.job.check, self.original, parts=True))
        return self._cases

    def answers(self, library: Path) -> str:
        """The fault in what a library writes in every set at the sizes that are timed, the first against float64."""
        with turn(self.job.device, alone=False):
            self._poison()
            self.timer.run(self._entry(library).call, self.sets)
            return self._written()

    def _poison(self) -> None:
        for tensor in self.outputs:
            tensor.poison()

    def _written(self) -> str:
        """The fault in the outputs as they are now: an input changed, elements not written, the first set's values."""
        for k, (tensor, before) in enumerate(zip(self.inputs, self.sums, strict=True)):
            if tensor.backend.checksum(tensor.memory) != before:
                return f"{WRONG}: it changes input {k}"
        for k, tensor in enumerate(self.outputs):
            if count := tensor.unwritten():
                return f"{WRONG}: it leaves {count} elements of output {k} unwritten"
        accuracy = self.reference.compared(self.job.check.program, [t.get(0) for t in self.outputs])
        return "" if accuracy.passed else f"{WRONG} ({self.reference.name} inputs): {accuracy}"

    def _entry(self, library: Path) -> Entry:
        return Entry(self.backend, library, self.job.check.spec, self.inputs, self.outputs)

    def _runner(self, library: Path) -> Runner:
        """The kernel of a library as a function on arrays of the host."""
        spec, backend = self.job.check.spec, self.backend
        with turn(self.job.device, alone=False):
            weights = {id(a): self._uploaded(a) for a in self.job.check.constants.values()}

        def run(arrays: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
            given = checks.kernel_inputs(self.job.check, arrays, symbols)
            with turn(self.job.device, alone=False):
                return called(given, symbols)

        def called(given: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
            inputs = [weights.get(id(a)) or self._uploaded(a) for a in given]
            outputs = [Sets(backend, t.dtype, [ex.value(d, symbols) for d in t.dims], 1) for t in spec.outputs]
            for tensor in outputs:
                tensor.poison()
            self.timer.run(Entry(backend, library, spec, inputs, outputs).call, 1)
            return [t.get(0) for t in outputs]

        return run

    def _uploaded(self, array: Array) -> Sets:
        """An array in device memory."""
        dtype = from_numpy(array.dtype)
        assert dtype is not None
        tensor = Sets(self.backend, dtype, array.shape, 1)
        tensor.put(0, array)
        return tensor

    # --- times --------------------------------------------------------------------------------------------------------
    def time(self, libraries: Sequence[Path], samples: int, beside: Path | None = None) -> list[Measurement]:
        """Times of one call of each, chained, with cold caches, sampled in turns; what the timed calls wrote is judged. With
        the library of the fragment `beside`, calls of that stand between them; their time in a chain is taken off."""
        entries = {str(k): self._entry(library) for k, library in enumerate(libraries)}
        calls: dict[str, Call] = {name: e.call for name, e in entries.items()}
        alone: dict[str, Prepared] = {}
        if beside is not None:
            other = self._neighbour(beside)
            calls = {name: _behind(other, call) for name, call in calls.items()}
            alone = {_ALONE: self.timer.prepare(other.call, len(other), WARM)}
        prepared = {name: self.timer.prepare(call, self.sets, WARM) for name, call in calls.items()}
        times = self.timer.measure(prepared | alone, replace(WARM, runs=samples))
        less = times[_ALONE].median if alone else 0.0
        measurements = []
        for name, graph in prepared.items():
            self._poison()
            self.backend.sample(graph.graph)
            problem = self._written()
            measurements.append(Measurement(None, problem=problem) if problem else measurement(times[name], less))
        return measurements

    def _neighbour(self, library: Path) -> Entry:
        """What is in front of the fragment, with its own inputs in enough sets to be cold; made while nobody else is timed."""
        assert self.job.beside is not None
        if library not in self._neighbours:
            spec, symbols = self.job.beside.spec, self.job.beside.symbols
            shapes = [[ex.value(d, symbols) for d in t.dims] for t in spec.inputs]
            size = sum(math.prod(s) * t.dtype.bytes for s, t in zip(shapes, spec.inputs, strict=True))
            sets = sets_for(size, self.backend.cache)
            self._neighbours[library] = entry(self.backend, library, spec, shapes, sets, self.job.check.seed)
        return self._neighbours[library]


def _behind(other: Entry, call: Call) -> Call:
    """Another kernel's call, then this one."""

    def both(number: int, stream: int) -> None:
        other.call(number % len(other), stream)
        call(number, stream)

    return both


def measurement(times: Distribution, less: float = 0.0) -> Measurement:
    """Median, quartiles and number of samples, of which `less` is others' time."""
    low, high = times.quartiles
    median = times.median
    us, low, high = (max(us - less, _LEAST) for us in (median, min(low, median), max(high, median)))
    return Measurement(us, low, high, len(times.samples))


def new_process() -> Resident:
    """A process for one `IsolatedBench` after the other, which begins with the first."""
    return Resident(Measured, (), START_SECONDS)


class IsolatedBench:
    """`Measured` in a process of its own, which is ended when a call takes too long and begun again for the next one. A
    process that has measured another job may be given: loading the GPU's library takes longer than a candidate. `beside` gives
    the library of the fragment in front of this one, once it is built."""

    def __init__(self, job: BenchJob, process: Resident | None = None) -> None:
        self.job = job
        self.beside: Callable[[], Path | None] = lambda: None
        self._resident = process or Resident(Measured, (job,), START_SECONDS)

    def begin(self) -> None:
        """Begin, without waiting for the process."""
        self._resident.renew((self.job,))

    def start(self) -> str:
        """Wait until the process can be asked; why it cannot, or nothing. One whose device has failed is begun again."""
        if not isinstance(self._resident.call("ready", (), START_SECONDS), Lost):
            return ""
        self._resident.close()
        answer = self._resident.call("ready", (), START_SECONDS)
        return answer.reason if isinstance(answer, Lost) else ""

    def answers(self, library: Path) -> str:
        """The fault in a library's answers to typical inputs, or why they are not known; nothing when they are right."""
        return self._fault("answers", library, TIME_SECONDS)

    def check(self, library: Path) -> str:
        """The same in every case of the check."""
        return self._fault("check", library, CHECK_SECONDS)

    def _fault(self, method: str, library: Path, seconds: float) -> str:
        answer = self._resident.call(method, (library,), seconds)
        return f"{LOST} checked: {answer.reason}" if isinstance(answer, Lost) else str(answer)

    def time(self, libraries: Sequence[Path], samples: int, step: bool = False) -> list[Measurement]:
        """Times of one call of each, in a `step` behind the fragment in front of it, where there is one and it can be timed;
        where all together fail, of each alone."""
        beside = (self.beside(),) if step else (None,)
        with turn(self.job.device, alone=True):
            answer: list[Measurement] | Lost = self._resident.call(
                "time", (list(libraries), samples, *beside), TIME_SECONDS
            )
        if not isinstance(answer, Lost):
            return answer
        if step:
            return self.time(libraries, samples)
        if len(libraries) == 1:
            return [Measurement(None, problem=f"{LOST} timed: {answer.reason}")]
        return [self.time([library], samples)[0] for library in libraries]

    @property
    def stuck(self) -> str:
        """Why the device cannot be asked any more, by nobody: a process of it does not end."""
        return self._resident.stuck

    def close(self) -> None:
        """End the process."""
        self._resident.close()
