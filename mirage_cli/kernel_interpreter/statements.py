"""From statements of a kernel to functions that run them for the lanes of a strand.

A condition that lanes do not agree on runs both sides, each for its lanes; loops run until the last lane has ended.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import nests, registry
from mirage_cli.kernel_interpreter.expressions import Expressions
from mirage_cli.kernel_interpreter.memory import Cells, Fault, Pointer, Unknown
from mirage_cli.kernel_interpreter.numbers import Array
from mirage_cli.kernel_interpreter.places import Run, constant_place, element_of
from mirage_cli.kernel_interpreter.strand import Strand
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.build import children, parts

MOST_TURNS = 1 << 16  #: of a loop
SIDE_BY_SIDE = "MIRAGE_VECTOR_LOOP"  #: in front of a loop whose iterations need nothing of one another


class Statements(Expressions):
    """Compiles the statements of one kernel; with `beside` loops whose iterations write their own places run side by side."""

    def __init__(self, beside: bool, gpu: bool) -> None:
        super().__init__()
        self.beside, self.gpu = beside, gpu
        self.side_by_side: int | None = (
            None  #: variables below this number are written when a nest's iterations have run
        )
        self.known: dict[int, tuple[Any, frozenset[str]]] = {}  #: what parts of the kernel mention

    # --- statements -----------------------------------------------------------------------------------------------------
    def sequence(self, body: Iterable[ir.Statement]) -> Run:
        """Statements one after the other, as long as there are lanes."""
        runs = [(self.statement(st), _leaves(st)) for st in self.needed(body)]

        def run(s: Strand) -> None:
            for step, leaves in runs:
                step(s)
                if leaves and not s.active.any():
                    return

        return run

    def needed(self, body: Iterable[ir.Statement]) -> Sequence[ir.Statement]:
        """Statements without variables that nobody mentions and whose values do nothing."""
        kept, later = list[ir.Statement](), frozenset[str]()
        for st in reversed(tuple(body)):
            if isinstance(st, ir.Declare) and not st.storage:
                variables = list[ir.Variable]()
                for v in reversed(st.variables):
                    if v.name in later or v.value is None or v.dims or not _idle(v.value):
                        variables.insert(0, v)
                        later |= self.mentioned(v)
                if not variables:
                    continue
                st = st if len(variables) == len(st.variables) else replace(st, variables=tuple(variables))
            kept.append(st)
            later |= self.mentioned(st)
        return kept[::-1]

    def mentioned(self, part: Any) -> frozenset[str]:
        """The names that a part of the kernel mentions, found once for each part."""
        found = self.known.get(id(part))
        if found is None:
            own = part.path if isinstance(part, ir.Name) else (part.name,) if isinstance(part, ir.Type) else ()
            inner = (self.mentioned(x) for x in children(part))
            found = self.known[id(part)] = part, frozenset(own).union(*inner)
        return found[1]

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
        if self.side_by_side is not None and (w := nests.written(st)) is not None:
            root = self.slot(w.root)
            if root is not None and root.number < self.side_by_side:
                return nests.recorded(self, st, w, root)
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
        raise Unknown(f"no meaning for {type(st).__name__}")

    def variable(self, t: ir.Type, v: ir.Variable, storage: str) -> Run:
        """Declare a variable."""
        value = None
        if v.value is not None and not isinstance(v.value, ir.List):
            value = self.place(v.value) if v.reference or t.reference else self.expression(v.value)
        own, items = self.type(t), v.value if isinstance(v.value, ir.List) else None
        counted = ir.Literal(str(len(items.items) if items is not None else 0))  # of an array without a size
        dims = [self.expression(counted if d == ir.Literal("") else d) for d in v.dims]
        listed = [self.expression(x) for x in _flat(items)] if items is not None else []
        reference = v.reference or t.reference
        slot = self.declare(v.name, reference)
        if "__shared__" in storage:
            return lambda s: s.env.__setitem__(slot.number, Pointer(s.world.shared, 0, "char"))
        if value is not None and not (v.pointers or t.pointers or reference):
            convert = registry.CONVERSIONS.get(t.name)
            if convert is not None:
                given = value
                value = lambda s: convert(s, given(s))

        def run(s: Strand) -> None:
            if value is not None:
                s.env[slot.number] = new = value(s)
                if v.restrict and t.const and s.world.epochs is not None and isinstance(new, Pointer):
                    s.world.barriers.setdefault("restricted", []).append(new.memory)
                return
            known = own(s)
            make = registry.struct(known.name) if not v.pointers and not dims else None
            if make is not None:
                s.env[slot.number] = make(s, known.args, *(x(s) for x in listed))
                return
            sizes = [*(int(d(s)) for d in dims), *registry.dims(known.name, known.args)]
            if not sizes:
                s.env[slot.number] = None
                return
            if s.world.array is not None:
                s.env[slot.number] = s.world.array(
                    s, known.name, math.prod(sizes), [x(s) for x in listed] if items is not None else None
                )
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

    def nest(self, st: ir.For | ir.Each, one_by_one: Run) -> Run:
        """A loop as a nest whose iterations run side by side, where that is one and no CPU's (see `cpu.SideBySide`)."""
        nest = nests.nest_of(st) if self.gpu and self.side_by_side is None else None
        if nest is None:
            return one_by_one
        mentioned = {n: m for n in self.mentioned(nest.body) if (m := self.slot(n)) is not None}
        ranges = [(self.expression(a), self.expression(b)) for _, a, b in nest.loops]
        of = self.type(nest.each.type) if nest.each is not None else None
        macro = nest.each.macro if nest.each is not None else ""
        self.side_by_side = self.slots
        body, variables = self.inner(nest.body, nest.variables)
        self.side_by_side = None
        if any(m.refers for m in mentioned.values()):
            return one_by_one

        def spans(s: Strand) -> tuple[Sequence[range], Array] | None:
            if of is None:
                found = [(a(s), b(s)) for a, b in ranges]
                return ([range(*x) for x in found], s.active) if all(type(n) is int for x in found for n in x) else None
            args, lanes = of(s).args, registry.LANES.get(macro)
            active = s.active if lanes is None else s.active & lanes(s, args)
            return [range(n) for n in registry.EACH[macro][1](args)], active

        outer = [m.number for m in mentioned.values()]
        arrays = [mentioned[n].number for n in set(nests.indexed(nests.read(nest.body))) if n in mentioned]
        roots = [mentioned[n].number for n in nests.roots(nest.body) if n in mentioned]
        return nests.SideBySide([v.number for v in variables], outer, arrays, roots, spans, body, one_by_one)

    def loop(self, st: ir.For) -> Run:
        """A loop for as many turns as some lane needs."""
        self.scopes.append({})
        start, condition, step = self.statement(st.start), self.expression(st.condition), self.statement(st.step)
        body, _ = self.inner(st.body)
        spread = self.iterations(st)
        self.scopes.pop()
        own = isinstance(st.start, ir.Declare)  # nobody but the lanes in the loop has the variable, so all may step

        def run(s: Strand) -> None:
            before, left = s.active, s.left_loop
            s.left_loop = np.zeros_like(before)
            start(s)
            for turn in itertools.count():
                if turn > MOST_TURNS:
                    raise Fault(f"a loop that goes on after {MOST_TURNS} turns")
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
                with s.only(np.ones_like(before) if own else s.active):
                    step(s)
            s.left_loop = left
            s.active = before & ~left & ~s.left_call & ~s.exited

        return self.nest(st, run) if spread is None else registry.LOOPS[SIDE_BY_SIDE](start, *spread, body)

    def iterations(self, st: ir.For) -> tuple[Run, int, list[int]] | None:
        """Of a loop that counts up by one and runs side by side: where it ends, its variable, and the variables around it that
        its body mentions. None for loops that run one by one."""
        must = st.unroll in registry.LOOPS
        match st:
            case ir.For(ir.Declare(_, (ir.Variable(name),)), ir.Binary("<", ir.Name((known,)), bound), ir.Step("++")):
                own = self.slot(name)
                if own is not None and known == name and (must or (self.beside and _apart(st, name))):
                    mentioned = [self.slot(n) for n in sorted(self.mentioned(st.body))]
                    return self.expression(bound), own.number, [m.number for m in mentioned if m not in (None, own)]
        if must:
            raise Unknown(f"no meaning for {st.unroll} in front of this loop")
        return None

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
                s.env[slot.number] = element_of(s, cells, k) if len(cells.dims) == 1 else constant_place(cells.part(k))
                body(s)

        return run

    def each(self, st: ir.Each) -> Run:
        """Every lane visits its elements of a value in registers."""
        (names, ranges), lanes = registry.EACH[st.macro], registry.LANES.get(st.macro)
        body, slots = self.inner(st.body, names)
        of = self.type(st.type)

        def run(s: Strand) -> None:
            known = of(s)
            with s.only(s.active & lanes(s, known.args) if lanes is not None else s.active):
                for at in np.ndindex(*ranges(known.args)):
                    for slot, k in zip(slots, at, strict=True):
                        s.env[slot.number] = int(k)
                    body(s)

        return self.nest(st, run)

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


