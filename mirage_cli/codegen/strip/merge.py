"""The part of a strip kernel behind its loop: groups and blocks merge what they have, results are stored."""

from __future__ import annotations

from mirage_cli.codegen.printers.statements import Lines
from mirage_cli.codegen.strip.results import Domain, Small, StripResults
from mirage_cli.codegen.strip.values import RowVector
from mirage_cli.codegen.tiles.tile import Ref, Sizes, count, from_thread, refs
from mirage_cli.errors import Refused
from mirage_cli.search.mugraph.mugraph import EPILOGUE, GRID, BlockOp


class StripMerge(StripResults):
    """Prints the operators of epilogue and grid epilogue."""

    def finish(self) -> None:
        """Everything behind the loop."""
        self.smalls = {}
        self.epilogue = []
        self.merged = {}
        self.gathered = {}
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
        """True if results are stored along the rows of strips."""
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
                test = f"if (c < {count(m.cols)}) " if m.short else ""
                self.epilogue += [
                    f"MIRAGE_STRIP(S_{name}) {{",
                    f"    const int r = strip_row<S_{name}>(member, m_, i_), c = {m.column};",
                    f"    {test}{name}_part[{at}] = {name}.v[m_][n_][i_];",
                    "}",
                ]
            elif name in self.row_vectors:
                self.write_rows(name, self.row_vectors[name])
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

    def write_rows(self, name: str, v: RowVector) -> None:
        """Every group writes a maximum of rows, every warp of it its share of a sum."""
        rows, x, group, test = 16 * self.members * v.mt, f"{name}.v[m_][h_]", "group", "(lane_of() & 3) == 0"
        parts = self.groups
        if name not in self.maxima:
            x = f"over_row<StripSum>({x})"
            parts *= self.across
        if self.across > 1 and name in self.maxima:
            test += " && share == 0"
        elif self.across > 1:
            group = f"(group * {self.across} + share)"
        self.memory.reuse(f"{name}_part", "float", 4 * parts * rows)
        self.epilogue += [
            f"MIRAGE_STRIP_ROWS({v.type}) {{",
            f"    const float x = {x};",
            f"    if ({test}) {name}_part[{group} * {rows} + strip_row<{v.type}>(member, m_, h_ * 2)] = x;",
            "}",
        ]

    def vector_of(self, name: str, axes: Sizes) -> str:
        """A merged vector."""
        self.merged[name] = axes
        self.memory.reuse(f"{name}_merged", "float", 4 * count(axes))
        return f"{name}_merged"

    def merge_vectors(self) -> None:
        """Maxima over groups, the weights of groups, sums of vectors."""
        before = len(self.epilogue)
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
        if len(self.epilogue) > before:
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
        part, shares = "g", ""
        if self.across > 1:
            part, shares = f"(g * {self.across} + s)", f"for (int s = 0; s < {self.across}; ++s) "
        return [
            f"float {name}_x = 0.0f;",
            f"for (int g = 0; g < GROUPS; ++g) {shares}{name}_x += {name}_part[{part} * {rows} + r]{scale};",
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

    def over_blocks(self) -> None:
        """Blocks of a cluster send one another their shares; every block finishes its part of the results."""
        if not self.r.target.features.clusters:
            raise Refused(f"{self.r.target.name} has no clusters of blocks")
        if len(self.g.split) != 1 or not 2 <= self.splits <= 16:
            raise Refused(f"{self.splits} blocks would make a cluster")
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
        before = len(self.epilogue)
        for o in ops:
            if o.op in ("grid_sum", "grid_top"):
                self.receive(o, s)
            elif o.op == "thread" and o.thread is not None:
                self.value[o.name] = from_thread(o.thread, [self.value[i] for i in o.inputs])
            else:
                raise Refused(f"{o.name}: {o.op} over blocks")
        if len(self.epilogue) > before:
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
