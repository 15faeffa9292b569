"""Parts of the way from a program to its source that can be left out, to see their worth: the optimizer passes, measured
schedules, and the engines that kernels of many or few rows and of rows without products have for themselves
(`codegen/engines.py`).

    fusion   elementwise operators that feed one another stay in registers (`search/finish/fuse.py`; off: `unfuse.py`)
    layouts  which axes of a shared tile are contiguous, and its pitch (`codegen/tiles/layouts.py`)
    order    the order of statements: fewest barriers, then least live memory (`codegen/tiles/order.py`)
    memory   tiles that are not alive together share memory (`codegen/tiles/memory.py`)
    overlap  a kernel begins while the one before it ends (`launch.cuh`)
    tunings  schedules that were measured once, where the program is known (`planning/tuned.py`)
    siblings kernels that need nothing of one another are started as one (`siblings.py`)
    stages   kernels that follow one another are stages of one (`stages.py`)
    strip, rows, warpgroup   engines of CUDA kernels; without all of them the engine `block` makes every kernel

A kernel is right with any of them off; only its cost changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from mirage_cli.errors import UsageError
from mirage_cli.search.schedules.architectures import ENGINES


@dataclass(frozen=True, slots=True)
class Passes:
    """Which passes run."""

    fusion: bool = True
    layouts: bool = True
    order: bool = True
    memory: bool = True
    overlap: bool = True
    tunings: bool = True
    siblings: bool = True
    stages: bool = True
    engines: tuple[str, ...] = ENGINES  #: those that may be chosen beside `block`

    @property
    def off(self) -> tuple[str, ...]:
        """The names of those that do not."""
        return tuple(n for n in PASSES if not (n in self.engines if n in ENGINES else getattr(self, n)))


_OWN = tuple(f.name for f in fields(Passes) if f.name != "engines")
PASSES = (*_OWN, "strip", "rows", "warpgroup")  #: the names of passes, in the order in which they run, and of engines
ALL = Passes()
BLOCK_PASSES = ("fusion", "layouts", "order", "memory")  #: those that work on kernels of the engine `block`


def without(names: Iterable[str]) -> Passes:
    """All passes but some. Raises UsageError for a name that is none of theirs."""
    off = set(names)
    if off - set(PASSES):
        raise UsageError(f"unknown pass {min(off - set(PASSES))!r}", f"passes are {', '.join(PASSES)}")
    return Passes(**{n: n not in off for n in _OWN}, engines=tuple(e for e in ENGINES if e not in off))
