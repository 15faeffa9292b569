"""The iterations of a block's loop that are walked: those that a mask shows some of (`search/mugraph/hidden.py`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from mirage_cli.codegen.tiles.tile import Apply, Expr, Global, Number, Position, Ref
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.ir import Value
from mirage_cli.lax.domains.limits import UNKNOWN, Form, Forms, Known, applied, at_position, constant, given
from mirage_cli.lax.ir.program import Program

FIRST, WHOLE = k.name("first"), k.name("whole")
Span = Callable[
    [str], tuple[list[ir.Expression], Value]
]  #: the terms of an axis's first position, and how many there are


def walked(
    limits: Sequence[Form],
    loop: str,
    step: int,
    whole: ir.Expression,
    span: Span,
    start: Value | None,
    least: int,
    name: str = "steps",
) -> list[ir.Statement]:
    """The statements that say how many iterations are walked (variable `name`), and where a limit stands at the front how many
    are left out before (`first`): of a `whole` number of `step` positions each from `start` on, at `least` so many."""
    if not limits:
        return [k.let("int", name, whole)]

    def position(form: Form, sign: int, more: int) -> ir.Expression:
        return k.cast("int", _bound(form, loop, span, sign, more, [] if start is None else [start]))

    ends = [position(f, 1, step) / step for f in limits if f.of(loop) == -1]
    begins = [position(f.times(-1), -1, 0) / step for f in limits if f.of(loop) == 1]
    lines: list[ir.Statement] = [k.let("int", "whole", whole)]
    end = _extreme(lines, "end", "<", [WHOLE, *ends])
    if not begins:
        return [*lines, k.let("int", name, _chosen(">", end, ir.lift(least)))]
    first = _extreme(lines, "begin", ">", [k.ZERO, *begins])
    lines.append(k.let("int", "first", _chosen("<", first, WHOLE - least if least else WHOLE)))
    return [*lines, k.let("int", name, _chosen(">", end - FIRST, ir.lift(least)))]


def stepped(limits: Sequence[Form], loop: str, number: ir.Expression) -> ir.Expression:
    """The number among all iterations of the one that has a number among those that are walked."""
    return FIRST + number if any(f.of(loop) == 1 for f in limits) else number


def shown(
    e: Expr, span: Span, values: Mapping[str, Known], integers: Collection[str] = ()
) -> tuple[ir.Expression, Expr] | None:
    """The condition that a mask hides nothing of a tile, and a value without the mask; None for a value without one that
    compares positions, and `integers` that a block holds. `values` are what is known of the block graph's."""
    match e:
        case Apply("where", (condition, value, _)) if (forms := known(condition, values).truth) and all(
            v in integers for f in forms for v, _ in f.given
        ):
            return all_shown(forms, span), value
    return None


def all_shown(forms: Forms, span: Span) -> ir.Expression:
    """The condition that forms are below 0 nowhere in a tile."""
    least = (_bound(f, "", span, -1) for f in sorted(forms, key=str))
    return k.both(*(n >= 0 for n in least)) or k.ONE


def at_least_0(form: Form, position: Callable[[str], ir.Expression]) -> ir.Expression:
    """The condition that a form is not below 0 at a position."""
    terms = [(position(a), n) for a, n in form.terms] + [(held(v), n) for v, n in form.given]
    above, below = ([t if abs(n) == 1 else t * abs(n) for t, n in terms if n * sign > 0] for sign in (1, -1))
    return k.total([*above, *([form.constant] if form.constant or not above else [])]) >= (k.total(below) or k.ZERO)


def held(value: str) -> ir.Name:
    """The variable with an integer that is an input, of which a block has one."""
    return k.name(f"{value}_held")


def holding(value: str, element: ir.Expression) -> ir.Statement:
    """The statement that reads it."""
    return k.let("int", f"{value}_held", k.call("whole_number", element))


def integers(program: Program) -> dict[str, Known]:
    """What is known of a program's inputs that hold integers."""
    whole = (i.name for i in program.inputs if program.sources[i.source].dtype.kind == "int")
    return {name: given(name, truth=False) for name in whole}


def known(e: Expr, values: Mapping[str, Known]) -> Known:
    """What is known of an expression; `values` are what is known of the block graph's, and of inputs."""
    match e:
        case Ref(name) | Global(name):
            return values.get(name, UNKNOWN)
        case Position(axis):
            return at_position(axis)
        case Number(value):
            return constant(value)
        case Apply(op, args):
            return applied(op, [known(a, values) for a in args])
    return UNKNOWN


def _bound(form: Form, loop: str, span: Span, sign: int, more: int = 0, taken: Sequence[Value] = ()) -> ir.Expression:
    """The largest (least: `sign` -1) value that a form without its loop axis has in a block, and `more`, less what is
    taken."""
    constant = form.constant + more
    above, below = list[ir.Expression](), [*map(ir.lift, taken)]
    for axis, factor in form.terms:
        if axis == loop:
            continue
        base, count = span(axis)
        terms = list(base)
        if factor * sign > 0 and isinstance(count, int):
            constant += factor * (count - 1)
        elif factor * sign > 0:
            terms.append(ir.lift(count) - 1)
        into = above if factor > 0 else below
        into += [t if abs(factor) == 1 else t * abs(factor) for t in terms]
    for value, factor in form.given:
        (above if factor > 0 else below).append(held(value) if abs(factor) == 1 else held(value) * abs(factor))
    if constant or not above:
        above.append(ir.lift(constant))
    return k.joined("-", [k.total(above), *below]) or k.ZERO


def _extreme(lines: list[ir.Statement], name: str, op: str, values: Sequence[ir.Expression]) -> ir.Expression:
    """The least or greatest of values, as variables that are added to the lines."""
    found = values[0]
    for n, value in enumerate(values[1:]):
        own = name if n == len(values) - 2 else f"{name}_{n}"
        lines.append(k.let("int", f"{own}_of", value))
        lines.append(k.let("int", own, _chosen(op, k.name(f"{own}_of"), found)))
        found = k.name(own)
    return found


def _chosen(op: str, x: ir.Expression, y: ir.Expression) -> ir.Expression:
    return k.select(k.binary(op, x, y), x, y)
