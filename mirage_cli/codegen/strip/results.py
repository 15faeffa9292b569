"""Results of a strip kernel: where they are computed, chunk by chunk, and how they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_cli.codegen.strip.base import ONE, array, over_threads
from mirage_cli.codegen.strip.loop import StripLoop
from mirage_cli.codegen.strip.tiles import AT
from mirage_cli.codegen.strip.values import Matrix
from mirage_cli.codegen.terms.expressions import THREAD, Lets
from mirage_cli.codegen.terms.fragments import decode
from mirage_cli.codegen.tiles.tile import Expr, Sizes, count, globals_of, refs
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.search.mugraph.mugraph import EPILOGUE, GRID, BlockOp

VECTOR = 4  #: results that a thread computes at a time
MOST_EARLY = 32  #: bytes that a thread reads in front of the loop for its results
MOST_SUMMANDS = 16  #: parts of a number that each of its readers sums, in the place of a thread that all wait for


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


@dataclass(frozen=True, slots=True)
class Early:
    """Elements of an input that a thread reads in front of the loop, for the one chunk of results that it will compute."""

    name: str
    constant: bool  #: whether they may be read before the kernel in front of this one has ended
    bytes: int
    whole: bool  #: whether they are those of a chunk, side by side
    read: tuple[ir.Statement, ...]


class StripResults(StripLoop):
    """Prints expressions behind the loop."""

    smalls: dict[str, Small]
    merged: dict[str, Sizes]  #: vectors behind the loop
    summands: dict[str, tuple[str, list[ir.Expression], Sizes]]  #: vectors that readers sum: parts, their places, axes
    gathered: dict[str, str]  #: strips summed over blocks -> where the shares are
    rows_inside: bool
    epilogue: list[ir.Statement]
    sent: list[ir.Expression]  #: bytes that the blocks of a cluster send this one, its own share among them
    early_reads: dict[tuple[str, Domain, int], Early]  #: by input, domain, and the chunks that a block finishes

    def part_shape(self, m: Matrix) -> tuple[int, int]:
        """(rows, pitch) of a group's part of a strip in shared memory."""
        rows, cols = 16 * self.members * m.mt, m.width
        return (cols, rows + 4) if self.rows_inside else (rows, cols + 4)

    def weight(self, name: str, row: ir.Expression) -> ir.Expression | None:
        """The factor of group g's part of an accumulator; None for 1."""
        running = self.accumulators[name]
        if not running or self.groups == 1:
            return None
        rows = 16 * self.members * self.row_vectors[running].mt
        return k.name(f"{running}_weight")[k.name("g") * rows + row]

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
        if set(axes) != set(m) or not axes:
            raise Refused("a result has other axes than its strip, or none")
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

    def element_behind(self, name: str) -> ir.Expression:
        """A register, vector or merged value at the current position."""
        if name in self.summands:
            parts, places, axes = self.summands[name]
            return k.total([k.name(parts)[k.total([at, self.vector_index(axes)])] for at in places])
        if name in self.merged:
            return k.name(f"{name}_merged")[self.vector_index(self.merged[name])]
        if name in self.vectors and not self.vectors[name].grouped:
            return self.shared_vector(name)
        if name in self.smalls or name in self.gathered or name in self.accumulators:
            return k.name(f"{name}_x")["e"]
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

    def block_weight(self, o: BlockOp, row: ir.Expression) -> ir.Call:
        """The factor of block s's share. A row's maximum is read by the thread that made it, or behind a barrier."""
        own, common = o.inputs[1], o.inputs[2]
        share = k.name(f"{own}_shares")[k.name("s") * count(self.merged[common]) + row]
        return k.call("strip_exp_difference", share, k.name(f"{common}_merged")[row])

    def chunk_of(self, d: Domain) -> ir.Declare:
        """Chunk `i` of a domain begins at `first` of row `outer`."""
        i, across = k.name("i"), count(d.inner) // d.vector
        return k.lets("int", {"first": i % across * d.vector, "outer": i / across}, unused=True)

    def over_domain(self, d: Domain, *body: ir.Statement) -> ir.For:
        """Statements for each chunk of a domain."""
        return over_threads("i", d.chunks, self.chunk_of(d), *body)

    def own_chunks(self, d: Domain, own: int, *body: ir.Statement) -> ir.For:
        """Statements for the chunks that this block of its cluster finishes."""
        i = k.let("int", "i", k.cast("int", "rank") * own + "j")
        return over_threads("j", own, i, k.when(k.name("i") >= d.chunks, ir.Break()), self.chunk_of(d), *body)

    def read_ahead(self, value: str, d: Domain, own: int) -> Early | None:
        """An input's elements for a chunk of which each thread has one at most, read in front of the loop: behind it every
        read would be waited for. None where there are more, or where elements are packed or their rows are chosen."""
        dtype = self.p.sources[self.reads[value].source].dtype
        if own > 32 * self.s.warps or dtype.per_byte > 1 or value in self.chosen:
            return None
        key = value, d, own
        if key not in self.early_reads:
            each = d.vector if any(a in self.p.axes_of(value) for a, _ in d.inner) else 1
            size = each * dtype.bytes
            if sum(x.bytes for x in self.early_reads.values()) + size > MOST_EARLY:
                return None
            name = f"{value}_early{len(self.early_reads) or ''}"
            constant = self.reads[value].source in self.r.constants
            whole = self.side_by_side(value, d)
            read = self.early_read(k.name(name), value, d, own, each, whole)
            self.early_reads[key] = Early(name, constant, size, whole, tuple(read))
        return self.early_reads[key]

    def early_read(self, to: ir.Name, value: str, d: Domain, own: int, each: int, whole: bool) -> list[ir.Statement]:
        """The statements that read them."""
        source, axes = self.reads[value], [a for a, _ in (*d.outer, *d.inner)]
        thread: ir.Expression = k.cast("int", THREAD)
        i = k.cast("int", "rank") * own + thread if own < d.chunks else thread
        there = k.both(i < d.chunks, thread < own if own < d.chunks else None)
        if whole:
            offset = self.offset(source, EPILOGUE, [a for a, _ in d.inner])
            reads: list[ir.Statement] = [k.run("copy_vector", to, k.total([value, offset, "first"]))]
        else:
            inside = self.inside([a for a in axes if a in self.p.axes_of(value)], EPILOGUE)
            put = k.when(inside, k.assign(to["e"], k.name(value)[self.offset(source, EPILOGUE)]))
            reads = [k.loop("e", each, *decode(d.inner, AT), put, unroll=k.UNROLL)]
        body = (k.let("int", "i", i), self.chunk_of(d), *decode(d.outer, "outer"), *reads)
        kind = self.ctype(self.p.sources[source.source].dtype)
        return [k.declare(kind, to.path[0], k.array(), dims=[each]), k.when(there, *body)]

    def early_statements(self, constant: bool) -> list[ir.Statement]:
        """What is read in front of the loop for results: constants of the model, or the rest."""
        return [s for x in self.early_reads.values() if x.constant == constant for s in x.read]

    def chunk_values(self, e: Expr, d: Domain, result: str, own: int) -> list[ir.Statement]:
        """Statements that compute a chunk of an expression into `result`, at `outer` and from `first` on; a block computes
        `own` of them."""
        v, statements = d.vector, decode(d.outer, "outer")
        for name in refs(e):
            if name in self.gathered:
                statements += self.gather_blocks(name, d)
            elif name in self.smalls:
                statements += self.small_chunk(self.smalls[name], d)
            elif name in self.matrices and name not in self.merged:
                statements += self.gather_groups(name, d)
        vectors: dict[str, ir.Expression] = {}
        for value in globals_of(e):
            early, part = self.read_ahead(value, d, own), k.name(f"{value}_x")
            if early and early.whole:
                statements += [array(f"{value}_x", v), k.run("floats_of", part, early.name)]
                vectors[value] = part["e"]
            elif early:
                several = any(a in self.p.axes_of(value) for a, _ in d.inner)
                vectors[value] = k.call("to_float", k.name(early.name)["e" if several else 0])
            elif self.side_by_side(value, d):
                offset = self.offset(self.reads[value], EPILOGUE, [a for a, _ in d.inner])
                read = k.run("get_vector", part, k.total([value, offset, "first"]))
                statements += [array(f"{value}_x", v), read]
                vectors[value] = part["e"]
        out = Lets()
        inside = self.inside([a for a, _ in (*d.outer, *d.inner)], EPILOGUE)
        scalar = any(x not in vectors for x in globals_of(e))
        guard = out.let(inside, "bool") if inside and scalar else None
        value_ = self.value_of(e, EPILOGUE, out, self.element_behind, vectors.get, guard)
        body = (*decode(d.inner, AT), *out.statements, k.assign(k.name(result)["e"], value_))
        return [*statements, array(result, v), k.loop("e", v, *body, unroll=k.UNROLL)]

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

    def gather_groups(self, name: str, d: Domain) -> list[ir.Statement]:
        """A chunk of an accumulator, summed over groups."""
        outer, pitch = self.part_shape(self.matrices[name])
        part = k.total([f"{name}_part", (k.name("g") * outer + "outer") * pitch, "first"])
        weight = self.weight(name, AT if d.rows_inside else k.name("outer"))
        return self.gathered_chunk(name, d, ("g", "GROUPS"), part, weight)

    def gather_blocks(self, name: str, d: Domain) -> list[ir.Statement]:
        """A chunk of a strip, summed over blocks."""
        o, v = self.ops[name], self.gathered[name]
        own = -(-d.chunks // self.splits)
        part = k.name(f"{v}_shares") + (k.name("s") * own + "i" - k.cast("int", "rank") * own) * d.vector
        weight = self.block_weight(o, self.vector_index(self.merged[o.inputs[2]])) if len(o.inputs) > 1 else None
        return self.gathered_chunk(name, d, ("s", self.splits), part, weight, decode(d.inner, AT))

    def gathered_chunk(
        self,
        name: str,
        d: Domain,
        over: tuple[str, ir.Value],
        part: ir.Expression,
        weight: ir.Expression | None,
        places: Sequence[ir.Statement] = (),
    ) -> list[ir.Statement]:
        """A chunk that is a sum over groups or blocks, each with a weight (None: 1), which elements have of their own where
        rows lie inside; `places` say where they are."""
        add: ir.Statement = k.run("add_scaled", f"{name}_x", part, weight or ONE)
        if weight is not None and d.rows_inside:
            summand = k.assign(k.name(f"{name}_x")["e"], part["e"] * weight, "+=")
            add = k.loop("e", d.vector, *places, summand)
        return [array(f"{name}_x", d.vector, k.array()), k.loop(*over, add, unroll=k.UNROLL)]

    def small_chunk(self, s: Small, d: Domain) -> list[ir.Statement]:
        """A chunk of a small product."""
        m = self.matrices[s.matrix]
        whole = k.name(f"{s.matrix}_whole")
        first = whole[k.total([self.vector_index(m.cols) * count(m.rows), self.vector_index(m.rows)])]
        add = k.assign(k.name(f"{s.name}_x")["e"], first * self.element_of_tile(self.tiles[s.held]), "+=")
        elements = k.loop("e", d.vector, *decode(d.inner, AT), add, unroll=k.UNROLL)
        products = k.loop("k", count(s.over), *decode(s.over, "k"), elements)
        return [array(f"{s.name}_x", d.vector, k.array()), products]

    def check_own(self, name: str, stored: frozenset[str], final: str) -> None:
        """Raises Refused for results that several blocks would store."""
        own = stored | (frozenset(self.g.split) if final == GRID else frozenset())
        if once := self.shapes.several_blocks(own):
            raise Refused(f"output {name} is the same in all blocks along {', '.join(once)}")

    def store_chunk(self, n: int, name: str, d: Domain, own: int) -> ir.Scope:
        """Compute a chunk of an output, of which a block has `own`, and store it."""
        o, inner = self.p.outputs[n], d.inner[-1][0]
        slots, extent = [s for s in o.access if s.extent != 1], self.p.extent(inner)
        whole = slots and slots[-1].axis == inner and slots[-1].offset % d.vector == 0
        whole = whole and isinstance(extent, int) and extent % d.vector == 0 and extent == slots[-1].extent
        whole = whole and len(d.inner) == 1
        test = self.inside([a for a, _ in (*d.outer, *d.inner)], EPILOGUE)
        place, offset = k.name(f"y{n}"), self.offset(o.access, EPILOGUE)
        if whole and d.vector > 1:
            put = k.run("put_vector", k.total([place, offset]), "result")
            store = [*decode(d.inner, "first"), k.when(test, put)]
        else:
            put = k.run("put", place[offset], k.name("result")["e"])
            store = [k.loop("e", d.vector, *decode(d.inner, AT), k.when(test, put), unroll=k.UNROLL)]
        return k.scope(*self.chunk_values(self.value[name], d, "result", own), *store)

    def store_vector(self, n: int, name: str, d: Sizes, stored: frozenset[str]) -> None:
        """Compute and store an output that goes with rows."""
        e, o, out = self.value[name], self.p.outputs[n], Lets()
        test = self.inside([a for a, _ in d], EPILOGUE)
        value = self.value_of(e, EPILOGUE, out, self.element_behind, None, self.guard(e, d, EPILOGUE, out))
        put = k.run("put", k.name(f"y{n}")[self.offset(o.access, EPILOGUE)], value)
        first = k.binary("==", "rank", 0) if self.g.split and not set(self.g.split) & stored else None
        store = k.when(k.both(test, first), put)
        self.epilogue.append(over_threads("i", count(d), *decode(d, "i"), *out.statements, store))
