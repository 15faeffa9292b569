"""Logarithmic axes, and the frame of a plot with its grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mirage_cli.exporters.drawing import canvas

WIDTH, HEIGHT = 600.0, 400.0  #: pixels
LEFT, RIGHT, TOP, BOTTOM = 60.0, 20.0, 30.0, 46.0
MOST_TICKS = 10
ROOM = 0.2  #: least distance of a value from the ends of its axis, in steps of the axis


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from the first to the last tick, between two pixels."""

    ticks: tuple[float, ...]
    start: float
    end: float

    @property
    def low(self) -> float:
        """Its least value."""
        return self.ticks[0]

    @property
    def high(self) -> float:
        """Its greatest value."""
        return self.ticks[-1]

    def at(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + math.log(value / self.low) / math.log(self.high / self.low) * (self.end - self.start)


def across(values: Iterable[float]) -> Axis:
    """From left to right, with whole powers of two."""
    return Axis(_powers(values, 2), LEFT, WIDTH - RIGHT)


def up(values: Iterable[float], steps: tuple[int, ...] = (1,)) -> Axis:
    """From the bottom to the top, with these `steps` of each power of ten."""
    known = list(values)
    ticks = [step * power for power in _powers(known, 10) for step in steps]
    room = 10 ** (ROOM / len(steps))
    first = max(k for k, t in enumerate(ticks) if t * room <= min(known) or k == 0)
    last = min((k for k, t in enumerate(ticks) if t >= max(known) * room), default=len(ticks) - 1)
    return Axis(tuple(ticks[first : last + 1]), HEIGHT - BOTTOM, TOP)


def _powers(values: Iterable[float], base: int) -> tuple[float, ...]:
    """Whole powers between which all values lie, with some room."""
    logs = [math.log(v, base) for v in values]
    low, high = math.floor(min(logs) - ROOM), math.ceil(max(logs) + ROOM)
    return tuple(float(base) ** k for k in range(low, max(high, low + 1) + 1))


def grid(x: Axis, y: Axis, labels: tuple[str, str], height: Callable[[float], str]) -> list[str]:
    """The frame, its lines with what they stand for, and the labels of both axes; `height` is the text of a tick of `y`."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    body = [canvas.rect(LEFT, TOP, right - LEFT, bottom - TOP, "band", 0)]
    for tick in x.ticks[:: -(-len(x.ticks) // (MOST_TICKS + 1))]:
        body.append(canvas.segment((x.at(tick), TOP), (x.at(tick), bottom), "grid"))
        body.append(canvas.text(x.at(tick), bottom + 16, f"{tick:.4g}", "soft", "middle"))
    for tick in y.ticks:
        body.append(canvas.segment((LEFT, y.at(tick)), (right, y.at(tick)), "grid"))
        body.append(canvas.text(LEFT - 6, y.at(tick) + 4, height(tick), "soft", "end"))
    body.append(canvas.text((LEFT + right) / 2, HEIGHT - 10, labels[0], "soft", "middle"))
    body.append(canvas.text(6, TOP - 16, labels[1], "soft"))
    return body
