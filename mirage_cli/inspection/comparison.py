"""`mirage compare`: what a new version, another option or another model changed between two output folders.

Only the reports and the sizes of files are read. Fragments are matched by their ids, which say what is computed: the same id
with another muGraph or schedule is another way to compute the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as A
from typing import Any

import msgspec

from mirage_cli import __version__
from mirage_cli.exporters import wording
from mirage_cli.exporters.drawing.labels import counted, microseconds, percent, short, table
from mirage_cli.files.codec import says
from mirage_cli.files.output import DATA, LIBRARY, MODEL
from mirage_cli.report import reader
from mirage_cli.report.report import REPLACED, SCHEMA_VERSION, finite

NEW, GONE, CHANGED, SAME = "new", "gone", "changed", "same"
TOLERANCE = 5.0  #: per cent that something may be worse before it is a regression, where nothing else is said
NAME = 24  #: columns of a fragment's name
_FILES = {"library": (LIBRARY,), "model": (MODEL, DATA)}


@dataclass(frozen=True, slots=True)
class Regression:
    """A change that is worse by more than is allowed."""

    what: A[str, says("What, with the fragment's id where it is one's.")]
    old: A[float, says("From.")]
    new: A[float, says("To.")]
    percent: A[float | None, says("How much worse; null where something is gone.")]

    def text(self) -> str:
        """One line."""
        worse = "" if self.percent is None else f" ({self.percent:.1f} % worse)"
        return f"{self.what}: {self.old:g} -> {self.new:g}{worse}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A document for programs, and the same for people; `regressions` are judged by the tolerance that was given."""

    document: dict[str, Any]
    regressions: tuple[Regression, ...]

    def __repr__(self) -> str:
        old, new = (self.document[side]["folder"] for side in ("old", "new"))
        return f"<comparison of {old} and {new}: {counted(len(self.regressions), 'regression')}>"

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return self.document

    def text(self) -> str:
        """The changes, as a table of the whole, a table of fragments, and what got worse."""
        d = self.document
        blocks = [_head(d), _totals(d), _fragments(d["fragments"]), _judged(d, self.regressions)]
        return "\n\n".join("\n".join(b) for b in blocks if b) + "\n"


def compare(old: Path, new: Path, tolerance: float = TOLERANCE) -> Comparison:
    """Compare two output folders; `tolerance` is in per cent. Raises ModelError for a folder that is none, or one that another
    version wrote in another form."""
    a, b = reader.read(old), reader.read(new)
    pairs = _pairs(a["fragments"], b["fragments"])
    rows = [_row(key, *pair) for key, pair in pairs.items()]
    whole = {
        "replaced": [sum(f["status"] == REPLACED for f in r["fragments"]) for r in (a, b)],
        "places": [sum(f["occurrences"] for f in r["fragments"] if f["status"] == REPLACED) for r in (a, b)],
        "predicted_us": _both(*(_predicted(r["fragments"]) for r in (a, b))),
        "measured_us": _measured(rows),
        "coverage": {k: [r["coverage"].get(k) for r in (a, b)] for k in sorted({*a["coverage"], *b["coverage"]})},
        "bytes": {name: [_bytes(folder, files) for folder in (old, new)] for name, files in _FILES.items()},
        "seconds": [r["seconds"].get("total") for r in (a, b)],
    }
    same_model = a["model"]["sha256"] == b["model"]["sha256"]
    regressions = tuple(_regressions(rows, whole, tolerance, same_model))
    document = {
        "mirage": __version__,
        "schema_version": SCHEMA_VERSION,
        "old": _side(old, a),
        "new": _side(new, b),
        "same_model": same_model,
        "options": _options(a["options"], b["options"]),
        **whole,
        "fragments": rows,
        "tolerance_percent": tolerance,
        "regressions": msgspec.to_builtins(regressions),
    }
    checked: dict[str, Any] = finite(document)
    return Comparison(checked, regressions)


# --- fragments --------------------------------------------------------------------------------------------------------
Fragment = Mapping[str, Any]


def _pairs(old: list[Fragment], new: list[Fragment]) -> dict[str, tuple[Fragment | None, Fragment | None]]:
    """The fragments of both by id: those of the new report in its order, then those that are gone."""
    before, after = ({f["id"]: f for f in several} for several in (old, new))
    return {key: (before.get(key), after.get(key)) for key in [*after, *(k for k in before if k not in after)]}


