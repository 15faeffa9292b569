"""The proof's first half: that a program in normal form computes what the nodes of the file state.

What the front end reads, step by step, is one program (`instantiate.untidied`); what is searched, proved and named is
another: spellings, axes, constants and denominators have been brought into one form (lax/fragments/spelling.py,
lax/normal/identify.py, normalise.py, functions.py). Both are evaluated here over the residues of random primes, as
programs and muGraphs are in `verify`, with the same variables for the same stored elements, and have to agree.
docs/proof.md has the theorem.

Both are evaluated at few positions of their results, chosen at random, since the formulas of the others are the same:
along axes on which an operator of either may tell positions apart there are all of them (`_Places`).

Comparisons of positions that all positions answer alike are numbers, in both (lax/normal/comparisons.py): a window that is
longer than the sequence is none.

Where exponentials have maxima in them there are two readings: `exp(x - max(x))` as it is, or as `exp(x) / exp(max(x))`.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.bounds.bound import Arguments, Bound, Degrees, difference, largest_difference, program_figures
from mirage_cli.lax.domains.field import Residue, Residues, ZeroDenominator, random_primes
from mirage_cli.lax.ir.program import REDUCTIONS, Node, Program, Slot, last_uses, node_value
from mirage_cli.lax.normal import functions, hiding
from mirage_cli.lax.normal.canonical import stabilise
from mirage_cli.lax.normal.comparisons import decided
from mirage_cli.lax.normal.identify import prune, share_axes
from mirage_cli.lax.normal.normalise import normalise
from mirage_cli.lax.ops import QUOTIENTS
from mirage_cli.search.proof.shrink import numbered, shrunk

Positions: TypeAlias = NDArray[np.int64]

CONFIDENCE = 40  #: bits
MIN_FIELDS, MAX_FIELDS = 3, 16
MAX_DRAWS = 8  #: random points that are tried when denominators vanish
PLACES = 2  #: random positions of each result
AFFORDABLE = 4e6  #: elements of all values of both programs; above it axes are shortened
PATIENT = 6e7  #: the same where short axes do not do
SYMBOL_LIMIT = 1 << 20  #: what a symbol is taken to be at most when the bound is computed
_COMPARED = {"eq": lambda x, y: x == y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y}
_COUNTED: dict[str, Any] = _COMPARED | {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "neg": lambda x: -x, "not": lambda x: 1 - x, "and": lambda x, y: x * y, "or": lambda x, y: x + y - x * y,
}  # fmt: skip
_EXACT = 1 << 30  #: integers up to which products are in an int64


@dataclass(frozen=True, slots=True)
class Statement:
    """The answer whether a program is what the nodes state, with its error bound (2 ** `log2_bound`) or the reason
    why not; `assumptions` are what else has to hold for both to be equal."""

    passed: bool
    log2_bound: float
    reason: str = ""
    assumptions: tuple[str, ...] = ()
    primes: tuple[int, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The report's `verification.statement`."""
        bound = 2.0**self.log2_bound if self.log2_bound > -1000 else 0.0
        return {
            "passed": self.passed,
            "error_bound": bound,
            "assumptions": list(self.assumptions),
            "primes": list(self.primes),
            "seconds": self.seconds,
        } | ({"reason": self.reason} if self.reason else {})


def prove_statement(
    stated: Program,
    program: Program,
    key: str = "",
    confidence: int = CONFIDENCE,
    sizes: Sequence[Mapping[str, int]] = ({},),
) -> Statement:
    """Prove or refute that `program` computes what `stated` does; both have the same sources, by name, and the same outputs.
    `key` is what random points are drawn from, `sizes` are assignments of the symbols of both at which they are compared."""
    start = time.perf_counter()
    stated, low = hiding.hidden_scores(stated)
    stands = functions.recognise(normalise(stabilise(stated)))[1]
    try:
        first, second = (decided(functions.expanded(p, stands)) for p in (stated, _sources_of(program, stated)))
        pair = _Pair(first, second, tuple(sizes))
        bound, primes, reason = pair.compared(f"{key} {stated.key()} {program.key()}", confidence)
    except Refused as refusal:
        bound, primes, reason = 0.0, (), str(refusal)
    return Statement(
        not reason,
        bound,
        reason,
        (*functions.described(stands), *hiding.described(low), *assumptions_of(program)),
        primes,
        time.perf_counter() - start,
    )


