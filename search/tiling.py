"""Candidate schedules of a block graph, best first by the cost model.

1. An axis that is a batch of some contraction (both operands have it and it is not summed) is split to single positions.
2. Every other grid axis is split into powers of two or taken whole; the loop into multiples of 16.
3. Schedules that cannot fit the target's memory are left out; what is left is ranked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mirage_cli.lax.program import Program
from mirage_cli.search.cost import SMALL, CostModel, Prediction, number
from mirage_cli.search.mugraph import BODY, BlockGraph
from mirage_cli.search.schedule import Schedule
from mirage_cli.search.target import Target

TILES = {"cuda": (1, 4, 16, 32, 64, 128), "cpu": (1, 4, 16, 64, 128, 256)}
LOOPS = {"cuda": (16, 32, 64, 128), "cpu": (32, 64, 128, 256)}
WHOLE = 256  #: an axis up to this extent may be taken whole
SPLITS = (2, 4, 8, 16)  #: blocks that share a split reduction
WARPS = (4, 8)
STAGES = (3, 2)


def batch_axes(program: Program, graph: BlockGraph) -> frozenset[str]:
    """Grid axes that some contraction has in both operands."""
    axes = graph.axes_of(program)
    found: set[str] = set()
    for o in graph.ops:
        if o.op == "contract":
            found |= (axes[o.inputs[0]] & axes[o.inputs[1]]) - frozenset(o.over)
    return frozenset(found & set(graph.grid))


def schedules(program: Program, graph: BlockGraph, target: Target) -> Iterator[Schedule]:
    """All schedules that are worth a prediction."""
    batch = batch_axes(program, graph)
    options = [
        _shares(program, a, graph) if a in graph.split else _options(program, a, a in batch, target) for a in graph.grid
    ]
    loops = [0]
    if graph.loop is not None:
        extent = number(program.extent(graph.loop))
        loops = sorted({min(x, -(-extent // 16) * 16 if target.kind == "cuda" else extent) for x in LOOPS[target.kind]})
    for tiles in itertools.product(*options):
        for loop in loops:
            pairs = tuple(zip(graph.grid, tiles, strict=True))
            if graph.loop in graph.split and dict(pairs)[graph.loop or ""] % loop:
                continue
            if target.kind == "cpu":
                yield Schedule(pairs, loop, 1, 1)
                continue
            for warps, stages in itertools.product(WARPS, STAGES if graph.loop else (2,)):
                yield Schedule(pairs, loop, warps, stages)


def _shares(program: Program, axis: str, graph: BlockGraph) -> list[int]:
    """Positions of a split axis for each block: a few blocks reduce together; none for symbolic extents."""
    extent = program.extent(axis)
    if not isinstance(extent, int):
        return []
    unit = 16 if axis != graph.loop else 64
    return sorted({-(-extent // parts // unit) * unit or unit for parts in SPLITS if extent >= parts * unit})


def _options(program: Program, axis: str, batch: bool, target: Target) -> list[int]:
    if batch:
        return [1]
    extent = program.extent(axis)
    if not isinstance(extent, int):
        return list(TILES[target.kind])
    found = {t for t in TILES[target.kind] if t < extent}
    if extent <= WHOLE:
        found.add(extent if target.kind == "cpu" or extent < 16 else -(-extent // 16) * 16)
    return sorted(found) or [1]


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
        return (self.score, p.moved, p.shared, s.tiles, s.loop, s.warps)


def ranked(
    program: Program,
    graph: BlockGraph,
    target: Target,
    count: int,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> list[Ranked]:
    """The `count` best schedules; those that cannot fit are left out.

    `sizes` says what symbols are typically. A program with symbols is ranked by the geometric mean of its times at
    typical and at small sizes, since it has to serve both.
    """
    if holds_symbolic(program, graph):
        return []
    model = CostModel(program, graph, target, sizes)
    small = CostModel(program, graph, target, dict.fromkeys(program.symbols, SMALL)) if program.symbols else None
    found = []
    for s in schedules(program, graph, target):
        prediction = model.predict(s)
        if prediction.shared <= target.shared_bytes:
            score = prediction.us if small is None else math.sqrt(prediction.us * small.predict(s).us)
            found.append(Ranked(s, prediction, score))
    return sorted(found, key=lambda r: r.order)[:count]


def holds_symbolic(program: Program, graph: BlockGraph) -> bool:
    """Whether a block would hold an axis of unknown extent whole: no amount of memory is enough for that."""
    tiled = {*graph.grid, graph.loop}
    axes = graph.axes_of(program)
    held = {a for o in graph.ops if o.op != "load" or o.phase != BODY for a in axes[o.name]} - tiled
    outside = {a for o in graph.ops if o.phase != BODY for a in axes[o.name] if a == graph.loop}
    return any(not isinstance(program.extent(a), int) for a in held | outside)
