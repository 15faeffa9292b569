"""The buffers of a tile program while it is made: tiles of values, and the order in which their positions are visited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_cli.codegen.tiles.shapes import Shapes
from mirage_cli.codegen.tiles.stored import pitch, storage_order
from mirage_cli.codegen.tiles.tile import FRAGMENT, SHARED, Buffer, Expr, Sizes, globals_of, refs
from mirage_cli.lax.dtypes import F32, DType
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target


class Tiles:
    """The buffers of a block graph under a schedule."""

    def __init__(self, program: Program, graph: BlockGraph, schedule: Schedule, target: Target) -> None:
        self.p, self.g, self.s, self.t = program, graph, schedule, target
        self.shapes = Shapes(program, graph, schedule, target)
        self.reads = {i.name: i for i in program.inputs}
        self.buffers: dict[str, Buffer] = {}

    @property
    def on_gpu(self) -> bool:
        """True for targets whose threads share tiles."""
        return self.t.threaded

    def sizes(self, axes: Sequence[str], phase: str) -> Sizes:
        """The axes of which a tile holds more than one position, with their sizes."""
        sizes = ((a, self.shapes.size(a, phase)) for a in axes)
        return tuple((a, n) for a, n in sizes if n > 1)

    def ordered(self, axes: frozenset[str]) -> list[str]:
        """Axes in the order of the program."""
        return [a.name for a in self.p.axes if a.name in axes]

    def inexact(self, axes: Sequence[str], phase: str) -> tuple[str, ...]:
        """Those of axes that tiles may leave."""
        return tuple(a for a in axes if not self.shapes.exact(a, phase))

    def buffer(self, b: Buffer) -> Buffer:
        """A buffer that is known from now on."""
        if b.place != FRAGMENT and not b.pitch:
            b = replace(b, pitch=pitch(b.n_cols, self.t))
        self.buffers[b.name] = b
        return b

    def vector(self, name: str, axes: frozenset[str], phase: str, dtype: DType = F32) -> Buffer:
        """A shared tile for a reduced value."""
        return self.buffer(Buffer(name, dtype, (), self.sizes(self.ordered(axes), phase), SHARED, phase))

    def shared(self, name: str, domain: Sizes, phase: str, dtype: DType = F32) -> Buffer:
        """A shared tile of a value."""
        return self.buffer(Buffer(name, dtype, domain[:-1], domain[-1:], SHARED, phase))

    def fragments(self, e: Expr) -> list[Buffer]:
        """The fragments that an expression reads."""
        return [self.buffers[b] for b in refs(e) if self.buffers[b].place == FRAGMENT]

    def domain_of(self, e: Expr, axes: frozenset[str], phase: str) -> Sizes:
        """The order in which positions are visited: a fragment's where the expression is made of one."""
        wanted = {a for a, _ in self.sizes(self.ordered(axes), phase)}
        tiles = [self.buffers[b] for b in refs(e)]
        for b in sorted(tiles, key=lambda b: b.place != FRAGMENT):
            if {a for a, _ in b.axes} == wanted:
                return self.sizes([a for a, _ in b.axes], phase)
        stored = [n for v in globals_of(e) for n in storage_order(self.reads[v])]
        order = sorted(self.ordered(axes), key=lambda a: stored.index(a) if a in stored else -1)
        return self.sizes(order, phase)

    def main_fragment(self, e: Expr, domain: Sizes) -> Buffer | None:
        """The fragment of an expression whose positions are visited in its own order."""
        return next((f for f in self.fragments(e) if f.axes == domain), None)
