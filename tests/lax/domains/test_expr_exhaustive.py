"""Abstract expressions against brute-force rewriting with the axioms, on every term up to a size.

A *vocabulary* is some leaves, sum factors and functions; the size of a term is its number of operators. All terms up to a
size are rewritten until nothing is new (`tests/lax/domains/saturated.py`, which does not know `lax.expr`). Then

- two terms have one normal form if and only if they are in one class of equal terms;
- all parts of a term (the subterms of all terms that equal it) are parts by `is_part`;
- nothing else is: every pair of terms is compared, or, for larger vocabularies, each term with what one operator makes of
  its parts. As parts of parts are parts, a term that is wrongly called a part has one of these among its subterms.

`MIRAGE_TERMS=1 pytest tests/lax/domains/test_expr_exhaustive.py` does larger sizes too (four minutes on one core).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from mirage_cli.lax.domains.expr import Expr, Expressions
from tests.lax.domains.saturated import Saturated

BINARY = ("add", "mul", "div")


@dataclass(frozen=True)
class Vocabulary:
    """What terms are made of, the number of operators of the largest, and whether all pairs are compared."""

    leaves: str
    factors: str
    functions: tuple[str, ...]
    size: int
    pairs: bool = False

    def __str__(self) -> str:
        made = "_".join([self.leaves, *self.factors, *self.functions, str(self.size)])
        return made + ("_pairs" if self.pairs else "")


ALL = ("exp", "sqrt", "f")
VOCABULARIES = [
    Vocabulary("xy", "i", ALL, 2, pairs=True),
    Vocabulary("x", "ij", ALL, 3, pairs=True),
    Vocabulary("x", "i", ("sqrt",), 3, pairs=True),
    Vocabulary("x", "i", ("sqrt",), 4),
    Vocabulary("xy", "i", ALL, 3),
    Vocabulary("xyz", "", (), 3),
    Vocabulary("xy", "", (), 4),
]
if os.environ.get("MIRAGE_TERMS") == "1":
    VOCABULARIES += [
        Vocabulary("x", "i", ("sqrt",), 4, pairs=True),
        Vocabulary("xy", "i", ALL, 3, pairs=True),
        Vocabulary("xyz", "", (), 3, pairs=True),
        Vocabulary("xy", "", (), 4, pairs=True),
        Vocabulary("xy", "i", ALL, 4),
        Vocabulary("x", "ij", ALL, 5),
        Vocabulary("xy", "", (), 5),
    ]


class Universe:
    """All terms of a vocabulary: their classes by rewriting and their normal forms."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
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

    def next_to(self, parts: set[int]) -> set[int]:
        """What one operator makes of parts and is no part."""
        some, number = sorted(parts), self.terms.number
        made = [number.get((op, a, b)) for op in BINARY for a in some for b in some if op == "div" or a <= b]
        made += [number.get((f, a)) for f in self.vocabulary.functions for a in some]
        made += [number.get(("sum", i, a)) for i in self.vocabulary.factors for a in some]
        return {c for c in made if c is not None} - parts

    def found(self, asked: Iterable[int], whole: int) -> set[int]:
        """Those that are parts of a term by `lax.expr`."""
        answers = {x for x in asked if self.e.is_part(self.forms[x], self.forms[whole])}
        self.e._parts.clear()  # answers are remembered, and no other term has use for them
        return answers

    def texts(self, pairs: list[tuple[int, int]]) -> list[str]:
        """The first few pairs, to be read."""
        return [f"{self.e.text(self.forms[x])}  in  {self.e.text(self.forms[y])}" for x, y in pairs[:10]]


@pytest.fixture(scope="module", params=VOCABULARIES, ids=str)
def universe(request: pytest.FixtureRequest) -> Universe:
    """Made once for all tests of a vocabulary."""
    return Universe(request.param)


def test_equal_normal_forms_are_equal_terms(universe: Universe) -> None:
    """Equal terms have one form: `Universe` has looked at each node. Others have others."""
    assert len(set(universe.forms.values())) == len(universe.forms) >= len(universe.asked)


def test_all_parts_are_found(universe: Universe) -> None:
    parts = universe.parts
    missed = [(x, whole) for whole in universe.asked for x in parts[whole] - universe.found(parts[whole], whole)]
    assert not missed, universe.texts(missed)


def test_nothing_else_is_found(universe: Universe) -> None:
    asked, wrong = 0, []
    for whole in universe.asked:
        parts = universe.parts[whole]
        others = {*universe.asked} - parts if universe.vocabulary.pairs else universe.next_to(parts)
        asked += len(others)
        wrong += [(x, whole) for x in universe.found(others, whole)]
    assert asked
    assert not wrong, universe.texts(wrong)
