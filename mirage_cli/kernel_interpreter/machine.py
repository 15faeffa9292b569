"""From the statements of a kernel to functions that run them for the lanes of a strand.

Names become numbered places once, when a kernel is compiled. A condition that lanes do not agree on runs both sides, each for
its lanes; loops run until the last lane has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from mirage_cli.kernel_interpreter.instructions import registry
from mirage_cli.kernel_interpreter.memory import Cells, Fault, Pointer
from mirage_cli.kernel_interpreter.numbers import Number, operator_of
from mirage_cli.kernel_interpreter.strand import Strand
from mirage_cli.kernel_language import ir

Run: TypeAlias = Callable[[Strand], Any]
OPERATORS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: _quotient(x, y),
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
    "&&": lambda x, y: np.logical_and(x, y),
    "||": lambda x, y: np.logical_or(x, y),
}


def _quotient(x: Any, y: Any) -> Any:
    """Division of integers as C has it, towards 0."""
    if isinstance(x, int) and isinstance(y, int):
        return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    return np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type whose static arguments are known."""

    name: str
    args: tuple[Any, ...] = ()


@dataclass(slots=True)
class Slot:
    """Where a variable lies in a strand's `env`; `refers`: it stands for another place."""

    number: int
    refers: bool = False


@dataclass(slots=True)
class Place:
    """What can be read and written: an element, a variable."""

    get: Callable[[], Any]
    set: Callable[[Any], None]


@dataclass(slots=True)
class Closure:
    """A lambda with the variables around it."""

    parameters: Sequence[Slot]
    body: Run

    def __call__(self, s: Strand, *args: Any) -> Any:
        """Its result; of lanes that return at different places, each its own."""
        for slot, x in zip(self.parameters, args, strict=True):
            s.env[slot.number] = x
        before, left = s.active, s.left_call
        value, s.result = s.result, None
        s.left_call = np.zeros_like(s.active)
        s.calls += 1
        try:
            self.body(s)
            return s.result
        finally:
            s.active, s.left_call, s.result = before, left, value
            s.calls -= 1


