"""The graph that a front end records: primitive operators on positional dimensions.

A step is one of the frozen dataclasses below; a graph is a list of steps in topological order, each with one result.
Recording the same step twice gives the same value. Reductions keep their dimensions with extent 1; nothing here knows
about axes: `instantiate` turns a part of a graph into a program on named axes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Number
from mirage_cli.lax.dtypes import BOOL, DType, unpacked
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ops import lookup

Dims: TypeAlias = tuple[Extent, ...]
MOST_UNITS = 16  #: units of a concatenation that are told apart


class UnequalExtents(InvalidGraph):
    """Dimensions that have to be equal, unless `broadcast` lets one of them be 1, and are not known to be; `pair` holds their
    extents."""

    def __init__(self, message: str, pair: tuple[Any, Any] = (1, 1), broadcast: bool = False) -> None:
        super().__init__(message)
        self.pair, self.broadcast = pair, broadcast


@dataclass(frozen=True, slots=True)
class Tensor:
    """Dimensions and element type of a value."""

    dims: Dims
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor from outside: a model input, a weight (`constant`) or the result of an operator that is not read. `unwritten`
    and `rounds` are as in `program.Source`."""

    name: str
    constant: bool = False
    unwritten: bool = False
    rounds: bool = False


@dataclass(frozen=True, slots=True)
class Fill:
    """A tensor whose elements are all `value`: an exact rational, or a float for inf and nan."""

    value: Fraction | float


@dataclass(frozen=True, slots=True)
class Map:
    """An elementwise operator of the registry, with numpy's broadcasting."""

    op: str


@dataclass(frozen=True, slots=True)
class Cast:
    """The same numbers in another element type (conversions that change numbers are `Map`s before it)."""


@dataclass(frozen=True, slots=True)
class StableExp:
    """exp up to a positive factor that is common along `dims`; stands only where that factor cancels (softmax)."""

    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Contract:
    """Sum of products over the labels that `out` lacks; labels are small integers, one for each dimension."""

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    out: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """`kind` in {"sum", "max", "min", "prod"} over `dims`, which stay with extent 1."""

    kind: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same elements in row-major order under other dimensions."""


@dataclass(frozen=True, slots=True)
class Unpack:
    """The numbers of a packed type that bytes hold, along the last dimension."""


@dataclass(frozen=True, slots=True)
class Transpose:
    """Dimension i of the result is dimension `perm[i]` of the operand."""

    perm: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expand:
    """Dimensions of extent 1 repeated to the result's dimensions (ranks are equal)."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements start, start + step, ... of one dimension; a negative start counts from the end of a symbolic one, and
    is its first element where it has no more."""

    dim: int
    start: int
    step: int = 1


@dataclass(frozen=True, slots=True)
class Concat:
    """Operands one after the other along one dimension."""

    dim: int


@dataclass(frozen=True, slots=True)
class Iota:
    """0, 1, 2, ... along one dimension; the others have extent 1."""

    dim: int


@dataclass(frozen=True, slots=True)
class Choose:
    """Rows of the first operand, a stored table, at the numbers in the second one, which are of rows that the table has. Its
    dimensions take the place of the table's first."""


@dataclass(frozen=True, slots=True)
class Opaque:
    """Result `output` of an operator that is not read; `label` names it for messages."""

    label: str
    output: int = 0


Step: TypeAlias = (
    Input
    | Fill
    | Map
    | Cast
    | StableExp
    | Contract
    | Reduce
    | Reshape
    | Unpack
    | Transpose
    | Expand
    | Slice
    | Concat
    | Iota
    | Choose
    | Opaque
)
VIEWS = (Reshape, Unpack, Transpose, Expand, Slice)  #: steps that only rename where an element stands


