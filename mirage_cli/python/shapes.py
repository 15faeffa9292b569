"""Dimensions of the operands and results of a graph's operators, checked where an operator is added, with messages
that name it.

A dimension is a number, or a name for one that is known when the kernel is called.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from mirage_cli.errors import InvalidGraph, UsageError
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir import graph as g
from mirage_cli.lax.ir.graph import Dims

if TYPE_CHECKING:
    from mirage_cli.python.recording import Tensor

Dim: TypeAlias = int | str
_NAME = re.compile(r"[A-Za-z_]\w*")


def shown(dims: Dims) -> str:
    """Dimensions as messages show them."""
    return f"[{', '.join(map(str, dims))}]"


def dimensions(what: str, given: Any) -> Dims:
    """The dimensions that were written as numbers and names. Raises UsageError."""
    if not isinstance(given, (list, tuple)):
        raise UsageError(f"{what}: expected dims such as (64, 128), found {given!r}")
    return tuple(_dimension(what, d) for d in given)


def _dimension(what: str, d: Any) -> Extent:
    if isinstance(d, str) and _NAME.fullmatch(d):
        return ex.symbol(d)
    if isinstance(d, ex.Symbolic):
        return d
    number = integer(d)
    if number is None or number < 1:
        raise UsageError(f"{what}: expected a dimension that is a positive number or a name, found {d!r}")
    return number


def integer(given: Any) -> int | None:
    """A number, also one of numpy's; None for anything else."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        return None
    return int(given.__index__())


def dim_of(what: str, tensor: Tensor, dim: Any) -> int:
    """A dimension of a tensor, counted from the end if it is negative. Raises UsageError."""
    rank, number = len(tensor.dims), integer(dim)
    if number is None or not -rank <= number < rank:
        raise UsageError(f"{what}: expected a dimension from {-rank} to {rank - 1} of {tensor}, found {dim!r}")
    return number % rank


def broadcast(what: str, tensors: Sequence[Tensor]) -> Dims:
    """The dimensions of an elementwise result by numpy's rules. Raises UsageError."""
    try:
        return g.broadcast([t.dims for t in tensors], what)
    except InvalidGraph:
        given = " and ".join(str(t) for t in tensors)
        raise UsageError(
            f"{what}: expected dimensions that are equal or 1, counted from the last, found {given}"
        ) from None


def matmul(what: str, a: Tensor, b: Tensor) -> Dims:
    """The dimensions of a matrix product of the last two dimensions, with the others broadcast. Raises UsageError."""
    if len(a.dims) < 2 or len(b.dims) < 2:
        raise UsageError(f"{what}: expected tensors of two or more dimensions, found {a} and {b}")
    if a.dims[-1] != b.dims[-2]:
        raise UsageError(
            f"{what}: expected the last dimension of the first ({a.dims[-1]}) and the last but one of the second "
            f"({b.dims[-2]}) to be equal, found {a} and {b}"
        )
    try:
        batch = g.broadcast([a.dims[:-2], b.dims[:-2]], what)
    except InvalidGraph:
        raise UsageError(f"{what}: expected batch dimensions that are equal or 1, found {a} and {b}") from None
    return (*batch, a.dims[-2], b.dims[-1])


def normalized(what: str, a: Tensor, given: Any) -> int:
    """Number of trailing dimensions that `normalized_shape` names (None: the last). Raises UsageError where they
    differ."""
    if given is None:
        given = a.dims[-1:]
    wanted = dimensions(what, [given] if isinstance(given, str) or integer(given) is not None else given)
    if not wanted or a.dims[len(a.dims) - len(wanted) :] != wanted:
        raise UsageError(f"{what}: expected a normalized_shape that ends the dimensions of {a}, found {shown(wanted)}")
    return len(wanted)


def reshaped(what: str, a: Tensor, given: Any) -> tuple[Dims, list[int]]:
    """The dimensions of a reshape, one of which may be -1, and the numbers that ONNX takes for them. Raises UsageError."""
    if not isinstance(given, (list, tuple)):
        raise UsageError(f"{what}: expected dims such as (64, 128), found {given!r}")
    free = [k for k, d in enumerate(given) if integer(d) == -1]
    if len(free) > 1:
        raise UsageError(f"{what}: expected one -1 at most, found {list(given)}")
    dims = list(dimensions(what, [1 if k in free else d for k, d in enumerate(given)]))
    rest = ex.quotient(ex.product(a.dims), ex.product(dims))
    if rest is None or (not free and rest != 1):
        raise UsageError(f"{what}: expected as many elements as {a} has, found {list(given)}")
    for k in free:
        dims[k] = rest
    return tuple(dims), _numbers(what, a, tuple(dims))


def _numbers(what: str, a: Tensor, dims: Dims) -> list[int]:
    """Dimensions as ONNX writes them in a reshape: 0 for the operand's at the same place, -1 for the one that follows."""
    numbers = [d if isinstance(d, int) else 0 if k < len(a.dims) and a.dims[k] == d else -1 for k, d in enumerate(dims)]
    if numbers.count(-1) > 1:
        raise UsageError(
            f"{what}: expected one named dimension at most that {a} has not at the same place, found {shown(dims)}"
        )
    return numbers


def sliced(what: str, a: Tensor, dim: int, start: Any, stop: Any, step: Any) -> range:
    """The positions that a slice takes of one dimension. Raises UsageError."""
    extent = a.dims[dim]
    numbers = [integer(x) for x in (start, stop, step) if x is not None]
    if not isinstance(extent, int) or None in numbers or step is None or step < 1:
        raise UsageError(
            f"{what}: expected numbers, the step a positive one, for a dimension whose size is a number, found "
            f"{start}:{stop}:{step} of dimension {dim} of {a}"
        )
    positions = range(extent)[slice(start, stop, step)]
    if not positions:
        raise UsageError(f"{what}: {start}:{stop}:{step} leaves nothing of dimension {dim} of {a}")
    return positions


def concatenated(what: str, tensors: Sequence[Tensor], dim: int) -> Dims:
    """The dimensions of tensors put one behind the other. Raises UsageError."""
    first = tensors[0].dims
    parts = [t.dims[dim] for t in tensors if len(t.dims) == len(first)]
    others = {(*t.dims[:dim], *t.dims[dim + 1 :]) for t in tensors}
    if len(others) != 1 or len(parts) != len(tensors) or not all(isinstance(p, int) for p in parts):
        given = ", ".join(map(str, tensors))
        raise UsageError(
            f"{what}: expected tensors that differ in dimension {dim} only, which has numbers, found {given}"
        )
    return (*first[:dim], sum(p for p in parts if isinstance(p, int)), *first[dim + 1 :])
