"""Several muGraphs for one program, each for a range of its sizes.

A program with symbols meets few rows and many, short sums and long ones; what is best for some is slow for others.
`divided` shares the sizes out to candidates by their predicted times: a decision tree over the extents of the program's
axes, grown one cut at a time as long as a cut pays. Every alternative is right at all sizes; ranges are about time only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.documents import graph_from_json, graph_to_json
from mirage_cli.search.mugraph.hidden import masked_sums
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.schedules.schedule import Schedule, schedule_from_json

WORTH = math.log(1.15)  #: how much faster (geometric mean) sizes have to become for a muGraph of their own
Sizes = Mapping[str, int]  #: what each symbol is


@dataclass(frozen=True, slots=True)
class Bound:
    """An extent is at least `least`, and at most `most` where that is not None."""

    extent: Symbolic
    least: int
    most: int | None

    def holds(self, sizes: Sizes) -> bool:
        """True if sizes keep to it."""
        n = ex.value(self.extent, sizes)
        return n >= self.least and (self.most is None or n <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"{self.extent} >= {self.least}"
        return f"{self.extent} <= {self.most}" if not self.least else f"{self.least} <= {self.extent} <= {self.most}"


@dataclass(frozen=True, slots=True)
class Alternative:
    """A muGraph with its schedules, taken where all bounds hold; with a `target` (such as sm_80) only on devices of that
    architecture, and made for it."""

    when: tuple[Bound, ...]
    graph: KernelGraph
    schedules: tuple[Schedule, ...]
    target: str = ""

    def holds(self, sizes: Sizes) -> bool:
        """True if it is taken at these sizes (on its target)."""
        return all(b.holds(sizes) for b in self.when)

    @property
    def condition(self) -> str:
        """Target and bounds as readable text."""
        return " and ".join([*([f"the GPU is {self.target}"] if self.target else []), *map(str, self.when)])

    def where_to_json(self) -> dict[str, Any]:
        """When it is taken, as members of a JSON document."""
        return {"when": bounds_to_json(self.when)} | ({"target": self.target} if self.target else {})

    def to_json(self) -> dict[str, Any]:
        """A JSON document that `alternative_from_json` reads back."""
        return {
            "graph": graph_to_json(self.graph),
            "schedules": [s.to_json() for s in self.schedules],
            "text": self.graph.text().splitlines(),
        } | self.where_to_json()


def bounds_to_json(bounds: Sequence[Bound]) -> dict[str, list[int | None]]:
    """For each extent the least and the greatest value (null: no limit)."""
    return {str(b.extent): [b.least, b.most] for b in bounds}


def alternative_from_json(data: Mapping[str, Any], symbols: Sequence[str]) -> Alternative:
    """The inverse of `Alternative.to_json`, for a program with these symbols. Raises KeyError, TypeError or ValueError
    where it is not well-formed."""
    bounds = []
    for text, (least, most) in data["when"].items():
        extent = ex.from_json(text)
        if not isinstance(extent, Symbolic) or not set(extent.names) <= set(symbols):
            raise ValueError(f"{text} is no extent with symbols of the program")
        bounds.append(Bound(extent, int(least), None if most is None else int(most)))
    schedules = tuple(schedule_from_json(s) for s in data["schedules"])
    return Alternative(tuple(bounds), graph_from_json(data["graph"]), schedules, str(data.get("target", "")))


# --- sharing out ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Leaf:
    """The sizes (by number) that keep to bounds, and the candidate for them."""

    when: tuple[Bound, ...]
    points: tuple[int, ...]
    candidate: int


def quantities(program: Program) -> list[Symbolic]:
    """Quantities that ranges may be told apart by: the extents of axes that are not numbers."""
    extents: dict[Extent, None] = dict.fromkeys(a.extent for a in program.axes)
    return [e for e in extents if isinstance(e, Symbolic)]


def rows_behind_caches(program: Program) -> list[Symbolic]:
    """The extents of axes whose positions count on from an integer that is an input, such as how much of a cache is filled:
    a mask shows what is summed over up to there. Most runs have a single one."""
    forms = [(axis, f) for axis, hidden in masked_sums(program).items() for f in hidden if f.given and f.of(axis) < 0]
    found = dict.fromkeys(program.extent(a) for _, f in forms for a, n in f.terms if n > 0)
    return [e for e in found if isinstance(e, Symbolic)]


def divided(
    program: Program,
    points: Sequence[Sizes],
    times: NDArray[np.float64],
    most: int,
    typical: int,
    least: float = 0.0,
    apart: Sequence[Symbolic] = (),
    single: bool = False,
) -> list[Leaf]:
    """Share the sizes `points` out to at most `most` candidates; `times[c, k]` is what candidate c takes at point k. The
    last leaf is the one with point number `typical`. A candidate with two ranges has two leaves. A cut has to make the sizes
    that change faster by the factor of `WORTH` and by the time `least`, on average. Where extents are to be 1 `apart`, those
    sizes have leaves of their own; a `single` position of an extent, as
    a decoder's step has, may have one more beside those, where that pays for it alone."""
    leaves = [Leaf((), tuple(range(len(points))), _best(times, range(len(points))))]
    values = {q: [ex.value(q, p) for p in points] for q in quantities(program)}
    for q in apart:
        leaves = [part for leaf in leaves for part in _parts(leaf, q, values[q], 1, times) if part.points]
    while len(leaves) < most:
        cuts = [c for leaf in leaves for q, v in values.items() for c in _cuts(leaf, q, v, times, least)]
        if not cuts:
            break
        _, leaf, parts = max(cuts, key=lambda c: c[0])
        at = leaves.index(leaf)
        leaves = _joined([*leaves[:at], *parts, *leaves[at + 1 :]])
    for q in [q for q, v in values.items() if v[typical] > 1] if single and not apart else ():
        own = [(leaf, _cuts(leaf, q, values[q], times, least, most=1)) for leaf in leaves]
        leaves = [part for leaf, cuts in own for part in (cuts[0][2] if cuts else [leaf])]
    return sorted(leaves, key=lambda leaf: typical in leaf.points)


