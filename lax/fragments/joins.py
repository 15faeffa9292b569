"""Tensors that a fragment may store while it reads them: concatenations of two, such as a cache and new keys behind it.

What reads both parts of a concatenation has all of it at hand. Where the whole is wanted elsewhere too (by the next run of a
decoder), one fragment can store it in passing, and nobody has to join the parts in front of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mirage_cli.lax import extents as ex
from mirage_cli.lax.fragments.facts import Facts
from mirage_cli.lax.ir import graph as g
from mirage_cli.lax.ir.joints import Parts
from mirage_cli.lax.ir.program import Program


def joins(
    facts: Facts, program: Program, inputs: Sequence[int], steps: Collection[int], computed: Collection[int]
) -> dict[int, tuple[Parts, int, int]]:
    """Of a fragment's sources, by number, those that it may store whole: how they are joined, and the values of both parts.
    `inputs` are the values of its sources, `steps` what it computes, `computed` what fragments give."""
    found = dict[int, tuple[Parts, int, int]]()
    read = set(inputs)
    for k, v in enumerate(inputs):
        step = facts.step(v)
        if v in computed or not isinstance(step, g.Concat) or len(facts.graph.inputs[v]) != 2:
            continue
        first, second = facts.graph.inputs[v]
        parts = _parts(facts, program, k, step.dim, first, second)
        wanted = v in facts.results or any(u not in steps for u in facts.users[v])
        others = [i for i in inputs if i != v]
        if parts is None or not wanted or first == second or read & {first, second} or facts.reaches(others, {v}):
            continue
        found[k] = parts, first, second
        read |= {first, second}
    return found


def _parts(facts: Facts, program: Program, source: int, dim: int, first: int, second: int) -> Parts | None:
    """How a source is joined of two values; None where kernels cannot take them for its parts."""
    s, new = program.sources[source], facts.graph.dims(second)[dim]
    if not s.dtype.is_float or any(v not in facts.names or facts.is_constant(v) for v in (first, second)):
        return None
    same = s.dims == (*facts.graph.dims(first)[:dim], s.dims[dim], *facts.graph.dims(first)[dim + 1 :])
    known = isinstance(new, int) and isinstance(ex.product(s.dims[dim + 1 :]), int)
    if not (same and known and isinstance(new, int)) or ex.less(s.dims[dim], new) != facts.graph.dims(first)[dim]:
        return None
    return Parts(dim, new, (facts.names[first], facts.names[second]))
