"""Candidate schedules of a block graph, best first by the models of the engines.

Every engine has a model here and a maker of kernels in `codegen/engines.py`, by the same name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from mirage_cli.errors import Refused
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BlockGraph, CustomKernel, KernelGraph
from mirage_cli.search.schedules.architectures import BLOCK, ENGINES
from mirage_cli.search.schedules.cost import SMALL, bytes_in_parts, number
from mirage_cli.search.schedules.fitted import Strip
from mirage_cli.search.schedules.model import Model, ModelMaker
from mirage_cli.search.schedules.rows import RowsModel
from mirage_cli.search.schedules.schedule import (
    Prediction,
    Ranked,
    Schedule,
    block_count,
    block_shape,
    launches,
    staged,
)
from mirage_cli.search.schedules.strip import resident, units_for
from mirage_cli.search.schedules.strip_cost import StripModel
from mirage_cli.search.schedules.target import Target
from mirage_cli.search.schedules.tiling import BlockModel
from mirage_cli.search.schedules.warpgroup import WarpgroupModel

#: engines that read numbers which share bytes; others copy tiles in whole elements
UNPACKING = (BLOCK, "rows", "strip")
CHOOSING = (BLOCK, "strip")  #: engines that read rows of tables which are chosen when a model runs
MODELS: dict[str, ModelMaker] = {
    BLOCK: BlockModel,
    "rows": RowsModel,
    "warpgroup": WarpgroupModel,
    "strip": StripModel,
}


class Models:
    """The models of block graphs: each is made once, and then for other sizes of symbols."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], tuple[BlockGraph, Model | Refused]] = {}

    def at(self, engine: str, program: Program, graph: BlockGraph, target: Target, sizes: Mapping[str, int]) -> Model:
        """The model of an engine at some sizes. Raises Refused where the engine does not suit the graph."""
        key = (engine, target.name, id(graph))
        if key not in self._known:
            try:
                found: Model | Refused = MODELS[engine](program, graph, target, sizes)
            except Refused as e:
                found = e
            self._known[key] = (graph, found)  # which keeps its number
        _, model = self._known[key]
        if isinstance(model, Refused):
            raise model
        return model.at(sizes) or MODELS[engine](program, graph, target, sizes)

    def predicted(
        self, s: Schedule, program: Program, graph: BlockGraph, target: Target, at: Sequence[Mapping[str, int]]
    ) -> list[Prediction]:
        """The predictions for a schedule at several sizes. Raises Refused."""
        found = self.at(s.engine, program, graph, target, at[0]).predictions(s, at) if len(at) > 1 else None
        if found is None:
            found = [self.at(s.engine, program, graph, target, sizes).predict(s) for sizes in at]
        if not any(source.parts for source in program.sources):
            return found
        model = self.at(s.engine, program, graph, target, at[0])
        joining = [joining_us(model, program, target, sizes) for sizes in at]
        return [replace(p, us=p.us + us) for p, us in zip(found, joining, strict=True)]


def ranked(
    program: Program,
    graph: BlockGraph,
    target: Target,
    count: int,
    sizes: Mapping[str, int] = MappingProxyType({}),
    apart: bool = False,
    alone: bool = False,
    engines: Sequence[str] = ENGINES,
    models: Models | None = None,
) -> list[Ranked]:
    """The `count` best schedules of `block` and the other `engines`, or of each with `apart`; those that cannot fit are
    left out.

    `sizes` says what symbols are typically. A program with symbols is ranked by the geometric mean of its times at
    typical and at small sizes, since it has to serve both; with `alone` it is to serve these sizes only.
    """
    others = [e for e in engines if not unread(program, e)]
    models = models or Models()
    found = (engine_ranked(e, program, graph, target, count, sizes, alone, models) for e in (BLOCK, *others))
    candidates = [r for own in found for r in own]
    return sorted(candidates, key=lambda r: r.order)[: None if apart else count]


def unread(program: Program, engine: str) -> str:
    """What an engine does not read of a program's sources; nothing where it reads them all."""
    if program.packed is not None and engine not in UNPACKING:
        return f"tensors of type {program.packed}"
    return "chosen rows" if any(s.chosen for s in program.sources) and engine not in CHOOSING else ""


def engine_ranked(
    engine: str,
    program: Program,
    graph: BlockGraph,
    target: Target,
    count: int,
    sizes: Mapping[str, int] = MappingProxyType({}),
    alone: bool = False,
    models: Models | None = None,
) -> list[Ranked]:
    """The best schedules of one engine; none where it does not suit the graph."""
    models = models or Models()
    try:
        model = models.at(engine, program, graph, target, sizes)
        both = program.symbols and not alone
        at_small = dict.fromkeys(program.symbols, SMALL)
        small = models.at(engine, program, graph, target, at_small) if both else None
        joining = joining_us(model, program, target, sizes)
        return [_longer(r, joining) for r in model.ranked(count, small)] if joining else model.ranked(count, small)
    except Refused:
        return []


def rescheduled(
    graph: KernelGraph, target: Target, sizes: Mapping[str, int], engines: Sequence[str], models: Models
) -> tuple[Schedule, ...]:
    """The best schedules of a muGraph's kernels, each by itself, where symbols are `sizes`; none where a kernel has none."""
    ranks = [ranked(k.program, k.block, target, 1, sizes, False, True, engines, models) for k in graph.kernels]
    return tuple(own[0].schedule for own in ranks) if all(ranks) else ()


