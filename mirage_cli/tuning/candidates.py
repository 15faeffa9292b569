"""Tuning a fragment: which candidates to try, in what order, and which one to take. Pure: what builds candidates and what
times them are arguments, and so is the clock.

1. Candidates are tried in batches, a small one first, diverse ones first: each pick has the least predicted time, times a
   penalty for every earlier pick of the same family (kernel graph and engines), of the same tiles and engines, of the same
   engines. The model's own choice is the first.
2. What a family took so far, over what was predicted, corrects the predictions of the rest of it, and of families of the
   same engines that were not tried: a model that is wrong about an engine is put right by its first candidates.
3. The trying ends where the model, by the error that it is known to have or, where several of a family were timed, by what
   it is off among these, has nothing left that gains `GAIN`, or nothing can; or at a deadline, which is said.
4. Candidates are held against one float64 result before they are timed, with few samples, in a chain of their own calls.
   The best few, the best of each size of clusters and the model's own choice are then timed again, in turns, with many, as a
   step of the model has them: behind the kernel that is in front of them there. What does not beat the own choice by more
   than the noise comes behind it. The best is checked on every case, and the next one where it fails.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from mirage_cli.measurement.timing import Timer
from mirage_cli.search.mugraph.documents import graph_to_json
from mirage_cli.search.search import Candidate
from mirage_cli.tuning.cache import Measurement

FAMILY_PENALTY, TILES_PENALTY, ENGINE_PENALTY = 1.08, 1.05, 1.02  #: for each earlier pick that has them in common
HOPELESS = 4  #: refused candidates of a family of which none could be rendered, after which it is left
FIRST = 6  #: candidates of the first batch
GAIN = 1.02  #: what is not predicted to gain so much is not tried
SEEN, DEVIATIONS = 4, 3.0  #: times of a family from which on the error is so many standard deviations of theirs
FINALISTS = 6
NEAR = 1.1  #: times the best up to which the best of another size of clusters is timed again
QUICK, THOROUGH = 9, 60  #: samples of a candidate in the first round, of a finalist in the second
BUILDING = 0.75  #: share of the time after which nothing more is built

REFUSED = "refused: "  #: begins the reason of a candidate that cannot be rendered, which is none of those tried
LOST = "it could not be"  #: begins the problem of a candidate whose process ended or failed, by whosever fault

Built: TypeAlias = Path | str  #: the library of a candidate, or why there is none


class Builder(Protocol):
    """Makes candidates into libraries."""

    def build(self, candidates: Sequence[Candidate]) -> list[Built]:
        """A library for each candidate, or the reason why there is none."""


class Bench(Protocol):
    """Runs libraries on the GPU. Problems are texts: what crashes or hangs costs itself only."""

    def start(self) -> str:
        """Wait until it can be asked; what keeps it from that, or nothing."""

    def answers(self, library: Path) -> str:
        """The fault in a library's answers to typical inputs, by the accuracy rule; nothing when they are right."""

    def check(self, library: Path) -> str:
        """The fault in its answers in any case of the check."""

    def time(self, libraries: Sequence[Path], samples: int, step: bool = False) -> list[Measurement]:
        """Times of one call of each, with cold caches, sampled in turns; in a `step` behind another kernel of the model, where
        one is known."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of tuning: candidates to try, seconds (0: no limit), candidates at a time, how many times less than
    predicted one may take (`Target.error`), and microseconds that none takes less than."""

    candidates: int = 48
    seconds: float = 90.0
    batch: int = 16
    error: float = 1.25
    least_us: float = 0.0


