"""Schedules of the engine `block` and of CPUs.

1. An axis that is a batch of some contraction (both operands have it and it is not summed) is split to single positions. A
   graph that does not split it, as where a norm spans all heads of an attention, has no schedule: it takes two kernels.
2. Every other grid axis is split into powers of two or taken whole; the loop into multiples of 16.
3. Schedules that cannot fit the target's memory are left out; what is left is ranked.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mirage_cli.errors import Refused
from mirage_cli.lax.ir.parts import place_axes
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BODY, BlockGraph
from mirage_cli.search.schedules.cost import Batch, CostModel, number, repeated
from mirage_cli.search.schedules.model import Model
from mirage_cli.search.schedules.products import Floats
from mirage_cli.search.schedules.schedule import Prediction, Ranked, Schedule
from mirage_cli.search.schedules.target import Target

TILES = {True: (1, 4, 16, 32, 64, 128), False: (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048)}
LOOPS = {True: (16, 32, 64, 128), False: (32, 64, 128, 256, 512, 1024, 4096)}
WHOLE = 256  #: an axis up to this extent may be taken whole
HALVED = 8192  #: an axis up to this extent may be split in two on a CPU, for two threads
SPLITS = (2, 4, 8, 16)  #: blocks that share a split reduction
WARPS = (4, 8)
STAGES = (3, 2)


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
        loops = sorted({min(x, -(-extent // 16) * 16 if target.threaded else extent) for x in LOOPS[target.threaded]})
    warps: Sequence[int] = WARPS if target.threaded else (1,)
    stages: Sequence[int] = (1,) if not target.threaded else STAGES if graph.loop else (2,)
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
        return list(TILES[target.threaded])
    sizes = {t for t in TILES[target.threaded] if t < extent}
    if extent <= WHOLE:
        sizes.add(extent if not target.threaded or extent < 16 else -(-extent // 16) * 16)
    if not target.threaded and WHOLE < extent <= HALVED:
        sizes.add(-(-extent // 2 // 16) * 16)
    return sorted(sizes) or [1]


class BlockModel(Model):
    """Tiles of a block in shared memory; on a CPU, of a thread. Raises Refused where a block would hold an axis of unknown
    extent, or several positions of a batch."""

    def __init__(self, program: Program, graph: BlockGraph, target: Target, sizes: Mapping[str, int]) -> None:
        if holds_symbolic(program, graph):
            raise Refused("a block would hold an axis of unknown extent whole")
        if not batch_axes(program, graph) <= set(graph.grid):
            raise Refused("a batch of products that the grid does not split")
        self.model, self.target = CostModel(program, graph, target, sizes), target
        self.space = schedule_space(program, graph, target)  # that are worth a prediction, whatever the sizes

    def at(self, sizes: Mapping[str, int]) -> BlockModel:
        """The same with other sizes of symbols."""
        other = copy.copy(self)
        other.model = self.model.at(sizes)
        return other

    def _beyond(self, space: Batch) -> Floats:
        """At most how many times the predicted memory a CPU's thread takes: a tile longer than an axis is at these sizes is
        predicted as the axis and allocated as the tile where other sizes may fill it."""
        beyond = np.ones_like(space.loop)
        for axis, tile in space.tiles.items():
            if not self.target.threaded and not isinstance(self.model.p.extent(axis), int):
                beyond = beyond * np.maximum(1.0, tile / self.model.extents[axis])
        return beyond

    def schedules(self) -> Iterator[Schedule]:
        """The same, one by one."""
        return (self.space.at(n) for n in range(len(self.space.loop)))

    def predict(self, schedule: Schedule) -> Prediction:
        """The prediction for a schedule."""
        return self.model.predict(schedule)

    def predictions(self, schedule: Schedule, at: Sequence[Mapping[str, int]]) -> list[Prediction]:
        """The predictions for a schedule at several sizes of symbols, all at once."""
        model = self.model.over(at)
        found, floors = model.predict_all(repeated(schedule, len(at))), np.broadcast_to(model.floor(), len(at)).tolist()
        each = zip(found.us.tolist(), found.shared.tolist(), floors, found.moved.tolist(), strict=True)
        return [Prediction(us, int(shared), floor, moved) for us, shared, floor, moved in each]

    def ranked(self, count: int, small: Model | None) -> list[Ranked]:
        """The best schedules that fit, all predicted at once."""
        space = self.space
        if not len(space.loop):
            return []
        predictions = self.model.predict_all(space)
        scores = predictions.us
        if isinstance(small, BlockModel):
            scores = np.sqrt(predictions.us * small.model.predict_all(space).us)
        keys = (space.warps, space.loop, *reversed(space.tiles.values()), predictions.shared, predictions.moved, scores)
        too_large = predictions.shared * self._beyond(space) > self.target.shared_bytes
        fitting = np.flatnonzero(predictions.shared <= self.target.shared_bytes)
        near = fitting[~too_large[fitting]]
        if 0 < count <= len(near):  # only the best are sorted, with their equals
            fitting = near[scores[near] <= np.partition(scores[near], count - 1)[count - 1]]
        fitting = fitting[np.lexsort([key[fitting] for key in (*keys, too_large)])]
        floor = self.model.floor()
        return [
            Ranked(
                space.at(n),
                Prediction(float(predictions.us[n]), int(predictions.shared[n]), floor, float(predictions.moved[n])),
                float(scores[n]),
            )
            for n in fitting[:count].tolist()
        ]


def holds_symbolic(program: Program, graph: BlockGraph) -> bool:
    """True if a block would hold an axis of unknown extent whole: no amount of memory is enough for that."""
    tiled = {*graph.grid, graph.loop}
    axes = graph.axes_of(program)
    held = {a for o in graph.ops if o.op != "load" or o.phase != BODY for a in axes[o.name]} - tiled
    outside = {a for o in graph.ops if o.phase != BODY for a in axes[o.name] if a == graph.loop}
    return any(not isinstance(program.extent(a), int) for a in held | outside)


def batch_axes(program: Program, graph: BlockGraph) -> frozenset[str]:
    """Axes that some contraction has in both operands and does not sum, and those that walk places of chosen rows."""
    axes = graph.axes_of(program)
    kept = set(place_axes(program))
    for o in graph.ops:
        if o.op == "contract":
            kept |= (axes[o.inputs[0]] & axes[o.inputs[1]]) - frozenset(o.over)
    return frozenset(kept)


# --- registers of the roles of a block of warpgroups: one brings tiles, the others multiply ---
REGISTERS = 512  #: of a multiprocessor, for each of the 128 threads of a warpgroup
PRODUCER_REGISTERS = 40  #: of a thread of the warpgroup that brings tiles
MOST_REGISTERS = 255


def first_registers(consumers: int, resident: int) -> int:
    """Registers that each thread of a block begins with, where so many blocks share a multiprocessor: the compiler's bound."""
    return REGISTERS // (resident * (consumers + 1)) // 8 * 8


def consumer_registers(consumers: int, resident: int) -> int:
    """Registers that a consumer's thread can take once the producer has given its own. A block has no others than those
    which its threads begin with: whoever asks for more waits for ever."""
    block = first_registers(consumers, resident) * (consumers + 1)
    return (block - PRODUCER_REGISTERS) // consumers // 8 * 8