def _row(key: str, old: Fragment | None, new: Fragment | None) -> dict[str, Any]:
    """A fragment's part of the document: what changed of it, and both sides of its figures (null where it is not there)."""
    known = new or old or {}
    differs: list[str] = []
    if old is not None and new is not None:
        parts = {
            "status": (old["status"], new["status"]),
            "places": (old["occurrences"], new["occurrences"]),
            "muGraph": (old["mugraph"].get("text"), new["mugraph"].get("text")),
            "schedule": (old["schedule"], new["schedule"]),
        }
        differs = [name for name, (before, after) in parts.items() if before != after]
    change = NEW if old is None else GONE if new is None else CHANGED if differs else SAME
    devices = sorted({m["device"] for f in (old, new) if f is not None for m in f["measured"]})
    return {
        "id": key,
        "name": known["name"],
        "change": change,
        "differs": differs,
        "status": [_figure(f, "status") for f in (old, new)],
        "occurrences": [_figure(f, "occurrences") for f in (old, new)],
        "original_us": _both(*(_predictions(f, 1) for f in (old, new))),
        "predicted_us": _both(*(_predictions(f, 0) for f in (old, new))),
        "measured_us": {d: [_time(f, d) for f in (old, new)] for d in devices},
    }


def _figure(fragment: Fragment | None, key: str) -> Any:
    return None if fragment is None else fragment[key]


def _time(fragment: Fragment | None, device: str) -> float | None:
    """The time of our kernel on a device, where that was measured."""
    rows = [m for m in (fragment or {}).get("measured", ()) if m["device"] == device]
    return rows[-1].get("mirage_us") if rows else None


def _predictions(fragment: Fragment | None, side: int) -> dict[str, float]:
    """By target the predicted time of a fragment: ours (side 0), or the original's (1)."""
    return {} if fragment is None else {t: us[side] for t, us in wording.predictions(fragment).items()}


def _predicted(fragments: list[Fragment]) -> dict[str, float]:
    """By target the predicted time of all fragments at all their places, by the original nodes where they stay: for targets
    that all have times for."""
    known = [(_predictions(f, f["status"] != REPLACED), f["occurrences"]) for f in fragments if f["predicted_us"]]
    targets = [t for t in (known[0][0] if known else {}) if all(t in times for times, _ in known)]
    return {t: round(sum(times[t] * n for times, n in known), 3) for t in targets}


def _both(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, list[float | None]]:
    """Old and new figures by what they are of."""
    return {key: [old.get(key), new.get(key)] for key in dict.fromkeys([*old, *new])}


