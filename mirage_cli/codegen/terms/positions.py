"""Positions, elements and expressions of a tile program in kernels: what the engines `block` and `strip` and CPUs share.

Axis `a` of a tile is walked by the index variable `i_a`; the tile's first position is `a_at` for a grid axis, `a_step` for
the loop axis in the body, 0 for an axis held whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

from mirage_cli.codegen.requests.request import INDEXED, Parameter, Request
from mirage_cli.codegen.terms import expressions
from mirage_cli.codegen.terms.expressions import CUDA_TYPES, ZERO, Lets
from mirage_cli.codegen.terms.visible import holding, stepped, walked
from mirage_cli.codegen.tiles.shapes import Shapes
from mirage_cli.codegen.tiles.tile import (
    FRAGMENT,
    RING,
    Apply,
    Buffer,
    Count,
    Expr,
    Global,
    Number,
    Position,
    Ref,
    Running,
    TileProgram,
)
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.ir import Value
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import F64, DType
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.parts import places_of
from mirage_cli.lax.ir.program import Input, Slot
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE
from mirage_cli.search.mugraph.visible import left_out

INDEX, MOVED = "_index", "_moved"  #: of the names of an input's index, and of how far its row lies behind its place


class Positions:
    """Where a kernel's statements are in its tensors and tiles."""

    types = CUDA_TYPES
    unread = frozenset[str]()  #: inputs of which a kernel reads what it needs elsewhere

    def __init__(self, tile: TileProgram, r: Request) -> None:
        self.t, self.r, self.symbols = tile, r, r.symbols
        self.p, self.g = tile.program, tile.graph
        self.shapes = Shapes(tile.program, tile.graph, tile.schedule, tile.target)
        self.reads = {i.name: i for i in self.p.inputs}
        self.wide = expressions.wide(self.p)
        self.hollow = expressions.hollow(self.extent(e) for e in r.hollow)
        self.limits = left_out(self.p, self.g, dict(tile.schedule.tiles), tile.schedule.loop)

    # --- numbers ------------------------------------------------------------------------------------------------------
    def ctype(self, dtype: DType) -> str:
        """The C type of an element; of packed ones, that of the bytes that hold them."""
        return self.types[dtype.name if dtype.per_byte == 1 else "u8"]

    def read(self, value: str, offset: ir.Expression) -> ir.Expression:
        """An element of a stored tensor as a float."""
        dtype = self.p.sources[self.reads[value].source].dtype
        if dtype.per_byte > 1:
            return k.call(f"number_{dtype}", k.name(value), offset)
        return k.call("to_float", k.name(value)[offset])

    def extent(self, e: Extent) -> ir.Expression:
        """An extent."""
        return expressions.extent(e, self.symbols, self.wide)

    def sized(self, axis: str, phase: str) -> bool:
        """True if tiles of a phase hold more than one position of an axis."""
        return self.shapes.size(axis, phase) > 1

    def base(self, axis: str, phase: str) -> list[ir.Expression]:
        """The terms of a tile's first position along an axis; none for 0."""
        terms: list[ir.Expression] = [k.name(f"{axis}_at")] if self.t.schedule.tile(axis) is not None else []
        return terms + ([k.name(f"{axis}_step")] if axis == self.g.loop and phase == BODY else [])

    def position(self, axis: str, phase: str) -> ir.Expression:
        """The current position along an axis."""
        return k.total([*self.base(axis, phase), *([k.name(f"i_{axis}")] if self.sized(axis, phase) else [])])

    def inside(self, axes: Sequence[str], phase: str) -> ir.Expression | None:
        """The condition that the current position lies within the extents of `axes`; None when it always does."""
        partial = [a for a in axes if not self.shapes.exact(a, phase)]
        return k.both(*(self.position(a, phase) < self.extent(self.p.extent(a)) for a in partial))

    def offset(self, of: Sequence[Slot] | Input, phase: str, fixed: Sequence[str] = ()) -> ir.Expression:
        """The element offset of the current position in a stored tensor; index variables of `fixed` count as 0. Of an input
        whose rows are chosen, in the table."""
        access = of.access if isinstance(of, Input) else of
        terms: list[ir.Expression] = []
        stride = ex.ONE
        for s in reversed(access):
            here: list[ir.Expression] = []
            if s.axis is not None:
                here = self.base(s.axis, phase)
                here += [k.name(f"i_{s.axis}")] if self.sized(s.axis, phase) and s.axis not in fixed else []
            here += [ir.lift(s.offset)] if s.offset else []
            if here:
                terms.append(k.total(here) if stride == 1 else k.total(here) * self.extent(stride))
            stride = ex.product([stride, s.extent])
        more = [k.name(f"{of.name}{MOVED}")] if isinstance(of, Input) and of.name in self.chosen else []
        return k.total([*reversed(terms), *more])

    # --- chosen rows --------------------------------------------------------------------------------------------------
    @cached_property
    def chosen(self) -> dict[str, int]:
        """The inputs whose rows are chosen, with the number of slots that walk the places of these. Raises Refused where a
        block has more than one place."""
        found: dict[str, int] = {}
        for i in self.p.inputs:
            source = self.p.sources[i.source]
            if source.chosen is None:
                continue
            places = places_of(source, i.access)
            axes = {s.axis for s in i.access[: places or 0] if s.axis is not None}
            if places is None or any(a not in self.g.grid or self.t.schedule.tile(a) != 1 for a in axes):
                raise Refused(f"rows of {i.name} are chosen for more than one place of a block")
            row = ex.product(s.extent for s in i.access[places:])
            if isinstance(row, int) and row % source.dtype.per_byte:
                raise Refused(f"rows of {i.name} begin inside of bytes")
            found[i.name] = places
        return found

    def moves(self) -> list[ir.Statement]:
        """How far the row that a block reads lies behind its place: what is written in front of the kernel says so."""
        found = list[ir.Statement]()
        for name, places in self.chosen.items():
            access = self.reads[name].access
            place = self.offset(access[:places], PROLOGUE)
            row = k.cast("offset_t", k.call("whole_number", k.name(f"{name}{INDEX}")[place]))
            inner = self.extent(ex.product(s.extent for s in access[places:]))
            behind = row if place == k.ZERO else row - place
            found.append(k.let("offset_t", f"{name}{MOVED}", behind * inner, unused=True))
        return found

    def first(self, axes: Sequence[str]) -> ir.Expression | None:
        """The condition that a block is the first one along grid axes; None without axes."""
        return k.both(*(k.binary("==", f"{a}_at", 0) for a in axes))

    # --- expressions --------------------------------------------------------------------------------------------------
    def element(self, b: Buffer, phase: str) -> ir.Expression:
        """An element of a buffer at the current position."""
        if b.place == FRAGMENT:
            return k.name(b.name).member("v")["m_"]["n_"]["i_"]
        return self.pointer(b)[self.index(b, phase)]

    def pointer(self, b: Buffer) -> ir.Name:
        """The start of a buffer (of the current stage of a ring)."""
        return k.name(f"{b.name}_now" if b.place == RING else b.name)

    def index(self, b: Buffer, phase: str, fixed: Sequence[str] = ()) -> ir.Expression:
        """The element index of the current position in a shared buffer."""
        terms: list[ir.Expression] = []
        for a, _ in b.axes:
            parts = [k.name(f"i_{a}")] if self.sized(a, phase) and a not in fixed else []
            parts += [k.name(f"{a}_step")] if self.whole_loop(b, a, phase) else []
            if parts:
                terms.append(k.total(parts) if b.stride(a) == 1 else k.total(parts) * b.stride(a))
        return k.total(terms)

    def whole_loop(self, b: Buffer, axis: str, phase: str) -> bool:
        """True if a body statement reads a part of a buffer that holds the loop axis whole."""
        return axis == self.g.loop and phase == BODY and b.phase == PROLOGUE

    def operand(self, b: Buffer, over: Collection[str], phase: str) -> ir.Expression:
        """The part of a buffer that a contraction over some axes reads now."""
        loop = self.g.loop
        if loop is None or loop not in over or not self.whole_loop(b, loop, phase):
            return self.pointer(b)
        return self.pointer(b) + k.name(f"{loop}_step") * b.stride(loop)

    def expression(self, e: Expr, phase: str, out: Lets, guard: ir.Expression | None = None) -> ir.Expression:
        """The value of an expression at the current position; reads of stored tensors happen only under `guard`."""
        match e:
            case Ref(name):
                b = self.t.buffers[name]
                element = self.element(b, phase)
                return element if b.dtype.name == "f32" else out.let(k.call("to_float", element))
            case Global(v):
                read = self.read(v, self.offset(self.reads[v], phase))
                return out.let(read if guard is None else k.select(guard, read, ZERO))
            case Number(value):
                return expressions.float_number(value)
            case Position(a):
                return out.let(k.cast("float", self.position(a, phase)))
            case Count(a):
                return k.cast("float", self.extent(self.p.extent(a)))
            case Apply("mul" | "div" as op, (Ref(name), Number(Fraction() as by))) | Apply(
                "mul" as op, (Number(Fraction() as by), Ref(name))
            ) if self.t.buffers[name].dtype == F64:
                return out.let(expressions.scaled(self.element(self.t.buffers[name], phase), op, by))
            case Apply(op, args):
                inner = [self.expression(a, phase, out, guard) for a in args]
                result = expressions.applied(op, inner)
                divides = op == "div" and phase != BODY
                return out.let(expressions.quotient(self.hollow, inner[1], result) if divides else result)

    def running(self, n: Running, phase: str) -> list[ir.Statement]:
        """A maximum that takes a further one in, and what its sums shrink by."""
        at = self.index(self.t.buffers[n.maximum], phase)
        own, top, shrink = (k.name(b)[at] for b in (n.maximum, n.top, n.shrink))
        return [
            k.lets("float", {"low": own, "high": k.call("m_max", "low", top)}),
            k.assign(own, "high"),
            k.assign(shrink, k.call("m_exp_difference", "low", "high")),
        ]

    # --- parts of a kernel --------------------------------------------------------------------------------------------
    def blocks(self, axis: str) -> ir.Expression:
        """The number of blocks along a grid axis."""
        tile, extent = self.tile(axis), self.p.extent(axis)
        return ir.lift(-(-extent // tile)) if isinstance(extent, int) else (self.extent(extent) + (tile - 1)) / tile

    def tile(self, axis: str) -> int:
        """Positions of a grid axis in a block's tile."""
        return self.t.schedule.tile(axis) or 1

    def pace(self, axis: str) -> ir.Expression:
        """Positions of a grid axis between the first ones of two blocks."""
        return ir.lift(self.tile(axis))

    def grid(self) -> Sequence[str]:
        """The grid axes, slowest first."""
        return self.g.grid

    def steps(self) -> ir.Expression:
        """The number of iterations of the loop."""
        if self.g.loop is None:
            return k.ZERO
        extent, step = self.p.extent(self.g.loop), self.t.schedule.loop
        if self.g.loop in self.g.split:
            at = k.name(f"{self.g.loop}_at")
            whole = ir.lift(extent) if isinstance(extent, int) else self.extent(extent)
            ends = (k.converted("offset_t", e) for e in (at + self.tile(self.g.loop), whole))
            end = k.call("min", *ends)
            return k.cast("int", (end - at + (step - 1)) / step)
        if isinstance(extent, int):
            return ir.lift(-(-extent // step))
        return k.cast("int", (self.extent(extent) + (step - 1)) / step)

    def walked(self) -> list[ir.Statement]:
        """The number of iterations of the loop that a mask shows some of, and of those in front of them."""
        loop, split = self.g.loop or "", self.g.loop in self.g.split
        start = k.name(f"{loop}_at") if split else None
        lines = walked(self.limits, loop, self.t.schedule.loop, self.steps(), self.span, start, 0)
        return [*self.held_integers(), *lines]

    def held_integers(self) -> list[ir.Statement]:
        """The integers that are inputs of which a block has one, where these say how far it walks."""
        places = {v: self.offset(self.reads[v].access, PROLOGUE) for v in sorted(self.held_names())}
        return [holding(v, k.name(v)[at]) for v, at in places.items()]

    def held_names(self) -> set[str]:
        """The names of these integers."""
        return {v for f in self.limits for v, _ in f.given}

    def span(self, axis: str) -> tuple[list[ir.Expression], Value]:
        """The terms of a block's first position along an axis, and how many it holds."""
        tile = self.t.schedule.tile(axis)
        return self.base(axis, PROLOGUE), self.extent(self.p.extent(axis)) if tile is None else tile

    def step_position(self, number: Value) -> ir.Statement:
        """The first position of an iteration along the loop axis."""
        at = k.cast("offset_t", stepped(self.limits, self.g.loop or "", ir.lift(number))) * self.t.schedule.loop
        return k.let("offset_t", f"{self.g.loop}_step", at, unused=True)

    def inputs(self) -> tuple[Parameter, ...]:
        """The tensors that the kernel reads."""
        own = (Parameter(i.name, self.ctype(self.p.sources[i.source].dtype), i.source) for i in self.p.inputs)
        indices = (Parameter(f"{n}{INDEX}", "int64_t", self.reads[n].source, part=INDEXED) for n in self.chosen)
        return (*own, *indices)

    def outputs(self) -> tuple[Parameter, ...]:
        """The tensors that the kernel writes."""
        return tuple(Parameter(f"y{n}", self.ctype(o.dtype)) for n, o in enumerate(self.p.outputs))

    def offset_type(self, wide: bool) -> ir.Alias:
        """The type of numbers of elements."""
        return k.alias("offset_t", "int64_t" if wide else "int", unused=True)

    def names(self, parameters: str, restrict: bool) -> list[ir.Statement]:
        """The kernel's parameters under their own names."""
        own, of = list[ir.Statement](), k.name(parameters)
        for i in self.inputs():
            pointer = k.of_type(f"{i.type}*", const=True)
            own.append(k.let(pointer, i.name, of.member(i.name), restrict=restrict, unused=i.name in self.unread))
        for o in self.outputs():
            own.append(k.let(f"{o.type}*", o.name, of.member(o.name), restrict=restrict))
        return own

    def beginning(self, known: Mapping[str, Value]) -> list[ir.Statement]:
        """How a CUDA kernel begins: numbers known when it is compiled, shared memory, parameters, its block's place."""
        symbols = {f"s_{n}": k.cast("offset_t", k.name("parameters").member(f"s_{n}")) for n in self.r.numbers}
        return [
            k.constants("int", known),
            self.offset_type(self.wide),
            k.declare("unsigned char", "shared", dims=[k.number("")], storage="extern __shared__ __align__(1024)"),
            *self.names("parameters", restrict=True),
            *(k.let("offset_t", s, value) for s, value in symbols.items()),
            *self.places(),
        ]

    def places(self) -> list[ir.Statement]:
        """The first positions of a CUDA block along the grid axes, from its number."""
        block, found = k.name("block"), list[ir.Statement]()
        for a in reversed(self.grid()):
            found.append(k.let("unsigned", f"{a}_block", block % self.blocks(a), unused=True))
            at = k.cast("offset_t", f"{a}_block") * self.pace(a)
            found += [k.let("offset_t", f"{a}_at", at, unused=True), k.assign(block, self.blocks(a), "/=")]
        return [k.declare("unsigned", "block", k.name("blockIdx").member("x")), *found, k.ignore(block)]
