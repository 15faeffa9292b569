"""Where a thread of a `rows` kernel is: positions along axes, offsets in memory, conditions. See `engine.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_cli.codegen.requests.request import Request
from mirage_cli.codegen.terms import expressions
from mirage_cli.codegen.terms.expressions import THREAD
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.lax.ir.program import Slot
from mirage_cli.search.mugraph.row_values import LEAVES, Access, Rows, Value
from mirage_cli.search.mugraph.subtracted_sums import wide_row_sums
from mirage_cli.search.schedules.rows import Shape

BLOCK = k.name("blockIdx").member("x")
ACROSS = k.name("THREADS") / "LANES"  #: rows that a block's threads hold side by side
LANE, REAL, SCRATCH = map(k.name, ("lane", "real", "scratch"))


@dataclass(frozen=True, slots=True)
class RowProgram:
    """A kernel of the engine `rows` with every decision made."""

    rows: Rows
    shape: Shape

    def text(self) -> str:
        """Readable lines."""
        return f"{self.rows.text()}\n{self.shape.text()}"


class RowPositions:
    """Positions, offsets and conditions; names and shapes that all parts of a kernel use."""

    def __init__(self, program: RowProgram, request: Request) -> None:
        self.program, self.request = program, request
        self.r, self.shape, self.p = program.rows, program.shape, program.rows.program
        self.reads = {i.name: i for i in self.p.inputs}
        self.wide = expressions.wide(self.p)
        self.hollow = expressions.hollow(map(self.extent, request.hollow))
        self.exact = any(a.bytes > 2 for a in self.float_accesses())
        self.slotted = frozenset(self.r.row or self.r.kept)
        self.by = {v.args[1] for v in self.r.values.values() if self.quick(v)}
        self.doubles = wide_row_sums(self.r)
        self.scratch = 0
        self.units = self.per_width(self.r.kept)

    def float_accesses(self) -> list[Access]:
        """Reads and writes of floating-point tensors."""
        used = {v.read for v in self.r.values.values() if v.op == "load"}
        types = [self.p.sources[i.source].dtype for i in self.p.inputs if i.name in used]
        return [Access((), t.bytes) for t in (*types, *(o.dtype for o in self.p.outputs)) if t.is_float]

    def quick(self, v: Value) -> bool:
        """True if a quotient has a divisor that is the same for several."""
        if v.op != "div":
            return False
        by = self.r.values[v.args[1]]
        return by.op not in LEAVES and not self.varies(by.axes)[0] and self.varies(v.axes) != self.varies(by.axes)

    # --- numbers ------------------------------------------------------------------------------------------------------
    def extent(self, e: Extent) -> ir.Expression:
        """An extent."""
        return expressions.extent(e, self.request.symbols, self.wide)

    def per_width(self, axes: Sequence[str]) -> Extent:
        """Positions of axes, chunks of the vector axis."""
        total = ex.product(self.p.extent(a) for a in axes)
        if self.r.vector not in axes:
            return total
        if isinstance(total, Symbolic):
            return Symbolic(total.factor // self.shape.width, total.names)
        return total // self.shape.width

    def varies(self, axes: frozenset[str]) -> tuple[bool, bool]:
        """Flags for a value with these axes: it differs from slot to slot, and within a chunk."""
        return bool(axes & self.slotted), self.r.vector in axes

    def position(self, axis: str, element: bool) -> list[ir.Expression]:
        """The terms of the position along an axis, of the current element or of the chunk."""
        inside = element and axis == self.r.vector and self.shape.width > 1
        return [k.name(f"i_{axis}"), *([k.name("j")] if inside else [])]

    def offset(self, access: Sequence[Slot], element: bool) -> list[ir.Expression]:
        """The terms of the element offset of the current position in a stored tensor."""
        terms, stride = list[ir.Expression](), ex.ONE
        for s in reversed(access):
            here = [] if s.axis is None else self.position(s.axis, element)
            here += [ir.lift(s.offset)] if s.offset else []
            terms = ([k.total(here) * self.extent(stride)] if here and stride != 1 else here) + terms
            stride = ex.product([stride, s.extent])
        return terms or [k.ZERO]

    def place(self, tensor: str, access: Sequence[Slot]) -> ir.Expression:
        """The address of the current chunk in a stored tensor."""
        return k.total([k.name("p").member(tensor), *self.offset(access, False)])

    def dtype_of(self, read: str) -> DType:
        """The type of a tensor that is read."""
        return self.p.sources[self.reads[read].source].dtype

    def stored(self, tensor: str, access: Sequence[Slot], element: bool) -> ir.Expression:
        """The current element of a stored tensor, or the chunk's first one; of numbers that share bytes, a float."""
        place, at = k.name("p").member(tensor), k.total(self.offset(access, element))
        if tensor in self.reads and (dtype := self.dtype_of(tensor)).per_byte > 1:
            return k.call(f"number_{dtype}", place, at)
        return place[at]

    def whole(self, access: Sequence[Slot]) -> bool:
        """True if a chunk is one access."""
        axis = self.r.vector
        return axis is not None and Access(tuple(access), 1).aligned(axis, self.shape.width)

    # --- where a thread is --------------------------------------------------------------------------------------------
    def decode(self, index: str, axes: Sequence[str]) -> list[ir.Declare]:
        """Positions along axes, slowest first, from an index over all of them (chunks of the vector axis)."""
        lines, rest = list[ir.Declare](), k.name(index)
        for n, a in enumerate(reversed(axes)):
            count, last = self.extent(self.per_width([a])), n == len(axes) - 1
            here = rest if last else rest % count
            lines.append(k.let("offset_t", f"i_{a}", here * "WIDTH" if a == self.r.vector else here))
            if not last:
                lines.append(k.let("offset_t", f"{index}_{n}", rest / count))
                rest = k.name(f"{index}_{n}")
        return lines

    def lane(self) -> list[ir.Declare]:
        """The place of a thread among those that share its rows."""
        if not self.r.row:
            return []
        lane = THREAD % "LANES" if self.r.along else THREAD / ACROSS
        if self.shape.cluster > 1:
            lane = lane + BLOCK % self.shape.cluster * "THREADS"
        return [k.let("offset_t", "lane", lane)]

    def outer(self) -> list[ir.Declare]:
        """The positions that a thread has for all its slots."""
        s = self.shape
        if not self.r.row:
            return []
        group: ir.Operand = k.cast("offset_t", BLOCK / s.cluster if s.cluster > 1 else BLOCK)
        group = group * "TURNS" + "turn" if s.turns > 1 else group
        here = THREAD / "LANES" if self.r.along else THREAD % ACROSS
        lines = [k.let("offset_t", "row", group * ACROSS + here)]
        if self.ragged():
            lines.append(k.let("bool", "real", k.name("row") < self.extent(self.units)))
        return lines + self.decode("row", self.r.kept)

    def ragged(self) -> bool:
        """True if some threads have rows that there are not."""
        return bool(self.r.row) and not self.even()

    def even(self) -> bool:
        """True if all blocks have the same number of rows, or of chunks of no row."""
        return isinstance(self.units, int) and self.units % self.shape.units(self.r) == 0

    def inner(self, fixed: bool) -> tuple[list[ir.Declare], list[ir.Expression]]:
        """The positions of a slot, and the conditions that it exists (`fixed`: whether there is the row or not)."""
        s, slot = self.shape, k.name("s")
        if not self.r.row:
            block = k.cast("offset_t", BLOCK) * (k.name("SLOTS") * "THREADS")
            at = block + slot * "THREADS" + k.cast("offset_t", THREAD)
            lines = [k.let("offset_t", "at", at), *self.decode("at", self.r.kept)]
            return lines, [] if self.even() else [k.name("at") < self.extent(self.units)]
        count, lanes = self.per_width(self.r.row), k.name("LANES")
        at = slot * (lanes * s.cluster if s.cluster > 1 else lanes) + LANE
        tests: list[ir.Expression] = [REAL] if self.ragged() and not fixed else []
        tests += [] if count == s.slots * s.lanes * s.cluster else [k.name("at") < self.extent(count)]
        return [k.let("offset_t", "at", at), *self.decode("at", self.r.row)], tests


def used(declarations: Sequence[ir.Declare], *readers: Sequence[ir.Statement | ir.Expression]) -> list[ir.Declare]:
    """The declarations that later ones or `readers` read."""
    kept, names = list[ir.Declare](), k.names_in(readers)
    for d in reversed(declarations):
        if d.variables[0].name in names:
            kept.append(d)
            names |= k.names_in(d)
    return kept[::-1]
