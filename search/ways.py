"""Ways to compute the parts of a program, and which of them are taken together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.schedules.ranking import Beside, behind_us, together_us
from mirage_cli.search.schedules.schedule import Ranked, Schedule, block_shape, launches
from mirage_cli.search.schedules.target import Target

MARGIN = 1.1  #: how much better than one kernel several have to be predicted: the model is not more exact than that
NEXT = 4  #: candidates for each shape of blocks
CHOICES = 6  #: candidates of a part for it, each with another number of blocks


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
    behind_us: float = 0.0  #: see `ranking.behind_us`

    @property
    def order(self) -> tuple[object, ...]:
        """Ranked by: score, then fewer kernels, then the first kernel's tie breaks."""
        return (self.score, len(self.ranks), *self.ranks[0].order)

    @property
    def sum(self) -> float:
        """The scores of its kernels together."""
        return self.behind_us + sum(r.score for r in self.ranks)

    @property
    def score(self) -> float:
        """The score by which it is ranked."""
        return self.sum * (MARGIN if len(self.ranks) > 1 else 1.0)


def in_turn(graph: KernelGraph, ranks: Sequence[Ranked], target: Target) -> Option:
    """Kernels that follow each other as a way to compute a program."""
    runs = launches(graph, [r.schedule for r in ranks], target.kind == "cuda")
    return Option(graph, tuple(ranks), behind_us(graph, runs, target))


def alike(
    found: Sequence[Sequence[AnyWay]], seen: Callable[[AnyWay], Sequence[Beside]], target: Target
) -> Iterator[tuple[AnyWay, ...]]:
    """The best candidates of one kernel each together, then for each shape of blocks those whose launches take least: of
    candidates of a part whose first kernel has as many blocks, and that have as many kernels, the best."""
    single = [[c for c in candidates if len(c.schedules) == 1] for candidates in found]
    if all(single):
        yield tuple(own[0] for own in single)
    if target.kind != "cuda":
        return
    shapes: list[dict[tuple[int, int], dict[tuple[int, int], _Seen[AnyWay]]]] = []
    for candidates in found:
        own: dict[tuple[int, int], dict[tuple[int, int], _Seen[AnyWay]]] = {}
        for c in candidates:
            kernels = [block_shape(k, s) for k, s in zip(c.graph.kernels, c.schedules, strict=True)]
            if kernels[0] is not None and len(known := own.setdefault(kernels[0], {})) < CHOICES:
                parts = seen(c)
                known.setdefault((len(parts), parts[0].blocks), _Seen(c, [*zip(kernels, parts, strict=True)]))
        shapes.append(own)
    for shape in [s for s in shapes[0] if all(s in own for own in shapes)]:
        choices = [own[shape].values() for own in shapes]
        order = sorted(itertools.product(*choices), key=lambda some: _launched_us([x.kernels for x in some], target))
        yield from (tuple(x.way for x in some) for some in order[:NEXT])


@dataclass(frozen=True, slots=True)
class _Seen(Generic[AnyWay]):
    """A candidate of a part, with the shapes of its kernels' blocks and what others see of them."""

    way: AnyWay
    kernels: list[tuple[tuple[int, int] | None, Beside]]


def _launched_us(ways: Sequence[Sequence[tuple[tuple[int, int] | None, Beside]]], target: Target) -> float:
    """Microseconds of parts one behind the other: the first kernel of a part starts with those of the parts in front of it, as
    far as their blocks are alike (see `launches`)."""
    runs: list[list[Beside]] = []
    last: tuple[int, int] | None = None
    for way in ways:
        for n, (shape, kernel) in enumerate(way):
            if n == 0 and runs and shape is not None and shape == last:
                runs[-1].append(kernel)
            else:
                runs.append([kernel])
            last = shape
    return sum(together_us(run, target) for run in runs)


def by_blocks(options: Sequence[Option]) -> list[Option]:
    """Of ways of one kernel the best for each number of tiles, a few."""
    found: dict[tuple[tuple[str, int], ...], Option] = {}
    for o in options:
        found.setdefault(o.ranks[0].schedule.tiles, o)
    return [*found.values()][:CHOICES]


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
