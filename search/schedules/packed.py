"""Operands of products whose numbers are quantised, (q - zero) scale, which kernels read as they are stored.

What is multiplied is (q - zero), exact in 16 bits; scales are applied to the sums of blocks. Positions that share a scale
lie side by side, in multiples of 32.

On CPUs these are weights of the model, matrices that sessions pack (`Weights`): axes that are summed and axes that are not lie
apart, and a tile is a rectangle, so that only the outermost axis of either kind is shared out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import BF16, E4M3, F16, DType
from mirage_cli.lax.extents import Symbolic
from mirage_cli.lax.ir.parts import place_axes
from mirage_cli.lax.ir.program import Program, Slot
from mirage_cli.lax.ops import OPS
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE, BlockGraph, BlockOp, ThreadGraph

CHUNK = 16  #: bytes that are copied at a time
STEP = 32  #: positions that matrix instructions take at a time
DEPTHS = (128, 256, 512, 1024)  #: positions in an iteration
UNIT = 256  #: positions of which shares of a reduction over blocks are multiples
#: elementwise operations in the time of a number along columns, by its bits: 1.1 and 1.5 instructions, a third of one each
UNPACKING = {4: 0.4, 8: 0.5}
COLUMNS = 0.3  #: share of a step of 16 rows that preparing 8 columns takes


@dataclass(frozen=True, slots=True)
class Quantised:
    """An operand (numbers - zero) scale by the names of the inputs that it reads; `zero` may be a number, `scale` empty: 1."""

    numbers: str
    zero: str | int
    scale: str

    @property
    def beside(self) -> tuple[str, ...]:
        """The inputs that go with blocks of numbers."""
        return tuple(v for v in (self.scale, self.zero) if v and isinstance(v, str))


def type_of(program: Program, value: str) -> DType:
    """The type of an input's elements."""
    return program.sources[program.input(value).source].dtype


def quantised(program: Program, graph: BlockGraph, loop: str, o: BlockOp) -> Quantised | None:
    """What an operator of the loop computes, if that is an operand of quantised numbers which lie along the loop."""
    loads = {x.name: x.source_value or "" for x in graph.ops if x.op == "load"}
    if o.phase != BODY or o.thread is None or any(i not in loads for i in o.inputs):
        return None
    found = _formula(o.thread, [loads[i] for i in o.inputs], lambda v: type_of(program, v).kind == "int")
    if found is None or not found.scale:
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
    return _as_quantised(_values(thread, args, whole)[-1])


def _values(thread: ThreadGraph, args: Sequence[str | None], whole: Callable[[str], bool]) -> list[Any]:
    """What is known of the operands of a function, and then of each of its nodes; None where that is nothing."""
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
                values.append(None)
    return values


def _as_quantised(value: Any) -> Quantised | None:
    match value:
        case Quantised() as found:
            return found
        case (str(q), zero):
            return Quantised(q, zero, "")
    return None


def operands(program: Program, graph: BlockGraph) -> dict[str, Quantised]:
    """The operands of products in the loop that are quantised, by name."""
    of_products = {
        i for o in graph.ops if o.op == "contract" and o.phase == BODY and o.dtype is not None for i in o.inputs
    }
    own = {o.name: quantised(program, graph, graph.loop or "", o) for o in graph.ops if o.name in of_products}
    return {name: q for name, q in own.items() if q is not None}


@dataclass(frozen=True, slots=True)
class Columns:
    """An operand (numbers - zero) scale along the columns of strips, by the names of the operators that load numbers and have
    scales ("": 1); 0 where `shown` says so."""

    numbers: str
    bits: int
    zero: int
    scale: str
    shown: bool

    def in_registers(self, members: int, across: int) -> bool:
        """True if the warps of a group unpack it in registers, each for itself; else a group makes a tile of 16 bits."""
        return across == 1 and (members == 1 or self.bits < 8)


def columns(program: Program, graph: BlockGraph) -> dict[str, Columns]:
    """The operands of products with results of products that are stored in 4 or 8 bits, and those of the products that these
    results are made of: attention behind caches. A scale has no axis of the loop."""
    found = dict[str, Columns]()
    products = [o for o in graph.ops if o.op == "contract" and o.phase == BODY and o.dtype in (F16, BF16)]
    axes = graph.axes_of(program)
    early = {o.name for o in graph.ops if o.phase == PROLOGUE}
    for o in graph.ops if any(graph.loop in p.over for p in products) else ():
        if any(o.name in p.inputs for p in products) and graph.loop in axes[o.name] and o.phase == BODY:
            own = _columns(program, graph, o)
            if own is not None and own.scale in ("", *early):
                found[o.name] = own
    return found


