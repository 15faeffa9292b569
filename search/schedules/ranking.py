"""Candidate schedules of a block graph, best first by the models of the engines.

Every engine has a model here and a maker of kernels in `codegen/engines.py`, by the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mirage_cli.errors import Refused
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BlockGraph, KernelGraph
from mirage_cli.search.schedules.cost import SMALL, Ranked, floor_us
from mirage_cli.search.schedules.engines import BLOCK, ENGINES
from mirage_cli.search.schedules.model import ModelMaker
from mirage_cli.search.schedules.rows import RowsModel
from mirage_cli.search.schedules.schedule import Schedule, launches
from mirage_cli.search.schedules.strip_cost import StripModel
from mirage_cli.search.schedules.target import Target
from mirage_cli.search.schedules.tiling import BlockModel
from mirage_cli.search.schedules.warpgroup import WarpgroupModel

MODELS: dict[str, ModelMaker] = {
    BLOCK: BlockModel,
    "rows": RowsModel,
    "warpgroup": WarpgroupModel,
    "strip": StripModel,
}


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
    others = engines if program.packed is None else {*engines} & {"strip"}  # others copy tiles in whole elements
    candidates = [r for e in (BLOCK, *others) for r in engine_ranked(e, program, graph, target, count, sizes, alone)]
    return sorted(candidates, key=lambda r: r.order)[: None if apart else count]


def engine_ranked(
    engine: str,
    program: Program,
    graph: BlockGraph,
    target: Target,
    count: int,
    sizes: Mapping[str, int] = MappingProxyType({}),
    alone: bool = False,
) -> list[Ranked]:
    """The best schedules of one engine; none where it does not suit the graph."""
    maker = MODELS[engine]
    try:
        model = maker(program, graph, target, sizes)
        both = program.symbols and not alone
        small = maker(program, graph, target, dict.fromkeys(program.symbols, SMALL)) if both else None
        return model.ranked(count, small)
    except Refused:
        return []


def predicted_us(
    program: Program, graph: BlockGraph, schedule: Schedule, target: Target, sizes: Mapping[str, int]
) -> float:
    """The prediction of a schedule's engine's model for it at these sizes, in microseconds. Raises Refused."""
    return MODELS[schedule.engine](program, graph, target, sizes).predict(schedule).us


def total_us(graph: KernelGraph, schedules: Sequence[Schedule], target: Target, sizes: Mapping[str, int]) -> float:
    """The prediction for a kernel graph, in microseconds: its launches one after the other, each as long as its longest kernel
    and as the bytes of the others take. Raises Refused."""
    kernels = graph.kernels
    times = [predicted_us(k.program, k.block, s, target, sizes) for k, s in zip(kernels, schedules, strict=True)]
    total = 0.0
    for run in launches(graph, schedules, target.kind == "cuda"):
        longest = max(run, key=lambda n: times[n])
        total += times[longest] + sum(floor_us(kernels[n].program, target, sizes) for n in run if n != longest)
    return total
