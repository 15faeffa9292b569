"""GELUs that are spelled out in smaller operators, recognised by their structure.

`x (1 + erf(x / sqrt(2))) / 2` is gelu(x), however its factors stand, and so is the spelling with tanh: both sides are
polynomials in x and in the value of erf or tanh, which is a function of which nothing is known, and they are compared
exactly. So whatever else stands in a spelling, a Clip, a Min or a Where, stays. Nothing is concluded from numbers.

Only the irrational constants are not what the formula says: a model stores sqrt(1/2) as its type rounds it. What stands for
one, within that rounding, is listed (`Stands`): proofs take it as it is stored, and reports name it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

from mirage_cli.lax.dtypes import BF16, F16, F32
from mirage_cli.lax.ir.program import Input, Node, Program

#: the atoms of a product with their powers, sorted by name
Monomial: TypeAlias = tuple[tuple[str, int], ...]
Polynomial: TypeAlias = Mapping[Monomial, Fraction]
Stands: TypeAlias = Mapping[str, tuple[Fraction, ...]]  #: function -> the constants as the model stores them

ONE: Monomial = ()
TERMS = 64  #: a polynomial of more terms is not written out
REGION = 48  #: nodes behind the argument of tanh that are looked at
ULPS = 8  #: units of the last place by which a constant, or a product of two, may be off
HALF = Fraction(1, 2)


@dataclass(frozen=True, slots=True)
class Spelling:
    """A function spelled `x (1 + inner(c[0] x + c[1] x^3 + ...)) / 2`; `meant` are the constants, `names` what they are."""

    function: str
    inner: str
    meant: tuple[Fraction, ...]
    names: tuple[str, ...]


_TANH = Fraction(math.sqrt(2 / math.pi))
SPELLINGS = (
    Spelling("gelu", "erf", (Fraction(math.sqrt(0.5)),), ("sqrt(1/2)",)),
    Spelling(
        "gelu_tanh",
        "tanh",
        (_TANH, _TANH * Fraction(0.044715)),
        ("sqrt(2/pi)", "0.044715 sqrt(2/pi)"),
    ),
)


def recognised(p: Program) -> Program:
    """The program with such values as operators of the registry."""
    return recognise(p)[0]


def recognise(p: Program) -> tuple[Program, Stands]:
    """The same, and the constants that stand for irrational ones, by function. All places of a function in a program have the
    same constants: one with others stays as it is spelled."""
    stands: dict[str, tuple[Fraction, ...]] = {}
    for spelling in SPELLINGS:
        for e in [n for n in p.nodes if n.op == spelling.inner]:
            place = _Place(p, spelling, e).find()
            if place is not None and stands.setdefault(spelling.function, place.constants) == place.constants:
                p = place.written(p)
    return p, stands


def expanded(p: Program, stands: Stands) -> Program:
    """The program with these functions written out with the constants that stand in them."""
    spellings = {s.function: s for s in SPELLINGS if s.function in stands}
    nodes: list[Node] = []
    for n in p.nodes:
        nodes += _spelled(n, spellings[n.op], stands[n.op]) if n.op in spellings else [n]
    return replace(p, nodes=tuple(nodes), _axes_of={})


def described(stands: Stands) -> list[str]:
    """The functions that constants are taken for, in words, where they are not exactly that."""
    return [
        f"{float(stored):.9g} in {s.function} stands for {name}"
        for s in SPELLINGS
        for stored, meant, name in zip(stands.get(s.function, ()), s.meant, s.names, strict=False)
        if stored != meant
    ]


def _spelled(n: Node, spelling: Spelling, constants: Sequence[Fraction]) -> Iterator[Node]:
    """The nodes of `x (1 + inner(x (c0 + c1 x x))) / 2`, the last one called like `n`."""
    (x,) = n.inputs
    count = 0

    def node(op: str, *inputs: str, value: Fraction | None = None) -> Node:
        nonlocal count
        count += 1
        return Node(f"{n.name}.{count}", op, inputs, value=value)

    total = node("const", value=constants[-1])
    yield total
    for c in reversed(constants[:-1]):
        yield from (square := node("mul", x, x), product := node("mul", total.name, square.name))
        yield (constant := node("const", value=c))
        yield (total := node("add", product.name, constant.name))
    yield (argument := node("mul", x, total.name))
    yield (inner := node(spelling.inner, argument.name))
    yield (one := node("const", value=Fraction(1)))
    yield (more := node("add", one.name, inner.name))
    yield (half := node("const", value=HALF))
    yield (halved := node("mul", x, half.name))
    yield replace(n, op="mul", inputs=(halved.name, more.name))


# --- finding them -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Match:
    """`node` is `factor` times the function of value `x`."""

    node: Node
    function: str
    x: str
    factor: Fraction
    constants: tuple[Fraction, ...]

    def written(self, p: Program) -> Program:
        """The program with the node as that."""
        nodes: list[Node] = []
        for n in p.nodes:
            nodes += self._nodes() if n is self.node else [n]
        return replace(p, nodes=tuple(nodes), _axes_of={})

    def _nodes(self) -> list[Node]:
        name = self.node.name
        if self.factor == 1:
            return [Node(name, self.function, (self.x,))]
        names = (f"{name}.{self.function}", f"{name}.factor")
        return [
            Node(names[0], self.function, (self.x,)),
            Node(names[1], "const", value=self.factor),
            Node(name, "mul", names),
        ]


class _Place:
    """One erf or tanh of a program, and what may be the function around it."""

    def __init__(self, p: Program, spelling: Spelling, inner: Node) -> None:
        self.p, self.spelling, self.inner = p, spelling, inner
        self.definitions: dict[str, Node | Input] = {i.name: i for i in p.inputs} | {n.name: n for n in p.nodes}
        self.order = {n.name: k for k, n in enumerate(p.nodes)}
        self.tolerance = _tolerance(p)

    def find(self) -> _Match | None:
        """The largest value that is the function, or None."""
        for x in self.candidates():
            atoms = self.atoms(x)
            value = self.polynomial(x, atoms)
            argument = None if value is None else self.polynomial(self.inner.inputs[0], atoms)
            if value is None or argument is None:
                continue
            constants = self.constants(argument, value)
            function = None if constants is None else self.around(x, value, atoms, constants)
            if function is not None:
                return function
        return None

    def candidates(self) -> list[str]:
        """Candidates for what the argument is a function of: the values behind it, over the operators of polynomials."""
        candidates: dict[str, None] = {}
        todo = [self.inner.inputs[0]]
        while todo and len(candidates) < REGION:
            v = todo.pop(0)
            if v in candidates:
                continue
            candidates[v] = None
            n = self.definitions[v]
            if isinstance(n, Node) and n.op in ("mul", "div", "add", "sub", "neg"):
                todo += n.inputs
        return [v for v in candidates if not self.is_constant(v)]

    def is_constant(self, v: str) -> bool:
        n = self.definitions[v]
        return isinstance(n, Node) and n.op == "const"

    def atoms(self, x: str) -> frozenset[str]:
        """Values that are not looked into: `x`, or where it is a product or quotient what it is made of."""
        n = self.definitions[x]
        if isinstance(n, Node) and n.op in ("mul", "div"):
            return frozenset(n.inputs) | {self.inner.name}
        return frozenset([x, self.inner.name])

    def constants(self, argument: Polynomial, x: Polynomial) -> tuple[Fraction, ...] | None:
        """c where the argument is c[0] x + c[1] x^3 ... and each is what is meant, as a type may round it."""
        constants: list[Fraction] = []
        rest, power = argument, x
        for meant in self.spelling.meant:
            c = _ratio(rest, power)
            if c is None or abs(c - meant) > self.tolerance * abs(meant):
                return None
            constants.append(c)
            rest = _sum(rest, power, -c)
            power = _product(power, _product(x, x))
        return None if rest else tuple(constants)

    def around(
        self, x: str, value: Polynomial, atoms: frozenset[str], constants: tuple[Fraction, ...]
    ) -> _Match | None:
        """The largest node that is a multiple of x (1 + inner)."""
        wanted = _product(value, {ONE: Fraction(1), ((self.inner.name, 1),): Fraction(1)})
        behind = {self.inner.name}
        best: _Match | None = None
        for n in self.p.nodes[self.order[self.inner.name] + 1 :]:
            if not behind.intersection(n.inputs) or n.op not in ("mul", "div", "add", "sub", "neg"):
                continue
            polynomial = self.polynomial(n.name, atoms)
            if polynomial is None:
                continue
            behind.add(n.name)
            factor = _ratio(polynomial, wanted)
            if factor and not _sum(polynomial, wanted, -factor):
                best = _Match(n, self.spelling.function, x, factor / HALF, constants)
        return best

    def polynomial(self, v: str, atoms: frozenset[str]) -> Polynomial | None:
        """A value as a polynomial in atoms, of which some are given; None where it has too many terms."""
        known: dict[str, Polynomial | None] = {}
        todo = [v]
        while todo:
            u = todo[-1]
            n = self.definitions[u]
            if u in known:
                todo.pop()
            elif isinstance(n, Input) or u in atoms or n.op not in _ARITHMETIC or not _is_rational(n):
                known[todo.pop()] = {((u, 1),): Fraction(1)}
            elif missing := [i for i in n.inputs if i not in known]:
                todo += missing
            else:
                known[todo.pop()] = _applied(n, [known[i] for i in n.inputs])
        return known[v]


_ARITHMETIC = ("const", "mul", "div", "add", "sub", "neg")


def _is_rational(n: Node) -> bool:
    return n.op != "const" or isinstance(n.value, Fraction)


def _tolerance(p: Program) -> Fraction:
    """The relative error that constants of the coarsest type of a program may have."""
    types = {s.dtype for s in p.sources} | {o.dtype for o in p.outputs}
    unit = max((t.epsilon for t in (F16, BF16) if t in types), default=F32.epsilon)
    return Fraction(ULPS * unit)


# --- polynomials --------------------------------------------------------------------------------------------------------
def _applied(n: Node, args: Sequence[Polynomial | None]) -> Polynomial | None:
    """An operator of `_ARITHMETIC` on polynomials; None where the result is none, or has too many terms."""
    known = [a for a in args if a is not None]
    if len(known) < len(args):
        return None
    match n.op:
        case "const":
            assert isinstance(n.value, Fraction)
            return {ONE: n.value} if n.value else {}
        case "neg":
            return {m: -c for m, c in known[0].items()}
        case "add" | "sub":
            result = _sum(known[0], known[1], Fraction(1 if n.op == "add" else -1))
        case "mul":
            if len(known[0]) * len(known[1]) > TERMS:
                return None
            result = _product(known[0], known[1])
        case _:
            if len(known[1]) != 1:
                return None
            ((monomial, c),) = known[1].items()
            result = _product(known[0], {tuple((a, -k) for a, k in monomial): 1 / c})
    return result if len(result) <= TERMS else None


def _sum(x: Polynomial, y: Polynomial, factor: Fraction) -> Polynomial:
    """x + factor y."""
    total = dict(x)
    for m, c in y.items():
        total[m] = total.get(m, Fraction(0)) + factor * c
    return {m: c for m, c in total.items() if c}


def _product(x: Polynomial, y: Polynomial) -> Polynomial:
    total: dict[Monomial, Fraction] = {}
    for m, c in x.items():
        for k, d in y.items():
            powers = dict(m)
            for atom, power in k:
                powers[atom] = powers.get(atom, 0) + power
            both = tuple(sorted((a, n) for a, n in powers.items() if n))
            total[both] = total.get(both, Fraction(0)) + c * d
    return {m: c for m, c in total.items() if c}


def _ratio(x: Polynomial, y: Polynomial) -> Fraction | None:
    """c where x and c y agree in the first term of y; None where that cannot be told."""
    first = min(y, default=None)
    return None if first is None or first not in x else x[first] / y[first]
