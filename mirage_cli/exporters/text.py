"""A report as text of at most `WIDTH` columns, without colours: what `mirage optimize` prints."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mirage_cli.exporters import wording
from mirage_cli.exporters.drawing.labels import counted, paragraph, short, table
from mirage_cli.report import naming
from mirage_cli.report.report import Report

WIDTH = 100  #: columns
NAME = 24  #: columns of a fragment's name
REASONS = 6  #: that are told of what was left
LEFT = "Left as they were"  #: the heading of what was not replaced
RUN = "run.py"  #: a program in the output folder that runs the model
EXAMPLES = 3  #: names of nodes beside a reason


def summary(report: Report, folder: str = "DIR") -> str:
    """The outcome of a run; `folder` is where it was written, for the commands that can follow."""
    data = report.to_json()
    m = data["model"]
    head = f"{short(m['path'], 60)}: {m['format']}, opset {m['opset']}, {counted(m['nodes'], 'node')}"
    blocks = [
        [head, *outcome(data)],
        fragments(data["fragments"]),
        reasons(data["fragments"]),
        ["Coverage", *(f"  {line}" for line in wording.covered(data["coverage"]))],
        left_alone(data["unchanged"], {f.get("reason") for f in data["fragments"]}),
        notes(data["notes"]),
        _seconds(data["seconds"]) + _known_searches(data["fragments"]),
        _next(data, folder),
    ]
    return "\n\n".join("\n".join(b) for b in blocks if b) + "\n"


def outcome(data: Mapping[str, Any]) -> list[str]:
    """Lines on what became of the model, what is gained, how it was proved."""
    return [line for sentence in wording.outcomes(data) for line in paragraph(sentence, WIDTH, "")]


def fragments(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of fragments: a row for each distinct one."""
    if not entries:
        return []
    ids = naming.beginnings([f["id"] for f in entries])
    times = _times(entries)
    head = ["Fragment", "id", "places", "status", *(title for title, _ in times), "proof", "error (original's)"]
    rows = [
        [
            short(f["name"], NAME),
            ids[f["id"]],
            str(f["occurrences"]),
            f["status"],
            *(cell(f) or "-" for _, cell in times),
            wording.bound(f["verification"]) or "-",
            wording.accuracy(f["verification"]["float"]) or "-",
        ]
        for f in entries
    ]
    shown = len(head) - (len(times) > 1)  # `mirage show` has the errors
    return table([row[:shown] for row in (head, *rows)], right=(2,))


def _times(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, Callable[[Mapping[str, Any]], str]]]:
    """Headings and cells of columns with times: measured ones where there are any, else those predicted, by target."""
    if any(f["measured"] for f in entries):
        return [("measured", lambda f: wording.measured(f) or (wording.gain(f) and f"{wording.gain(f)} (predicted)"))]
    targets = dict.fromkeys(t for f in entries for t in wording.predictions(f))
    return [(f"predicted, {t}".strip(", "), functools.partial(wording.gain, target=t)) for t in targets]


def reasons(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why fragments were not replaced, equal reasons once."""
    names: dict[str, list[str]] = {}
    for f in entries:
        if f.get("reason"):
            names.setdefault(f["reason"], []).append(short(f["name"], NAME))
    if not names:
        return []
    lines = ["Not replaced"]
    for reason, of in names.items():
        several = [f"{n} ({of.count(n)})" if of.count(n) > 1 else n for n in dict.fromkeys(of)]
        lines += _hanging(f"{', '.join(several)}: {reason}")
    return lines


def left_alone(unchanged: Sequence[Mapping[str, Any]], told: Collection[str | None] = ()) -> list[str]:
    """The reasons for which most nodes were left alone, with examples; nodes whose reason is `told` of their fragment are
    counted."""
    total = sum(len(u["nodes"]) for u in unchanged)
    if not total:
        return []
    lines = [f"{LEFT}: {counted(total, 'node')}"]
    kept = sum(len(u["nodes"]) for u in unchanged if u["reason"] in told)
    lines += [f"  {kept} x in fragments that are not replaced"] if kept else []
    groups = sorted((u for u in unchanged if u["reason"] not in told), key=lambda u: -len(u["nodes"]))
    for u in groups[:REASONS]:
        names = ", ".join(short(n, NAME) for n in u["nodes"][:EXAMPLES])
        more = ", ..." if len(u["nodes"]) > EXAMPLES else ""
        lines += _hanging(f"{len(u['nodes'])} x {u['reason']} ({names}{more})")
    if len(groups) > REASONS:
        rest = sum(len(u["nodes"]) for u in groups[REASONS:])
        lines.append(f"  {counted(rest, 'node')} for {counted(len(groups) - REASONS, 'other reason')}")
    return lines


def notes(told: Sequence[str]) -> list[str]:
    """The notes of the reader of the model."""
    return ["Notes", *(line for note in told for line in _hanging(note))] if told else []


def _hanging(text: str) -> list[str]:
    """An indented paragraph whose first line sticks out."""
    first, *rest = paragraph(text, WIDTH - 2, "  ")
    return [first, *("  " + line for line in rest)]


def _seconds(seconds: Mapping[str, float]) -> list[str]:
    if "total" not in seconds:
        return []
    parts = [f"{k} {v:.1f}" for k, v in seconds.items() if k != "total" and v >= 0.05]
    return [f"{seconds['total']:.1f} s" + (f" ({', '.join(parts)})" if parts else "")]


def _known_searches(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line that counts the searches and proofs of earlier runs; none without any."""
    known = sum(bool(f["search"].get("cached")) for f in entries)
    return [f"{known} of {counted(len(entries), 'fragment')} searched and proved by earlier runs"] if known else []


def _next(report: Mapping[str, Any], folder: str) -> list[str]:
    if report["options"].get("dry_run"):
        return []
    words = (["verify", folder], ["bench", folder, "--cpu"], *([["show", folder]] if report["fragments"] else []))
    run = [wording.command(["python", f"{folder}/{RUN}"])] if RUN in report["files"] else []
    commands = [*run, *(wording.command(["mirage", *w]) for w in words)]
    return ["Next", *(f"  {c}" for c in commands)]


def model(m: Mapping[str, Any]) -> str:
    """A model in a line."""
    return f"{short(m['path'], 60)}: {m['format']}, opset {m['opset']}, {counted(m['nodes'], 'node')}"
