"""Values of a kernel of warpgroups: positions, expressions, and loops over what threads hold of them.

Values have a level: "full" (rows and one more axis; elements `[m][n][i]` of fragments), "row" (`[m][h]`), "column" or
"scalar" (computed anew where they are read), "side" (elements of a loaded tile without rows). In loops over full values
the current position is row `r_` of the block's tile and column `c_`; the words of a loaded tile are in `w_TILE`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage_cli.codegen.terms import expressions
from mirage_cli.codegen.terms.expressions import ONE, ZERO, Lets, ctype
from mirage_cli.codegen.terms.visible import holding
from mirage_cli.codegen.tiles.tile import Apply, Count, Expr, Global, Number, Position, Ref
from mirage_cli.codegen.warpgroup.plan import COLUMN, FULL, GROUP_ROWS, ROW, SCALAR, SIDE, Plan, Tile
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import BF16, F16, F32, DType
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.lax.ir.program import Input, Slot
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE
from mirage_cli.search.mugraph.visible import left_out

QUICK = {
    op: f"quick_{op}" for op in ("silu", "sigmoid", "gelu", "gelu_tanh")
}  #: more digits than types of 16 bits hold
M, N, H, I, J, PAIR = map(k.name, ("m", "n", "h", "i", "j", "k"))  # noqa: E741 - indices of registers
R, C = k.name("r_"), k.name("c_")


def words(dtype: DType, function: str) -> ir.Name:
    """A function of words of two elements."""
    return k.name(function, owner=k.of_type("Words", ctype(dtype)))


def at_row(name: str) -> ir.Index:
    """A number of the current row."""
    return k.name(name)[M][H]


def at_full(name: str) -> ir.Index:
    """An element of a fragment."""
    return k.name(name)["m"]["n"]["i"]


class Values:
    """The values of one kernel; `empty` are extents that may be 0."""

    def __init__(self, plan: Plan, symbols: Sequence[str], empty: Sequence[Symbolic] = ()) -> None:
        self.plan, self.p, self.g = plan, plan.program, plan.graph
        self.symbols = tuple(symbols)
        self.reads = {i.name: i for i in self.p.inputs}
        self.axes = self.g.axes_of(self.p)
        self.wide = expressions.wide(self.p)
        self.narrow = all(o.dtype in (F16, BF16) for o in self.p.outputs)
        self.hollow = expressions.hollow(map(self.extent, empty))
        self.limits = left_out(self.p, self.g, dict(plan.schedule.tiles), plan.schedule.loop)
        self.integers = {v for f in self.limits for v, _ in f.given}  #: inputs of which a block holds one, as variables
        self.levels: dict[str, str] = {}
        self.sides: set[str] = set()  #: numbers of columns that helpers compute of loaded tiles
        self.exchanged: dict[str, ir.Expression] = {}  #: full values that are put together of what blocks published

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
    def extent(self, e: Extent) -> ir.Expression:
        """An extent."""
        return expressions.extent(e, self.symbols, self.wide)

    def base(self, axis: str, phase: str) -> list[ir.Expression]:
        """The terms of the first position along an axis; none for 0."""
        terms: list[ir.Expression] = [k.name(f"{axis}_at")] if axis in self.g.grid else []
        return terms + ([k.name(f"{axis}_step")] if axis == self.g.loop and phase == BODY else [])

    def index(self, axis: str) -> list[ir.Expression]:
        """The place in the block's tile along an axis of which it holds several positions."""
        return [R if axis == self.plan.rows else C] if axis in self.plan.sizes else []

    def span(self, axis: str) -> tuple[list[ir.Expression], int]:
        """The terms of the first position of a consumer's tile along an axis, and how many it holds, in the body."""
        base = self.base(axis, BODY)
        if axis == self.plan.rows:
            return [*base, k.name("base")], self.plan.row_tiles * GROUP_ROWS
        return base, self.plan.sizes.get(axis, 1)

    def position(self, axis: str, phase: str) -> ir.Expression:
        """The current position along an axis."""
        return k.total([*self.base(axis, phase), *self.index(axis)])

    def inside(self, axes: Sequence[str | None], phase: str) -> ir.Expression | None:
        """The condition that the position lies within the extents of axes; None when it always does."""
        partial = [a for a in axes if a is not None and not self.plan.exact(a)]
        return k.both(*(self.position(a, phase) < self.extent(self.p.extent(a)) for a in partial))

    def offset(self, access: Sequence[Slot], phase: str, fixed: str = "") -> list[ir.Expression]:
        """The terms of the element offset of the current position in a stored tensor; the index along `fixed` counts as 0."""
        terms, stride = list[ir.Expression](), ex.ONE
        for s in reversed(access):
            here = []
            if s.axis is not None:
                here = self.base(s.axis, phase) + (self.index(s.axis) if s.axis != fixed else [])
            here += [ir.lift(s.offset)] if s.offset else []
            if here:
                terms.append(k.cast("offset_t", k.total(here)) * self.extent(stride))
            stride = ex.product([stride, s.extent])
        return terms[::-1]

    def held_integers(self) -> list[ir.Statement]:
        """The integers that are inputs of which a block has one, where these say how far it walks, or what it reads."""
        reads = ((v, self.offset(self.reads[v].access, PROLOGUE)) for v in sorted(self.integers))
        return [holding(v, k.name("parameters").member(v)[k.total(at)]) for v, at in reads]

    def in_pairs(self, source: Input) -> bool:
        """True if a thread's two neighbouring columns of a stored tensor lie together, at a multiple of their size."""
        last = next((s for s in reversed(source.access) if s.extent != 1), None)
        return (
            last is not None
            and last.axis in self.plan.sizes
            and last.axis != self.plan.rows
            and self.p.sources[source.source].dtype in (F16, BF16, F32)
            and isinstance(last.extent, int)
            and last.extent % 2 == last.offset % 2 == 0
        )

    # --- expressions --------------------------------------------------------------------------------------------------
    def expression(self, e: Expr, level: str, phase: str, out: Lets) -> ir.Expression:
        """The value of an expression at the current position."""
        match e:
            case Ref(name):
                return self.element(name, level, out)
            case Global(v):
                source = self.reads[v]
                ctype(self.p.sources[source.source].dtype)
                place, at = k.name("parameters").member(v), k.total(self.offset(source.access, phase))
                paired = level == FULL and self.in_pairs(source)
                number = k.call("of_pair", place + at - I % 2, I % 2) if paired else k.call("to_float", place[at])
                guard = self.inside([s.axis for s in source.access], phase)
                return out.let(guarded(guard, number, ZERO))
            case Number(value):
                return expressions.float_number(value)
            case Position(a):
                return out.let(k.cast("float", self.position(a, phase)))
            case Count(a):
                return k.cast("float", self.extent(self.p.extent(a)))
            case Apply("exp_minus", (x, Ref(maximum))):
                below = self.expression(x, level, phase, out)
                return out.let(k.call("exp_below", below, self.element(f"{maximum}_level", level, out)))
            case Apply("div", (x, Ref(name))) if name in self.sides:
                return out.let(self.expression(x, level, phase, out) * k.name(f"{name}_inverse_now")[C])
            case Apply("div" | "div0" | "share" as op, (x, Ref(name))) if (
                level == FULL and self.levels.get(name) == ROW
            ):
                return out.let(self.divided(op, self.expression(x, level, phase, out), self.element(name, level, out)))
            case Apply(op, args):
                inner = [self.expression(a, level, phase, out) for a in args]
                if op in QUICK and level == FULL and self.narrow:
                    return out.let(k.call(QUICK[op], *inner))
                result = expressions.applied(op, inner)
                divides = op == "div" and phase != BODY
                return out.let(expressions.quotient(self.hollow, inner[1], result) if divides else result)

    def divided(self, op: str, above: ir.Expression, below: ir.Expression) -> ir.Expression:
        """A full value that is divided by a number of its row: the reciprocal is the same for all columns."""
        inverse = expressions.quotient(self.hollow, below, ONE / below)
        product = above * inverse
        return product if op == "div" else k.call(f"guarded_{op}", product, above, below if op == "share" else inverse)

    def element(self, name: str, level: str, out: Lets) -> ir.Expression:
        """An element of a value in registers at the current position."""
        if name in self.sides:
            return k.name(f"{name}_now")[C]
        if (tile := self.plan.tile(name)) is not None and tile.dtype == F32:
            return out.let(k.name(f"w_{name}")[J][I])
        if tile is not None:
            word = k.name(f"w_{name}") if level == SIDE else k.name(f"w_{name}")[J]
            high, low = (words(tile.dtype, half)(word[I / 2]) for half in ("high", "low"))
            return out.let(k.select(I % 2, high, low))
        if level == COLUMN:
            return k.name(name)
        if self.levels.get(name) == ROW:
            return k.name(name)[M][I / 2 if level == FULL else H]
        return out.let(self.exchanged[name]) if name in self.exchanged else at_full(name)

    # --- loops --------------------------------------------------------------------------------------------------------
    def each_tile(self, *body: ir.Statement) -> ir.For:
        """Every thread visits its runs of 64 rows."""
        return k.loop("m", self.plan.row_tiles, *body, unroll=k.UNROLL)

    def each_row(self, *body: ir.Statement) -> ir.For:
        """Every thread visits its rows."""
        row = k.let("int", "r_", k.name("row") + M * 64 + H * 8, unused=True)
        return self.each_tile(k.loop("h", 2, row, *body, unroll=k.UNROLL))

    def columns(self, axis: str, parts: int = 1) -> int:
        """Runs of eight columns of fragments whose columns are `axis`, of which blocks take a part each."""
        count = self.plan.sizes[axis] // 8
        if count % parts:
            raise Refused(f"{self.plan.sizes[axis]} columns for {parts} blocks")
        return count // parts

    def each_column(
        self, e: Expr | None, axis: str, *body: ir.Statement, parts: int = 1, first: k.Statements = ()
    ) -> ir.For:
        """Every thread visits its elements of 64 rows of a fragment whose columns are `axis` (of `parts` blocks each has its
        own columns), two runs of eight at a time; `first` stands in front of those, `e` is what reads loaded tiles."""
        count = self.columns(axis, parts)
        run = PAIR * 2 + J if parts == 1 else k.name("rank") * count + PAIR * 2 + J
        place = {"r_": k.name("row") + M * 64 + I / 2 * 8, "c_": N * 8 + k.name("column") + I % 2}
        positions = (k.let("int", "n", run, unused=True), k.lets("int", place, unused=True))
        elements = k.loop("i", 4, *positions, *body, unroll=k.UNROLL)
        loads = [s for t in self.tiles_of(e) for s in self.load(t)]
        runs = k.loop("j", min(2, count), elements, unroll=k.UNROLL)
        return k.loop("k", -(-count // 2), *first, *loads, runs, unroll=k.UNROLL)

    def each(self, e: Expr | None, axis: str, *body: ir.Statement) -> ir.For:
        """Every thread visits its elements of fragments whose columns are `axis`."""
        return self.each_tile(self.each_column(e, axis, *body))

    def load(self, t: Tile) -> tuple[ir.Statement, ...]:
        """The words of two runs of eight columns of a loaded tile."""
        at = (t.name, t.rows, k.name("base") + M * 64, PAIR * 16)
        whole = t.dtype == F32
        load = k.call(
            "load_floats" if whole else "load_fragment", f"w_{t.name}", *at, static=[t.outer != self.plan.rows]
        )
        name = f"w_{t.name}"
        declared = k.declare("float", name, dims=(2, 4)) if whole else k.declare("uint32_t", name, dims=(2, 2))
        return declared, k.do(load)

    def tiles_of(self, e: Expr | None) -> list[Tile]:
        """The loaded tiles that an expression reads."""
        match e:
            case Ref(name):
                return [t] if (t := self.plan.tile(name)) is not None else []
            case Apply(_, args):
                return list(dict.fromkeys(t for a in args for t in self.tiles_of(a)))
        return []


def guarded(guard: ir.Expression | None, value: ir.Expression, otherwise: ir.Expression) -> ir.Expression:
    """A value where a condition holds, or always without one."""
    return value if guard is None else k.select(guard, value, otherwise)
