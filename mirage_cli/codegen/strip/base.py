"""Positions, expressions and tiles of strip kernels: what the loop and the part behind it share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mirage_cli.codegen.printers.cuda import CudaEmitter
from mirage_cli.codegen.printers.matrix_fragments import FragmentEmitter
from mirage_cli.codegen.printers.statements import PAIRED, Lines
from mirage_cli.codegen.requests.request import Request, quotient
from mirage_cli.codegen.strip.values import (
    CHUNK,
    SWIZZLED,
    Matrix,
    Memory,
    OperandTile,
    RowVector,
    TileSum,
    Vector,
    padded,
)
from mirage_cli.codegen.tiles.tile import (
    Apply,
    Count,
    Expr,
    Global,
    Number,
    Position,
    Ref,
    Sizes,
    TileProgram,
    count,
    globals_of,
    refs,
)
from mirage_cli.errors import Refused
from mirage_cli.kernel_language.literals import c_float
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.extents import Symbolic
from mirage_cli.lax.ir.program import Input
from mirage_cli.lax.ops import lookup
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE, BlockOp
from mirage_cli.search.schedules.strip import orient
from mirage_cli.search.schedules.strip_warps import across_of, multiply_together

Leaf = Callable[[str], str]


class StripBase(FragmentEmitter):
    """The values of a kernel and how they are printed."""

    types = CudaEmitter.types

    def __init__(self, r: Request) -> None:
        tile = TileProgram(r.program, r.block, r.schedule, r.target, {}, (), (), ())
        super().__init__(tile, r.number, r.symbols, r.hollow)
        self.r, self.s = r, r.schedule
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
        self.orders: dict[frozenset[str], tuple[str, ...]] = {}
        self.value: dict[str, Expr] = {}
        self.tiles: dict[str, OperandTile] = {}
        self.matrices: dict[str, Matrix] = {}
        self.row_vectors: dict[str, RowVector] = {}
        self.vectors: dict[str, Vector] = {}
        self.inverses: dict[str, str] = {}  #: vectors of a group whose inverses are kept too
        self.sums: dict[str, TileSum] = {}
        self.memory = Memory()
        if multiply_together(self.s, r.target):
            self.memory.unit = SWIZZLED
        self.declare: list[str] = []

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
        return 8 * self.across

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
        if phase == PROLOGUE and self.loop_axis in stored:
            raise Refused(f"{o.source_value} would be held whole along the loop")
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
        if not outer and self.only_computed(load):
            n_outer = 1
        constant = self.constant(source)
        tile = OperandTile(
            load,
            source.name,
            dtype,
            outer_sizes,
            inner_sizes,
            n_outer,
            n_inner,
            phase,
            constant=constant,
            unit=self.memory.unit,
        )
        self.tiles[load] = tile
        self.declare.append(f"using {tile.type} = Tile<{self.ctype(dtype)}, {n_outer}, {n_inner}>;")
        if not tile.ring:
            self.memory.keep(f"{load}_tile", self.ctype(dtype), tile.bytes)
        return tile

    def padding(self, outer: Sizes, inner: Sizes, depth: frozenset[str], side: str, dtype: DType) -> tuple[int, int]:
        """The padded sizes of a tile's two sides: whole matrices, and rows of whole chunks."""
        along = {a for a, _ in inner}
        units = [self.side([a for a, _ in part], depth) for part in (outer, inner)]
        if not outer:
            units[0] = 16 if not along & depth else 16 * self.members if side == "rows" else 8 * self.across
        units[1] = max(units[1], CHUNK // dtype.bytes)
        return padded(count(outer), units[0]), padded(count(inner), units[1])

    def only_computed(self, name: str) -> bool:
        """True if a value only goes into elementwise operators, and what these make into products."""
        readers = self.readers[name]
        return all(r.op == "thread" for r in readers) and all(
            r.op == "contract" or (r.op == "thread" and self.only_computed(o.name))
            for o in readers
            for r in self.readers[o.name]
        )

    def constant(self, source: Input) -> bool:
        """True if an input may be read before the work in front of the kernel has ended."""
        return source.source in self.r.constants

    def check_run(self, source: Input, run: list[str], phase: str) -> None:
        """Raises Refused when the axes of a run are not stored one behind the other."""
        first = next(k for k, s in enumerate(source.access) if s.axis == run[0])
        for s in source.access[first + 1 :]:
            if s.extent == 1:
                continue
            if s.axis not in run or s.offset or s.extent != self.shapes.size(s.axis, phase):
                raise Refused(f"{source.name} is not contiguous along {', '.join(run)}")
        if len(run) > 1 and not all(self.shapes.exact(a, phase) for a in run):
            raise Refused(f"{source.name} is cut inside {', '.join(run)}")

    def check_aligned(self, source: Input, dtype: DType, run: list[str]) -> None:
        """Raises Refused where rows do not begin at multiples of a chunk."""
        vector = CHUNK // dtype.bytes
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
        for a in run:
            tile = self.s.tile(a) or (self.s.loop if a == self.loop_axis else 0)
            if tile % vector:
                raise Refused(f"tiles of {source.name} are not aligned to {CHUNK} bytes")

    def load_lines(self, t: OperandTile) -> list[str]:
        """Start copying a tile: to its place in the ring by a group, else by the block."""
        source = self.reads[t.value]
        phase = BODY if t.ring else PROLOGUE
        fixed = [a for a, _ in t.inner]
        outer_axes = [s.axis for s in source.access if s.axis is not None and s.axis not in fixed]
        tests = [f"o < {count(t.outer)}"] if count(t.outer) < t.n_outer else []
        tests += [x for x in [self.inside(outer_axes, phase)] if x]
        valid = str(count(t.inner))
        if len(t.inner) == 1 and not self.shapes.exact(t.inner[0][0], phase):
            axis = t.inner[0][0]
            left = " - ".join([self.extent(self.p.extent(axis)), *self.base(axis, phase)])
            valid = f"static_cast<int>(min(offset_t({valid}), offset_t({left})))"
        threads, thread = ("GROUP", "in_group") if t.ring else ("THREADS", "static_cast<int>(threadIdx.x)")
        text = f"{t.value} + {self.offset(source.access, phase, fixed)}"
        return [
            f"load_tile<{threads}>({self.tile_text(t)}, {thread}, {t.value}, {valid}, [&](int o) {{",
            "    (void)o;",
            *("    " + line for line in self.decode(t.outer, "o")),
            f"    const {self.ctype(t.dtype)}* const from = {text};",
            f"    return {' && '.join(tests)} ? from : nullptr;" if tests else "    return from;",
            "});",
        ]

    def tile_text(self, t: OperandTile) -> str:
        """A tile as a C++ value."""
        if t.ring:
            return f"{t.type}{{reinterpret_cast<{self.ctype(t.dtype)}*>(stage + {self.ring_offsets()[t.name]})}}"
        return f"{t.type}{{{t.name}_tile}}"

    def ring_offsets(self) -> dict[str, int | str]:
        """The place of each tile within a stage, as text that the template's caller replaces (tiles come one by one)."""
        return {name: f"OFFSET_{name}" for name in self.tiles}

    # --- shares of a loop whose length is not known -------------------------------------------------------------------------
    def share(self) -> str:
        """Positions of a block's share of the loop: whole iterations, the same number for all blocks."""
        together = self.s.parts * self.s.loop
        return f"(({self.extent(self.p.extent(self.loop_axis))} + {together - 1}) / {together} * {self.s.loop})"

    def grid(self) -> list[dict[str, Any]]:
        """The grid; blocks that share the loop by their number, where that is given."""
        shared = {"tile": self.share(), "blocks": str(self.s.parts)} if self.s.parts else {}
        return [g | (shared if g["axis"] == self.loop_axis else {}) for g in super().grid()]

    def steps(self) -> str:
        """The number of iterations of a block; none where its share begins behind the end."""
        if not self.s.parts:
            return super().steps()
        at, extent = f"{self.loop_axis}_at", self.extent(self.p.extent(self.loop_axis))
        end = f"min({at} + {self.share()}, {extent})"
        return f"{end} > {at} ? static_cast<int>(({end} - {at} + {self.s.loop - 1}) / {self.s.loop}) : 0"

    # --- expressions ----------------------------------------------------------------------------------------------------
    def printed(self, e: Expr, phase: str, out: Lines, ref: Leaf, read: Leaf | None = None, guard: str = "") -> str:
        """The value of an expression at the current position; `ref` prints registers and vectors, `read` inputs."""
        match e:
            case Ref(name):
                return ref(name)
            case Global(v):
                if read is not None and (text := read(v)):
                    return text
                text = f"to_float({v}[{self.offset(self.reads[v].access, phase)}])"
                return out.let(f"{guard} ? {text} : 0.0f" if guard else text)
            case Number(value):
                return c_float(value)
            case Position(a):
                return out.let(f"static_cast<float>({self.position(a, phase)})")
            case Count(a):
                return f"static_cast<float>({self.extent(self.p.extent(a))})"
            case Apply("div", (above, Ref(below))) if below in self.inverses or below in self.row_vectors:
                text = self.printed(above, phase, out, ref, read, guard)
                if below in self.inverses:
                    return out.let(f"{text} * {ref(below).replace(below, self.inverses[below], 1)}")
                inverse = quotient(self.hollow, ref(below), f"1.0f / {ref(below)}")
                return out.let(f"{text} * {out.let(inverse)}")
            case Apply(op, args):
                inner = [self.printed(a, phase, out, ref, read, guard) for a in args]
                if op in PAIRED:
                    return out.let(f"strip_{op}({', '.join(inner)})")
                text = lookup(op).c.format(*inner)
                return out.let(quotient(self.hollow, inner[1], text) if op == "div" and phase != BODY else text)

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
        if isinstance(e, Ref):
            return e.buffer in self.vectors
        if isinstance(e, Apply):
            return any(self.has_position(a) for a in e.args)
        return isinstance(e, Global | Position)

    def matrix_in(self, e: Expr) -> Matrix | None:
        """The first strip that an expression reads."""
        return next((self.matrices[n] for n in refs(e) if n in self.matrices), None)

    def vector_index(self, sizes: Sizes) -> str:
        """The index of the current position in a vector."""
        terms, inner = [], 1
        for a, n in reversed(sizes):
            terms.append(f"i_{a}" if inner == 1 else f"i_{a} * {inner}")
            inner *= n
        return " + ".join(reversed(terms)) or "0"

    def reads_inputs(self, e: Expr) -> bool:
        """True if an expression reads stored tensors."""
        return bool(globals_of(e))

    def clamped(self, index: str, sizes: tuple[tuple[str, int], ...], n: int) -> str:
        """An index below `n` as one of a group of axes; padding counts as the last position."""
        return index if count(sizes) == n else f"min({index}, {count(sizes) - 1})"
