"""The proof of a plan's kernels: what is printed for a muGraph is run, thread by thread, over residues.

Programs with symbols are run as they are printed, at several sizes. Of others the same muGraph with the same schedules is
printed for shorter axes, with whole tiles, a part, and as many iterations as make a ring of copies go round; what is printed
differs in the extents alone.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mirage_cli.codegen.requests.passes import ALL, Passes
from mirage_cli.codegen.source import source
from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.kernel_proof.compare import FIELDS, Finding, compare
from mirage_cli.lax.domains.field import random_primes
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.proof.stand_in import assignments, structured
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target

DRAWS = 2  #: random points at which kernels have to differ before they are refuted (a divisor may be 0 at one)
Print = Callable[[Program, KernelGraph], str]


@dataclass(frozen=True, slots=True)
class KernelVerdict:
    """What came of running kernels: `passed`, or the `reason` why not; how many elements of outputs were compared, at which
    extents ("real", or "stand-in"), in how many fields, in how many seconds."""

    passed: bool
    reason: str = ""
    extents: str = "real"
    compared: int = 0
    fields: int = FIELDS
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The report's form."""
        return asdict(self)


def prove_kernels(
    program: Program,
    graph: KernelGraph,
    schedules: Sequence[Schedule],
    target: Target,
    passes: Passes = ALL,
    seed: int = 0,
    entropy: str = "",
) -> KernelVerdict:
    """The verdict on what is printed for a muGraph with its schedules. Raises Refused where it cannot be printed."""
    start = time.perf_counter()

    def text(p: Program, g: KernelGraph) -> str:
        return source("proof", p, g, schedules, target, "", passes).text

    extents, points = _points(program, graph, schedules, text)
    compared = 0
    for p, g, printed, symbols in points:
        found = _at(p, g, printed, symbols, f"{entropy}, seed {seed}")
        compared += found.checked
        if not found.passed:
            where = ", ".join(f"{a.name} = {a.extent}" for a in p.axes)
            return KernelVerdict(
                False, f"{found.reason} (at {where})", extents, compared, FIELDS, time.perf_counter() - start
            )
    return KernelVerdict(True, "", extents, compared, FIELDS, time.perf_counter() - start)


def _at(p: Program, g: KernelGraph, printed: str, symbols: Mapping[str, int], salt: str) -> Finding:
    """What comes of comparing at random points that nobody can aim at."""
    found = Finding()
    for draw in range(DRAWS):
        key = int.from_bytes(hashlib.sha256(f"kernels, {salt}, draw {draw}, {printed}".encode()).digest()[:8], "little")
        found = compare(printed, p, g, symbols, key, primes=random_primes(key, FIELDS))
        if found.passed:
            break
    return found


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
