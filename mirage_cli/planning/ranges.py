"""The sizes that a program with symbols meets, and which muGraph is taken for which of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from mirage_cli.frontends import sizes as polynomials
from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir.program import Program
from mirage_cli.options.dims import Range
from mirage_cli.report.stored_plan import StoredPlan
from mirage_cli.search.schedules.alternatives import Alternative, Leaf, Sizes, divided, rows_behind_caches
from mirage_cli.search.schedules.cost import TYPICAL, floor_us
from mirage_cli.search.schedules.original import original_us
from mirage_cli.search.schedules.ranking import Models, rescheduled, times_us, total_us
from mirage_cli.search.schedules.target import Target
from mirage_cli.search.search import FAR_FROM_FLOOR, Candidate, Searcher
from mirage_cli.search.ways import Way

#: what symbols are taken to be where nothing is said of them
BATCH, OTHER = Range(1, 1, 64, said=False), Range(1, TYPICAL, 32768, said=False)
NEW = replace(OTHER, step=1)  #: positions behind a cache: a prompt's and a step's
BATCHES = ("b", "bs", "bsz")  #: how people call a batch in short
#: what stands in names of dimensions that are no batch
LENGTHS = ("seq", "len", "tok", "time", "frame", "pos", "past", "cache", "height", "width", "num", "patch", "row")
MOST = {True: 6, False: 3}  #: muGraphs of a fragment, where kernels are blocks of threads, and where not
MOST_BEHIND = 9  #: the same behind caches: one row and several, short caches and long ones, few sequences and many
LEAST_US = {True: 0.5, False: 10.0}  #: that a further one has to save
MOST_POINTS = 160  #: sizes at which candidates are compared
FURTHER, FAR = 4, 1.5  #: further sizes that are searched, and times the least time from which on they are worth it
NEAR = 4  #: times a size below which another one is near
OFTEN = 8  #: of so many sizes one counts as often as all of them besides
RESCHEDULED = 16  #: sizes for which the schedules of a muGraph are chosen again
TRIED = 12  #: candidates of the search at one size that are rendered until one can be


def range_of(name: str, given: Mapping[str, Range]) -> Range:
    """The range that a symbol of a model's inputs is said, or else taken, to have."""
    return given.get(name, BATCH if is_batch(name) else OTHER)


def is_batch(name: str) -> bool:
    """True for a name that people give to a batch."""
    return "batch" in name.lower() or name.lower() in BATCHES


def batches(inputs: Iterable[tuple[Sequence[ex.Extent], bool]]) -> set[str]:
    """The symbols that are taken for a batch by where they stand in the shapes of a model's inputs (with True for integers),
    none of whose symbols is named so: first wherever they stand, not named for what is counted, and in front of another
    symbol, of two dimensions or of integers."""
    shapes = [([set(ex.names(d)) for d in dims], integers) for dims, integers in inputs if dims]
    first = {n for (d, *rest), integers in shapes if rest and (integers or rest[1:] or rest[0]) for n in d}
    behind = {n for own, _ in shapes for d in own[1:] for n in d}
    if any(map(is_batch, behind.union(*(own[0] for own, _ in shapes)))):
        return set()
    return {n for n in first - behind if not any(word in n.lower() for word in LENGTHS)}


def new_positions(inputs: Iterable[Sequence[ex.Extent]], outputs: Iterable[Sequence[ex.Extent]]) -> set[str]:
    """The symbols that caches grow by: an output has the shape of an input, but for one dimension with this one added."""
    caches = {tuple(dims) for dims in inputs}
    sums = [(dims, k, polynomials.from_extent(d)) for dims in outputs for k, d in enumerate(dims)]
    added = (
        total - polynomials.named(past)
        for dims, k, total in sums
        for past in polynomials.names(total)
        if (*dims[:k], ex.symbol(past), *dims[k + 1 :]) in caches
    )
    return {n for size in added for n in polynomials.names(size) if size == polynomials.named(n)}


def bases(symbols: Iterable[str]) -> list[str]:
    """The symbols that others, such as `(past+1)`, are made of."""
    return sorted({n for s in symbols for n in polynomials.names(polynomials.from_extent(ex.symbol(s)))})


def resolved(symbols: Iterable[str], numbers: Mapping[str, int]) -> dict[str, int]:
    """The sizes of symbols where those that they are made of are `numbers`; at least 0."""
    sizes = {}
    for s in symbols:
        n = polynomials.substitute(polynomials.from_extent(ex.symbol(s)), numbers)
        sizes[s] = max(0, n) if isinstance(n, int) else TYPICAL
    return sizes


def typical(symbols: Iterable[str], given: Mapping[str, Range]) -> dict[str, int]:
    """The typical sizes of symbols."""
    names = list(symbols)
    return resolved(names, {n: range_of(n, given).typical for n in bases(names)})


