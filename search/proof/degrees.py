"""The figures of the error bound for a muGraph: the domains of degrees over blocks, iterations and kernels."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from mirage_cli.lax import extents as ex
from mirage_cli.lax.bounds.bound import (
    Arguments,
    Bound,
    Degrees,
    Difference,
    DomainOf,
    difference,
    largest_difference,
    program_figures,
)
from mirage_cli.lax.bounds.exponentials import Exponentials, Gap, gap, largest
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.evaluate import Tiles, run_thread
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, GRID, BlockOp, CustomKernel, KernelGraph

_STEP, _BLOCK = ("step",), ("block",)  #: axes of a value that differs between iterations, between blocks of a split


def figures(
    program: Program, graph: KernelGraph, tiles: Sequence[Tiles], symbols: Mapping[str, int]
) -> tuple[Difference, Arguments]:
    """The largest difference of an output of `program` and of `graph`, and the arguments of the functions of both."""
    arguments = Arguments()
    pairs = _outputs(program, graph, tiles, symbols, lambda extents: Degrees(extents, arguments))
    return largest_difference([difference(w, f) for w, f in pairs]), arguments


def bound(worst: Difference, arguments: Arguments, fields: int, draws: int) -> Bound:
    """The bound of a test in so many fields that takes up to `draws` random points."""
    return Bound(worst.degree, worst.bits, arguments.degree, arguments.bits, worst.applications, fields, draws)


def exponential_figures(
    program: Program, graph: KernelGraph, tiles: Sequence[Tiles], symbols: Mapping[str, int]
) -> tuple[Gap, Arguments]:
    """The same where exp(a) exp(b) = exp(a + b). Raises Refused where the homomorphic test does not apply."""
    arguments = Arguments()
    pairs = _outputs(program, graph, tiles, symbols, lambda extents: Exponentials(extents, arguments))
    return largest([gap(w, f) for w, f in pairs]), arguments


def _outputs(
    program: Program, graph: KernelGraph, tiles: Sequence[Tiles], symbols: Mapping[str, int], domain_of: DomainOf
) -> list[tuple[Any, Any]]:
    """The figures of each output, of the program and of the muGraph."""
    wanted = program_figures(program, symbols, domain_of)
    tensors: dict[int, Any] = {}
    for kernel, tile in zip(graph.kernels, tiles, strict=True):
        results = _Kernel(kernel, tile, symbols, domain_of).run(tensors)
        tensors.update(zip(kernel.outputs, results, strict=True))
    return [(w, tensors[graph.sources + k]) for k, w in enumerate(wanted)]


class _Kernel:
    """One custom kernel."""

    def __init__(self, kernel: CustomKernel, tile: Tiles, symbols: Mapping[str, int], domain_of: DomainOf) -> None:
        self.kernel, self.p, self.g = kernel, kernel.program, kernel.block
        self.axes = self.g.axes_of(self.p)
        self.source = {i.name: i.source for i in self.p.inputs}
        whole: dict[Hashable, int] = {a.name: ex.value(a.extent, symbols) for a in self.p.axes}
        self.extents = whole
        part = whole | {a: min(tile.get(a, whole[a]), whole[a]) for a in self.g.split}
        blocks = math.prod(-(-whole[a] // max(part[a], 1)) for a in self.g.split)
        body, steps = part, 1
        if self.g.loop is not None:
            walked = part[self.g.loop]
            inner = min(tile.get("loop", walked), walked)
            body, steps = part | {self.g.loop: inner}, -(-walked // max(inner, 1))
        self.body = domain_of(body)
        self.block, self.walked = domain_of(part | {_STEP: steps}), domain_of(body | {_STEP: steps})
        self.grid = domain_of(whole | {_BLOCK: blocks})

    def run(self, tensors: Mapping[int, Any]) -> list[Any]:
        """The degrees of the outputs; `tensors` has those of stored intermediate values."""
        values: dict[str, Any] = {}
        for o in self.g.ops:
            domain = {BODY: self.body, GRID: self.grid}.get(o.phase, self.block)
            values[o.name] = self.op(o, domain, [values[i] for i in o.inputs], tensors)
        return [values[v] for v in self.g.outputs]

    def own(self, operator: BlockOp) -> frozenset[Hashable]:
        """The axes along which a tile varies: within it, between iterations and between blocks."""
        varying: set[Hashable] = set(self.axes[operator.name])
        fresh = operator.op in ("top", "running", "shrink", "grid_top")
        if operator.phase == BODY and (fresh or self.g.loop in varying):
            varying.add(_STEP)
        if self.g.split and (fresh or varying & set(self.g.split)):
            varying.add(_BLOCK)
        return frozenset(varying)

    def op(self, operator: BlockOp, d: Any, args: list[Any], tensors: Mapping[int, Any]) -> Any:
        match operator.op:
            case "load":
                stored = tensors.get(self.kernel.inputs[self.source[operator.source_value or ""]])
                return d.variable(self.own(operator)) if stored is None else d.stored(stored, self.own(operator))
            case "iota" | "top" | "running" | "grid_top":
                return d.variable(self.own(operator))
            case "extent":
                return d.const(self.extents[operator.axis])
            case "shrink":
                return d.exp_difference(d.variable(self.own(operator)), d.variable(self.own(operator)))
            case "contract":
                return d.contract(args[0], args[1], operator.over)
            case "sum":
                return d.sum(args[0], operator.over)
            case "max" | "min":
                walked = operator.phase == EPILOGUE and self.g.op(operator.inputs[0]).phase == BODY
                over = (*operator.over, *((_STEP,) if walked else ()))
                return (self.walked if walked else d).extreme(operator.op, args[0], over)
            case "accum":
                return self.block.accumulate(args[0], args[1] if len(args) > 1 else None, _STEP)
            case "grid_sum":
                term = d.mul(args[0], d.exp_difference(args[1], args[2])) if len(args) > 1 else args[0]
                return self.grid.sum(term, [_BLOCK])
        assert operator.thread is not None
        return run_thread(operator.thread, d, args)
