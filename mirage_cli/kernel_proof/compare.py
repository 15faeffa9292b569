"""A rendered source against the program that it is for, over residues or float64: whole outputs, or those of chosen blocks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from mirage_cli.kernel_interpreter.memory import Fault, Global
from mirage_cli.kernel_interpreter.numbers import Arithmetic, Array, greatest
from mirage_cli.kernel_language.printer import text as printed
from mirage_cli.kernel_proof.run import Choice, Run, Source, all_blocks
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Axes, Float64
from mirage_cli.lax.domains.field import PRIMES, Residue, Residues
from mirage_cli.lax.ir.parts import apart, in_parts
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.search.mugraph.hidden import compared_integers
from mirage_cli.search.mugraph.mugraph import KernelGraph

TOLERANCE = 1e-9  #: of float64, over the largest result
FIELDS = 2  #: prime fields in which kernels are run at once
NEAR = 1 << 24  #: numbers below this are positions, and compared
COMPARED: Mapping[str, Callable[[Array, Array], Array]] = {"lt": np.less, "le": np.less_equal, "eq": np.equal}


class Placed(Residues):
    """Residues in which positions are the numbers 0, 1, 2, ... that kernels compute with.

    In `masked` programs numbers below `NEAR` are compared as such, minus infinity swallows what is added to it, its
    exponential is 0, and so is 0 / 0 (any x / 0 is x times one number): kernels may leave out what a comparison hides.
    """

    def __init__(
        self, order: Sequence[Hashable], seed: int, primes: Sequence[int] = PRIMES[:FIELDS], masked: bool = False
    ) -> None:
        super().__init__(order, seed, primes)
        self.masked = masked

    def lowest(self, x: Residue) -> Array:
        """Which elements are minus infinity."""
        low: Array = (x == self.const(float("-inf")).reshape(-1, *(1,) * (x.ndim - 1))).all(axis=0)
        return low

    def add(self, x: Residue, y: Residue) -> Residue:
        """The sum; minus infinity where either is."""
        total = super().add(x, y)
        if not self.masked:
            return total
        low, none = self.lowest(x) | self.lowest(y), self.const(float("-inf"))
        return np.where(low, none.reshape(-1, *(1,) * (total.ndim - 1)), total) if low.any() else total

    def sub(self, x: Residue, y: Residue) -> Residue:
        """The difference; minus infinity where the first is."""
        left = super().sub(x, y)
        if not self.masked or not (low := self.lowest(x)).any():
            return left
        return np.where(low, self.const(float("-inf")).reshape(-1, *(1,) * (left.ndim - 1)), left)

    def select(self, condition: Residue, x: Residue, y: Residue) -> Residue:
        """`c (x - y) + y`, in which nothing is swallowed."""
        return super().add(self.mul(condition, super().sub(x, y)), y)

    def exp(self, x: Residue) -> Residue:
        """The exponential, 0 of minus infinity."""
        e = super().exp(x)
        return np.where(self.lowest(x), 0, e) if self.masked else e

    def inverse(self, y: Residue) -> Residue:
        """1 / y, of 0 one number. Raises ZeroDenominator where y is 0 in some fields only."""
        if not self.masked or not (zero := (y == 0).all(axis=0)).any():
            return super().inverse(y)
        beyond = self.random("1 / 0", (), nonzero=True).reshape(-1, *(1,) * (y.ndim - 1))
        return np.where(zero, beyond, super().inverse(np.where(zero, 1, y)))

    def iota(self, axis: Hashable, extent: int, offset: int = 0) -> Residue:
        """The positions themselves."""
        places = np.arange(offset, offset + extent, dtype=np.int64)
        return self.along(axis, np.broadcast_to(places, (len(self.primes), extent)).copy())

    def extreme(self, kind: str, x: Residue, over: Axes) -> Residue:
        """The element that comes last in an order that nothing is known of, which kernels take step by step
        (`Arithmetic.maximum`); the least is minus the greatest of the negative ones."""
        if kind == "min":
            return self.sub(self.const(0), self.extreme("max", self.sub(self.const(0), x), over))
        if kind != "max":
            return super().extreme(kind, x, over)
        dims = [d % x.ndim for d in self.dims(over)]
        rest = [d for d in range(x.ndim) if d not in dims]
        row = x.transpose([*rest, *dims]).reshape(*(x.shape[d] for d in rest), -1)
        found = greatest(row, self.const(float("-inf")), row.ndim - 1)
        return found.reshape([1 if d in dims else n for d, n in enumerate(x.shape)])

    def call(self, name: str, *args: Residue) -> Residue:
        """The larger of a number and 0 is what `relu` is printed as; truths of small numbers."""
        if name == "relu":
            return super().call("max", *args, self.const(0))
        found = super().call(name, *args)
        if not self.masked or name not in COMPARED:
            return found
        (x, small), (y, other) = (self.small(a) for a in args)
        return np.where(small & other, COMPARED[name](x, y), found)

    def small(self, x: Residue) -> tuple[Array, Array]:
        """Elements as whole numbers, and which of them are near 0."""
        p = self.modulus(x.ndim - 1)
        signed = np.where(x > p // 2, x - p, x)
        return signed[0], (signed == signed[:1]).all(axis=0) & (abs(signed[0]) < NEAR)


TURNS = 3  #: tasks of a stage that resident blocks take over residues; over float64 each takes one


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of running a source: nothing (`reason` is empty), or why it is not the program."""

    reason: str = ""
    compared: int = 0  #: elements of outputs
    blocks: int = 0  #: blocks that ran

    @property
    def passed(self) -> bool:
        """True if nothing was found."""
        return not self.reason


