"""Domains: what the primitives of the algebra are interpreted in, and the float64 one.

A domain gives each of about ten primitives a value; operators are written over them once (`lax/ops`), so that float64,
residues, abstract terms, degrees and cost cannot disagree about what an operator means. A new primitive is one method
in each domain.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax.ops.registry import lookup

Number: TypeAlias = Fraction | int | float
Axes: TypeAlias = Sequence[Hashable]  #: names of axes, or negative dimension indices for positional arrays
Floats: TypeAlias = NDArray[np.float64]
Array: TypeAlias = NDArray[Any]
T = TypeVar("T")


class Domain(Protocol[T]):
    """The primitives. `over` names the axes that a reduction consumes; results keep them with extent 1. `guard` is the
    operator of a quotient that is 0 in some places, "div0" or "share"."""

    def const(self, value: Number) -> T: ...
    def add(self, x: T, y: T) -> T: ...
    def sub(self, x: T, y: T) -> T: ...
    def mul(self, x: T, y: T) -> T: ...
    def div(self, x: T, y: T, guard: str = "") -> T: ...
    def exp(self, x: T) -> T: ...
    def stable_exp(self, x: T, over: Axes) -> T: ...
    def call(self, name: str, *args: T) -> T: ...
    def select(self, condition: T, x: T, y: T) -> T: ...
    def sum(self, x: T, over: Axes) -> T: ...
    def extreme(self, kind: str, x: T, over: Axes) -> T: ...
    def contract(self, x: T, y: T, over: Axes) -> T: ...
    def iota(self, axis: Hashable, extent: int, offset: int = 0) -> T: ...
    def running_max(self, previous: T | None, x: T, over: Axes) -> T: ...
    def exp_minus(self, x: T, maximum: T) -> T: ...
    def exp_difference(self, old: T, new: T) -> T: ...


class ArrayDomain:
    """Shared by the domains whose values are arrays with one dimension for each axis of `order`.

    `order` maps axis names to positions; with an empty `order` axes are negative dimension indices themselves.
    """

    lead = 0  #: leading dimensions of every value that are not axes

    def __init__(self, order: Sequence[Hashable] = ()) -> None:
        self.order = tuple(order)
        self._dim = {a: i - len(self.order) for i, a in enumerate(self.order)}

    def dims(self, over: Axes) -> tuple[int, ...]:
        """Negative dimension indices of axes."""
        return tuple(self._dim[a] if a in self._dim else int(a) for a in over)  # type: ignore[call-overload]

    def along(self, axis: Hashable, values: Array) -> Array:
        """`values` (one-dimensional in the last place) laid along an axis, other axes with extent 1."""
        (dim,) = self.dims([axis])
        return values.reshape(values.shape + (1,) * (-dim - 1))


class Float64(ArrayDomain):
    """Real arithmetic in float64: the reference that everything is compared with.

    `stable_exp` subtracts the maximum over its axes, as a softmax does; the result is that of the ratio it stands in.
    """

    def const(self, value: Number) -> Floats:
        return np.asarray(float(value), dtype=np.float64)

    def add(self, x: Floats, y: Floats) -> Floats:
        return x + y

    def sub(self, x: Floats, y: Floats) -> Floats:
        return x - y

    def mul(self, x: Floats, y: Floats) -> Floats:
        return x * y

    def div(self, x: Floats, y: Floats, guard: str = "") -> Floats:
        q = np.divide(x, y)
        if guard == "share":
            return np.where((y == 0) & ~np.isnan(x), 0.0, q)
        return np.where(np.isnan(q) & (np.isnan(y) | ~np.isnan(x)), 0.0, q) if guard else q

    def exp(self, x: Floats) -> Floats:
        return np.exp(x)

    def stable_exp(self, x: Floats, over: Axes) -> Floats:
        return self.exp_minus(x, self.running_max(None, x, over))

    def call(self, name: str, *args: Floats) -> Floats:
        real = lookup(name).real
        if real is None:
            raise InvalidGraph(f"operator {name} has no real function")
        result: Floats = real(*args)
        return result

    def select(self, condition: Floats, x: Floats, y: Floats) -> Floats:
        return np.where(condition != 0, x, y)

    def sum(self, x: Floats, over: Axes) -> Floats:
        result: Floats = np.sum(x, axis=self.dims(over), keepdims=True)
        return result

    def extreme(self, kind: str, x: Floats, over: Axes) -> Floats:
        reduce, none = {"max": (np.max, -np.inf), "min": (np.min, np.inf), "prod": (np.prod, 1.0)}[kind]
        result: Floats = reduce(x, axis=self.dims(over), keepdims=True, initial=none)  # type: ignore[operator]
        return result

    def contract(self, x: Floats, y: Floats, over: Axes) -> Floats:
        """Every product is made before they are summed: inf a + inf b may be NaN where inf (a + b) is not."""
        rank = max(x.ndim, y.ndim)
        x, y = (a.reshape((1,) * (rank - a.ndim) + a.shape) for a in (x, y))
        dims = self.dims(over)
        for d in dims:
            x, y = (np.repeat(a, b.shape[d], d) if a.shape[d] == 1 != b.shape[d] else a for a, b in ((x, y), (y, x)))
        return contract_arrays(x, y, dims, np.matmul)

    def iota(self, axis: Hashable, extent: int, offset: int = 0) -> Floats:
        return self.along(axis, np.arange(offset, offset + extent, dtype=np.float64))

    def running_max(self, previous: Floats | None, x: Floats, over: Axes) -> Floats:
        m = np.max(x, axis=self.dims(over), keepdims=True, initial=-np.inf)
        result: Floats = m if previous is None else np.maximum(previous, m)
        return result

    def exp_minus(self, x: Floats, maximum: Floats) -> Floats:
        return np.where(maximum == -np.inf, 0.0, np.exp(x - maximum))  # nothing but -inf so far: no contribution

    def exp_difference(self, old: Floats, new: Floats) -> Floats:
        same = old == new  # both -inf: nothing was accumulated yet
        return np.where(same, 1.0, np.exp(np.where(same, 0.0, old - new)))


def contract_arrays(x: Array, y: Array, dims: tuple[int, ...], matmul: Any) -> Array:
    """Sum over `dims` of `x * y` by one batched matrix product.

    `x` and `y` have equal rank, every dimension equal or 1 (broadcast); the result keeps `dims` with extent 1.
    `matmul` takes [batch, m, k] and [batch, k, n] arrays.
    """
    rank = max(x.ndim, y.ndim)
    x, y = (a.reshape((1,) * (rank - a.ndim) + a.shape) for a in (x, y))
    over = {d % rank for d in dims}
    out = [1 if d in over else max(x.shape[d], y.shape[d], key=lambda n: (n != 1, n)) for d in range(rank)]
    k = [d for d in over if x.shape[d] != 1 and y.shape[d] != 1]
    for d in over - set(k):  # only one operand has the axis, or neither
        if x.shape[d] != 1:
            x = x.sum(axis=d, keepdims=True)
        elif y.shape[d] != 1:
            y = y.sum(axis=d, keepdims=True)
    both = [d for d in range(rank) if d not in over and x.shape[d] != 1 and y.shape[d] != 1]
    m = [d for d in range(rank) if d not in over and d not in both and x.shape[d] != 1]
    n = [d for d in range(rank) if d not in over and d not in both and x.shape[d] == 1 and y.shape[d] != 1]
    if m and n and n[0] < m[0]:  # the result then lies in the order of its dimensions
        x, y, m, n = y, x, n, m

    def sizes(a: Array, ds: list[int]) -> list[int]:
        return [a.shape[d] for d in ds]

    def count(ns: Sequence[int]) -> int:
        return int(np.prod(ns, dtype=np.int64))

    rest = [d for d in range(rank) if d not in k and d not in both and d not in m and d not in n]
    x = x.transpose(both + m + k + n + rest).reshape(count(sizes(x, both)), count(sizes(x, m)), count(sizes(x, k)))
    yk = y.transpose(both + k + n + m + rest)
    parts = (0, len(both), len(both) + len(k), yk.ndim)
    y = yk.reshape([count(yk.shape[a:b]) for a, b in itertools.pairwise(parts)])
    z = matmul(x, y)
    order = both + m + n
    z = z.reshape([out[d] for d in order] + [1] * (rank - len(order)))
    placed = order + [d for d in range(rank) if d not in order]
    return np.ascontiguousarray(z.transpose(np.argsort(placed)))
