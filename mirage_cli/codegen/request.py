"""What an engine is asked for and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mirage_cli.codegen.passes import ALL, Passes
from mirage_cli.lax.program import Program
from mirage_cli.search.mugraph import BlockGraph
from mirage_cli.search.schedule import Schedule
from mirage_cli.search.target import Target


class Spelled(Protocol):
    """A kernel with every decision made."""

    def text(self) -> str:
        """Readable lines, for golden files and `MIRAGE_DEBUG=tile`."""


@dataclass(frozen=True, slots=True)
class Request:
    """A kernel to make: `number` is its place in the fragment, `symbols` are the fragment's, `constants` those sources of
    `program` that nothing writes while the model runs."""

    program: Program
    block: BlockGraph
    schedule: Schedule
    target: Target
    number: int = 0
    symbols: tuple[str, ...] = ()
    passes: Passes = ALL
    constants: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel made: its context for the template, bytes of workspace that it needs for itself, and the statements that
    set the members of its parameters, given the workspace's place as a C expression."""

    tile: Spelled
    context: dict[str, Any]
    workspace: int = 0
    setup: Callable[[str], Sequence[str]] = field(default=lambda _: ())
