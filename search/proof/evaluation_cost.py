"""Estimates of the time and the memory that a program and its kernels take when they are evaluated in prime fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir.program import Program, last_uses
from mirage_cli.lax.ops import OPS, QUOTIENTS
from mirage_cli.search.mugraph.evaluate import Tiles, positions_at_once
from mirage_cli.search.mugraph.mugraph import BODY, BlockOp, CustomKernel, KernelGraph

_DRAW, _ELEMENT, _CALL, _INVERSE = 3.0, 5.0, 25.0, 25.0  #: nanoseconds for an element in one field
_CONVERT, _MULTIPLY_ADD, _MAKE = 1.6, 0.3, 14.0  #: of products: elements of the larger operand, multiply-adds, results
_STATEMENT, _PRODUCT = 1e4, 5e4  #: nanoseconds of an operator on a tile however small, and of a product or function
_RESIDUE, _STORED = 8, 4  #: bytes of a value's element in one field, and of an input's
_TEMPORARIES = 2  #: arrays of the size of the largest value that an operator holds besides
_BASE = 64 << 20  #: bytes of pieces and chunks


def cost(program: Program, graph: KernelGraph, tiles: Sequence[Tiles], symbols: Mapping[str, int]) -> float:
    """Nanoseconds, roughly, that evaluating a program and its kernels takes in one field, of three."""
    total = sum(_DRAW * math.prod(ex.value(e, symbols) for e in s.dims) for s in program.sources)
    size = _sizes(program, symbols)
    for n in program.nodes:
        operands = [_volume(program.axes_of(i), size) for i in n.inputs]
        inside = _volume(frozenset(n.over).union(*(program.axes_of(i) for i in n.inputs)), size)
        total += _operator(n.op, operands, inside, _volume(program.axes_of(n.name), size))
    for kernel, tile in zip(graph.kernels, tiles, strict=True):
        total += sum(_kernel_work(kernel, tile, symbols))
    return total


def memory(
    program: Program, graph: KernelGraph, tiles: Sequence[Tiles], symbols: Mapping[str, int], fields: int
) -> float:
    """Bytes, roughly, that are held at most at a time."""
    size = _sizes(program, symbols)
    inputs = sum(math.prod(ex.value(e, symbols) for e in s.dims) for s in program.sources)
    outputs = sum(math.prod(ex.value(e, symbols) for e in o.dims) for o in program.outputs)
    most, stored = _peak(program, size), float(outputs)
    for kernel, tile in zip(graph.kernels, tiles, strict=True):
        stored += sum(math.prod(ex.value(e, symbols) for e in o.dims) for o in kernel.program.outputs)
        held = _held(kernel, tile, symbols)
        most = max(most, stored + sum(held) + _TEMPORARIES * max(held, default=0.0))
    return _BASE + fields * (_STORED * inputs + _RESIDUE * most)


def _peak(program: Program, size: Mapping[str, int]) -> float:
    """The most elements of values that are held while a program is evaluated."""
    elements_of = {n.name: _volume(program.axes_of(n.name), size) for n in program.nodes}
    last = last_uses(program)
    held = most = 0.0
    for name, elements in elements_of.items():
        held += elements
        most = max(most, held + _TEMPORARIES * elements)
        held -= sum(elements_of.get(x, 0.0) for x in last[name])
    return most


def _sizes(program: Program, symbols: Mapping[str, int]) -> dict[str, int]:
    return {a.name: ex.value(a.extent, symbols) for a in program.axes}


def _operator(op: str, operands: list[float], inside: float, result: float) -> float:
    if op == "contract":
        return _PRODUCT + _CONVERT * max(operands) + _MULTIPLY_ADD * inside + _MAKE * result
    if op in ("const", "extent", "iota"):
        return _STATEMENT
    if op in ("sum", "accum", "grid_sum") or (op in OPS and OPS[op].linear and op not in QUOTIENTS):
        return _STATEMENT + _ELEMENT * inside
    if op in QUOTIENTS:
        return _PRODUCT + _ELEMENT * inside + _INVERSE * operands[-1]
    return _PRODUCT + (_CALL + _ELEMENT) * inside


def _parts(
    kernel: CustomKernel, tile: Tiles, symbols: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int], int, int]:
    """Positions of each axis in what is evaluated at once, in an iteration of it, the number of such parts and of
    iterations."""
    block, size = kernel.block, _sizes(kernel.program, symbols)
    part = size | positions_at_once(block, block.axes_of(kernel.program), tile, size)
    count = math.prod(-(-size[a] // max(part[a], 1)) for a in block.grid)
    if block.loop is None:
        return part, part, count, 1
    walked = part[block.loop]
    inner = max(1, min(tile.get("loop", walked), walked))
    return part, part | {block.loop: inner}, count, -(-walked // inner)


def _kernel_work(kernel: CustomKernel, tile: Tiles, symbols: Mapping[str, int]) -> Iterable[float]:
    axes = kernel.block.axes_of(kernel.program)
    part, body, count, iterations = _parts(kernel, tile, symbols)
    for operator in kernel.block.ops:
        if operator.op == "load":
            continue
        looped = operator.phase == BODY or operator.op == "accum"
        own, times = (body, count * iterations) if looped else (part, count)
        operands = [_volume(axes[i], own) for i in operator.inputs]
        inside = _volume(frozenset(operator.over).union(axes[operator.name], *(axes[i] for i in operator.inputs)), own)
        yield times * _block_operator(operator, operands, inside, _volume(axes[operator.name], own))


def _block_operator(operator: BlockOp, operands: list[float], inside: float, result: float) -> float:
    if operator.thread is None:
        return _operator(operator.op, operands, inside, result)
    return sum(_operator(n.op, [inside] * max(1, len(n.inputs)), inside, result) for n in operator.thread.nodes)


def _held(kernel: CustomKernel, tile: Tiles, symbols: Mapping[str, int]) -> list[float]:
    """The elements of each value of a block."""
    axes = kernel.block.axes_of(kernel.program)
    part, body, _, _ = _parts(kernel, tile, symbols)
    return [_volume(axes[o.name], body if o.phase == BODY else part) for o in kernel.block.ops if o.op != "load"]


def _volume(axes: Iterable[str], size: Mapping[str, int]) -> float:
    return math.prod(float(size[a]) for a in axes)
