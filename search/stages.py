"""Kernel graphs whose launches are stages of one: the schedules with which their kernels fit together, where that may be
worth it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mirage_cli.search.mugraph.mugraph import CustomKernel, KernelGraph
from mirage_cli.search.schedules.fitted import Strip
from mirage_cli.search.schedules.ranking import Models, engine_ranked, total_us
from mirage_cli.search.schedules.schedule import Schedule, block_shape, launches
from mirage_cli.search.schedules.target import Target

ENGINES = ("strip", "rows")  #: whose kernels say where they wait for what was before them
SHAPES = tuple(
    itertools.product((4, 8), (1, 2))
)  #: warps of all blocks, and blocks of the clusters that some stages have
COUNT = 64  #: schedules of an engine that are looked at


def as_stages(graph: KernelGraph, schedules: Sequence[Schedule]) -> tuple[Schedule, ...]:
    """Schedules with which each launch of a muGraph but the first one is a stage of that."""
    later = {run.start for run in launches(graph, schedules)} - {0}
    return tuple(replace(s, numbers=(*s.numbers, ("stage", 1))) if n in later else s for n, s in enumerate(schedules))


def staged_ways(
    graph: KernelGraph, target: Target, sizes: Mapping[str, int], alone: bool, below: float, models: Models
) -> Iterator[tuple[tuple[Schedule, ...], float]]:
    """Schedules of a muGraph for one launch with stages, and what is predicted for them, as far as that is less than
    `below`."""
    every = [_schedules(kernel, target, sizes, alone, models) for kernel in graph.kernels]
    known = set[tuple[Schedule, ...]]()
    for warps, cluster in SHAPES:
        chosen = []
        for kernel, own in zip(graph.kernels, every, strict=True):
            fits = (s for s in own if block_shape(kernel, s) in ((warps, 1), (warps, cluster)))
            chosen.append(next(fits, None))
        found = [s for s in chosen if s is not None]
        if len(found) < len(chosen) or len(launches(graph, found)) < 2:
            continue
        ways = as_stages(graph, found)
        us = total_us(graph, ways, target, sizes, models)
        if us < below and ways not in known:
            known.add(ways)
            yield ways, us


def least_us(graph: KernelGraph, schedules: Sequence[Schedule], us: float, target: Target) -> float:
    """What a muGraph that takes so long takes at least with its launches as stages of one."""
    c = target.fitted(Strip)
    return us + (c.barrier_us - c.launch_us - c.behind_us) * (len(launches(graph, schedules)) - 1)


def _schedules(
    kernel: CustomKernel, target: Target, sizes: Mapping[str, int], alone: bool, models: Models
) -> list[Schedule]:
    """The schedules of a kernel that may be a stage, best first."""
    p, g = kernel.program, kernel.block
    found = [r for e in ENGINES for r in engine_ranked(e, p, g, target, COUNT, sizes, alone, models)]
    return [r.schedule for r in sorted(found, key=lambda r: r.order)]
