"""A muGraph as a tree of texts: kernels on stored tensors, their block graphs by phases, the threads' operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirage_cli.exporters.drawing.labels import number, short
from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BODY, PHASES, BlockGraph, BlockOp, CustomKernel, KernelGraph, ThreadGraph

NAME = 32  #: columns of a tensor's name
KERNEL, BLOCK, PHASE, TILE, THREAD, TENSOR = "kernel", "block", "phase", "tile", "thread", "tensor"


@dataclass(frozen=True, slots=True)
class Branch:
    """A line, what it stands for (one of the names above), and what is below it."""

    text: str
    kind: str
    below: tuple[Branch, ...] = ()

    def lines(self) -> Iterator[tuple[int, str]]:
        """The lines of the tree with their depths."""
        yield 0, self.text
        for b in self.below:
            yield from ((depth + 1, line) for depth, line in b.lines())


def mugraph(graph: KernelGraph, program: Program, title: str = "kernel graph") -> Branch:
    """The tree of a muGraph that computes `program`; the names of its tensors are visible and short."""
    names = [
        f"{short(s.name, NAME)} {s.dtype}{_dims(s.dims)}{', of parts' if s.parts else ''}" for s in program.sources
    ]
    names += [f"{short(o.name or o.value, NAME)} {o.dtype}{_dims(o.dims)}" for o in program.outputs]
    names += [f"intermediate {n}" for n in range(len(names), graph.tensors)]
    return Branch(title, KERNEL, tuple(_kernel(n, k, names) for n, k in enumerate(graph.kernels)))


def _dims(dims: Sequence[ex.Extent]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _kernel(n: int, k: CustomKernel, names: Sequence[str]) -> Branch:
    reads = [Branch(f"reads {names[i]}", TENSOR) for i in k.inputs]
    writes = [Branch(f"writes {names[i]}", TENSOR) for i in k.outputs]
    return Branch(f"kernel {n}", KERNEL, (*reads, _block(k), *writes))


def _block(k: CustomKernel) -> Branch:
    block = k.block
    axes = block.axes_of(k.program)
    phases = []
    for phase in PHASES:
        tiles = tuple(_tile(o, k, sorted(axes[o.name])) for o in block.ops if o.phase == phase)
        title = (
            f"body, for each step of {block.loop}"
            if phase == BODY
            else "grid epilogue"
            if phase == PHASES[-1]
            else phase
        )
        phases += [Branch(title, PHASE, tiles)] if tiles else []
    stores = []
    for value, out in zip(block.outputs, k.program.outputs, strict=True):
        own = {s.axis for s in out.access}
        stores.append(Branch(f"store {value}  omap {{{', '.join(a for a in block.grid if a in own)}}}", TILE))
    return Branch(_head(block), BLOCK, (*phases, *stores))


def _head(g: BlockGraph) -> str:
    grid = f"block graph  grid {' x '.join(g.grid) or 'of one block'}"
    split = f"  split {' x '.join(g.split)}" if g.split else ""
    return f"{grid}{split}  " + (f"loop over {g.loop}" if g.loop else "no loop")


def _tile(operator: BlockOp, k: CustomKernel, axes: Sequence[str]) -> Branch:
    """An operator on tiles; a thread graph's operators are below it."""
    head = f"{operator.name} [{' '.join(axes)}] = "
    if operator.thread is not None:
        arguments = f"({', '.join(operator.inputs)})"
        return Branch(f"{head}thread graph{arguments}", TILE, tuple(_thread(operator.thread, operator.inputs)))
    if operator.op == "load":
        return Branch(f"{head}load {operator.source_value}  {_maps(operator, k)}", TILE)
    operands = [*operator.inputs, *([operator.axis] if operator.axis else [])]
    over = f" over {' '.join(operator.over)}" if operator.over else ""
    return Branch(
        f"{head}{operator.op}({', '.join(operands)}){over}" + (f" in {operator.dtype}" if operator.dtype else ""), TILE
    )


def _maps(operator: BlockOp, k: CustomKernel) -> str:
    """imap and fmap of a load."""
    g = k.block
    own = k.program.axes_of(operator.source_value or "")
    imap = ", ".join(f"{a}<->{a if a in own else 'φ'}" for a in g.grid)
    walked = g.loop if g.loop in own and operator.phase == BODY else "φ"
    return f"imap {{{imap}}}" + (f" fmap {{{g.loop}<->{walked}}}" if g.loop else "")


def _thread(t: ThreadGraph, arguments: Sequence[str]) -> Iterator[Branch]:
    """The operators of a thread graph, one a line; constants stand where they are read."""
    values, count = list(arguments), 0
    for n in t.nodes:
        if n.op == "const" and n.value is not None:
            values.append(number(n.value))
            continue
        values.append(f"r{count}")
        count += 1
        yield Branch(f"{values[-1]} = {n.op}({', '.join(values[i] for i in n.inputs)})", THREAD)
