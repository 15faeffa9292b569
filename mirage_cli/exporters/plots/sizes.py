"""Times against a size, from `mirage bench --dim SYMBOL=N,N,...`: the original's, ours, ours as predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mirage_cli.exporters.drawing import canvas
from mirage_cli.exporters.drawing.labels import microseconds, short
from mirage_cli.exporters.plots import axes

#: entry of a point -> class of its line, class of its marks, radius of these, what it is
CURVES = {
    "original_us": ("was", "was timed", 5.5, "original, measured"),
    "mirage_us": ("ours", "ours timed", 5.5, "mirage, measured"),
    "predicted_us": ("ours dash", "ours", 4.0, "mirage, predicted"),
}
NAME = 60  #: columns of a title


@dataclass(frozen=True, slots=True)
class Plot:
    """Times of the whole model or of a fragment along one symbol, all others being the same: (size, entries of a point) by
    size."""

    title: str
    symbol: str
    points: tuple[tuple[int, Mapping[str, Any]], ...]


def plots(sweeps: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """The plots of a report's `sweeps`: along the symbol that has most sizes, one for each choice of the others."""
    return [plot for sweep in sweeps for plot in _plots(sweep)]


def _plots(sweep: Mapping[str, Any]) -> Iterator[Plot]:
    points = [p for p in sweep["points"] if all(p["sizes"].values()) and any(p[c] for c in CURVES)]
    names = list(dict.fromkeys(n for p in points for n in p["sizes"]))
    if not names:
        return
    symbol = max(names, key=lambda n: len({p["sizes"].get(n) for p in points}))
    groups: dict[tuple[tuple[str, int], ...], dict[int, Mapping[str, Any]]] = {}
    for p in points:
        others = tuple((n, k) for n, k in p["sizes"].items() if n != symbol)
        groups.setdefault(others, {})[p["sizes"].get(symbol, 1)] = p
    for others, found in groups.items():
        told = ", ".join([sweep["what"], *(f"{n} {k}" for n, k in others)])
        yield Plot(f"{short(told, NAME)} on {short(sweep['device'], NAME)}", symbol, tuple(sorted(found.items())))


def drawing(plot: Plot) -> str:
    """The SVG document of a plot."""
    x = axes.across([size for size, _ in plot.points])
    y = axes.up([p[c] for _, p in plot.points for c in CURVES if p[c]], (1, 2, 5))
    body = axes.grid(x, y, (short(plot.symbol, NAME), "time of one call"), microseconds)
    for entry, (line, mark, radius, what) in CURVES.items():
        known = [(size, p[entry]) for size, p in plot.points if p[entry]]
        places = [(x.at(size), y.at(us)) for size, us in known]
        body += [canvas.segment(a, b, line) for a, b in pairwise(places)]
        for (size, us), place in zip(known, places, strict=True):
            disc = canvas.circle(*place, radius, mark)
            body.append(canvas.titled(disc, f"{what}: {microseconds(us)} at {short(plot.symbol, NAME)} {size}"))
    return canvas.document(axes.WIDTH, axes.HEIGHT, plot.title, body)
