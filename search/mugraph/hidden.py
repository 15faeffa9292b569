"""Which iterations of a loop add nothing: what a mask hides, as linear limits of the positions that it may show.

A mask compares positions. Where that fails, scores are minus infinity, exponentials 0, and so is every product with them. An
iteration all of whose elements fail one comparison leaves sums and maxima as they are, so blocks may leave it out. Of each
value is known what it is on a tile all of whose positions have a linear form below 0:

    form      itself a linear form of positions, at every position
    zero      0 throughout, for each of these forms; of a truth value: it is false
    one       1 throughout
    lowest    minus infinity throughout
    truth     the forms none of which is below 0 at a position where a truth value is true, and only there

What a mask hides is taken to be a number: 0 times infinity or NaN would not be 0. Scores that are hidden by a finite number,
however low, are not left out: in a row without any other they count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, EXTREMES, BlockGraph, BlockOp, ThreadNode

Terms: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Form:
    """A sum of positions along axes, each times a whole number, of a number, and of integers that are inputs (`given`, by
    name), each times a whole number."""

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0
    given: tuple[tuple[str, int], ...] = ()

    def of(self, axis: str) -> int:
        """The number that positions along an axis are multiplied with."""
        return dict(self.terms).get(axis, 0)

    def plus(self, other: Form, factor: int = 1) -> Form:
        """The sum with another form times a number."""
        pairs = ((self.terms, other.terms), (self.given, other.given))
        terms, given = (_sum(own, more, factor) for own, more in pairs)
        return Form(terms, self.constant + factor * other.constant, given)

    def times(self, factor: int) -> Form:
        """The form times a number."""
        return Form().plus(self, factor)


def _sum(terms: Terms, others: Terms, factor: int) -> Terms:
    sums = dict(terms)
    for name, n in others:
        sums[name] = sums.get(name, 0) + factor * n
    return tuple(sorted((name, n) for name, n in sums.items() if n))


Forms: TypeAlias = frozenset[Form]
NOWHERE: Forms = frozenset()
EVERYWHERE: Forms = frozenset([Form((), -1)])
STEP = Form((), 1)
FAR = 2.0**31  #: no position is so large


def _meet(x: Forms, y: Forms) -> Forms:
    """Forms below 0 where both hold."""
    return y if x == EVERYWHERE else x if y == EVERYWHERE else x & y


def _join(x: Forms, y: Forms) -> Forms:
    """Forms below 0 where either holds."""
    return EVERYWHERE if EVERYWHERE in (x, y) else x | y


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a value."""

    form: Form | None = None
    zero: Forms = NOWHERE
    one: Forms = NOWHERE
    lowest: Forms = NOWHERE
    truth: Forms = NOWHERE


UNKNOWN = Known()


def constant(value: Fraction | float | None) -> Known:
    """What is known of a number."""
    whole = value is not None and -FAR < value < FAR and value == int(value)
    return Known(
        Form((), int(value)) if whole and value is not None else None,
        EVERYWHERE if value == 0 else NOWHERE,
        EVERYWHERE if value == 1 else NOWHERE,
        EVERYWHERE if value == float("-inf") else NOWHERE,
    )


def _below(low: Known, high: Known, strictly: int) -> Known:
    """The truth of low < high, or of low <= high."""
    if low.form is None or high.form is None:
        return UNKNOWN
    space = high.form.plus(low.form, -1).plus(STEP, -strictly)
    return Known(zero=frozenset([space]), one=frozenset([space.times(-1).plus(STEP, -1)]), truth=frozenset([space]))


def _equal(x: Known, y: Known) -> Known:
    return Known(zero=_join(_below(x, y, 0).zero, _below(y, x, 0).zero))


def _add(x: Known, y: Known) -> Known:
    form = None if x.form is None or y.form is None else x.form.plus(y.form)
    return Known(form, _meet(x.zero, y.zero), lowest=_join(x.lowest, y.lowest))


def _sub(x: Known, y: Known) -> Known:
    form = None if x.form is None or y.form is None else x.form.plus(y.form, -1)
    return Known(form, _meet(x.zero, y.zero), lowest=x.lowest)


def _mul(x: Known, y: Known) -> Known:
    form = None
    for a, b in ((x.form, y.form), (y.form, x.form)):
        if a is not None and b is not None and not b.terms and not b.given:
            form = a.times(b.constant)
    return Known(form, _join(x.zero, y.zero), _meet(x.one, y.one))


def _and(x: Known, y: Known) -> Known:
    truth = x.truth | y.truth if x.truth and y.truth else NOWHERE
    return Known(zero=_join(x.zero, y.zero), one=_meet(x.one, y.one), truth=truth)


