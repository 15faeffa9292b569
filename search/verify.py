"""The proof: a muGraph equals its program, by evaluation at random points of several prime fields (design section 10).

Independent of the search: own seeds, own primes, the structure that is rendered (blocks, iterations, partial tiles, running
maxima). Extents are the real ones where they are numbers and the work is affordable; otherwise stand-ins that keep every
kind of tile (whole and partial, first and later iteration), see `stand_ins`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mirage_cli.lax import extents as ex
from mirage_cli.lax.bound import Bound, Degree, Degrees, program_degrees
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.field import PRIMES, Residues, ZeroDenominator
from mirage_cli.lax.ops import lookup
from mirage_cli.lax.program import Axis, Output, Program, Slot, evaluate_program
from mirage_cli.search.evaluate import Tiles, evaluate_kernels
from mirage_cli.search.mugraph import BODY, BlockGraph, KernelGraph

DEFAULT_CONFIDENCE = 40  #: bits: the bound is to be below 2 ** -confidence
AFFORDABLE = 3e9  #: multiply-adds (for each prime) that one evaluation may take
SYMBOL_LIMIT = 1 << 20  #: what a symbol is taken to be at most when the bound is computed
MAX_DRAWS = 8


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a proof: `passed`, and with what error bound (2 ** `log2_bound`)."""

    passed: bool
    mode: str
    primes: tuple[int, ...]
    degree: int
    argument_degree: int
    applications: int
    rounds: int
    log2_bound: float
    extents: str  #: "real" or "stand-in"
    seconds: float
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """The report's form."""
        data = asdict(self)
        data["primes"] = list(self.primes)
        data["error_bound"] = 2.0**self.log2_bound if self.log2_bound > -1000 else 0.0
        return data


def verify(
    program: Program,
    graph: KernelGraph,
    tiles: Sequence[Tiles],
    seed: int = 0,
    confidence: int = DEFAULT_CONFIDENCE,
) -> Verdict:
    """Prove or refute that `graph`, run with `tiles`, computes `program` for every input.

    A refutation is certain; an acceptance errs with at most the probability stated. Raises InvalidGraph for a graph that
    is not well-formed.
    """
    start = time.perf_counter()
    graph.validate()
    limits = dict.fromkeys(program.symbols, SYMBOL_LIMIT)
    degree, argument, applications = _degrees(program, graph, tiles, limits)
    primes: tuple[int, ...] = PRIMES[:3]
    while Bound(degree, argument, applications, primes).log2 > -confidence and len(primes) < len(PRIMES):
        primes = PRIMES[: len(primes) + 1]
    bound = Bound(degree, argument, applications, primes)
    stand_in, symbols = stand_ins(program, graph, tiles)
    real = stand_in is None
    sized_program, sized_graph = (program, graph) if stand_in is None else stand_in
    reason = _compare(sized_program, sized_graph, tiles, symbols, seed, primes)
    if not reason and bound.log2 > -confidence:
        reason = f"the error bound 2^{bound.log2:.1f} is above the 2^-{confidence} asked for"
    return Verdict(
        not reason,
        "uninterpreted",
        primes,
        degree,
        argument,
        applications,
        1,
        bound.log2,
        "real" if real else "stand-in",
        time.perf_counter() - start,
        reason,
    )


def _compare(
    program: Program,
    graph: KernelGraph,
    tiles: Sequence[Tiles],
    symbols: Mapping[str, int],
    seed: int,
    primes: tuple[int, ...],
) -> str:
    """Why the two differ at a random point, or nothing."""
    for draw in range(MAX_DRAWS):
        point = f"verify {seed} {draw}"
        number = int.from_bytes(point.encode(), "little") % (1 << 60)
        try:
            shared = _Shared(number, primes)
            domain = shared(program)
            arrays = {
                k: domain.random(f"source {k}", [ex.value(e, symbols) for e in s.dims])
                for k, s in enumerate(program.sources)
            }
            wanted = evaluate_program(program, domain, arrays, symbols)
            found = evaluate_kernels(graph, list(tiles), shared, arrays, symbols)
        except ZeroDenominator:
            continue
        for k, (w, f) in enumerate(zip(wanted, found, strict=True)):
            if w.shape != f.shape:
                return f"output {k} has shape {f.shape[1:]} instead of {w.shape[1:]}"
            if not np.array_equal(w, f):
                where = np.argwhere((w != f).any(axis=0))[0]
                return f"output {k} differs at {tuple(int(i) for i in where)} (random point {draw}, seed {seed})"
        return ""
    return f"{MAX_DRAWS} random points met a division by zero"


