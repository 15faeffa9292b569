"""The interpreter of muGraphs: what the blocks of a kernel graph compute, in any array domain.

Evaluates exactly the structure that is rendered: blocks of the grid, iterations of the loop, partial last tiles, running
maxima, reductions over blocks. Shared by the proof and the tests; the search does not use it.

Blocks that differ only in their place along *free* axes of the grid are evaluated together, as one block that holds all
their positions. This is the same function: along a free axis every operator acts on each position by itself (it is
neither reduced nor split nor walked by the loop), so an element of a tile is computed from the same elements, in the same
order, whatever else the tile holds. The one thing that differs from block to block, the arbitrary number in the place of
a maximum, is drawn for each position; an axis that some maximum lacks is not free.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Array, Domain
from mirage_cli.lax.ir.evaluate import ArrayValues, fit
from mirage_cli.lax.ir.program import Program, read, write
from mirage_cli.lax.ops import lookup
from mirage_cli.search.mugraph.mugraph import (
    BODY,
    EPILOGUE,
    EXTREMES,
    GRID,
    MAXIMA,
    PROLOGUE,
    BlockGraph,
    BlockOp,
    KernelGraph,
    ThreadGraph,
)

TOGETHER = 1 << 21  #: elements up to which the largest value of blocks that are evaluated together may grow
Range = tuple[int, int]
Tiles = Mapping[str, int]  #: positions of each grid axis in a block, and of the loop axis (key "loop") in an iteration


def run_thread(thread: ThreadGraph, domain: Domain[Any], args: list[Any]) -> Any:
    """The value of a thread graph in a domain."""
    values = list(args)
    for n in thread.nodes:
        operands = [values[i] for i in n.inputs]
        if n.op == "const":
            values.append(domain.const(n.value if n.value is not None else 0))
        elif n.op == "exp_minus":
            values.append(domain.exp_minus(*operands))
        elif n.op == "exp_difference":
            values.append(domain.exp_difference(*operands))
        else:
            values.append(lookup(n.op).apply(domain, *operands))
    return values[-1]


def free_axes(graph: BlockGraph, axes: Mapping[str, frozenset[str]]) -> list[str]:
    """Grid axes along which all blocks may be evaluated together; `axes` are those of the graph's values."""
    taken = {*graph.split, graph.loop, *(a for o in graph.ops for a in o.over)}
    maxima = [axes[o.name] for o in graph.ops if o.op in MAXIMA]
    return [a for a in graph.grid if a not in taken and all(a in own for own in maxima)]