def _where(c: Known, x: Known, y: Known) -> Known:
    def either(own: Callable[[Known], Forms]) -> Forms:
        return _join(_meet(c.zero, own(y)), _join(_meet(c.one, own(x)), _meet(own(x), own(y))))

    return Known(None, either(lambda v: v.zero), either(lambda v: v.one), either(lambda v: v.lowest))


_MEANINGS: Mapping[str, Callable[..., Known]] = {
    "add": _add,
    "sub": _sub,
    "neg": lambda x: _sub(Known(Form()), x),
    "mul": _mul,
    "div": lambda x, y: Known(zero=x.zero),
    "rounded": lambda x: x,
    "lt": lambda x, y: _below(x, y, 1),
    "le": lambda x, y: _below(x, y, 0),
    "eq": _equal,
    "and": _and,
    "or": lambda x, y: Known(zero=_meet(x.zero, y.zero), one=_join(x.one, y.one)),
    "not": lambda x: Known(zero=x.one, one=x.zero),
    "nonzero": lambda x: Known(zero=x.zero, one=x.one),
    "where": _where,
    "exp": lambda x: Known(zero=x.lowest),
    "exp_minus": lambda x, maximum: Known(zero=x.lowest),
}


def applied(op: str, given: Sequence[Known]) -> Known:
    """What is known of an elementwise operator's value."""
    meaning = _MEANINGS.get(op)
    return UNKNOWN if meaning is None else meaning(*given)


def at_position(axis: str) -> Known:
    """What is known of the position along an axis."""
    return Known(Form(((axis, 1),)))


def _of_thread(nodes: Sequence[ThreadNode], operands: Sequence[Known]) -> Known:
    values = list(operands)
    for n in nodes:
        given = [values[i] for i in n.inputs]
        values.append(constant(n.value) if n.op == "const" else applied(n.op, given))
    return values[-1]


@dataclass(slots=True)
class _Walk:
    """The values of a block graph, in order."""

    program: Program
    values: dict[str, Known] = field(default_factory=dict)

    def take(self, o: BlockOp) -> None:
        """The value of an operator."""
        given = [self.values[i] for i in o.inputs]
        match o.op:
            case "iota":
                value = at_position(o.axis or "")
            case "load" if self.integer(o.source_value or ""):
                value = Known(Form(given=((o.source_value or "", 1),)))
            case "extent":
                extent = self.program.extent(o.axis or "")
                value = constant(Fraction(extent)) if isinstance(extent, int) else UNKNOWN
            case "thread" if o.thread is not None:
                value = _of_thread(o.thread.nodes, given)
            case "contract":
                value = Known(zero=_join(given[0].zero, given[1].zero))
            case "sum":
                value = Known(zero=given[0].zero)
            case "top":
                value = Known(lowest=given[0].lowest)
            case _:
                value = UNKNOWN
        self.values[o.name] = value

    def integer(self, name: str) -> bool:
        """True if an input holds whole numbers."""
        source = self.program.input(name).source
        return self.program.sources[source].dtype.kind == "int"


def known_values(program: Program, graph: BlockGraph) -> Mapping[str, Known]:
    """What is known of a block graph's values."""
    walk = _Walk(program)
    for o in graph.ops:
        walk.take(o)
    return walk.values


def limits(program: Program, graph: BlockGraph) -> tuple[Form, ...]:
    """Forms of positions that hide iterations, in which those along the loop stand once (times 1 or -1)."""
    return tuple(f for f in _forms(program, graph) if not f.given and abs(f.of(graph.loop or "")) == 1)


def given_limits(program: Program, graph: BlockGraph) -> tuple[Form, ...]:
    """Forms with integers that are inputs that hide iterations."""
    return tuple(f for f in _forms(program, graph) if f.given)


def _forms(program: Program, graph: BlockGraph) -> list[Form]:
    """Forms that hide iterations: one on all of whose positions, and on all of the block's, one of them is below 0 leaves all
    that iterations hand on as it is."""
    if graph.loop is None:
        return []
    values = known_values(program, graph)
    hidden: Forms = EVERYWHERE
    phase = {o.name: o.phase for o in graph.ops}
    for o in graph.ops:
        if o.op in ("accum", "running"):
            given = values[o.inputs[0]]
            hidden = _meet(hidden, given.zero if o.op == "accum" else given.lowest)
        elif o.op in EXTREMES and o.phase == EPILOGUE and phase[o.inputs[0]] == BODY:
            hidden = NOWHERE
    return sorted(hidden, key=lambda f: (f.terms, f.constant, f.given)) if hidden != EVERYWHERE else []
