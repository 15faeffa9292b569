"""Tiles that a strip kernel computes, and sums over what its tiles hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from mirage_cli.codegen.strip.base import EACH_GROUP, SHOWN, StripBase, array
from mirage_cli.codegen.strip.values import CHUNK, SWIZZLED, OperandTile, TileSum, Vector, padded
from mirage_cli.codegen.terms.expressions import SYNC, ZERO, Lets
from mirage_cli.codegen.terms.fragments import decode
from mirage_cli.codegen.terms.visible import known
from mirage_cli.codegen.tiles.tile import Apply, Expr, Global, Number, Ref, Sizes, count, globals_of, refs
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax.domains.limits import Forms
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.ir.program import Input
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE, BlockOp
from mirage_cli.search.schedules.strip import made_of_products

AT = k.name("first") + "e"  #: the place of element `e` of a chunk in its row


class StripTiles(StripBase):
    """The parts of the loop that are no strips: tiles, vectors, sums over tiles; accumulators are in `self.accumulators`."""

    made: frozenset[str]

    def start(self) -> None:
        """Nothing is printed yet."""
        self.made = made_of_products(self.g)
        self.prologue: list[ir.Statement] = []
        self.early: list[tuple[int, Callable[[], list[ir.Statement]]]] = []  #: sums of the prologue, by their places
        self.before: list[ir.Statement] = []
        self.body: list[ir.Statement] = []
        self.accumulators: dict[str, str] = {}  #: name of a strip, row vector or tile sum -> its running maximum or ""
        self.maxima: list[str] = []
        self.shrinks: dict[str, str] = {}
        self.copies: dict[str, str] = {}
        self.before_loop: list[ir.Statement] = []
        self.spread: set[str] = set()  #: tiles through which warps show one another their strips
        self.produced: set[str] = set()  #: strips that products are added up in

    def vector(self, name: str, axes: Sizes, grouped: bool = False) -> Vector:
        """A vector in shared memory."""
        v = self.vectors[name] = Vector(name, axes, grouped)
        if grouped:
            stride = padded(v.size, 4)
            self.keep_of_group(name, "float", stride, 4 * stride, name)
        else:
            self.memory.keep(name, "float", 4 * v.size)
        return v

    def keep_of_group(self, name: str, type_: str, elements: int, bytes_: int, own: str) -> None:
        """A place for each group; the kernel calls that of its own `own`."""
        self.memory.keep(f"{name}_all", type_, bytes_ * self.groups)
        self.before_loop.append(k.let(f"{type_}*", own, k.name(f"{name}_all") + k.name("group") * elements))

    def shared_vector(self, name: str) -> ir.Expression:
        """An element of a vector at the current position."""
        if name not in self.vectors:
            raise Refused(f"{name} is not there in front of the loop")
        return k.name(name)[self.vector_index(self.vectors[name].axes)]

    def load_of(self, value: str, reader: str) -> str:
        """The load of an input in the phase of its reader."""
        phase = self.ops[reader].phase
        for o in self.g.ops:
            if o.op == "load" and o.source_value == value and o.phase == phase:
                return o.name
        raise Refused(f"{reader} reads {value}, which is not loaded in the {phase}")

    def held_along(self, value: str, over: frozenset[str]) -> OperandTile | None:
        """The tile of an input that is held whole along the loop."""
        loads = [o for o in self.g.ops if o.op == "load" and o.source_value == value]
        if [o.phase for o in loads] != [PROLOGUE] or self.loop_axis not in self.p.axes_of(value):
            return None
        return self.tile_of(loads[0].name, over)

    def part_of(self, t: OperandTile) -> tuple[Sizes, Sizes] | None:
        """The sides of the part of a tile held whole along the loop that an iteration walks; None where its elements do not
        lie one behind the other in each row."""
        if t.inner[0][0] != self.loop_axis:
            return None
        outer, inner = (tuple((a, self.shapes.size(a, BODY)) for a, _ in side) for side in (t.outer, t.inner))
        return outer, inner

    def copied(self, value: str, phase: str) -> OperandTile | None:
        """The tile that a phase has copied an input to."""
        tiles = (t for t in self.tiles.values() if t.value == value and t.phase == phase and not t.computed)
        return next(tiles, None)

    def tile_element(self, value: str, phase: str) -> ir.Expression | None:
        """An input's element at the current position of a tile that a phase has copied; else nothing."""
        if (tile := self.copied(value, phase)) is not None:
            return self.element_of_tile(tile)
        if (found := self.within_tile(value, phase)) is None:
            return None
        tile, *at = found
        return k.call("to_float", ir.Unary("*", self.held(tile).member("element")(*at)))

    def within_tile(self, value: str, phase: str) -> tuple[OperandTile, ir.Expression, ir.Expression] | None:
        """A tile that a phase has copied of an input's tensor and that has, along whatever the two walk differently, all of
        it, with the row and the place in it where the input's element lies; else nothing."""
        own = self.reads[value]
        for t in self.tiles.values():
            if t.phase != phase or t.computed or t.kind != "Tile" or self.reads[t.value].source != own.source:
                continue
            other = self.reads[t.value]
            places = self.places_within(own, other, phase)
            if places is not None:
                outer, inner = (k.substituted(self.vector_index(side), places) for side in (t.outer, t.inner))
                return t, outer, inner
        return None

    def chunk_within(
        self, value: str, t: OperandTile, phase: str
    ) -> tuple[OperandTile, ir.Expression, ir.Expression] | None:
        """The same for the chunk of a tile that begins at `first`, where the input's elements lie side by side too."""
        found, each = self.within_tile(value, phase), CHUNK // t.dtype.bytes
        if found is None or not self.reads[value].access:
            return None
        last = self.reads[value].access[-1]
        if (last.axis, found[0].inner[-1][0]) != (t.inner[-1][0],) * 2:
            return None
        if last.offset % each or any(n % each for _, n in (t.inner[-1], found[0].inner[-1])):
            return None
        at, rest = dict[ir.Expression, ir.Expression](), ir.lift(k.name("first"))
        for axis, n in reversed(t.inner):
            at[k.name(f"i_{axis}")] = rest % n if axis != t.inner[0][0] else rest
            rest = rest / n
        tile, outer, inner = found
        return tile, outer, k.substituted(inner, at)

    def place_along(self, value: str, t: OperandTile) -> tuple[OperandTile, ir.Expression, ir.Expression] | None:
        """A tile held whole along the loop with the row and the place of the chunk of an iteration's tile at `first`."""
        whole = self.held_along(value, frozenset(a for a, _ in t.inner))
        part = self.part_of(whole) if whole else None
        if whole is None or part is None or part[1] != t.inner:
            return None
        step = k.total(self.base(self.loop_axis, BODY))
        inside = count(t.inner[1:])
        place: ir.Expression = k.total([step if inside == 1 else step * inside, "first"])
        if whole.inner[0][1] % self.s.loop:  # of chunks behind the end nothing is taken
            last = whole.n_inner - CHUNK // whole.dtype.bytes
            place = k.call("min", k.converted("offset_t", place), k.converted("offset_t", last))
        return whole, self.vector_index(whole.outer), place

    def places_within(self, own: Input, other: Input, phase: str) -> dict[ir.Expression, ir.Expression] | None:
        """The positions along the axes of `other` at which it reads what `own` reads at the current position, where they are
        not the same; None where a tile of `other` may not have it."""
        places = dict[ir.Expression, ir.Expression]()
        if len(own.access) != len(other.access):
            return None
        for mine, its in zip(own.access, other.access, strict=True):
            if mine == its:
                continue
            axis = its.axis
            whole = axis is not None and its.offset == 0 and self.shapes.size(axis, phase) == its.extent
            walked = 1 if mine.axis is None else self.shapes.size(mine.axis, phase)
            extent = 1 if mine.axis is None else self.p.extent(mine.axis)
            if axis is None or not whole or mine.extent != its.extent or walked != extent:
                return None
            walk = [] if mine.axis is None or walked == 1 else [f"i_{mine.axis}"]
            places[k.name(f"i_{axis}")] = k.total([*walk, *([mine.offset] if mine.offset or not walk else [])])
        return places

    def like(self, v: str, e: Expr, over: frozenset[str], side: str) -> tuple[str, Sizes, Sizes]:
        """The input that has all axes of a value, with the sides of its tile; of none where positions or several inputs make
        these, which is then computed from where they are stored."""
        phase = BODY if self.ops[v].phase == BODY else PROLOGUE
        wanted = self.sized_axes(self.axes[v], phase)
        for value in globals_of(e):
            if set(self.sized_axes(self.p.axes_of(value), phase)) == set(wanted):
                whole = self.held_along(value, over) if phase == BODY else None
                if whole is None:
                    t = self.tile_of(self.load_of(value, v), over, side)
                    return value, t.outer, t.inner
                if part := self.part_of(whole):
                    return value, *part
        inner = [a for a in wanted if a in over]
        if not inner or self.loop_axis in wanted:
            raise Refused(f"no input has all axes of {v}")
        outer = [a for a in wanted if a not in over]
        return "", self.group_sizes(outer, phase), self.group_sizes(inner, phase)

    def computed_tile(
        self, v: str, e: Expr, dtype: DType, over: frozenset[str], side: str, name: str = ""
    ) -> OperandTile:
        """A tile of the product's type that is computed from what has been loaded."""
        name = name or (f"{v}_as_{dtype}" if self.ops[v].op == "load" else v)
        if name in self.tiles:
            return self.tiles[name]
        phase = BODY if self.ops[v].phase == BODY else PROLOGUE
        like, outer, inner = self.like(v, e, over, side)
        if any(n not in self.vectors or self.vectors[n].grouped for n in refs(e)):
            raise Refused(f"{v} mixes loaded tiles and what the loop computes")
        padding = self.padding(outer, inner, over, side, dtype)
        t = OperandTile(name, like, dtype, outer, inner, *padding, phase, computed=True, unit=self.memory.unit)
        for value in globals_of(e):
            self.load_beside(value, t, over)
        self.add_tile(t)
        if phase == BODY:
            self.keep_of_group(name, self.ctype(dtype), t.bytes // dtype.bytes, t.bytes, f"{name}_tile")
        else:
            self.memory.keep(f"{name}_tile", self.ctype(dtype), t.bytes)
        (self.body if phase == BODY else self.prologue).extend(self.computed_chunks(t, e, phase))
        return t

    def computed_chunks(self, t: OperandTile, e: Expr, phase: str) -> list[ir.Statement]:
        """Statements that compute a tile, whose chunks a group's or the block's threads share."""
        (threads, thread), grouped = self.sharing(phase == BODY), phase == BODY
        chunks, n = t.n_outer * t.chunks, self.group_threads if grouped else 32 * self.s.warps
        chunk = k.name("k")
        return [
            k.loop(
                "part",
                -(-chunks // n),
                k.let("int", "k", k.name("part") * threads + thread),
                *([k.when(chunk >= chunks, ir.Break())] if chunks % n else []),
                k.lets("int", self.chunk_place(t)),
                *self.computed_chunk(t, e, phase),
                unroll="#pragma unroll 4",
            ),
            *([SHOWN] if t.unit == SWIZZLED else []),
            EACH_GROUP if grouped else SYNC,
        ]

    def chunk_place(self, t: OperandTile) -> dict[str, ir.Expression]:
        """The row of chunk `k` of a tile, and where in the row it begins."""
        return {"o": k.name("k") / t.chunks, "first": k.name("k") % t.chunks * t.vector}

    def load_beside(self, value: str, t: OperandTile, over: frozenset[str]) -> None:
        """Have an input copied to a tile too where elements of a computed tile's rows lie side by side in it."""
        phase = t.phase
        load = next((o for o in self.g.ops if o.op == "load" and o.source_value == value and o.phase == phase), None)
        own = set(self.sized_axes(self.p.axes_of(value), phase))
        if load is None or not {a for a, _ in t.inner} <= own <= {a for a, _ in (*t.outer, *t.inner)}:
            return
        with contextlib.suppress(Refused):  # it is read where it is stored
            self.tile_of(load.name, over)

    def computed_chunk(self, t: OperandTile, e: Expr, phase: str) -> list[ir.Statement]:
        """The statements that compute the chunk of row `o` that begins at `first`: inputs whose elements lie side by side
        as in the chunk are read all at once, others one by one."""
        out, read = Lets(), dict[str, tuple[OperandTile, ir.Value, ir.Value]]()

        def element(value: str) -> ir.Expression | None:
            tile = self.copied(value, phase)
            if tile is not None and tile.inner == t.inner:
                read[value] = tile, self.vector_index(tile.outer), "first"
            elif phase == BODY and (part := self.place_along(value, t)):
                read[value] = part
            elif tile is None and (found := self.chunk_within(value, t, phase)):
                read[value] = found
            else:
                return self.tile_element(value, phase)
            return k.name(f"{value}_part")["e"]

        test = self.inside_tile(t, phase)
        guard = out.let(test, "bool") if test else None
        self.along = frozenset(a for a, _ in t.inner)
        value = self.value_of(e, phase, out, self.shared_vector, element, guard)
        self.along = frozenset()
        value = k.select(guard, value, ZERO) if guard else value
        inner = self.clamped(AT, t.inner, t.n_inner)
        statements = [*decode(t.outer, self.clamped("o", t.outer, t.n_outer)), array("made", t.vector)]
        statements += self.parts_read(read, t.vector)
        body = (*decode(t.inner, inner), *out.statements, k.assign(k.name("made")["e"], value))
        return [
            *statements,
            k.loop("e", t.vector, *body, unroll=k.UNROLL),
            k.run("put_vector", self.chunk(t), "made"),
        ]

    def parts_read(
        self, read: Mapping[str, tuple[OperandTile, ir.Value, ir.Value]], size: ir.Value
    ) -> list[ir.Statement]:
        """Statements that read so many elements of inputs, which lie side by side in a row of a tile, at once."""
        statements: list[ir.Statement] = []
        for name, (tile, *place) in read.items():
            part = f"{name}_part"
            statements += [array(part, size), k.run("tile_floats", part, self.held(tile), *place)]
        return statements

    def chunk(self, t: OperandTile) -> ir.Call:
        """The chunk of row `o` that begins at `first`."""
        return self.held(t).member("chunk")("o", k.name("first") / t.vector)

    def inside_tile(self, t: OperandTile, phase: str) -> ir.Expression | None:
        """The condition that element `e` of a chunk is no padding."""
        inside = self.inside([a for a, _ in (*t.outer, *t.inner)], phase)
        return k.both(self.real(t.outer, t.n_outer, "o"), self.real(t.inner, t.n_inner, AT), inside)

    def operand_tile(self, v: str, dtype: DType, over: frozenset[str], side: str) -> OperandTile:
        """The tile that holds an operand: a loaded one, or one that is computed from loaded ones."""
        e = self.value[v]
        if (
            self.ops[v].op == "load"
            and self.p.sources[self.reads[self.ops[v].source_value or ""].source].dtype == dtype
        ):
            return self.tile_of(v, over, side)
        shown = self.shown_rows(v, e, dtype)
        return (shown and self.tile_of(shown, over, side)) or self.computed_tile(v, e, dtype, over, side)

    def shown_rows(self, v: str, e: Expr, dtype: DType) -> str:
        """The load of which a value is those rows that a comparison of positions with integers shows, and zeros: copies leave
        the others out, whatever they hold. Nothing for other values."""
        match e:
            case Apply("where", (condition, Global(value), Number(constant))) if constant == 0:
                load, forms = self.load_of(value, v), self.shown_forms(condition, value)
                own = self.p.sources[self.reads[value].source].dtype == dtype
                if forms and own and [r.name for r in self.readers[load]] == [v]:
                    self.guards[load] = forms
                    return load
        return ""

    def shown_forms(self, condition: Expr, value: str) -> Forms:
        """The forms of a comparison of an input's rows with integers that a block has one each of; none for others, and where
        no iterations are hidden."""
        forms, last = known(condition, self.integers).truth, self.reads[value].access[-1].axis
        axes = {a for f in forms for a, _ in f.terms}
        masked = any(f.given for f in self.limits)
        suits = masked and axes <= self.p.axes_of(value) - {last} and all(map(self.is_held, forms))
        return forms if suits else frozenset()

    def target(self, o: BlockOp) -> tuple[str, str]:
        """(name of the result, name of the shrink): that of the accumulator which is the only reader, else its own."""
        readers = self.readers[o.name]
        if len(readers) != 1 or readers[0].op != "accum" or o.name in self.g.outputs:
            return o.name, ""
        accum = readers[0]
        shrink = accum.inputs[1] if len(accum.inputs) > 1 else ""
        if shrink and shrink not in self.shrinks:
            raise Refused(f"{accum.name} is scaled by {shrink}, which is not there yet")
        self.accumulators[accum.name] = self.shrinks.get(shrink, "")
        return accum.name, shrink

    def tile_sum(self, o: BlockOp, e: Expr, over: frozenset[str]) -> None:
        """A sum over one side of a loaded tile: carried through the loop in parts, or a vector of every iteration."""
        if refs(e):
            raise Refused(f"{o.name} sums more than loaded tiles")
        wanted = set(self.sized_axes(self.axes[o.inputs[0]], BODY))
        t = None
        for value in globals_of(e):
            if set(self.sized_axes(self.p.axes_of(value), BODY)) == wanted:
                t = self.tile_of(self.load_of(value, o.inputs[0]), self.depth_of(value, over))
                break
        if t is None or not t.ring:
            raise Refused(f"{o.name}: no tile of the loop has all that it sums")
        summed = set(self.sized_axes(over, BODY))
        along = "inner" if summed == {a for a, _ in t.inner} else "outer" if summed == {a for a, _ in t.outer} else ""
        kept = t.outer if along == "inner" else t.inner
        if not along:
            raise Refused(f"{o.name} sums over a part of a tile's side")
        name, shrink = self.target(o)
        if shrink:
            raise Refused(f"{o.name} is scaled while it is accumulated")
        chunks = t.n_outer * t.chunks
        if name == o.name:
            self.column_sum(o, e, t, along, kept)
            return
        parts = -(-chunks // self.group_threads)
        width = 1 if along == "inner" else 16 // t.dtype.bytes
        self.sums[name] = TileSum(name, t, kept, along, parts, width)
        self.before.append(k.declare("float", name, k.array(), dims=[parts, width]))
        target = k.name(name)["part"]["e" if width > 1 else 0]
        self.body.append(self.over_chunks(t, *self.summed(t, e, target)))
        self.value[o.name] = Ref(name)

    def depth_of(self, value: str, over: frozenset[str]) -> frozenset[str]:
        """The axes over which a product sums an input, or `over` where none reads it."""
        for o in self.g.ops:
            if o.op == "contract" and any(
                self.ops[i].op == "load" and self.ops[i].source_value == value for i in o.inputs
            ):
                return frozenset(o.over)
        return over

    def over_chunks(self, t: OperandTile, *body: ir.Statement) -> ir.For:
        """Statements for each chunk of a tile, shared out to a group's threads: chunk k is part `part` of one."""
        chunks = t.n_outer * t.chunks
        inside = (k.lets("int", self.chunk_place(t), unused=True), *body)
        return k.loop(
            "part",
            -(-chunks // self.group_threads),
            k.let("int", "k", k.name("part") * "GROUP" + "in_group"),
            k.when(k.name("k") < chunks if chunks % self.group_threads else None, *inside),
            unroll=k.UNROLL,
        )

    def summed(self, t: OperandTile, e: Expr, total: ir.Expression) -> list[ir.Statement]:
        """Statements that add the values of an expression over a chunk to `total`."""
        out, test = Lets(), self.inside_tile(t, BODY)
        own, inside = k.name("x")["e"], k.name("inside")
        value = self.value_of(e, BODY, out, self.shared_vector, lambda v: own if v == t.value else None, inside)
        guarded = test is not None or "inside" in k.names_in(tuple(out.statements))
        body = (
            *decode(t.outer, "o"),
            *decode(t.inner, AT),
            *([k.let("bool", "inside", True if test is None else test)] if guarded else []),
            *out.statements,
            k.assign(total, value if test is None else k.select(inside, value, ZERO), "+="),
        )
        return [
            array("x", t.vector),
            k.run("chunk_floats", "x", self.chunk(t)),
            k.loop("e", t.vector, *body, unroll=k.UNROLL),
        ]

    def column_sum(self, o: BlockOp, e: Expr, t: OperandTile, along: str, kept: Sizes) -> None:
        """A sum over the rows of a tile that the loop needs at once: a vector of the group."""
        whole = t.n_outer % self.group_threads == 0
        if along != "inner" or not (whole or self.rows_by_lanes(t)):
            raise Refused(f"{o.name}: the group cannot sum rows of {t.chunks} chunks at once")
        v = self.vector(o.name, kept, grouped=True)
        own, real = k.name("sum"), self.real(kept, t.n_outer, "o")
        start, parts = k.declare("float", "sum", ZERO), self.summed(t, e, own)
        keep = k.assign(k.name(v.name)["o"], own)
        if whole:
            self.body.append(self.over_rows(t, start, parts, k.when(real, keep)))
        else:
            first = k.binary("==", k.name("k") % t.chunks, 0)
            self.body.append(
                self.over_chunks(t, start, *parts, *over_lanes(t.chunks), k.when(k.both(first, real), keep))
            )
        self.body.append(EACH_GROUP)
        self.value[o.name] = Ref(o.name)

    def rows_by_lanes(self, t: OperandTile) -> bool:
        """True if all lanes of a warp have chunks of a tile, and those of a row are neighbours."""
        return t.chunks in (1, 2, 4, 8, 16, 32) and t.n_outer * t.chunks % self.group_threads == 0

    def over_rows(
        self, t: OperandTile, start: ir.Statement, parts: Sequence[ir.Statement], end: ir.Statement
    ) -> ir.For:
        """Statements in front of, for, and behind the chunks of whole rows of a tile, for each thread of the group."""
        first = k.let("int", "first", k.name("c") * t.vector, unused=True)
        return k.loop(
            "part",
            t.n_outer // self.group_threads,
            k.let("int", "o", k.name("part") * "GROUP" + "in_group"),
            start,
            k.loop("c", t.chunks, first, *parts, unroll=k.UNROLL),
            end,
            unroll=k.UNROLL,
        )


def over_lanes(n: int) -> list[ir.Statement]:
    """Make `sum` the sum over `n` neighbouring lanes."""
    every, own = k.number("0xffffffffu"), k.name("sum")
    steps = [n >> i for i in range(1, n.bit_length())]
    return [k.assign(own, k.call("__shfl_xor_sync", every, own, d), "+=") for d in steps]
