"""Shared memory with who wrote and read what, and the clocks that order it.

What a copy has not brought yet is an arbitrary value; two accesses without a barrier between them are a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mirage_cli.kernel_interpreter.memory import UNWRITTEN, Fault, Memory
from mirage_cli.kernel_interpreter.numbers import Array

BARRIERS = 40  #: in the shared memory of a block, at most
SEVERAL = -2  #: the reader of what several threads have read since they met
FLYING = -1  #: what a cell holds that a copy is still bringing


class Clocks:
    """Counts that each warp knows of every other one: a warp's own goes up at each barrier, which tells all others of it."""

    def __init__(self, agents: int) -> None:
        self.known = np.zeros((agents, agents), dtype=np.int32)
        np.fill_diagonal(self.known, 1)
        self.copies = np.zeros_like(self.known)  # what the copies that each one begins come after, besides

    def now(self, agents: Array) -> Array:
        """The own counts of warps."""
        counts: Array = self.known[agents, agents]
        return counts

    def meet(self, agents: Sequence[int] | Array) -> None:
        """All of these have seen what the others did until now."""
        agents = np.asarray(agents)
        self.known[agents] = self.known[agents].max(axis=0)
        self.tick(agents)

    def tick(self, agents: Sequence[int] | Array) -> None:
        """Advance these: what they do from now on comes later than what they did."""
        agents = np.asarray(agents)
        self.known[agents, agents] += 1

    def publish(self, agent: int) -> Array:
        """Counts that an agent knows now; what it does from now on is not part of them."""
        seen: Array = self.known[agent].copy()
        self.known[agent, agent] += 1
        return seen

    def learn(self, agents: Sequence[int] | Array, seen: Array) -> None:
        """Agents have seen what was published."""
        agents = np.asarray(agents)
        self.known[agents] = np.maximum(self.known[agents], seen)


