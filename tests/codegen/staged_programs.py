"""Small programs of several kernels that follow one another as stages of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from mirage_cli.lax.dtypes import F16, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.finish.kernels import cut_values, link, one_kernel, split
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.schedules.ranking import engine_ranked
from mirage_cli.search.schedules.schedule import Schedule, block_shape
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from mirage_cli.search.stages import as_stages

from .programs import program

HOPPER = load_target("sm_90a")
COUNT = 200  #: schedules of an engine that are looked at


def _product(g: Graph, x: int, name: str, dims: tuple[int, int], t: DType) -> int:
    return compose.linear(g, x, g.input(name, dims, t, constant=True))


def _chain(g: Graph, t: DType) -> Sequence[int]:
    x = g.input("x", (3, 48), t)
    y = _product(g, compose.rms_norm(g, x, [1], 1e-5), "w", (48, 80), t)
    return [g.map("add", x, _product(g, g.map("mul", y, g.map("sigmoid", y)), "v", (80, 48), t))]


def _siblings(g: Graph, t: DType) -> Sequence[int]:
    x = g.input("x", (5, 40), t)
    y, z = (_product(g, x, n, (40, 72), t) for n in "ab")
    return [_product(g, g.map("mul", y, z), "c", (72, 24), t)]


def _residual(g: Graph, t: DType) -> Sequence[int]:
    x, r = g.input("x", (2, 32), t), g.input("r", (2, 40), t)
    y = g.map("add", r, _product(g, x, "w", (32, 40), t))
    return [g.map("add", y, g.map("mul", compose.rms_norm(g, y, [1], 1e-5), g.input("g", (40,), t, constant=True)))]


@dataclass(frozen=True)
class Made:
    """A muGraph of a program with schedules whose launches are stages of one."""

    program: Program
    graph: KernelGraph
    schedules: tuple[Schedule, ...]


#: how a program is recorded, the operators behind which it is cut, and the clusters that its last kernel has
NAMED = {
    "rows and products": (_chain, ("div", "silu"), 1),
    "clusters": (_chain, ("div", "silu"), 2),
    "siblings": (_siblings, ("contract", "contract", "mul"), 1),
    "product and rows": (_residual, ("contract",), 1),
}


@cache
def made(name: str, warps: int = 4) -> Made:
    """The muGraph of a named program, with blocks of so many warps."""
    build, behind, last = NAMED[name]
    p = program(build, F16)
    values, found = cut_values(p), list[str]()
    for op in behind:
        found.append(next(n.name for n in p.nodes if n.op == op and n.name in values and n.name not in found))
    parts, searcher, ways = split(p, found), Searcher(SearchOptions()), list[tuple[KernelGraph, Schedule]]()
    for n, (part, _) in enumerate(parts):
        cluster = last if n == len(found) else 1
        ways.append(next(w for b in searcher.blocks(part)[0] for w in _ways(one_kernel(part, b), (warps, cluster))))
    graph = link(p, parts, [g for g, _ in ways])
    return Made(p, graph, as_stages(graph, [s for _, s in ways]))


def _ways(graph: KernelGraph, shape: tuple[int, int]) -> Iterator[tuple[KernelGraph, Schedule]]:
    """A kernel with its best schedule of those with blocks of a shape, if there is one."""
    (kernel,) = graph.kernels
    own = [r for e in ("strip", "rows") for r in engine_ranked(e, kernel.program, kernel.block, HOPPER, COUNT)]
    fits = [r for r in own if block_shape(kernel, r.schedule) == shape]
    if fits:
        yield graph, min(fits, key=lambda r: r.order).schedule
