"""Inputs at which the original nodes of a fragment change what they do (`thresholds`), whatever lies in between.

One float input is made larger or smaller until the tensor at which a node turns is as large as it has to be: numbers of both
signs around the turn and far beyond it, numbers of one sign that stay beyond it (beside which nothing large hides what is
small), and numbers next to it. How a tensor follows an input is measured, in float64, on random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mirage_cli.checks import divergence
from mirage_cli.checks.reference import Nodes
from mirage_cli.errors import Refused
from mirage_cli.lax.ir.program import Program
from mirage_cli.numerics.edges import Edge, converted
from mirage_cli.numerics.thresholds import Turn, constants, turns

Array: TypeAlias = NDArray[Any]
TURNS, ONE_SIGN, NEXT_TO = "both sides of limits", "one sign", "next to limits"
KINDS = (TURNS, ONE_SIGN, NEXT_TO)
STEP = 16.0  #: what an input is multiplied with to see what follows it
FOLLOWS = 0.2  #: the power of the input that a tensor has to grow with
SOURCES = 4  #: inputs that are tried
BEYOND = 4.0  #: times a turn
SMALLEST, LARGEST = 2.0**-40, 2.0**60  #: what an input may be multiplied with
SIGNS = {"+": 1.0, "-": -1.0}


@dataclass(frozen=True, slots=True)
class Request:
    """Random numbers of a source times `factor`: of both signs (""), of one ("+", "-"; the sources `beside` it are positive
    then, so that products with them are of one sign too), or ("=") next to `factor`."""

    source: int
    signs: str
    factor: float
    beside: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """The name of the case."""
        return {"": TURNS, "=": NEXT_TO}.get(self.signs, ONE_SIGN)

    def changed(self, arrays: Sequence[Array], random: np.random.Generator) -> tuple[Array, ...]:
        """The changed inputs."""
        a = arrays[self.source]
        if self.signs == "":
            values = a.astype(np.float64) * self.factor
        elif self.signs == "=":
            near = random.choice([1.0, 1 - 2.0**-7, 1 + 2.0**-7, 1 - 2.0**-20, 1 + 2.0**-20, 0.9, 1.1], a.shape)
            values = random.choice([-1.0, 1.0], a.shape) * near * self.factor
        else:
            values = SIGNS[self.signs] * random.uniform(0.5, 1.5, a.shape) * self.factor
        inputs = [np.abs(b) if self.signs in SIGNS and k in self.beside else b for k, b in enumerate(arrays)]
        inputs[self.source] = converted(values, a.dtype)
        return tuple(inputs)


@dataclass(frozen=True, slots=True)
class Turning:
    """The requests of a check at the turns of a fragment's nodes; the same for all seeds."""

    requests: tuple[Request, ...]

    def edges(self, arrays: Sequence[Array], seed: int) -> Iterator[Edge]:
        """Random inputs changed in every way that is asked for."""
        random = np.random.default_rng([seed, len(self.requests)])
        for r in self.requests:
            yield Edge(r.kind, r.changed(arrays, random))


def turning(
    nodes: Nodes, program: Program, arrays: Sequence[Array], symbols: Mapping[str, int], count: int, dear: bool = False
) -> Turning:
    """The requests for `count` cases at the turns of a fragment's nodes. Fewer evaluations are made where one is
    `dear`."""
    sources = [
        k
        for k, s in enumerate(program.sources)
        if not s.constant and s.dtype.is_float and k < len(arrays) and arrays[k].size
    ][: 1 if dear else SOURCES]
    if not sources or count <= 0:
        return Turning(())
    beside = tuple(k for k, s in enumerate(program.sources) if s.dtype.is_float and not s.constant)
    fixed = constants(nodes.model, frozenset(nodes.names[k] for k, s in enumerate(program.sources) if s.constant))
    try:
        met, sizes = _turns(nodes, arrays, symbols, fixed)
        if not met:
            return Turning(())
        asked = _Measurements(nodes, arrays, symbols, sizes, beside, dear)
        plans = [list(asked.requests(t, sources)) for t in met]
    except Refused:
        return Turning(())
    picked: dict[tuple[int, str, int], Request] = {}
    for turn in zip_longest(*plans):
        for r in turn:
            if r is not None:
                picked.setdefault((r.source, r.signs, round(math.log2(r.factor))), r)
    return Turning(tuple(picked.values())[:count])


