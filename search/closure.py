"""Bottom-up closure: every value that a block can compute under a mapping, as an AND/OR graph.

A value is an array over all (grid, loop, tile) coordinates of its axes, computed once in a prime field on a stand-in in
which every axis has two coordinates of each kind that it is split into. Two derivations in one phase with one array are
the same value and are kept as alternatives. A new value survives only if its abstract expression is a subexpression of
the fragment's, so the set is finite; the fragment's output is reached when a value after the loop has its array.

Phases: 0 before the loop (the loop axis, if a value has it, is whole), 1 in the body, 2 after the loop, 3 after the
reduction over blocks.

Guarantee (docs/search.md): within the operators of the form (regions that are elementwise are one function), every block
graph whose intermediate values are all abstract subexpressions of the fragment is represented, up to equal values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.expr import Expr, Expressions, Factor
from mirage_cli.lax.field import PRIMES, Residue, Residues
from mirage_cli.lax.ops import lookup
from mirage_cli.search.form import Fn, Form, Leaf, Plus, Reduction, StableExp, Term
from mirage_cli.search.mapping import Mapping
from mirage_cli.search.mugraph import ThreadGraph

P = PRIMES[0]
BEFORE, BODY, AFTER, GRID = range(4)
MAX_VALUES = 20000


@dataclass(frozen=True, slots=True)
class Derivation:
    """One way to compute a value: `op` on values `args`."""

    op: str  #: load | fn | mul | div | div0 | add | contract | sum | accum | grid_sum
    args: tuple[int, ...] = ()
    term: int = -1  #: the leaf or function of the form
    over: tuple[str, ...] = ()
    dtype: DType | None = None


@dataclass(slots=True)
class Value:
    """A value of the closure and its derivations."""

    number: int
    phase: int
    array: Residue
    live: frozenset[str]
    expr: Expr
    ways: list[Derivation] = field(default_factory=list)
    inverse: Residue | None = None


@dataclass(frozen=True, slots=True)
class _Pair:
    """What is wanted of two kinds of values x and y: x y, x + y, sums of x y over groups of axes (number of the group, whether
    in the body), x / y and y / x (with their guards)."""

    product: Expr | None = None
    total: Expr | None = None
    contracted: tuple[tuple[int, bool, Expr], ...] = ()
    quotients: tuple[tuple[bool, Expr], ...] = ()
    divided_by: tuple[tuple[bool, Expr], ...] = ()


NOTHING = _Pair()
Kind: TypeAlias = tuple[Expr, frozenset[str]]  #: the abstract expression and the axes of a value


class Closure:
    """The values computable under one mapping. `values` is in order of discovery; `outputs[k]` are the values that equal
    output k of the form."""

    def __init__(self, form: Form, mapping: Mapping, max_values: int = MAX_VALUES) -> None:
        self.form, self.mapping, self.max_values = form, mapping, max_values
        self.space = _Space(form, mapping)
        self.expressions = Expressions()
        self.values: list[Value] = []
        self.outputs: list[list[int]] = []
        self._known: dict[tuple[int, frozenset[str], bytes], int] = {}
        self._by_expr: dict[Expr, list[int]] = {}
        self._by_kind: dict[Kind, list[int]] = {}
        self._pairs: dict[tuple[Kind, Kind], _Pair] = {}
        self._partners: dict[Kind, list[Kind]] = {}
        self._target = _Target(form, self.space, self.expressions)
        self._allowed = self._axis_sets()
        self._groups = self._reduced_groups()

    # --- preparation ----------------------------------------------------------------------------------------------------
    def _axis_sets(self) -> list[frozenset[str]]:
        """The axes of the program's own values: larger intermediate values (outer products) bring nothing."""
        p = self.form.program
        sets = {p.axes_of(name) for name in [*(i.name for i in p.inputs), *(n.name for n in p.nodes)]}
        return [s for s in sets if not any(s < other for other in sets)]

    def _reduced_groups(self) -> list[tuple[frozenset[str], DType | None]]:
        """The sets of axes that reductions of the form consume together, with the type of the multiplication."""
        groups: dict[frozenset[str], DType | None] = {}
        for t in self.form.terms:
            if isinstance(t, Reduction):
                over = frozenset(t.over)
                groups[over] = groups.get(over) or t.dtype
        return list(groups.items())

    # --- running --------------------------------------------------------------------------------------------------------
    def run(self) -> Closure:
        """Close under all operators. Raises Refused beyond `max_values`."""
        for number, t in enumerate(self.form.terms):
            if isinstance(t, Leaf):
                self._load(number, t)
            elif isinstance(t, Fn) and not t.args:
                self._put(
                    Derivation("fn", (), number),
                    BEFORE,
                    self._target.arrays[number],
                    t.axes,
                    self._target.exprs[number],
                )
        position = 0
        while position < len(self.values):
            value = self.values[position]
            position += 1
            self._reduce(value)
            self._cross(value)
            kind = (value.expr, value.live)
            self._meet(kind)
            for partner in self._partners[kind]:
                for number in self._by_kind[partner]:
                    if number < position:
                        self._combine(value, self.values[number])
            self._functions(value)
            if len(self.values) > self.max_values:
                raise Refused(f"more than {self.max_values} values under {self.mapping}")
        self.outputs = [self._matches(t) for t in self.form.outputs]
        return self

    def _matches(self, term: int) -> list[int]:
        goal = self._target.arrays[term]
        finals = (BEFORE, GRID) if self.mapping.loop is None else (AFTER, GRID)
        return [
            v.number
            for v in self.values
            if v.phase in finals and v.array.shape == goal.shape and np.array_equal(v.array, goal)
        ]

    def _load(self, number: int, leaf: Leaf) -> None:
        array, expr = self._target.arrays[number], self._target.exprs[number]
        self._put(Derivation("load", (), number), BEFORE, array, leaf.axes, expr)
        if self.mapping.loop in leaf.axes:
            self._put(Derivation("load", (), number), BODY, array, leaf.axes, expr)

    def _put(self, way: Derivation, phase: int, array: Residue, live: frozenset[str], expr: Expr) -> None:
        key = (phase, live, array.tobytes())
        if key in self._known:
            ways = self.values[self._known[key]].ways
            if way not in ways:
                ways.append(way)
            return
        value = Value(len(self.values), phase, array, live, expr, [way])
        self._known[key] = value.number
        self.values.append(value)
        self._by_expr.setdefault(expr, []).append(value.number)
        self._by_kind.setdefault((expr, live), []).append(value.number)

    def _wanted(self, expr: Expr) -> bool:
        return any(self.expressions.is_part(expr, e) for e in self._target.output_exprs)

    # --- one operand ----------------------------------------------------------------------------------------------------
    def _reduce(self, v: Value) -> None:
        for group, _ in self._groups:
            if group <= v.live:
                expr = self.expressions.sum(v.expr, self.space.tile_factors(group, v.phase))
                if self._wanted(expr):
                    array = self.space.sum(v.array, group, v.phase)
                    self._put(
                        Derivation("sum", (v.number,), over=tuple(sorted(group))), v.phase, array, v.live - group, expr
                    )

    def _cross(self, v: Value) -> None:
        """Into the next phases: accumulate over the loop, reduce over the blocks."""
        loop, split = self.mapping.loop, self.mapping.split
        if v.phase == BODY and loop is not None and loop not in v.live and self.space.depends(v.array, loop, "l"):
            expr = self.expressions.sum(v.expr, [(loop, "l")])
            if self._wanted(expr):
                array = self.space.total(v.array, loop, "l")
                self._put(Derivation("accum", (v.number,)), AFTER, array, v.live, expr)
        last = v.phase == AFTER or (v.phase == BEFORE and loop is None)
        if last and split is not None and split not in v.live and self.space.depends(v.array, split, "g"):
            expr = self.expressions.sum(v.expr, [(split, "g")])
            if self._wanted(expr):
                array = self.space.total(v.array, split, "g")
                self._put(Derivation("grid_sum", (v.number,)), GRID, array, v.live, expr)

    # --- two operands ---------------------------------------------------------------------------------------------------
    def _meet(self, x: Kind) -> None:
        """Find out once what comes of values of a new kind and those of the known ones."""
        if x in self._partners:
            return
        self._partners[x] = []
        for y in [*self._partners]:
            pair = self._pair(x, y)
            if pair != NOTHING:
                self._pairs[(x, y)] = pair
                self._pairs[(y, x)] = replace(pair, quotients=pair.divided_by, divided_by=pair.quotients)
                self._partners[x].append(y)
                if y != x:
                    self._partners[y].append(x)

    def _pair(self, x: Kind, y: Kind) -> _Pair:
        """The wanted results of values of two kinds."""
        e, live = self.expressions, x[1] | y[1]
        contracted = []
        for k, (group, dtype) in enumerate(self._groups):
            if dtype is None or not (group <= x[1] and group <= y[1] and x[1] != y[1] and self._fits(live - group)):
                continue  # without free axes on either side it is a sum of an elementwise product
            for phase in (BEFORE, BODY):
                factors = self.space.tile_factors(group, phase)
                if self._possible(x[0], y[0], factors) and self._wanted(expr := e.sum(e.mul(x[0], y[0]), factors)):
                    contracted.append((k, phase == BODY, expr))
        if not self._fits(live):
            return _Pair(contracted=tuple(contracted))
        product = e.mul(x[0], y[0]) if self._possible(x[0], y[0]) else None
        total = e.add(x[0], y[0]) if x[1] == y[1] else None
        quotients, divided_by = self._quotients(x[0], y[0]), self._quotients(y[0], x[0])
        return _Pair(
            product if product is not None and self._wanted(product) else None,
            total if total is not None and self._wanted(total) else None,
            tuple(contracted),
            quotients,
            divided_by,
        )

    def _possible(self, x: Expr, y: Expr, factors: Iterable[Factor] = ()) -> bool:
        """Whether a product of the first monomials, summed over factors, lies in what is wanted (a quick test)."""
        return any(self.expressions.may_hold_product(x, y, factors, e) for e in self._target.output_exprs)

    def _quotients(self, x: Expr, y: Expr) -> tuple[tuple[bool, Expr], ...]:
        found = []
        for guard in self._target.guards:
            tag = "div0" if guard else None
            if any(self.expressions.may_hold_quotient(x, y, tag, e) for e in self._target.output_exprs):
                expr = self.expressions.div(x, y, tag)
                if self._wanted(expr):
                    found.append((guard, expr))
        return tuple(found)

    def _fits(self, axes: frozenset[str]) -> bool:
        return any(axes <= s for s in self._allowed)

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

    def _combine(self, u: Value, v: Value) -> None:
        phase = self._phase(u, v)
        if phase is None:
            return
        pair = self._pairs[((u.expr, u.live), (v.expr, v.live))]
        for k, in_body, expr in pair.contracted:
            if in_body == (phase == BODY):
                self._contract(u, v, *self._groups[k], phase, expr)
        axes = u.live | v.live
        args = tuple(sorted((u.number, v.number)))
        if pair.product is not None:
            self._put(Derivation("mul", args), phase, u.array * v.array % P, axes, pair.product)
        if pair.total is not None:
            self._put(Derivation("add", args), phase, (u.array + v.array) % P, axes, pair.total)
        for a, b, quotients in ((u, v, pair.quotients), (v, u, pair.divided_by)):
            for guard, expr in quotients:
                array = a.array * self._inverse(b) % P
                if guard:
                    array = array * self._target.guard_factor % P
                way = Derivation("div0" if guard else "div", (a.number, b.number))
                self._put(way, phase, array, axes, expr)

    def _contract(self, u: Value, v: Value, group: frozenset[str], dtype: DType | None, phase: int, expr: Expr) -> None:
        axes = (u.live | v.live) - group
        array = self.space.sum(u.array * v.array % P, group, phase)
        way = Derivation("contract", tuple(sorted((u.number, v.number))), -1, tuple(sorted(group)), dtype)
        self._put(way, phase, array, axes, expr)

    def _inverse(self, v: Value) -> Residue:
        if v.inverse is None:
            v.inverse = self._target.domain.inverse(v.array[None])[0]
        return v.inverse

    # --- elementwise functions --------------------------------------------------------------------------------------------
    def _functions(self, v: Value) -> None:
        """Apply each function of the form whose last missing argument may be `v`."""
        for number, t in enumerate(self.form.terms):
            if not isinstance(t, Fn | StableExp) or not t.args:
                continue
            wanted = [self._target.exprs[a] for a in t.args]
            if v.expr not in wanted:
                continue
            for args in self._choices(wanted, v.number):
                self._apply(number, t, args)

    def _choices(self, wanted: list[Expr], newest: int) -> Iterable[list[Value]]:
        """Argument lists of known values with the wanted expressions, `newest` among them, in one common phase."""
        partial: list[list[Value]] = [[]]
        for e in wanted:
            known = [self.values[n] for n in self._by_expr.get(e, ()) if n <= newest]
            partial = [[*p, x] for p in partial for x in known if self._together([*p, x])]
        return [p for p in partial if any(x.number == newest for x in p)]

    def _together(self, args: list[Value]) -> bool:
        phases = {x.phase for x in args}
        if BODY in phases and phases & {AFTER, GRID}:
            return False
        split = self.mapping.split
        if GRID in phases and split is not None:
            return not any(x.phase != GRID and self.space.depends(x.array, split, "g") for x in args)
        return True

    def _apply(self, number: int, t: Fn | StableExp, args: list[Value]) -> None:
        axes = frozenset[str]().union(*(x.live for x in args))
        if not axes <= t.axes:
            return
        domain = self._target.domain
        if isinstance(t, Fn):
            array = apply_thread(t.thread, domain, [x.array[None] for x in args])[0]
        else:
            array = domain.exp(args[0].array[None])[0]
        phase = max(x.phase for x in args)
        self._put(
            Derivation("fn", tuple(x.number for x in args), number), phase, array, axes, self._target.exprs[number]
        )


