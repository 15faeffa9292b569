"""Barriers of threads that do not run in step: named ones, those of clusters, and those in shared memory that count arrivals
and bytes, phase by phase (`tma.cuh`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.memory import UNWRITTEN, Fault, Pointer
from mirage_cli.kernel_interpreter.numbers import Array
from mirage_cli.kernel_interpreter.registry import instruction
from mirage_cli.kernel_interpreter.shared import BARRIERS, FLYING

BASE = 16  #: the address at which shared memory begins: no better aligned than it has to be


# --- who knows what -----------------------------------------------------------------------------------------------------
def whole_warps(s: Any, what: str) -> Array:
    """The numbers in the strand of the warps that take part. Raises Fault where only some lanes of a warp do."""
    active = s.active.reshape(-1, 32)
    if (active.any(axis=1) & ~active.all(axis=1)).any():
        raise Fault(f"{what}: some lanes of a warp are missing")
    return np.flatnonzero(active[:, 0])


def alone(s: Any, warp: int) -> int:
    """The agent that stands for single lanes of a warp, which wait and copy on their own: it knows what the warp did up to
    where its lanes last came together."""
    known = s.world.clocks.known
    agent = known.shape[0] - 1 - warp
    known[agent] = np.maximum(known[agent], known[warp])
    known[agent, warp] = known[warp, warp] - 1
    s.world.barriers["alone", warp] = agent
    return agent  # type: ignore[no-any-return]


def rejoin(s: Any, warp: int) -> None:
    """All lanes of a warp know what single ones have seen."""
    agent = s.world.barriers.get(("alone", warp))
    if agent is not None:
        s.world.clocks.learn([warp], s.world.clocks.publish(agent))


def acting(s: Any, warp: int) -> int:
    """The agent that does what lanes of a warp (its number in the strand) do now."""
    number = int(s.warps[warp * 32])
    return number if s.active[warp * 32 : warp * 32 + 32].all() else alone(s, number)


# --- meetings -----------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Meeting:
    """A barrier of so many threads: who has come to this phase, and what was known at the end of those before."""

    threads: int
    seen: Array
    warps: set[int] = field(default_factory=set)
    done: list[Array] = field(default_factory=list)

    def come(self, s: Any, warp: int, what: str) -> int:
        """A warp is there; the phase that it is part of."""
        phase = len(self.done)
        if warp in self.warps:
            raise Fault(f"{what}: a warp comes twice")
        self.warps.add(warp)
        rejoin(s, warp)
        self.seen = np.maximum(self.seen, s.world.clocks.publish(warp))
        if 32 * len(self.warps) == self.threads:
            self.done.append(self.seen)
            self.warps = set()
        return phase


def meet(s: Any, what: str, groups: Array, threads: int, waits: bool = True) -> None:
    """A barrier of the threads with equal numbers in `groups`, so many of each, of all strands."""
    if s.count == len(s.world.launch.blocks) * s.world.launch.threads and waits:
        s.together(groups, what)
        return
    expected, came = s.world.barriers, []
    for w in whole_warps(s, what):
        warp, key = int(s.warps[w * 32]), (what, int(groups[w * 32]))
        m = expected.setdefault(key, Meeting(threads, np.zeros_like(s.world.clocks.known[0])))
        if m.threads != threads:
            raise Fault(f"{what}: {threads} threads, others wait for {m.threads}")
        came.append((m, m.come(s, warp, what), warp))
    if waits:
        s.world.turns.until(s.number, lambda: all(len(m.done) > phase for m, phase, _ in came), what)
        for m, phase, warp in came:
            s.world.clocks.learn([warp], m.done[phase])


@instruction("wait_named")
def _wait_named(s: Any, static: Sequence[Any], name: Any, threads: int) -> None:
    meet_named(s, name, threads, True)


@instruction("arrive_named")
def _arrive_named(s: Any, static: Sequence[Any], name: Any, threads: int) -> None:
    meet_named(s, name, threads, False)


def meet_named(s: Any, name: Any, threads: int, waits: bool) -> None:
    """A named barrier of a block."""
    names = np.unique(np.broadcast_to(name, s.active.shape)[s.active])
    if len(names) != 1 or not 0 < names[0] < 16:
        raise Fault(f"barriers {', '.join(map(str, names))} of one warpgroup")
    meet(s, f"barrier {names[0]}", s.block, int(threads), waits)


@instruction("wait_cluster")
def _wait_cluster(s: Any, static: Sequence[Any]) -> None:
    launch = s.world.launch
    meet(s, "wait_cluster", s.block // launch.cluster, launch.threads * launch.cluster)


@instruction("cluster_rank")
def _cluster_rank(s: Any, static: Sequence[Any]) -> Array:
    return s.blocks_of_grid % s.world.launch.cluster  # type: ignore[no-any-return]


def of_cluster(s: Any, rank: Any) -> Array:
    """The number of block `rank` of the lanes' clusters. Raises Fault where there is none."""
    cluster = s.world.launch.cluster
    rank = np.broadcast_to(rank, s.active.shape)
    if ((rank < 0) | (rank >= cluster))[s.active].any():
        raise Fault(f"block {rank[s.active].max()} of a cluster of {cluster}")
    block: Array = s.block // cluster * cluster + rank
    return block


