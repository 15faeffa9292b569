"""Equality and subexpressions by brute force: terms are rewritten with the axioms of abstract expressions until nothing is
new. It knows nothing of `lax.expr` and no normal form: only the axioms, in both directions, at every place of every term.

Terms are kept as classes of equal terms (congruence closure): a node is an operator on classes, ("add", 3, 7), and stands
for all terms whose operands are in those classes. Rewriting changes no term's expansion into a sum of products, so finitely
many terms are equal to one and this ends. A class then holds every term, of any size, that equals one of its terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

Node: TypeAlias = tuple  # ("leaf", name) | ("sum", factor, class) | (function, class) | (operator, class, class)
COMMUTATIVE = ("add", "mul")


class Saturated:
    """Classes of equal terms. `add` terms, then `saturate`; class numbers are then those of `find`."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.number: dict[Node, int] = {}
        self.nodes: list[dict[Node, None]] = []  #: the nodes of each class (in order, so that runs are alike)
        self.fresh: set[int] = set()  #: classes with new nodes since they were last looked at

    def find(self, c: int) -> int:
        """The number that stands for a class now."""
        while self.parent[c] != c:
            self.parent[c] = c = self.parent[self.parent[c]]
        return c

    def node(self, op: str, *args: object) -> int:
        """The class of an operator on classes (a sum's factor and a leaf's name come first)."""
        return self._put(self._canonical((op, *args)))

    def _canonical(self, n: Node) -> Node:
        if n[0] == "leaf":
            return n
        if n[0] == "sum":
            return ("sum", n[1], self.find(n[2]))
        args = [self.find(c) for c in n[1:]]
        return (n[0], *(sorted(args) if n[0] in COMMUTATIVE else args))

    def _put(self, n: Node) -> int:
        if n not in self.number:
            c = self.number[n] = len(self.parent)
            self.parent.append(c)
            self.nodes.append({n: None})
            self.fresh.add(c)
        return self.find(self.number[n])

    def _unite(self, a: int, b: int) -> bool:
        a, b = self.find(a), self.find(b)
        if a == b:
            return False
        if len(self.nodes[a]) < len(self.nodes[b]):
            a, b = b, a
        self.parent[b] = a
        self.nodes[a].update(self.nodes[b])
        self.nodes[b] = {}
        self.fresh.add(a)
        return True

    def saturate(self) -> None:
        """Rewrite until nothing is new."""
        while self.fresh:
            self._close()
            fresh, self.fresh = {self.find(c) for c in self.fresh}, set()
            found = []
            for n, c in [*self.number.items()]:
                if self.find(c) in fresh or any(k in fresh for k in children(n)):
                    found += [(c, other) for other in self._rewrites(n)]
            for c, other in found:
                self._unite(c, other)

    def _close(self) -> None:
        """Equal operands make equal nodes."""
        changed = True
        while changed:
            changed = False
            number: dict[Node, int] = {}
            for n, c in self.number.items():
                n = self._canonical(n)
                if n in number:
                    changed |= self._unite(number[n], c)
                number[n] = self.find(c)
            self.number = number
        for c, nodes in enumerate(self.nodes):
            self.nodes[c] = {self._canonical(n): None for n in nodes}
            if self.nodes[c] != nodes:
                self.fresh.add(c)

    def _with(self, op: str, c: int) -> Iterator[Node]:
        return (n for n in self.nodes[self.find(c)] if n[0] == op)

    def _pairs(self, op: str, c: int) -> Iterator[tuple[int, int]]:
        """The operands of the nodes of a class with a binary operator, in both orders if it commutes."""
        for _, x, y in self._with(op, c):
            yield x, y
            if op in COMMUTATIVE:
                yield y, x

    def _rewrites(self, n: Node) -> Iterator[int]:
        """The classes of all terms that one axiom makes of a node at its root."""
        make = self.node
        op = n[0]
        if op == "sum":
            yield from self._sums(n[1], n[2])
        elif op in ("exp", "sqrt"):
            inner = "add" if op == "exp" else "mul"
            for x, y in self._pairs(inner, n[1]):
                yield make("mul", make(op, x), make(op, y))
        elif op in ("add", "mul"):
            for x, y in ((n[1], n[2]), (n[2], n[1])):
                for p, q in self._pairs(op, x):
                    yield make(op, p, make(op, q, y))
                yield from self._additions(x, y) if op == "add" else self._products(x, y)
        elif op == "div":
            yield from self._quotients(n[1], n[2])

    def _sums(self, i: str, x: int) -> Iterator[int]:
        """sum(i, x)."""
        make = self.node
        for _, j, y in self._with("sum", x):
            yield make("sum", j, make("sum", i, y))
        for p, q in self._pairs("add", x):
            yield make("add", make("sum", i, p), make("sum", i, q))
        for op in ("mul", "div"):
            for p, q in self._pairs(op, x):
                yield make(op, make("sum", i, p), q)

    def _additions(self, x: int, y: int) -> Iterator[int]:
        """x + y: what both have in common as a factor, a denominator, a sum."""
        make = self.node
        for op in ("mul", "div"):
            common: dict[int, list[int]] = {}
            for q, z in self._pairs(op, y):
                common.setdefault(z, []).append(q)
            for p, z in self._pairs(op, x):
                for q in common.get(z, ()):
                    yield make(op, make("add", p, q), z)
        for _, i, p in self._with("sum", x):
            for _, j, q in self._with("sum", y):
                if i == j:
                    yield make("sum", i, make("add", p, q))

    def _products(self, x: int, y: int) -> Iterator[int]:
        """x * y."""
        make = self.node
        for p, q in self._pairs("add", x):
            yield make("add", make("mul", p, y), make("mul", q, y))
        for p, q in self._pairs("div", x):
            yield make("div", make("mul", p, y), q)
        for _, i, p in self._with("sum", x):
            yield make("sum", i, make("mul", p, y))
        for op, inner in (("exp", "add"), ("sqrt", "mul")):
            for _, p in self._with(op, x):
                for _, q in self._with(op, y):
                    yield make(op, make(inner, p, q))

    def _quotients(self, x: int, z: int) -> Iterator[int]:
        """x / z."""
        make = self.node
        for p, q in self._pairs("add", x):
            yield make("add", make("div", p, z), make("div", q, z))
        for p, q in self._pairs("mul", x):
            yield make("mul", p, make("div", q, z))
        for p, q in self._pairs("div", x):
            yield make("div", p, make("mul", q, z))
        for p, q in self._pairs("mul", z):
            yield make("div", make("div", x, p), q)
        for _, i, p in self._with("sum", x):
            yield make("sum", i, make("div", p, z))

    def parts(self) -> dict[int, set[int]]:
        """For each class the classes of all subterms of its terms."""
        known: dict[int, set[int]] = {}

        def visit(c: int) -> set[int]:
            if c not in known:
                inside = [visit(k) for n in self.nodes[c] for k in children(n)]
                known[c] = {c}.union(*inside)
            return known[c]

        for c in self.classes():
            visit(c)
        return known

    def classes(self) -> list[int]:
        """The numbers of all classes."""
        return [c for c, p in enumerate(self.parent) if c == p]


def children(n: Node) -> tuple[int, ...]:
    """The classes of a node's operands."""
    return () if n[0] == "leaf" else n[2:] if n[0] == "sum" else n[1:]
