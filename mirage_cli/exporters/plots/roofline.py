"""The roofline plot of Williams, Waterman and Patterson: operations per byte against operations per second.

No kernel can be above the roof: memory's bandwidth on the left, the rate of the processors on the right. Every fragment is
a vertical line: its bytes and operations do not change, so that being faster is being higher.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mirage_cli.exporters.drawing import canvas
from mirage_cli.exporters.drawing.labels import amount, byte_count, microseconds, short
from mirage_cli.exporters.plots import axes
from mirage_cli.exporters.plots.axes import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH
from mirage_cli.report.report import ISOLATED, KERNEL

APART = 12.0  #: least distance between the lines of two fragments


@dataclass(frozen=True, slots=True)
class Line:
    """A fragment on the plot: its number, operations and bytes, and times with what they are (microseconds)."""

    number: int
    name: str
    flops: float
    bytes: float
    times: tuple[tuple[str, str, float], ...]  #: (mark, what it is, microseconds)

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flops / self.bytes


@dataclass(frozen=True, slots=True)
class Plot:
    """The fragments of one target, and the bounds that the target sets."""

    target: str
    bandwidth: float
    rates: tuple[float, ...]
    lines: tuple[Line, ...]


def plots(fragments: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """A plot for each kind of target that fragments have predictions for."""
    kinds = sorted({k for f in fragments for k in f.get("predictions", {})}, reverse=True)
    plots_by_kind = []
    for kind in kinds:
        rows = [(n, f, f["predictions"][kind]) for n, f in enumerate(fragments, 1) if kind in f.get("predictions", {})]
        lines = tuple(
            Line(n, f["name"], p["flops"], p["bytes"], _times(f, p, kind))
            for n, f, p in rows
            if p["flops"] and p["bytes"]
        )
        if lines:
            first = rows[0][2]
            rates = tuple(sorted({p["rate"] for _, _, p in rows if p["flops"]}))
            plots_by_kind.append(Plot(first["target"], first["bandwidth"], rates, lines))
    return plots_by_kind


def _times(f: Mapping[str, Any], p: Mapping[str, Any], kind: str) -> tuple[tuple[str, str, float], ...]:
    marks = [("floor", "floor", p["floor_us"]), ("was", "original, predicted", p["original_us"])]
    marks.append(("ours", "mirage, predicted", p["predicted_us"]))
    fixed = all(isinstance(e, int) for e in f["program"]["axes"].values())
    for measured in f["measured"]:
        if measured.get("target", "cuda") != kind or ("inputs" in measured and not fixed):
            continue  # at other sizes there are other bytes and operations
        marks.append(("was timed", f"original, measured on {measured['device']}", measured["original_us"]))
        marks.append(("ours timed", f"mirage, measured on {measured['device']}", measured["mirage_us"]))
        marks += [
            ("kernel" if name == KERNEL else "peer", f"{name}, measured on {measured['device']}", us)
            for name, us in measured.get("peers", {}).items()
            if name != ISOLATED  # so near to the kernel's that neither could be told
        ]
    return tuple((mark, what, us) for mark, what, us in marks if us)


def drawing(plot: Plot) -> str:
    """The SVG document of a plot."""
    scale = _Scale(plot)
    body = axes.grid(scale.x, scale.y, ("operations for each byte", "operations a second"), _round)
    body += _roofs(plot, scale)
    for x, line in zip(_spread([scale.x.at(p.intensity) for p in plot.lines]), plot.lines, strict=True):
        body += _stem(line, x, scale)
    return canvas.document(WIDTH, HEIGHT, f"Roofline plot for {plot.target}", body)


class _Scale:
    """The axes that hold a plot."""

    def __init__(self, plot: Plot) -> None:
        speeds = [p.flops / us * 1e6 for p in plot.lines for _, _, us in p.times] + list(plot.rates)
        self.x = axes.across([*(p.intensity for p in plot.lines), max(plot.rates) / plot.bandwidth])
        self.y = axes.up(speeds)


def _round(power: float) -> str:
    """A power of ten without decimals: `100 G`, `10 T`."""
    return re.sub(r"\.0+(?= |$)", "", amount(power))


def _roofs(plot: Plot, scale: _Scale) -> list[str]:
    """The bandwidth's line up to each rate, and the rates' lines."""
    body = []
    low, high, floor = scale.x.low, scale.x.high, scale.y.low
    for rate in plot.rates:
        corner = rate / plot.bandwidth
        start = max(low, floor / plot.bandwidth)
        points = [(scale.x.at(start), scale.y.at(start * plot.bandwidth)), (scale.x.at(corner), scale.y.at(rate))]
        body.append(canvas.segment(points[0], points[1], "roof"))
        body.append(canvas.segment(points[1], (scale.x.at(high), scale.y.at(rate)), "roof"))
        body.append(canvas.text(WIDTH - RIGHT - 4, scale.y.at(rate) - 5, f"{amount(rate)} op/s", "soft", "end"))
    x = math.sqrt(max(low, floor / plot.bandwidth) * min(high, max(plot.rates) / plot.bandwidth))
    told = f"{byte_count(plot.bandwidth)}/s"
    body.append(canvas.text(scale.x.at(x) - 8, scale.y.at(x * plot.bandwidth) - 6, told, "soft", "end"))
    return body


def _spread(places: Sequence[float]) -> list[float]:
    """The places moved apart where they are too near to each other to be told."""
    order = sorted(range(len(places)), key=lambda k: (places[k], k))
    apart = min(APART, (WIDTH - LEFT - RIGHT - APART) / max(len(places), 1))
    spread = list(places)
    for before, k in pairwise(order):
        spread[k] = max(spread[k], spread[before] + apart)
    beyond = WIDTH - RIGHT - APART / 2
    for k in reversed(order):
        spread[k] = min(spread[k], beyond)
        beyond = spread[k] - apart
    return spread


def _stem(line: Line, x: float, scale: _Scale) -> list[str]:
    """A fragment: a line from its slowest to its fastest, a mark for each time, its number below."""
    marks = [(mark, what, us, scale.y.at(line.flops / us * 1e6)) for mark, what, us in line.times]
    lowest, highest = max(y for *_, y in marks), min(y for *_, y in marks)
    body = [canvas.segment((x, highest), (x, lowest), "stem")]
    name = short(line.name, 40)
    for mark, what, us, y in marks:
        title = f"{line.number} {name}: {what} {microseconds(us)}, {amount(line.flops / us * 1e6)} operations a second"
        body.append(canvas.titled(_mark(mark, x, y), title))
    body.append(canvas.text(x, min(lowest + 16, HEIGHT - BOTTOM - 4), str(line.number), "ink strong", "middle"))
    return body


def _mark(mark: str, x: float, y: float) -> str:
    if mark == "floor":
        return canvas.segment((x - 6, y), (x + 6, y), "roof")
    if mark in ("kernel", "peer"):
        return canvas.rect(x - 3.5, y - 3.5, 7, 7, "ours" if mark == "kernel" else "peer", 0)
    return canvas.circle(x, y, 5.5 if "timed" in mark else 4.0, mark)
