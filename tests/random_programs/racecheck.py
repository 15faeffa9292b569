"""Reports of racecheck that are the tool's own, as the kernels in `racecheck.cu` show, which are right and reported too."""

from __future__ import annotations

import re

from mirage_cli.lax import extents
from mirage_cli.search.mugraph.mugraph import CustomKernel
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.strip import across_of
from tests.codegen.kernels import Case

#: what blocks of a cluster show one another between barriers in memory, which racecheck does not see
EXCHANGED = {("store_shared", "load_of_block"), ("load_of_block", "store_shared")}


def misread(case: Case) -> bool:
    """Whether groups of warps of a kernel have different numbers of turns, so that some wait at the block's barrier while
    others still wait at barriers of their own."""
    pairs = zip((k for k in case.graph.kernels if isinstance(k, CustomKernel)), case.schedules, strict=True)
    return any(s.engine == "strip" and _uneven(case, k, s) for k, s in pairs)


def _uneven(case: Case, kernel: CustomKernel, s: Schedule) -> bool:
    groups, loop = s.warps // (s.number("members") * across_of(s)), kernel.block.loop
    whole = extents.value(kernel.program.extent(loop), case.symbols) if loop else 0
    share = s.tile(loop) or whole if loop and loop in kernel.block.split else whole
    shares = [min(share, whole - at) for at in range(0, whole, share or 1)]
    return any(-(-own // s.loop) % groups for own in shares)


def exchange_only(log: str) -> bool:
    """Whether a report has nothing but exchanges of a cluster's blocks."""
    first, found = "", set[tuple[str, str]]()
    for line in log.splitlines():
        if m := re.search(r"Race reported between \w+ access at (?:\w+::)*(\w+)", line):
            first = m[1]
        elif m := re.search(r"and \w+ access at (?:\w+::)*(\w+)", line):
            found.add((first, m[1]))
    return bool(found) and found <= EXCHANGED