def _turns(
    nodes: Nodes, arrays: Sequence[Array], symbols: Mapping[str, int], fixed: frozenset[str]
) -> tuple[list[Turn], dict[str, float]]:
    """The turns of all nodes, and the sizes of their operands for these inputs."""
    known = {n: a for n, a in nodes.feeds(arrays, symbols).items() if n in fixed}
    sizes = {n: _size(a) for n, a in nodes.feeds(arrays, symbols).items() if n not in fixed}
    for _, results in nodes.trace(arrays, symbols):
        known |= {n: a for n, a in results.items() if n in fixed}
        sizes |= {n: _size(a) for n, a in results.items() if n not in fixed}
    met: dict[Turn, None] = {}
    for node in nodes.model.graph.node:
        met.update((t, None) for t in turns(node, known.get) if sizes.get(t.operand, 0.0) > 0)
    return list(met), sizes


def _size(a: Array) -> float:
    """The root mean square of the numbers of a tensor that are finite; 0 for one that holds none."""
    if a.dtype.kind != "f":
        return 0.0
    return divergence.rms(a[np.isfinite(a)]) if a.size else 0.0


@dataclass(slots=True)
class _Measurements:
    """Measurements of the nodes, each made once."""

    nodes: Nodes
    arrays: Sequence[Array]
    symbols: Mapping[str, int]
    sizes: Mapping[str, float]  #: of tensors for random inputs
    beside: tuple[int, ...]
    dear: bool
    known: dict[tuple[int, str, float], dict[str, float]] = field(default_factory=dict)

    def measured(self, source: int, signs: str, factor: float) -> Mapping[str, float]:
        """The sizes of tensors where one input is changed."""
        key = (source, signs, factor)
        if key not in self.known:
            inputs = Request(*key, self.beside).changed(self.arrays, np.random.default_rng(0))
            sizes = {n: _size(a) for n, a in self.nodes.feeds(inputs, self.symbols).items()}
            for _, results in self.nodes.trace(inputs, self.symbols):
                sizes |= {n: _size(a) for n, a in results.items()}
            self.known[key] = sizes
        return self.known[key]

    def power(self, operand: str, source: int) -> float:
        """The power of an input that a tensor grows with."""
        after = self.measured(source, "", STEP).get(operand, 0.0)
        return math.log(after / self.sizes[operand], STEP) if 0 < after < math.inf else 0.0

    def requests(self, turn: Turn, sources: Sequence[int]) -> Iterator[Request]:
        """The inputs that one turn calls for, what shows most first."""
        powers = {k: self.power(turn.operand, k) for k in sources}
        for k in sorted((k for k in sources if powers[k] > FOLLOWS), key=lambda k: -powers[k]):
            if turn.at == 0.0:
                yield from (Request(k, s, 1.0, self.beside) for s in SIGNS)
                continue
            for signs, beyond in _FORMS:
                if beyond == 1.0 and not turn.sharp:  # where a function overflows the order of a sum decides
                    continue
                if signs == "=" and abs(powers[k] - 1) > FOLLOWS:
                    continue
                size = self.sizes[turn.operand]
                if signs in SIGNS and not self.dear:
                    size = self.measured(k, signs, 1.0).get(turn.operand, 0.0) or size
                if signs == "=":
                    size /= _size(np.asarray(self.arrays[k], dtype=np.float64)) or 1.0
                factor = (beyond * turn.at / size) ** (1 / powers[k])
                if SMALLEST < factor < LARGEST:
                    yield Request(k, signs, factor, self.beside)


#: signs and how far beyond a turn, what shows most first
_FORMS = (("", BEYOND), ("-", BEYOND), ("+", BEYOND), ("=", 1.0), ("", 1.0), ("+", 1.0), ("-", 1.0), ("", 1 / BEYOND))
