"""Specifications of a library's operators: its tensors, its symbols, and where the symbols' values come from."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirage_cli.errors import InvalidGraph, Refused, WrongTensor
from mirage_cli.lax import extents
from mirage_cli.lax.dtypes import BY_NAME, DType
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.program import MAX_TENSORS

# The tables of templates/include/mirage/ort_shapes.hpp have these sizes.
MAX_RANK, MAX_SYMBOLS, MAX_FACTORS = 16, 32, 6


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of an operator: a dense row-major tensor."""

    name: str
    dtype: DType
    dims: tuple[Extent, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.dims))}]"


@dataclass(frozen=True, slots=True)
class Recovery:
    """The place at which a symbol is found at run time: dimension `dim` of input `input`, divided by the rest of its
    extent; or that dimension and `more`."""

    symbol: str
    input: int
    dim: int
    more: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """A symbol that no shape tells: the number in input `input`, which lies in the host's memory, or symbol `least` where
    that is more; or, with no input, the sum of symbols `least` and `more`."""

    symbol: str
    least: str
    input: int = -1
    more: str = ""


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """An operator of the library: fragment `id` under the name `op_type`, with `symbols` in the order of `extents`."""

    id: str
    op_type: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: tuple[str, ...] = ()
    has_cuda: bool = False
    others: tuple[str, ...] = ()  #: the kinds of its kernels beside those for CPUs and CUDA (`backends/others.py`)
    room: Room | None = None
    least: tuple[tuple[Extent, int], ...] = ()  #: of extents of the inputs: kernels read so many positions

    def to_json(self) -> dict[str, Any]:
        """The description in files that `operator_spec` reads back."""

        def tensors(found: tuple[TensorSpec, ...]) -> list[Any]:
            return [{"name": t.name, "dtype": t.dtype.name, "dims": list(map(extents.to_json, t.dims))} for t in found]

        described = {"inputs": tensors(self.inputs), "outputs": tensors(self.outputs)}
        least = {"least": [[extents.to_json(e), n] for e, n in self.least]} if self.least else {}
        return {"op_type": self.op_type, **described, "symbols": list(self.symbols), **least}

    def validate(self) -> None:
        """Raise InvalidGraph where the description contradicts itself, Refused where it exceeds the tables."""
        if not re.fullmatch(r"[0-9A-Za-z]{1,64}", self.id):
            raise InvalidGraph(f"fragment identifier {self.id!r} is not made of letters and digits")
        if not re.fullmatch(r"[A-Za-z_][0-9A-Za-z_]*", self.op_type):
            raise InvalidGraph(f"operator name {self.op_type!r} is not an identifier")
        tensors = self.inputs + self.outputs
        dims = [*(d for t in tensors for d in t.dims), *(extent for extent, _ in self.least)]
        used = {n for dim in dims for n in extents.names(dim)}
        if used - set(self.symbols) or len(set(self.symbols)) != len(self.symbols):
            raise InvalidGraph(f"{self.op_type}: symbols {sorted(used)} are used, {list(self.symbols)} declared")
        negative = [t for t in tensors for dim in t.dims if (dim if isinstance(dim, int) else dim.factor) < 0]
        if negative or not self.outputs:
            raise InvalidGraph(f"{self.op_type}: {negative[0] if negative else 'an operator without outputs'}")
        for what, size, limit in (
            ("inputs", len(self.inputs), MAX_TENSORS),
            ("outputs", len(self.outputs), MAX_TENSORS),
            ("symbols", len(self.symbols), MAX_SYMBOLS),
            ("dimensions", max(len(t.dims) for t in tensors), MAX_RANK),
            (
                "symbols in one dimension",
                max((len(extents.names(d)) for d in dims), default=0),
                MAX_FACTORS,
            ),
        ):
            if size > limit:
                raise Refused(f"{self.op_type}: {size} {what}; a library holds at most {limit}")
        self.recoveries()

    def recoveries(self) -> tuple[Recovery, ...]:
        """One step for each symbol, in an order in which each needs only symbols that are already known.

        A dimension that is the symbol alone comes before a multiple of it, and that before a product with others:
        the earlier cannot be ambiguous when an extent is 0. A symbol that is a sum may be told by a dimension that it is
        more than. Raises Refused for a symbol that no input tells.
        """
        steps: list[Recovery] = []
        known: set[str] = set() if self.room is None else {self.room.symbol}
        while len(known) < len(self.symbols):
            step = self._factor(known) or self._sum(known)
            if step is None:
                lost = ", ".join(s for s in self.symbols if s not in known)
                shapes = "; ".join(map(str, self.inputs))
                raise Refused(
                    f"{self.op_type}: the value of {lost} cannot be computed from the inputs' shapes ({shapes})"
                )
            steps.append(step)
            known.add(step.symbol)
        return tuple(steps)

    @property
    def _places(self) -> list[tuple[int, int, Extent]]:
        """Every dimension of the inputs."""
        return [(i, d, extent) for i, tensor in enumerate(self.inputs) for d, extent in enumerate(tensor.dims)]

    def _factor(self, known: Collection[str]) -> Recovery | None:
        """The best place of a symbol that is a dimension, or a factor of one whose other factors are known."""
        candidates = [
            (len(extent.names), extent.factor != 1, i, d, unknown[0])
            for i, d, extent in self._places
            if isinstance(extent, extents.Symbolic) and extent.factor > 0
            if len(unknown := [n for n in extent.names if n not in known]) == 1
        ]
        if not candidates:
            return None
        *_, i, d, symbol = min(candidates)
        return Recovery(symbol, i, d)

    def _sum(self, known: Collection[str]) -> Recovery | None:
        """The first place of a dimension of which a symbol is the sum with a number."""
        for symbol in (s for s in self.symbols if s not in known):
            for i, d, extent in self._places:
                if more := extents.difference(extents.symbol(symbol), extent):
                    return Recovery(symbol, i, d, more)
        return None

    def solve(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The symbols' values for given input shapes; WrongTensor names the input that does not fit.

        The same computation as in ort_shapes.hpp, for callers that use the C entry points.
        """
        if len(shapes) != len(self.inputs):
            raise WrongTensor(f"{self.op_type}: {len(shapes)} inputs, expected {len(self.inputs)}")
        for i, tensor in enumerate(self.inputs):
            if len(shapes[i]) != len(tensor.dims):
                raise self._mismatch(i, shapes[i], {})
        values: dict[str, int] = {}
        for step in self.recoveries():
            extent = shapes[step.input][step.dim]
            if step.more:
                values[step.symbol] = extent + step.more
                continue
            rest = extents.quotient(self.inputs[step.input].dims[step.dim], extents.symbol(step.symbol))
            divisor = extents.value(rest, values) if rest is not None else 0
            if divisor == 0 or extent % divisor:
                raise self._mismatch(step.input, shapes[step.input], values)
            values[step.symbol] = extent // divisor
        for i, tensor in enumerate(self.inputs):
            if any(extents.value(dim, values) != n for dim, n in zip(tensor.dims, shapes[i], strict=True)):
                raise self._mismatch(i, shapes[i], values)
        for dim, least in self.least:
            if (found := extents.value(dim, values)) < least:
                raise WrongTensor(f"{self.op_type}: {dim} is {found}, and {least} positions are read")
        return values

    def _mismatch(self, index: int, shape: Sequence[int], values: Mapping[str, int]) -> WrongTensor:
        tensor = self.inputs[index]
        known = ", ".join(f"{name} = {value}" for name, value in values.items())
        expected = f"[{', '.join(map(str, tensor.dims))}]" + (f" with {known}" if known else "")
        return WrongTensor(
            f"{self.op_type}: input {index} '{tensor.name}' has shape {list(shape)}, expected {expected}"
        )


def operator_spec(identifier: str, data: Mapping[str, Any], kinds: Collection[str] = ()) -> OperatorSpec:
    """The operator that `operator` of a muGraph file describes, with kernels of these kinds. Raises InvalidGraph
    when it is not well-formed."""

    def tensor(t: Mapping[str, Any]) -> TensorSpec:
        return TensorSpec(t["name"], BY_NAME[t["dtype"]], tuple(extents.from_json(d) for d in t["dims"]))

    try:
        inputs, outputs = (tuple(tensor(t) for t in data[key]) for key in ("inputs", "outputs"))
        others = tuple(sorted(set(kinds) - {"cpu", "cuda"}))
        symbols = tuple(data["symbols"])
        least = tuple((extents.from_json(e), int(n)) for e, n in data.get("least", ()))
        return OperatorSpec(identifier, data["op_type"], inputs, outputs, symbols, "cuda" in kinds, others, least=least)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise InvalidGraph(f"muGraph file of {identifier}: missing or wrong field {e} of the operator") from None


@dataclass(frozen=True, slots=True)
class KernelSource:
    """The rendered sources of a fragment; see templates/include/mirage/entry.h for what they define."""

    id: str
    cpp: str | None
    cu: str | None = None
    others: Mapping[str, str] = field(default_factory=dict)  #: of other kinds
