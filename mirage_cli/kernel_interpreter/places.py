"""Values of a kernel's variables that are no numbers: types whose arguments are known, places, lambdas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from mirage_cli.kernel_interpreter.memory import Cells, Fault, Pointer
from mirage_cli.kernel_interpreter.numbers import Number
from mirage_cli.kernel_interpreter.rounding import ROUNDINGS
from mirage_cli.kernel_interpreter.strand import Strand

Run: TypeAlias = Callable[[Strand], Any]


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type whose static arguments are known."""

    name: str
    args: tuple[Any, ...] = ()


@dataclass(slots=True)
class Slot:
    """Where a variable lies in a strand's `env`; `refers`: it stands for another place."""

    number: int
    refers: bool = False


@dataclass(slots=True)
class Place:
    """A thing that can be read and written: an element, a variable."""

    get: Callable[[], Any]
    set: Callable[[Any], None]


@dataclass(slots=True)
class Closure:
    """A lambda with the variables around it."""

    parameters: Sequence[Slot]
    body: Run

    def __call__(self, s: Strand, *args: Any) -> Any:
        """Its result; of lanes that return at different places, each its own."""
        for slot, x in zip(self.parameters, args, strict=True):
            s.env[slot.number] = x
        before, left = s.active, s.left_call
        value, s.result = s.result, None
        s.left_call = np.zeros_like(s.active)
        s.calls += 1
        try:
            self.body(s)
            return s.result
        finally:
            s.active, s.left_call, s.result = before, left, value
            s.calls -= 1


def constant_place(value: Any) -> Place:
    """A place that can only be read."""

    def none(_: Any) -> None:
        raise Fault("this cannot be written")

    return Place(lambda: value, none)


def element_of(s: Strand, array: Any, k: Any) -> Place:
    """The place of an element."""
    if isinstance(array, Pointer):
        return Place(lambda: Number(s.load(array, k)), lambda v: s.store(array, k, s.arithmetic.number(v)))
    if not isinstance(array, Cells):
        return constant_place(array.element(s, k))
    if isinstance(k, np.ndarray):
        ks = np.unique(k[s.active])
        if len(ks) != 1:
            return _scattered(s, array, k, [int(x) for x in ks])
        k = int(ks[0])
    if len(array.dims) > 1:
        part = array.part(int(k))
        return Place(
            lambda: part, lambda v: part.set_all([s.merge(a, b) for a, b in zip(part.all(), v.all(), strict=True)])
        )
    at = array.place(int(k))
    return Place(lambda: _held(s, array, at), lambda v: _put(s, array, at, v))


def _held(s: Strand, array: Cells, at: int) -> Any:
    """The value of a register: arbitrary, where nothing was put into it."""
    value = array.values[at]
    return Number(s.arithmetic.arbitrary((s.count,))) if value is None else value


def _put(s: Strand, array: Cells, at: int, v: Any) -> None:
    """Put a value into a register, as its type holds it."""
    if isinstance(v, Number) and s.arithmetic.rounds and array.type in ROUNDINGS:
        v = Number(s.arithmetic.held(v.a, array.type))
    array.values[at] = s.merge(array.values[at], v)


def _scattered(s: Strand, array: Cells, k: Any, ks: Sequence[int]) -> Place:
    """An element whose number differs from lane to lane."""
    places = [(array.place(x), k == x) for x in ks]

    def get() -> Any:
        value = None
        for at, mine in places:
            with s.only(s.active & mine):
                value = s.merge(value, _held(s, array, at))
        return value

    def put(v: Any) -> None:
        for at, mine in places:
            with s.only(s.active & mine):
                _put(s, array, at, v)

    return Place(get, put)


def chosen(s: Strand, c: Any, a: Any, b: Any) -> Any:
    """Of two values the one that each lane has chosen."""
    if isinstance(a, Pointer) and b is None:
        return replace(a, null=~c if a.null is None else ~c | a.null)
    if isinstance(b, Pointer) and a is None:
        return replace(b, null=c if b.null is None else c | b.null)
    if isinstance(a, Pointer) and isinstance(b, Pointer):
        return replace(a, at=np.where(c, a.at, b.at))
    if isinstance(a, Number) or isinstance(b, Number):
        return Number(np.where(c, s.arithmetic.number(a).a, s.arithmetic.number(b).a))
    return np.where(c, a, b)
