"""Depth-first enumeration of everything: all small programs, and all block graphs without pruning by expressions.

Written against the definition of block graphs alone: loads, products, sums, quotients, exponentials, sums and contractions
of tiles, accumulators, sums over blocks, phases. Nothing of the search is used but the field. A graph is a sequence of steps
in a canonical order (each step reads the one before it or has a larger key), so each is met once; steps that nothing reads
any more, and steps whose value is there already, are left out. Graphs are indexed by the array that they compute, at one
random point of a field on a stand-in with two positions for each coordinate, so that one enumeration serves all programs
that read tensors of the same axes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax.domains.field import PRIMES, Residues

P = PRIMES[0]
BEFORE, BODY, AFTER, GRID = range(4)
Axes = frozenset[str]
Inputs = tuple[Axes, ...]  #: the axes of each tensor that is read
Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Step:
    """`op` on values `args` (tensors first, then steps): load (in phase `phase`), mul, add, div, exp, sum, contract, accum or
    grid_sum."""

    op: str
    args: tuple[int, ...]
    over: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """A value: where it lives, its axes, its array."""

    phase: int
    axes: Axes
    array: Array

    @property
    def key(self) -> tuple[int, Axes, bytes]:
        return self.phase, self.axes, self.array.tobytes()


SHARDED = 2  #: step at which the enumeration is divided into shards
Graph = tuple[Step, ...]  #: loads of all tensors come first


@dataclass(frozen=True, slots=True)
class World:
    """Which axis the loop walks and which the grid splits, and the axes that may be summed."""

    axes: tuple[str, ...]
    reduced: tuple[str, ...]
    loop: str = ""
    split: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Three coordinates for each reduced axis (block, iteration, position), one for each other."""
        parts = (
            (2 if a == self.split else 1, 2 if a == self.loop else 1, 2) if a in self.reduced else (2,)
            for a in self.axes
        )
        return tuple(itertools.chain(*parts))

    def dims(self, axis: str) -> tuple[int, ...]:
        """The array dimensions of an axis."""
        return _dims(self.axes, self.reduced, axis)

    def own(self, axes: Axes) -> tuple[int, ...]:
        """The shape of a value with these axes."""
        kept = {d for a in axes for d in self.dims(a)}
        return tuple(n if d in kept else 1 for d, n in enumerate(self.shape))

    def tile(self, axis: str, phase: int) -> tuple[int, ...]:
        """The dimensions along which a tile in this phase lies within one block and iteration."""
        g, loop, t = self.dims(axis)
        return (
            *(() if axis == self.split else (g,)),
            *(() if axis == self.loop and phase == BODY else (loop,)),
            t,
        )


@functools.cache
def _dims(axes: tuple[str, ...], reduced: tuple[str, ...], axis: str) -> tuple[int, ...]:
    at = sum(3 if a in reduced else 1 for a in axes[: axes.index(axis)])
    return (at, at + 1, at + 2) if axis in reduced else (at,)


class Enumerator:
    """All graphs of up to `most` steps over tensors with given axes."""

    def __init__(self, world: World, inputs: Inputs, most: int, shard: tuple[int, int] = (0, 1)) -> None:
        self.world, self.most, self.shard = world, most, shard
        self.domain = Residues((), 99, PRIMES[:1])
        self._branch = itertools.count()
        self.base: list[Made] = []
        self.loads: list[Step] = []
        for k, axes in enumerate(inputs):
            array = self.domain.random(f"tensor {k}", world.own(axes))[0]
            for phase in (BEFORE, BODY) if world.loop in axes else (BEFORE,):
                self.base.append(Made(phase, axes, array))
                self.loads.append(Step("load", (k, phase)))

    def graphs(self) -> Iterator[tuple[Graph, Made]]:
        """Every graph with its result (of a shard: those whose first two steps fall to it)."""
        yield from self._extend([*self.base], [], frozenset())

    def _extend(self, values: list[Made], steps: list[Step], idle: frozenset[int]) -> Iterator[tuple[Graph, Made]]:
        known = {v.key for v in values}
        left = self.most - len(steps) - 1
        for step in self.steps(values, len(steps)):
            number = len(values)
            if steps and number - 1 not in step.args and _order(step) <= _order(steps[-1]):
                continue
            now = (idle - set(step.args)) | {number}
            if len(now) - 1 > left:
                continue
            made = self.apply(step, values)
            if made is None or made.key in known:
                continue
            if len(steps) == SHARDED - 1 and (next(self._branch) - self.shard[0]) % self.shard[1]:
                continue
            values.append(made)
            steps.append(step)
            if len(now) == 1:
                yield (*self.loads, *steps), made
            if left:
                yield from self._extend(values, steps, now)
            steps.pop()
            values.pop()

    def steps(self, values: list[Made], done: int) -> Iterator[Step]:
        """Every step on the values so far."""
        n = len(values)
        for a in range(n):
            yield Step("exp", (a,))
            for axis in values[a].axes & set(self.world.reduced):
                yield Step("sum", (a,), axis)
            if self.world.loop and values[a].phase == BODY:
                yield Step("accum", (a,))
            if self.world.split and values[a].phase in (BEFORE, AFTER):
                yield Step("grid_sum", (a,))
        for a, b in itertools.combinations_with_replacement(range(n), 2):
            if a != b:
                yield Step("add", (a, b))
                yield Step("div", (b, a))
            yield Step("mul", (a, b))
            yield Step("div", (a, b))
            for axis in values[a].axes & values[b].axes & set(self.world.reduced):
                if values[a].axes != values[b].axes:
                    yield Step("contract", (a, b), axis)

    def apply(self, step: Step, values: list[Made]) -> Made | None:
        """The value of a step; None where it is not allowed."""
        args = [values[a] for a in step.args]
        w = self.world
        if step.op in ("accum", "grid_sum"):
            return self._carried(step.op, args[0])
        phases = {v.phase for v in args}
        if BODY in phases and phases & {AFTER, GRID}:
            return None
        if GRID in phases and any(v.phase != GRID and v.array.shape[w.dims(w.split)[0]] > 1 for v in args):
            return None
        phase, axes = max(phases), frozenset[str]().union(*(v.axes for v in args))
        x: Array = args[0].array
        match step.op:
            case "exp":
                return Made(phase, axes, self.domain.exp(x[None])[0])
            case "mul":
                return Made(phase, axes, x * args[1].array % P)
            case "add":
                return Made(phase, axes, (x + args[1].array) % P)
            case "div":
                return Made(phase, axes, x * self.domain.inverse(args[1].array[None])[0] % P)
            case "sum":
                return Made(phase, axes - {step.over}, _sum(x, w.tile(step.over, phase)))
        product = x * args[1].array % P
        return Made(phase, axes - {step.over}, _sum(product, w.tile(step.over, phase)))

    def _carried(self, op: str, v: Made) -> Made | None:
        """A sum over iterations or over blocks."""
        w = self.world
        axis, d, phase = (w.loop, w.dims(w.loop)[1], AFTER) if op == "accum" else (w.split, w.dims(w.split)[0], GRID)
        if op == "grid_sum" and v.phase == BEFORE and w.loop:
            return None
        if axis in v.axes or v.array.shape[d] == 1:
            return None
        return Made(phase, v.axes, _sum(v.array, (d,)))


def _order(s: Step) -> tuple[tuple[int, ...], str, str]:
    return s.args, s.op, s.over


def _sum(a: Array, dims: tuple[int, ...]) -> Array:
    total: Array = a.sum(axis=dims, keepdims=True)
    return total % P
