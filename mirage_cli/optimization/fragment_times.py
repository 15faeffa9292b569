"""Measuring fragments: the original nodes against the operator, on the device where they are to run.

Answers are compared before anything is timed; what gives other answers is reported as wrong and has no time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import onnx

from mirage_cli.errors import MirageError
from mirage_cli.files import codec
from mirage_cli.files.output import LIBRARY
from mirage_cli.files.staging import Scratch
from mirage_cli.machine import devices
from mirage_cli.measurement.contestant import Contestant, OrtContestant, Place, agreement
from mirage_cli.measurement.timing import Distribution, Effort, Timer, WallClock, paired, ratio
from mirage_cli.optimization.fragment_models import FragmentModel
from mirage_cli.processes import isolation
from mirage_cli.processes.isolation import Lost
from mirage_cli.processes.jobs import Crew, Here, Kind
from mirage_cli.report import forms
from mirage_cli.runtime import sessions
from mirage_cli.runtime.example import example_inputs

ORIGINAL, MIRAGE = "original", "mirage"
WRONG = "wrong"  #: how a problem begins of a kernel that gives other answers
CRASHED = "crashed"  #: how a problem begins that ended the process that measured, or took too long
UNCOMPARED = "not measured: there are no answers of the original to compare with"
COLD = 4  #: a model's tensors are this many times the cache, where its limits allow
CALL_SECONDS = 0.1  #: calls of an operator in one model are as many as this leaves room for
SETS = 2  #: sets of inputs for a model that calls its operator once


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant's result: microseconds for one call, or why there are none ("wrong: ...", "failed: ...", "crashed: ...").

    `error` is the relative error of its answers against the original's.
    """

    name: str
    us: Distribution | None = None
    problem: str = ""
    error: float | None = None

    def to_json(self) -> dict[str, Any]:
        """A row of the report of `bench`."""
        data: dict[str, Any] = {"name": self.name, "us": self.us.to_json() if self.us else None}
        data |= {"problem": self.problem} if self.problem else {}
        return data | ({"relative_error": float(f"{self.error:.3g}")} if self.error is not None else {})


@dataclass(frozen=True, slots=True)
class Comparison:
    """Contestants measured against each other, the original first; `calls` of the operator made one run of a model,
    `graph` tells whether they were replays of a CUDA graph, `notes` what was not done as usual."""

    entries: tuple[Entry, ...]
    calls: int = 1
    graph: bool = False
    notes: tuple[str, ...] = ()

    def entry(self, name: str) -> Entry:
        """The result of a contestant."""
        return next((e for e in self.entries if e.name == name), Entry(name, problem="not measured"))

    @property
    def speedup(self) -> Distribution | None:
        """The original's time over ours, round by round; None unless both were timed."""
        original, ours = self.entry(ORIGINAL).us, self.entry(MIRAGE).us
        return ratio(original, ours) if original and ours else None

    @property
    def faster(self) -> bool:
        """True if the operator gives the same answers in less time."""
        return self.speedup is not None and self.speedup.median > 1

    def measured(self, device: str) -> forms.Measured:
        """The form of a fragment's `measured` in report.json; a time is null where there is none."""

        def median(e: Entry) -> float | None:
            return round(e.us.median, 3) if e.us else None

        row: forms.Measured = {
            "device": device,
            "original_us": median(self.entry(ORIGINAL)),
            "mirage_us": median(self.entry(MIRAGE)),
            "peers": {e.name: median(e) for e in self.entries if e.name not in (ORIGINAL, MIRAGE)},
        }
        problems = {e.name: e.problem for e in self.entries if e.problem}
        return {**row, "problems": problems} if problems else row


def compare(
    makers: Mapping[str, Callable[[], Contestant]],
    effort: Effort,
    timer: Timer | None = None,
    calls: int = 1,
    unit: float = 0.0,
) -> Comparison:
    """Make the contestants (the one called "original" first), check their answers against the original's, time those
    that agree (`agreement`, with at least `unit`). Times are of one of `calls` that a contestant's call makes."""
    ready: dict[str, Contestant] = {}
    entries: dict[str, Entry] = {}
    wanted = None
    for name in sorted(makers, key=lambda n: n != ORIGINAL):
        try:
            contestant = makers[name]()
            answers = contestant.answers()
        except MirageError as e:
            entries[name] = Entry(name, problem=f"failed: {e}")
            continue
        if name == ORIGINAL:
            wanted, verdict = answers, None
        elif wanted is None:
            entries[name] = Entry(name, problem=UNCOMPARED)
            continue
        else:
            verdict = agreement(answers, wanted, unit)
        if verdict is not None and not verdict.passed:
            entries[name] = Entry(name, problem=f"{WRONG}: {verdict.problem}")
            continue
        entries[name] = Entry(name, error=verdict.error if verdict else None)
        ready[name] = contestant
    if ready:
        times = paired({name: contestant.call for name, contestant in ready.items()}, effort, timer)
        entries |= {name: replace(entries[name], us=us.scaled(1 / calls)) for name, us in times.items()}
    return Comparison(tuple(entries.values()), calls)


def lost_comparison(reason: Lost) -> Comparison:
    """The comparison where the process that measured has ended."""
    return Comparison(tuple(Entry(name, problem=f"{CRASHED}: {reason.reason}") for name in (ORIGINAL, MIRAGE)))


