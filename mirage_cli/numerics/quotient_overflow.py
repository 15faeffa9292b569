"""Search for quotients of numbers that are too large for float32 already, in a muGraph.

The normal form of a program takes denominators outwards, so that a muGraph may multiply before it divides where the model
divides first. Of numbers up to `edges.SAFE` squares are float32, third and fourth powers are not: their quotient would be
infinite, or NaN. Whether that spoils a result depends on where the huge number stands (such a quotient may lie in the branch
that is not chosen there), so that all quotients are looked at, in float64 and on short axes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mirage_cli.lax.domains.domain import Array, Float64
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir.program import Program
from mirage_cli.numerics.edges import large
from mirage_cli.numerics.rounding import MOST, drawn_inputs
from mirage_cli.search.mugraph.evaluate import Tiles, evaluate_kernels
from mirage_cli.search.mugraph.mugraph import CustomKernel, KernelGraph
from mirage_cli.search.proof.evaluation_cost import cost
from mirage_cli.search.proof.stand_in import shortest

SQUARES = 2.0  #: the power of `edges.SAFE` that is a float32


class _Divided(Float64):
    """Float64 that counts quotients in float32's range whose numerators are beyond it."""

    def __init__(self, program: Program) -> None:
        super().__init__([a.name for a in program.axes])
        self.lost = 0

    def div(self, x: Array, y: Array, guard: str = "") -> Array:
        """Counts."""
        quotient = super().div(x, y, guard)
        self.lost += int((np.isfinite(x) & (np.abs(x) > F32.largest) & (np.abs(quotient) <= F32.largest)).sum())
        return quotient


def _powers(program: Program, kernel: CustomKernel) -> int:
    """The largest number of factors that are no weights in what a kernel divides."""
    tensors = {i.name: kernel.inputs[i.source] for i in kernel.program.inputs}
    factors: dict[str, int] = {}
    most = 0
    for operator in kernel.block.ops:
        args = [factors[i] for i in operator.inputs]
        if operator.op == "load":
            args = [int(tensors[operator.source_value or ""] not in program.constants)]
        elif operator.op == "contract":
            args = [sum(args)]
        for n in operator.thread.nodes if operator.thread else ():
            own = [args[i] for i in n.inputs]
            most = max(most, own[0]) if n.op == "div" else most
            args.append(sum(own) if n.op == "mul" else max(own, default=0))
        factors[operator.name] = args[-1] if operator.thread else max(args, default=0)
    return most


def overflow(program: Program, graph: KernelGraph, tiles: Sequence[Tiles], growth: float, seed: int) -> str:
    """On which inputs a muGraph divides what is no float32 any more, in words; or nothing, also where the model's own values
    grow as fast (`growth`)."""
    if max(_powers(program, k) for k in graph.kernels) <= max(SQUARES, growth):
        return ""
    point = shortest(program, graph, tiles)
    if cost(point.program, point.graph, tiles, point.symbols) > MOST:
        return ""
    usual = drawn_inputs(point.program, point.symbols, {}, seed)
    for edge in large(point.program, usual, point.symbols, seed):
        domains: list[_Divided] = []

        def domain(p: Program, domains: list[_Divided] = domains) -> _Divided:
            domains.append(_Divided(p))
            return domains[-1]

        arrays = {k: a.astype(np.float64) for k, a in enumerate(edge.arrays)}
        evaluate_kernels(point.graph, list(tiles), domain, arrays, point.symbols)
        lost = sum(d.lost for d in domains)
        if lost:
            return f"products overflow float32 before they are divided ({edge.kind} inputs): {lost} quotients"
    return ""