def least(symbols: Iterable[str], given: Mapping[str, Range]) -> dict[str, int]:
    """The least sizes of symbols at which there is something to do."""
    names = list(symbols)
    return dict(_positive(names, {n: range_of(n, given).low for n in bases(names)}))


def step(symbols: Iterable[str], given: Mapping[str, Range]) -> Sizes:
    """Sizes of a step of a decoder: typical caches, which are part of sums with new positions, and the least of all else."""
    names = list(symbols)
    own = {n: range_of(n, given) for n in bases(names)}
    return _positive(names, {n: r.low if n in names else r.typical for n, r in own.items()})


def points(symbols: Sequence[str], given: Mapping[str, Range]) -> list[Sizes]:
    """Sizes all over the ranges of symbols, denser where there are few: powers of two, the ends, what is typical. The first
    one is the typical one."""
    names = bases(symbols)
    ranges = [range_of(n, given) for n in names]
    for step in itertools.count(1):
        grids = [_grid(r, step) for r in ranges]
        if np.prod([len(g) for g in grids]) <= MOST_POINTS or all(len(g) <= 3 for g in grids):
            break
    chosen = [tuple(r.typical for r in ranges), *itertools.product(*grids)]
    return [_positive(symbols, dict(zip(names, p, strict=True))) for p in dict.fromkeys(chosen)]


def asked(symbols: Sequence[str], given: Mapping[str, Range]) -> list[Sizes]:
    """Sizes all over the ranges that are said; symbols of which nothing is said have typical sizes and those of steps."""
    taken = {n: (r.typical, r.step or r.typical) for n in bases(symbols) if not (r := range_of(n, given)).said}
    choices = [[(n, Range(k, k, k)) for k in dict.fromkeys(sizes)] for n, sizes in taken.items()]
    return [p for own in itertools.product(*choices) for p in points(symbols, {**given, **dict(own)})]


def is_said(symbols: Iterable[str], given: Mapping[str, Range]) -> bool:
    """True if the range of one of the symbols is said."""
    return any(range_of(n, given).said for n in bases(symbols))


def quantised(program: Program) -> bool:
    """True if a program has weights of 8 bits or fewer."""
    return any(s.constant and s.dtype.bits <= 8 and s.dtype.kind != "bool" for s in program.sources)


def _positive(symbols: Sequence[str], numbers: Mapping[str, int]) -> Sizes:
    """Sizes for which a model has times: nothing is empty."""
    return {s: max(1, n) for s, n in resolved(symbols, numbers).items()}


def _grid(r: Range, step: int) -> list[int]:
    powers = {1 << k for k in range(0, r.high.bit_length(), step)}
    return sorted({r.low, r.typical, r.high} | {p for p in powers if r.low < p < r.high})


def searched_points(symbols: Sequence[str], given: Mapping[str, Range]) -> list[Sizes]:
    """The few sizes for which candidates are searched: all at their ends, and each by itself from end to end."""
    names = bases(symbols)
    ranges = {n: range_of(n, given) for n in names}
    usual = {n: r.typical for n, r in ranges.items()}
    choices = [usual, {n: r.low for n, r in ranges.items()}, {n: r.high for n, r in ranges.items()}]
    for n, r in ranges.items():
        middles = (round((r.low * r.typical) ** 0.5), round((r.typical * r.high) ** 0.5))
        choices += [usual | {n: k} for k in (r.low, r.high, *(middles if len(names) == 1 else ()))]
    unique = {tuple(sorted(p.items())): p for p in choices}
    return [_positive(symbols, p) for p in unique.values()]


def pool(
    program: Program,
    target: Target,
    searcher: Searcher,
    given: Mapping[str, Range],
    own: Candidate,
    fits: Callable[[Candidate], bool],
) -> tuple[list[Candidate], list[list[float]]]:
    """Candidates that may be taken for some sizes, with their times at all `points`: the one that serves all of them, and the
    best at single ones that fits. These are the ends and, on GPUs, those where the candidates so far leave most to gain, of
    sizes that none searched is near to; then the best muGraph of each of the others with schedules for it."""
    known: dict[tuple[object, ...], bool] = {(own.graph, own.schedules): True}
    candidates, grid = [own], points(program.symbols, given)

    def search(at: Sizes) -> None:
        for c in searcher.at(at).search(program, target).candidates[:TRIED]:
            if taken(c):
                break

    def taken(c: Candidate) -> bool:
        key = (c.graph, c.schedules)
        if key not in known:
            known[key] = fits(c)
            candidates.extend([c] if known[key] else [])
        return known[key]

    searched = searched_points(program.symbols, given)
    for at in searched:
        search(at)
    found = times(candidates, target, grid, searcher.models)
    least = [FAR_FROM_FLOOR * target.launch_us + floor_us(program, target, at) for at in grid]
    for _ in range(FURTHER if target.threaded else 0):
        left = [k for k, at in enumerate(grid) if not any(_near(at, other) for other in searched)]
        gains = {k: min(own[k] for own in found) / least[k] for k in left}
        k = max(left, key=lambda k: gains[k], default=-1)
        if k < 0 or gains[k] < FAR:
            break
        searched.append(grid[k])
        search(grid[k])
        found += times(candidates[len(found) :], target, grid, searcher.models)
    for k in _to_reschedule(program, grid, found, least):
        best = candidates[min(range(len(found)), key=lambda c: found[c][k])]
        schedules = rescheduled(best.graph, target, grid[k], searcher.options.engines, searcher.models)
        if schedules:
            taken(replace(best, schedules=schedules))
    found += times(candidates[len(found) :], target, grid, searcher.models)
    return candidates, found


