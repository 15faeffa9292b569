"""Statements of a kernel for CPUs, by the nodes of its tile program.

Loops run over the positions that lie inside the tensors, so nothing is masked; a contraction sums over them too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mirage_cli.codegen.requests.request import Packing, Parameter
from mirage_cli.codegen.terms.expressions import CPU_TYPES, CUDA_TYPES, JOINS, Lets, extent, float_number
from mirage_cli.codegen.terms.positions import Positions
from mirage_cli.codegen.tiles.tile import (
    Apply,
    Barrier,
    Buffer,
    Compute,
    Contract,
    Expr,
    Init,
    Load,
    Reduce,
    Ref,
    Running,
    Scale,
    Sizes,
    Store,
    TileNode,
    TileProgram,
    count,
)
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.tokens import VECTOR_LOOP
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import F32, F64
from mirage_cli.lax.extents import Extent
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, PROLOGUE
from mirage_cli.search.schedules.packed import Weights
from mirage_cli.search.schedules.products import splits

DEPTH = 128  #: positions that are rounded together at most (`rounded.hpp`)
LINE = 16  #: positions, and rows of levels, of which there is room for multiples
CHUNK = 64  #: the same of positions of levels
HELD = "held_"  #: of variables that have the only element of a buffer
PARTS = 16  #: interleaved parts of a sum (`reduce` in tile.hpp)
ABREAST = 256  #: sums that are made side by side


class CpuPositions(Positions):
    """Where a kernel's statements are, with the types of elements and the loops of CPUs."""

    types = CUDA_TYPES | CPU_TYPES

    def valid(self, axis: str, phase: str) -> ir.Expression:
        """The number of positions of a tile that lie inside an axis."""
        if self.shapes.exact(axis, phase):
            return ir.lift(self.shapes.size(axis, phase))
        return k.name(f"n_{axis}_step" if axis == self.g.loop else f"n_{axis}")

    def loops(self, axes: Sequence[str], phase: str) -> list[tuple[str, ir.Expression]]:
        """Index variables of axes with their ends."""
        return [(f"i_{a}", self.valid(a, phase)) for a in axes]

    def nest(self, domain: Sizes, *body: ir.Statement, phase: str) -> ir.Statement:
        """Statements for the valid positions of `domain`, on vectors along the innermost axis."""
        if not domain:
            return k.scope(*body)
        *outer, (variable, end) = self.loops([a for a, _ in domain], phase)
        return k.nested(outer, k.loop(variable, end, *body, unroll=VECTOR_LOOP))[0]

    def contiguous(self, e: Expr, axis: str) -> Buffer | None:
        """The buffer that an expression just reads, with neighbours along `axis` side by side."""
        if isinstance(e, Ref):
            b = self.t.buffers[e.buffer]
            if b.dtype != F64 and axis in dict(b.axes) and b.stride(axis) == 1:
                return b
        return None

    def inputs(self) -> tuple[Parameter, ...]:
        """The tensors that the kernel reads, and the packed forms of weights among them."""
        return (*super().inputs(), *self.panels)

    def packing(self, value: str, row: int, depth: int) -> Packing | None:
        """How a stored operand of a product may be packed, given how far its columns and summed positions lie apart (0: not
        known); None if it may not."""
        number = self.reads[value].source
        source, apart = self.p.sources[number], max(row, depth)
        dims = (source.chosen.rows, *source.dims[source.chosen.lead :]) if source.chosen else source.dims
        elements = math.prod(e if isinstance(e, int) else 0 for e in dims)
        turned = source.chosen is not None and depth != 1
        if (
            number not in self.r.constants
            or min(row, depth) != 1
            or apart == 1
            or not elements
            or elements % apart
            or turned
        ):
            return None
        return Packing(number, elements, source.dtype.bytes, row, depth)

    @cached_property
    def panels(self) -> tuple[Parameter, ...]:
        """The packed forms of weights that the kernel's products read."""
        phases = ((PROLOGUE, self.t.prologue), (BODY, self.t.body), (EPILOGUE, self.t.epilogue))
        products = ((n, phase) for phase, nodes in phases for n in nodes if isinstance(n, Contract))
        found = (p for n, phase in products for o in _operands(self, n, phase) for p in o.panels)
        return tuple(dict.fromkeys(found))

    def row(self, b: Buffer, phase: str, axis: str) -> ir.Expression:
        """The place in a buffer where the current position's row along an axis begins."""
        return k.total([self.pointer(b), self.index(b, phase, [axis])])