class Compiler:
    """Compiles the statements of one kernel."""

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

    # --- statements -----------------------------------------------------------------------------------------------------
    def sequence(self, body: Iterable[ir.Statement]) -> Run:
        """Statements one after the other, as long as there are lanes."""
        runs = [(self.statement(st), _leaves(st)) for st in body]

        def run(s: Strand) -> None:
            for step, leaves in runs:
                step(s)
                if leaves and not s.active.any():
                    return

        return run

    def statement(self, st: ir.Statement) -> Run:
        """One statement; faults in it name it."""
        run = self._statement(st)

        def guarded(s: Strand) -> None:
            try:
                run(s)
            except Fault as e:
                if e.args[1:] or isinstance(st, ir.For | ir.If | ir.Scope | ir.Each):
                    raise
                raise Fault(e.args[0], st) from None

        return guarded

    def _statement(self, st: ir.Statement) -> Run:
        match st:
            case ir.Declare():
                runs = [self.variable(st.type, v, st.storage) for v in st.variables]
                return lambda s: [r(s) for r in runs]
            case ir.Alias():
                self.aliases[-1][st.name] = self.expanded(st.type)
                return lambda s: None
            case ir.Assign():
                return self.assign(st)
            case ir.Do():
                calls = [self.expression(c) for c in st.calls]
                return lambda s: [c(s) for c in calls]
            case ir.Step():
                return self.assign(ir.Assign(st.place, "+=" if st.op == "++" else "-=", ir.Literal("1")))
            case ir.For():
                return self.loop(st)
            case ir.ForEach():
                return self.over_elements(st)
            case ir.Each():
                return self.each(st)
            case ir.If():
                return self.choice(st)
            case ir.Scope():
                return self.inner(st.body)[0]
            case ir.Return():
                return self.leave(st)
            case ir.Break():
                return _break
        raise Fault(f"no meaning for {type(st).__name__}")

    def expanded(self, t: ir.Type) -> ir.Type:
        """A type with what its names stand for here in their place."""
        known = self.alias(t.name) if not t.args else None
        if known is not None:
            return known
        return replace(t, args=tuple(self.expanded(a) if isinstance(a, ir.Type) else a for a in t.args))

    def variable(self, t: ir.Type, v: ir.Variable, storage: str) -> Run:
        """Declare a variable."""
        value = None
        if v.value is not None and not isinstance(v.value, ir.List):
            value = self.place(v.value) if v.reference or t.reference else self.expression(v.value)
        dims = [self.expression(d) for d in v.dims]
        own, items = self.type(t), v.value if isinstance(v.value, ir.List) else None
        listed = [self.expression(x) for x in _flat(items)] if items is not None else []
        reference = v.reference or t.reference
        slot = self.declare(v.name, reference)
        if "__shared__" in storage:
            return lambda s: s.env.__setitem__(slot.number, Pointer(s.world.shared, 0, "char"))
        if value is not None and not (v.pointers or t.pointers or reference):
            convert = registry.CONVERSIONS.get(t.name)
            if convert is not None:
                given = value
                value = lambda s: convert(s, given(s))  # noqa: E731

        def run(s: Strand) -> None:
            if value is not None:
                s.env[slot.number] = value(s)
                return
            known = own(s)
            make = registry.struct(known.name) if not v.pointers and not dims else None
            if make is not None:
                s.env[slot.number] = make(s, known.args)
                return
            sizes = [*(int(d(s)) for d in dims), *registry.dims(known.name, known.args)]
            if not sizes:
                s.env[slot.number] = None
                return
            cells = Cells(sizes, type_=known.name)
            if items is not None:
                given = [x(s) for x in listed]
                zero = s.arithmetic.const(0) if known.name in ("float", "double") else 0
                cells.set_all([*given, *([zero] * (cells.size - len(given)))])
            s.env[slot.number] = cells

        return run

    def assign(self, st: ir.Assign) -> Run:
        """place op= value."""
        if st.op == "=" and (whole := self.whole_assignment(st)) is not None:
            return whole
        place, value = self.place(st.place), self.expression(st.value)
        if st.op == "=":
            return lambda s: place(s).set(value(s))
        combine = self.combine(st.op[:-1])

        def run(s: Strand) -> None:
            at = place(s)
            at.set(combine(s, at.get(), value(s)))

        return run

    def whole_assignment(self, st: ir.Assign) -> Run | None:
        """An assignment to a variable, which needs no place."""
        if not isinstance(st.place, ir.Name) or len(st.place.path) > 1:
            return None
        slot = self.slot(st.place.path[0])
        if slot is None or slot.refers:
            return None
        value, k = self.expression(st.value), slot.number

        def run(s: Strand) -> None:
            old, new = s.env[k], value(s)
            if isinstance(old, Cells) and isinstance(new, Cells):
                old.set_all([s.merge(a, b) for a, b in zip(old.all(), new.all(), strict=True)])
            else:
                s.env[k] = s.merge(old, new)

        return run

    def loop(self, st: ir.For) -> Run:
        """A loop for as many turns as some lane needs."""
        self.scopes.append({})
        start, condition, step = self.statement(st.start), self.expression(st.condition), self.statement(st.step)
        body, _ = self.inner(st.body)
        self.scopes.pop()

        def run(s: Strand) -> None:
            before, left = s.active, s.left_loop
            s.left_loop = np.zeros_like(before)
            start(s)
            while True:
                more = condition(s)
                if isinstance(more, bool | np.bool_):
                    if not more:
                        break
                else:
                    s.active = s.active & more
                    if not s.active.any():
                        break
                body(s)
                s.active = s.active & ~s.left_loop & ~s.left_call & ~s.exited
                if not s.active.any():
                    break
                step(s)
            s.left_loop = left
            s.active = before & ~left & ~s.left_call & ~s.exited

        return run

    def over_elements(self, st: ir.ForEach) -> Run:
        """A loop over the places of an array in registers."""
        over = self.expression(st.over)
        self.scopes.append({})
        slot = self.declare(st.name, True)
        body, _ = self.inner(st.body)
        self.scopes.pop()

        def run(s: Strand) -> None:
            cells = over(s)
            for k in range(cells.dims[0]):
                s.env[slot.number] = _element(s, cells, k) if len(cells.dims) == 1 else _constant(cells.part(k))
                body(s)

        return run

    def each(self, st: ir.Each) -> Run:
        """Every lane visits its elements of a value in registers."""
        names, ranges = registry.EACH[st.macro]
        body, slots = self.inner(st.body, names)
        of = self.type(st.type)

        def run(s: Strand) -> None:
            known = of(s)
            for at in np.ndindex(*ranges(known.args)):
                for slot, k in zip(slots, at, strict=True):
                    s.env[slot.number] = int(k)
                body(s)

        return run

    def choice(self, st: ir.If) -> Run:
        """if and else, each for its lanes."""
        condition = self.expression(st.condition)
        then, otherwise = self.inner(st.then)[0], self.inner(st.otherwise)[0] if st.otherwise else None

        def run(s: Strand) -> None:
            c = condition(s)
            if isinstance(c, bool | np.bool_ | int):
                if c:
                    then(s)
                elif otherwise is not None:
                    otherwise(s)
                return
            c = np.asarray(c, dtype=bool)
            before = s.active
            for side, mask in ((then, before & c), (otherwise, before & ~c)):
                if side is not None and mask.any():
                    s.active = mask & ~s.left_loop & ~s.left_call & ~s.exited
                    side(s)
            s.active = before & ~s.left_loop & ~s.left_call & ~s.exited

        return run

    def leave(self, st: ir.Return) -> Run:
        """The end of a lambda, or of the kernel."""
        value = self.expression(st.value) if st.value is not None else None

        def run(s: Strand) -> None:
            if value is not None:
                s.result = s.merge(s.result, value(s))
            if s.calls:
                s.left_call = s.left_call | s.active
            else:
                s.exited = s.exited | s.active
            s.active = np.zeros_like(s.active)

        return run

    # --- expressions ----------------------------------------------------------------------------------------------------
    def expression(self, e: ir.Expression) -> Run:
        """The value of an expression."""
        match e:
            case ir.Literal(text):
                if text == "nullptr":
                    return lambda s: None
                return _once(lambda s: s.arithmetic.literal(text))
            case ir.Unary("-", ir.Literal(text)):
                return _once(lambda s: s.arithmetic.literal(text, True))
            case ir.Unary("&", ir.Index(of, at)):
                return self.address(of, at)
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
        raise Fault(f"no meaning for {type(e).__name__}")

    def read(self, slot: Slot) -> Run:
        """The value of a variable."""
        k = slot.number
        if slot.refers:
            return lambda s: s.env[k].get()
        return lambda s: s.env[k]

    def name(self, e: ir.Name) -> Run:
        """A variable, or a constant of a type."""
        if len(e.path) == 1:
            slot = self.slot(e.path[0])
            if slot is not None:
                return self.read(slot)
            if e.path[0] in registry.CONSTANTS:
                constant = registry.CONSTANTS[e.path[0]]
                return lambda s: s.arithmetic.literal(constant)
        else:
            of = self.owner(e)
            return lambda s: registry.constant(of(s), e.path[-1])
        raise Fault(f"unknown name {'::'.join(e.path)}")

    def owner(self, e: ir.Name) -> Callable[[Strand], TypeValue]:
        """The type in front of a member's name."""
        return self.type(e.owner if e.owner is not None else ir.Type(e.path[-2]))

    def unary(self, op: str, x: ir.Expression) -> Run:
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
            if isinstance(x, Number) or isinstance(y, Number):
                if op in COMPARISONS:
                    return s.arithmetic.compare(op, x, y)
                return s.arithmetic.apply(OPERATORS[op], x, y)
            if hasattr(x, "plus") and op in ("+", "-"):
                return x.plus(y if op == "+" else -y)
            if hasattr(y, "plus") and op == "+":
                return y.plus(x)
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
            return _chosen(s, c, a, b)

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
            return lambda s: value(s).of(t.name)
        known = self.alias(t.name)
        convert = registry.CONVERSIONS.get(known.name if known is not None else t.name)
        if convert is None:
            raise Fault(f"no conversion to {t.name}")
        return lambda s: convert(s, value(s))

    def address(self, of: ir.Expression, at: ir.Expression) -> Run:
        base, index = self.expression(of), self.expression(at)
        return lambda s: base(s).plus(index(s))

    def element(self, of: ir.Expression, at: ir.Expression) -> Run:
        """An element of an array in registers or memory."""
        base, index = self.expression(of), self.expression(at)

        def run(s: Strand) -> Any:
            array, k = base(s), index(s)
            if isinstance(array, Cells):
                if len(array.dims) == 1:
                    return _element(s, array, k).get()
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
        """What can be written."""
        match e:
            case ir.Name((name,)) if (slot := self.slot(name)) is not None:
                k, refers = slot.number, slot.refers
                if refers:
                    return lambda s: s.env[k]  # type: ignore[no-any-return]
                return lambda s: Place(lambda: s.env[k], lambda v: s.env.__setitem__(k, s.merge(s.env[k], v)))
            case ir.Index(of, at):
                base, index = self.expression(of), self.expression(at)
                return lambda s: _element(s, base(s), index(s))
            case ir.Unary("*", p):
                base = self.expression(p)
                return lambda s: _element(s, base(s), 0)
            case ir.Member(of, name):
                inner = self.expression(of)

                def run(s: Strand) -> Place:
                    value = inner(s)
                    return Place(lambda: getattr(value, name), lambda v: setattr(value, name, v))

                return run
        value = self.expression(e)
        return lambda s: _constant(value(s))

    def call(self, e: ir.Call) -> Run:
        """An instruction, a function of the kernel, or a member function."""
        f = e.function
        if isinstance(f, ir.Member):
            return self.method(f, e.args)
        if isinstance(f, ir.Name):
            slot = self.slot(f.path[0]) if len(f.path) == 1 else None
            if slot is None:
                return self.instruction(f, e.args)
        function, args = self.expression(f), [self.expression(a) for a in e.args]
        return lambda s: function(s)(s, *(a(s) for a in args))

    def method(self, f: ir.Member, given: Sequence[ir.Expression]) -> Run:
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
            values = [self.expression(a) for a in given]
            return lambda s: s.arithmetic.apply(op, *(v(s) for v in values))
        if len(path) > 1:
            owner = self.owner(ir.Name(path, (), f.owner))
            args = [self.expression(a) for a in given]
            return lambda s: registry.member_of(owner(s), name)(s, [t(s) for t in static], *(a(s) for a in args))
        known = registry.find(name)
        if known is None:
            raise Fault(f"unknown instruction {name}")
        args = [self.place(a) if k in known.places else self.expression(a) for k, a in enumerate(given)]
        return lambda s: known.meaning(s, [t(s) for t in static], *(a(s) for a in args))

    def construct(self, e: ir.Construct) -> Run:
        """A struct of its parts."""
        of, args = self.type(e.type), [self.expression(a) for a in e.args]

        def run(s: Strand) -> Any:
            known = of(s)
            if known.name in registry.CONVERSIONS and len(args) == 1:
                return registry.CONVERSIONS[known.name](s, args[0](s))
            make = registry.struct(known.name)
            if make is None:
                raise Fault(f"nothing is known of the type {known.name}")
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


