"""Shared memory of a kernel of warpgroups: rings of tiles, what blocks exchange, numbers of columns, and barriers.

`ring_full` and `ring_empty` are the barriers of a ring's slots; a thread's place in it is `ring`, which has a `slot` and the
`parity` of its barriers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from mirage_cli.codegen.warpgroup.places import Statements
from mirage_cli.codegen.warpgroup.plan import EARLY, HELD, LATE, SPLIT, Plan, Tile
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.ir import Value

ALIGNMENT = 1024
HELPERS = 3  #: warps beside the one that brings tiles
SPLIT_STAGES = 2  #: of the ring of parts
TOLD = 16  #: bytes of what helpers tell of the parts of a slot
BARRIER = k.of_type("Barrier*")
TILES, BARRIERS = k.name("tiles"), k.name("barriers")


def slot(barriers: str, place: str) -> ir.Expression:
    """The barrier of a place's slot."""
    return k.name(barriers)[k.name(place).member("slot")]


def wait(barriers: str, place: str) -> ir.Do:
    """Wait for the barrier of a place's slot."""
    return k.run(slot(barriers, place).member("wait"), k.name(place).member("parity"))


def following(place: str) -> ir.Do:
    """Go to the next slot."""
    return k.run(k.name(place).member("next"))


def placed(stages: int, place: str, value: Value | None = None) -> ir.Declare:
    """A place in a ring of so many slots."""
    return k.declare(k.of_type("Place", stages), place, value)


@dataclass(frozen=True, slots=True)
class Ring:
    """Slots for the same tiles one after the other; `at` is its first byte, `barrier` the number of its first barrier. A
    ring of no tiles is none: there is nothing to do for it."""

    name: str
    tiles: tuple[Tile, ...]
    stages: int
    at: int
    barrier: int

    @property
    def bytes(self) -> int:
        """Bytes of a slot."""
        return sum(t.bytes for t in self.tiles)

    @property
    def full(self) -> str:
        """The barriers that say that tiles are there."""
        return f"{self.name}_full"

    @property
    def empty(self) -> str:
        """The barriers that say that tiles are read."""
        return f"{self.name}_empty"

    def declared(self) -> ir.Statement:
        """Its barriers by name."""
        return k.lets(
            BARRIER, {self.full: BARRIERS + self.barrier, self.empty: BARRIERS + (self.barrier + self.stages)}
        )

    def starts(self, readers: int, writers: int = 1) -> ir.Statement:
        """The loop that starts its barriers; so many arrive at one when tiles are read, and when they are there."""
        full, empty = k.name(self.full)["s"], k.name(self.empty)["s"]
        return k.loop("s", self.stages, k.run(full.member("start"), writers), k.run(empty.member("start"), readers))

    def wait(self, place: str = "") -> list[ir.Statement]:
        """Wait until the slot of a place, if not of its own, is full."""
        return [wait(self.full, place or self.name)] if self.tiles else []

    def addresses(self, place: str = "") -> list[ir.Statement]:
        """Where its tiles are."""
        moved = [k.name(place or self.name).member("slot") * self.bytes] if self.stages > 1 else []
        places = itertools.accumulate((t.bytes for t in self.tiles), initial=self.at)
        return [
            k.let("uint32_t", t.name, k.total([TILES + at, *moved])) for t, at in zip(self.tiles, places, strict=False)
        ]

    def read(self, place: str = "") -> list[ir.Statement]:
        """Wait for its tiles, which are then known by name."""
        return [*self.wait(place), *self.addresses(place)]

    def release(self) -> list[ir.Statement]:
        """Say that the tiles of a slot are read, and go to the next one."""
        return [k.run("release", slot(self.empty, self.name)), following(self.name)] if self.tiles else []

    def fill(self, *loads: ir.Statement, first: Sequence[ir.Statement] = (), begun: str = "") -> list[ir.Statement]:
        """Wait until a slot is empty, bring its tiles, those of `first` before the others, and go to the next one. Of so many
        slots as the variable `begun` says the first ones were begun before (`begin`)."""
        if not self.tiles:
            return []
        parity = k.binary("^", k.name(self.name).member("parity"), 1)
        beginning = [k.run(slot(self.empty, self.name).member("wait"), parity), self.expect(), *first]
        if begun:
            less = k.assign(k.name(begun), 1, "-=")
            beginning = [k.when(k.binary("==", k.name(begun), 0), *beginning, otherwise=[less])]
        return [k.scope(self.filling(), *self.addresses(), *beginning, *loads, following(self.name))]

    def begin(self, *first: ir.Statement) -> ir.Statement:
        """Begin to fill a slot that was never filled, and go to the next one."""
        read = k.names_in(first)
        places = (a for t, a in zip(self.tiles, self.addresses(), strict=True) if t.name in read)
        return k.scope(self.filling(), *places, self.expect(), *first, following(self.name))

    def filling(self) -> ir.Statement:
        """The barrier of the slot that is filled, as `full`."""
        return k.declare(k.of_type("Barrier", reference=True), "full", slot(self.full, self.name))

    def expect(self) -> ir.Do:
        """Say how many bytes come to it."""
        return k.run(k.name("full").member("expect"), self.bytes)