def buffer_type(b: Buffer) -> str:
    """The C++ type of a buffer's elements."""
    return "double" if b.dtype == F64 else "float"


def statements(at: CpuPositions, nodes: Sequence[TileNode], phase: str) -> list[ir.Statement]:
    """The statements of a phase. Raises Refused."""
    return [_node(at, n, phase) for n in nodes if not isinstance(n, Barrier)]


def _node(at: CpuPositions, n: TileNode, phase: str) -> ir.Statement:
    match n:
        case Load():
            return _load(at, n, phase)
        case Init(name, value):
            return k.loop("i", at.t.buffers[name].elements, k.assign(k.name(name)[k.name("i")], float_number(value)))
        case Compute(name, e, _, add):
            return _changed(at, at.t.buffers[name], e, "+=" if add else "=", phase)
        case Contract():
            return _contract(at, n, phase)
        case Reduce():
            return _reduce(at, n, phase)
        case Scale(name, e):
            return _changed(at, at.t.buffers[name], e, "*=", phase)
        case Running(m, _, _):
            return at.nest(at.t.buffers[m].axes, *at.running(n, phase), phase=phase)
        case Store():
            return k.when(at.first(n.once), _store(at, n, phase))
    raise Refused(f"{n} is not rendered on the CPU")


def _changed(at: CpuPositions, b: Buffer, e: Expr, op: str, phase: str) -> ir.Statement:
    """An expression's value put into every element of a buffer. Single elements that it reads are variables: what the loop
    writes may seem to change them."""
    out = Lets()
    value = at.expression(e, phase, out)
    nest = at.nest(b.axes, *out.statements, k.assign(at.element(b, phase), value, op), phase=phase)
    single = [n for v in sorted(_read(e)) if b.axes and v != b.name and not (n := at.t.buffers[v]).axes]
    held = {at.element(n, phase): k.name(HELD + n.name) for n in single}
    lets = [k.let(buffer_type(n), HELD + n.name, at.element(n, phase)) for n in single]
    return k.scope(*lets, k.substituted(nest, held)) if lets else nest


def _read(e: Expr) -> set[str]:
    """The buffers that an expression reads."""
    match e:
        case Ref(name):
            return {name}
        case Apply(_, args):
            return set[str]().union(*map(_read, args))
    return set()


# --- loads and stores ---------------------------------------------------------------------------------------------------
def _load(at: CpuPositions, n: Load, phase: str) -> ir.Statement:
    """Row by row with conversion where the innermost stored axis is the innermost of the tile."""
    b, access = at.t.buffers[n.buffer], at.reads[n.value].access
    slots, own, stored = [s for s in access if s.extent != 1], k.name(n.buffer), k.name(n.value)
    if not b.axes or not slots or slots[-1].axis != b.axes[-1][0]:
        value = at.read(n.value, at.offset(at.reads[n.value], phase))
        return at.nest(b.axes, k.assign(own[at.index(b, b.phase)], value), phase=phase)
    axis = b.axes[-1][0]
    to, first = k.total([own, at.index(b, b.phase, [axis])]), at.offset(at.reads[n.value], phase, [axis])
    dtype, count = at.p.sources[at.reads[n.value].source].dtype, at.valid(axis, phase)
    row = k.run("load_row", to, k.total([stored, first]), count)
    if dtype.per_byte > 1:
        row = k.run(f"load_{dtype}", to, stored, first, count)
    return at.nest(b.axes[:-1], row, phase=phase)