class _Shared:
    """Domains for the kernels of one graph: the same random functions, positions and constants as the program's."""

    def __init__(self, seed: int, primes: tuple[int, ...]) -> None:
        self.seed, self.primes = seed, primes

    def __call__(self, program: Program) -> Residues:
        return Residues([a.name for a in program.axes], self.seed, self.primes)


# --- extents ------------------------------------------------------------------------------------------------------------
def stand_ins(
    program: Program, graph: KernelGraph, tiles: Sequence[Tiles]
) -> tuple[tuple[Program, KernelGraph] | None, dict[str, int]]:
    """Smaller programs and kernels of the same structure, or None when the real extents are affordable.

    Every axis keeps at least two whole tiles and a partial one (three iterations and a partial one along a loop), so
    every branch of the schedule is exercised; symbols get numbers of their own.
    """
    symbols = {s: 37 + 24 * k for k, s in enumerate(program.symbols)}
    if _work(program, symbols) <= AFFORDABLE:
        return None, symbols
    sizes = {a.name: _reduced_extent(a, graph, tiles, symbols) for a in program.axes}
    resized = _resize(program, sizes)
    if resized is None:
        return None, symbols
    kernels = []
    for k in graph.kernels:
        own = {a.name: sizes[a.name] for a in k.program.axes if a.name in sizes}
        small = _resize(k.program, own)
        if small is None:
            return None, symbols
        kernels.append(replace(k, program=small))
    return (resized, replace(graph, kernels=tuple(kernels))), {}


def _work(program: Program, symbols: Mapping[str, int]) -> float:
    """Multiply-adds of the largest operator."""
    size = {a.name: ex.value(a.extent, symbols) for a in program.axes}
    most = 1.0
    for n in program.nodes:
        axes = frozenset(n.over).union(*(program.axes_of(i) for i in n.inputs))
        most = max(most, math.prod(size[a] for a in axes))
    return most


def _reduced_extent(axis: Axis, graph: KernelGraph, tiles: Sequence[Tiles], symbols: Mapping[str, int]) -> int:
    extent = ex.value(axis.extent, symbols)
    wanted = 2
    for kernel, tile in zip(graph.kernels, tiles, strict=True):
        step = tile.get(axis.name, 0)
        if kernel.block.loop == axis.name:
            inner = tile.get("loop", extent)
            wanted = max(wanted, 3 * inner + extent % inner, 2 * step + extent % step if step else 0)
        elif axis.name in kernel.block.grid and step:
            wanted = max(wanted, 2 * step + extent % step)
        elif axis.name in {a.name for a in kernel.program.axes} and axis.name not in kernel.block.grid:
            wanted = max(wanted, min(extent, 64))
    return min(extent, wanted)


def _resize(program: Program, sizes: Mapping[str, int]) -> Program | None:
    """The program with other extents; None when an axis reads a part of a stored run (its place would change)."""

    def slots(access: Sequence[Slot]) -> tuple[Slot, ...] | None:
        out = []
        for s in access:
            if s.axis is None:
                out.append(s)
            elif s.offset or s.extent != program.extent(s.axis):
                return None
            else:
                out.append(Slot(s.axis, sizes[s.axis]))
        return tuple(out)

    inputs, sources = [], list(program.sources)
    for i in program.inputs:
        access = slots(i.access)
        if access is None:
            return None
        inputs.append(replace(i, access=access))
        sources[i.source] = replace(sources[i.source], dims=tuple(s.extent for s in access))
    outputs: list[Output] = []
    for o in program.outputs:
        access = slots(o.access)
        if access is None:
            return None
        outputs.append(replace(o, access=access, dims=tuple(s.extent for s in access)))
    axes = tuple(Axis(a.name, _extent(sizes, a)) for a in program.axes)
    return replace(
        program, axes=axes, sources=tuple(sources), inputs=tuple(inputs), outputs=tuple(outputs), _axes_of={}
    )


