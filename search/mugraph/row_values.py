"""A block graph without contractions as values of a row: what one row needs, operator by operator.

Axes that something reduces make up a *row*; along all others every position is computed by itself, whatever tiles the
grid has (see `evaluate.py`). A row is held whole, so a loop runs once: what is accumulated over it is the value of that one
iteration, and so is a running maximum. Values computed twice are one value here.

The *level* of a value is how many reductions follow one another before it is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.lax.ir.numbers import divisor
from mirage_cli.lax.ir.program import Program, Slot
from mirage_cli.search.mugraph.mugraph import BlockGraph, BlockOp, ThreadGraph

REDUCTIONS = ("sum", "top")  #: over the row; `max` is the elementwise operator
LEAVES = ("load", "const", "iota", "extent")  #: values that need no registers of their own to be read again
UNIT = 16  #: bytes of the widest access to memory


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a row. `op` is load (of input `read`), const (`number`), iota or extent (of `axis`), sum or top (the
    largest, over the row), an operator of the registry, or one of the functions of two numbers of thread graphs."""

    name: str
    op: str
    args: tuple[str, ...]
    axes: frozenset[str]
    level: int
    number: Fraction | float | None = None
    axis: str = ""
    read: str = ""

    def text(self) -> str:
        """One readable line."""
        extra = [*self.args, *([str(self.number)] if self.op == "const" else []), *filter(None, (self.axis, self.read))]
        return f"{self.level}: {self.name}[{' '.join(sorted(self.axes))}] = {self.op}({', '.join(extra)})"


@dataclass(frozen=True, slots=True)
class Rows:
    """A block graph as values that are computed row by row.

    `row` are the axes of a row and `kept` the others, both slowest first; `vector` is the axis along which most of what is
    read and written lies together, the last of its group; None where nothing does.
    """

    program: Program
    values: dict[str, Value]
    outputs: tuple[str, ...]
    row: tuple[str, ...]
    kept: tuple[str, ...]
    vector: str | None

    @property
    def along(self) -> bool:
        """True if neighbours in memory belong to one row."""
        return self.vector in self.row

    @property
    def levels(self) -> int:
        """Reductions that follow one another."""
        return max((v.level for v in self.values.values()), default=0)

    def length(self) -> int:
        """Positions of a row. Raises Refused where that is not known."""
        total = ex.product(self.program.extent(a) for a in self.row)
        if not isinstance(total, int):
            raise Refused(f"rows of {total} positions, which is not known before the kernel runs")
        return total

    def rows(self) -> Extent:
        """Number of rows."""
        return ex.product(self.program.extent(a) for a in self.kept)

    def later(self, name: str) -> bool:
        """True if a value is needed at a later level than its own."""
        level = self.values[name].level
        readers = (v for v in self.values.values() if name in v.args)
        return any(v.level - (v.op in REDUCTIONS) > level for v in readers)

    def text(self) -> str:
        """Readable lines."""
        head = f"row {' '.join(self.row) or '-'}, kept {' '.join(self.kept) or '-'}, vector {self.vector or '-'}"
        return "\n".join([head, *(v.text() for v in self.values.values()), "store " + ", ".join(self.outputs)])


def rows_of(program: Program, graph: BlockGraph) -> Rows:
    """The block graph row by row. Raises Refused for graphs that are not made of rows."""
    if graph.split:
        raise Refused(f"blocks share the reduction over {', '.join(graph.split)}")
    over = {frozenset(operator.over) for operator in graph.ops if operator.op in ("sum", "top")}
    if len(over) > 1:
        raise Refused("its reductions take different axes")
    row = next(iter(over), frozenset())
    collected = _Values(program, row)
    for operator in graph.ops:
        collected.add(operator)
    outputs = tuple(collected.named[v] for v in graph.outputs)
    values = _needed(collected.values, outputs)
    stored = frozenset(s.axis for operator in program.outputs for s in operator.access if s.axis is not None)
    present = stored.union(*(v.axes for v in values.values())) | row
    vector = _vector(program, values, present)
    order = _order(program, [a for a in present if a != vector]) + ([vector] if vector else [])
    kept = tuple(a for a in order if a not in row)
    return Rows(program, values, outputs, tuple(a for a in order if a in row), kept, vector)