def _to_reschedule(
    program: Program, grid: Sequence[Sizes], times: Sequence[Sequence[float]], least: Sequence[float]
) -> list[int]:
    """The sizes (by number) at which other schedules may gain something: those furthest from the floor, each extent once."""
    order = sorted(range(len(grid)), key=lambda k: -min(own[k] for own in times) / least[k])
    alike: dict[tuple[int, ...], int] = {}
    for k in order:
        alike.setdefault(tuple(ex.value(a.extent, grid[k]) for a in program.axes), k)
    return [*alike.values()][:RESCHEDULED]


def _near(one: Sizes, two: Sizes) -> bool:
    """True if sizes differ little, each from each."""
    return all(n < NEAR * two[s] and two[s] < NEAR * n for s, n in one.items())


def leaves(
    program: Program,
    times: Sequence[Sequence[float]],
    target: Target,
    at: Sequence[Sizes],
    given: Mapping[str, Range] = MappingProxyType({}),
) -> list[Leaf]:
    """Which candidate is taken for which sizes, by the time of each at `points`; the typical ones come last. Behind caches, on
    GPUs, single rows are told apart, and typical sizes and those of a typical step count more than all others near them."""
    apart, counted = rows_behind_caches(program) if target.threaded else [], [*range(len(at))]
    if apart:
        own = (at[0], step(program.symbols, given))
        counted += [k for k, sizes in enumerate(at) if sizes in own] * (len(at) // OFTEN)
    found = np.array(times)[:, counted]
    sizes = [at[k] for k in counted]
    most = MOST_BEHIND if apart else MOST[target.threaded]
    return divided(program, sizes, found, most, 0, LEAST_US[target.threaded], apart, target.threaded)


def times(
    candidates: Sequence[Candidate], target: Target, at: Sequence[Sizes], models: Models | None = None
) -> list[list[float]]:
    """The `time` of each candidate at these sizes."""
    models = models or Models()
    return [times_us(c.graph, c.schedules, target, at, models) for c in candidates]


def time(way: Way, target: Target, sizes: Sizes) -> float:
    """The model's prediction for a muGraph with its schedules at these sizes, in microseconds."""
    return total_us(way.graph, way.schedules, target, sizes)


def stored_time(plan: StoredPlan, kind: str, target: Target, sizes: Sizes) -> float:
    """The same for the muGraph that a plan's kernels of a kind of target take at these sizes."""
    return time(_taken(plan.own(kind), plan.others[kind], sizes), target, sizes)


def _taken(own: Way, others: Iterable[Alternative], sizes: Sizes) -> Way:
    """The muGraph that is taken at some sizes."""
    return next((o for o in others if not o.target and o.holds(sizes)), own)


def compared(
    own: Way, others: Sequence[Alternative], program: Program, target: Target, operators: int, at: Sequence[Sizes]
) -> list[tuple[float, float]]:
    """What a plan, its own muGraph and `others`, and so many original operators are predicted to take at some sizes, in
    microseconds."""
    models, found = Models(), []
    for numbers in at:
        sizes = _positive(program.symbols, numbers)
        way = _taken(own, others, sizes)
        us = total_us(way.graph, way.schedules, target, sizes, models)
        found.append((us, original_us(program, operators, target, sizes)))
    return found


def gained(
    own: Way,
    others: Sequence[Alternative],
    program: Program,
    target: Target,
    operators: int,
    typical: Sizes,
    given: Mapping[str, Range] | None,
) -> tuple[float, float, float]:
    """(what a plan and the original operators take at typical sizes, in microseconds; how many times as fast it is there, or
    in the mean over sizes that are `given`)."""
    at = [typical, *(asked(program.symbols, given) if given is not None else ())]
    (us, theirs), *rest = compared(own, others, program, target, operators, at)
    ratios = [original / ours for ours, original in rest or [(us, theirs)]]
    return us, theirs, math.prod(ratios) ** (1 / len(ratios))
