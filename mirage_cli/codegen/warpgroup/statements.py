"""Statements of a kernel of warpgroups: what consumers compute between products, and what they store."""

from __future__ import annotations

import functools
import operator

from mirage_cli.codegen.terms.expressions import ONE, THREAD, ZERO, Lets, ctype
from mirage_cli.codegen.terms.visible import all_shown, at_least_0, integers, known, shown
from mirage_cli.codegen.tiles.tile import Apply, Count, Expr, Global, Number, Position, Ref, from_thread
from mirage_cli.codegen.warpgroup.memory import HELPERS
from mirage_cli.codegen.warpgroup.operands import Operands
from mirage_cli.codegen.warpgroup.places import Statements, taken
from mirage_cli.codegen.warpgroup.plan import COLUMN, FULL, HELD, ROW, SCALAR, SIDE, Tile
from mirage_cli.codegen.warpgroup.values import PAIR, H, I, J, M, Values, at_full, at_row, guarded
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax.domains.limits import Forms
from mirage_cli.search.mugraph.hidden import known_values
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, GRID, PROLOGUE, BlockOp

LEAST = -k.number("INFINITY")
LANE, RANK = k.name("lane"), k.name("rank")


def statements(values: Values) -> Statements:
    """The statements of a kernel. Raises Refused."""
    return _Writing(values).run()


