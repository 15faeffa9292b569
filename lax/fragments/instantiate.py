"""From a part of a graph to a program on named axes.

Demand-driven: each output dimension gets an axis, and every operand is asked for at an *index*: for each of its
dimensions a list of digits, outermost first. A digit is an axis (or a fixed position) within a run of stored positions.
Views rewrite the index and leave no trace; a value that is asked for at two different indices becomes two values (the
same hidden state as query rows and as key rows). Where a reshape or a concatenation cuts an axis in two, the axis is
split and the construction starts again with the split known.

A view that no regrouping of digits expresses (a reshape of [2, 3] to [3, 2], a concatenation of unequal parts read
across the joint) is refused with its reason: the fragment ends there.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.fragments.symbols import with_merged_symbols
from mirage_cli.lax.ir import graph as g
from mirage_cli.lax.ir.joints import Chosen
from mirage_cli.lax.ir.program import Axis, Input, Node, Output, Program, Slot, Source
from mirage_cli.lax.normal.identify import tidy

MAX_SPLITS = 64  #: restarts before giving up


@dataclass(frozen=True, slots=True)
class Digit:
    """A run of `extent` stored positions: all or some of them walked by `axis` from `offset` on, or one of them."""

    axis: str | None
    extent: Extent
    offset: int = 0


Index: TypeAlias = tuple[tuple[Digit, ...], ...]  #: for each dimension its digits; none where the extent is 1
#: the making of a value: yields (graph value, index) for each operand, is sent the operand's name, returns its own
Making: TypeAlias = Generator[tuple[int, Index], str, str]


class _Split(Exception):
    """An axis has to be split: start again."""

    def __init__(self, axis: str, outer: Extent, inner: Extent) -> None:
        super().__init__(axis)
        self.axis, self.outer, self.inner = axis, outer, inner


def instantiate(graph: g.Graph, outputs: Sequence[int], boundary: Iterable[int], names: dict[int, str]) -> Program:
    """The program that computes `outputs` (values of the graph) from the `boundary` values.

    `names` gives boundary and output values the names that the program's sources and outputs carry. Raises Refused when
    a view inside cannot be expressed on axes, or when an operator inside is not read.
    """
    return with_merged_symbols(tidy(untidied(graph, outputs, boundary, names)))


def untidied(graph: g.Graph, outputs: Sequence[int], boundary: Iterable[int], names: dict[int, str]) -> Program:
    """The same before axes that are one are found: each step as it stands, on axes of its own. Raises Refused."""
    splits: dict[str, tuple[Extent, Extent]] = {}
    paths: dict[str, str] = {}
    stops = frozenset(boundary)
    for _ in range(MAX_SPLITS):
        try:
            return _Builder(graph, stops, names, splits, paths).build(outputs)
        except _Split as s:
            splits[s.axis] = (s.outer, s.inner)
    raise Refused(f"axes had to be split more than {MAX_SPLITS} times")


class _Builder:
    """One attempt with the splits known so far."""

    def __init__(
        self,
        graph: g.Graph,
        stops: frozenset[int],
        names: dict[int, str],
        splits: dict[str, tuple[Extent, Extent]],
        paths: dict[str, str],
    ) -> None:
        self.graph, self.stops, self.names, self.splits, self.paths = graph, stops, names, splits, paths
        self.extents: dict[str, Extent] = {}
        self.sources: dict[int, int] = {}
        self.inputs: list[Input] = []
        self.nodes: list[Node] = []
        self.memo: dict[tuple[int, Index], str] = {}

    def build(self, outputs: Sequence[int]) -> Program:
        results = []
        for v in outputs:
            index = tuple(self.fresh(f"o{v}.{i}", e) for i, e in enumerate(self.graph.dims(v)))
            tensor = self.graph.tensors[v]
            slots = tuple(Slot(d.axis, d.extent, d.offset) for dim in index for d in dim)
            results.append(Output(self.demand(v, index), slots, tensor.dims, tensor.dtype, self.names.get(v, "")))
        self.align_sources()
        sources = [self.source(v) for v in self.sources]
        axes = tuple(Axis(n, e) for n, e in self.extents.items())
        return Program(axes, tuple(sources), tuple(self.inputs), tuple(self.nodes), tuple(results)).validate()

    def source(self, v: int) -> Source:
        tensor, packed = self.graph.tensors[v], isinstance(self.graph.steps[v], g.Unpack)
        held = self.graph.inputs[v][0] if packed else v
        step = self.graph.steps[held]
        given = (step.constant, packed, step.unwritten, step.rounds) if isinstance(step, g.Input) else (False, packed)
        name = self.names.get(held, f"value{held}")
        source = Source(name, tensor.dims, tensor.dtype, *given)
        chosen = self.chosen(held)
        return source if chosen is None else replace(source, constant=True, chosen=chosen)

    def chosen(self, v: int) -> Chosen | None:
        """How a source is read from a table, where its products are computed here and names say what it is chosen by."""
        if not isinstance(self.graph.steps[v], g.Choose) or all(n.op != "contract" for n in self.nodes):
            return None
        table, index = self.graph.inputs[v]
        names, rows = [self.names.get(i) for i in (table, index)], self.graph.dims(table)[0]
        if names[0] is None or names[1] is None or not isinstance(rows, int):
            return None
        return Chosen(len(self.graph.dims(index)), rows, index, (names[0], names[1]))

    # --- axes ---------------------------------------------------------------------------------------------------------
    def fresh(self, path: str, extent: Extent) -> tuple[Digit, ...]:
        """Digits that walk a whole dimension: one new axis, or the parts that it is known to split into."""
        if extent == 1:
            return ()
        name = self.paths.setdefault(path, f"a{len(self.paths)}")  # the same name in every attempt
        if name in self.splits:
            outer, inner = self.splits[name]
            return self.fresh(path + "'", outer) + self.fresh(path + '"', inner)
        self.extents[name] = extent
        return (Digit(name, extent),)

    def cut(self, d: Digit, inner: Extent) -> tuple[Digit, Digit]:
        """A digit as (outer, inner) digits. Raises _Split when its axis has to be split, Refused when it cannot."""
        outer = ex.quotient(d.extent, inner)
        if outer is None:
            raise Refused(f"a run of {d.extent} positions does not split into parts of {inner}")
        count = self.extents[d.axis] if d.axis is not None else 1
        if d.axis is not None and d.offset == 0 and count == d.extent:
            raise _Split(d.axis, outer, inner)
        if not isinstance(inner, int):
            raise Refused(f"a part of a run of {d.extent} positions cannot be cut at symbolic {inner}")
        if d.axis is None:
            return Digit(None, outer, d.offset // inner), Digit(None, inner, d.offset % inner)
        parts = ex.quotient(count, inner)
        if parts is not None and d.offset % inner == 0:
            raise _Split(d.axis, parts, inner)
        if isinstance(count, int) and d.offset % inner + count <= inner:
            return Digit(None, outer, d.offset // inner), Digit(d.axis, inner, d.offset % inner)
        raise Refused(f"positions {d.offset}..{d.offset}+{count} of {d.extent} straddle parts of {inner}")

    def regroup(self, digits: Sequence[Digit], dims: Sequence[Extent]) -> Index:
        """The same positions, row-major, under other dimensions (outermost first)."""
        rest, index = list(digits), []
        for extent in dims:
            need, taken = extent, list[Digit]()
            while need != 1:
                if not rest:
                    raise Refused("a reshape regroups positions that no axis walks")
                d = rest.pop(0)
                left = ex.quotient(need, d.extent)
                if left is None:
                    inner = ex.quotient(d.extent, need)
                    if inner is None:
                        raise Refused(f"a reshape cuts a run of {d.extent} positions at {need}: no common refinement")
                    d, low = self.cut(d, inner)
                    rest.insert(0, low)
                    left = 1
                taken.append(d)
                need = left
            index.append(tuple(taken))
        return tuple(index)

    # --- values -------------------------------------------------------------------------------------------------------
    def node(self, op: str, inputs: Sequence[str] = (), **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(Node(name, op, tuple(inputs), **attributes))
        return name

    def demand(self, v: int, index: Index) -> str:
        """The program value that is graph value `v` at `index`; without recursion, since chains may be long."""
        name = self.memo.get((v, index))
        unfinished = [((v, index), self.make(v, index))] if name is None else []
        while unfinished:
            key, making = unfinished[-1]
            try:
                wanted = next(making) if name is None else making.send(name)
            except StopIteration as ended:
                self.memo[key] = name = ended.value
                unfinished.pop()
                continue
            name = self.memo.get(wanted)
            if name is None:
                unfinished.append((wanted, self.make(*wanted)))
        assert name is not None
        return name

    def make(self, v: int, index: Index) -> Making:
        step, inputs = self.graph.steps[v], self.graph.inputs[v]
        if v in self.stops:
            return self.stored(v, index)
        match step:
            case g.Fill(value):
                return self.node("const", value=value)
            case g.Cast():
                return (yield inputs[0], index)
            case g.Map(op):
                operands = []
                for a in inputs:
                    operands.append((yield a, self.operand(v, a, index)))
                return self.node(op, operands)
            case g.StableExp(dims):
                over = self.whole([d for i in dims for d in index[i]], "a softmax is read in part")
                return self.node("stable_exp", [(yield inputs[0], index)], over=over)
            case g.Reduce(kind, dims):
                return (yield from self.reduction(v, kind, dims, index))
            case g.Contract(lhs, rhs, out):
                return (yield from self.contraction(v, lhs, rhs, dict(zip(out, index, strict=True))))
            case g.Iota(dim):
                return self.iota(index[dim])
            case g.Concat(dim):
                return (yield from self.concat(v, dim, index))
            case g.Unpack() if inputs[0] in self.stops:
                return self.stored(v, index)
            case g.Unpack():
                raise Refused("bytes that are computed hold packed numbers")
            case g.Reshape() | g.Transpose() | g.Expand() | g.Slice():
                return (yield inputs[0], self.view(v, step, index))
            case g.Input(name):
                raise Refused(f"input {name!r} lies inside the fragment")
            case g.Choose():
                raise Refused("rows of a table are chosen inside the fragment")
            case g.Opaque(label):
                raise Refused(f"operator {label} is not read")

    def stored(self, v: int, index: Index) -> str:
        number = self.sources.setdefault(v, len(self.sources))
        name = f"x{len(self.inputs)}"
        if any(self.outside(d) for dim in index for d in dim):
            raise Refused("a part of a concatenation is read beyond its end")
        slots = tuple(s for dim in index for d in dim for s in self.slots(d))
        self.inputs.append(Input(name, number, slots))
        return name

    def outside(self, d: Digit) -> bool:
        """True if positions are walked that are not there."""
        count = self.extents[d.axis] if d.axis is not None else 1
        end = d.offset + count if isinstance(count, int) else d.extent
        return d.offset < 0 or (isinstance(end, int) and isinstance(d.extent, int) and end > d.extent)

    def slots(self, d: Digit) -> tuple[Slot, ...]:
        """A digit as slots: an aligned part of a run is a fixed position and a whole run."""
        count = self.extents[d.axis] if d.axis is not None else d.extent
        runs = ex.quotient(d.extent, count)
        if runs in (None, 1) or not isinstance(count, int) or d.offset % count:
            return (Slot(d.axis, d.extent, d.offset),)
        return Slot(None, runs or 1, d.offset // count), Slot(d.axis, count)

    def operand(self, v: int, a: int, index: Index) -> Index:
        """The index of a broadcast operand: its own dimensions only, none where it is repeated."""
        dims = self.graph.dims(a)
        own = index[len(index) - len(dims) :]
        return tuple(() if e == 1 else digits for e, digits in zip(dims, own, strict=True))

    def whole(self, digits: Iterable[Digit], otherwise: str) -> tuple[str, ...]:
        names = []
        for d in digits:
            if d.axis is None or d.offset != 0 or self.extents[d.axis] != d.extent:
                raise Refused(otherwise)
            names.append(d.axis)
        return tuple(names)

    def reduction(self, v: int, kind: str, dims: tuple[int, ...], index: Index) -> Making:
        a = self.graph.inputs[v][0]
        inner, over = list(index), list[str]()
        for i in dims:
            inner[i] = self.fresh(f"r{v}.{i}@{_text(index)}", self.graph.dims(a)[i])
            over += [d.axis for d in inner[i] if d.axis is not None]
        operand = yield a, tuple(inner)
        return self.node(kind, [operand], over=tuple(over)) if over else operand

    def contraction(
        self, v: int, lhs: tuple[int, ...], rhs: tuple[int, ...], at: dict[int, tuple[Digit, ...]]
    ) -> Making:
        x, y = self.graph.inputs[v]
        size: dict[int, Extent] = {}
        for labels, a in ((lhs, x), (rhs, y)):
            for label, e in zip(labels, self.graph.dims(a), strict=True):
                size[label] = e if e != 1 else size.get(label, 1)
        known, over = dict(at), list[str]()
        for label, e in size.items():
            if label not in at:
                known[label] = self.fresh(f"c{v}.{label}@{_text(tuple(at.values()))}", e)
                over += [d.axis for d in known[label] if d.axis is not None]

        def pick(labels: tuple[int, ...], a: int) -> Index:
            return tuple(() if e == 1 else known[k] for k, e in zip(labels, self.graph.dims(a), strict=True))

        operands = [(yield x, pick(lhs, x)), (yield y, pick(rhs, y))]
        if not over:
            return self.node("mul", operands)
        return self.node("contract", operands, over=tuple(over), dtype=self.graph.dtype(x))

    def iota(self, digits: Sequence[Digit]) -> str:
        """The position within a dimension, from its digits."""
        total, stride = self.node("const", value=Fraction(0)), 1
        for d in reversed(digits):
            if not isinstance(d.extent, int) and d is not digits[0]:
                raise Refused("positions along a dimension with a symbolic inner run")
            term = self.node("const", value=Fraction(d.offset))
            if d.axis is not None:
                term = self.add(self.node("iota", axis=d.axis), d.offset)
            total = self.node("add", [total, self.node("mul", [term, self.node("const", value=Fraction(stride))])])
            stride *= d.extent if isinstance(d.extent, int) else 1
        return total

    def add(self, value: str, term: int) -> str:
        return value if term == 0 else self.node("add", [value, self.node("const", value=Fraction(term))])

    # --- views ----------------------------------------------------------------------------------------------------------
    def view(self, v: int, step: g.Step, index: Index) -> Index:
        dims = self.graph.dims(self.graph.inputs[v][0])
        match step:
            case g.Reshape():
                return self.regroup([d for dim in index for d in dim], dims)
            case g.Transpose(perm):
                return tuple(index[perm.index(i)] for i in range(len(perm)))
            case g.Expand():
                return tuple(() if e == 1 else index[i] for i, e in enumerate(dims))
            case g.Slice(dim, start, stride):
                out = list(index)
                out[dim] = self.shifted(index[dim], dims[dim], start, stride)
                return tuple(out)
        raise Refused(f"{step} is no view")

    def shifted(self, digits: tuple[Digit, ...], extent: Extent, start: int, stride: int) -> tuple[Digit, ...]:
        """Digits of a slice as digits of the dimension it was cut from."""
        if extent == 1:
            return ()
        if start < 0:
            raise Refused(f"a slice of the last {-start} of {extent} positions")
        if stride != 1:
            runs = ex.quotient(extent, stride) if stride > 1 else None
            if runs is None:
                raise Refused(f"a slice with step {stride} of {extent} positions")
            return (*self.shifted(digits, runs, start // stride, 1), Digit(None, stride, start % stride))
        if not digits:
            return (Digit(None, extent, start),)
        inner = ex.product(d.extent for d in digits[1:])
        if inner == 1:
            return (replace(digits[0], extent=extent, offset=digits[0].offset + start),)
        runs = ex.quotient(extent, inner)
        if runs is None or not isinstance(inner, int) or start % inner:
            raise Refused(f"a slice from {start} of {extent} positions is not aligned to its inner run of {inner}")
        return (*self.shifted(digits[:1], runs, start // inner, 1), *digits[1:])

    def concat(self, v: int, dim: int, index: Index) -> Making:
        """One part where the index lies within it; else a choice by the outer digit, which counts units (`Graph.unit`)."""
        parts = self.graph.inputs[v]
        sizes = [self.graph.dims(a)[dim] for a in parts]
        inside = self.part(index[dim], sizes)
        if inside is not None:
            number, digits = inside
            return (yield parts[number], (*index[:dim], digits, *index[dim + 1 :]))
        unit = self.graph.unit(v)
        if unit is None:
            raise Refused(f"a concatenation of {', '.join(map(str, sizes))} positions is read across its joint")
        units = [e // unit if isinstance(e, int) and isinstance(unit, int) else 1 for e in sizes]
        outer, inner = self.regroup(index[dim], (sum(units), unit))
        if len(outer) != 1 or outer[0].axis is None:
            raise Refused("a concatenation is read across its joints in another grouping")
        which, chosen, at = self.add(self.node("iota", axis=outer[0].axis), outer[0].offset), "", sum(units)
        for a, count in zip(reversed(parts), reversed(units), strict=True):
            at -= count
            op, bound = ("eq", at) if count == 1 else ("lt", at + count)
            test = self.node(op, [which, self.node("const", value=Fraction(bound))]) if chosen else ""
            own = () if count == 1 else (replace(outer[0], extent=count, offset=outer[0].offset - at),)
            value = yield a, (*index[:dim], (*own, *inner), *index[dim + 1 :])
            chosen = self.node("where", [test, value, chosen]) if chosen else value
        return chosen

    def part(self, digits: tuple[Digit, ...], sizes: Sequence[Extent]) -> tuple[int, tuple[Digit, ...]] | None:
        """The part of a concatenation that `digits` stay within, and the digits there; None when they cross a joint."""
        if len(digits) != 1:
            return None
        d, base = digits[0], 0
        count = self.extents[d.axis] if d.axis is not None else 1
        for number, e in enumerate(sizes):
            if not isinstance(e, int) or not isinstance(count, int):
                return None
            if base <= d.offset and d.offset + count <= base + e:
                own = () if e == 1 else (replace(d, extent=e, offset=d.offset - base),)
                return number, own
            base += e
        return None

    def align_sources(self) -> None:
        """Split axes so that all reads of one source cut it at the same places (Raises _Split)."""
        for number in self.sources.values():
            reads = [i.access for i in self.inputs if i.source == number]
            if len(reads) < 2:
                continue
            joints = {j for access in reads for j in _joints(access)}
            for access in reads:
                self.align(access, joints)

    def align(self, access: tuple[Slot, ...], joints: set[Extent]) -> None:
        inner: Extent = 1
        for slot in reversed(access):
            outer = ex.product([inner, slot.extent])
            for j in sorted((j for j in joints if j not in (inner, outer)), key=str):
                low = ex.quotient(j, inner)
                if low is None or low == 1 or ex.quotient(slot.extent, low) is None or slot.axis is None:
                    continue
                if slot.offset == 0 and self.extents[slot.axis] == slot.extent:
                    raise _Split(slot.axis, ex.quotient(slot.extent, low) or 1, low)
            inner = outer


def _joints(access: tuple[Slot, ...]) -> list[Extent]:
    """Row-major strides at which an access map cuts its tensor."""
    inner: Extent = 1
    strides = []
    for s in reversed(access):
        strides.append(inner)
        inner = ex.product([inner, s.extent])
    return strides


def _text(index: Index) -> str:
    return "/".join("".join(f"({d.axis},{d.extent},{d.offset})" for d in dim) for dim in index)
