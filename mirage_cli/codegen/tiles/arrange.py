"""The order of steps with the fewest barriers and, among those orders, the least live memory.

Steps between two barriers are an *interval*: no step of it reads or overwrites what another of it writes. A step that
holds a barrier (`synchronises`) ends an interval with its first half and opens the next one with its second half, for
free; every other end of an interval costs a barrier.

Barriers. In an interval whose end is decided, taking every step that can be taken is best: what is done earlier is in
nobody's way later. (Of two available steps that may not share an interval one needs the other, so there is no choice
between them.) So the only choices are which step with a barrier of its own ends an interval, and `_Intervals.fewest` goes
through all of them.

Memory. Among the orders with that number of barriers, `_Intervals.least` goes through all ways to delay steps, for the least
peak of live bytes. That is exact for small instances; beyond `WORK` ways every step runs as early as it can (the paper's
rule: by depth). Where nothing runs in parallel, every step is an interval and barriers cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirage_cli.codegen.tiles.access import Touch

WORK = 2000  #: intervals that the search for the least memory looks at


@dataclass(frozen=True, slots=True)
class Step:
    """A step: the steps that it needs, what it touches in shared memory (before and behind the barrier that it holds, if
    it `synchronises`)."""

    needs: frozenset[int]
    before: Touch
    behind: Touch = (frozenset(), frozenset())
    synchronises: bool = False


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile's bytes, and as bit sets the steps that touch it; whether it holds something at the start and at the end."""

    size: int
    before: int
    behind: int
    start: bool
    end: bool


class _TooMuch(Exception):
    """The search for the least memory has gone through `WORK` intervals."""


def arrange(
    steps: Sequence[Step],
    sizes: Mapping[str, int],
    at_start: frozenset[str],
    at_end: frozenset[str],
    parallel: bool = True,
) -> list[int | None]:
    """The steps by number, in their best order; None stands for a barrier. `sizes` are the bytes of the tiles in question,
    of which some hold something `at_start` and must keep it to the end (`at_end`). The given order must be possible."""
    tiles = []
    for b, size in sizes.items():
        before = sum(1 << k for k, s in enumerate(steps) if b in s.before[0] | s.before[1])
        behind = sum(1 << k for k, s in enumerate(steps) if b in s.behind[0] | s.behind[1])
        tiles.append(_Tile(size, before, behind, b in at_start, b in at_end))
    return (_Intervals if parallel else _OneByOne)(steps, tiles).order()


class _Search:
    """The common part of both kinds of search: states are bit sets of the steps that are done."""

    def __init__(self, steps: Sequence[Step], tiles: Sequence[_Tile]) -> None:
        self.steps, self.tiles = steps, tiles
        self.all = (1 << len(steps)) - 1
        self.needs = [sum(1 << j for j in s.needs) for s in steps]
        self.work = 0

    def live(self, done: int, now: int, opener: int) -> int:
        """Bytes that are alive while the steps `now` run, behind those `done`; the second half of one of these, `opener`
        (a bit, or 0), runs now as well."""
        total = 0
        for b in self.tiles:
            begun = b.start or b.before & (done | now) or b.behind & done
            if begun and (b.end or (b.before | b.behind) & ~done or b.behind & opener):
                total += b.size
        return total

    def spend(self) -> None:
        """Count an interval. Raises _TooMuch."""
        self.work += 1
        if self.work > WORK:
            raise _TooMuch


class _OneByOne(_Search):
    """Every step by itself: only live memory counts."""

    def order(self) -> list[int | None]:
        known: dict[int, tuple[int, int]] = {self.all: (0, 0)}
        try:
            self.least(0, known)
        except _TooMuch:
            return self.greedy()
        order: list[int | None] = []
        done = 0
        while done != self.all:
            order.append(known[done][1])
            done |= 1 << known[done][1]
        return order

    def ready(self, done: int) -> Iterator[int]:
        return (k for k in range(len(self.steps)) if not done >> k & 1 and not self.needs[k] & ~done)

    def least(self, done: int, known: dict[int, tuple[int, int]]) -> int:
        """The least peak from a state on; `known` holds it with the next step."""
        if done not in known:
            peaks = []
            for k in self.ready(done):
                self.spend()
                peaks.append((max(self.live(done, 1 << k, 0), self.least(done | 1 << k, known)), k))
            known[done] = min(peaks)
        return known[done][0]

    def greedy(self) -> list[int | None]:
        """Always the step that leaves the least alive."""
        order: list[int | None] = []
        done = 0
        while done != self.all:
            k = min(self.ready(done), key=lambda k: (self.live(done | 1 << k, 0, 0), self.live(done, 1 << k, 0), k))
            order.append(k)
            done |= 1 << k
        return order


@dataclass(frozen=True, slots=True)
class _Interval:
    """Steps that run together, the step that ends the interval with a barrier of its own (a bit, or 0)."""

    steps: int
    closer: int


