"""Expressions, positions and loops of a kernel of warpgroups, as C++.

Values have a level: "full" (rows and one more axis; elements `[m][n][i]` of fragments), "row" (`[m][h]`), "column" or
"scalar" (printed anew where they are read), "side" (elements of a loaded tile without rows). In loops over full values
the current position is row `r_` of the block's tile and column `c_`; the words of a loaded tile are in `w_TILE`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage_cli.codegen.printers.cuda import CudaEmitter
from mirage_cli.codegen.printers.statements import PAIRED, SMALL, Lines
from mirage_cli.codegen.requests.request import hollow, quotient
from mirage_cli.codegen.tiles.tile import Apply, Count, Expr, Global, Number, Position, Ref
from mirage_cli.codegen.warpgroup.plan import Plan
from mirage_cli.errors import Refused
from mirage_cli.kernel_language.literals import c_float
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import BF16, F16, DType
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.lax.ir.program import Slot
from mirage_cli.lax.ops import lookup
from mirage_cli.search.mugraph.mugraph import BODY

QUICK = {"silu": "quick_silu", "sigmoid": "quick_sigmoid"}  #: to more digits than types of 16 bits hold
FULL, ROW, COLUMN, SCALAR, SIDE = "full", "row", "column", "scalar", "side"


def ctype(dtype: DType) -> str:
    """The C type of an element."""
    if dtype.name not in CudaEmitter.types:
        raise Refused(f"tensors of type {dtype} are not rendered")
    return CudaEmitter.types[dtype.name]


def indented(lines: Sequence[str]) -> list[str]:
    """Lines one level deeper."""
    return [f"    {line}" for line in lines]


class Text:
    """Prints expressions of one kernel."""

    def __init__(self, plan: Plan, symbols: Sequence[str], empty: Sequence[Symbolic] = ()) -> None:
        self.plan, self.p, self.g = plan, plan.program, plan.graph
        self.symbols = tuple(symbols)
        self.reads = {i.name: i for i in self.p.inputs}
        self.axes = self.g.axes_of(self.p)
        sizes = [ex.product(s.dims) for s in self.p.sources] + [ex.product(o.dims) for o in self.p.outputs]
        self.wide = any(not isinstance(n, int) or n >= SMALL for n in sizes)
        self.narrow = all(o.dtype in (F16, BF16) for o in self.p.outputs)
        self.hollow = hollow(empty, self.extent)
        self.levels: dict[str, str] = {}
        self.sides: set[str] = set()  #: numbers of columns that helpers compute of loaded tiles
        self.inverses: set[str] = set()  #: those that values are divided by
        self.exchanged: dict[str, str] = {}  #: full values that are put together of what blocks published

    # --- levels and axes ----------------------------------------------------------------------------------------------
    def level(self, axes: frozenset[str]) -> str:
        """The level of a value with these axes. Raises Refused."""
        own = self.plan.present(axes)
        rest = own - {self.plan.rows}
        if len(rest) == 2 and self.plan.rows not in own:
            return SIDE
        if len(rest) > 1:
            raise Refused(f"a value over {', '.join(sorted(own))}")
        if self.plan.rows in own:
            return FULL if rest else ROW
        return COLUMN if rest else SCALAR

    def column_axis(self, axes: frozenset[str]) -> str:
        """The axis of the columns of a full value."""
        (axis,) = self.plan.present(axes) - {self.plan.rows}
        return axis

    # --- numbers ------------------------------------------------------------------------------------------------------
    def extent(self, e: Extent) -> str:
        """An extent as a C expression."""
        if not isinstance(e, Symbolic):
            return f"{e}LL" if self.wide else str(e)
        names = [f"s_{self.symbols.index(n)}" for n in e.names]
        return "(" + " * ".join(([f"{e.factor}LL"] if e.factor != 1 else []) + names) + ")"

    def base(self, axis: str, phase: str) -> list[str]:
        """The terms of the first position along an axis; none for 0."""
        terms = [f"{axis}_at"] if axis in self.g.grid else []
        return terms + ([f"{axis}_step"] if axis == self.g.loop and phase == BODY else [])

    def position(self, axis: str, phase: str) -> str:
        """The current position along an axis."""
        index = {True: "r_", False: "c_"}[axis == self.plan.rows]
        return " + ".join([*self.base(axis, phase), *([index] if axis in self.plan.sizes else [])]) or "0"

    def inside(self, axes: Sequence[str], phase: str) -> str:
        """The condition that the position lies within the extents of axes; empty when it always does."""
        tests = [f"{self.position(a, phase)} < {self.extent(self.p.extent(a))}" for a in axes if not self.plan.exact(a)]
        return " && ".join(tests)

    def offset(self, access: Sequence[Slot], phase: str, fixed: str = "") -> str:
        """The element offset of the current position in a stored tensor; the index along `fixed` counts as 0."""
        terms, stride = [], ex.ONE
        for s in reversed(access):
            here = []
            if s.axis is not None:
                here = self.base(s.axis, phase)
                if s.axis in self.plan.sizes and s.axis != fixed:
                    here = [*here, "r_" if s.axis == self.plan.rows else "c_"]
            if s.offset:
                here.append(str(s.offset))
            if here:
                text = f"({' + '.join(here)})" if len(here) > 1 else here[0]
                terms.append(f"static_cast<offset_t>{text if text[0] == '(' else f'({text})'} * {self.extent(stride)}")
            stride = ex.product([stride, s.extent])
        return " + ".join(reversed(terms)) or "0"

    # --- expressions --------------------------------------------------------------------------------------------------
    def expression(self, e: Expr, level: str, phase: str, out: Lines) -> str:
        """The value of an expression at the current position."""
        match e:
            case Ref(name):
                return self.element(name, level, out)
            case Global(v):
                source = self.reads[v]
                ctype(self.p.sources[source.source].dtype)
                text = f"to_float(parameters.{v}[{self.offset(source.access, phase)}])"
                guard = self.inside([s.axis for s in source.access if s.axis is not None], phase)
                return out.let(f"{guard} ? {text} : 0.0f" if guard else text)
            case Number(value):
                return c_float(value)
            case Position(a):
                return out.let(f"static_cast<float>({self.position(a, phase)})")
            case Count(a):
                return f"static_cast<float>({self.extent(self.p.extent(a))})"
            case Apply("exp_minus", (x, Ref(maximum))):
                below = self.expression(x, level, phase, out)
                return out.let(f"exp_below({below}, {self.element(f'{maximum}_level', level, out)})")
            case Apply("div", (x, Ref(name))) if name in self.sides:
                self.inverses.add(name)
                return out.let(f"{self.expression(x, level, phase, out)} * {name}_inverse_now[c_]")
            case Apply("div" | "div0" | "share" as op, (x, Ref(name))) if (
                level == FULL and self.levels.get(name) == ROW
            ):
                below = self.element(name, level, out)
                inverse = quotient(self.hollow, below, f"1.0f / {below}")  # the same for all columns: divided once
                above, inverse = self.expression(x, level, phase, out), f"({inverse})"
                product = f"{above} * {inverse}"
                by = below if op == "share" else inverse
                return out.let(product if op == "div" else f"guarded_{op}({product}, {above}, {by})")
            case Apply(op, args):
                inner = [self.expression(a, level, phase, out) for a in args]
                if op in QUICK and level == FULL and self.narrow:
                    return out.let(f"{QUICK[op]}({', '.join(inner)})")
                if op in PAIRED:
                    return out.let(f"m_{op}({', '.join(inner)})")
                text = lookup(op).c.format(*inner)
                return out.let(quotient(self.hollow, inner[1], text) if op == "div" and phase != BODY else text)

    def element(self, name: str, level: str, out: Lines) -> str:
        """An element of a value in registers at the current position."""
        if name in self.sides:
            return f"{name}_now[c_]"
        if (tile := self.plan.tile(name)) is not None:
            words = f"Words<{ctype(tile.dtype)}>"
            if level == SIDE:
                return out.let(f"i % 2 ? {words}::high(w_{name}[i / 2]) : {words}::low(w_{name}[i / 2])")
            w = f"w_{name}[j][i / 2]"
            return out.let(f"i % 2 ? {words}::high({w}) : {words}::low({w})")
        if level == COLUMN:
            return name
        if self.levels.get(name.removesuffix("_level")) == ROW:
            return f"{name}[m][{'i / 2' if level == FULL else 'h'}]"
        if name in self.exchanged:
            return out.let(self.exchanged[name])
        return f"{name}[m][n][i]"

    # --- loops --------------------------------------------------------------------------------------------------------
    def each_row(self, lines: Sequence[str]) -> list[str]:
        """Every thread visits its rows."""
        return [
            "#pragma unroll",
            f"for (int m = 0; m < {self.plan.row_tiles}; ++m)",
            "#pragma unroll",
            "    for (int h = 0; h < 2; ++h) {",
            "        [[maybe_unused]] const int r_ = row + m * 64 + h * 8;",
            *indented(indented(lines)),
            "    }",
        ]

    def columns(self, axis: str, parts: int = 1) -> int:
        """Runs of eight columns of fragments whose columns are `axis`, of which blocks take a part each."""
        count = self.plan.sizes[axis] // 8
        if count % parts:
            raise Refused(f"{self.plan.sizes[axis]} columns for {parts} blocks")
        return count // parts

    def each(self, e: Sequence[str], axis: str, lines: Sequence[str], parts: int = 1) -> list[str]:
        """Every thread visits its elements of fragments whose columns are `axis` (of `parts` blocks each has its own
        columns); `e` are the tiles that are read."""
        count = self.columns(axis, parts)
        own = f"rank * {count} + " if parts > 1 else ""
        loads = []
        for name in e:
            tile = self.plan.tile(name)
            assert tile is not None
            turned = str(tile.outer != self.plan.rows).lower()
            loads.append(f"uint32_t w_{name}[2][2];")
            loads.append(f"load_fragment<{turned}>(w_{name}, {name}, {tile.rows}, base + m * 64, k * 16);")
        return [
            "#pragma unroll",
            f"for (int m = 0; m < {self.plan.row_tiles}; ++m)",
            "#pragma unroll",
            f"    for (int k = 0; k < {-(-count // 2)}; ++k) {{",
            *indented(indented(loads)),
            "#pragma unroll",
            f"        for (int j = 0; j < {min(2, count)}; ++j)",
            "#pragma unroll",
            "            for (int i = 0; i < 4; ++i) {",
            f"                [[maybe_unused]] const int n = {own}k * 2 + j;",
            "                [[maybe_unused]] const int r_ = row + m * 64 + i / 2 * 8, c_ = n * 8 + column + i % 2;",
            *indented(indented(indented(indented(lines)))),
            "            }",
            "    }",
        ]

    def tiles_of(self, e: Expr) -> list[str]:
        """The loaded tiles that an expression reads."""
        match e:
            case Ref(name):
                return [name] if self.plan.tile(name) is not None else []
            case Apply(_, args):
                return list(dict.fromkeys(t for a in args for t in self.tiles_of(a)))
        return []
