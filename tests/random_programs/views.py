"""Operators of random programs that move elements."""

from __future__ import annotations

import math

import numpy as np

from .shapes import SIZES, axis_of, count
from .sketch import Dim, Sketch, Unfit, Value


def transpose(s: Sketch, x: Value) -> object:
    perm = list(range(len(x.dims)))
    for k in range(len(perm)):
        j = k + s.pick(len(perm) - k)
        perm[k], perm[j] = perm[j], perm[k]
    if not perm:
        raise Unfit
    return s.node("Transpose", [x], [x.dims[k] for k in perm], perm=perm, exact=x.exact, size=x.size)


def reshape(s: Sketch, x: Value) -> object:
    if len(x.dims) > 1 and s.maybe(2):  # two dimensions joined, a symbol only where it keeps its place
        k = s.pick(len(x.dims) - 1)
        a, b = x.dims[k : k + 2]
        if not isinstance(a, int) or not isinstance(b, int):
            raise Unfit
        dims: list[Dim] = [*x.dims[:k], a * b, *x.dims[k + 2 :]]
    else:  # one taken apart
        k = axis_of(s, x)
        d = x.dims[k]
        parts = [p for p in range(1, d + 1) if d % p == 0] if isinstance(d, int) and d else [1]
        if not isinstance(d, int):
            raise Unfit
        p = s.one(parts)
        dims = [*x.dims[:k], p, d // p, *x.dims[k + 1 :]]
    if sum(isinstance(d, str) for d in dims) > 1 or 0 in dims:
        raise Unfit
    given = [-1 if isinstance(d, str) else d for d in dims]
    return s.node("Reshape", [x, s.indices(given)], dims, exact=x.exact, size=x.size)


def flatten(s: Sketch, x: Value) -> object:
    if not x.static or 0 in x.dims or not x.dims:
        raise Unfit
    axis = s.pick(len(x.dims) + 1)
    dims = [math.prod(map(count, x.dims[:axis])), math.prod(map(count, x.dims[axis:]))]
    return s.node("Flatten", [x], dims, axis=axis, exact=x.exact, size=x.size)


def ones(s: Sketch, x: Value) -> object:
    there = [k for k, d in enumerate(x.dims) if d == 1]
    if there and s.maybe(2):
        k = s.one(there)
        return s.node("Squeeze", [x, s.indices([k])], [*x.dims[:k], *x.dims[k + 1 :]], exact=x.exact, size=x.size)
    if len(x.dims) > 3:
        raise Unfit
    k = s.pick(len(x.dims) + 1)
    return s.node("Unsqueeze", [x, s.indices([k])], [*x.dims[:k], 1, *x.dims[k:]], exact=x.exact, size=x.size)


def part(s: Sketch, x: Value) -> object:
    axis = axis_of(s, x)
    d = x.dims[axis]
    if not isinstance(d, int) or d < 2:
        raise Unfit
    step = s.one((1, 1, 2, -1, 3))
    first = s.pick(d)
    last = first + 1 + s.pick(d - first)
    taken = (
        list(range(d))[first:last:step]
        if step > 0
        else list(range(d))[last - 1 : (first - 1 if first else None) : step]
    )
    start, end = (first, last) if step > 0 else (last - 1, first - 1 if first else -d - 1)
    if not taken:
        raise Unfit
    numbers = [s.indices([n]) for n in (start, end, axis, step)]
    dims = [*x.dims[:axis], len(taken), *x.dims[axis + 1 :]]
    return s.node("Slice", [x, *numbers], dims, exact=x.exact, size=x.size)


def split(s: Sketch, x: Value) -> object:
    axis = axis_of(s, x)
    d = x.dims[axis]
    if not isinstance(d, int) or d < 2:
        raise Unfit
    first = 1 + s.pick(d - 1)
    dims = [[*x.dims[:axis], n, *x.dims[axis + 1 :]] for n in (first, d - first)]
    return s.nodes_of("Split", [x, s.indices([first, d - first])], dims, axis=axis, exact=x.exact, size=x.size)


def concat(s: Sketch, x: Value) -> object:
    axis = axis_of(s, x)
    d = x.dims[axis]
    if not isinstance(d, int):
        raise Unfit
    rest = [*x.dims[:axis], *x.dims[axis + 1 :]]
    there = [
        v
        for v in s.values
        if v.dtype == x.dtype and len(v.dims) == len(x.dims) and [*v.dims[:axis], *v.dims[axis + 1 :]] == rest
    ]
    there = [v for v in there if isinstance(v.dims[axis], int)]
    y = there[-1 - s.pick(len(there))] if not s.maybe(3) else None
    if y is None:
        y = s.input([*x.dims[:axis], s.one(SIZES[:6]), *x.dims[axis + 1 :]], x.dtype)
    dims = [*x.dims[:axis], d + count(y.dims[axis]), *x.dims[axis + 1 :]]
    return s.node("Concat", [x, y], dims, axis=axis, exact=x.exact and y.exact, size=max(x.size, y.size))


def expand(s: Sketch, x: Value) -> object:
    if not x.static or s.maybe(3):
        k = axis_of(s, x)
        if not x.static or x.dims[k] == 0:
            raise Unfit
        repeats = [2 if j == k else 1 for j in range(len(x.dims))]
        dims = [count(d) * r for d, r in zip(x.dims, repeats, strict=True)]
        return s.node("Tile", [x, s.indices(repeats)], dims, exact=x.exact, size=x.size)
    dims = [s.one(SIZES[:6]) if d == 1 else count(d) for d in x.dims]
    if len(dims) < 4 and s.maybe(2):
        dims = [s.one(SIZES[:4]), *dims]
    return s.node("Expand", [x, s.indices(dims)], dims, exact=x.exact, size=x.size)


def gather(s: Sketch, x: Value) -> object:
    axis = axis_of(s, x)
    d = x.dims[axis]
    if not isinstance(d, int) or d == 0:
        raise Unfit
    rows = [s.pick(d) for _ in range(1 + s.pick(3))]
    index = s.constant(np.array(rows[0]), "int64") if s.maybe(2) else s.indices(rows)
    dims = [*x.dims[:axis], *index.dims, *x.dims[axis + 1 :]]
    return s.node("Gather", [x, index], dims, axis=axis, exact=x.exact, size=x.size)


def triangle(s: Sketch, x: Value) -> object:
    if len(x.dims) < 2 or not x.static:
        raise Unfit
    k = s.constant(np.array(s.one((0, 1, -1))), "int64")
    return s.node("Trilu", [x, k], x.dims, upper=s.pick(2), exact=x.exact, size=x.size)


def rotary(s: Sketch, x: Value) -> object:
    """x cos + (second half negated, first half) sin."""
    d = x.dims[-1] if x.dims else 0
    if not isinstance(d, int) or d < 2 or d % 2:
        raise Unfit
    axis, dims = len(x.dims) - 1, (*x.dims[:-1], d // 2)
    low, high = (
        s.node("Slice", [x, *(s.indices([n]) for n in at)], dims, exact=x.exact, size=x.size, keep=False)
        for at in ((0, d // 2, axis, 1), (d // 2, d, axis, 1))
    )
    high = s.node("Neg", [high], dims, size=x.size, keep=False)
    turned = s.node("Concat", [high, low], x.dims, axis=axis, size=x.size, keep=False)
    shape = x.dims[-2:] if s.maybe(2) else x.dims[-1:]
    cos, sin = s.leaf(shape), s.leaf(shape)
    a = s.node("Mul", [x, cos], x.dims, size=x.size, keep=False)
    b = s.node("Mul", [turned, sin], x.dims, size=x.size, keep=False)
    return s.node("Add", [a, b], x.dims, size=x.size * 2)