def _store(at: CpuPositions, n: Store, phase: str) -> ir.Statement:
    """Element by element in float32; in other types rows are converted together, where they lie side by side."""
    o, out, own = at.p.outputs[n.output], Lets(), k.name(f"y{n.output}")
    sizes = dict(n.domain)
    order = [s.axis for s in o.access if s.axis is not None and at.sized(s.axis, phase)]
    domain = tuple((a, sizes[a] if a in sizes else at.shapes.size(a, phase)) for a in order)
    innermost = next((s.axis for s in reversed(o.access) if s.extent != 1), None)
    if o.dtype.name == "f32" or not domain or domain[-1][0] != innermost:
        value = at.expression(n.expr, phase, out)
        put = k.run("put", own[at.offset(o.access, phase)], value)
        return at.nest(domain, *out.statements, put, phase=phase)
    axis, size = domain[-1]
    stored, made = at.contiguous(n.expr, axis), list[ir.Statement]()
    row: ir.Expression = k.name("row")
    if stored is not None:
        row = at.row(stored, phase, axis)
    else:
        value = at.expression(n.expr, phase, out)
        filled = k.assign(row[k.name(f"i_{axis}")], value)
        made += [
            k.declare("float", "row", k.array(), dims=[size]),
            at.nest(domain[-1:], *out.statements, filled, phase=phase),
        ]
    to = k.total([own, at.offset(o.access, phase, [axis])])
    return at.nest(domain[:-1], *made, k.run("store_row", to, row, at.valid(axis, phase)), phase=phase)


# --- contractions -------------------------------------------------------------------------------------------------------
def _contract(at: CpuPositions, n: Contract, phase: str) -> ir.Statement:
    c = at.t.buffers[n.out]
    groups = _walked(at, n, phase)
    outer, own = [axis for group, _ in groups for axis, _ in group], [group for _, group in groups]
    a, b = (_rounded(at, n, o) for o in _operands(at, n, phase))
    rows, cols = (count(g) if _whole(at, g, phase) else 0 for g in own)
    known = k.of_type("mirage::Known", rows, count(own[0]), cols, count(n.over), a.depth, b.row, b.depth, n.add)
    sizes = (*(_positions(at, g, phase) for g in own), _summed(at, n.over, phase))
    out = k.total([n.out, *_places(c, outer)])
    product = k.run("mirage::contract", out, c.pitch, *sizes, a.place, b.place, n.add, static=[known])
    return k.nested(at.loops(outer, phase), product)[0]


def _walked(at: CpuPositions, n: Contract, phase: str) -> tuple[tuple[Sizes, Sizes], ...]:
    """For rows and for columns the axes whose positions have a product each, and those of one product: of a partial axis that
    is not the outermost one all positions would be taken, also those outside of the tensor. Products of few are not worth it,
    and weights that stay packed begin where they do."""
    c, found = at.t.buffers[n.out], []
    for group, operand in ((c.rows, n.a), (c.cols, n.b)):
        partial = _partial(at, group, phase)
        last = [axis for axis, _ in group].index(partial[-1]) if partial else 0
        apart = count(group[last:]) >= LINE and operand not in at.t.weights
        found.append((group[:last], group[last:]) if apart else (group[:0], group))
    return tuple(found)


def _places(b: Buffer, axes: Sequence[str]) -> list[ir.Expression]:
    """How far positions along axes lie behind a buffer's first element."""
    return [k.name(f"i_{axis}") * b.stride(axis) for axis in axes if axis in dict(b.axes)]


def _partial(at: CpuPositions, sizes: Sizes, phase: str) -> list[str]:
    """The axes of a row-major group that may be partial, but for the outermost one."""
    return [a for a, _ in sizes[1:] if not at.shapes.exact(a, phase)]


def _whole(at: CpuPositions, sizes: Sizes, phase: str) -> bool:
    """True if all positions of a group are always taken."""
    return not sizes or bool(_partial(at, sizes, phase)) or at.shapes.exact(sizes[0][0], phase)


