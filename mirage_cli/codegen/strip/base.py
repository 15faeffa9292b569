"""Positions, expressions and tiles of strip kernels: what the loop and the part behind it share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mirage_cli.codegen.requests.request import Request
from mirage_cli.codegen.strip.counts import StripCounts
from mirage_cli.codegen.strip.values import (
    CHUNK,
    SWIZZLED,
    Matrix,
    Memory,
    OperandTile,
    RowVector,
    TileSum,
    Vector,
    even_pitch,
    padded,
)
from mirage_cli.codegen.terms import expressions
from mirage_cli.codegen.terms.expressions import THREAD, ZERO, Lets
from mirage_cli.codegen.terms.fragments import decode
from mirage_cli.codegen.terms.visible import at_least_0, integers, stepped, walked
from mirage_cli.codegen.tiles.tile import (
    Apply,
    Expr,
    Global,
    Position,
    Ref,
    Sizes,
    TileProgram,
    count,
    globals_of,
    refs,
)
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.ir import Value
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.limits import Form, Forms, Known
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.lax.ir.program import Input
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE, BlockOp
from mirage_cli.search.schedules import packed
from mirage_cli.search.schedules.strip import (
    across_of,
    made_of_products,
    multiply_together,
    orient,
    products,
)

Leaf = Callable[[str], ir.Expression]
Read = Callable[[str], ir.Expression | None]
ONE = k.number("1.0f")
#: how tiles are copied, by their type
LOADERS = {"Tile": "load_tile", "PackedTile": "load_packed", "BlockTile": "load_blocks"}
EACH_GROUP = k.run("wait_together", 1 + k.name("group"), static=["GROUP"])  #: those of a group do
SHOWN = k.run("show_products")  #: what threads have written is seen by matrix instructions of a warpgroup

FEWEST_THREADS = 128  #: of a block


def over_threads(variable: str, n: int, *body: ir.Statement) -> ir.For:
    """All threads of a block share numbers below `n`. Compilers would unroll loops of one or two turns too, and what is run
    once takes as long as its instructions take to come."""
    rolled = k.ROLLED if n <= 2 * FEWEST_THREADS else ""
    return k.loop(variable, n, *body, start=THREAD, step="THREADS", unroll=rolled)


def array(variable: str, n: Value, *value: ir.Expression) -> ir.Declare:
    """Numbers in registers, with their first value."""
    return k.declare("float", variable, *value, dims=[n])


class StripBase(StripCounts):
    """The values of a kernel and how they are printed."""

    def __init__(self, r: Request) -> None:
        super().__init__(TileProgram(r.program, r.block, r.schedule, r.target, {}, (), (), ()), r)
        self.s = r.schedule
        if self.g.loop is None:
            raise Refused("the engine strip needs a loop")
        self.loop_axis = self.g.loop
        self.axes = self.g.axes_of(self.p)
        self.ops = {o.name: o for o in self.g.ops}
        self.readers: dict[str, list[BlockOp]] = {o.name: [] for o in self.g.ops}
        for o in self.g.ops:
            for i in o.inputs:
                self.readers[i].append(o)
        self.members = self.s.number("members")
        self.across = across_of(self.s)
        group = self.members * self.across
        if self.s.warps % group:
            raise Refused(f"{self.s.warps} warps are no groups of {group}")
        self.groups = self.s.warps // group
        self.group_threads = 32 * group
        self.sides = orient(self.p, self.g, self.shapes.size)
        self.packed = packed.operands(self.p, self.g)  #: operands that stay as they are stored
        self.whole_columns = not packed.in_every_product(self.g, self.packed)
        self.numbers = {q.numbers for q in self.packed.values()}
        made = made_of_products(self.g)
        found = packed.columns(self.p, self.g) if any(i in made for o in products(self.g) for i in o.inputs) else {}
        #: operands along columns that stay as they are stored, and their loads
        self.columns = {n: x for n, x in found.items() if x.in_registers(self.members, self.across)}
        self.in_columns = set[str]()
        self.fills = {x.numbers: x.zero for x in found.values() if x.shown}  #: what rows that are left out hold
        self.factors: dict[str, str] = {}  #: vectors of one number that scores are multiplied with, by product
        self.scaled: dict[str, str] = {}  #: vectors that the columns of accumulators are multiplied with
        self.orders: dict[frozenset[str], tuple[str, ...]] = {}
        self.value: dict[str, Expr] = {}
        self.tiles: dict[str, OperandTile] = {}
        self.matrices: dict[str, Matrix] = {}
        self.row_vectors: dict[str, RowVector] = {}
        self.vectors: dict[str, Vector] = {}
        self.inverses: dict[str, str] = {}  #: vectors of a group whose inverses are kept too
        self.sums: dict[str, TileSum] = {}
        self.guards: dict[str, Forms] = {}  #: loads of which rows are read that comparisons show, and zeros for others
        self.memory = Memory()
        if multiply_together(self.s, r.target):
            self.memory.unit = SWIZZLED
        self.declare: list[ir.Statement] = []
        #: axes that statements walk where a divisor that has none of them is inverted once
        self.along = frozenset[str]()

    # --- axes -----------------------------------------------------------------------------------------------------------
    def sized_axes(self, axes: frozenset[str], phase: str) -> list[str]:
        """Those of `axes` of which a tile holds several positions, in the program's order."""
        return [a.name for a in self.p.axes if a.name in axes and self.shapes.size(a.name, phase) > 1]

    def group_sizes(self, axes: Sequence[str], phase: str) -> Sizes:
        """Axes that are walked together with their sizes; they have one order in the whole kernel."""
        known = self.orders.setdefault(frozenset(axes), tuple(axes))
        if known != tuple(axes):
            raise Refused(f"axes {', '.join(axes)} lie in another order than elsewhere")
        return tuple((a, self.shapes.size(a, phase)) for a in axes)

    def row_matrices(self, rows: Sizes) -> int:
        """Matrices of 16 rows for each warp of a group."""
        return padded(count(rows), 16 * self.members) // (16 * self.members)

    def column_matrices(self, cols: Sizes) -> int:
        """Matrices of 8 columns for each warp of a group."""
        return padded(count(cols), 8 * self.across) // (8 * self.across)

    def side(self, axes: Sequence[str], depth: frozenset[str]) -> int:
        """The multiple that a group of axes is padded to in a tile."""
        own = set(axes)
        if own & depth:
            return max(16, 8 * self.across) if own <= self.sides.cols else 16
        if own and own <= self.sides.rows:
            return 16 * self.members
        return 8 * self.across if self.whole_columns else 1

    # --- tiles ----------------------------------------------------------------------------------------------------------
    def tile_of(self, load: str, depth: frozenset[str], side: str = "") -> OperandTile:
        """The tile of a load whose axes `depth` are summed by a product; `side` says where an operand without free axes
        lies. Raises Refused where it cannot be copied in chunks."""
        if load in self.tiles:
            return self.tiles[load]
        o = self.ops[load]
        source = self.reads[o.source_value or ""]
        dtype = self.p.sources[source.source].dtype
        phase = BODY if o.phase == BODY else PROLOGUE
        slots = [s for s in source.access if s.extent != 1]
        stored = [s.axis for s in slots if s.axis is not None and self.shapes.size(s.axis, phase) > 1]
        if not stored or slots[-1].axis != stored[-1]:
            raise Refused(f"{o.source_value} is not contiguous along what a tile holds of it")
        along = phase == PROLOGUE and self.loop_axis in stored
        inner_depth = stored[-1] in depth
        run: list[str] = []
        for axis in reversed(stored):
            if (axis in depth) != inner_depth:
                break
            run.insert(0, axis)
        outer = stored[: len(stored) - len(run)]
        if any((a in depth) == inner_depth for a in outer):
            raise Refused(f"{o.source_value} mixes summed and free axes")
        self.check_run(source, run, phase)
        self.check_aligned(source, dtype, run)
        outer_sizes, inner_sizes = self.group_sizes(outer, phase), self.group_sizes(run, phase)
        n_outer, n_inner = self.padding(outer_sizes, inner_sizes, depth, side, dtype)
        if along:
            n_outer, n_inner = count(outer_sizes), padded(count(inner_sizes), int(CHUNK / dtype.size))
        elif not outer and self.only_computed(load):
            n_outer = 1
        tile = OperandTile(
            load,
            source.name,
            dtype,
            outer_sizes,
            inner_sizes,
            n_outer,
            n_inner,
            phase,
            constant=source.source in self.r.constants,
            unit=self.memory.unit,
            at=self.stage_bytes(),
            kind="ColumnTile" if load in self.in_columns else "PackedTile" if source.name in self.numbers else "Tile",
        )
        self.add_tile(tile)
        if not tile.ring:
            self.memory.keep(f"{load}_tile", self.ctype(dtype), tile.bytes)
        return tile

    def add_tile(self, t: OperandTile) -> None:
        """A tile with a type of its own."""
        self.tiles[t.name] = t
        element, copied = t.dtype.name if t.whole else self.ctype(t.dtype), [t.copied] if t.kind == "BlockTile" else []
        self.declare.append(k.alias(t.type, k.of_type(t.kind, element, t.n_outer, t.n_inner, *copied)))

    def stage_bytes(self) -> int:
        """Bytes of a stage of the ring with the tiles that there are."""
        return sum(t.bytes for t in self.tiles.values() if t.ring)

    def padding(self, outer: Sizes, inner: Sizes, depth: frozenset[str], side: str, dtype: DType) -> tuple[int, int]:
        """The padded sizes of a tile's two sides: whole matrices, and rows of whole chunks."""
        along = {a for a, _ in inner}
        units = [self.side([a for a, _ in part], depth) for part in (outer, inner)]
        if not outer:
            units[0] = 16 if not along & depth else 16 * self.members if side == "rows" else self.side([], frozenset())
        units[1] = max(units[1], int(CHUNK / dtype.size))
        return padded(count(outer), units[0]), padded(count(inner), units[1])

    def only_computed(self, name: str) -> bool:
        """True if a value only goes into elementwise operators, and what these make into products."""
        readers = self.readers[name]
        return all(r.op == "thread" for r in readers) and all(
            r.op == "contract" or (r.op == "thread" and self.only_computed(o.name))
            for o in readers
            for r in self.readers[o.name]
        )

    def check_run(self, source: Input, run: list[str], phase: str) -> None:
        """Raises Refused when the axes of a run are not stored one behind the other."""
        first = next(n for n, s in enumerate(source.access) if s.axis == run[0])
        for s in source.access[first + 1 :]:
            if s.extent == 1:
                continue
            if s.axis not in run or s.offset or s.extent != self.shapes.size(s.axis, phase):
                raise Refused(f"{source.name} is not contiguous along {', '.join(run)}")
        if not all(self.shapes.exact(a, phase) for a in run[1:]):
            raise Refused(f"{source.name} is cut inside {', '.join(run)}")

    def check_aligned(self, source: Input, dtype: DType, run: list[str]) -> None:
        """Raises Refused where rows do not begin at multiples of a chunk."""
        vector = int(CHUNK / dtype.size)
        stride, seen = ex.ONE, False
        for s in reversed(source.access):
            inner = s.axis in run
            factor = stride.factor if isinstance(stride, Symbolic) else stride
            if (not inner and seen and factor % vector and s.extent != 1) or (
                inner and stride == 1 and s.offset % vector
            ):
                raise Refused(f"rows of {source.name} are not aligned to {CHUNK} bytes")
            seen = seen or inner
            stride = ex.product([stride, s.extent])
        each = 1  # elements of a position
        for a in reversed(run):
            tile = self.s.tile(a) or (self.s.loop if a == self.loop_axis else 0)
            if tile * each % vector:
                raise Refused(f"tiles of {source.name} are not aligned to {CHUNK} bytes")
            each *= self.shapes.size(a, BODY)

    def loads(self, tiles: Sequence[OperandTile]) -> list[ir.Statement]:
        """Start copying tiles."""
        return [self.load(t) for t in tiles]

    def load(self, t: OperandTile) -> ir.Do:
        """Start copying a tile: to its place in the ring by a group, else by the block."""
        phase = BODY if t.ring else PROLOGUE
        valid: ir.Expression = ir.lift(count(t.inner))
        axis, inside_of = t.inner[0][0], count(t.inner[1:])
        if not self.shapes.exact(axis, phase):
            left = k.joined("-", [self.extent(self.p.extent(axis)), *self.base(axis, phase)])
            left = left if inside_of == 1 else k.product([left, inside_of])
            valid = k.cast("int", k.call("min", *(k.converted("offset_t", n or 0) for n in (valid, left))))
        threads, thread = self.sharing(t.ring)
        pitch = [self.even(t)] if t.kind != "BlockTile" else []
        if t.along(self.loop_axis):
            return k.run("read_tile", self.held(t), thread, valid, self.row_of(t), static=[threads])
        static: list[Value] = [threads, *pitch, not self.row_inside(t)]
        return k.run(LOADERS[t.kind], self.held(t), thread, t.value, valid, self.row_of(t), static=static)

    def row_inside(self, t: OperandTile) -> ir.Expression | None:
        """The condition that row `o` of a tile is no padding and is not left out."""
        phase, fixed = BODY if t.ring else PROLOGUE, [a for a, _ in t.inner]
        axes = [s.axis for s in self.reads[t.value].access if s.axis is not None and s.axis not in fixed]
        shown = (at_least_0(f, lambda a: self.position(a, phase)) for f in sorted(self.guards.get(t.name, ()), key=str))
        return k.both(self.real(t.outer, t.n_outer, "o"), self.inside(axes, phase), *shown)

    def row_of(self, t: OperandTile) -> ir.Lambda:
        """The function that says where row `o` of a tile lies, nullptr for one that is left out."""
        phase, inside = BODY if t.ring else PROLOGUE, self.row_inside(t)
        offset = self.offset(self.reads[t.value], phase, [a for a, _ in t.inner])
        found, at = ir.lift(k.name("from")), tuple[ir.Statement, ...]()
        if t.whole:
            found = k.call("packed_at", t.value, offset, static=[t.dtype.name])
        else:
            at = (k.let(k.of_type(f"{self.ctype(t.dtype)}*", const=True), "from", k.total([t.value, offset])),)
        found = k.select(inside, found, k.number("nullptr")) if inside else found
        return k.function([("int", "o")], k.ignore("o"), *decode(t.outer, "o"), *at, ir.Return(found))

    def even(self, t: OperandTile) -> int:
        """Elements from row to row of a tile; 0 where rows lie otherwise, some are padding, or one may end within a chunk."""
        vector, (axis, _), whole = int(CHUNK / t.dtype.size), t.inner[0], count(t.inner)
        ends: list[Extent] = [whole]
        if not self.shapes.exact(axis, t.phase):
            ends.append(ex.product([self.p.extent(axis), count(t.inner[1:])]))
        if count(t.outer) != t.n_outer or any(not isinstance(n, int) or n % vector for n in ends):
            return 0
        return even_pitch(self.reads[t.value], t)

    def sharing(self, grouped: bool) -> tuple[str, ir.Expression]:
        """The number of the threads of a group or block, and the number of one among them."""
        return ("GROUP", k.name("in_group")) if grouped else ("THREADS", k.cast("int", THREAD))

    def real(self, sizes: Sizes, n: int, index: Value) -> ir.Expression | None:
        """The condition that an index below `n` is no padding of a group of axes; None where nothing is."""
        return ir.lift(index) < count(sizes) if count(sizes) < n else None

    def held(self, t: OperandTile) -> ir.Construct:
        """A tile as a value."""
        stored = "uint8_t" if t.whole else self.ctype(t.dtype)
        place = k.reinterpret(f"{stored}*", k.name("stage") + t.at) if t.ring else f"{t.name}_tile"
        return k.construct(k.of_type(t.type), place)

    def element_of_tile(self, t: OperandTile) -> ir.Call:
        """A tile's element at the current position."""
        at = (self.vector_index(t.outer), self.vector_index(t.inner))
        return k.call("to_float", ir.Unary("*", self.held(t).member("element")(*at)))

    # --- shares of a loop whose length is not known -------------------------------------------------------------------------
    def share(self) -> ir.Expression:
        """Positions of a block's share of the loop: whole iterations, the same number for all blocks."""
        together = self.s.parts * self.s.loop
        return (self.extent(self.p.extent(self.loop_axis)) + (together - 1)) / together * self.s.loop

    @property
    def by_integers(self) -> bool:
        """True if integers that are inputs say how far a block walks, or what it reads."""
        return any(f.given for f in self.limits) or bool(self.guards)

    @property
    def integers(self) -> dict[str, Known]:
        """What is known of inputs: which hold integers."""
        return integers(self.p)

    def is_held(self, form: Form) -> bool:
        """True if a block has one of each of a form's integers."""
        single = {a for a in self.g.grid if self.s.tile(a) == 1}
        return all(self.p.axes_of(v) <= single for v, _ in form.given)

    def held_names(self) -> set[str]:
        """The integers that comparisons of rows with positions need too."""
        return super().held_names() | {v for forms in self.guards.values() for f in forms for v, _ in f.given}

    def shared_loop(self, axis: str) -> bool:
        """True for the loop's axis where blocks share it by their number, which is given."""
        return bool(self.s.parts) and axis == self.loop_axis

    def grid(self) -> Sequence[str]:
        """The grid axes; blocks that reduce together lie side by side."""
        return sorted(self.g.grid, key=lambda a: a in self.g.split)

    def blocks(self, axis: str) -> ir.Expression:
        """The number of blocks along a grid axis."""
        return ir.lift(self.s.parts) if self.shared_loop(axis) else super().blocks(axis)

    def pace(self, axis: str) -> ir.Expression:
        """Positions of a grid axis between the first ones of two blocks."""
        return self.share() if self.shared_loop(axis) else super().pace(axis)

    def places(self) -> list[ir.Statement]:
        """The first positions of a block; where blocks share what integers show, that along the loop follows from these."""
        later = f"{self.loop_axis}_at" if self.s.parts and self.by_integers else ""
        return [s for s in super().places() if not (isinstance(s, ir.Declare) and s.variables[0].name == later)]

    def walked(self) -> list[ir.Statement]:
        """The number of iterations of a block, of those that are shown."""
        if not (self.s.parts and self.by_integers):
            return super().walked()
        loop, step, shown, own = self.loop_axis, self.s.loop, k.name("steps_shown"), k.name("steps_before")
        extent = self.extent(self.p.extent(loop))
        all_steps = k.cast("int", (extent + (step - 1)) / step)
        lines = walked(self.limits, loop, step, all_steps, self.span, None, 0, "steps_shown")
        each = k.name("steps_each")
        start = stepped(self.limits, loop, own)
        left = k.select(shown - own < each, shown - own, each)
        return [
            *self.held_integers(),
            *lines,
            k.let("int", "steps_each", (shown + (self.s.parts - 1)) / self.s.parts),
            k.let("int", "steps_before", k.cast("int", f"{loop}_block") * each),
            k.let("offset_t", f"{loop}_at", k.cast("offset_t", start) * step, unused=True),
            k.let("int", "steps", k.select(shown > own, left, 0)),
        ]

    def step_position(self, number: Value) -> ir.Statement:
        """The first position of an iteration along the loop axis, from where a block starts on."""
        if not (self.s.parts and self.by_integers):
            return super().step_position(number)
        return k.let("offset_t", f"{self.loop_axis}_step", k.cast("offset_t", number) * self.s.loop, unused=True)

    def steps(self) -> ir.Expression:
        """The number of iterations of a block; none where its share begins behind the end."""
        if not self.s.parts:
            return super().steps()
        at = k.name(f"{self.loop_axis}_at")
        end = k.call("min", at + self.share(), self.extent(self.p.extent(self.loop_axis)))
        return k.select(end > at, k.cast("int", (end - at + (self.s.loop - 1)) / self.s.loop), 0)

    # --- expressions ----------------------------------------------------------------------------------------------------
    def inverts(self, divisor: Expr) -> bool:
        """True if a divisor is inverted once for what it divides: one of rows, or of none of the axes walked."""
        if isinstance(divisor, Ref) and (divisor.buffer in self.inverses or divisor.buffer in self.row_vectors):
            return True
        return bool(self.along) and not self.axes_in(divisor) & self.along

    def value_of(
        self, e: Expr, phase: str, out: Lets, ref: Leaf, read: Read | None = None, guard: ir.Expression | None = None
    ) -> ir.Expression:
        """The value of an expression at the current position; `ref` has registers and vectors, `read` inputs (None: read
        them where they are stored, under `guard`)."""
        match e:
            case Apply("le" | "lt" as op, args) if phase == BODY and (pair := self.whole_numbers(args)):
                return out.let(k.select(k.binary("<=" if op == "le" else "<", *pair), ONE, ZERO))
            case Ref(name):
                return ref(name)
            case Global(v) if read is not None and (found := read(v)) is not None:
                return found
            case Apply("div", (above, below)) if self.inverts(below):
                numerator, divisor = (self.value_of(a, phase, out, ref, read, guard) for a in (above, below))
                if isinstance(below, Ref) and below.buffer in self.inverses:
                    inverse = k.name(self.inverses[below.buffer])
                    return out.let(numerator * k.substituted(divisor, {k.name(below.buffer): inverse}))
                return out.let(numerator * out.let(expressions.quotient(self.hollow, divisor, ONE / divisor)))
            case Apply(op, args):
                inner = [self.value_of(a, phase, out, ref, read, guard) for a in args]
                value: ir.Expression = expressions.applied(op, inner, "strip_")
                divides = op == "div" and phase != BODY
                return out.let(expressions.quotient(self.hollow, inner[1], value) if divides else value)
        return self.expression(e, phase, out, guard)

    def guard(self, e: Expr, sizes: Sizes, phase: str, out: Lets) -> ir.Expression | None:
        """The condition under which an expression over positions of a tile reads inputs; None where it always may."""
        read = frozenset[str]().union(*(self.p.axes_of(v) for v in globals_of(e)))
        inside = self.inside([a for a, _ in sizes if a in read], phase)
        return out.let(inside, "bool") if inside else None

    def axes_in(self, e: Expr) -> frozenset[str]:
        """The axes of an expression's inputs, positions, registers and vectors."""
        match e:
            case Ref(name):
                return self.axes_of_value(name)
            case Global(v):
                return self.p.axes_of(v)
            case Position(a):
                return frozenset((a,))
            case Apply(_, args):
                return frozenset[str]().union(*(self.axes_in(a) for a in args))
        return frozenset()

    def axes_of_value(self, name: str) -> frozenset[str]:
        """The axes of a register value or vector."""
        if name in self.matrices:
            return self.matrices[name].axes
        if name in self.row_vectors:
            return frozenset(a for a, _ in self.row_vectors[name].rows)
        if name in self.vectors:
            return frozenset(a for a, _ in self.vectors[name].axes)
        if name in self.sums:
            return frozenset(a for a, _ in self.sums[name].axes)
        return self.axes[name]

    def has_position(self, e: Expr) -> bool:
        """True if an expression needs to know where it is evaluated."""
        if isinstance(e, Apply):
            return any(self.has_position(a) for a in e.args)
        return e.buffer in self.vectors if isinstance(e, Ref) else isinstance(e, Global | Position)

    def matrix_in(self, e: Expr) -> Matrix | None:
        """The first strip that an expression reads."""
        return next((self.matrices[n] for n in refs(e) if n in self.matrices), None)

    def vector_index(self, sizes: Sizes) -> ir.Expression:
        """The index of the current position in a vector."""
        terms, inner = list[ir.Expression](), 1
        for a, n in reversed(sizes):
            terms.insert(0, k.name(f"i_{a}") if inner == 1 else k.name(f"i_{a}") * inner)
            inner *= n
        return k.total(terms)

    def clamped(self, index: Value, sizes: Sizes, n: int) -> ir.Expression:
        """An index below `n` as one of a group of axes; padding counts as the last position."""
        return ir.lift(index) if count(sizes) == n else k.call("min", index, count(sizes) - 1)
