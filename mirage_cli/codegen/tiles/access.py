"""Buffers that nodes of a tile program read and write, and where the threads of a block wait for one another inside a node."""

from __future__ import annotations

from typing import TypeAlias

from mirage_cli.codegen.tiles.tile import (
    FRAGMENT,
    Barrier,
    Buffer,
    Compute,
    Contract,
    Exchange,
    GridSum,
    GridTop,
    Init,
    Load,
    Reduce,
    Running,
    Scale,
    Store,
    TileNode,
    TileProgram,
    refs,
)
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Symbolic
from mirage_cli.lax.ir.program import Program

Touch: TypeAlias = tuple[frozenset[str], frozenset[str]]  #: buffers read, buffers written


def accesses(n: TileNode) -> tuple[set[str], set[str]]:
    """(buffers read, buffers written) by a node."""
    match n:
        case Load(b, _) | Init(b, _):
            return set(), {b}
        case Compute(b, e, _, add):
            return set(refs(e)) | ({b} if add else set()), {b}
        case Contract(out, a, b, _, add):
            return {a, b} | ({out} if add else set()), {out}
        case Reduce(b, _, e, _, _, _, add, scratch):
            return set(refs(e)) | ({b} if add else set()), {b} | ({scratch} if scratch else set())
        case Scale(b, e):
            return set(refs(e)) | {b}, {b}
        case Running(m, top, shrink):
            return {m, top}, {m, shrink}
        case Store(_, e, _, _):
            return set(refs(e)), set()
        case Exchange(buffers):
            return set(buffers), set()
        case GridTop(b, _):
            return set(), {b}
        case GridSum(b, _, _, common):
            return {common} if common else set(), {b}
        case Barrier():
            return set(), set()


def synchronises(n: TileNode) -> bool:
    """True if the threads of a block wait for one another inside a node (see `templates/include/mirage/cuda/tile.cuh`)."""
    return isinstance(n, Exchange) or (isinstance(n, Reduce) and bool(n.scratch))


def shared_halves(t: TileProgram, n: TileNode) -> tuple[Touch, Touch]:
    """Shared tiles that a node touches before and after the wait inside it; without one, all before.

    A reduction of fragments writes partial results, waits, and reads them to write its result.
    """
    reads, writes = (frozenset(x for x in names if is_shared(t, x)) for names in accesses(n))
    nothing: Touch = (frozenset(), frozenset())
    if not isinstance(n, Reduce) or not n.scratch:
        return (reads, writes), nothing
    scratch, result = frozenset((n.scratch,)), frozenset((n.buffer,))
    values = frozenset(x for x in refs(n.expr) if is_shared(t, x))
    return (values, scratch), (scratch | (result if n.add else frozenset()), result)


def is_shared(t: TileProgram, name: str) -> bool:
    """True if a name is that of a tile in memory that threads share (not of a fragment, nor of a stored tensor)."""
    return name in t.buffers and t.buffers[name].place != FRAGMENT


def chunk_bytes(program: Program, b: Buffer, value: str) -> int:
    """Bytes (16, 8 or 4) of the largest chunks in which a program input's rows can be copied into a tile; 0 when they are
    no aligned runs of both."""
    source = program.input(value)
    dtype = program.sources[source.source].dtype
    if not b.axes:
        return 0
    axis, size = b.axes[-1]
    slots = [s for s in source.access if s.extent != 1]
    if not slots or slots[-1].axis != axis:
        return 0
    for bytes_ in (16, 8, 4):
        vector = bytes_ // dtype.bytes
        if vector < 1 or size % vector or slots[-1].offset % vector:
            continue
        if any(b.stride(a) % vector for a, _ in b.axes[:-1]):
            continue
        stride, aligned = slots[-1].extent, True
        for s in reversed(slots[:-1]):
            factor = stride.factor if isinstance(stride, Symbolic) else stride
            aligned = aligned and factor % vector == 0
            stride = ex.product([stride, s.extent])
        if aligned:
            return bytes_
    return 0
