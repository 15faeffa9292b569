"""Memories of blocks that run side by side: global arrays, shared memory with who wrote and read what, registers.

Nothing is trusted: a read of what nobody wrote, or of what a copy has not brought yet, gives an arbitrary value; an access
outside of an array, a misaligned vector, and two accesses of shared memory without a barrier between them are faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter.numbers import Arithmetic, Array, Number

SIZES = {
    "float": 4,
    "double": 8,
    "__half": 2,
    "__nv_bfloat16": 2,
    "half": 2,
    "bfloat": 2,
    "int64_t": 8,
    "uint64_t": 8,
    "int32_t": 4,
    "uint32_t": 4,
    "int": 4,
    "unsigned": 4,
    "int16_t": 2,
    "uint16_t": 2,
    "int8_t": 1,
    "uint8_t": 1,
    "char": 1,
}  #: bytes of element types
BARRIERS = 40  #: in the shared memory of a block, at most
SEVERAL = -2  #: the reader of what several threads have read since they met
UNWRITTEN, FLYING = 0, -1  #: what a cell of shared memory holds: nothing, something that a copy is still bringing


class Fault(Exception):
    """A kernel does what no kernel may: the statement's text and what is wrong."""


class Unknown(Exception):
    """A kernel has something that the interpreter does not know: nothing is said of it."""


@dataclass(slots=True)
class Global:
    """A tensor or workspace: [fields, elements], which elements were written (None: all, before the kernel), and by which
    blocks (-1: none) of those that run side by side in `writing`."""

    name: str
    values: Array
    bytes: int = 4
    written: Array | None = None
    constant: bool = False  #: of the model: nothing that was launched before writes it
    writing: Any = None
    writer: Array | None = None
    changed: Callable[[Array], None] = lambda elements: None  #: told which elements were written