def _columns(program: Program, graph: BlockGraph, o: BlockOp) -> Columns | None:
    """What an operator of the loop is of stored numbers."""
    loads = {x.name: type_of(program, x.source_value or "") for x in graph.ops if x.op == "load"}

    def stored(name: str) -> bool:
        return name in loads and (loads[name] == E4M3 or (loads[name].kind == "int" and loads[name].bits in (4, 8)))

    if o.op == "load":
        return Columns(o.name, loads[o.name].bits, 0, "", False) if stored(o.name) else None
    if o.thread is None:
        return None
    values, last = _values(o.thread, o.inputs, stored), o.thread.nodes[-1]
    shown = last.op == "where" and _is_zero(o.thread, last.inputs[2])
    q = _as_quantised(values[last.inputs[1]] if shown else values[-1])
    if shown and q is None and isinstance(only := values[last.inputs[1]], str):
        q = Quantised(only, 0, "")
    if q is None or not stored(q.numbers) or not isinstance(q.zero, int) or (loads[q.numbers] == E4M3 and q.zero):
        return None
    return Columns(q.numbers, loads[q.numbers].bits, q.zero, q.scale, shown)


def _is_zero(thread: ThreadGraph, value: int) -> bool:
    return value >= thread.arity and thread.nodes[value - thread.arity].value == 0


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


# --- CPUs ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Matrix:
    """How a stored tensor lies as a matrix: elements between columns and between summed positions, one of which is 1, and
    the number of these."""

    row: int
    depth: int
    deep: int


@dataclass(frozen=True, slots=True)
class Weights:
    """A constant operand of quantised numbers: its free axes and its summed ones in the order in which they are stored (in
    front may be those of a batch, of which a block has one position), how its inputs lie (nothing of those that have one
    element), how many positions share a scale, and whether the model `rounds` what they are multiplied with to 8 bits, or they
    are whole numbers that only `levels` are multiplied with."""

    of: Quantised
    free: tuple[str, ...]
    summed: tuple[str, ...]
    matrices: Mapping[str, Matrix]
    block: int
    rounds: bool
    levels: bool = False

    @property
    def in_bytes(self) -> bool:
        """True if integers are multiplied."""
        return self.rounds or self.levels


def weights(program: Program, graph: BlockGraph) -> dict[str, Weights]:
    """The operands of products that a CPU reads as sessions have packed them, by name."""
    found = ((o.name, _weights(program, graph, o)) for o in graph.ops if o.op in ("load", "thread"))
    return {name: w for name, w in found if w is not None}


def _weights(program: Program, graph: BlockGraph, o: BlockOp) -> Weights | None:
    readers = [r for r in graph.ops if o.name in r.inputs]
    overs = {frozenset(r.over) for r in readers}
    if (
        o.name in graph.outputs
        or len(overs) != 1
        or any(r.op != "contract" or r.inputs[0] == r.inputs[1] for r in readers)
    ):
        return None
    loads = {x.name: x.source_value or "" for x in graph.ops if x.op == "load"}
    q = _quantised_numbers(program, o, loads)
    if q is None or not all(program.sources[program.input(v).source].constant for v in (q.numbers, *q.beside)):
        return None
    (over,) = overs
    axes = graph.axes_of(program)
    batch = {a for r in readers for a in axes[r.inputs[0]] & axes[r.inputs[1]] if a not in over} | place_axes(program)
    found = (
        _as_matrices(program, q, over, {*graph.grid, graph.loop}, frozenset(batch)) if batch <= {*graph.grid} else None
    )
    whole = not q.scale and (isinstance(q.zero, int) or type_of(program, q.zero).kind == "int")
    if found is None or not whole:
        return found
    others = {next(i for i in r.inputs if i != o.name) for r in readers}
    return replace(found, levels=all(_are_levels(program, graph, x) for x in graph.ops if x.name in others))


def _are_levels(program: Program, graph: BlockGraph, o: BlockOp) -> bool:
    """True if an operator makes whole numbers that bytes hold, less one number for all."""
    if o.op == "load":
        return program.sources[program.input(o.source_value).source].levels
    if o.thread is None or (last := o.thread.nodes[-1]).op not in OPS or not OPS[last.op].whole:
        return False
    axes = [graph.axes_of(program)[i] for i in o.inputs]
    for n in o.thread.nodes:
        axes.append(frozenset[str]().union(*(axes[i] for i in n.inputs)))
    return not any(axes[i] for i in last.inputs[1:])