class _Space:
    """The stand-in: for each reduced axis three array dimensions (grid, loop, tile), for each other axis one."""

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

    def kinds(self, axis: str) -> list[str]:
        """The coordinates that an axis is split into."""
        kinds = ["t"]
        if axis == self.mapping.loop:
            kinds.insert(0, "l")
        if axis == self.mapping.split:
            kinds.insert(0, "g")
        return kinds

    def dim(self, axis: str, kind: str) -> int:
        return self.place[axis] + ("glt".index(kind) if axis in self.reduced else 0)

    def own_shape(self, axes: frozenset[str]) -> list[int]:
        """The array shape of a value with these axes (all coordinates)."""
        shape = [1] * len(self.shape)
        for a in axes:
            for k in self.kinds(a) if a in self.reduced else ["t"]:
                d = self.dim(a, k)
                shape[d] = self.shape[d]
        return shape

    def tile_kinds(self, axis: str, phase: int) -> list[str]:
        """What a block holds of an axis at once: in the body of its loop a part, elsewhere the loop's whole range."""
        whole = axis == self.mapping.loop and phase != BODY
        return ["l", "t"] if whole else ["t"]

    def tile_factors(self, group: frozenset[str], phase: int) -> list[tuple[str, str]]:
        return [(a, k) for a in sorted(group) for k in self.tile_kinds(a, phase)]

    def sum(self, array: Residue, group: frozenset[str], phase: int) -> Residue:
        dims = tuple(self.dim(a, k) for a in group for k in self.tile_kinds(a, phase))
        for d in dims:
            if array.shape[d] != self.shape[d]:
                array = array * self.shape[d]
        total: Residue = array.sum(axis=dims, keepdims=True)
        return total % P

    def total(self, array: Residue, axis: str, kind: str) -> Residue:
        total: Residue = array.sum(axis=self.dim(axis, kind), keepdims=True)
        return total % P

    def depends(self, array: Residue, axis: str, kind: str) -> bool:
        return bool(array.shape[self.dim(axis, kind)] > 1)

    def factors(self, over: Iterable[str]) -> list[tuple[str, str]]:
        """The sum factors of a whole reduction."""
        return [(a, k) for a in sorted(over) for k in self.kinds(a)]