def _positions(at: CpuPositions, sizes: Sizes, phase: str) -> ir.Expression:
    """The number of positions of a group that are taken: all where an axis is partial that is not the outermost one."""
    parts = [ir.lift(n) for _, n in sizes]
    if not _whole(at, sizes, phase):
        parts[0] = at.valid(sizes[0][0], phase)
    return k.product(p for p in parts if p != k.ONE)


def _summed(at: CpuPositions, sizes: Sizes, phase: str) -> ir.Expression:
    """The number of positions of a group that are summed over. Raises Refused where these do not lie side by side."""
    for axis in _partial(at, sizes, phase):
        raise Refused(f"axis {axis} of a summed group is partial and not outermost")
    return _positions(at, sizes, phase)


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand of a contraction: what the kernel calls it, its strides between free positions and between summed ones as far
    as they are known (else 0), the packed forms that it may have, and whether it is of quantised weights."""

    place: ir.Expression
    row: int
    depth: int
    panels: tuple[Parameter, ...] = ()
    weights: bool = False


def _operands(at: CpuPositions, n: Contract, phase: str) -> tuple[_Operand, _Operand]:
    """Rows and columns of a contraction. One of them may be packed; the other one is of float32."""
    (apart, rows), (beside, cols) = _walked(at, n, phase)
    a, own = _operand(at, n.a, rows, n.over, phase, apart), _operand(at, n.b, cols, n.over, phase, beside)
    b = _packed(at, n, n.b, own)
    if not at.t.weights.keys().isdisjoint((n.a, n.b)):
        return a, b if n.b in at.t.weights else own
    if not b.panels and (n.b in at.t.buffers or at.p.sources[at.reads[n.b].source].dtype == F32):
        return _packed(at, n, n.a, a), b
    return a, b


def _rounded(at: CpuPositions, n: Contract, o: _Operand) -> _Operand:
    """An operand with room for its bytes, behind all tiles, if the other one is of weights that are multiplied with such."""
    if o.weights or rounded_bytes(at.t, n) == 0:
        return o
    levels = next(w.levels for v in (n.a, n.b) if (w := at.t.weights.get(v)) is not None)
    return replace(o, place=k.call("in_levels" if levels else "to_bytes", o.place, k.name("memory") + room(at.t)))


def room(t: TileProgram) -> int:
    """Bytes of scratch memory in front of that for rounded operands."""
    return -(-t.shared_bytes // LINE) * LINE


def rounded_bytes(t: TileProgram, n: Contract) -> int:
    """Bytes of an operand of a contraction that is multiplied in bytes, 0 where none is: as `lines` of `rounded.hpp` takes
    them, numbers, and for each part that has a scale two floats; or as `level_rows` of `levels.hpp` does."""
    c, depth = t.buffers[n.out], count(n.over)
    w, rows = (t.weights.get(n.b), c.rows) if n.b in t.weights else (t.weights.get(n.a), c.cols)
    if w is None or not w.in_bytes:
        return 0
    if w.levels:
        high, pitch = (count(rows) // LINE + 1) * LINE + 1, -(-depth // CHUNK) * CHUNK + CHUNK
        return 4 * high + (high + 4) * pitch
    return count(rows) * (-(-depth // LINE) * LINE + 16 * -(-depth // min(w.block, DEPTH)))


def _operand(at: CpuPositions, name: str, free: Sizes, over: Sizes, phase: str, apart: Sizes = ()) -> _Operand:
    """One side of a contraction, at the position along axes that are walked `apart`."""
    if name in at.t.weights:
        return _quantised(at, at.t.weights[name], phase)
    inner = [g[-1][0] if g else None for g in (free, over)]
    if name in at.t.buffers:
        b = at.t.buffers[name]
        place = k.total([at.operand(b, dict(over), phase), *_places(b, [axis for axis, _ in apart])])
        strides = [b.stride(a) if a else ex.ONE for a in inner]
    else:
        fixed = [s.axis for s in at.reads[name].access if s.axis is not None and s.axis not in dict(apart)]
        place = k.total([name, at.offset(at.reads[name], phase, fixed)])
        strides = [_stride(at, name, a) if a else ex.ONE for a in inner]
    f, o = (s if isinstance(s, int) else 0 for s in strides)
    return _Operand(k.call("operand", place, *(extent(s, at.symbols, wide=False) for s in strides)), f, o)


def _packed(at: CpuPositions, n: Contract, name: str, o: _Operand) -> _Operand:
    """An operand of a contraction with its packed form, if it may have one."""
    packing = None if name in (at.t.buffers.keys() | at.t.weights) else at.packing(name, o.row, o.depth)
    if packing is None:
        return o
    c, dtype = at.t.buffers[n.out], at.p.sources[packing.source].dtype
    way = "split" if splits(dtype, count(c.rows if name == n.b else c.cols), count(n.over), packing.deep) else "packed"
    own = f"{name}_{'split' if way == 'split' else 'panels'}{'_turned' if o.depth == 1 else ''}{max(o.row, o.depth)}"
    panels = Parameter(own, at.ctype(dtype), packing.source, replace(packing, split=int(way == "split")))
    return replace(o, place=k.call(way, o.place, name, own, packing.deep), panels=(panels,))


def _quantised(at: CpuPositions, w: Weights, phase: str) -> _Operand:
    """Weights that stay packed: numbers, zero points and scales as they are stored, each with its panels. Raises Refused."""
    own = {v: _matrix(at, w, v, phase) for v in w.matrices}
    zero, scale = (own[v].place if v in own else _single(at, v, phase) for v in (w.of.zero, w.of.scale or 1))
    place = k.call("quantised", own[w.of.numbers].place, zero, scale, w.block)
    return _Operand(place, 0, 0, tuple(p for o in own.values() for p in o.panels), weights=True)


def _single(at: CpuPositions, value: str | int, phase: str) -> ir.Expression:
    """One number for all, or that of an input of one element."""
    if isinstance(value, int):
        return k.call("same_whole", float_number(value))
    whole = not at.p.sources[at.reads[value].source].dtype.is_float
    return k.call("same_whole" if whole else "same", at.read(value, at.offset(at.reads[value], phase)))


def _matrix(at: CpuPositions, w: Weights, value: str, phase: str) -> _Operand:
    """What weights are made of as a matrix that begins with a tile's first element."""
    m, access = w.matrices[value], at.reads[value].access
    dtype, packing = at.p.sources[at.reads[value].source].dtype, at.packing(value, m.row, m.depth)
    if packing is None:
        raise Refused(f"input {value} is no matrix that sessions pack")
    kind = k.of_type("Real", at.ctype(dtype)) if dtype.is_float else k.of_type(dtype.name.upper())
    if not dtype.is_float:
        turned = 0 if dtype.name.startswith("u") else 1 << (dtype.bits - 1)
        packing = replace(packing, bytes=4 if value == w.of.numbers else 1, bits=dtype.bits, turned=turned)
    panels = Parameter(f"{value}_panels{m.row}_{m.depth}", at.ctype(dtype), packing.source, packing)
    first = at.offset(at.reads[value], phase, [s.axis for s in access if s.axis is not None])
    place = k.call("stored", value, first, m.row, m.depth, panels.name, m.deep, static=[kind])
    return _Operand(place, m.row, m.depth, (panels,))


