"""Timing work on a GPU, the one place where it is done.

A contestant is a call that puts its work on a stream for one of several sets of inputs and outputs. Its calls for all
sets, as often as makes a sample long enough, are captured as one CUDA graph; contestants' graphs are replayed in turns
and timed by events on their stream, so that neither the host nor drift decides. The sets together exceed the
second-level cache `COLD` times, so that every call finds its inputs in memory, and hold different values.

Two ways to time a call:

- *chained*: calls follow each other in the graph with nothing between them. A kernel that is launched as a programmatic
  dependent one may begin while the one before it ends, as in a model.
- *isolated*: after each call the graph has an ordinary kernel of one thread, which begins when the call has ended and
  ends before the next one begins. What a graph of these alone takes is subtracted, so a call's own launch remains.

`honest` is how a kernel of ours is timed: outputs are poisoned and compared with the right ones before the first sample,
and again after the graphs that were timed; a kernel that fails has no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from mirage_cli.errors import CheckFailed
from mirage_cli.machine import devices
from mirage_cli.measurement import gpu_backends
from mirage_cli.measurement.timing import MICROSECONDS, Distribution, Effort, paired
from mirage_cli.numerics.accuracy import Accuracy

#: puts the work for one set (its number comes first) on a stream (its address); raises MirageError when it cannot
Call: TypeAlias = Callable[[int, int], object]
COLD = 4  #: times the second-level cache that all sets of inputs and outputs together exceed
MAX_SETS = 1024
MAX_CALLS = 4096  #: of a graph
OURS = "mirage"
_SPACERS = "\0"  #: the name of the graph of spacers among the contestants
#: about half a second for all contestants of a measurement
DEFAULT = Effort(seconds=0.5, warm_up=2, warm_seconds=0.01, sample_seconds=1e-3, least=15, most=200)


Graph: TypeAlias = Any  #: captured work, which its backend can replay


class Backend(Protocol):
    """The services of a GPU for the timer: memory and work on one stream. Errors are MirageErrors."""

    name: str  #: the library behind it, with its version
    cache: int  #: bytes of the second-level cache

    def run(self, work: Callable[[int], object]) -> None:
        """Do work on the stream, whose address it is given; done when it returns."""

    def capture(self, work: Callable[[int], object]) -> Graph:
        """Record work on the stream instead of doing it; what the work returns lives as long as the graph."""

    def sample(self, graph: Graph) -> float:
        """Microseconds between events before and after one replay, behind work that empties the cache."""

    def spacer(self, stream: int) -> None:
        """Put an ordinary kernel of one thread on the stream."""


class Subject(Protocol):
    """A kernel to be timed, with outputs that can be judged."""

    def call(self, number: int, stream: int) -> object:
        """Compute one set."""

    def poison(self) -> None:
        """Overwrite all outputs with NaN."""

    def verdict(self) -> Accuracy:
        """The accuracy of the outputs that are there now; not passed when any was not written."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A captured contestant: its graph makes `calls` calls."""

    graph: Graph
    calls: int


@dataclass(frozen=True, slots=True)
class Timed:
    """A kernel's times in microseconds for one call, those of the others it was timed beside, and its accuracy."""

    chained: Distribution
    isolated: Distribution
    others: Mapping[str, Distribution]
    accuracy: Accuracy


