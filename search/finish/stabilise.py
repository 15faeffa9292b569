"""From the exponential form to a program that cannot overflow: running maxima, rescaled accumulators.

Softmax needs exp(x - c) for a c that keeps the numbers small; exp(x - c) / sum(exp(x - c)) does not depend on c. Cases:
1. the softmax axis lies within the block, before the loop or after it: c is the maximum of the tile row, and the same in
   every iteration;
2. the loop walks the softmax axis: c is the maximum so far; whatever was accumulated linearly in the exponential is
   multiplied by exp(old - new) when c changes;
3. the grid splits the softmax axis: partial sums of different blocks are weighted with exp(own - common).
The power with which the factor enters each value is tracked; outputs must not have it, but where the program stores c beside
them for another kernel (`softmaxes.py`). Verification evaluates the result with arbitrary values in place of every maximum.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_cli.errors import Refused
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.ops import QUOTIENTS
from mirage_cli.search.mugraph.mugraph import BODY, GRID, BlockGraph, BlockOp, ThreadGraph, ThreadNode, is_maximum

_EXP_MINUS = ThreadGraph(2, (ThreadNode("exp_minus", (0, 1)),))


def stabilise(graph: BlockGraph, program: Program) -> BlockGraph:
    """The graph with every stabilised exponential spelled out, and the maximum that the program stores among its outputs.
    Raises Refused when a factor cannot be made to cancel."""
    exponentials = [o for o in graph.ops if o.op == "stable_exp"]
    kept = [k for k, o in enumerate(program.outputs) if is_maximum(program, o.value)]
    if kept and len(exponentials) != 1:
        raise Refused(f"a maximum is stored for {len(exponentials)} exponentials")
    for e in exponentials:
        graph, maximum = _expand(graph, e, bool(kept))
        for k in kept:
            graph = replace(graph, outputs=(*graph.outputs[:k], maximum, *graph.outputs[k:]))
    return graph.validate(program)


def _expand(graph: BlockGraph, e: BlockOp, kept: bool) -> tuple[BlockGraph, str]:
    """The graph with one exponential spelled out, and the maximum that all of its sums end up with."""
    power = factor_powers(graph, e.name)
    for out in graph.outputs:
        if power[out] != 0 and not kept:
            raise Refused(
                f"the factor of exponential {e.name} does not cancel in output {out}: it is stored before the sum is known"
            )
    walks = e.phase == BODY and graph.loop in e.over
    top = BlockOp(f"{e.name}_top", "top", e.inputs, e.phase, e.over)
    maximum = top.name
    made: list[BlockOp] = [top]
    if walks:
        made.append(BlockOp(f"{e.name}_max", "running", (top.name,), BODY))
        made.append(BlockOp(f"{e.name}_shrink", "shrink", (f"{e.name}_max",), BODY))
        maximum = f"{e.name}_max"
    made.append(BlockOp(e.name, "thread", (e.inputs[0], maximum), e.phase, thread=_EXP_MINUS))
    ops: list[BlockOp] = []
    common: str | None = None
    for o in graph.ops:
        if o is e:
            ops += made
            continue
        weighted = bool(o.inputs) and power[o.inputs[0]] != 0
        if o.op == "accum" and weighted and e.phase == BODY:
            if not walks or power[o.inputs[0]] != 1:
                raise Refused(f"{o.name} accumulates power {power[o.inputs[0]]} of a factor that changes")
            _first_weight(o)
            o = replace(o, inputs=(o.inputs[0], f"{e.name}_shrink"))
        elif o.op == "grid_sum" and weighted:
            if power[o.inputs[0]] != 1 or (e.phase == BODY and not walks):
                raise Refused(f"{o.name} sums power {power[o.inputs[0]]} of a factor that differs between blocks")
            _first_weight(o)
            if common is None:
                common = f"{e.name}_common"
                ops.append(BlockOp(common, "grid_top", (maximum,), GRID))
            o = replace(o, inputs=(o.inputs[0], maximum, common))
        ops.append(o)
    return replace(graph, ops=tuple(ops)), common or maximum


def _first_weight(o: BlockOp) -> None:
    if len(o.inputs) > 1:
        raise Refused(f"{o.name} holds the factors of two exponentials, which change at different times")


def factor_powers(graph: BlockGraph, e: str) -> dict[str, int]:
    """The power of the common factor of exponential `e` in each value. Raises Refused where it is no common factor."""
    power: dict[str, int] = {}
    for o in graph.ops:
        known = [power[i] for i in o.inputs]
        if o.name == e:
            power[o.name] = 1
        elif o.op == "thread" and o.thread is not None:
            power[o.name] = _thread_power(o.thread, known, o.name)
        elif o.op == "contract":
            power[o.name] = sum(known)
        elif o.op in ("sum", "accum", "grid_sum"):
            power[o.name] = known[0]
        elif any(known):
            raise Refused(f"{o.name} ({o.op}) reads a value with an arbitrary factor")
        else:
            power[o.name] = 0
    return power


def _thread_power(thread: ThreadGraph, known: list[int], name: str) -> int:
    values = list(known)
    for n in thread.nodes:
        args = [values[i] for i in n.inputs]
        if n.op in ("mul",):
            values.append(sum(args))
        elif n.op in QUOTIENTS:
            values.append(args[0] - args[1])
        elif n.op == "neg" or (n.op in ("add", "sub") and len(set(args)) == 1):
            values.append(args[0])
        elif any(args):
            raise Refused(f"{name}: {n.op} of a value with an arbitrary factor")
        else:
            values.append(0)
    return values[-1]
