"""Left operands of products: in registers as words, whole or split into parts; and what adds up products of parts."""

from __future__ import annotations

from mirage_cli.codegen.terms.expressions import ZERO, Lets
from mirage_cli.codegen.tiles.tile import Apply, Count, Expr, Global, Number, Position, Ref
from mirage_cli.codegen.warpgroup.places import Statements
from mirage_cli.codegen.warpgroup.plan import FULL, PARTS, ROW, Product
from mirage_cli.codegen.warpgroup.values import PAIR, I, J, M, Values, at_full, at_row, guarded, words
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, GRID, PROLOGUE, BlockOp


class Operands:
    """What writing the statements of a kernel begins with: the places of statements, and products with their left operands."""

    def __init__(self, values: Values) -> None:
        self.values, self.plan, self.p, self.g = values, values.plan, values.p, values.g
        self.ops = {o.name: o for o in self.g.ops}
        self.readers: dict[str, list[BlockOp]] = {o.name: [] for o in self.g.ops}
        for o in self.g.ops:
            for i in dict.fromkeys(o.inputs):
                self.readers[i].append(o)
        self.value: dict[str, Expr] = {}
        self.products = {p.op: p for p in self.plan.products}
        self.lefts = {p.left for p in self.plan.products}
        self.in_words: set[str] = set()  #: left operands that have registers
        self.hoists: dict[tuple[Expr, str], Expr] = {}  #: numbers of rows that stand for expressions in a phase
        self.shares: dict[str, int] = {}
        self.side_sums: dict[str, BlockOp] = {}
        self.outside: dict[
            str, str
        ] = {}  #: values that count as nothing behind their axis's end, and for which reduction
        self.weighing = False  #: whether statements of the body stand below a running maximum
        self.out = Statements()

    # --- places -------------------------------------------------------------------------------------------------------
    def place(self, phase: str) -> list[ir.Statement]:
        """The statements of a phase."""
        out = self.out
        body = out.weights if self.weighing else out.body
        return {PROLOGUE: out.prologue, BODY: body, EPILOGUE: out.epilogue, GRID: out.grid}[phase]

    def level_of(self, name: str) -> str:
        """The level of a value of the graph."""
        return self.values.level(self.values.axes[name])

    def columns_of(self, name: str) -> str:
        """The axis of a full value's columns."""
        return self.values.column_axis(self.values.axes[name])

    def registers(self, name: str, *dims: int, kind: str = "float") -> ir.Declare:
        """Registers of a thread, for each of its runs of 64 rows."""
        return k.declare(kind, name, dims=(self.plan.row_tiles, *dims), unused=True)

    def declare(self, name: str, level: str) -> None:
        """A variable of this level that lives as long as the block's tile."""
        self.values.levels[name] = level
        dims = (2,) if level == ROW else (self.values.columns(self.columns_of(name)), 4)
        self.out.start.append(self.registers(name, *dims))

    def each_row(self, phase: str, *body: ir.Statement) -> None:
        """Have every thread do something for each of its rows."""
        self.place(phase).append(self.values.each_row(*body))

    # --- products ---------------------------------------------------------------------------------------------------
    def do_contract(self, o: BlockOp) -> None:
        """A product: its left operand in registers, where it is none in shared memory."""
        p = self.products[o.name]
        if self.plan.in_words(p) and p.left not in self.in_words:
            self.in_words.add(p.left)
            each = (PARTS, 4) if p.split else (4,)
            self.out.start.append(self.registers(f"{p.left}_words", p.depth // 16, *each, kind="uint32_t"))
            if p.split:
                self.divided(p)
            elif self.plan.tile(p.left) is None:
                self.operand(p)
            else:
                self.kept(p)
        if not p.accumulated:
            self.declare(o.name, FULL)
        self.value[o.name] = Ref(o.name)

    def left_value(self, p: Product, lets: Lets) -> ir.Expression:
        """An element of a left operand that is computed, or of its tile."""
        phase, alone = self.ops[p.left].phase, self.plan.tile(p.left) is not None
        self.value[p.left] = self.hoisted(self.value[p.left], PROLOGUE)
        value = self.values.expression(self.value[p.left], FULL, phase, lets)
        inside = None if alone or self.outside.get(p.left) == "sum" else self.values.inside([p.over], phase)
        return guarded(inside, value, ZERO)

    def divided(self, p: Product) -> None:
        """The words of the parts of a left operand, and what multiplies it as it is."""
        lets, pair, words_ = Lets(), k.name("pair")[J], k.name(f"{p.left}_words")[M][PAIR]
        value = self.left_value(p, lets)
        e = self.value[p.left]
        put = k.run("split_words", words_, J * 2 + I / 2, pair[I - 1], pair[I], "reach")
        body = (*lets.statements, k.assign(pair[I], value), k.when(I % 2, put))
        first = [k.declare("float", "pair", dims=(2, 4))]
        self.out.operands.append(self.values.each_tile(self.values.each_column(e, p.over, *body, first=first)))
        whole = k.assign(k.name(f"{p.left}_whole")[M][PAIR * 2 + J][I], value)
        self.out.whole.append(self.registers(f"{p.left}_whole", p.depth // 8, 4))
        self.out.whole.append(self.values.each_tile(self.values.each_column(e, p.over, *lets.statements, whole)))

    def operand(self, p: Product) -> None:
        """The words of a left operand that is computed."""
        phase, lets, pair = self.ops[p.left].phase, Lets(), k.name("pair")[J]
        late = any(q.left == p.left for q in self.plan.late)
        value = self.left_value(p, lets)
        e = self.value[p.left]
        pack = words(p.dtype, "pack")(pair[I - 1], pair[I])
        put = k.assign(k.name(f"{p.left}_words")[M][PAIR][J * 2 + I / 2], pack)
        body = (*lets.statements, k.assign(pair[I], value), k.when(I % 2, put))
        first = [k.declare("float", "pair", dims=(2, 4))]
        target = self.out.words if late else self.out.prologue if phase == PROLOGUE else self.out.operands
        target.append(self.values.each_tile(self.values.each_column(e, p.over, *body, first=first)))

    def kept(self, p: Product) -> None:
        """The words of a left operand that is loaded once."""
        tile = self.plan.loaded(p.left)
        at = (k.name(f"{p.left}_words")[M][PAIR], tile.name, tile.rows, k.name("base") + M * 64, PAIR * 16)
        load = k.run("load_words", *at, static=[tile.outer != self.plan.rows])
        self.out.prologue.append(self.values.each_tile(k.loop("k", p.depth // 16, load, unroll=k.UNROLL)))

    def added(self, p: Product) -> None:
        """What products of parts give is added up by ordinary additions."""
        axis, right = self.columns_of(p.out), self.plan.loaded(p.right)
        self.out.start.append(self.registers(p.sums, self.values.columns(axis), 4))
        self.out.start.append(self.values.each(None, axis, k.assign(at_full(p.out), ZERO)))
        self.out.added.append(self.values.each(None, axis, k.assign(at_full(p.out), at_full(p.sums), "+=")))
        operands = (k.name(p.sums)[M], k.name(f"{p.left}_whole")[M], right.name, right.rows)
        static = (p.cols, p.depth, right.inner != p.over)
        self.out.whole.append(self.values.each_tile(k.run("multiply_floats", *operands, static=static)))

    # --- numbers of rows ----------------------------------------------------------------------------------------------
    def hoisted(self, e: Expr, phase: str) -> Expr:
        """An expression of a full value in which what depends on rows alone is a number of each row, computed in a phase."""
        if isinstance(e, Apply | Global) and self.of_row(e, phase):
            if (e, phase) not in self.hoists:
                row, lets = f"row{len(self.hoists)}", Lets()
                value = self.values.expression(e, ROW, phase, lets)
                self.declare(row, ROW)
                self.each_row(phase, *lets.statements, k.assign(at_row(row), value))
                self.hoists[e, phase] = Ref(row)
            return self.hoists[e, phase]
        return Apply(e.op, tuple(self.hoisted(a, phase) for a in e.args)) if isinstance(e, Apply) else e

    def of_row(self, e: Expr, phase: str) -> bool | None:
        """Whether an expression depends on rows alone, known in a phase; None where it is the same everywhere."""
        match e:
            case Number() | Count():
                return None
            case Position(axis):
                return axis == self.plan.rows
            case Global(v):
                axes = frozenset(s.axis for s in self.values.reads[v].access if s.axis is not None)
                return self.plan.present(axes) == {self.plan.rows}
            case Ref(name):
                known = phase != PROLOGUE or name not in self.ops or self.ops[name].phase == PROLOGUE
                return known and self.values.levels.get(name) == ROW
            case Apply(_, args):
                found = {self.of_row(a, phase) for a in args} - {None}
                return found == {True} if found else None
