"""The stand-in on which a closure computes: coordinates of axes, arrays of a form's terms on them.

Every reduced axis has three coordinates (grid, loop, tile), two positions each where the mapping splits it so and one
otherwise; every other axis has two positions. Extents do not matter: what holds here holds for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from mirage_cli.errors import Refused
from mirage_cli.lax.domains.expr import Factor
from mirage_cli.lax.domains.field import PRIMES, Residue, Residues
from mirage_cli.lax.ir.evaluate import fit
from mirage_cli.lax.ops import QUOTIENTS
from mirage_cli.search.closure.form import Extreme, Fn, Form, Leaf, Open, Plus, Reduction, StableExp, Term
from mirage_cli.search.closure.mapping import Mapping
from mirage_cli.search.mugraph.evaluate import run_thread
from mirage_cli.search.mugraph.mugraph import ThreadGraph

P = PRIMES[0]
BEFORE, BODY, AFTER, GRID = range(4)
KINDS = ("g", "l", "t")  #: the coordinates of a reduced axis: block of a split, iteration, position in a tile


class Space:
    """Coordinates: for each reduced axis three array dimensions, for each other axis one."""

    def __init__(self, form: Form, mapping: Mapping) -> None:
        self.mapping = mapping
        self.reduced = set(form.reduced)
        self.place: dict[str, int] = {}
        self.shape: list[int] = []
        for a in form.program.axes:
            self.place[a.name] = len(self.shape)
            if a.name in self.reduced:
                self.shape += [2 if a.name == mapping.split else 1, 2 if a.name == mapping.loop else 1, 2]
            else:
                self.shape.append(2)

    def dim(self, axis: str, kind: str) -> int:
        """The array dimension of a coordinate."""
        return self.place[axis] + (KINDS.index(kind) if axis in self.reduced else 0)

    def dims(self, axis: str) -> list[int]:
        """All array dimensions of an axis."""
        return [self.dim(axis, k) for k in (KINDS if axis in self.reduced else ("t",))]

    def own_shape(self, axes: Iterable[str]) -> list[int]:
        """The array shape of a value with these axes."""
        shape = [1] * len(self.shape)
        for a in axes:
            for d in self.dims(a):
                shape[d] = self.shape[d]
        return shape

    def tile_factors(self, group: Iterable[str], phase: int) -> tuple[Factor, ...]:
        """The factors that a reduction of tiles over `group` sums: all but the block's part of a split axis and, in
        the body, the iteration's part of the loop axis."""
        return tuple((a, k) for a in sorted(group) for k in KINDS if self._in_tile(a, k, phase))

    def _in_tile(self, axis: str, kind: str, phase: int) -> bool:
        if kind == "g":
            return axis != self.mapping.split
        return kind == "t" or axis != self.mapping.loop or phase != BODY

    def extreme_phase(self, over: Sequence[str], phase: int) -> int | None:
        """The phase in which a block sees the greatest element over axes, of a value of a phase: all elements have to be its
        own, and those of an axis that the loop walks are seen one iteration after the other."""
        if self.mapping.split in over or (self.mapping.loop in over and phase != BODY):
            return None
        return AFTER if self.mapping.loop in over else phase

    def sum(self, array: Residue, group: Iterable[str], phase: int) -> Residue:
        """The sum of an array over the tile's part of axes; one that lacks them counts every position."""
        return self._sum(array, [self.dim(a, k) for a in group for k in KINDS if self._in_tile(a, k, phase)])

    def whole_sum(self, array: Residue, over: Iterable[str]) -> Residue:
        """The sum of an array over all positions of axes."""
        return self._sum(array, [d for a in over for d in self.dims(a)])

    def _sum(self, array: Residue, dims: list[int]) -> Residue:
        for d in dims:
            if array.shape[d] != self.shape[d]:
                array = array * self.shape[d]
        total: Residue = array.sum(axis=tuple(dims), keepdims=True)
        return total % P

    def total(self, array: Residue, axis: str, kind: str) -> Residue:
        """The sum of an array along one coordinate."""
        total: Residue = array.sum(axis=self.dim(axis, kind), keepdims=True)
        return total % P

    def depends(self, array: Residue, axis: str, kind: str) -> bool:
        """True if an array varies along a coordinate."""
        return bool(array.shape[self.dim(axis, kind)] > 1)


class Arrays:
    """The arrays of a form's terms on a space, by direct evaluation in a prime field."""

    def __init__(self, form: Form, space: Space) -> None:
        self.space = space
        self.domain = Residues((), 20250707, PRIMES[:1])
        self.factor = {op: int(self.domain.random(f"quotient {op}", (), nonzero=True)[0]) for op in QUOTIENTS} | {
            "div": 1
        }
        self.arrays: list[Residue] = []
        for number, t in enumerate(form.terms):
            self.arrays.append(self._term(number, t))

    def _term(self, number: int, term: Term) -> Residue:
        args = [] if isinstance(term, Leaf | Reduction) else [self.arrays[a] for a in term.args]
        match term:
            case Leaf():
                drawn: Residue = self.domain.random(f"leaf {number}", self.space.own_shape(term.axes))[0]
                return drawn
            case Fn():
                return self.function(term.thread, args)
            case StableExp():
                return self.exponential(args[0])
            case Extreme():
                return self.extreme(term.kind, term.over, args[0])
            case Plus():
                total = args[0]
                for a in args[1:]:
                    total = (total + a) % P
                return total
            case Open("mul"):
                return args[0] * args[1] % P
            case Open("add"):
                return (args[0] + args[1]) % P
            case Open():
                return self.quotient(term.op, args[0], self.inverse(args[1]))
            case Reduction():
                return self._reduction(term)

    def function(self, thread: ThreadGraph, args: list[Residue]) -> Residue:
        """A thread graph of arrays."""
        result: Residue = fit(run_thread(thread, self.domain, [a[None] for a in args]), len(self.space.shape), 1)[0]
        return result

    def exponential(self, array: Residue) -> Residue:
        """exp of an array."""
        result: Residue = self.domain.exp(array[None])[0]
        return result

    def extreme(self, kind: str, over: Iterable[str], array: Residue) -> Residue:
        """The greatest or least element of an array along whole axes."""
        dims = [d - len(self.space.shape) for a in over for d in self.space.dims(a)]
        found: Residue = self.domain.extreme(kind, array[None], dims)[0]
        return found

    def inverse(self, array: Residue) -> Residue:
        """1 / array. Raises ZeroDenominator."""
        result: Residue = self.domain.inverse(array[None])[0]
        return result

    def quotient(self, op: str, array: Residue, inverse: Residue) -> Residue:
        """A quotient from the denominator's inverse; one of another operator is another function."""
        product: Residue = array * inverse % P * self.factor[op] % P
        return product

    def _reduction(self, term: Reduction) -> Residue:
        if not term.num:
            raise Refused("a reduction of a quotient without a numerator")
        array: Residue = np.ones([1] * len(self.space.shape), dtype=np.int64)
        for a in term.num:
            array = array * self.arrays[a] % P
        for a, op in term.den:
            array = self.quotient(op, array, self.inverse(self.arrays[a]))
        return self.space.whole_sum(array, term.over)
