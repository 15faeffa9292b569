"""The logic of timing, on a clock that follows a script: every call takes the time that the script says."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator

import pytest

from mirage_cli.measurement.timing import Distribution, Effort, WallClock, paired, ratio


class Scripted:
    """A clock that only the contestants move."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.log: list[str] = []

    def now(self) -> float:
        return self.seconds

    def contestant(self, name: str, durations: Iterator[float]) -> Callable[[], None]:
        def call() -> None:
            self.log.append(name)
            self.seconds += next(durations)

        return call


def constant(seconds: float) -> Iterator[float]:
    while True:
        yield seconds


def drifting(seconds: float, step: float) -> Iterator[float]:
    while True:
        yield seconds
        seconds += step


#: one call a sample, no warm-up but the first call and one more
PLAIN = Effort(runs=6, warm_up=1, warm_seconds=0.0, sample_seconds=0.0)


def test_times_are_microseconds_of_one_call() -> None:
    clock = Scripted()
    found = paired(
        {"a": clock.contestant("a", constant(0.25)), "b": clock.contestant("b", constant(1.0))}, PLAIN, clock
    )
    assert found["a"].samples == (250_000.0,) * 6
    assert found["b"].samples == (1_000_000.0,) * 6


def test_contestants_take_turns_and_the_order_rotates() -> None:
    clock = Scripted()
    paired({n: clock.contestant(n, constant(1.0)) for n in "abc"}, PLAIN, clock)
    assert "".join(clock.log[:6]) == "aabbcc"  # warming up
    rounds = ["".join(clock.log[6 + 3 * k : 9 + 3 * k]) for k in range(6)]
    assert rounds == ["abc", "bca", "cab", "abc", "bca", "cab"]


def test_warm_up_is_not_measured() -> None:
    clock = Scripted()

    def first_is_slow() -> Iterator[float]:
        yield 100.0
        yield 50.0
        yield from constant(2.0)

    found = paired({"a": clock.contestant("a", first_is_slow())}, PLAIN, clock)
    assert set(found["a"].samples) == {2_000_000.0}


def test_warm_up_lasts_as_long_as_asked() -> None:
    clock = Scripted()
    effort = Effort(runs=1, warm_up=2, warm_seconds=1.0, sample_seconds=0.0)
    paired({"a": clock.contestant("a", constant(0.125))}, effort, clock)
    assert len(clock.log) == 1 + 8 + 1  # the first call, one second of calls, one sample


def test_short_calls_are_measured_together() -> None:
    clock = Scripted()
    effort = Effort(runs=3, warm_up=1, warm_seconds=0.0, sample_seconds=1.0)
    found = paired(
        {"a": clock.contestant("a", constant(0.125)), "b": clock.contestant("b", constant(4.0))}, effort, clock
    )
    assert clock.log.count("a") == 2 + 3 * 8
    assert clock.log.count("b") == 2 + 3
    assert found["a"].samples == (125_000.0,) * 3


def test_rounds_fill_the_time_within_limits() -> None:
    def rounds(seconds: float) -> int:
        clock = Scripted()
        effort = Effort(seconds, None, 1, 0.0, 0.0, least=5, most=40)
        both = {n: clock.contestant(n, constant(0.5)) for n in "ab"}
        return len(paired(both, effort, clock)["a"].samples)

    assert [rounds(s) for s in (10.0, 20.0, 1.0, 1000.0)] == [10, 20, 5, 40]


def test_drift_meets_both_alike() -> None:
    """With a clock that slows down, samples in turns keep the quotient; one contestant after the other would not."""
    clock = Scripted()
    pace = drifting(1.0, 0.01)
    found = paired(
        {"a": clock.contestant("a", pace), "b": clock.contestant("b", (2 * s for s in pace))},
        Effort(runs=20, warm_up=1, warm_seconds=0.0, sample_seconds=0.0),
        clock,
    )
    assert found["a"].samples[-1] > 1.3 * found["a"].samples[0]
    assert ratio(found["b"], found["a"]).median == pytest.approx(2.0, rel=0.01)


def test_a_clock_that_stands_still_ends() -> None:
    found = paired({"a": lambda: None}, Effort(runs=None, warm_seconds=0.0, most=7), Scripted())
    assert found["a"].samples == (0.0,) * 7


def test_quartiles_are_those_of_the_standard_library() -> None:
    samples = (9.0, 1.0, 5.0, 3.0, 7.0)
    d = Distribution(samples)
    first, middle, third = statistics.quantiles(samples, n=4, method="inclusive")
    assert (d.quartiles, d.median) == ((first, third), middle)
    assert d.to_json() == {"median": 5.0, "q1": 3.0, "q3": 7.0, "min": 1.0, "samples": 5}
    assert Distribution((4.0,)).quartiles == (4.0, 4.0)
    assert d.scaled(0.5).median == 2.5


def test_the_collector_waits_and_returns() -> None:
    seen = []
    assert gc.isenabled()
    paired({"a": lambda: seen.append(gc.isenabled())}, PLAIN, WallClock())
    assert not any(seen)
    assert gc.isenabled()

    def fails() -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        paired({"a": fails}, PLAIN, WallClock())
    assert gc.isenabled()
