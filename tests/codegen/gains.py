"""A norm with gain and a linear layer in float16: rows that overflow once they are multiplied by the gain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mirage_cli.lax.dtypes import F16
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.finish.scaling import with_headroom
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.search import Searcher, SearchOptions

from . import kernels
from .kernels import Case
from .programs import program
from .strip_programs import NAMED, strip_cases

LARGEST, GAIN = 65504.0, 1.9


def block() -> Case:
    """A kernel of the engine `block`."""
    p = program(NAMED["rms_gain"], F16)
    (case,) = kernels.cases("gainblock", p, "sm_80", 1, 3, _behind)
    return _roomy(case)


def strip() -> Case:
    """A kernel of the engine `strip`."""
    p = program(NAMED["rms_gain"], F16)
    graphs = [b for b in Searcher(SearchOptions()).blocks(p)[0] if _behind(b)]
    (case,) = strip_cases("gainstrip", p, "sm_90a", 1, 1, graphs)
    return _roomy(case)


def _behind(b: BlockGraph) -> bool:
    """Whether rows are divided by their norm behind the product."""
    operands = {i for o in b.ops if o.op == "contract" for i in o.inputs}
    threads = [o.thread for o in b.ops if o.name in operands and o.thread is not None]
    return b.loop is not None and any([n.op for n in t.nodes] == ["mul"] for t in threads)


def _gain(p: Program) -> int:
    return next(k for k, s in enumerate(p.sources) if len(s.dims) == 1)


def _roomy(case: Case) -> Case:
    return replace(case, graph=with_headroom(case.program, case.graph, {_gain(case.program): 2.0}))


def problem(case: Case) -> str:
    """What is wrong with rows of which one has the largest number where the gain is large, and one is small; or nothing."""
    arrays = case.inputs()
    x = next(k for k, s in enumerate(case.program.sources) if not s.constant)
    arrays[_gain(case.program)][::7] = -GAIN
    arrays[x][0, 7] = LARGEST
    arrays[x][2] *= 1e-3
    found = kernels.answered(case, arrays)
    if isinstance(found, str):
        return found
    small = case.reference(arrays)[0][2]
    off = np.abs(found[0][2] - small).max() / (F16.epsilon * np.abs(small).max())
    return case.problem(found, arrays) or (f"the small row is {off} units off" if off > 4 else "")
