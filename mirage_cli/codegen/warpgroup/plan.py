"""Parts of a kernel of warpgroups: roles of axes, tiles that the copy engine brings, products in their order.

A block holds a tile of rows (`rows` is their axis); each of its consumer warpgroups holds 64 or 128 of them in registers:
as full fragments (rows and one more axis), as numbers of rows, or as accumulators. Everything else is read from tiles in
shared memory or where it is stored. Two kinds of body:

1. Products of loaded tiles are only accumulated (linear layers).
2. Early products of loaded tiles give fragments; what is computed from them is the left operand of late products, which
   are accumulated (attention).

Whatever does not fit is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import BF16, F16, F32, DType
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.hidden import shown_loads
from mirage_cli.search.mugraph.mugraph import BODY, PROLOGUE, BlockGraph, BlockOp, feeds
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.warpgroup import rows_axis

PANEL = 64  #: columns of a panel of 16-bit types: 128 bytes
HELD, EARLY, LATE = "held", "early", "late"  #: tiles loaded once, tiles freed after the early or the late products
SPLIT = "split"  #: parts of tiles of float32
PARTS = 3  #: numbers of bfloat16 that a float32 is the sum of
FULL, ROW, COLUMN, SCALAR, SIDE = "full", "row", "column", "scalar", "side"  #: levels of values: see `values.py`
GROUP_ROWS = 64
MAX_COLUMNS = 256  #: of one matrix instruction
MAX_PARTS = 8  #: blocks of a cluster
MAX_BOX = 256  #: positions of a box along one axis


@dataclass(frozen=True, slots=True)
class Tile:
    """A loaded tile in shared memory: `rows` positions of axis `outer`, `cols` (whole panels) of axis `inner`. `shown` is the
    value that products read of it, if not the tile itself: rows that a comparison shows, and zeros."""

    name: str
    value: str
    dtype: DType
    outer: str
    inner: str
    rows: int
    cols: int
    ring: str
    shown: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of one tile."""
        return self.rows * self.cols * self.dtype.bytes

    @property
    def panel(self) -> int:
        """Columns of a panel, which are 128 bytes."""
        return PANEL * 2 // self.dtype.bytes

    def parts(self) -> Tile:
        """Where the parts of a tile of float32 are, one behind the other."""
        cols = -(-self.cols // PANEL) * PANEL
        return Tile(f"{self.name}_parts", self.value, BF16, self.outer, self.inner, PARTS * self.rows, cols, SPLIT)

    def positions(self, axis: str) -> int:
        """Number of positions of an axis that it holds."""
        return self.cols if axis == self.inner else self.rows


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction: `left` (a tile, or a value that is computed in registers) times the tile `right`, added up in `out`
    over `depth` positions of `over`; `shrink` weighs what was accumulated before."""

    op: str
    out: str
    left: str
    right: str
    over: str
    depth: int
    cols: int
    accumulated: bool
    shrink: str
    dtype: DType

    @property
    def split(self) -> bool:
        """True if it is of float32, whose numbers are split; what an iteration gives is added up elsewhere."""
        return self.dtype == F32

    @property
    def sums(self) -> str:
        """The registers that instructions add to."""
        return f"{self.out}_sums" if self.split else self.out


@dataclass(frozen=True, slots=True)
class Plan:
    """A kernel with its decisions made. `columns` says which axis the columns of a full value are, `sizes` how many
    positions of each axis a tile holds, where that is more than one."""

    program: Program
    graph: BlockGraph
    schedule: Schedule
    rows: str
    sizes: Mapping[str, int]
    tiles: tuple[Tile, ...]
    early: tuple[Product, ...]
    late: tuple[Product, ...]

    @property
    def products(self) -> tuple[Product, ...]:
        """All products, early ones first."""
        return (*self.early, *self.late)

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.schedule.warps // 4 - 1

    @property
    def row_tiles(self) -> int:
        """Runs of 64 rows that a consumer holds."""
        return self.sizes[self.rows] // (GROUP_ROWS * self.consumers)

    def number(self, name: str, otherwise: int = 0) -> int:
        """A number of the schedule."""
        return dict(self.schedule.numbers).get(name, otherwise)

    @property
    def cluster(self) -> int:
        """Blocks along the rows that share the right operands."""
        return self.number("cluster", 1)

    @property
    def resident(self) -> int:
        """Blocks on a multiprocessor."""
        return self.number("resident", 1)

    @property
    def ahead(self) -> bool:
        """True if scores of the next iteration are multiplied while those of one are worked on."""
        return bool(self.number("ahead"))

    @property
    def turns(self) -> bool:
        """True if consumers take turns at issuing products."""
        return bool(self.number("turns")) and self.consumers > 1

    @property
    def early_needs_late(self) -> bool:
        """True if an early product reads a tile that late ones read as well."""
        return any((t := self.tile(i)) is not None and t.ring == LATE for p in self.early for i in (p.left, p.right))

    @property
    def parts(self) -> int:
        """Blocks that reduce together, each over its share of the loop axis."""
        extent = self.program.extent(self.graph.loop or "") if self.graph.split else 1
        share = self.schedule.tile(self.graph.loop or "") or 1
        return -(-extent // share) if isinstance(extent, int) else 0

    def tile(self, name: str) -> Tile | None:
        """The tile of a loaded value; None for what is read where it is stored."""
        return next((t for t in self.tiles if t.name == name), None)

    def loaded(self, name: str) -> Tile:
        """The tile of a value that is known to be loaded."""
        return next(t for t in self.tiles if t.name == name)

    @property
    def split(self) -> tuple[Tile, ...]:
        """The tiles of which products read parts."""
        return tuple({p.right: self.loaded(p.right) for p in self.products if p.split}.values())

    def in_words(self, product: Product) -> bool:
        """True if the left operand of a product is read from registers: it is computed or split, or a tile that is loaded once
        and kept there (number `kept` of the schedule)."""
        tile = self.tile(product.left)
        return tile is None or product.split or (bool(self.number("kept")) and tile.ring == HELD)

    def ring(self, ring: str) -> list[Tile]:
        """The tiles of a ring."""
        return [t for t in self.tiles if t.ring == ring]

    def present(self, axes: frozenset[str]) -> frozenset[str]:
        """The axes of which a tile holds several positions."""
        return frozenset(a for a in axes if a in self.sizes)

    def exact(self, axis: str) -> bool:
        """True if every position of every tile lies within the axis."""
        extent = self.program.extent(axis)
        if not isinstance(extent, int):
            return False
        size = self.sizes.get(axis, 1)
        if axis == self.rows:
            size *= self.cluster
        if axis in self.graph.split:
            size = self.schedule.tile(axis) or size
        return extent % size == 0

    def text(self) -> str:
        """Readable lines, for golden files."""
        lines = [f"schedule {self.schedule.to_json()}", f"rows {self.rows} sizes {dict(sorted(self.sizes.items()))}"]
        for t in self.tiles:
            lines.append(f"tile {t.name}: {t.dtype} [{t.outer} {t.rows}, {t.inner} {t.cols}] {t.ring}")
        for kind, products in (("early", self.early), ("late", self.late)):
            for p in products:
                shrink = f" times {p.shrink}" if p.shrink else ""
                sign = "+=" if p.accumulated else "="
                lines.append(f"{kind} {p.out} {sign} {p.left} @ {p.right} over {p.over} {p.depth}{shrink}")
        return "\n".join(lines)


def plan(program: Program, graph: BlockGraph, schedule: Schedule) -> Plan:
    """The plan of a kernel. Raises Refused."""
    schedule.validate(graph)
    return _Planning(program, graph, schedule).run()


class _Planning:
    def __init__(self, program: Program, graph: BlockGraph, schedule: Schedule) -> None:
        self.p, self.g, self.s = program, graph, schedule
        self.axes = graph.axes_of(program)
        self.ops = {o.name: o for o in graph.ops}
        self.readers: dict[str, list[BlockOp]] = {o.name: [] for o in graph.ops}
        for o in graph.ops:
            for i in dict.fromkeys(o.inputs):
                self.readers[i].append(o)
        self.inputs = {i.name: i for i in program.inputs}
        self.contractions = [o for o in graph.ops if o.op == "contract"]
        self.shown = shown_loads(program, graph)

    def run(self) -> Plan:
        self.check_graph()
        self.sizes = self.found_sizes()
        rows = rows_axis(self.p, self.g, self.axes_of_one())
        if rows is None:
            raise Refused("no axis of rows is common to all products")
        self.rows = rows
        groups = self.s.warps // 4 - 1
        if self.s.warps % 4 or groups < 1 or self.sizes[self.rows] % (GROUP_ROWS * groups):
            raise Refused(f"{self.sizes[self.rows]} rows for {self.s.warps} warps")
        late = {name for name, fed in feeds(self.g).items() if fed}
        tiles = self.staged(late)
        products = [self.product(o, tiles) for o in self.contractions]
        early = tuple(p for p in products if p.op not in late)
        if len({p.accumulated for p in early}) > 1:
            raise Refused("of the products of loaded tiles some are accumulated and some are not")
        if any(not p.accumulated for p in products if p.op in late):
            raise Refused("a product of computed values is used in the iteration that computes it")
        if early[0].accumulated == bool(late):
            raise Refused("products of loaded tiles that are accumulated, beside products of computed values")
        return Plan(
            self.p,
            self.g,
            self.s,
            self.rows,
            self.sizes,
            tuple(tiles.values()),
            early,
            tuple(p for p in products if p.op in late),
        )

    def check_graph(self) -> None:
        """Raise Refused unless the graph has what every body has."""
        if self.g.loop is None or not self.contractions:
            raise Refused("warpgroups need a loop with products")
        if self.g.split:
            self.check_split()
        for o in self.contractions:
            if o.phase != BODY:
                raise Refused(f"the product {o.name} stands outside the loop")
            if o.dtype not in (F16, BF16, F32):
                raise Refused(f"warpgroups multiply float32 and 16-bit types, {o.name} is in {o.dtype}")

    def check_split(self) -> None:
        """Blocks reduce together over shares of the loop axis, as a cluster."""
        loop = self.g.loop or ""
        extent, share = self.p.extent(loop), self.s.tile(loop) or 1
        if self.g.split != (loop,):
            raise Refused(f"warpgroups reduce over blocks along the loop axis {loop}, not {', '.join(self.g.split)}")
        if not isinstance(extent, int) or share % self.s.loop or not 1 < -(-extent // share) <= MAX_PARTS:
            raise Refused(f"shares of {share} positions of axis {loop} of {extent}")
        if dict(self.s.numbers).get("cluster", 1) > 1:
            raise Refused("a cluster that reduces together shares no operands")

    def found_sizes(self) -> dict[str, int]:
        sizes = {}
        for a in sorted(frozenset[str]().union(*self.axes.values())):
            extent, tile = self.p.extent(a), self.s.tile(a)
            if a == self.g.loop:
                size = self.s.loop
            elif tile is not None:
                size = tile
            elif isinstance(extent, int):
                size = -(-extent // PANEL) * PANEL if extent > 1 else 1
            else:
                raise Refused(f"a block would have to hold axis {a} of symbolic extent {extent} whole")
            if size > 1:
                sizes[a] = size
        return sizes

    def axes_of_one(self) -> set[str]:
        """The axes of which a block holds one position."""
        return {a.name for a in self.p.axes if a.name not in self.sizes}

    def present(self, name: str) -> frozenset[str]:
        return frozenset(a for a in self.axes[name] if a in self.sizes)

    def multiplied(self, name: str) -> bool:
        """True if a value of the body depends on a product."""
        o = self.ops[name]
        return o.op == "contract" or (o.phase == BODY and any(self.multiplied(i) for i in o.inputs))

    # --- tiles --------------------------------------------------------------------------------------------------------
    def staged(self, late: set[str]) -> dict[str, Tile]:
        """The loads that products need, directly or in left operands that are computed of loads alone."""
        rings: dict[str, str] = {}
        for o in self.contractions:
            for i in o.inputs:
                for name in self.sources(i):
                    load = self.ops[name]
                    ring = HELD if load.phase == PROLOGUE else LATE if o.name in late else EARLY
                    rings[name] = ring if rings.get(name, ring) == ring else LATE
        return {name: self.tile(self.ops[name], ring) for name, ring in rings.items()}

    def sources(self, name: str) -> list[str]:
        """The loads with two axes that an operand is computed of; none for one computed of products."""
        o = self.ops[name]
        if o.op == "load":
            return [name] if len(self.present(name)) == 2 else []
        return [] if self.multiplied(name) else [x for i in o.inputs for x in self.sources(i)]

    def tile(self, o: BlockOp, ring: str) -> Tile:
        """The tile of a load. Raises Refused where the copy engine does not bring it."""
        if o.phase not in (PROLOGUE, BODY):
            raise Refused(f"{o.name}: a product reads what is loaded in the {o.phase}")
        source = self.inputs[o.source_value or ""]
        dtype = self.p.sources[source.source].dtype
        if dtype not in (F16, BF16, F32):
            raise Refused(f"{o.name}: products read tiles of float32 and 16-bit types, not {dtype}")
        if dtype == F32 and ring != EARLY:
            raise Refused(f"{o.name}: tiles of float32 are split for products of loaded tiles alone")
        if ring == HELD and self.g.loop in self.axes[o.name]:
            raise Refused(f"{o.name}: a block would hold the loop axis {self.g.loop} whole")
        inner = next((s.axis for s in reversed(source.access) if s.extent != 1), None)
        if inner is None or inner not in self.present(o.name):
            raise Refused(f"{o.name}: what is contiguous is no axis of its tile")
        (outer,) = self.present(o.name) - {inner}
        shown = self.shown_of(o, ring)
        tile = Tile(o.name, source.name, dtype, outer, inner, self.sizes[outer], self.sizes[inner], ring, shown)
        if tile.cols % tile.panel:
            raise Refused(f"{o.name}: {tile.cols} contiguous positions, no multiple of {tile.panel}")
        if tile.rows % 8:
            raise Refused(f"{o.name}: {tile.rows} rows, no multiple of 8")
        return tile

    def shown_of(self, o: BlockOp, ring: str) -> str:
        """The value with rows of a load and zeros that products read; nothing where they read what is loaded."""
        readers = [r.name for r in self.readers[o.name]]
        if not self.shown.keys() & readers:
            return ""
        if len(readers) > 1 or ring != LATE:
            raise Refused(f"{o.name}: rows are hidden of what scores are made of, or what is read as it is too")
        return readers[0]

    # --- products -----------------------------------------------------------------------------------------------------
    def product(self, o: BlockOp, tiles: Mapping[str, Tile]) -> Product:
        left, right = o.inputs if self.rows in self.axes[o.inputs[0]] else o.inputs[::-1]
        over = [a for a in o.over if a in self.sizes]
        cols = self.present(right) - set(over)
        if len(over) != 1 or len(cols) != 1 or self.present(left) != {self.rows, *over} or self.rows in cols:
            raise Refused(f"{o.name}: operands over {sorted(self.present(left))} and {sorted(self.present(right))}")
        (axis,) = cols
        right = self.shown.get(right, right)
        if right not in tiles:
            raise Refused(f"{o.name}: its right operand {right} is computed")
        if self.sizes[axis] > MAX_COLUMNS or self.sizes[axis] % 8:
            raise Refused(f"{o.name}: {self.sizes[axis]} columns")
        if self.sizes[over[0]] % 16:
            raise Refused(f"{o.name}: sums over {self.sizes[over[0]]} positions")
        types = {tiles[i].dtype for i in (left, right) if i in tiles} | {o.dtype}
        if len(types) != 1 or o.dtype is None:
            raise Refused(f"{o.name}: operands of types {', '.join(sorted(map(str, types)))}")
        accums = [r for r in self.readers[o.name] if r.op == "accum"]
        accumulated = len(accums) == 1 and len(self.readers[o.name]) == 1
        if accums and not accumulated:
            raise Refused(f"{o.name} is accumulated and used in the iteration that computes it")
        shrink = accums[0].inputs[1] if accumulated and len(accums[0].inputs) > 1 else ""
        out = accums[0].name if accumulated else o.name
        depth = self.sizes[over[0]]
        return Product(o.name, out, left, right, over[0], depth, self.sizes[axis], accumulated, shrink, o.dtype)
