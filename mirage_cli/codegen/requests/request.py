"""The request that an engine gets, and the kernel that it gives back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mirage_cli.codegen.requests.passes import ALL, Passes
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax.extents import Symbolic
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target

INDEXED = 3  #: in the place of a part of a source


class Spelled(Protocol):
    """A kernel with every decision made."""

    def text(self) -> str:
        """Readable lines, for golden files and `MIRAGE_DEBUG=tile`."""


@dataclass(frozen=True, slots=True)
class Request:
    """A kernel to make: `number` is its place in the fragment, `symbols` are the fragment's, `constants` those sources of
    `program` that no kernel writes (on a CPU: weights of the model, whose values are known before it runs), `hollow` the
    extents that the fragment sums over and that may be 0. Of the sources `alone` in parts, which no other kernel reads, the
    kernel may read the parts and store the whole."""

    program: Program
    block: BlockGraph
    schedule: Schedule
    target: Target
    number: int = 0
    symbols: tuple[str, ...] = ()
    passes: Passes = ALL
    constants: frozenset[int] = frozenset()
    hollow: tuple[Symbolic, ...] = ()
    alone: frozenset[int] = frozenset()

    @property
    def divides(self) -> bool:
        """True if the kernel has quotients that are to be 0 where the fragment sums over nothing."""
        return bool(self.hollow) and any(n.op == "div" for n in self.program.nodes)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The places among the fragment's symbols of those that the kernel needs."""
        names = {*self.program.symbols, *(n for e in self.hollow if self.divides for n in e.names)}
        return tuple(sorted(map(self.symbols.index, names)))


@dataclass(frozen=True, slots=True)
class Packing:
    """How a weight may lie packed for products: the weight's number, its elements and their bytes in panels, and how far
    columns (`row`) and summed positions (`depth`) lie apart, one of them 1. Whole numbers of `bits` bits share words or take
    bytes, with `turned` bits turned. Float32 may be `split` (1) for matrix instructions, where a machine has them."""

    source: int
    elements: int
    bytes: int
    row: int
    depth: int
    bits: int = 0
    turned: int = 0
    split: int = 0

    @property
    def deep(self) -> int:
        """The summed positions of the whole matrix."""
        return self.row if self.depth == 1 else self.elements // self.depth


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor that a kernel reads or writes: its name there, the C type of its elements, of an input the source's number, and
    how it is packed where it is the packed form of that source (which need not be there); which `part` of the source it is
    (1, 2; 0: the whole), or the index that chooses its rows (`INDEXED`). An output with a source is that source, stored whole
    from its parts."""

    name: str
    type: str
    source: int = -1
    packing: Packing | None = None
    part: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """How the host starts a kernel: the tensors and symbols (by number) among its parameters, factors of the number of
    blocks, threads and bytes of shared memory of a block (on a CPU: of a thread's own), blocks of a cluster, whether it may
    begin before the one before it has ended (`dependent`), on a CPU whether threads share its blocks out (`parallel`),
    whether all of its blocks run at the same time (`resident`), as many as a device holds, and up to how many blocks each asks
    for a multiprocessor of its own, by so many bytes of shared memory (`alone`)."""

    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    symbols: tuple[int, ...]
    blocks: tuple[ir.Expression, ...]
    threads: int = 1
    shared_bytes: int = 0
    cluster: int = 1
    dependent: bool = False
    parallel: bool = True
    resident: bool = False
    alone: tuple[int, int] = (0, 0)

    @property
    def asked_bytes(self) -> int:
        """Bytes of shared memory that a block asks for."""
        counts = [int(b.text) for b in self.blocks if isinstance(b, ir.Literal)]
        most, room = self.alone
        few = len(counts) == len(self.blocks) and math.prod(counts) <= most
        return max(self.shared_bytes, room) if few else self.shared_bytes

    def fields(self, *members: ir.Field) -> tuple[ir.Field, ...]:
        """The members of the kernel's parameters, with `members` of its own."""
        inputs = [ir.Field(ir.Type(i.type, pointers=1, const=True), i.name) for i in self.inputs]
        outputs = [ir.Field(ir.Type(o.type, pointers=1), o.name) for o in self.outputs]
        symbols = [ir.Field(ir.Type("int64_t"), f"s_{n}") for n in self.symbols]
        return (*inputs, *outputs, *symbols, *members)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel made, how it is launched, and the headers of `templates/include/mirage/cuda/` with its instructions; bytes of
    workspace that it needs for itself, and the host's statements that set its own members of the parameters (`p`), given the
    workspace's place. `Raises Refused` is what engines do for kernels that do not fit."""

    tile: Spelled
    kernel: ir.Kernel
    launch: Launch
    headers: tuple[str, ...] = ()
    workspace: int = 0
    setup: Callable[[ir.Expression], Sequence[ir.Statement]] = field(default=lambda _: ())
    #: operands of functions that a library compiles once for all its kernels
    shared: tuple[tuple[ir.Type, ...], ...] = ()


FAILED = k.when(
    k.binary("!=", "status", "cudaSuccess"), ir.Return(k.cast("int", "status"))
)  #: the host function ends with the error of what it called
