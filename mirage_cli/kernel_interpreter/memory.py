"""Memories of blocks that run side by side: global arrays, scratch memory, registers.

Nothing is trusted: a read of what nobody wrote gives an arbitrary value; an access outside of an array, a misaligned vector,
and iterations of a loop that run side by side and need one another are faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter.numbers import Arithmetic, Array
from mirage_cli.lax.dtypes import SHARING

SIZES = {
    "float": 4,
    "double": 8,
    "__half": 2,
    "__nv_bfloat16": 2,
    "half": 2,
    "bfloat": 2,
    "e4m3": 1,
    "e5m2": 1,
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
    "u8": 1,
    "i8": 1,
}  #: bytes of element types
PARTS = {str(d): d.size for d in SHARING}  #: bytes of elements that share one with others
UNWRITTEN = 0  #: what a cell holds where nobody has written


def size_of(type_: str) -> float:
    """Bytes of an element of a type."""
    return PARTS[type_] if type_ in PARTS else SIZES[type_]


class Fault(Exception):
    """A kernel does what no kernel may: the statement's text and what is wrong."""


class Unknown(Exception):
    """A kernel has something that the interpreter does not know: nothing is said of it."""


@dataclass(slots=True)
class Global:
    """A tensor or workspace: [fields, elements], which elements were written (None: all, before the kernel), and by which
    blocks (-1: none) of those that run side by side in `writing`, after how many barriers of the grid (`stamp`); `reads`:
    [block, element], one more than the barriers after which it was last read (0: never), where blocks wait for one another."""

    name: str
    values: Array
    bytes: int = 4
    written: Array | None = None
    constant: bool = False  #: of the model: nothing that was launched before writes it
    rounds: bool = False  #: a weight, of which the model says that its products round what they multiply
    packed: str = ""  #: the type of numbers of which several share a byte, or nothing
    writing: Any = None
    writer: Array | None = None
    stamp: Array | None = None
    reads: Array | None = None
    changed: Callable[[Array], None] = lambda elements: None  #: told which elements were written
    marks: dict[Any, tuple[Array, Array]] = field(default_factory=dict)  #: see `Beside`


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
        size, new = self.bytes, size_of(type_)
        if isinstance(self.memory, Global) or size == new:
            return replace(self, type=type_)
        at = self.at * size
        if np.any(np.asarray(at) % new):
            raise Fault(f"byte {np.asarray(at).max()} is no place for a {type_}")
        return replace(self, at=np.asarray(at // new, dtype=np.int64), type=type_)

    @property
    def bytes(self) -> float:
        """Of an element."""
        return size_of(self.type)


@dataclass(slots=True)
class Memory:
    """`blocks` times `size` bytes: for each granule its value and the bytes of what begins there."""

    arithmetic: Arithmetic
    blocks: int
    size: int
    granule: float = 2
    name: str = "shared memory"
    values: Array = field(init=False)
    kind: Array = field(init=False)
    marks: dict[Any, tuple[Array, Array]] = field(default_factory=dict)  #: see `Beside`

    def __post_init__(self) -> None:
        cells = int(self.blocks * self.size / self.granule)
        self.values = np.zeros((self.arithmetic.fields, cells), dtype=self.arithmetic.stored)
        self.kind = np.zeros(cells, dtype=np.int8 if self.granule >= 1 else np.float32)

    def granules(self, at: Array) -> Array:
        """The granules that bytes `at` of all blocks' memories begin in."""
        return (at / self.granule).astype(np.int64)

    @property
    def places(self) -> int:
        """Granules of a block."""
        return int(self.size / self.granule)

    def cells(self, p: Pointer, index: Any, block: Array, active: Array) -> Array:
        """The granules of elements `index` (its last dimension are the lanes) from a pointer. Raises Fault outside."""
        at = (np.asarray(p.at) + np.asarray(index)) * p.bytes
        at = np.broadcast_to(at, np.broadcast_shapes(at.shape, active.shape))
        outside = ((at < 0) | (at + p.bytes > self.size)) & active
        if outside.any():
            raise Fault(f"byte {int(at[outside][0])} of {self.size} bytes of {self.name}")
        at = np.where(active, at, 0)
        own = block if p.block is None else np.asarray(p.block)
        return self.granules(own * self.size + at)

    def load(self, cells: Array, size: float, lanes: Array, agents: Array, active: Array) -> Array:
        """The values of cells, arbitrary where nothing of this size was put: [fields, ..., lanes]."""
        known = self.kind[cells] == size
        values = self.values[:, cells]
        if not known.all():
            values[:, ~known] = self.arithmetic.arbitrary((int((~known).sum()),))
        return values

    def store(self, cells: Array, size: float, values: Array, lanes: Array, agents: Array, active: Array) -> None:
        """Put values into cells. Raises Fault where several lanes put different ones into one."""
        cells, values = cells[active], np.broadcast_to(values, (values.shape[0], *active.shape))[:, active]
        self._put(cells, size, values)
        if not np.array_equal(self.values[:, cells], values, equal_nan=not self.arithmetic.residues):
            raise Fault(f"several threads write different values to one place in {self.name}")

    def _put(self, cells: Array, size: float, values: Array) -> None:
        if (self.kind[cells] != size).any():
            for d in range(1, int(size / self.granule)):
                self.kind[cells + d] = UNWRITTEN
            self._cut(cells)
            self.kind[cells] = size
        self.values[:, cells] = values

    def _cut(self, cells: Array) -> None:
        """What began before cells and reaches into them is gone."""
        for d in range(1, int(8 / self.granule)):
            before = np.maximum(cells - d, 0)
            cut = self.kind[before] > d * self.granule
            self.kind[before[cut & (cells >= d)]] = UNWRITTEN


@dataclass(slots=True)
class Beside:
    """Iterations of a loop that run side by side, none of which may need what another one does: `own` is the number of each
    lane's, from `first` on, unlike those of the other loops of its world; `last` stands for several. Memories keep who has
    written and read their places by `key`: a world's own for each depth of loops in loops."""

    key: Any
    first: int
    last: int
    own: Array

    def _marks(self, memory: Any) -> tuple[Array, Array]:
        if self.key not in memory.marks:
            n = memory.values.shape[1]
            memory.marks[self.key] = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        return memory.marks[self.key]  # type: ignore[no-any-return]

    def _others(self, memory: Any, marks: Array, own: Array) -> None:
        if ((marks >= self.first) & (marks != own)).any():
            raise Fault(
                f"iterations of a loop need one another: two come to one place in {memory.name}, and one writes it"
            )

    def reads(self, memory: Any, places: Array, own: Array) -> None:
        """Iterations read places. Raises Fault where another one has written them."""
        wrote, read = self._marks(memory)
        self._others(memory, wrote[places], own)
        before = read[places]
        read[places] = np.where((before < self.first) | (before == own), own, self.last)
        read[places[read[places] != own]] = self.last

    def writes(self, memory: Any, places: Array, own: Array) -> None:
        """Iterations write places. Raises Fault where another one has written or read them."""
        wrote, read = self._marks(memory)
        self._others(memory, wrote[places], own)
        self._others(memory, read[places], own)
        wrote[places] = own
        self._others(memory, wrote[places], own)


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
