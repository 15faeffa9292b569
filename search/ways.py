"""Ways to compute the parts of a program, and which of them are taken together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.schedules.cost import Ranked
from mirage_cli.search.schedules.schedule import Schedule, block_shape

MARGIN = 1.1  #: how much better than one kernel several have to be predicted: the model is not more exact than that
NEXT = 4  #: candidates for each shape of blocks


class Way(Protocol):
    """A kernel graph with a schedule for each kernel."""

    @property
    def graph(self) -> KernelGraph:
        """The kernel graph."""

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """Those of its kernels, in order."""


AnyWay = TypeVar("AnyWay", bound=Way)


@dataclass(frozen=True, slots=True)
class Option:
    """A way to compute a part of a program: kernels with schedules, and what the model says."""

    graph: KernelGraph
    ranks: tuple[Ranked, ...]

    @property
    def order(self) -> tuple[object, ...]:
        """Ranked by: score, then fewer kernels, then the first kernel's tie breaks."""
        return (self.score, len(self.ranks), *self.ranks[0].order)

    @property
    def sum(self) -> float:
        """The scores of its kernels together."""
        return sum(r.score for r in self.ranks)

    @property
    def score(self) -> float:
        """The score by which it is ranked."""
        return self.sum * (MARGIN if len(self.ranks) > 1 else 1.0)


def alike(found: Sequence[Sequence[AnyWay]]) -> Iterator[tuple[AnyWay, ...]]:
    """The best candidates of one kernel each together, then for each shape of blocks the best that can be one launch, and the
    next ones, should these not fit."""
    shapes: list[dict[tuple[int, int] | None, list[AnyWay]]] = []
    for candidates in found:
        own: dict[tuple[int, int] | None, list[AnyWay]] = {None: []}
        for c in (c for c in candidates if len(c.schedules) == 1):
            own[None].append(c)
            if (shape := block_shape(c.graph.kernels[0], c.schedules[0])) is not None:
                own.setdefault(shape, []).append(c)
        shapes.append(own)
    for shape in [s for s in shapes[0] if all(own.get(s) for own in shapes)]:
        for k in range(NEXT):
            yield tuple(own[shape][min(k, len(own[shape]) - 1)] for own in shapes)


def best_combinations(lengths: Sequence[int], apart: bool, count: int = 0) -> Iterator[tuple[int, ...]]:
    """Which of the ranked ways of several parts to take together: the k-th of all, for the longest of them (or `count`
    times); with `apart` the k-th of one beside the best of the others."""
    if not apart:
        yield from (tuple(min(k, n - 1) for n in lengths) for k in range(count or max(lengths)))
        return
    yield (0,) * len(lengths)
    for part, n in enumerate(lengths):
        yield from (tuple(k if p == part else 0 for p in range(len(lengths))) for k in range(1, n))


def fitting_options(ways: Sequence[Sequence[Option]], max_kernels: int) -> tuple[Option, ...] | None:
    """A way for each part, the best together, with no more kernels than allowed."""
    firsts = []
    for own in ways:
        by_count: dict[int, Option] = {}
        for o in own:
            by_count.setdefault(len(o.ranks), o)
        firsts.append(list(by_count.values()))
    fitting = [c for c in itertools.product(*firsts) if sum(len(o.ranks) for o in c) <= max_kernels]
    return min(fitting, key=lambda c: sum(o.sum for o in c), default=None)
