"""Changed muGraphs: every way to change one thing of a kernel graph, the mistakes that a search, a rewrite or a code generator
could make, and some changes that alter nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from mirage_cli.lax.ir.program import Axis, Input, Program
from mirage_cli.lax.ops import OPS
from mirage_cli.search.mugraph.evaluate import Tiles
from mirage_cli.search.mugraph.mugraph import (
    BODY,
    EPILOGUE,
    GRID,
    PROLOGUE,
    REDUCING,
    BlockGraph,
    BlockOp,
    CustomKernel,
    KernelGraph,
    ThreadGraph,
    ThreadNode,
)

Mutant = tuple[str, KernelGraph, list[Tiles]]
TWINS = {"add": "sub", "sub": "add", "mul": "div", "div": "mul", "sqrt": "abs", "exp": "sqrt", "max": "min", "lt": "le"}
TWINS |= {"silu": "sigmoid", "gelu": "silu", "erf": "tanh", "tanh": "erf", "div0": "div", "neg": "abs"}
PRODUCT = ThreadGraph(2, (ThreadNode("mul", (0, 1)),))
KINDS = (
    "operator",
    "operand",
    "axis mapping",
    "accumulator",
    "rescale",
    "omap",
    "scale",
    "tile",
    "phase",
    "kernel",
    "same",
)


class Change(NamedTuple):
    """A changed kernel graph: what kind of change (one of `KINDS`), and what was done."""

    kind: str
    what: str
    graph: KernelGraph
    tiles: list[Tiles]


def mutants(graph: KernelGraph, tiles: list[Tiles]) -> Iterator[Mutant]:
    """A quarter of the changes, spread over all kinds, each with a name that tells what was done."""
    for c in itertools.islice(changes(graph, tiles), 0, None, 4):
        yield c.what, c.graph, c.tiles


def changes(graph: KernelGraph, tiles: list[Tiles]) -> Iterator[Change]:
    """Every single change."""
    for n, kernel in enumerate(graph.kernels):
        for kind, what, made in itertools.chain(_kernels(kernel), _blocks_of(kernel)):
            kernels = (*graph.kernels[:n], made, *graph.kernels[n + 1 :])
            yield Change(kind, f"kernel {n}: {what}", replace(graph, kernels=kernels), _tiles(tiles, n, made))
        for what, own in _other_tiles(tiles[n]):
            yield Change("tile", f"kernel {n}: {what}", graph, [*tiles[:n], own, *tiles[n + 1 :]])
    if len(graph.kernels) > 1:
        yield Change("kernel", "first kernel left out", replace(graph, kernels=graph.kernels[1:]), tiles[1:])


def _tiles(tiles: list[Tiles], n: int, kernel: CustomKernel) -> list[Tiles]:
    """The tiles with one for each axis of the changed kernel's grid and loop."""
    own = {a: tiles[n].get(a, 2) for a in kernel.block.grid}
    if kernel.block.loop is not None:
        own["loop"] = tiles[n].get("loop", 2)
    return [*tiles[:n], own, *tiles[n + 1 :]]


def _other_tiles(tiles: Tiles) -> Iterator[tuple[str, Tiles]]:
    for axis, size in tiles.items():
        for other in (size - 1, size + 1):
            if other > 0:
                yield f"{other} positions of {axis} in a tile", {**tiles, axis: other}


# --- kernels --------------------------------------------------------------------------------------------------------------
def _kernels(kernel: CustomKernel) -> Iterator[tuple[str, str, CustomKernel]]:
    """Changes of a kernel's tensors and of how it reads and writes them."""
    p = kernel.program
    if len(set(kernel.inputs)) > 1:
        yield "kernel", "tensors turned round", replace(kernel, inputs=kernel.inputs[::-1])
    for i, j in itertools.combinations(range(len(kernel.inputs)), 2):
        if p.sources[i].dims == p.sources[j].dims and p.sources[i].dtype == p.sources[j].dtype:
            inputs = list(kernel.inputs)
            inputs[i], inputs[j] = inputs[j], inputs[i]
            yield "kernel", f"tensors {i} and {j} exchanged", replace(kernel, inputs=tuple(inputs))
    if len(kernel.outputs) > 1:
        yield "omap", "stored tensors turned round", replace(kernel, outputs=kernel.outputs[::-1])
    for k, a in enumerate(p.axes):
        if isinstance(a.extent, int) and a.extent > 2:
            axes = (*p.axes[:k], Axis(a.name, a.extent - 1), *p.axes[k + 1 :])
            yield "tile", f"axis {a.name}: the last position left out", _with(kernel, replace(p, axes=axes))
    for k, i in enumerate(p.inputs):
        for what, made in _reads(i, p):
            inputs_ = (*p.inputs[:k], made, *p.inputs[k + 1 :])
            yield "axis mapping", f"{i.name}: {what}", _with(kernel, replace(p, inputs=inputs_))
    for k, o in enumerate(p.outputs):
        if len(o.access) > 1:
            outputs = (*p.outputs[:k], replace(o, access=o.access[::-1]), *p.outputs[k + 1 :])
            yield "omap", f"output {k}: stored with dimensions turned round", _with(kernel, replace(p, outputs=outputs))