class _Target:
    """Arrays and abstract expressions of the form's terms, by direct evaluation on the stand-in."""

    def __init__(self, form: Form, space: _Space, expressions: Expressions) -> None:
        self.form, self.space, self.expressions = form, space, expressions
        self.domain = Residues((), 20250707, PRIMES[:1])
        self.guard_factor = int(self.domain.random("guarded quotient", (), nonzero=True)[0])
        self.arrays: list[Residue] = []
        self.exprs: list[Expr] = []
        for number, t in enumerate(form.terms):
            array, expr = self._term(number, t)
            self.arrays.append(array)
            self.exprs.append(expr)
        self.output_exprs = sorted({self.exprs[t] for t in form.outputs})
        flags = {g for t in form.terms if isinstance(t, Reduction) for _, g in t.den}
        self.guards = sorted(flags)

    def _term(self, number: int, t: Term) -> tuple[Residue, Expr]:
        e = self.expressions
        match t:
            case Leaf():
                array = self.domain.random(f"leaf {number}", self.space.own_shape(t.axes))[0]
                return array, e.leaf(("leaf", number))
            case Fn():
                rank = len(self.space.shape)
                args = [self.arrays[a][None] for a in t.args]
                array = apply_thread(t.thread, self.domain, args, rank)[0]
                return array, e.call(("fn", t.thread, number if not t.args else 0), *(self.exprs[a] for a in t.args))
            case StableExp():
                array = self.domain.exp(self.arrays[t.args[0]][None])[0]
                return array, e.call("stable", self.exprs[t.args[0]])
            case Plus():
                array, expr = self.arrays[t.args[0]], self.exprs[t.args[0]]
                for a in t.args[1:]:
                    array, expr = (array + self.arrays[a]) % P, e.add(expr, self.exprs[a])
                return array, expr
            case Reduction():
                return self._reduction(t)

    def _reduction(self, t: Reduction) -> tuple[Residue, Expr]:
        e = self.expressions
        array: Residue = np.ones([1] * len(self.space.shape), dtype=np.int64)
        expr: Expr | None = None
        for a in t.num:
            array = array * self.arrays[a] % P
            expr = self.exprs[a] if expr is None else e.mul(expr, self.exprs[a])
        if expr is None:
            raise Refused("a reduction of a quotient without a numerator")
        for a, guard in t.den:
            array = array * self.domain.inverse(self.arrays[a][None])[0] % P
            if guard:
                array = array * self.guard_factor % P
            expr = e.div(expr, self.exprs[a], "div0" if guard else None)
        dims = []
        for axis in t.over:
            for k in self.space.kinds(axis):
                d = self.space.dim(axis, k)
                dims.append(d)
                if array.shape[d] != self.space.shape[d]:
                    array = array * self.space.shape[d] % P
        total: Residue = array.sum(axis=tuple(dims), keepdims=True)
        return total % P, e.sum(expr, self.space.factors(t.over))


def apply_thread(thread: ThreadGraph, domain: Any, args: list[Any], rank: int = 0) -> Any:
    """The value of a thread graph in a domain."""
    values = list(args)
    for n in thread.nodes:
        operands = [values[i] for i in n.inputs]
        if n.op == "const":
            constant = domain.const(n.value)
            values.append(constant.reshape(constant.shape + (1,) * max(rank, _rank(args))))
        else:
            values.append(lookup(n.op).apply(domain, *operands))
    return values[-1]


def _rank(args: list[Any]) -> int:
    return max((a.ndim - 1 for a in args), default=0)