def assumptions_of(program: Program) -> list[str]:
    """The assumptions of proofs about a program, in words."""
    ops = {n.op for n in program.nodes}
    inf = any(isinstance(n.value, float) for n in program.nodes)
    assumptions = [
        "inputs and results are finite numbers" + (", but for the infinities and NaN that the model stores" * inf)
    ]
    if ops & {*QUOTIENTS, "recip", "rsqrt", "softsign", "sigmoid", "silu"}:
        assumptions.append("no denominator is 0")
    if "div0" in ops:
        assumptions.append("a share of a sum that the model makes 0 where it is NaN is 0 where the sum is NaN or 0")
    if "share" in ops:
        assumptions.append("a share of 0 is 0 where the model's operators say so")
    if "stable_exp" in ops:
        assumptions.append("exp(x - c) is exp(x) / exp(c) for the maximum c of a softmax")
    if ops & {"and", "or", "xor", "not", "where"}:
        assumptions.append("conditions are 0 or 1")
    return [*assumptions, "rounding, which the float check looks at"]


def _sources_of(program: Program, stated: Program) -> Program:
    """The program with its sources numbered as in `stated`. Raises Refused for one that it lacks."""
    names = [s.name for s in stated.sources]
    missing = [s.name for s in program.sources if s.name not in names]
    if missing or len(set(names)) != len(names):
        raise Refused(f"its nodes do not read {', '.join(missing) or 'different tensors'}")
    inputs = tuple(replace(i, source=names.index(program.sources[i.source].name)) for i in program.inputs)
    return replace(program, sources=stated.sources, inputs=inputs, _axes_of={})


# --- two programs -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Pair:
    """The program of the nodes, and the one that is to be it."""

    stated: Program
    program: Program
    sizes: tuple[Mapping[str, int], ...]

    def compared(self, key: str, confidence: int) -> tuple[float, tuple[int, ...], str]:
        """log2 of the error bound, the primes, and why they differ, in both readings, or nothing."""
        first = ""
        for reading in (_plain, _shifted):
            pair = [reading(p) for p in (self.stated, self.program)]
            bound, fields = _bound(pair, confidence)
            if bound > -confidence:
                raise Refused(f"the error bound 2^{bound:.1f} is above the 2^-{confidence} asked for")
            for exact in (False, True):
                primes, reason = _differ(pair, self.sizes, key, fields, exact)
                if not reason:
                    return bound + 2, primes, ""  # four ways in all
                first = first or reason
        return 0.0, (), first


def _bound(pair: Sequence[Program], confidence: int) -> tuple[float, int]:
    """log2 of the error bound, and how many fields it takes."""
    symbols = {s: SYMBOL_LIMIT for p in pair for s in p.symbols}
    arguments = Arguments()
    figures = [program_figures(p, symbols, lambda extents: Degrees(extents, arguments)) for p in pair]
    worst = largest_difference([difference(x, y) for x, y in zip(*figures, strict=True)])
    fields = MIN_FIELDS

    def bound() -> float:
        of = (worst.degree, worst.bits, arguments.degree, arguments.bits, worst.applications)
        return Bound(*of, fields, MAX_DRAWS).log2

    while bound() > -confidence - 2 and fields < MAX_FIELDS:
        fields += 1
    return bound(), fields


def _plain(p: Program) -> Program:
    """Stabilised exponentials as exp(x - max(x))."""
    return _written(
        p, lambda n, top: [top, Node(f"{n.name}.d", "sub", (n.inputs[0], top.name)), _exp(n.name, f"{n.name}.d")]
    )


def _shifted(p: Program) -> Program:
    """exp(x - c), for a maximum c, as exp(x) / exp(c), and stabilised exponentials so too."""
    node_of = {n.name: n for n in p.nodes}
    nodes: list[Node] = []
    for n in p.nodes:
        d = node_of.get(n.inputs[0]) if n.op == "exp" else None
        top = node_of.get(d.inputs[1]) if d is not None and d.op == "sub" else None
        if d is not None and top is not None and top.op == "max" and top.over:
            nodes += _quotient(n.name, d.inputs[0], top.name)
        else:
            nodes.append(n)
    p = replace(p, nodes=tuple(nodes), _axes_of={})
    return _written(p, lambda n, top: [top, *_quotient(n.name, n.inputs[0], top.name)])


