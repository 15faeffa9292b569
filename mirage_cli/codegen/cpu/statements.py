"""Statements of a kernel for CPUs, by the nodes of its tile program.

Loops run over the positions that lie inside the tensors, so nothing is masked; a contraction sums over them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_cli.codegen.cpu.positions import CpuPositions, buffer_type
from mirage_cli.codegen.cpu.products import contraction
from mirage_cli.codegen.terms.expressions import JOINS, Lets, float_number
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
    Store,
    TileNode,
)
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.tokens import VECTOR_LOOP

HELD = "held_"  #: of variables that have the only element of a buffer
PARTS = 16  #: interleaved parts of a sum (`reduce` in tile.hpp)
ABREAST = 256  #: sums that are made side by side


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
            return contraction(at, n, phase)
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
