"""Fragments of a graph and what is left of it, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mirage_cli.lax.fragments.key import key
from mirage_cli.lax.ir.joints import Parts
from mirage_cli.lax.ir.parts import in_parts, parted
from mirage_cli.lax.ir.program import Program


@dataclass(frozen=True, slots=True)
class LaxFragment:
    """A fragment: graph values that it reads and computes (`lax/ir/parts.py` has their order), and its program in normal form.
    `key` names equal ones; `growth` is that of the values as the model has them."""

    name: str
    program: Program
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[int, ...]
    key: str
    growth: float

    def storing(self, joins: Mapping[int, tuple[Parts, int, int]]) -> LaxFragment:
        """The fragment that stores some of its sources, by number, and reads two values instead. Raises InvalidGraph."""
        program = parted(self.program, {k: parts for k, (parts, _, _) in joins.items()})
        wholes = tuple(self.inputs[k] for k in in_parts(program))
        firsts = tuple(joins[k][1] if k in joins else v for k, v in enumerate(self.inputs))
        seconds = tuple(joins[k][2] for k in in_parts(program))
        return replace(
            self,
            program=program,
            inputs=(*firsts, *seconds),
            outputs=(*self.outputs, *wholes),
            steps=(*self.steps, *wholes),
            key=key(program),
        )


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A value that no fragment computes, and why."""

    value: int
    reason: str


@dataclass(slots=True)
class Partition:
    """The fragments of a graph (in topological order) and what was left."""

    fragments: list[LaxFragment] = field(default_factory=list)
    left: list[LeftAlone] = field(default_factory=list)
