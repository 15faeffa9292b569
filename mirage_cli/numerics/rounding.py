"""Roundings of CUDA kernels before they multiply, run in numpy to see where a muGraph overflows and its program does
not.

Matrix instructions take operands of the model's type. A muGraph multiplies other values than its program, whose sizes nothing
may bound: a row before it is divided by its norm. Kernels of float16 are only run where there is a GPU; so muGraphs are
evaluated here as they would be, in float32 with every operand of a product rounded to float16, on short axes, for inputs
with huge numbers. The program, with its products and exponentials in float16, stands for the original.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Array, Axes, Float64, Number
from mirage_cli.lax.dtypes import F16
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.numerics.edges import draw, large
from mirage_cli.runtime import sessions
from mirage_cli.search.mugraph.evaluate import Tiles, evaluate_kernels
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.proof.evaluation_cost import cost
from mirage_cli.search.proof.stand_in import shortest

MOST = 5e7  #: nanoseconds of one evaluation above which there is none


class Rounded(Float64):
    """float32, with the operands of products rounded to float16."""

    def const(self, value: Number) -> Array:
        """In float32."""
        return np.asarray(float(value), dtype=np.float32)

    def iota(self, axis: Hashable, extent: int, offset: int = 0) -> Array:
        """In float32."""
        return super().iota(axis, extent, offset).astype(np.float32)

    def contract(self, x: Array, y: Array, over: Axes) -> Array:
        """With both operands rounded."""
        return super().contract(_half(x), _half(y), over)


class Original(Rounded):
    """The arithmetic of a model of float16: products and exponentials are tensors of float16 themselves."""

    def exp(self, x: Array) -> Array:
        """Rounded."""
        return _half(super().exp(x))

    def contract(self, x: Array, y: Array, over: Axes) -> Array:
        """Rounded, too."""
        return _half(super().contract(x, y, over))


def _half(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float32)


def overflow(
    program: Program, graph: KernelGraph, tiles: Sequence[Tiles], largest: Mapping[int, float], seed: int
) -> str:
    """On which inputs a muGraph of float16 products overflows where its program does not, in words; or nothing. `largest` says
    of some sources what no magnitude in them exceeds."""
    types = [s.dtype for s in program.sources]
    largest = {k: min(top, types[k].largest) for k, top in largest.items()}
    if {n.dtype for k in graph.kernels for n in k.block.ops if n.op == "contract"} != {F16}:
        return ""
    point = shortest(program, graph, tiles)
    if cost(point.program, point.graph, tiles, point.symbols) > MOST:
        return ""
    arrays = drawn_inputs(point.program, point.symbols, largest, seed)
    cases = [("random", arrays)]
    cases += [(e.kind, e.arrays) for e in large(point.program, arrays, point.symbols, seed)]
    for kind, inputs in cases:
        given = [np.clip(a, -largest[k], largest[k]) if k in largest else a for k, a in enumerate(inputs)]
        difference = _compared(point.program, point.graph, tiles, point.symbols, given)
        if difference:
            return f"operands that are rounded to float16 before a product overflow ({kind} inputs): {difference}"
    return ""


def drawn_inputs(
    program: Program, symbols: Mapping[str, int], largest: Mapping[int, float], seed: int
) -> tuple[NDArray[Any], ...]:
    """Random arrays for the sources; all numbers of weights that are known as large as they may be."""
    random, arrays = np.random.default_rng(seed), []
    for k, source in enumerate(program.sources):
        numbers = replace(source, packed=False)
        a = draw(numbers, [ex.value(e, symbols) for e in source.dims], "random", random)
        known = source.constant and k in largest
        arrays.append(np.copysign(largest[k], a).astype(a.dtype) if known else a)
    return tuple(arrays)


def _compared(
    program: Program,
    graph: KernelGraph,
    tiles: Sequence[Tiles],
    symbols: Mapping[str, int],
    arrays: Sequence[NDArray[Any]],
) -> str:
    """Number of the muGraph's results that are not finite where the program's, and the true ones, are, in words; or
    nothing."""

    def rounded(p: Program) -> Rounded:
        return Rounded([a.name for a in p.axes])

    order = [a.name for a in program.axes]
    single = {k: a.astype(np.float32) for k, a in enumerate(arrays)}
    wide = {k: a.astype(np.float64) for k, a in enumerate(arrays)}
    wanted = evaluate_program(program, Float64(order), wide, symbols)
    own = evaluate_program(program, Original(order), single, symbols)
    computed = evaluate_kernels(graph, list(tiles), rounded, single, symbols)
    for k, o in enumerate(program.outputs):
        with np.errstate(over="ignore"):
            finite = [np.isfinite(x[k].astype(sessions.numpy_type(o.dtype))) for x in (computed, own, wanted)]
        lost = int((~finite[0] & finite[1] & finite[2]).sum())
        if lost:
            return f"{lost} values are not finite where the original's are"
    return ""