@dataclass(slots=True)
class Graph:
    """A recording in progress: `steps[i]` has operands `inputs[i]` and result `tensors[i]`; `outputs` are values, and `bounds`
    those between operators of the model, of which one is read as several that are replaced together or not at all."""

    steps: list[Step] = field(default_factory=list)
    inputs: list[tuple[int, ...]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    bounds: list[int] = field(default_factory=list)
    _known: dict[tuple[Step, tuple[int, ...], Tensor], int] = field(default_factory=dict, repr=False)

    # --- recording ----------------------------------------------------------------------------------------------------
    def record(self, step: Step, inputs: Sequence[int], dims: Iterable[Extent], dtype: DType) -> int:
        """Append a step (or find it again) and return its value."""
        tensor = Tensor(tuple(dims), dtype)
        key = (step, tuple(inputs), tensor)
        if key not in self._known:
            self._known[key] = len(self.steps)
            self.steps.append(step)
            self.inputs.append(tuple(inputs))
            self.tensors.append(tensor)
        return self._known[key]

    def dims(self, v: int) -> Dims:
        """Dimensions of a value."""
        return self.tensors[v].dims

    def dtype(self, v: int) -> DType:
        """Element type of a value."""
        return self.tensors[v].dtype

    def input(self, name: str, dims: Iterable[Extent], dtype: DType, constant: bool = False) -> int:
        """A tensor from outside."""
        return self.record(Input(name, constant), (), dims, dtype)

    def declare_unwritten(self, names: Collection[str]) -> None:
        """Say of inputs with these names that no kernel writes them."""
        for v, step in enumerate(self.steps):
            if isinstance(step, Input) and not step.constant and step.name in names:
                self.steps[v] = replace(step, unwritten=True)

    def declare_rounds(self, v: int) -> None:
        """Say of a weight that products with it may round what they multiply it with."""
        if isinstance(step := self.steps[v], Input) and step.constant:
            self.steps[v] = replace(step, rounds=True)

    def fill(self, value: Number, dtype: DType, dims: Iterable[Extent] = ()) -> int:
        """A tensor of equal elements; finite floats are taken exactly as rationals."""
        return self.record(Fill(exact(value)), (), dims, dtype)

    def fill_value(self, v: int) -> Fraction | float | None:
        """The number that every element of `v` is, when that is known."""
        while isinstance(self.steps[v], (*VIEWS, Cast)) and not isinstance(self.steps[v], Unpack):
            (v,) = self.inputs[v]
        step = self.steps[v]
        return step.value if isinstance(step, Fill) else None

    def map(self, op: str, *args: int, dtype: DType | None = None) -> int:
        """An elementwise operator. Raises InvalidGraph when the operands do not broadcast."""
        declared = lookup(op)
        if len(args) != declared.arity:
            raise InvalidGraph(f"operator {op} takes {declared.arity} operands, got {len(args)}")
        dims = broadcast([self.dims(a) for a in args], op)
        if dtype is None:
            typed = [self.dtype(a) for a in args if self.dtype(a) != BOOL] or [BOOL]
            dtype = BOOL if declared.predicate else typed[0]
        return self.record(Map(op), args, dims, dtype)

    def cast(self, v: int, dtype: DType) -> int:
        """The value in another element type; no step when it has it already."""
        return v if self.dtype(v) == dtype else self.record(Cast(), (v,), self.dims(v), dtype)

    def stable_exp(self, v: int, dims: Sequence[int]) -> int:
        """exp up to a factor common along `dims`."""
        return self.record(StableExp(self._dims(v, dims)), (v,), self.dims(v), self.dtype(v))

    def reduce(self, kind: str, v: int, dims: Sequence[int]) -> int:
        """A reduction that keeps its dimensions with extent 1."""
        over = self._dims(v, dims)
        if not over:
            return v
        kept = [1 if i in over else e for i, e in enumerate(self.dims(v))]
        return self.record(Reduce(kind, over), (v,), kept, self.dtype(v))

    def contract(self, x: int, y: int, lhs: Sequence[int], rhs: Sequence[int], out: Sequence[int]) -> int:
        """An einsum of two operands. Dimensions with one label must agree or be 1. Raises InvalidGraph."""
        size: dict[int, Extent] = {}
        for labels, v in ((lhs, x), (rhs, y)):
            if len(labels) != len(self.dims(v)) or len(set(labels)) != len(labels):
                raise InvalidGraph(f"contraction labels {list(labels)} do not fit {self.tensors[v]}")
            for label, e in zip(labels, self.dims(v), strict=True):
                known = size.setdefault(label, e)
                if known == 1:
                    size[label] = e
                elif e not in (1, known):
                    text = f"contraction pairs a dimension of {known} with one of {e}"
                    raise InvalidGraph(text) if label in out else UnequalExtents(text, (known, e))
        step = Contract(tuple(lhs), tuple(rhs), tuple(out))
        return self.record(step, (x, y), [size[label] for label in out], self.dtype(x))

    def reshape(self, v: int, dims: Iterable[Extent]) -> int:
        """Row-major reshape. Raises InvalidGraph when the element counts differ."""
        dims = tuple(dims)
        if dims == self.dims(v):
            return v
        if ex.product(dims) != ex.product(self.dims(v)):
            raise InvalidGraph(f"cannot reshape {self.tensors[v]} to [{', '.join(map(str, dims))}]")
        if isinstance(self.steps[v], Reshape) and v not in self.bounds:
            return self.reshape(self.inputs[v][0], dims)
        return self.record(Reshape(), (v,), dims, self.dtype(v))

    def unpack(self, v: int, dtype: DType) -> int:
        """The numbers of a packed type in a tensor of bytes. Raises InvalidGraph where bytes of one value hold others."""
        *outer, last = self.dims(v)
        dims = (*outer, ex.product([last, dtype.per_byte]))
        if isinstance(self.steps[v], Reshape) and self.dims(stored := self.inputs[v][0])[-1:] == (last,):
            return self.reshape(self.unpack(stored, dtype), dims)
        byte = self.fill_value(v)
        if byte is None:
            return self.record(Unpack(), (v,), dims, dtype)
        numbers = unpacked(np.array([int(byte)], np.uint8), dtype)
        if (numbers != numbers[0]).any():
            raise InvalidGraph(f"bytes that are all {byte} hold different numbers")
        return self.fill(int(numbers[0]), dtype, dims)

    def transpose(self, v: int, perm: Sequence[int]) -> int:
        """Reordered dimensions."""
        if tuple(perm) == tuple(range(len(self.dims(v)))):
            return v
        if sorted(perm) != list(range(len(self.dims(v)))):
            raise InvalidGraph(f"{list(perm)} is no permutation of the dimensions of {self.tensors[v]}")
        return self.record(Transpose(tuple(perm)), (v,), [self.dims(v)[p] for p in perm], self.dtype(v))

    def expand(self, v: int, dims: Iterable[Extent]) -> int:
        """Broadcast to `dims`, ranks filled up with leading ones. Raises InvalidGraph when it does not fit."""
        target = broadcast([self.dims(v), tuple(dims)], "expand")
        v = self.reshape(v, (1,) * (len(target) - len(self.dims(v))) + self.dims(v))
        return v if target == self.dims(v) else self.record(Expand(), (v,), target, self.dtype(v))

    def slice(self, v: int, dim: int, start: int, count: Extent, step: int = 1) -> int:
        """`count` elements of one dimension from `start` on, every `step`-th (`step` may be negative). The last ones of a
        symbolic dimension start at a negative position."""
        (dim,) = self._dims(v, [dim])
        extent = self.dims(v)[dim]
        if count == extent and start == 0 and step == 1:
            return v
        if isinstance(count, int) and isinstance(extent, int) and count:
            last = start + (count - 1) * step
            if not (0 <= start < extent and 0 <= last < extent):
                raise InvalidGraph(f"slice {start}..{last} leaves dimension {dim} of {self.tensors[v]}")
            part = self._part(v, dim, min(start, last), max(start, last))
            if part is not None:
                return self.slice(part[0], dim, start - part[1], count, step)
        dims = list(self.dims(v))
        dims[dim] = count
        return self.record(Slice(dim, start, step), (v,), dims, self.dtype(v))

    def _part(self, v: int, dim: int, first: int, last: int) -> tuple[int, int] | None:
        """The operand of a concatenation along `dim` that has positions first to last, and where it begins in `v`."""
        if self.steps[v] != Concat(dim):
            return None
        begin = 0
        for part in self.inputs[v]:
            extent = self.dims(part)[dim]
            if not isinstance(extent, int) or begin > first:
                return None
            if last < begin + extent:
                return part, begin
            begin += extent
        return None

    def concat(self, values: Sequence[int], dim: int) -> int:
        """Operands one after the other. Raises InvalidGraph for symbolic extents that cannot be added."""
        if len(values) == 1:
            return values[0]
        (dim,) = self._dims(values[0], [dim])
        parts = [self.dims(v)[dim] for v in values]
        known = [p for p in parts if isinstance(p, int)]
        total: Extent = sum(known) if len(known) == len(parts) else ex.symbol("+".join(map(str, parts)))
        dims = list(self.dims(values[0]))
        dims[dim] = total
        return self.record(Concat(dim), values, dims, self.dtype(values[0]))

    def unit(self, v: int) -> Extent | None:
        """The positions that each operand of a concatenation has, or, where some are slices of values at the very place where
        they stand (a head whose first part alone is turned), that each of the others has, and slices a few times as many:
        the position in units tells which operand is read, all by the same index. None where nothing does."""
        step = self.steps[v]
        assert isinstance(step, Concat)
        sizes = [self.dims(a)[step.dim] for a in self.inputs[v]]
        if len(set(sizes)) == 1:
            return sizes[0]
        known = [e for e in sizes if isinstance(e, int)]
        unit, at = math.gcd(*known), 0
        if len(known) < len(sizes) or sum(known) > MOST_UNITS * unit:
            return None
        for a, size in zip(self.inputs[v], known, strict=True):
            if size != unit and self.steps[a] != Slice(step.dim, at):
                return None
            at += size
        return unit

    def iota(self, extent: Extent, dim: int, rank: int, dtype: DType) -> int:
        """0, 1, 2, ... along dimension `dim` of `rank`."""
        dims: list[Extent] = [1] * rank
        dims[dim % rank] = extent
        return self.record(Iota(dim % rank), (), dims, dtype)

    def choose(self, table: int, index: int) -> int:
        """Rows of a table by an index whose numbers it has."""
        return self.record(Choose(), (table, index), (*self.dims(index), *self.dims(table)[1:]), self.dtype(table))

    def opaque(self, label: str, inputs: Sequence[int], tensor: Tensor, output: int = 0) -> int:
        """A result of an operator that is not read."""
        return self.record(Opaque(label, output), inputs, tensor.dims, tensor.dtype)

    # --- asking ------------------------------------------------------------------------------------------------------
    def consumers(self) -> list[list[int]]:
        """For each value the steps that read it, in order."""
        users: list[list[int]] = [[] for _ in self.steps]
        for i, inputs in enumerate(self.inputs):
            for v in dict.fromkeys(inputs):
                users[v].append(i)
        return users

    def cone(self, values: Iterable[int], stop: Iterable[int] = ()) -> list[int]:
        """Every value that `values` depend on (themselves included), not looking behind `stop`; in order."""
        stops, seen, todo = set(stop), set(), list(values)
        while todo:
            v = todo.pop()
            if v not in seen:
                seen.add(v)
                if v not in stops:
                    todo.extend(self.inputs[v])
        return sorted(seen)

    def _dims(self, v: int, dims: Sequence[int]) -> tuple[int, ...]:
        rank = len(self.dims(v))
        if any(not -rank <= d < rank for d in dims):
            raise InvalidGraph(f"dimensions {list(dims)} do not exist in {self.tensors[v]}")
        return tuple(sorted({d % rank for d in dims}))

    def __str__(self) -> str:
        lines = []
        for i, (step, inputs, tensor) in enumerate(zip(self.steps, self.inputs, self.tensors, strict=True)):
            args = ", ".join(f"%{v}" for v in inputs)
            lines.append(f"%{i} = {step}({args}) : {tensor}")
        return "\n".join([*lines, "outputs " + ", ".join(f"%{v}" for v in self.outputs)])


def exact(value: Number) -> Fraction | float:
    """A number as an exact rational; inf and nan stay floats."""
    if isinstance(value, float) and not math.isfinite(value):
        return value
    return Fraction(value)


def broadcast(shapes: Sequence[Dims], what: str) -> Dims:
    """Numpy's broadcasting of dimensions. Raises InvalidGraph when they do not fit."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Extent] = []
    for i in range(-rank, 0):
        sizes = [s[i] for s in shapes if len(s) >= -i]
        wide = [e for e in dict.fromkeys(sizes) if e != 1]
        if len(wide) > 1:
            text = f"{what}: dimensions {', '.join(map(str, wide))} do not broadcast"
            raise UnequalExtents(text, (wide[0], wide[1]), broadcast=True)
        out.append(wide[0] if wide else 1)
    return tuple(out)
