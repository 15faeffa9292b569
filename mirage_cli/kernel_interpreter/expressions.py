"""From expressions of a kernel to functions that give a strand their values.

Names become numbered places once, when a kernel is compiled. What lanes do not agree on is evaluated on both sides, each
for its lanes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.memory import SIZES, Cells, Fault, Pointer, Unknown
from mirage_cli.kernel_interpreter.numbers import Number, operator_of
from mirage_cli.kernel_interpreter.places import (
    Closure,
    Place,
    Run,
    Slot,
    TypeValue,
    chosen,
    constant_place,
    element_of,
)
from mirage_cli.kernel_interpreter.strand import Strand
from mirage_cli.kernel_language import ir

OPERATORS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: _quotient(x, y),  # noqa: PLW0108 - defined below
    "%": lambda x, y: x - _quotient(x, y) * y,
    "<<": lambda x, y: x << y,
    ">>": lambda x, y: x >> y,
    "&": lambda x, y: x & y,
    "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y,
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y,
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    "&&": np.logical_and,
    "||": np.logical_or,
}


def _quotient(x: Any, y: Any) -> Any:
    """Division of integers as C has it, towards 0."""
    if isinstance(x, int) and isinstance(y, int):
        return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    return np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))


class Expressions(ABC):
    """Compiles expressions; names mean what stands around them."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Slot]] = [{}]
        self.aliases: list[dict[str, ir.Type]] = [{}]
        self.slots = 0

    # --- names ----------------------------------------------------------------------------------------------------------
    def declare(self, name: str, refers: bool = False) -> Slot:
        """A new place for a variable."""
        slot = self.scopes[-1][name] = Slot(self.slots, refers)
        self.slots += 1
        return slot

    def slot(self, name: str) -> Slot | None:
        """The place of the variable that a name means here."""
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def alias(self, name: str) -> ir.Type | None:
        """The type that a name stands for here."""
        return next((scope[name] for scope in reversed(self.aliases) if name in scope), None)

    def inner(self, body: Iterable[ir.Statement], names: Sequence[str] = ()) -> tuple[Run, list[Slot]]:
        """Statements with names of their own, some of which are declared in front of them."""
        self.scopes.append({})
        self.aliases.append({})
        slots = [self.declare(n) for n in names]
        run = self.sequence(body)
        self.scopes.pop()
        self.aliases.pop()
        return run, slots

    # --- types ----------------------------------------------------------------------------------------------------------
    def type(self, t: ir.Type) -> Callable[[Strand], TypeValue]:
        """A type with its static arguments."""
        known = self.alias(t.name) if not t.args else None
        if known is not None:
            return self.type(known)
        args = [self.static(a) for a in t.args]
        return lambda s: TypeValue(t.name, tuple(a(s) for a in args))

    def static(self, a: ir.Static) -> Run:
        """A static argument: a type, or a number."""
        if isinstance(a, ir.Type):
            slot = self.slot(a.name) if not a.args and not a.pointers else None
            return self.read(slot) if slot is not None else self.type(a)
        if isinstance(a, ir.Name) and len(a.path) == 1 and not a.args and self.slot(a.path[0]) is None:
            return self.type(ir.Type(a.path[0]))
        return self.expression(a)

    @abstractmethod
    def sequence(self, body: Iterable[ir.Statement]) -> Run:
        """Statements one after the other (`statements.py`)."""

    def expanded(self, t: ir.Type) -> ir.Type:
        """A type with what its names stand for here in their place."""
        known = self.alias(t.name) if not t.args else None
        if known is not None:
            return known
        return replace(t, args=tuple(self.expanded(a) if isinstance(a, ir.Type) else a for a in t.args))

    # --- expressions ----------------------------------------------------------------------------------------------------
    def expression(self, e: ir.Expression) -> Run:
        """The value of an expression."""
        match e:
            case ir.Literal(text):
                if text == "nullptr":
                    return lambda s: None
                if text.isdecimal():
                    number = int(text)
                    return lambda s: number
                return lambda s: s.arithmetic.literal(text)
            case ir.Unary("-", ir.Literal(text)):
                return lambda s: s.arithmetic.literal(text, True)
            case ir.Unary("&", ir.Index(of, at)):
                return self.address(of, at)
            case ir.Unary("&", ir.Name() as whole):
                return self.expression(whole)
            case ir.Call(ir.Name(("sizeof",)), (ir.Name((type_,)),)):
                return lambda s: SIZES[type_]
            case ir.Unary("*", p):
                return self.element(p, ir.Literal("0"))
            case ir.Unary("(void)", _):
                return lambda s: None
            case ir.Unary(op, x):
                return self.unary(op, x)
            case ir.Name():
                return self.name(e)
            case ir.Binary(op, x, y):
                left, right, combine = self.expression(x), self.expression(y), self.combine(op)
                return lambda s: combine(s, left(s), right(s))
            case ir.Select(ir.Binary("==", x, y), ir.Literal("1.0f"), ir.Literal("0.0f")):
                return self.operator("eq", (x, y))
            case ir.Select(ir.Binary("!=", x, ir.Literal("0.0f")), ir.Literal("1.0f"), ir.Literal("0.0f")):
                return self.operator("nonzero", (x,))
            case ir.Select():
                return self.select(e)
            case ir.Cast():
                return self.cast(e)
            case ir.Index(of, at):
                return self.element(of, at)
            case ir.Member():
                return self.member(e)
            case ir.Call():
                return self.call(e)
            case ir.Construct():
                return self.construct(e)
            case ir.Lambda():
                return self.function(e)
        raise Unknown(f"no meaning for {type(e).__name__}")

    def read(self, slot: Slot) -> Run:
        """The value of a variable."""
        k = slot.number
        if slot.refers:
            return lambda s: s.env[k].get()
        return lambda s: s.env[k]

    def name(self, e: ir.Name) -> Run:
        """A variable, or a constant of a type."""
        if len(e.path) == 1 and e.owner is None:
            slot = self.slot(e.path[0])
            if slot is not None:
                return self.read(slot)
            if e.path[0] in registry.CONSTANTS:
                constant = registry.CONSTANTS[e.path[0]]
                return lambda s: s.arithmetic.literal(constant)
        else:
            of = self.owner(e)
            return lambda s: registry.constant(of(s), e.path[-1])
        raise Unknown(f"unknown name {'::'.join(e.path)}")

    def owner(self, e: ir.Name) -> Callable[[Strand], TypeValue]:
        """The type in front of a member's name."""
        return self.type(e.owner if e.owner is not None else ir.Type(e.path[-2]))

    def unary(self, op: str, x: ir.Expression) -> Run:
        """An operator in front of a value."""
        value = self.expression(x)

        def run(s: Strand) -> Any:
            v = value(s)
            if op == "-":
                return s.arithmetic.apply("neg", v) if isinstance(v, Number) else -v
            if op == "!":
                return np.logical_not(v) if isinstance(v, np.ndarray) else not v
            if op == "+":
                return v
            return ~v

        return run

    def combine(self, op: str) -> Callable[[Strand, Any, Any], Any]:
        """A binary operator on what two values are."""
        integer = INTEGERS[op]

        def run(s: Strand, x: Any, y: Any) -> Any:
            if type(x) is int and type(y) is int:
                return integer(x, y)
            if isinstance(x, Number) or isinstance(y, Number):
                if op in COMPARISONS:
                    return s.arithmetic.compare(op, x, y)
                return s.arithmetic.apply(OPERATORS[op], x, y)
            if hasattr(x, "plus") and op in ("+", "-"):
                return x.plus(y if op == "+" else -y)
            if hasattr(y, "plus") and op == "+":
                return y.plus(x)
            if isinstance(x, Pointer) and y is None and op in ("==", "!="):
                null = np.False_ if x.null is None else x.null
                return null if op == "==" else ~null
            if x is None or y is None or hasattr(x, "plus"):
                raise Fault(f"operator {op} on a variable without a value")
            return integer(x, y)

        if op == "&&":
            return lambda s, x, y: y if x is True else False if x is False else integer(x, y)
        if op == "||":
            return lambda s, x, y: True if x is True else y if x is False else integer(x, y)
        return run

    def select(self, e: ir.Select) -> Run:
        """condition ? yes : no; each side for its lanes."""
        condition, yes, no = (self.expression(x) for x in (e.condition, e.yes, e.no))

        def run(s: Strand) -> Any:
            c = condition(s)
            if isinstance(c, bool | np.bool_ | int):
                return yes(s) if c else no(s)
            c = np.asarray(c, dtype=bool)
            before = s.active
            try:
                s.active = before & c
                a = yes(s)
                s.active = before & ~c
                b = no(s)
            finally:
                s.active = before
            return chosen(s, c, a, b)

        return run

    def cast(self, e: ir.Cast) -> Run:
        """A value as one of another type."""
        value, t = self.expression(e.value), e.type
        if t.pointers:
            if t.name in registry.POINTERS:
                make = registry.POINTERS[t.name]
                return lambda s: make(s, value(s))
            if t.name == "void":
                return value
            return lambda s: None if (pointer := value(s)) is None else pointer.of(t.name)
        known = self.alias(t.name)
        convert = registry.CONVERSIONS.get(known.name if known is not None else t.name)
        if convert is None:
            raise Unknown(f"no conversion to {t.name}")
        return lambda s: convert(s, value(s))

    def address(self, of: ir.Expression, at: ir.Expression) -> Run:
        """A pointer to an element."""
        base, index = self.expression(of), self.expression(at)
        return lambda s: base(s).plus(index(s))

    def element(self, of: ir.Expression, at: ir.Expression) -> Run:
        """An element of an array in registers or memory."""
        base, index = self.expression(of), self.expression(at)

        def run(s: Strand) -> Any:
            array, k = base(s), index(s)
            if isinstance(array, Cells):
                if len(array.dims) == 1:
                    return element_of(s, array, k).get()
                return array.part(int(k))
            if isinstance(array, Pointer):
                return Number(s.load(array, k))
            return array.element(s, k)

        return run

    def member(self, e: ir.Member) -> Run:
        """threadIdx.x, the registers of a struct, a member of an object."""
        match e:
            case ir.Member(ir.Name(("threadIdx",)), "x"):
                return lambda s: s.thread
            case ir.Member(ir.Name(("blockIdx",)), "x"):
                return lambda s: s.blocks_of_grid
            case ir.Member(ir.Name(("gridDim",)), "x"):
                return lambda s: s.world.launch.grid
        of = self.expression(e.of)

        def run(s: Strand) -> Any:
            value = of(s)
            if isinstance(value, Cells) and e.name == "v":
                return value
            if isinstance(value, dict):
                return value[e.name]
            return getattr(value, e.name)

        return run

    def place(self, e: ir.Expression) -> Callable[[Strand], Place]:
        """The place that an expression names, as of an assignment's left side."""
        match e:
            case ir.Name((name,)) if (slot := self.slot(name)) is not None:
                k, refers = slot.number, slot.refers
                if refers:
                    return lambda s: s.env[k]
                return lambda s: Place(lambda: s.env[k], lambda v: s.env.__setitem__(k, s.merge(s.env[k], v)))
            case ir.Index(of, at):
                base, index = self.expression(of), self.expression(at)
                return lambda s: element_of(s, base(s), index(s))
            case ir.Unary("*", p):
                base = self.expression(p)
                return lambda s: element_of(s, base(s), 0)
            case ir.Member(of, name):
                inner = self.expression(of)

                def run(s: Strand) -> Place:
                    value = inner(s)
                    return Place(lambda: getattr(value, name), lambda v: setattr(value, name, v))

                return run
        value = self.expression(e)
        return lambda s: constant_place(value(s))

    def call(self, e: ir.Call) -> Run:
        """An instruction, a function of the kernel, or a member function."""
        f = e.function
        if isinstance(f, ir.Member):
            return self.method(f, e.args)
        if isinstance(f, ir.Name):
            slot = self.slot(f.path[0]) if len(f.path) == 1 and f.owner is None else None
            if slot is None:
                return self.instruction(f, e.args)
        function, args = self.expression(f), [self.expression(a) for a in e.args]
        return lambda s: function(s)(s, *(a(s) for a in args))

    def method(self, f: ir.Member, given: Sequence[ir.Expression]) -> Run:
        """A member function."""
        of, args = self.expression(f.of), [self.expression(a) for a in given]
        static = [self.static(a) for a in f.args]

        def run(s: Strand) -> Any:
            value = of(s)
            if isinstance(value, Cells):
                return registry.METHODS[f.name](s, value, *(a(s) for a in args))
            return getattr(value, f.name)(s, *(t(s) for t in static), *(a(s) for a in args))

        return run

    def instruction(self, f: ir.Name, given: Sequence[ir.Expression]) -> Run:
        """A function of the headers."""
        path = f.path[1:] if f.path[0] == "mirage" else f.path
        name, static = path[-1], [self.static(a) for a in f.args]
        if len(path) == 1 and (op := operator_of(name)) is not None and name not in registry.INSTRUCTIONS:
            return self.operator(op, given)
        if len(path) > 1 or f.owner is not None:
            owner = self.owner(ir.Name(path, (), f.owner))
            places = registry.PLACES.get(name, ())
            args = [self.place(a) if k in places else self.expression(a) for k, a in enumerate(given)]
            return lambda s: registry.member_of(owner(s), name)(s, [t(s) for t in static], *(a(s) for a in args))
        known = registry.find(name)
        if known is None:
            raise Unknown(f"unknown instruction {name}")
        args = [self.place(a) if k in known.places else self.expression(a) for k, a in enumerate(given)]
        return lambda s: known.meaning(s, [t(s) for t in static], *(a(s) for a in args))

    def operator(self, op: str, given: Sequence[ir.Expression]) -> Run:
        """An operator of the registry."""
        values = [self.expression(a) for a in given]
        return lambda s: s.arithmetic.apply(op, *(v(s) for v in values))

    def construct(self, e: ir.Construct) -> Run:
        """A struct of its parts."""
        of, args = self.type(e.type), [self.expression(a) for a in e.args]

        def run(s: Strand) -> Any:
            known = of(s)
            if known.name in registry.CONVERSIONS and len(args) == 1:
                return registry.CONVERSIONS[known.name](s, args[0](s))
            make = registry.struct(known.name)
            if make is None:
                raise Unknown(f"nothing is known of the type {known.name}")
            return make(s, known.args, *(a(s) for a in args))

        return run

    def function(self, e: ir.Lambda) -> Run:
        """A lambda."""
        self.scopes.append({})
        self.aliases.append({})
        slots = [self.declare(p.name) for p in e.parameters]
        body = self.sequence(e.body)
        self.scopes.pop()
        self.aliases.pop()
        closure = Closure(slots, body)
        return lambda s: closure
