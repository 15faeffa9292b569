"""Abstract expressions: a value with its element indices forgotten, in normal form (OSDI'25, section 4.3).

The theory (the axioms of the paper): + and * commutative, associative, distributive; (x + y)/z = x/z + y/z;
x(y/z) = (xy)/z; (x/y)/z = x/(yz); sum(1, x) = x; sum(i, sum(j, x)) = sum(ij, x); sum(i, .) of x + y, x * y and x / y is
sum(i, x) + sum(i, y), sum(i, x) * y and sum(i, x) / y; exp(x) exp(y) = exp(x + y); sqrt(x) sqrt(y) = sqrt(xy).
Deliberately no cancellation. Subexpressions: x is one of x + y, xy, x/y, y/x, sum(i, x), f(x), of itself, and of whatever
has a subexpression of which it is one. `is_part` decides exactly this: no part of a term is missed, and nothing is called a
part that is in no equal term. Quotients with a tag (`div(x, y, tag)`) keep y as it is: only their numerator is linear.

Normal form. A polynomial with positive integer coefficients: a multiset of monomials. A monomial is (a) a multiset of sum
factors, symbols such as ("h", "l"), so that nothing depends on extents; (b) a multiset of atoms: inputs, functions of
polynomials, exp of one monomial, tagged denominators; (c) at most one denominator and (d) at most one radicand, which are
polynomials. At least one atom stands above the line, or there is a radicand; call this proper. (a) and (b) are an integer,
a product of primes, one for each factor and atom; (c) and (d) are an interned pair, the tail. Operators: sums of terms are
expanded everywhere; exp of a sum is the product of exp of its monomials; a product multiplies denominators with
denominators and radicands with radicands, as polynomials. Equal classes have one interned integer.

Equality is right: each operator respects each axiom (both sides expand to one polynomial); and each step to the normal form
is an axiom, so terms with one normal form are equal by the axioms.

Subexpressions. Write a <= b when b = m a + r for a monomial m (proper or not) and a polynomial r (or none). Hosts of e: e
itself; and of each monomial of a host the denominator, the radicand, the argument of all its exponentials as one, and the
arguments of its other atoms. Claim: x is a subexpression of e if and only if x <= h for a host h of e.
If: m x + r arises from x by products, sums, a quotient and an addition; a host arises likewise from what it was found in.
Only if: by induction over the steps from x to e. Addition, multiplication (by a polynomial: keep one of its monomials),
sum(i, .) and division of something with x <= h leave x <= h' for what h became, or h a host. A step below a line, y/h,
makes h a host; when later steps multiply the denominator by c, x <= h gives x <= c h, which is the host then. The same holds
for sqrt(h), and for exp(h), whose monomial may get further exponentials: their argument is h plus something.

So the test needs quotients of monomials: those of the integers, and of denominators (and radicands) as polynomials: is there
a polynomial c with proper monomials with c y = x, or is x = y? The quotient is unique, since monomials can be ordered in a
way that multiplication respects (they are a cancellative monoid without torsion, by induction over their depth), so
polynomials have no divisors of zero. It is found by forced moves: some monomial of what remains of x can come from only one
monomial of c (the largest is such a one in any order, whichever that is); it is taken with its coefficient, and so on.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

Factor: TypeAlias = Hashable
Expr: TypeAlias = int
Tail: TypeAlias = int  #: the number of a pair (denominator, radicand)
Monomial: TypeAlias = tuple[int, Tail]  #: the product of the primes of its factors and atoms, and its tail
Terms: TypeAlias = tuple[tuple[Monomial, int], ...]  #: monomials with their multiplicities, sorted
Symbol: TypeAlias = tuple[str, tuple[Hashable, ...], tuple[Expr, ...]]  #: (kind, label, arguments) of a prime
ONE: Expr = -1  #: no denominator, no radicand, or a quotient of equals: not an expression by itself
NO_TAIL: Tail = 0


@dataclass(frozen=True, slots=True)
class _Parts:
    """The hosts of an expression, the products of primes of their monomials for each tail, and the answers given so far."""

    hosts: list[Terms]
    products: dict[Tail, list[int]]
    ratios: set[tuple[int, int]]  #: of the products of two monomials of one host, in lowest terms
    within: dict[Tail, list[int]] = field(default_factory=dict)  #: those of monomials whose tail a tail divides
    known: dict[Expr, bool] = field(default_factory=dict)
    dividing: dict[Monomial, bool] = field(default_factory=dict)
    unders: dict[tuple[Expr, Hashable], Monomial | None] = field(default_factory=dict)  #: 1/y, if in a host


class Expressions:
    """A table of interned normal forms; one for each search, passed explicitly."""

    def __init__(self) -> None:
        self._forms: list[Terms] = []
        self._number: dict[Terms, Expr] = {}
        self._primes: Iterator[int] = _primes()
        self._prime: dict[Symbol, int] = {}
        self._symbol: dict[int, Symbol] = {}
        self._tails: list[tuple[Expr, Expr]] = [(ONE, ONE)]
        self._tail_number: dict[tuple[Expr, Expr], Tail] = {(ONE, ONE): NO_TAIL}
        self._sums: dict[tuple[Expr, Expr], Expr] = {}
        self._products: dict[tuple[Expr, Expr], Expr] = {}
        self._scaled: dict[tuple[Expr, int], Expr] = {}
        self._joined: dict[tuple[Tail, Tail], Tail] = {}
        self._quotients: dict[tuple[Expr, Expr], Expr | None] = {}
        self._tail_quotients: dict[tuple[Tail, Tail], Tail | None] = {}
        self._parts: dict[Expr, _Parts] = {}

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
        known = self._prime.get(symbol)
        if known is None:
            known = self._prime[symbol] = next(self._primes)
            self._symbol[known] = symbol
        return known

    def _tail(self, below: Expr, root: Expr) -> Tail:
        key = (below, root)
        known = self._tail_number.get(key)
        if known is None:
            known = self._tail_number[key] = len(self._tails)
            self._tails.append(key)
        return known

    def leaf(self, name: Hashable) -> Expr:
        """An input, or a constant that stands for itself."""
        return self._form([((self._atom("leaf", (name,)), NO_TAIL), 1)])

    def call(self, function: Hashable, *args: Expr) -> Expr:
        """A function of expressions; `"exp"` and `"sqrt"` of one argument are known to the theory."""
        if function == "exp" and len(args) == 1:
            product = 1
            for monomial, n in self._forms[args[0]]:
                product *= self._atom("exp", (), (self._form([(monomial, 1)]),)) ** n
            return self._form([((product, NO_TAIL), 1)])
        if function == "sqrt" and len(args) == 1:
            return self._form([((1, self._tail(ONE, args[0])), 1)])
        return self._form([((self._atom("call", (function,), args), NO_TAIL), 1)])

    def add(self, x: Expr, y: Expr) -> Expr:
        """x + y."""
        key = (x, y) if x <= y else (y, x)
        known = self._sums.get(key)
        if known is None:
            terms = dict(self._forms[x])
            for monomial, n in self._forms[y]:
                terms[monomial] = terms.get(monomial, 0) + n
            known = self._sums[key] = self._form(terms.items())
        return known

    def mul(self, x: Expr, y: Expr) -> Expr:
        """x * y."""
        key = (x, y) if x <= y else (y, x)
        known = self._products.get(key)
        if known is None:
            terms: Counter[Monomial] = Counter()
            for a, m in self._forms[x]:
                for b, n in self._forms[y]:
                    terms[self._times(a, b)] += m * n
            known = self._products[key] = self._form(terms.items())
        return known

    def div(self, x: Expr, y: Expr, tag: Hashable = None) -> Expr:
        """x / y; quotients with different tags are different functions of y."""
        below = self._under(y, tag)
        return self._form((self._times(a, below), m) for a, m in self._forms[x])

    def sum(self, x: Expr, factors: Iterable[Factor]) -> Expr:
        """The sum of x over axes or parts of axes."""
        product = self._scale(factors)
        if product == 1:
            return x
        key = (x, product)
        known = self._scaled.get(key)
        if known is None:
            known = self._scaled[key] = self._form(((a * product, tail), m) for (a, tail), m in self._forms[x])
        return known

    def _scale(self, factors: Iterable[Factor]) -> int:
        product = 1
        for f in factors:
            product *= self._atom("sum", (f,))
        return product

    def _under(self, y: Expr, tag: Hashable) -> Monomial:
        """1/y: no expression by itself, but a cofactor."""
        return (1, self._tail(y, ONE)) if tag is None else (self._atom("under", (tag,), (y,)), NO_TAIL)

    def _times(self, a: Monomial, b: Monomial) -> Monomial:
        return a[0] * b[0], self._join(a[1], b[1])

    def _join(self, s: Tail, t: Tail) -> Tail:
        """The tail of a product: denominators and radicands multiply."""
        if not s or not t:
            return s or t
        key = (s, t) if s <= t else (t, s)
        known = self._joined.get(key)
        if known is None:
            below, root = (
                y if x == ONE else x if y == ONE else self.mul(x, y)
                for x, y in zip(self._tails[s], self._tails[t], strict=True)
            )
            known = self._joined[key] = self._tail(below, root)
        return known

    def _factors(self, product: int) -> Iterator[int]:
        for p in self._symbol:
            while product % p == 0:
                product //= p
                yield p
            if product == 1:
                return

    # --- quotients ----------------------------------------------------------------------------------------------------
    def _over(self, a: Monomial, b: Monomial) -> Monomial | None:
        """The monomial m with m b = a."""
        if a[0] % b[0]:
            return None
        tail = self._tail_over(a[1], b[1])
        return None if tail is None else (a[0] // b[0], tail)

    def _tail_over(self, s: Tail, t: Tail) -> Tail | None:
        if t == NO_TAIL:
            return s
        if s == t:
            return NO_TAIL
        key = (s, t)
        if key not in self._tail_quotients:
            (below, root), (below_t, root_t) = self._tails[s], self._tails[t]
            b, r = self._quotient(below, below_t), self._quotient(root, root_t)
            self._tail_quotients[key] = None if b is None or r is None else self._tail(b, r)
        return self._tail_quotients[key]

    def _quotient(self, x: Expr, y: Expr) -> Expr | None:
        """The polynomial c with c y = x, ONE if x is y, None if there is none."""
        if y == ONE:
            return x
        if x == y:
            return ONE
        if x == ONE or len(self._forms[y]) > len(self._forms[x]):
            return None
        key = (x, y)
        if key not in self._quotients:
            self._quotients[key] = self._divide(dict(self._forms[x]), self._forms[y])
        return self._quotients[key]

    def _divide(self, left: dict[Monomial, int], divisor: Terms) -> Expr | None:
        """The quotient of polynomials by forced moves; empties `left`."""
        quotient: list[tuple[Monomial, int]] = []
        while left:
            move = self._forced(left, divisor)
            if move is None:
                return None
            monomial, n = move
            quotient.append(move)
            for d, m in divisor:
                product = self._times(monomial, d)
                left[product] -= n * m
                if not left[product]:
                    del left[product]
        return self._form(quotient)

    def _forced(self, left: dict[Monomial, int], divisor: Terms) -> tuple[Monomial, int] | None:
        """A monomial of every quotient of `left` by `divisor`, with its coefficient; None if there is no quotient."""
        for target, count in left.items():
            moves = [(c, m) for d, m in divisor if (c := self._over(target, d)) and self._takes(left, c, 1, divisor)]
            if len(moves) < 2:
                for c, m in moves:
                    if count % m == 0 and self._proper(c) and self._takes(left, c, count // m, divisor):
                        return c, count // m
                return None
        return None

    def _takes(self, left: dict[Monomial, int], c: Monomial, n: int, divisor: Terms) -> bool:
        """True if n c times the divisor is among what is left."""
        return all(left.get(self._times(c, d), 0) >= n * m for d, m in divisor)

    def _proper(self, monomial: Monomial) -> bool:
        """True if something stands above the line."""
        product, tail = monomial
        kinds = (self._symbol[p][0] for p in self._factors(product))
        return self._tails[tail][1] != ONE or any(kind in ("leaf", "call", "exp") for kind in kinds)

    # --- the subexpression test ---------------------------------------------------------------------------------------
    def is_part(self, x: Expr, e: Expr) -> bool:
        """True if x is a subexpression of e."""
        parts = self._parts.get(e) or self._parts_of(e)
        answer = parts.known.get(x)
        if answer is None:
            terms = self._forms[x]
            answer = parts.known[x] = self._divides_some(terms[0][0], parts) and any(
                self._stands_in(terms, h) for h in parts.hosts
            )
        return answer

    def may_hold_product(self, x: Expr, y: Expr, factors: Iterable[Factor], e: Expr) -> bool:
        """False only if the sum of x * y over `factors` is no subexpression of e: a test of one monomial."""
        parts = self._parts.get(e) or self._parts_of(e)
        (a, s), (b, t) = self._forms[x][0][0], self._forms[y][0][0]
        if s and t and not (self._within(s, parts) and self._within(t, parts)):
            return False
        product = a * b * self._scale(factors) if factors else a * b
        return self._divides_some((product, self._join(s, t)), parts)

    def may_hold_sum(self, x: Expr, y: Expr, e: Expr) -> bool:
        """False only if x + y is no subexpression of e: a test of two monomials, of which one cofactor makes others."""
        parts = self._parts.get(e) or self._parts_of(e)
        a, b = self._forms[x][0][0][0], self._forms[y][0][0][0]
        common = math.gcd(a, b)
        return (a // common, b // common) in parts.ratios

    def may_hold_quotient(self, x: Expr, y: Expr, tag: Hashable, e: Expr) -> bool:
        """False only if x / y is no subexpression of e: a test of one monomial."""
        below = self._below(y, tag, e)
        if below is None:
            return False
        parts = self._parts[e]
        (a, s), (b, t) = self._forms[x][0][0], below
        if s and not self._within(s, parts):
            return False
        return self._divides_some((a * b, self._join(s, t)), parts)

    def may_divide(self, y: Expr, tag: Hashable, e: Expr) -> bool:
        """False only if no quotient by y is a subexpression of e."""
        return self._below(y, tag, e) is not None

    def _below(self, y: Expr, tag: Hashable, e: Expr) -> Monomial | None:
        """1/y, if it is in a host of e."""
        parts = self._parts.get(e) or self._parts_of(e)
        key = (y, tag)
        if key not in parts.unders:
            under = self._under(y, tag)
            parts.unders[key] = under if self._divides_some(under, parts) else None
        return parts.unders[key]

    def first_product(self, x: Expr) -> int:
        """The product of primes of the first monomial of x, at which the three tests above look."""
        return self._forms[x][0][0][0]

    def products(self, e: Expr) -> list[int]:
        """The products of primes of the monomials of the hosts of e."""
        parts = self._parts.get(e) or self._parts_of(e)
        return [p for some in parts.products.values() for p in some]

    def ratios(self, e: Expr) -> set[tuple[int, int]]:
        """The ratios, in lowest terms, of the products of primes of two monomials of one host of e."""
        return (self._parts.get(e) or self._parts_of(e)).ratios

    def _divides_some(self, monomial: Monomial, parts: _Parts) -> bool:
        known = parts.dividing.get(monomial)
        if known is None:
            product, tail = monomial
            known = parts.dividing[monomial] = 0 in map(product.__rmod__, self._within(tail, parts))
        return known

    def _within(self, tail: Tail, parts: _Parts) -> list[int]:
        """The products of the hosts' monomials whose tails `tail` divides, without divisors of others of them."""
        known = parts.within.get(tail)
        if known is None:
            products = {p for t, some in parts.products.items() if self._tail_over(t, tail) is not None for p in some}
            known = parts.within[tail] = sorted(p for p in products if sum(q % p == 0 for q in products) == 1)
        return known

    def _parts_of(self, e: Expr) -> _Parts:
        hosts = [self._forms[h] for h in sorted(self._hosts(e))]
        products: dict[Tail, list[int]] = {}
        ratios = set[tuple[int, int]]()
        for h in hosts:
            for (a, tail), n in h:
                products.setdefault(tail, []).append(a)
                others = [b for (b, t), _ in h if n > 1 or (b, t) != (a, tail)]
                ratios |= {(a // math.gcd(a, b), b // math.gcd(a, b)) for b in others}
        parts = self._parts[e] = _Parts(hosts, products, ratios)
        return parts

    def _hosts(self, e: Expr) -> set[Expr]:
        """The polynomials in which a subexpression of `e` stands as a summand up to a factor."""
        hosts, todo = set[Expr](), [e]
        while todo:
            x = todo.pop()
            if x not in hosts:
                hosts.add(x)
                for (product, tail), _ in self._forms[x]:
                    todo.extend(y for y in self._tails[tail] if y != ONE)
                    symbols = [self._symbol[p] for p in self._factors(product)]
                    todo.extend(a for kind, _, args in symbols if kind != "exp" for a in args)
                    if exponents := [args[0] for kind, _, args in symbols if kind == "exp"]:
                        todo.append(functools.reduce(self.add, exponents))
        return hosts

    def _stands_in(self, wanted: Terms, have: Terms) -> bool:
        """True if one cofactor maps all monomials of `wanted` to monomials of `have`."""
        if len(wanted) > len(have):
            return False
        (first, least), *others = wanted
        counts = dict(have) if others else {}
        for monomial, n in have:
            c = self._over(monomial, first) if n >= least else None
            if c and all(counts.get(self._times(c, w), 0) >= k for w, k in others):
                return True
        return False

    # --- text ---------------------------------------------------------------------------------------------------------
    def text(self, e: Expr) -> str:
        """A readable form."""
        return " + ".join((f"{n}*" if n > 1 else "") + self._monomial_text(m) for m, n in self._forms[e])

    def _monomial_text(self, monomial: Monomial) -> str:
        product, tail = monomial
        symbols = [self._symbol[p] for p in self._factors(product)]
        below, root = self._tails[tail]
        sums = [str(label[0]) for kind, label, _ in symbols if kind == "sum"]
        top = [str(label[0]) for kind, label, _ in symbols if kind == "leaf"]
        top += [f"{label[0]}({', '.join(map(self.text, args))})" for kind, label, args in symbols if kind == "call"]
        if exponents := [args[0] for kind, _, args in symbols if kind == "exp"]:
            top.append(f"exp({self.text(functools.reduce(self.add, exponents))})")
        if root != ONE:
            top.append(f"sqrt({self.text(root)})")
        bottom = [f"/{label[0]}({self.text(args[0])})" for kind, label, args in symbols if kind == "under"]
        if below != ONE:
            bottom.append(f"/({self.text(below)})")
        body = "*".join(top) + "".join(bottom)
        return f"sum[{' '.join(sums)}]({body})" if sums else body


def _primes() -> Iterator[int]:
    """2, 3, 5, 7, ..."""
    primes: list[int] = []
    n = 2
    while True:
        if all(n % p for p in primes if p * p <= n):
            primes.append(n)
            yield n
        n += 1
