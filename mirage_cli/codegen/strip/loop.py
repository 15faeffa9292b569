"""The part of a strip kernel up to the end of its loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mirage_cli.codegen.strip.base import EACH_GROUP, ONE, SHOWN, Leaf
from mirage_cli.codegen.strip.columns import MATRIX_TYPES, StripColumns, permuted
from mirage_cli.codegen.strip.values import SWIZZLED, Matrix, OperandTile, RowVector, Vector, padded
from mirage_cli.codegen.terms.expressions import SYNC, ZERO, Lets
from mirage_cli.codegen.terms.fragments import decode
from mirage_cli.codegen.tiles.tile import (
    Count,
    Expr,
    Global,
    Position,
    Ref,
    Sizes,
    count,
    from_thread,
    globals_of,
    refs,
)
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax.dtypes import F32, DType
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE, BlockOp
from mirage_cli.search.schedules.products import warps_of_sum
from mirage_cli.search.schedules.strip import CHUNK, HALF

PANEL = 64  #: elements of a row that lie together where matrix instructions of a warpgroup read them

#: what is read or counted, by operator
LEAVES: dict[str, Callable[[BlockOp], Expr]] = {
    "load": lambda o: Global(o.source_value or ""),
    "iota": lambda o: Position(o.axis or ""),
    "extent": lambda o: Count(o.axis or ""),
}


class StripLoop(StripColumns):
    """Prints the operators of prologue and body."""

    def walk(self) -> None:
        """Print the operators of prologue and body in their order."""
        self.start()
        for o in self.g.ops:
            if o.phase in (PROLOGUE, BODY) and o.op in LEAVES:
                self.value[o.name] = LEAVES[o.op](o)
            elif o.phase == PROLOGUE:
                self.in_prologue(o)
            elif o.phase == BODY:
                self.in_body(o)
            elif o.op == "accum":
                self.value[o.name] = Ref(o.name)
        for at, early in reversed(self.early):
            self.prologue[at:at] = early()

    # --- prologue -----------------------------------------------------------------------------------------------------
    def in_prologue(self, o: BlockOp) -> None:
        """An operator in front of the loop: lazily an expression, sums and maxima as vectors."""
        match o.op:
            case "thread" if o.thread is not None:
                self.value[o.name] = from_thread(o.thread, [self.value[i] for i in o.inputs])
            case "sum" | "top":
                self.early_sum(o)
            case _:
                raise Refused(f"{o.name}: {o.op} in front of the loop")

    def early_sum(self, o: BlockOp) -> None:
        """A sum or maximum in front of the loop: a vector that the block computes once."""
        source = self.axes[o.inputs[0]]
        kept = self.group_sizes(self.sized_axes(source - frozenset(o.over), PROLOGUE), PROLOGUE)
        summed = self.group_sizes(self.sized_axes(source & frozenset(o.over), PROLOGUE), PROLOGUE)
        v = self.vector(o.name, kept)
        if self.loop_axis in o.over:
            for value in globals_of(self.value[o.inputs[0]]):
                if self.loop_axis in self.p.axes_of(value):
                    self.tile_of(self.load_of(value, o.name), frozenset(o.over))
        self.early.append((len(self.prologue), partial(self.summed_early, o, v, self.value[o.inputs[0]], summed)))
        self.value[o.name] = Ref(o.name)

    def summed_early(self, o: BlockOp, v: Vector, e: Expr, summed: Sizes) -> list[ir.Statement]:
        """The statements of such a sum, once it is known which tiles there are."""
        kept, out, read = v.axes, Lets(), dict[str, tuple[OperandTile, ir.Value, ir.Value]]()

        def element(value: str) -> ir.Expression | None:
            tile = self.copied(value, PROLOGUE)
            if (
                tile is None
                or tile.kind != "Tile"
                or tile.inner != summed
                or count(summed) % (CHUNK // tile.dtype.bytes)
            ):
                return self.tile_element(value, PROLOGUE)
            read[value] = tile, self.vector_index(tile.outer), "first"
            return k.name(f"{value}_part")["e"]

        inside = self.inside([a for a, _ in (*kept, *summed)], PROLOGUE)
        guard = out.let(inside, "bool") if inside else None
        value = self.value_of(e, PROLOGUE, out, self.shared_vector, element, guard)
        kind = "StripSum" if o.op == "sum" else "StripMax"
        none = k.call(f"{kind}::none")
        value = k.select(guard, value, none) if guard else value
        chunk = max((CHUNK // t.dtype.bytes for t, *_ in read.values()), default=1)
        if read:  # elements that lie side by side are read at once
            body = [k.let("int", "first", k.name("k") * chunk), *self.parts_read(read, chunk)]
            joined = k.assign("total", k.call(f"{kind}::join", "total", value))
            each = (*decode(summed, k.name("first") + "e"), *out.statements, joined)
            total = k.name("total")
            body += [k.declare("float", "total", none), k.loop("e", chunk, *each, unroll=k.UNROLL), ir.Return(total)]
        else:
            body = [*decode(summed, "k"), *out.statements, ir.Return(value)]
        terms = k.function([("int", "o"), ("int", "k")], k.ignore("o", "k"), *decode(kept, "o"), *body)
        put = k.function([("int", "o"), ("float", "x")], k.assign(k.name(o.name)["o"], "x"))
        static = (kind, v.size, count(summed) // chunk, "THREADS")
        if warps_of_sum(v.size, count(summed), self.s.warps) == 1:
            return [k.run("reduce", terms, put, static=static), SYNC]
        shares = f"{o.name}_shares"
        self.memory.keep(shares, "float", 4 * self.s.warps)
        return [k.run("reduce_shared", shares, terms, put, static=static), SYNC]

    # --- body ---------------------------------------------------------------------------------------------------------
    def in_body(self, o: BlockOp) -> None:
        """An operator of the loop."""
        match o.op:
            case "thread":
                self.thread(o)
            case "contract":
                self.contraction(o)
            case "sum" | "top":
                self.sum_or_top(o)
            case "running":
                self.running_maximum(o)
            case "shrink":
                pass  # made together with its maximum
            case _:
                raise Refused(f"{o.name}: {o.op} in the loop")

    def here(self, name: str) -> Expr:
        """A value as the body reads it: vectors made in front of the loop lie in registers where they go with rows."""
        e = self.value[name]
        if self.ops[name].phase != PROLOGUE or not any(n in self.vectors for n in refs(e)):
            return e
        own = self.sized_axes(self.axes[name], PROLOGUE)
        if not own or not set(own) <= self.sides.rows:
            return e
        if name not in self.copies:
            copy = f"{name}_rows"
            rows = self.group_sizes(own, PROLOGUE)
            self.copies[name] = copy
            v = self.row_vectors[copy] = RowVector(copy, rows, self.row_matrices(rows), half=self.half(rows))
            self.before += self.computed(v, e, PROLOGUE, self.shared_vector)
        return Ref(self.copies[name])

    def thread(self, o: BlockOp) -> None:
        """An elementwise operator: registers where it depends on products, else an expression."""
        assert o.thread is not None
        e = from_thread(o.thread, [self.here(i) for i in o.inputs])
        self.value[o.name] = e
        matrix = self.matrix_in(e)
        if matrix is not None:
            self.matrix_value(o, e, matrix)
        elif any(n in self.row_vectors for n in refs(e)) and not any(n in self.vectors for n in refs(e)):
            if self.reads_loop(e):
                return  # a part of an expression over a strip
            self.row_value(o, e)
        elif any(n in self.vectors and self.vectors[n].grouped for n in refs(e)):
            self.column_value(o, e)

    def reads_loop(self, e: Expr) -> bool:
        """True if an expression has axes along columns."""
        return bool(self.sized_axes(self.axes_in(e), BODY)) and bool(
            set(self.sized_axes(self.axes_in(e), BODY)) & self.sides.cols
        )

    def matrix_value(self, o: BlockOp, e: Expr, like: Matrix) -> None:
        """A new strip with the value of an expression."""
        own = set(self.sized_axes(self.axes[o.name], BODY))
        if own != set(like.axes):
            raise Refused(f"{o.name} has other axes than {like.name}")
        m = self.matrix(o.name, like.rows, like.cols)
        self.body += self.computed(m, e, BODY, self.element_of_strip)
        self.value[o.name] = Ref(m.name)

    def computed(self, v: Matrix | RowVector, e: Expr, phase: str, ref: Leaf) -> list[ir.Statement]:
        """A value in registers with that of an expression, which reads inputs within their extents."""
        out = Lets()
        value = self.value_of(e, phase, out, ref, None, self.guard(e, (*v.rows, *v.cols), phase, out))
        position = self.place_of(v) if self.has_position(e) else []
        return [k.declare(v.type, v.name), v.each(*position, *out.statements, k.assign(v.element, value))]

    def element_of_strip(self, name: str) -> ir.Expression:
        """A register or vector at a strip's element."""
        if name in self.matrices:
            return self.matrices[name].element
        if name in self.row_vectors:
            return self.row_vectors[name].beside
        if name in self.vectors:
            return self.shared_vector(name)
        raise Refused(f"{name} is not there in the loop")

    def place_of(self, v: Matrix | RowVector) -> list[ir.Statement]:
        """Index variables of an element in registers; padding counts as the last row or column."""
        places = {"r_": self.clamped(v.row, v.rows, 16 * self.members * v.mt)}
        if isinstance(v, Matrix):
            places["c_"] = self.clamped(v.column, v.cols, v.width)
        return [k.lets("int", places, unused=True), *decode(v.rows, "r_"), *decode(v.cols, "c_")]

    def half(self, rows: Sizes) -> bool:
        """True if all rows lie in the upper half of one matrix."""
        return self.members == 1 and count(rows) <= HALF

    def matrix(self, name: str, rows: Sizes, cols: Sizes) -> Matrix:
        """A strip with a type of its own."""
        columns = self.column_matrices(cols)
        m = self.matrices[name] = Matrix(
            name, rows, cols, self.row_matrices(rows), columns, self.across, half=self.half(rows)
        )
        self.declare.append(k.alias(m.own, m.type))
        return m

    def row_value(self, o: BlockOp, e: Expr) -> None:
        """A new row vector with the value of an expression."""
        like = next(self.row_vectors[n] for n in refs(e) if n in self.row_vectors)
        v = self.row_vectors[o.name] = RowVector(o.name, like.rows, like.mt, half=like.half)
        self.body += self.computed(v, e, BODY, self.element_of_rows)
        self.value[o.name] = Ref(o.name)

    def element_of_rows(self, name: str) -> ir.Expression:
        """A row vector's element."""
        if name not in self.row_vectors:
            raise Refused(f"{name} does not go with rows")
        return self.row_vectors[name].element

    def column_value(self, o: BlockOp, e: Expr) -> None:
        """A new vector of a group with the value of an expression."""
        like = next(self.vectors[n] for n in refs(e) if n in self.vectors)
        if set(self.sized_axes(self.axes_in(e), BODY)) != {a for a, _ in like.axes}:
            return  # a part of an expression over a strip
        v = self.vector(o.name, like.axes, grouped=True)
        out, own = Lets(), k.name(o.name)["i"]
        value = self.value_of(e, BODY, out, self.shared_vector, None, self.guard(e, v.axes, BODY, out))
        body = [*decode(v.axes, "i"), *out.statements, k.assign(own, value)]
        if any(n.op == "div" for r in self.readers[o.name] if r.thread is not None for n in r.thread.nodes):
            inverse = self.vector(f"{o.name}_inverse", like.axes, grouped=True)
            self.inverses[o.name] = inverse.name
            body.append(k.assign(k.name(inverse.name)["i"], ONE / own))
        self.body += [k.loop("i", v.size, *body, start="in_group", step="GROUP"), EACH_GROUP]
        self.value[o.name] = Ref(o.name)

    # --- products -----------------------------------------------------------------------------------------------------
    def contraction(self, o: BlockOp) -> None:
        """A product of tiles, or of a strip and a tile."""
        dtype = o.dtype or F32
        if dtype not in (*MATRIX_TYPES, F32):
            raise Refused(f"products of {dtype} are not done by this engine")
        over = frozenset(o.over)
        first, second = self.operands(o)
        stored = self.stored_columns(o, first, second)
        col_tile = self.column_tile(stored, over) if stored else self.operand_tile(second, dtype, over, "cols")
        cols, other_depth, other_padded = self.parts(col_tile, over)
        joint = not stored and self.joint(dtype, cols, col_tile)
        if first in self.made:
            e = self.value[first]
            if not isinstance(e, Ref) or e.buffer not in self.matrices:
                raise Refused(f"{first} is no strip")
            strip = self.masked(self.matrices[e.buffer], over)
            rows, depth, depth_padded = strip.rows, strip.cols, strip.width
            joint = joint and strip.mt == 1 and strip.width % PANEL == 0
            a: ir.Expression = self.strip_operand(strip, dtype)
        elif first in self.packed:
            row_tile = self.packed_rows(first, over)
            rows, depth, depth_padded = self.parts(row_tile, over)
            joint = False
        elif stored:
            row_tile = self.queries(o, stored, first, dtype, other_depth)
            rows, depth, depth_padded = self.parts(row_tile, over)
            if not self.inner_depth(row_tile, over):
                raise Refused(f"rows of {first} do not walk what {o.name} sums over")
            a = self.row_of_depth(row_tile, stored, self.row_matrices(rows), depth_padded // 16)
        else:
            row_tile = self.operand_tile(first, dtype, over, "rows")
            rows, depth, depth_padded = self.parts(row_tile, over)
            matrices = self.row_matrices(rows)
            joint = joint and matrices == 1 and row_tile.panels and self.inner_depth(row_tile, over)
            a = self.row_operand(row_tile, over, matrices, depth_padded // 16, not joint)
        if depth != other_depth or depth_padded != other_padded or depth_padded % 16:
            raise Refused(f"{o.name}: its operands lie differently along what it sums over")
        name, shrink = self.target(o)
        m = self.matrix(name, rows, cols)
        if stored and not self.inner_depth(col_tile, over):
            m = self.matrices[name] = permuted(m, stored.bits)
        self.produced.add(name)
        self.value[o.name] = Ref(name)
        columns = k.of_type("Columns8", col_tile.type, self.inner_depth(col_tile, over))
        own = [k.name("share") * m.nt] if self.across > 1 else []
        (self.body if name == o.name else self.before).extend((k.declare(m.type, name), _filled(name, ZERO)))
        if shrink:
            self.body.append(m.each(k.assign(m.element, self.row_vectors[shrink].beside, "*=")))
        if first in self.packed:
            self.body.append(self.packed_contraction(o, first, col_tile, name))
            return
        if stored:
            self.stored_contraction(o, stored, a, col_tile, m)
            return
        how = "strip_contract" if dtype in MATRIX_TYPES else "contract_exactly"
        how = "strip_contract_together" if joint else how
        b = k.construct(columns, self.held(col_tile), *own)
        self.body.append(k.run(how, name, a, b, static=[depth_padded // 16]))

    def operands(self, o: BlockOp) -> tuple[str, str]:
        """The operand along rows and the one along columns."""
        over = frozenset(o.over)
        x, y = o.inputs
        if y in self.made or x in self.made:
            return (x, y) if x in self.made else (y, x)
        own = [set(self.sized_axes(self.axes[i] - over, BODY)) for i in (x, y)]
        if own[0] & self.sides.rows or own[1] & self.sides.cols:
            return x, y
        return y, x

    def parts(self, t: OperandTile, over: frozenset[str]) -> tuple[Sizes, Sizes, int]:
        """The free axes of a tile, the summed ones, and what these are padded to."""
        if self.inner_depth(t, over):
            return t.outer, t.inner, t.n_inner
        return t.inner, t.outer, t.n_outer

    def joint(self, dtype: DType, cols: Sizes, t: OperandTile) -> bool:
        """True if, as far as the operand along columns goes, the warps of 64 rows multiply together."""
        matrices = self.column_matrices(cols)
        return dtype in MATRIX_TYPES and t.panels and (matrices in (2, 4, 8) or matrices % 16 == 0)

    def row_operand(self, t: OperandTile, over: frozenset[str], mt: int, kt: int, keep: bool) -> ir.Expression:
        """A tile as operand along rows, in registers (where it is to `keep` there) when it stays the same and is small."""
        kind = k.of_type("Rows16", t.type, self.inner_depth(t, over))
        return self.kept_rows(t, k.construct(kind, self.held(t), self.first_row(mt)), (mt, kt), keep)

    def masked(self, m: Matrix, over: frozenset[str]) -> Matrix:
        """A strip with zeros outside the extents of what a product sums over."""
        test = k.both(self.inside_strip([a for a, _ in m.cols if a in over]), m.short)
        if m.width % 16:
            raise Refused(f"{m.name} has {m.width} columns, no multiple of 16")
        if test:
            self.body.append(m.each(*self.place_of(m), k.when(k.negated(test), k.assign(m.element, ZERO))))
        return m

    def strip_operand(self, m: Matrix, dtype: DType) -> ir.Construct:
        """A strip as the operand along rows: in registers, or in a tile where warps share its columns."""
        ctype = self.ctype(dtype)
        if self.across == 1:
            return k.construct(k.of_type("StripOperand", ctype, m.own), m.name)
        rows, name = 16 * self.members * m.mt, f"{m.name}_shared"
        tile = k.of_type("Tile", ctype, rows, m.width)
        if name not in self.spread:
            self.spread.add(name)
            bytes_ = padded(rows * m.width * dtype.bytes, self.memory.unit)
            self.memory.keep(f"{name}_all", ctype, bytes_ * self.groups)
            place = k.name(f"{name}_all") + k.name("group") * (bytes_ // dtype.bytes)
            self.before_loop.append(k.made(tile, name, place))
            shown = [SHOWN] if self.memory.unit == SWIZZLED else []
            self.body += [k.run("put_strip", name, m.name, "member", "share"), *shown, EACH_GROUP]
        return k.construct(k.of_type("Rows16", tile, True), name, self.first_row(m.mt))

    # --- accumulators -------------------------------------------------------------------------------------------------
    def sum_or_top(self, o: BlockOp) -> None:
        """A sum or maximum along columns of a strip, or along a side of a tile."""
        e, over = self.here(o.inputs[0]), frozenset(o.over)
        m = self.matrix_in(e)
        if m is None:
            if o.op != "sum":
                raise Refused(f"{o.name}: a maximum over a loaded tile")
            self.tile_sum(o, e, over)
            return
        if {a for a, _ in m.cols} != set(self.sized_axes(over, BODY)):
            raise Refused(f"{o.name} does not take whole rows of a strip")
        kind = "StripSum" if o.op == "sum" else "StripMax"
        name, shrink = self.target(o)
        v = self.row_vectors[name] = RowVector(name, m.rows, m.mt, half=m.half)
        out, x, nothing = Lets(), k.name("x"), k.call(f"{kind}::none")
        test = k.both(self.inside_strip([a for a, _ in m.cols]), m.short)
        value = self.value_of(e, BODY, out, self.element_of_strip)
        value = k.select(test, value, nothing) if test else value
        position = self.place_of(m) if self.has_position(e) or test else []
        join = k.assign(x, k.call(f"{kind}::join", x, value))
        h = k.name("h_")
        elements = k.loop("i_", 2 * h + 2, *position, *out.statements, join, start=2 * h, unroll=k.UNROLL)
        walk = (k.declare("float", "x", nothing), k.loop("n_", m.nt, elements, unroll=k.UNROLL))
        if name == o.name:
            self.body.append(k.declare(v.type, name))
            self.body.append(v.each(*walk, k.assign(v.element, k.call("over_row", x, static=[kind]))))
            self.join_shares(v, kind)
        else:
            self.before += [k.declare(v.type, name), _filled(name, ZERO)]
            kept = v.element * self.row_vectors[shrink].element if shrink else v.element
            self.body.append(v.each(*walk, k.assign(v.element, kept + x)))
        self.value[o.name] = Ref(name)

    def join_shares(self, v: RowVector, kind: str) -> None:
        """Sums or maxima of rows over the warps that share their columns."""
        if self.across == 1:
            return
        numbers, own = self.across * 16 * self.members * v.mt, f"{v.name}_own"
        self.keep_of_group(v.name, "float", numbers, 4 * numbers, own)
        put = k.run("put_share", own, v.name, "member", "share", static=[self.members])
        joined = k.run("join_shares", v.name, own, "member", static=[kind, self.across, self.members])
        self.body += [put, EACH_GROUP, joined]

    def running_maximum(self, o: BlockOp) -> None:
        """A running maximum and its shrink."""
        top = self.value[o.inputs[0]]
        assert isinstance(top, Ref)
        like = self.row_vectors[top.buffer]
        v = self.row_vectors[o.name] = RowVector(o.name, like.rows, like.mt, half=like.half)
        shrink = next(r.name for r in self.readers[o.name] if r.op == "shrink")
        scale = self.row_vectors[shrink] = RowVector(shrink, like.rows, like.mt, half=like.half)
        self.shrinks[shrink] = o.name
        self.maxima.append(o.name)
        self.before += [k.declare(v.type, o.name), _filled(o.name, -k.number("INFINITY"))]
        self.body += [
            k.declare(v.type, shrink),
            v.each(
                k.lets("float", {"low": v.element, "high": k.call("fmaxf", "low", like.element)}),
                k.assign(v.element, "high"),
                k.assign(scale.element, k.call("strip_exp_difference", "low", "high")),
            ),
        ]
        self.value[o.name], self.value[shrink] = Ref(o.name), Ref(shrink)


def _filled(name: str, value: ir.Expression) -> ir.Do:
    """All numbers of a value in registers are one."""
    return k.run(k.name(name).member("fill"), value)
