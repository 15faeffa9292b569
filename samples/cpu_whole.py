"""Whole models on the CPU, as `optimize` without options leaves them: exported where they are absent, optimized, timed.

A model NAME is NAME.onnx in a folder that is kept, its output folder NAME.out, and what was measured of that NAME.json.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import mirage_cli as mi
from mirage_cli.optimization.fragment_times import MIRAGE, ORIGINAL
from mirage_cli.report import reader
from mirage_cli.report.report import REPLACED
from samples.cpu_models import TimedModel

THREADS = (2, 1)
LEAST = 0.98  #: below which a model counts as slower
HEADER = ("model", "sizes", "threads", "onnxruntime us", "mirage us", "ratio", "predicted", "replaced")


@dataclass(frozen=True, slots=True)
class TimedFragment:
    """A replaced fragment at its `occurrences`: microseconds of its original nodes and of ours, as measured and as predicted
    for as many threads at typical sizes; `typical` tells whether it was measured at these."""

    name: str
    id: str
    occurrences: int
    original_us: float | None
    mirage_us: float | None
    predicted_original_us: float
    predicted_us: float
    typical: bool


@dataclass(frozen=True, slots=True)
class TimedRun:
    """A model at one size with a number of threads: medians in microseconds, the median of the rounds' quotients, its replaced
    fragments, and what `bench` says of the circumstances."""

    model: str
    size: str
    threads: int
    original_us: float
    mirage_us: float
    measured: float
    fragments: tuple[TimedFragment, ...]
    notes: tuple[str, ...] = ()

    @property
    def replaced(self) -> int:
        """Places at which a fragment is replaced."""
        return sum(f.occurrences for f in self.fragments)

    @property
    def ratio(self) -> float:
        """The original's time over ours: one where nothing is replaced, since the files are the same."""
        return self.measured if self.fragments else 1.0

    @property
    def predicted(self) -> float | None:
        """The same as predicted: what fragments are said to save is taken from the measured time. None at sizes that are not
        typical, of which the report says nothing."""
        if not all(f.typical for f in self.fragments):
            return None
        saved = sum(f.occurrences * (f.predicted_original_us - f.predicted_us) for f in self.fragments)
        return self.original_us / max(self.original_us - saved, self.original_us / 100)

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        numbers = (f"{x:,.0f}" for x in (self.original_us, self.mirage_us))
        predicted = "-" if self.predicted is None else f"{self.predicted:.2f}"
        return (
            f"`{self.model}`",
            self.size,
            str(self.threads),
            *numbers,
            f"{self.ratio:.2f}",
            predicted,
            str(self.replaced),
        )


def exported(timed: TimedModel, folder: Path, python: str) -> Path:
    """The model's file, made by an interpreter that has torch and transformers where it is absent. Raises
    CalledProcessError."""
    path = folder / timed.file
    if not path.is_file():
        subprocess.run([python, "-m", "samples.zoo.published", str(folder), timed.name], check=True)
    return path


def optimized(timed: TimedModel, folder: Path, python: str) -> None:
    """Make the output folder anew; what was measured of the old one goes. Raises MirageError."""
    path, out = exported(timed, folder, python), folder / f"{timed.name}.out"
    shutil.rmtree(out, ignore_errors=True)
    _record(timed, folder).unlink(missing_ok=True)
    mi.optimize(path, out, target="cpu", dim=timed.dim)


def measured(timed: TimedModel, folder: Path, seconds: float) -> Iterator[TimedRun]:
    """Time the output folder at all sizes and numbers of threads, and keep what was found. Raises ValueError where an answer
    is wrong."""
    runs = []
    for point in timed.points:
        for threads in THREADS:
            runs.append(_run(timed, folder / f"{timed.name}.out", point, threads, seconds))
            yield runs[-1]
    _record(timed, folder).write_bytes(msgspec.json.format(msgspec.json.encode(runs)))


def kept(timed: TimedModel, folder: Path) -> list[TimedRun]:
    """What was measured of a model, as far as it was."""
    path = _record(timed, folder)
    return msgspec.json.decode(path.read_bytes(), type=list[TimedRun]) if path.is_file() else []


def _record(timed: TimedModel, folder: Path) -> Path:
    return folder / f"{timed.name}.json"


def _run(timed: TimedModel, out: Path, point: tuple[str, ...], threads: int, seconds: float) -> TimedRun:
    predictions = {f["id"]: f for f in reader.read(out)["fragments"] if f["status"] == REPLACED}
    bench = mi.bench(out, cpu=True, threads=threads, seconds=seconds, dim=point)
    whole = bench.model
    original, ours, speedup = whole.entry(ORIGINAL).us, whole.entry(MIRAGE).us, whole.speedup
    if original is None or ours is None or speedup is None:
        raise ValueError(f"{timed.name}: {bench.problems()}")
    fragments = tuple(_fragment(row, predictions[row.id], threads) for row in bench.fragments)
    size = timed.size(point)
    return TimedRun(timed.name, size, threads, original.median, ours.median, speedup.median, fragments, bench.notes)


def _fragment(row: Any, reported: Any, threads: int) -> TimedFragment:
    us = [e.us and e.us.median for e in (row.comparison.entry(n) for n in (ORIGINAL, MIRAGE))]
    said = reported["predictions"]["cpu"]
    said = said.get("one_thread", said) if threads == 1 else said
    predicted = (said["original_us"], said["predicted_us"])
    return TimedFragment(row.name, row.id, row.occurrences, us[0], us[1], *predicted, row.predicted_us is not None)


def document(runs: Sequence[TimedRun], mean: float) -> str:
    """The table and what it comes to, in Markdown; `mean` is the geometric mean of the ratios."""
    lines = [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER), *(f"| {' | '.join(r.cells())} |" for r in runs)]
    least = min(runs, key=lambda r: r.ratio)
    below = sum(r.ratio < LEAST for r in runs)
    lines += ["", f"Geometric mean {mean:.2f}; least {least.ratio:.2f} (`{least.model}`, {least.size}, {least.threads}"]
    lines += [f"threads); {below} of {len(runs)} rows are below {LEAST}."]
    return "\n".join(lines)