def numbers(program: Program, graph: KernelGraph) -> dict[float, Fraction]:
    """The exact numbers of a program and its muGraph by what their text reads as: their roundings to float32 and float64."""
    exact: dict[float, Fraction] = {}
    for value in _constants(program, graph):
        if isinstance(value, Fraction) and value:
            for x in (value, 1 / value):
                exact.setdefault(float(np.float32(abs(float(x)))), abs(x))
                exact.setdefault(abs(float(x)), abs(x))
    return {x: n for x, n in exact.items() if Fraction(x) != n and math.isfinite(x)}


def _constants(program: Program, graph: KernelGraph) -> Iterator[Fraction | float | None]:
    for p in (program, *(k.program for k in graph.kernels)):
        yield from (n.value for n in p.nodes)
    for kernel in graph.kernels:
        for o in kernel.block.ops:
            if o.thread is not None:
                yield from (n.value for n in o.thread.nodes)


@dataclass(frozen=True)
class Point:
    """Numbers for the inputs of a program, and what it makes of them: residues or float64."""

    program: Program
    symbols: Mapping[str, int]
    arithmetic: Callable[[], Arithmetic]
    arrays: Sequence[Array]  #: [fields, elements] of each source
    wanted: Sequence[Array]  #: [fields, elements] of each output, then of each source in parts

    def finding(self, source: Source, choose: Choice = all_blocks) -> Finding:
        """The outcome of running chosen blocks of a source here. Every element has to be written where all of them run."""
        p, run = self.program, self._run(source, choose)
        try:
            results = self._called(run)
        except Fault as e:
            return Finding(_told(e), 1)
        everything = all(len(choose(x.grid, x.cluster)) == x.grid for _, x in run.launched)
        compared = 0
        for k, (right, r) in enumerate(zip(self.wanted, results, strict=True)):
            assert r.written is not None
            if everything and not r.written.all():
                return Finding(f"element {int(np.argmin(r.written))} of output {k} is not written", compared + 1)
            same = _same(right, r.values, run.arithmetic.residues) | ~r.written
            if not same.all():
                dims = [*(o.dims for o in p.outputs), *(p.sources[n].dims for n in in_parts(p))][k]
                at = np.unravel_index(int(np.argmin(same)), [ex.value(e, self.symbols) for e in dims])
                return Finding(f"output {k} differs at {tuple(int(i) for i in at)}", compared + 1)
            compared += int(r.written.sum())
        return Finding("", compared, sum(len(choose(x.grid, x.cluster)) for _, x in run.launched))

    def results(self, source: Source, at_once: bool) -> list[Array]:
        """What all blocks of a source write, arbitrary where nobody does. Raises Fault."""
        run = self._run(source, all_blocks)
        run.at_once = at_once
        return [r.values for r in self._called(run)]

    def _run(self, source: Source, choose: Choice) -> Run:
        granule = min([2.0, *(s.dtype.size for s in self.program.sources)])
        arithmetic = self.arithmetic()
        p, watched = self.program, arithmetic.residues
        run = Run(source, arithmetic, choose, granule, p.constants, watched, early=p.early, rounds=p.rounds)
        run.tables = frozenset(k for k, s in enumerate(p.sources) if s.chosen)
        run.packed = {k: s.dtype.name for k, s in enumerate(p.sources) if s.dtype.per_byte > 1}
        run.turns = TURNS if watched else 1
        return run

    def _called(self, run: Run) -> list[Global]:
        sizes = [w.shape[1] for w in self.wanted]
        arrays = apart(self.program, self.arrays, self.symbols, lead=1)
        return run.call(arrays, sizes, [self.symbols[n] for n in self.program.symbols])