def _break(s: Strand) -> None:
    s.left_loop = s.left_loop | s.active
    s.active = np.zeros_like(s.active)


def names(part: Any) -> Iterator[str]:
    """The names that a part of a kernel mentions: of variables, instructions and types."""
    for x in parts(part):
        if isinstance(x, ir.Name):
            yield from x.path
        elif isinstance(x, ir.Type):
            yield x.name


def _idle(value: ir.Expression) -> bool:
    """True if an expression does nothing but have a value: it calls nothing and reads no memory."""
    match value:
        case ir.Literal() | ir.Name((_,), (), None) | ir.Member(ir.Name(("threadIdx" | "blockIdx",))):
            return True
        case ir.Cast(_, ir.Type(pointers=0), inner) | ir.Unary("-", inner):
            return _idle(inner)
        case ir.Binary("/" | "%", left, ir.Literal(text)):
            return text.strip("0") != "" and _idle(left)
        case ir.Binary(op, left, right):
            return op not in "/%" and _idle(left) and _idle(right)
        case ir.Select(condition, yes, no):
            return all(map(_idle, (condition, yes, no)))
    return False


def _apart(st: ir.For, variable: str) -> bool:
    """True if iterations of a loop seem to write places of their own: what they declare, or what its variable tells apart."""
    own, counters = {variable}, {id(x.start) for x in parts(st.body) if isinstance(x, ir.For)}
    functions = [x.body for x in parts(st.body) if isinstance(x, ir.Lambda)]
    results = {id(x) for x in parts(functions) if isinstance(x, ir.Return)}
    for x in parts(st.body):
        if isinstance(x, ir.Return | ir.Break | ir.Each | ir.ForEach) and id(x) not in results:
            return False
        if isinstance(x, ir.Declare):
            own |= {v.name for v in x.variables if id(x) not in counters or own & set(names(v.value))}
    steps = {id(x.step) for x in parts(st.body) if isinstance(x, ir.For)}
    return all(own & set(names(place)) for place in _written([x for x in parts(st.body) if id(x) not in steps]))


def _written(statements: Iterable[Any]) -> Iterator[Any]:
    """What assignments write, and the first argument of what is called."""
    for x in statements:
        match x:
            case ir.Assign() | ir.Step():
                yield x.place
            case ir.Do(calls):
                unused = [c for c in calls if isinstance(c, ir.Unary) and c.op == "(void)"]
                yield from (c.args[:1] if isinstance(c, ir.Call) else () for c in calls if c not in unused)


def _flat(items: ir.Expression) -> list[ir.Expression]:
    """The numbers of an initializer, row by row."""
    if isinstance(items, ir.List):
        return [x for i in items.items for x in _flat(i)]
    return [items]


def _leaves(st: ir.Statement) -> bool:
    """True if lanes may leave a loop or function in a statement."""
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


def compiled(body: Iterable[ir.Statement], around: Sequence[str], beside: bool = False, gpu: bool = False) -> Compiled:
    """Statements as a function of a strand, with these variables around them; `gpu`: of a kernel for one."""
    c = Statements(beside, gpu)
    variables = {name: c.declare(name).number for name in around}
    run = c.sequence(body)
    return Compiled(run, variables, c.slots)
