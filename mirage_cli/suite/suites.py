"""The suites by name, and the rows of them that are asked for."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Callable, Sequence

from mirage_cli.errors import UsageError
from mirage_cli.suite.cases import Case, paper
from mirage_cli.suite.population import apart, models

SUITES: dict[str, Callable[[], tuple[Case, ...]]] = {"paper": paper, "models": models, "apart": apart}
MOST_NAMED = 30  #: rows that an error lists


def case_of(suite: str, name: str) -> Case:
    """The row of that name. Raises KeyError for another one."""
    return {c.name: c for c in SUITES[suite]()}[name]


def chosen(
    suite: str, only: Sequence[str] = (), part: str | None = None, sample: int = 0, seed: int = 0
) -> tuple[Case, ...]:
    """The rows of a suite whose names match one of the patterns, of one part, and of these a sample of so many (0: all)
    that the seed decides, in its order. Raises UsageError when there is none."""
    cases = SUITES[suite]()
    matching = [c for c in cases if not only or any(fnmatch.fnmatch(c.name, g) for g in only)]
    if not matching:
        names = ", ".join(c.name for c in cases[:MOST_NAMED]) + (", ..." if len(cases) > MOST_NAMED else "")
        raise UsageError(f"--only {only[0]}: no row of {suite} has such a name", f"rows: {names}")
    kept = [c for c in matching if part in (None, c.part)]
    if not kept:
        raise UsageError(f"--part {part}: no row of {suite} is of it")
    if sample:
        kept = sorted(kept, key=lambda c: hashlib.sha256(f"{seed} {c.name}".encode()).digest())[:sample]
    return tuple(kept)
