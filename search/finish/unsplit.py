"""A pair of kernels as the one block graph whose reduction over blocks they do in two: the inverse of `two_kernels`.

The first kernel of such a pair takes a reduced axis as two, its parts and the positions of one, and stores a share for each
part. The second takes the maximum over the parts, weighs the shares with exp(own maximum - common one) and sums them. Folded,
the parts are blocks that split the axis, the second kernel's sums are sums over blocks, and what it does with them stands
in the grid phase.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir.program import Node, Program, Slot
from mirage_cli.search.finish.unstabilised import unfolded
from mirage_cli.search.mugraph.mugraph import (
    EXTREMES,
    GRID,
    PROLOGUE,
    BlockGraph,
    BlockOp,
    CustomKernel,
    ThreadGraph,
    ThreadNode,
)

DIFFERENCES = ("exp_minus", "exp_difference")


@dataclass(frozen=True, slots=True)
class _Parts:
    """The axis of the program that is `outer` and `inner` in a pair of kernels."""

    axis: str
    outer: str
    inner: str

    def whole(self, access: Sequence[Slot]) -> tuple[Slot, ...]:
        """An access map with the axis in one piece."""
        found: list[Slot] = []
        for s in access:
            if s.axis == self.inner and found and found[-1].axis == self.outer:
                last = found.pop()
                inner = s.extent if isinstance(s.extent, int) else 0
                s = Slot(self.axis, ex.product((last.extent, s.extent)), last.offset * inner + s.offset)
            found.append(s)
        return tuple(found)


def is_first(kernel: CustomKernel, program: Program) -> bool:
    """True if a kernel takes an axis of a program in parts."""
    known = {a.name for a in program.axes}
    return any(a.name not in known for a in kernel.program.axes)


def spelled(program: Program) -> BlockGraph:
    """A program as a block graph without a loop, operator by operator."""
    ops = [BlockOp(i.name, "load", (), PROLOGUE, source_value=i.name) for i in program.inputs]
    by_name = {n.name: n for n in program.nodes}
    for n in program.nodes:
        below = by_name.get(n.inputs[0]) if n.inputs else None
        if n.op in ("contract", "sum", "iota", "extent") or (n.op in EXTREMES and n.over):
            ops.append(BlockOp(n.name, n.op, n.inputs, PROLOGUE, n.over, axis=n.axis, dtype=n.dtype))
        elif n.op == "top":
            ops.append(BlockOp(n.name, "top", n.inputs, PROLOGUE, n.over))
        elif n.op == "stable_exp":
            ops.append(BlockOp(f"{n.name} top", "top", n.inputs, PROLOGUE, n.over))
            ops.append(_elementwise(n.name, "exp_minus", (n.inputs[0], f"{n.name} top")))
        elif n.op == "exp" and below is not None and below.op == "sub" and _is_maximum(by_name.get(below.inputs[1])):
            ops.append(_elementwise(n.name, "exp_difference", below.inputs))
        else:
            ops.append(_elementwise(n.name, n.op, n.inputs, n.value))
    needed = {o.value for o in program.outputs}
    kept: list[BlockOp] = []
    for o in reversed(ops):
        if o.name in needed:
            needed.update(o.inputs)
            kept.append(o)
    return BlockGraph((), (), None, tuple(kept[::-1]), tuple(o.value for o in program.outputs))


def _elementwise(name: str, op: str, inputs: tuple[str, ...], value: Fraction | float | None = None) -> BlockOp:
    node = ThreadNode(op, tuple(range(len(inputs))), value)
    return BlockOp(name, "thread", inputs, PROLOGUE, thread=ThreadGraph(len(inputs), (node,)))


def _is_maximum(n: Node | None) -> bool:
    return n is not None and n.op == "top"


def folded(
    program: Program, reads: Sequence[int], makes: Sequence[int], first: CustomKernel, second: CustomKernel
) -> BlockGraph:
    """The block graph for `program`, which reads and makes these tensors, that a pair of kernels stands for. Raises
    Refused."""
    return _Fold(program, reads, first, second).run(makes)


class _Fold:
    def __init__(self, program: Program, reads: Sequence[int], first: CustomKernel, second: CustomKernel) -> None:
        self.program, self.first, self.second = program, first, second
        self.parts = _parts(program, first, second)
        self.reads = {(reads[i.source], i.access): i.name for i in program.inputs}
        self.ops: list[BlockOp] = []

    def run(self, makes: Sequence[int]) -> BlockGraph:
        """The block graph on the program's axes."""
        self.check_tensors(makes)
        first, second = unfolded(self.first.block), unfolded(self.second.block)
        loaded = self.loads(self.first)
        for o in first.ops:
            self.ops.append(
                replace(self.named(o, "first"), over=self.over(o), source_value=loaded.get(o.source_value or ""))
            )
        shares = {t: f"first {v}" for t, v in zip(self.first.outputs, first.outputs, strict=True)}
        made = _Second(self, second, shares).run()
        stored = shares | {t: made[v] for t, v in zip(self.second.outputs, second.outputs, strict=True)}
        reduced = {self.parts.outer, *(a for o in self.ops for a in o.over)}  # the second kernel has a grid of its own
        grid = tuple(a for a in first.grid if a not in reduced)
        loop = self.parts.axis if first.loop == self.parts.inner else first.loop
        graph = BlockGraph(
            (*grid, self.parts.axis), (self.parts.axis,), loop, tuple(self.ops), tuple(stored[t] for t in makes)
        )
        return graph.validate(self.program)

    def check_tensors(self, makes: Sequence[int]) -> None:
        """Check that the kernels agree on axes, on what lies between them, and with the program on what they make."""
        extents = {a.name: a.extent for p in (self.program, self.first.program) for a in p.axes}
        stored: dict[int, tuple[Slot, ...]] = {}
        for k in (self.first, self.second):
            if any(extents.get(a.name) != a.extent for a in k.program.axes):
                raise Refused("a pair of kernels disagrees on the extent of an axis")
            stored |= {t: o.access for t, o in zip(k.outputs, k.program.outputs, strict=True)}
        if any(self.parts.whole(stored[t]) != o.access for t, o in zip(makes, self.program.outputs, strict=True)):
            raise Refused("a pair of kernels stores a result otherwise than the program")
        for i in self.second.program.inputs:
            t = self.second.inputs[i.source]
            if t in self.first.outputs and stored[t] != i.access:
                raise Refused(f"tensor {t} between two kernels is read otherwise than it was stored")

    def named(self, o: BlockOp, kernel: str) -> BlockOp:
        """An operator of a kernel, with names of its own."""
        return replace(o, name=f"{kernel} {o.name}", inputs=tuple(f"{kernel} {i}" for i in o.inputs))

    def over(self, o: BlockOp) -> tuple[str, ...]:
        """The axes that an operator of the first kernel reduces."""
        return tuple(self.parts.axis if a == self.parts.inner else a for a in o.over)

    def loads(self, kernel: CustomKernel) -> dict[str, str]:
        """For each input of a kernel that reads what the program reads, the program's input."""
        loaded = {}
        for i in kernel.program.inputs:
            whole = self.reads.get((kernel.inputs[i.source], self.parts.whole(i.access)))
            if whole is not None:
                loaded[i.name] = whole
        return loaded


