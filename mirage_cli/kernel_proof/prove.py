"""The proof of a plan's kernels: what is printed for a muGraph is run, thread by thread, over residues.

The same muGraph with the same schedules is printed for shorter axes, with whole tiles, a part, and as many iterations as make
a ring of copies go round; what is printed differs in the extents alone. Symbols stay, and have several sizes. Where these are
too short for a mask to hide any of them, so they are once more with the numbers of the mask made smaller (`nearer.py`), as far
as the muGraph is the program then too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from mirage_cli.codegen.requests.passes import ALL, Passes
from mirage_cli.codegen.source import source
from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.kernel_interpreter.memory import Unknown
from mirage_cli.kernel_proof.compare import FIELDS, Finding, compare
from mirage_cli.kernel_proof.nearer import longer, nearer
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.field import ZeroDenominator, random_primes
from mirage_cli.lax.ir.parts import numbered
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import MAXIMA, CustomKernel, KernelGraph
from mirage_cli.search.proof.evaluation_cost import cost
from mirage_cli.search.proof.stand_in import assignments, beside_symbols, beyond_a_tile, structured, with_room
from mirage_cli.search.proof.verify import KernelRun, Verdict, verify
from mirage_cli.search.schedules.schedule import Schedule, launches
from mirage_cli.search.schedules.target import Target

VARIABLE = "MIRAGE_KERNEL_RUNS"  #: of the environment; "0" leaves kernels without a run, for tests of other things
DRAWS = 2  #: random points at which kernels have to differ before they are refuted (a divisor may be 0 at one)
SPREAD = 60.0  #: of numbers on which exponentials leave the range of float64 where they are below no maximum
MOST_ELEMENTS = 1 << 17  #: of results, at sizes of symbols that are chosen to be large
AFFORDABLE = 2e7  #: nanoseconds that evaluating a program and its muGraph may take where all kernels are run together
MOST_WORK = 3e9  #: the same beyond which kernels are left without a run
Print = Callable[[Program, KernelGraph, Sequence[Schedule]], str]
Printed = tuple[Program, KernelGraph, str, dict[str, int]]


def prove_kernels(
    program: Program,
    graph: KernelGraph,
    schedules: Sequence[Schedule],
    target: Target,
    passes: Passes = ALL,
    seed: int = 0,
    entropy: str = "",
) -> KernelRun:
    """The outcome of running the source that is printed for a muGraph with its schedules; a run that is not understood has
    compared nothing."""
    start = time.perf_counter()

    def text(p: Program, g: KernelGraph, chosen: Sequence[Schedule]) -> str:
        return source("proof", p, g, chosen, target, "", passes).text

    extents, compared, reason = "", 0, ""
    try:
        extents, points = _points(program, graph, schedules, text)
        for p, g, printed, symbols in points:
            finding = _at(p, g, printed, symbols, f"{entropy}, seed {seed}")
            compared += finding.compared
            if not finding.passed:
                reason = f"{finding.reason} (where {_sizes(p, symbols)})"
                break
    except (Refused, Unknown) as e:
        compared, reason = 0, str(e)
    except Exception as e:  # whatever the interpreter does not expect of a kernel says nothing of what that computes
        compared, reason = 0, f"the kernels' run is not understood: {type(e).__name__}: {e}"
    return KernelRun(not reason, reason, extents, compared, FIELDS, time.perf_counter() - start)


def kernel_run(
    program: Program,
    graph: KernelGraph,
    schedules: Sequence[Schedule],
    target: Target,
    passes: Passes,
    seed: int,
    entropy: str,
) -> KernelRun:
    """The run of a plan's kernels; none where the environment says so (`MIRAGE_KERNEL_RUNS=0`), which the report tells."""
    if os.environ.get(VARIABLE) == "0":
        return KernelRun(False, f"{VARIABLE} is 0")
    return prove_kernels(program, graph, schedules, target, passes, seed, entropy)


