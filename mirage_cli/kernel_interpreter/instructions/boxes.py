"""Boxes of tensors that the copy engine brings to shared memory (`tma.cuh`), and the maps that the host makes of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.instructions.barriers import BASE, Barrier, alone, touch
from mirage_cli.kernel_interpreter.memory import Fault, Pointer
from mirage_cli.kernel_interpreter.numbers import Array
from mirage_cli.kernel_interpreter.registry import instruction
from mirage_cli.kernel_interpreter.shared import FLYING

ROW = 128  #: bytes of a row of a panel, whose chunks of 16 are swizzled by its number
WALK = 2  #: units that blocks of a walking grid take one after the other, so that rings of one slot come round
INVALID = 1  #: the status where a tensor has no map

KINDS = {"FLOAT16": (6, 2), "FLOAT32": (7, 4), "BFLOAT16": (9, 2)}  #: types of maps: numbers, and bytes of an element
for _name, (_kind, _) in KINDS.items():
    registry.CONSTANTS[f"CU_TENSOR_MAP_DATA_TYPE_{_name}"] = str(_kind)


def swizzled(address: Array) -> Array:
    """Where the copy engine and matrix products have what belongs at an address."""
    place: Array = address ^ (address >> 7 & 7) << 4
    return place


# --- maps ---------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Boxes:
    """A stored tensor, innermost dimension first: positions, bytes between neighbours, positions of a box."""

    base: Pointer
    extents: list[int]
    strides: list[int]
    box: list[int]
    bytes: int = 2  #: of an element

    def valid(self) -> bool:
        """True if the driver makes a map of it."""
        return (
            self.base.at * self.bytes % 16 == 0
            and all(n > 0 for n in self.extents)
            and all(n % 16 == 0 and n > 0 for n in self.strides[1:])
            and all(0 < n <= 256 for n in self.box)
            and self.box[0] * self.bytes == ROW
        )

    def positions(self) -> Array:
        """The positions of a box relative to its first one: [dimensions, positions]."""
        return np.indices(self.box[::-1]).reshape(len(self.box), -1)[::-1]


@dataclass(slots=True)
class TensorMap:
    """A tensor map; `boxes` is None until the host has made it."""

    boxes: Boxes | None = field(default=None)

    def make(self, s: Any, to: TensorMap, kind: int, boxes: Boxes) -> int:
        """Make the map of a tensor; the status."""
        boxes.bytes = dict(KINDS.values())[int(kind)]
        if not boxes.valid():
            return INVALID
        to.boxes = boxes
        return 0


def _boxes(s: Any, static: Sequence[Any], base: Pointer, *numbers: int) -> Boxes:
    rank = int(static[0])
    if len(numbers) != 3 * rank:
        raise Fault(f"{len(numbers)} numbers for boxes of {rank} dimensions")
    extents, strides, box = (list(numbers[k * rank : (k + 1) * rank]) for k in range(3))
    return Boxes(base, extents, strides, box)


registry.STRUCTS["Boxes"] = _boxes
registry.STRUCTS["TensorMap"] = lambda s, static: TensorMap()
registry.STRUCTS["CUtensorMap"] = lambda s, static: TensorMap()
instruction("prefetch_map")(lambda s, static, *args: None)


@instruction("walking_blocks")
def _walking_blocks(s: Any, static: Sequence[Any], units: int, cluster: int, resident: int) -> int:
    """As on a small device."""
    return -(-int(units) // WALK) * int(cluster)


# --- boxes --------------------------------------------------------------------------------------------------------------
@instruction("shared_address")
def _shared_address(s: Any, static: Sequence[Any], p: Pointer) -> Any:
    return BASE + p.at * p.bytes


@instruction("load_box")
def _load_box(
    s: Any, static: Sequence[Any], to: Any, map_: TensorMap, full: Barrier, at: Any, mask: int | None = None
) -> None:
    """Begin to copy the box whose first position is `at`, in each lane."""
    if map_.boxes is None:
        raise Fault("no map was made of this tensor")
    several = len(static) > 1 and bool(static[1])
    lanes = np.flatnonzero(s.active)
    values = _values(s, map_.boxes, [np.broadcast_to(x, s.active.shape)[lanes] for x in at.all()])
    to = np.broadcast_to(to, s.active.shape)[lanes]
    if (to % ROW).any():
        raise Fault(f"a box is brought to address {int(to[0])}")
    for rank in [r for r in range(16) if int(mask or 0) >> r & 1] if several else [None]:
        _bring(s, lanes, to, full, values, map_.boxes.bytes, rank)


def _values(s: Any, boxes: Boxes, at: Sequence[Array]) -> Array:
    """The elements of boxes, 0 outside of the tensor: [fields, lanes, positions]."""
    if not s.waited[s.active].all() and not boxes.base.memory.constant:
        return s.arithmetic.arbitrary((len(at[0]), boxes.positions().shape[1]))  # type: ignore[no-any-return]
    places = boxes.positions()[:, None] + np.stack(at)[:, :, None]
    inside = ((places >= 0) & (places < np.array(boxes.extents)[:, None, None])).all(axis=0)
    strides = [1, *(n // boxes.bytes for n in boxes.strides[1:])]
    index = np.where(inside, np.tensordot(np.array(strides), places, axes=1) + boxes.base.at, 0)
    memory = boxes.base.memory
    if inside.any() and index.max() >= memory.values.shape[1]:
        raise Fault(f"a box reads element {int(index.max())} of {memory.name}, which has {memory.values.shape[1]}")
    if memory.written is not None:
        elements = np.where(memory.written[index], memory.values[:, index], s.arithmetic.arbitrary(index.shape))
    else:
        elements = memory.values[:, index]
    return np.where(inside, elements, 0)


def _bring(s: Any, lanes: Array, to: Array, full: Barrier, values: Array, size: int, rank: int | None) -> None:
    """Begin to copy boxes to the lanes' blocks, or to block `rank` of their clusters."""
    cluster, shared, clocks = s.world.launch.cluster, full.place.memory, s.world.clocks
    block = s.block[lanes]
    if rank is not None and rank >= cluster:
        raise Fault(f"a box for block {rank} of a cluster of {cluster}")
    there = block if rank is None else block // cluster * cluster + rank
    address = swizzled(to[:, None] + np.arange(values.shape[2]) * size) - BASE
    if address.min() < 0 or address.max() >= shared.size:
        raise Fault(f"a box is brought to byte {int(address.max())} of {shared.size} bytes of shared memory")
    cells = shared.granules(there[:, None] * shared.size + address)
    blocks = np.array(s.block)
    blocks[lanes] = there
    places = full.cells(s, blocks)[lanes]
    agents = np.array([alone(s, int(w)) for w in s.warps[lanes]])
    phases = [full.at(s, cell, int(agent), True) for cell, agent in zip(places, agents, strict=True)]
    touch(s, agents[there != block], there[there != block])
    before = clocks.known[agents].copy()
    clocks.known[agents] = np.maximum(before, clocks.copies[agents])
    ids = np.broadcast_to(s.lanes[lanes][:, None], cells.shape)
    shared.store(
        cells, size, values, ids, np.broadcast_to(agents[:, None], cells.shape), np.ones(cells.shape, bool), FLYING
    )
    clocks.known[agents] = before
    if s.world.at_once:
        shared.kind[cells] = size
    for k, p in enumerate(phases):
        shared.writer[cells[k]] = -2 - p.agent
        shared.stamp[cells[k]] = len(p.done) + 1
        p.boxes.append((shared, cells[k], size))
        p.count(-cells[k].size * size)
