"""Instructions of `sync.cuh`: groups of warps that wait at named barriers, blocks of a cluster that wait for one another and
reach each other's shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter.instructions.barriers import meet
from mirage_cli.kernel_interpreter.instructions.common import put_vector, stacked
from mirage_cli.kernel_interpreter.memory import Cells, Fault, Pointer
from mirage_cli.kernel_interpreter.numbers import Array
from mirage_cli.kernel_interpreter.registry import instruction

BARRIERS = 16  #: named barriers of a block; the first one is that of __syncthreads


@instruction("wait_together")
def _wait_together(s: Any, static: Sequence[Any], number: Any) -> None:
    """A barrier of so many neighbouring threads. Groups walk on their own, so no two may use one number."""
    groups = s.lanes // static[0]
    if static[0] > 32:
        number = np.broadcast_to(number, groups.shape)
        users = s.world.barriers.setdefault("named", {})
        for block, k, group in set(zip(*(x[s.active].tolist() for x in (s.block, number, groups)), strict=True)):
            if not 0 < k < BARRIERS or users.setdefault((block, k), group) != group:
                raise Fault(f"wait_together: barrier {k} is that of other threads")
    s.together(groups, "wait_together")


@dataclass(slots=True)
class ClusterBarrier:
    """The barrier of clusters: which lanes have arrived, what each warp let the others know then, and which lanes have been
    through it, so that the blocks beside theirs are known to run."""

    arrived: Array
    known: Array
    passed: Array = field(init=False)

    def __post_init__(self) -> None:
        self.passed = np.zeros_like(self.arrived)


def _barrier(s: Any) -> ClusterBarrier:
    lanes = len(s.world.launch.blocks) * s.world.launch.threads
    return s.world.barriers.setdefault(  # type: ignore[no-any-return]
        "cluster", ClusterBarrier(np.zeros(lanes, dtype=bool), np.zeros_like(s.world.clocks.known))
    )


def _arrive(s: Any, release: bool) -> None:
    barrier, lanes = _barrier(s), s.lanes[s.active]
    if barrier.arrived[lanes].any():
        raise Fault("cluster_arrive: a thread arrives twice and has not waited")
    barrier.arrived[lanes] = True
    for warp in np.unique(s.warps[s.active]) if release else ():
        barrier.known[warp] = np.maximum(barrier.known[warp], s.world.clocks.publish(warp))


@instruction("cluster_arrive")
def _cluster_arrive(s: Any, static: Sequence[Any]) -> None:
    _arrive(s, True)


@instruction("cluster_arrive_relaxed")
def _cluster_arrive_relaxed(s: Any, static: Sequence[Any]) -> None:
    _arrive(s, False)


@instruction("cluster_wait")
def _cluster_wait(s: Any, static: Sequence[Any]) -> None:
    """All threads of the cluster have arrived, and what they wrote before is seen."""
    barrier, cluster = _barrier(s), s.block // s.world.launch.cluster
    for c in np.unique(cluster[s.active]):
        own = cluster == c
        if not barrier.arrived[s.lanes[own & ~s.exited]].all():
            raise Fault("cluster_wait: not all threads of the cluster have arrived")
        warps = np.unique(s.warps[own])
        s.world.clocks.learn(np.unique(s.warps[own & s.active]), barrier.known[warps].max(axis=0))
    barrier.arrived[s.lanes[s.active]] = False
    barrier.passed[s.lanes[s.active]] = True


@dataclass(slots=True)
class Sent:
    """What the blocks of a cluster send one of them: bytes that it waits for, those that came, and what their senders knew."""

    expected: int
    known: Array
    came: int = 0


@instruction("expect_sent")
def _expect_sent(s: Any, static: Sequence[Any], barrier: Pointer, bytes_: Any) -> None:
    sent = s.world.barriers.setdefault("sent", {})
    for block, n in zip(s.block[s.active], np.broadcast_to(bytes_, s.active.shape)[s.active], strict=True):
        if _barrier(s).arrived[s.lanes[s.block == block]].any() or int(block) in sent:
            raise Fault("expect_sent: others may have begun to send")
        sent[int(block)] = Sent(int(n), np.zeros_like(s.world.clocks.known[0]))


@instruction("send_floats")
def _send_floats(s: Any, static: Sequence[Any], to: Pointer, rank: Any, x: Cells, barrier: Pointer) -> None:
    there = in_block(s, (), to, rank)
    put_vector(s, there, stacked(s, x))
    sent = s.world.barriers.get("sent", {})
    for warp in np.unique(s.warps[s.active]):
        own = s.active & (s.warps == warp)
        seen = s.world.clocks.publish(int(warp))
        for block, n in zip(*np.unique(there.block[own], return_counts=True), strict=True):
            if int(block) not in sent:
                raise Fault("send_floats: the other block expects nothing")
            entry = sent[int(block)]
            entry.came += int(n) * 4 * x.size
            entry.known = np.maximum(entry.known, seen)


@instruction("await_sent")
def _await_sent(s: Any, static: Sequence[Any], barrier: Pointer) -> None:
    """Exactly what was expected has been sent, by blocks that run in step."""
    sent = s.world.barriers.get("sent", {})
    for block in np.unique(s.block[s.active]):
        entry = sent.get(int(block))
        if entry is None or entry.came != entry.expected:
            raise Fault(f"await_sent: {entry.came if entry else 0} bytes of {entry.expected if entry else 0} were sent")
        s.world.clocks.learn(np.unique(s.warps[s.active & (s.block == block)]), entry.known)
        del sent[int(block)]
    meet(s, "__syncthreads", s.block, s.world.launch.threads)


@instruction("in_block")
def in_block(s: Any, static: Sequence[Any], p: Pointer, rank: Any) -> Pointer:
    """The same place in another block of the cluster, which has to be there."""
    cluster = s.world.launch.cluster
    if not _barrier(s).passed[s.lanes[s.active]].all():
        raise Fault("in_block: the other block may not have begun")
    rank = np.broadcast_to(rank, s.active.shape)
    if ((rank < 0) | (rank >= cluster))[s.active].any():
        raise Fault(f"in_block: a cluster has {cluster} blocks")
    return Pointer(p.memory, p.at, p.type, s.block // cluster * cluster + np.where(s.active, rank, 0), p.null)
