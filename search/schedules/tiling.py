"""Candidate schedules of a block graph, best first by the cost model.

1. An axis that is a batch of some contraction (both operands have it and it is not summed) is split to single positions. A
   graph that does not split it, as where a norm spans all heads of an attention, has no schedule: it takes two kernels.
2. Every other grid axis is split into powers of two or taken whole; the loop into multiples of 16.
3. Schedules that cannot fit the target's memory are left out; what is left is ranked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BODY, BlockGraph
from mirage_cli.search.schedules import rows, strip_cost, warpgroup
from mirage_cli.search.schedules.cost import SMALL, Batch, CostModel, Prediction, Ranked, batch_axes, number
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target

TILES = {"cuda": (1, 4, 16, 32, 64, 128), "cpu": (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048)}
LOOPS = {"cuda": (16, 32, 64, 128), "cpu": (32, 64, 128, 256, 512, 1024, 4096)}
WHOLE = 256  #: an axis up to this extent may be taken whole
HALVED = 8192  #: an axis up to this extent may be split in two on a CPU, for two threads
SPLITS = (2, 4, 8, 16)  #: blocks that share a split reduction
WARPS = (4, 8)
STAGES = (3, 2)
_MODELS = {"rows": rows, "warpgroup": warpgroup, "strip": strip_cost}
ENGINES = tuple(_MODELS)  #: the engines beside `block`


def schedules(program: Program, graph: BlockGraph, target: Target) -> Iterator[Schedule]:
    """All schedules that are worth a prediction."""
    space = schedule_space(program, graph, target)
    return (space.at(k) for k in range(len(space.loop)))


def schedule_space(program: Program, graph: BlockGraph, target: Target) -> Batch:
    """All schedules that are worth a prediction, as one batch."""
    together = batch_axes(program, graph)
    options = [
        _shares(program, a, graph) if a in graph.split else _options(program, a, a in together, target)
        for a in graph.grid
    ]
    loops = [0]
    if graph.loop is not None:
        extent = number(program.extent(graph.loop))
        loops = sorted({min(x, -(-extent // 16) * 16 if target.kind == "cuda" else extent) for x in LOOPS[target.kind]})
    warps: Sequence[int] = (1,) if target.kind == "cpu" else WARPS
    stages: Sequence[int] = (1,) if target.kind == "cpu" else STAGES if graph.loop else (2,)
    choices = np.meshgrid(*(np.array(x, float) for x in (*options, loops, warps, stages)), indexing="ij")
    *tiles, loop, warp, stage = (c.ravel() for c in choices)
    kept = np.ones(loop.shape, bool)
    if graph.loop in graph.split:
        kept = tiles[graph.grid.index(graph.loop or "")] % loop == 0
    parts = {a: t[kept] for a, t in zip(graph.grid, tiles, strict=True)}
    return Batch(parts, loop[kept], warp[kept], stage[kept])


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
    sizes = {t for t in TILES[target.kind] if t < extent}
    if extent <= WHOLE:
        sizes.add(extent if target.kind == "cpu" or extent < 16 else -(-extent // 16) * 16)
    if target.kind == "cpu" and WHOLE < extent <= HALVED:
        sizes.add(-(-extent // 2 // 16) * 16)
    return sorted(sizes) or [1]


def ranked(
    program: Program,
    graph: BlockGraph,
    target: Target,
    count: int,
    sizes: Mapping[str, int] = MappingProxyType({}),
    apart: bool = False,
    alone: bool = False,
    engines: Sequence[str] = ENGINES,
) -> list[Ranked]:
    """The `count` best schedules of `block` and the other `engines`, or of each with `apart`; those that cannot fit are
    left out.

    `sizes` says what symbols are typically. A program with symbols is ranked by the geometric mean of its times at
    typical and at small sizes, since it has to serve both; with `alone` it is to serve these sizes only.
    """
    candidates = blocks_ranked(program, graph, target, count, sizes, alone)
    for engine in engines:
        candidates += _MODELS[engine].ranked(program, graph, target, count, sizes, alone)
    return sorted(candidates, key=lambda r: r.order)[: None if apart else count]


def blocks_ranked(
    program: Program,
    graph: BlockGraph,
    target: Target,
    count: int,
    sizes: Mapping[str, int] = MappingProxyType({}),
    alone: bool = False,
) -> list[Ranked]:
    """The best schedules of the engine `block`, the only one of a CPU."""
    if holds_symbolic(program, graph) or not batch_axes(program, graph) <= set(graph.grid):
        return []
    space = schedule_space(program, graph, target)
    if not len(space.loop):
        return []
    model = CostModel(program, graph, target, sizes)
    predictions = model.predict_all(space)
    scores = predictions.us
    if program.symbols and not alone:
        small = CostModel(program, graph, target, dict.fromkeys(program.symbols, SMALL)).predict_all(space)
        scores = np.sqrt(predictions.us * small.us)
    keys = (space.warps, space.loop, *reversed(space.tiles.values()), predictions.shared, predictions.moved, scores)
    fitting = [int(k) for k in np.lexsort(keys) if predictions.shared[k] <= target.shared_bytes]
    floor = model.floor()
    return [
        Ranked(
            space.at(k),
            Prediction(float(predictions.us[k]), int(predictions.shared[k]), floor, float(predictions.moved[k])),
            float(scores[k]),
        )
        for k in fitting[:count]
    ]


def predicted_us(
    program: Program, graph: BlockGraph, schedule: Schedule, target: Target, sizes: Mapping[str, int]
) -> float:
    """The prediction of a schedule's engine's model for it at these sizes, in microseconds."""
    if schedule.engine == "block":
        return CostModel(program, graph, target, sizes).predict(schedule).us
    us: float = _MODELS[schedule.engine].schedule_us(program, graph, schedule, target, sizes)
    return us


def holds_symbolic(program: Program, graph: BlockGraph) -> bool:
    """True if a block would hold an axis of unknown extent whole: no amount of memory is enough for that."""
    tiled = {*graph.grid, graph.loop}
    axes = graph.axes_of(program)
    held = {a for o in graph.ops if o.op != "load" or o.phase != BODY for a in axes[o.name]} - tiled
    outside = {a for o in graph.ops if o.phase != BODY for a in axes[o.name] if a == graph.loop}
    return any(not isinstance(program.extent(a), int) for a in held | outside)
