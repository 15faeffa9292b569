"""The normal form of a program, in which equal mathematics spelled differently is equal text.

Passes, in order:
1. `normalise`: constants are exact rationals and travel outwards through everything that is linear in them; quotients by
   constants are products, reciprocals and reciprocal roots are quotients, `exp(x - max(x))` under a quotient in which the
   maximum cancels is the stabilised exponential.
2. `order`: operands of commutative operators, sources, values and axes get canonical order and names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from mirage_cli.lax import extents as ex
from mirage_cli.lax.identify import dedupe, rename_axes, tidy
from mirage_cli.lax.ops import OPS
from mirage_cli.lax.program import Axis, Input, Node, Output, Program

Number = Fraction | float


def canonical(p: Program) -> Program:
    """The normal form of a program."""
    return order(tidy(normalise(stabilise(p)))).validate()


# --- the stabilised exponential -----------------------------------------------------------------------------------------
def stabilise(p: Program) -> Program:
    """`exp(x - max(x; over))` as a stabilised exponential wherever its factor cancels in every output."""
    made = {n.name: n for n in p.nodes}
    for n in p.nodes:
        difference = made.get(n.inputs[0]) if n.op == "exp" else None
        if difference is None or difference.op != "sub":
            continue
        x, m = difference.inputs
        top = made.get(m)
        if top is None or top.op != "max" or top.inputs != (x,):
            continue
        if all(exponent_degree(p, n.name).get(o.value) == 0 for o in p.outputs):
            stable = Node(n.name, "stable_exp", (x,), top.over)
            p = replace(p, nodes=tuple(stable if k is n else k for k in p.nodes), _axes_of={})
    return dedupe(p)


def exponent_degree(p: Program, e: str) -> dict[str, int]:
    """The power with which the value `e` enters each value as a common factor; values without one are absent."""
    degree: dict[str, int] = {e: 1}
    for n in p.nodes:
        if n.name == e:
            continue
        known = [degree.get(i) if e_reaches(p, e, i) else 0 for i in n.inputs]
        result = _degree(n, known)
        if result is not None:
            degree[n.name] = result
    for i in p.inputs:
        degree[i.name] = 0
    return degree


def _degree(n: Node, known: Sequence[int | None]) -> int | None:
    if any(k is None for k in known):
        return None
    powers = [k for k in known if k is not None]
    if n.op in ("mul", "contract"):
        return sum(powers)
    if n.op in ("div", "div0"):
        return powers[0] - powers[1]
    if n.op in ("sum", "neg"):
        return powers[0]
    if not any(powers):
        return 0
    if n.op in ("add", "sub") and powers[0] == powers[1]:
        return powers[0]
    return None


def e_reaches(p: Program, e: str, v: str) -> bool:
    """Whether value `v` depends on value `e`."""
    made = {n.name: n for n in p.nodes}
    todo = [v]
    while todo:
        x = todo.pop()
        if x == e:
            return True
        if x in made:
            todo.extend(made[x].inputs)
    return False


# --- 1. constants and spellings -------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Scaled:
    """`factor` times the value `base`; `base` is None for a pure constant."""

    factor: Fraction
    base: str | None


class _Normaliser:
    def __init__(self, p: Program) -> None:
        self.p = p
        self.nodes: list[Node] = []
        self.known: dict[object, str] = {}

    def emit(self, op: str, inputs: Sequence[str] = (), like: Node | None = None, value: Number | None = None) -> str:
        inputs = sorted(inputs) if op in OPS and OPS[op].commutative else list(inputs)
        n = Node("", op, tuple(inputs), value=value)
        if like is not None:
            n = replace(n, over=like.over, axis=like.axis, dtype=like.dtype)
        key = (n.op, n.inputs, n.over, str(n.value), n.axis, n.dtype)
        if key not in self.known:
            self.known[key] = f"m{len(self.nodes)}"
            self.nodes.append(replace(n, name=self.known[key]))
        return self.known[key]

    def plain(self, v: _Scaled) -> str:
        """A value without a factor in front."""
        if v.base is None:
            return self.emit("const", value=v.factor)
        return v.base if v.factor == 1 else self.emit("mul", [v.base, self.emit("const", value=v.factor)])

    def apply(self, n: Node, args: list[_Scaled]) -> _Scaled:
        one = Fraction(1)
        match n.op:
            case "const":
                if isinstance(n.value, Fraction):
                    return _Scaled(n.value, None)
                return _Scaled(one, self.emit("const", value=n.value))
            case "neg":
                return _Scaled(-args[0].factor, args[0].base)
            case "mul":
                return self.product(args[0], args[1])
            case "div" | "div0" if args[1].factor != 0:
                return self.quotient(n.op, args[0], args[1])
            case "recip" if args[0].factor != 0:
                return self.quotient("div", _Scaled(one, None), args[0])
            case "rsqrt":
                return self.quotient("div", _Scaled(one, None), _Scaled(one, self.emit("sqrt", [self.plain(args[0])])))
            case "add" | "sub":
                return self.sum(n.op, args[0], args[1])
            case "contract" if args[0].base and args[1].base:
                base = self.emit("contract", sorted([args[0].base, args[1].base]), n)
                return _Scaled(args[0].factor * args[1].factor, base)
            case "sum":
                return self.total(n, args[0])
            case _:
                return _Scaled(one, self.emit(n.op, [self.plain(a) for a in args], n))

    def product(self, x: _Scaled, y: _Scaled) -> _Scaled:
        factor = x.factor * y.factor
        if factor == 0 or x.base is None or y.base is None:
            return _Scaled(factor, None if factor == 0 else x.base or y.base)
        for a, b in ((x.base, y.base), (y.base, x.base)):
            d = self.defined(b)
            if d is not None and d.op == "div" and self.is_one(d.inputs[0]):
                return _Scaled(factor, self.emit("div", [a, d.inputs[1]]))
            if d is not None and d.op == "sigmoid" and d.inputs == (a,):
                return _Scaled(factor, self.emit("silu", [a]))
        return _Scaled(factor, self.emit("mul", [x.base, y.base]))

    def quotient(self, op: str, x: _Scaled, y: _Scaled) -> _Scaled:
        factor = x.factor / y.factor
        if y.base is None or x.factor == 0:
            return _Scaled(factor, x.base)
        numerator = x.base if x.base is not None else self.emit("const", value=Fraction(1))
        return _Scaled(factor, self.emit(op, [numerator, y.base]))

    def sum(self, op: str, x: _Scaled, y: _Scaled) -> _Scaled:
        if y.base is None and y.factor == 0:
            return x
        if x.base is None and x.factor == 0:
            return y if op == "add" else _Scaled(-y.factor, y.base)
        if x.base is None and y.base is None:
            return _Scaled(x.factor + y.factor if op == "add" else x.factor - y.factor, None)
        if x.base is not None and y.base is not None and x.factor == y.factor:
            return _Scaled(x.factor, self.emit(op, [x.base, y.base]))
        if y.base is None and op == "sub":
            op, y = "add", _Scaled(-y.factor, None)
        return _Scaled(Fraction(1), self.emit(op, [self.plain(x), self.plain(y)]))

    def total(self, n: Node, x: _Scaled) -> _Scaled:
        """A sum; over axes that the operand lacks it is a multiple when their extents are numbers."""
        own = self.axes_of(x.base) if x.base is not None else frozenset[str]()
        factor, over = x.factor, list[str]()
        for a in n.over:
            extent = self.p.extent(a)
            if a not in own and isinstance(extent, int):
                factor *= extent
            else:
                over.append(a)
        if not over:
            return _Scaled(factor, x.base)
        base = x.base if x.base is not None else self.emit("const", value=Fraction(1))
        return _Scaled(factor, self.emit("sum", [base], replace(n, over=tuple(over))))

    def axes_of(self, v: str) -> frozenset[str]:
        return replace(self.p, nodes=tuple(self.nodes), _axes_of={}).axes_of(v)

    def defined(self, v: str) -> Node | None:
        return self.nodes[int(v[1:])] if v.startswith("m") else None

    def is_one(self, v: str) -> bool:
        d = self.defined(v)
        return d is not None and d.op == "const" and d.value == 1


def normalise(p: Program) -> Program:
    """Constants outwards, one spelling for each operator."""
    worker = _Normaliser(p)
    value = {i.name: _Scaled(Fraction(1), i.name) for i in p.inputs}
    for n in p.nodes:
        value[n.name] = worker.apply(n, [value[i] for i in n.inputs])
    outputs = tuple(replace(o, value=worker.plain(value[o.value])) for o in p.outputs)
    return dedupe(replace(p, nodes=tuple(worker.nodes), outputs=outputs, _axes_of={}))


# --- 2. order and names ---------------------------------------------------------------------------------------------------
def order(p: Program) -> Program:
    """Canonical order of operands, values and sources, canonical names of axes and values."""
    marks = _marks(p)
    nodes = {
        n.name: replace(n, inputs=tuple(sorted(n.inputs, key=marks.__getitem__)) if _commutes(n) else n.inputs)
        for n in p.nodes
    }
    reads = {i.name: i for i in p.inputs}
    visited: list[str] = []

    def visit(v: str) -> None:
        if v not in seen:
            seen.add(v)
            for i in nodes[v].inputs if v in nodes else ():
                visit(i)
            visited.append(v)

    seen: set[str] = set()
    for o in p.outputs:
        visit(o.value)
    inputs = [reads[v] for v in visited if v in reads]
    names = {i.name: f"x{k}" for k, i in enumerate(inputs)}
    made = [nodes[v] for v in visited if v in nodes]
    names |= {n.name: f"v{k}" for k, n in enumerate(made)}
    sources = list(dict.fromkeys(i.source for i in inputs))
    p = replace(
        p,
        sources=tuple(p.sources[s] for s in sources),
        inputs=tuple(Input(names[i.name], sources.index(i.source), i.access) for i in inputs),
        nodes=tuple(replace(n, name=names[n.name], inputs=tuple(names[i] for i in n.inputs)) for n in made),
        outputs=tuple(replace(o, value=names[o.value]) for o in p.outputs),
        _axes_of={},
    )
    return _name_axes(p)


def _commutes(n: Node) -> bool:
    return n.op == "contract" or (n.op in OPS and OPS[n.op].commutative)


def _name_axes(p: Program) -> Program:
    """Axes in order of appearance (outputs, then inputs, then nodes), named a, b, c ..."""
    found: dict[str, None] = {}
    for access in [o.access for o in p.outputs] + [i.access for i in p.inputs]:
        found.update((s.axis, None) for s in access if s.axis is not None)
    for n in p.nodes:
        found.update((a, None) for a in n.over)
    names = {a: _letters(k) for k, a in enumerate(found)}
    renamed = rename_axes(p, {a: "\0" + n for a, n in names.items()})
    renamed = rename_axes(renamed, {"\0" + n: n for n in names.values()})
    axes = tuple(Axis(names[a], p.extent(a)) for a in found)
    nodes = tuple(replace(n, over=tuple(sorted(n.over))) for n in renamed.nodes)
    return replace(renamed, axes=axes, nodes=nodes, _axes_of={})


def _letters(k: int) -> str:
    return chr(ord("a") + k) if k < 26 else f"a{k}"


def _marks(p: Program) -> dict[str, str]:
    """For each value a hash that does not depend on names: the same for the same mathematics on the same shapes."""
    axis = {a.name: _hash("axis", ex.to_json(a.extent), _roles(p, a.name)) for a in p.axes}
    source = {}
    for number, s in enumerate(p.sources):
        source[number] = _hash(s.dims, s.dtype, s.constant)
    marks = {}
    for i in p.inputs:
        slots = [(axis.get(s.axis or "", "-"), ex.to_json(s.extent), s.offset) for s in i.access]
        marks[i.name] = _hash("read", source[i.source], slots)
    for n in p.nodes:
        args = [marks[i] for i in n.inputs]
        own = axis.get(n.axis or "", "-")
        over = sorted(axis[a] for a in n.over)
        marks[n.name] = _hash(n.op, sorted(args) if _commutes(n) else args, over, str(n.value), own, n.dtype)
    return marks


def _roles(p: Program, axis: str) -> list[object]:
    """Where an axis appears in outputs: what tells two axes of one extent apart."""
    return [(k, [s.axis for s in o.access].index(axis)) for k, o in enumerate(p.outputs) if _stores(o, axis)]


def _stores(o: Output, axis: str) -> bool:
    return any(s.axis == axis for s in o.access)


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
