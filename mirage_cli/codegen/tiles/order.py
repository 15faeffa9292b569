"""Order of nodes, and barriers between them (for targets on which many threads share a tile).

1. `loads_first`: loads of the prologue come first, so that they run together.
2. `ordered`: within each phase, the order with the fewest barriers, and among those with the least live shared memory
   (`arrange.py`); on targets without barriers, the order with the least live memory.
3. `barriers`: a barrier stands before a node that reads what was written since the last one, or overwrites what was read
   or written since; buffers count as the same where their memory overlaps (before the memory plan: where they are the
   same). Some nodes hold a barrier of their own (`access.synchronises`): it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_cli.codegen.tiles.access import accesses, shared_halves, synchronises
from mirage_cli.codegen.tiles.arrange import Step, arrange
from mirage_cli.codegen.tiles.memory import nbytes
from mirage_cli.codegen.tiles.tile import RING, Barrier, Exchange, Load, TileNode, TileProgram


def loads_first(t: TileProgram) -> TileProgram:
    """Prologue loads in front."""
    loads, rest = _split_loads(t.prologue)
    return replace(t, prologue=(*loads, *rest))


def barrier_counts(t: TileProgram) -> tuple[int, int]:
    """(barriers of an iteration, barriers before and behind the loop), without those that every kernel has."""
    inside, outside = (sum(isinstance(n, Barrier) for n in nodes) for nodes in (t.body, (*t.prologue, *t.epilogue)))
    return inside, outside


# --- 2 --------------------------------------------------------------------------------------------------------------------
def ordered(t: TileProgram) -> TileProgram:
    """The program with each phase in its best order; barriers that the order needs are among its nodes."""
    loads, rest = _split_loads(t.prologue)
    if t.graph.loop is None:
        both = _arranged(t, [*rest, *t.epilogue], len(rest), loads, ())
        ends = [k + 1 for k, n in enumerate(both) if not isinstance(n, Barrier)]
        end = ends[len(rest) - 1] if rest else 0
        return replace(t, prologue=(*loads, *both[:end]), epilogue=tuple(both[end:]))
    copies = [n for n in t.body if _is_copy(t, n)]
    body = [n for n in t.body if not _is_copy(t, n)]
    return replace(
        t,
        prologue=(*loads, *_arranged(t, rest, 0, loads, (*t.body, *t.epilogue))),
        body=(*copies, *_arranged(t, body, 0, (*t.prologue, *t.epilogue), (*t.prologue, *t.epilogue))),
        epilogue=tuple(_arranged(t, t.epilogue, 0, (*t.prologue, *t.body), ())),
    )


def _arranged(
    t: TileProgram,
    nodes: Sequence[TileNode],
    fence: int,
    earlier: Sequence[TileNode],
    later: Sequence[TileNode],
) -> list[TileNode]:
    """Nodes in their best order. The first `fence` stay before the others; what `earlier` nodes touch holds something
    from the start on, what `later` ones touch to the end."""
    touched = [shared_halves(t, n) for n in nodes]
    all_of = [accesses(n) for n in nodes]
    steps = []
    for k, n in enumerate(nodes):
        needs = {j for j in range(k) if _depends(all_of[j], all_of[k])}
        needs |= {j for j in range(k) if isinstance(n, Exchange) or isinstance(nodes[j], Exchange)}
        if k >= fence:
            needs |= set(range(fence))
        steps.append(Step(frozenset(needs), *touched[k], synchronises(n)))
    names = {b for before, behind in touched for b in before[0] | before[1] | behind[0] | behind[1]}
    sizes = {b: nbytes(t, b) for b in sorted(names) if t.buffers[b].place != RING}
    at_start, at_end = (frozenset(b for n in part for b in set().union(*accesses(n))) for part in (earlier, later))
    order = arrange(steps, sizes, at_start, at_end, parallel=t.target.threaded)
    return [Barrier() if k is None else nodes[k] for k in order]


def _depends(first: tuple[set[str], set[str]], second: tuple[set[str], set[str]]) -> bool:
    return bool(first[1] & (second[0] | second[1]) or first[0] & second[1])


# --- 3 --------------------------------------------------------------------------------------------------------------------
def barriers(t: TileProgram) -> TileProgram:
    """The program with the barriers that its order and memory plan need beside those that it has. The loop's own barrier
    stands at the start of each iteration and one behind the loop; neither is among the nodes."""
    loads, rest = _split_loads(t.prologue)
    before = _Pending(t)
    prologue = before.through(rest)
    behind = _Pending(t) if t.graph.loop else before
    return replace(
        t, prologue=(*loads, *prologue), body=_Pending(t).through(t.body), epilogue=behind.through(t.epilogue)
    )


class _Pending:
    """The buffers read and written since the last barrier."""

    def __init__(self, t: TileProgram) -> None:
        self.t = t
        self.read: frozenset[str] = frozenset()
        self.written: frozenset[str] = frozenset()

    def through(self, nodes: Sequence[TileNode]) -> tuple[TileNode, ...]:
        """The nodes with barriers where they are needed."""
        result: list[TileNode] = []
        for n in nodes:
            if _is_copy(self.t, n):
                result.append(n)
                continue
            before, behind = shared_halves(self.t, n)
            if isinstance(n, Barrier):
                self.read = self.written = frozenset()
            elif self.meets(before[0], self.written) or self.meets(before[1], self.read | self.written):
                result.append(Barrier())
                self.read = self.written = frozenset()
            result.append(n)
            if synchronises(n):
                self.read, self.written = behind
            else:
                self.read, self.written = self.read | before[0], self.written | before[1]
        return tuple(result)

    def meets(self, a: frozenset[str], b: frozenset[str]) -> bool:
        """True if some buffers share memory."""
        if not self.t.offsets:
            return bool(a & b)
        at = self.t.offsets
        return any(at[x] < at[y] + nbytes(self.t, y) and at[y] < at[x] + nbytes(self.t, x) for x in a for y in b)


def _is_copy(t: TileProgram, n: TileNode) -> bool:
    """True if a node is a load that runs ahead of the loop."""
    return isinstance(n, Load) and t.buffers[n.buffer].place == RING


def _split_loads(nodes: Sequence[TileNode]) -> tuple[list[TileNode], list[TileNode]]:
    return [n for n in nodes if isinstance(n, Load)], [n for n in nodes if not isinstance(n, Load)]
