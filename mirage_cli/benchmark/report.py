"""The result of `mirage bench` as a table and as JSON."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirage_cli import __version__
from mirage_cli.measurement.timing import Distribution
from mirage_cli.optimization.fragment_times import CRASHED, MIRAGE, ORIGINAL, Comparison, Entry
from mirage_cli.options import dims
from mirage_cli.report import forms

WHOLE = "whole model"
_SILENT = frozenset({"", "-", "not measured"})  #: cells that say that there is nothing
METHOD = (
    "Answers are compared first. Then original and mirage run in turns in one process, each sample one call or as many as "
    "last a millisecond; times are medians with quartiles, the speedup is the median of the rounds' quotients. A "
    "fragment's model calls its operator on different tensors, more of them than the cache holds where limits allow, and "
    "its time is that of one call. Inputs and outputs lie on the device. Threads of onnxruntime stop waiting when a call "
    "ends. On CUDA, float32 products are float32 on both sides, and fragments are replays of a CUDA graph."
)


@dataclass(frozen=True, slots=True)
class FragmentRow:
    """A fragment's measurement beside what the cost model says of it at these sizes; times in microseconds, None where it says
    nothing of this target."""

    id: str
    name: str
    occurrences: int
    inputs: tuple[str, ...]
    comparison: Comparison
    predicted_us: float | None = None
    floor_us: float | None = None

    def to_json(self, device: str) -> dict[str, Any]:
        """One element of `fragments`."""
        return {
            "id": self.id,
            "name": self.name,
            "occurrences": self.occurrences,
            "inputs": list(self.inputs),
            "predicted_us": self.predicted_us,
            "floor_us": self.floor_us,
            **_comparison(self.comparison),
            "measured": [self.comparison.measured(device)],
        }


@dataclass(frozen=True, slots=True)
class BenchReport:
    """All measurements of an output folder. `device` is what ran them, `settings` how, `original` which file was the
    original side of the whole model, `absent` the peers that were not there and why."""

    device: str
    settings: dict[str, Any]
    original: str
    fragments: tuple[FragmentRow, ...]
    model: Comparison
    absent: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        times = " -> ".join(_times_of(self.model)[:2])
        return f"<times on {self.device}: {len(self.fragments)} fragments, whole model {times} us>"

    @property
    def wrong(self) -> bool:
        """True if anything gave other answers than the original, or ended the process that measured it."""
        comparisons = [*(r.comparison for r in self.fragments), self.model]
        return any(e.problem.startswith(("wrong", CRASHED)) for c in comparisons for e in c.entries)

    @property
    def predicted_us(self) -> float | None:
        """The whole patched model's time: what the original took beside the fragments, and what is predicted of these; None
        where one of them has no time, or no prediction."""
        whole = self.model.entry(ORIGINAL).us
        rows = [(r.occurrences, r.comparison.entry(ORIGINAL).us, r.predicted_us) for r in self.fragments]
        known = [(n * us.median, n * said) for n, us, said in rows if us and said is not None]
        if whole is None or len(known) < len(rows):
            return None
        return max(0.0, whole.median - sum(us for us, _ in known)) + sum(said for _, said in known)

    def to_json(self) -> dict[str, Any]:
        """The JSON document; times in microseconds."""
        return {
            "mirage": __version__,
            "device": self.device,
            "settings": self.settings,
            "method": METHOD,
            "fragments": [r.to_json(self.device) for r in self.fragments],
            "model": {"original": self.original, **_comparison(self.model)},
            "absent_peers": self.absent,
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """A table: microseconds, medians with quartiles."""
        peers = list(dict.fromkeys(e.name for r in self.fragments for e in r.comparison.entries if _is_peer(e)))
        head = ["us for one call", "places", ORIGINAL, MIRAGE, "speedup", "predicted", "floor", *peers]
        whole = [self._model_row(len(peers))] if self.model.entries else []
        rows = [head, *(_row(r, peers) for r in self.fragments), *whole]
        lines = [self.device, *_settings(self.settings), "", *_table(rows), ""]
        lines += [f"original of the whole model: {self.original}"] if whole else []
        lines += self.problems()
        lines += [f"{name}: {reason}" for name, reason in self.absent.items()]
        return "\n".join([*lines, *self.notes]) + "\n"

    def problems(self) -> list[str]:
        """What went wrong, in lines."""
        own = [f"{r.name} {r.id}: {p}" for r in self.fragments for p in _problems(r.comparison)]
        return own + [f"whole model: {p}" for p in _problems(self.model)]

    def parts(self) -> list[tuple[str, Comparison, float | None]]:
        """The whole model, or the fragments where these are timed alone: what it is, its times, what is predicted of ours."""
        if self.model.entries:
            return [(WHOLE, self.model, self.predicted_us)]
        return [(f"{r.name} {r.id}", r.comparison, r.predicted_us) for r in self.fragments]

    def _model_row(self, peers: int) -> list[str]:
        return [WHOLE, "", *_times_of(self.model), "", "", *[""] * peers]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Measurements of an output folder at several sizes, told by what `--dim` says of each."""

    sizes: tuple[tuple[str, ...], ...]
    reports: tuple[BenchReport, ...]
    notes: tuple[str, ...] = ()

    @property
    def wrong(self) -> bool:
        """True if anything gave other answers at one of the sizes."""
        return any(r.wrong for r in self.reports)

    def to_json(self) -> dict[str, Any]:
        """The JSON document: those of the measurements, with their sizes."""
        rows = [{"dim": list(d), **r.to_json()} for d, r in zip(self.sizes, self.reports, strict=True)]
        return {"mirage": __version__, "sweep": rows, "notes": list(self.notes)}

    def text(self) -> str:
        """A table with a row for each size: of the whole model, or of each fragment where these are timed alone."""
        head = ["us for one call", ORIGINAL, MIRAGE, "speedup", "predicted"]
        rows = [
            [" ".join([*([what] if what != WHOLE else []), *dim]), *_times_of(c), _known(predicted)]
            for dim, report in zip(self.sizes, self.reports, strict=True)
            for what, c, predicted in report.parts()
        ]
        problems = [f"{' '.join(d)}: {p}" for d, r in zip(self.sizes, self.reports, strict=True) for p in r.problems()]
        notes = dict.fromkeys([n for r in self.reports for n in r.notes][:1] + list(self.notes))
        return "\n".join([self.reports[0].device, "", *_table([head, *rows]), *problems, *notes]) + "\n"

    def kept(self) -> list[forms.Sweep]:
        """The form of `sweeps` in report.json."""
        points: dict[str, list[forms.SizedTimes]] = {}
        for dim, report in zip(self.sizes, self.reports, strict=True):
            for what, c, predicted in report.parts():
                times = c.measured(report.device)
                points.setdefault(what, []).append(
                    {
                        "sizes": dims.typical(dims.parse(dim)),
                        "original_us": times["original_us"],
                        "mirage_us": times["mirage_us"],
                        "predicted_us": None if predicted is None else round(predicted, 3),
                    }
                )
        return [{"device": self.reports[0].device, "what": what, "points": own} for what, own in points.items()]