def _once(make: Run) -> Run:
    """A value that never changes, made when it is first needed."""
    kept: dict[int, Any] = {}

    def run(s: Strand) -> Any:
        key = id(s.arithmetic)
        if key not in kept:
            kept[key] = make(s)
        return kept[key]

    return run


def _constant(value: Any) -> Place:
    def none(_: Any) -> None:
        raise Fault("this cannot be written")

    return Place(lambda: value, none)


def _element(s: Strand, array: Any, k: Any) -> Place:
    """The place of an element."""
    if isinstance(array, Pointer):
        return Place(lambda: Number(s.load(array, k)), lambda v: s.store(array, k, s.arithmetic.number(v)))
    if not isinstance(array, Cells):
        return _constant(array.element(s, k))
    if isinstance(k, np.ndarray):
        ks = np.unique(k[s.active])
        if len(ks) != 1:
            return _scattered(s, array, k, [int(x) for x in ks])
        k = int(ks[0])
    if len(array.dims) > 1:
        part = array.part(int(k))
        return Place(
            lambda: part, lambda v: part.set_all([s.merge(a, b) for a, b in zip(part.all(), v.all(), strict=True)])
        )
    at = array.place(int(k))
    return Place(lambda: array.values[at], lambda v: array.values.__setitem__(at, s.merge(array.values[at], v)))


