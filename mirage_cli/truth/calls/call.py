"""One node as its meaning sees it: inputs, attributes, the opset's version, the limits of the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto

from mirage_cli.errors import OutOfTime, Refused
from mirage_cli.truth.calls.values import Array, Load, Series, Tensor, Value, stored

Results: TypeAlias = Value | Sequence[Value]
Meaning: TypeAlias = Callable[["Call"], Results]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Limits:
    """Limits of a run: until when, multiply-adds of one operator, elements of one value; 0 is no limit."""

    until: float = 0.0
    work: float = 0.0
    elements: int = 0

    def check_time(self) -> None:
        """Raise OutOfTime after the end."""
        if self.until and time.monotonic() > self.until:
            raise OutOfTime("the reference in float64 took longer than it may")

    def check_work(self, multiply_adds: float) -> None:
        """Raise Refused where one operator needs more multiply-adds than allowed."""
        if self.work and multiply_adds > self.work:
            raise Refused(f"needs {multiply_adds:.3g} multiply-adds, more than the {self.work:.3g} allowed")

    def check_shape(self, shape: Sequence[int]) -> None:
        """Raise Refused where a value of a shape has more elements than allowed."""
        count = math.prod(int(n) for n in shape)
        if self.elements and count > self.elements:
            raise Refused(f"a value has {count} elements, more than the {self.elements} allowed")


@dataclass(frozen=True)
class Call:
    """A node at the moment it is evaluated.

    `version` is that of the model's opset of the node's domain. `evaluate` runs a sub-graph, by the attribute's name, on
    values of its inputs; `casts` is false where casts to narrower types keep their numbers, `overflows` where they keep
    those that are too large for the type, `hidden` where scores and values of hidden
    keys are not read.
    """

    node: NodeProto
    version: int
    inputs: tuple[Value, ...]
    attributes: Mapping[str, AttributeProto]
    limits: Limits
    load: Load | None
    casts: bool
    evaluate: Callable[[str, Sequence[Value]], list[Value]]
    hidden: bool = True
    overflows: bool = True

    def given(self, index: int) -> bool:
        """True if an input is there."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        """An input, whatever it is; None where it was left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def tensor(self, index: int) -> Tensor:
        """An input that has to be a tensor."""
        value = self.value(index)
        if not isinstance(value, Tensor):
            raise Refused(f"input {index} is not a tensor" if value is not None else f"input {index} is missing")
        return value

    def series(self, index: int) -> Series:
        """An input that has to be a sequence."""
        value = self.value(index)
        if not isinstance(value, Series):
            raise Refused(f"input {index} is not a sequence")
        return value

    def array(self, index: int) -> Array:
        """The numbers of an input."""
        return self.tensor(index).data

    def maybe(self, index: int) -> Array | None:
        """The numbers of an input, None where it was left out."""
        return self.array(index) if self.given(index) else None

    def arrays(self) -> list[Array]:
        """The numbers of all inputs."""
        return [self.array(i) for i in range(len(self.inputs))]

    def scalar(self, index: int) -> Any:
        """The one element of an input."""
        data = self.array(index)
        if data.size != 1:
            raise Refused(f"input {index} has {data.size} elements, not one")
        return data.reshape(())[()]

    def index_list(self, index: int) -> list[int]:
        """An input of integers as a list."""
        return [int(x) for x in self.array(index).reshape(-1)]

    def like(self, data: Array | np.generic, index: int = 0) -> Tensor:
        """Numbers as a tensor of the element type of an input."""
        return Tensor(np.asarray(data), self.tensor(index).type)

    def wants(self, output: int) -> bool:
        """True if an output has a name."""
        return output < len(self.node.output) and bool(self.node.output[output])

    def has(self, name: str) -> bool:
        """True if an attribute is set."""
        return name in self.attributes

    def integer(self, name: str, default: int | None = None) -> int:
        """An attribute that is an integer; Refused where it is absent and has no default."""
        return int(self.attributes[name].i) if name in self.attributes else int(_required(name, default))

    def number(self, name: str, default: float | None = None) -> float:
        """An attribute that is a float32, as a number."""
        if name in self.attributes:
            return float(self.attributes[name].f)
        return float(np.float32(_required(name, default)))

    def text(self, name: str, default: str | None = None) -> str:
        """An attribute that is a string."""
        if name in self.attributes:
            return self.attributes[name].s.decode("utf-8", "replace")
        return str(_required(name, default))

    def integers(self, name: str) -> list[int] | None:
        """An attribute that is a list of integers, None where it is absent."""
        return [int(x) for x in self.attributes[name].ints] if name in self.attributes else None

    def numbers(self, name: str) -> list[float] | None:
        """An attribute that is a list of float32, None where it is absent."""
        return [float(x) for x in self.attributes[name].floats] if name in self.attributes else None

    def texts(self, name: str) -> list[str] | None:
        """An attribute that is a list of strings, None where it is absent."""
        if name not in self.attributes:
            return None
        return [x.decode("utf-8", "replace") for x in self.attributes[name].strings]

    def stored(self, name: str) -> Tensor | None:
        """An attribute that is a tensor, None where it is absent."""
        return stored(self.attributes[name].t, self.load) if name in self.attributes else None

    def proto(self, name: str) -> TensorProto | TypeProto | None:
        """An attribute that is a type, None where it is absent."""
        return self.attributes[name].tp if name in self.attributes else None


def _required(name: str, default: Any) -> Any:
    if default is None:
        raise Refused(f"attribute {name!r} is missing")
    return default


def meaning(*names: str, domain: str = "", since: int = 0) -> Callable[[F], F]:
    """Mark a function as the meaning of operators of a domain.

    `since` other than 0: the operator is known from that version of the opset on although no schema of ONNX says so.
    """

    def mark(function: F) -> F:
        known = getattr(function, "means", ())
        function.means = (*known, *((domain, name, since) for name in names))  # type: ignore[attr-defined]
        return function

    return mark


def at_axis(axis: int, rank: int) -> int:
    """An axis that may count from the end, counted from the front; Refused outside the rank."""
    if not -rank <= axis < max(rank, 1):
        raise Refused(f"axis {axis} is outside a tensor of rank {rank}")
    return axis % rank if rank else 0


def broadcast(call: Call, *arrays: Array) -> tuple[int, ...]:
    """The common shape of arrays, checked against the limits."""
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    call.limits.check_shape(shape)
    return shape
