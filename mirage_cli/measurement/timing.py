"""Timing several things against each other: warmed up, in turns, with medians and quartiles.

One sample is the time of a call, or of as many calls in a row as make it long against the clock's own error. Contestants
take turns sample by sample and the order within a round rotates, so that drift (heat, clock rates, other programs) meets
all of them alike. The clock is an argument: the logic is tested with one that follows a script.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

MICROSECONDS = 1e6


class Timer(Protocol):
    """A clock."""

    def now(self) -> float:
        """Seconds since some fixed moment; never less than before."""


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return time.perf_counter()


@dataclass(frozen=True, slots=True)
class Effort:
    """The length of a measurement: `runs` samples of each contestant, or as many as fit into `seconds` for all of
    them together, between `least` and `most`. A sample lasts at least `sample_seconds`. Each contestant is warmed
    up by one call that does not count, `warm_up` more and as many as it takes to run for `warm_seconds`."""

    seconds: float = 2.0
    runs: int | None = None
    warm_up: int = 2
    warm_seconds: float = 0.02
    sample_seconds: float = 1e-3
    least: int = 5
    most: int = 500


@dataclass(frozen=True, slots=True)
class Distribution:
    """Samples, in the order in which they were taken."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The value that half of the samples exceed."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The values between which the middle half of the samples lies."""
        if len(self.samples) == 1:
            return self.samples[0], self.samples[0]
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return first, third

    def scaled(self, factor: float) -> Distribution:
        """The same with every sample times `factor`."""
        return Distribution(tuple(s * factor for s in self.samples))

    def to_json(self) -> dict[str, Any]:
        """Median, quartiles, least and number of samples."""
        first, third = self.quartiles
        return {
            "median": round(self.median, 3),
            "q1": round(first, 3),
            "q3": round(third, 3),
            "min": round(min(self.samples), 3),
            "samples": len(self.samples),
        }


def ratio(above: Distribution, below: Distribution) -> Distribution:
    """The quotients of samples of one round: how many times longer `above` takes."""
    return Distribution(tuple(a / b if b else math.inf for a, b in zip(above.samples, below.samples, strict=True)))


@dataclass(slots=True)
class _Turn:
    """A contestant of a measurement: what to call, how often for one sample, and its samples so far."""

    call: Callable[[], None]
    calls: int
    samples: list[float] = field(default_factory=list)

    def sample(self, timer: Timer) -> None:
        """Take one sample, in microseconds for each call."""
        start = timer.now()
        for _ in range(self.calls):
            self.call()
        self.samples.append((timer.now() - start) * MICROSECONDS / self.calls)


def paired(
    contestants: Mapping[str, Callable[[], None]], effort: Effort, timer: Timer | None = None
) -> dict[str, Distribution]:
    """The time of one call of each contestant, in microseconds. Calls must be synchronous: done when they return."""
    timer = timer or WallClock()
    with _no_collection():
        estimates = {name: _warm_up(call, effort, timer) for name, call in contestants.items()}
        turns = {n: _Turn(call, _calls(estimates[n], effort)) for n, call in contestants.items()}
        names = list(turns)
        for k in range(_rounds(sum(estimates[n] * t.calls for n, t in turns.items()), effort)):
            first = k % len(names)
            for name in names[first:] + names[:first]:
                turns[name].sample(timer)
    return {name: Distribution(tuple(turn.samples)) for name, turn in turns.items()}


def _warm_up(call: Callable[[], None], effort: Effort, timer: Timer) -> float:
    """Seconds that a call takes, the first one (which allocates, loads, chooses) left out."""
    call()
    start = now = timer.now()
    calls = 0
    while calls < max(effort.warm_up, 1) or now - start < effort.warm_seconds:
        call()
        calls += 1
        now = timer.now()
    return (now - start) / calls


def _calls(seconds: float, effort: Effort) -> int:
    """Number of calls that make one sample."""
    return max(1, math.ceil(effort.sample_seconds / seconds)) if seconds > 0 else 1


def _rounds(seconds: float, effort: Effort) -> int:
    """Number of rounds that are measured when one takes `seconds`."""
    if effort.runs is not None:
        return max(1, effort.runs)
    return min(effort.most, max(effort.least, int(effort.seconds / seconds) if seconds > 0 else effort.most))


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage collector waits until the block ends."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
