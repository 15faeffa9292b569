"""Wrong muGraphs: every way to change one thing of a kernel graph that a mistake of ours could make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from mirage_cli.lax.ops import OPS
from mirage_cli.lax.program import Axis
from mirage_cli.search.evaluate import Tiles
from mirage_cli.search.mugraph import (
    BODY,
    EPILOGUE,
    PROLOGUE,
    BlockGraph,
    BlockOp,
    CustomKernel,
    KernelGraph,
    ThreadNode,
)

Mutant = tuple[str, KernelGraph, list[Tiles]]
TWINS = {"add": "sub", "sub": "add", "mul": "div", "div": "mul", "sqrt": "abs", "exp": "sqrt", "max": "min", "lt": "le"}


def mutants(graph: KernelGraph, tiles: list[Tiles]) -> Iterator[Mutant]:
    """All mutants, each with a name that tells what was done."""
    for n, kernel in enumerate(graph.kernels):
        for what, made in _kernels(kernel):
            kernels = (*graph.kernels[:n], made, *graph.kernels[n + 1 :])
            yield f"kernel {n}: {what}", replace(graph, kernels=kernels), tiles
    for n, kernel in enumerate(graph.kernels):
        if len(set(kernel.inputs)) > 1:
            turned = replace(kernel, inputs=kernel.inputs[::-1])
            kernels = (*graph.kernels[:n], turned, *graph.kernels[n + 1 :])
            yield f"kernel {n}: tensors turned round", replace(graph, kernels=kernels), tiles
    if len(graph.kernels) > 1:
        yield "first kernel left out", replace(graph, kernels=graph.kernels[1:]), tiles[1:]


def _kernels(kernel: CustomKernel) -> Iterator[tuple[str, CustomKernel]]:
    for what, block in _blocks(kernel.block, [a.name for a in kernel.program.axes]):
        yield what, replace(kernel, block=block)
    p = kernel.program
    for k, a in enumerate(p.axes):
        if isinstance(a.extent, int) and a.extent > 2:
            axes = (*p.axes[:k], Axis(a.name, a.extent - 1), *p.axes[k + 1 :])
            yield (
                f"axis {a.name}: the last position left out",
                replace(kernel, program=replace(p, axes=axes, _axes_of={})),
            )
    for k, i in enumerate(p.inputs):
        if len(i.access) > 1:
            turned = replace(i, access=i.access[::-1])
            inputs = (*p.inputs[:k], turned, *p.inputs[k + 1 :])
            yield (
                f"{i.name}: read with dimensions turned round",
                replace(kernel, program=replace(p, inputs=inputs, _axes_of={})),
            )


def _blocks(g: BlockGraph, axes: list[str]) -> Iterator[tuple[str, BlockGraph]]:
    for k, o in enumerate(g.ops):
        for what, made in _ops(o, axes):
            yield f"{o.name}: {what}", replace(g, ops=(*g.ops[:k], made, *g.ops[k + 1 :]))
        if len(o.inputs) > 0:
            yield f"{o.name}: left out", _without(g, o)
    for axis in (*axes, None):
        if axis != g.loop:
            yield f"loop over {axis}", replace(g, loop=axis)
    for axis in g.grid:
        rest = tuple(a for a in g.grid if a != axis)
        yield f"{axis} not in the grid", replace(g, grid=rest, split=tuple(a for a in g.split if a != axis))
        if axis not in g.split:
            yield f"{axis} split", replace(g, split=(*g.split, axis))
    for axis in g.split:
        yield f"{axis} not split", replace(g, split=tuple(a for a in g.split if a != axis))
    for k, out in enumerate(g.outputs):
        for o in g.ops:
            if o.name != out:
                outputs = (*g.outputs[:k], o.name, *g.outputs[k + 1 :])
                yield f"output {k} is {o.name}", replace(g, outputs=outputs)


def _ops(o: BlockOp, axes: list[str]) -> Iterator[tuple[str, BlockOp]]:
    if len(o.inputs) > 1:
        yield "operands turned round", replace(o, inputs=o.inputs[::-1])
        yield "first operand twice", replace(o, inputs=(o.inputs[0], *o.inputs[:-1]))
        yield "last operand left out", replace(o, inputs=o.inputs[:-1])
    for phase in (PROLOGUE, BODY, EPILOGUE):
        if phase != o.phase:
            yield f"in the {phase}", replace(o, phase=phase)
    for axis in axes:
        if axis not in o.over and o.over:
            yield f"over {axis}", replace(o, over=(axis,))
            yield f"also over {axis}", replace(o, over=(*o.over, axis))
    if o.op == "sum":
        yield "maximum", replace(o, op="top")
    if o.op == "top":
        yield "sum", replace(o, op="sum")
    if o.op == "accum" and len(o.inputs) == 1:
        yield "running maximum", replace(o, op="running")
    if o.thread is not None:
        for k, n in enumerate(o.thread.nodes):
            for what, made in _threads(n):
                nodes = (*o.thread.nodes[:k], made, *o.thread.nodes[k + 1 :])
                yield f"node {k} {what}", replace(o, thread=replace(o.thread, nodes=nodes))


def _threads(n: ThreadNode) -> Iterator[tuple[str, ThreadNode]]:
    if n.op == "const" and n.value is not None:
        for value in (n.value + 1, n.value * 2 if n.value else Fraction(1), n.value * (1 + Fraction(1, 1 << 40))):
            if value != n.value:
                yield f"is {float(value)}", replace(n, value=value)
    if len(n.inputs) == 2 and not (n.op in OPS and OPS[n.op].commutative):
        yield "operands turned round", replace(n, inputs=n.inputs[::-1])
    if len(n.inputs) == 2 and n.inputs[0] != n.inputs[1]:
        yield "first operand twice", replace(n, inputs=(n.inputs[0], n.inputs[0]))
    if n.op in TWINS:
        yield TWINS[n.op], replace(n, op=TWINS[n.op])


def _without(g: BlockGraph, o: BlockOp) -> BlockGraph:
    """The block graph in which `o` is what it reads first."""
    ops = tuple(
        replace(x, inputs=tuple(o.inputs[0] if i == o.name else i for i in x.inputs)) for x in g.ops if x is not o
    )
    return replace(g, ops=ops, outputs=tuple(o.inputs[0] if v == o.name else v for v in g.outputs))
