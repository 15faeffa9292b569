"""The instructions and types that kernels are made of, one entry each, by name. A new one is a function with `@instruction`,
or a class in `TYPES`; the compiler of statements (`statements.py`) knows none of them by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_cli.kernel_interpreter.memory import Unknown

Meaning = Callable[..., Any]  #: (strand, static arguments, *arguments)


@dataclass(frozen=True, slots=True)
class Instruction:
    """A function of the headers: what it does to a strand. Arguments with numbers in `places` are handed on as places."""

    meaning: Meaning
    places: frozenset[int] = frozenset()


INSTRUCTIONS: dict[str, Instruction] = {}
OVERLOADS: dict[str, dict[int, Meaning]] = {}  #: instructions of one name by how many static arguments they have
TYPES: dict[str, Any] = {}  #: types with functions or constants of their own, made of static arguments
STRUCTS: dict[str, Callable[..., Any]] = {}  #: values of several parts: made of (strand, static arguments, *parts)
ARRAYS: dict[str, Callable[[Sequence[Any]], Sequence[int]]] = {}  #: types that are registers, with their dimensions
METHODS: dict[str, Meaning] = {}  #: member functions of registers: (strand, cells, *arguments)
EACH: dict[str, tuple[Sequence[str], Callable[[Sequence[Any]], Sequence[int]]]] = {}  #: loops over registers
LANES: dict[str, Callable[[Any, Sequence[Any]], Any]] = {}  #: which lanes have elements in loops over registers
LOOPS: dict[str, Callable[..., Any]] = {}  #: how loops run that have a macro in front: see `cpu.VectorLoop`
PLACES: dict[str, frozenset[int]] = {}  #: arguments of functions of types that are handed on as places
CONVERSIONS: dict[str, Callable[[Any, Any], Any]] = {}  #: what a value is as one of another type
POINTERS: dict[str, Callable[[Any, Any], Any]] = {}  #: what a place in memory is as one of a type that is no number
ROLES: set[str] = set()  #: names that tell that a kernel's warps have roles of their own and wait for one another
GRID: set[str] = set()  #: names of instructions with which all blocks of a kernel put results together
STAGES: set[str] = set()  #: names of instructions with which all blocks of a kernel wait for one another
CONSTANTS: dict[str, str] = {}  #: names of numbers in the headers


def instruction(name: str, places: Sequence[int] = (), statics: Sequence[int] = ()) -> Callable[[Meaning], Meaning]:
    """Register the meaning of an instruction; with `statics` that of calls with so many static arguments."""

    def register(meaning: Meaning) -> Meaning:
        known = OVERLOADS.setdefault(name, {})
        known.update(dict.fromkeys(statics, meaning))
        chosen = (lambda s, static, *args: known[len(static)](s, static, *args)) if statics else meaning
        INSTRUCTIONS[name] = Instruction(chosen, frozenset(places))
        return meaning

    return register


def find(name: str) -> Instruction | None:
    """The instruction called so."""
    return INSTRUCTIONS.get(name)


def struct(name: str) -> Callable[..., Any] | None:
    """A function that makes a value of several parts; parameters of kernels have any members."""
    kernel = name.removeprefix("Parameters")
    if kernel != name:
        return lambda s, static: STRUCTS["Parameters"](s, (kernel,))
    return STRUCTS.get(name)


def dims(name: str, args: Sequence[Any]) -> Sequence[int]:
    """The dimensions that a value of a type has in registers."""
    return ARRAYS[name](args) if name in ARRAYS else ()


def type_of(value: Any) -> Any:
    """The meaning of a type, with its arguments. Raises Unknown."""
    if value.name not in TYPES:
        raise Unknown(f"nothing is known of the type {value.name}")
    return TYPES[value.name](*value.args)


def member_of(value: Any, name: str) -> Meaning:
    """A function of a type: (strand, static arguments, *arguments)."""
    member: Meaning = getattr(type_of(value), name)
    return member


def constant(value: Any, name: str) -> Any:
    """A constant of a type."""
    return getattr(type_of(value), name)