@dataclass(slots=True)
class Pointer:
    """A place: `memory` is a Global or the Shared memory of the lanes' blocks; `at` counts elements of `type`. In shared
    memory `at` is from the start of the block, or of block number `block` of all that run where that is given. A lane for
    which `null` holds has none."""

    memory: Any
    at: Any
    type: str
    block: Any = None
    null: Any = None  #: which lanes have none (None: all have one)

    def plus(self, n: Any) -> Pointer:
        """So many elements further."""
        return replace(self, at=self.at + n)

    def of(self, type_: str) -> Pointer:
        """The same place, of elements of another type."""
        size, new = SIZES[self.type], SIZES[type_]
        if isinstance(self.memory, Global) or size == new:
            return replace(self, type=type_)
        at = self.at * size
        if np.any(np.asarray(at) % new):
            raise Fault(f"byte {np.asarray(at).max()} is no place for a {type_}")
        return replace(self, at=at // new, type=type_)

    @property
    def bytes(self) -> int:
        """Of an element."""
        return SIZES[self.type]


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


@dataclass(slots=True)
class Shared:
    """The shared memory of `blocks` blocks of `size` bytes: for each granule its value, the bytes of what begins there, who
    wrote it when, and who read it when."""

    arithmetic: Arithmetic
    blocks: int
    size: int
    clocks: Clocks
    warps: int  #: agents in all blocks (warps, and behind them what copies for each block)
    granule: int = 2
    cluster: int = 1  #: blocks whose agents may reach each other's memory
    values: Array = field(init=False)
    kind: Array = field(init=False)
    writer: Array = field(init=False)
    stamp: Array = field(init=False)
    reads: Array = field(init=False)
    reader: Array = field(init=False)
    shown: Array = field(init=False)  #: whether matrix instructions of several warps see it

    def __post_init__(self) -> None:
        cells = self.blocks * self.size // self.granule
        self.values = np.zeros((self.arithmetic.fields, cells), dtype=self.arithmetic.dtype)
        self.kind = np.zeros(cells, dtype=np.int8)
        self.writer = np.full(cells, -1, dtype=np.int32)  # a thread, or -2 - k for agent k that is no warp
        self.stamp = np.zeros(cells, dtype=np.int32)
        self.reads = np.zeros((self.cluster * self.warps // max(1, self.blocks), cells), dtype=np.int32)
        self.reader = np.full(cells, -1, dtype=np.int32)
        self.shown = np.zeros(cells, dtype=bool)

    def cells(self, p: Pointer, index: Any, block: Array, active: Array) -> Array:
        """The granules of elements `index` (its last dimension are the lanes) from a pointer. Raises Fault outside."""
        at = (np.asarray(p.at) + np.asarray(index)) * p.bytes
        at = np.broadcast_to(at, np.broadcast_shapes(at.shape, active.shape))
        outside = ((at < 0) | (at + p.bytes > self.size)) & active
        if outside.any():
            raise Fault(f"byte {int(at[outside][0])} of {self.size} bytes of shared memory")
        at = np.where(active, at, 0)
        own = block if p.block is None else np.asarray(p.block)
        return (own * self.size + at) // self.granule

    def agents(self, cells: Array) -> Array:
        """The agents that may reach cells, as many for each as `reads` has rows: [agents, ...]."""
        own = self.warps // self.blocks - 1  # warps of a block
        first = cells // (self.size // self.granule) // self.cluster * self.cluster
        warps = first * own + np.arange(self.cluster * own).reshape(-1, *[1] * cells.ndim)
        copying = self.blocks * own + first + np.arange(self.cluster).reshape(-1, *[1] * cells.ndim)
        return np.concatenate([warps, copying])

    def row(self, agents: Array, cells: Array) -> Array:
        """The rows of `reads` that agents have at cells."""
        own = self.warps // self.blocks - 1
        first = cells // (self.size // self.granule) // self.cluster * self.cluster
        rows: Array = np.where(
            agents < self.blocks * own, agents - first * own, agents - self.blocks * own - first + self.cluster * own
        )
        return rows

    def load(self, cells: Array, size: int, lanes: Array, agents: Array, active: Array) -> Array:
        """The values of cells: [fields, ..., lanes]. Raises Fault where another warp wrote them without a barrier since."""
        known = self.kind[cells] == size
        values = self.values[:, cells]
        if not known.all():
            values[:, ~known] = self.arithmetic.arbitrary((int((~known).sum()),))
        self._after_writes(cells, known & active, lanes, agents)
        spread = np.broadcast_to(agents, cells.shape)[active]
        row, now = self.row(spread, read := cells[active]), self.clocks.now(spread)
        lane, before = np.broadcast_to(lanes, cells.shape)[active], self.reader[read]
        several = (self.reads[row, read] == now) & (before != lane)
        self.reads[row, read], self.reader[read] = now, lane
        self.reader[read[several | (self.reader[read] != lane)]] = SEVERAL
        return values

    def _after_writes(self, cells: Array, active: Array, lanes: Array, agents: Array) -> None:
        """Raises Fault unless what others wrote to cells happened before."""
        lanes, agents = np.broadcast_to(lanes, cells.shape), np.broadcast_to(agents, cells.shape)
        writer = self.writer[cells]
        by = np.where(writer >= 0, writer // 32, -2 - writer)
        seen = self.clocks.known[agents, np.maximum(by, 0)]
        own = agents == by  # within a warp: something has to bring its lanes together
        late = np.where(own, seen <= self.stamp[cells], seen < self.stamp[cells])
        wrong = active & (writer != -1) & (writer != lanes) & late
        if wrong.any():
            where = tuple(np.argwhere(wrong)[0])
            raise Fault(
                f"byte {int(cells[where]) * self.granule % self.size} of shared memory: thread "
                f"{int(lanes[where])} comes to what thread {int(writer[where])} wrote with no barrier between them"
            )

    def _after_reads(self, cells: Array, lanes: Array, agents: Array) -> None:
        """Raises Fault unless what others read of cells happened before."""
        last = self.reads[:, cells]  # [agents, n]
        if not last.any():
            return
        warp = self.agents(cells)
        seen = self.clocks.known[agents, warp]  # what each writer knows of each agent
        own = warp == agents
        late = np.where(own, (last >= seen) & (self.reader[cells] != lanes), last > seen)
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
        size: int,
        values: Array,
        lanes: Array,
        agents: Array,
        active: Array,
        kind: int | None = None,
    ) -> None:
        """Put values into cells; with `kind` FLYING only say that they will change. Raises Fault for races."""
        flat = active.reshape(-1)
        shape = cells.shape
        cells = cells.reshape(-1)[flat]
        if not cells.size:
            return
        lanes = np.broadcast_to(lanes, shape).reshape(-1)[flat]
        agents = np.broadcast_to(agents, shape).reshape(-1)[flat]
        if (self.kind[cells] == FLYING).any():
            raise Fault("something is written where a copy is on its way to")
        self._after_writes(cells, np.ones(cells.shape, bool), lanes, agents)
        self._after_reads(cells, lanes, agents)
        values = np.broadcast_to(values, (self.arithmetic.fields, *shape)).reshape(self.arithmetic.fields, -1)[:, flat]
        self.put(cells, size, values, lanes, self.clocks.now(agents), kind)
        if not np.array_equal(self.values[:, cells], values, equal_nan=not self.arithmetic.residues):
            raise Fault("several threads write different values to one place in shared memory")

    def put(
        self, cells: Array, size: int, values: Array, writers: Array, stamps: Array, kind: int | None = None
    ) -> None:
        """Put values into cells without looking who else is there."""
        for d in range(1, size // self.granule):
            self.kind[cells + d] = FLYING if kind == FLYING else UNWRITTEN
            self.writer[cells + d] = writers
            self.stamp[cells + d] = stamps
        for d in range(1, 8 // self.granule):
            before = np.maximum(cells - d, 0)
            cut = self.kind[before] > d * self.granule
            self.kind[before[cut & (cells >= d)]] = UNWRITTEN
        self.values[:, cells] = values
        self.kind[cells] = size if kind is None else kind
        self.writer[cells] = writers
        self.stamp[cells] = stamps
        self.shown[cells] = False

    def show(self, lanes: Array) -> None:
        """Show what these threads have written to matrix instructions of several warps."""
        self.shown |= np.isin(self.writer, lanes) & (self.kind != FLYING)


class Cells:
    """An array in registers: a value of each lane for each place. `dims` are its own; a part of it shares its places."""

    def __init__(
        self, dims: Sequence[int], values: list[Any] | None = None, first: int = 0, type_: str = "float"
    ) -> None:
        self.dims, self.first, self.type = tuple(dims), first, type_
        self.values: list[Any] = values if values is not None else [None] * self.size

    @property
    def size(self) -> int:
        """Places."""
        n = 1
        for d in self.dims:
            n *= d
        return n

    def part(self, k: int) -> Cells:
        """The places with first index k."""
        if not 0 <= k < self.dims[0]:
            raise Fault(f"place {k} of {self.dims[0]} registers")
        inner = self.size // self.dims[0]
        return Cells(self.dims[1:], self.values, self.first + k * inner, self.type)

    def place(self, k: int) -> int:
        """Where element k of an array of one dimension lies."""
        if not 0 <= k < self.dims[0]:
            raise Fault(f"place {k} of {self.dims[0]} registers")
        return self.first + k

    def all(self) -> list[Any]:
        """The values of all places."""
        return self.values[self.first : self.first + self.size]

    def set_all(self, values: Sequence[Any]) -> None:
        """Give all places values."""
        self.values[self.first : self.first + self.size] = list(values)


def number_of(x: Any) -> Number:
    """A value that has to be a number."""
    if not isinstance(x, Number):
        raise Fault(f"expected a number, found {type(x).__name__}")
    return x