def joining_us(model: Model, program: Program, target: Target, sizes: Mapping[str, int]) -> float:
    """Microseconds that a kernel's sources in parts take to be stored whole in front of it, but for writing them; 0 where it
    stores them itself."""
    read = 0.0 if model.stores else bytes_in_parts(program, sizes)
    return read / target.bandwidth * 1e6 + target.launch_us if read else 0.0


def _longer(r: Ranked, us: float) -> Ranked:
    return replace(r, prediction=replace(r.prediction, us=r.prediction.us + us), score=r.score + us)


def total_us(
    graph: KernelGraph,
    schedules: Sequence[Schedule],
    target: Target,
    sizes: Mapping[str, int],
    models: Models | None = None,
) -> float:
    """The prediction for a kernel graph, in microseconds: its launches one after the other. Raises Refused."""
    return times_us(graph, schedules, target, [sizes], models)[0]


def times_us(
    graph: KernelGraph,
    schedules: Sequence[Schedule],
    target: Target,
    at: Sequence[Mapping[str, int]],
    models: Models | None = None,
) -> list[float]:
    """The same at several sizes of symbols."""
    models, on_gpu = models or Models(), target.kind == "cuda"
    each = [besides(k, s, target, at, models) for k, s in zip(graph.kernels, schedules, strict=True)]
    runs = launches(graph, schedules, on_gpu)
    found = staged(schedules, runs, on_gpu)
    behind = behind_us(graph, [run for run in runs if not schedules[run.start].stage], target)
    return [
        behind + sum(staged_us([[parts[n] for n in run] for run in stages], target) for stages in found)
        for parts in zip(*each, strict=True)
    ]


def behind_us(graph: KernelGraph, runs: Sequence[range], target: Target) -> float:
    """Microseconds of launches, each of a run of kernels, that read what the launch in front of them wrote, beside what each
    takes by itself."""
    if target.kind != "cuda" or not target.features.dependent_launch:
        return 0.0
    kernels = graph.kernels
    written = ({t for n in run for t in kernels[n].outputs} for run in runs)
    read = ({t for n in run for t in kernels[n].inputs} for run in runs[1:])
    return target.fitted(Strip).behind_us * sum(not w.isdisjoint(r) for w, r in zip(written, read, strict=False))


@dataclass(frozen=True, slots=True)
class Beside:
    """A kernel as what starts with it sees it: its prediction alone, its blocks, their threads and clusters."""

    prediction: Prediction
    blocks: int
    threads: int
    cluster: int


def beside(
    kernel: CustomKernel, s: Schedule, target: Target, sizes: Mapping[str, int], models: Models | None = None
) -> Beside:
    """A kernel with a schedule at some sizes. Raises Refused."""
    return besides(kernel, s, target, [sizes], models or Models())[0]


def besides(
    kernel: CustomKernel, s: Schedule, target: Target, at: Sequence[Mapping[str, int]], models: Models
) -> list[Beside]:
    """The same at several sizes of symbols."""
    predictions = models.predicted(s, kernel.program, kernel.block, target, at)
    _, cluster = block_shape(kernel, s) or (0, 1)
    extents = ({a.name: number(a.extent, sizes) for a in kernel.program.axes} for sizes in at)
    blocks = [block_count(kernel.block, s, own) for own in extents]
    return [Beside(p, n, 32 * s.warps, cluster) for p, n in zip(predictions, blocks, strict=True)]


def together_us(parts: Sequence[Beside], target: Target) -> float:
    """Microseconds of one launch: as long as its longest kernel takes, or as all bytes do beside what the quickest takes
    without its own, and further waves of blocks. Where a block fills a multiprocessor the last wave begins when the one in
    front of it ends, with nothing read ahead, and takes as long as a full one."""
    longest = max(p.prediction.us for p in parts)
    if len(parts) == 1:
        return longest
    held = resident(target, max(p.prediction.shared for p in parts), parts[0].threads, 0.0)
    blocks, room = sum(p.blocks for p in parts), max(1, held * units_for(target, parts[0].cluster))
    waves, floor = math.ceil(blocks / room), sum(p.prediction.floor_us for p in parts)
    least, c = min(p.prediction.us - p.prediction.floor_us for p in parts), target.fitted(Strip)
    if held > 1 or waves == 1:
        streamed = least + floor
        return max(longest, streamed) + min(c.wave_us, streamed / waves) * (waves - 1)
    own, wave = max(0.0, least - c.launch_us), floor * room / blocks
    return max(longest, least + waves * wave + c.wave_us * (waves - 2) + own + c.behind_us)


def staged_us(stages: Sequence[Sequence[Beside]], target: Target) -> float:
    """Microseconds of one launch with stages: as long as a launch for each would take, with barriers in the place of launches,
    and further turns of blocks, of which there are as many as all stages together leave room for."""
    total = sum(together_us(parts, target) for parts in stages)
    if len(stages) == 1:
        return total
    c = target.fitted(Strip)
    cluster = max(p.cluster for parts in stages for p in parts)
    shared = max(p.prediction.shared for parts in stages for p in parts)
    held = resident(target, shared, stages[0][0].threads, 0.0) * units_for(target, cluster)
    for parts in stages:
        tasks, own = sum(p.blocks for p in parts), max(p.prediction.shared for p in parts)
        alone = resident(target, own, parts[0].threads, 0.0) * units_for(target, max(p.cluster for p in parts))
        turns = math.ceil(tasks / max(1, held)) - math.ceil(tasks / max(1, alone))
        work = max(0.0, together_us(parts, target) - c.launch_us)
        total += min(c.wave_us, work) * max(0, turns)
    return total + (c.barrier_us - c.launch_us) * (len(stages) - 1)
