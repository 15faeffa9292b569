"""Tiles that a strip kernel computes, and sums over what its tiles hold."""

from __future__ import annotations

import contextlib

from mirage_cli.codegen.printers.statements import Lines
from mirage_cli.codegen.strip.base import StripBase
from mirage_cli.codegen.strip.values import SWIZZLED, OperandTile, TileSum, Vector, padded
from mirage_cli.codegen.tiles.tile import Expr, Ref, count, globals_of, refs
from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import DType
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE, BlockOp
from mirage_cli.search.schedules.strip import made_of_products


class StripTiles(StripBase):
    """The parts of the loop that are no strips: tiles, vectors, sums over tiles; accumulators are in `self.accumulators`."""

    made: frozenset[str]

    def start(self) -> None:
        """Nothing is printed yet."""
        self.made = made_of_products(self.g)
        self.prologue: list[str] = []
        self.before: list[str] = []
        self.body: list[str] = []
        self.accumulators: dict[str, str] = {}  #: name of a strip, row vector or tile sum -> its running maximum or ""
        self.maxima: list[str] = []
        self.shrinks: dict[str, str] = {}
        self.copies: dict[str, str] = {}
        self.before_loop: list[str] = []
        self.spread: set[str] = set()  #: tiles through which warps show one another their strips
        self.produced: set[str] = set()  #: strips that products are added up in

    def vector(self, name: str, axes: tuple[tuple[str, int], ...], grouped: bool = False) -> Vector:
        """A vector in shared memory."""
        v = self.vectors[name] = Vector(name, axes, grouped)
        if grouped:
            stride = padded(v.size, 4)
            self.memory.keep(f"{name}_all", "float", 4 * stride * self.groups)
            self.before_loop.append(f"float* const {name} = {name}_all + group * {stride};")
        else:
            self.memory.keep(name, "float", 4 * v.size)
        return v

    def shared_vector(self, name: str) -> str:
        """An element of a vector at the current position."""
        if name not in self.vectors:
            raise Refused(f"{name} is not there in front of the loop")
        return f"{name}[{self.vector_index(self.vectors[name].axes)}]"

    def held_element(self, value: str) -> str:
        """An input's element where the block already holds it in a tile; nothing where it does not."""
        for t in self.tiles.values():
            if t.value == value and t.phase == PROLOGUE and not t.computed:
                return f"to_float(*{self.tile_text(t)}.element({self.linear(t.outer)}, {self.linear(t.inner)}))"
        return ""

    def linear(self, sizes: tuple[tuple[str, int], ...]) -> str:
        """The number of the current position in a group of axes."""
        return self.vector_index(sizes)

    def load_of(self, value: str, reader: str) -> str:
        """The load of an input in the phase of its reader."""
        phase = self.ops[reader].phase
        for o in self.g.ops:
            if o.op == "load" and o.source_value == value and o.phase == phase:
                return o.name
        raise Refused(f"{reader} reads {value}, which is not loaded in the {phase}")

    def is_tile_of(self, t: OperandTile, value: str, phase: str) -> bool:
        """True if a tile holds what a phase has copied of an input."""
        return t.value == value and t.phase == phase and not t.computed

    def tile_element(self, value: str, phase: str) -> str:
        """An input's element at the current position of the tile that a phase has copied it to; else nothing."""
        for t in self.tiles.values():
            if self.is_tile_of(t, value, phase):
                return f"to_float(*{self.tile_text(t)}.element({self.linear(t.outer)}, {self.linear(t.inner)}))"
        return ""

    def like(self, v: str, e: Expr, over: frozenset[str], side: str) -> OperandTile:
        """The tile of the input that has all axes of a value."""
        wanted = set(self.sized_axes(self.axes[v], self.ops[v].phase))
        for value in globals_of(e):
            load = self.load_of(value, v)
            if set(self.sized_axes(self.p.axes_of(value), self.ops[v].phase)) == wanted:
                return self.tile_of(load, over, side)
        raise Refused(f"no input has all axes of {v}")

    def computed_tile(self, v: str, e: Expr, dtype: DType, over: frozenset[str], side: str) -> OperandTile:
        """A tile of the product's type that is computed from what has been loaded."""
        name = f"{v}_as_{dtype}" if self.ops[v].op == "load" else v
        if name in self.tiles:
            return self.tiles[name]
        phase = BODY if self.ops[v].phase == BODY else PROLOGUE
        like = self.like(v, e, over, side)
        if any(n not in self.vectors or self.vectors[n].grouped for n in refs(e)):
            raise Refused(f"{v} mixes loaded tiles and what the loop computes")
        padding = self.padding(like.outer, like.inner, over, side, dtype)
        parts, unit = (like.outer, like.inner, *padding), self.memory.unit
        t = OperandTile(name, like.value, dtype, *parts, phase, computed=True, unit=unit)
        for value in globals_of(e):
            self.load_beside(value, t, over)
        self.tiles[name] = t
        self.declare.append(f"using {t.type} = Tile<{self.ctype(dtype)}, {t.n_outer}, {t.n_inner}>;")
        copies = self.groups if phase == BODY else 1
        place = f"{name}_all" if phase == BODY else f"{name}_tile"
        self.memory.keep(place, self.ctype(dtype), t.bytes * copies)
        if phase == BODY:
            of_group = f"{place} + group * {t.bytes // dtype.bytes}"
            self.before_loop.append(f"{self.ctype(dtype)}* const {name}_tile = {of_group};")
        threads, thread = ("GROUP", "in_group") if phase == BODY else ("THREADS", "static_cast<int>(threadIdx.x)")
        chunks, count_threads = t.n_outer * t.chunks, self.group_threads if phase == BODY else 32 * self.s.warps
        lines = [
            "#pragma unroll 4",
            f"for (int part = 0; part < {-(-chunks // count_threads)}; ++part) {{",
            f"    const int k = part * {threads} + {thread};",
            *([f"    if (k >= {chunks}) break;"] if chunks % count_threads else []),
            f"    const int o = k / {t.chunks}, first = k % {t.chunks} * {t.type}::VEC;",
            *("    " + x for x in self.computed_chunk(t, e, phase)),
            "}",
            *(["show_products();"] if unit == SWIZZLED else []),
            "wait_together<GROUP>(1 + group);" if phase == BODY else "__syncthreads();",
        ]
        (self.body if phase == BODY else self.prologue).extend(lines)
        return t

    def load_beside(self, value: str, t: OperandTile, over: frozenset[str]) -> None:
        """Have an input copied to a tile too where elements of a computed tile's rows lie side by side in it."""
        phase = t.phase
        load = next((o for o in self.g.ops if o.op == "load" and o.source_value == value and o.phase == phase), None)
        own = set(self.sized_axes(self.p.axes_of(value), phase))
        if load is None or not {a for a, _ in t.inner} <= own <= {a for a, _ in (*t.outer, *t.inner)}:
            return
        with contextlib.suppress(Refused):  # it is read where it is stored
            self.tile_of(load.name, over)

    def computed_chunk(self, t: OperandTile, e: Expr, phase: str) -> list[str]:
        """The statements that compute the chunk of row `o` that begins at `first`: inputs whose elements lie side by side
        as in the chunk are read all at once, others one by one."""
        out, read = Lines(), dict[str, OperandTile]()

        def element(value: str) -> str:
            tile = next((x for x in self.tiles.values() if self.is_tile_of(x, value, phase)), None)
            if tile is None or tile.inner != t.inner:
                return self.tile_element(value, phase)
            read[value] = tile
            return f"{value}_part[e]"

        axes = [a for a, _ in (*t.outer, *t.inner)]
        tests = [f"o < {count(t.outer)}"] if count(t.outer) < t.n_outer else []
        tests += [f"first + e < {count(t.inner)}"] if count(t.inner) < t.n_inner else []
        tests += [x for x in [self.inside(axes, phase)] if x]
        guard = out.let(" && ".join(tests), "bool") if tests else ""
        value = self.printed(e, phase, out, self.shared_vector, element, guard)
        value = f"{guard} ? {value} : 0.0f" if guard else value
        inner = self.clamped("(first + e)", t.inner, t.n_inner)
        lines = [*self.decode(t.outer, self.clamped("o", t.outer, t.n_outer)), f"float made[{t.type}::VEC];"]
        for name, tile in read.items():
            lines.append(f"float {name}_part[{t.type}::VEC];")
            lines.append(f"tile_floats({name}_part, {self.tile_text(tile)}, {self.linear(tile.outer)}, first);")
        return [
            *lines,
            "#pragma unroll",
            f"for (int e = 0; e < {t.type}::VEC; ++e) {{",
            *("    " + x for x in [*self.decode(t.inner, inner), *out.lines, f"made[e] = {value};"]),
            "}",
            f"put_vector({self.tile_text(t)}.chunk(o, first / {t.type}::VEC), made);",
        ]

    def operand_tile(self, v: str, dtype: DType, over: frozenset[str], side: str) -> OperandTile:
        """The tile that holds an operand: a loaded one, or one that is computed from loaded ones."""
        e = self.value[v]
        if (
            self.ops[v].op == "load"
            and self.p.sources[self.reads[self.ops[v].source_value or ""].source].dtype == dtype
        ):
            return self.tile_of(v, over, side)
        return self.computed_tile(v, e, dtype, over, side)

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
        self.before.append(f"float {name}[{parts}][{width}] = {{}};")
        lines, value = self.chunk_value(t, e)
        target = f"{name}[part][{'0' if width == 1 else 'e'}]"
        self.body += self.over_chunks(t, [*lines, f"    {target} += {value};", "}"])
        self.value[o.name] = Ref(name)

    def depth_of(self, value: str, over: frozenset[str]) -> frozenset[str]:
        """The axes over which a product sums an input, or `over` where none reads it."""
        for o in self.g.ops:
            if o.op == "contract" and any(
                self.ops[i].op == "load" and self.ops[i].source_value == value for i in o.inputs
            ):
                return frozenset(o.over)
        return over

    def over_chunks(self, t: OperandTile, lines: list[str]) -> list[str]:
        """Statements for each chunk of a tile, shared out to a group's threads: chunk c of row o is part `part`."""
        chunks = t.n_outer * t.chunks
        parts = -(-chunks // self.group_threads)
        test = f"if (k < {chunks}) " if chunks % self.group_threads else ""
        return [
            "#pragma unroll",
            f"for (int part = 0; part < {parts}; ++part) {{",
            "    const int k = part * GROUP + in_group;",
            f"    {test}{{",
            f"        [[maybe_unused]] const int o = k / {t.chunks}, first = k % {t.chunks} * {t.type}::VEC;",
            *("        " + x for x in lines),
            "    }",
            "}",
        ]

    def chunk_value(self, t: OperandTile, e: Expr) -> tuple[list[str], str]:
        """(the statements up to and into a loop over a chunk's elements, the value of an expression there)."""
        out = Lines()
        axes = [a for a, _ in (*t.outer, *t.inner)]
        tests = [f"o < {count(t.outer)}"] if count(t.outer) < t.n_outer else []
        tests += [f"first + e < {count(t.inner)}"] if count(t.inner) < t.n_inner else []
        tests += [x for x in [self.inside(axes, BODY)] if x]
        value = self.printed(e, BODY, out, self.shared_vector, lambda v: "x[e]" if v == t.value else "", "inside")
        uses = any("inside" in x for x in out.lines)
        guard = " && ".join(tests) or "true"
        lines = [
            f"float x[{t.type}::VEC];",
            f"chunk_floats(x, {self.tile_text(t)}.chunk(o, first / {t.type}::VEC));",
            "#pragma unroll",
            f"for (int e = 0; e < {t.type}::VEC; ++e) {{",
            *("    " + x for x in [*self.decode(t.outer, "o"), *self.decode(t.inner, "(first + e)")]),
            *([f"    const bool inside = {guard};"] if tests or uses else []),
            *("    " + x for x in out.lines),
        ]
        return lines, f"(inside ? {value} : 0.0f)" if tests else value

    def column_sum(self, o: BlockOp, e: Expr, t: OperandTile, along: str, kept: tuple[tuple[str, int], ...]) -> None:
        """A sum over the rows of a tile that the loop needs at once: a vector of the group."""
        whole = t.n_outer % self.group_threads == 0
        lanes = t.chunks in (1, 2, 4, 8, 16, 32) and t.n_outer * t.chunks % self.group_threads == 0
        if along != "inner" or not (whole or lanes):
            raise Refused(f"{o.name}: the group cannot sum rows of {t.chunks} chunks at once")
        v = self.vector(o.name, kept, grouped=True)
        lines, value = self.chunk_value(t, e)
        if t.n_outer % self.group_threads == 0:
            self.body += self.row_sum(t, v, lines, value)
            self.value[o.name] = Ref(o.name)
            return
        steps = []
        d = t.chunks // 2
        while d:
            steps.append(f"sum += __shfl_xor_sync(0xffffffffu, sum, {d});")
            d //= 2
        keep = f" && o < {v.size}" if v.size < t.n_outer else ""
        self.body += self.over_chunks(
            t,
            [
                "float sum = 0.0f;",
                *lines,
                f"    sum += {value};",
                "}",
                *steps,
                f"if (k % {t.chunks} == 0{keep}) {o.name}[o] = sum;",
            ],
        )
        self.body.append("wait_together<GROUP>(1 + group);")
        self.value[o.name] = Ref(o.name)

    def row_sum(self, t: OperandTile, v: Vector, lines: list[str], value: str) -> list[str]:
        """The statements of a sum over the rows of a tile, whole rows for each thread of the group."""
        keep = f"if (o < {v.size}) " if v.size < t.n_outer else ""
        body = [
            f"for (int c = 0; c < {t.chunks}; ++c) {{",
            f"    [[maybe_unused]] const int first = c * {t.type}::VEC;",
            *("    " + x for x in [*lines, f"    sum += {value};", "}"]),
            "}",
        ]
        return [
            "#pragma unroll",
            f"for (int part = 0; part < {t.n_outer // self.group_threads}; ++part) {{",
            "    const int o = part * GROUP + in_group;",
            "    float sum = 0.0f;",
            "#pragma unroll",
            *("    " + x for x in body),
            f"    {keep}{v.name}[o] = sum;",
            "}",
            "wait_together<GROUP>(1 + group);",
        ]