def _written(p: Program, spell: Any) -> Program:
    """The program with stabilised exponentials written out."""
    nodes: list[Node] = []
    for n in p.nodes:
        if n.op == "stable_exp":
            nodes += spell(n, Node(f"{n.name}.m", "max", n.inputs, n.over))
        else:
            nodes.append(n)
    return prune(replace(p, nodes=tuple(nodes), _axes_of={})) if nodes != list(p.nodes) else p


def _exp(name: str, x: str) -> Node:
    return Node(name, "exp", (x,))


def _quotient(name: str, x: str, top: str) -> list[Node]:
    parts = (f"{name}.n", f"{name}.c")
    return [_exp(parts[0], x), _exp(parts[1], top), Node(name, "div", parts)]


# --- evaluating them --------------------------------------------------------------------------------------------------
def _differ(
    pair: Sequence[Program], sizes: Sequence[Mapping[str, int]], key: str, fields: int, exact: bool
) -> tuple[tuple[int, ...], str]:
    """The primes, and why two programs differ at random points, or nothing. Positions are arbitrary numbers, or `exact` ones.
    Raises Refused where that is too much work."""
    primes: tuple[int, ...] = ()
    for symbols in sizes:
        own = [numbered(p, symbols) for p in pair]
        for number in range(len(own[0].outputs)):
            one = [share_axes(prune(replace(p, outputs=(p.outputs[number],), _axes_of={}))) for p in own]
            primes, reason = _affordable(one, f"{key} output {number} {sorted(symbols.items())}", fields, exact)
            if reason:
                return primes, f"output {number}: {reason}"
    return primes, ""


def _affordable(pair: list[Program], key: str, fields: int, exact: bool) -> tuple[tuple[int, ...], str]:
    """The same for programs of one output without symbols, at shorter extents where the real ones take too long."""
    seed = _number(key)
    places = _Places.of(pair, seed, exact)
    if places.work > AFFORDABLE:
        short = shrunk(pair, exact)
        smaller = None if short is None else _Places.of(short, seed, exact)
        if smaller is not None and smaller.work <= AFFORDABLE:
            primes, reason = smaller.compared(key, fields)
            if not reason or places.work > PATIENT:
                return primes, reason
    if places.work > PATIENT:
        raise Refused(f"comparing it with its nodes would take {places.work:.1e} operations")
    return places.compared(key, fields)


@dataclass(frozen=True, slots=True)
class _Places:
    """Two programs of one output and the positions of each axis at which they are evaluated: all, or those at which chosen
    results lie. `exact` says that positions count as the numbers that they are."""

    pair: tuple[Program, ...]
    at: tuple[Mapping[str, Positions], ...]
    exact: bool

    @staticmethod
    def of(pair: Sequence[Program], seed: int, exact: bool) -> _Places:
        """Random results, and all that are as far from being alike: those that some operator of either program tells apart."""
        free = [_independent(p, exact) for p in pair]
        size = math.prod(ex.value(s.extent, {}) for s in pair[0].outputs[0].access)
        chosen = np.unique(np.random.default_rng(seed).integers(0, max(size, 1), PLACES)) if size else np.arange(0)
        while True:
            at = [_projected(p, own, chosen) for p, own in zip(pair, free, strict=True)]
            work = [_evaluated_elements(p, a) for p, a in zip(pair, at, strict=True)]
            if max(work) > PATIENT:
                break
            more = np.unique(np.concatenate([chosen, *(_flat(p, a).ravel() for p, a in zip(pair, at, strict=True))]))
            if len(more) == len(chosen):
                break
            chosen = more
        return _Places(tuple(pair), tuple(at), exact)

    @property
    def work(self) -> float:
        """Elements of all values, and of what is multiplied for them."""
        return max(_evaluated_elements(p, a) for p, a in zip(self.pair, self.at, strict=True))

    def compared(self, key: str, fields: int) -> tuple[tuple[int, ...], str]:
        """The primes, and why the results differ, or nothing."""
        primes: tuple[int, ...] = ()
        for draw in range(MAX_DRAWS):
            seed = _number(f"{key}, draw {draw}")
            primes = random_primes(seed, fields)
            try:
                results = [
                    _Evaluation(p, a, seed, primes, self.exact).output()
                    for p, a in zip(self.pair, self.at, strict=True)
                ]
            except ZeroDenominator:
                continue
            except (ValueError, IndexError, KeyError) as e:
                raise InvalidGraph(f"the program does not fit its nodes: {e}") from None
            return primes, self.difference(results)
        return primes, f"{MAX_DRAWS} random points met a division by zero"

    def difference(self, results: Sequence[Residue]) -> str:
        flat, other = (_flat(p, a).ravel() for p, a in zip(self.pair, self.at, strict=True))
        _, first, second = np.intersect1d(flat, other, return_indices=True)
        wanted, own = (v.reshape(len(v), -1)[:, k] for v, k in zip(results, (first, second), strict=True))
        if np.array_equal(wanted, own):
            return ""
        place = int(flat[first[np.argwhere((wanted != own).any(axis=0))[0][0]]])
        return f"what is proved differs from what the nodes mean, at element {place}"