def _scattered(s: Strand, array: Cells, k: Any, ks: Sequence[int]) -> Place:
    """An element whose number differs from lane to lane."""
    places = [(array.place(x), k == x) for x in ks]

    def get() -> Any:
        value = None
        for at, mine in places:
            with s.only(s.active & mine):
                value = s.merge(value, array.values[at])
        return value

    def put(v: Any) -> None:
        for at, mine in places:
            with s.only(s.active & mine):
                array.values[at] = s.merge(array.values[at], v)

    return Place(get, put)


def _chosen(s: Strand, c: Any, a: Any, b: Any) -> Any:
    """Of two values the one that each lane has chosen."""
    if isinstance(a, Pointer) and b is None:
        return replace(a, null=~c if a.null is None else ~c | a.null)
    if isinstance(b, Pointer) and a is None:
        return replace(b, null=c if b.null is None else c | b.null)
    if isinstance(a, Pointer) and isinstance(b, Pointer):
        return replace(a, at=np.where(c, a.at, b.at))
    if isinstance(a, Number) or isinstance(b, Number):
        return Number(np.where(c, s.arithmetic.number(a).a, s.arithmetic.number(b).a))
    return np.where(c, a, b)


def _break(s: Strand) -> None:
    s.left_loop = s.left_loop | s.active
    s.active = np.zeros_like(s.active)


