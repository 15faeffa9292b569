"""Order of nodes and barriers between them (for targets on which many threads share a tile).

1. Loads of the prologue come first, so that they run together.
2. A barrier stands before a node that reads what was written since the last barrier, or overwrites what was read or
   written since; buffers count as the same where their memory overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_cli.codegen.memory import accesses, nbytes
from mirage_cli.codegen.tile import FRAGMENT, RING, Barrier, Load, TileNode, TileProgram


def loads_first(t: TileProgram) -> TileProgram:
    """Prologue loads in front."""
    loads = [n for n in t.prologue if isinstance(n, Load)]
    rest = [n for n in t.prologue if not isinstance(n, Load)]
    return replace(t, prologue=(*loads, *rest))


def barriers(t: TileProgram) -> TileProgram:
    """The program with the barriers that its memory plan needs. The loop's own barrier stands at the start of each
    iteration and one behind the loop; neither is among the nodes."""
    loads = [n for n in t.prologue if isinstance(n, Load)]
    rest = [n for n in t.prologue if not isinstance(n, Load)]
    return replace(
        t,
        prologue=(*loads, *_with_barriers(t, rest)),
        body=_with_barriers(t, t.body),
        epilogue=_with_barriers(t, t.epilogue, () if t.graph.loop else rest),
    )


def _with_barriers(t: TileProgram, nodes: Sequence[TileNode], before: Sequence[TileNode] = ()) -> tuple[TileNode, ...]:
    read: set[str] = set()
    written: set[str] = set()
    for n in before:
        r, w = accesses(n)
        read, written = read | _shared(t, r), written | _shared(t, w)
    result: list[TileNode] = []
    for n in nodes:
        if isinstance(n, Load) and t.buffers[n.buffer].place == RING:
            result.append(n)
            continue
        reads, writes = (_shared(t, x) for x in accesses(n))
        if _overlap(t, reads, written) or _overlap(t, writes, read | written):
            result.append(Barrier())
            read, written = set(), set()
        result.append(n)
        read |= reads
        written |= writes
    return tuple(result)


def _shared(t: TileProgram, names: set[str]) -> set[str]:
    return {n for n in names if n in t.buffers and t.buffers[n].place != FRAGMENT}


def _overlap(t: TileProgram, a: set[str], b: set[str]) -> bool:
    return any(
        t.offsets[x] < t.offsets[y] + nbytes(t, y) and t.offsets[y] < t.offsets[x] + nbytes(t, x) for x in a for y in b
    )
