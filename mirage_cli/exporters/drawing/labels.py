"""Texts for people: names out of untrusted files made visible and short, numbers made readable.

A model file chooses the names of its tensors and nodes. `escaped` takes from them what could end a line, steer a terminal
or make a document invalid; escaping for XML or HTML comes on top of that, where the document is written.
"""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

#: Categories of characters that have no glyph of their own: controls, formats, surrogates, private, unassigned, breaks.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def escaped(text: str) -> str:
    """The text on one line with every character that has no glyph written as an escape such as `\\n` or `\\u{202e}`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _HIDDEN else c for c in text)


def clean(data: Any) -> Any:
    """The same JSON document with every text made visible on one line; `<` and the like are the template's business."""
    if isinstance(data, Mapping):
        return {escaped(k): clean(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [clean(v) for v in data]
    return escaped(data) if isinstance(data, str) else data


def _escape(c: str) -> str:
    return _SHORT.get(c, f"\\u{{{ord(c):x}}}")


def cells(text: str) -> int:
    """Number of columns of a fixed-width font that a visible text takes at most (characters of East Asian width take
    two)."""
    return len(text) if text.isascii() else sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def short(text: str, width: int) -> str:
    """The text made visible and cut in its middle to `width` columns: both ends of a node's name tell something."""
    shown = escaped(text)
    if cells(shown) <= width:
        return shown
    head, tail = width // 2, (width - 1) // 2
    return _fitting(shown, head) + "…" + _fitting(shown[::-1], tail)[::-1]


def _fitting(text: str, width: int) -> str:
    """The longest beginning of at most `width` columns."""
    used, end = 0, 0
    while end < len(text) and (used := used + cells(text[end])) <= width:
        end += 1
    return text[:end]


def number(value: Fraction | float) -> str:
    """A constant with six digits: `0.0625`, `1e-05`, `inf`."""
    return f"{float(value):.6g}"


def microseconds(us: float) -> str:
    """A time with about three digits: `2.47 us`, `312 us`, `1.24 ms`, `3.1 s`; below 0.1 us with two: `0.0034 us`."""
    if 0 < us < 0.1:
        return f"{us:.2g} us"
    for limit, scale, unit in ((1e3, 1.0, "us"), (1e6, 1e3, "ms")):
        if us < limit:
            return f"{_three(us / scale)} {unit}"
    return f"{_three(us / 1e6)} s"


def _three(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def percent(share: float) -> str:
    """A share as `97.1 %`; never rounded up to 100."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:.1f} %"


def amount(n: float) -> str:
    """A large count as `12.3 M`."""
    for size, unit in _UNITS:
        if n >= size:
            return f"{_three(n / size)} {unit}"
    return f"{n:.0f}"


def byte_count(n: float) -> str:
    """A number of bytes: `512 B`, `24.6 kB`."""
    number, _, unit = amount(n).partition(" ")
    return f"{number} {unit}B"


def counted(n: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def power_of_two(log2: float) -> str:
    """An error bound 2 ** log2 rounded up to a whole power: `2^-79`."""
    return f"2^{math.ceil(log2)}"


def table(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Lines of a table whose columns are as wide as their widest cell; columns in `right` are flushed right."""
    widths = [max(cells(row[k]) for row in rows) for k in range(len(rows[0]))]
    flush = set(right)
    lines = []
    for row in rows:
        padded = []
        for k, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - cells(cell))
            padded.append(space + cell if k in flush else cell + space)
        lines.append("  ".join(padded).rstrip())
    return lines


def paragraph(text: str, width: int, indent: str = "  ") -> list[str]:
    """A visible text broken into indented lines of at most `width` columns."""
    return textwrap.wrap(
        escaped(text), width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    ) or [indent.rstrip()]
