"""Bottom-up closure: every value that a block can compute under a mapping, as an AND/OR graph.

A value is an array over all (grid, loop, tile) coordinates of its axes, computed once in a prime field on a stand-in
(`space.py`). Two derivations in one phase with one array and one abstract expression are the same value and are kept as
alternatives. A new value survives only if its abstract expression is a subexpression of the fragment's (`pruning.py`), so
the set is finite; the fragment's output is reached when a value after the loop has its array.

Phases: 0 before the loop (the loop axis, if a value has it, is whole), 1 in the body, 2 after the loop, 3 after the
reduction over blocks.

Guarantee (docs/search.md): within the operators of the form (in one that is not open, elementwise regions are one function),
every block graph whose intermediate values are all abstract subexpressions of the fragment is represented, up to equal
values.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from mirage_cli.errors import Refused
from mirage_cli.lax.domains.expr import Expr
from mirage_cli.lax.domains.field import Residue
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.closure.form import Extreme, Fn, Form, Leaf, StableExp, search_form
from mirage_cli.search.closure.mapping import Mapping
from mirage_cli.search.closure.pruning import NOTHING, Axes, Kind, Pair, Pruning
from mirage_cli.search.closure.space import AFTER, BEFORE, BODY, GRID, Arrays, P, Space

MAX_VALUES = 5000  #: values of one closure: five times as many as those of the samples have
MAX_OPEN_VALUES = 500  #: values of the closure of an open form; with more the other form is searched


@dataclass(frozen=True, slots=True)
class Derivation:
    """One way to compute a value: `op` on values `args`."""

    op: str  #: load | fn | mul | one of QUOTIENTS | add | contract | sum | accum | grid_sum
    args: tuple[int, ...] = ()
    term: int = -1  #: the leaf or function of the form
    over: tuple[str, ...] = ()
    dtype: DType | None = None


@dataclass(slots=True)
class Value:
    """A value of the closure and its derivations; `operators` are the values (bits) that its first derivation takes,
    it among them, without reads."""

    number: int
    phase: int
    array: Residue
    live: Axes
    expr: Expr
    operators: int = 0
    ways: list[Derivation] = field(default_factory=list)
    inverse: Residue | None = None


class TooManyValues(Refused):
    """A closure that has become too large: how many `values` it had."""

    def __init__(self, message: str, values: int) -> None:
        super().__init__(message)
        self.values = values


class Closure:
    """The values computable under one mapping. `values` is in order of discovery; `outputs[k]` are the values that equal
    output k of the form.

    `pruning` is shared by the closures of one form. `max_ops` bounds the operators that a value takes in the derivation
    which is found first (0: no bound). At the moment `until` of the clock `time.monotonic` it is left as it is then.
    """

    def __init__(
        self,
        form: Form,
        mapping: Mapping,
        max_values: int = MAX_VALUES,
        pruning: Pruning | None = None,
        max_ops: int = 0,
        until: float = math.inf,
    ) -> None:
        self.form, self.mapping, self.max_values, self.max_ops, self.until = form, mapping, max_values, max_ops, until
        self.pruning = Pruning(form) if pruning is None else pruning
        self.expressions = self.pruning.expressions
        self.space = Space(form, mapping)
        self.target = Arrays(form, self.space)
        self.values: list[Value] = []
        self.outputs: list[list[int]] = []
        self._known: dict[tuple[int, Axes, bytes], list[int]] = {}
        self._arrays: dict[tuple[Axes, tuple[int, ...], bytes], Residue] = {}
        self._applied: dict[tuple[int, int, tuple[int, ...]], Value] = {}
        self._by_expr: dict[Expr, list[int]] = {}
        self._by_kind: dict[Kind, list[int]] = {}
        self._met: dict[Kind, dict[Kind, _Meeting]] = {}
        self._factors = [
            (group, dtype, tuple(self.space.tile_factors(group, phase) for phase in (BEFORE, BODY)))
            for group, dtype in self.pruning.groups
        ]
        self._order: dict[Kind, int] = {}
        self._users: dict[Expr, list[int]] = {}
        for number, t in enumerate(form.terms):
            if isinstance(t, Fn | StableExp | Extreme):
                for e in {self.pruning.exprs[a] for a in t.args}:
                    self._users.setdefault(e, []).append(number)

    # --- running --------------------------------------------------------------------------------------------------------
    def run(self) -> Closure:
        """Close under all operators. Raises Refused beyond `max_values`."""
        for number, term in enumerate(self.form.terms):
            if isinstance(term, Leaf):
                self._load(number, term)
            elif isinstance(term, Fn) and not term.args:
                way = Derivation("fn", (), number)
                self._put(way, BEFORE, self.target.arrays[number], term.axes, self.pruning.exprs[number])
        position = 0
        while position < len(self.values) and time.monotonic() < self.until:
            value = self.values[position]
            position += 1
            self._reduce(value)
            self._cross(value)
            for partner, meeting in self._partners((value.expr, value.live)).items():
                for number in self._by_kind[partner]:
                    if number < position:
                        self._combine(value, self.values[number], meeting)
            self._functions(value)
            if len(self.values) > self.max_values:
                raise TooManyValues(f"more than {self.max_values} values under {self.mapping}", len(self.values))
        self.outputs = [self._matches(term) for term in self.form.outputs]
        return self

    def _matches(self, term: int) -> list[int]:
        goal = self.target.arrays[term]
        finals = (BEFORE, GRID) if self.mapping.loop is None else (AFTER, GRID)
        return [
            v.number
            for v in self.values
            if v.phase in finals and v.array.shape == goal.shape and np.array_equal(v.array, goal)
        ]

    def _load(self, number: int, leaf: Leaf) -> None:
        array, expr = self.target.arrays[number], self.pruning.exprs[number]
        self._put(Derivation("load", (), number), BEFORE, array, leaf.axes, expr)
        if self.mapping.loop in leaf.axes:
            self._put(Derivation("load", (), number), BODY, array, leaf.axes, expr)

    def _put(self, way: Derivation, phase: int, array: Residue, live: Axes, expr: Expr) -> Value | None:
        """The value that a way leads to; nothing where it takes too many operators. Equal arrays are one object."""
        elements = array.tobytes()
        known = self._known.setdefault((phase, live, elements), [])
        for number in known:
            if self.values[number].expr == expr:
                ways = self.values[number].ways
                if way not in ways:
                    ways.append(way)
                return self.values[number]
        number, operators = len(self.values), 0
        for a in way.args:
            operators |= self.values[a].operators
        if way.args:
            operators |= 1 << number
        if self.max_ops and operators.bit_count() > self.max_ops:
            return None
        known.append(number)
        array = self._arrays.setdefault((live, array.shape, elements), array)
        self.values.append(Value(number, phase, array, live, expr, operators, [way]))
        self._by_expr.setdefault(expr, []).append(number)
        self._by_kind.setdefault((expr, live), []).append(number)
        return self.values[number]

    # --- one operand ----------------------------------------------------------------------------------------------------
    def _reduce(self, v: Value) -> None:
        for group, _, factors in self._factors:
            if group <= v.live:
                expr = self.pruning.sum(v.expr, factors[v.phase == BODY])
                if expr is not None:
                    way = Derivation("sum", (v.number,), over=tuple(sorted(group)))
                    self._put(way, v.phase, self.space.sum(v.array, group, v.phase), v.live - group, expr)

    def _cross(self, v: Value) -> None:
        """Into the next phases: accumulate over the loop, reduce over the blocks."""
        loop, split = self.mapping.loop, self.mapping.split
        if v.phase == BODY and loop is not None and loop not in v.live and self.space.depends(v.array, loop, "l"):
            self._total(v, "accum", loop, "l", AFTER)
        last = v.phase == AFTER or (v.phase == BEFORE and loop is None)
        if last and split is not None and split not in v.live and self.space.depends(v.array, split, "g"):
            self._total(v, "grid_sum", split, "g", GRID)

    def _total(self, v: Value, op: str, axis: str, kind: str, phase: int) -> None:
        expr = self.pruning.sum(v.expr, ((axis, kind),))
        if expr is not None:
            self._put(Derivation(op, (v.number,)), phase, self.space.total(v.array, axis, kind), v.live, expr)

    # --- two operands ---------------------------------------------------------------------------------------------------
    def _partners(self, x: Kind) -> dict[Kind, _Meeting]:
        """The kinds that make something with values of a kind, found out once."""
        if x not in self._met:
            self._met[x] = {}
            self._order[x] = len(self._order)
            present = (y for y in self.pruning.partners(x) if y in self._order)
            for y in sorted(present, key=self._order.__getitem__):
                meeting = self._meeting(x, y)
                if meeting is not None:
                    self._met[x][y] = meeting
                    if y != x:
                        self._met[y][x] = meeting.turned()
        return self._met[x]

    def _meeting(self, x: Kind, y: Kind) -> _Meeting | None:
        contracted = []
        for k in self.pruning.contracting(x[1], y[1]):
            for in_body, factors in enumerate(self._factors[k][2]):
                expr = self.pruning.contraction(x[0], y[0], factors)
                if expr is not None:
                    contracted.append((k, bool(in_body), expr))
        pair = self.pruning.pair(x, y)
        return None if pair is NOTHING and not contracted else _Meeting(pair, tuple(contracted))

    def _phase(self, u: Value, v: Value) -> int | None:
        """The phase in which two values can meet."""
        low, high = sorted((u.phase, v.phase))
        if low == BODY and high != BODY:
            return None
        if high == GRID and self.mapping.split is not None:
            for x in (u, v):
                if x.phase != GRID and self.space.depends(x.array, self.mapping.split, "g"):
                    return None
        return high

    def _combine(self, u: Value, v: Value, meeting: _Meeting) -> None:
        phase = self._phase(u, v)
        if phase is None:
            return
        for k, in_body, expr in meeting.contracted:
            if in_body == (phase == BODY):
                self._contract(u, v, k, phase, expr)
        pair, axes = meeting.pair, u.live | v.live
        args = (u.number, v.number) if u.number <= v.number else (v.number, u.number)
        if pair.product is not None:
            self._put(Derivation("mul", args), phase, u.array * v.array % P, axes, pair.product)
        if pair.total is not None:
            self._put(Derivation("add", args), phase, (u.array + v.array) % P, axes, pair.total)
        for a, b, quotients in ((u, v, pair.quotients), (v, u, pair.divided_by)):
            for op, expr in quotients:
                way = Derivation(op, (a.number, b.number))
                self._put(way, phase, self.target.quotient(op, a.array, self._inverse(b)), axes, expr)

    def _contract(self, u: Value, v: Value, k: int, phase: int, expr: Expr) -> None:
        group, dtype, _ = self._factors[k]
        array = self.space.sum(u.array * v.array % P, group, phase)
        way = Derivation("contract", tuple(sorted((u.number, v.number))), -1, tuple(sorted(group)), dtype)
        self._put(way, phase, array, (u.live | v.live) - group, expr)

    def _inverse(self, v: Value) -> Residue:
        if v.inverse is None:
            v.inverse = self.target.inverse(v.array)
        return v.inverse

    # --- elementwise functions --------------------------------------------------------------------------------------------
    def _functions(self, v: Value) -> None:
        """Apply each function of the form whose last missing argument may be `v`."""
        for number in self._users.get(v.expr, ()):
            t = self.form.terms[number]
            if isinstance(t, Extreme):
                self._extreme(number, t, v)
                continue
            assert isinstance(t, Fn | StableExp)
            for args in self._choices([self.pruning.exprs[a] for a in t.args], v):
                self._apply(number, t, args)

    def _choices(self, wanted: list[Expr], newest: Value) -> Iterable[list[Value]]:
        """Argument lists of known values with the wanted expressions, `newest` among them, in one common phase."""
        last = max(k for k, e in enumerate(wanted) if e == newest.expr)
        partial: list[tuple[list[Value], int, bool, bool]] = [([], 0, False, False)]
        for k, e in enumerate(wanted):
            known = [self.values[n] for n in self._by_expr.get(e, ()) if n <= newest.number]
            facts = [(x, 1 << x.phase, self._partial(x), x is newest) for x in known]
            partial = [
                ([*p, x], phases | own, incomplete or lacks, has or new)
                for p, phases, incomplete, has in partial
                for x, own, lacks, new in (facts if k != last or has else facts[-1:])
                if self._together(phases | own, incomplete or lacks)
            ]
        return [p for p, *_ in partial]

    def _partial(self, x: Value) -> bool:
        """True if a value lacks the contributions of other blocks."""
        split = self.mapping.split
        return split is not None and x.phase != GRID and self.space.depends(x.array, split, "g")

    def _together(self, phases: int, incomplete: bool) -> bool:
        """True if values of these phases (bits) can meet, some of them lacking contributions of other blocks or none."""
        if phases & 1 << BODY and phases & (1 << AFTER | 1 << GRID):
            return False
        return not (phases & 1 << GRID and incomplete)

    def _apply(self, number: int, t: Fn | StableExp, args: list[Value]) -> None:
        """A function of values; of equal arrays, in whatever phases, it is computed once."""
        phase, way = max(x.phase for x in args), Derivation("fn", tuple(x.number for x in args), number)
        key = (number, phase, tuple(id(x.array) for x in args))
        if key in self._applied:
            self._applied[key].ways.append(way)
            return
        axes = frozenset[str]().union(*(x.live for x in args))
        if not axes <= t.axes:
            return
        arrays = [x.array for x in args]
        array = self.target.function(t.thread, arrays) if isinstance(t, Fn) else self.target.exponential(arrays[0])
        value = self._put(way, phase, array, axes, self.pruning.exprs[number])
        if value is not None:
            self._applied[key] = value

    def _extreme(self, number: int, t: Extreme, v: Value) -> None:
        """The greatest or least element where a block sees all of them: behind the loop those of all iterations."""
        phase = self.space.extreme_phase(t.over, v.phase)
        if phase is None or self._partial(v) or not set(t.over) <= v.live:
            return
        array = self.target.extreme(t.kind, t.over, v.array)
        self._put(Derivation("fn", (v.number,), number), phase, array, v.live - set(t.over), self.pruning.exprs[number])

    # --- asking ---------------------------------------------------------------------------------------------------------
    def find(self, phase: int, live: Axes, array: Residue) -> Value | None:
        """The value of a phase that has these axes and this array (the first of several)."""
        return next(iter(self.all_of(phase, live, array)), None)

    def all_of(self, phase: int, live: Axes, array: Residue) -> list[Value]:
        """The values of a phase that have these axes and this array: several only where something cancels."""
        return [self.values[n] for n in self._known.get((phase, live, array.tobytes()), ())]

    def objection(self, expr: Expr, live: Axes) -> str:
        """Why a value with this abstract expression and these axes is not kept; nothing for one that is."""
        if not self.pruning.holds(expr):
            return f"its abstract expression {self.expressions.text(expr)} is no part of the fragment's"
        if not self.pruning.fits(live):
            return f"its axes {' '.join(sorted(live))} are more than those of any value of the fragment"
        return ""


def closure_of(program: Program, mapping: Mapping, until: float = math.inf) -> Closure:
    """The closure of a program under a mapping, as far as it is found `until` a moment: of its open form, where it has one
    that is small enough, else of the other, else of that with quantised operands whole. Raises Refused where all are too
    large, or for what no form can express."""
    form, pruning = _shared(program, None)
    if form.opened:
        with contextlib.suppress(Refused):
            return Closure(form, mapping, MAX_OPEN_VALUES, pruning, until=until).run()
        form, pruning = _shared(program, False)
    try:
        return Closure(form, mapping, MAX_VALUES, pruning, until=until).run()
    except TooManyValues:
        whole, pruning = _shared(program, False, True)
        if whole.terms == form.terms:
            raise
        return Closure(whole, mapping, MAX_VALUES, pruning, until=until).run()


@functools.lru_cache(maxsize=6)
def _shared(program: Program, opened: bool | None, whole: bool = False) -> tuple[Form, Pruning]:
    """A form of a program (see `search_form`) with what its mappings share."""
    form = search_form(program, opened, whole)
    return form, Pruning(form)


@dataclass(frozen=True, slots=True)
class _Meeting:
    """The results of two kinds under a mapping: elementwise results, and sums of products over groups of axes (number
    of the group, whether in the body)."""

    pair: Pair
    contracted: tuple[tuple[int, bool, Expr], ...]

    def turned(self) -> _Meeting:
        """The same for the kinds the other way round."""
        return _Meeting(self.pair.turned(), self.contracted)
