"""TileProgram: a custom kernel with every decision made, node by node; rendering only spells it out.

A *buffer* is a tile at a place: in shared memory (on the CPU: in scratch), in a ring of shared tiles that loads run ahead
in, or in matrix registers ("fragment"). A buffer is a matrix of two groups of axes, rows and columns; within a group axes
are row-major. Axes of which a block holds one position have no place in buffers, only a base.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeAlias

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.ir.numbers import divisor
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BlockGraph, ThreadGraph
from mirage_cli.search.schedules.packed import Weights
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target

Sizes: TypeAlias = tuple[tuple[str, int], ...]  #: axes with their static sizes, outermost first
MATRIX = 16  #: rows and columns of the matrices that contractions read
SHARED, RING, FRAGMENT = "shared", "ring", "fragment"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tile: `rows` and `cols` are its axes; `pitch` elements lie between rows; `phase` says when it is filled."""

    name: str
    dtype: DType
    rows: Sizes
    cols: Sizes
    place: str
    phase: str
    pitch: int = 0
    pad_rows: int = 0  #: rows allocated (at least those of `rows`)

    @property
    def axes(self) -> Sizes:
        """All axes, rows first."""
        return self.rows + self.cols

    @property
    def n_rows(self) -> int:
        """Number of rows that carry values."""
        return count(self.rows)

    @property
    def n_cols(self) -> int:
        """Number of columns that carry values."""
        return count(self.cols)

    @property
    def elements(self) -> int:
        """Elements to allocate (for each stage of a ring)."""
        return max(self.pad_rows, self.n_rows) * self.pitch

    def whole_matrices(self) -> Buffer:
        """The tile with rows and columns padded to what matrix instructions read."""
        rows, cols = (-(-n // MATRIX) * MATRIX for n in (self.n_rows, self.n_cols))
        return replace(self, pitch=cols, pad_rows=rows)

    def stride(self, axis: str) -> int:
        """Elements between neighbours along an axis."""
        for group, unit in ((self.rows, self.pitch), (self.cols, 1)):
            names = [a for a, _ in group]
            if axis in names:
                return unit * count(group[names.index(axis) + 1 :])
        raise InvalidGraph(f"buffer {self.name} has no axis {axis}")


def count(sizes: Sizes) -> int:
    """Number of positions of a group of axes."""
    return math.prod(n for _, n in sizes)


# --- expressions --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Ref:
    """An element of a buffer, at the current position."""

    buffer: str


@dataclass(frozen=True, slots=True)
class Global:
    """An element of a program input, read where it is stored."""

    value: str


@dataclass(frozen=True, slots=True)
class Number:
    """A constant."""

    value: Fraction | float


@dataclass(frozen=True, slots=True)
class Position:
    """The position along an axis, as a number."""

    axis: str


@dataclass(frozen=True, slots=True)
class Count:
    """The number of positions of an axis, as an operand."""

    axis: str


@dataclass(frozen=True, slots=True)
class Apply:
    """An elementwise operator of the registry, or `exp_minus` or `exp_difference`."""

    op: str
    args: tuple[Expr, ...]


Expr: TypeAlias = Ref | Global | Number | Position | Count | Apply


def refs(e: Expr) -> list[str]:
    """The buffers that an expression reads, in order."""
    if isinstance(e, Ref):
        return [e.buffer]
    if isinstance(e, Apply):
        return list(dict.fromkeys(b for a in e.args for b in refs(a)))
    return []


def globals_of(e: Expr) -> list[str]:
    """The program inputs that an expression reads where they are stored, in order."""
    if isinstance(e, Global):
        return [e.value]
    if isinstance(e, Apply):
        return list(dict.fromkeys(v for a in e.args for v in globals_of(a)))
    return []


def from_thread(thread: ThreadGraph, args: Sequence[Expr]) -> Expr:
    """The result of a thread graph on operands."""
    values = list(args)
    for n in thread.nodes:
        if n.op == "const":
            values.append(Number(n.value if n.value is not None else 0.0))
        else:
            values.append(_divided(Apply(n.op, tuple(values[i] for i in n.inputs))))
    return values[-1]


def _divided(e: Apply) -> Apply:
    """A product with the reciprocal of a whole number as the quotient that it means."""
    for x, by in (e.args, e.args[::-1]) if e.op == "mul" else ():
        below = divisor(by.value) if isinstance(by, Number) else None
        if below is not None and not isinstance(x, Number):
            return Apply("div", (x, Number(below)))
    return e


def substitute(e: Expr, buffer: str, by: Expr) -> Expr:
    """The expression with `by` in place of a buffer."""
    if isinstance(e, Ref):
        return by if e.buffer == buffer else e
    if isinstance(e, Apply):
        return replace(e, args=tuple(substitute(a, buffer, by) for a in e.args))
    return e


# --- nodes --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Load:
    """Copy a program input's tile into a buffer, zero outside the tensor."""

    buffer: str
    value: str


@dataclass(frozen=True, slots=True)
class Init:
    """Fill a buffer with a number."""

    buffer: str
    value: float


@dataclass(frozen=True, slots=True)
class Compute:
    """buffer = expr (or += with `add`) at every position; zero where an axis of `zero` lies outside its extent."""

    buffer: str
    expr: Expr
    zero: tuple[str, ...] = ()
    add: bool = False


@dataclass(frozen=True, slots=True)
class Contract:
    """out = a * b (or += with `add`): a has the rows of out, b its columns; `over` is the summed group of axes. On CPUs either
    may be a stored input, or quantised weights."""

    out: str
    a: str
    b: str
    over: Sizes
    add: bool


@dataclass(frozen=True, slots=True)
class Reduce:
    """buffer = sum or maximum (`kind`) of expr over `over` (or combined into it with `add`); `domain` are the axes of
    expr; positions outside the extents of `mask` do not count."""

    buffer: str
    kind: str
    expr: Expr
    domain: Sizes
    over: tuple[str, ...]
    mask: tuple[str, ...]
    add: bool
    scratch: str = ""  #: buffer for partial results of warps, where the expression lives in fragments


@dataclass(frozen=True, slots=True)
class Scale:
    """buffer *= expr."""

    buffer: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Running:
    """shrink = exp(maximum - new), maximum = new, where new = max(maximum, top)."""

    maximum: str
    top: str
    shrink: str


@dataclass(frozen=True, slots=True)
class Store:
    """Write expr to program output number `output` at every position inside its extents; of the blocks that differ only
    along axes of `once`, the first one does."""

    output: int
    expr: Expr
    domain: Sizes
    once: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exchange:
    """Publish partial results of `buffers` for the blocks that share a split axis; only the last of them goes on."""

    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GridTop:
    """buffer = maximum over the blocks of what they published as `source`."""

    buffer: str
    source: str


@dataclass(frozen=True, slots=True)
class GridSum:
    """buffer = sum over the blocks of what they published as `source`, each weighted with exp(its `own` - `common`)
    where these are given."""

    buffer: str
    source: str
    own: str = ""
    common: str = ""


@dataclass(frozen=True, slots=True)
class Barrier:
    """All threads of the block wait for one another."""


TileNode: TypeAlias = (
    Load | Init | Compute | Contract | Reduce | Scale | Running | Store | Exchange | GridTop | GridSum | Barrier
)


@dataclass(frozen=True, slots=True)
class TileProgram:
    """A kernel: its buffers with their places in memory, and its nodes by phase."""

    program: Program
    graph: BlockGraph
    schedule: Schedule
    target: Target
    buffers: dict[str, Buffer]
    prologue: tuple[TileNode, ...]
    body: tuple[TileNode, ...]
    epilogue: tuple[TileNode, ...]
    offsets: dict[str, int] = field(default_factory=dict)  #: byte offset of each shared buffer
    shared_bytes: int = 0
    weights: dict[str, Weights] = field(default_factory=dict)  #: operands of contractions that stay packed

    def text(self) -> str:
        """Readable lines, for golden files and `MIRAGE_DEBUG=tile`."""
        lines = [f"schedule {self.schedule.to_json()} shared {self.shared_bytes}"]
        for b in self.buffers.values():
            at = f" @{self.offsets[b.name]}" if b.name in self.offsets else ""
            lines.append(f"buffer {b.name}: {b.dtype} {b.place} {dict(b.rows)} x {dict(b.cols)} pitch {b.pitch}{at}")
        for name, w in self.weights.items():
            made = f"([{w.of.numbers}] - {w.of.zero}) * [{w.of.scale}]"
            beside = " that round" if w.rounds else " times levels" if w.levels else ""
            lines.append(f"weights {name}: {made} blocks of {w.block}{beside}")
        for phase in ("prologue", "body", "epilogue"):
            lines += [f"{phase}: {node_text(n)}" for n in getattr(self, phase)]
        return "\n".join(lines)


def node_text(n: TileNode) -> str:
    """One line for a node."""
    match n:
        case Load(b, v):
            return f"load {b} <- {v}"
        case Init(b, v):
            return f"init {b} = {v}"
        case Compute(b, e, zero, add):
            return f"{b} {'+' if add else ''}= {expr_text(e)}" + (f" zero outside {' '.join(zero)}" if zero else "")
        case Contract(o, a, b, over, add):
            return f"{o} {'+' if add else ''}= {a} @ {b} over {' '.join(x for x, _ in over)}"
        case Reduce(b, kind, e, _, over, mask, add, _):
            masked = f" inside {' '.join(mask)}" if mask else ""
            return f"{b} {'+' if add else ''}= {kind} {expr_text(e)} over {' '.join(over)}{masked}"
        case Scale(b, e):
            return f"{b} *= {expr_text(e)}"
        case Running(m, t, s):
            return f"{m}, {s} = running {t}"
        case Store(k, e, _, once):
            return f"store {k} = {expr_text(e)}" + (f" once along {' '.join(once)}" if once else "")
        case Exchange(buffers):
            return f"exchange {', '.join(buffers)}"
        case GridTop(b, s):
            return f"{b} = maximum over blocks of {s}"
        case GridSum(b, s, own, common):
            weight = f" weighted exp({own} - {common})" if own else ""
            return f"{b} = sum over blocks of {s}{weight}"
        case Barrier():
            return "barrier"


def expr_text(e: Expr) -> str:
    """An expression as text."""
    match e:
        case Ref(b):
            return b
        case Global(v):
            return f"[{v}]"
        case Number(v):
            return str(float(v))
        case Position(a):
            return f"#{a}"
        case Count(a):
            return f"|{a}|"
        case Apply(op, args):
            return f"{op}({', '.join(expr_text(a) for a in args)})"
