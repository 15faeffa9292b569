"""Comparison without a kernel: a muGraph gives numbers where its program gives them, and NaN or infinities where it
does.

Equations between real numbers need not hold for infinities: x W1 + x W2 is NaN where x (W1 + W2) is infinite, and behind a
softmax or a soft cap infinity is a number again. So muGraphs are run in numpy beside their programs, in float64, where
nothing overflows by itself, on short axes, for inputs with NaN and infinities. The normal form stands for the original: what
it changes (denominators and constants taken outwards, sums in another order) does not change which values are finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.numerics.edges import Edge, not_finite
from mirage_cli.numerics.rounding import drawn_inputs
from mirage_cli.search.mugraph.evaluate import Tiles, evaluate_kernels
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.proof.evaluation_cost import cost
from mirage_cli.search.proof.stand_in import Point, shortest

MOST = 1e8  #: nanoseconds of one evaluation, by an estimate for fields, above which there is none
DRAWS = 3  #: of the numbers beside NaN and infinities: a zero among them, or a sign, may decide
TOGETHER = 1e8  #: nanoseconds of all evaluations, above which no more inputs are tried than these:
LEAST = 6


def changed_finiteness(program: Program, graph: KernelGraph, tiles: Sequence[Tiles], seed: int) -> str:
    """On which inputs values of a muGraph are finite where its program's are not, or the reverse, in words; or nothing. Which
    of NaN and infinity a value is, is not compared: the order of a sum decides that."""
    point = shortest(program, graph, tiles)
    work = cost(point.program, point.graph, tiles, point.symbols)
    if work > MOST:
        return ""
    for edge in islice(_edges(point, seed), max(LEAST, int(TOGETHER // work))):
        arrays = {k: a.astype(np.float64) for k, a in enumerate(edge.arrays)}
        wanted = evaluate_program(point.program, _domain(point.program), arrays, point.symbols)
        computed = evaluate_kernels(point.graph, list(tiles), _domain, arrays, point.symbols)
        finite = [(np.isfinite(x), np.isfinite(y)) for x, y in zip(wanted, computed, strict=True)]
        lost, gained = (sum(int((p & ~q).sum()) for p, q in pairs) for pairs in (finite, [(q, p) for p, q in finite]))
        if lost or gained:
            return (
                f"NaN and infinities differ ({edge.kind} inputs): {lost} values are not finite where the original's are, "
                f"{gained} the other way round"
            )
    return ""


def _edges(point: Point, seed: int) -> Iterator[Edge]:
    """The inputs of all draws."""
    for k in range(DRAWS):
        usual = drawn_inputs(point.program, point.symbols, {}, seed + k)
        yield from not_finite(point.program, usual, point.symbols, seed + k)


def _domain(program: Program) -> Float64:
    return Float64([a.name for a in program.axes])
