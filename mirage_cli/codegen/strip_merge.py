"""The part of a strip kernel behind its loop: groups and blocks merge what they have, results are stored."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_cli.codegen.emit import Lines
from mirage_cli.codegen.strip_loop import StripLoop
from mirage_cli.codegen.strip_values import Matrix
from mirage_cli.codegen.tile import Expr, Ref, Sizes, count, from_thread, globals_of, refs
from mirage_cli.errors import Refused
from mirage_cli.search.mugraph import EPILOGUE, GRID, BlockOp

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


class StripMerge(StripLoop):
    """Prints the operators of epilogue and grid epilogue."""

    def finish(self) -> None:
        """Everything behind the loop."""
        self.smalls: dict[str, Small] = {}
        self.epilogue: list[str] = []
        self.merged: dict[str, Sizes] = {}  #: vectors behind the loop
        self.gathered: dict[str, str] = {}  #: strips summed over blocks -> where the shares are
        self.rows_inside = self.inner_side()
        for o in self.g.ops:
            if o.phase == EPILOGUE and o.op != "accum":
                self.late(o)
        self.write_parts()
        self.merge_vectors()
        self.merge_wholes()
        if self.g.split:
            self.over_blocks()
        self.store_all()

    def inner_side(self) -> bool:
        """Whether results are stored along the rows of strips."""
        for o in self.p.outputs:
            stored = [s.axis for s in o.access if s.axis is not None and self.shapes.size(s.axis, EPILOGUE) > 1]
            if stored and set(stored) & self.sides.cols and stored[-1] in self.sides.rows:
                return True
        return not any(
            s.axis in self.sides.cols and self.shapes.size(s.axis or "", EPILOGUE) > 1
            for o in self.p.outputs
            for s in o.access
        )

    def late(self, o: BlockOp) -> None:
        """An operator behind the loop: an expression, or a small product."""
        if o.op == "thread" and o.thread is not None:
            self.value[o.name] = from_thread(o.thread, [self.value[i] for i in o.inputs])
        elif o.op == "contract":
            self.small(o)
        else:
            raise Refused(f"{o.name}: {o.op} behind the loop")

    def small(self, o: BlockOp) -> None:
        """A product of an accumulator and an input that the block holds."""
        over = self.sized_axes(frozenset(o.over), EPILOGUE)
        accumulator = next((i for i in o.inputs if self.value[i] == Ref(i) and i in self.matrices), "")
        other = next((i for i in o.inputs if i != accumulator), "")
        if not accumulator or self.ops[other].op != "load" or not over:
            raise Refused(f"{o.name} is no product of an accumulator and an input")
        if not set(over) <= self.matrices[accumulator].axes:
            raise Refused(f"{o.name} sums over more than its accumulator has")
        self.tile_of(other, frozenset(o.over))
        sizes = tuple((a, self.shapes.size(a, EPILOGUE)) for a in over)
        self.smalls[o.name] = Small(o.name, accumulator, other, sizes)
        self.value[o.name] = Ref(o.name)

    # --- parts of groups ------------------------------------------------------------------------------------------------
    def part_shape(self, m: Matrix) -> tuple[int, int]:
        """(rows, pitch) of a group's part of a strip in shared memory."""
        rows, cols = 16 * self.members * m.mt, 8 * m.nt
        return (cols, rows + 4) if self.rows_inside else (rows, cols + 4)

    def write_parts(self) -> None:
        """Every group writes what it has accumulated."""
        for name in [*self.accumulators, *self.maxima]:
            if name in self.matrices:
                m = self.matrices[name]
                outer, pitch = self.part_shape(m)
                self.memory.reuse(f"{name}_part", "float", 4 * self.groups * outer * pitch)
                at = (
                    f"(group * {outer} + c) * {pitch} + r"
                    if self.rows_inside
                    else f"(group * {outer} + r) * {pitch} + c"
                )
                test = f"if (c < {count(m.cols)}) " if count(m.cols) < 8 * m.nt else ""
                self.epilogue += [
                    f"MIRAGE_STRIP(S_{name}) {{",
                    f"    const int r = strip_row<S_{name}>(member, m_, i_), c = strip_col(n_, i_);",
                    f"    {test}{name}_part[{at}] = {name}.v[m_][n_][i_];",
                    "}",
                ]
            elif name in self.row_vectors:
                v = self.row_vectors[name]
                rows = 16 * self.members * v.mt
                self.memory.reuse(f"{name}_part", "float", 4 * self.groups * rows)
                x = f"{name}.v[m_][h_]"
                x = x if name in self.maxima else f"over_row<StripSum>({x})"
                at = f"group * {rows} + strip_row<{v.type}>(member, m_, h_ * 2)"
                self.epilogue += [
                    f"MIRAGE_STRIP_ROWS({v.type}) {{",
                    f"    const float x = {x};",
                    f"    if ((lane_of() & 3) == 0) {name}_part[{at}] = x;",
                    "}",
                ]
            else:
                s = self.sums[name]
                chunks = s.tile.n_outer * s.tile.chunks
                self.memory.reuse(f"{name}_part", "float", 4 * self.groups * chunks * s.width)
                self.epilogue += self.over_chunks(
                    s.tile,
                    [
                        "(void)first;",
                        f"for (int e = 0; e < {s.width}; ++e)",
                        f"    {name}_part[(group * {chunks} + k) * {s.width} + e] = {name}[part][e];",
                    ],
                )
        self.epilogue.append("__syncthreads();")

    def vector_of(self, name: str, axes: Sizes) -> str:
        """A merged vector."""
        self.merged[name] = axes
        self.memory.reuse(f"{name}_merged", "float", 4 * count(axes))
        return f"{name}_merged"

    def merge_vectors(self) -> None:
        """Maxima over groups, the weights of groups, sums of vectors."""
        for name in self.maxima:
            v = self.row_vectors[name]
            rows, n = 16 * self.members * v.mt, count(v.rows)
            merged = self.vector_of(name, v.rows)
            self.memory.reuse(f"{name}_weight", "float", 4 * self.groups * rows)
            lines = [
                "float high = -INFINITY;",
                f"for (int g = 0; g < GROUPS; ++g) high = fmaxf(high, {name}_part[g * {rows} + r]);",
                f"{merged}[r] = high;",
                "for (int g = 0; g < GROUPS; ++g)",
                f"    {name}_weight[g * {rows} + r] = strip_exp_difference({name}_part[g * {rows} + r], high);",
            ]
            for other, running in self.accumulators.items():
                if running == name and other in self.row_vectors:
                    lines += self.vector_sum(other, f"{name}_weight[g * {rows} + r]")
            self.epilogue += self.each_of(n, lines)
        for name, running in self.accumulators.items():
            if name in self.row_vectors and not running:
                self.epilogue += self.each_of(count(self.row_vectors[name].rows), self.vector_sum(name, ""))
            elif name in self.sums:
                self.merge_tile_sum(name)
        self.epilogue.append("__syncthreads();")

    def each_of(self, n: int, lines: list[str]) -> list[str]:
        """Statements for each number of a vector."""
        return [f"for (int r = threadIdx.x; r < {n}; r += THREADS) {{", *("    " + x for x in lines), "}"]

    def vector_sum(self, name: str, weight: str) -> list[str]:
        """The sum of a row vector over groups."""
        v = self.row_vectors[name]
        rows = 16 * self.members * v.mt
        merged = self.vector_of(name, v.rows)
        scale = f" * {weight}" if weight else ""
        return [
            f"float {name}_x = 0.0f;",
            f"for (int g = 0; g < GROUPS; ++g) {name}_x += {name}_part[g * {rows} + r]{scale};",
            f"{merged}[r] = {name}_x;",
        ]

    def merge_tile_sum(self, name: str) -> None:
        """The sum of what the threads of all groups have summed of a tile."""
        s = self.sums[name]
        merged = self.vector_of(name, s.axes)
        chunks, across = s.tile.n_outer * s.tile.chunks, s.tile.chunks
        if s.along == "inner":
            at, times = f"(g * {chunks} + r * {across} + c)", across
        else:
            at = f"((g * {chunks} + c * {across} + r / {s.width}) * {s.width} + r % {s.width})"
            times = s.tile.n_outer
        lines = [
            "float x = 0.0f;",
            "for (int g = 0; g < GROUPS; ++g)",
            f"    for (int c = 0; c < {times}; ++c) x += {name}_part[{at}];",
            f"{merged}[r] = x;",
        ]
        self.epilogue += self.each_of(count(s.axes), lines)

    def merge_wholes(self) -> None:
        """Accumulators that small products read, summed over groups."""
        for name in dict.fromkeys(s.matrix for s in self.smalls.values()):
            m = self.matrices[name]
            n = count(m.rows)
            self.memory.reuse(f"{name}_whole", "float", 4 * n * count(m.cols))
            outer, pitch = self.part_shape(m)
            at = "c" if self.rows_inside else "r"
            inner = "r" if self.rows_inside else "c"
            weight = self.weight(name, "r")
            self.epilogue += [
                f"for (int i = threadIdx.x; i < {n * count(m.cols)}; i += THREADS) {{",
                f"    const int r = i % {n}, c = i / {n};",
                "    float x = 0.0f;",
                "    for (int g = 0; g < GROUPS; ++g)",
                f"        x += {name}_part[(g * {outer} + {at}) * {pitch} + {inner}]{weight};",
                f"    {name}_whole[i] = x;",
                "}",
            ]
        if self.smalls:
            self.epilogue.append("__syncthreads();")

    def weight(self, name: str, row: str) -> str:
        """The factor of group g's part of an accumulator."""
        running = self.accumulators[name]
        if not running or self.groups == 1:
            return ""
        rows = 16 * self.members * self.row_vectors[running].mt
        return f" * {running}_weight[g * {rows} + {row}]"

    # --- chunks of results ----------------------------------------------------------------------------------------------
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
        """Whether an input's elements of a chunk lie side by side, aligned and inside."""
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

    def over_domain(self, d: Domain, lines: list[str]) -> list[str]:
        """Statements for each chunk of a domain: chunk `i` begins at `first` of row `outer`."""
        across = count(d.inner) // d.vector
        return [
            f"for (int i = threadIdx.x; i < {d.chunks}; i += THREADS) {{",
            f"    [[maybe_unused]] const int first = i % {across} * {d.vector}, outer = i / {across};",
            *("    " + x for x in lines),
            "}",
        ]

    # --- over blocks ----------------------------------------------------------------------------------------------------
    @property
    def splits(self) -> int:
        """Blocks of a cluster."""
        if not self.g.split:
            return 1
        (axis,) = self.g.split
        extent, tile = self.p.extent(axis), self.s.tile(axis) or 1
        if not isinstance(extent, int):
            raise Refused(f"axis {axis} of symbolic extent is split over blocks that reduce together")
        return -(-extent // tile)

    def over_blocks(self) -> None:
        """Blocks of a cluster send one another their shares; every block finishes its part of the results."""
        if not self.r.target.clusters:
            raise Refused(f"{self.r.target.name} has no clusters of blocks")
        if len(self.g.split) != 1 or not 2 <= self.splits <= 16:
            raise Refused(f"{self.splits} blocks would make a cluster")
        if not self.r.target.name.startswith("sm_9"):
            raise Refused(f"{self.r.target.name} has no clusters")
        s = self.splits
        self.epilogue.append("cluster_wait();")
        self.declare.append(f"const unsigned rank = {self.g.split[0]}_block;")
        ops = [o for o in self.g.ops if o.phase == GRID]
        sent: list[str] = []
        for o in ops:
            for v in o.inputs[:2] if o.op == "grid_sum" else o.inputs[:1] if o.op == "grid_top" else ():
                if v not in sent:
                    sent.append(v)
                    self.send(v)
        self.epilogue += ["cluster_arrive();", "cluster_wait();"]
        for o in ops:
            if o.op in ("grid_sum", "grid_top"):
                self.receive(o, s)
            elif o.op == "thread" and o.thread is not None:
                self.value[o.name] = from_thread(o.thread, [self.value[i] for i in o.inputs])
            else:
                raise Refused(f"{o.name}: {o.op} over blocks")
        self.epilogue.append("__syncthreads();")

    def send(self, v: str) -> None:
        """A block's share of a value goes to all blocks (a vector) or to those that finish its parts (a strip)."""
        e, s = self.value[v], self.splits
        d = self.domain(e, self.axes[v], EPILOGUE)
        if isinstance(d, Domain):
            own = -(-d.chunks // s)
            self.memory.keep(f"{v}_shares", "float", 4 * s * own * d.vector)
            put = f"put_floats(in_block({v}_shares, i / {own}) + (rank * {own} + i % {own}) * {d.vector}, share);"
            self.epilogue += self.over_domain(d, [*self.chunk_lines(e, d, "share"), put])
            return
        n = count(d)
        self.memory.keep(f"{v}_shares", "float", 4 * s * n)
        out = Lines()
        value = self.printed(e, EPILOGUE, out, self.element_behind)
        lines = [*self.decode(d, "i"), *out.lines, f"const float share = {value};"]
        self.epilogue += [
            f"for (int i = threadIdx.x; i < {n}; i += THREADS) {{",
            *("    " + x for x in lines),
            f"    for (unsigned to = 0; to < {s}; ++to) in_block({v}_shares, to)[rank * {n} + i] = share;",
            "}",
        ]

    def receive(self, o: BlockOp, s: int) -> None:
        """A maximum or sum over the blocks of a cluster."""
        v = o.inputs[0]
        d = self.domain(self.value[v], self.axes[v], EPILOGUE)
        self.value[o.name] = Ref(o.name)
        if isinstance(d, Domain):
            self.gathered[o.name] = v
            return
        n = count(d)
        merged = self.vector_of(o.name, d)
        if o.op == "grid_top":
            lines = ["float x = -INFINITY;", f"for (int s = 0; s < {s}; ++s) x = fmaxf(x, {v}_shares[s * {n} + r]);"]
        else:
            weight = f" * {self.block_weight(o, 'r')}" if len(o.inputs) > 1 else ""
            lines = ["float x = 0.0f;", f"for (int s = 0; s < {s}; ++s) x += {v}_shares[s * {n} + r]{weight};"]
        self.epilogue += self.each_of(n, [*lines, f"{merged}[r] = x;"])
        if o.op == "grid_top":
            self.epilogue.append("__syncthreads();")

    def block_weight(self, o: BlockOp, row: str) -> str:
        """The factor of block s's share."""
        own, common = o.inputs[1], o.inputs[2]
        n = count(self.merged[common])
        return f"strip_exp_difference({own}_shares[s * {n} + {row}], {common}_merged[{row}])"

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

    # --- stores ---------------------------------------------------------------------------------------------------------
    def store_all(self) -> None:
        """Every output; those of one domain in one loop."""
        loops: dict[Domain, list[tuple[int, str]]] = {}
        for k, name in enumerate(self.g.outputs):
            o = self.p.outputs[k]
            final = GRID if self.ops[name].phase == GRID else EPILOGUE
            stored = frozenset(s.axis for s in o.access if s.axis is not None)
            d = self.domain(self.value[name], self.axes[name] | stored, EPILOGUE)
            if isinstance(d, Domain):
                loops.setdefault(d, []).append((k, name))
            else:
                self.store_vector(k, name, d, stored)
            self.check_own(name, stored, final)
        for d, outputs in loops.items():
            lines: list[str] = []
            shared = any(n in self.gathered for k, name in outputs for n in refs(self.value[name]))
            for k, name in outputs:
                lines += ["{", *("    " + x for x in self.store_chunk(k, name, d)), "}"]
            if shared:
                own = -(-d.chunks // self.splits)
                test = f"i / {own} == static_cast<int>(rank)"
                lines = [f"if ({test}) {{", *("    " + x for x in lines), "}"]
                self.epilogue += self.own_chunks(d, own, lines[1:-1])
            else:
                self.epilogue += self.over_domain(d, lines)

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