def _parts(program: Program, first: CustomKernel, second: CustomKernel) -> _Parts:
    """Which axis a pair of kernels takes as two."""
    known = {a.name for a in program.axes}
    new = [a.name for a in first.program.axes if a.name not in known]
    kept = {a.name for k in (first, second) for a in k.program.axes}
    size = ex.product(first.program.extent(a) for a in new)
    gone = [a.name for a in program.axes if a.name not in kept and a.extent == size]
    pairs = {(x.axis, y.axis) for i in first.program.inputs for x, y in zip(i.access, i.access[1:], strict=False)}
    for outer, inner in itertools.permutations(new, 2):
        if len(new) == 2 and gone and (outer, inner) in pairs:
            return _Parts(gone[0], outer, inner)
    raise Refused(f"axes {', '.join(new)} of a kernel are not the parts of an axis of the program")


class _Second:
    """The second kernel's operators in the grid phase; `tensors` says what the first one stores where."""

    def __init__(self, fold: _Fold, block: BlockGraph, tensors: Mapping[int, str]) -> None:
        self.fold, self.block = fold, block
        inputs = {i.name: fold.second.inputs[i.source] for i in fold.second.program.inputs}
        self.shares = {name: tensors[t] for name, t in inputs.items() if t in tensors}
        self.loaded = fold.loads(fold.second)
        self.known: dict[str, str] = {}  #: what a value is in the folded graph
        self.weights: dict[str, tuple[str, str]] = {}  #: exp(own maximum - common one)
        self.weighted: dict[str, tuple[str, str, str]] = {}  #: a share and its weight
        self.part: set[str] = set()  #: values that are shares

    def run(self) -> dict[str, str]:
        """The names that the kernel's values have in the folded graph."""
        for o in self.block.ops:
            self.op(o)
        return self.known

    def op(self, o: BlockOp) -> None:
        """Add what an operator is."""
        over_parts = o.over == (self.fold.parts.outer,)
        if o.op == "load" and o.source_value in self.shares:
            self.known[o.name] = self.shares[o.source_value]
            if self.fold.parts.outer in self.fold.second.program.axes_of(o.source_value):
                self.part.add(o.name)
        elif o.op == "top" and over_parts and o.inputs[0] in self.part:
            self.add(o, "grid_top", (self.known[o.inputs[0]],))
        elif o.op == "sum" and over_parts and o.inputs[0] in self.part:
            self.add(o, "grid_sum", (self.known[o.inputs[0]],))
        elif o.op == "sum" and over_parts and o.inputs[0] in self.weighted:
            self.add(o, "grid_sum", self.weighted[o.inputs[0]])
        elif o.thread is not None and o.thread.nodes[0].op in DIFFERENCES and o.inputs[0] in self.part:
            self.weights[o.name] = (self.known[o.inputs[0]], self.known[o.inputs[1]])
        elif o.thread is not None and o.thread.nodes[0].op == "mul" and (pair := self.pair(o)) is not None:
            self.weighted[o.name] = pair
        elif any(i in self.part or i in self.weights or i in self.weighted for i in o.inputs):
            raise Refused(f"{o.name} of the second kernel reads shares other than to sum them over the parts")
        else:
            self.again(o)

    def pair(self, o: BlockOp) -> tuple[str, str, str] | None:
        """A product of a share and a weight."""
        for x, w in (o.inputs, o.inputs[::-1]):
            if x in self.part and w in self.weights:
                return (self.known[x], *self.weights[w])
        return None

    def add(self, o: BlockOp, op: str, inputs: tuple[str, ...]) -> None:
        """An operator of the grid phase."""
        self.known[o.name] = f"second {o.name}"
        self.fold.ops.append(BlockOp(self.known[o.name], op, inputs, GRID))

    def again(self, o: BlockOp) -> None:
        """An operator behind the sums, or beside them."""
        self.known[o.name] = f"second {o.name}"
        inputs = tuple(self.known[i] for i in o.inputs)
        source = self.loaded.get(o.source_value or "")
        if o.op == "load" and source is None:
            raise Refused(f"{o.name} of the second kernel reads what the program does not")
        if o.phase != PROLOGUE:
            raise Refused(f"{o.name} of the second kernel of a pair stands in its {o.phase}")
        late = any(p.name in inputs and p.phase != PROLOGUE for p in self.fold.ops)
        self.fold.ops.append(
            replace(o, name=self.known[o.name], inputs=inputs, phase=GRID if late else PROLOGUE, source_value=source)
        )
