"""The part of a strip kernel behind its loop: groups and blocks merge what they have, results are stored."""

from __future__ import annotations

from mirage_cli.codegen.strip.base import over_threads
from mirage_cli.codegen.strip.results import MOST_SUMMANDS, Domain, Small, StripResults
from mirage_cli.codegen.strip.tiles import over_lanes
from mirage_cli.codegen.strip.values import Matrix, RowVector, TileSum
from mirage_cli.codegen.terms.expressions import SYNC, ZERO, Lets
from mirage_cli.codegen.terms.fragments import decode
from mirage_cli.codegen.tiles.tile import Ref, Sizes, count, from_thread, refs
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.search.mugraph.mugraph import EPILOGUE, GRID, BlockOp

ARRIVED = k.run("cluster_wait")  #: all blocks of a cluster have come so far
SENT = "sent"  #: the barrier of a block that counts what others send it
LEAST: ir.Expression = -k.number("INFINITY")


class StripMerge(StripResults):
    """Prints the operators of epilogue and grid epilogue."""

    def finish(self) -> None:
        """Everything behind the loop."""
        self.smalls = {}
        self.early_reads = {}
        self.epilogue, self.sent = [], []
        self.merged, self.summands = {}, {}
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
                self.write_matrix(name, self.matrices[name])
            elif name in self.row_vectors:
                self.write_rows(name, self.row_vectors[name])
            else:
                self.write_sum(name, self.sums[name])
        self.epilogue.append(SYNC)

    def write_matrix(self, name: str, m: Matrix) -> None:
        """Every group writes its part of a strip."""
        outer, pitch = self.part_shape(m)
        self.memory.reuse(f"{name}_part", "float", 4 * self.groups * outer * pitch)
        value: ir.Expression = m.element
        if name in self.scaled:
            value = value * k.name(self.scaled[name])["c" if self.vectors[self.scaled[name]].size > 1 else 0]
        put = k.assign(self.part(name, "group"), value)
        real = k.name("c") < count(m.cols) if m.short else None
        self.epilogue.append(m.each(k.lets("int", {"r": m.row, "c": m.column}), k.when(real, put)))

    def part(self, name: str, group: str) -> ir.Index:
        """The element in row `r` and column `c` of a group's part of a strip."""
        outer, pitch = self.part_shape(self.matrices[name])
        place, inner = ("c", "r") if self.rows_inside else ("r", "c")
        return k.name(f"{name}_part")[(k.name(group) * outer + place) * pitch + inner]

    def write_rows(self, name: str, v: RowVector) -> None:
        """Every group writes a maximum of rows, every warp of it its share of a sum."""
        rows, top = 16 * self.members * v.mt, name in self.maxima
        parts = self.groups if top else self.groups * self.across
        group: ir.Expression = k.name("group")
        test = k.binary("==", k.binary("&", k.call("lane_of"), 3), 0)
        if self.across > 1 and top:
            test = k.binary("&&", test, k.binary("==", "share", 0))
        elif self.across > 1:
            group = group * self.across + "share"
        self.memory.reuse(f"{name}_part", "float", 4 * parts * rows)
        x = v.element if top else k.call("over_row", v.element, static=["StripSum"])
        put = k.assign(k.name(f"{name}_part")[group * rows + v.row], "x")
        self.epilogue.append(v.each(k.let("float", "x", x), k.when(test, put)))

    def write_sum(self, name: str, s: TileSum) -> None:
        """Every group writes the parts of a tile's sum, or the sums of rows whose chunks neighbouring lanes have."""
        chunks = s.tile.n_outer * s.tile.chunks
        if self.sums_rows(s):
            rows, own = s.tile.n_outer, k.name("sum")
            self.memory.reuse(f"{name}_part", "float", 4 * self.groups * rows)
            start = k.declare("float", "sum", k.name(name)["part"][0])
            put = k.assign(k.name(f"{name}_part")[k.name("group") * rows + "o"], own)
            first = k.when(k.binary("==", "first", 0), put)
            self.epilogue.append(self.over_chunks(s.tile, start, *over_lanes(s.tile.chunks), first))
            return
        self.memory.reuse(f"{name}_part", "float", 4 * self.groups * chunks * s.width)
        place = (k.name("group") * chunks + "k") * s.width + "e"
        put = k.assign(k.name(f"{name}_part")[place], k.name(name)["part"]["e"])
        self.epilogue.append(self.over_chunks(s.tile, k.ignore("first"), k.loop("e", s.width, put)))

    def sums_rows(self, s: TileSum) -> bool:
        """True if warps sum whole rows of a tile by themselves."""
        return s.along == "inner" and self.rows_by_lanes(s.tile)

    def vector_of(self, name: str, axes: Sizes) -> ir.Index:
        """Number `r` of a merged vector."""
        self.merged[name] = axes
        self.memory.reuse(f"{name}_merged", "float", 4 * count(axes))
        return k.name(f"{name}_merged")["r"]

    def merge_vectors(self) -> None:
        """Maxima over groups, the weights of groups, sums of vectors."""
        before = len(self.epilogue)
        for name in self.maxima:
            self.merge_maximum(name)
        for name, running in self.accumulators.items():
            if not running and (parts := self.parts_of(name)):
                self.summands[name] = parts
            elif name in self.row_vectors and not running:
                n = count(self.row_vectors[name].rows)
                self.epilogue.append(over_threads("r", n, *self.vector_sum(name)))
            elif name in self.sums:
                self.merge_tile_sum(name)
        self.wait_behind(before)

    def parts_of(self, name: str) -> tuple[str, list[ir.Expression], Sizes] | None:
        """The parts of a row's sum, one for each group or warp: their name, places and axes; None where they are many."""
        if name in self.row_vectors:
            v, times = self.row_vectors[name], self.groups * self.across
            axes, pitch = v.rows, 16 * self.members * v.mt
        elif name in self.sums and self.sums_rows(self.sums[name]):
            axes, pitch, times = self.sums[name].axes, self.sums[name].tile.n_outer, self.groups
        else:
            return None
        return (f"{name}_part", [ir.lift(g * pitch) for g in range(times)], axes) if times <= MOST_SUMMANDS else None

    def wait_behind(self, before: int) -> None:
        """All threads wait, if there is something behind the first so many statements."""
        if len(self.epilogue) > before:
            self.epilogue.append(SYNC)

    def merge_maximum(self, name: str) -> None:
        """A maximum over groups, their weights, and the sums that go with it."""
        v = self.row_vectors[name]
        rows = 16 * self.members * v.mt
        merged = self.vector_of(name, v.rows)
        self.memory.reuse(f"{name}_weight", "float", 4 * self.groups * rows)
        place = k.name("g") * rows + "r"
        part, weight, high = k.name(f"{name}_part")[place], k.name(f"{name}_weight")[place], k.name("high")
        body: list[ir.Statement] = [
            k.declare("float", "high", LEAST),
            k.loop("g", "GROUPS", k.assign(high, k.call("fmaxf", high, part))),
            k.assign(merged, high),
            k.loop("g", "GROUPS", k.assign(weight, k.call("strip_exp_difference", part, high))),
        ]
        for other, running in self.accumulators.items():
            if running == name and other in self.row_vectors:
                body += self.vector_sum(other, weight)
        self.epilogue.append(over_threads("r", count(v.rows), *body))

    def vector_sum(self, name: str, weight: ir.Expression | None = None) -> list[ir.Statement]:
        """The sum of a row vector over groups."""
        v, total = self.row_vectors[name], k.name(f"{name}_x")
        merged = self.vector_of(name, v.rows)
        part: ir.Expression = k.name("g") * self.across + "s" if self.across > 1 else k.name("g")
        share = k.name(f"{name}_part")[part * (16 * self.members * v.mt) + "r"]
        add = k.assign(total, share if weight is None else share * weight, "+=")
        shares: list[tuple[str, ir.Value]] = [("s", self.across)] if self.across > 1 else []
        return [
            k.declare("float", f"{name}_x", ZERO),
            *k.nested([("g", "GROUPS"), *shares], add),
            k.assign(merged, total),
        ]

    def merge_tile_sum(self, name: str) -> None:
        """The sum of what the threads of all groups have summed of a tile."""
        s = self.sums[name]
        merged = self.vector_of(name, s.axes)
        chunks, across = s.tile.n_outer * s.tile.chunks, s.tile.chunks
        group, r, c = k.name("g") * chunks, k.name("r"), k.name("c")
        if self.sums_rows(s):
            at, times = k.name("g") * s.tile.n_outer + r, 1
        elif s.along == "inner":
            at, times = group + r * across + c, across
        else:
            at, times = (group + c * across + r / s.width) * s.width + r % s.width, s.tile.n_outer
        add = k.assign("x", k.name(f"{name}_part")[at], "+=")
        sums = k.nested([("g", "GROUPS"), ("c", times)], add)
        start = k.declare("float", "x", ZERO)
        self.epilogue.append(over_threads("r", count(s.axes), start, *sums, k.assign(merged, "x")))

    def merge_wholes(self) -> None:
        """Accumulators that small products read, summed over groups."""
        for name in dict.fromkeys(s.matrix for s in self.smalls.values()):
            m, i = self.matrices[name], k.name("i")
            n = count(m.rows)
            self.memory.reuse(f"{name}_whole", "float", 4 * n * count(m.cols))
            part, weight = self.part(name, "g"), self.weight(name, k.name("r"))
            body = (
                k.lets("int", {"r": i % n, "c": i / n}),
                k.declare("float", "x", ZERO),
                k.loop("g", "GROUPS", k.assign("x", part if weight is None else part * weight, "+=")),
                k.assign(k.name(f"{name}_whole")[i], "x"),
            )
            self.epilogue.append(over_threads("i", n * count(m.cols), *body))
        if self.smalls:
            self.epilogue.append(SYNC)

    def over_blocks(self) -> None:
        """Blocks of a cluster send one another their shares; every block finishes its part of the results."""
        if not self.r.target.features.clusters:
            raise Refused(f"{self.r.target.name} has no clusters of blocks")
        if len(self.g.split) != 1 or not 2 <= self.splits <= 16:
            raise Refused(f"{self.splits} blocks would make a cluster")
        self.epilogue.append(ARRIVED)
        self.memory.keep(SENT, "float", 8)
        self.declare.append(k.let("unsigned", "rank", f"{self.g.split[0]}_block"))
        ops = [o for o in self.g.ops if o.phase == GRID]
        sent: list[str] = []
        for o in ops:
            for v in o.inputs[:2] if o.op == "grid_sum" else o.inputs[:1] if o.op == "grid_top" else ():
                if v not in sent:
                    sent.append(v)
                    self.send(v)
        self.epilogue.append(k.run("await_sent", SENT))
        before = len(self.epilogue)
        for o in ops:
            if o.op in ("grid_sum", "grid_top"):
                self.receive(o)
            elif o.op == "thread" and o.thread is not None:
                self.value[o.name] = from_thread(o.thread, [self.value[i] for i in o.inputs])
            else:
                raise Refused(f"{o.name}: {o.op} over blocks")
        self.wait_behind(before)

    def send(self, v: str) -> None:
        """A block's share of a value goes to all blocks (a vector) or to those that finish its parts (a strip)."""
        e, s = self.value[v], self.splits
        d = self.domain(e, self.axes[v], EPILOGUE)
        name, i, rank = f"{v}_shares", k.name("i"), k.name("rank")
        if isinstance(d, Domain):
            own = -(-d.chunks // s)
            self.memory.keep(name, "float", 4 * s * own * d.vector)
            to = k.name(name) + (rank * own + i % own) * d.vector
            send = k.run("send_floats", to, i / own, "share", SENT)
            self.epilogue.append(self.over_domain(d, *self.chunk_values(e, d, "share", d.chunks), send))
            rest = k.select(k.binary("==", rank, d.chunks // own), d.chunks % own, 0) if d.chunks % own else ir.lift(0)
            chunks = own if s * own == d.chunks else k.select(rank < d.chunks // own, own, rest)
            self.sent.append(ir.lift(chunks) * (4 * s * d.vector))
            return
        n = count(d)
        self.sent.append(ir.lift(4 * s * n))
        self.memory.keep(name, "float", 4 * s * n)
        out = Lets()
        guard = self.guard(e, d, EPILOGUE, out)
        value = self.value_of(e, EPILOGUE, out, self.element_behind, None, guard)
        share = k.declare("float", "share", k.array(value), dims=[1])
        send = k.run("send_floats", k.name(name) + (rank * n + i), "to", "share", SENT)
        send_all = k.loop("to", s, send, type_="unsigned")
        self.epilogue.append(over_threads("i", n, *decode(d, "i"), *out.statements, share, send_all))

    def receive(self, o: BlockOp) -> None:
        """A maximum or sum over the blocks of a cluster."""
        v = o.inputs[0]
        d = self.domain(self.value[v], self.axes[v], EPILOGUE)
        self.value[o.name] = Ref(o.name)
        if isinstance(d, Domain):
            self.gathered[o.name] = v
            return
        n, x = count(d), k.name("x")
        if o.op == "grid_sum" and len(o.inputs) == 1:  # of 16 blocks at most
            self.summands[o.name] = f"{v}_shares", [ir.lift(s * n) for s in range(self.splits)], d
            return
        merged = self.vector_of(o.name, d)
        share: ir.Expression = k.name(f"{v}_shares")[k.name("s") * n + "r"]
        if o.op == "grid_top":
            join = k.assign(x, k.call("fmaxf", x, share))
        else:
            share = share * self.block_weight(o, k.name("r")) if len(o.inputs) > 1 else share
            join = k.assign(x, share, "+=")
        start = LEAST if o.op == "grid_top" else ZERO
        body = (k.declare("float", "x", start), k.loop("s", self.splits, join), k.assign(merged, x))
        self.epilogue.append(over_threads("r", n, *body))

    def store_all(self) -> None:
        """Every output; those of one domain in one loop."""
        loops: dict[Domain, list[tuple[int, str]]] = {}
        for n, name in enumerate(self.g.outputs):
            final = GRID if self.ops[name].phase == GRID else EPILOGUE
            stored = frozenset(s.axis for s in self.p.outputs[n].access if s.axis is not None)
            d = self.domain(self.value[name], self.axes[name] | stored, EPILOGUE)
            if isinstance(d, Domain):
                loops.setdefault(d, []).append((n, name))
            else:
                self.store_vector(n, name, d, stored)
            self.check_own(name, stored, final)
        for d, outputs in loops.items():
            gathered = any(n in self.gathered for _, name in outputs for n in refs(self.value[name]))
            own = -(-d.chunks // self.splits) if gathered else d.chunks
            stores = [self.store_chunk(n, name, d, own) for n, name in outputs]
            self.epilogue.append(self.own_chunks(d, own, *stores) if gathered else self.over_domain(d, *stores))