class _Writing(Operands):
    """Values in the order of the block graph, then results."""

    def run(self) -> Statements:
        for o in self.g.ops:
            getattr(self, f"do_{o.op}", self.unknown)(o)
        for n, name in enumerate(self.g.outputs):
            self.store(n, name)
        return self.out

    def unknown(self, o: BlockOp) -> None:
        raise Refused(f"warpgroups do not render {o.op}")

    # --- values without statements --------------------------------------------------------------------------------------
    def do_load(self, o: BlockOp) -> None:
        self.value[o.name] = Ref(o.name) if self.plan.tile(o.name) else Global(o.source_value or "")
        alone = self.plan.tile(o.name) is None and not self.plan.late and self.g.loop not in self.values.axes[o.name]
        if alone and self.level_of(o.name) == FULL:
            self.out.fetched.append(o.source_value or "")

    def do_iota(self, o: BlockOp) -> None:
        self.value[o.name] = Position(o.axis or "")

    def do_extent(self, o: BlockOp) -> None:
        self.value[o.name] = Count(o.axis or "")

    # --- elementwise ----------------------------------------------------------------------------------------------------
    def do_thread(self, o: BlockOp) -> None:
        assert o.thread is not None
        e = from_thread(o.thread, [self.value[i] for i in o.inputs])
        level = self.level_of(o.name)
        if tile := next((t for t in self.plan.tiles if t.shown == o.name), None):
            self.clear(tile, e)
            return
        self.check_reading(o, e)
        if self.outside.get(self.below(e)) == "top":
            self.outside[o.name] = "sum"
        along = o.phase == PROLOGUE and self.g.loop in self.values.axes[o.name]  # computed where it is read
        elsewhere = any(r.phase != o.phase for r in self.readers[o.name])
        if level == COLUMN and self.sums_of(e):
            self.value[o.name] = e
            if any(self.level_of(r.name) == FULL for r in self.readers[o.name]):
                self.side(o, e)
        elif level in (SCALAR, COLUMN, SIDE):
            self.value[o.name] = e
        elif level == ROW:
            lets = Lets()
            value = self.values.expression(e, ROW, o.phase, lets)
            self.declare(o.name, ROW)
            self.each_row(o.phase, *lets.statements, k.assign(at_row(o.name), value))
            self.value[o.name] = Ref(o.name)
        elif along or self.alone(o) or (len(self.readers[o.name]) < 2 and not elsewhere):
            self.value[o.name] = e
        else:
            self.declare(o.name, FULL)
            facts = known_values(self.p, self.g)
            unmasked = shown(e, self.values.span, facts, self.values.integers) if o.phase == BODY else None
            made = self.full(o, e)
            self.place(o.phase).append(
                made if unmasked is None else k.when(unmasked[0], self.full(o, unmasked[1]), otherwise=[made])
            )
            self.value[o.name] = Ref(o.name)

    def full(self, o: BlockOp, e: Expr) -> ir.Statement:
        """The elements of a full value."""
        lets = Lets()
        value = self.values.expression(e, FULL, o.phase, lets)
        return self.values.each(e, self.columns_of(o.name), *lets.statements, k.assign(at_full(o.name), value))

    def alone(self, o: BlockOp) -> bool:
        """True if a value is made of loaded tiles alone: it is computed again where it is read."""
        readers = self.readers[o.name]
        return o.phase != EPILOGUE and o.name in self.lefts and not self.multiplied(o.name) and bool(readers)

    def multiplied(self, name: str) -> bool:
        o = self.ops[name]
        return o.op == "contract" or any(self.multiplied(i) for i in o.inputs)

    def check_reading(self, o: BlockOp, e: Expr) -> None:
        """Tiles of a ring are gone when scores are there."""
        tiles, level = self.values.tiles_of(e), self.level_of(o.name)
        ringed = [t.name for t in tiles if t.ring != HELD]
        if ringed and (self.plan.late or o.phase != BODY) and level not in (SIDE, COLUMN):
            raise Refused(f"{o.name} reads the tile {ringed[0]} beside a product")
        for t in tiles if level != SIDE else ():
            if self.plan.rows not in self.plan.present(self.values.axes[t.name]):
                raise Refused(f"{o.name} reads the tile {t.name}, which has no rows")

    def clear(self, t: Tile, e: Expr) -> None:
        """Have helpers make the rows of a tile 0 that a comparison of positions with integers does not show: whatever they
        hold, products see zeros. Most tiles are shown whole."""
        forms: Forms = frozenset()
        match e:
            case Apply("where", (condition, Ref(name), Number(constant))) if constant == 0 and name == t.name:
                forms = known(condition, {**known_values(self.p, self.g), **integers(self.p)}).truth
        axes, given = {a for f in forms for a, _ in f.terms}, {v for f in forms for v, _ in f.given}
        alone = all(not self.plan.present(self.p.axes_of(v)) for v in given)
        if not forms or axes != {t.outer} or t.outer != self.g.loop or not alone or not self.values.limits:
            raise Refused(f"{t.shown}: no rows of {t.name} that comparisons with a block's integers show")
        self.side_of(t.shown, t.ring)
        self.values.integers |= given
        seen = (
            k.both(*(at_least_0(f, lambda a: self.values.position(a, BODY)) for f in sorted(forms, key=str))) or k.ONE
        )
        row = k.run("clear_row", t.name, t.rows, "c_", t.cols)
        each = k.loop("c_", t.rows, k.when(k.negated(seen), row), start=THREAD - 32, step=32 * HELPERS)
        self.out.cleared.append(k.when(k.negated(all_shown(forms, self.values.span)), each, k.run("show_products")))

    def side_of(self, name: str, ring: str) -> None:
        """Have helpers compute something of the tiles of a ring."""
        if self.out.side_ring not in ("", ring):
            raise Refused(f"{name} is computed of tiles of several rings")
        self.out.side_ring = ring

    # --- numbers of columns, computed of loaded tiles by the warps beside the one that brings them --------------------------
    def do_side_sum(self, o: BlockOp) -> None:
        """A sum over elements of a tile without rows: one number for each position of the loop axis."""
        over = [a for a in o.over if a in self.plan.sizes]
        kept = self.plan.present(self.values.axes[o.name])
        tiles = self.values.tiles_of(self.value[o.inputs[0]])
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
        sums, out, lets = self.sums_of(e), self.out, Lets()
        rings = {t.ring for s in sums for t in self.values.tiles_of(self.value[self.side_sums[s].inputs[0]])}
        for ring in rings:
            self.side_of(o.name, ring)
        now = k.name(f"{o.name}_now")["c_"]
        inverse = k.assign(k.name(f"{o.name}_inverse_now")["c_"], ONE / now)
        value = self.values.expression(e, COLUMN, BODY, lets)
        out.sides += [s for name in sums for s in self.side_sum(name)]
        out.sides += [*lets.statements, k.assign(now, value), inverse]
        out.side_names += [o.name, f"{o.name}_inverse"]
        self.values.sides.add(o.name)
        self.value[o.name] = Ref(o.name)

    def side_sum(self, name: str) -> tuple[ir.Statement, ...]:
        """The statements with which helpers sum over elements of a tile."""
        o, lets, q = self.side_sums[name], Lets(), k.name("q")
        over = next(a for a in o.over if a in self.plan.sizes)
        operand = self.value[o.inputs[0]]
        (tile,) = self.values.tiles_of(operand)
        value = self.values.expression(operand, SIDE, BODY, lets)
        exact = self.plan.exact(over)
        guard = None if exact else q * 8 + I < self.values.extent(self.p.extent(over))
        here = k.name(f"w_{tile.name}")
        load = k.call("load_eight", here, tile.name, tile.rows, "c_", q, static=[tile.outer != self.g.loop])
        add = k.assign(name, guarded(guard, value, ZERO), "+=")
        elements = k.loop("i", 8, *lets.statements, add, unroll=k.UNROLL)
        eight = (k.declare("uint32_t", f"w_{tile.name}", dims=(4,)), k.do(load), elements)
        return k.declare("float", name, ZERO), k.loop("q", tile.positions(over) // 8, *eight)

    # --- reductions -----------------------------------------------------------------------------------------------------
    def reduced(self, o: BlockOp, kind: str, into: str) -> ir.Statement:
        """A loop that combines an operand of a reduction (the thread's own columns) with what is in `into`."""
        (name,) = o.inputs
        over = [a for a in o.over if a in self.plan.sizes]
        if self.level_of(name) != FULL or over != [self.columns_of(name)]:
            raise Refused(f"{o.name}: {o.op} over {', '.join(o.over)} of a value without rows")
        e, lets, part = self.value[name], Lets(), k.name("part")
        self.check_reading(o, e)
        value = self.values.expression(e, FULL, o.phase, lets)
        none = ZERO if kind == "sum" else LEAST
        inside = None if self.outside.get(name) == kind else self.values.inside(over, o.phase)
        value = guarded(inside, value, none)
        nothing = k.array(k.array(none, none), k.array(none, none))
        return self.values.each_tile(
            k.declare("float", "part", nothing, dims=(2, 2)),
            self.values.each_column(e, over[0], *lets.statements, taken(kind, part[J][I / 2], value)),
            k.loop("h", 2, taken(kind, part[0][H], part[1][H]), taken(kind, at_row(into), part[0][H]), unroll=k.UNROLL),
        )

    def do_sum(self, o: BlockOp) -> None:
        if self.level_of(o.inputs[0]) == SIDE:
            self.do_side_sum(o)
            return
        accum = self.only_accumulated(o)
        into = accum.name if accum is not None and len(accum.inputs) == 1 else o.name
        if into == o.name:
            self.declare(o.name, ROW)
            self.value[o.name] = Ref(o.name)
            self.each_row(o.phase, k.assign(at_row(o.name), ZERO))
        self.place(o.phase).append(self.reduced(o, "sum", into))
        if accum is None:
            self.each_row(o.phase, k.assign(at_row(o.name), k.call("sum_of_row", at_row(o.name))))

    def only_accumulated(self, o: BlockOp) -> BlockOp | None:
        """The accumulator that is the only reader of a sum: what a thread has is put together after the loop."""
        readers = self.readers[o.name]
        return readers[0] if len(readers) == 1 and readers[0].op == "accum" and readers[0].inputs[0] == o.name else None

    def below(self, e: Expr) -> str:
        """The value in registers of which an expression is the exponential below a maximum; nothing for others."""
        return e.args[0].buffer if isinstance(e, Apply) and e.op == "exp_minus" and isinstance(e.args[0], Ref) else ""

    def hide(self, o: BlockOp) -> None:
        """Have a value behind its axis's end count as nothing where a maximum reads it, in the one iteration that gets there:
        neither the maximum nor what reads exponentials below it asks for positions then."""
        (name,) = o.inputs
        axis, others = self.columns_of(name), (r for r in self.readers[name] if r.op != "top")
        inside = self.values.inside([axis], BODY)
        known = self.value[name] == Ref(name) and self.values.levels.get(name) == FULL
        if o.phase != BODY or inside is None or not known or self.outside.get(name) == "top":
            return
        if not all(r.thread and self.below(from_thread(r.thread, [Ref(i) for i in r.inputs])) for r in others):
            return
        base, count = self.values.span(axis)
        reached = k.total([*base, count]) > self.values.extent(self.p.extent(axis))
        hidden = self.values.each(None, axis, k.when(k.negated(inside), k.assign(at_full(name), LEAST)))
        self.place(BODY).append(k.when(reached, hidden))
        self.outside[name] = "top"

    def do_top(self, o: BlockOp) -> None:
        if self.level_of(o.inputs[0]) == FULL:
            self.hide(o)
        self.declare(o.name, ROW)
        self.each_row(o.phase, k.assign(at_row(o.name), LEAST))
        self.place(o.phase).append(self.reduced(o, "top", o.name))
        self.each_row(o.phase, k.assign(at_row(o.name), k.call("top_of_row", at_row(o.name))))
        self.value[o.name] = Ref(o.name)
        if any(r.op == "thread" for r in self.readers[o.name]):
            self.level(o.name, o.phase)

    def level(self, name: str, phase: str) -> None:
        """The level that exponentials below a maximum subtract."""
        self.values.levels[f"{name}_level"] = ROW
        self.out.start.append(self.registers(f"{name}_level", 2))
        self.each_row(phase, k.assign(at_row(f"{name}_level"), k.call("level_of", at_row(name))))

    def do_running(self, o: BlockOp) -> None:
        (top,) = o.inputs
        self.declare(o.name, ROW)
        self.out.start.append(self.values.each_row(k.assign(at_row(o.name), LEAST)))
        shrinks = [r.name for r in self.readers[o.name] if r.op == "shrink"]
        for s in shrinks:
            self.declare(s, ROW)
        high = k.call("raised" if self.lazy(o) else "fmaxf", at_row(o.name), at_row(top))
        between = (k.assign(at_row(s), k.call("exp_between", at_row(o.name), "high")) for s in shrinks)
        self.each_row(BODY, k.let("float", "high", high), *between, k.assign(at_row(o.name), "high"))
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

    # --- accumulators ---------------------------------------------------------------------------------------------------
    def do_accum(self, o: BlockOp) -> None:
        name, *shrinks = o.inputs
        source = self.ops[name]
        self.value[o.name] = Ref(o.name)
        if source.op == "contract":
            self.declare(o.name, FULL)
            self.out.rescale += [self.rescaled(o.name, s) for s in shrinks]
            if self.products[name].split:
                self.added(self.products[name])
            return
        if self.level_of(o.name) != ROW:
            raise Refused(f"{o.name} accumulates {name}, which is neither a product nor a number of each row")
        self.values.levels[o.name] = ROW
        own = at_row(o.name)
        self.out.start[:0] = [self.registers(o.name, 2), self.values.each_row(k.assign(own, ZERO))]
        lets, together = Lets(), source.op == "sum" and self.only_accumulated(source) is o
        if shrinks or not together:
            value = self.values.expression(self.value[name], ROW, BODY, lets)
            old = k.product([own, *map(at_row, shrinks)])
            self.each_row(BODY, *lets.statements, k.assign(own, old + value))
        if together:
            self.each_row(EPILOGUE, k.assign(own, k.call("sum_of_row", own)))

    def rescaled(self, name: str, shrink: str) -> ir.Statement:
        """Weigh anew what was accumulated, where some row of the warp has another maximum."""
        factor = k.name(shrink)
        rows = ((m, h) for m in range(self.plan.row_tiles) for h in (0, 1))
        moved = k.joined("||", (k.binary("!=", factor[m][h], ONE) for m, h in rows)) or k.ZERO
        scale = k.assign(at_full(name), factor[M][I / 2], "*=")
        test = k.call("__any_sync", k.number("0xffffffffu"), moved)
        return k.when(test, self.values.each(None, self.columns_of(name), scale))

    # --- over blocks ----------------------------------------------------------------------------------------------------
    def published(self, name: str) -> int:
        """The first place of what other blocks read of a value, which every thread publishes in its own layout."""
        if name not in self.shares:
            level, at, rows = self.level_of(name), self.out.published, self.plan.row_tiles
            self.shares[name] = at
            if level == FULL:
                axis = self.columns_of(name)
                put = k.call("publish", self.full_place(at, axis), at_full(name))
                self.out.publish.append(self.values.each(None, axis, k.do(put)))
                self.out.published += rows * self.values.columns(axis) * 4
            elif level == ROW:
                put = k.call("publish", at + M * 2 + H, at_row(name))
                self.out.publish.append(self.values.each_row(k.do(put)))
                self.out.published += rows * 2
            else:
                raise Refused(f"{name}, which blocks reduce together, has no rows")
        return self.shares[name]

    def full_place(self, at: int, axis: str) -> ir.Expression:
        """The place of an element of a full value whose first one is `at`."""
        return at + (M * self.values.columns(axis) + "n") * 4 + I

    def do_grid_top(self, o: BlockOp) -> None:
        (name,) = o.inputs
        at, parts = self.published(name), range(self.plan.parts)
        self.declare(o.name, ROW)
        self.value[o.name] = Ref(o.name)
        weight, top = k.name(f"{o.name}_weight"), k.name("top")
        self.out.start.append(k.declare("float", weight.path[0], dims=(len(parts), self.plan.row_tiles, 2)))
        lines: list[ir.Statement] = [k.declare("float", "top", LEAST)]
        for s in parts:
            lines.append(k.let("float", f"top{s}", k.call("published", s, at + M * 2 + H)))
            lines.append(taken("top", top, k.name(f"top{s}")))
        lines.append(k.assign(at_row(o.name), top))
        lines += [k.assign(weight[s][M][H], k.call("exp_between", f"top{s}", top)) for s in parts]
        self.each_row(GRID, *lines)

    def do_grid_sum(self, o: BlockOp) -> None:
        at, full = self.published(o.inputs[0]), self.level_of(o.name) == FULL
        place, row = (self.full_place(at, self.columns_of(o.name)), I / 2) if full else (at + M * 2 + H, H)
        weights = [k.name(f"{w}_weight") for w in o.inputs[2:]]
        parts = range(self.plan.parts)
        total = k.total(k.product([k.call("published", s, place), *(w[s][M][row] for w in weights)]) for s in parts)
        if full:
            self.values.exchanged[o.name] = total
        else:
            self.declare(o.name, ROW)
            self.each_row(GRID, k.assign(at_row(o.name), total))
        self.value[o.name] = Ref(o.name)

    # --- results --------------------------------------------------------------------------------------------------------
    def store(self, n: int, name: str) -> None:
        """The statements that store an output; of blocks that reduce together each stores its part of the columns."""
        o, e, lets = self.p.outputs[n], self.value[name], Lets()
        stored = frozenset(s.axis for s in o.access if s.axis is not None)
        level = self.values.level(stored)
        if level == FULL:
            e = self.hoisted(e, GRID if self.g.split else EPILOGUE)
        if self.g.split and self.ops[name].phase != GRID:
            raise Refused(f"output {n} does not depend on what blocks reduce together")
        apart = (a for a in self.g.grid if a not in (*stored, *self.g.split) and self.several(a))
        once = [k.binary("==", f"{a}_at", 0) for a in apart]
        value = self.values.expression(e, level, EPILOGUE, lets)
        if level == ROW:
            self.store_rows_alone(n, self.ops[name].phase, value, lets, once)
        elif level == FULL:
            self.store_full(n, stored, value, lets, once)
        else:
            raise Refused(f"output {n} has no rows")

    def store_rows_alone(self, n: int, phase: str, value: ir.Expression, lets: Lets, once: list[ir.Binary]) -> None:
        """A number of each row: one of the four lanes that have it writes it."""
        first = [k.binary("==", RANK, 0)] if self.g.split else []
        inside = self.values.inside([self.plan.rows], EPILOGUE)
        test = k.both(k.binary("==", LANE % 4, 0), inside, *once, *first)
        to = self.output(n)[k.total(self.values.offset(self.p.outputs[n].access, EPILOGUE))]
        self.each_row(phase, k.when(test, *lets.statements, k.run("put", to, value)))

    def store_full(
        self, n: int, stored: frozenset[str], value: ir.Expression, lets: Lets, once: list[ir.Binary]
    ) -> None:
        """A full value: its elements, then rows of them."""
        o, axis, parts = self.p.outputs[n], self.values.column_axis(stored), self.plan.parts
        if next((s.axis for s in reversed(o.access) if s.extent != 1), None) != axis:
            raise Refused(f"what is contiguous of output {n} is not {axis}, the axis of columns")
        count = self.values.columns(axis, parts)
        put = k.assign(k.name("result")[PAIR * 2 + J][I], value)
        skipped = RANK * (count * 8) if parts > 1 else k.ZERO
        terms = [self.output(n), *self.values.offset(o.access, EPILOGUE, fixed=axis), *([skipped] if parts > 1 else [])]
        inside = k.both(*once, self.values.inside([self.plan.rows], EPILOGUE))
        row: dict[ir.Expression, ir.Expression] = {k.name("r_"): k.name("row") + M * 64 + H * 8}
        pointer = k.substituted(guarded(inside, k.total(terms), k.number("nullptr")), row)
        left = [self.values.extent(self.p.extent(axis)), *self.values.base(axis, EPILOGUE), skipped]
        columns = ir.lift(count * 8) if self.plan.exact(axis) else k.cast("int", functools.reduce(operator.sub, left))
        rows = k.call("store_rows", "result", "place", columns, static=[self.aligned(n), ctype(o.dtype)])
        self.place(GRID if self.g.split else EPILOGUE).append(
            self.values.each_tile(
                k.declare("float", "result", dims=(count, 4)),
                self.values.each_column(None, axis, *lets.statements, put, parts=parts),
                k.declare("auto", "place", k.function([("int", "h")], ir.Return(pointer))),
                k.do(rows),
            )
        )

    def output(self, n: int) -> ir.Expression:
        """Where an output begins."""
        return k.name("parameters").member(f"y{n}")

    def several(self, axis: str) -> bool:
        extent, tile = self.p.extent(axis), self.plan.schedule.tile(axis) or 1
        return not isinstance(extent, int) or extent > tile

    def aligned(self, n: int) -> bool:
        """True if rows of an output start at multiples of 16 bytes."""
        o = self.p.outputs[n]
        unit = 16 // o.dtype.bytes
        slots = [s for s in o.access if s.extent != 1]
        stride = slots[-1].extent
        return isinstance(stride, int) and stride % unit == 0 and slots[-1].offset % unit == 0