@dataclass(slots=True)
class Trial:
    """A candidate that was tried: its hash, and what became of it; `known` tells that the cache said so."""

    candidate: Candidate
    key: str
    result: Measurement
    known: bool = False

    @property
    def us(self) -> float:
        """Its time; infinite where there is none."""
        return math.inf if self.result.us is None else self.result.us

    @property
    def final(self) -> bool:
        """True if it was timed in the second round."""
        return self.result.samples >= THOROUGH

    def to_json(self) -> dict[str, Any]:
        """A row of the report's `tuning`."""
        row: dict[str, Any] = {
            "candidate": self.key,
            "engines": engines(self.candidate),
            "schedules": [s.to_json() for s in self.candidate.schedules],
            "predicted_us": round(self.candidate.predicted_us, 3),
            "measured_us": None if self.result.us is None else round(self.result.us, 3),
        }
        if self.result.us is not None:
            row |= {
                "low": round(self.result.low, 3),
                "high": round(self.result.high, 3),
                "samples": self.result.samples,
            }
        return row | ({"problem": self.result.problem} if self.result.problem else {}) | {"cached": self.known}


@dataclass(slots=True)
class Tuned:
    """The outcome of tuning a fragment: the trials in their order (the model's `own` choice, by its hash, first, where it was
    tried), whether the time sufficed for all that were to be tried, and what kept everything from being tried."""

    trials: list[Trial] = field(default_factory=list)
    complete: bool = True
    problem: str = ""
    own: str = ""

    @property
    def lost(self) -> bool:
        """True if something is not known of a candidate, by whosever fault."""
        return bool(self.problem) or any(t.result.problem.startswith(LOST) for t in self.trials)

    @property
    def tried(self) -> int:
        """Number of candidates that could be rendered."""
        return sum(not t.result.problem.startswith(REFUSED) for t in self.trials)

    @property
    def ranking(self) -> list[Trial]:
        """Those that have a time: those of the second round, then the others, fastest first; the order of trying decides
        between equals. The own choice is passed by what beats it in three quarters of its samples."""
        own = next((t for t in self.trials if t.key == self.own and t.result.us is not None), None)

        def behind(t: Trial) -> bool:
            return own is not None and t is not own and (own.final > t.final or t.result.high >= own.us)

        timed = (t for t in self.trials if t.result.us is not None)
        return sorted(timed, key=lambda t: (behind(t), not t.final, t is own, t.us))

    @property
    def best_us(self) -> float:
        """The least time; infinite where there is none."""
        return min((t.us for t in self.trials), default=math.inf)


# ---- candidates ------------------------------------------------------------------------------------------------------


def engines(candidate: Candidate) -> list[str]:
    """The engine of each kernel."""
    return [s.engine for s in candidate.schedules]


def fingerprint(candidate: Candidate, without: Sequence[str] = ()) -> str:
    """A hash of a candidate's kernel graph and schedules, and of the optimizer passes that are left out."""
    data = [graph_to_json(candidate.graph), [s.to_json() for s in candidate.schedules], list(without)]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:24]


def family(candidate: Candidate) -> tuple[Any, ...]:
    """The part that candidates with like errors of the model share: kernel graph and engines."""
    return (candidate.graph, *engines(candidate))


def corrections(trials: Sequence[Trial]) -> dict[tuple[Any, ...], float]:
    """For each family the geometric mean of measured over predicted times."""
    logs: dict[tuple[Any, ...], list[float]] = {}
    for t in trials:
        if t.result.us is not None:
            logs.setdefault(family(t.candidate), []).append(math.log(t.result.us / t.candidate.predicted_us))
    return {f: math.exp(sum(values) / len(values)) for f, values in logs.items()}


def errors(trials: Sequence[Trial], most: float) -> dict[tuple[Any, ...], float]:
    """For each family with `SEEN` times how many times less than corrected another one of it may take, at `most` so many: by
    the standard deviation of the logarithms of measured over predicted times."""
    logs: dict[tuple[Any, ...], list[float]] = {}
    for t in trials:
        if t.result.us is not None:
            logs.setdefault(family(t.candidate), []).append(math.log(t.result.us / t.candidate.predicted_us))
    known = {f: values for f, values in logs.items() if len(values) >= SEEN}
    return {f: min(most, math.exp(DEVIATIONS * statistics.stdev(values))) for f, values in known.items()}