def point(
    program: Program,
    graph: KernelGraph,
    symbols: Mapping[str, int],
    seed: int,
    residues: bool,
    primes: Sequence[int] = PRIMES[:FIELDS],
    spread: float = 1.0,
) -> Point:
    """Random numbers for the inputs of a program. Raises ZeroDenominator."""
    order = [a.name for a in program.axes]
    masked = float("-inf") in _constants(program, graph)
    domain = Placed(order, seed, primes, masked) if residues else Float64(order)
    arrays = _inputs(program, symbols, domain, seed, spread)
    if masked and residues:
        arrays |= _lengths(program, graph, symbols, seed, len(primes))
    wanted = evaluate_program(program, domain, arrays, symbols)
    exact, fields = numbers(program, graph), len(primes) if residues else 1

    def arithmetic() -> Arithmetic:
        return Arithmetic(Placed((), seed, primes, masked) if residues else Float64(), exact)

    flat = [np.asarray(a).reshape(fields, -1).astype(np.int64 if residues else np.float64) for a in arrays.values()]
    results = [np.asarray(w).reshape(fields, -1) for w in wanted]
    return Point(program, symbols, arithmetic, flat, [*results, *(flat[k] for k in in_parts(program))])


def compare(
    text: str,
    program: Program,
    graph: KernelGraph,
    symbols: Mapping[str, int] | None = None,
    seed: int = 0,
    residues: bool = True,
    choose: Choice = all_blocks,
    primes: Sequence[int] = PRIMES[:FIELDS],
    spread: float = 1.0,
) -> Finding:
    """Run a source that was rendered for this program and muGraph, and compare what it writes with the program. Every
    element has to be written where all blocks run; of chosen blocks what they write is compared. Without `residues` this is
    done over float64, on numbers of the size `spread`; where the program has no finite result nothing is compared, and races
    for shared memory are not looked for, as they are the same."""
    at = point(program, graph, dict(symbols or {}), seed, residues, primes, spread)
    return first_passed(at, sources(text), choose)


def first_passed(at: Point, tried: Sequence[Source], choose: Choice = all_blocks) -> Finding:
    """The finding of the first of several ways to run a source that passes, or of the last one."""
    finding = Finding()
    for source in tried:
        finding = at.finding(source, choose)
        if finding.passed:
            break
    return finding


@functools.lru_cache(maxsize=4)
def sources(text: str) -> Sequence[Source]:
    """A source with loops side by side, where it has such, and one by one, as which it is judged if that fails."""
    beside, one = Source(text, beside=True), Source(text)
    return (beside,) if all(k.bounds for k in beside.kernels.values()) else (beside, one)


def _inputs(
    program: Program, symbols: Mapping[str, int], domain: Residues | Float64, seed: int, spread: float
) -> dict[int, Array]:
    rng = np.random.default_rng(seed)
    arrays: dict[int, Array] = {}
    for k, s in enumerate(program.sources):
        dims = [ex.value(e, symbols) for e in s.dims]
        if isinstance(domain, Residues):
            arrays[k] = domain.random(f"source {k}", dims)
        else:
            arrays[k] = (
                spread * rng.standard_normal(dims) if s.dtype.is_float else rng.integers(0, 2, dims).astype(float)
            )
    return arrays


def _lengths(
    program: Program, graph: KernelGraph, symbols: Mapping[str, int], seed: int, fields: int
) -> dict[int, Array]:
    """Integers that a mask compares with positions: the positions themselves along the longest axis, else some of them; and
    truth values that hide, which are one up to a place in each row and another behind it."""
    rng, extents = np.random.default_rng(seed), [ex.value(a.extent, symbols) for a in program.axes]
    found: dict[int, Array] = {}
    for kernel in graph.kernels:
        sources = {i.name: kernel.inputs[i.source] for i in kernel.program.inputs}
        for tensor in {sources[v] for v in compared_integers(kernel.program, kernel.block)}:
            if tensor < graph.sources:
                dims = [ex.value(e, symbols) for e in program.sources[tensor].dims]
                longest = bool(dims) and dims[-1] == max(extents)
                whole = np.broadcast_to(np.arange(dims[-1]), dims) if longest else rng.integers(0, max(extents), dims)
                if program.sources[tensor].dtype.kind == "bool":
                    first = rng.integers(0, 2, (*dims[:-1], 1))
                    whole = (np.arange(dims[-1]) < rng.integers(0, dims[-1] + 1, first.shape)) ^ first
                found[tensor] = np.broadcast_to(whole, (fields, *dims)).astype(np.int64)
    return found


def _same(right: Array, left: Array, residues: bool) -> Array:
    if residues:
        return np.asarray((right == left).all(axis=0))
    known = np.isfinite(right)
    scale = max(1.0, float(np.abs(right).max(where=known, initial=0.0)))
    close = np.isclose(right, left, rtol=0, atol=TOLERANCE * scale) | ~known
    return np.asarray(close.all(axis=0))


def _told(e: Fault) -> str:
    """A fault with the first line of its statement."""
    statement = printed(e.args[1]).strip().splitlines()[0] if len(e.args) > 1 else ""
    return f"{e.args[0]}, in `{statement}`" if statement else str(e.args[0])
