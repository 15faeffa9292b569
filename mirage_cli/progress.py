"""Showing how a run goes on, on standard error: bars on a terminal, lines with --verbose, nothing otherwise."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


def on_terminal() -> bool:
    """Whether standard error is a terminal that can move its cursor."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class Lines:
    """One line for each stage and step, with the seconds since the start."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._start = time.perf_counter()
        self._stage = ""

    def stage(self, name: str, total: int) -> None:
        """A stage begins."""
        self._stage = name
        self._line(f"{name} ({total} {'step' if total == 1 else 'steps'})")

    def step(self, text: str) -> None:
        """A step of it is done."""
        self._line(f"{self._stage}: {text}")

    def _line(self, text: str) -> None:
        self._say(f"[{time.perf_counter() - self._start:7.2f} s] {text}")


class Bars:
    """A bar for each stage, its last step beside it."""

    def __init__(self, progress: RichProgress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def stage(self, name: str, total: int) -> None:
        """A new bar; the one before is finished."""
        self._finish()
        self._task = self._progress.add_task(name, total=total, text="")

    def step(self, text: str) -> None:
        """The bar moves by one."""
        if self._task is not None:
            self._progress.update(self._task, advance=1, text=text)

    def _finish(self) -> None:
        if self._task is not None:
            task = next(t for t in self._progress.tasks if t.id == self._task)
            self._progress.update(self._task, completed=task.total, text="")


@contextlib.contextmanager
def bars() -> Iterator[Bars]:
    """Bars on standard error that vanish when the block ends."""
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn(
            "{task.fields[text]}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
        ),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as shown:
        yield Bars(shown)