def prove(
    program: Program,
    graph: KernelGraph,
    schedules: Sequence[Schedule],
    target: Target,
    passes: Passes,
    seed: int,
    confidence: int,
    entropy: str,
) -> Verdict:
    """The verdict on a muGraph (`search.proof.verify`) and on the kernels that are printed for it. Raises InvalidGraph."""
    tiles = [s.as_tiles() for s in schedules]
    verdict = verify(program, graph, tiles, seed, confidence, entropy=entropy)
    if not verdict.passed:
        return verdict
    return replace(verdict, kernels=kernel_run(program, graph, schedules, target, passes, seed, entropy))


def _sizes(p: Program, symbols: Mapping[str, int]) -> str:
    return ", ".join(f"{a.name} = {ex.value(a.extent, symbols)}" for a in p.axes)


def _at(p: Program, g: KernelGraph, printed: str, symbols: Mapping[str, int], salt: str) -> Finding:
    """The finding of a comparison at random points that nobody can aim at."""
    finding = Finding("every random point divides by 0")
    for draw in range(DRAWS):
        key = int.from_bytes(hashlib.sha256(f"kernels, {salt}, draw {draw}, {printed}".encode()).digest()[:8], "little")
        try:
            finding = compare(printed, p, g, symbols, key, primes=random_primes(key, FIELDS))
        except ZeroDenominator:
            continue
        if finding.passed:
            break
    if not finding.passed:
        return finding
    return replace(compare(printed, p, g, symbols, residues=False, spread=spread(g)), compared=finding.compared)


def spread(g: KernelGraph) -> float:
    """The size of numbers over float64: large where a running maximum keeps exponentials small. (What nobody wrote is no
    number there, which residues times 0 do not show.)"""
    return SPREAD if any(o.op in MAXIMA for k in g.kernels for o in k.block.ops) else 1.0


def _points(
    program: Program, graph: KernelGraph, schedules: Sequence[Schedule], text: Print
) -> tuple[str, list[Printed]]:
    """Where kernels are compared: ("real" or "stand-in", programs and muGraphs with what is printed for them and sizes).
    Raises Refused where that would take too long."""
    tiles = [_turning(s) for s in schedules]
    symbols = assignments(program, graph, tiles)[1] if program.symbols else {}
    short = structured(program, graph, tiles, symbols, 1)
    alone = all(len(run) == 1 for run in launches(graph, schedules)) and not any(s.stage for s in schedules)
    if alone and _apart(graph, cost(*short, tiles, {})):
        parts = [_points(*_alone(program, k), [s], text) for k, s in zip(graph.kernels, schedules, strict=True)]
        return "stand-in", [p for _, points in parts for p in points]
    if program.symbols:
        return _with_symbols(program, graph, schedules, tiles, text)
    if cost(*short, tiles, {}) > MOST_WORK:
        raise Refused("its kernels hold so much that a run would take minutes")
    point = _shorter(program, graph, schedules, tiles, short, text)
    if point[0].axes == program.axes:
        return "real", [point]
    return "stand-in", [point, *_masked(program, point, schedules, text)]


def _with_symbols(
    program: Program, graph: KernelGraph, schedules: Sequence[Schedule], tiles: Sequence[dict[str, int]], text: Print
) -> tuple[str, list[Printed]]:
    """The same for a program with symbols."""
    shorter = (beside_symbols(program, graph, tiles, whole) for whole in (1, 2))
    for p, g in (*shorter, (program, graph)):
        with contextlib.suppress(Refused, InvalidGraph):
            printed, kind = text(p, g, schedules), "real" if p.axes == program.axes else "stand-in"
            return kind, [(p, g, printed, s) for s in _affordable(p, g, tiles)]
    raise Refused("not printed at any extents")


def _masked(real: Program, point: Printed, schedules: Sequence[Schedule], text: Print) -> list[Printed]:
    """A stand-in with masks that hide something of it, where that is another one of the same muGraph."""
    tiles = [s.as_tiles() for s in schedules]
    near = nearer(*longer(real, point[0], point[1], tiles))
    if near is None or not verify(*near, tiles).passed:
        return []
    return [(*near, text(*near, schedules), {})]


