"""The tuning of one fragment as a job: on this machine's GPU, or on a worker's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mirage_cli.backends.compile import own_compiler
from mirage_cli.backends.toolchain import Tool
from mirage_cli.codegen.requests.passes import Passes
from mirage_cli.farm import performing
from mirage_cli.files import codec
from mirage_cli.files.staging import Scratch
from mirage_cli.lax.ir.program import Program
from mirage_cli.measurement.timing import WallClock
from mirage_cli.processes.isolation import Resident
from mirage_cli.processes.jobs import Job, Kind
from mirage_cli.search.schedules.fitted import Strip
from mirage_cli.search.schedules.target import Target, load_target
from mirage_cli.search.search import Candidate
from mirage_cli.tuning.bench import BenchJob, IsolatedBench, new_process
from mirage_cli.tuning.build import Settings, Workshop
from mirage_cli.tuning.cache import Measurement, Number, Settled, Text, consistent
from mirage_cli.tuning.candidates import FIRST, Limits, Trial, Tuned, tune

AT_A_TIME = 4  #: jobs here: while one has the GPU, others are rendered, compiled and held against float64
PATIENCE = 1800.0  #: seconds after which a worker's GPU is given up: a job has limits of its own for all that it does


@dataclass(frozen=True, slots=True)
class Beside:
    """The fragment in front of one in the model, with the choice that is made of it."""

    identifier: str
    program: Program
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class TuneJob:
    """A fragment whose candidates are to be timed: they (by their hashes, the model's own choice first), what is `known`
    of them, its check, target, architecture and passes, how thoroughly, what a worker has to offer, and what is in front of
    it."""

    identifier: str
    program: Program
    pool: tuple[tuple[str, Candidate], ...]
    known: dict[str, Measurement]
    bench: BenchJob
    target: str
    architecture: str
    passes: Passes
    asked: Settled
    needs: tuple[str, ...] = ()
    beside: Beside | None = None


class Bench:
    """Where candidates are compiled and run: nvcc, compilations at a time, the folder of kept objects, and the processes that
    measure one job after the other."""

    def __init__(self, nvcc: Tool, jobs: int, cache: Path | None) -> None:
        self.nvcc, self.jobs, self.cache = nvcc, jobs, cache
        self._free: list[Resident] = []
        self._taken: list[Resident] = []
        self._ended = ""

    @contextlib.contextmanager
    def process(self) -> Iterator[Resident]:
        """A process for one job, which is nobody else's meanwhile."""
        taken = self._free.pop() if self._free else new_process()
        self._taken.append(taken)
        try:
            if self._ended:
                taken.close(self._ended)
            yield taken
        finally:
            self._taken.remove(taken)
            self._free.append(taken)

    def close(self, why: str = "the run has ended") -> None:
        """End all processes, those that jobs have too."""
        self._ended = why
        for process in (*self._free, *self._taken):
            process.close(why)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a job: the trials, how long it took, and why the GPU cannot be asked any more, if so."""

    tuned: Tuned
    seconds: float = 0.0
    stuck: str = ""


def measured(job: TuneJob, at: Bench, keep: Callable[[Sequence[Trial]], None] = lambda trials: None) -> Outcome:
    """Time candidates; `keep` is told every new trial at once. Raises MirageError."""
    clock = WallClock()
    start = clock.now()
    with at.process() as process, Scratch("mirage-tuning-") as folder, ThreadPoolExecutor(1) as aside:
        bench = IsolatedBench(job.bench, process)
        bench.begin()
        settings = Settings(at.nvcc, job.architecture, at.jobs, at.cache)
        target = load_target(job.target)
        workshop = Workshop(job.identifier, job.program, target, job.passes, folder, settings)
        error = target.error if job.program.packed is None else target.packed_error
        least = target.fitted(Strip).launch_us
        limits = Limits(job.asked.candidates, job.asked.seconds, max(FIRST, at.jobs), error, least)
        if job.beside is not None:
            bench.beside = aside.submit(_built_beside, job.beside, target, job.passes, folder, settings).result
        tuned = tune(dict(job.pool), job.known, workshop, bench, limits, clock, keep)
    return Outcome(tuned, clock.now() - start, bench.stuck)


def _built_beside(beside: Beside, target: Target, passes: Passes, folder: Path, settings: Settings) -> Path | None:
    """The library of what is in front of a fragment; None where it cannot be built."""
    own = folder / "beside"
    own.mkdir()
    (built,) = Workshop(beside.identifier, beside.program, target, passes, own, settings).build([beside.candidate])
    return built if isinstance(built, Path) else None


# --- on another machine -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Row:
    """What became of a candidate."""

    key: Text
    value: Measurement
    known: bool = False


@dataclass(frozen=True, slots=True)
class _Outcome:
    trials: list[_Row]
    complete: bool
    problem: str
    seconds: Number


def _rows(trials: Sequence[Trial]) -> list[Any]:
    return [{"key": t.key, "value": t.result.to_json(), "known": t.known} for t in trials]


def _elsewhere(job: TuneJob, tell: Callable[[Any], None] = lambda content: None) -> Any:
    """A job on a worker, whose only device is number 0."""
    at = Bench(own_compiler(cuda=True), performing.cores(), None)
    try:
        outcome = measured(replace(job, bench=replace(job.bench, device=0)), at, lambda trials: tell(_rows(trials)))
    finally:
        at.close()
    tuned = outcome.tuned
    return {
        "trials": _rows(tuned.trials),
        "complete": tuned.complete,
        "problem": outcome.stuck or tuned.problem,
        "seconds": outcome.seconds,
    }


def _trials(rows: Sequence[_Row], job: TuneJob) -> list[Trial]:
    """Trials as a worker tells them; those that were known stay as they were. Raises ValueError for candidates of nobody."""
    pool = dict(job.pool)
    if unknown := [r.key for r in rows if r.key not in pool]:
        raise ValueError(f"a time of {unknown[0]}, which is no candidate")
    return [
        Trial(pool[r.key], r.key, job.known[r.key], True)
        if r.known and r.key in job.known
        else Trial(pool[r.key], r.key, consistent(r.value))
        for r in rows
    ]


def _read(document: Any, args: Job) -> Outcome:
    found = codec.checked(document, _Outcome)
    tuned = Tuned(_trials(found.trials, args[0]), found.complete, found.problem, args[0].pool[0][0])
    return Outcome(tuned, found.seconds)


def _heard(content: Any, args: Job) -> list[Trial]:
    return _trials(codec.checked(content, list[_Row]), args[0])


TUNE = Kind(
    f"{__name__}:TUNE",
    measured,
    _elsewhere,
    _read,
    packed=lambda job, _: (job,),
    needs=lambda job, _: job.needs,
    gpu=True,
    at_a_time=AT_A_TIME,
    stop=lambda job, at, *_: at.close(),
    heard=_heard,
    seconds=PATIENCE,
)
