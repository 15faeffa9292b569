"""Abstract expressions: a value with its element indices forgotten, in normal form (OSDI'25, section 4.3).

The theory: + and * commutative, associative, distributive; division distributes over +; (x/y)/z = x/(yz);
x(y/z) = (xy)/z; sum(1, x) = x; sum(i, sum(j, x)) = sum(ij, x); sum commutes with +, * and / in its linear argument;
exp(x) exp(y) = exp(x + y); sqrt(x) sqrt(y) = sqrt(xy). Deliberately no cancellation.

Normal form: a multiset of monomials. A monomial is a multiset of sum factors, numerator atoms and denominator atoms; an
atom is an input, a function of normal forms, or (below the line) a normal form without a common factor. Every factor and
atom has a prime of its own, so a monomial is an integer, a product of monomials is a product, and "is contained in" is
"divides". Sum factors are symbols such as ("h", "l"), so nothing depends on extents. Equal classes have one interned
integer.

`is_part(x, e)` decides "x is a subexpression of e", that is, of some term that equals e: x equals e; or one cofactor maps
every monomial of x to monomials of e (x times a product, a quotient or a sum stands inside e as a summand); or x is part
of the argument of an atom of e, or of a product of denominators. No part of a term is missed, because distribution has
been carried out in the normal form, with these exceptions: exp(x) as a part of exp(x + y), and sqrt(x) of sqrt(xy), which
the theory equates with products; products of two sums of terms below a line, which are not factored again; and products
that hold a sum over an axis below a line, which stay whole. Answering yes where no term contains x costs only pruning.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

Factor: TypeAlias = Hashable
Monomial: TypeAlias = int
Expr: TypeAlias = int
Terms: TypeAlias = tuple[tuple[Monomial, int], ...]  #: monomials with their multiplicities, sorted
MERGING = ("exp", "sqrt")  #: functions whose products are one function: of the sum, of the product
Symbol: TypeAlias = tuple[str, tuple[Hashable, ...], tuple[Expr, ...]]  #: (kind, label, arguments) of a prime


@dataclass(frozen=True, slots=True)
class _Parts:
    """An expression and all arguments of its atoms, their monomials, and the answers given so far."""

    hosts: set[Expr]
    monomials: list[Monomial]
    known: dict[Expr, bool]
    dividing: dict[Monomial, bool]


class Expressions:
    """A table of interned normal forms; one for each search, passed explicitly."""

    def __init__(self) -> None:
        self._forms: list[Terms] = []
        self._number: dict[Terms, Expr] = {}
        self._primes: Iterator[int] = _primes()
        self._prime: dict[Symbol, int] = {}
        self._symbol: dict[int, Symbol] = {}
        self._merging: dict[tuple[str, bool], list[int]] = {(f, under): [] for f in MERGING for under in (False, True)}
        self._memo: dict[tuple[Hashable, ...], Expr] = {}
        self._parts: dict[Expr, _Parts] = {}
        self._unders: dict[tuple[Expr, Hashable], int] = {}

    def __len__(self) -> int:
        return len(self._forms)

    # --- building -----------------------------------------------------------------------------------------------------
    def _form(self, terms: Iterable[tuple[Monomial, int]]) -> Expr:
        key = tuple(sorted(terms))
        known = self._number.get(key)
        if known is None:
            known = self._number[key] = len(self._forms)
            self._forms.append(key)
        return known

    def _atom(self, kind: str, label: tuple[Hashable, ...], args: tuple[Expr, ...] = ()) -> int:
        symbol = (kind, label, args)
        if symbol not in self._prime:
            p = self._prime[symbol] = next(self._primes)
            self._symbol[p] = symbol
            if kind == "call" and label[0] in MERGING:
                self._merging[(str(label[0]), False)].append(p)
            if kind == "under" and label == (None,) and (function := self._lone_call(args[0])) is not None:
                self._merging[(function, True)].append(p)
        return self._prime[symbol]

    def leaf(self, name: Hashable) -> Expr:
        """An input, or a constant that stands for itself."""
        return self._form([(self._atom("leaf", (name,)), 1)])

    def call(self, function: Hashable, *args: Expr) -> Expr:
        """A function of expressions; `"exp"` and `"sqrt"` are known to the theory."""
        return self._form([(self._atom("call", (function,), args), 1)])

    def add(self, x: Expr, y: Expr) -> Expr:
        """x + y."""
        key = ("add", x, y) if x <= y else ("add", y, x)
        if key not in self._memo:
            self._memo[key] = self._form((Counter(dict(self._forms[x])) + Counter(dict(self._forms[y]))).items())
        return self._memo[key]

    def mul(self, x: Expr, y: Expr) -> Expr:
        """x * y."""
        key = ("mul", x, y) if x <= y else ("mul", y, x)
        known = self._memo.get(key)
        if known is None:
            terms: Counter[Monomial] = Counter()
            for a, m in self._forms[x]:
                for b, n in self._forms[y]:
                    terms[self._merge(a * b)] += m * n
            known = self._memo[key] = self._form(terms.items())
        return known

    def div(self, x: Expr, y: Expr, tag: Hashable = None) -> Expr:
        """x / y; quotients with different tags are different functions of y."""
        key = ("div", x, y, tag)
        known = self._memo.get(key)
        if known is None:
            below = self._below(y, tag)
            terms: Counter[Monomial] = Counter()
            for a, m in self._forms[x]:
                terms[self._merge(a * below)] += m
            known = self._memo[key] = self._form(terms.items())
        return known

    def sum(self, x: Expr, factors: Iterable[Factor]) -> Expr:
        """The sum of x over axes or parts of axes."""
        product = 1
        for f in factors:
            product *= self._atom("sum", (f,))
        if product == 1:
            return x
        key = ("sum", x, product)
        known = self._memo.get(key)
        if known is None:
            known = self._memo[key] = self._form((a * product, m) for a, m in self._forms[x])
        return known

    def _below(self, y: Expr, tag: Hashable) -> int:
        """The denominator of 1/y: each factor common to its monomials by itself, and what is left."""
        key = (y, tag)
        if key not in self._unders:
            self._unders[key] = self._make_below(y, tag)
        return self._unders[key]

    def _make_below(self, y: Expr, tag: Hashable) -> int:
        terms = self._forms[y]
        if tag is not None or any(self._symbol[p][0] == "sum" for m, _ in terms for p in self._factors(m)):
            return self._atom("under", (tag,), (y,))
        common, count = math.gcd(*(m for m, _ in terms)), math.gcd(*(n for _, n in terms))
        rest = self._form((m // common, n // count) for m, n in terms)
        product = 1 if self._forms[rest] == ((1, 1),) else self._atom("under", (None,), (rest,))
        for p in [*self._factors(common)]:
            product *= self._atom("under", (None,), (self._form([(p, 1)]),))
        for n in _prime_factors(count):
            product *= self._atom("under", (None,), (self._form([(1, n)]),))
        return product

    def _merge(self, monomial: Monomial) -> Monomial:
        """Products of exponentials and of roots as one, above the line and below it."""
        for (function, under), primes in self._merging.items():
            found = [p for p in primes if monomial % p == 0]
            repeated = any(monomial % (p * p) == 0 for p in found)
            if len(found) < 2 and not repeated:
                continue
            argument: Expr | None = None
            for p in found:
                while monomial % p == 0:
                    monomial //= p
                    inner = self._symbol[p][2][0]
                    if under:
                        inner = self._symbol[self._forms[inner][0][0]][2][0]
                    combine = self.add if function == "exp" else self.mul
                    argument = inner if argument is None else combine(argument, inner)
            assert argument is not None
            merged = self._atom("call", (function,), (argument,))
            monomial *= self._atom("under", (None,), (self._form([(merged, 1)]),)) if under else merged
        return monomial

    def _lone_call(self, e: Expr) -> str | None:
        """The function when an expression is one call of a function that merges."""
        ((monomial, count), *others) = self._forms[e]
        kind, label, _ = self._symbol.get(monomial, ("", ("",), ()))
        return str(label[0]) if not others and count == 1 and kind == "call" and label[0] in MERGING else None

    def _factors(self, monomial: Monomial) -> Iterator[int]:
        for p in self._symbol:
            while monomial % p == 0:
                monomial //= p
                yield p
            if monomial == 1:
                return

    # --- the subexpression test ---------------------------------------------------------------------------------------
    def is_part(self, x: Expr, e: Expr) -> bool:
        """Whether x is a subexpression of e."""
        parts = self._parts_of(e)
        answer = parts.known.get(x)
        if answer is None:
            answer = parts.known[x] = x in parts.hosts or self._stands_in(x, parts)
        return answer

    def may_hold_product(self, x: Expr, y: Expr, factors: Iterable[Factor], e: Expr) -> bool:
        """False only if the sum of x * y over `factors` is no subexpression of e: a test of one monomial."""
        monomial = self._merge(self._forms[x][0][0] * self._forms[y][0][0])
        for f in factors:
            monomial *= self._atom("sum", (f,))
        return self._divides_some(monomial, e)

    def may_hold_quotient(self, x: Expr, y: Expr, tag: Hashable, e: Expr) -> bool:
        """False only if x / y is no subexpression of e."""
        return self._divides_some(self._forms[x][0][0] * self._below(y, tag), e)

    def _divides_some(self, monomial: Monomial, e: Expr) -> bool:
        parts = self._parts_of(e)
        known = parts.dividing.get(monomial)
        if known is None:
            known = parts.dividing[monomial] = 0 in map(monomial.__rmod__, parts.monomials)
        return known

    def _parts_of(self, e: Expr) -> _Parts:
        if e not in self._parts:
            hosts = self._inside(e)
            self._parts[e] = _Parts(hosts, sorted({m for h in hosts for m, _ in self._forms[h]}), {}, {})
        return self._parts[e]

    def _stands_in(self, x: Expr, parts: _Parts) -> bool:
        """Whether one cofactor maps `x` into an expression of `parts`; most fail at their first monomial."""
        terms = self._forms[x]
        if 0 not in map(terms[0][0].__rmod__, parts.monomials):
            return False
        return any(self._divides(x, h) for h in parts.hosts)

    def _inside(self, e: Expr) -> set[Expr]:
        """`e`, all arguments of its atoms and the product of what it is divided by, at every depth."""
        found, todo = set[Expr](), [e]
        while todo:
            x = todo.pop()
            if x not in found:
                found.add(x)
                for monomial, _ in self._forms[x]:
                    symbols = [self._symbol[p] for p in self._factors(monomial)]
                    todo.extend(a for _, _, args in symbols for a in args)
                    below = [args[0] for kind, label, args in symbols if kind == "under" and label == (None,)]
                    if len(below) > 1:
                        todo.append(functools.reduce(self.mul, below))
        return found

    def _divides(self, x: Expr, e: Expr) -> bool:
        wanted, have = self._forms[x], self._forms[e]
        first, least = wanted[0]
        if len(wanted) == 1:
            return any(m % first == 0 and n >= least for m, n in have)
        counts = dict(have)
        return any(m % first == 0 and all(counts.get(w * (m // first), 0) >= n for w, n in wanted) for m, _ in have)

    # --- text ---------------------------------------------------------------------------------------------------------
    def text(self, e: Expr) -> str:
        """A readable form."""
        return " + ".join((f"{n}*" if n > 1 else "") + self._monomial_text(m) for m, n in self._forms[e]) or "0"

    def _monomial_text(self, monomial: Monomial) -> str:
        sums, top, bottom = [], [], []
        for p in self._factors(monomial):
            symbol, label, args = self._symbol[p]
            inner = ", ".join(self.text(a) for a in args)
            if symbol == "sum":
                sums.append(str(label[0]))
            elif symbol == "under":
                bottom.append(f"/({inner})")
            else:
                top.append(f"{label[0]}({inner})" if symbol == "call" else str(label[0]))
        body = ("*".join(top) or "1") + "".join(bottom)
        return f"sum[{' '.join(sums)}]({body})" if sums else body


def _prime_factors(n: int) -> Iterator[int]:
    """The prime factors of a small number, with repetitions."""
    for p in _primes():
        if p > n:
            return
        while n % p == 0:
            n //= p
            yield p


def _primes() -> Iterator[int]:
    """2, 3, 5, 7, ..."""
    found: list[int] = []
    n = 2
    while True:
        if all(n % p for p in found if p * p <= n):
            found.append(n)
            yield n
        n += 1