def _quantised_numbers(program: Program, o: BlockOp, loads: Mapping[str, str]) -> Quantised | None:
    """What an operator that reads loads alone, or a load, is of whole numbers."""

    def whole(v: str) -> bool:
        return type_of(program, v).kind == "int"

    if o.op == "load":
        found: Quantised | None = Quantised(loads[o.name], 0, "")
    else:
        read = o.thread is not None and all(i in loads for i in o.inputs)
        found = _formula(o.thread, [loads[i] for i in o.inputs], whole) if read and o.thread is not None else None
    suits = found is not None and whole(found.numbers) and type_of(program, found.numbers).bits in (2, 4, 8)
    return found if suits else None


def _as_matrices(
    program: Program, q: Quantised, over: frozenset[str], tiled: Collection[str | None], batch: frozenset[str]
) -> Weights | None:
    """Numbers and what goes with their blocks as matrices, if they are; a batch has one for each position."""
    slots = [s for s in program.input(q.numbers).access if s.axis is not None and s.extent != 1]
    stored = [s.axis for s in slots if s.axis is not None and s.axis not in batch]
    free, summed = ([a for a in stored if (a in over) == inside] for inside in (False, True))
    known = all(isinstance(program.extent(a), int) for a in stored)
    if not known or not free or not summed or not over <= {*stored}:
        return None
    shared = [a for a in summed if any(a in program.axes_of(v) for v in q.beside)]
    block = math.prod(e for a in summed[len(shared) :] if isinstance(e := program.extent(a), int))
    per = 32 // type_of(program, q.numbers).bits
    if shared != summed[: len(shared)] or (shared and block % per) or not {*free[1:], *summed[1:]}.isdisjoint(tiled):
        return None
    matrices = dict[str, Matrix]()
    for v in (q.numbers, *q.beside):
        axes = program.axes_of(v)
        if v != q.numbers and not axes:
            continue
        wanted = {*stored} if v == q.numbers else {*free, *shared}
        matrix = _matrix(program, program.input(v).access, frozenset(free), batch)
        if {*axes} & {*wanted} != wanted or matrix is None or not _has_vectors(type_of(program, v)):
            return None
        matrices[v] = matrix
    rounds = program.sources[program.input(q.numbers).source].rounds
    return Weights(q, tuple(free), tuple(summed), matrices, block, rounds)


def _has_vectors(dtype: DType) -> bool:
    return dtype.name in ("f32", "f16", "bf16") or (dtype.kind == "int" and dtype.bits <= 8)


def _matrix(program: Program, access: Sequence[Slot], free: frozenset[str], batch: frozenset[str]) -> Matrix | None:
    """A stored tensor as a matrix, if its free axes lie on one side and are walked, as the others are, in one stride; the
    matrices of a batch, which lies in front, are one below the other."""
    every = [s for s in access if s.extent != 1]
    slots = [s for s in every if s.axis not in batch]
    if slots != every[len(every) - len(slots) :]:
        return None
    places = [n for n, s in enumerate(slots) if s.axis in free]
    others = [n for n, s in enumerate(slots) if s.axis is not None and s.axis not in free]
    first = not others or max(places) < min(others)
    cut = max(places) + 1 if first else max(others) + 1
    groups = (slots[:cut], slots[cut:])
    if (not first and max(others) > min(places)) or not all(_one_stride(program, g) for g in groups):
        return None
    wide, deep = (
        math.prod(e for s in g if isinstance(e := s.extent, int)) for g in (groups if first else groups[::-1])
    )
    if wide == 1 or not all(isinstance(s.extent, int) for s in slots) or (batch and not (first and deep > 1)):
        return None
    return Matrix(deep, 1, deep) if first and deep > 1 else Matrix(1, wide, deep)


def _one_stride(program: Program, slots: Sequence[Slot]) -> bool:
    """True if positions along axes lie side by side: behind the outermost one that is walked all are walked whole."""
    walked = [s for n, s in enumerate(slots) if any(t.axis is not None for t in slots[: n + 1])]
    return all(s.axis is not None and program.extent(s.axis) == s.extent for s in walked[1:])