@dataclass(frozen=True, slots=True)
class ModelReports:
    """Measurements of the models of a folder, by the places of their outputs."""

    models: Mapping[str, BenchReport]

    @property
    def wrong(self) -> bool:
        """True if anything gave other answers in one of the models."""
        return any(r.wrong for r in self.models.values())

    def to_json(self) -> dict[str, Any]:
        """The JSON document: those of the models."""
        return {"mirage": __version__, "models": {name: r.to_json() for name, r in self.models.items()}}

    def text(self) -> str:
        """The tables of the models."""
        return "\n".join(f"{name}\n{r.text()}" for name, r in self.models.items())


def _is_peer(e: Entry) -> bool:
    return e.name not in (ORIGINAL, MIRAGE)


def _comparison(c: Comparison) -> dict[str, Any]:
    speedup = c.speedup
    return {
        "calls": c.calls,
        "cuda_graph": c.graph,
        "contestants": [e.to_json() for e in c.entries],
        "speedup": speedup.to_json() if speedup else None,
        "notes": list(c.notes),
    }


def _settings(settings: Mapping[str, Any]) -> list[str]:
    """The settings in lines, shapes as 2x12."""
    plain = [f"{k} {v}" for k, v in settings.items() if v is not None and not isinstance(v, dict)]
    inputs = [f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in settings["inputs"].items()]
    state = [f"{name} {value}" for name, value in settings["gpu_state"].items()]
    return [", ".join(part) for part in (plain, inputs, state) if part]


def _row(r: FragmentRow, peers: Sequence[str]) -> list[str]:
    known = [_known(r.predicted_us), _known(r.floor_us)]
    others = [_us(r.comparison.entry(n)) for n in peers]
    return [f"{r.name} {r.id}", str(r.occurrences), *_times_of(r.comparison), *known, *others]


def _times_of(c: Comparison) -> list[str]:
    """Both sides' times and the speed-up as cells; dashes without them."""
    return [_us(c.entry(ORIGINAL)), _us(c.entry(MIRAGE)), _times(c.speedup)]


def _known(us: float | None) -> str:
    return "-" if us is None else _number(us)


def _us(e: Entry) -> str:
    if e.us is None:
        return e.problem.partition(":")[0] or "-"
    first, third = e.us.quartiles
    return f"{_number(e.us.median)} ({_number(first)}-{_number(third)})"


def _times(speedup: Distribution | None) -> str:
    if speedup is None:
        return "-"
    first, third = speedup.quartiles
    return f"{speedup.median:.2f} ({first:.2f}-{third:.2f})"


def _number(us: float) -> str:
    """Three digits that matter, without an exponent."""
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 1000 else f"{us:.0f}"


def _problems(c: Comparison) -> list[str]:
    return [f"{e.name}: {e.problem}" for e in c.entries if e.problem] + list(c.notes)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side, the first to the left, numbers to the right; those that tell nothing are left out."""
    told = [k == 0 or not _SILENT.issuperset(column[1:]) for k, column in enumerate(zip(*rows, strict=True))]
    rows = [list(itertools.compress(row, told)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines
