"""Loops over registers whose iterations run side by side: those whose bodies do nothing but compute values and write them.

All iterations are evaluated at once, in a strand with the lanes of each one after the other, from what was there before the
loop; what they write is kept and written afterwards, iteration by iteration. So no iteration may read what an earlier one
has written: a variable that is written is read in no other way than as what its own assignment adds to (`x += y`,
`x = fmaxf(x, y)`, done in order), or at the place that is assigned, which no other iteration has. Memory is either read or
written, as pointers do not tell what they share.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.expressions import Expressions
from mirage_cli.kernel_interpreter.memory import Cells, Fault, Pointer
from mirage_cli.kernel_interpreter.numbers import Array, Number, operator_of
from mirage_cli.kernel_interpreter.places import Place, Run, Slot, TypeValue, element_of
from mirage_cli.kernel_interpreter.strand import Strand
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.build import children, parts

MOST = 1 << 16  #: lanes that run side by side
PLAIN = {
    "fmaxf",
    "raised",
    "exp_below",
    "exp_between",
    "strip_exp_minus",
    "strip_exp_difference",
    "level_of",
    "to_float",
}
PLAIN |= {
    "quick_silu",
    "quick_sigmoid",
    "quick_gelu",
    "quick_gelu_tanh",
    "of_pair",
    "divide",
    "guarded_share",
    "guarded_div0",
    "min",
    "max",
    "strip_row",
    "strip_col",
}
MEMBERS = {"row", "col", "none", "join", "pack", "low", "high"}  #: functions of types that do nothing but have a value
TAKE = "take"  #: the function of a type that joins a value to a place
OLD, NEW = "old value", "new value"  #: names that no kernel has
FEW = 4  #: iterations of a loop with others in it, below which these run side by side instead


# --- what is written ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Write:
    """A statement that writes `place` (the variable `root`): a value, or what `fold` makes of the one before and a value."""

    root: str
    place: ir.Expression
    value: ir.Expression
    fold: ir.Expression | None = None


def written(st: ir.Statement) -> Write | None:
    """What a statement writes; None for others than assignments."""
    match st:
        case ir.Assign(place, "=", ir.Call(ir.Name() as f, (first, *rest))) if first == place and len(rest) == 1:
            return _write(place, rest[0], ir.Call(f, (ir.Name((OLD,)), ir.Name((NEW,)))))
        case ir.Assign(place, "=", value) | ir.Do((ir.Call(ir.Name(("put",)), (place, value)),)):
            return _write(place, value, None)
        case ir.Assign(place, op, value):
            return _write(place, value, ir.Binary(op[:-1], ir.Name((OLD,)), ir.Name((NEW,))))
        case ir.Do((ir.Call(ir.Name((_, "take")) as f, (place, value)),)):
            join = replace(f, path=(*f.path[:-1], "join"))
            return _write(place, value, ir.Call(join, (ir.Name((OLD,)), ir.Name((NEW,)))))
    return None


def _write(place: ir.Expression, value: ir.Expression, fold: ir.Expression | None) -> Write | None:
    base = place
    while isinstance(base, ir.Index | ir.Member):
        if isinstance(base, ir.Member) and base.name != "v":
            return None
        base = base.of
    return Write(base.path[0], place, value, fold) if isinstance(base, ir.Name) and len(base.path) == 1 else None


def indices(place: ir.Expression) -> list[ir.Expression]:
    """The indices of a place, the first one first."""
    found: list[ir.Expression] = []
    while isinstance(place, ir.Index | ir.Member):
        if isinstance(place, ir.Index):
            found.insert(0, place.at)
        place = place.of
    return found


def _plain(e: Any) -> bool:
    """True if an expression does nothing but have a value."""
    match e:
        case ir.Lambda() | ir.Construct() | ir.Unary("*" | "&" | "(void)"):
            return False
        case ir.Call(ir.Name(path, _, owner), args):
            known = path[-1] in MEMBERS if len(path) > 1 or owner is not None else path[-1] in PLAIN
            return (known or (len(path) == 1 and operator_of(path[0]) is not None)) and all(map(_plain, args))
        case ir.Call():
            return False
    return all(map(_plain, children(e)))


def _mentions(tree: Any, name: str) -> int:
    return sum(isinstance(x, ir.Name) and x.path[0] == name for x in parts(tree))


# --- which loops --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Nest:
    """Loops around a body: the variable, first number and bound of each; or the macro over a type's registers."""

    loops: Sequence[tuple[str, ir.Expression, ir.Expression]]
    body: Sequence[ir.Statement]
    each: ir.Each | None = None

    @property
    def variables(self) -> list[str]:
        """The numbers of iterations."""
        return [n for n, _, _ in self.loops] if self.each is None else list(registry.EACH[self.each.macro][0])


def nest_of(st: ir.For | ir.Each) -> Nest | None:
    """The loops that a statement is, as far as there is nothing between them; None where their iterations may need one
    another, or are so few that inner loops are better run side by side."""
    loops: list[tuple[str, ir.Expression, ir.Expression]] = []
    body: Sequence[ir.Statement] = (st,)
    if isinstance(st, ir.Each):
        nest = Nest((), st.body, st)
    else:
        while len(body) == 1 and isinstance(body[0], ir.For) and (one := _counted(body[0])) is not None:
            if any(_mentions(one[1:], n) for n, _, _ in loops):
                break
            loops.append(one)
            body = body[0].body
        nest = Nest(loops, body)
    holds = any(isinstance(x, ir.For | ir.Each) for x in parts(nest.body))
    if not (loops or nest.each) or (holds and (nest.each is not None or len(_iterations(nest)) < FEW)):
        return None
    writes: list[tuple[Write, ir.Statement]] = []
    if not _fits(nest.body, set(nest.variables), writes) or not writes:
        return None
    return nest if all(_in_turn(nest, root, writes, holds) for root in {w.root for w, _ in writes}) else None


def _counted(st: ir.For) -> tuple[str, ir.Expression, ir.Expression] | None:
    match st:
        case ir.For(
            ir.Declare(ir.Type("int"), (ir.Variable(name, value=first),)),
            ir.Binary("<", ir.Name((known,)), bound),
            ir.Step("++", ir.Name((stepped,))),
        ) if name == known == stepped and first is not None:
            return name, first, bound
    return None


def _fits(body: Iterable[ir.Statement], own: set[str], writes: list[tuple[Write, ir.Statement]]) -> bool:
    """True if statements only compute values and write them; `own` are the names that they declare, `writes` gets what is
    written besides."""
    own = set(own)
    for st in body:
        match st:
            case ir.Declare(type_, variables, ""):
                if type_.pointers or type_.reference or not _plain(st):
                    return False
                own |= {v.name for v in variables}
                good = type_.name in registry.CONVERSIONS and not any(v.pointers or v.reference for v in variables)
            case ir.If(condition, then, otherwise):
                good = _plain(condition) and _fits(then, own, writes) and _fits(otherwise, own, writes)
            case ir.For() if (one := _counted(st)) is not None:
                good = _plain(one[1:]) and _fits(st.body, own | {one[0]}, writes)
            case ir.Assign() | ir.Do():
                w = written(st)
                good = w is not None and _plain((w.value, indices(w.place), w.fold or ()))
                if w is not None and w.root not in own:
                    writes.append((w, st))
            case _:
                good = isinstance(st, ir.Alias)
        if not good:
            return False
    return True


def _in_turn(nest: Nest, root: str, writes: Sequence[tuple[Write, ir.Statement]], holds: bool) -> bool:
    """True if no iteration reads what an earlier one has written to a variable; `holds`: there are loops in the body."""
    own = [(w, st) for w, st in writes if w.root == root]
    folds = {w.fold for w, _ in own}
    if len(folds) > 1 or sum(_mentions(st, root) for _, st in own) != _mentions(nest.body, root):
        return False
    if any(_mentions(indices(w.place), root) for w, _ in own):
        return False
    if not any(_mentions(w.value, root) for w, _ in own):
        return True
    w = own[0][0]
    there = sum(x == w.place for x in parts(w.value))
    return len(own) == 1 and folds == {None} and not holds and there == _mentions(w.value, root) and _apart(nest, w)


def _apart(nest: Nest, w: Write) -> bool:
    """True if each iteration has a place of its own."""
    at = indices(w.place)
    if nest.each is not None:
        return {ir.Name((v,)) for v in nest.variables} <= set(at)
    numbers = {
        v.name: v.value for st in nest.body if isinstance(st, ir.Declare) for v in st.variables if v.value is not None
    }
    places = [tuple(_number(i, numbers, known) for i in at) for known in _iterations(nest)]
    return len(places) > 0 and len(set(places)) == len(places)


def _iterations(nest: Nest) -> list[dict[str, int]]:
    """The numbers of all iterations, where they are known from the text."""
    ranges = [(_number(first, {}, {}), _number(bound, {}, {})) for _, first, bound in nest.loops]
    spans = [range(a, b) for a, b in ranges if a is not None and b is not None]
    return (
        [dict(zip(nest.variables, at, strict=True)) for at in itertools.product(*spans)]
        if len(spans) == len(ranges)
        else []
    )


def _number(e: ir.Expression, declared: dict[str, ir.Expression], known: dict[str, int]) -> int | None:
    """The value of a whole number in an iteration; None where it is not told by the text."""
    match e:
        case ir.Literal(text):
            return int(text) if text.isdecimal() else None
        case ir.Name((name,)):
            return known[name] if name in known else _number(declared[name], {}, known) if name in declared else None
        case ir.Binary("+" | "-" | "*" as op, left, right):
            x, y = _number(left, declared, known), _number(right, declared, known)
            return None if x is None or y is None else x + y if op == "+" else x - y if op == "-" else x * y
    return None


# --- iterations as lanes ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class View:
    """An array in registers of a strand as one with the lanes of `count` iterations sees it: place `first` of each lane."""

    cells: Cells
    dims: Sequence[int]
    first: Any
    count: int
    lanes: int

    @property
    def v(self) -> View:
        """The registers of a struct."""
        return self

    def element(self, s: Strand, k: Any) -> Any:
        """An element, or the elements behind a first index. Raises Fault outside."""
        if np.any(((np.asarray(k) < 0) | (np.asarray(k) >= self.dims[0])) & s.active):
            raise Fault(f"place {k} of {self.dims[0]} registers")
        inner = int(np.prod(self.dims[1:]))
        at = self.first + k * inner
        if len(self.dims) > 1:
            return replace(self, dims=self.dims[1:], first=at)
        at = np.broadcast_to(at, (s.count,)).reshape(self.count, self.lanes)
        at = np.where(s.active.reshape(at.shape), at, self.cells.first)
        if (at == at[:, :1]).all():
            return Number(np.concatenate([self._place(s, int(x)) for x in at[:, 0]], axis=1))
        every = np.unique(at)
        values = np.stack([self._place(s, int(x)) for x in every], 1)
        return Number(values[:, np.searchsorted(every, at).reshape(-1), np.tile(np.arange(self.lanes), self.count)])

    def _place(self, s: Strand, at: int) -> Array:
        """The register of all lanes: arbitrary where nobody has put anything."""
        value = self.cells.values[at]
        a = s.arithmetic.arbitrary((self.lanes,)) if value is None else s.arithmetic.number(value).a
        return np.broadcast_to(a, (a.shape[0], self.lanes))


@dataclass(frozen=True, slots=True)
class Kept:
    """What iterations write: the variable, indices, values, and the lanes that do so."""

    st: ir.Statement
    root: int
    at: Sequence[Any]
    value: Any
    fold: tuple[int, int, Run] | None
    active: Array

    def pieces(self, n: int) -> Iterator[tuple[Any, ...]]:
        """What each of n iterations writes: itself, indices, the value, lanes."""
        at = [_pieces(i, n) for i in self.at]
        places: Iterable[Any] = zip(*at, strict=True) if at else [()] * n
        return zip([self] * n, places, _pieces(self.value, n), self.active.reshape(n, -1), strict=True)

    def put(self, s: Strand, at: Sequence[Any], value: Any, active: Array) -> None:
        """Write what an iteration does."""
        before, s.active = s.active, active
        try:
            place = self._place(s, at)
            if self.fold is not None:
                old, new, join = self.fold
                s.env[old], s.env[new] = place.get(), value
                value = join(s)
            place.set(value)
        except Fault as e:
            raise Fault(e.args[0], self.st) from None
        finally:
            s.active = before

    def _place(self, s: Strand, at: Sequence[Any]) -> Place:
        k, array = self.root, s.env[self.root]
        if not at:
            return Place(lambda: s.env[k], lambda v: s.env.__setitem__(k, s.merge(s.env[k], v)))
        for i in at[:-1]:
            array = array.part(int(i)) if isinstance(array, Cells) else array.element(s, i)
        return element_of(s, array, at[-1])


def _pieces(x: Any, n: int) -> Sequence[Any]:
    """What each iteration has of a value of all lanes."""
    if isinstance(x, Number) and x.a.shape[1] > 1:
        return [Number(a) for a in x.a.reshape(len(x.a), n, -1).swapaxes(0, 1)]
    if isinstance(x, np.ndarray) and x.ndim:
        rows = x.reshape(n, -1)
        return rows[:, 0].tolist() if x.dtype != bool and (rows == rows[:, :1]).all() else list(rows)
    return [x] * n


def recorded(c: Expressions, st: ir.Statement, w: Write, root: Slot) -> Run:
    """An assignment in a body whose iterations run side by side."""
    at, value = [c.expression(i) for i in indices(w.place)], c.expression(w.value)
    fold: tuple[int, int, Run] | None = None
    if w.fold is not None:
        c.scopes.append({})
        fold = c.declare(OLD).number, c.declare(NEW).number, c.expression(w.fold)
        c.scopes.pop()
    number = isinstance(st, ir.Do) and w.fold is None

    def run(s: Strand) -> None:
        x = value(s)
        s.kept.append(
            Kept(st, root.number, [i(s) for i in at], s.arithmetic.number(x) if number else x, fold, s.active)
        )

    return run


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A nest that is run side by side: its variables, the variables around it that it reads (arrays among them in `indexed`)
    and writes; `ranges` are its iterations; where something is not as it has to be it runs one by one."""

    variables: Sequence[int]
    outer: Sequence[int]
    indexed: Sequence[int]
    roots: Sequence[int]
    ranges: Run
    body: Run
    one_by_one: Run

    def __call__(self, s: Strand) -> None:
        """All iterations."""
        found = self.ranges(s) if self._known(s) else None
        if found is None:
            self.one_by_one(s)
            return
        spans, active = found
        if not active.any():
            return
        at = np.indices([len(r) for r in spans]).reshape(len(spans), -1)
        at = at + np.array([[r.start] for r in spans])
        step = max(1, MOST // s.count)
        for begin in range(0, at.shape[1], step):
            self._run(s, at[:, begin : begin + step], active)

    def _known(self, s: Strand) -> bool:
        """True if all variables are what can be given to more lanes, and memory is not both read and written."""
        memory = [any(isinstance(s.env[k], Pointer) for k in slots) for slots in (self.indexed, self.roots)]
        return not all(memory) and all(
            x is None or isinstance(x, bool | int | np.ndarray | np.generic | Number | Pointer | Cells | TypeValue)
            for x in (s.env[k] for k in self.outer)
        )

    def _run(self, s: Strand, at: Array, active: Array) -> None:
        n = at.shape[1]
        wide = Strand(s.world, s.number, np.tile(s.block, n), np.tile(s.thread, n))
        wide.active, wide.exited, wide.waited = (np.tile(x, n) for x in (active, s.exited, s.waited))
        wide.calls, wide.env, wide.kept = s.calls, list(s.env), []
        for k in self.outer:
            wide.env[k] = _tiled(s.env[k], s.count, n)
        for k, numbers in zip(self.variables, at, strict=True):
            wide.env[k] = int(numbers[0]) if (numbers == numbers[0]).all() else np.repeat(numbers, s.count)
        self.body(wide)
        for writes in zip(*(w.pieces(n) for w in wide.kept), strict=True):
            for w, place, value, lanes in writes:
                if lanes.any():
                    w.put(s, place, value, lanes)


def _tiled(x: Any, lanes: int, n: int) -> Any:
    """A variable's value for the lanes of n iterations."""
    if isinstance(x, Cells):
        return View(x, x.dims, x.first, n, lanes)
    if isinstance(x, Number):
        return Number(np.tile(x.a, (1, n))) if x.a.shape[1] > 1 else x
    if isinstance(x, Pointer):
        return replace(x, **{name: _tiled(getattr(x, name), lanes, n) for name in ("at", "null", "block")})
    return np.tile(x, n) if isinstance(x, np.ndarray) and x.shape == (lanes,) else x


def writes_of(body: Any) -> list[Write]:
    """What assignments in statements write."""
    return [w for x in parts(body) if isinstance(x, ir.Assign | ir.Do) and (w := written(x)) is not None]


def roots(body: Any) -> set[str]:
    """The variables that statements write."""
    return {w.root for w in writes_of(body)}


def read(body: Any) -> list[Any]:
    """What statements read: all but the places that assignments write."""
    writes = writes_of(body)
    others = [x for x in parts(body) if isinstance(x, ir.Declare | ir.Variable)]
    return [
        *others,
        *(x.condition for x in parts(body) if isinstance(x, ir.If)),
        *((w.value, indices(w.place)) for w in writes),
    ]


def indexed(body: Any) -> Iterator[str]:
    """The names of arrays that are indexed."""
    for x in parts(body):
        if isinstance(x, ir.Index):
            base: Any = x
            while isinstance(base, ir.Index | ir.Member):
                base = base.of
            if isinstance(base, ir.Name):
                yield base.path[0]