def _independent(p: Program, exact: bool) -> frozenset[str]:
    """The axes along which all positions have the same formula: nothing reduces them, every tensor has them whole and in one
    place. Positions that operators read are variables like inputs, but where they are exact."""
    dependent: set[str | None] = {
        a for n in p.nodes for a in (*n.over, *((n.axis,) if exact or n.op == "extent" else ()))
    }
    ways: dict[int, list[tuple[Slot, ...]]] = {}
    for i in p.inputs:
        ways.setdefault(i.source, []).append(i.access)
        dependent |= _partly(p, i.access)
    for o in p.outputs:
        dependent |= _partly(p, o.access)
    for accesses in ways.values():
        if any([s.extent for s in a] != [s.extent for s in accesses[0]] for a in accesses):
            dependent |= {s.axis for a in accesses for s in a}
        for column in zip(*accesses, strict=False):
            axes = {s.axis for s in column}
            dependent |= axes if len(axes) > 1 else set()
    return frozenset(a.name for a in p.axes if a.name not in dependent)


def _partly(p: Program, access: Sequence[Slot]) -> set[str | None]:
    """Axes that walk a part of a stored run, or two runs."""
    walked = [s.axis for s in access]
    return {s.axis for s in access if s.axis and (s.offset or s.extent != p.extent(s.axis) or walked.count(s.axis) > 1)}


