"""Bars in a terminal: rich's, with a line under them that says what is going on. Imported where there is a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text


class Display(Progress):
    """Bars with elapsed and remaining time, what was done last beside them, and a line under them."""

    def __init__(self, console: Console) -> None:
        self.line = ""
        last = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[text]}", markup=False, table_column=last),
            console=console,
            transient=True,
            expand=True,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars, and the line."""
        yield from super().get_renderables()
        if self.line:
            yield Text(f"  {self.line}", no_wrap=True, overflow="ellipsis")
