"""One spelling for each value: constants and denominators travel outwards, operators have one form.

1. A value is carried as an exact rational factor times a numerator over denominators; products, quotients, sums of values
   with common denominators, choices between them and reductions (for the factor) pass them on. Nothing cancels.
2. Reciprocals and reciprocal roots are quotients, 1 / (1 + exp(-x)) is sigmoid(x), x * sigmoid(x) is silu(x), neg is a
   factor.
3. A reduction over an axis that its operand lacks is a multiple (by the extent, a number or an `extent` node), the same
   extreme, or, for a softmax, exp(x - x): 1, but NaN where x is not finite.
4. Choices between equal values, logic on constants, and comparisons of positions that all of them decide alike are resolved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.program import REDUCTIONS, Axis, Node, Program
from mirage_cli.lax.normal.identify import dedupe, free_name
from mirage_cli.lax.ops import OPS

Number = Fraction | float
_Span = tuple[Fraction | None, Fraction | None]
ZERO, ONE = Fraction(0), Fraction(1)
_COMPARE = {"eq": lambda x, y: x == y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y}


@dataclass(frozen=True, slots=True)
class _Ratio:
    """`factor * base / den[0] / den[1] ...`; `base` is None for 1; each denominator has its operator."""

    factor: Fraction
    base: str | None = None
    den: tuple[tuple[str, str], ...] = ()

    @property
    def number(self) -> Fraction | None:
        """The value of a constant, else None."""
        return self.factor if self.base is None and not self.den else None

    @property
    def unscaled(self) -> _Ratio:
        """The same without the factor."""
        return replace(self, factor=ONE)

    def over(self, den: Iterable[tuple[str, str]]) -> _Ratio:
        """The same with other denominators."""
        return replace(self, den=tuple(sorted(den)))


def normalise(p: Program) -> Program:
    """The program with one spelling for each value."""
    worker = _Normaliser(p)
    value = {i.name: _Ratio(ONE, i.name) for i in p.inputs}
    for n in p.nodes:
        value[n.name] = worker.apply(n, [value[i] for i in n.inputs])
    outputs = tuple(replace(o, value=worker.plain(value[o.value])) for o in p.outputs)
    axes = (*p.axes, *(Axis(a, e) for a, e in worker.lone.items()))
    return dedupe(replace(p, axes=axes, nodes=tuple(worker.nodes), outputs=outputs, _axes_of={}))


class _Normaliser:
    def __init__(self, p: Program) -> None:
        self.p = p
        self.extents = {a.name: a.extent for a in p.axes}
        self.shown = [e for s in p.sources for e in s.dims if not isinstance(e, int)]
        self.nodes: list[Node] = []
        self.taken = {i.name for i in p.inputs}
        self.axes = {i.name: p.axes_of(i.name) for i in p.inputs}
        self.lone: dict[str, Extent] = {}  #: axes of their own for extents, so that no pass on axes meets them
        self.known: dict[object, str] = {}
        self.node_of: dict[str, Node] = {}
        self.spans: dict[str, _Span] = {}  #: the numbers between which values of positions and constants lie

    # --- nodes --------------------------------------------------------------------------------------------------------
    def emit(self, op: str, inputs: Sequence[str] = (), like: Node | None = None, value: Number | None = None) -> str:
        """The name of a node, which is made when there is none like it."""
        inputs = sorted(inputs) if op == "contract" or (op in OPS and OPS[op].commutative) else list(inputs)
        n = Node("", op, tuple(inputs), value=value)
        if like is not None:
            n = replace(n, over=like.over, axis=like.axis, dtype=like.dtype)
        key = (n.op, n.inputs, n.over, str(n.value), n.axis, n.dtype)
        if key not in self.known:
            name = self.known[key] = free_name(f"m{len(self.nodes)}", self.taken)
            self.node_of[name] = replace(n, name=name)
            self.nodes.append(self.node_of[name])
            self.axes[name] = self._axes(n)
            self.spans[name] = self._span(n)
        return self.known[key]

    def _axes(self, n: Node) -> frozenset[str]:
        joined = frozenset[str]().union(*(self.axes[i] for i in n.inputs))
        if n.op == "iota":
            return frozenset([n.axis or ""])
        return joined - frozenset(n.over) if n.op in ("contract", *REDUCTIONS) else joined

    def extent(self, e: Extent) -> _Ratio:
        """A number of positions as a value; a symbol that no source shows is the difference of a sum that one does."""
        if isinstance(e, int):
            return _Ratio(Fraction(e))
        for known in self.shown if not set(ex.names(e)) <= {n for s in self.shown for n in ex.names(s)} else ():
            if (k := ex.difference(known, e)) is not None:
                return self.sum("sub", self.extent(known), _Ratio(Fraction(k)))
        lone = f"#{e}"
        self.lone[lone] = e
        return _Ratio(ONE, self.emit("extent", (), Node("", "extent", axis=lone)))

    def plain(self, v: _Ratio) -> str:
        """A value as a node."""
        if v.number is not None or v.base is None:
            name = self.emit("const", value=v.factor)
            factor = ONE
        else:
            name, factor = v.base, v.factor
        for op, d in v.den:
            name = self.emit(op, [name, d])
        return name if factor == 1 else self.emit("mul", [name, self.emit("const", value=factor)])

    # --- operators ----------------------------------------------------------------------------------------------------
    def apply(self, n: Node, args: list[_Ratio]) -> _Ratio:
        match n.op:
            case "const":
                return _Ratio(n.value) if isinstance(n.value, Fraction) else self.opaque(n, args)
            case "extent":
                return self.extent(self.extents[n.axis or ""])
            case "neg":
                return replace(args[0], factor=-args[0].factor)
            case "mul":
                return self.product(args[0], args[1])
            case "div" | "div0" | "share" if args[1].factor != 0:
                return self.quotient(n.op, args[0], args[1])
            case "recip" if args[0].factor != 0:
                return self.quotient("div", _Ratio(ONE), args[0])
            case "rsqrt":
                return _Ratio(ONE, None, (("div", self.emit("sqrt", [self.plain(args[0])])),))
            case "add" | "sub":
                return self.sum(n.op, args[0], args[1])
            case "where":
                return self.choice(args[0], args[1], args[2])
            case "and" | "or" | "not" | "eq" | "lt" | "le":
                return self.logic(n, args)
            case "contract":
                return self.contraction(n, args[0], args[1])
            case "sum":
                return self.total(n, args[0])
            case "max" | "min" if n.over:
                return self.extreme(n, args[0])
            case "stable_exp":
                x = self.plain(args[0])
                over = tuple(a for a in n.over if a in self.axes[x])
                if over:
                    return _Ratio(ONE, self.emit(n.op, [x], replace(n, over=over)))
                return _Ratio(ONE, self.emit("exp", [self.emit("sub", [x, x])]))
            case _:
                return self.opaque(n, args)

    def opaque(self, n: Node, args: list[_Ratio]) -> _Ratio:
        return _Ratio(ONE, self.emit(n.op, [self.plain(a) for a in args], n, n.value))

    def product(self, x: _Ratio, y: _Ratio) -> _Ratio:
        if x.factor == 0 or y.factor == 0:
            return _Ratio(ZERO)
        for a, b in ((x, y), (y, x)):
            d = self.node_of.get(b.base or "")
            if (
                d is not None
                and d.op == "sigmoid"
                and not b.den
                and a.base is not None
                and d.inputs == (self.plain(a),)
            ):
                return _Ratio(b.factor, self.emit("silu", d.inputs))
        bases = [v.base for v in (x, y) if v.base is not None]
        base = self.emit("mul", bases) if len(bases) == 2 else next(iter(bases), None)
        return _Ratio(x.factor * y.factor, base).over((*x.den, *y.den))

    def quotient(self, op: str, x: _Ratio, y: _Ratio) -> _Ratio:
        if x.factor == 0:
            return _Ratio(ZERO)
        x = replace(x, factor=x.factor / y.factor)
        if op == "div" and y.den and all(o == "div" for o, _ in y.den):  # x / (b / d) = x d / b
            for _, d in y.den:
                x = self.product(x, _Ratio(ONE, d))
            y = replace(y, den=())
        if y.base is None and not y.den:
            return x
        if op == "div" and not y.den and (z := self.logistic(y.base or "")) is not None:
            return self.product(x, _Ratio(ONE, self.emit("sigmoid", [z])))
        return x.over((*x.den, (op, self.plain(y.unscaled))))

    def logistic(self, v: str) -> str | None:
        """-z when a node is 1 + exp(z): 1 / (1 + exp(z)) is sigmoid(-z)."""
        d = self.node_of.get(v)
        terms = [self.node_of[i] for i in d.inputs if i in self.node_of] if d is not None and d.op == "add" else []
        if len(terms) != 2 or {n.op for n in terms} != {"const", "exp"}:
            return None
        one, power = sorted(terms, key=lambda n: n.op)
        if one.value != 1:
            return None
        z = self.node_of.get(power.inputs[0])
        for i in z.inputs if z is not None and z.op == "mul" else ():
            factor = self.node_of[i].value if i in self.node_of else None
            if z is not None and isinstance(factor, Fraction):
                return self.plain(_Ratio(-factor, next(x for x in z.inputs if x != i)))
        return self.plain(_Ratio(-ONE, power.inputs[0]))

    def sum(self, op: str, x: _Ratio, y: _Ratio) -> _Ratio:
        if y.number == 0:
            return x
        if x.number == 0:
            return y if op == "add" else replace(y, factor=-y.factor)
        if x.number is not None and y.number is not None:
            return _Ratio(x.number + y.number if op == "add" else x.number - y.number)
        if y.number is not None and op == "sub":
            op, y = "add", replace(y, factor=-y.factor)
        x, y, common = _common(x, y)
        if y.factor < 0 and y.base is not None and x.factor > 0:  # x + (-y) = x - y
            op, y = "sub" if op == "add" else "add", replace(y, factor=-y.factor)
        if op == "add" and x.factor < 0 and x.base is not None and y.factor > 0:
            op, x, y = "sub", y, replace(x, factor=-x.factor)
        if x.base is not None and y.base is not None and x.factor == y.factor:
            inner = self.emit(op, [self.plain(x.unscaled), self.plain(y.unscaled)])
            return _Ratio(x.factor, inner, common)
        return _Ratio(ONE, self.emit(op, [self.plain(x), self.plain(y)]), common)

    def choice(self, condition: _Ratio, x: _Ratio, y: _Ratio) -> _Ratio:
        if condition.number is not None:
            return x if condition.number else y
        if x == y:
            return x
        x, y, common = _common(x, y)
        factor = ONE
        if x.factor == y.factor:
            factor, x, y = x.factor, x.unscaled, y.unscaled
        return _Ratio(factor, self.emit("where", [self.plain(condition), self.plain(x), self.plain(y)]), common)

    def logic(self, n: Node, args: list[_Ratio]) -> _Ratio:
        numbers = [a.number for a in args]
        if n.op in _COMPARE and numbers[0] is not None and numbers[1] is not None:
            return _Ratio(Fraction(int(_COMPARE[n.op](numbers[0], numbers[1]))))
        if n.op in _COMPARE and (decided := _decided(n.op, *(self.span(a) for a in args))) is not None:
            return _Ratio(Fraction(int(decided)))
        if n.op == "not" and numbers[0] is not None:
            return _Ratio(ONE - numbers[0])
        if n.op in ("and", "or"):
            for known, other in ((numbers[0], args[1]), (numbers[1], args[0])):
                if known is not None:  # the neutral element, or the one that decides
                    return other if (known == 1) == (n.op == "and") else _Ratio(known)
        return self.opaque(n, args)

    def span(self, v: _Ratio) -> _Span:
        """The numbers between which a value of positions and constants lies."""
        if v.den or v.base is None:
            return (None, None) if v.number is None else (v.number, v.number)
        low, high = self.spans.get(v.base, (None, None))
        ends = [None if e is None else e * v.factor for e in (low, high)]
        return (ends[0], ends[1]) if v.factor > 0 else (ends[1], ends[0])

    def _span(self, n: Node) -> _Span:
        inner = [self.spans.get(i, (None, None)) for i in n.inputs]
        match n.op:
            case "iota":
                extent = self.extents[n.axis or ""]
                return ZERO, Fraction(extent - 1) if isinstance(extent, int) else None
            case "const" if isinstance(n.value, Fraction):
                return n.value, n.value
            case "mul" if (factor := next((a for a, b in inner if a is not None and a == b), None)) is not None:
                (other,) = inner[:1] if inner[0] != (factor, factor) else inner[1:]
                ends = [None if e is None else e * factor for e in other]
                return (ends[0], ends[1]) if factor >= 0 else (ends[1], ends[0])
            case "add" | "sub":
                (a, b), (c, d) = inner
                if n.op == "sub":
                    c, d = (None if e is None else -e for e in (d, c))
                return (None if a is None or c is None else a + c), (None if b is None or d is None else b + d)
        return None, None

    # --- reductions ---------------------------------------------------------------------------------------------------
    def contraction(self, n: Node, x: _Ratio, y: _Ratio) -> _Ratio:
        for a, b in ((x, y), (y, x)):
            if a.number is not None:
                return self.product(a, self.total(replace(n, dtype=None), b))
        left, right = self.plain(x.unscaled), self.plain(y.unscaled)
        over = tuple(a for a in n.over if a in self.axes[left] | self.axes[right])
        base = self.emit("contract" if over else "mul", [left, right], replace(n, over=over) if over else None)
        return self.times(_Ratio(x.factor * y.factor, base), [a for a in n.over if a not in over])

    def total(self, n: Node, x: _Ratio) -> _Ratio:
        if x.number is not None:
            return self.times(x, n.over)
        base = self.plain(x.unscaled)
        over = tuple(a for a in n.over if a in self.axes[base])
        lost = [a for a in n.over if a not in over]
        if not over:
            return self.times(x, lost)
        return self.times(_Ratio(x.factor, self.emit("sum", [base], replace(n, over=over))), lost)

    def times(self, x: _Ratio, lost: Iterable[str]) -> _Ratio:
        """`x` summed over axes that it lacks."""
        for a in lost:
            x = self.product(x, self.extent(self.extents[a]))
        return x

    def extreme(self, n: Node, x: _Ratio) -> _Ratio:
        base = self.plain(x)
        over = tuple(a for a in n.over if a in self.axes[base])
        return _Ratio(ONE, self.emit(n.op, [base], replace(n, over=over))) if over else x


def _decided(op: str, x: _Span, y: _Span) -> bool | None:
    """True if all numbers of one span compare to all of another as `op` says, False if none does, None where some do."""
    (a, b), (c, d) = x, y
    if b is not None and c is not None and (b < c or (op == "le" and b == c)):
        return op != "eq"
    if a is not None and d is not None and (a > d or (op == "lt" and a == d)):
        return False
    return None


def _common(x: _Ratio, y: _Ratio) -> tuple[_Ratio, _Ratio, tuple[tuple[str, str], ...]]:
    """Two values without their common denominators, and these."""
    both = Counter(x.den) & Counter(y.den)
    x, y = (v.over((Counter(v.den) - both).elements()) for v in (x, y))
    return x, y, tuple(sorted(both.elements()))
