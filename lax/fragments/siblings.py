"""Siblings: fragments that multiply one value by weights of their own, such as queries, keys and values of a row.

With few rows a product takes little longer than its launch, so several are one fragment: its kernels can be started
together. With many rows a product keeps a device busy by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from mirage_cli.lax import extents as ex
from mirage_cli.lax.fragments.facts import Facts
from mirage_cli.lax.ir import graph as g

MOST_ROWS = 8  #: of the value; known ones
MOST_RESULTS = 4  #: of a fragment


def siblings(facts: Facts, fragments: Iterable[tuple[int, tuple[int, ...], tuple[int, ...]]]) -> list[list[int]]:
    """Groups of fragments, by number, that are to be one; of each is given what it computes, reads, and its steps, in the
    order in which they are computed. None of a group needs what another one computes."""
    groups: dict[int, list[list[int]]] = {}
    ends: list[int] = []
    for n, (end, inputs, steps) in enumerate(fragments):
        ends.append(end)
        shared = _multiplied(facts, steps)
        if shared is None:
            continue
        for group in (own := groups.setdefault(shared, [])):
            if len(group) < MOST_RESULTS and not facts.reaches(inputs, {ends[m] for m in group}):
                group.append(n)
                break
        else:
            own.append([n])
    return [group for own in groups.values() for group in own if len(group) > 1]


def few_rows(facts: Facts, product: int) -> bool:
    """True if a product multiplies a value of few rows by weights."""
    step = facts.step(product)
    assert isinstance(step, g.Contract)
    for i, labels in zip(facts.graph.inputs[product], (step.lhs, step.rhs), strict=True):
        if not facts.of_weights[i]:
            rows = ex.product(e for e, label in zip(facts.graph.dims(i), labels, strict=True) if label in step.out)
            if not isinstance(rows, int) or rows > MOST_ROWS:
                return False
    return True


def dealt(facts: Facts, result: int) -> list[int]:
    """The parts of a result that others read, where they read nothing else and no part overlaps another; else none."""
    parts, runs, dims = facts.users[result], list[tuple[int, int]](), set[int]()
    for p in parts:
        step = facts.step(p)
        if not isinstance(step, g.Slice) or step.step != 1 or step.start < 0:
            return []
        size = facts.graph.dims(p)[step.dim]
        runs += [(step.start, size)] if isinstance(size, int) else []
        dims.add(step.dim)
    apart = all(at + size <= after for (at, size), (after, _) in itertools.pairwise(sorted(runs)))
    whole = result not in facts.results and len(dims) == 1 and len(runs) == len(parts) and apart
    return list(parts) if whole and 1 < len(parts) <= MOST_RESULTS else []


def kept_apart(facts: Facts, part: int, result: int) -> bool:
    """True if a part of a result is stored whatever fragments there are, and with no other part (a key behind a cache)."""
    joints = [u for u in facts.readers(part) if facts.unequal(u)]
    beside = [i for u in joints for i in facts.graph.inputs[u] if facts.base(i) != facts.base(part)]
    return part in facts.results or (bool(beside) and not facts.reaches(beside, {result}))


def _multiplied(facts: Facts, steps: Iterable[int]) -> int | None:
    """The value whose few rows all products of a fragment multiply by weights; None where there is not one."""
    products = [v for v in steps if facts.is_contraction(v)]
    shared = {facts.base(i) for v in products for i in facts.graph.inputs[v] if not facts.of_weights[i]}
    return shared.pop() if len(shared) == 1 and all(few_rows(facts, v) for v in products) else None