def clusters(candidate: Candidate) -> tuple[int, ...]:
    """The blocks of a cluster of each kernel."""
    return tuple(s.parts or dict(s.numbers).get("cluster", 1) for s in candidate.schedules)


def corrected(pool: Sequence[Candidate], factors: Mapping[tuple[Any, ...], float]) -> list[float]:
    """The predictions of a pool times the `factors` of families. A family without one takes the least one of its engines,
    and 1 where there is none: so none is left out because another one was predicted too well."""
    usual: dict[tuple[Any, ...], float] = {}
    for (_, *kinds), factor in factors.items():
        usual[tuple(kinds)] = min(factor, usual.get(tuple(kinds), factor))
    return [c.predicted_us * factors.get(family(c), usual.get(tuple(engines(c)), 1.0)) for c in pool]


def select(
    pool: Sequence[Candidate],
    count: int,
    tried: Sequence[Candidate] = (),
    factors: Mapping[tuple[Any, ...], float] | None = None,
) -> list[Candidate]:
    """The next `count` of a pool to try after those `tried`; `factors` correct the predictions of families."""
    numbers: dict[tuple[Any, ...], int] = {}  # graphs are large: each is hashed once

    def traits(c: Candidate) -> tuple[Any, ...]:
        kinds = tuple(engines(c))
        return numbers.setdefault(family(c), len(numbers)), (kinds, *(s.tiles for s in c.schedules)), kinds

    counts = Counter(t for c in tried for t in traits(c))
    left = [(us, c, traits(c)) for us, c in zip(corrected(pool, factors or {}), pool, strict=True)]
    chosen: list[Candidate] = []
    while left and len(chosen) < count:
        prices = [
            us * FAMILY_PENALTY ** counts[a] * TILES_PENALTY ** counts[b] * ENGINE_PENALTY ** counts[c]
            for us, _, (a, b, c) in left
        ]
        _, best, own = left.pop(min(range(len(left)), key=prices.__getitem__))
        counts.update(own)
        chosen.append(best)
    return chosen


# ---- trying ----------------------------------------------------------------------------------------------------------


def tune(
    pool: Mapping[str, Candidate],
    known: Mapping[str, Measurement],
    builder: Builder,
    bench: Bench,
    limits: Limits,
    clock: Timer,
    keep: Callable[[Sequence[Trial]], None] = lambda trials: None,
) -> Tuned:
    """Try candidates (by their hashes; the model's own choice first), beginning with what is `known` of them. The bench
    may start while the first ones are built. `keep` is given every new trial at once: whatever ends a run, what it measured is
    kept."""
    start = clock.now()

    def spent(share: float = 1.0) -> bool:
        return bool(limits.seconds) and clock.now() - start >= share * limits.seconds

    own = next(iter(pool), "")
    tuned = Tuned([Trial(c, k, known[k], known=True) for k, c in pool.items() if k in known], own=own)
    libraries: dict[str, Path] = {}
    keys = {id(c): k for k, c in pool.items()}
    while batch := _batch(pool, tuned, limits):
        if spent(BUILDING):
            tuned.complete = False
            break
        libraries_built = builder.build(batch)
        tuned.problem = bench.start()
        if tuned.problem:
            return tuned
        for c, built in zip(batch, libraries_built, strict=True):
            key = keys[id(c)]
            if spent():
                tuned.complete = False
                break
            if isinstance(built, Path):
                libraries[key] = built
            result = _first(built, bench)
            tuned.problem = bench.start() if result.problem.startswith(LOST) else ""
            if tuned.problem:
                return tuned
            tuned.trials.append(Trial(c, key, result))
            keep(tuned.trials[-1:])
    if libraries and own in known and known[own].us is not None:  # what was built now is held against it
        (again,) = builder.build([pool[own]])
        libraries |= {own: again} if isinstance(again, Path) else {}
    _finals(tuned, libraries, bench)
    _check_best(tuned, libraries, builder, bench)
    tuned.trials.sort(key=lambda t: t.key != own)
    return tuned