def _flat(items: ir.Expression) -> list[ir.Expression]:
    """The numbers of an initializer, row by row."""
    if isinstance(items, ir.List):
        return [x for i in items.items for x in _flat(i)]
    return [items]


def _leaves(st: ir.Statement) -> bool:
    """Whether lanes may leave a loop or function in a statement."""
    match st:
        case ir.Return() | ir.Break():
            return True
        case ir.If(_, then, otherwise):
            return any(_leaves(x) for x in (*then, *otherwise))
        case ir.For(_, _, _, body) | ir.Scope(body):
            return any(_leaves(x) for x in body)
        case ir.ForEach(_, _, _, body) | ir.Each(_, _, body):
            return any(_leaves(x) for x in body)
        case ir.Do(calls):
            return any(isinstance(c, ir.Call) for c in calls)
    return False


@dataclass(frozen=True, slots=True)
class Compiled:
    """A function that strands can run: where its variables lie, and how many there are."""

    run: Run
    variables: dict[str, int]
    slots: int

    def start(self, s: Strand, **values: Any) -> None:
        """Run it with some variables set."""
        s.env = [None] * self.slots
        for name, value in values.items():
            s.env[self.variables[name]] = value
        self.run(s)


def compiled(body: Iterable[ir.Statement], names: Sequence[str]) -> Compiled:
    """Statements as a function of a strand, with these variables around them."""
    c = Compiler()
    variables = {name: c.declare(name).number for name in names}
    run = c.sequence(body)
    return Compiled(run, variables, c.slots)
