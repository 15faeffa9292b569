"""Shares of points at which programs that differ pass the proof's test over small primes, beside what its theorem
allows.

The proof draws primes near 2**31, where an error is never seen. Over small ones errors are frequent enough to be counted:

    python samples/experiment.py            # the table of docs/reference/measurements.md
    python samples/experiment.py --draws 10000
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirage_cli.lax import extents as ex
from mirage_cli.lax.bounds.bound import Arguments, Bound, Degrees, PrimeRange, difference, program_figures
from mirage_cli.lax.bounds.exponentials import Exponentials, HomomorphicBound, gap
from mirage_cli.lax.bounds.homomorphic import Homomorphic, pair_of
from mirage_cli.lax.domains.domain import Array
from mirage_cli.lax.domains.field import Residues, ZeroDenominator, is_prime
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.fragments.instantiate import instantiate
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.search.mugraph.evaluate import evaluate_kernels
from mirage_cli.search.mugraph.mugraph import (
    BODY,
    EPILOGUE,
    BlockGraph,
    BlockOp,
    CustomKernel,
    KernelGraph,
    ThreadGraph,
    ThreadNode,
)
from mirage_cli.search.proof import degrees
from mirage_cli.search.proof.verify import HOMOMORPHIC, UNINTERPRETED

DRAWS = 2_000  #: of primes, functions and points, for each row of the table
WIDTH = 50  #: entries of an elementwise program, each with variables of its own: so many points in a draw

Build = Callable[..., int]  #: records a value of the inputs x, y and z


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: `accepted` of `points` although both sides differ, and at most which share the theorem
    allows."""

    name: str
    mode: str
    primes: tuple[int, ...]
    fields: int  #: or rounds, in homomorphic mode
    points: int
    accepted: int
    bound: float

    @property
    def observed(self) -> float:
        """The share of points at which the test was wrong."""
        return self.accepted / self.points if self.points else 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sides that differ: a program, and another one or a muGraph with its tiles. `width` of their entries are
    compared one by one."""

    name: str
    left: Program
    right: Program | KernelGraph
    tiles: tuple[dict[str, int], ...] = ()
    width: int = 1

    def values(self, domain_of: Callable[..., Residues]) -> tuple[Array, Array]:
        """The output of both sides at a random point."""
        of_sides = (domain_of([a.name for a in p.axes], stream=f"side {k}") for k, p in enumerate(self.programs))
        domains = dict(zip("lr", of_sides, strict=True))
        left = evaluate_program(self.left, domains["l"], _sources(self.left, domains["l"]))
        if isinstance(self.right, Program):
            return left[0], evaluate_program(self.right, domains["r"], _sources(self.right, domains["r"]))[0]
        arrays = _sources(self.left, domains["r"])
        return left[0], evaluate_kernels(self.right, list(self.tiles), lambda _: domains["r"], arrays)[0]

    @property
    def programs(self) -> tuple[Program, Program]:
        """The programs of both sides, whose axes their domains have."""
        return self.left, self.right if isinstance(self.right, Program) else self.right.kernels[0].program

    def bound(self, primes: Sequence[int], fields: int) -> float:
        """The bound of the theorem of the uninterpreted mode for one attempt."""
        if isinstance(self.right, KernelGraph):
            worst, arguments = degrees.figures(self.left, self.right, self.tiles, {})
        else:
            arguments = Arguments()
            left, right = (
                program_figures(p, {}, lambda extents: Degrees(extents, arguments))[0] for p in (self.left, self.right)
            )
            worst = difference(left, right)
        figures = Bound(
            worst.degree, worst.bits, arguments.degree, arguments.bits, worst.applications, fields, 1, _range(primes)
        )
        return float(2.0**figures.log2)

    def homomorphic_bound(self, primes: Sequence[int], rounds: int) -> HomomorphicBound:
        """The same of the homomorphic mode, for so many rounds without a division by zero."""
        arguments = Arguments()
        left, right = (
            program_figures(p, {}, lambda extents: Exponentials(extents, arguments))[0] for p in self.programs
        )
        return HomomorphicBound(gap(left, right), arguments.degree, arguments.bits, rounds, 0, _range(primes))


def _range(primes: Sequence[int]) -> PrimeRange:
    return PrimeRange(min(primes), len(primes))


def _sources(p: Program, domain: Residues) -> dict[int, Array]:
    return {k: domain.random(s.name, [ex.value(e, {}) for e in s.dims]) for k, s in enumerate(p.sources)}


# --- counting -----------------------------------------------------------------------------------------------------------
def uninterpreted(pair: Pair, primes: Sequence[int], fields: int, draws: int) -> Row:
    """Compare in so many fields, each with a prime of its own, drawn from `primes`."""

    def draw(rng: np.random.Generator) -> Callable[..., Residues]:
        drawn = tuple(int(p) for p in rng.choice(primes, fields))
        return functools.partial(Residues, seed=int(rng.integers(1 << 62)), primes=drawn)

    accepted, count = _count(pair, draw, 1, draws, slice(None))
    return Row(pair.name, UNINTERPRETED, tuple(primes), fields, count, accepted, pair.bound(primes, fields))


def homomorphic(pair: Pair, primes: Sequence[int], rounds: int, draws: int) -> Row:
    """Compare in so many rounds, each with a prime q of its own, drawn from `primes`."""

    def draw(rng: np.random.Generator) -> Callable[..., Residues]:
        drawn = pair_of(int(rng.choice(primes)), rng)
        return functools.partial(Homomorphic, seed=int(rng.integers(1 << 62)), pair=drawn)

    accepted, count = _count(pair, draw, rounds, draws, slice(1))
    bound = 2.0 ** pair.homomorphic_bound(primes, rounds).log2
    return Row(pair.name, HOMOMORPHIC, tuple(primes), rounds, count, accepted, bound)


def _count(
    pair: Pair, draw: Callable[[np.random.Generator], Callable[..., Residues]], rounds: int, draws: int, rows: slice
) -> tuple[int, int]:
    """At how many points the sides agreed in all rounds, and at how many they were compared. A division by zero is no
    agreement."""
    rng = np.random.default_rng(1)
    accepted = 0
    for _ in range(draws):
        agree: Any = np.ones(pair.width, dtype=bool)
        for _ in range(rounds):
            try:
                left, right = pair.values(draw(rng))
            except ZeroDenominator:
                agree = np.zeros(1, dtype=bool)
                break
            agree = agree & (left[rows] == right[rows]).all(axis=0).reshape(pair.width, -1).all(axis=1)
        accepted += int(agree.sum())
    return accepted, draws * pair.width


# --- pairs --------------------------------------------------------------------------------------------------------------
def _program(build: Build, width: int) -> Program:
    """The program of a value of x, y and z, of `width` entries each, as it is recorded."""
    g = Graph()
    inputs = [g.input(n, (width,), F32) for n in "xyz"]
    out = build(g, *inputs)
    return instantiate(g, [out], inputs, {v: f"t{v}" for v in [*inputs, out]})


def _elementwise(name: str, left: Build, right: Build, width: int = WIDTH) -> Pair:
    return Pair(name, _program(left, width), _program(right, width), width=width)


def _product_of_differences(g: Graph, x: int, y: int, z: int) -> int:
    parts = [g.map("sub", a, b) for a, b in ((x, y), (y, z), (x, z))]
    return functools.reduce(lambda a, b: g.map("mul", a, b), parts)


def _collisions(g: Graph, *inputs: int) -> int:
    return _product_of_differences(g, *(g.map("tanh", x) for x in inputs))


def _zero(g: Graph, x: int, *_: int) -> int:
    return g.map("mul", x, g.fill(0, F32))


def _exp(g: Graph, x: int) -> int:
    return g.map("exp", x)


def pairs() -> dict[str, Pair]:
    """Pairs for the uninterpreted mode: polynomials, constants, quotients, functions, and wrong muGraphs."""
    listed = [
        _elementwise("x y for x z", lambda g, x, y, z: g.map("mul", x, y), lambda g, x, y, z: g.map("mul", x, z)),
        _elementwise("0 for (x - y) (y - z) (x - z)", _product_of_differences, _zero),
        _elementwise("0 for 77 x", lambda g, x, y, z: g.map("mul", x, g.fill(77, F32)), _zero),
        _elementwise(
            "x / y for x / z", lambda g, x, y, z: g.map("div", x, y), lambda g, x, y, z: g.map("div", x, z), 1
        ),
        _elementwise("tanh x for tanh y", lambda g, x, y, z: g.map("tanh", x), lambda g, x, y, z: g.map("tanh", y)),
        _elementwise("0 for the same of tanh x, tanh y, tanh z", _collisions, _zero),
        *_wrong_graphs(),
    ]
    return {p.name: p for p in listed}


def homomorphic_pairs() -> dict[str, Pair]:
    """Pairs for the homomorphic mode."""

    def both(op: str) -> Build:
        return lambda g, x, y, z: g.map(op, _exp(g, x), _exp(g, y))

    def times(g: Graph, x: int, y: int) -> int:
        return g.map("mul", x, _exp(g, y))

    def of_tanh(g: Graph, x: int) -> int:
        return _exp(g, g.map("tanh", x))

    listed = [
        _elementwise("exp(x) exp(y) for exp(x - y)", both("mul"), lambda g, x, y, z: _exp(g, g.map("sub", x, y))),
        _elementwise("x exp(y) for z exp(y)", lambda g, x, y, z: times(g, x, y), lambda g, x, y, z: times(g, z, y)),
        _elementwise(
            "exp(x) + exp(y) for exp(x + y) + 1",
            both("add"),
            lambda g, x, y, z: g.map("add", _exp(g, g.map("add", x, y)), g.fill(1, F32)),
        ),
        _elementwise("silu(x) for x exp(x)", lambda g, x, y, z: g.map("silu", x), lambda g, x, y, z: times(g, x, x), 1),
        _elementwise("exp(tanh x) for exp(tanh y)", lambda g, x, y, z: of_tanh(g, x), lambda g, x, y, z: of_tanh(g, y)),
    ]
    return {p.name: p for p in listed}


def _wrong_graphs() -> Iterator[Pair]:
    """muGraphs with one thing forgotten; the loop walks three positions in two iterations."""

    def norm(g: Graph, x: int, y: int) -> int:
        total = g.reduce("sum", g.map("mul", x, y), [0])
        mean = g.map("mul", g.reduce("sum", g.map("mul", x, x), [0]), g.fill(Fraction(1, 3), F32))
        return g.map("div", total, g.map("sqrt", g.map("add", mean, g.fill(Fraction(1, 2), F32))))

    def attention(g: Graph, x: int, y: int) -> int:
        return g.reduce("sum", g.map("mul", compose.softmax(g, x, [0]), y), [0])

    third, root = ThreadNode("const", (), Fraction(1, 3)), ThreadNode("sqrt", (3,))
    forgetful = ThreadGraph(2, (third, ThreadNode("mul", (1, 2)), root, ThreadNode("div", (0, 4))))  # no epsilon
    yield _looped(
        "norm + linear without the epsilon",
        norm,
        _thread("xy", "mul", "x", "y"),
        _thread("xx", "mul", "x", "x"),
        *_accumulated("xy", "xx"),
        BlockOp("out", "thread", ("xy_total", "xx_total"), EPILOGUE, thread=forgetful),
    )
    yield _looped(
        "softmax with a value without rescaling",
        attention,
        BlockOp("top", "top", ("x",), BODY, ("axis",)),
        BlockOp("most", "running", ("top",), BODY),
        _thread("e", "exp_minus", "x", "most"),
        _thread("ey", "mul", "e", "y"),
        *_accumulated("e", "ey"),
        replace(_thread("out", "div", "ey_total", "e_total"), phase=EPILOGUE),
    )


def _thread(name: str, op: str, *inputs: str) -> BlockOp:
    return BlockOp(name, "thread", inputs, BODY, thread=ThreadGraph(2, (ThreadNode(op, (0, 1)),)))


def _accumulated(*values: str) -> Iterator[BlockOp]:
    for v in values:
        yield BlockOp(f"{v}_sum", "sum", (v,), BODY, ("axis",))
        yield BlockOp(f"{v}_total", "accum", (f"{v}_sum",), EPILOGUE)


def _looped(name: str, build: Build, *ops: BlockOp) -> Pair:
    """A program of two inputs along one axis, and the muGraph of operators whose loop walks that axis."""
    g = Graph()
    inputs = [g.input(n, (3,), F32) for n in "xy"]
    out = build(g, *inputs)
    p = instantiate(g, [out], inputs, {v: f"t{v}" for v in [*inputs, out]})
    (axis,) = p.axes
    loads = [BlockOp("xy"[i.source], "load", (), BODY, source_value=i.name) for i in p.inputs]
    walked = [replace(o, over=(axis.name,)) if o.over else o for o in ops]
    block = BlockGraph((), (), axis.name, (*loads, *walked), ("out",))
    graph = KernelGraph(2, 1, 3, (CustomKernel(p, block, (0, 1), (2,)),)).validate()
    return Pair(name, p, graph, ({"loop": 2},))


# --- the table ----------------------------------------------------------------------------------------------------------
SMALL, LARGE = (7, 11, 13), (89, 97, 101)
MANY = tuple(p for p in range(1009, 2003) if is_prime(p))  #: where the bound of a whole muGraph is below 1
SMALL_PAIRS, LARGE_PAIRS = (23, 29, 41), (83, 89, 113)  #: primes q for which 2 q + 1 is prime


def rows(draws: int = DRAWS) -> Iterator[Row]:
    """The rows of the table, in its order."""
    for pair in pairs().values():
        if isinstance(pair.right, KernelGraph):
            yield uninterpreted(pair, MANY, 1, draws)
        else:
            yield uninterpreted(pair, SMALL, 2, draws)
            yield uninterpreted(pair, LARGE, 1, draws)
    for pair in homomorphic_pairs().values():
        yield homomorphic(pair, SMALL_PAIRS, 1, draws)
        yield homomorphic(pair, LARGE_PAIRS, 1, draws)


HEAD = "| accepted | primes | fields | points | wrong | observed | at most |\n|---|---|---|---|---|---|---|"


def line(row: Row) -> str:
    """A row as a line of Markdown."""
    primes = ", ".join(map(str, row.primes)) if len(row.primes) < 10 else f"{row.primes[0]} to {row.primes[-1]}"
    primes = primes if row.mode == UNINTERPRETED else f"q = {primes}"
    cells = [row.name, primes, str(row.fields), str(row.points), str(row.accepted)]
    return "| " + " | ".join([*cells, f"{row.observed:.4f}", f"{row.bound:.4f}"]) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=DRAWS, help="draws of primes, functions and points for each row")
    print(HEAD)
    for row in rows(parser.parse_args().draws):
        print(line(row), flush=True)


if __name__ == "__main__":
    main()
