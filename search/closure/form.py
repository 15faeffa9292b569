"""The form in which a fragment is searched: reductions of products of factors, and elementwise functions around them.

Inside a purely elementwise region, distributing and regrouping buys nothing (a thread graph costs the same either way),
so such a region is one function (`Fn`), opened only where a reduction or contraction consumes it along operands in which
it is linear: there it is a product of factors (`Reduction.num / Reduction.den`), which the search may apply before or
after. Sums of several reductions stay open too (`Plus`): their accumulators can be merged (LoRA).

An *open* form has no such regions: products, quotients and sums are terms of their own (`Open`), which the search
distributes and regroups at will. Its closures can be larger by far, so it is used for programs with few of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.ir.program import Input, Node, Program
from mirage_cli.lax.ops import OPS, QUOTIENTS
from mirage_cli.search.mugraph.mugraph import ThreadGraph, ThreadNode, is_maximum

MAX_OPEN = 4  #: open terms up to which a program is searched in the open form
OPENED = ("mul", *QUOTIENTS, "add")  #: elementwise operators that an open form has as terms of their own
MIN_OPEN_ADDENDS = 2  #: sums of this many reductions are kept open


@dataclass(frozen=True, slots=True)
class Leaf:
    """An input read, or what is known of an axis: the positions along it (`iota`) or their number (`extent`)."""

    value: str
    axes: frozenset[str]
    known: str = ""
    axis: str | None = None


@dataclass(frozen=True, slots=True)
class Fn:
    """An elementwise function of terms."""

    thread: ThreadGraph
    args: tuple[int, ...]
    axes: frozenset[str]


@dataclass(frozen=True, slots=True)
class StableExp:
    """exp of a term up to a factor that is common along `over`."""

    args: tuple[int]
    over: tuple[str, ...]
    axes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Reduction:
    """The sum over `over` of the product of `num` divided by `den` (pairs of term and operator)."""

    num: tuple[int, ...]
    den: tuple[tuple[int, str], ...]
    over: tuple[str, ...]
    axes: frozenset[str]
    dtype: DType | None


@dataclass(frozen=True, slots=True)
class Extreme:
    """The greatest or least value (`kind` max or min) of a term over `over`."""

    kind: str
    args: tuple[int]
    over: tuple[str, ...]
    axes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Plus:
    """The sum of reductions."""

    args: tuple[int, ...]
    axes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Open:
    """An elementwise operator of the algebra that the search may regroup: mul, a quotient or add."""

    op: str
    args: tuple[int, int]
    axes: frozenset[str]


Place: TypeAlias = tuple[str, int]  #: ("arg", k) or ("node", k) of a thread graph under construction
Term: TypeAlias = Leaf | Fn | StableExp | Reduction | Extreme | Plus | Open


@dataclass(slots=True)
class Form:
    """The terms of a program (in topological order) and the term of each output but maxima, which `stabilise` adds."""

    program: Program
    opened: bool = False
    terms: list[Term] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    _number: dict[Term, int] = field(default_factory=dict, repr=False)

    def intern(self, term: Term) -> int:
        """The number of a term."""
        if term not in self._number:
            self._number[term] = len(self.terms)
            self.terms.append(term)
        return self._number[term]

    @property
    def reduced(self) -> tuple[str, ...]:
        """The axes that some reduction consumes, sorted."""
        return tuple(sorted({a for t in self.terms if isinstance(t, Reduction | Extreme) for a in t.over}))


def search_form(program: Program, opened: bool | None = None, whole: bool = False) -> Form:
    """The search form of a program: the open one or the other as `opened` says, by default the open one where it has at
    most `MAX_OPEN` open terms. In a form that is not open, operands of quantised numbers may stay `whole`: one factor each,
    scales and all. Raises Refused for products along an axis, and for extents that a kernel could not
    know."""
    given = {name for s in program.sources for e in s.dims for name in ex.names(e)}
    if lost := [s for s in program.symbols if s not in given]:
        raise Refused(f"the value of {', '.join(lost)} cannot be computed from the shapes of what it reads")
    if opened is not False:
        form = _filled(_OpenBuilder(Form(program, True)))
        if opened or sum(isinstance(t, Open) for t in form.terms) <= MAX_OPEN:
            return form
    return _filled(_Builder(Form(program), whole))


def _filled(builder: _Builder) -> Form:
    form = builder.form
    program = form.program
    form.outputs = [builder.closed(o.value) for o in program.outputs if not is_maximum(program, o.value)]
    if not form.outputs:
        raise Refused("a maximum is stored without what it keeps small")
    return form


class _Builder:
    def __init__(self, form: Form, whole: bool = False) -> None:
        self.form, self.p, self.whole = form, form.program, whole
        self.defs: dict[str, Node | Input] = {i.name: i for i in self.p.inputs}
        self.defs |= {n.name: n for n in self.p.nodes}
        self.terms: dict[str, int] = {}

    def op(self, v: str) -> str:
        d = self.defs[v]
        return d.op if isinstance(d, Node) else "read"

    def is_elementwise(self, v: str) -> bool:
        d = self.defs[v]
        if isinstance(d, Node) and d.op == "exp_minus":
            return isinstance(self.defs[d.inputs[1]], Input)  # a maximum that another kernel stored
        return isinstance(d, Node) and (d.op == "const" or (d.op in OPS and not d.over))

    def cut(self, v: str) -> int:
        """The term of a value that ends an elementwise region."""
        if v not in self.terms:
            self.terms[v] = self.form.intern(self.make(self.defs[v]))
        return self.terms[v]

    def make(self, d: Node | Input) -> Term:
        axes = self.p.axes_of(d.name)
        if isinstance(d, Input):
            return Leaf(d.name, axes)
        match d.op:
            case "iota" | "extent":
                return Leaf(d.name, axes, d.op, d.axis)
            case "stable_exp":
                return StableExp((self.closed(d.inputs[0]),), d.over, axes)
            case "exp_minus" if isinstance(top := self.defs[d.inputs[1]], Node):
                return StableExp((self.closed(d.inputs[0]),), top.over, axes)
            case "max" | "min":
                return Extreme(d.op, (self.closed(d.inputs[0]),), d.over, axes)
            case "contract" | "sum":
                num: list[int] = []
                den: list[tuple[int, str]] = []
                for i in d.inputs:
                    self.factors(i, num, den)
                return Reduction(tuple(sorted(num)), tuple(sorted(den)), d.over, axes, d.dtype)
        raise Refused(f"a reduction by {d.op} is outside the algebra")

    def factors(self, v: str, num: list[int], den: list[tuple[int, str]]) -> None:
        """Split an operand of a reduction into the factors above and below the line."""
        d = self.defs[v]
        if self.whole and self.quantised(v):
            num.append(self.closed(v))
        elif isinstance(d, Node) and d.op == "mul":
            for i in d.inputs:
                self.factors(i, num, den)
        elif isinstance(d, Node) and d.op in QUOTIENTS:
            self.factors(d.inputs[0], num, den)
            den.append((self.closed(d.inputs[1]), d.op))
        else:
            num.append(self.closed(v))

    def quantised(self, v: str) -> bool:
        """True for what is computed of weights alone, some of which are numbers of at most 8 bits."""
        d = self.defs[v]
        if isinstance(d, Input):
            source = self.p.sources[d.source]
            return source.constant and source.dtype.kind == "int" and source.dtype.bytes == 1
        return self.is_elementwise(v) and self.of_weights(v) and any(map(self.quantised, d.inputs))

    def of_weights(self, v: str) -> bool:
        """True for what is computed of weights alone."""
        d = self.defs[v]
        if isinstance(d, Input):
            return self.p.sources[d.source].constant
        return self.is_elementwise(v) and all(map(self.of_weights, d.inputs))

    def closed(self, v: str) -> int:
        """The term of a value, its elementwise region as one function."""
        if not self.is_elementwise(v):
            return self.cut(v)
        args: list[int] = []
        nodes: list[tuple[str, tuple[Place, ...]]] = []
        place: dict[str, Place] = {}
        root = self.visit(v, args, nodes, place)
        if root[0] == "arg" and not nodes:
            return args[root[1]]
        thread = ThreadGraph(len(args), tuple(self.thread_node(n, len(args)) for n in nodes))
        return self.form.intern(Fn(thread, tuple(args), self.p.axes_of(v)))

    def visit(
        self, v: str, args: list[int], nodes: list[tuple[str, tuple[Place, ...]]], place: dict[str, Place]
    ) -> Place:
        """Add the region of `v` to `nodes`; its place is ("arg", k) or ("node", k)."""
        if v in place:
            return place[v]
        if not self.is_elementwise(v):
            return self.argument(self.cut(v), args, place, v)
        opened = self.open_sum(v)
        if opened is not None:
            reductions, rest = opened
            here = self.argument(self.plus(reductions), args, place, None)
            for x in rest:
                nodes.append(("add", (here, self.visit(x, args, nodes, place))))
                here = ("node", len(nodes) - 1)
            place[v] = here
            return here
        d = self.defs[v]
        operands = tuple(self.visit(i, args, nodes, place) for i in d.inputs) if isinstance(d, Node) else ()
        nodes.append((v, operands))
        place[v] = ("node", len(nodes) - 1)
        return place[v]

    def argument(self, term: int, args: list[int], place: dict[str, Place], v: str | None) -> Place:
        if term not in args:
            args.append(term)
        where = ("arg", args.index(term))
        if v is not None:
            place[v] = where
        return where

    def thread_node(self, n: tuple[str, tuple[Place, ...]], arity: int) -> ThreadNode:
        name, operands = n
        inputs = tuple(k if kind == "arg" else arity + k for kind, k in operands)
        d = self.defs.get(name)
        if d is None:
            return ThreadNode(name, inputs)
        assert isinstance(d, Node)
        return ThreadNode(d.op, inputs, d.value)

    def open_sum(self, v: str) -> tuple[list[str], list[str]] | None:
        """The addends of a sum that holds several reductions: these, and the others; None for other values."""
        if self.op(v) != "add":
            return None
        addends: list[str] = []

        def flatten(x: str) -> None:
            d = self.defs[x]
            if isinstance(d, Node) and d.op == "add":
                for i in d.inputs:
                    flatten(i)
            else:
                addends.append(x)

        flatten(v)
        axes = self.p.axes_of(v)
        reductions = [x for x in addends if self.scaled_reduction(x) and self.p.axes_of(x) == axes]
        if len(reductions) < MIN_OPEN_ADDENDS:
            return None
        return reductions, [x for x in addends if x not in reductions]

    def scaled_reduction(self, v: str) -> bool:
        d = self.defs[v]
        if not isinstance(d, Node):
            return False
        if d.op == "mul":
            return any(self.op(i) == "const" for i in d.inputs) and any(self.op(i) == "contract" for i in d.inputs)
        return d.op == "contract"

    def plus(self, values: list[str]) -> int:
        terms = []
        for v in values:
            d = self.defs[v]
            assert isinstance(d, Node)
            if d.op == "contract":
                terms.append(self.cut(v))
                continue
            inner = next(i for i in d.inputs if self.op(i) == "contract")
            constant = next(i for i in d.inputs if self.op(i) == "const")
            r = self.form.terms[self.cut(inner)]
            assert isinstance(r, Reduction)
            scaled = Reduction(tuple(sorted((*r.num, self.closed(constant)))), r.den, r.over, r.axes, r.dtype)
            terms.append(self.form.intern(scaled))
        return self.form.intern(Plus(tuple(sorted(terms)), self.form.program.axes_of(values[0])))


class _OpenBuilder(_Builder):
    """Every operator is a term of its own."""

    def factors(self, v: str, num: list[int], den: list[tuple[int, str]]) -> None:
        num.append(self.closed(v))

    def closed(self, v: str) -> int:
        if v not in self.terms:
            d = self.defs[v]
            self.terms[v] = self.opened(d) if isinstance(d, Node) and self.is_elementwise(v) else self.cut(v)
        return self.terms[v]

    def opened(self, d: Node) -> int:
        args = [self.closed(i) for i in d.inputs]
        if d.op == "sub":  # x - y is x + (-1) y: the algebra has no subtraction
            minus = ThreadGraph(0, (ThreadNode("const", (), Fraction(-1)),))
            args[1] = self.binary("mul", [args[1], self.form.intern(Fn(minus, (), frozenset()))])
            return self.binary("add", args)
        if d.op in OPENED:
            return self.binary(d.op, args)
        distinct = tuple(dict.fromkeys(args))
        node = ThreadNode(d.op, tuple(distinct.index(a) for a in args), d.value)
        return self.form.intern(Fn(ThreadGraph(len(distinct), (node,)), distinct, self.p.axes_of(d.name)))

    def binary(self, op: str, args: list[int]) -> int:
        first, second = sorted(args) if OPS[op].commutative else args
        axes = self.form.terms[first].axes | self.form.terms[second].axes
        return self.form.intern(Open(op, (first, second), axes))
