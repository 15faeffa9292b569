"""A reduction over blocks as two kernels: the first stores every part's share, the second combines them.

A block graph with a split reduction over axis k has the last block to arrive finish the work. The same in two kernels:

1. k becomes two axes, its parts (on the grid) and the positions of one part. Prologue, body and epilogue run for each part
   and store what the grid phase reads of them: partial sums, and the maxima that they were taken with.
2. The grid phase is a block graph of its own. It loads the shares, takes the maximum over the parts, weighs partial sums
   with exp(own maximum - common one), sums them and goes on. Loads and what is elementwise in them is done again.

The kernels' programs say in the program's operators what they compute, so that the second can be searched in its turn.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir.program import Axis, Input, Node, Output, Program, Slot, Source
from mirage_cli.lax.normal.identify import free_name, prune
from mirage_cli.search.finish.fuse import thread_graphs
from mirage_cli.search.mugraph.mugraph import (
    BODY,
    GRID,
    MAXIMA,
    PROLOGUE,
    REDUCING,
    BlockGraph,
    BlockOp,
    CustomKernel,
    KernelGraph,
    ThreadGraph,
    ThreadNode,
)

_WEIGHT = ThreadGraph(2, (ThreadNode("exp_difference", (0, 1)),))
_TIMES = ThreadGraph(2, (ThreadNode("mul", (0, 1)),))


@dataclass(frozen=True, slots=True)
class Parts:
    """An axis as two: `outer` counts `count` parts, `inner` the positions of one."""

    axis: str
    outer: str
    inner: str
    count: int
    length: int

    def names(self, over: Iterable[str]) -> tuple[str, ...]:
        """The axes that a part reduces in the place of `over`."""
        return tuple(self.inner if a == self.axis else a for a in over)

    def slots(self, access: Sequence[Slot]) -> tuple[Slot, ...]:
        """An access map on the two axes. Raises Refused where a part is no whole number of stored runs."""
        found: list[Slot] = []
        for s in access:
            if s.axis != self.axis:
                found.append(s)
                continue
            if not isinstance(s.extent, int) or s.extent % self.length or s.offset % self.length:
                raise Refused(f"axis {self.axis} walks a part of {s.extent} positions that {self.count} do not divide")
            found += [Slot(self.outer, s.extent // self.length, s.offset // self.length), Slot(self.inner, self.length)]
        return tuple(found)


@functools.lru_cache(maxsize=256)
def two_kernels(program: Program, block: BlockGraph, parts: int) -> KernelGraph:
    """The kernel graph of two kernels that do what `block`, which splits one reduced axis, does in one.

    `parts` is how many blocks share the reduction; it has to divide the axis. Raises Refused where the reduction cannot be
    told apart from what follows.
    """
    if len(block.split) != 1:
        raise Refused(f"a block graph that splits {len(block.split)} reduced axes has no parts to combine")
    split = _parts(program, block.split[0], parts)
    return _Combine(program, block, split).run()


def _parts(program: Program, axis: str, count: int) -> Parts:
    extent = program.extent(axis)
    if not isinstance(extent, int) or count < 2 or extent % count:
        raise Refused(f"axis {axis} of {extent} positions has no {count} equal parts")
    return Parts(axis, f"{axis}_of{count}", f"{axis}_by{count}", count, extent // count)


class _Combine:
    def __init__(self, program: Program, block: BlockGraph, split: Parts) -> None:
        self.p, self.g, self.split = program, block, split
        self.ops = {o.name: o for o in block.ops}
        self.axes = block.axes_of(program)
        self.finer = _finer(program, split)

    def run(self) -> KernelGraph:
        early = [v for v in self.g.outputs if self.ops[v].phase != GRID]
        shares = self.shares()
        first_ops = self.first_ops({*early, *shares})
        axes = BlockGraph((), (), None, tuple(first_ops), ()).axes_of(self.finer)
        fresh = (f"w{k}" for k in range(len(self.p.inputs) + len(self.p.nodes) + len(shares)))
        taken = {i.name for i in self.p.inputs} | {n.name for n in self.p.nodes}
        names = dict(zip(shares, (n for n in fresh if n not in taken), strict=False))
        order = sorted(self.finer.axes, key=lambda a: a.name != self.split.outer)  # what a part stores lies together
        stores = {v: tuple(Slot(a.name, a.extent) for a in order if a.name in axes[v]) for v in shares}
        count, outputs = len(self.p.sources), len(self.p.outputs)
        tensor = {v: count + outputs + k for k, v in enumerate(shares)}
        own = [k for k, v in enumerate(self.g.outputs) if v in early]
        first = self.first(first_ops, axes, [*((v, stores[v], names[v]) for v in shares)], own)
        written = (*(tensor[v] for v in shares), *(count + k for k in own))
        rest = [k for k in range(outputs) if k not in own]
        second, block = self.second(shares, stores, names, rest)
        sources = [*range(count), *tensor.values()]
        kernels = (
            CustomKernel(prune(first[0]), first[1], tuple(_used(first[0])), written),
            CustomKernel(
                prune(second), block, tuple(sources[k] for k in _used(second)), tuple(count + k for k in rest)
            ),
        )
        return KernelGraph(count, outputs, count + outputs + len(shares), kernels).validate(part=True)

    # --- what passes between the kernels ------------------------------------------------------------------------------
    def shares(self) -> list[str]:
        """The values that the first kernel stores for the second, in order. Raises Refused."""
        read = {i for o in self.g.ops if o.phase == GRID for i in o.inputs if self.ops[i].phase != GRID}
        partial = {i for o in self.g.ops if o.op in ("grid_sum", "grid_top") for i in o.inputs}
        for v in sorted(read - partial):
            if self.split.axis in self.axes[v]:
                raise Refused(f"{v}, which the reduction over blocks does not take, has its axis {self.split.axis}")
        return [o.name for o in self.g.ops if o.name in read and (o.name in partial or not self.again(o.name))]

    def again(self, v: str) -> bool:
        """True if the second kernel computes a value again: loads and what is elementwise in them."""
        o = self.ops[v]
        return o.op in ("load", "iota", "extent") or (o.op == "thread" and all(self.again(i) for i in o.inputs))

    def first_ops(self, stored: Collection[str]) -> list[BlockOp]:
        """The operators behind what the first kernel stores, on the finer axes."""
        needed, kept = set(stored), []
        for o in reversed(self.g.ops):
            if o.name in needed:
                needed.update(o.inputs)
                if o.op in ("iota", "extent") and o.axis == self.split.axis:
                    raise Refused(f"{o.name} counts positions along {o.axis}, which is taken apart")
                kept.append(replace(o, over=self.split.names(o.over)))
        return kept[::-1]

    # --- the first kernel ---------------------------------------------------------------------------------------------
    def first(
        self,
        ops: list[BlockOp],
        axes: Mapping[str, frozenset[str]],
        stores: list[tuple[str, tuple[Slot, ...], str]],
        own: list[int],
    ) -> tuple[Program, BlockGraph]:
        names, nodes = describe(ops, self.finer)
        outputs = [Output(names[v], slots, tuple(s.extent for s in slots), F32, name) for v, slots, name in stores]
        values = [v for v, _, _ in stores] + [self.g.outputs[k] for k in own]
        outputs += [replace(self.finer.outputs[k], value=names[self.g.outputs[k]]) for k in own]
        program = replace(self.finer, nodes=nodes, outputs=tuple(outputs), _axes_of={})
        loop = self.split.inner if self.g.loop == self.split.axis else self.g.loop
        loop = loop if any(o.phase == BODY for o in ops) else None
        free = self.free(ops, values, axes, loop)
        grid = (*(a for a in free if a != self.split.outer), self.split.outer)
        return program, BlockGraph(grid, (), loop, tuple(ops), tuple(values))

    def free(
        self, ops: Sequence[BlockOp], values: Sequence[str], axes: Mapping[str, frozenset[str]], loop: str | None
    ) -> list[str]:
        """The axes that blocks may split: those of stored values that nothing reduces. Blocks that share a maximum would
        each have their own, so an axis that a stored one lacks is whole."""
        taken = {a for o in ops for a in o.over if o.op in REDUCING} | {loop}
        maxima = [axes[v] for v in values if self.ops[v].op in MAXIMA]
        stored = frozenset[str]().union(*(axes[v] for v in values))
        order = [a.name for a in self.finer.axes]
        return [a for a in order if a in stored and a not in taken and all(a in m for m in maxima)]

    # --- the second kernel --------------------------------------------------------------------------------------------
    def second(
        self,
        shares: list[str],
        stores: Mapping[str, tuple[Slot, ...]],
        names: Mapping[str, str],
        rest: list[int],
    ) -> tuple[Program, BlockGraph]:
        ops = self.second_ops(shares, names)
        sources, inputs = list(self.finer.sources), list(self.finer.inputs)
        for v in shares:
            inputs.append(Input(names[v], len(sources), stores[v]))
            sources.append(Source(names[v], tuple(s.extent for s in stores[v]), F32))
        base = replace(self.finer, sources=tuple(sources), inputs=tuple(inputs), nodes=(), outputs=(), _axes_of={})
        known, nodes = describe(ops, base)
        values = tuple(self.g.outputs[k] for k in rest)
        outputs = tuple(replace(self.finer.outputs[k], value=known[self.g.outputs[k]]) for k in rest)
        program = replace(base, nodes=nodes, outputs=outputs, _axes_of={})
        stored = {s.axis for o in outputs for s in o.access}
        reduced = {a for o in ops for a in o.over}
        grid = tuple(a.name for a in program.axes if a.name in stored and a.name not in reduced)
        return program, thread_graphs(BlockGraph(grid, (), None, tuple(ops), values), program)

    def second_ops(self, shares: list[str], names: Mapping[str, str]) -> list[BlockOp]:
        done: dict[str, BlockOp] = {}
        parts = (self.split.outer,)

        def need(v: str) -> None:
            o = self.ops[v]
            if v in done:
                return
            if v in shares:
                done[v] = BlockOp(v, "load", (), PROLOGUE, source_value=names[v])
                return
            for i in o.inputs:
                need(i)
            if o.op == "grid_top":
                done[v] = BlockOp(v, "top", o.inputs, PROLOGUE, parts)
            elif o.op == "grid_sum":
                term = o.inputs[0]
                if len(o.inputs) > 1:
                    term, weight = f"{v}_term", f"{o.inputs[1]}_weight"
                    done.setdefault(weight, BlockOp(weight, "thread", o.inputs[1:], PROLOGUE, thread=_WEIGHT))
                    done[term] = BlockOp(term, "thread", (o.inputs[0], weight), PROLOGUE, thread=_TIMES)
                done[v] = BlockOp(v, "sum", (term,), PROLOGUE, parts)
            else:
                done[v] = replace(o, phase=PROLOGUE)

        for v in self.g.outputs:
            if self.ops[v].phase == GRID:
                need(v)
        return list(done.values())


def _finer(p: Program, split: Parts) -> Program:
    """The reads and outputs of a program on the finer axes; no operators."""
    axes: list[Axis] = []
    for a in p.axes:
        if a.name == split.axis:
            axes += [Axis(split.outer, split.count), Axis(split.inner, split.length)]
        else:
            axes.append(a)
    inputs = tuple(replace(i, access=split.slots(i.access)) for i in p.inputs)
    outputs = tuple(replace(o, access=split.slots(o.access)) for o in p.outputs)
    return replace(p, axes=tuple(axes), inputs=inputs, nodes=(), outputs=outputs, _axes_of={})


def _used(p: Program) -> list[int]:
    """The sources that a program needs."""
    needed = {o.value for o in p.outputs}
    for n in reversed(p.nodes):
        if n.name in needed:
            needed.update(n.inputs)
    return sorted({i.source for i in p.inputs if i.name in needed})


# --- what a block graph computes, as a program --------------------------------------------------------------------------
def describe(ops: Sequence[BlockOp], base: Program) -> tuple[dict[str, str], tuple[Node, ...]]:
    """The operators of a program that compute what block operators without a grid phase do, and the name that each value
    has there. What only the loop needs (accumulators, rescaling) is not there; an exponential below a maximum of its own
    argument is a stabilised one."""
    taken = {i.name for i in base.inputs}
    names: dict[str, str] = {}
    nodes: list[Node] = []
    by_name = {o.name: o for o in ops}

    def add(node: Node) -> str:
        name = free_name(f"v{len(nodes)}", taken)
        nodes.append(replace(node, name=name))
        return name

    def top_of(v: str) -> BlockOp:
        o = by_name[v]
        return top_of(o.inputs[0]) if o.op == "running" else o

    for o in ops:
        match o.op:
            case "load":
                names[o.name] = o.source_value or ""
            case "iota" | "extent":
                names[o.name] = add(Node("", o.op, axis=o.axis))
            case "contract" | "sum":
                names[o.name] = add(Node("", o.op, tuple(names[i] for i in o.inputs), o.over, dtype=o.dtype))
            case "max" | "min":
                names[o.name] = add(Node("", o.op, (names[o.inputs[0]],), o.over))
            case "top":
                names[o.name] = add(Node("", "top", (names[o.inputs[0]],), o.over))
            case "accum" | "running":
                names[o.name] = names[o.inputs[0]]
            case "thread":
                assert o.thread is not None
                places = list(o.inputs)
                values = [names[i] for i in o.inputs]
                for n in o.thread.nodes:
                    args = [values[i] for i in n.inputs]
                    if n.op == "exp_minus":
                        top = top_of(places[n.inputs[1]])
                        if top.op == "load":
                            values.append(add(Node("", "exp_minus", tuple(args))))
                            continue
                        if names[top.inputs[0]] == args[0]:
                            values.append(add(Node("", "stable_exp", (args[0],), top.over)))
                            continue
                    if n.op in ("exp_minus", "exp_difference"):
                        args = [add(Node("", "sub", tuple(args)))]
                    op = "exp" if n.op in ("exp_minus", "exp_difference") else n.op
                    values.append(add(Node("", op, tuple(args), value=n.value)))
                names[o.name] = values[-1]
    return names, tuple(nodes)
