"""Instructions of `grid.cuh`: barriers of all blocks of a kernel, which run at the same time.

The block of task 0 opens the gate of the barriers. A block arrives at a barrier and waits there later; in between it may read
nothing that another block writes. Each block is at each barrier once, in their order. What is said to them (where the gate
lies, a number that no other launch has) has to be the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.memory import Fault, Pointer
from mirage_cli.kernel_interpreter.numbers import Array
from mirage_cli.kernel_interpreter.registry import instruction

WORD = 8  #: bytes of the gate, and of each counter behind it
registry.STAGES |= {"grid_start", "grid_arrive", "grid_wait"}


@dataclass(slots=True)
class Stages:
    """The barriers of a launch: where their gate is, with which number it was opened, how many there are; at how many each
    block has been, the last one that it has waited at; what warps knew that came to each; whether the gate is closed again."""

    gate: tuple[Any, int]
    fresh: int
    count: int
    arrived: Array
    waited: Array
    known: dict[int, Array] = field(default_factory=dict)
    closed: bool = False


@instruction("grid_start")
def _grid_start(s: Any, static: Sequence[Any], task: Any, gate: Pointer, fresh: Any, count: Any) -> None:
    """Threads wait for what was launched before; the block of task 0 opens the gate."""
    own, launch = s.world.barriers.get("stages"), s.world.launch
    if not launch.resident or len(launch.blocks) != launch.grid:
        raise Fault("grid_start: blocks will wait for all others, which may not run at the same time")
    s.waited = s.waited | s.active
    first = s.active & (np.broadcast_to(task, (s.count,)) == 0) & (s.thread == 0)
    if not first.any():
        return
    if s.block[first].any():
        raise Fault("grid_start: another block than the first one opens the gate")
    number, count = _one(fresh, "grid_start"), _one(count, "grid_start")
    given: set[int] = s.world.barriers.get("fresh", set())
    if own is not None or number not in given:
        raise Fault("grid_start: the gate is open already, or another launch may have the same number")
    if first.sum() > 1:
        raise Fault("grid_start: several blocks open the gate")
    if gate.bytes != WORD or _one(gate.at, "grid_start") + count >= gate.memory.values.shape[1]:
        raise Fault(f"grid_start: there is no room for {count} counters")
    given.discard(number)
    place = (gate.memory, _one(gate.at, "grid_start"))
    none = np.zeros(launch.grid, dtype=np.int64)
    s.world.barriers["stages"] = stages = Stages(place, number, count, none, none.copy())
    s.world.endings.append(lambda: _ended(stages, s.world))
    words = np.arange(1 + count)[:, None] + np.zeros(s.count, dtype=np.int64)
    s.store(gate, words, s.wide(s.arithmetic.const(1))[:, None] + np.zeros(words.shape, dtype=int), first)


@instruction("grid_arrive")
def _grid_arrive(s: Any, static: Sequence[Any], gate: Pointer, fresh: Any, number: Any) -> None:
    """Blocks are at a barrier: what they did before is seen by all that wait there."""
    s.together(s.block, "grid_arrive")
    number = _one(number, "grid_arrive")
    own, blocks = _stages(s, gate, number, "grid_arrive"), np.unique(s.block[s.active])
    if _one(fresh, "grid_arrive") != own.fresh:
        raise Fault("grid_arrive: nobody opens this gate")
    if (own.arrived[blocks] != number - 1).any():
        raise Fault(f"grid_arrive: a block is at barrier {number} and has been at {own.arrived[blocks[0]]}")
    if (s.active & ~s.waited).any():
        raise Fault("grid_arrive: a thread has not waited for what was launched before")
    own.arrived[blocks] += 1
    s.world.epochs[blocks] += 1
    for warp in np.unique(s.warps[s.active]):  # what blocks did to each other's shared memory is ordered too
        seen = s.world.clocks.publish(warp)
        own.known[number] = np.maximum(own.known.get(number, seen), seen)


@instruction("grid_wait")
def _grid_wait(s: Any, static: Sequence[Any], task: Any, gate: Pointer, number: Any) -> None:
    """Blocks whose task is their first one wait until all are at a barrier."""
    with s.only(s.active & (np.broadcast_to(task, (s.count,)) == s.blocks_of_grid)):
        if not s.active.any():
            return
        s.together(s.block, "grid_wait")
        number = _one(number, "grid_wait")
        own, blocks = _stages(s, gate, number, "grid_wait"), np.unique(s.block[s.active])
        missing = np.flatnonzero(own.arrived < number)
        if missing.size:
            raise Fault(f"grid_wait: block {missing[0]} never comes to barrier {number}")
        if (own.waited[blocks] >= number).any():
            raise Fault(f"grid_wait: a block waits at barrier {number} again")
        own.waited[blocks] = number
        own.closed |= number == 1 and 0 in blocks
        s.world.sees[blocks] = np.maximum(s.world.sees[blocks], number)
        s.world.clocks.learn(np.unique(s.warps[s.active]), own.known[number])


def _stages(s: Any, gate: Pointer, number: int, what: str) -> Stages:
    """The barriers that a call is about. Raises Fault where there are no such."""
    own: Stages | None = s.world.barriers.get("stages")
    if own is None:
        raise Fault(f"{what}: nobody has opened the gate")
    if gate.memory is not own.gate[0] or _one(gate.at, what) != own.gate[1] or not 0 < number <= own.count:
        raise Fault(f"{what}: this is no barrier")
    if not gate.memory.written[own.gate[1] : own.gate[1] + own.count + 1].all():
        raise Fault(f"{what}: something else was written where the barriers are")
    return own


def _one(value: Any, what: str) -> int:
    """What all threads say."""
    if np.ndim(value) and np.ptp(value):
        raise Fault(f"{what}: threads say different things of the barriers")
    return int(np.max(value))


def _ended(own: Stages, world: Any) -> None:
    """Raises Fault where a block has missed a barrier, the gate stays open for the next launch, or a compiler may take for
    constant what blocks write."""
    if (own.arrived != own.count).any():
        raise Fault(f"a block ends and has not been at {own.count} barriers")
    if not own.closed:
        raise Fault("a kernel ends and leaves the gate of its barriers open")
    for memory in world.barriers.get("restricted", ()):
        if memory.writing is world and (memory.writer >= 0).any():
            raise Fault(f"a pointer to {memory.name} says that nobody writes what it reads")
