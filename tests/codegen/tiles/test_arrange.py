"""Orders of steps: the fewest barriers and then the least live memory, against all orders with all choices of barriers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_cli.codegen.tiles import arrange as module
from mirage_cli.codegen.tiles.arrange import Step, arrange

FIXED = settings(deadline=None, derandomize=True, max_examples=60, database=None)
TILES = "abcd"
Instance = tuple[list[Step], dict[str, int], frozenset[str], frozenset[str]]


@st.composite
def instances(draw: st.DrawFn, most: int = 5) -> Instance:
    """Steps that touch a few tiles, some with a barrier inside; a step needs those before it that it conflicts with."""
    names = st.frozensets(st.sampled_from(TILES), max_size=2)
    steps: list[Step] = []
    for k in range(draw(st.integers(1, most))):
        synchronises = draw(st.integers(0, 3)) == 0
        before = (draw(names), draw(names))
        behind = (draw(names), draw(names)) if synchronises else (frozenset[str](), frozenset[str]())
        own = (before[0] | behind[0], before[1] | behind[1])
        needs = {j for j in range(k) if draw(st.integers(0, 5)) == 0}
        for j, s in enumerate(steps):
            reads, writes = s.before[0] | s.behind[0], s.before[1] | s.behind[1]
            if writes & (own[0] | own[1]) or reads & own[1]:
                needs.add(j)
        steps.append(Step(frozenset(needs), before, behind, synchronises))
    sizes = {b: draw(st.integers(1, 9)) for b in TILES}
    return steps, sizes, draw(names), draw(names)


def possible(steps: Sequence[Step]) -> Iterator[tuple[int, ...]]:
    """All orders that keep what steps need in front of them."""
    for order in itertools.permutations(range(len(steps))):
        if all(steps[k].needs <= set(order[:place]) for place, k in enumerate(order)):
            yield order


def cost(instance: Instance, order: Sequence[int | None]) -> tuple[int, int] | None:
    """(barriers, peak of live bytes) of an order; None when a barrier is missing."""
    steps, sizes, at_start, at_end = instance
    touched: list[list[tuple[frozenset[str], frozenset[str]]]] = [[]]
    for k in order:
        if k is None:
            touched.append([])
            continue
        touched[-1].append(steps[k].before)
        if steps[k].synchronises:
            touched.append([steps[k].behind])
    for interval in touched:
        for (r, w), (reads, writes) in itertools.combinations(interval, 2):
            if w & (reads | writes) or r & writes:
                return None
    peak = 0
    for now in range(len(touched)):
        live = 0
        for b, size in sizes.items():
            times = [t for t, interval in enumerate(touched) if any(b in r | w for r, w in interval)]
            if times:
                first, last = (0 if b in at_start else times[0]), (len(touched) if b in at_end else times[-1])
                live += size * (first <= now <= last)
        peak = max(peak, live)
    return sum(k is None for k in order), peak


@FIXED
@given(instances(4))
def test_no_order_has_fewer_barriers_or_less_memory(instance: Instance) -> None:
    steps = instance[0]
    found = arrange(*instance)
    numbers = tuple(k for k in found if k is not None)
    assert numbers in set(possible(steps))
    costs = []
    for order in possible(steps):
        for gaps in itertools.product((False, True), repeat=len(order) - 1):
            whole = [x for k, gap in zip(order, (*gaps, False), strict=True) for x in ((k, None) if gap else (k,))]
            costs.append(cost(instance, whole))
    assert cost(instance, found) == min(c for c in costs if c is not None)


@FIXED
@given(instances(5))
def test_one_by_one_takes_the_least_memory(instance: Instance) -> None:
    steps, sizes, at_start, at_end = instance
    plain = [Step(s.needs, (s.before[0] | s.behind[0], s.before[1] | s.behind[1])) for s in steps]

    def peak(order: Sequence[int]) -> int:
        alone: list[int | None] = [x for k in order for x in (None, k)]
        found = cost((plain, sizes, at_start, at_end), alone[1:])
        assert found is not None
        return found[1]

    found = arrange(plain, sizes, at_start, at_end, parallel=False)
    numbers = [k for k in found if k is not None]
    assert len(numbers) == len(found) and tuple(numbers) in set(possible(plain))
    assert peak(numbers) == min(peak(order) for order in possible(plain))


@pytest.mark.parametrize("parallel", [True, False])
@FIXED
@given(instances(5))
def test_beyond_its_work_the_search_still_gives_fewest_barriers(parallel: bool, instance: Instance) -> None:
    exact = arrange(*instance, parallel=parallel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WORK", 0)
        quick = arrange(*instance, parallel=parallel)
    assert tuple(k for k in quick if k is not None) in set(possible(instance[0]))
    if parallel:
        found, best = cost(instance, quick), cost(instance, exact)
        assert found is not None and best is not None and found[0] == best[0]
