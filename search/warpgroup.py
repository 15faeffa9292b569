"""Schedules of the engine `warpgroup`: block graphs with many rows on sm_90a, with predicted times.

A graph suits when all its products stand in the loop, multiply 16-bit types and share an axis of rows of which a block
takes at least 64. Numbers of the engine (see `codegen/warpgroup.py`): `cluster`, `band`, `turns`, `resident`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mirage_cli.lax.dtypes import BF16, F16
from mirage_cli.lax.program import Program
from mirage_cli.search.cost import Prediction, bytes_once, floor_us, number, products
from mirage_cli.search.mugraph import BODY, BlockGraph, BlockOp
from mirage_cli.search.schedule import Schedule
from mirage_cli.search.target import Target

PANEL = 64  #: positions of a contiguous axis come in multiples of this
LEAST_ROWS = 64
COLUMNS = (256, 192, 128, 64)
STAGES = 6  #: more do not help
BARRIER_BYTES = 2048  #: of shared memory, beside tiles


def rows_axis(program: Program, graph: BlockGraph, single: Collection[str]) -> str | None:
    """The axis whose positions are the rows of all products: on one side of each of them, the other side being loaded,
    and not what is contiguous in results. `single` are the axes of which a block holds one position."""
    axes = graph.axes_of(program)
    ops = {o.name: o for o in graph.ops}
    shared: set[str] | None = None
    for o in graph.ops:
        if o.op != "contract":
            continue
        sides = set[str]()
        for mine, other in (o.inputs, o.inputs[::-1]):
            free = axes[mine] - set(o.over) - set(single)
            if len(free) == 1 and ops[other].op == "load":
                sides |= free
        shared = sides if shared is None else shared & sides
    contiguous = {_contiguous(program, k) for k, v in enumerate(graph.outputs) if len(axes[v] - set(single)) > 1}
    return min((a for a in shared or () if a in graph.grid and a not in contiguous), default=None)


def _contiguous(program: Program, output: int) -> str | None:
    """The innermost axis of an output."""
    return next((s.axis for s in reversed(program.outputs[output].access) if s.extent != 1), None)


def feeds(graph: BlockGraph) -> dict[str, bool]:
    """For every product, whether it multiplies something computed of another one."""
    ops = {o.name: o for o in graph.ops}

    def multiplied(name: str) -> bool:
        o = ops[name]
        return o.op == "contract" or (o.phase == BODY and any(multiplied(i) for i in o.inputs))

    return {o.name: any(multiplied(i) for i in o.inputs) for o in graph.ops if o.op == "contract"}


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule with its prediction."""

    schedule: Schedule
    prediction: Prediction