def _best(times: NDArray[np.float64], points: Sequence[int] | range) -> int:
    return int(np.argmin(np.log(times[:, list(points)]).sum(axis=1)))


def _cuts(
    leaf: Leaf,
    extent: Symbolic,
    values: Sequence[int],
    times: NDArray[np.float64],
    least: float,
    most: float = math.inf,
) -> list[tuple[float, Leaf, list[Leaf]]]:
    """The cuts of a leaf along an extent, at `most` behind a number, that pay, with what each gains."""
    cuts = []
    for low, _ in itertools.pairwise(sorted({values[k] for k in leaf.points})):
        if low > most:
            break
        below, above = parts = _parts(leaf, extent, values, low, times)
        changed = [(k, part.candidate) for part in parts for k in part.points if part.candidate != leaf.candidate]
        old = np.array([times[leaf.candidate, k] for k, _ in changed])
        new = np.array([times[c, k] for k, c in changed])
        gain = float((np.log(old) - np.log(new)).sum())
        pays = gain >= WORTH * len(changed) and (old - new).sum() >= least * len(changed)
        if below.candidate != above.candidate and pays:
            cuts.append((gain, leaf, parts))
    return cuts


def _parts(leaf: Leaf, extent: Symbolic, values: Sequence[int], low: int, times: NDArray[np.float64]) -> list[Leaf]:
    """The two parts of a leaf where an extent is at most `low`, and where it is more."""
    bounds = (Bound(extent, 0, low), Bound(extent, low + 1, None))
    sides = [tuple(k for k in leaf.points if (values[k] <= low) == below) for below in (True, False)]
    return [
        Leaf(_narrowed(leaf.when, b), side, _best(times, side) if side else leaf.candidate)
        for b, side in zip(bounds, sides, strict=True)
    ]


def _joined(leaves: Sequence[Leaf]) -> list[Leaf]:
    """Leaves with neighbouring ranges and one candidate made one."""
    joined: list[Leaf] = []
    for leaf in leaves:
        both = [_together(other, leaf) or _together(leaf, other) for other in joined]
        at = next((k for k, when in enumerate(both) if when is not None), None)
        if at is None:
            joined.append(leaf)
        else:
            joined[at] = Leaf(both[at] or (), (*joined[at].points, *leaf.points), leaf.candidate)
    return joined


def _together(low: Leaf, high: Leaf) -> tuple[Bound, ...] | None:
    """The bounds of two leaves of one candidate that differ only in an extent along which the second follows the first."""
    rest = set(low.when) ^ set(high.when)
    pairs = [(a, b) for a in low.when for b in high.when if {a, b} == rest and a.extent == b.extent]
    if low.candidate != high.candidate or len(pairs) != 1:
        return None
    (a, b) = pairs[0]
    if a.most is None or a.most + 1 != b.least:
        return None
    whole = Bound(a.extent, a.least, b.most)
    return tuple(whole if x == a else x for x in low.when if x != a or whole.least or whole.most is not None)


def _narrowed(bounds: tuple[Bound, ...], new: Bound) -> tuple[Bound, ...]:
    """Bounds with one more, which belongs inside of what there is for its extent."""
    old = next((b for b in bounds if b.extent == new.extent), None)
    if old is None:
        return (*bounds, new)
    most = old.most if new.most is None else new.most
    inside = Bound(new.extent, max(old.least, new.least), most)
    return tuple(inside if b is old else b for b in bounds)
