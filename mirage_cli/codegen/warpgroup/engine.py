"""The engine `warpgroup`: kernels for many rows on sm_90a, with matrix products of warpgroups.

The first warp brings tiles through the copy engine, the warpgroups behind the first one multiply; helpers, the other warps
of the first one, compute numbers of columns. Blocks walk units of work (a tile of rows and one of columns, or as many beside
one another as make a cluster). Numbers of its own in a schedule:

    cluster   blocks along the rows that share what they bring of the right operands; blocks that reduce together (a split
              of the loop axis) are a cluster of their own
    band      units along the rows that are walked together before the next columns are taken (0: all of them)
    turns     whether consumers take turns at issuing products
    resident  blocks on a multiprocessor
    ahead     whether scores of the next iteration are multiplied while those of one are worked on
    kept      whether left operands that are loaded once are kept in registers
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_cli.codegen.requests.request import Kernel, Launch, Parameter, Request
from mirage_cli.codegen.terms.expressions import SYNC, THREAD, ctype
from mirage_cli.codegen.warpgroup.boxes import Map, tensor_map
from mirage_cli.codegen.warpgroup.consumers import TURN, Consumers
from mirage_cli.codegen.warpgroup.memory import HELPERS, Memory, Ring, following, memory, placed, slot
from mirage_cli.codegen.warpgroup.places import Statements
from mirage_cli.codegen.warpgroup.plan import EARLY, GROUP_ROWS, HELD, PARTS, SPLIT, Plan, Tile, plan
from mirage_cli.codegen.warpgroup.statements import statements
from mirage_cli.codegen.warpgroup.units import Units
from mirage_cli.codegen.warpgroup.values import Values
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.search.mugraph.mugraph import EPILOGUE
from mirage_cli.search.schedules.tiling import MOST_REGISTERS, PRODUCER_REGISTERS, consumer_registers
from mirage_cli.search.schedules.warpgroup import (
    AHEAD_REGISTERS,
    SPARE_REGISTERS,
    suits,
)

WARP, LANE = k.name("warp"), k.name("lane")
HEADERS = ("warpgroup.cuh",)
LINE = 128  #: bytes that memory brings at a time
SPLIT_HEADERS = (*HEADERS, "warpgroup_split.cuh")


def warpgroup_kernel(r: Request) -> Kernel:
    """A kernel of the engine `warpgroup`. Raises Refused."""
    if not suits(r.target):
        raise Refused(f"{r.target.name} has no products of warpgroups, or no copy engine")
    p = plan(r.program, r.block, r.schedule)
    values = Values(p, r.symbols, r.hollow)
    computed = statements(values)
    rights = {x.right for x in p.products} - {x.left for x in p.products}
    maps = {t.name: tensor_map(p, t, t.name in rights and t.ring != HELD) for t in p.tiles}
    _check(p, computed)
    whole = _Whole(p, values, computed, maps, memory(p, computed), Units(values), r.constants)
    if whole.memory.bytes > r.target.shared_bytes:
        raise Refused(f"{whole.memory.bytes} bytes of shared memory, {r.target.name} has {r.target.shared_bytes}")
    launch = whole.launch(r)
    fields = launch.fields(*(m.field() for m in maps.values()))
    bounds = (launch.threads, p.resident)
    kernel = ir.Kernel(f"kernel{r.number}", "parameters", fields, bounds, whole.body(r), grid_constant=True)
    headers = SPLIT_HEADERS if p.split else HEADERS
    return Kernel(p, kernel, launch, headers, setup=lambda _: [s for m in maps.values() for s in m.setup(values)])


def _check(p: Plan, computed: Statements) -> None:
    """Raises Refused where variants do not fit, or registers do not suffice."""
    if p.ahead and (not p.late or p.early_needs_late or computed.side_ring == EARLY):
        raise Refused("products run ahead where scores have tiles of their own")
    held = sum(p.row_tiles * x.cols // (1 if x.split else 2) for x in p.products)
    if p.ahead:
        held += AHEAD_REGISTERS + sum(p.row_tiles * x.cols // 2 for x in p.early)
    lefts = {x.left: x for x in p.products if p.in_words(x)}.values()
    held += sum(p.row_tiles * x.depth // 4 * (PARTS if x.split else 1) for x in lefts)
    if held + SPARE_REGISTERS > (_registers(p) or MOST_REGISTERS):
        raise Refused(f"{held} registers of fragments for each thread")


def _registers(p: Plan) -> int:
    """Registers of a consumer's thread; 0 to leave them as they are."""
    if p.consumers == 1 and p.resident == 1:
        return 0
    return consumer_registers(p.consumers, p.resident)