@dataclass(frozen=True, slots=True)
class Memory:
    """Where everything is: first bytes, and bytes in all; `barrier` is the number of the first barrier behind those of
    rings. `vectors` are numbers of columns, each of `columns`."""

    held: Ring
    early: Ring
    late: Ring
    split: Ring
    exchange: int
    sides: int
    told: int
    barriers: int
    barrier: int
    bytes: int
    side: Ring
    vectors: tuple[str, ...]
    columns: int

    @property
    def rings(self) -> list[Ring]:
        """The rings that there are."""
        return [r for r in (self.held, self.early, self.late, self.split) if r.tiles]

    def declared(self, parts: int) -> list[ir.Statement]:
        """Statements that name it; `parts` blocks reduce together."""
        shared, address = k.name("shared"), k.call("shared_address", "shared")
        storage = f"extern __shared__ __align__({ALIGNMENT})"
        begin = shared + (TILES - address)
        names = [
            k.declare("unsigned char", "shared", dims=[k.number("")], storage=storage),
            k.let("uint32_t", "tiles", (address + (ALIGNMENT - 1)) / ALIGNMENT * ALIGNMENT),
            k.let(BARRIER, "barriers", k.reinterpret(BARRIER, begin + self.barriers)),
            *(r.declared() for r in self.rings),
        ]
        if self.side.tiles:
            names.append(k.let(BARRIER, "known", BARRIERS + (self.barrier + 2)))
        if self.vectors:
            names.append(k.let("float*", "sides", k.reinterpret("float*", begin + self.sides)))
        if parts > 1:
            both = {"exchange_full": BARRIERS + self.barrier, "exchange_empty": k.name("exchange_full") + 1}
            names += [k.lets(BARRIER, both), placed(1, "exchange")]
        return names

    def starts(self, plan: Plan) -> list[ir.Statement]:
        """Statements that start the barriers."""
        warps = plan.consumers * 4
        readers = (warps + (HELPERS if self.split.tiles else 0)) * plan.cluster
        starts = [r.starts(readers) for r in self.rings if r is not self.split]
        if self.split.tiles:
            starts.append(self.split.starts(warps, HELPERS))
        if self.side.tiles:
            starts.append(k.loop("s", self.side.stages, k.run(k.name("known")["s"].member("start"), 3)))
        if plan.parts > 1:
            for barrier in ("exchange_full", "exchange_empty"):
                starts.append(k.run(k.name(barrier).member("start", arrow=True), warps * plan.parts))
        return starts

    def told_at(self) -> ir.Expression:
        """Where helpers tell whether the numbers of a slot are in range."""
        return TILES + self.told + k.name(SPLIT).member("slot") * TOLD

    def named_vectors(self, place: str, const: bool) -> list[ir.Statement]:
        """The vectors of a place's slot by name."""
        kind, first = k.of_type("float*", const=const), k.name(place).member("slot") * len(self.vectors)
        at = (k.name("sides") + (first + n) * self.columns for n in range(len(self.vectors)))
        return [k.let(kind, f"{v}_now", a, unused=True) for v, a in zip(self.vectors, at, strict=True)]


def memory(plan: Plan, computed: Statements) -> Memory:
    """The memory of a kernel."""
    rings, at, barrier = list[Ring](), 0, 0
    parts = tuple(t.parts() for t in plan.split)
    for name in (HELD, EARLY, LATE, SPLIT):
        stages = 1 if name == HELD else SPLIT_STAGES if name == SPLIT else plan.schedule.stages
        ring = Ring(name, parts if name == SPLIT else tuple(plan.ring(name)), stages, at, barrier)
        rings.append(ring)
        at += ring.bytes * stages
        barrier += 2 * stages if ring.tiles else 0
    sides = at + computed.published * plan.consumers * 512
    told = sides + len(computed.side_names) * plan.schedule.loop * 4 * plan.schedule.stages
    barriers = told + (TOLD * SPLIT_STAGES if parts else 0)
    size = ALIGNMENT + barriers + (barrier + 2 + plan.schedule.stages) * 8
    side = next((r for r in rings if r.name == computed.side_ring), Ring("", (), 1, 0, 0))
    vectors = tuple(computed.side_names)
    held, early, late, split = rings
    return Memory(held, early, late, split, at, sides, told, barriers, barrier, size, side, vectors, plan.schedule.loop)
