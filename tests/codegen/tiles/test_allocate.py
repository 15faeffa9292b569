"""The memory plan's allocation: against exhaustive search over offsets, its lower bound, and first fit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_cli.codegen.tiles.allocate import ORDERS, Block, allocate, first_fit, lower_bound

FIXED = settings(deadline=None, derandomize=True, max_examples=80, database=None)


def blocks(most: int, sizes: int, times: int) -> st.SearchStrategy[list[Block]]:
    """Up to `most` blocks."""
    span = st.tuples(st.integers(0, times), st.integers(0, times)).map(sorted)
    block = st.builds(lambda size, t: Block(size, t[0], t[1]), st.integers(1, sizes), span)
    return st.lists(block, min_size=1, max_size=most)


def least_total(instance: Sequence[Block]) -> int:
    """The least total, by trying all offsets."""

    def fits(total: int, offsets: list[int]) -> bool:
        k = len(offsets)
        if k == len(instance):
            return True
        for at in range(total - instance[k].size + 1):
            clear = all(
                not instance[j].meets(instance[k]) or o + instance[j].size <= at or at + instance[k].size <= o
                for j, o in enumerate(offsets)
            )
            if clear and fits(total, [*offsets, at]):
                return True
        return False

    at_once = max(sum(b.size for b in instance if b.first <= t <= b.last) for t in range(99))
    return next(t for t in itertools.count(at_once) if fits(t, []))


@FIXED
@given(blocks(6, 3, 6))
def test_small_instances_take_the_least_memory(instance: list[Block]) -> None:
    found = allocate(instance)
    assert found.exact
    assert found.total == least_total(instance)


def test_memory_that_first_fit_wastes() -> None:
    """Every order of first fit leaves a gap here; the exact search does not."""
    spans = ((2, 4, 4), (1, 4, 4), (2, 3, 3), (3, 1, 2), (2, 2, 3), (2, 3, 4), (1, 1, 3), (2, 4, 4))
    instance = [Block(*s) for s in spans]
    assert allocate(instance).total == lower_bound(instance) == 7
    assert min(first_fit(instance, key).total for key in ORDERS) == 8


@FIXED
@given(blocks(30, 40, 25))
def test_no_instance_takes_more_than_first_fit(instance: list[Block]) -> None:
    found = allocate(instance)
    assert lower_bound(instance) <= found.total <= first_fit(instance).total
    for k, b in enumerate(instance):
        assert 0 <= found.offsets[k] <= found.total - b.size
        for j in range(k):
            low, high = sorted((j, k), key=lambda i: found.offsets[i])
            apart = found.offsets[low] + instance[low].size <= found.offsets[high]
            assert apart or not instance[j].meets(b)
