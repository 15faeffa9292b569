"""Layered drawings of directed acyclic graphs: where boxes go and how lines run, without any drawing.

The method of Sugiyama, Tagawa and Toda: boxes get layers (bands keep theirs together), lines over several layers get
stand-ins in the layers between, orders within layers are improved by barycentres, positions by least squares with
minimum distances (pool adjacent violators). Everything is deterministic; lines meet no box but their own two.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

SWEEPS = 8  #: passes over the layers, for orders and for positions
PER_ROW = 4  #: boxes of a row up to which a box without predecessors joins it; it goes further up otherwise

ENTRANCE = 14.0  #: distance between two lines that end at one box


@dataclass(frozen=True, slots=True)
class Box:
    """A box to be placed. `ports` are the distances of its entrances from its left side, one for each line that ends at
    it in the order of the edges; without them the lines find their own. Boxes of a band stand together."""

    width: float
    height: float
    band: int = 0
    ports: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Gaps:
    """Distances: between boxes of a row, between rows, and the padding of a band above and below its rows."""

    across: float = 18.0
    down: float = 26.0
    band: float = 12.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Left upper corners of the boxes, points of the lines (through which a line runs vertically), the upper and lower
    side of each band, and the size of the whole."""

    corners: tuple[tuple[float, float], ...]
    lines: tuple[tuple[tuple[float, float], ...], ...]
    bands: tuple[tuple[float, float], ...]
    width: float
    height: float


@dataclass(slots=True)
class _Slot:
    """A box or the stand-in of a line in one layer: its centre is `x`."""

    layer: int
    width: float
    box: int | None = None
    x: float = 0.0
    rank: int = 0
    above: list[tuple[int, float]] = field(default_factory=list)  #: slots above, with the entrance's offset from `x`
    below: list[tuple[int, float]] = field(default_factory=list)  #: slots below, with their entrance's offset


def layered(boxes: Sequence[Box], edges: Sequence[tuple[int, int]], gaps: Gaps = Gaps()) -> Layout:
    """Place boxes, which are in topological order and whose bands do not decrease along `edges` (source, target)."""
    layers = _layers(boxes, edges)
    slots = [_Slot(layers[k], b.width, k) for k, b in enumerate(boxes)]
    chains = [_chain(slots, boxes, edges, e) for e in range(len(edges))]
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for k, s in enumerate(slots):
        rows[s.layer].append(k)
    _order(rows, slots)
    _position(rows, slots, gaps.across)
    return _finish(boxes, edges, gaps, rows, slots, chains)


# --- layers -------------------------------------------------------------------------------------------------------------
def _layers(boxes: Sequence[Box], edges: Sequence[tuple[int, int]]) -> list[int]:
    """A layer for each box: behind its predecessors; boxes without any stand right above their first reader."""
    before: list[list[int]] = [[] for _ in boxes]
    after: list[list[int]] = [[] for _ in boxes]
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    level = [0] * len(boxes)
    for k, b in enumerate(boxes):
        level[k] = max((level[i] + 1 for i in before[k] if boxes[i].band == b.band), default=0)
    standing = Counter((b.band, level[k]) for k, b in enumerate(boxes) if before[k])
    for k, b in enumerate(boxes):
        if not before[k]:
            own = [level[t] for t in after[k] if boxes[t].band == b.band]
            lowest = max(v for v, o in zip(level, boxes, strict=True) if o.band == b.band)
            level[k] = min(own, default=lowest + 1) - 1
            while standing[b.band, level[k]] >= PER_ROW:
                level[k] -= 1
            standing[b.band, level[k]] += 1
    return _compressed([(b.band, v) for b, v in zip(boxes, level, strict=True)])


def _compressed(keys: Sequence[tuple[int, int]]) -> list[int]:
    number = {key: k for k, key in enumerate(sorted(set(keys)))}
    return [number[key] for key in keys]


