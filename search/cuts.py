"""Which values to store between kernels: branch and bound over the cuts of a program.

A cut is worth the sum of its parts' scores, or of lower bounds where parts are not searched yet. Cuts that cannot be better
than the best so far are dropped. Of the others the next one to be searched is the one that may be best, where large parts
count against it: small ones are searched fast and come in other cuts too.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from mirage_cli.lax.ir.program import Program
from mirage_cli.search.finish.kernels import Cuts, Part, cut_values, grouped

MAX_STORED = 4  #: values that are stored between kernels
MAX_SETS = 3000  #: sets of such values, smallest first
MAX_SHARED = 5  #: outputs of a program up to which kernels may share them out
KEPT = 4  #: cuts that are handed on, the best ones
HOPEFUL = 2.0  #: times as fast as the best so far a cut that waits has to be at best for the search to go on longer
PROMISING = 0.96  #: a cut is searched where its lower bound is below this share of the best so far
Cut: TypeAlias = list[Part]
Scores: TypeAlias = Mapping[int, float]  #: the best score of a part for each number of kernels


def all_cuts(program: Program, max_kernels: int, over: Callable[[], bool] = lambda: False) -> list[Cut]:
    """A program cut at stored values, and between its outputs; equal parts are identical. No more are made, those with few
    stored values first, once the time is `over`."""
    cuts, values = Cuts(program), cut_values(program)
    shares = partitions(len(program.outputs), max_kernels)
    groups: dict[tuple[tuple[str, ...], ...], None] = {}
    for stored in stored_sets(values):
        groups |= dict.fromkeys([tuple((v,) for v in stored), grouped(program, stored)])
    chosen = [(g, s) for g in groups for s in shares if 1 < len(g) + len(s) <= max_kernels]
    return [cuts.parts(g, s) for g, s in itertools.takewhile(lambda _: not over(), chosen)]


def stored_sets(values: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The sets of values that may be stored, smallest first, each in the order of `values`."""
    sets = itertools.chain.from_iterable(itertools.combinations(values, n) for n in range(MAX_STORED + 1))
    return itertools.islice(sets, MAX_SETS)


def partitions(count: int, most: int) -> list[list[list[int]]]:
    """Ways to share `count` outputs out to kernels: all of them for a few outputs; for many all together only."""
    ways: list[list[list[int]]] = [[[0]]]
    for k in range(1, count):
        if count > MAX_SHARED:
            return [[[*range(count)]]]
        ways = [[*p[:i], [*(p[i] if i < len(p) else []), k], *p[i + 1 :]] for p in ways for i in range(len(p) + 1)]
    return [p for p in ways if len(p) <= most]


class Branches:
    """The cuts of one program. `bound` is a lower bound of a part's score, `scores` searches parts; neither goes on beyond the
    moment `until` of the clock `time.monotonic`."""

    def __init__(
        self,
        program: Program,
        max_kernels: int,
        bound: Callable[[Program], float],
        scores: Callable[[Sequence[Program]], Sequence[Scores]],
        until: float = math.inf,
    ) -> None:
        self.max_kernels, self.scores, self.until = max_kernels, scores, until
        half = (time.monotonic() + until) / 2  # what is left is for searching
        self.cuts = all_cuts(program, max_kernels, lambda: time.monotonic() > half)
        parts = {id(part): part[0] for cut in self.cuts for part in cut}
        self._bounds = {k: bound(part) for k, part in parts.items()}
        self._sizes = {k: sum(bool(n.over) for n in part.nodes) for k, part in parts.items()}
        self._known: dict[int, Scores] = {}

    def run(self, best: float, spent: Callable[[float], bool]) -> list[Cut]:
        """The best cuts, of those that are better than `best`. No more parts are searched once `spent`, which is told how
        many times as fast as the best way to compute the program a cut that waits may be, or once the time is over."""
        pending, done = [*range(len(self.cuts))], list[tuple[float, int]]()
        while True:
            waiting: list[tuple[float, int, float]] = []
            for k in pending:
                worth, size = self._worth(self.cuts[k])
                if size == 0 and worth < best:
                    best = worth
                    done.append((worth, k))
                elif size > 0 and worth < PROMISING * best:
                    waiting.append((worth * (2 + size), k, worth))
            if not waiting or spent(best / min(worth for *_, worth in waiting)) or time.monotonic() > self.until:
                return [self.cuts[k] for _, k in sorted(done)[:KEPT]]
            new = {id(part): part[0] for part in self.cuts[min(waiting)[1]] if id(part) not in self._known}
            self._known |= zip(new, self.scores([*new.values()]), strict=True)
            pending = [k for _, k, _ in waiting]

    def _worth(self, cut: Cut) -> tuple[float, int]:
        """(the score of a cut as far as it is known, how large the largest part is that is not)."""
        least, size = {0: 0.0}, 0  # by the number of kernels
        for part in cut:
            scores = self._known.get(id(part))
            if scores is None:
                scores = {1: self._bounds[id(part)]}
                size = max(size, self._sizes[id(part)], 1)
            sums = [(k + n, x + s) for k, x in least.items() for n, s in scores.items() if k + n <= self.max_kernels]
            least = {k: min(s for n, s in sums if n == k) for k, _ in sums}
        return min(least.values(), default=math.inf), size
