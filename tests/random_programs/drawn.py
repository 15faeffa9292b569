"""Random programs: every operator that the front end reads as mathematics, on shapes that divide nothing."""

from __future__ import annotations

from collections.abc import Callable

from .elementwise import (
    binary,
    clip,
    converted,
    counted,
    exp,
    logic,
    positive,
    power,
    quotient,
    rounded,
    scaled,
    squared,
    truth,
    unary,
    where,
)
from .shapes import SIZES
from .sketch import MOST, SYMBOL, Dim, Pick, Program, Sketch, Unfit, Value, elements
from .sums import attention, einsum, gated, gemm, gram, layer_norm, matmul, reduction, rms_norm, softmax, spelled_norm
from .views import concat, expand, flatten, gather, ones, part, reshape, rotary, split, transpose, triangle

Draw = Callable[[Sketch, Value], object]

#: what is drawn, as often as it stands here
VOCABULARY: tuple[Draw, ...] = (
    *(unary, binary, matmul) * 3,
    *(reduction, softmax, scaled, where, rms_norm, layer_norm, attention, gated, rotary, transpose) * 2,
    exp, positive, power, rounded, clip, quotient, squared, converted, logic, counted, truth, spelled_norm, gram, gemm, einsum,
    reshape, flatten, ones, part, split, concat, expand, gather, triangle,
)  # fmt: skip


def program(pick: Pick, dtype: str, seed: int = 0, longest: int = 8) -> Program:
    """A program of random choices, with at least one node; its constants depend on `seed`."""
    s = Sketch(pick, dtype, seed, symbolic=pick(4) == 3)
    dims: list[Dim] = [s.one(SIZES) for _ in range(2)]
    rank = s.one((2, 2, 3, 1, 3, 4))
    if rank > 2:
        dims = [s.one(SIZES[:4]) for _ in range(rank - 2)] + dims
    dims = dims[:rank]
    if s.maybe(40):
        dims[s.pick(len(dims))] = 0
    elif s.symbolic:
        dims[s.pick(max(1, len(dims) - 1))] = SYMBOL
    s.input(dims if elements(dims) <= MOST else dims[-2:])
    for _ in range(1 + pick(longest)):
        grown(s)
    if not s.nodes:
        s.node("Neg", [s.values[0]], s.values[0].dims)
    return s.done()


def grown(s: Sketch) -> None:
    """One operator more, if one of a few tries fits."""
    for _ in range(6):
        floats = [v for v in s.values if v.is_float]
        x = floats[-1 - min(s.pick(len(floats)), s.pick(len(floats)))]
        at = len(s.nodes), len(s.values), len(s.inputs)
        try:
            s.one(VOCABULARY)(s, x)
        except Unfit:
            del s.nodes[at[0] :], s.values[at[1] :], s.inputs[at[2] :]
        else:
            return