def _chain(slots: list[_Slot], boxes: Sequence[Box], edges: Sequence[tuple[int, int]], e: int) -> list[int]:
    """The slots along an edge; stand-ins are made for the layers between."""
    source, target = edges[e]
    chain = [source]
    for layer in range(slots[source].layer + 1, slots[target].layer):
        slots.append(_Slot(layer, 2.0))
        chain.append(len(slots) - 1)
    chain.append(target)
    for upper, lower in pairwise(chain):
        ports = boxes[target].ports if lower == target else None
        number = sum(t == target for _, t in edges[:e])
        offset = ports[number] - boxes[target].width / 2 if ports else 0.0
        slots[lower].above.append((upper, offset))
        slots[upper].below.append((lower, offset))
    return chain


# --- order --------------------------------------------------------------------------------------------------------------
def _order(rows: list[list[int]], slots: list[_Slot]) -> None:
    """Reorder the rows so that few lines cross."""
    _rank(rows, slots)
    best, least = [list(r) for r in rows], _crossings(rows, slots)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            row.sort(key=lambda k: (_barycentre(k, slots, down), slots[k].rank))
            _rank([row], slots)
        crossings = _crossings(rows, slots)
        if crossings < least:
            best, least = [list(r) for r in rows], crossings
    rows[:] = best
    _rank(rows, slots)


def _rank(rows: Iterable[list[int]], slots: list[_Slot]) -> None:
    for row in rows:
        for k, s in enumerate(row):
            slots[s].rank = k


def _barycentre(k: int, slots: list[_Slot], down: bool) -> float:
    """Where a slot wants to stand among its neighbours above (or below); a box without any stays."""
    s = slots[k]
    near = s.above if down else s.below
    if not near:
        return float(s.rank)
    places = [slots[n].rank + (0.0 if down else offset / (slots[n].width + 1)) for n, offset in near]
    return math.fsum(places) / len(places)


def _crossings(rows: list[list[int]], slots: list[_Slot]) -> int:
    total = 0
    for row in rows:
        seen: list[tuple[int, float]] = []
        for k in row:
            ends = sorted((slots[n].rank, offset) for n, offset in slots[k].below)
            total += sum(len(seen) - bisect_left(seen, (rank, offset + 1e-9)) for rank, offset in ends)
            for end in ends:
                insort(seen, end)
    return total


# --- positions ----------------------------------------------------------------------------------------------------------
def _position(rows: list[list[int]], slots: list[_Slot], across: float) -> None:
    """Centres of the slots: near those they are connected with, in the order of their rows."""
    for row in rows:
        _place(row, slots, [0.0] * len(row), across)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            _place(row, slots, [_wish(k, slots, down, sweep < SWEEPS - 2) for k in row], across)


def _wish(k: int, slots: list[_Slot], down: bool, one_sided: bool) -> float:
    s = slots[k]
    up = [slots[n].x - offset for n, offset in s.above]
    low = [slots[n].x + offset for n, offset in s.below]
    near = ((up if down else low) or low or up) if one_sided else up + low
    return math.fsum(near) / len(near) if near else s.x


def _place(row: list[int], slots: list[_Slot], wishes: Sequence[float], across: float) -> None:
    """The positions of least squared distance to the wishes with the minimum distances between neighbours."""
    shift, shifts = 0.0, []
    for k, slot in enumerate(row):
        if k:
            thin = slots[slot].box is None and slots[row[k - 1]].box is None
            shift += (slots[slot].width + slots[row[k - 1]].width) / 2 + (across / 2 if thin else across)
        shifts.append(shift)
    weights = [4.0 if slots[slot].box is None else 1.0 for slot in row]
    places = _increasing([wish - moved for wish, moved in zip(wishes, shifts, strict=True)], weights)
    for slot, place, moved in zip(row, places, shifts, strict=True):
        slots[slot].x = place + moved