@dataclass(frozen=True, slots=True)
class _Whole:
    plan: Plan
    values: Values
    computed: Statements
    maps: dict[str, Map]
    memory: Memory
    units: Units
    constants: frozenset[int]  #: inputs that no kernel writes

    def launch(self, r: Request) -> Launch:
        """How the host starts the kernel."""
        p, cluster = r.program, self.plan.cluster * self.plan.parts
        inputs = (Parameter(i.name, ctype(p.sources[i.source].dtype), i.source) for i in p.inputs)
        outputs = (Parameter(f"y{n}", ctype(o.dtype)) for n, o in enumerate(p.outputs))
        blocks = k.call("walking_blocks", self.units.count, cluster, self.plan.resident)
        threads = 32 * r.schedule.warps
        return Launch(tuple(inputs), tuple(outputs), r.numbers, (blocks,), threads, self.memory.bytes, cluster, True)

    def body(self, r: Request) -> tuple[ir.Statement, ...]:
        """The kernel's statements."""
        together, parameters = self.plan.cluster * self.plan.parts > 1, k.name("parameters")
        meet = k.run("wait_cluster") if together else SYNC
        symbols = {f"s_{n}": k.cast("offset_t", parameters.member(f"s_{n}")) for n in r.numbers}
        return (
            k.alias("offset_t", "int64_t" if self.values.wide else "int"),
            *self.memory.declared(self.plan.parts),
            *(k.let("offset_t", s, value) for s, value in symbols.items()),
            k.lets("int", {"warp": THREAD / 32, "lane": THREAD % 32}),
            k.let("int", "rank", k.call("cluster_rank") if together else 0, unused=True),
            k.let("int", "units", k.cast("int", self.units.count)),
            k.when(k.binary("==", THREAD, 0), *self.starts()),
            meet,
            k.run("launch_dependents"),
            *([] if self.units.limits else [k.let("int", "steps", self.units.steps())]),
            *(placed(r.stages, r.name) for r in self.memory.rings),
            k.when(WARP < 4, *self.producers(), otherwise=self.consumers()),
            *([meet] if together else []),
        )

    def starts(self) -> list[ir.Statement]:
        """What the first thread prepares."""
        prefetch = (k.call("prefetch_map", k.name("parameters").member(m.name)) for m in self.maps.values())
        return [*map(k.do, prefetch), *self.memory.starts(self.plan), k.run("barriers_started")]

    # --- roles --------------------------------------------------------------------------------------------------------
    def share(self, instruction: str, registers: int) -> list[ir.Statement]:
        """The registers of a role, where they are shared out."""
        return [k.run(instruction, static=[registers])] if _registers(self.plan) else []

    def producers(self) -> list[ir.Statement]:
        """The first warpgroup: a thread that brings tiles, and warps that help."""
        m, earlier = self.memory, k.run("wait_for_earlier")
        begins = self.begins()
        early = m.early.fill(
            *self.loads(m.early, False), first=self.loads(m.early, True), begun="begun" if begins else ""
        )
        step = self.units.each_step(*early, *m.late.fill(*self.loads(m.late)))
        fills = self.units.walk(*m.held.fill(*self.loads(m.held)), step)
        help_ = self.helpers()
        return [
            *self.share("give_registers", PRODUCER_REGISTERS),
            k.when(k.binary("==", THREAD, 0), *begins, earlier, fills),
            *([k.when(WARP > 0, *help_)] if help_ else []),
        ]

    def begins(self) -> list[ir.Statement]:
        """Statements that bring constants to the ring before the kernel in front of this one has ended, and count slots."""
        early = self.memory.early
        first = self.loads(early, True)
        if not first or self.units.limits:
            return []
        most = k.call("min", "steps", early.stages)
        step = k.loop("step", "begun", self.units.step_position(), early.begin(*first))
        ring = placed(early.stages, early.name)
        return [k.declare("int", "begun", 0), self.units.first(ring, k.assign(k.name("begun"), most), step)]

    def loads(self, ring: Ring, constant: bool | None = None) -> list[ir.Statement]:
        """Statements that bring the tiles of a slot: all, constants, or the others."""
        tiles = (t for t in ring.tiles if constant is None or (self.source(t) in self.constants) == constant)
        return [s for t in tiles for s in self.maps[t.name].loads(self.plan, self.values)]

    def source(self, tile: Tile) -> int:
        """The input that a tile is of."""
        return self.plan.program.input(tile.value).source

    def helpers(self) -> list[ir.Statement]:
        """What warps beside the one that brings tiles do."""
        fetched = [s for name in self.computed.fetched for s in self.fetched(name)]
        if self.memory.split.tiles:
            return [self.release(), self.units.walk(*fetched, self.units.each_step(*self.divided()))]
        steps = [self.units.each_step(*self.helped())] if self.memory.side.tiles else []
        earlier = [k.run("wait_for_earlier")] if self.values.integers else []
        return [*earlier, self.units.walk(*fetched, *steps)] if fetched or steps else []

    def fetched(self, name: str) -> list[ir.Statement]:
        """Statements that ask for what is read behind the loop of an input with rows and columns, while products run."""
        source = self.plan.program.input(name)
        (axis,) = self.plan.present(frozenset(s.axis for s in source.access if s.axis is not None)) - {self.plan.rows}
        line = LINE // self.plan.program.sources[source.source].dtype.bytes
        rows, lines, n = self.plan.sizes[self.plan.rows], -(-self.plan.sizes[axis] // line), k.name("n")
        at = k.name("parameters").member(name) + k.total(self.values.offset(source.access, EPILOGUE))
        inside = self.values.inside([s.axis for s in source.access], EPILOGUE)
        place = k.lets("int", {"r_": n % rows, "c_": n / rows * line})
        ask = k.when(inside, k.run("fetch_ahead", at))
        return [k.loop("n", rows * lines, place, ask, start=THREAD - 32, step=32 * HELPERS)]

    def divided(self) -> list[ir.Statement]:
        """Tiles of float32 as their parts, which products see."""
        m, parity = self.memory, k.binary("^", k.name(SPLIT).member("parity"), 1)
        threads = 32 * HELPERS
        whole = (a for t, a in zip(m.early.tiles, m.early.addresses(), strict=True) if t in self.plan.split)
        return [
            *m.early.wait(),
            *whole,
            k.run(slot(m.split.empty, SPLIT).member("wait"), parity),
            *m.split.addresses(),
            k.declare("Reach", "reach"),
            *(
                k.run("split_tile", t.parts().name, t.name, THREAD - 32, "reach", static=(t.rows, t.cols, threads))
                for t in self.plan.split
            ),
            k.run(k.name("reach").member("tell"), m.told_at() + (WARP - 1) * 4),
            k.run("show_products"),
            k.run("__syncwarp"),
            k.when(k.binary("==", LANE, 0), k.run(slot(m.split.full, SPLIT).member("arrive"))),
            following(SPLIT),
            *m.early.release(),
        ]

    def helped(self) -> list[ir.Statement]:
        """What helpers compute of the tiles of a slot."""
        side, columns, sides = self.memory.side, self.memory.columns, self.computed.sides
        return [
            *side.read(),
            *self.memory.named_vectors(side.name, const=False),
            *([k.loop("c_", columns, *self.computed.sides, start=THREAD - 32, step=32 * HELPERS)] if sides else []),
            *self.computed.cleared,
            k.run("__syncwarp"),
            k.when(k.binary("==", LANE, 0), k.run(slot("known", side.name).member("arrive"))),
            following(side.name),
        ]

    def consumers(self) -> list[ir.Statement]:
        """The other warpgroups."""
        p, group, base = self.plan, k.name("group"), k.name("base")
        places = {"group": k.call("uniform", WARP / 4 - 1), "base": group * (p.row_tiles * GROUP_ROWS)}
        own = {"row": base + WARP % 4 * 16 + LANE / 4, "column": LANE % 4 * 2}
        last = k.binary("==", group, p.consumers - 1)
        unit = Consumers(p, self.memory, self.units, self.computed).unit()
        return [
            *self.share("take_registers", _registers(p)),
            k.run("wait_for_earlier"),
            k.lets("int", places),
            k.lets("int", own, unused=True),
            self.release(),
            *(self.exchange() if p.parts > 1 else []),
            *([k.when(last, k.run("arrive_named", 1, TURN))] if p.turns else []),
            self.units.walk(*unit),
        ]

    def release(self) -> ir.Statement:
        """The function that says for a warp that it has read a slot, to all blocks that fill it."""
        empty, lane, sharing = k.name("empty"), k.name("lane"), self.plan.cluster
        alone = k.when(k.binary("==", lane, 0), k.run(empty.member("arrive")))
        shared = k.when(lane < sharing, k.run(empty.member("arrive_at"), lane))
        barrier = k.of_type("Barrier", reference=True)
        return k.define("release", [(barrier, "empty")], k.run("__syncwarp"), shared if sharing > 1 else alone)

    def exchange(self) -> list[ir.Statement]:
        """What threads publish for those of other blocks of the cluster that hold the same rows."""
        at, place = k.name("exchange_at"), k.name("place")
        address = at + place * (self.plan.consumers * 512)
        published = k.call("load_of_block", "part", address)
        return [
            k.let("uint32_t", "exchange_at", k.name("tiles") + self.memory.exchange + (THREAD - 128) * 4),
            k.define("publish", [("int", "place"), ("float", "x")], k.run("store_shared", address, "x")),
            k.define("published", [("int", "part"), ("int", "place")], ir.Return(published)),
        ]