class _Intervals(_Search):
    """Steps between barriers. A state is what is done, and the step whose second half opens the interval (a bit, or 0)."""

    def __init__(self, steps: Sequence[Step], tiles: Sequence[_Tile]) -> None:
        super().__init__(steps, tiles)
        self.clash = [self._clashing(s.before) for s in steps]
        self.clash_behind = [self._clashing(s.behind) for s in steps]
        self.sync = sum(1 << k for k, s in enumerate(steps) if s.synchronises)
        self.barriers: dict[tuple[int, int], int] = {}
        self.peaks: dict[tuple[int, int], tuple[int, _Interval]] = {}

    def _clashing(self, touch: Touch) -> int:
        reads, writes = touch
        return sum(
            1 << k for k, s in enumerate(self.steps) if writes & (s.before[0] | s.before[1]) or reads & s.before[1]
        )

    def order(self) -> list[int | None]:
        try:
            self.least(0, 0)
        except _TooMuch:
            self.peaks.clear()
        order: list[int | None] = []
        done, opener = 0, 0
        while True:
            interval = self.peaks[done, opener][1] if (done, opener) in self.peaks else self.earliest(done, opener)
            order += [k for k in range(len(self.steps)) if interval.steps >> k & 1]
            done |= interval.steps | interval.closer
            opener = interval.closer
            if opener:
                order.append(opener.bit_length() - 1)
            if done == self.all:
                return order
            if not opener:
                order.append(None)

    # --- barriers -----------------------------------------------------------------------------------------------------
    def together(self, done: int, opener: int) -> int:
        """All steps that can run in the interval behind a state."""
        taken = 0
        barred = self.clash_behind[opener.bit_length() - 1] if opener else 0
        for k in range(len(self.steps)):
            bit = 1 << k
            if (done | self.sync | barred) & bit or self.needs[k] & ~(done | taken) or self.clash[k] & taken:
                continue
            taken |= bit
        return taken

    def closers(self, done: int, taken: int, opener: int) -> Iterator[int]:
        """The steps that can end an interval of steps `taken` with a barrier of their own."""
        barred = self.clash_behind[opener.bit_length() - 1] if opener else 0
        for k in range(len(self.steps)):
            bit = 1 << k
            if self.sync & ~done & ~barred & bit and not self.needs[k] & ~(done | taken) and not self.clash[k] & taken:
                yield bit

    def fewest(self, done: int, opener: int) -> int:
        """The fewest barriers from a state on."""
        if (done, opener) not in self.barriers:
            taken = self.together(done, opener)
            after = done | taken
            counts = [self.fewest(after | c, c) for c in self.closers(done, taken, opener)]
            if after == self.all:
                counts.append(0)
            elif taken or opener:
                counts.append(1 + self.fewest(after, 0))
            self.barriers[done, opener] = min(counts)
        return self.barriers[done, opener]

    def earliest(self, done: int, opener: int) -> _Interval:
        """The interval with every step that can be in it, on a way with the fewest barriers."""
        taken = self.together(done, opener)
        after, wanted = done | taken, self.fewest(done, opener)
        closers = [c for c in self.closers(done, taken, opener) if self.fewest(after | c, c) == wanted]
        return _Interval(taken, 0 if after == self.all or not closers else closers[0])

    # --- memory -------------------------------------------------------------------------------------------------------
    def least(self, done: int, opener: int) -> int:
        """The least peak of live bytes from a state on, with the fewest barriers; `peaks` holds it with its interval."""
        if (done, opener) not in self.peaks:
            wanted = self.fewest(done, opener)
            best: tuple[int, _Interval] | None = None
            for taken in self.parts(done, self.together(done, opener)):
                after = done | taken
                for closer in (0, *self.closers(done, taken, opener)):
                    if not taken and not closer and not opener and after != self.all:
                        continue
                    self.spend()
                    end = (after | closer) == self.all
                    if not end and (0 if closer else 1) + self.fewest(after | closer, closer) != wanted:
                        continue
                    peak = self.live(done, taken | closer, opener)
                    if closer or not end:
                        peak = max(peak, self.least(after | closer, closer))
                    if best is None or peak < best[0]:
                        best = (peak, _Interval(taken, closer))
            assert best is not None
            self.peaks[done, opener] = best
        return self.peaks[done, opener][0]

    def parts(self, done: int, most: int, at: int = 0, taken: int = 0) -> Iterator[int]:
        """All choices among the steps `most` that hold what their steps need, larger ones first."""
        if at == len(self.steps):
            yield taken
            return
        if most >> at & 1 and not self.needs[at] & ~(done | taken):
            yield from self.parts(done, most, at + 1, taken | 1 << at)
        yield from self.parts(done, most, at + 1, taken)
