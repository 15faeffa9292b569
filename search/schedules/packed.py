"""Operands of products whose numbers are quantised, (q - zero) scale, which kernels read as they are stored.

What is multiplied is (q - zero), exact in 16 bits; scales are applied to the sums of blocks. Positions that share a scale
lie side by side, in multiples of 32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.extents import Symbolic
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BODY, BlockGraph, BlockOp, ThreadGraph

CHUNK = 16  #: bytes that are copied at a time
STEP = 32  #: positions that matrix instructions take at a time
DEPTHS = (128, 256, 512, 1024)  #: positions in an iteration
UNIT = 256  #: positions of which shares of a reduction over blocks are multiples
COLUMNS = 0.3  #: share of a step of 16 rows that preparing 8 columns takes


@dataclass(frozen=True, slots=True)
class Quantised:
    """An operand (numbers - zero) scale by the names of the inputs that it reads; `zero` may be a number."""

    numbers: str
    zero: str | int
    scale: str

    @property
    def beside(self) -> tuple[str, ...]:
        """The inputs that go with blocks of numbers."""
        return (self.scale, *([self.zero] if isinstance(self.zero, str) else []))


def type_of(program: Program, value: str) -> DType:
    """The type of an input's elements."""
    return program.sources[program.input(value).source].dtype


def quantised(program: Program, graph: BlockGraph, loop: str, o: BlockOp) -> Quantised | None:
    """What an operator of the loop computes, if that is an operand of quantised numbers which lie along the loop."""
    loads = {x.name: x.source_value or "" for x in graph.ops if x.op == "load"}
    if o.phase != BODY or o.thread is None or any(i not in loads for i in o.inputs):
        return None
    found = _formula(o.thread, [loads[i] for i in o.inputs], lambda v: type_of(program, v).kind == "int")
    if found is None:
        return None
    numbers = type_of(program, found.numbers)
    depth = [a for a in program.axes_of(found.numbers) if a not in program.axes_of(found.scale)]
    inner = math.prod(e if isinstance(e := program.extent(a), int) else 0 for a in depth)
    suits = numbers.kind == "int" and numbers.bits in (4, 8) and inner and inner % STEP == 0
    of_blocks = [program.axes_of(v) for v in found.beside]
    suits = suits and all(loop in axes and axes <= program.axes_of(found.numbers) for axes in of_blocks)
    return found if suits and len(set(of_blocks)) == 1 else None


def _formula(thread: ThreadGraph, args: Sequence[str], whole: Callable[[str], bool]) -> Quantised | None:
    """A function of inputs, of which some are `whole` numbers, as (numbers - zero) scale."""
    values: list[Any] = list(args)
    for n in thread.nodes:
        inner = [values[i] for i in n.inputs]
        match n.op, inner:
            case "const", _:
                values.append(n.value)
            case "centred", [str(q), str(zero)]:
                values.append((q, zero))
            case "centred", [str(q), Fraction() as zero] if zero.denominator == 1:
                values.append((q, int(zero)))
            case "mul", [str(scale), (q, zero)] | [(q, zero), str(scale)]:
                values.append(Quantised(q, zero, scale))
            case "mul", [str(x), str(y)]:
                values.append(Quantised(*((x, 0, y) if whole(x) else (y, 0, x))))
            case _:
                return None
    return found if isinstance(found := values[-1], Quantised) else None


def operands(program: Program, graph: BlockGraph) -> dict[str, Quantised]:
    """The operands of products in the loop that are quantised, by name."""
    of_products = {
        i for o in graph.ops if o.op == "contract" and o.phase == BODY and o.dtype is not None for i in o.inputs
    }
    own = {o.name: quantised(program, graph, graph.loop or "", o) for o in graph.ops if o.name in of_products}
    return {name: q for name, q in own.items() if q is not None}


def in_every_product(graph: BlockGraph, found: Mapping[str, Quantised]) -> bool:
    """True if every product of the loop has a quantised operand: tiles of the other operands are not padded then."""
    products = [o for o in graph.ops if o.op == "contract" and o.phase == BODY]
    return all(found.keys() & set(o.inputs) for o in products)


def inner_depth(program: Program, q: Quantised) -> int:
    """Positions that share a scale."""
    inner = [a for a in program.axes_of(q.numbers) if a not in program.axes_of(q.scale)]
    return math.prod(e for a in inner if isinstance(e := program.extent(a), int))


def copied(program: Program, value: str, loop: str, positions: int) -> int:
    """The bytes (16, 8 or 4) in which so many neighbours along the loop are copied from where they begin. Raises Refused where
    that is impossible."""
    size, strides = type_of(program, value).size, list[float]()
    stride = ex.ONE
    slots = [s for s in program.input(value).access if s.extent != 1]
    for s in reversed(slots):
        factor = stride.factor if isinstance(stride, Symbolic) else stride
        strides += [factor * (positions if s.axis == loop else 1) * size, factor * s.offset * size]
        stride = ex.product([stride, s.extent])
    if slots and slots[-1].axis == loop:
        for unit in (CHUNK, 8, 4):
            if all(x % unit == 0 for x in strides):
                return unit
    raise Refused(f"{positions} neighbours of {value} cannot be copied at once")


def may_be_copied(program: Program, value: str, loop: str, positions: int) -> bool:
    """True if `copied` has an answer."""
    try:
        return copied(program, value, loop, positions) > 0
    except Refused:
        return False
