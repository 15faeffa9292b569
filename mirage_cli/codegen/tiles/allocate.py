"""Dynamic storage allocation: offsets for blocks of memory that are alive for a time, in as little memory as possible.

A block occupies `size` bytes from `first` to `last`, both included; blocks that are alive together may not overlap. The
total of an allocation is at least the most that is alive at one time (the lower bound), and finding the least total is
NP-hard. Small instances are solved exactly, by branch and bound; larger ones get the best of several orders of first fit,
of which largest-first is one, so that the result is never above it.

The exact search takes blocks in order of their offsets. Some allocation of least total has every block at the lowest
offset that the blocks below leave it; in it, a block placed later lies above whatever is placed at its time. So the height
reached at each time, plus the sizes still to come there, bounds the total from below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

STEPS = 4000  #: placements that the exact search tries before the best allocation so far stands


@dataclass(frozen=True, slots=True)
class Block:
    """A block of memory that is needed from time `first` to time `last`."""

    size: int
    first: int
    last: int

    def meets(self, other: Block) -> bool:
        """True if both are alive at some time."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Allocation:
    """An offset for each block, the total, and whether no allocation has a smaller one."""

    offsets: tuple[int, ...]
    total: int
    exact: bool


ORDERS: tuple[Callable[[Block], tuple[int, ...]], ...] = (
    lambda b: (-b.size, b.first),
    lambda b: (-b.size * (b.last - b.first + 1), b.first),
    lambda b: (b.first - b.last, -b.size),
    lambda b: (b.first, b.last, -b.size),
    lambda b: (-b.last, b.first, -b.size),
)  #: keys by which first fit takes the blocks


def lower_bound(blocks: Sequence[Block]) -> int:
    """The most bytes that are alive at one time. It is reached at the first time of some block."""
    return max((sum(b.size for b in blocks if b.first <= at.first <= b.last) for at in blocks), default=0)


def allocate(blocks: Sequence[Block]) -> Allocation:
    """The best allocation that was found; `exact` when it is proved to be the least."""
    bound = lower_bound(blocks)
    best = min((first_fit(blocks, key) for key in ORDERS), key=lambda a: a.total)
    if best.total == bound:
        return Allocation(best.offsets, best.total, True)
    search = _Search(blocks, best, bound)
    search.run()
    return Allocation(search.offsets, search.total, search.total == bound or search.steps < STEPS)


def first_fit(blocks: Sequence[Block], key: Callable[[Block], tuple[int, ...]] = ORDERS[0]) -> Allocation:
    """Each block, in order of a key, at the lowest offset that is free throughout its time."""
    offsets = [0] * len(blocks)
    placed: list[int] = []
    for k in sorted(range(len(blocks)), key=lambda k: (*key(blocks[k]), k)):
        at = 0
        for j in sorted((j for j in placed if blocks[j].meets(blocks[k])), key=lambda j: offsets[j]):
            if at + blocks[k].size <= offsets[j]:
                break
            at = max(at, offsets[j] + blocks[j].size)
        offsets[k] = at
        placed.append(k)
    return Allocation(tuple(offsets), max((o + b.size for o, b in zip(offsets, blocks, strict=True)), default=0), False)


@dataclass(slots=True)
class _Search:
    """Branch and bound over the order of offsets. `height` is what is reached at each time, `ahead` what is to come."""

    blocks: Sequence[Block]
    best: Allocation
    bound: int
    steps: int = 0
    offsets: tuple[int, ...] = field(init=False)
    total: int = field(init=False)

    def run(self) -> None:
        self.offsets, self.total = self.best.offsets, self.best.total
        times = sorted({b.first for b in self.blocks})
        spans = [[k for k, t in enumerate(times) if b.first <= t <= b.last] for b in self.blocks]
        ahead = [sum(b.size for b in self.blocks if b.first <= t <= b.last) for t in times]
        self._place(frozenset(range(len(self.blocks))), [0] * len(times), ahead, spans, {}, 0)

    def _place(
        self,
        left: frozenset[int],
        height: list[int],
        ahead: list[int],
        spans: list[list[int]],
        chosen: dict[int, int],
        lowest: int,
    ) -> None:
        if not left:
            self.offsets = tuple(chosen[k] for k in range(len(self.blocks)))
            self.total = max(height, default=0)
            return
        options = sorted((max(height[t] for t in spans[k]), -self.blocks[k].size, k) for k in left)
        seen: set[Block] = set()
        for at, _, k in options:
            block = self.blocks[k]
            if block in seen or at < lowest:  # a block below the last one had its turn before
                continue
            seen.add(block)
            if self.steps >= STEPS or self.total == self.bound:
                return
            self.steps += 1
            up, rest = list(height), list(ahead)
            for t in spans[k]:
                up[t] = at + block.size
                rest[t] -= block.size
            # what is still to come lies at `at` or above
            reach = max(u + r if r == 0 else max(u, at) + r for u, r in zip(up, rest, strict=True))
            if reach < self.total:
                self._place(left - {k}, up, rest, spans, chosen | {k: at}, at)
