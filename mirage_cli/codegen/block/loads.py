"""Loads into shared tiles: whole chunks asynchronously where rows are aligned runs, element by element otherwise,
of which each thread asks for several before it waits."""

from __future__ import annotations

from mirage_cli.codegen.terms.fragments import FragmentPositions, decode
from mirage_cli.codegen.tiles.access import chunk_bytes
from mirage_cli.codegen.tiles.tile import RING, Buffer, Load, count
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.search.mugraph.mugraph import BODY


def load(at: FragmentPositions, n: Load, phase: str) -> ir.Statement:
    """A tile brought into its buffer."""
    return _load(at, n, phase, k.name(n.buffer))


def ring_loads(at: FragmentPositions) -> list[ir.Statement]:
    """The loads that run ahead of the loop, into stage `slot`."""
    rings = [n for n in at.t.body if isinstance(n, Load) and at.t.buffers[n.buffer].place == RING]
    return [_load(at, n, BODY, k.name(n.buffer) + k.name("slot") * stage(at.t.buffers[n.buffer])) for n in rings]


def stage(b: Buffer) -> int:
    """Elements of one stage of a ring."""
    return -(-b.elements * b.dtype.bytes // 128) * 128 // b.dtype.bytes


def _load(at: FragmentPositions, n: Load, phase: str, tile: ir.Expression) -> ir.Statement:
    b, source = at.t.buffers[n.buffer], at.reads[n.value]
    dtype = at.p.sources[source.source].dtype
    kind, axes = at.ctype(dtype), [s.axis for s in source.access if s.axis is not None]
    chunk = chunk_bytes(at.p, b, n.value)
    if not chunk:
        inside = at.inside(axes, phase)
        value: ir.Expression = k.name(n.value)[at.offset(source, phase)]
        if inside is not None:
            nothing = k.number("0.0f") if dtype.kind == "float" else k.ZERO
            value = k.select(inside, value, k.converted(kind, nothing))
        return at.rounds(b.axes, k.assign(tile[at.index(b, b.phase)], value))
    (*outer, (axis, size)) = b.axes
    left = k.joined("-", [at.extent(at.p.extent(axis)), *at.base(axis, phase)], 0)
    valid = ir.lift(size) if at.shapes.exact(axis, phase) or left is None else k.cast("int", left)
    inside = at.inside([a for a in axes if a != axis], phase)
    start = k.name("from")
    row = k.function(
        [("int", "r")],
        k.ignore("r"),
        *decode(tuple(outer), "r"),
        k.let(k.of_type(f"{kind}*", const=True), "from", k.total([n.value, at.offset(source, phase, [axis])])),
        ir.Return(
            k.construct(
                k.of_type("Row", kind),
                start if inside is None else k.select(inside, start, k.number("nullptr")),
                at.index(b, b.phase, [axis]),
            )
        ),
    )
    static = (kind, count(tuple(outer)), size, chunk, "THREADS")
    return k.run("load_rows", tile, n.value, valid, row, static=static)