def _stride(at: CpuPositions, name: str, axis: str) -> Extent:
    """The elements between neighbours along an axis of a stored tensor."""
    stride = ex.ONE
    for s in reversed(at.reads[name].access):
        if s.axis == axis:
            return stride
        stride = ex.product([stride, s.extent])
    raise Refused(f"input {name} has no axis {axis}")


# --- reductions ---------------------------------------------------------------------------------------------------------
def _reduce(at: CpuPositions, n: Reduce, phase: str) -> ir.Statement:
    out, sizes = Lets(), dict(n.domain)
    kept = [a for a, _ in n.domain if a not in n.over]
    summed = [a for a, _ in n.domain if a in n.over]
    value = at.expression(n.expr, phase, out)
    inner = bool(n.domain) and n.domain[-1][0] in n.over
    if summed and sizes[n.domain[-1][0]] < PARTS:  # short runs would be added to a total one after the other
        summed.append(summed.pop(summed.index(max(summed, key=sizes.__getitem__))))
        inner = inner or sizes[summed[-1]] >= PARTS
    reduction = _Reduction(at, n, phase, kept, summed, out.statements, value)
    return reduction.inner() if inner or not kept else reduction.outer()


@dataclass(frozen=True, slots=True)
class _Reduction:
    """A reduction with the axes of its results and of its terms, and what a term is after some statements."""

    at: CpuPositions
    n: Reduce
    phase: str
    kept: Sequence[str]
    summed: Sequence[str]
    lets: Sequence[ir.Statement]
    value: ir.Expression

    @property
    def join(self) -> str:
        """What joins two terms."""
        return JOINS[self.n.kind]

    @property
    def wide(self) -> str:
        """The type in which terms are joined."""
        return f"{self.join}::Wide"

    def start(self) -> ir.Expression:
        """What a result begins with."""
        return self.at.element(self.buffer, self.phase) if self.n.add else k.call(f"{self.join}::none")

    @property
    def buffer(self) -> Buffer:
        """Where results are."""
        return self.at.t.buffers[self.n.buffer]

    def taken(self, place: ir.Expression, term: ir.Expression) -> ir.Statement:
        """A term joined to what is there."""
        return k.run(f"{self.join}::take", place, term)

    def put(self, value: ir.Expression) -> ir.Statement:
        """A result put in its place."""
        return k.assign(self.at.element(self.buffer, self.phase), k.cast(buffer_type(self.buffer), value))

    def loops(self, axes: Sequence[str], *body: ir.Statement) -> tuple[ir.Statement, ...]:
        """Statements for the valid positions along axes."""
        return k.nested(self.at.loops(axes, self.phase), *body)

    def inner(self) -> ir.Statement:
        """Each result by itself, along the innermost summed axis in parts."""
        total = k.name("total")
        body = (
            k.declare(self.wide, "total", self.start()),
            *self.loops(self.summed[:-1], self.taken(total, self.along())),
            self.put(total),
        )
        return self.loops(self.kept, *body)[0] if self.kept else k.scope(*body)

    def along(self) -> ir.Expression:
        """The terms along the innermost summed axis, joined."""
        last = self.summed[-1] if self.summed else "none"
        end = self.at.valid(last, self.phase) if self.summed else k.ONE
        row = self.at.contiguous(self.n.expr, last) if self.summed and not self.lets else None
        if row is not None:
            return k.call("mirage::reduce_row", self.at.row(row, self.phase, last), end, static=[self.join])
        term = k.function([("int", f"i_{last}")], k.ignore(f"i_{last}"), *self.lets, ir.Return(self.value))
        return k.call("mirage::reduce", end, term, static=[self.join])

    def outer(self) -> ir.Statement:
        """Results side by side along the innermost kept axis."""
        width = min(dict(self.n.domain)[self.kept[-1]], ABREAST)
        ((variable, end),) = self.at.loops(self.kept[-1:], self.phase)
        start = k.name("from")
        part = k.name("part")[k.name(variable) - start]

        def abreast(*body: ir.Statement) -> ir.Statement:
            return k.loop(variable, "to", *body, start=start, unroll=VECTOR_LOOP)

        body = (
            k.let("int", "to", k.call("smaller", start + width, end)),
            k.declare(self.wide, "part", dims=[width]),
            abreast(k.assign(part, self.start())),
            *self.loops(self.summed, abreast(*self.lets, self.taken(part, k.converted(self.wide, self.value)))),
            abreast(self.put(part)),
        )
        return self.loops(self.kept[:-1], k.loop("from", end, *body, step=width))[0]