def _affordable(program: Program, graph: KernelGraph, tiles: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    """Values of symbols: 1, and those with which tiles are whole and one is not (2 for symbols of no tile); where results
    have too many elements then, the halves, and small ones besides."""
    ones, small, _ = assignments(program, graph, tiles)
    tiled, large = _tiled(graph, tiles), beyond_a_tile(program, graph, tiles)
    large = with_room(program, {s: n if s in tiled else min(n, max(ones[s], 2)) for s, n in large.items()}, 1)
    wanted = large
    while sum(ex.value(ex.product(o.dims), large) for o in program.outputs) > MOST_ELEMENTS:
        halves = with_room(program, {s: max(min(small[s], n), n // 2 | 1) for s, n in large.items()}, 1)
        if halves == large:
            break
        large = halves
    found = [ones, large] if large == wanted else [ones, small, large]
    return [values for k, values in enumerate(found) if values not in found[:k]]


def _tiled(graph: KernelGraph, tiles: Sequence[dict[str, int]]) -> set[str]:
    """The symbols of axes that are cut into tiles of several positions."""
    return {
        name
        for kernel, tile in zip(graph.kernels, tiles, strict=True)
        for a in kernel.program.axes
        if max(tile.get(a.name, 1), tile.get("loop", 1) if kernel.block.loop == a.name else 1) > 1
        for name in ex.names(a.extent)
    }


def _shorter(
    program: Program,
    graph: KernelGraph,
    schedules: Sequence[Schedule],
    tiles: Sequence[dict[str, int]],
    shortest: tuple[Program, KernelGraph],
    text: Print,
) -> Printed:
    """The `shortest` extents with the same structure, those of more tiles, or the affordable real ones, at which kernels fit.
    Raises Refused where there are none."""
    reason: Exception | None = None
    for smaller in _extents(program, graph, tiles, shortest):
        try:
            return *smaller, text(*smaller, schedules), {}
        except (Refused, InvalidGraph) as e:
            reason = reason or e
    raise Refused(f"not printed at shorter extents: {reason}")


def _extents(
    program: Program, graph: KernelGraph, tiles: Sequence[dict[str, int]], shortest: tuple[Program, KernelGraph]
) -> Iterator[tuple[Program, KernelGraph]]:
    yield shortest
    yield structured(program, graph, tiles, {}, 2)
    if cost(program, graph, tiles, {}) <= AFFORDABLE:
        yield program, graph


def _apart(graph: KernelGraph, work: float) -> bool:
    """True if several kernels are run one by one, each beside its own program: where running all takes long, and none hands on
    what only range decides."""
    return (
        len(graph.kernels) > 1
        and work > AFFORDABLE
        and not any(o.op in MAXIMA for k in graph.kernels for o in k.block.ops)
    )


def _alone(program: Program, kernel: CustomKernel) -> tuple[Program, KernelGraph]:
    """A kernel as a muGraph of its own program."""
    constants, early, n = kernel.constants(program), kernel.early(program), len(kernel.program.sources)
    sources = tuple(
        replace(s, constant=k in constants, unwritten=k in early - constants)
        for k, s in enumerate(kernel.program.sources)
    )
    own, end = replace(kernel.program, sources=numbered(sources)), n + len(kernel.outputs)
    kernel = replace(kernel, program=own, inputs=tuple(range(n)), outputs=tuple(range(n, end)))
    return own, KernelGraph(n, end - n, end, (kernel,))


def _turning(s: Schedule) -> dict[str, int]:
    """The tiles of a schedule, with so long a loop that each stage of a ring is filled twice by each group."""
    groups = max(1, s.warps // max(1, dict(s.numbers).get("members", s.warps)))
    tiles = s.as_tiles()
    if s.loop:
        tiles["loop"] = s.loop * max(1, (s.stages + 1) * groups // 2)
    return tiles