class _DeviceClock:
    """A clock that only replays move."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        """Seconds of all samples so far."""
        return self.seconds


def sets_for(size: int, cache: int) -> int:
    """Number of sets of inputs and outputs of `size` bytes that exceed the cache `COLD` times; at least two."""
    return max(2, min(MAX_SETS, COLD * cache // max(size, 1) + 1))


class GpuTimer:
    """Times calls on one GPU; `backend` is for tests, otherwise torch is taken, or cupy where there is no torch."""

    def __init__(self, number: int = 0, backend: Backend | None = None) -> None:
        """Raises ToolMissing without a GPU or without torch and cupy, UsageError for a number that does not exist."""
        self.number = number
        self.backend: Backend = backend if backend is not None else gpu_backends.opened(number)

    def state(self) -> dict[str, str]:
        """The device, its driver and its clocks, temperature and reasons for throttling at this moment."""
        device = devices.device(self.number)
        known = {"device": device.name, "driver": device.driver, "timed_with": self.backend.name}
        return known | devices.state(self.number)

    def run(self, call: Call, sets: int) -> None:
        """Make the calls for all sets, without timing."""
        self.backend.run(lambda stream: [call(k, stream) for k in range(sets)])

    def prepare(self, call: Call, sets: int, effort: Effort = DEFAULT, isolated: bool = False) -> Prepared:
        """Warm a contestant up and capture it. Raises MirageError where it fails."""
        self.run(call, sets)

        def graph(cycles: int) -> Graph:
            def work(stream: int) -> list[object]:
                outputs = []
                for _ in range(cycles):
                    for k in range(sets):
                        outputs.append(call(k, stream))  # kept: outputs of one call are not the memory of the next
                        if isolated:
                            self.backend.spacer(stream)
                return outputs

            return self.backend.capture(work)

        once = graph(1)
        self.backend.sample(once)
        seconds = self.backend.sample(once) / MICROSECONDS
        wanted = math.ceil(effort.sample_seconds / seconds) if seconds > 0 else MAX_CALLS
        cycles = max(1, min(wanted, MAX_CALLS // sets))
        return Prepared(once if cycles == 1 else graph(cycles), sets * cycles)

    def measure(self, contestants: Mapping[str, Prepared], effort: Effort = DEFAULT) -> dict[str, Distribution]:
        """Microseconds for one call of each contestant, replayed in turns."""
        clock = _DeviceClock()

        def replay(prepared: Prepared) -> Callable[[], None]:
            def call() -> None:
                clock.seconds += self.backend.sample(prepared.graph) / MICROSECONDS

            return call

        times = paired({name: replay(p) for name, p in contestants.items()}, effort, clock)
        return {name: us.scaled(1 / contestants[name].calls) for name, us in times.items()}

    def times(
        self, calls: Mapping[str, Call], sets: int, effort: Effort = DEFAULT, isolated: bool = False
    ) -> dict[str, Distribution]:
        """Microseconds for one call of each contestant, chained or `isolated`; the first that fails raises MirageError."""
        prepared = {name: self.prepare(call, sets, effort, isolated) for name, call in calls.items()}
        if not isolated:
            return self.measure(prepared, effort)
        prepared[_SPACERS] = self.prepare(lambda k, stream: self.backend.spacer(stream), sets, effort)
        chained = self.measure(prepared, effort)
        spacer = chained.pop(_SPACERS).median
        return {name: Distribution(tuple(us - spacer for us in d.samples)) for name, d in chained.items()}


def honest(
    timer: GpuTimer, subject: Subject, sets: int, others: Mapping[str, Prepared] | None = None, effort: Effort = DEFAULT
) -> Timed:
    """Judge a kernel, time it in turns with `others`, judge what the timed graphs wrote.

    Raises CheckFailed when its outputs are wrong at any of these moments, MirageError when it cannot run.
    """
    subject.poison()
    timer.run(subject.call, sets)
    accuracy = _passed(subject, "before it was timed")
    ours = timer.prepare(subject.call, sets, effort)
    subject.poison()
    chained = timer.measure({**(others or {}), OURS: ours}, effort)
    _passed(subject, "in the timed graph of chained calls")
    subject.poison()
    isolated = timer.times({OURS: subject.call}, sets, effort, isolated=True)
    _passed(subject, "in the timed graph of isolated calls")
    return Timed(chained.pop(OURS), isolated[OURS], chained, accuracy)


def _passed(subject: Subject, when: str) -> Accuracy:
    verdict = subject.verdict()
    if not verdict.passed:
        raise CheckFailed(f"wrong answers {when}: {verdict}")
    return verdict
