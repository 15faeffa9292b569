"""Figures: parts of drawings that know their size, and how they are put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_cli.exporters.drawing import canvas
from mirage_cli.exporters.drawing.canvas import LINE
from mirage_cli.exporters.drawing.labels import short
from mirage_cli.exporters.layout import Box, Gaps, Layout, layered

NAME = 30  #: columns of a tensor's name
TIP = 200  #: columns of what shows when the pointer rests on a box
PAD = 8.0  #: between a box's border and its text
FRAME = 14.0  #: between a frame and what it holds


@dataclass(frozen=True, slots=True)
class Figure:
    """A finished part: its elements around its own origin, its size, and where lines enter it (see `layout.Box`)."""

    width: float
    height: float
    body: tuple[str, ...]
    band: int = 0
    ports: tuple[float, ...] | None = None

    @property
    def box(self) -> Box:
        """The box that the layout needs to know of it."""
        return Box(self.width, self.height, self.band, self.ports)


def node(lines: Sequence[str], css: str, radius: float = 4.0, tip: str = "") -> Figure:
    """A box with lines of text, the first of which is its heading."""
    width = canvas.width_of(*lines) + 2 * PAD
    height = LINE * len(lines) + 7
    body = [canvas.tooltip(short(tip, TIP))] if tip else []
    body.append(canvas.rect(0, 0, width, height, css, radius))
    for n, line in enumerate(lines):
        body.append(canvas.text(PAD, LINE * (n + 1), line, "soft" if n else "ink strong"))
    return Figure(width, height, tuple(body))


def tensor_box(name: str, shape: str, role: str) -> Figure:
    """A stored tensor."""
    lines = [short(name, NAME), *([f"{role}  {shape}".strip()] if role or shape else [])]
    return node(lines, "tensor", radius=11.0, tip=f"{name} {shape}")


def drawn(figures: Sequence[Figure], layout: Layout) -> list[str]:
    """Lines first, so that boxes lie on them."""
    lines = [canvas.arrow(line) for line in layout.lines]
    return lines + [canvas.group(x, y, f.body) for (x, y), f in zip(layout.corners, figures, strict=True)]


def assembled(
    figures: Sequence[Figure],
    edges: Sequence[tuple[int, int]],
    gaps: Gaps,
    titles: Sequence[Sequence[str]] = (),
    margin: float = 0.0,
    loops: Sequence[bool] = (),
) -> Figure:
    """Figures placed and connected; bands have their titles in a margin on the left."""
    layout = layered([f.box for f in figures], edges, gaps)
    width = margin + layout.width + (PAD if titles else 0.0)
    body = []
    for (top, bottom), lines, loop in zip(layout.bands, titles, loops, strict=False):
        body.append(canvas.rect(0, top, width, bottom - top, "loop dash" if loop else "band"))
        body += [canvas.text(PAD, top + LINE * (k + 1) + 2, t, "soft strong") for k, t in enumerate(lines)]
    body.append(canvas.group(margin, 0, drawn(figures, layout)))
    return Figure(width, layout.height, tuple(body))


def framed(inner: Figure, head: Sequence[str], css: str) -> Figure:
    """A figure in a box with heading lines."""
    top = FRAME + LINE * len(head)
    width = max(inner.width, canvas.width_of(*head)) + 2 * FRAME
    height = top + inner.height + FRAME
    body = [canvas.rect(0, 0, width, height, css, 6.0)]
    for n, line in enumerate(head):
        body.append(canvas.text(FRAME, FRAME + LINE * n + 6, line, "soft" if n else "ink strong"))
    body.append(canvas.group((width - inner.width) / 2, top, inner.body))
    return Figure(width, height, tuple(body))


def wrapped(line: str, width: float) -> list[str]:
    """A heading over as many lines as it needs."""
    lines, current = [], ""
    for word in line.split("  "):
        longer = f"{current}  {word}" if current else word
        if current and canvas.width_of(longer) > width:
            lines.append(current)
            longer = f"      {word}"
        current = longer
    return [*lines, current]