@dataclass(slots=True)
class _Values:
    """Values as they are found; equal ones are one."""

    program: Program
    row: frozenset[str]
    values: dict[str, Value] = field(default_factory=dict)
    known: dict[tuple[object, ...], str] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)

    def add(self, operator: BlockOp) -> None:
        """The values of a block operator. Raises Refused for those that rows do not have."""
        args = [self.named[i] for i in operator.inputs]
        match operator.op:
            case "load":
                read = operator.source_value or ""
                self._check_type(read)
                self.named[operator.name] = self.make("load", (), self.program.axes_of(read), read=read)
            case "iota":
                self.named[operator.name] = self.make(
                    "iota", (), frozenset([operator.axis or ""]), axis=operator.axis or ""
                )
            case "extent":
                self.named[operator.name] = self.make("extent", (), frozenset(), axis=operator.axis or "")
            case "thread":
                assert operator.thread is not None
                self.named[operator.name] = self.thread(operator.thread, args)
            case "sum" | "top":
                self.named[operator.name] = self.make(operator.op, (args[0],))
            case "accum" | "running":
                self.named[operator.name] = args[0]
            case "shrink":
                self.named[operator.name] = self.make("const", (), number=Fraction(1))
            case _:
                raise Refused(f"rows have no operator {operator.op}")

    def thread(self, graph: ThreadGraph, args: Sequence[str]) -> str:
        """The value of a thread graph."""
        values = list(args)
        for n in graph.nodes:
            number = (n.value if n.value is not None else Fraction(0)) if n.op == "const" else None
            values.append(self.divided(n.op, tuple(values[i] for i in n.inputs), number))
        return values[-1]

    def divided(self, op: str, args: tuple[str, ...], number: Fraction | float | None) -> str:
        """The name of an operator's value; a product with the reciprocal of a whole number is the quotient that it means."""
        for x, by in (args, args[::-1]) if op == "mul" else ():
            below = divisor(self.values[by].number)
            if below is not None and self.values[x].op != "const":
                return self.make("div", (x, self.make("const", (), number=below)))
        return self.make(op, args, number=number)

    def make(
        self,
        op: str,
        args: tuple[str, ...],
        axes: frozenset[str] = frozenset(),
        number: Fraction | float | None = None,
        axis: str = "",
        read: str = "",
    ) -> str:
        """The name of a value."""
        key = (op, args, str(number), axis, read)
        if key not in self.known:
            inner = [self.values[a] for a in args]
            axes = axes.union(*(v.axes for v in inner))
            level = max((v.level for v in inner), default=0) + (op in REDUCTIONS)
            axes = axes - self.row if op in REDUCTIONS else axes
            name = self.known[key] = f"e{len(self.values)}"
            self.values[name] = Value(name, op, args, axes, level, number, axis, read)
        return self.known[key]

    def _check_type(self, read: str) -> None:
        source = self.program.input(read).source
        dtype = self.program.sources[source].dtype
        if dtype.name in ("f64", "u64"):
            raise Refused(f"tensors of type {dtype} are not rendered")


def _needed(values: dict[str, Value], outputs: Sequence[str]) -> dict[str, Value]:
    needed = set(outputs)
    for v in reversed(values.values()):
        if v.name in needed:
            needed.update(v.args)
    return {n: v for n, v in values.items() if n in needed}


# --- where things lie in memory -------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Access:
    """A read or a write of a stored tensor: its slots and the bytes of an element (a fraction where several share one)."""

    slots: tuple[Slot, ...]
    bytes: float

    @property
    def inner(self) -> str | None:
        """The axis whose neighbours are neighbours in memory."""
        return next((s.axis for s in reversed(self.slots) if s.extent != 1), None)

    def aligned(self, axis: str, width: int) -> bool:
        """True if `width` neighbours along an axis can be one access wherever the first is a multiple of `width`."""
        slots = [s for s in self.slots if s.extent != 1]
        if self.inner != axis or slots[-1].offset % width:
            return False
        return len(slots) == 1 or divides(width, slots[-1].extent)


def divides(width: int, e: Extent) -> bool:
    """True if an extent is known to be a multiple of a number."""
    return (e.factor if isinstance(e, Symbolic) else e) % width == 0


def accesses(program: Program, values: dict[str, Value]) -> list[Access]:
    """All that is read and written."""
    inputs = {i.name: i for i in program.inputs}
    reads = [inputs[v.read] for v in values.values() if v.op == "load"]
    loads = [Access(i.access, program.sources[i.source].dtype.size) for i in reads]
    return loads + [Access(o.access, o.dtype.bytes) for o in program.outputs]


def _size(program: Program, access: Access) -> float:
    """Bytes, symbols taken as large numbers: for comparisons."""
    total = access.bytes
    for s in access.slots:
        if s.axis is not None:
            e = program.extent(s.axis)
            total *= e if isinstance(e, int) else 1024.0 * e.factor
    return total


def _vector(program: Program, values: dict[str, Value], present: frozenset[str]) -> str | None:
    bytes_along: dict[str, float] = {}
    for a in reversed(accesses(program, values)):  # of two that are alike an output's counts
        if a.inner is not None and a.inner in present:
            bytes_along[a.inner] = bytes_along.get(a.inner, 0.0) + _size(program, a)
    return max(bytes_along, key=lambda a: bytes_along[a], default=None)


def _order(program: Program, axes: Sequence[str]) -> list[str]:
    """Axes in the order of the first output, what it lacks before."""
    stored = [s.axis for s in program.outputs[0].access]
    known = [a.name for a in program.axes]
    return sorted(axes, key=lambda a: (stored.index(a) if a in stored else -1, known.index(a)))


def widths(rows: Rows) -> tuple[int, ...]:
    """Neighbours that a thread may hold together, widest first: those that let at least half of all bytes move in whole
    accesses, the widest of them of 16 bytes for the type that most bytes have."""
    if rows.vector is None:
        return (1,)
    axis = rows.vector
    moves = accesses(rows.program, rows.values)
    moved: dict[float, float] = {}
    for a in moves:
        if a.inner == axis:
            moved[a.bytes] = moved.get(a.bytes, 0.0) + _size(rows.program, a)
    width = int(UNIT / max(moved, key=lambda b: moved[b]))
    wide = []
    while width > 1:
        whole = sum(_size(rows.program, a) for a in moves if a.aligned(axis, width))
        if divides(width, rows.program.extent(axis)) and 2 * whole >= sum(moved.values()):
            wide.append(width)
        width //= 2
    return (*wide, 1)
