"""Block graphs and kernel graphs written down by hand, operator by operator: the form of the reference's muGraphs.

    b = Sketch(program, grid=("b",), loop="c")
    x, w = b.load("x0"), b.load("x1")
    product = b.accum(b.contract(x, w, "c"))
    squares = b.accum(b.sum(b("mul", x, x), "c"))
    block = b.graph(b("div", product, b("sqrt", squares)))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.program import Node, Program
from mirage_cli.search.mugraph import (
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


class Sketch:
    """A block graph under construction; values are names. An operator stands in the phase of its latest operand."""

    def __init__(self, program: Program, grid: Sequence[str], loop: str | None = None, split: Sequence[str] = ()) -> None:
        self.program, self.grid, self.loop, self.split = program, tuple(grid), loop, tuple(split)
        self.ops: list[BlockOp] = []
        self.phases: dict[str, str] = {}

    def add(self, op: BlockOp) -> str:
        """Add an operator, under a name of its own, and return the name."""
        op = replace(op, name=f"t{len(self.ops)}")
        self.ops.append(op)
        self.phases[op.name] = op.phase
        return op.name

    def phase(self, op: str, inputs: Sequence[str]) -> str:
        """Where an operator on these operands stands."""
        return _HOME.get(op) or max((self.phases[i] for i in inputs), key=PHASES.index, default=PROLOGUE)

    def make(self, op: str, *inputs: str, over: Sequence[str] = (), dtype: DType | None = None) -> str:
        """An operator that is not elementwise."""
        return self.add(BlockOp("", op, inputs, self.phase(op, inputs), tuple(over), dtype=dtype))

    def load(self, value: str) -> str:
        """An input: a part of it in each iteration where it has the loop's axis."""
        walked = self.loop in self.program.axes_of(value)
        return self.add(BlockOp("", "load", (), BODY if walked else PROLOGUE, source_value=value))

    def __call__(self, op: str, *inputs: str) -> str:
        """An elementwise operator."""
        thread = ThreadGraph(len(inputs), (ThreadNode(op, tuple(range(len(inputs)))),))
        return self.add(BlockOp("", "thread", inputs, self.phase("thread", inputs), thread=thread))

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

    def like(self, value: str, known: dict[str, str]) -> str:
        """An elementwise value of the program, computed by the program's own operators of the values in `known`, to which
        what is computed on the way is added."""
        if value not in known:
            d = self.program.node(value)
            assert isinstance(d, Node), f"{value} is an input that the sketch has not loaded"
            if d.op == "const":
                thread = ThreadGraph(0, (ThreadNode("const", (), d.value),))
                known[value] = self.add(BlockOp("", "thread", (), PROLOGUE, thread=thread))
            else:
                known[value] = self(d.op, *(self.like(i, known) for i in d.inputs))
        return known[value]

    def graph(self, *outputs: str) -> BlockGraph:
        """The finished, valid block graph."""
        graph = BlockGraph(self.grid, self.split, self.loop, tuple(self.ops), outputs)
        return graph.validate(self.program)


def single(program: Program, block: BlockGraph) -> KernelGraph:
    """A kernel graph of one kernel."""
    sources, outputs = len(program.sources), len(program.outputs)
    made = tuple(range(sources, sources + outputs))
    kernel = CustomKernel(program, block, tuple(range(sources)), made)
    return KernelGraph(sources, outputs, sources + outputs, (kernel,)).validate()
