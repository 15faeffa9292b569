"""The proof of a plan's kernels: what is printed for a muGraph is run, thread by thread, over residues.

Programs with symbols are run as they are printed, at several sizes. Of others the same muGraph with the same schedules is
printed for shorter axes, with whole tiles, a part, and as many iterations as make a ring of copies go round; what is printed
differs in the extents alone.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mirage_cli.codegen.requests.passes import ALL, Passes
from mirage_cli.codegen.source import source
from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.kernel_interpreter.memory import Unknown
from mirage_cli.kernel_proof.compare import FIELDS, Finding, compare
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.field import ZeroDenominator, random_primes
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.proof.stand_in import assignments, structured
from mirage_cli.search.proof.verify import KernelRun, Verdict, verify
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target

DRAWS = 2  #: random points at which kernels have to differ before they are refuted (a divisor may be 0 at one)
Print = Callable[[Program, KernelGraph], str]


def prove_kernels(
    program: Program,
    graph: KernelGraph,
    schedules: Sequence[Schedule],
    target: Target,
    passes: Passes = ALL,
    seed: int = 0,
    entropy: str = "",
) -> KernelRun:
    """What comes of running what is printed for a muGraph with its schedules."""
    start = time.perf_counter()

    def text(p: Program, g: KernelGraph) -> str:
        return source("proof", p, g, schedules, target, "", passes).text

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
    return KernelRun(not reason, reason, extents, compared, FIELDS, time.perf_counter() - start)


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
    return replace(verdict, kernels=prove_kernels(program, graph, schedules, target, passes, seed, entropy))


def _sizes(p: Program, symbols: Mapping[str, int]) -> str:
    return ", ".join(f"{a.name} = {ex.value(a.extent, symbols)}" for a in p.axes)


def _at(p: Program, g: KernelGraph, printed: str, symbols: Mapping[str, int], salt: str) -> Finding:
    """What comes of comparing at random points that nobody can aim at."""
    finding = Finding("every random point divides by 0")
    for draw in range(DRAWS):
        key = int.from_bytes(hashlib.sha256(f"kernels, {salt}, draw {draw}, {printed}".encode()).digest()[:8], "little")
        try:
            finding = compare(printed, p, g, symbols, key, primes=random_primes(key, FIELDS))
        except ZeroDenominator:
            continue
        if finding.passed:
            break
    return finding


Printed = tuple[Program, KernelGraph, str, dict[str, int]]


def _points(
    program: Program, graph: KernelGraph, schedules: Sequence[Schedule], text: Print
) -> tuple[str, list[Printed]]:
    """Where kernels are compared: ("real" or "stand-in", programs and muGraphs with what is printed for them and sizes)."""
    tiles = [_turning(s) for s in schedules]
    if program.symbols:
        printed = text(program, graph)
        return "real", [(program, graph, printed, s) for s in assignments(program, graph, tiles)]
    reason: Exception | None = None
    for whole in (1, 2):
        smaller = structured(program, graph, tiles, {}, whole)
        try:
            return _kind(smaller[0], program), [(*smaller, text(*smaller), {})]
        except (Refused, InvalidGraph) as e:
            reason = reason or e
    raise Refused(f"not printed at shorter extents: {reason}")


def _kind(p: Program, whole: Program) -> str:
    return "real" if p.axes == whole.axes else "stand-in"


def _turning(s: Schedule) -> dict[str, int]:
    """The tiles of a schedule, with so long a loop that each stage of a ring is filled twice by each group."""
    groups = max(1, s.warps // max(1, dict(s.numbers).get("members", s.warps)))
    tiles = s.as_tiles()
    if s.loop:
        tiles["loop"] = s.loop * max(1, (s.stages + 1) * groups // 2)
    return tiles