def touch(s: Any, agents: Sequence[int], blocks: Sequence[int]) -> None:
    """Agents use the memory of other blocks: these must not end before they know of it."""
    touched = s.world.barriers.setdefault("touched", {})
    if not touched:
        s.world.endings.append(lambda: _all_known(s.world, touched))
    for agent, block in zip(agents, blocks, strict=True):
        touched[block, agent] = s.world.clocks.known[agent, agent]


def _all_known(world: Any, touched: dict[tuple[int, int], int]) -> None:
    for (block, agent), count in touched.items():
        if _known_in(world, block, agent) < count:
            raise Fault(f"block {block} of those that run may end before others have used its memory")


def _known_in(world: Any, block: int, agent: int) -> int:
    """The latest count of an agent that some warp of a block knows."""
    warps = -(-world.launch.threads // 32)
    return int(world.clocks.known[block * warps : block * warps + warps, agent].max())


# --- barriers in shared memory ------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Phases:
    """A barrier in shared memory: its first cell, how many arrivals end a phase, who started it when; of the open phase what
    is missing and the boxes that it counts; of the ended ones what was known: to threads of the block (`near`), with those
    of other blocks that published it (`all`), and to what copies (`copies`)."""

    cell: int
    arrivals: int
    starter: tuple[int, int]
    agent: int
    near: Array
    far: Array
    loose: Array
    missing: int
    at_once: bool = False
    bytes: int = 0
    fenced: bool = False
    boxes: list[tuple[Any, Array, int]] = field(default_factory=list)
    done: list[tuple[Array, Array, Array]] = field(default_factory=list)
    waited: dict[int, int] = field(default_factory=dict)

    def arrive(self, seen: Array, kind: str) -> None:
        """One arrival of somebody who knows this; `kind` names who is told. Raises Fault for one too many."""
        if not self.missing:
            raise Fault(f"more than {self.arrivals} arrivals at a barrier")
        self.missing -= 1
        setattr(self, kind, np.maximum(getattr(self, kind), seen))
        self.end()

    def count(self, bytes_: int) -> None:
        """Bytes that are awaited, or (negative) that have come."""
        self.bytes += bytes_
        self.end()

    def end(self) -> None:
        """End the phase if nothing is missing: its boxes are there."""
        if self.missing or self.bytes:
            return
        if self.boxes:
            self.near = self.near.copy()
            self.near[self.agent] = len(self.done) + 1
        for shared, cells, size in self.boxes:
            if (shared.kind[cells] != (size if self.at_once else FLYING)).any():
                raise Fault("something else was written where a box was on its way to")
            shared.kind[cells] = size
            for d in range(1, int(size / shared.granule)):
                shared.kind[cells + d] = UNWRITTEN
        every = np.maximum(self.near, self.far)
        self.done.append((self.near, every, np.maximum(every, self.loose)))
        self.missing, self.boxes = self.arrivals, []

    def wanted(self, agent: int, parity: int) -> int:
        """The phase that an agent means by a parity: the one that it saw last, or the next one."""
        last = self.waited.get(agent, -1)
        return last if last % 2 == parity else last + 1


@dataclass(frozen=True, slots=True)
class Barrier:
    """Where barriers lie in shared memory, one after the other."""

    place: Pointer

    def plus(self, n: Any) -> Barrier:
        """So many barriers further."""
        return Barrier(replace(self.place, at=self.place.at + n))

    def element(self, s: Any, k: Any) -> Barrier:
        """One of them."""
        return self.plus(k)

    def cells(self, s: Any, block: Array | None = None) -> Array:
        """The first granule of each lane's barrier."""
        return self.place.memory.cells(self.place, 0, s.block if block is None else block, s.active)  # type: ignore[no-any-return]

    def at(self, s: Any, cell: int, agent: int, afar: bool = False) -> Phases:
        """The barrier at a granule, as an agent finds it, or (`afar`) another block or what copies. Raises Fault where it may
        not yet be there."""
        p: Phases | None = s.world.barriers.get(("barrier", int(cell)))
        if p is None or self.place.memory.kind[cell] != 8:
            raise Fault("there is no barrier here")
        starter, count = p.starter
        if agent != starter and s.world.clocks.known[agent, starter] < count:
            raise Fault("somebody comes to a barrier that may not have been started")
        if afar and not p.fenced:
            raise Fault("what copies and other blocks may not see that this barrier was started")
        return p

    def start(self, s: Any, arrivals: int) -> None:
        """A barrier of so many arrivals."""
        s.store(self.place, 0, 0)
        world, size = s.world, s.world.clocks.known.shape[0]
        for lane in np.flatnonzero(s.active):
            cell, block = int(self.cells(s)[lane]), int(s.block[lane])
            if ("barrier", cell) in world.barriers:
                raise Fault("a barrier is started twice")
            started = world.barriers.setdefault(("started", block), [])
            if len(started) == BARRIERS:
                raise Fault(f"more than {BARRIERS} barriers in a block")
            agent = len(world.launch.blocks) * world.shared.warps + block * BARRIERS + len(started)
            nothing, warp = np.zeros(size, dtype=np.int32), int(s.warps[lane])
            starter = (warp, int(world.clocks.known[warp, warp]))
            p = Phases(cell, int(arrivals), starter, agent, nothing, nothing, nothing, int(arrivals), world.at_once)
            world.barriers["barrier", cell] = p
            world.endings.append(lambda p=p, block=block: _ended(world, p, block))
            started.append(p)

    def _each(self, s: Any, block: Array | None = None) -> Iterator[tuple[int, Phases, Array]]:
        """For every lane that arrives: its number, the barrier, and what it tells."""
        cells, warps = self.cells(s, block), dict[int, tuple[int, Array]]()
        for lane in np.flatnonzero(s.active):
            w = int(lane) // 32
            if w not in warps:
                agent = acting(s, w)
                warps[w] = agent, s.world.clocks.publish(agent)
            agent, seen = warps[w]
            afar = block is not None and block[lane] != s.block[lane]
            if block is not None and afar:
                touch(s, [agent], [int(block[lane])])
            yield int(lane), self.at(s, cells[lane], agent, afar), seen

    def arrive(self, s: Any) -> None:
        """One arrival of each lane."""
        for _, p, seen in self._each(s):
            p.arrive(seen, "near")

    def expect(self, s: Any, bytes_: int) -> None:
        """The same, and bytes that the phase waits for."""
        for _, p, seen in self._each(s):
            p.bytes += int(bytes_)
            p.arrive(seen, "near")

    def arrive_at(self, s: Any, rank: Any) -> None:
        """Arrive in another block: only what copies comes later than what was done before."""
        self._there(s, rank, "loose")

    def publish_at(self, s: Any, rank: Any) -> None:
        """The same, and tell those who wait for all blocks."""
        self._there(s, rank, "far")

    def _there(self, s: Any, rank: Any, kind: str) -> None:
        block = of_cluster(s, rank)
        for lane, p, seen in self._each(s, block):
            p.arrive(seen, kind if block[lane] != s.block[lane] else "near")

    def wait(self, s: Any, parity: Any) -> None:
        """Wait for the end of the phase with this parity."""
        self._wait(s, parity, 0)

    def wait_cluster(self, s: Any, parity: Any) -> None:
        """The same, and see what other blocks have published."""
        self._wait(s, parity, 1)

    def _wait(self, s: Any, parity: Any, which: int) -> None:
        cells, parity = self.cells(s), np.broadcast_to(parity, s.active.shape)
        waits, clocks = [], s.world.clocks
        for w in np.unique(np.flatnonzero(s.active) // 32):
            lanes = np.flatnonzero(s.active[w * 32 : w * 32 + 32]) + w * 32
            if len(np.unique(cells[lanes])) > 1 or len(np.unique(parity[lanes])) > 1:
                raise Fault("lanes of a warp wait for different phases")
            agent = acting(s, int(w))
            p = self.at(s, cells[lanes[0]], agent)
            waits.append((p, agent, p.wanted(agent, int(parity[lanes[0]]))))
        s.world.turns.until(s.number, lambda: all(len(p.done) > phase for p, _, phase in waits), "wait")
        for p, agent, phase in waits:
            if len(p.done) > phase + 1:
                raise Fault("a phase of a barrier ends before somebody has waited for the one before")
            p.waited[agent] = phase
            if phase >= 0:
                clocks.learn([agent], p.done[phase][which])
                clocks.copies[agent] = np.maximum(clocks.copies[agent], p.done[phase][2])


def _ended(world: Any, p: Phases, block: int) -> None:
    """Raises Fault where boxes come to a block that has ended."""
    filled = int(p.near[p.agent])
    if p.boxes or _known_in(world, block, p.agent) < filled:
        raise Fault("a block may end while a box is on its way to it")


@instruction("barriers_started")
def _barriers_started(s: Any, static: Sequence[Any]) -> None:
    for block in np.unique(s.block[s.active]):
        for p in s.world.barriers.get(("started", int(block)), ()):
            p.fenced = True


registry.POINTERS["Barrier"] = lambda s, p: Barrier(p.of("uint64_t"))
registry.ROLES.add("Barrier")


# --- rings --------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Place:
    """Where a ring of so many slots stands."""

    stages: int
    slot: Any = 0
    parity: Any = 0

    def next(self, s: Any) -> None:
        """The next slot; the parity changes with every round."""
        after = self.slot + 1
        again = after == self.stages
        turned = self.parity ^ again if isinstance(again, np.ndarray) else self.parity ^ int(again)
        self.slot = s.merge(self.slot, after * ~again if isinstance(again, np.ndarray) else 0 if again else after)
        self.parity = s.merge(self.parity, turned)


registry.STRUCTS["Place"] = lambda s, static: Place(int(static[0]))
registry.CONVERSIONS["Place"] = lambda s, x: replace(x)