def _measured(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """By device, the measured time of the fragments that were measured in both, at all their places of the new model."""
    totals: dict[str, list[float]] = {}
    for row in rows:
        for device, times in row["measured_us"].items():
            if None not in times:
                total = totals.setdefault(device, [0.0, 0.0])
                for k, us in enumerate(times):
                    total[k] = round(total[k] + us * row["occurrences"][1], 3)
    return totals


# --- regressions ------------------------------------------------------------------------------------------------------
def _regressions(
    rows: list[dict[str, Any]], whole: dict[str, Any], tolerance: float, same_model: bool
) -> Iterator[Regression]:
    """The figures that are worse by more than `tolerance` per cent. A fragment's time is a measured one where both
    have it, else the predicted one; totals and fragments that are left now count for one and the same model only."""
    for row in rows:
        name = f"{row['name']} {row['id']}"
        both = {device: times for device, times in row["measured_us"].items() if None not in times}
        if row["status"] == [REPLACED, REPLACED]:
            for device, times in both.items():
                yield from _slower(f"{name} on {device} (us)", times, tolerance)
            if not both:
                for target, times in row["predicted_us"].items():
                    yield from _slower(f"{name} as predicted for {target} (us)", times, tolerance)
        elif row["status"][0] == REPLACED and row["status"][1] is not None:
            yield Regression(f"{name}: places where it is replaced", row["occurrences"][0], 0, None)
    if same_model:
        for target, times in whole["predicted_us"].items():
            yield from _slower(f"all fragments as predicted for {target} (us)", times, tolerance)
        for kind, shares in whole["coverage"].items():
            yield from _less(f"coverage of {kind}", shares, tolerance)


def _slower(what: str, sides: list[float | None], tolerance: float) -> Iterator[Regression]:
    old, new = sides
    if old and new:
        yield from _worse_than(tolerance, what, old, new, 100 * (new / old - 1))


def _less(what: str, sides: list[float | None], tolerance: float) -> Iterator[Regression]:
    old, new = sides
    if old:
        yield from _worse_than(tolerance, what, old, new or 0.0, 100 * (1 - (new or 0.0) / old))


def _worse_than(tolerance: float, what: str, old: float, new: float, worse: float) -> Iterator[Regression]:
    if round(worse, 2) > tolerance:
        yield Regression(what, old, new, round(worse, 2))


# --- the whole --------------------------------------------------------------------------------------------------------
def _side(folder: Path, report: dict[str, Any]) -> dict[str, Any]:
    model = report["model"]
    return {"folder": str(folder), "mirage": report["mirage"], "model": model["path"], "sha256": model["sha256"]}


def _options(old: dict[str, Any], new: dict[str, Any]) -> dict[str, list[Any]]:
    """The options that differ."""
    names = [*old, *(n for n in new if n not in old)]
    return {n: [old.get(n), new.get(n)] for n in names if old.get(n) != new.get(n)}


def _bytes(folder: Path, files: tuple[str, ...]) -> int:
    return sum(p.stat().st_size for name in files if (p := folder / name).is_file())


# --- text -------------------------------------------------------------------------------------------------------------
def _head(d: dict[str, Any]) -> list[str]:
    lines = [
        f"{side}  {short(d[side]['folder'], 40)}: mirage {d[side]['mirage']}, {short(d[side]['model'], 50)}"
        for side in ("old", "new")
    ]
    if not d["same_model"]:
        lines.append("The models are not the same file.")
    return lines + [f"--{n.replace('_', '-')}: {_shown(a)} -> {_shown(b)}" for n, (a, b) in d["options"].items()]


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _totals(d: dict[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "old", "new", "change")]
    rows.append(("fragments replaced", *map(str, d["replaced"]), _difference(d["replaced"])))
    rows.append(("places replaced", *map(str, d["places"]), _difference(d["places"])))
    rows += [_times(f"predicted for {target}, all fragments", us) for target, us in d["predicted_us"].items()]
    rows += [_times(f"measured on {short(device, 30)}", us) for device, us in d["measured_us"].items()]
    for kind, shares in d["coverage"].items():
        shown = ["-" if s is None else percent(s) for s in shares]
        rows.append((f"coverage, {kind}", *shown, _points(shares)))
    rows += [
        (f"{name} (kB)", *(f"{n / 1000:.1f}" for n in sizes), _change(sizes)) for name, sizes in d["bytes"].items()
    ]
    rows.append(("seconds to optimize", *("-" if s is None else f"{s:.1f}" for s in d["seconds"]), ""))
    return table(rows, right=(1, 2, 3))


def _difference(counts: list[int]) -> str:
    return f"{counts[1] - counts[0]:+d}" if counts[0] != counts[1] else "="


def _points(shares: list[float | None]) -> str:
    """The difference of two shares in points of a hundred."""
    old, new = shares
    if old is None or new is None:
        return ""
    return "=" if old == new else f"{100 * (new - old):+.1f}"


def _times(name: str, us: list[float | None]) -> tuple[str, str, str, str]:
    old, new = ("-" if t is None else microseconds(t) for t in us)  # a sum may be larger than any number
    return name, old, new, _change(us)


def _change(sides: list[Any]) -> str:
    """The difference of the new figure from the old one, in per cent."""
    old, new = sides
    if old is None or new is None or not old:
        return ""
    change = 100 * (new / old - 1)
    return "=" if math.isclose(old, new) else f"{change:+.1f} %"


def _fragments(rows: list[dict[str, Any]]) -> list[str]:
    """A row for each fragment that is not the same, and how many are."""
    different = [
        r for r in rows if r["change"] != SAME or any(_change(us) not in ("=", "") for us in _shared(r).values())
    ]
    same = len(rows) - len(different)
    lines: list[str] = []
    if different:
        head = ("Fragment", "id", "what", "predicted", "change", "measured")
        lines = table([head, *map(_line, different)], right=(4,))
    return [*lines, f"{counted(same, 'fragment')} without a change"]


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    what = row["change"]
    if row["differs"]:
        what = ", ".join(row["differs"])
        if "status" in row["differs"]:
            what = what.replace("status", " -> ".join(row["status"]))
    elif what == SAME:
        what = "prediction"
    measured = ", ".join(_arrow(times) for times in row["measured_us"].values())
    return (
        short(row["name"], NAME),
        row["id"],
        what,
        ", ".join(f"{target} {_arrow(us)}" for target, us in row["predicted_us"].items()),
        ", ".join(filter(None, map(_change, _shared(row).values()))),
        measured,
    )


def _shared(row: dict[str, Any]) -> dict[str, list[float]]:
    """The predicted times of targets that both sides have."""
    return {target: us for target, us in row["predicted_us"].items() if None not in us}


def _arrow(sides: list[float | None]) -> str:
    return " -> ".join("-" if us is None else microseconds(us) for us in sides)


def _judged(d: dict[str, Any], regressions: tuple[Regression, ...]) -> list[str]:
    apart = d["predicted_us"] and all(None in us for us in d["predicted_us"].values())
    lines = ["The folders are for different targets: what is predicted is not compared."] if apart else []
    if not regressions:
        return [*lines, f"Nothing is worse by more than {d['tolerance_percent']:g} %."]
    return [*lines, f"Worse by more than {d['tolerance_percent']:g} %", *(f"  {r.text()}" for r in regressions)]