def _batch(pool: Mapping[str, Candidate], tuned: Tuned, limits: Limits) -> list[Candidate]:
    """What to try next; nothing where enough was tried, or where nothing is left that may be better."""
    count = min(limits.batch, limits.candidates - tuned.tried, *(() if tuned.trials else (FIRST,)))
    if count <= 0 or not pool:
        return []
    own, tried = next(iter(pool)), {t.key for t in tuned.trials}
    first = [pool[own]] if own not in tried else []
    left = [c for k, c in pool.items() if k not in tried and k != own]
    left = _hopeful(left, tuned.trials) or left
    factors, known, best_us = corrections(tuned.trials), errors(tuned.trials, limits.error), tuned.best_us
    left = [
        c
        for us, c in zip(corrected(left, factors), left, strict=True)
        if us < best_us * known.get(family(c), limits.error) / GAIN and not _least(c, limits, best_us) > best_us / GAIN
    ]
    seen = [*(t.candidate for t in tuned.trials), *first]
    return first + select(left, count - len(first), seen, factors)


def _least(c: Candidate, limits: Limits, best_us: float) -> float:
    """What a candidate takes at least. A floor far above what was measured is another device's."""
    return max(limits.least_us, c.floor_us if c.floor_us < best_us * GAIN else 0.0)


def _hopeful(pool: Sequence[Candidate], trials: Sequence[Trial]) -> list[Candidate]:
    """The candidates of a pool but for those of families that cannot be rendered."""
    refused = Counter(family(t.candidate) for t in trials if t.result.problem.startswith(REFUSED))
    fine = {family(t.candidate) for t in trials if not t.result.problem.startswith(REFUSED)}
    hopeless = {f for f, count in refused.items() if count >= HOPELESS} - fine
    return [c for c in pool if family(c) not in hopeless]


def _first(built: Built, bench: Bench) -> Measurement:
    """The first round of one candidate: its answers, then its time."""
    if isinstance(built, str):
        return Measurement(None, problem=built)
    problem = bench.answers(built)
    return Measurement(None, problem=problem) if problem else bench.time([built], QUICK)[0]


def _finals(tuned: Tuned, libraries: Mapping[str, Path], bench: Bench) -> None:
    """The second round, in turns and with more samples. What is lost in it keeps the time of the first round."""
    best = _finalists(tuned, libraries)
    if len(best) < 2:
        return
    for t, result in zip(best, bench.time([libraries[t.key] for t in best], THOROUGH, step=True), strict=True):
        if not result.problem.startswith(LOST):
            t.result, t.known = result, False


def _finalists(tuned: Tuned, libraries: Mapping[str, Path]) -> list[Trial]:
    """The best few that were built now, the best of each size of clusters not far behind them, and the own choice."""
    built = sorted((t for t in tuned.trials if t.key in libraries and t.result.us is not None), key=lambda t: t.us)
    first: dict[tuple[int, ...], Trial] = {}
    for t in built:
        if t.us <= NEAR * built[0].us:
            first.setdefault(clusters(t.candidate), t)
    chosen = {*(t.key for t in built[:FINALISTS]), *(t.key for t in first.values()), tuned.own}
    return [t for t in built if t.key in chosen]


def _check_best(tuned: Tuned, libraries: Mapping[str, Path], builder: Builder, bench: Bench) -> None:
    """Check the best on every case; one that fails has no time, and the next one is the best. What an earlier run has
    timed is built again."""
    while tuned.ranking and not tuned.problem:
        best = tuned.ranking[0]
        library = libraries.get(best.key) or builder.build([best.candidate])[0]
        problem = bench.check(library) if isinstance(library, Path) else library
        if not problem:
            return
        best.result, best.known = Measurement(None, problem=problem), False
        tuned.problem = bench.start() if problem.startswith(LOST) else ""


def model_error(own_us: Sequence[float], tuned_us: Sequence[float]) -> float:
    """The geometric mean of what the model's own choices take over what the tuned ones take."""
    logs = [math.log(a / b) for a, b in zip(own_us, tuned_us, strict=True)]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0
