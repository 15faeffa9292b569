"""Numbers for which small constants that a program adds matter: the epsilon of a norm, say, which random numbers hide.

Every row is taken to hold two numbers, each at half of its positions, so that a program is evaluated for thousands of trials
in no time. In a trial all sources have numbers of one size, of one sign or alternating. For each constant the trial is found
in which a quarter more of it changes the results most.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Axes, Float64, Floats, Number
from mirage_cli.lax.ir.program import Node, Program, node_value

Pair: TypeAlias = tuple[float, float]  #: the two numbers of a row
SIZES = tuple(2.0**k for k in range(4, -21, -1))  #: of numbers in a trial, the largest first
PATTERNS = ((1.0, 0.8), (-1.0, -0.8), (1.0, -0.8))  #: a row's numbers beside their size: nothing cancels by luck
LESS = 0.6  #: the numbers of a source beside those of the one before it, so that no difference of two is small
FREE = 3  #: sources whose patterns are combined in every way; of those of more sources some are drawn
SMALL = 2.0**-6  #: constants that random numbers show are not below it
MORE = Fraction(5, 4)  #: what a constant is multiplied by
SEEN = 2.0**-6  #: a change beside the largest result, which the accuracy of every type shows
LEAST = 2.0**-12  #: the largest result at least: smaller ones lose bits in float16
ENOUGH = 0.5  #: of the largest change; the numbers that show it best are the smallest, and lost in other ways


def inputs_showing_constants(
    program: Program, weights: Mapping[int, float], symbols: Mapping[str, int]
) -> list[dict[int, Pair]]:
    """For each small constant that is added, as far as it shows, the two numbers of every row of each source that is not among
    the `weights`, which are given by a usual size: the largest ones that show it well."""
    given = [k for k, s in enumerate(program.sources) if k not in weights and s.dtype.is_float]
    constants = list(_added(program))
    if not constants or not given:
        return []
    trials = [(size, signs) for signs in _patterns(len(given)) for size in SIZES]
    rows = {
        k: np.array([[x * size * LESS**at for x in signs[at]] for size, signs in trials]) for at, k in enumerate(given)
    }
    usual = {k: np.array([[w, w]]) for k, w in weights.items()}
    sources = [{**usual, **rows}.get(k, np.ones((1, 2))) for k in range(len(program.sources))]
    trials_that_show: list[dict[int, Pair]] = []
    with np.errstate(all="ignore"):
        own = _results(program, program.nodes, sources, symbols)
        for n in constants:
            assert n.value is not None
            nodes = [replace(m, value=m.value * MORE) if m is n and m.value is not None else m for m in program.nodes]
            seen = np.zeros(len(trials))
            for a, b in zip(own, _results(program, nodes, sources, symbols), strict=True):
                top = np.abs(a).max(axis=1)
                change = np.where(top >= LEAST, np.abs(b - a).max(axis=1) / top, 0.0)
                seen = np.maximum(seen, np.where(np.isfinite(change), change, 0.0))
            best = int(np.argmax(seen >= ENOUGH * seen.max()))
            trial = {k: (float(x[best, 0]), float(x[best, 1])) for k, x in rows.items()}
            if seen[best] >= SEEN and trial not in trials_that_show:
                trials_that_show.append(trial)
    return trials_that_show


def _added(program: Program) -> Iterator[Node]:
    """The small constants that are added or subtracted."""
    read = {x for n in program.nodes if n.op in ("add", "sub") for x in n.inputs}
    for n in program.nodes:
        if n.op == "const" and n.name in read and n.value and abs(float(n.value)) < SMALL:
            yield n


def _patterns(count: int) -> Iterator[tuple[Pair, ...]]:
    """Signs for so many sources."""
    if count <= FREE:
        yield from itertools.product(PATTERNS, repeat=count)
        return
    for drawn in np.random.default_rng(0).integers(len(PATTERNS), size=(len(PATTERNS) ** FREE, count)):
        yield tuple(PATTERNS[k] for k in drawn)


def _results(
    program: Program, nodes: Sequence[Node], sources: Sequence[Floats], symbols: Mapping[str, int]
) -> list[Floats]:
    """The outputs [trial, number of a row]."""
    size = {a.name: ex.value(a.extent, symbols) for a in program.axes}
    domain = _TwoNumbers(size)
    values = {i.name: sources[i.source] for i in program.inputs}
    for n in nodes:
        values[n.name] = node_value(n, domain, [values[x] for x in n.inputs], size)
    return [values[o.value] for o in program.outputs]


class _TwoNumbers(Float64):
    """Rows of two numbers, [trial, number]; each axis has `size` positions."""

    def __init__(self, size: Mapping[str, int]) -> None:
        super().__init__()
        self.size = size

    def const(self, value: Number) -> Floats:
        return super().const(value).reshape(1, 1)

    def _mean(self, x: Floats) -> Floats:
        return np.asarray(x.mean(axis=1, keepdims=True))

    def _count(self, over: Axes) -> float:
        return math.prod(float(self.size[str(a)]) for a in over)

    def stable_exp(self, x: Floats, over: Axes) -> Floats:
        return np.asarray(np.exp(x - x.max(axis=1, keepdims=True)))

    def sum(self, x: Floats, over: Axes) -> Floats:
        return self._mean(x) * self._count(over)

    def contract(self, x: Floats, y: Floats, over: Axes) -> Floats:
        return self._mean(x * y) * self._count(over)

    def extreme(self, kind: str, x: Floats, over: Axes) -> Floats:
        if kind == "prod":
            return np.asarray(np.power(x.prod(axis=1, keepdims=True), self._count(over) / 2))
        return np.asarray(getattr(x, kind)(axis=1, keepdims=True))

    def iota(self, axis: object, extent: int, offset: int = 0) -> Floats:
        return np.array([[float(offset), float(offset + extent - 1)]])
