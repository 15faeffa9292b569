"""Schedules: the numbers with which a block graph becomes a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_cli.errors import InvalidGraph
from mirage_cli.search.mugraph.mugraph import BODY, BlockGraph, CustomKernel, KernelGraph
from mirage_cli.search.schedules.architectures import BLOCK

MMA_K = 16  #: positions that one matrix instruction sums over (16-bit types)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Tile sizes of the grid axes, positions of the loop axis in an iteration (0 without a loop), warps of a block and
    stages of the load pipeline (both 1 on the CPU); the engine that makes a kernel of them, and its own numbers."""

    tiles: tuple[tuple[str, int], ...]
    loop: int = 0
    warps: int = 1
    stages: int = 1
    engine: str = "block"
    numbers: tuple[tuple[str, int], ...] = ()

    def number(self, name: str) -> int:
        """A number of the engine's own."""
        return dict(self.numbers)[name]

    @property
    def parts(self) -> int:
        """Blocks that share a split loop of unknown length, each as many iterations; 0 where its tile says the length of a
        share. The tile is a share of two iterations then, which the proof takes."""
        return dict(self.numbers).get("parts", 0)

    @property
    def stage(self) -> bool:
        """Whether the kernel is a further stage of the launch before it."""
        return bool(dict(self.numbers).get("stage", 0))

    def tile(self, axis: str) -> int | None:
        """The tile of a grid axis; None for an axis that blocks hold whole."""
        return dict(self.tiles).get(axis)

    def as_tiles(self) -> dict[str, int]:
        """The form that the interpreter of muGraphs takes."""
        return dict(self.tiles) | ({"loop": self.loop} if self.loop else {})

    def to_json(self) -> dict[str, Any]:
        """A JSON document that `schedule_from_json` reads back."""
        data = {"tiles": dict(self.tiles), "loop": self.loop, "warps": self.warps, "stages": self.stages}
        return data | ({"engine": self.engine, "numbers": dict(self.numbers)} if self.engine != "block" else {})

    def validate(self, graph: BlockGraph) -> Schedule:
        """The schedule itself. Raises InvalidGraph when it does not fit the block graph."""
        sizes = dict(self.tiles)
        if set(sizes) != set(graph.grid):
            raise InvalidGraph(f"schedule tiles axes {sorted(sizes)}, the grid splits {sorted(graph.grid)}")
        if any(t < 1 for t in sizes.values()) or self.loop < (1 if graph.loop else 0):
            raise InvalidGraph(f"schedule has an empty tile: {self}")
        return self


def schedule_from_json(d: Mapping[str, Any]) -> Schedule:
    """The inverse of `Schedule.to_json`."""
    return Schedule(
        tuple((a, int(t)) for a, t in d["tiles"].items()),
        int(d["loop"]),
        int(d["warps"]),
        int(d["stages"]),
        str(d.get("engine", "block")),
        tuple((name, int(n)) for name, n in d.get("numbers", {}).items()),
    )


def launches(graph: KernelGraph, schedules: Sequence[Schedule], siblings: bool = True) -> list[range]:
    """The numbers of the kernels of each launch: neighbours that need nothing of one another and whose blocks are alike are
    started together, each with blocks of its own; without `siblings` each is alone."""
    found: list[range] = []
    shape: tuple[int, int] | None = None
    for n, (kernel, schedule) in enumerate(zip(graph.kernels, schedules, strict=True)):
        own = block_shape(kernel, schedule)
        beside = found[-1] if found and siblings and own is not None and own == shape else range(n, n)
        written = {t for m in beside for t in graph.kernels[m].outputs}
        if beside and written.isdisjoint((*kernel.inputs, *kernel.outputs)):
            found[-1] = range(beside.start, n + 1)
        else:
            found.append(range(n, n + 1))
        shape = own
    return found


def staged(schedules: Sequence[Schedule], runs: Sequence[range], stages: bool = True) -> list[list[range]]:
    """The launches of a muGraph, each with its stages: a run of kernels whose first one is to be a `stage` of the launch
    before it becomes one; without `stages` each is a launch."""
    found: list[list[range]] = []
    for run in runs:
        if found and stages and schedules[run.start].stage:
            found[-1].append(run)
        else:
            found.append([run])
    return found


def block_count(graph: BlockGraph, s: Schedule, extents: Mapping[str, int]) -> int:
    """Blocks of the grid, where the axes have these extents; of rows that share chunks across them about as many."""
    if s.engine == "rows":
        n, threads = dict(s.numbers), 32 * s.warps
        reduced = any(o.op in ("sum", "top") for o in graph.ops)
        each = threads // n["lanes"] * n["turns"] if reduced else threads * n["slots"] * n["width"]
        return -(-math.prod(extents[a] for a, _ in s.tiles) // each) * n["cluster"]
    shared = graph.loop if s.parts else None
    return math.prod(s.parts if a == shared else -(-extents[a] // tile) for a, tile in s.tiles)


def block_shape(kernel: CustomKernel, s: Schedule) -> tuple[int, int] | None:
    """Warps of a block and blocks of a cluster; None for kernels whose blocks are not independent of how many there are, or
    that share memory of the whole kernel."""
    numbers, split = dict(s.numbers), kernel.block.split
    if s.engine not in (BLOCK, "strip", "rows") or (s.engine == BLOCK and split):
        return None
    if not split or s.parts:
        return s.warps, s.parts or numbers.get("cluster", 1)
    extent, share = kernel.program.extent(split[0]), s.tile(split[0])
    return (s.warps, -(-extent // share)) if isinstance(extent, int) and share else None


def padded_depths(graph: BlockGraph, extent: Callable[[str], int], loop: int) -> dict[str, int]:
    """Positions that a block holds of axes which products of 16-bit types sum whole, where these are more than their
    `extent`: matrix instructions sum `MMA_K` at a time. An iteration has `loop` positions of the loop's axis."""
    padded: dict[str, int] = {}
    for o in graph.ops:
        if o.op != "contract" or o.dtype is None or o.dtype.bytes != 2:
            continue
        whole = [a for a in o.over if not (a == graph.loop and o.phase == BODY)]
        if not whole:
            continue
        sizes = {a: padded.get(a, extent(a)) for a in whole}
        rest = math.prod(loop for a in o.over if a not in whole)
        last = max(whole, key=lambda a: sizes[a])
        while math.prod(sizes.values()) * rest % MMA_K:
            sizes[last] += 1
        padded |= {a: n for a, n in sizes.items() if n != extent(a)}
    return padded


@dataclass(frozen=True, slots=True)
class Prediction:
    """Microseconds, the shared memory that a block needs, the floor (bytes once or matrix work, whichever is more), and
    the bytes that all blocks together move."""

    us: float
    shared: int
    floor_us: float
    moved: float = 0.0


@dataclass(frozen=True, slots=True)
class Ranked:
    """A schedule with its prediction at typical sizes; `score` is what it is ranked by."""

    schedule: Schedule
    prediction: Prediction
    score: float

    @property
    def order(self) -> tuple[object, ...]:
        """The key of the ranking: among equals, fewer bytes moved, less memory held, smaller tiles."""
        p, s = self.prediction, self.schedule
        return (self.score, p.moved, p.shared, s.tiles, s.loop, s.warps, s.engine, s.numbers)
