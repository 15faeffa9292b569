"""Kernels from Python: short names for the forms of the grammar. What is given as a str is a name, a type or an instruction;
what is given as a number is a literal; nothing here reads text.

    i, total = name("i"), name("total")
    loop("i", 8, assign(total, call("join", total, x[i]), "+="), unroll=UNROLL)
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias, TypeVar

from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.ir import StaticValue, Value, lift, lift_static

UNROLL = "#pragma unroll"
ROLLED = "#pragma unroll 1"
Statements: TypeAlias = Sequence[ir.Statement]
TypeLike: TypeAlias = ir.Type | str  #: a str is a type's name, `*` behind it for pointers
Tree = TypeVar("Tree")
ZERO, ONE = ir.Literal("0"), ir.Literal("1")


# --- types and expressions ----------------------------------------------------------------------------------------------
def of_type(t: TypeLike, *static: StaticValue, const: bool = False, reference: bool = False) -> ir.Type:
    """A type by name: `of_type("Tile", "__half", 32, 16)`, `of_type("float*", const=True)`."""
    if isinstance(t, ir.Type):
        return replace(t, const=t.const or const, reference=t.reference or reference)
    base = t.rstrip("*")
    return ir.Type(base, tuple(map(lift_static, static)), len(t) - len(base), const, reference)


def name(path: str, *static: StaticValue, owner: ir.Type | None = None) -> ir.Name:
    """A variable or instruction; `a::b` for a member of a type, which `owner` is where it has static arguments."""
    return ir.Name(tuple(path.split("::")), tuple(map(lift_static, static)), owner)


def number(text: str) -> ir.Literal:
    """A literal as it is spelled: `1.0f`, `64LL`."""
    return ir.Literal(text)


def call(function: str, *args: Value, static: Sequence[StaticValue] = ()) -> ir.Call:
    """An instruction of the headers with its static arguments."""
    return name(function, *static)(*args)


def cast(type_: TypeLike, value: Value) -> ir.Cast:
    """`static_cast<type>(value)`."""
    return ir.Cast("static", of_type(type_), lift(value))


def reinterpret(type_: TypeLike, value: Value) -> ir.Cast:
    """`reinterpret_cast<type>(value)`."""
    return ir.Cast("reinterpret", of_type(type_), lift(value))


def converted(type_: TypeLike, value: Value) -> ir.Cast:
    """`type(value)`."""
    return ir.Cast("of", of_type(type_), lift(value))


def construct(type_: ir.Type, *args: Value) -> ir.Construct:
    """A value of a type from its parts: `Tile<float, 8, 8>{pointer}`."""
    return ir.Construct(type_, tuple(map(lift, args)))


def array(*items: Value) -> ir.List:
    """The parts of an array that is declared."""
    return ir.List(tuple(map(lift, items)))


def select(condition: Value, yes: Value, no: Value) -> ir.Select:
    """`condition ? yes : no`."""
    return ir.Select(lift(condition), lift(yes), lift(no))


def binary(op: str, left: Value, right: Value) -> ir.Binary:
    """An operator that Python has no sign for here: `==`, `!=`, `&&`, `||`, `&`, `|`, `^`, `<<`, `>>`."""
    return ir.Binary(op, lift(left), lift(right))


def negated(value: Value) -> ir.Unary:
    """`!value`."""
    return ir.Unary("!", lift(value))


def joined(op: str, parts: Iterable[Value | None], nothing: Value | None = None) -> ir.Expression | None:
    """Parts one behind the other between an operator, from the left (None counts for nothing); `nothing` where there are
    none."""
    values = [lift(p) for p in parts if p is not None]
    if not values:
        return None if nothing is None else lift(nothing)
    return functools.reduce(lambda a, b: ir.Binary(op, a, b), values)


def _terms(op: str, parts: Iterable[Value | None]) -> list[ir.Expression]:
    """Parts, in the place of those that an operator has joined what it has joined."""
    terms = list[ir.Expression]()
    for p in parts:
        match None if p is None else lift(p):
            case ir.Binary(own, left, right) if own == op:
                terms += [*_terms(op, [left]), right]
            case ir.Operand() as other:
                terms.append(other)
    return terms


def both(*conditions: Value | None) -> ir.Expression | None:
    """Conditions that hold together; None where there are none."""
    return joined("&&", _terms("&&", conditions))


def total(parts: Iterable[Value | None]) -> ir.Expression:
    """The sum of parts, 0 where there are none; of a part that is a sum its own."""
    return lift(joined("+", _terms("+", parts), 0) or 0)


def product(parts: Iterable[Value | None]) -> ir.Expression:
    """The product of parts, 1 where there are none."""
    return lift(joined("*", parts, 1) or 1)


def function(parameters: Sequence[tuple[TypeLike, str]], *body: ir.Statement) -> ir.Lambda:
    """A function that sees the variables around it."""
    return ir.Lambda(tuple(ir.Parameter(of_type(t), n) for t, n in parameters), body)


# --- statements ---------------------------------------------------------------------------------------------------------
def declare(
    type_: TypeLike,
    variable: str,
    value: Value | None = None,
    *,
    dims: Sequence[Value] = (),
    storage: str = "",
    unused: bool = False,
) -> ir.Declare:
    """A variable or array; `unused` where nothing may read it."""
    own = ir.Variable(variable, dims=tuple(map(lift, dims)), value=None if value is None else lift(value))
    t = of_type(type_)
    if t.pointers or t.reference:  # these are the variable's own
        own = replace(own, pointers=t.pointers, reference=t.reference)
        t = replace(t, pointers=0, reference=False)
    return ir.Declare(t, (own,), storage, unused)


def lets(type_: TypeLike, values: Mapping[str, Value], *, unused: bool = False, restrict: bool = False) -> ir.Declare:
    """Values that do not change, in one declaration: `const type a = x, b = y`; of pointers they themselves do not."""
    t = of_type(type_)
    own = tuple(
        ir.Variable(n, t.pointers, (), lift(v), const=t.pointers > 0, restrict=restrict) for n, v in values.items()
    )
    return ir.Declare(replace(t, pointers=0, const=t.const or not t.pointers), own, "", unused)


def let(type_: TypeLike, variable: str, value: Value, *, unused: bool = False, restrict: bool = False) -> ir.Declare:
    """A value that does not change."""
    return lets(type_, {variable: value}, unused=unused, restrict=restrict)


def constants(type_: TypeLike, values: Mapping[str, Value], *, unused: bool = False) -> ir.Declare:
    """Numbers that are known when the kernel is compiled, in one declaration."""
    return ir.Declare(
        of_type(type_), tuple(ir.Variable(n, value=lift(v)) for n, v in values.items()), "constexpr", unused
    )


def made(type_: TypeLike, variable: str, *args: Value) -> ir.Declare:
    """A value of a type from its parts that does not change: `const Tile<float, 8, 8> x{pointer}`."""
    t = of_type(type_, const=True)
    return ir.Declare(t, (ir.Variable(variable, value=construct(t, *args), braces=True),))


def alias(new: str, type_: TypeLike, *, unused: bool = False) -> ir.Alias:
    """`using new = type`."""
    return ir.Alias(new, of_type(type_), unused)


def assign(place: Value, value: Value, op: str = "=") -> ir.Assign:
    """`place op value`."""
    return ir.Assign(lift(place), op, lift(value))


def do(*calls: Value) -> ir.Do:
    """Expressions for what they do."""
    return ir.Do(tuple(map(lift, calls)))


def run(function: str | ir.Expression, *args: Value, static: Sequence[StaticValue] = ()) -> ir.Do:
    """An instruction or a member function, called for what it does."""
    return do((name(function, *static) if isinstance(function, str) else function)(*args))


def define(variable: str, parameters: Sequence[tuple[TypeLike, str]], *body: ir.Statement) -> ir.Declare:
    """A function of the kernel that sees the variables around it."""
    return declare("auto", variable, function(parameters, *body))


def ignore(*names: Value) -> ir.Do:
    """Says that nothing may read these."""
    return ir.Do(tuple(ir.Unary("(void)", lift(n)) for n in names))


def loop(
    variable: str,
    end: Value,
    *body: ir.Statement,
    start: Value = 0,
    step: Value = 1,
    type_: TypeLike = "int",
    unroll: str = "",
) -> ir.For:
    """A loop of `variable` from `start` to below `end`."""
    own = name(variable)
    further = ir.Step("++", own) if step == 1 else ir.Assign(own, "+=", lift(step))
    return ir.For(declare(type_, variable, start), own < end, further, body, unroll)


def nested(loops: Sequence[tuple[str, Value]], *body: ir.Statement, unroll: str = "") -> tuple[ir.Statement, ...]:
    """Loops from 0, the first one outermost, around statements; the statements themselves without loops."""
    for variable, end in reversed(loops):
        body = (loop(variable, end, *body, unroll=unroll),)
    return body


def when(condition: Value | None, *then: ir.Statement, otherwise: Statements = ()) -> ir.Statement:
    """A choice; without a condition the statements themselves, several as a scope."""
    if condition is None:
        return then[0] if len(then) == 1 else ir.Scope(then)
    return ir.If(lift(condition), then, tuple(otherwise))


def each(macro: str, type_: TypeLike, *body: ir.Statement) -> ir.Each:
    """Every thread visits its elements of a value in registers."""
    return ir.Each(macro, of_type(type_), body)


def scope(*body: ir.Statement) -> ir.Scope:
    """Statements with names of their own."""
    return ir.Scope(body)


# --- trees --------------------------------------------------------------------------------------------------------------
def substituted(tree: Tree, by: Mapping[ir.Expression, ir.Expression]) -> Tree:
    """A tree of the grammar, or several, with expressions in the place of others."""
    if isinstance(tree, ir.Operand) and tree in by:
        return by[tree]  # type: ignore[index,return-value]
    if isinstance(tree, tuple):
        return tuple(substituted(t, by) for t in tree)  # type: ignore[return-value]
    if not is_dataclass(tree):
        return tree
    parts: dict[str, Any] = {f.name: getattr(tree, f.name) for f in fields(tree)}
    changed = {n: new for n, old in parts.items() if (new := substituted(old, by)) is not old and new != old}
    return replace(tree, **changed) if changed else tree  # type: ignore[type-var]


@functools.cache
def _members(kind: Any) -> tuple[str, ...] | None:
    """The names of the fields of a class of the grammar; None of others."""
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else None


def children(tree: Any) -> Iterator[Any]:
    """What a tree of the grammar, or several, is made of, one level below."""
    if isinstance(tree, (tuple, list)):
        yield from tree
    else:
        kind: Any = type(tree)
        for name in _members(kind) or ():
            yield getattr(tree, name)


def parts(tree: Any) -> Iterator[Any]:
    """A tree of the grammar, or several, and all that they are made of."""
    kind: Any = type(tree)
    if _members(kind) is not None:
        yield tree
    for inner in children(tree):
        yield from parts(inner)


def names_in(tree: Any) -> set[str]:
    """The parts of all names in a tree of the grammar, or in several."""
    return {n for x in parts(tree) if isinstance(x, ir.Name) for n in x.path}