def positions_at_once(
    graph: BlockGraph, axes: Mapping[str, frozenset[str]], tiles: Tiles, extents: Mapping[str, int]
) -> dict[str, int]:
    """For each grid axis how many positions are evaluated at once: several whole tiles along a free one."""
    size = {a: min(n, tiles.get(a, n)) if a in graph.grid else n for a, n in extents.items()}
    walked = size | ({graph.loop: min(tiles.get("loop", 1 << 62), size[graph.loop])} if graph.loop else {})
    held = [(axes[o.name], walked if o.phase == BODY else size) for o in graph.ops if o.op != "load"]
    for axis in free_axes(graph, axes):
        largest = max((math.prod(own[a] for a in value) for value, own in held if axis in value), default=1)
        count = max(1, TOGETHER // max(largest, 1)) * size[axis]
        size[axis] = walked[axis] = min(count, extents[axis])
    return {a: size[a] for a in graph.grid}


class BlockRun:
    """One custom kernel evaluated over its whole grid; each block by itself when `alone`."""

    def __init__(
        self,
        program: Program,
        graph: BlockGraph,
        tiles: Tiles,
        domain: ArrayValues,
        arrays: Mapping[int, Array],
        symbols: Mapping[str, int],
        alone: bool = False,
    ) -> None:
        self.p, self.g, self.tiles, self.d, self.symbols = program, graph, tiles, domain, symbols
        self.order = [a.name for a in program.axes]
        self.extents = {a.name: ex.value(a.extent, symbols) for a in program.axes}
        self.axes, self.phase = graph.axes_of(program), {o.name: o.phase for o in graph.ops}
        self.steps = dict(tiles) if alone else positions_at_once(graph, self.axes, tiles, self.extents)
        self.stored = {i.name: read(program, i.access, arrays[i.source], domain.lead, symbols) for i in program.inputs}
        self.results: list[Array | None] = [None] * len(graph.outputs)

    def run(self) -> list[Array]:
        """The outputs as stored tensors."""
        plain = [a for a in self.g.grid if a not in self.g.split]
        with np.errstate(all="ignore"):
            for block in itertools.product(*(self.ranges(a) for a in plain)):
                own = dict(zip(plain, block, strict=True))
                parts = []
                for portion in itertools.product(*(self.ranges(a) for a in self.g.split)):
                    at = own | dict(zip(self.g.split, portion, strict=True))
                    parts.append(self.block(at))
                    self.store(at, parts[-1], True)
                self.store(own, self.grid_phase(own, parts), False)
        return [self.written(k) for k in range(len(self.results))]

    def ranges(self, axis: str) -> list[Range]:
        """The parts of a grid axis that the blocks take."""
        step, end = max(1, self.steps.get(axis, self.extents[axis])), self.extents[axis]
        return [(i, min(i + step, end)) for i in range(0, end, step)] or [(0, 0)]

    # --- one block ------------------------------------------------------------------------------------------------------
    def block(self, at: dict[str, Range]) -> dict[str, Array]:
        """Values of the prologue, the epilogue and the last iteration's running maxima."""
        values: dict[str, Array] = {}
        for operator in self.g.ops:
            if operator.phase == PROLOGUE:
                values[operator.name] = self.op(operator, values, at, None)
        carried: dict[str, Array] = {}
        walked: dict[str, list[Array]] = {}
        if self.g.loop is not None:
            low, high = at.get(self.g.loop, (0, self.extents[self.g.loop]))
            step = self.tiles.get("loop", high - low)
            for start in range(low, high, step):
                self.iteration(values, carried, walked, at, (start, min(start + step, high)), low)
        for operator in self.g.ops:
            if operator.op in ("accum", "running"):
                values[operator.name] = carried[operator.name]
            elif operator.name in walked:
                whole = np.concatenate(walked[operator.name], self.d.lead + self.order.index(self.g.loop or ""))
                values[operator.name] = self.d.extreme(operator.op, whole, operator.over)
            elif operator.phase not in (PROLOGUE, BODY, GRID):
                values[operator.name] = self.op(operator, values, at, None)
        return values

    def iteration(
        self,
        values: dict[str, Array],
        carried: dict[str, Array],
        walked: dict[str, list[Array]],
        at: dict[str, Range],
        part: Range,
        low: int,
    ) -> None:
        """One iteration: what it hands on goes into `carried`, what largest and smallest values are taken of into `walked`."""
        loop = self.g.loop or ""
        body = {n: self.slice(a, n, loop, (part[0] - low, part[1] - low)) for n, a in values.items()}
        before = dict(carried)
        for operator in self.g.ops:
            if operator.op == "running":
                carried[operator.name] = body[operator.name] = self.d.running_max(
                    before.get(operator.name), body[operator.inputs[0]], ()
                )
            elif operator.op == "shrink":
                new, old = carried[operator.inputs[0]], before.get(operator.inputs[0])
                body[operator.name] = self.d.exp_difference(new if old is None else old, new)
            elif operator.phase == BODY:
                body[operator.name] = self.op(operator, body, at, part)
        for operator in self.g.ops:
            if operator.op == "accum":
                total = body[operator.inputs[0]]
                if operator.name in before:
                    kept = before[operator.name]
                    kept = self.d.mul(kept, body[operator.inputs[1]]) if len(operator.inputs) > 1 else kept
                    total = self.d.add(kept, total)
                carried[operator.name] = total
            elif operator.op in EXTREMES and operator.phase == EPILOGUE and self.phase[operator.inputs[0]] == BODY:
                walked.setdefault(operator.name, []).append(body[operator.inputs[0]])

    def slice(self, a: Array, name: str, axis: str, part: Range) -> Array:
        dim = self.d.lead + self.order.index(axis)
        if axis not in self.axes[name] or (a.shape[dim] == 1 and part != (0, 1)):
            return a
        index: list[Any] = [slice(None)] * a.ndim
        index[dim] = slice(*part)
        part_of: Array = a[tuple(index)]
        return part_of

    def op(self, operator: BlockOp, values: Mapping[str, Array], at: Mapping[str, Range], part: Range | None) -> Array:
        args = [values[i] for i in operator.inputs]
        match operator.op:
            case "load":
                return self.tile(self.stored[operator.source_value or ""], self.axes[operator.name], at, part)
            case "iota":
                axis = operator.axis or ""
                positions = fit(self.d.iota(axis, self.extents[axis]), len(self.order), self.d.lead)
                return self.tile(positions, frozenset([axis]), at, part)
            case "extent":
                count = self.d.const(self.extents[operator.axis or ""])
                return fit(np.asarray(count), len(self.order), self.d.lead)
            case "thread":
                assert operator.thread is not None
                result = run_thread(operator.thread, self.d, args)
                return fit(np.asarray(result), len(self.order), self.d.lead)
            case "contract":
                return self.d.contract(args[0], args[1], operator.over)
            case "sum":
                return self.d.sum(self.spread(args[0], operator, at, part), operator.over)
            case "max" | "min":
                return self.d.extreme(operator.op, args[0], operator.over)
            case "top":
                return self.d.running_max(None, args[0], operator.over)
        raise InvalidGraph(f"{operator.name}: operator {operator.op} does not stand in the {operator.phase}")

    def tile(self, a: Array, axes: frozenset[str], at: Mapping[str, Range], part: Range | None) -> Array:
        index: list[Any] = [slice(None)] * a.ndim
        for k, axis in enumerate(self.order):
            if axis in axes:
                where = part if axis == self.g.loop and part is not None else at.get(axis)
                if where is not None:
                    index[self.d.lead + k] = slice(*where)
        tile: Array = a[tuple(index)]
        return tile

    def spread(self, a: Array, operator: BlockOp, at: Mapping[str, Range], part: Range | None) -> Array:
        """A sum over an axis that the operand lacks counts every position of the tile."""
        shape = list(a.shape)
        for axis in operator.over:
            if axis not in self.axes[operator.inputs[0]]:
                where = part if axis == self.g.loop and part is not None else at.get(axis, (0, self.extents[axis]))
                shape[self.d.lead + self.order.index(axis)] = where[1] - where[0]
        return np.broadcast_to(a, shape)

    # --- over blocks ----------------------------------------------------------------------------------------------------
    def grid_phase(self, own: dict[str, Range], parts: list[dict[str, Array]]) -> dict[str, Array]:
        values = dict(parts[0])
        for operator in self.g.ops:
            if operator.op == "grid_top":
                top = None
                for p in parts:
                    top = self.d.running_max(top, p[operator.inputs[0]], ())
                assert top is not None
                values[operator.name] = top
            elif operator.op == "grid_sum":
                total = None
                for p in parts:
                    term = p[operator.inputs[0]]
                    if len(operator.inputs) > 1:
                        term = self.d.mul(
                            term, self.d.exp_difference(p[operator.inputs[1]], values[operator.inputs[2]])
                        )
                    total = term if total is None else self.d.add(total, term)
                assert total is not None
                values[operator.name] = total
            elif operator.phase == GRID:
                values[operator.name] = self.op(operator, values, own, None)
        return values

    def store(self, own: Mapping[str, Range], values: Mapping[str, Array], shares: bool) -> None:
        """Store the outputs of a block: those that have a split axis (`shares`), of which each block stores its part, or
        the other ones."""
        for k, (name, out) in enumerate(zip(self.g.outputs, self.p.outputs, strict=True)):
            if bool(self.axes[name] & set(self.g.split)) != shares:
                continue
            axes = {s.axis for s in out.access}
            tile = values[name]
            full = self.results[k]
            if full is None:
                shape = [self.extents[a] if a in axes else 1 for a in self.order]
                full = np.zeros(tile.shape[: self.d.lead] + tuple(shape), dtype=tile.dtype)
                self.results[k] = full
            index: list[Any] = [slice(None)] * self.d.lead
            index += [slice(*own[a]) if a in own and a in axes else slice(None) for a in self.order]
            full[tuple(index)] = tile

    def written(self, k: int) -> Array:
        full = self.results[k]
        assert full is not None
        return write(self.p, self.p.outputs[k], full, self.d.lead, self.symbols)


def evaluate_kernels(
    graph: KernelGraph,
    tiles: list[Tiles],
    make_domain: Any,
    arrays: Mapping[int, Array],
    symbols: Mapping[str, int] | None = None,
    alone: bool = False,
) -> list[Array]:
    """The outputs of a kernel graph; `make_domain(program)` gives the domain for a kernel's axes, `tiles[k]` its tiles.

    With `alone` blocks are evaluated one by one even where several could be together.
    """
    tensors = dict(arrays)
    for kernel, tile in zip(graph.kernels, tiles, strict=True):
        own = {k: tensors[t] for k, t in enumerate(kernel.inputs)}
        run = BlockRun(kernel.program, kernel.block, tile, make_domain(kernel.program), own, symbols or {}, alone)
        for t, result in zip(kernel.outputs, run.run(), strict=True):
            tensors[t] = result
    return [tensors[graph.sources + k] for k in range(graph.outputs)]
