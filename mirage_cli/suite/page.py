"""The distribution of a population of rows as a page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from mirage_cli.codegen.render import render
from mirage_cli.exporters.drawing import canvas
from mirage_cli.exporters.plots import axes
from mirage_cli.suite import distribution
from mirage_cli.suite.report import METHOD, SuiteReport, SuiteRow, micros, percent, times

RADIUS = 3.0
_HEAD = ("row", "part", "floor", "mirage", "best peer", "x best", "predicted", "own/tuned", "engine")


def page(report: SuiteReport) -> str:
    """The page: means, plots, the worst rows and all rows."""
    rows = [r for r in report.rows if r.us]
    whole = distribution.group("all", report.rows, report.limits)
    return render(
        "suite.html.j2",
        title=f"suite {report.settings['suite']}",
        facts=distribution.facts(report),
        tiles=[
            (str(len(report.rows)), "rows"),
            (times(whole.ratio), "x the best peer, geometric mean"),
            (percent(whole.ahead), "of the rows ahead"),
            (percent(whole.far_behind), f"below {distribution.FAR_BEHIND}"),
            (times(whole.error), "x off: the prediction, geometric mean"),
        ],
        groups=[
            ([f"by {what}", *distribution.HEAD[1:]], [g.cells() for g in found])
            for what, found in distribution.groups(report)
        ],
        plots=[Markup(canvas.inline(p)) for p in (_ratios(rows), _predictions(rows)) if p],
        worst_head=distribution.WORST_HEAD,
        worst=distribution.worst_cells(report),
        rows_head=_HEAD,
        rows=[_cells(report, r) for r in report.rows],
        method=METHOD,
        version=report.version,
        light=canvas.variables(dark=False),
        dark=canvas.variables(dark=True),
        drawing_rules=canvas.rules_of_variables(),
    )


def _cells(report: SuiteReport, r: SuiteRow) -> list[str]:
    best = f"{micros(r.best[1])} {r.best[0]}" if r.best else "-"
    ours = r.problem if r.problem else micros(r.us)
    predicted = micros(r.figures.get("predicted_us"))
    return [
        r.name,
        r.part,
        micros(r.floor(report.limits)),
        ours,
        best,
        times(r.ratio),
        predicted,
        times(r.behind_tuned),
        r.engines,
    ]


def _ratios(rows: Sequence[SuiteRow]) -> str:
    """The fastest peer's time over ours, against the rows of a call."""
    found = [(r, float(r.rows), r.ratio) for r in rows if r.ratio]
    return _scatter(found, "the fastest peer's time over ours", "rows of a call")


def _predictions(rows: Sequence[SuiteRow]) -> str:
    """What the model predicted over what was measured, against the time."""
    found = [(r, r.us, p / r.us) for r in rows if r.us and (p := r.figures.get("predicted_us"))]
    return _scatter(found, "predicted over measured", "measured, us")


def _scatter(points: Sequence[tuple[SuiteRow, float, float]], title: str, label: str) -> str:
    """Discs at factors, those below one marked, with a line at one; nothing without points."""
    if not points:
        return ""
    x = axes.across([p[1] for p in points])
    y = axes.up([1.0, *(p[2] for p in points)], (1, 2, 5))
    body = axes.grid(x, y, (label, title), lambda v: f"{v:.3g}")
    body.append(canvas.segment((axes.LEFT, y.at(1.0)), (axes.WIDTH - axes.RIGHT, y.at(1.0)), "roof"))
    for r, across, factor in points:
        disc = canvas.circle(x.at(across), y.at(factor), RADIUS, "ours" if factor >= 1 else "was")
        body.append(canvas.titled(disc, f"{r.name}: {factor:.2f}"))
    return canvas.document(axes.WIDTH, axes.HEIGHT, title, body)
