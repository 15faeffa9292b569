"""From TileProgram to the text of its statements: what both targets share.

Positions: axis `a` of a tile is walked by the index variable `i_a`; the tile's first position is `a_at` for a grid axis,
`a_step` for the loop axis in the body, 0 for an axis held whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from mirage_cli.codegen.requests.request import hollow, quotient, scaled
from mirage_cli.codegen.tiles.shapes import Shapes
from mirage_cli.codegen.tiles.tile import (
    FRAGMENT,
    RING,
    Apply,
    Buffer,
    Count,
    Expr,
    Global,
    Number,
    Position,
    Ref,
    TileProgram,
)
from mirage_cli.kernel_language.literals import c_float
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import F64, DType
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.lax.ir.program import Slot
from mirage_cli.lax.ops import lookup
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE

SMALL = 1 << 31  #: tensors with fewer elements are addressed with 32-bit integers
PAIRED = ("exp_minus", "exp_difference")  #: functions of two numbers that are not in the registry


@dataclass(slots=True)
class Lines:
    """Statements of one loop body; equal subexpressions get one variable."""

    lines: list[str] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)

    def let(self, text: str, kind: str = "float") -> str:
        """A variable with the value of `text`."""
        if text not in self.known:
            self.known[text] = f"e{len(self.known)}"
            self.lines.append(f"const {kind} {self.known[text]} = {text};")
        return self.known[text]


class Emitter:
    """Printing of positions, offsets and expressions."""

    types: dict[str, str] = {}

    def __init__(self, tile: TileProgram, kernel: int, symbols: Sequence[str], empty: Sequence[Symbolic] = ()) -> None:
        self.t, self.kernel, self.symbols = tile, kernel, tuple(symbols)
        self.p, self.g = tile.program, tile.graph
        self.shapes = Shapes(tile.program, tile.graph, tile.schedule, tile.target)
        self.reads = {i.name: i for i in self.p.inputs}
        sizes = [ex.product(s.dims) for s in self.p.sources] + [ex.product(o.dims) for o in self.p.outputs]
        self.wide = any(not isinstance(n, int) or n >= SMALL for n in sizes)
        self.hollow = hollow(empty, self.extent)

    # --- numbers ------------------------------------------------------------------------------------------------------
    def ctype(self, dtype: DType) -> str:
        """The C type of an element."""
        return self.types[dtype.name]

    def extent(self, e: Extent) -> str:
        """An extent as a C expression."""
        if not isinstance(e, Symbolic):
            return f"{e}LL" if self.wide else str(e)
        names = [f"s_{self.symbols.index(n)}" for n in e.names]
        return "(" + " * ".join(([f"{e.factor}LL"] if e.factor != 1 else []) + names) + ")"

    def sized(self, axis: str, phase: str) -> bool:
        """True if tiles of a phase hold more than one position of an axis."""
        return self.shapes.size(axis, phase) > 1

    def base(self, axis: str, phase: str) -> list[str]:
        """The terms of a tile's first position along an axis; none for 0."""
        terms = [f"{axis}_at"] if self.t.schedule.tile(axis) is not None else []
        return terms + ([f"{axis}_step"] if axis == self.g.loop and phase == BODY else [])

    def position(self, axis: str, phase: str) -> str:
        """The current position along an axis."""
        return " + ".join(self.base(axis, phase) + ([f"i_{axis}"] if self.sized(axis, phase) else [])) or "0"

    def inside(self, axes: Sequence[str], phase: str) -> str:
        """The condition that the current position lies within the extents of `axes`; empty when it always does."""
        tests = [
            f"{self.position(a, phase)} < {self.extent(self.p.extent(a))}"
            for a in axes
            if not self.shapes.exact(a, phase)
        ]
        return " && ".join(tests)

    def offset(self, access: Sequence[Slot], phase: str, fixed: Sequence[str] = ()) -> str:
        """The element offset of the current position in a stored tensor; index variables of `fixed` count as 0."""
        terms, stride = [], ex.ONE
        for s in reversed(access):
            here = []
            if s.axis is not None:
                here = self.base(s.axis, phase)
                if self.sized(s.axis, phase) and s.axis not in fixed:
                    here.append(f"i_{s.axis}")
            if s.offset:
                here.append(str(s.offset))
            if here:
                text = " + ".join(here)
                if stride != 1:
                    text = f"({text})" if len(here) > 1 else text
                    text = f"{text} * {self.extent(stride)}"
                terms.append(text)
            stride = ex.product([stride, s.extent])
        return " + ".join(reversed(terms)) or "0"

    def first(self, axes: Sequence[str]) -> str:
        """The condition that a block is the first one along grid axes; empty without axes."""
        return " && ".join(f"{a}_at == 0" for a in axes)

    # --- expressions --------------------------------------------------------------------------------------------------
    def element(self, b: Buffer, phase: str) -> str:
        """An element of a buffer at the current position, as an lvalue."""
        if b.place == FRAGMENT:
            return f"{b.name}.v[m_][n_][i_]"
        return f"{self.pointer(b)}[{self.index(b, phase)}]"

    def pointer(self, b: Buffer) -> str:
        """The start of a buffer (of the current stage of a ring)."""
        return f"{b.name}_now" if b.place == RING else b.name

    def index(self, b: Buffer, phase: str, fixed: Sequence[str] = ()) -> str:
        """The element index of the current position in a shared buffer."""
        terms = []
        for a, _ in b.axes:
            parts = [f"i_{a}"] if self.sized(a, phase) and a not in fixed else []
            if self.whole_loop(b, a, phase):
                parts.append(f"{a}_step")
            if parts:
                text, stride = " + ".join(parts), b.stride(a)
                if stride != 1:
                    text = f"({text}) * {stride}" if len(parts) > 1 else f"{text} * {stride}"
                terms.append(text)
        return " + ".join(terms) or "0"

    def whole_loop(self, b: Buffer, axis: str, phase: str) -> bool:
        """True if a body statement reads a part of a buffer that holds the loop axis whole."""
        return axis == self.g.loop and phase == BODY and b.phase == PROLOGUE

    def expression(self, e: Expr, phase: str, out: Lines, guard: str = "") -> str:
        """The value of an expression at the current position; reads of stored tensors happen only under `guard`."""
        match e:
            case Ref(name):
                b = self.t.buffers[name]
                text = self.element(b, phase)
                return text if b.dtype.name == "f32" else out.let(f"to_float({text})")
            case Global(v):
                access = self.reads[v].access
                text = f"to_float({v}[{self.offset(access, phase)}])"
                return out.let(f"{guard} ? {text} : 0.0f" if guard else text)
            case Number(value):
                return c_float(value)
            case Position(a):
                return out.let(f"static_cast<float>({self.position(a, phase)})")
            case Count(a):
                return f"static_cast<float>({self.extent(self.p.extent(a))})"
            case Apply("mul" | "div" as op, (Ref(name), Number(Fraction() as by))) | Apply(
                "mul" as op, (Number(Fraction() as by), Ref(name))
            ) if self.t.buffers[name].dtype == F64:
                return out.let(scaled(self.element(self.t.buffers[name], phase), op, by))
            case Apply(op, args):
                inner = [self.expression(a, phase, out, guard) for a in args]
                if op in PAIRED:
                    return out.let(f"m_{op}({', '.join(inner)})")
                text = lookup(op).c.format(*inner)
                return out.let(quotient(self.hollow, inner[1], text) if op == "div" and phase != BODY else text)

    # --- parts of a kernel --------------------------------------------------------------------------------------------
    def grid(self) -> list[dict[str, Any]]:
        """The grid axes with their tiles and numbers of blocks, slowest first."""
        axes = []
        for a in self.g.grid:
            tile = self.t.schedule.tile(a) or 1
            extent = self.p.extent(a)
            blocks = (
                str(-(-extent // tile))
                if isinstance(extent, int)
                else f"(({self.extent(extent)} + {tile - 1}) / {tile})"
            )
            axes.append({"axis": a, "tile": tile, "blocks": blocks})
        return axes

    def steps(self) -> str:
        """The number of iterations of the loop."""
        if self.g.loop is None:
            return "0"
        extent, step = self.p.extent(self.g.loop), self.t.schedule.loop
        if self.g.loop in self.g.split:
            share = self.t.schedule.tile(self.g.loop) or 1
            end = f"min(offset_t({self.g.loop}_at + {share}), offset_t({extent}))"
            return f"static_cast<int>(({end} - {self.g.loop}_at + {step - 1}) / {step})"
        if isinstance(extent, int):
            return str(-(-extent // step))
        return f"static_cast<int>(({self.extent(extent)} + {step - 1}) / {step})"

    def context(self) -> dict[str, Any]:
        """Variables that both kernel templates need."""
        return {
            "kernel": self.kernel,
            "offset_type": "int64_t" if self.wide else "int",
            "symbols": [self.symbols.index(s) for s in self.p.symbols],
            "inputs": [
                {"name": i.name, "type": self.ctype(self.p.sources[i.source].dtype), "source": i.source}
                for i in self.p.inputs
            ],
            "outputs": [{"name": f"y{k}", "type": self.ctype(o.dtype)} for k, o in enumerate(self.p.outputs)],
            "grid": self.grid(),
            "loop": self.g.loop,
            "loop_tile": self.t.schedule.loop,
            "steps": self.steps(),
            "shared_bytes": self.t.shared_bytes,
        }
