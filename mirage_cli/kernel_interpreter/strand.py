"""Strands: warps of some blocks that run in step, their lanes side by side in arrays. Barriers of strands that wait for one
another pass control from strand to strand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter.memory import Beside, Fault, Global, Memory, Pointer
from mirage_cli.kernel_interpreter.numbers import Arithmetic, Array, Number
from mirage_cli.kernel_interpreter.shared import FLYING, Clocks, Shared


@dataclass(slots=True)
class Launch:
    """A launch: which blocks run (`blocks`, those of a cluster one after the other), with how many threads and bytes of
    shared memory each, in clusters of how many; `dependent`: while what was launched before may still run; `resident`: all
    of them at the same time."""

    blocks: Sequence[int]
    threads: int
    shared_bytes: int
    grid: int
    cluster: int = 1
    dependent: bool = False
    resident: bool = False


@dataclass(slots=True)
class World:
    """The state that all strands of a launch share."""

    arithmetic: Arithmetic
    launch: Launch
    shared: Memory
    clocks: Clocks
    turns: Turns
    barriers: dict[Any, Any] = field(default_factory=dict)  #: named barriers and what else instructions keep for all
    array: Callable[..., Any] | None = None  #: how arrays are made that kernels declare (None: of registers)
    endings: list[Callable[[], None]] = field(default_factory=list)  #: what has to hold when all strands have ended
    sees: Array | None = None  #: [block, block]: for what the other one did up to how many barriers it has waited
    epochs: Array | None = None  #: of each block how many barriers of the grid it has been at, where there are such
    iterations: int = 0  #: that have run side by side
    at_once: bool = False  #: whether copies are there as soon as they begin
    key: object = field(default_factory=object)  #: what is its own


@dataclass(slots=True)
class Copies:
    """Elements of `bytes` on their way to `cells` of shared memory, each with the lane that copies it and the number of the
    lane's group that it is of."""

    shared: Shared
    bytes: float
    cells: Array
    values: Array
    lane: Array
    group: Array

    def only(self, some: Array) -> Copies:
        """A part of them."""
        return Copies(
            self.shared, self.bytes, self.cells[some], self.values[:, some], self.lane[some], self.group[some]
        )

    def arrive(self, s: Strand) -> None:
        """They are there."""
        if not (self.shared.kind[self.cells] == FLYING).all():
            raise Fault("something else was written where a copy was on its way to")
        lanes = s.lanes[self.lane]
        self.shared.put(self.cells, self.bytes, self.values, lanes, s.world.clocks.now(lanes // 32))


class Turns:
    """One strand runs at a time; one that waits lets the next one run."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.order: list[int] = []
        self.failed: BaseException | None = None
        self.ended = 0  #: waits that have ended

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run jobs until all have ended. Raises what the first one that failed raised."""
        if len(jobs) == 1:
            self.order = [0]
            jobs[0]()
            return
        self.order = list(range(len(jobs)))
        threads = [threading.Thread(target=self._job, args=(k, job), daemon=True) for k, job in enumerate(jobs)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if self.failed is not None:
            raise self.failed

    def _job(self, k: int, job: Callable[[], None]) -> None:
        try:
            with self.condition:
                self.condition.wait_for(lambda: self.order[:1] == [k] or self.failed is not None)
            if self.failed is None:
                job()
        except BaseException as e:
            self.failed = self.failed or e
        finally:
            with self.condition:
                self.ended += 1
                if k in self.order:
                    self.order.remove(k)
                self.condition.notify_all()

    def until(self, k: int, ready: Callable[[], bool], what: str) -> None:
        """Let others run until something holds. Raises Fault where all wait."""
        waited, ended = 0, self.ended
        while not ready():
            if ended != self.ended:
                waited, ended = 0, self.ended
            if waited > len(self.order):
                raise Fault(f"{what}: nobody is left who could end this wait")
            with self.condition:
                others = len(self.order)
                self.order.append(self.order.pop(0))
                waited = waited + 1 if others else 1
                self.condition.notify_all()
                self.condition.wait_for(lambda: self.order[:1] == [k] or self.failed is not None)
            if self.failed is not None:
                raise Fault("another strand failed")
        self.ended += 1


class Strand:
    """Lanes that run in step: `thread` is the number of each in its block, `block` the number of its block among those that
    run, `active` says which take part in what is run now."""

    def __init__(self, world: World, number: int, block: Array, thread: Array) -> None:
        self.world, self.number = world, number
        self.arithmetic = world.arithmetic
        self.block, self.thread = block, thread
        self.lanes = block * world.launch.threads + thread  #: their numbers in all blocks
        self.warps = self.lanes // 32
        self.active: Array = np.ones(len(thread), dtype=bool)
        self.exited: Array = np.zeros(len(thread), dtype=bool)
        self.left_loop: Array = np.zeros(len(thread), dtype=bool)  #: lanes that have left the innermost loop,
        self.left_call: Array = np.zeros(len(thread), dtype=bool)  #: or the function that runs
        self.waited: Array = np.full(len(thread), not world.launch.dependent)  #: for what was launched before
        self.calls = 0  #: functions that run
        self.result: Any = None  #: what the innermost function returns
        self.env: list[Any] = []
        self.kept: list[Any] = []  #: what iterations write that run side by side: see `nests.py`
        self.beside: list[Beside] = []  #: the loops whose iterations its lanes are, outermost first
        self.copies: list[Copies] = []  #: asynchronous copies on their way
        self.committed: Array = np.zeros(len(thread), dtype=np.int64)  #: groups of copies that each lane has ended
        self.blocks_of_grid: Any = np.asarray(world.launch.blocks, dtype=np.int64)[block]

    @property
    def count(self) -> int:
        """Lanes."""
        return len(self.thread)

    @contextmanager
    def only(self, mask: Array) -> Iterator[None]:
        """Run something for some lanes."""
        before, self.active = self.active, mask
        try:
            yield
        finally:
            self.active = before & ~self.exited

    def part(self, some: Array) -> Strand:
        """Lanes in these places as a strand of their own, with nothing but what it needs for memory."""
        return Strand(self.world, self.number, self.block[some], self.thread[some])

    # --- values ---------------------------------------------------------------------------------------------------------
    def merge(self, old: Any, new: Any) -> Any:
        """The value of a variable when the active lanes have given it a new one."""
        if old is new or self.active.all():
            return new
        if old is None:
            if not isinstance(new, Number):
                return new
            parts = new.a.shape[0] // self.arithmetic.fields  # words hold several numbers
            old = Number(np.concatenate([self.arithmetic.arbitrary((self.count,)) for _ in range(parts)]))
        if isinstance(new, Number) or isinstance(old, Number):
            a, b = self.arithmetic.number(old).a, self.arithmetic.number(new).a
            return Number(np.where(self.active, b, a))
        if isinstance(new, bool | int | np.ndarray | np.generic):
            if isinstance(new, bool | int) and isinstance(old, bool | int) and new == old:
                return new
            return np.where(self.active, new, old)
        if isinstance(new, Pointer) and isinstance(old, Pointer) and new.memory is old.memory:
            block = None if new.block is None else np.where(self.active, new.block, old.block)
            return Pointer(new.memory, np.where(self.active, new.at, old.at), new.type, block)
        return new

    def wide(self, x: Any) -> Array:
        """A number as [fields, lanes]."""
        a = self.arithmetic.number(x).a
        return np.broadcast_to(a, (self.arithmetic.fields, self.count))

    # --- memory ---------------------------------------------------------------------------------------------------------
    def load(self, p: Pointer, index: Any = 0, active: Array | None = None) -> Array:
        """Elements `index` (any shape whose last dimension are the lanes, or a number) from a pointer: [fields, ..., lanes].
        What inactive lanes get has no meaning."""
        return self.arithmetic.read(self._load(p, index, active), p.type)

    def _load(self, p: Pointer, index: Any, active: Array | None) -> Array:
        active = self.active if active is None else active
        index = np.broadcast_to(index, np.broadcast_shapes(np.shape(index), np.shape(p.at), (self.count,)))
        active = np.broadcast_to(active, index.shape)
        if isinstance(p.memory, Global):
            values = self._load_global(p, np.asarray(p.at) + index, active)
            if p.memory.constant or self.waited.all():
                return values
            return np.where(self.waited, values, self.arithmetic.arbitrary(values.shape[1:]))
        memory: Memory = p.memory
        if self.beside or active.all():
            cells = memory.cells(p, index, self.block, active)
            for loop in self.beside:
                loop.reads(memory, *self._granules(memory, p, cells, loop, active))
            return memory.load(cells, p.bytes, self.lanes, self.warps, active)
        here, every = (
            np.broadcast_to(np.arange(self.count), index.shape)[active],
            np.ones(int(active.sum()), dtype=bool),
        )
        at = replace(p, at=0, block=None if p.block is None else np.broadcast_to(p.block, index.shape)[active])
        cells = memory.cells(at, (index + p.at)[active], self.block[here], every)
        elements = np.zeros((self.arithmetic.fields, *index.shape), dtype=self.arithmetic.stored)
        elements[:, active] = memory.load(cells, p.bytes, self.lanes[here], self.warps[here], every)
        return elements

    def _granules(self, memory: Memory, p: Pointer, cells: Array, loop: Beside, active: Array) -> tuple[Array, Array]:
        """All granules of the active lanes' elements, and the iteration of each."""
        first, own = cells[active], np.broadcast_to(loop.own, cells.shape)[active]
        steps = np.arange(int(p.bytes / memory.granule))[:, None]
        return (first + steps).reshape(-1), np.tile(own, len(steps))

    def _load_global(self, p: Pointer, at: Array, active: Array) -> Array:
        memory: Global = p.memory
        self._inside(memory, at, active, "reads")
        if self._foreign(memory, at, active).any():
            raise Fault(f"a block reads what another one writes to {memory.name}, and has not waited for it")
        at = np.where(active, at, 0) if at.size else at
        if not memory.values.shape[1]:
            return np.zeros((self.arithmetic.fields, *at.shape), dtype=self.arithmetic.dtype)
        for loop in self.beside if memory.written is not None else ():
            loop.reads(memory, at[active], np.broadcast_to(loop.own, at.shape)[active])
        if self.world.epochs is not None and memory.written is not None:
            self._begun(memory)
            assert memory.reads is not None
            block = np.broadcast_to(self.block, at.shape)[active]
            memory.reads[block, at[active]] = self.world.epochs[block] + 1
        values = memory.values[:, at]
        if memory.written is not None and not memory.written[at].all():
            values = np.where(memory.written[at], values, self.arithmetic.arbitrary(at.shape))
        return values

    def _foreign(self, memory: Global, at: Array, active: Array) -> Array:
        """Which elements a lane may find as they were before another block's write, or after it."""
        if memory.writer is None or memory.writing is not self.world:
            return np.zeros(at.shape, dtype=bool)
        writer = memory.writer[np.where(active, at, 0)] if at.size else at
        foreign: Array = active & (writer >= 0) & (writer != self.block)
        if self.world.sees is None or memory.stamp is None:
            return foreign
        unseen: Array = foreign & (self.world.sees[self.block, writer] <= memory.stamp[np.where(active, at, 0)])
        return unseen

    def _begun(self, memory: Global) -> None:
        """What this launch writes to a memory, and reads of it, is kept from now on."""
        if memory.writer is not None and memory.writing is self.world:
            return
        memory.writing, n = self.world, memory.values.shape[1]
        memory.writer, memory.stamp = np.full(n, -1, dtype=np.int32), np.zeros(n, dtype=np.int32)
        blocks = len(self.world.launch.blocks)
        memory.reads = None if self.world.epochs is None else np.zeros((blocks, n), dtype=np.int32)

    def _after_reads(self, memory: Global, at: Array, block: Array) -> None:
        """Raises Fault where blocks write what another one may still read."""
        if memory.reads is None or memory.writing is not self.world:
            return
        read, own = memory.reads[:, at], np.arange(len(memory.reads))[:, None] == block
        seen = np.zeros_like(memory.reads[:, :1]) if self.world.sees is None else self.world.sees[block].T
        if ((read > seen) & ~own).any():
            raise Fault(f"a block writes what another one reads of {memory.name}, and has not waited for it")

    def _inside(self, memory: Global, at: Array, active: Array, what: str) -> None:
        outside = ((at < 0) | (at >= memory.values.shape[1])) & active
        if outside.any():
            lane = int(np.argwhere(outside)[0][-1])
            raise Fault(
                f"thread {int(self.thread[lane])} {what} element {int(at[outside][0])} of {memory.name}, "
                f"which has {memory.values.shape[1]}"
            )

    def store(self, p: Pointer, index: Any, values: Any, active: Array | None = None) -> None:
        """Put values ([fields, ..., lanes], or a Number) into elements from a pointer."""
        active = self.active if active is None else active
        values = self.wide(values) if not isinstance(values, np.ndarray) or values.ndim < 2 else values
        index = np.broadcast_to(index, np.broadcast_shapes(np.shape(index), np.shape(p.at), values.shape[1:]))
        active, values = np.broadcast_to(active, index.shape), self.arithmetic.held(values, p.type)
        if isinstance(p.memory, Global):
            if (active & ~self.waited).any():
                raise Fault(f"a thread writes {p.memory.name} and has not waited for what was launched before")
            self._store_global(p, np.asarray(p.at) + index, values, active)
            return
        memory: Memory = p.memory
        cells = memory.cells(p, index, self.block, active)
        for loop in self.beside:
            loop.writes(memory, *self._granules(memory, p, cells, loop, active))
        memory.store(cells, p.bytes, values, self.lanes, self.warps, active)

    def _store_global(self, p: Pointer, at: Array, values: Array, active: Array) -> None:
        memory: Global = p.memory
        if memory.written is None:
            raise Fault(f"a kernel writes {memory.name}, which is not its result")
        self._inside(memory, at, active, "writes")
        foreign = self._foreign(memory, at, active)[active]
        values = np.broadcast_to(values, (values.shape[0], *at.shape))[:, active]
        own = [np.broadcast_to(loop.own, at.shape)[active] for loop in self.beside]
        at, block = at[active], np.broadcast_to(self.block, at.shape)[active]
        for loop, iterations in zip(self.beside, own, strict=True):
            loop.writes(memory, at, iterations)
        self._after_reads(memory, at, block)
        if self.world.epochs is not None and foreign.any():
            raise Fault(f"two blocks write one element of {memory.name}, and none waits for the other")
        old = memory.values[:, at[foreign]]
        memory.values[:, at] = values
        now = np.concatenate([memory.values[:, at], old], axis=1)
        if not np.array_equal(
            now, np.concatenate([values, values[:, foreign]], axis=1), equal_nan=not self.arithmetic.residues
        ):
            raise Fault(f"several threads write different values to one element of {memory.name}")
        memory.written[at] = True
        memory.changed(at)
        self._begun(memory)
        assert memory.writer is not None and memory.stamp is not None
        memory.writer[at] = block
        memory.stamp[at] = 0 if self.world.epochs is None else self.world.epochs[block]

    def aligned(self, p: Pointer, bytes_: int, active: Array | None = None) -> None:
        """Raises Fault unless a pointer of the active lanes is a multiple of so many bytes."""
        active = self.active if active is None else active
        at = np.broadcast_to(np.asarray(p.at), np.broadcast_shapes(np.shape(p.at), (self.count,))) * p.bytes
        wrong = (at % bytes_ != 0) & active
        if wrong.any():
            raise Fault(f"byte {int(at[wrong][0])} is accessed as a vector of {bytes_} bytes")

    # --- barriers -------------------------------------------------------------------------------------------------------
    def together(self, groups: Array, what: str) -> None:
        """A barrier of lanes with equal numbers in `groups`, all of which are in this strand: all of a group take part, but
        those that have ended, or none. Raises Fault otherwise."""
        live = ~self.exited
        for g in np.unique(groups[self.active]):
            own = groups == g
            if not np.array_equal(self.active & own, live & own):
                here = int((self.active & own).sum())
                raise Fault(f"{what}: {here} of {int((live & own).sum())} threads wait")
            self.world.clocks.meet(np.unique(self.warps[own]))

    def whole_warps(self, what: str) -> None:
        """Raises Fault unless all lanes of a warp take part, or none."""
        active = self.active[: self.count // 32 * 32].reshape(-1, 32)
        if (active.any(axis=1) != active.all(axis=1)).any():
            raise Fault(f"{what}: not all threads of a warp take part")

    # --- asynchronous copies --------------------------------------------------------------------------------------------
    def copy(self, p: Pointer, index: Any, values: Array, active: Array | None = None) -> None:
        """Begin a copy to shared memory: what was there is gone, what comes is there after a wait."""
        active = self.active if active is None else active
        index = np.broadcast_to(index, np.broadcast_shapes(np.shape(index), np.shape(p.at), values.shape[1:]))
        active = np.broadcast_to(active, index.shape)
        shared: Shared = p.memory
        cells = shared.cells(p, index, self.block, active)
        if self.world.at_once:
            shared.store(cells, p.bytes, values, self.lanes, self.warps, active)
            return
        shared.store(cells, p.bytes, values, self.lanes, self.warps, active, kind=FLYING)
        lane = np.broadcast_to(np.arange(self.count), cells.shape)[active]
        kept = np.broadcast_to(values, (values.shape[0], *cells.shape))[:, active]
        self.copies.append(Copies(shared, p.bytes, cells[active], kept, lane, self.committed[lane]))

    def commit(self) -> None:
        """The active lanes each end a group of copies."""
        self.committed[self.active] += 1

    def wait_copies(self, left: int) -> None:
        """The active lanes wait until at most so many of their groups are on their way."""
        ended = np.where(self.active, self.committed - left, 0)
        flying = []
        for c in self.copies:
            done = c.group < ended[c.lane]
            if done.all():
                c.arrive(self)
                continue
            if done.any():
                c.only(done).arrive(self)
            flying.append(c.only(~done))
        self.copies = flying

    def shuffle(self, x: Any, source: Array) -> Number:
        """The number that lane `source` of the same warp has."""
        self.whole_warps("a shuffle")
        a = self.wide(x)
        place = np.arange(self.count) // 32 * 32 + source
        return Number(a[:, place])
