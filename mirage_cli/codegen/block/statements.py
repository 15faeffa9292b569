"""Statements of a kernel of the engine `block`, by the nodes of its tile program."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_cli.codegen.block.loads import load
from mirage_cli.codegen.block.split import exchange, grid_sum, grid_top
from mirage_cli.codegen.terms.expressions import JOINS, SYNC, ZERO, Lets, float_number
from mirage_cli.codegen.terms.fragments import FragmentPositions, decode
from mirage_cli.codegen.tiles.tile import (
    FRAGMENT,
    RING,
    Barrier,
    Buffer,
    Compute,
    Contract,
    Exchange,
    Expr,
    GridSum,
    GridTop,
    Init,
    Load,
    Reduce,
    Running,
    Scale,
    Sizes,
    Store,
    TileNode,
    count,
    globals_of,
    refs,
)
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax.dtypes import F64

X = k.name("x")
#: an element's place in a fragment, as functions of reductions get it
LANE: dict[ir.Expression, ir.Expression] = {k.name(f"{n}_"): k.name(n) for n in "mni"}


def statements(at: FragmentPositions, nodes: Sequence[TileNode], phase: str) -> list[ir.Statement]:
    """The statements of a phase, without the loads of rings."""
    rings = [n for n in nodes if isinstance(n, Load) and at.t.buffers[n.buffer].place == RING]
    return [s for n in nodes if n not in rings for s in _node(at, n, phase)]


def _node(at: FragmentPositions, n: TileNode, phase: str) -> Sequence[ir.Statement]:
    match n:
        case Barrier():
            return [SYNC]
        case Load():
            return [load(at, n, phase)]
        case Init(name, value):
            return [_init(at, at.t.buffers[name], float_number(value), phase)]
        case Compute():
            return [_compute(at, n, phase)]
        case Contract():
            return _contract(at, n, phase)
        case Reduce():
            return [_reduce(at, n, phase)]
        case Scale(name, e):
            b, out = at.t.buffers[name], Lets()
            factor = at.expression(e, phase, out)
            return [at.everywhere(b, *out.statements, k.assign(at.element(b, phase), factor, "*="))]
        case Running(m, _, _):
            return [at.loop(at.t.buffers[m].axes, *at.running(n, phase))]
        case Store():
            return [_store(at, n, phase)]
        case Exchange():
            return exchange(at, n)
        case GridTop():
            return [grid_top(at, n)]
        case GridSum():
            return [grid_sum(at, n)]


# --- elements -----------------------------------------------------------------------------------------------------------
def _init(at: FragmentPositions, b: Buffer, value: ir.Expression, phase: str) -> ir.Statement:
    if b.place == FRAGMENT:
        return k.run(k.name(b.name).member("fill"), value)
    return at.loop(b.axes, k.assign(at.element(b, phase), value))


def _compute(at: FragmentPositions, n: Compute, phase: str) -> ir.Statement:
    b, out = at.t.buffers[n.buffer], Lets()
    f = b if b.place == FRAGMENT else at.main_fragment(n.expr, _fragment_domain(at, n.expr, b))
    padding = None if f is None else at.fragment_inside(f)
    inside = k.both(padding, at.inside([a for a, _ in b.axes], phase))
    guard = out.let(inside, "bool") if inside is not None and globals_of(n.expr) else None
    value = at.expression(n.expr, phase, out, guard)
    zero = at.inside(n.zero, phase)
    value = value if zero is None else k.select(zero, value, ZERO)
    target = at.element(b, phase)
    put: ir.Statement = k.assign(target, value, "+=" if n.add else "=")
    if b.dtype.name != "f32" and not n.add:
        put = k.run("put", target, value)
    if f is None:
        return at.loop(b.axes, *out.statements, put)
    return at.each(f, *out.statements, put if b.place == FRAGMENT else k.when(padding, put))


def _fragment_domain(at: FragmentPositions, e: Expr, b: Buffer) -> Sizes:
    """The axes of a fragment in an expression that fills `b` (the same axes, in the fragment's order)."""
    wanted = {a for a, _ in b.axes}
    fragments = [f for name in refs(e) if (f := at.t.buffers[name]).place == FRAGMENT]
    return next((f.axes for f in fragments if {a for a, _ in f.axes} == wanted), b.axes)


def _store(at: FragmentPositions, n: Store, phase: str) -> ir.Statement:
    out, f = Lets(), at.main_fragment(n.expr, n.domain)
    padding = None if f is None else at.fragment_inside(f)
    inside = k.both(at.first(n.once), padding, at.inside([a for a, _ in n.domain], phase))
    value = at.expression(n.expr, phase, out)
    place = k.name(f"y{n.output}")[at.offset(at.p.outputs[n.output].access, phase)]
    body: list[ir.Statement] = [*out.statements, k.run("put", place, value)]
    body = body if inside is None else [k.when(inside, *body)]
    return at.loop(n.domain, *body) if f is None else at.each(f, *body)


# --- contractions -------------------------------------------------------------------------------------------------------
def _contract(at: FragmentPositions, n: Contract, phase: str) -> list[ir.Statement]:
    a, b = at.t.buffers[n.a], at.t.buffers[n.b]
    over = {x for x, _ in n.over}
    a_rows = not over or over.isdisjoint(x for x, _ in a.rows)
    b_rows = not over.isdisjoint(x for x, _ in b.rows)
    static = (count(n.over), a_rows, a.pitch, b_rows, b.pitch)
    operands = (at.operand(x, over, phase) for x in (a, b))
    product = k.run("mirage::contract", n.out, *operands, static=static)
    return [product] if n.add else [_init(at, at.t.buffers[n.out], ZERO, phase), product]


# --- reductions ---------------------------------------------------------------------------------------------------------
def _reduce(at: FragmentPositions, n: Reduce, phase: str) -> ir.Statement:
    out, join = Lets(), JOINS[n.kind]
    f = at.main_fragment(n.expr, n.domain) if n.scratch else None
    counted = k.both(at.inside(n.mask, phase), None if f is None else at.fragment_inside(f))
    known = at.inside([a for a, _ in n.domain], phase)
    stored = out.let(known, "bool") if known is not None and globals_of(n.expr) else None
    value = at.expression(n.expr, phase, out, stored)
    value = value if counted is None else k.select(counted, value, k.call(f"{join}::none"))
    made = (*out.statements, ir.Return(value))
    return _reduce_tile(at, n, made, phase) if f is None else _reduce_fragment(at, n, f, made, phase)


def _put(at: FragmentPositions, n: Reduce, phase: str) -> ir.Statement:
    """What is done with a result, `x`."""
    target = k.name(n.buffer)[at.index(at.t.buffers[n.buffer], phase)]
    if n.add and n.kind == "sum":
        return k.assign(target, X, "+=")
    return k.assign(target, k.call(f"{JOINS[n.kind]}::join", target, X) if n.add else X)


def _reduce_tile(at: FragmentPositions, n: Reduce, made: Sequence[ir.Statement], phase: str) -> ir.Statement:
    """Sums or maxima that threads share out."""
    kept = tuple((a, s) for a, s in n.domain if a not in n.over)
    summed = tuple((a, s) for a, s in n.domain if a in n.over)
    wide = at.t.buffers[n.buffer].dtype == F64
    indices = (*decode(kept, "o"), *decode(summed, "k"))
    return k.run(
        "mirage::reduce",
        k.function([("int", "o"), ("int", "k")], k.ignore("o", "k"), *indices, *made),
        k.function(
            [("int", "o"), ("double" if wide else "float", "x")], k.ignore("o"), *decode(kept, "o"), _put(at, n, phase)
        ),
        static=(JOINS[n.kind], count(kept), count(summed), "THREADS", *(["double"] if wide else [])),
    )


def _reduce_fragment(
    at: FragmentPositions, n: Reduce, f: Buffer, made: Sequence[ir.Statement], phase: str
) -> ir.Statement:
    """Sums or maxima along rows or columns of a fragment."""
    along = {a for a, _ in f.cols} == {a for a, _ in n.domain if a in n.over}
    kept, place = (f.rows, "r") if along else (f.cols, "c")
    put, parts = _put(at, n, phase), ("row", "col", "m", "n", "i")
    if at.fragment_shape(f)[0 if along else 1] != count(kept):
        put = k.when(k.name(place) < count(kept), put)
    value = k.substituted(tuple(made), LANE)
    return k.run(
        "mirage::reduce_rows" if along else "mirage::reduce_cols",
        n.scratch,
        k.function([("int", p) for p in parts], k.ignore(*parts), *at.fragment_index(f, "row", "col"), *value),
        k.function([("int", place), ("float", "x")], *decode(kept, place), put),
        static=(JOINS[n.kind], f"F_{f.name}", "THREADS"),
    )
