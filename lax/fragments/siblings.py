"""Siblings: fragments that multiply one value by weights of their own, such as queries, keys and values of a row.

With few rows a product takes little longer than its launch, so several are one fragment: its kernels can be started
together. With many rows a product keeps a device busy by itself.
"""

from __future__ import annotations

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


def _multiplied(facts: Facts, steps: Iterable[int]) -> int | None:
    """The value whose few rows all products of a fragment multiply by weights; None where there is not one."""
    products = [v for v in steps if facts.is_contraction(v)]
    shared = {facts.base(i) for v in products for i in facts.graph.inputs[v] if not facts.of_weights[i]}
    return shared.pop() if len(shared) == 1 and all(few_rows(facts, v) for v in products) else None
