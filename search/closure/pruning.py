"""Pruning: the values worth computing on the way to a form's outputs, as abstract expressions and decisions, shared
by all mappings.

A sum over a reduced axis has three factors (blocks, iterations, positions in a tile) under every mapping, also where a
mapping leaves one of them trivial. So the terms have the same abstract expressions under all mappings, and what comes
of two kinds of values is decided once for a form.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mirage_cli.errors import Refused
from mirage_cli.lax.domains.expr import Expr, Expressions, Factor
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.ops import QUOTIENTS
from mirage_cli.search.closure.form import Extreme, Fn, Form, Leaf, Open, Plus, Reduction, StableExp, Term
from mirage_cli.search.closure.mapping import numeric
from mirage_cli.search.closure.partners import Partners
from mirage_cli.search.closure.space import KINDS

Axes: TypeAlias = frozenset[str]
MAX_PARTED = 3  #: axes of one reduction up to which its parts are reductions of their own
Kind: TypeAlias = tuple[Expr, Axes]  #: the abstract expression and the axes of a value


@dataclass(frozen=True, slots=True)
class Pair:
    """The wanted results of two kinds of values x and y, whatever the mapping: x y, x + y, x / y and y / x (by
    operator)."""

    product: Expr | None = None
    total: Expr | None = None
    quotients: tuple[tuple[str, Expr], ...] = ()
    divided_by: tuple[tuple[str, Expr], ...] = ()

    def turned(self) -> Pair:
        """The same for y and x."""
        return Pair(self.product, self.total, self.divided_by, self.quotients)


NOTHING = Pair()


class Pruning:
    """The abstract expressions of a form's terms and what they admit."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.expressions = Expressions()
        self.exprs: list[Expr] = []
        for number, t in enumerate(form.terms):
            self.exprs.append(self._term(number, t))
        self.outputs = sorted({self.exprs[t] for t in form.outputs})
        found = {op for t in form.terms if isinstance(t, Reduction) for _, op in t.den}
        found |= {t.op for t in form.terms if isinstance(t, Open) and t.op in QUOTIENTS}
        self.quotients = sorted(found)
        self.groups = self._reduced_groups()
        self._largest = self._largest_axes()
        self._most_axes = max(map(len, self._largest), default=0)
        self._most_elements = max(map(self._elements, self._largest), default=0)
        self._fits: dict[Axes, bool] = {}
        self._pairs: dict[tuple[Kind, Kind], Pair] = {}
        self._contracting: dict[tuple[Axes, Axes], tuple[int, ...]] = {}
        self._contracted: dict[tuple[Expr, Expr, tuple[Factor, ...]], Expr | None] = {}
        self._partners: dict[Kind, list[Kind]] = {}
        self._expression_partners = Partners(self.expressions, self.outputs, [tag(op) for op in self.quotients])
        self._by_expr: dict[Expr, list[Kind]] = {}
        self._sums: dict[tuple[Expr, tuple[Factor, ...]], Expr | None] = {}

    # --- terms ----------------------------------------------------------------------------------------------------------
    def _term(self, number: int, term: Term) -> Expr:
        e = self.expressions
        args = [] if isinstance(term, Leaf | Reduction) else [self.exprs[a] for a in term.args]
        match term:
            case Leaf():
                return e.leaf(("leaf", number))
            case Fn():
                return e.call(("fn", term.thread, number if not term.args else 0), *args)
            case StableExp():
                return e.call("stable", *args)
            case Extreme():
                return e.call((term.kind, term.over), *args)
            case Plus():
                total = args[0]
                for a in args[1:]:
                    total = e.add(total, a)
                return total
            case Open("mul"):
                return e.mul(*args)
            case Open("add"):
                return e.add(*args)
            case Open():
                return e.div(args[0], args[1], tag(term.op))
            case Reduction():
                return self._reduction(term)

    def _reduction(self, term: Reduction) -> Expr:
        e = self.expressions
        if not term.num:
            raise Refused("a reduction of a quotient without a numerator")
        expr = self.exprs[term.num[0]]
        for a in term.num[1:]:
            expr = e.mul(expr, self.exprs[a])
        for a, op in term.den:
            expr = e.div(expr, self.exprs[a], tag(op))
        return e.sum(expr, [(a, k) for a in sorted(term.over) for k in KINDS])

    def _reduced_groups(self) -> list[tuple[Axes, DType | None]]:
        """The sets of axes that reductions of the form consume together, and parts of these, with the type of the
        multiplication."""
        groups: dict[Axes, DType | None] = {}
        for t in self.form.terms:
            if isinstance(t, Reduction):
                for over in _parts(t.over):
                    groups[over] = groups.get(over) or t.dtype
        return list(groups.items())

    # --- axes -----------------------------------------------------------------------------------------------------------
    def _largest_axes(self) -> list[Axes]:
        """The axes of the program's own values, largest sets only."""
        p = self.form.program
        sets = {p.axes_of(name) for name in [*(i.name for i in p.inputs), *(n.name for n in p.nodes)]}
        return [s for s in sets if not any(s < other for other in sets)]

    def _elements(self, axes: Axes) -> int:
        return math.prod(numeric(self.form.program.extent(a)) for a in axes)

    def fits(self, axes: Axes) -> bool:
        """True if a value with these axes is worth its memory: the program has one with at least these axes, or one
        of as many axes and elements. Larger ones (outer products) bring nothing."""
        known = self._fits.get(axes)
        if known is None:
            small = len(axes) <= self._most_axes and self._elements(axes) <= self._most_elements
            known = self._fits[axes] = small or any(axes <= s for s in self._largest)
        return known

    # --- decisions ------------------------------------------------------------------------------------------------------
    def holds(self, expr: Expr) -> bool:
        """True if an expression is a subexpression of an output's."""
        return any(self.expressions.is_part(expr, e) for e in self.outputs)

    def sum(self, x: Expr, factors: tuple[Factor, ...]) -> Expr | None:
        """The sum of x over factors when it is wanted."""
        key = (x, factors)
        if key not in self._sums:
            expr = self.expressions.sum(x, factors)
            self._sums[key] = expr if self.holds(expr) else None
        return self._sums[key]

    def contraction(self, x: Expr, y: Expr, factors: tuple[Factor, ...]) -> Expr | None:
        """The sum of x y over factors when it is wanted."""
        key = (x, y, factors) if x <= y else (y, x, factors)
        if key not in self._contracted:
            e, total = self.expressions, None
            if any(e.may_hold_product(x, y, factors, o) for o in self.outputs):
                total = self.sum(e.mul(x, y), factors)
            self._contracted[key] = total
        return self._contracted[key]

    def partners(self, x: Kind) -> list[Kind]:
        """The kinds seen so far, `x` among them, that may make something with values of kind `x` under some mapping."""
        if x not in self._partners:
            self._partners[x] = []
            self._by_expr.setdefault(x[0], []).append(x)
            for y in itertools.chain.from_iterable(self._by_expr[e] for e in self._expression_partners.of(x[0])):
                if self.pair(x, y) is not NOTHING or self._contractible(x, y):
                    self._partners[x].append(y)
                    if y != x:
                        self._partners[y].append(x)
        return self._partners[x]

    def contracting(self, x: Axes, y: Axes) -> tuple[int, ...]:
        """The groups of axes (their numbers) over which values with these axes are multiplied and summed."""
        key = (x, y)
        if key not in self._contracting:
            self._contracting[key] = tuple(
                k
                for k, (group, dtype) in enumerate(self.groups)  # with free axes, or it is a sum of a product
                if dtype is not None and group <= x & y and x != y and self.fits((x | y) - group)
            )
        return self._contracting[key]

    def _contractible(self, x: Kind, y: Kind) -> bool:
        """True if some part of a contraction of two kinds is wanted: the sum over positions alone, which all have."""
        e = self.expressions
        for k in self.contracting(x[1], y[1]):
            factors = tuple((a, "t") for a in sorted(self.groups[k][0]))
            if any(e.may_hold_product(x[0], y[0], factors, o) for o in self.outputs):
                return True
        return False

    def pair(self, x: Kind, y: Kind) -> Pair:
        """The wanted elementwise results of values of two kinds."""
        pair = self._pairs.get((x, y))
        if pair is None:
            pair = self._pairs[(x, y)] = self._pair(x, y)
            self._pairs[(y, x)] = pair if pair is NOTHING else pair.turned()
        return pair

    def _pair(self, x: Kind, y: Kind) -> Pair:
        e, outputs = self.expressions, self.outputs
        if not self.fits(x[1] | y[1]):
            return NOTHING
        product = total = None
        if any(e.may_hold_product(x[0], y[0], (), o) for o in outputs) and self.holds(p := e.mul(x[0], y[0])):
            product = p
        addable = (x[1] == y[1] or self.form.opened) and any(e.may_hold_sum(x[0], y[0], o) for o in outputs)
        if addable and self.holds(s := e.add(x[0], y[0])):
            total = s
        quotients, divided_by = self._quotients(x[0], y[0]), self._quotients(y[0], x[0])
        if product is None and total is None and not quotients and not divided_by:
            return NOTHING
        return Pair(product, total, quotients, divided_by)

    def _quotients(self, x: Expr, y: Expr) -> tuple[tuple[str, Expr], ...]:
        quotients = []
        for op in self.quotients:
            if any(self.expressions.may_hold_quotient(x, y, tag(op), e) for e in self.outputs):
                expr = self.expressions.div(x, y, tag(op))
                if self.holds(expr):
                    quotients.append((op, expr))
        return tuple(quotients)


def _parts(axes: Sequence[str]) -> Iterator[Axes]:
    """The whole, and where it has few axes every part: sums over several axes may be taken one after the other."""
    counts = range(len(axes), 0, -1) if len(axes) <= MAX_PARTED else (len(axes),)
    for count in counts:
        yield from map(frozenset, itertools.combinations(axes, count))


def tag(op: str) -> str | None:
    """The mark that tells a quotient from others in abstract expressions."""
    return None if op == "div" else op
