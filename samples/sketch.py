"""Block graphs and kernel graphs written down by hand, operator by operator: the form of the reference's muGraphs.

b = Sketch(program, grid=("b",), loop="c")
b.known["v8"] = b.accum(b.of("v8"))         # the program's contraction, accumulated over the loop
graph = single(program, b.graph(b.of("v9")))  # what follows, after it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import F32, DType
from mirage_cli.lax.ir.program import Axis, Input, Node, Output, Program, Slot, Source
from mirage_cli.lax.normal.identify import prune
from mirage_cli.search.finish.split_reduction import describe
from mirage_cli.search.mugraph.evaluate import Tiles
from mirage_cli.search.mugraph.mugraph import (
    BODY,
    EPILOGUE,
    GRID,
    PHASES,
    PROLOGUE,
    BlockGraph,
    BlockOp,
    CustomKernel,
    KernelGraph,
    ThreadGraph,
    ThreadNode,
)

_HOME = {"accum": EPILOGUE, "running": BODY, "shrink": BODY, "grid_sum": GRID, "grid_top": GRID}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A muGraph with the tiles of each kernel."""

    graph: KernelGraph
    tiles: tuple[Tiles, ...]


# --- one block ------------------------------------------------------------------------------------------------------------
class Sketch:
    """A block graph under construction; values are names. An operator stands in the phase of its latest operand.

    `known` says where values of the program are in the block; `base` has the axes of what is loaded (the program itself
    unless the block works on finer ones), and `finer` says what stands there for an axis of the program.
    """

    def __init__(
        self,
        program: Program,
        grid: Sequence[str],
        loop: str | None = None,
        base: Program | None = None,
        finer: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.program, self.base, self.grid, self.loop = program, base or program, tuple(grid), loop
        self.finer = finer
        self.ops: list[BlockOp] = []
        self.phases: dict[str, str] = {}
        self.known: dict[str, str] = {}

    def add(self, op: BlockOp) -> str:
        """Add an operator, under a name of its own, and return the name."""
        op = replace(op, name=f"t{len(self.ops)}")
        self.ops.append(op)
        self.phases[op.name] = op.phase
        return op.name

    def make(self, op: str, *inputs: str, over: Sequence[str] = (), dtype: DType | None = None) -> str:
        """An operator that is not elementwise."""
        return self.add(BlockOp("", op, inputs, self.phase(op, inputs), tuple(over), dtype=dtype))

    def phase(self, op: str, inputs: Sequence[str]) -> str:
        """Where an operator on these operands stands."""
        return _HOME.get(op) or max((self.phases[i] for i in inputs), key=PHASES.index, default=PROLOGUE)

    def __call__(self, op: str, *inputs: str) -> str:
        """An elementwise operator."""
        thread = ThreadGraph(len(inputs), (ThreadNode(op, tuple(range(len(inputs)))),))
        return self.add(BlockOp("", "thread", inputs, self.phase("thread", inputs), thread=thread))

    def load(self, value: str) -> str:
        """An input: a part of it in each iteration where it has the loop's axis."""
        walked = self.loop in self.base.axes_of(value)
        return self.add(BlockOp("", "load", (), BODY if walked else PROLOGUE, source_value=value))

    def contract(self, x: str, y: str, *over: str) -> str:
        """A product of tiles, multiplied in the type of the program's contractions."""
        dtype = next((n.dtype for n in self.program.nodes if n.op == "contract"), None)
        return self.make("contract", x, y, over=over, dtype=dtype)

    def sum(self, x: str, *over: str) -> str:
        """A sum within a tile."""
        return self.make("sum", x, over=over)

    def accum(self, x: str, weight: str = "") -> str:
        """The sum over all iterations; with a weight what was there before is multiplied by it."""
        return self.make("accum", *([x, weight] if weight else [x]))

    def of(self, value: str) -> str:
        """A value of the program, computed by the program's own operators of what is known, and known from then on."""
        if value not in self.known:
            self.known[value] = self._of(self.program.node(value))
        return self.known[value]

    def _of(self, d: Node | Input) -> str:
        if isinstance(d, Input):
            return self.load(d.name)
        inputs = [self.of(i) for i in d.inputs]
        if d.op in ("contract", "sum"):
            return self.make(d.op, *inputs, over=[self.finer.get(a, a) for a in d.over], dtype=d.dtype)
        if d.op == "const":
            thread = ThreadGraph(0, (ThreadNode("const", (), d.value),))
            return self.add(BlockOp("", "thread", (), PROLOGUE, thread=thread))
        return self(d.op, *inputs)

    def graph(self, *outputs: str) -> BlockGraph:
        """The finished block graph."""
        return BlockGraph(self.grid, (), self.loop, tuple(self.ops), outputs)


def single(program: Program, block: BlockGraph, tiles: Tiles) -> Drawing:
    """A kernel graph of one kernel."""
    kernels = Kernels(program)
    kernels.add(program, kernels.given, block, kernels.results, tiles)
    return kernels.drawing()


# --- several kernels ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor between kernels: the name of what it holds, and how."""

    name: str
    tensor: int
    slots: tuple[Slot, ...]


class Kernels:
    """A kernel graph under construction. Tensors are numbered: sources, outputs, what lies between kernels."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.sources, self.outputs = len(program.sources), len(program.outputs)
        self.tensors = self.sources + self.outputs
        self.given = tuple(range(self.sources))
        self.results = tuple(range(self.sources, self.tensors))
        self.kernels: list[CustomKernel] = []
        self.tiles: list[Tiles] = []

    def store(self, name: str, base: Program, axes: frozenset[str]) -> Stored:
        """A tensor for a value with these axes of a program, row-major in its order of axes."""
        self.tensors += 1
        return Stored(name, self.tensors - 1, self.slots(base, axes))

    def slots(self, base: Program, axes: frozenset[str]) -> tuple[Slot, ...]:
        """A value with these axes, row-major in a program's order."""
        return tuple(Slot(a.name, a.extent) for a in base.axes if a.name in axes)

    def add(
        self, program: Program, reads: Sequence[int], block: BlockGraph, makes: Sequence[int], tiles: Tiles
    ) -> None:
        """A kernel that computes a program from tensors and makes others."""
        self.kernels.append(CustomKernel(program, block.validate(program), tuple(reads), tuple(makes)))
        self.tiles.append(tiles)

    def part(self, base: Program, values: Sequence[str]) -> Program:
        """The part of a program that makes values to be stored."""
        stored = [self.slots(base, base.axes_of(v)) for v in values]
        outputs = [Output(v, s, tuple(x.extent for x in s), F32, v) for v, s in zip(values, stored, strict=True)]
        return prune(replace(base, outputs=tuple(outputs), _axes_of={}))

    def finish(self, base: Program, reads: Sequence[int], block: BlockGraph, tiles: Tiles) -> None:
        """The last kernel, which makes the program's outputs from what is read for it."""
        program = prune(base)
        used = [base.sources.index(s) for s in program.sources]
        self.add(program, [reads[k] for k in used], block, self.results, tiles)

    def sketch(
        self, reads: Sequence[int], b: Sketch, values: Sequence[str], outputs: Sequence[Stored | int], tiles: Tiles
    ) -> None:
        """The kernel of a sketch on its base program, whose sources are tensors `reads`; `outputs` says where each value
        goes: to a tensor in between, or to an output of the program. The kernel's program says what the sketch does."""
        names, nodes = describe(b.ops, b.base)
        written, tensors = [], []
        for v, out in zip(values, outputs, strict=True):
            if isinstance(out, Stored):
                written.append(Output(names[v], out.slots, tuple(s.extent for s in out.slots), F32, out.name))
                tensors.append(out.tensor)
            else:
                written.append(replace(self.program.outputs[out], value=names[v]))
                tensors.append(self.results[out])
        loaded = {o.source_value for o in b.ops}
        inputs = tuple(i for i in b.base.inputs if i.name in loaded)
        used = sorted({i.source for i in inputs})
        program = prune(replace(b.base, inputs=inputs, nodes=nodes, outputs=tuple(written), _axes_of={}))
        self.add(program, [reads[k] for k in used], b.graph(*values), tensors, tiles)

    def drawing(self) -> Drawing:
        """The finished, valid kernel graph."""
        graph = KernelGraph(self.sources, self.outputs, self.tensors, tuple(self.kernels))
        return Drawing(graph.validate(), tuple(self.tiles))


def reading(base: Program, stored: Sequence[Stored], only: bool = False) -> Program:
    """A program that reads stored tensors beside its own (with `only`: instead), each as the value that it is named after."""
    sources, inputs = ([], []) if only else (list(base.sources), list(base.inputs))
    for s in stored:
        inputs.append(Input(s.name, len(sources), s.slots))
        sources.append(Source(s.name, tuple(x.extent for x in s.slots), F32))
    names = {s.name for s in stored}
    nodes = tuple(n for n in base.nodes if n.name not in names)
    return replace(base, sources=tuple(sources), inputs=tuple(inputs), nodes=nodes, _axes_of={})


def in_parts(p: Program, axis: str, count: int) -> tuple[Program, str, str]:
    """The inputs and outputs of a program, with an axis as two: `count` parts, and the positions of one. No
    operators."""
    outer, inner = f"{axis}_part", f"{axis}_in"
    extent = p.extent(axis)
    assert isinstance(extent, int)
    assert extent % count == 0, f"axis {axis} of {extent} has no {count} equal parts"
    sizes = {outer: count, inner: extent // count}

    def slots(access: Sequence[Slot]) -> tuple[Slot, ...]:
        cut: list[Slot] = []
        for s in access:
            cut += [Slot(a, n) for a, n in sizes.items()] if s.axis == axis else [s]
        return tuple(cut)

    axes: list[Axis] = []
    for a in p.axes:
        axes += [Axis(b, n) for b, n in sizes.items()] if a.name == axis else [a]
    inputs = tuple(replace(i, access=slots(i.access)) for i in p.inputs)
    assert all(ex.product(s.extent for s in i.access) == ex.product(p.sources[i.source].dims) for i in inputs)
    return replace(p, axes=tuple(axes), inputs=inputs, nodes=(), _axes_of={}), outer, inner