@dataclass(slots=True, kw_only=True)
class Shared(Memory):
    """The shared memory of blocks: besides, who wrote each granule when, and who read it when."""

    clocks: Clocks
    warps: int  #: of each block
    cluster: int = 1  #: blocks whose warps may reach each other's memory
    watched: bool = True  #: whether accesses without a barrier between them are looked for
    writer: Array = field(init=False)
    stamp: Array = field(init=False)
    reads: Array = field(
        init=False
    )  #: when the warps of the own block, of the next one of the cluster, ... last read it
    reading: Array = field(init=False)  #: which of these ever have
    reader: Array = field(init=False)
    shown: Array = field(init=False)  #: whether matrix instructions of several warps see it

    def __post_init__(self) -> None:
        Memory.__post_init__(self)
        cells, rows = len(self.kind), self.cluster * self.warps
        self.writer = np.full(cells, -1, dtype=np.int32)  # a thread, or -2 - k for agent k that is no warp
        self.stamp = np.zeros(cells, dtype=np.int32)
        self.reads = np.zeros((rows, cells), dtype=np.int32)
        self.reading = np.zeros(rows, dtype=bool)
        self.reader = np.full(cells, -1, dtype=np.int32)
        self.shown = np.zeros(cells, dtype=bool)

    def _agents(self, rows: Array, cells: Array) -> Array:
        """The warps that rows of `reads` stand for at cells: [rows, cells]."""
        block, away, rows = cells // self.places, rows[:, None] // self.warps, rows[:, None]
        first = block // self.cluster * self.cluster
        agents: Array = (first + (block - first + away) % self.cluster) * self.warps + rows % self.warps
        return agents

    def read_by(self, agents: Array, cells: Array) -> tuple[Array, Array]:
        """Where `reads` says when warps have read cells, each one of them."""
        if self.cluster == 1:
            rows = agents % self.warps
        else:
            away = agents // self.warps - cells // self.places
            rows = away % self.cluster * self.warps + agents % self.warps
        self.reading[rows] = True
        return rows, cells

    def load(self, cells: Array, size: float, lanes: Array, agents: Array, active: Array) -> Array:
        """The values of cells: [fields, ..., lanes]. Raises Fault where another warp wrote them without a barrier since."""
        values = Memory.load(self, cells, size, lanes, agents, active)
        if not self.watched:
            return values
        self._after_writes(cells, active & (self.kind[cells] == size), lanes, agents)
        agent, lane, cells = _taken(active, agents, lanes, cells)
        place, now, before = self.read_by(agent, cells), self.clocks.now(agent), self.reader[cells]
        several = (self.reads[place] == now) & (before != lane)
        self.reads[place], self.reader[cells] = now, lane
        self.reader[cells[several | (self.reader[cells] != lane)]] = SEVERAL
        return values

    def _after_writes(self, cells: Array, active: Array, lanes: Array, agents: Array) -> None:
        """Raises Fault unless what others wrote to cells happened before."""
        lanes, agents = np.broadcast_to(lanes, cells.shape), np.broadcast_to(agents, cells.shape)
        writer = self.writer[cells]
        others = active & (writer != -1) & (writer != lanes)
        if not others.any():
            return
        cells, lanes, agents, writer = cells[others], lanes[others], agents[others], writer[others]
        by = np.where(writer >= 0, writer // 32, -2 - writer)
        seen = self.clocks.known[agents, by]
        late = seen < self.stamp[cells] + (agents == by)  # within a warp: something has to bring its lanes together
        if late.any():
            k = int(np.argmax(late))
            raise Fault(
                f"byte {int(cells[k]) * self.granule % self.size} of shared memory: thread "
                f"{int(lanes[k])} comes to what thread {int(writer[k])} wrote with no barrier between them"
            )

    def _after_reads(self, cells: Array, lanes: Array, agents: Array) -> None:
        """Raises Fault unless what others read of cells happened before."""
        rows = np.flatnonzero(self.reading)
        last = self.reads[rows[:, None], cells]
        if not last.any():
            return
        warp = self._agents(rows, cells)
        seen = self.clocks.known[agents, warp]  # what each writer knows of each warp
        late = np.where(warp == agents, (last >= seen) & (self.reader[cells] != lanes), last > seen)
        wrong = (late & (last > 0)).any(axis=0)
        if wrong.any():
            k = int(np.argmax(wrong))
            reader = int(self.reader[cells[k]])
            raise Fault(
                f"byte {int(cells[k]) * self.granule % self.size} of shared memory: thread {int(lanes[k])} writes what "
                f"{'several threads' if reader == SEVERAL else f'thread {reader}'} read with no barrier between them"
            )

    def store(
        self,
        cells: Array,
        size: float,
        values: Array,
        lanes: Array,
        agents: Array,
        active: Array,
        kind: float | None = None,
    ) -> None:
        """Put values into cells; with `kind` FLYING only say that they will change. Raises Fault for races."""
        agents, lanes, cells = _taken(active, agents, lanes, cells)
        if not cells.size:
            return
        values = np.broadcast_to(values, (self.arithmetic.fields, *active.shape))
        values = values.reshape(len(values), -1) if active.all() else values[:, active]
        if (self.kind[cells] == FLYING).any():
            raise Fault("something is written where a copy is on its way to")
        if self.watched:
            self._after_writes(cells, np.ones(cells.shape, bool), lanes, agents)
            self._after_reads(cells, lanes, agents)
        self.put(cells, size, values, lanes, self.clocks.now(agents), kind)
        if not np.array_equal(self.values[:, cells], values, equal_nan=not self.arithmetic.residues):
            raise Fault("several threads write different values to one place in shared memory")

    def put(
        self, cells: Array, size: float, values: Array, writers: Array, stamps: Array, kind: float | None = None
    ) -> None:
        """Put values into cells without looking who else is there."""
        for d in range(1, int(size / self.granule)):
            self.kind[cells + d] = FLYING if kind == FLYING else UNWRITTEN
            self.writer[cells + d] = writers
            self.stamp[cells + d] = stamps
        before = self.kind[cells]
        others = (before != size) & (before != FLYING)  # a place of this size is its own already
        if others.any():
            self._cut(cells[others])
        self.values[:, cells] = values
        self.kind[cells] = size if kind is None else kind
        self.writer[cells] = writers
        self.stamp[cells] = stamps
        self.shown[cells] = False

    def show(self, lanes: Array) -> None:
        """Show what these threads have written to matrix instructions of several warps."""
        self.shown |= np.isin(self.writer, lanes) & (self.kind != FLYING)


def _taken(active: Array, *arrays: Array) -> tuple[Array, ...]:
    """Arrays of the shape of `active`, one after the other, where it holds."""
    wide = (np.broadcast_to(x, active.shape) for x in arrays)
    return tuple(x.reshape(-1) for x in wide) if active.all() else tuple(x[active] for x in wide)