def _with(kernel: CustomKernel, program: Program) -> CustomKernel:
    return replace(kernel, program=replace(program, _axes_of={}))


def _reads(i: Input, p: Program) -> Iterator[tuple[str, Input]]:
    """Other ways to read a stored tensor."""
    if len(i.access) > 1:
        yield "read with dimensions turned round", replace(i, access=i.access[::-1])
    for k, s in enumerate(i.access):
        for offset in (s.offset - 1, s.offset + 1):
            if offset >= 0:
                yield (
                    f"dimension {k} read from {offset}",
                    replace(i, access=(*i.access[:k], replace(s, offset=offset), *i.access[k + 1 :])),
                )
        for a in p.axes:
            if s.axis is not None and a.name != s.axis and a.extent == p.extent(s.axis):
                access = (*i.access[:k], replace(s, axis=a.name), *i.access[k + 1 :])
                yield f"dimension {k} read along {a.name}", replace(i, access=access)
    for k, source in enumerate(p.sources):
        if k != i.source and source.dims == p.sources[i.source].dims:
            yield f"reads source {k}", replace(i, source=k)


# --- blocks ---------------------------------------------------------------------------------------------------------------
def _blocks_of(kernel: CustomKernel) -> Iterator[tuple[str, str, CustomKernel]]:
    for kind, what, block in _blocks(kernel.block, [a.name for a in kernel.program.axes], kernel.program):
        yield kind, what, replace(kernel, block=block)


def _blocks(g: BlockGraph, axes: list[str], p: Program) -> Iterator[tuple[str, str, BlockGraph]]:
    for k, o in enumerate(g.ops):
        for kind, what, made in _ops(o, axes, [x.name for x in g.ops[:k]], p):
            yield kind, f"{o.name}: {what}", replace(g, ops=(*g.ops[:k], *made, *g.ops[k + 1 :]))
        if len(o.inputs) > 0:
            yield _summing(o, "operator"), f"{o.name}: left out", _without(g, o)
    for axis in (*axes, None):
        if axis != g.loop:
            yield "axis mapping", f"loop over {axis}", replace(g, loop=axis)
    for axis in axes:
        if axis not in g.grid:
            yield "axis mapping", f"{axis} in the grid", replace(g, grid=(*g.grid, axis))
    for axis in g.grid:
        rest = tuple(a for a in g.grid if a != axis)
        split = tuple(a for a in g.split if a != axis)
        yield "axis mapping", f"{axis} not in the grid", replace(g, grid=rest, split=split)
        other = split if axis in g.split else (*g.split, axis)
        yield "axis mapping", f"{axis} {'not ' if axis in g.split else ''}split", replace(g, split=other)
    for k, out in enumerate(g.outputs):
        for o in g.ops:
            if o.name != out:
                yield (
                    "omap",
                    f"output {k} is {o.name}",
                    replace(g, outputs=(*g.outputs[:k], o.name, *g.outputs[k + 1 :])),
                )


def _summing(o: BlockOp, other: str) -> str:
    """The kind of a change of an operator."""
    if o.op in ("running", "shrink", "top", "grid_top"):
        return "rescale"
    return "accumulator" if o.op in ("accum", "grid_sum") else other


def _ops(o: BlockOp, axes: list[str], before: list[str], p: Program) -> Iterator[tuple[str, str, tuple[BlockOp, ...]]]:
    for kind, what, one in itertools.chain(_operands(o, before), _operators(o, axes), _thread_nodes(o)):
        yield kind, what, (one,)
    if o.op == "load":
        for i in p.inputs:
            if i.name != o.source_value:
                yield "operand", f"loads {i.name}", (replace(o, source_value=i.name),)
    for phase in (PROLOGUE, BODY, EPILOGUE, GRID):
        if phase != o.phase:
            yield "phase", f"in the {phase}", (replace(o, phase=phase),)
    if o.op == "contract":
        product = replace(o, name=f"{o.name}_", op="thread", over=(), thread=PRODUCT, dtype=None)
        yield "same", "a product and a sum", (product, replace(o, op="sum", inputs=(product.name,), dtype=None))
        yield "operator", "a product without a sum", (replace(product, name=o.name),)


