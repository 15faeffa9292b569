"""Abstract expressions against brute-force rewriting with the axioms, on every term up to a size.

A *vocabulary* is some leaves, sum factors and functions; the size of a term is its number of operators. All terms up to a
size are rewritten until nothing is new (`tests/lax/saturated.py`, which does not know `lax.expr`). Then

- two terms have one normal form if and only if they are in one class of equal terms;
- all parts of a term (the subterms of all terms that equal it) are parts by `is_part`;
- nothing else is. `ALL_PAIRS` compares every pair of terms. `NEXT` compares, for each term, what one operator makes of
  its parts: as parts of parts are parts, a term that is wrongly called a part has one like that among its subterms.

`MIRAGE_TERMS=1 pytest tests/lax/test_expr_exhaustive.py` does larger sizes too (some minutes, 500 MB).
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

import pytest

from mirage_cli.lax.expr import Expr, Expressions
from tests.lax.saturated import Saturated

BINARY = ("add", "mul", "div")


@dataclass(frozen=True)
class Vocabulary:
    """What terms are made of, and the number of operators of the largest."""

    leaves: str
    factors: str
    functions: tuple[str, ...]
    size: int

    def __str__(self) -> str:
        return f"{self.leaves} {self.factors} {' '.join(self.functions)} {self.size}"


ALL_PAIRS = [
    Vocabulary("xy", "i", ("exp", "sqrt", "f"), 2),
    Vocabulary("x", "ij", ("exp", "sqrt", "f"), 3),
    Vocabulary("x", "i", ("sqrt",), 3),
]
NEXT = [
    Vocabulary("x", "i", ("sqrt",), 4),
    Vocabulary("xy", "i", ("exp", "sqrt", "f"), 3),
    Vocabulary("xyz", "", (), 3),
    Vocabulary("xy", "", (), 4),
]
if os.environ.get("MIRAGE_TERMS") == "1":
    ALL_PAIRS += [
        Vocabulary("x", "i", ("sqrt",), 4),
        Vocabulary("xy", "i", ("exp", "sqrt", "f"), 3),
        Vocabulary("xyz", "", (), 3),
        Vocabulary("xy", "", (), 4),
    ]
    NEXT += [
        Vocabulary("xy", "i", ("exp", "sqrt", "f"), 4),
        Vocabulary("x", "ij", ("exp", "sqrt", "f"), 5),
        Vocabulary("xy", "", (), 5),
    ]


class Universe:
    """All terms of a vocabulary: their classes by rewriting and their normal forms."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.terms = Saturated()
        self.e = Expressions()
        self.asked = self._enumerate(vocabulary)  #: the classes of the terms up to the size
        self.parts = self.terms.parts()
        self.forms: dict[int, Expr] = {}
        for c in self.terms.classes():
            self._form(c)

    def _enumerate(self, v: Vocabulary) -> list[int]:
        """A term of some size is equal to an operator on representatives of its operands: one for each class will do."""
        t = self.terms
        sizes = [[t.node("leaf", name) for name in v.leaves]]
        for size in range(1, v.size + 1):
            made = [t.node("sum", i, c) for i in v.factors for c in sizes[-1]]
            made += [t.node(f, c) for f in v.functions for c in sizes[-1]]
            for k in range(size):
                made += [t.node(op, a, b) for op in BINARY for a in sizes[k] for b in sizes[size - 1 - k]]
            t.saturate()
            sizes = [list(dict.fromkeys(map(t.find, level))) for level in [*sizes, made]]
        return list(dict.fromkeys(c for level in sizes for c in level))

    def _form(self, c: int) -> Expr:
        """The normal form of a class: that of each of its terms."""
        if c not in self.forms:
            forms = {self._made(*n) for n in self.terms.nodes[c]}
            assert len(forms) == 1, f"{len(forms)} forms of equal terms: {[self.e.text(x) for x in forms]}"
            self.forms[c] = forms.pop()
        return self.forms[c]

    def _made(self, op: str, *args: object) -> Expr:
        match op, args:
            case "leaf", (str(name),):
                return self.e.leaf(name)
            case "sum", (str(i), int(x)):
                return self.e.sum(self._form(x), [i])
            case "add" | "mul" | "div", (int(x), int(y)):
                return getattr(self.e, op)(self._form(x), self._form(y))
            case _, (int(x),):
                return self.e.call(op, self._form(x))
        raise AssertionError((op, args))

    def is_part(self, x: int, whole: int) -> bool:
        """The answer of `lax.expr`."""
        return self.e.is_part(self.forms[x], self.forms[whole])

    def texts(self, pairs: list[tuple[int, int]]) -> list[str]:
        """The first few pairs, to be read."""
        return [f"{self.e.text(self.forms[x])}  in  {self.e.text(self.forms[y])}" for x, y in pairs[:10]]


@functools.cache
def universe(v: Vocabulary) -> Universe:
    """Made once for all tests."""
    return Universe(v)


EVERY = pytest.mark.parametrize("v", dict.fromkeys([*ALL_PAIRS, *NEXT]), ids=str)


@EVERY
def test_equal_normal_forms_are_equal_terms(v: Vocabulary) -> None:
    """Equal terms have one form: `Universe` has looked at each node. Others have others."""
    u = universe(v)
    assert len(set(u.forms.values())) == len(u.forms) >= len(u.asked)


@EVERY
def test_all_parts_are_found(v: Vocabulary) -> None:
    u = universe(v)
    missed = [(x, whole) for whole in u.asked for x in u.parts[whole] if not u.is_part(x, whole)]
    assert not missed, u.texts(missed)


@pytest.mark.parametrize("v", ALL_PAIRS, ids=str)
def test_nothing_else_is_found(v: Vocabulary) -> None:
    u = universe(v)
    wrong = [(x, y) for y in u.asked for x in u.asked if u.is_part(x, y) != (x in u.parts[y])]
    assert not wrong, u.texts(wrong)


@pytest.mark.parametrize("v", NEXT, ids=str)
def test_nothing_is_found_next_to_the_parts(v: Vocabulary) -> None:
    u = universe(v)
    number, wrong, asked = u.terms.number, [], 0
    for whole in u.asked:
        parts = sorted(u.parts[whole])
        made = [number.get((op, a, b)) for op in BINARY for a in parts for b in parts if op == "div" or a <= b]
        made += [number.get((f, a)) for f in v.functions for a in parts]
        made += [number.get(("sum", i, a)) for i in v.factors for a in parts]
        others = {c for c in made if c is not None} - u.parts[whole]
        asked += len(others)
        wrong += [(x, whole) for x in others if u.is_part(x, whole)]
    assert asked
    assert not wrong, u.texts(wrong)