def _projected(p: Program, free: frozenset[str], chosen: Positions) -> dict[str, Positions]:
    """The positions of each axis: all, or of free ones those that chosen results have."""
    at = {a.name: np.arange(ex.value(a.extent, {})) for a in p.axes}
    inner = 1
    for s in reversed(p.outputs[0].access):
        assert isinstance(s.extent, int)
        if s.axis in free:
            at[s.axis] = np.unique(chosen // inner % s.extent)
        inner *= s.extent
    return at


def _along(p: Program, axis: str, values: NDArray[Any]) -> NDArray[Any]:
    """Values along one axis, the others with extent 1."""
    place = [a.name for a in p.axes].index(axis)
    shape = [1] * len(p.axes)
    shape[place] = len(values)
    return values.reshape(shape)


def _index(p: Program, access: Sequence[Slot], at: Mapping[str, Positions]) -> Positions:
    """Where the elements of a tensor stand that an access map reads."""
    total: Positions = np.zeros([1] * len(p.axes), np.int64)
    inner = 1
    for s in reversed(access):
        assert isinstance(s.extent, int)
        total = total + inner * (s.offset if s.axis is None else s.offset + _along(p, s.axis, at[s.axis]))
        inner *= s.extent
    return total


def _flat(p: Program, at: Mapping[str, Positions]) -> Positions:
    """Where the results stand."""
    return _index(p, p.outputs[0].access, at)


def _evaluated_elements(p: Program, at: Mapping[str, Positions]) -> float:
    count = {a: float(len(x)) for a, x in at.items()}
    axes = [frozenset(n.over).union(*(p.axes_of(i) for i in n.inputs)) for n in p.nodes]
    axes += [p.axes_of(i.name) for i in p.inputs]
    return sum(math.prod(count[a] for a in own) for own in axes)


class _Evaluation:
    """A program at some positions of its axes, in fields."""

    def __init__(
        self, p: Program, at: Mapping[str, Positions], seed: int, primes: tuple[int, ...], exact: bool
    ) -> None:
        self.p, self.at, self.exact = p, at, exact
        self.domain = Residues([a.name for a in p.axes], seed, primes)
        self.number: dict[str, Fraction] = {}  #: values that are numbers
        self.integers: dict[
            str, Positions
        ] = {}  #: values that are the same integers in every run, where they are exact

    def output(self) -> Residue:
        """The results, with all axes in the program's order."""
        p, d = self.p, self.domain
        values = {i.name: d.keyed(f"source {p.sources[i.source].name}", _index(p, i.access, self.at)) for i in p.inputs}
        last = last_uses(p)
        for n in p.nodes:
            values[n.name] = self.node(n, [values[i] for i in n.inputs])
            for gone in last[n.name]:
                del values[gone]
        (o,) = p.outputs
        full = _flat(p, self.at).shape
        return np.broadcast_to(values[o.value], (len(d.primes), *full))

    def node(self, n: Node, args: list[Residue]) -> Residue:
        d, rank = self.domain, len(self.p.axes)
        known = self.known(n)
        if known is not None:
            self.number[n.name] = known
            return d.const(known).reshape(-1, *[1] * rank)
        if self.exact and self.count(n):
            return np.stack([self.integers[n.name] % p for p in d.primes])
        if n.op == "iota":
            return self.positions(n.axis or "")
        if n.op in REDUCTIONS and n.over:
            return self.reduced(n, args[0])
        value: Residue = np.asarray(node_value(n, d, args, {}))
        return value if value.ndim > 1 else value.reshape(-1, *[1] * rank)

    def known(self, n: Node) -> Fraction | None:
        """The number that a node is, if it is one: comparisons of numbers are what they are."""
        if n.op == "const":
            return n.value if isinstance(n.value, Fraction) else None
        if n.op == "extent":
            return Fraction(ex.value(self.p.extent(n.axis or ""), {}))
        numbers = [self.number.get(i) for i in n.inputs]
        x, *rest = numbers or [None]
        if n.op in _COMPARED and x is not None and rest[0] is not None:
            return Fraction(int(_COMPARED[n.op](x, rest[0])))
        return None

    def count(self, n: Node) -> bool:
        """True if a node computes integers from exact positions, which are kept: they compare as the numbers that
        they are."""
        if n.op == "iota":
            integers = _along(self.p, n.axis or "", self.at[n.axis or ""])
        else:
            rule, given = _COUNTED.get(n.op), [self._counted(i) for i in n.inputs]
            known = [x for x in given if x is not None]
            if rule is None or not known or len(known) < len(given):
                return False
            integers = np.asarray(rule(*known), np.int64)
        if int(np.abs(integers).max(initial=0)) > _EXACT:
            return False
        self.integers[n.name] = integers
        return True

    def _counted(self, name: str) -> Positions | None:
        number = self.number.get(name)
        if number is None:
            return self.integers.get(name)
        fits = number.denominator == 1 and abs(number) <= _EXACT
        return np.full([1] * len(self.p.axes), int(number)) if fits else None

    def positions(self, axis: str) -> Residue:
        return self.domain.along(axis, np.ascontiguousarray(self.domain.keyed("", self.at[axis])))

    def reduced(self, n: Node, x: Residue) -> Residue:
        """A reduction; a sum counts all positions of axes that its operand lacks, an extreme of equal numbers is one."""
        order = [a.name for a in self.p.axes]
        if n.op in ("sum", "prod"):
            shape = list(x.shape)
            for a in n.over:
                shape[1 + order.index(a)] = len(self.at[a])
            x = np.broadcast_to(x, shape)
            return self.domain.sum(x, n.over) if n.op == "sum" else self.domain.extreme("prod", x, n.over)
        own = [a for a in n.over if a in self.p.axes_of(n.inputs[0])]
        return self.domain.extreme(n.op, x, own) if own else x


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
