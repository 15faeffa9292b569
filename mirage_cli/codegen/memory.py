"""Memory plan: byte offsets of shared tiles so that tiles that are alive together do not overlap.

Dynamic storage allocation over live ranges: largest first, each at the lowest offset that is free throughout its life.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_cli.codegen.tile import (
    FRAGMENT,
    RING,
    Barrier,
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

ALIGNMENT = 128


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
        case Store(_, e, _):
            return set(refs(e)), set()
        case Exchange(buffers):
            return set(buffers), set()
        case GridTop(b, _):
            return set(), {b}
        case GridSum(b, _, _, common):
            return {common} if common else set(), {b}
        case Barrier():
            return set(), set()


def live_ranges(t: TileProgram) -> dict[str, tuple[int, int]]:
    """First and last node (numbered through the phases) at which each shared buffer holds something.

    What is touched in the body and also before or after it lives through all iterations.
    """
    first, last = len(t.prologue), len(t.prologue) + len(t.body)
    ranges: dict[str, tuple[int, int]] = {}
    for k, n in enumerate([*t.prologue, *t.body, *t.epilogue]):
        for b in set().union(*accesses(n)):
            if b in t.buffers and t.buffers[b].place != FRAGMENT:
                low, high = ranges.get(b, (k, k))
                ranges[b] = (min(low, k), max(high, k))
    for b, (low, high) in ranges.items():
        in_body = low < last and high >= first and t.body
        if t.buffers[b].place == RING:
            ranges[b] = (0, max(high, last))
        elif in_body and low < first:
            ranges[b] = (low, max(high, last))
        elif in_body and high >= last:
            ranges[b] = (0, high)
    return ranges


def nbytes(t: TileProgram, name: str) -> int:
    """Bytes that a buffer takes, all stages of a ring included."""
    b = t.buffers[name]
    stages = t.schedule.stages if b.place == RING else 1
    return -(-b.elements * b.dtype.bytes // ALIGNMENT) * ALIGNMENT * stages


def plan(t: TileProgram) -> TileProgram:
    """The program with offsets of its shared buffers and their total size."""
    ranges = live_ranges(t)
    placed: list[tuple[int, int, tuple[int, int]]] = []
    offsets: dict[str, int] = {}
    for name in sorted(ranges, key=lambda b: (-nbytes(t, b), b)):
        low, high = ranges[name]
        size = nbytes(t, name)
        busy = sorted((o, s) for o, s, (a, z) in placed if not (z < low or high < a))
        at = 0
        for o, s in busy:
            if at + size <= o:
                break
            at = max(at, o + s)
        placed.append((at, size, (low, high)))
        offsets[name] = at
    total = max((o + s for o, s, _ in placed), default=0)
    return replace(t, offsets=offsets, shared_bytes=total)
