"""Where a thread of a `rows` kernel is: positions along axes, offsets in memory, conditions. See `engine.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mirage_cli.codegen.requests.request import hollow
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.lax.ir.program import Slot
from mirage_cli.search.mugraph.row_values import LEAVES, Access, Rows, Value
from mirage_cli.search.mugraph.subtracted_sums import wide_row_sums
from mirage_cli.search.schedules.rows import Shape

SMALL = 1 << 31  #: tensors with fewer elements are addressed with 32-bit integers
Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowProgram:
    """A kernel of the engine `rows` with every decision made."""

    rows: Rows
    shape: Shape

    def text(self) -> str:
        """Readable lines."""
        return f"{self.rows.text()}\n{self.shape.text()}"


class RowPositions:
    """Printing of positions, offsets and conditions; names and shapes that all parts of a kernel use."""

    def __init__(
        self,
        program: RowProgram,
        number: int,
        symbols: Sequence[str],
        constants: frozenset[int],
        empty: Sequence[Symbolic] = (),
    ) -> None:
        self.r, self.shape, self.number, self.symbols = program.rows, program.shape, number, tuple(symbols)
        self.p, self.constants = self.r.program, constants
        self.reads = {i.name: i for i in self.p.inputs}
        sizes = [ex.product(s.dims) for s in self.p.sources] + [ex.product(o.dims) for o in self.p.outputs]
        self.wide = any(not isinstance(n, int) or n >= SMALL for n in sizes)
        self.hollow = hollow(empty, self.extent)
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
    def extent(self, e: Extent) -> str:
        """An extent as a C expression."""
        if not isinstance(e, Symbolic):
            return f"{e}LL" if self.wide else str(e)
        names = [f"s_{self.symbols.index(n)}" for n in e.names]
        return "(" + " * ".join(([f"{e.factor}LL"] if e.factor != 1 else []) + names) + ")"

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

    def position(self, axis: str, element: bool) -> str:
        """The position along an axis, of the current element or of the chunk."""
        return f"i_{axis} + j" if element and axis == self.r.vector and self.shape.width > 1 else f"i_{axis}"

    def offset(self, access: Sequence[Slot], element: bool) -> str:
        """The element offset of the current position in a stored tensor."""
        terms, stride = [], ex.ONE
        for s in reversed(access):
            here = [] if s.axis is None else [self.position(s.axis, element)]
            here += [str(s.offset)] if s.offset else []
            if here:
                text = " + ".join(here)
                if stride != 1:
                    text = f"({text})" if "+" in text else text
                    text = f"{text} * {self.extent(stride)}"
                terms.append(text)
            stride = ex.product([stride, s.extent])
        return " + ".join(reversed(terms)) or "0"

    def whole(self, access: Sequence[Slot]) -> bool:
        """True if a chunk is one access."""
        axis = self.r.vector
        return axis is not None and Access(tuple(access), 1).aligned(axis, self.shape.width)

    # --- where a thread is --------------------------------------------------------------------------------------------
    def decode(self, index: str, axes: Sequence[str]) -> list[str]:
        """Positions along axes, slowest first, from an index over all of them (chunks of the vector axis)."""
        lines, rest = [], index
        for k, a in enumerate(reversed(axes)):
            count = self.extent(self.per_width([a]))
            text = rest if k == len(axes) - 1 else f"{rest} % {count}"
            text = f"{text} * WIDTH" if a == self.r.vector else text
            lines.append(f"const offset_t i_{a} = {text};")
            if k < len(axes) - 1:
                lines.append(f"const offset_t {index}_{k} = {rest} / {count};")
                rest = f"{index}_{k}"
        return lines

    def lane(self) -> list[str]:
        """The place of a thread among those that share its rows."""
        s = self.shape
        if not self.r.row:
            return []
        if not self.r.along:
            return ["const offset_t lane = threadIdx.x / (THREADS / LANES);"]
        within = f" + blockIdx.x % {s.cluster} * THREADS" if s.cluster > 1 else ""
        return [f"const offset_t lane = threadIdx.x % LANES{within};"]

    def outer(self) -> list[str]:
        """The positions that a thread has for all its slots."""
        s = self.shape
        if not self.r.row:
            return []
        group = f"blockIdx.x / {s.cluster}" if s.cluster > 1 else "blockIdx.x"
        group = f"static_cast<offset_t>({group})"
        group = f"({group} * TURNS + turn)" if s.turns > 1 else group
        here = "threadIdx.x / LANES" if self.r.along else "threadIdx.x % (THREADS / LANES)"
        lines = [f"const offset_t row = {group} * (THREADS / LANES) + {here};"]
        if self.ragged():
            lines.append(f"const bool real = row < {self.extent(self.units)};")
        return lines + self.decode("row", self.r.kept)

    def ragged(self) -> bool:
        """True if some threads have rows that there are not."""
        own = self.shape.units(self.r)
        return bool(self.r.row) and not (isinstance(self.units, int) and self.units % own == 0)

    def inner(self) -> tuple[list[str], list[str]]:
        """The positions of a slot, and the conditions that it exists."""
        s = self.shape
        if not self.r.row:
            block = "static_cast<offset_t>(blockIdx.x) * (SLOTS * THREADS)"
            lines = [f"const offset_t at = {block} + s * THREADS + static_cast<offset_t>(threadIdx.x);"]
            exact = isinstance(self.units, int) and self.units % s.units(self.r) == 0
            return lines + self.decode("at", self.r.kept), [] if exact else [f"at < {self.extent(self.units)}"]
        count = self.per_width(self.r.row)
        across = f"LANES * {s.cluster}" if s.cluster > 1 else "LANES"
        lines = [
            f"const offset_t at = s * ({across}) + lane;" if s.cluster > 1 else "const offset_t at = s * LANES + lane;"
        ]
        lines += self.decode("at", self.r.row)
        tests = ["real"] if self.ragged() else []
        return lines, tests + ([] if count == s.slots * s.lanes * s.cluster else [f"at < {self.extent(count)}"])


def lines_node(lines: Sequence[str]) -> list[Node]:
    """Plain statements; nothing where there are none."""
    return [{"kind": "lines", "lines": list(lines)}] if lines else []


def used(declarations: Sequence[str], text: str) -> list[str]:
    """The declarations that later ones or `text` read."""
    kept: list[str] = []
    for line in reversed(declarations):
        name = line.split(" = ")[0].split()[-1]
        if re.search(rf"\b{name}\b", text):
            kept.append(line)
            text += "\n" + line.split(" = ", 1)[1]
    return kept[::-1]
