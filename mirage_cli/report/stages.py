"""The stages of a run: who hears of them, and how long each takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mirage_cli.search.progress import Standing

STAGES = ("read", "search", "verify", "tune", "render", "compile")  #: that every report gives the seconds of


class Progress(Protocol):
    """A display of a run while it goes on."""

    def stage(self, name: str, total: int) -> None:
        """A stage of `total` steps begins."""

    def step(self, text: str) -> None:
        """A step of the stage is done."""

    def search(self, fragment: str, name: str, standing: Standing | None) -> None:
        """The search of a fragment, told by its id and name, is so far, or has ended (None) with a step to follow."""

    def note(self, text: str) -> None:
        """Something is going on beside the steps."""


class Silent:
    """No progress."""

    def stage(self, name: str, total: int) -> None:
        """Nothing."""

    def step(self, text: str) -> None:
        """Nothing."""

    def search(self, fragment: str, name: str, standing: Standing | None) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


@dataclass(slots=True)
class Clock:
    """Seconds spent in each stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    start: float = field(default_factory=time.perf_counter)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def total(self) -> dict[str, float]:
        """The stages, and the time since the clock was made."""
        return dict.fromkeys(STAGES, 0.0) | self.seconds | {"total": time.perf_counter() - self.start}