def _operands(o: BlockOp, before: Sequence[str]) -> Iterator[tuple[str, str, BlockOp]]:
    if len(o.inputs) > 1:
        kind = "same" if o.op == "contract" else _summing(o, "operand")
        yield kind, "operands turned round", replace(o, inputs=o.inputs[::-1])
        yield _summing(o, "operand"), "first operand twice", replace(o, inputs=(o.inputs[0], *o.inputs[:-1]))
        kind = "rescale" if o.op in ("accum", "grid_sum") else "operand"
        yield kind, "last operand left out", replace(o, inputs=o.inputs[:-1])
    if o.op == "grid_sum" and len(o.inputs) == 3:
        yield "rescale", "not weighted", replace(o, inputs=o.inputs[:1])
    for k, own in enumerate(o.inputs):
        for other in before:
            if other != own:
                inputs = (*o.inputs[:k], other, *o.inputs[k + 1 :])
                yield _summing(o, "operand"), f"operand {k} is {other}", replace(o, inputs=inputs)


def _operators(o: BlockOp, axes: Sequence[str]) -> Iterator[tuple[str, str, BlockOp]]:
    for axis in axes:
        if axis not in o.over and o.over:
            yield "axis mapping", f"over {axis}", replace(o, over=(axis,))
            yield "axis mapping", f"also over {axis}", replace(o, over=(*o.over, axis))
    if len(o.over) > 1:
        yield "axis mapping", f"not over {o.over[-1]}", replace(o, over=o.over[:-1])
    for op in REDUCING[1:]:
        if o.op in REDUCING[1:] and op != o.op:
            yield _summing(o, "operator"), op, replace(o, op=op)
    if o.op == "accum" and len(o.inputs) == 1:
        yield "accumulator", "running maximum", replace(o, op="running", phase=BODY)
    if o.op in ("accum", "grid_sum"):
        other = "grid_sum" if o.op == "accum" else "accum"
        yield (
            "accumulator",
            other,
            replace(o, op=other, phase=GRID if other == "grid_sum" else EPILOGUE, inputs=o.inputs[:1]),
        )


# --- thread graphs --------------------------------------------------------------------------------------------------------
def _thread_nodes(o: BlockOp) -> Iterator[tuple[str, str, BlockOp]]:
    if o.thread is None:
        return
    t = o.thread
    for k, n in enumerate(t.nodes):
        for kind, what, made in _nodes(n, t.arity + k):
            nodes = (*t.nodes[:k], made, *t.nodes[k + 1 :])
            yield kind, f"node {k} {what}", replace(o, thread=replace(t, nodes=nodes))
        for i in n.inputs:
            place = {t.arity + k: i} | {j: j - 1 for j in range(t.arity + k + 1, t.arity + len(t.nodes))}
            rest = [
                replace(m, inputs=tuple(place.get(j, j) for j in m.inputs)) for m in (*t.nodes[:k], *t.nodes[k + 1 :])
            ]
            if rest and k < len(t.nodes) - 1:
                yield "scale", f"node {k} is its operand {i}", replace(o, thread=replace(t, nodes=tuple(rest)))
    last = t.arity + len(t.nodes) - 1
    if last >= 0:
        twice = (ThreadNode("neg", (last,)), ThreadNode("neg", (last + 1,)))
        yield "same", "negated twice", replace(o, thread=replace(t, nodes=(*t.nodes, *twice)))
        half = (ThreadNode("const", (), Fraction(1, 2)), ThreadNode("mul", (last, last + 1)))
        yield "scale", "halved", replace(o, thread=replace(t, nodes=(*t.nodes, *half)))
        double = (ThreadNode("add", (last, last)),)
        yield "scale", "doubled", replace(o, thread=replace(t, nodes=(*t.nodes, *double)))


def _nodes(n: ThreadNode, defined: int) -> Iterator[tuple[str, str, ThreadNode]]:
    if n.op == "const" and n.value is not None:
        for value in (n.value + 1, n.value * 2 if n.value else Fraction(1), n.value * (1 + Fraction(1, 1 << 40))):
            if value != n.value:
                yield "scale", f"is {float(value)}", replace(n, value=value)
    if len(n.inputs) == 2:
        kind = "same" if n.op in OPS and OPS[n.op].commutative else "operand"
        yield kind, "operands turned round", replace(n, inputs=n.inputs[::-1])
        yield "operand", "first operand twice", replace(n, inputs=(n.inputs[0], n.inputs[0]))
    for k, own in enumerate(n.inputs):
        for other in range(defined):
            if other != own:
                yield (
                    "operand",
                    f"operand {k} is {other}",
                    replace(n, inputs=(*n.inputs[:k], other, *n.inputs[k + 1 :])),
                )
    if n.op in TWINS:
        yield "operator", TWINS[n.op], replace(n, op=TWINS[n.op])
    if len(n.inputs) == 1 and n.op != "silu":
        yield "operator", "silu", replace(n, op="silu")


def _without(g: BlockGraph, o: BlockOp) -> BlockGraph:
    """The block graph in which `o` is what it reads first."""
    ops = tuple(
        replace(x, inputs=tuple(o.inputs[0] if i == o.name else i for i in x.inputs)) for x in g.ops if x is not o
    )
    return replace(g, ops=ops, outputs=tuple(o.inputs[0] if v == o.name else v for v in g.outputs))
