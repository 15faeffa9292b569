"""Warps that share the columns of results too wide for one of them: run by the interpreter, and chosen by the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mirage_cli.lax.dtypes import BF16, F16, F32, DType
from mirage_cli.lax.ir.compose import causal, linear, matmul, scale, softmax
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.search.schedules import strip
from mirage_cli.search.schedules.ranking import engine_ranked
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.strip import across_of
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen import kernels
from tests.codegen.kernels import Case, single
from tests.codegen.programs import Build, program
from tests.codegen.strip_programs import HOPPER, TRIES, block_graphs, drawn
from tests.kernel_language.trees import calls


def _latent(g: Graph, t: DType, batch: int, queries: int, width: int, rope: int, keys: int) -> Sequence[int]:
    """Latent attention: the first part of the keys is the values, the second is stored the other way round."""
    q, r = g.input("q", (batch, queries, width), t), g.input("r", (batch, queries, rope), t)
    c, k = g.input("c", (batch, keys, width), t), g.input("k", (batch, rope, keys), t)
    scores = g.map("add", matmul(g, q, g.transpose(c, (0, 2, 1))), matmul(g, r, k))
    return [matmul(g, softmax(g, scale(g, scores, 0.1), [2]), c)]


def _wide_values(g: Graph, t: DType) -> Sequence[int]:
    """Values wider than keys, causal."""
    q, k, v = g.input("q", (2, 19, 40), t), g.input("k", (2, 40, 104), t), g.input("v", (2, 104, 144), t)
    return [matmul(g, softmax(g, causal(g, scale(g, matmul(g, q, k), 0.2), 85), [2]), v)]


SMALL: dict[str, tuple[Build, DType]] = {
    "latent512": (lambda g, t: _latent(g, t, 1, 40, 512, 64, 136), F16),
    "latent256": (lambda g, t: _latent(g, t, 3, 7, 256, 16, 72), BF16),
    "exact256": (lambda g, t: _latent(g, t, 1, 20, 256, 16, 48), F32),
    "values144": (_wide_values, F16),
    "linear": (lambda g, t: [linear(g, g.input("x", (33, 72), t), g.input("w", (72, 56), t, constant=True))], F16),
}


def _shared(name: str, seed: int) -> Case:
    """A random schedule whose warps share columns; what is no loop or row of the products is held whole."""
    build, dtype = SMALL[name]
    p, random = program(build, dtype), np.random.default_rng(seed)
    graphs = block_graphs(p)
    for _ in range(4 * TRIES):
        b = graphs[int(random.integers(len(graphs)))]
        s, sides = drawn(p, b, random), strip.roles(p, b).sides
        whole = {a: n for a in sides.cols - {b.loop} if isinstance(n := p.extent(a), int)}
        s = replace(s, tiles=tuple((a, whole.get(a, n)) for a, n in s.tiles))
        case = Case(name, p, single(p, b), (s,), HOPPER)
        if across_of(s) > 1 and case.renders():
            return case
    raise AssertionError(f"no strips for {name}")


@pytest.mark.parametrize("seed", [5, 6])
def test_shared_columns_are_right(seed: int) -> None:
    """With copies that land as late as they may, and at once."""
    assert kernels.problems([_shared(name, seed) for name in list(SMALL)[:: seed - 4]], at_once=seed == 6) == []


@pytest.mark.parametrize(("name", "split", "together"), [("latent512", False, 3), ("latent256", True, 2)])
def test_four_warps_multiply_together(name: str, split: bool, together: int) -> None:
    """Matrix instructions of a warpgroup, in one block and in a cluster: shares of scores within a panel, results of two."""
    build, dtype = SMALL[name]
    p = program(build, dtype)
    block = next(b for b in block_graphs(p) if bool(b.split) == split)
    sizes = {a: 64 if a in strip.roles(p, block).sides.rows or a in block.split else 1 for a in block.grid}
    s = Schedule(tuple(sizes.items()), 64, 8, 2, "strip", (("members", 4), ("across", 2)))
    case = Case(name, p, single(p, block), (s,), HOPPER)
    assert len(list(calls(case.render().kernels, "strip_contract_together"))) == together
    assert kernels.problems([case]) == []


@pytest.mark.parametrize("width", [64, 256, 512])
def test_columns_are_shared_where_one_warp_cannot_hold_them(width: int) -> None:
    """Schedules that the cost model is asked about: none for narrow results, all for those of 512 columns."""
    p = program(lambda g, t: _latent(g, t, 1, 128, width, 64, 4096), F16)
    graphs = [b for b in Searcher(SearchOptions()).blocks(p)[0] if b.split and b.loop in b.split]
    found = [r.schedule for b in graphs[:1] for r in engine_ranked("strip", p, b, HOPPER, 1000)]
    shares = {across_of(s) for s in found}
    assert shares == {64: {1}, 256: {1, 2, 4}, 512: {2, 4, 8}}[width]
    assert Case("x", p, single(p, graphs[0]), (found[0],), HOPPER).renders()
