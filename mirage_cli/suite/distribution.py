"""How a population of rows is distributed: means by kind of layer and by number of rows, and the worst rows with what is
known of the reason. As text, Markdown, JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_cli.suite.population import PARTS, RANGES, range_of
from mirage_cli.suite.report import (
    SuiteReport,
    SuiteRow,
    aligned,
    geometric,
    marked,
    micros,
    percent,
    rounded,
    times,
)

WORST = 20  #: rows that are shown with their reasons
AHEAD, FAR_BEHIND = 1.0, 0.9  #: ratios to the fastest peer
OFF = 1.3  #: a prediction or a choice that is off by more is part of a reason
HEAD = (
    "",
    "rows",
    "x best",
    "least",
    "ahead",
    f"below {FAR_BEHIND}",
    "own/tuned",
    "worst",
    "prediction",
    "worst",
    "floor/us",
)


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that have something in common, in figures; None where no row has the figure."""

    name: str
    count: int
    ratio: float | None
    least: float | None
    ahead: float | None
    far_behind: float | None
    behind_tuned: float | None
    worst_choice: float | None
    error: float | None
    worst_error: float | None
    share_of_floor: float | None

    def cells(self) -> list[str]:
        """A line of the table under `HEAD`."""
        tuned = (times(self.behind_tuned), times(self.worst_choice))
        return [
            *(self.name, str(self.count), times(self.ratio), times(self.least)),
            *(percent(self.ahead), percent(self.far_behind), *tuned),
            *(times(self.error), times(self.worst_error), percent(self.share_of_floor)),
        ]

    def to_json(self) -> dict[str, Any]:
        """One element of `distribution`."""
        figures = {n: rounded(getattr(self, n)) for n in Group.__slots__ if n not in ("name", "count")}
        return {"name": self.name, "rows": self.count, **figures}


def group(name: str, rows: Sequence[SuiteRow], limits: dict[str, Any]) -> Group:
    """The figures of some rows. A row that is wrong or failed where a peer has a time counts as behind."""

    def most(values: Sequence[float | None], of: Callable[[list[float]], float] = max) -> float | None:
        known = [v for v in values if v is not None]
        return of(known) if known else None

    compared = [r for r in rows if r.best and (r.us or r.problem)]
    ratios = [r.ratio or 0.0 for r in compared]
    tuned, errors = [r.behind_tuned for r in rows], [r.error for r in rows]
    return Group(
        name,
        len(rows),
        geometric([r.ratio for r in rows]),
        most([r.ratio for r in rows], min),
        sum(x >= AHEAD for x in ratios) / len(ratios) if ratios else None,
        sum(x < FAR_BEHIND for x in ratios) / len(ratios) if ratios else None,
        geometric(tuned),
        most(tuned),
        geometric(errors),
        most(errors),
        geometric([r.floor(limits) / r.us if r.us else None for r in rows]),
    )


def groups(report: SuiteReport) -> list[tuple[str, list[Group]]]:
    """What the rows are grouped by, with the figures of each group."""
    rows = report.rows

    def by(key: Callable[[SuiteRow], str], names: Sequence[str]) -> list[Group]:
        found = {n: [r for r in rows if key(r) == n] for n in names}
        return [group(n, own, report.limits) for n, own in found.items() if own]

    return [
        ("part", [group("all", rows, report.limits), *by(lambda r: r.part, PARTS)]),
        ("rows of a call", by(lambda r: range_of(r.rows), list(RANGES))),
        ("kind", by(lambda r: r.kind, sorted({r.kind for r in rows}))),
        ("type", by(lambda r: r.dtype, sorted({r.dtype for r in rows}))),
    ]


def worst(report: SuiteReport, count: int = WORST) -> list[SuiteRow]:
    """The rows that are furthest behind their fastest peer, those without a time of ours first."""
    compared = [r for r in report.rows if r.best and (r.us or r.problem)]
    return sorted(compared, key=lambda r: (r.ratio or 0.0, r.name))[:count]


def reason(r: SuiteRow, limits: dict[str, Any]) -> str:
    """What is known of why a row is behind."""
    if r.problem or r.us is None:
        return r.problem
    parts = []
    predicted, tuning = r.figures.get("predicted_us"), r.figures.get("tuning")
    if predicted and (r.error or 1) > OFF:
        parts.append(f"the model expected {micros(predicted)} us")
    elif predicted and r.best and predicted > r.best[1]:
        parts.append("the model knows of nothing as fast as the peer")
    if tuning and tuning["own_us"] / tuning["chosen_us"] > OFF:
        parts.append(f"its own choice took {micros(tuning['own_us'])} us")
    if tuning:
        parts.append(f"{tuning['tried']} candidates tried, {tuning['refused']} refused")
    kernels = r.figures.get("kernels", ())
    if len(kernels) > 1:
        parts.append(f"{len(kernels)} kernels")
    parts.append("; ".join(_kernel(k) for k in kernels))
    return ", ".join(filter(None, parts))


def _kernel(schedule: dict[str, Any]) -> str:
    tiles = " x ".join(str(n) for n in schedule.get("tiles", {}).values())
    said = {"loop": schedule.get("loop"), "warps": schedule.get("warps"), "stages": schedule.get("stages")}
    numbers = {n: v for n, v in (said | schedule.get("numbers", {})).items() if v}
    return " ".join([schedule.get("engine", "block"), tiles, *(f"{n} {v}" for n, v in numbers.items())]).strip()


WORST_HEAD = ("row", "floor", "mirage", "best peer", "x best", "predicted", "reason")


def worst_cells(report: SuiteReport) -> list[list[str]]:
    """Lines of the table of the worst rows under `WORST_HEAD`."""
    return [
        [
            *(r.name, micros(r.floor(report.limits)), micros(r.us)),
            f"{micros(r.best[1])} {r.best[0]}" if r.best else "-",
            *(times(r.ratio), micros(r.figures.get("predicted_us")), reason(r, report.limits)),
        ]
        for r in worst(report)
    ]


def to_json(report: SuiteReport) -> dict[str, Any]:
    """The report's document with the distribution in it."""
    found = {what: [g.to_json() for g in members] for what, members in groups(report)}
    return report.to_json() | {
        "distribution": found,
        "worst": [{"name": r.name, "reason": reason(r, report.limits)} for r in worst(report)],
    }


def facts(report: SuiteReport) -> list[str]:
    """How the run was made, in lines."""
    lines = report.header()
    machine = report.settings.get("peers_machine")
    if machine:
        lines.append(f"peers' times from {report.settings['peers_from']}: " + ", ".join(map(str, machine.values())))
    return lines


def text(report: SuiteReport) -> str:
    """The distribution for a terminal."""
    members = [list(HEAD)]
    for what, found in groups(report):
        members += [[f"by {what}", *[""] * (len(HEAD) - 1)], *(g.cells() for g in found)]
    shown = [
        *aligned(members, (0, len(HEAD) - 1)),
        "",
        *aligned([WORST_HEAD, *worst_cells(report)], (0, len(WORST_HEAD) - 1)),
    ]
    problems = [f"{r.name}: {r.problem}" for r in report.rows if r.problem]
    return "\n".join([*facts(report), "", *shown, "", *problems]).rstrip() + "\n"


def markdown(report: SuiteReport) -> str:
    """The distribution for a document."""
    lines = [f"{line}  " for line in facts(report)]
    for what, found in groups(report):
        lines += ["", *marked([[f"by {what}", *HEAD[1:]], *(g.cells() for g in found)])]
    return "\n".join([*lines, "", *marked([WORST_HEAD, *worst_cells(report)])])
