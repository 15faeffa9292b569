"""Abstract expressions: a value with its element indices forgotten, in normal form (OSDI'25, section 4.3).

The theory: + and * commutative, associative, distributive; division distributes over +; (x/y)/z = x/(yz);
x(y/z) = (xy)/z; sum(1, x) = x; sum(i, sum(j, x)) = sum(ij, x); sum commutes with +, * and / in its linear argument;
exp(x) exp(y) = exp(x + y); sqrt(x) sqrt(y) = sqrt(xy). Deliberately no cancellation.

Normal form: a multiset of monomials, each (sum factors, numerator atoms, denominator atoms); an atom is an input, a
function of normal forms, or (below the line) a normal form. Sum factors are symbols such as ("h", "loop"), so that
nothing depends on extents. Equal classes have one interned integer.

`is_part(x, e)` decides "x is a subexpression of e": x equals e; or one cofactor maps every monomial of x to monomials of
e (x times a product, a quotient or a sum stands inside e as a summand); or x is part of the argument of an atom of e.
This is complete for terms whose e is reached from x by products, quotients, sums and outer functions of x as a whole, in
any order, because distribution has already been carried out in the normal form; over-approximation elsewhere costs only
pruning.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeAlias

Factor: TypeAlias = Hashable
Atom: TypeAlias = int
Monomial: TypeAlias = tuple[tuple[Factor, ...], tuple[Atom, ...], tuple[Atom, ...]]
Expr: TypeAlias = int
Terms: TypeAlias = tuple[tuple[Monomial, int], ...]


class Expressions:
    """A table of interned normal forms; one for each search, passed explicitly."""

    def __init__(self) -> None:
        self._forms: list[Terms] = []
        self._number: dict[Terms, Expr] = {}
        self._atoms: list[tuple[str, tuple[Hashable, ...], tuple[Expr, ...]]] = []
        self._atom_number: dict[tuple[str, tuple[Hashable, ...], tuple[Expr, ...]], Atom] = {}
        self._memo: dict[tuple[Hashable, ...], Expr] = {}
        self._part: dict[tuple[Expr, Expr], bool] = {}

    def __len__(self) -> int:
        return len(self._forms)

    # --- building -----------------------------------------------------------------------------------------------------
    def _form(self, terms: Counter[Monomial]) -> Expr:
        key = tuple(sorted(terms.items(), key=repr))
        if key not in self._number:
            self._number[key] = len(self._forms)
            self._forms.append(key)
        return self._number[key]

    def _atom(self, kind: str, label: tuple[Hashable, ...], args: tuple[Expr, ...]) -> Atom:
        key = (kind, label, args)
        if key not in self._atom_number:
            self._atom_number[key] = len(self._atoms)
            self._atoms.append(key)
        return self._atom_number[key]

    def leaf(self, name: Hashable) -> Expr:
        """An input, or a constant that stands for itself."""
        return self._form(Counter({((), (self._atom("leaf", (name,), ()),), ()): 1}))

    def call(self, function: Hashable, *args: Expr) -> Expr:
        """A function of expressions; `"exp"` and `"sqrt"` are known to the theory."""
        return self._form(Counter({((), (self._atom("call", (function,), args),), ()): 1}))

    def add(self, x: Expr, y: Expr) -> Expr:
        """x + y."""
        key = ("add", *sorted((x, y)))
        if key not in self._memo:
            self._memo[key] = self._form(Counter(dict(self._forms[x])) + Counter(dict(self._forms[y])))
        return self._memo[key]

    def mul(self, x: Expr, y: Expr) -> Expr:
        """x * y."""
        key = ("mul", *sorted((x, y)))
        if key not in self._memo:
            terms: Counter[Monomial] = Counter()
            for (a, m), (b, n) in itertools.product(self._forms[x], self._forms[y]):
                monomial = (_join(a[0], b[0]), self._merge(_join(a[1], b[1])), _join(a[2], b[2]))
                terms[monomial] += m * n
            self._memo[key] = self._form(terms)
        return self._memo[key]

    def div(self, x: Expr, y: Expr, tag: Hashable = None) -> Expr:
        """x / y; quotients with different tags are different functions of y."""
        key = ("div", x, y, tag)
        if key not in self._memo:
            below = self._below(y, tag)
            terms = Counter({(s, n, _join(d, below)): c for (s, n, d), c in self._forms[x]})
            self._memo[key] = self._form(terms)
        return self._memo[key]

    def sum(self, x: Expr, factors: Iterable[Factor]) -> Expr:
        """The sum of x over axes or parts of axes."""
        factors = tuple(sorted(factors, key=repr))
        if not factors:
            return x
        key = ("sum", x, factors)
        if key not in self._memo:
            terms = Counter({(_join(s, factors), n, d): c for (s, n, d), c in self._forms[x]})
            self._memo[key] = self._form(terms)
        return self._memo[key]

    def _below(self, y: Expr, tag: Hashable) -> tuple[Atom, ...]:
        """The denominator atoms of 1/y: each factor of a product by itself."""
        if len(self._forms[y]) == 1 and tag is None:
            ((sums, nums, dens), count) = self._forms[y][0]
            if not sums and not dens and count == 1:
                alone = [self._form(Counter({((), (a,), ()): 1})) for a in nums]
                return tuple(sorted(self._atom("under", (None,), (f,)) for f in alone))
        return (self._atom("under", (tag,), (y,)),)

    def _merge(self, atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
        """Products of exponentials and of roots as one."""
        for function, combine in (("exp", self.add), ("sqrt", self.mul)):
            found = [a for a in atoms if self._atoms[a][:2] == ("call", (function,))]
            if len(found) > 1:
                argument = self._atoms[found[0]][2][0]
                for a in found[1:]:
                    argument = combine(argument, self._atoms[a][2][0])
                rest = [a for a in atoms if a not in found]
                atoms = tuple(sorted([*rest, self._atom("call", (function,), (argument,))]))
        return atoms

    # --- the subexpression test -----------------------------------------------------------------------------------------
    def is_part(self, x: Expr, e: Expr) -> bool:
        """Whether x is a subexpression of e."""
        key = (x, e)
        if key not in self._part:
            self._part[key] = x == e or self._divides(x, e) or any(self.is_part(x, a) for a in self._arguments(e))
        return self._part[key]

    def _divides(self, x: Expr, e: Expr) -> bool:
        wanted, have = self._forms[x], dict(self._forms[e])
        first = wanted[0][0]
        for m in have:
            cofactor = [_minus(m[i], first[i]) for i in range(3)]
            if None in cofactor:
                continue
            s, n, d = (c or () for c in cofactor)
            need: Counter[Monomial] = Counter()
            for (ws, wn, wd), count in wanted:
                need[(_join(ws, s), _join(wn, n), _join(wd, d))] += count
            if all(have.get(k, 0) >= count for k, count in need.items()):
                return True
        return False

    def _arguments(self, e: Expr) -> list[Expr]:
        found: dict[Expr, None] = {}
        for (_, nums, dens), _count in self._forms[e]:
            for a in (*nums, *dens):
                found.update(dict.fromkeys(self._atoms[a][2]))
        return list(found)

    # --- text -------------------------------------------------------------------------------------------------------------
    def text(self, e: Expr) -> str:
        """A readable form."""
        parts = []
        for (sums, nums, dens), count in self._forms[e]:
            top = "*".join(self._atom_text(a) for a in nums) or "1"
            body = top + "".join(f"/{self._atom_text(a)}" for a in dens)
            if sums:
                body = f"sum[{' '.join(str(f) for f in sums)}]({body})"
            parts.append(body if count == 1 else f"{count}*{body}")
        return " + ".join(parts) or "0"

    def _atom_text(self, a: Atom) -> str:
        kind, label, args = self._atoms[a]
        inner = ", ".join(self.text(x) for x in args)
        if kind == "leaf":
            return str(label[0])
        return f"({inner})" if kind == "under" else f"{label[0]}({inner})"


def _join(*parts: Iterable[Hashable]) -> tuple[Hashable, ...]:  # type: ignore[misc]
    merged = list(itertools.chain(*parts))
    return tuple(sorted(merged, key=_sort_key))


def _sort_key(x: Hashable) -> tuple[int, object]:
    return (0, x) if isinstance(x, int) else (1, repr(x))


def _minus(a: tuple[Hashable, ...], b: tuple[Hashable, ...]) -> tuple[Hashable, ...] | None:
    rest = list(a)
    for x in b:
        if x not in rest:
            return None
        rest.remove(x)
    return tuple(rest)