def _extent(sizes: Mapping[str, int], a: Axis) -> Extent:
    return sizes[a.name]


# --- degrees ------------------------------------------------------------------------------------------------------------
def _degrees(
    program: Program, graph: KernelGraph, tiles: Sequence[Tiles], symbols: Mapping[str, int]
) -> tuple[int, int, int]:
    """(degree of a difference of outputs, largest degree of a difference of arguments, function applications)."""
    wanted, domain = program_degrees(program, symbols)
    argument = domain.argument
    tensors: dict[int, Degree] = {}
    for kernel, tile in zip(graph.kernels, tiles, strict=True):
        found, own = _block_degrees(kernel.program, kernel.block, tile, symbols, kernel.inputs, tensors)
        argument = max(argument, own)
        tensors.update(zip(kernel.outputs, found, strict=True))
    degree = applications = 0
    for k, w in enumerate(wanted):
        f = tensors[graph.sources + k]
        degree = max(degree, w.num + f.den, f.num + w.den)
        applications = max(applications, w.applications + f.applications)
    return max(degree, 1), max(argument, 1), applications


def _block_degrees(
    p: Program,
    g: BlockGraph,
    tile: Tiles,
    symbols: Mapping[str, int],
    refs: Sequence[int],
    tensors: Mapping[int, Degree],
) -> tuple[list[Degree], int]:
    extents: dict[Hashable, int] = {a.name: ex.value(a.extent, symbols) for a in p.axes}
    whole = Degrees(extents)
    iterations = -(-extents[g.loop] // tile.get("loop", extents[g.loop])) if g.loop else 1
    parts = Degrees({**extents, **({g.loop: min(tile.get("loop", 1 << 30), extents[g.loop])} if g.loop else {})})
    steps = Degrees({"step": iterations, "block": max(1, math.prod(_portions(a, extents, tile) for a in g.split))})
    axes = g.axes_of(p)
    source = {i.name: i.source for i in p.inputs}
    values: dict[str, Degree] = {}
    for o in g.ops:
        d = parts if o.phase == BODY else whole
        args = [values[i] for i in o.inputs]
        match o.op:
            case "load":
                known = tensors.get(refs[source[o.source_value or ""]])
                values[o.name] = known or d.variable(frozenset(axes[o.name]))
            case "iota":
                values[o.name] = d.variable(frozenset(axes[o.name]))
            case "contract":
                values[o.name] = d.contract(args[0], args[1], o.over)
            case "sum":
                values[o.name] = d.sum(args[0], o.over)
            case "top" | "running" | "shrink" | "grid_top":
                values[o.name] = d.variable(frozenset(axes[o.name]), 0, 2)
            case "accum" | "grid_sum":
                growth = 2 * steps.extents["step"] if len(args) > 1 else 0
                key = "step" if o.op == "accum" else "block"
                total = steps.sum(replace(args[0], den_axes=args[0].den_axes | {key}), [key])
                values[o.name] = replace(total, num=total.num + growth, den_axes=args[0].den_axes)
            case _:
                values[o.name] = _thread_degree(o.thread, d, args)
    return [values[v] for v in g.outputs], max(whole.argument, parts.argument)


def _portions(axis: str, extents: Mapping[Hashable, int], tile: Tiles) -> int:
    return -(-extents[axis] // tile.get(axis, extents[axis]))


def _thread_degree(thread: Any, d: Degrees, args: list[Degree]) -> Degree:
    values = list(args)
    for n in thread.nodes:
        operands = [values[i] for i in n.inputs]
        if n.op == "const":
            values.append(d.const(0))
        elif n.op == "exp_minus":
            values.append(d.exp_minus(*operands))
        else:
            values.append(lookup(n.op).apply(d, *operands))
    return values[-1]
