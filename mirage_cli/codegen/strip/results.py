"""Results of a strip kernel: where they are computed, chunk by chunk, and how they are stored."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_cli.codegen.printers.statements import Lines
from mirage_cli.codegen.strip.loop import StripLoop
from mirage_cli.codegen.strip.values import Matrix
from mirage_cli.codegen.tiles.tile import Expr, Sizes, count, globals_of, refs
from mirage_cli.errors import Refused
from mirage_cli.search.mugraph.mugraph import EPILOGUE, GRID, BlockOp

VECTOR = 4  #: results that a thread computes at a time


@dataclass(frozen=True, slots=True)
class Small:
    """A product behind the loop, of a merged accumulator and a held input, that is done element by element."""

    name: str
    matrix: str
    held: str
    over: Sizes


@dataclass(frozen=True, slots=True)
class Domain:
    """Where results are computed: `inner` positions lie side by side in memory."""

    outer: Sizes
    inner: Sizes
    rows_inside: bool  #: whether the inner axes are the rows of strips

    @property
    def vector(self) -> int:
        """Results that a thread computes at a time."""
        return VECTOR if count(self.inner) % VECTOR == 0 else 1

    @property
    def chunks(self) -> int:
        """Pieces that threads share out."""
        return count(self.outer) * count(self.inner) // self.vector


class StripResults(StripLoop):
    """Prints expressions behind the loop."""

    smalls: dict[str, Small]
    merged: dict[str, Sizes]  #: vectors behind the loop
    gathered: dict[str, str]  #: strips summed over blocks -> where the shares are
    rows_inside: bool
    epilogue: list[str]

    def part_shape(self, m: Matrix) -> tuple[int, int]:
        """(rows, pitch) of a group's part of a strip in shared memory."""
        rows, cols = 16 * self.members * m.mt, m.width
        return (cols, rows + 4) if self.rows_inside else (rows, cols + 4)

    def weight(self, name: str, row: str) -> str:
        """The factor of group g's part of an accumulator."""
        running = self.accumulators[name]
        if not running or self.groups == 1:
            return ""
        rows = 16 * self.members * self.row_vectors[running].mt
        return f" * {running}_weight[g * {rows} + {row}]"

    def domain(self, e: Expr, own: frozenset[str], phase: str) -> Domain | Sizes:
        """Where an expression is computed: over a strip's positions, or over those of a vector."""
        axes = self.sized_axes(own, phase)
        rows = [a for a in axes if a in self.sides.rows]
        cols = [a for a in axes if a in self.sides.cols]
        if set(axes) - set(rows) - set(cols):
            raise Refused(f"axis {min(set(axes) - set(rows) - set(cols))} of a result is none of the products'")
        m = self.late_matrix(e)
        if m is None:
            return tuple((a, self.shapes.size(a, phase)) for a in axes)
        if set(axes) != set(m):
            raise Refused("a result has other axes than its strip")
        r, c = (self.order_of(part, phase) for part in (rows, cols))
        return Domain(c, r, True) if self.rows_inside else Domain(r, c, False)

    def order_of(self, axes: list[str], phase: str) -> Sizes:
        """Axes in the order that strips have them in."""
        order = self.orders.get(frozenset(axes), tuple(axes))
        return tuple((a, self.shapes.size(a, phase)) for a in order)

    def late_matrix(self, e: Expr) -> frozenset[str] | None:
        """The axes of the strips, small products and sums over blocks that an expression reads."""
        for name in refs(e):
            if name in self.smalls or name in self.gathered:
                return frozenset(self.sized_axes(self.axes[name], EPILOGUE))
            if name in self.matrices:
                return self.matrices[name].axes
        return None

    def element_behind(self, name: str) -> str:
        """A register, vector or merged value at the current position."""
        if name in self.merged:
            return f"{name}_merged[{self.vector_index(self.merged[name])}]"
        if name in self.vectors and not self.vectors[name].grouped:
            return f"{name}[{self.vector_index(self.vectors[name].axes)}]"
        if name in self.smalls or name in self.gathered or name in self.accumulators:
            return f"{name}_x[e]"
        raise Refused(f"{name} is not there behind the loop")

    @property
    def splits(self) -> int:
        """Blocks of a cluster."""
        if not self.g.split:
            return 1
        (axis,) = self.g.split
        if self.s.parts:
            return self.s.parts
        extent, tile = self.p.extent(axis), self.s.tile(axis) or 1
        if not isinstance(extent, int):
            raise Refused(f"axis {axis} of symbolic extent is split over blocks that reduce together")
        return -(-extent // tile)

    def block_weight(self, o: BlockOp, row: str) -> str:
        """The factor of block s's share. A row's maximum is read by the thread that made it, or behind a barrier."""
        own, common = o.inputs[1], o.inputs[2]
        n = count(self.merged[common])
        return f"strip_exp_difference({own}_shares[s * {n} + {row}], {common}_merged[{row}])"

    def over_domain(self, d: Domain, lines: list[str]) -> list[str]:
        """Statements for each chunk of a domain: chunk `i` begins at `first` of row `outer`."""
        across = count(d.inner) // d.vector
        return [
            f"for (int i = threadIdx.x; i < {d.chunks}; i += THREADS) {{",
            f"    [[maybe_unused]] const int first = i % {across} * {d.vector}, outer = i / {across};",
            *("    " + x for x in lines),
            "}",
        ]

    def own_chunks(self, d: Domain, own: int, lines: list[str]) -> list[str]:
        """Statements for the chunks that this block of its cluster finishes."""
        across = count(d.inner) // d.vector
        return [
            f"for (int j = threadIdx.x; j < {own}; j += THREADS) {{",
            f"    const int i = static_cast<int>(rank) * {own} + j;",
            f"    if (i >= {d.chunks}) break;",
            f"    [[maybe_unused]] const int first = i % {across} * {d.vector}, outer = i / {across};",
            *("    " + x for x in lines),
            "}",
        ]

    def chunk_lines(self, e: Expr, d: Domain, result: str) -> list[str]:
        """Statements that compute a chunk of an expression into `result`, at `outer` and from `first` on."""
        v, lines = d.vector, [*self.decode(d.outer, "outer")]
        for name in refs(e):
            if name in self.gathered:
                lines += self.gather_blocks(name, d)
            elif name in self.smalls:
                lines += self.small_chunk(self.smalls[name], d)
            elif name in self.matrices and name not in self.merged:
                lines += self.gather_groups(name, d)
        vectors: dict[str, str] = {}
        for value in globals_of(e):
            if self.side_by_side(value, d):
                fixed = [a for a, _ in d.inner]
                text = f"{value} + {self.offset(self.reads[value].access, EPILOGUE, fixed)} + first"
                lines += [f"float {value}_x[{v}];", f"get_vector({value}_x, {text});"]
                vectors[value] = f"{value}_x[e]"
        out = Lines()
        inside = self.inside([a for a, _ in (*d.outer, *d.inner)], EPILOGUE)
        scalar = any(x not in vectors for x in globals_of(e))
        guard = out.let(inside, "bool") if inside and scalar else ""
        value = self.printed(e, EPILOGUE, out, self.element_behind, lambda x: vectors.get(x, ""), guard)
        return [
            *lines,
            f"float {result}[{v}];",
            "#pragma unroll",
            f"for (int e = 0; e < {v}; ++e) {{",
            *("    " + x for x in [*self.decode(d.inner, "(first + e)"), *out.lines, f"{result}[e] = {value};"]),
            "}",
        ]

    def side_by_side(self, value: str, d: Domain) -> bool:
        """True if an input's elements of a chunk lie side by side, aligned and inside."""
        slots = [s for s in self.reads[value].access if s.extent != 1]
        if d.vector == 1 or not slots or len(d.inner) != 1 or slots[-1].axis != d.inner[0][0]:
            return False
        if not all(self.shapes.exact(a, EPILOGUE) for a, _ in (*d.outer, *d.inner)):
            return False
        extents = [s.extent for s in slots]
        return (
            all(s.offset % d.vector == 0 for s in slots[-1:])
            and isinstance(extents[-1], int)
            and extents[-1] % d.vector == 0
        )

    def gather_groups(self, name: str, d: Domain) -> list[str]:
        """A chunk of an accumulator, summed over groups."""
        m, v = self.matrices[name], d.vector
        outer, pitch = self.part_shape(m)
        part = f"{name}_part + (g * {outer} + outer) * {pitch} + first"
        lines = [f"float {name}_x[{v}] = {{}};", "#pragma unroll", "for (int g = 0; g < GROUPS; ++g)"]
        weight = self.weight(name, "(first + e)" if d.rows_inside else "outer").removeprefix(" * ")
        if weight and d.rows_inside:
            return [*lines, f"    for (int e = 0; e < {v}; ++e) {name}_x[e] += ({part})[e] * {weight};"]
        return [*lines, f"    add_scaled({name}_x, {part}, {weight or '1.0f'});"]

    def gather_blocks(self, name: str, d: Domain) -> list[str]:
        """A chunk of a strip, summed over blocks."""
        o, v, s = self.ops[name], self.gathered[name], self.splits
        own = -(-d.chunks // s)
        part = f"{v}_shares + (s * {own} + i - static_cast<int>(rank) * {own}) * {d.vector}"
        lines = [f"float {name}_x[{d.vector}] = {{}};", "#pragma unroll", f"for (int s = 0; s < {s}; ++s)"]
        if len(o.inputs) < 2:
            return [*lines, f"    add_scaled({name}_x, {part}, 1.0f);"]
        index = self.vector_index(self.merged[o.inputs[2]])
        if d.rows_inside:
            step = f"    for (int e = 0; e < {d.vector}; ++e) {{"
            inner = " ".join(self.decode(d.inner, "(first + e)"))
            return [
                *lines,
                step,
                f"        {inner} {name}_x[e] += ({part})[e] * {self.block_weight(o, index)};",
                "    }",
            ]
        return [*lines, f"    add_scaled({name}_x, {part}, {self.block_weight(o, index)});"]

    def small_chunk(self, s: Small, d: Domain) -> list[str]:
        """A chunk of a small product."""
        m, t = self.matrices[s.matrix], self.tiles[s.held]
        first = f"{s.matrix}_whole[({self.vector_index(m.cols)}) * {count(m.rows)} + {self.vector_index(m.rows)}]"
        second = f"to_float(*{self.tile_text(t)}.element({self.vector_index(t.outer)}, {self.vector_index(t.inner)}))"
        return [
            f"float {s.name}_x[{d.vector}] = {{}};",
            f"for (int k = 0; k < {count(s.over)}; ++k) {{",
            *("    " + x for x in self.decode(s.over, "k")),
            "#pragma unroll",
            f"    for (int e = 0; e < {d.vector}; ++e) {{",
            *("        " + x for x in self.decode(d.inner, "(first + e)")),
            f"        {s.name}_x[e] += {first} * {second};",
            "    }",
            "}",
        ]

    def check_own(self, name: str, stored: frozenset[str], final: str) -> None:
        """Raises Refused for results that several blocks would store."""
        own = stored | (frozenset(self.g.split) if final == GRID else frozenset())
        if once := self.shapes.several_blocks(own):
            raise Refused(f"output {name} is the same in all blocks along {', '.join(once)}")

    def store_chunk(self, k: int, name: str, d: Domain) -> list[str]:
        """Compute a chunk of an output and store it."""
        e, o = self.value[name], self.p.outputs[k]
        lines = self.chunk_lines(e, d, "result")
        axes = [a for a, _ in (*d.outer, *d.inner)]
        slots = [s for s in o.access if s.extent != 1]
        inner = d.inner[-1][0]
        whole = slots and slots[-1].axis == inner and slots[-1].offset % d.vector == 0
        extent = self.p.extent(inner)
        whole = whole and isinstance(extent, int) and extent % d.vector == 0 and extent == slots[-1].extent
        whole = whole and len(d.inner) == 1
        test = self.inside(axes, EPILOGUE)
        if whole and d.vector > 1:
            text = self.offset(o.access, EPILOGUE)
            start = [*self.decode(d.inner, "first")]
            put = f"put_vector(y{k} + {text}, result);"
            return [*lines, *start, f"if ({test}) {put}" if test else put]
        put = f"put(y{k}[{self.offset(o.access, EPILOGUE)}], result[e]);"
        body = [*self.decode(d.inner, "(first + e)"), f"if ({test}) {put}" if test else put]
        return [*lines, "#pragma unroll", f"for (int e = 0; e < {d.vector}; ++e) {{", *("    " + x for x in body), "}"]

    def store_vector(self, k: int, name: str, d: Sizes, stored: frozenset[str]) -> None:
        """Compute and store an output that goes with rows."""
        o, out = self.p.outputs[k], Lines()
        test = self.inside([a for a, _ in d], EPILOGUE)
        guard = out.let(test, "bool") if test and self.reads_inputs(self.value[name]) else ""
        value = self.printed(self.value[name], EPILOGUE, out, self.element_behind, None, guard)
        put = f"put(y{k}[{self.offset(o.access, EPILOGUE)}], {value});"
        tests = [x for x in (test, "rank == 0" if self.g.split and not set(self.g.split) & stored else "") if x]
        lines = [*self.decode(d, "i"), *out.lines, f"if ({' && '.join(tests)}) {put}" if tests else put]
        self.epilogue += [
            f"for (int i = threadIdx.x; i < {count(d)}; i += THREADS) {{",
            *("    " + x for x in lines),
            "}",
        ]
