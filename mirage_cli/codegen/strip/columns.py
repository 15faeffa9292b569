"""Operands along the columns of strips that stay as they are stored, in 4 or 8 bits: keys and values of caches.

Warps unpack them in registers. Scales go elsewhere: those of keys to queries and scores, those of values to results.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_cli.codegen.strip.base import over_threads
from mirage_cli.codegen.strip.packed import StripPacked
from mirage_cli.codegen.strip.values import CHUNK, Matrix, OperandTile
from mirage_cli.codegen.terms import expressions
from mirage_cli.codegen.terms.expressions import SYNC, Lets
from mirage_cli.codegen.terms.fragments import decode
from mirage_cli.codegen.tiles.tile import Apply, Expr, Ref, Sizes, count
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax.dtypes import BF16, F16, DType
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE, BlockOp
from mirage_cli.search.schedules.packed import STEP, Columns

MATRIX_TYPES = (F16, BF16)
HELD_REGISTERS = 64  #: registers of a thread that may hold operands which do not change in the loop
SMALLEST = k.number("1e-30f")  #: that scales are divided by


class StripColumns(StripPacked):
    """Products whose columns are stored numbers."""

    def stored_columns(self, o: BlockOp, first: str, second: str) -> Columns | None:
        """The operand along columns of a product as stored numbers; None for others, and where a tile of 16 bits is made of
        them. Raises Refused where packed numbers are none."""
        own = self.columns.get(second)
        if own is None:
            return None
        try:
            self.check_columns(o, first, second, own)
        except Refused:
            if own.bits < 8:
                raise
            return None
        return own

    def check_columns(self, o: BlockOp, first: str, second: str, own: Columns) -> None:
        """Raises Refused where the numbers of an operand do not lie as warps read them."""
        over, load = frozenset(o.over), self.ops[own.numbers]
        axes, name = self.sized_axes(self.axes[second], BODY), load.source_value or ""
        last = self.reads[name].access[-1].axis
        deep, accumulated = last in over, self.target(o)[0] != o.name
        inner = [a for a in axes if (a in over) == deep]
        numbers, scaled = count(self.group_sizes(inner, BODY)), self.sized_axes(self.axes_of_scale(own), PROLOGUE)
        unit = STEP if deep else 8 * CHUNK // own.bits
        if numbers % unit or not all(self.shapes.exact(a, BODY) for a in inner) or not {*scaled} <= {*inner}:
            raise Refused(f"{second}: {numbers} numbers lie side by side")
        if deep and (accumulated or self.ops[first].phase != PROLOGUE or first in self.made):
            raise Refused(f"{second} is multiplied with what the loop makes")
        if not deep and (not accumulated or self.loop_axis not in over or first not in self.made):
            raise Refused(f"{second} is multiplied with what no product makes")
        if own.shown and not self.guarded(second, name):
            raise Refused(f"{second} is hidden by no comparison with integers")

    def axes_of_scale(self, own: Columns) -> frozenset[str]:
        """The axes of an operand's scale."""
        return self.axes[own.scale] if own.scale else frozenset()

    def guarded(self, v: str, value: str) -> bool:
        """True if what a comparison hides of a value is left out by copies."""
        match self.value[v]:
            case Apply("where", (condition, _, _)):
                forms = self.shown_forms(condition, value)
                self.guards |= {self.load_of(value, v): forms} if forms else {}
                return bool(forms)
        return False

    def column_tile(self, own: Columns, over: frozenset[str]) -> OperandTile:
        """The tile of the numbers."""
        self.in_columns.add(own.numbers)
        t = self.tile_of(own.numbers, over, "cols")
        if count(t.inner) != t.n_inner or t.n_outer % 8:
            raise Refused(f"{own.numbers} lies in part of a tile")
        return t

    def load(self, t: OperandTile) -> ir.Do:
        """Start copying a tile, of stored numbers without a test for each row where they lie evenly."""
        if t.kind != "ColumnTile":
            return super().load(t)
        threads, thread = self.sharing(t.ring)
        static: list[ir.Value] = [threads, self.even(t), self.fills.get(t.name, 0)]
        return k.run("load_columns", self.held(t), thread, t.value, self.row_of(t), static=static)

    # --- products -----------------------------------------------------------------------------------------------------------
    def stored_contraction(self, o: BlockOp, own: Columns, a: ir.Expression, t: OperandTile, m: Matrix) -> None:
        """The product of an operand along rows and the numbers of a tile, added to a strip."""
        deep = self.inner_depth(t, frozenset(o.over))
        kind = k.of_type("DeepColumns" if deep else "WideColumns", t.type, own.zero)
        depth = t.n_inner if deep else t.n_outer
        self.body.append(k.run("contract_stored", m.name, a, k.construct(kind, self.held(t)), static=[depth // 16]))
        if not own.scale:
            return
        if deep:
            factor = f"{o.name}_factor"
            self.before.append(k.let("float", factor, k.name(self.factors[o.name])[0]))
            self.body.append(m.each(k.assign(m.element, factor, "*=")))
        else:
            self.scaled[m.name] = self.scale_vector(f"{o.name}_scale", own, m.cols)

    def scale_vector(self, name: str, own: Columns, axes: Sizes) -> str:
        """The scales of columns as a vector in shared memory, one where they are all the same."""
        axes = axes if self.sized_axes(self.axes_of_scale(own), PROLOGUE) else ()
        v, out = self.vector(name, axes), Lets()
        value = self.value_of(self.value[own.scale], PROLOGUE, out, self.shared_vector, self.early_element)
        put = k.assign(k.name(name)["i"], value)
        self.prologue += [over_threads("i", v.size, *decode(axes, "i"), *out.statements, put), SYNC]
        return name

    def early_element(self, value: str) -> ir.Expression | None:
        """An element of what the block has copied in front of the loop."""
        return self.tile_element(value, PROLOGUE)

    def queries(self, o: BlockOp, own: Columns, v: str, dtype: DType, depth: Sizes) -> OperandTile:
        """The tile of what keys are multiplied with, each number times its scale over the largest one, which is left to the
        scores: no product is larger than a number was."""
        over, name = frozenset(o.over), f"{o.name}_scale"
        if own.scale and not self.sized_axes(self.axes_of_scale(own), PROLOGUE):
            self.factors[o.name] = self.scale_vector(name, own, ())
        if not own.scale or o.name in self.factors:
            return self.operand_tile(v, dtype, over, "rows")
        self.factors[o.name] = name
        self.largest(name, own, depth)
        e: Expr = Apply("mul", (self.value[v], Apply("div", (self.value[own.scale], Ref(name)))))
        return self.computed_tile(v, e, dtype, over, "rows", f"{v}_by_{own.scale}")

    def largest(self, name: str, own: Columns, depth: Sizes) -> None:
        """The largest magnitude of scales, and no less than a number that may divide."""
        self.vector(name, ())
        out = Lets()
        value = self.value_of(self.value[own.scale], PROLOGUE, out, self.shared_vector, self.early_element)
        value = expressions.applied("abs", [value], "strip_")
        arguments = [("int", "o"), ("int", "k")]
        element = k.function(arguments, k.ignore("o", "k"), *decode(depth, "k"), *out.statements, ir.Return(value))
        most = k.assign(k.name(name)["o"], k.call("fmaxf", "x", SMALLEST))
        put = k.function([("int", "o"), ("float", "x")], most)
        self.prologue += [k.run("reduce", element, put, static=("StripMax", 1, count(depth), "THREADS")), SYNC]

    def row_of_depth(self, t: OperandTile, own: Columns, mt: int, kt: int) -> ir.Expression:
        """A tile as operand along rows whose positions lie as a warp unpacks them."""
        kind = k.of_type("UnpackedRows", t.type, own.bits)
        return self.kept_rows(t, k.construct(kind, self.held(t), self.first_row(mt)), (mt, kt), True, f"{own.bits}")

    def inner_depth(self, t: OperandTile, over: frozenset[str]) -> bool:
        """True if rows of a tile walk what is summed."""
        return bool({a for a, _ in t.inner} & over)

    def kept_rows(
        self, t: OperandTile, value: ir.Expression, matrices: tuple[int, int], keep: bool, order: str = ""
    ) -> ir.Expression:
        """An operand of so many matrices in registers where it stays the same and is small."""
        mt, kt = matrices
        if t.phase == BODY or not keep or 4 * mt * kt > HELD_REGISTERS or t.dtype not in MATRIX_TYPES:
            return value
        held = k.name(f"{t.name}_held{order}")
        declared = k.declare(k.of_type("HeldRows", self.ctype(t.dtype), mt, kt), held.path[0])
        if declared not in self.before:
            self.before += [declared, k.run(held.member("read"), value)]
        return held


def permuted(m: Matrix, bits: int) -> Matrix:
    """A strip whose columns lie as numbers of so many bits are unpacked."""
    return replace(m, slab=16 // bits)
