"""The part of a strip kernel up to the end of its loop."""

from __future__ import annotations

from mirage_cli.codegen.printers.statements import Lines
from mirage_cli.codegen.strip.tiles import StripTiles
from mirage_cli.codegen.strip.values import SWIZZLED, Matrix, OperandTile, RowVector, padded
from mirage_cli.codegen.tiles.tile import Count, Expr, Global, Position, Ref, Sizes, count, from_thread, refs
from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import BF16, F16, F32, DType
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE, BlockOp

MATRIX_TYPES = (F16, BF16)
PANEL = 64  #: elements of a row that lie together where matrix instructions of a warpgroup read them
HELD_REGISTERS = 64  #: registers of a thread that may hold operands which do not change in the loop


class StripLoop(StripTiles):
    """Prints the operators of prologue and body."""

    def walk(self) -> None:
        """Print the operators of prologue and body in their order."""
        self.start()
        for o in self.g.ops:
            if o.phase == PROLOGUE:
                self.in_prologue(o)
            elif o.phase == BODY:
                self.in_body(o)
            elif o.op == "accum":
                self.value[o.name] = Ref(o.name)

    # --- prologue -----------------------------------------------------------------------------------------------------
    def in_prologue(self, o: BlockOp) -> None:
        """An operator in front of the loop: lazily an expression, sums and maxima as vectors."""
        match o.op:
            case "load":
                self.value[o.name] = Global(o.source_value or "")
            case "iota":
                self.value[o.name] = Position(o.axis or "")
            case "extent":
                self.value[o.name] = Count(o.axis or "")
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
        out = Lines()
        inside = self.inside([a for a, _ in (*kept, *summed)], PROLOGUE)
        guard = out.let(inside, "bool") if inside else ""
        e = self.value[o.inputs[0]]
        value = self.printed(e, PROLOGUE, out, self.shared_vector, self.held_element, guard)
        kind = "StripSum" if o.op == "sum" else "StripMax"
        value = f"{guard} ? {value} : {kind}::none()" if guard else value
        self.prologue += [
            f"reduce<{kind}, {v.size}, {count(summed)}, THREADS>(",
            "    [&](int o, int k) {",
            "        (void)o, (void)k;",
            *("        " + x for x in [*self.decode(kept, "o"), *self.decode(summed, "k"), *out.lines]),
            f"        return {value};",
            "    },",
            f"    [&](int o, float x) {{ {o.name}[o] = x; }});",
            "__syncthreads();",
        ]
        self.value[o.name] = Ref(o.name)

    # --- body ---------------------------------------------------------------------------------------------------------
    def in_body(self, o: BlockOp) -> None:
        """An operator of the loop."""
        match o.op:
            case "load":
                self.value[o.name] = Global(o.source_value or "")
            case "iota":
                self.value[o.name] = Position(o.axis or "")
            case "extent":
                self.value[o.name] = Count(o.axis or "")
            case "thread":
                self.thread(o)
            case "contract":
                self.contraction(o)
            case "sum" | "top":
                self.sum_or_top(o)
            case "running":
                self.running(o)
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
            v = self.row_vectors[copy] = RowVector(copy, rows, self.row_matrices(rows))
            out = Lines()
            value = self.printed(e, PROLOGUE, out, self.shared_vector)
            self.before += [
                f"{v.type} {copy};",
                f"MIRAGE_STRIP_ROWS({v.type.replace(' ', '')}) {{",
                *("    " + x for x in [*self.row_position(v), *out.lines, f"{copy}.v[m_][h_] = {value};"]),
                "}",
            ]
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
        self.body += [f"{m.type} {m.name};", *self.over_matrix(m, e, f"{m.name}.v[m_][n_][i_] = {{}};")]
        self.value[o.name] = Ref(m.name)

    def over_matrix(self, m: Matrix, e: Expr, statement: str) -> list[str]:
        """A statement for every element of a strip; `{}` stands for the expression's value."""
        out = Lines()
        inside = self.inside([a for a, _ in m.rows + m.cols], BODY)
        guard = out.let(inside, "bool") if inside and self.reads_inputs(e) else ""
        value = self.printed(e, BODY, out, self.element_of_strip, None, guard)
        position = self.strip_position(m) if self.has_position(e) or guard else []
        lines = [*position, *out.lines, statement.format(value)]
        return [f"MIRAGE_STRIP(S_{m.name}) {{", *("    " + x for x in lines), "}"]

    def element_of_strip(self, name: str) -> str:
        """A register or vector at a strip's element."""
        if name in self.matrices:
            return f"{name}.v[m_][n_][i_]"
        if name in self.row_vectors:
            return f"{name}.v[m_][i_ >> 1]"
        if name in self.vectors:
            return f"{name}[{self.vector_index(self.vectors[name].axes)}]"
        raise Refused(f"{name} is not there in the loop")

    def strip_position(self, m: Matrix) -> list[str]:
        """Index variables of a strip's element; padding counts as the last row or column."""
        row = self.clamped(f"strip_row<S_{m.name}>(member, m_, i_)", m.rows, 16 * self.members * m.mt)
        col = self.clamped(m.column, m.cols, m.width)
        lines = [f"[[maybe_unused]] const int r_ = {row}, c_ = {col};"]
        return [*lines, *self.decode(m.rows, "r_"), *self.decode(m.cols, "c_")]

    def row_position(self, v: RowVector) -> list[str]:
        """Index variables of a row vector's element."""
        row = f"strip_row<{v.type.replace(' ', '')}>(member, m_, h_ * 2)"
        row = self.clamped(row, v.rows, 16 * self.members * v.mt)
        return [f"[[maybe_unused]] const int r_ = {row};", *self.decode(v.rows, "r_")]

    def matrix(self, name: str, rows: tuple[tuple[str, int], ...], cols: tuple[tuple[str, int], ...]) -> Matrix:
        """A strip with a type of its own."""
        columns = self.column_matrices(cols)
        m = self.matrices[name] = Matrix(name, rows, cols, self.row_matrices(rows), columns, self.across)
        self.declare.append(f"using S_{name} = {m.type};")
        return m

    def row_value(self, o: BlockOp, e: Expr) -> None:
        """A new row vector with the value of an expression."""
        like = next(self.row_vectors[n] for n in refs(e) if n in self.row_vectors)
        v = self.row_vectors[o.name] = RowVector(o.name, like.rows, like.mt)
        out = Lines()
        value = self.printed(e, BODY, out, self.element_of_rows)
        position = self.row_position(v) if self.has_position(e) else []
        self.body += [
            f"{v.type} {v.name};",
            f"MIRAGE_STRIP_ROWS({v.type}) {{",
            *("    " + x for x in [*position, *out.lines, f"{v.name}.v[m_][h_] = {value};"]),
            "}",
        ]
        self.value[o.name] = Ref(o.name)

    def element_of_rows(self, name: str) -> str:
        """A row vector's element."""
        if name not in self.row_vectors:
            raise Refused(f"{name} does not go with rows")
        return f"{name}.v[m_][h_]"

    def column_value(self, o: BlockOp, e: Expr) -> None:
        """A new vector of a group with the value of an expression."""
        like = next(self.vectors[n] for n in refs(e) if n in self.vectors)
        if set(self.sized_axes(self.axes_in(e), BODY)) != {a for a, _ in like.axes}:
            return  # a part of an expression over a strip
        v = self.vector(o.name, like.axes, grouped=True)
        out = Lines()
        value = self.printed(e, BODY, out, self.shared_vector)
        lines = [*self.decode(v.axes, "i"), *out.lines, f"{o.name}[i] = {value};"]
        if any(n.op == "div" for r in self.readers[o.name] if r.thread is not None for n in r.thread.nodes):
            inverse = self.vector(f"{o.name}_inverse", like.axes, grouped=True)
            self.inverses[o.name] = inverse.name
            lines.append(f"{inverse.name}[i] = 1.0f / {o.name}[i];")
        self.body += [f"for (int i = in_group; i < {v.size}; i += GROUP) {{", *("    " + x for x in lines), "}"]
        self.body.append("wait_together<GROUP>(1 + group);")
        self.value[o.name] = Ref(o.name)

    # --- products -----------------------------------------------------------------------------------------------------
    def contraction(self, o: BlockOp) -> None:
        """A product of tiles, or of a strip and a tile."""
        dtype = o.dtype or F32
        if dtype not in (*MATRIX_TYPES, F32):
            raise Refused(f"products of {dtype} are not done by this engine")
        over = frozenset(o.over)
        first, second = self.operands(o)
        col_tile = self.operand_tile(second, dtype, over, "cols")
        cols, other_depth, other_padded = self.parts(col_tile, over)
        joint = self.joint(dtype, cols, col_tile)
        if first in self.made:
            e = self.value[first]
            if not isinstance(e, Ref) or e.buffer not in self.matrices:
                raise Refused(f"{first} is no strip")
            strip = self.masked(self.matrices[e.buffer], over)
            rows, depth, depth_padded = strip.rows, strip.cols, strip.width
            joint = joint and strip.mt == 1 and strip.width % PANEL == 0
            a = self.strip_operand(strip, dtype)
        else:
            row_tile = self.operand_tile(first, dtype, over, "rows")
            rows, depth, depth_padded = self.parts(row_tile, over)
            matrices = self.row_matrices(rows)
            joint = joint and matrices == 1 and row_tile.panels and self.inner_depth(row_tile, over) == "true"
            a = self.row_operand(row_tile, over, matrices, depth_padded // 16, not joint)
        if depth != other_depth or depth_padded != other_padded or depth_padded % 16:
            raise Refused(f"{o.name}: its operands lie differently along what it sums over")
        name, shrink = self.target(o)
        m = self.matrix(name, rows, cols)
        self.produced.add(name)
        inner = self.inner_depth(col_tile, over)
        own = f", share * {m.nt}" if self.across > 1 else ""
        b = f"Columns8<{col_tile.type}, {inner}>{{{self.tile_text(col_tile)}{own}}}"
        if name == o.name:
            self.body += [f"{m.type} {name};", f"{name}.fill(0.0f);"]
        else:
            self.before += [f"{m.type} {name};", f"{name}.fill(0.0f);"]
            self.body += self.scaled(m.name, f"MIRAGE_STRIP(S_{name}) ", "v[m_][n_][i_]", "v[m_][i_ >> 1]", shrink)
        how = "strip_contract" if dtype in MATRIX_TYPES else "contract_exactly"
        how = "strip_contract_together" if joint else how
        self.body.append(f"{how}<{depth_padded // 16}>({name}, {a}, {b});")
        self.value[o.name] = Ref(name)

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

    def parts(
        self, t: OperandTile, over: frozenset[str]
    ) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...], int]:
        """The free axes of a tile, the summed ones, and what these are padded to."""
        if self.inner_depth(t, over) == "true":
            return t.outer, t.inner, t.n_inner
        return t.inner, t.outer, t.n_outer

    def inner_depth(self, t: OperandTile, over: frozenset[str]) -> str:
        """The C++ constant that tells whether rows of a tile walk what is summed."""
        return "true" if {a for a, _ in t.inner} & over else "false"

    def joint(self, dtype: DType, cols: Sizes, t: OperandTile) -> bool:
        """True if, as far as the operand along columns goes, the warps of 64 rows multiply together."""
        matrices = self.column_matrices(cols)
        return dtype in MATRIX_TYPES and t.panels and (matrices in (2, 4, 8) or matrices % 16 == 0)

    def row_operand(self, t: OperandTile, over: frozenset[str], mt: int, kt: int, keep: bool) -> str:
        """A tile as operand along rows, in registers (where it is to `keep` there) when it stays the same and is small."""
        kind = f"Rows16<{t.type}, {self.inner_depth(t, over)}>"
        text = f"{kind}{{{self.tile_text(t)}, {self.first_row(mt)}}}"
        if t.phase == BODY or not keep or 4 * mt * kt > HELD_REGISTERS or t.dtype not in MATRIX_TYPES:
            return text
        held = f"{t.name}_held"
        line = f"HeldRows<{self.ctype(t.dtype)}, {mt}, {kt}> {held};"
        if line not in self.before:
            self.before += [line, f"{held}.read({text});"]
        return held

    def first_row(self, mt: int) -> str:
        """The first row of a warp in its group's tile."""
        return f"member * {16 * mt}" if self.members > 1 else "0"

    def masked(self, m: Matrix, over: frozenset[str]) -> Matrix:
        """A strip with zeros outside the extents of what a product sums over."""
        inside = self.inside([a for a, _ in m.cols if a in over], BODY)
        tests = [x for x in (inside, m.short) if x]
        if m.width % 16:
            raise Refused(f"{m.name} has {m.width} columns, no multiple of 16")
        if tests:
            line = f"if (!({' && '.join(tests)})) {m.name}.v[m_][n_][i_] = 0.0f;"
            self.body += [f"MIRAGE_STRIP(S_{m.name}) {{", *("    " + x for x in [*self.strip_position(m), line]), "}"]
        return m

    def strip_operand(self, m: Matrix, dtype: DType) -> str:
        """A strip as the operand along rows: in registers, or in a tile where warps share its columns."""
        if self.across == 1:
            return f"StripOperand<{self.ctype(dtype)}, S_{m.name}>{{{m.name}}}"
        rows, ctype, name = 16 * self.members * m.mt, self.ctype(dtype), f"{m.name}_shared"
        tile = f"Tile<{ctype}, {rows}, {m.width}>"
        if name not in self.spread:
            self.spread.add(name)
            bytes_ = padded(rows * m.width * dtype.bytes, self.memory.unit)
            self.memory.keep(f"{name}_all", ctype, bytes_ * self.groups)
            self.before_loop.append(f"const {tile} {name}{{{name}_all + group * {bytes_ // dtype.bytes}}};")
            shown = ["show_products();"] if self.memory.unit == SWIZZLED else []
            self.body += [f"put_strip({name}, {m.name}, member, share);", *shown, "wait_together<GROUP>(1 + group);"]
        return f"Rows16<{tile}, true>{{{name}, {self.first_row(m.mt)}}}"

    # --- accumulators -------------------------------------------------------------------------------------------------
    def scaled(self, name: str, loop: str, own: str, other: str, shrink: str) -> list[str]:
        """Scale an accumulator by a shrink, if any."""
        return [f"{loop}{name}.{own} *= {shrink}.{other};"] if shrink else []

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
        v = self.row_vectors[name] = RowVector(name, m.rows, m.mt)
        out = Lines()
        test = " && ".join(x for x in (self.inside([a for a, _ in m.cols], BODY), m.short) if x)
        value = self.printed(e, BODY, out, self.element_of_strip)
        value = f"{test} ? {value} : {kind}::none()" if test else value
        position = self.strip_position(m) if self.has_position(e) or test else []
        lines = [*position, *out.lines, f"x = {kind}::join(x, {value});"]
        if name == o.name:
            self.body.append(f"{v.type} {name};")
            put = f"{name}.v[m_][h_] = over_row<{kind}>(x);"
        else:
            self.before += [f"{v.type} {name};", f"{name}.fill(0.0f);"]
            scale = f" * {shrink}.v[m_][h_]" if shrink else ""
            put = f"{name}.v[m_][h_] = {name}.v[m_][h_]{scale} + x;"
        self.body += [
            f"MIRAGE_STRIP_ROWS({v.type}) {{",
            f"    float x = {kind}::none();",
            "#pragma unroll",
            f"    for (int n_ = 0; n_ < {m.nt}; ++n_)",
            "#pragma unroll",
            "        for (int i_ = 2 * h_; i_ < 2 * h_ + 2; ++i_) {",
            *("            " + x for x in lines),
            "        }",
            f"    {put}",
            "}",
        ]
        if name == o.name:
            self.join_shares(v, kind)
        self.value[o.name] = Ref(name)

    def join_shares(self, v: RowVector, kind: str) -> None:
        """Sums or maxima of rows over the warps that share their columns."""
        if self.across == 1:
            return
        numbers = self.across * 16 * self.members * v.mt
        self.memory.keep(f"{v.name}_all", "float", 4 * self.groups * numbers)
        self.before_loop.append(f"float* const {v.name}_own = {v.name}_all + group * {numbers};")
        self.body += [
            f"put_share<{self.members}>({v.name}_own, {v.name}, member, share);",
            "wait_together<GROUP>(1 + group);",
            f"join_shares<{kind}, {self.across}, {self.members}>({v.name}, {v.name}_own, member);",
        ]

    def running(self, o: BlockOp) -> None:
        """A running maximum and its shrink."""
        top = self.value[o.inputs[0]]
        assert isinstance(top, Ref)
        like = self.row_vectors[top.buffer]
        v = self.row_vectors[o.name] = RowVector(o.name, like.rows, like.mt)
        shrink = next(r.name for r in self.readers[o.name] if r.op == "shrink")
        self.row_vectors[shrink] = RowVector(shrink, like.rows, like.mt)
        self.shrinks[shrink] = o.name
        self.maxima.append(o.name)
        self.before += [f"{v.type} {o.name};", f"{o.name}.fill(-INFINITY);"]
        self.body += [
            f"{v.type} {shrink};",
            f"MIRAGE_STRIP_ROWS({v.type}) {{",
            f"    const float low = {o.name}.v[m_][h_], high = fmaxf(low, {top.buffer}.v[m_][h_]);",
            f"    {o.name}.v[m_][h_] = high;",
            f"    {shrink}.v[m_][h_] = strip_exp_difference(low, high);",
            "}",
        ]
        self.value[o.name], self.value[shrink] = Ref(o.name), Ref(shrink)
