"""Tensors of positions along a dimension, wherever they come from: constants, ranges, views of these; and stored comparisons.

Exporters write many a view as a lookup by such indices (masks of a batch and a position, heads one after the other), and fold
what a mask compares to a constant.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.errors import Refused
from mirage_cli.frontends import sizes
from mirage_cli.frontends.onnx.ops.registry import Call
from mirage_cli.frontends.sizes import Size
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import BOOL, I64, DType
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir import graph as steps
from mirage_cli.lax.ir.graph import Dims, Graph

LOW = -1e3  #: what masks add is at most this
MAX_CONSTANT = 2**20  #: elements of a stored tensor that are looked at


@dataclass(frozen=True, slots=True)
class Walk:
    """The integers `start + step * i`, i the position along dimension `dim`; without one they are all `start`."""

    start: int
    dim: int | None = None
    step: int = 0


def walk(call: Call, i: int) -> Walk | None:
    """The walk that input `i` is; None where that is not known."""
    numbers = _stored(call, i)
    return walk_of(call.graph, call.arg(i)) if numbers is None else of_numbers(numbers)


def walks(call: Call, i: int) -> list[Walk | None]:
    """The walks of the tensors that lie one after the other along the last dimension of input `i`; one None where
    they are not known apart.

    Raises Refused when there is no such input or its last extent is symbolic.
    """
    numbers = _stored(call, i)
    if numbers is not None:
        return [of_numbers(numbers[..., k]) for k in range(numbers.shape[-1])]
    graph, v = call.graph, call.arg(i)
    last = len(graph.dims(v)) - 1
    while isinstance(graph.steps[v], steps.Cast):
        (v,) = graph.inputs[v]
    count = graph.dims(v)[last]
    if not isinstance(count, int):
        raise Refused(f"{count} indices for each element")
    parts = graph.inputs[v] if graph.steps[v] == steps.Concat(last) else (v,)
    return [walk_of(graph, part) for part in parts] if len(parts) == count else [None]


def _stored(call: Call, i: int) -> NDArray[np.int64] | None:
    """The elements of input `i` when the model stores them."""
    tensor = call.tensor(i)
    if tensor.is_graph_input() or tensor.const_value is None or tensor.const_value.size > MAX_CONSTANT:
        return None
    return tensor.const_value.numpy()


def of_numbers(numbers: NDArray[np.int64]) -> Walk | None:
    """The walk that an array of numbers is; None where it is none."""
    if numbers.size == 0:
        return None
    start = int(numbers.flat[0])
    moving = [d for d in range(numbers.ndim) if bool((np.diff(numbers, axis=d) != 0).any())]
    if not moving:
        return Walk(start)
    (dim, *others) = moving
    differences = np.diff(numbers, axis=dim)
    if others or bool((differences != differences.flat[0]).any()):
        return None
    return Walk(start, dim, int(differences.flat[0]))


@dataclass(frozen=True, slots=True)
class Band:
    """The number `inside` where the position along dimension `column`, less that along dimension `row` if there is one, is
    `low` or more and `high` or less; `outside` elsewhere."""

    inside: Any
    outside: Any
    row: int | None
    column: int
    low: int | None
    high: int

    def recorded(self, graph: Graph, dims: Dims, dtype: DType) -> int:
        """The numbers in `dims`, as a value."""

        def at(dim: int | None, shift: int = 0) -> int:
            place = graph.fill(0, I64) if dim is None else graph.iota(dims[dim], dim, len(dims), I64)
            return compose.shift(graph, place, shift)

        kept = graph.map("le", at(self.column), at(self.row, self.high))
        if self.low is not None:
            kept = graph.map("and", graph.map("le", at(self.row, self.low), at(self.column)), kept)
        if dtype is BOOL:
            return graph.expand(kept if self.inside else graph.map("not", kept), dims)
        inside, outside = (
            graph.fill(float(n) if dtype.is_float else int(n), dtype) for n in (self.inside, self.outside)
        )
        return graph.expand(graph.map("where", kept, inside, outside), dims)


def band_of(numbers: NDArray[Any]) -> Band | None:
    """The comparison of one position or two that an array is, element by element; None where it is none. Its numbers have to
    be those of a mask: 0 and 1 of integers, 0 and a low one of floats. An identity among weights is a weight."""
    moving = [d for d in range(numbers.ndim) if bool((numbers != numbers.take([0], d)).any())]
    if not 1 <= len(moving) <= 2:
        return None
    plane = numbers[tuple(slice(None) if d in moving else 0 for d in range(numbers.ndim))]
    plane = plane.reshape(-1, plane.shape[-1])
    least = 1 - len(plane)  #: difference of positions
    apart = np.concatenate([plane[:0:-1, 0], plane[0]])
    ends = np.flatnonzero(apart[1:] != apart[:-1])
    inside, outside = (apart[ends[len(ends) // 2]], apart[-1]) if 1 <= len(ends) <= 2 else (0, 0)
    low, high = sorted((float(inside), float(outside)))
    masks = (low, high) == (0, 1) if numbers.dtype.kind in "biu" else low <= LOW and high == 0
    if not masks or (len(ends) == 2 and apart[0] != outside) or bool((plane[1:, 1:] != plane[:-1, :-1]).any()):
        return None
    first, last = (int(k) + least for k in (ends[0] + 1, ends[-1]))
    row, column = moving if len(moving) == 2 else (None, moving[0])
    return Band(inside, outside, row, column, first if len(ends) == 2 else None, last)


def walk_of(graph: Graph, v: int) -> Walk | None:
    """The walk that a value of a graph is; None where it is none."""
    step, operands = graph.steps[v], graph.inputs[v]
    if isinstance(step, steps.Fill):
        return Walk(int(step.value)) if isinstance(step.value, Fraction) and step.value.denominator == 1 else None
    if isinstance(step, steps.Iota):
        return _fixed(Walk(0, step.dim, 1), graph.dims(v))
    if isinstance(step, steps.Map):
        return _computed(graph, v, step.op)
    inner = walk_of(graph, operands[0]) if isinstance(step, (*steps.VIEWS, steps.Cast)) else None
    if inner is None or inner.dim is None:
        return inner
    match step:
        case steps.Transpose(perm):
            return replace(inner, dim=perm.index(inner.dim))
        case steps.Reshape():
            return _reshaped(inner, graph.dims(operands[0]), graph.dims(v))
        case steps.Slice(dim, start, stride) if dim == inner.dim:
            if start < 0:
                return None
            return _fixed(Walk(inner.start + inner.step * start, dim, inner.step * stride), graph.dims(v))
    return inner


def counted(graph: Graph, walk: Walk, dims: Dims, dtype: DType) -> int:
    """The integers that a walk takes along its dimension of `dims`, as a value."""
    if walk.dim is None:
        return graph.fill(walk.start, dtype, dims)
    steps = compose.scale(graph, graph.iota(dims[walk.dim], 0, 1, dtype), walk.step)
    steps = compose.shift(graph, steps, Fraction(walk.start))
    steps = graph.reshape(steps, [dims[walk.dim] if d == walk.dim else 1 for d in range(len(dims))])
    return graph.expand(steps, dims)


def _fixed(walk: Walk, dims: Dims) -> Walk:
    """A walk along a dimension of one position stands still."""
    return Walk(walk.start) if walk.dim is not None and dims[walk.dim] == 1 else walk


def _reshaped(walk: Walk, before: Dims, after: Dims) -> Walk | None:
    """The walk under other dimensions, which differ in dimensions of extent 1 only."""
    old, new = ([d for d, e in enumerate(dims) if e != 1] for dims in (before, after))
    if walk.dim is None or [before[d] for d in old] != [after[d] for d in new]:
        return None
    return replace(walk, dim=new[old.index(walk.dim)])


def _computed(graph: Graph, v: int, op: str) -> Walk | None:
    """Sums with a number and multiples of a walk."""
    if op not in ("add", "sub", "mul"):
        return None
    rank, operands = len(graph.dims(v)), list[Walk]()
    for operand in graph.inputs[v]:
        walk = walk_of(graph, operand)
        if walk is None:
            return None
        shifted = None if walk.dim is None else walk.dim + rank - len(graph.dims(operand))
        operands.append(replace(walk, dim=shifted))
    a, b = operands
    if op == "sub":
        b, op = Walk(-b.start, b.dim, -b.step), "add"
    if a.dim is None:
        a, b = b, a
    if b.dim is not None:
        return None
    if op == "add":
        return replace(a, start=a.start + b.start)
    return Walk(a.start * b.start, a.dim, a.step * b.start) if b.start else Walk(0)


def along(graph: Graph, x: int, dim: int, walk: Walk, count: Extent) -> int:
    """The `count` positions of dimension `dim` that a walk takes (one when it stands still). Raises Refused unless they
    are known to exist."""
    extent = graph.dims(x)[dim]
    start = walk.start + extent if walk.start < 0 and isinstance(extent, int) else walk.start
    if walk.dim is None:
        if not isinstance(extent, int) or not 0 <= start < extent:
            raise Refused(f"index {walk.start} in a dimension of {extent}")
        return graph.slice(x, dim, start, 1)
    if (start, walk.step, count) == (0, 1, extent):
        return x
    if not isinstance(extent, int) or not isinstance(count, int):
        raise Refused(f"{count} indices from {walk.start} on by {walk.step} in a dimension of {extent}")
    last = start + walk.step * (count - 1)
    if count == 0 or not (0 <= start < extent and 0 <= last < extent):
        raise Refused(f"indices {start} to {last} in a dimension of {extent}")
    return graph.slice(x, dim, start, count, walk.step)


def number(graph: Graph, size: Size, dtype: DType) -> int:
    """A size as a scalar; one that may be negative from its terms."""
    if isinstance(size, int):
        return graph.fill(steps.exact(size), dtype)
    if all(factor > 0 for _, factor in size.terms):
        return _count(graph, sizes.to_extent(size), dtype)
    terms = [
        compose.scale(graph, _count(graph, ex.product(map(ex.symbol, names)), dtype), factor)
        for names, factor in size.terms
    ]
    return functools.reduce(lambda a, b: graph.map("add", a, b), terms)


def _count(graph: Graph, extent: Extent, dtype: DType) -> int:
    """An extent as a scalar: symbols are counted by summing ones along dimensions of these extents."""
    names = extent.names if isinstance(extent, ex.Symbolic) else ()
    dims = [ex.Symbolic(1, (n,)) for n in names]
    ones = graph.expand(graph.fill(1, dtype, (1,) * len(dims)), dims)
    total = graph.reshape(graph.reduce("sum", ones, range(len(dims))), ())
    return compose.scale(graph, total, extent.factor if isinstance(extent, ex.Symbolic) else extent)
