"""Showing how a run goes on, on standard error: bars on a terminal, a line for each stage elsewhere, all lines with
--verbose."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import TaskID

    from mirage_cli.commands.display import Display
    from mirage_cli.search.progress import Standing

PATIENCE = 10.0  #: seconds for which a reader of lines hears nothing
SEARCHED = 0.9  #: of a step, what its search takes; the rest is proof and rendering


def on_terminal() -> bool:
    """True if standard error is a terminal that can move its cursor."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def searching(name: str, s: Standing) -> str:
    """The progress of a search, in a line."""
    best = "" if s.best_us is None else f", best {s.best_us:.3g} us"
    return f"{name}: {s.closed} of {s.mappings} mappings, {s.values:,} values, {s.mugraphs} candidates{best}"


def headline(stage: str, total: int) -> str:
    """A stage and its number of steps."""
    return f"{stage} ({total} {'step' if total == 1 else 'steps'})"


class Lines:
    """One line for each stage and step, and for each time that a search finds something better, with the seconds since the
    start."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._start = time.perf_counter()
        self._stage, self._untold = "", ""
        self._told = self._start
        self._best: dict[str, float] = {}

    def stage(self, name: str, total: int) -> None:
        """A stage begins."""
        self._stage = name
        self._line(headline(name, total))

    def step(self, text: str) -> None:
        """A step of it is done."""
        self._line(f"{self._stage}: {text}")

    def search(self, fragment: str, name: str, standing: Standing | None) -> None:
        """A search goes on."""
        best = None if standing is None else standing.best_us
        if standing is not None and best is not None and best < self._best.get(fragment, math.inf):
            self._best[fragment] = best
            self._line(f"{self._stage}: {searching(name, standing)}")

    def note(self, text: str) -> None:
        """Something is going on."""
        self._line(text)

    def _line(self, text: str) -> None:
        self._told = time.perf_counter()
        self._say(f"[{self._told - self._start:7.2f} s] {text}")


class Stages(Lines):
    """One line for each stage, and in a long one a step every `PATIENCE` seconds."""

    def stage(self, name: str, total: int) -> None:
        """A stage begins. The first one is told when it is over: an error in it stands alone."""
        first, untold = not self._stage, self._untold
        self._stage, self._untold = name, headline(name, total) if first else ""
        for line in [] if first else [*filter(None, [untold]), headline(name, total)]:
            self._line(line)

    def step(self, text: str) -> None:
        """A step of it is done, which is told where nothing was for a while."""
        if time.perf_counter() - self._told > PATIENCE:
            super().step(text)

    def search(self, fragment: str, name: str, standing: Standing | None) -> None:
        """Nothing: its step follows."""

    def note(self, text: str) -> None:
        """Nothing: a step follows."""


class Bars:
    """A bar for each stage, its last step beside it, and under it the search that was heard of last. Searches that go on count
    as parts of steps, so that the remaining time is not guessed from whole steps alone."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._task: TaskID | None = None
        self._done = 0
        self._running: dict[str, Standing] = {}

    def stage(self, name: str, total: int) -> None:
        """A new bar; the one before is finished."""
        self._finish()
        self._done, self._running = 0, {}
        self._task = self._display.add_task(name, total=total, text="")

    def step(self, text: str) -> None:
        """The bar moves by one."""
        self._done += 1
        self._moved(text=text)

    def search(self, fragment: str, name: str, standing: Standing | None) -> None:
        """A search goes on, or has ended."""
        if standing is None:
            self._running.pop(fragment, None)
            self._display.line = ""
        else:
            self._running[fragment] = standing
            self._display.line = searching(name, standing)
            self._moved()

    def note(self, text: str) -> None:
        """The line under the bar."""
        self._display.line = text
        self._moved()

    def _moved(self, **fields: Any) -> None:
        if self._task is not None:
            parts = sum(SEARCHED * s.closed / s.mappings for s in self._running.values() if s.mappings)
            self._display.update(self._task, completed=self._done + parts, **fields)

    def _finish(self) -> None:
        self._display.line = ""
        if self._task is not None:
            task = next(t for t in self._display.tasks if t.id == self._task)
            self._display.update(self._task, completed=task.total, text="")


@contextlib.contextmanager
def bars() -> Iterator[Bars]:
    """Bars on standard error that vanish when the block ends."""
    from rich.console import Console

    from mirage_cli.commands.display import Display

    with Display(Console(stderr=True)) as shown:
        yield Bars(shown)