def found(
    program: Program,
    graph: BlockGraph,
    target: Target,
    batch: Collection[str],
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> list[Found]:
    """Schedules of a graph, best first; none for one that does not suit. `batch` are the grid axes that both operands of
    some product have, which are split to single positions."""
    model = _model(program, graph, target, batch, sizes)
    if model is None:
        return []
    made = [Found(s, p) for s in model.schedules() if (p := model.predict(s)).shared <= target.shared_bytes]
    return sorted(made, key=lambda f: (f.prediction.us, f.prediction.shared, f.schedule.tiles, f.schedule.loop))


def predicted(
    program: Program,
    graph: BlockGraph,
    target: Target,
    batch: Collection[str],
    schedule: Schedule,
    sizes: Mapping[str, int],
) -> Prediction:
    """The prediction for a schedule that `found` gave for other sizes."""
    rows = rows_axis(program, graph, batch)
    assert rows is not None
    return _Model(program, graph, target, rows, frozenset(batch), sizes).predict(schedule)


def _model(
    program: Program, graph: BlockGraph, target: Target, batch: Collection[str], sizes: Mapping[str, int]
) -> _Model | None:
    """The model of a graph that suits."""
    contractions = [o for o in graph.ops if o.op == "contract"]
    if target.name != "sm_90a" or graph.split or graph.loop is None or not contractions:
        return None
    if any(o.phase != BODY or o.dtype not in (F16, BF16) for o in contractions):
        return None
    rows = rows_axis(program, graph, batch)
    if rows is None or number(program.extent(rows), sizes) < LEAST_ROWS:
        return None
    return _Model(program, graph, target, rows, frozenset(batch), sizes)


class _Model:
    def __init__(
        self,
        program: Program,
        graph: BlockGraph,
        target: Target,
        rows: str,
        batch: frozenset[str],
        sizes: Mapping[str, int],
    ) -> None:
        self.p, self.g, self.t, self.rows, self.batch, self.sizes = program, graph, target, rows, batch, sizes
        self.axes = graph.axes_of(program)
        self.extents = {a.name: number(a.extent, sizes) for a in program.axes}
        self.ops = {o.name: o for o in graph.ops}
        self.late = any(feeds(graph).values())
        self.contractions = [o for o in graph.ops if o.op == "contract"]
        self.flops = sum(products(program, sizes).values())
        self.rate = target.rate(self.contractions[0].dtype)
        self.once = bytes_once(program, sizes)
        self.floor = floor_us(program, target, sizes)

    # --- the space ----------------------------------------------------------------------------------------------------
    def schedules(self) -> Iterator[Schedule]:
        """Tiles, warps, stages and numbers that are worth a prediction."""
        wide = [a for a in self.g.grid if a not in self.batch and a != self.rows]
        options = [self.columns(a) for a in wide]
        shapes = ((64, 1), (128, 2), (192, 3)) if self.late else ((128, 2), (256, 2), (64, 1))
        for columns in itertools.product(*options):
            for (height, consumers), loop in itertools.product(shapes, (128, 64) if self.late else (64,)):
                tiles = dict(zip(wide, columns, strict=True)) | {self.rows: height}
                ordered = tuple((a, tiles.get(a, 1)) for a in self.g.grid)
                for numbers in self.numbers(consumers):
                    for stages in (STAGES, 4, 3, 2):
                        s = Schedule(ordered, loop, 4 * (consumers + 1), stages, "warpgroup", numbers)
                        if self.shared(s) * dict(numbers)["resident"] <= self.t.shared_bytes:
                            yield s
                            break

    def columns(self, axis: str) -> list[int]:
        """Positions of an axis of columns in a block: scores of an iteration are computed once, so attention takes all."""
        whole = -(-self.extents[axis] // PANEL) * PANEL
        if self.late:
            return [min(whole, COLUMNS[0])]
        return sorted({min(c, whole) for c in COLUMNS})

    def numbers(self, consumers: int) -> Iterator[tuple[tuple[str, int], ...]]:
        if self.late:
            for resident in (1, 2) if consumers == 1 else (1,):
                yield (("cluster", 1), ("band", 0), ("turns", int(consumers > 1)), ("resident", resident))
            return
        for cluster in (2, 1):
            yield (("cluster", cluster), ("band", 16 // cluster), ("turns", 0), ("resident", 1))

    # --- sizes ----------------------------------------------------------------------------------------------------------
    def size(self, axis: str, s: Schedule) -> int:
        """Positions of an axis in a tile of an iteration."""
        tile = s.tile(axis)
        if tile is not None:
            return tile
        return s.loop if axis == self.g.loop else -(-self.extents[axis] // PANEL) * PANEL

    def elements(self, axes: Collection[str], s: Schedule) -> int:
        """Elements of a tile."""
        return math.prod(self.size(a, s) for a in axes)

    def operands(self) -> list[BlockOp]:
        """The loads that products read, directly or through what is computed of them."""
        names: dict[str, None] = {}

        def visit(name: str) -> None:
            o = self.ops[name]
            if o.op == "load" and len(self.axes[name] - self.batch) > 1:
                names[name] = None
            elif o.op != "contract":
                for i in o.inputs:
                    visit(i)

        for c in self.contractions:
            for i in c.inputs:
                visit(i)
        return [self.ops[n] for n in names]

    def shared(self, s: Schedule) -> int:
        """Bytes of shared memory of a block."""
        total = BARRIER_BYTES
        for o in self.operands():
            total += 2 * self.elements(self.axes[o.name], s) * (s.stages if o.phase == BODY else 1)
        return total

    # --- time -----------------------------------------------------------------------------------------------------------
    def predict(self, s: Schedule) -> Prediction:
        """Microseconds: what the matrix units do, at the share of their rate that such tiles reach, in whole waves."""
        cluster, resident = s.number("cluster"), s.number("resident")
        tiles = 1
        for a in self.g.grid:
            whole = self.size(a, s) * (cluster if a == self.rows else 1)
            tiles *= -(-self.extents[a] // whole)
        slots = self.t.units * resident // cluster
        waves = -(-tiles // slots)
        steps = -(-self.extents[self.g.loop or ""] // s.loop)
        own = 0.0
        for c in self.contractions:
            axes = frozenset(c.over).union(*(self.axes[i] for i in c.inputs))
            own += 2.0 * self.elements(axes, s)
        step = own * resident / (self.rate / self.t.units) * 1e6 / self.share(s)
        moved = sum(2 * self.elements(self.axes[o.name], s) for o in self.operands() if o.phase == BODY)
        traffic = moved * steps * tiles * cluster
        us = self.t.launch_us + waves * (steps * step + self.fixed(s))
        us = max(us, self.once / self.t.bandwidth * 1e6)
        return Prediction(us, self.shared(s), self.floor, float(traffic))

    def share(self, s: Schedule) -> float:
        """The share of the matrix rate that an iteration of such tiles reaches."""
        return 0.8 if self.late else 0.9

    def fixed(self, s: Schedule) -> float:
        """Microseconds of a unit beside its iterations."""
        return 1.5
