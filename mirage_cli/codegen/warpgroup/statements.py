"""Statements of a kernel of warpgroups: what consumers compute between products, and what they store."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirage_cli.codegen.printers.statements import Lines
from mirage_cli.codegen.tiles.tile import Apply, Count, Expr, Global, Position, Ref, from_thread
from mirage_cli.codegen.warpgroup.plan import Plan, Product
from mirage_cli.codegen.warpgroup.text import COLUMN, FULL, ROW, SCALAR, SIDE, Text, ctype, indented
from mirage_cli.errors import Refused
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, GRID, PROLOGUE, BlockOp

__all__ = ["Statements", "statements"]


@dataclass(slots=True)
class Statements:
    """Lines by place. `start`: variables that live as long as a block's tile; `operands`: left operands that are computed
    of loaded tiles; `prologue`, `body`, `epilogue`; `rescale`: what was accumulated, weighed anew; `weights`: what stands
    below a running maximum; `words`: left operands of late products; `publish`, `grid`: before and after blocks that
    reduce together have exchanged `published` numbers of each thread; `sides`: what helpers compute for position `c_` of
    the loop axis of a full slot of `side_ring`, in vectors called `side_names`."""

    start: list[str] = field(default_factory=list)
    prologue: list[str] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    rescale: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    epilogue: list[str] = field(default_factory=list)
    publish: list[str] = field(default_factory=list)
    grid: list[str] = field(default_factory=list)
    published: int = 0
    sides: list[str] = field(default_factory=list)
    side_names: list[str] = field(default_factory=list)
    side_ring: str = ""


def statements(plan: Plan, text: Text) -> Statements:
    """The statements of a kernel. Raises Refused."""
    return _Writing(plan, text).run()


class _Writing:
    def __init__(self, plan: Plan, text: Text) -> None:
        self.plan, self.text, self.p, self.g = plan, text, plan.program, plan.graph
        self.ops = {o.name: o for o in self.g.ops}
        self.readers: dict[str, list[BlockOp]] = {o.name: [] for o in self.g.ops}
        for o in self.g.ops:
            for i in dict.fromkeys(o.inputs):
                self.readers[i].append(o)
        self.value: dict[str, Expr] = {}
        self.products = {p.op: p for p in (*plan.early, *plan.late)}
        self.lefts = {p.left for p in (*plan.early, *plan.late)}
        self.shares: dict[str, int] = {}
        self.side_sums: dict[str, BlockOp] = {}
        self.weighing = False  #: whether statements of the body stand below a running maximum
        self.out = Statements()

    def run(self) -> Statements:
        for o in self.g.ops:
            getattr(self, f"do_{o.op}", self.unknown)(o)
        for k, name in enumerate(self.g.outputs):
            self.store(k, name)
        return self.out

    def unknown(self, o: BlockOp) -> None:
        raise Refused(f"warpgroups do not render {o.op}")

    # --- places -------------------------------------------------------------------------------------------------------
    def place(self, phase: str) -> list[str]:
        lines = self.out
        body = lines.weights if self.weighing else lines.body
        return {PROLOGUE: lines.prologue, BODY: body, EPILOGUE: lines.epilogue, GRID: lines.grid}[phase]

    def level_of(self, name: str) -> str:
        return self.text.level(self.text.axes[name])

    def declare(self, name: str, level: str, start: str = "") -> None:
        """A variable of this level that lives as long as the block's tile."""
        self.text.levels[name] = level
        shape = f"[{self.plan.row_tiles}]"
        if level == ROW:
            shape += "[2]"
        else:
            shape += f"[{self.plan.sizes[self.text.column_axis(self.text.axes[name])] // 8}][4]"
        self.out.start.append(f"[[maybe_unused]] float {name}{shape};")
        if start:
            self.out.start += self.text.each_row([f"{name}[m][h] = {start};"])

    # --- values without statements --------------------------------------------------------------------------------------
    def do_load(self, o: BlockOp) -> None:
        self.value[o.name] = Ref(o.name) if self.plan.tile(o.name) else Global(o.source_value or "")

    def do_iota(self, o: BlockOp) -> None:
        self.value[o.name] = Position(o.axis or "")

    def do_extent(self, o: BlockOp) -> None:
        self.value[o.name] = Count(o.axis or "")

    def do_contract(self, o: BlockOp) -> None:
        p = self.products[o.name]
        if self.plan.tile(p.left) is None:
            self.operand(p)
        elif self.plan.in_words(p):
            self.kept(p)
        if not p.accumulated:
            self.declare(o.name, FULL)
        self.value[o.name] = Ref(o.name)

    def operand(self, p: Product) -> None:
        """The words of a left operand that is computed."""
        name = f"{p.left}_words"
        line = f"uint32_t {name}[{self.plan.row_tiles}][{p.depth // 16}][4];"
        if line in self.out.start:
            return
        self.out.start.append(line)
        phase, lines = self.ops[p.left].phase, Lines()
        e = self.value[p.left]
        late = any(q.left == p.left for q in self.plan.late)
        value = self.text.expression(e, FULL, phase, lines)
        outside = self.text.inside([p.over], phase)
        if outside:
            value = f"{outside} ? {value} : 0.0f"
        pack = f"Words<{ctype(p.dtype)}>::pack(pair[j][i - 1], pair[j][i])"
        inner = [*lines.lines, f"pair[j][i] = {value};", f"if (i % 2) {name}[m][k][j * 2 + i / 2] = {pack};"]
        loops = self.text.each(self.text.tiles_of(e), p.over, inner)
        loops.insert(4, "        float pair[2][4];")
        target = self.out.words if late else self.out.prologue if phase == PROLOGUE else self.out.operands
        target += loops

    def kept(self, p: Product) -> None:
        """The words of a left operand that is loaded once."""
        tile, name = self.plan.tile(p.left), f"{p.left}_words"
        assert tile is not None
        line = f"uint32_t {name}[{self.plan.row_tiles}][{p.depth // 16}][4];"
        if line in self.out.start:
            return
        self.out.start.append(line)
        turned = str(tile.outer != self.plan.rows).lower()
        self.out.prologue += [
            "#pragma unroll",
            f"for (int m = 0; m < {self.plan.row_tiles}; ++m)",
            "#pragma unroll",
            f"    for (int k = 0; k < {p.depth // 16}; ++k)",
            f"        load_words<{turned}>({name}[m][k], {p.left}, {tile.rows}, base + m * 64, k * 16);",
        ]

    # --- elementwise ----------------------------------------------------------------------------------------------------
    def do_thread(self, o: BlockOp) -> None:
        assert o.thread is not None
        e = from_thread(o.thread, [self.value[i] for i in o.inputs])
        level = self.level_of(o.name)
        self.check_reading(o, e)
        elsewhere = any(r.phase != o.phase for r in self.readers[o.name])
        if level == COLUMN and self.sums_of(e):
            self.value[o.name] = e
            if any(self.level_of(r.name) == FULL for r in self.readers[o.name]):
                self.side(o, e)
        elif level in (SCALAR, COLUMN, SIDE):
            self.value[o.name] = e
        elif level == ROW:
            lines = Lines()
            value = self.text.expression(e, ROW, o.phase, lines)
            self.declare(o.name, ROW)
            self.place(o.phase).extend(self.text.each_row([*lines.lines, f"{o.name}[m][h] = {value};"]))
            self.value[o.name] = Ref(o.name)
        elif self.alone(o) or (len(self.readers[o.name]) < 2 and not elsewhere):
            self.value[o.name] = e
        else:
            lines = Lines()
            value = self.text.expression(e, FULL, o.phase, lines)
            self.declare(o.name, FULL)
            axis = self.text.column_axis(self.text.axes[o.name])
            inner = [*lines.lines, f"{o.name}[m][n][i] = {value};"]
            self.place(o.phase).extend(self.text.each(self.text.tiles_of(e), axis, inner))
            self.value[o.name] = Ref(o.name)

    def alone(self, o: BlockOp) -> bool:
        """True if a value is made of loaded tiles alone: it is computed again where it is read."""
        readers = self.readers[o.name]
        return o.phase != EPILOGUE and o.name in self.lefts and not self.multiplied(o.name) and bool(readers)

    def multiplied(self, name: str) -> bool:
        o = self.ops[name]
        return o.op == "contract" or any(self.multiplied(i) for i in o.inputs)

    def check_reading(self, o: BlockOp, e: Expr) -> None:
        """Tiles of a ring are gone when scores are there."""
        ringed = [t for t in self.text.tiles_of(e) if t in {x.name for x in self.plan.tiles if x.ring != "held"}]
        if ringed and (self.plan.late or o.phase != BODY) and self.level_of(o.name) not in (SIDE, COLUMN):
            raise Refused(f"{o.name} reads the tile {ringed[0]} beside a product")
        for t in self.text.tiles_of(e) if self.level_of(o.name) != SIDE else ():
            if self.plan.rows not in self.plan.present(self.text.axes[t]):
                raise Refused(f"{o.name} reads the tile {t}, which has no rows")

    # --- numbers of columns, computed of loaded tiles by the warps beside the one that brings them --------------------------
    def do_side_sum(self, o: BlockOp) -> None:
        """A sum over elements of a tile without rows: one number for each position of the loop axis."""
        over = [a for a in o.over if a in self.plan.sizes]
        kept = self.plan.present(self.text.axes[o.name])
        tiles = self.text.tiles_of(self.value[o.inputs[0]])
        if o.phase != BODY or kept != {self.g.loop} or len(over) != 1 or len(tiles) != 1 or not self.plan.late:
            raise Refused(f"{o.name}: a sum over {', '.join(o.over)} of a value without rows")
        self.side_sums[o.name] = o
        self.value[o.name] = Ref(o.name)
        if any(self.level_of(r.name) == FULL for r in self.readers[o.name]):
            self.side(o, Ref(o.name))

    def sums_of(self, e: Expr) -> list[str]:
        """The sums over tiles without rows that an expression reads."""
        match e:
            case Ref(name):
                return [name] if name in self.side_sums else []
            case Apply(_, args):
                return list(dict.fromkeys(s for a in args for s in self.sums_of(a)))
        return []

    def side(self, o: BlockOp, e: Expr) -> None:
        """The statements with which helpers make such a number, at position `c_` of the tile."""
        lines: list[str] = []
        rings = set()
        for s in self.sums_of(e):
            over = next(a for a in self.side_sums[s].over if a in self.plan.sizes)
            operand = self.value[self.side_sums[s].inputs[0]]
            (name,) = self.text.tiles_of(operand)
            tile = self.plan.tile(name)
            assert tile is not None
            rings.add(tile.ring)
            inner = Lines()
            value = self.text.expression(operand, SIDE, BODY, inner)
            extent = self.text.extent(self.p.extent(over))
            value = value if self.plan.exact(over) else f"q * 8 + i < {extent} ? {value} : 0.0f"
            turned = str(tile.outer != self.g.loop).lower()
            lines += [
                f"float {s} = 0.0f;",
                f"for (int q = 0; q < {tile.positions(over) // 8}; ++q) {{",
                f"    uint32_t w_{name}[4];",
                f"    load_eight<{turned}>(w_{name}, {name}, {tile.rows}, c_, q);",
                "#pragma unroll",
                "    for (int i = 0; i < 8; ++i) {",
                *indented(indented([*inner.lines, f"{s} += {value};"])),
                "    }",
                "}",
            ]
        if len(rings) != 1 or (self.out.side_ring and self.out.side_ring not in rings):
            raise Refused(f"{o.name} is computed of tiles of several rings")
        (self.out.side_ring,) = rings
        inner = Lines()
        value = self.text.expression(e, COLUMN, BODY, inner)
        self.out.sides += [*lines, *inner.lines, f"{o.name}_now[c_] = {value};"]
        self.out.sides.append(f"{o.name}_inverse_now[c_] = 1.0f / {o.name}_now[c_];")
        self.out.side_names += [o.name, f"{o.name}_inverse"]
        self.text.sides.add(o.name)
        self.value[o.name] = Ref(o.name)

    # --- reductions -----------------------------------------------------------------------------------------------------
    def reduced(self, o: BlockOp, kind: str, partial: str) -> list[str]:
        """Lines that combine `partial` (of the thread's own columns) with an operand of a reduction."""
        (name,) = o.inputs
        over = [a for a in o.over if a in self.plan.sizes]
        if self.level_of(name) != FULL or over != [self.text.column_axis(self.text.axes[name])]:
            raise Refused(f"{o.name}: {o.op} over {', '.join(o.over)} of a value without rows")
        e, lines = self.value[name], Lines()
        self.check_reading(o, e)
        value = self.text.expression(e, FULL, o.phase, lines)
        inside = self.text.inside(over, o.phase)
        none = {"sum": "0.0f", "top": "-INFINITY"}[kind]
        value = f"({inside} ? {value} : {none})" if inside else value
        combine = "{0} += {1};" if kind == "sum" else "{0} = fmaxf({0}, {1});"
        line = combine.format("part[j][i / 2]", value)
        loops = self.text.each(self.text.tiles_of(e), over[0], [*lines.lines, line])
        loops[1] += " {"
        loops.insert(2, f"    float part[2][2] = {{{{{none}, {none}}}, {{{none}, {none}}}}};")
        return [
            *loops,
            "#pragma unroll",
            "    for (int h = 0; h < 2; ++h) {",
            f"        {combine.format('part[0][h]', 'part[1][h]')}",
            f"        {combine.format(f'{partial}[m][h]', 'part[0][h]')}",
            "    }",
            "}",
        ]

    def do_sum(self, o: BlockOp) -> None:
        if self.level_of(o.inputs[0]) == SIDE:
            self.do_side_sum(o)
            return
        accum = self.only_accumulated(o)
        place = self.place(o.phase)
        if accum is None or self.shrink_of(accum):
            self.declare(o.name, ROW)
            self.value[o.name] = Ref(o.name)
            place += self.text.each_row([f"{o.name}[m][h] = 0.0f;"])
            place += self.reduced(o, "sum", o.name)
        else:
            place += self.reduced(o, "sum", accum.name)
        if accum is None:
            place += self.text.each_row([f"{o.name}[m][h] = sum_of_row({o.name}[m][h]);"])

    def only_accumulated(self, o: BlockOp) -> BlockOp | None:
        """The accumulator that is the only reader of a sum: what a thread has is put together after the loop."""
        readers = self.readers[o.name]
        return readers[0] if len(readers) == 1 and readers[0].op == "accum" and readers[0].inputs[0] == o.name else None

    def do_top(self, o: BlockOp) -> None:
        self.declare(o.name, ROW)
        place = self.place(o.phase)
        place += self.text.each_row([f"{o.name}[m][h] = -INFINITY;"])
        place += self.reduced(o, "top", o.name)
        place += self.text.each_row([f"{o.name}[m][h] = top_of_row({o.name}[m][h]);"])
        self.value[o.name] = Ref(o.name)
        if any(r.op == "thread" for r in self.readers[o.name]):
            self.level(o.name, o.phase)

    def level(self, name: str, phase: str) -> None:
        """Print the level that exponentials below a maximum subtract."""
        self.out.start.append(f"float {name}_level[{self.plan.row_tiles}][2];")
        self.place(phase).extend(self.text.each_row([f"{name}_level[m][h] = level_of({name}[m][h]);"]))

    def do_running(self, o: BlockOp) -> None:
        (top,) = o.inputs
        self.declare(o.name, ROW, "-INFINITY")
        shrinks = [r.name for r in self.readers[o.name] if r.op == "shrink"]
        raised = "raised" if self.lazy(o) else "fmaxf"
        lines = [f"const float high = {raised}({o.name}[m][h], {top}[m][h]);"]
        for s in shrinks:
            self.declare(s, ROW)
            lines.append(f"{s}[m][h] = exp_between({o.name}[m][h], high);")
        self.place(BODY).extend(self.text.each_row([*lines, f"{o.name}[m][h] = high;"]))
        self.level(o.name, BODY)
        self.value[o.name] = Ref(o.name)
        self.weighing = bool(self.plan.late)

    def lazy(self, o: BlockOp) -> bool:
        """True if a running maximum may stay behind by a little: what stands below it are numbers that late products
        read as they are, so none of them leaves its type's range. The value of a maximum itself is never a result."""
        for r in self.readers[o.name]:
            if r.op != "thread":
                continue
            assert r.thread is not None
            e = from_thread(r.thread, [Ref(i) for i in r.inputs])
            exponential = isinstance(e, Apply) and e.op == "exp_minus" and e.args[1] == Ref(o.name)
            if not exponential or any(x.op not in ("sum", "contract") for x in self.readers[r.name]):
                return False
        return True

    def do_shrink(self, o: BlockOp) -> None:
        self.value[o.name] = Ref(o.name)

    def shrink_of(self, o: BlockOp) -> str:
        return o.inputs[1] if len(o.inputs) > 1 else ""

    # --- accumulators ---------------------------------------------------------------------------------------------------
    def do_accum(self, o: BlockOp) -> None:
        name, shrink = o.inputs[0], self.shrink_of(o)
        source = self.ops[name]
        self.value[o.name] = Ref(o.name)
        if source.op == "contract":
            self.declare(o.name, FULL)
            if shrink:
                axis = self.text.column_axis(self.text.axes[o.name])
                moved = " || ".join(f"{shrink}[{m}][{h}] != 1.0f" for m in range(self.plan.row_tiles) for h in (0, 1))
                scaled = self.text.each([], axis, [f"{o.name}[m][n][i] *= {shrink}[m][i / 2];"])
                self.out.rescale += [f"if (__any_sync(0xffffffffu, {moved})) {{", *indented(scaled), "}"]
            return
        if self.level_of(o.name) != ROW:
            raise Refused(f"{o.name} accumulates {name}, which is neither a product nor a number of each row")
        start = [f"float {o.name}[{self.plan.row_tiles}][2];"]
        self.text.levels[o.name] = ROW
        self.out.start[:0] = [*start, *self.text.each_row([f"{o.name}[m][h] = 0.0f;"])]
        lines, together = Lines(), source.op == "sum" and self.only_accumulated(source) is o
        if shrink or not together:
            value = self.text.expression(self.value[name], ROW, BODY, lines)
            old = f"{o.name}[m][h] * {shrink}[m][h]" if shrink else f"{o.name}[m][h]"
            self.place(BODY).extend(self.text.each_row([*lines.lines, f"{o.name}[m][h] = {old} + {value};"]))
        if together:
            self.out.epilogue += self.text.each_row([f"{o.name}[m][h] = sum_of_row({o.name}[m][h]);"])

    # --- over blocks ----------------------------------------------------------------------------------------------------
    def published(self, name: str) -> int:
        """The place of what other blocks read of a value, which every thread publishes in its own layout."""
        if name not in self.shares:
            level, rows = self.level_of(name), self.plan.row_tiles
            at = self.shares[name] = self.out.published
            if level == FULL:
                axis = self.text.column_axis(self.text.axes[name])
                count = self.text.columns(axis)
                place = f"{at} + (m * {count} + n) * 4 + i"
                self.out.publish += self.text.each([], axis, [f"publish({place}, {name}[m][n][i]);"])
                self.out.published += rows * count * 4
            elif level == ROW:
                self.out.publish += self.text.each_row([f"publish({at} + m * 2 + h, {name}[m][h]);"])
                self.out.published += rows * 2
            else:
                raise Refused(f"{name}, which blocks reduce together, has no rows")
        return self.shares[name]

    def do_grid_top(self, o: BlockOp) -> None:
        (name,) = o.inputs
        at, parts = self.published(name), self.plan.parts
        self.declare(o.name, ROW)
        self.value[o.name] = Ref(o.name)
        self.out.start.append(f"float {o.name}_weight[{parts}][{self.plan.row_tiles}][2];")
        lines = ["float top = -INFINITY;"]
        for s in range(parts):
            lines += [f"const float top{s} = published({s}, {at} + m * 2 + h);", f"top = fmaxf(top, top{s});"]
        lines.append(f"{o.name}[m][h] = top;")
        lines += [f"{o.name}_weight[{s}][m][h] = exp_between(top{s}, top);" for s in range(parts)]
        self.out.grid += self.text.each_row(lines)

    def do_grid_sum(self, o: BlockOp) -> None:
        at, full = self.published(o.inputs[0]), self.level_of(o.name) == FULL
        place, row = f"{at} + m * 2 + h", "h"
        if full:
            count = self.text.columns(self.text.column_axis(self.text.axes[o.name]))
            place, row = f"{at} + (m * {count} + n) * 4 + i", "i / 2"
        terms = []
        for s in range(self.plan.parts):
            weight = f" * {o.inputs[2]}_weight[{s}][m][{row}]" if len(o.inputs) > 1 else ""
            terms.append(f"published({s}, {place}){weight}")
        if full:
            self.text.exchanged[o.name] = " + ".join(terms)
        else:
            self.declare(o.name, ROW)
            self.out.grid += self.text.each_row([f"{o.name}[m][h] = {' + '.join(terms)};"])
        self.value[o.name] = Ref(o.name)

    # --- results --------------------------------------------------------------------------------------------------------
    def store(self, k: int, name: str) -> None:
        """The statements that store an output; of blocks that reduce together each stores its part of the columns."""
        o, e = self.p.outputs[k], self.value[name]
        stored = frozenset(s.axis for s in o.access if s.axis is not None)
        level = self.text.level(stored)
        if self.g.split and self.ops[name].phase != GRID:
            raise Refused(f"output {k} does not depend on what blocks reduce together")
        lines = Lines()
        once = [f"{a}_at == 0" for a in self.g.grid if a not in (*stored, *self.g.split) and self.several(a)]
        value = self.text.expression(e, level, EPILOGUE, lines)
        if level == ROW:
            first = [*once, "rank == 0"] if self.g.split else once
            self.place(self.ops[name].phase).extend(self.store_rows_alone(k, value, lines, first))
        elif level == FULL:
            lines.lines.append(f"result[k * 2 + j][i] = {value};")
            self.place(GRID if self.g.split else EPILOGUE).extend(self.store_full(k, stored, lines, once))
        else:
            raise Refused(f"output {k} has no rows")

    def store_rows_alone(self, k: int, value: str, lines: Lines, first: list[str]) -> list[str]:
        """A number of each row: one of the four lanes that have it writes it."""
        o = self.p.outputs[k]
        inside = self.text.inside([self.plan.rows], EPILOGUE)
        test = " && ".join(["lane % 4 == 0", *([inside] if inside else []), *first])
        put = f"put(parameters.y{k}[{self.text.offset(o.access, EPILOGUE)}], {value});"
        return self.text.each_row([f"if ({test}) {{", *indented([*lines.lines, put]), "}"])

    def store_full(self, k: int, stored: frozenset[str], lines: Lines, first: list[str]) -> list[str]:
        """A full value: its elements, then rows of them."""
        o, axis, parts = self.p.outputs[k], self.text.column_axis(stored), self.plan.parts
        if next((s.axis for s in reversed(o.access) if s.extent != 1), None) != axis:
            raise Refused(f"what is contiguous of output {k} is not {axis}, the axis of columns")
        count = self.text.columns(axis, parts)
        loops = self.text.each([], axis, lines.lines, parts)
        loops[1] += " {"
        loops.insert(2, f"    float result[{count}][4];")
        row = "(row + m * 64 + h * 8)"
        rows = self.text.inside([self.plan.rows], EPILOGUE).replace("r_", row)
        test = " && ".join([*first, *([rows] if rows else [])])
        skipped = f"rank * {count * 8}" if parts > 1 else "0"
        pointer = f"parameters.y{k} + {self.text.offset(o.access, EPILOGUE, fixed=axis).replace('r_', row)}"
        pointer += f" + {skipped}" if parts > 1 else ""
        pointer = f"{test} ? {pointer} : nullptr" if test else pointer
        left = [self.text.extent(self.p.extent(axis)), *self.text.base(axis, EPILOGUE), skipped]
        columns = str(count * 8) if self.plan.exact(axis) else f"static_cast<int>({' - '.join(left)})"
        return [
            *loops,
            f"    auto place = [&](int h) {{ return {pointer}; }};",
            f"    store_rows<{str(self.aligned(k)).lower()}, {ctype(o.dtype)}>(result, place, {columns});",
            "}",
        ]

    def several(self, axis: str) -> bool:
        extent, tile = self.p.extent(axis), self.plan.schedule.tile(axis) or 1
        return not isinstance(extent, int) or extent > tile

    def aligned(self, k: int) -> bool:
        """True if rows of an output start at multiples of 16 bytes."""
        o = self.p.outputs[k]
        unit = 16 // o.dtype.bytes
        slots = [s for s in o.access if s.extent != 1]
        stride = slots[-1].extent
        return isinstance(stride, int) and stride % unit == 0 and slots[-1].offset % unit == 0