def measure_fragment(
    fragment: FragmentModel, library: Path, place: Place, effort: Effort, seed: int = 0, timer: Timer | None = None
) -> Comparison:
    """The original nodes of a fragment against its operator in `library`.

    On CUDA both run as replays of a CUDA graph, or both without where onnxruntime cannot capture one of them.
    """
    timer = timer or WallClock()
    calls = fragment.calls(COLD * devices.cache_bytes(place.provider))
    if calls > 1:
        try:
            calls = min(calls, max(1, int(CALL_SECONDS / _seconds(fragment, place, seed, timer))))
        except MirageError as e:
            ours = Entry(MIRAGE, problem=f"{UNCOMPARED}: {e}")
            return Comparison((Entry(ORIGINAL, problem=f"failed: {e}"), ours))
    model = fragment.model(calls)
    cuda = place.provider == "cuda"
    sets = [fragment.inputs(calls, seed + k) for k in range(1 if calls > 1 or cuda else SETS)]

    def attempt(graph: bool) -> Comparison:
        makers: dict[str, Callable[[], Contestant]] = {
            ORIGINAL: lambda: OrtContestant(model, None, sets, place, graph),
            MIRAGE: lambda: OrtContestant(model, library, sets, place, graph),
        }
        return replace(compare(makers, effort, timer, calls, fragment.unit), graph=graph)

    comparison = attempt(cuda)
    problems = [f"{e.name}: {e.problem}" for e in comparison.entries if e.problem.startswith("failed")]
    if cuda and problems:
        comparison = attempt(False)
        comparison = replace(comparison, notes=(f"measured without CUDA graphs ({problems[0]})",))
    return comparison


def _seconds(fragment: FragmentModel, place: Place, seed: int, timer: Timer) -> float:
    """About how long one call of the original nodes takes."""
    one = OrtContestant(fragment.model(1), None, [fragment.inputs(1, seed)], place)
    one.call()
    start = timer.now()
    one.call()
    return max(timer.now() - start, 1e-9)


def measure_fragments(
    fragments: Mapping[str, FragmentModel],
    library: Path,
    place: Place,
    effort: Effort | None = None,
    seed: int = 0,
    step: Callable[[str], None] = lambda text: None,
    crew: Crew | None = None,
    needs: tuple[str, ...] = (),
) -> dict[str, Comparison]:
    """Measure each fragment by identifier, in a process of its own, or on a worker of a crew that offers what it `needs`; for
    `optimize --gpu`, which replaces only those found to be `faster` and stores their rows, `measured(devices.name(...))`,
    in the report.

    `fragments` are made by `fragment_models.from_work` before the model is patched, `library` is the one just built
    (nothing else of the output folder is needed), `step` is told the name of each when it is done. A fragment that
    cannot be measured has entries with problems and is not `faster`.
    """
    comparisons = {}
    names = list(fragments)
    jobs = [(fragments[name], library, place, effort or Effort(), seed, needs) for name in names]
    for k, outcome in (crew or Here()).each(MEASURE, jobs, apart=True):
        comparisons[names[k]] = lost_comparison(outcome) if isinstance(outcome, Lost) else outcome
        step(fragments[names[k]].spec.op_type)
    return comparisons


def _one(*job: Any) -> Comparison:
    return measure_fragment(*job[:5])


def _elsewhere(fragment: FragmentModel, library: bytes, place: Place, effort: Effort, seed: int) -> Any:
    """A measurement on a worker, whose only device is number 0."""
    with Scratch("mirage-measure-") as folder:
        (folder / LIBRARY).write_bytes(library)
        own = replace(place, device=0)
        return msgspec.to_builtins(measure_fragment(fragment, folder / LIBRARY, own, effort, seed))


MEASURE = Kind(
    f"{__name__}:MEASURE",
    _one,
    _elsewhere,
    lambda document, _: codec.checked(document, Comparison),
    packed=lambda fragment, library, *rest: (fragment, library.read_bytes(), *rest[:3]),
    needs=lambda *job: job[5],
    gpu=True,
    seconds=600.0,
)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a whole model: the original, the patched one and its library."""

    original: str
    patched: str
    library: str


def measure_model(files: Files, sizes: Mapping[str, int], seed: int = 0, max_memory: int = 0) -> Comparison:
    """The original model against the patched one with its library on the CPU, at sizes of symbols, in a process of its own. A
    file that onnxruntime does not read, such as a TorchScript module, is stood for by the patched one without its library."""
    for _, outcome in isolation.each(_measured_model, [(files, dict(sizes), seed)], 1, max_memory, apart=True):
        return lost_comparison(outcome) if isinstance(outcome, Lost) else outcome
    return Comparison(())


def _measured_model(files: Files, sizes: Mapping[str, int], seed: int) -> Comparison:
    """The same, in this process."""
    model = onnx.load(files.patched, load_external_data=False)
    sets = [example_inputs(model, sizes, seed + k) for k in range(SETS)]
    original = files.original if files.original.endswith(".onnx") else files.patched
    tensors = [v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)]
    tensors += [t.data_type for t in model.graph.initializer]
    unit = sessions.coarsest_unit(tensors, sessions.original_nodes(model))
    makers: dict[str, Callable[[], Contestant]] = {
        ORIGINAL: lambda: OrtContestant(Path(original), None, sets, Place()),
        MIRAGE: lambda: OrtContestant(Path(files.patched), Path(files.library), sets, Place()),
    }
    return compare(makers, Effort(), unit=unit)
