"""The elements of which drawings consist, as SVG text; colours come from one style sheet with a light and a dark half.

Every text goes through `text` or `tooltip`, which escape it: the names are an untrusted file's.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from mirage_cli.exporters.drawing.labels import cells, escaped

FONT = 11.0  #: pixels
CELL = 6.9  #: the width of a character of a fixed-width font at this size, with a little room
LINE = 15.0  #: the height of a line

_NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'  #: only a file of its own needs it
Point = tuple[float, float]

#: class -> (property, light, dark); one for each role that something has in a drawing
COLOURS = (
    ("page", "fill", "#ffffff", "#15181d"),
    ("kernel", "fill", "#eef2f7", "#1d232b"),
    ("kernel", "stroke", "#8493a8", "#5f7088"),
    ("block", "fill", "#ffffff", "#15181d"),
    ("block", "stroke", "#3f6fb5", "#5f93dd"),
    ("band", "fill", "#f3f6fa", "#1b2027"),
    ("loop", "fill", "#e4eefb", "#1a2a40"),
    ("loop", "stroke", "#3f6fb5", "#5f93dd"),
    ("tensor", "fill", "#ffffff", "#22272f"),
    ("tensor", "stroke", "#8493a8", "#77869c"),
    ("load", "fill", "#e6f4ec", "#18332a"),
    ("load", "stroke", "#4b9a74", "#4f9d79"),
    ("tile", "fill", "#ffffff", "#262c35"),
    ("tile", "stroke", "#5d6b80", "#8a98ad"),
    ("carry", "fill", "#f1e9fa", "#2e2440"),
    ("carry", "stroke", "#8a63b8", "#a483d1"),
    ("thread", "fill", "#fdf3e1", "#33291a"),
    ("thread", "stroke", "#c08a2d", "#b98a3c"),
    ("op", "fill", "#ffffff", "#463820"),
    ("op", "stroke", "#c08a2d", "#b98a3c"),
    ("line", "stroke", "#5d6b80", "#93a1b5"),
    ("tip", "fill", "#5d6b80", "#93a1b5"),
    ("ink", "fill", "#1b2430", "#e4e9f0"),
    ("soft", "fill", "#566375", "#a3b0c2"),
    ("grid", "stroke", "#dbe1e9", "#2b323c"),
    ("roof", "stroke", "#8a5a00", "#e8b75c"),
    ("stem", "stroke", "#8493a8", "#77869c"),
    ("was", "fill", "#ffffff", "#15181d"),
    ("was", "stroke", "#b3261e", "#f2938c"),
    ("ours", "fill", "#1d7a4c", "#6fd3a0"),
    ("ours", "stroke", "#1d7a4c", "#6fd3a0"),
    ("peer", "fill", "#8a63b8", "#b79be0"),
    ("peer", "stroke", "#8a63b8", "#b79be0"),
)

#: rules that no colour scheme changes
_SHAPES = (
    ".mu text{{font:{size:g}px {fonts};white-space:pre}}.mu .strong{{font-weight:bold}}.mu .line{{fill:none}}"
    ".mu .dash{{stroke-dasharray:5 3}}.mu .roof{{stroke-width:2}}.mu .was,.mu .ours{{stroke-width:1.8}}"
)
_FONTS = "ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace"


def shapes() -> str:
    """The rules of all drawings that no colour scheme changes."""
    return _SHAPES.format(size=FONT, fonts=_FONTS)


def style() -> str:
    """The style sheet of a drawing; its rules touch nothing outside drawings."""

    def rules(column: int) -> str:
        return "".join(f".mu .{c[0]}{{{c[1]}:{c[column]}}}" for c in COLOURS)

    return f"{shapes()}{rules(2)}@media (prefers-color-scheme:dark){{{rules(3)}}}"


def variables(dark: bool) -> str:
    """The colours as declarations of variables: a page that holds drawings has them once, see `rules_of_variables`."""
    return "".join(f"--mu-{c[0]}-{c[1]}:{c[3 if dark else 2]};" for c in COLOURS)


def rules_of_variables() -> str:
    """The style sheet of all drawings in a page that defines `variables`."""
    return shapes() + "".join(f".mu .{c[0]}{{{c[1]}:var(--mu-{c[0]}-{c[1]})}}" for c in COLOURS)


def inline(document: str) -> str:
    """A drawing for a page that has `rules_of_variables`: without a style sheet and a namespace of its own."""
    return document.replace(f"<style>{style()}</style>\n", "", 1).replace(_NAMESPACE, "", 1)


def document(width: float, height: float, title: str, body: Sequence[str]) -> str:
    """A complete SVG document."""
    w, h = number(width), number(height)
    lines = [
        f'<svg{_NAMESPACE} class="mu" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img">',
        tooltip(title),
        f"<style>{style()}</style>",
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """A coordinate with one decimal."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


def width_of(*lines: str) -> float:
    """The greatest width at which a text is drawn."""
    return max((cells(escaped(line)) for line in lines), default=0) * CELL


def tooltip(content: str) -> str:
    """A title, which viewers show when the pointer rests on what holds it."""
    return f"<title>{escape(escaped(content))}</title>"


def text(x: float, y: float, content: str, css: str = "ink", anchor: str = "start") -> str:
    """A line of text with its base line at `y`."""
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text class="{css}" x="{number(x)}" y="{number(y)}"{where}>{escape(escaped(content))}</text>'


def rect(x: float, y: float, width: float, height: float, css: str, radius: float = 4.0) -> str:
    """A rectangle with rounded corners."""
    size = f'width="{number(width)}" height="{number(height)}" rx="{number(radius)}"'
    return f'<rect class="{css}" x="{number(x)}" y="{number(y)}" {size}/>'


def circle(x: float, y: float, radius: float, css: str) -> str:
    """A disc."""
    return f'<circle class="{css}" cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"/>'


def segment(start: Point, end: Point, css: str) -> str:
    """A straight line."""
    return f'<path class="{css}" d="M{number(start[0])} {number(start[1])}L{number(end[0])} {number(end[1])}"/>'


def titled(element: str, content: str) -> str:
    """An element that shows a text when the pointer rests on it."""
    return f"<g>{tooltip(content)}{element}</g>"


def group(x: float, y: float, body: Sequence[str]) -> str:
    """Elements moved to a place."""
    return f'<g transform="translate({number(x)} {number(y)})">\n' + "\n".join(body) + "\n</g>"


def arrow(points: Sequence[Point], head: bool = True) -> str:
    """A line from the first point down to the last one, vertical wherever it passes a point."""
    (x, y), *rest = points
    parts = [f"M{number(x)} {number(y)}"]
    for nx, ny in rest:
        if abs(nx - x) < 0.05:
            parts.append(f"V{number(ny)}")
        else:
            half = number((y + ny) / 2)
            parts.append(f"C{number(x)} {half} {number(nx)} {half} {number(nx)} {number(ny)}")
        x, y = nx, ny
    line = f'<path class="line" d="{"".join(parts)}"/>'
    if not head:
        return line
    tip = f"M{number(x - 3)} {number(y - 6)}L{number(x)} {number(y)}L{number(x + 3)} {number(y - 6)}z"
    return f'{line}<path class="tip" d="{tip}"/>'