def _increasing(wishes: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The sequence that never decreases of least weighted squared distance to the wishes (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []  # sum of weighted wishes, weight, members
    for wish, weight in zip(wishes, weights, strict=True):
        pool = (wish * weight, weight, 1)
        while pools and pools[-1][0] / pools[-1][1] > pool[0] / pool[1]:
            last = pools.pop()
            pool = (last[0] + pool[0], last[1] + pool[1], last[2] + pool[2])
        pools.append(pool)
    return [total / weight for total, weight, members in pools for _ in range(members)]


# --- the result ---------------------------------------------------------------------------------------------------------
def _finish(
    boxes: Sequence[Box],
    edges: Sequence[tuple[int, int]],
    gaps: Gaps,
    rows: list[list[int]],
    slots: list[_Slot],
    chains: list[list[int]],
) -> Layout:
    left = min((s.x - s.width / 2 for s in slots), default=0.0)
    right = max((s.x + s.width / 2 for s in slots), default=0.0)
    for s in slots:
        s.x -= left
    entrances = _entrances(boxes, edges, slots, chains)
    tops, bottoms, bands, height = _rows(boxes, rows, slots, chains, entrances, gaps)
    corners = []
    for k, b in enumerate(boxes):
        middle = (tops[slots[k].layer] + bottoms[slots[k].layer]) / 2
        corners.append((slots[k].x - b.width / 2, middle - b.height / 2))
    lines = []
    for e, chain in enumerate(chains):
        source, target = edges[e]
        points = [(slots[source].x, corners[source][1] + boxes[source].height)]
        for k in chain:
            x = entrances[e] if k == target else slots[k].x
            sides = (tops[slots[k].layer], bottoms[slots[k].layer])
            points += [(x, y) for y in (sides[1:] if k == source else sides[:1] if k == target else sides)]
        lines.append((*points, (entrances[e], corners[target][1])))
    return Layout(tuple(corners), tuple(lines), tuple(bands), right - left, height)


def _entrances(
    boxes: Sequence[Box], edges: Sequence[tuple[int, int]], slots: list[_Slot], chains: list[list[int]]
) -> list[float]:
    """Where each line ends: at its port, or as near to where it comes from as the distances between lines allow."""
    places = [0.0] * len(edges)
    arriving: dict[int, list[int]] = {}
    for e, (_, target) in enumerate(edges):
        arriving.setdefault(target, []).append(e)
    for target, ends in arriving.items():
        b = boxes[target]
        left = slots[target].x - b.width / 2
        if b.ports is not None:
            for e, port in zip(ends, b.ports, strict=True):
                places[e] = left + port
            continue
        ends.sort(key=lambda e: (slots[chains[e][-2]].x, e))
        space = min(ENTRANCE, b.width / (len(ends) + 1))
        wishes = [slots[chains[e][-2]].x - left - k * space for k, e in enumerate(ends)]
        last = b.width - len(ends) * space
        for k, (e, place) in enumerate(zip(ends, _increasing(wishes, [1.0] * len(ends)), strict=True)):
            places[e] = left + min(max(place, space), last) + k * space
    return places


def _rows(
    boxes: Sequence[Box],
    rows: list[list[int]],
    slots: list[_Slot],
    chains: list[list[int]],
    entrances: list[float],
    gaps: Gaps,
) -> tuple[list[float], list[float], list[tuple[float, float]], float]:
    """Upper and lower sides of rows and bands; rows between which lines run far are further apart."""
    reach = [0.0] * len(rows)
    for e, chain in enumerate(chains):
        for upper, lower in pairwise(chain):
            end = entrances[e] if lower == chain[-1] else slots[lower].x
            reach[slots[lower].layer] = max(reach[slots[lower].layer], abs(end - slots[upper].x))
    band_of = [next(boxes[b].band for k in row if (b := slots[k].box) is not None) for row in rows]
    tops, bottoms, y = [], [], 0.0
    bands: list[tuple[float, float]] = []
    for k, row in enumerate(rows):
        distance = min(gaps.down * 2.5, gaps.down + reach[k] * 0.08) if k else 0.0
        if k == 0 or band_of[k] != band_of[k - 1]:
            if bands:
                bands[-1] = (bands[-1][0], y + gaps.band)
                y += gaps.band * 2
            bands.append((y, y))
            y += gaps.band
            distance = max(0.0, distance - 2 * gaps.band)
        y += distance
        tops.append(y)
        y += max(boxes[b].height for s in row if (b := slots[s].box) is not None)
        bottoms.append(y)
    if bands:
        y += gaps.band
        bands[-1] = (bands[-1][0], y)
    return tops, bottoms, bands, y
