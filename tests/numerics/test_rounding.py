"""Whether muGraphs overflow float16 where their programs do not, found without a GPU."""

from __future__ import annotations

import pytest

from mirage_cli.errors import CheckFailed
from mirage_cli.lax.dtypes import BF16, F16
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.numerics import rounding
from mirage_cli.planning.plan import PlanOptions, plan_fragment, planned
from mirage_cli.search import search
from mirage_cli.search.finish.kernels import one_kernel
from mirage_cli.search.finish.scaling import with_headroom
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.search.finish.test_scaling import blocks, made, multiplies_first, normed, products, reads, source


def _tiles(graph: KernelGraph) -> list[dict[str, int]]:
    return [{"loop": 8, **dict.fromkeys(k.block.grid, 2)} for k in graph.kernels]


def test_a_row_times_its_gain_overflows_unless_a_power_of_two_is_taken_out() -> None:
    p = normed()
    gain, rows = {source(p, "gain"): 4.0}, {i.name for i in p.inputs if i.source == source(p, "x")}
    graphs = blocks(p, lambda b: multiplies_first(b) and any(reads(b, i) & rows for i in products(b)))
    assert graphs
    for graph in graphs:
        found = rounding.overflow(p, graph, _tiles(graph), gain, 0)
        assert "values are not finite where the original's are" in found
        better = with_headroom(p, graph, gain)
        assert rounding.overflow(p, better, _tiles(better), gain, 0) == ""


def test_bfloat16_has_room() -> None:
    p = normed(BF16)
    for graph in blocks(p, multiplies_first):
        assert rounding.overflow(p, graph, _tiles(graph), {}, 0) == ""


def test_a_factor_in_front_of_a_product_may_overflow_too() -> None:
    """(x a) b times 60000, with the factor taken to x a."""

    def build(g: Graph) -> int:
        x, a, b = (g.input(n, s, F16) for n, s in (("x", (3, 24)), ("a", (24, 8)), ("b", (8, 16))))
        return compose.scale(g, compose.linear(g, compose.linear(g, x, a), b), 60000.0)

    p = made(build)
    graphs = [one_kernel(p, b) for b in Searcher(SearchOptions()).blocks(p)[0]]
    problems = [rounding.overflow(p, g, _tiles(g), {}, 0) for g in graphs]
    assert any(problems) and not all(problems)


def test_the_next_candidate_takes_the_place_of_one_that_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    p = normed()
    monkeypatch.setattr(search, "with_headroom", lambda program, graph, largest: graph)
    target, search_options = load_target("sm_90a"), SearchOptions(largest=((source(p, "gain"), 4.0),))
    options = PlanOptions({"cuda": ("sm_90a",)}, search_options)
    first = Searcher(search_options).search(p, target).candidates[0]
    with pytest.raises(CheckFailed, match="rounded to float16 before a product overflow"):
        planned("abc", p, first, target, 3, options)
    assert plan_fragment("abc", "norm_linear", p, 3, options).plans["cuda"].graph != first.graph
    monkeypatch.setattr(rounding, "overflow", lambda *_: "")
    assert plan_fragment("abc", "norm_linear", p, 3, options).plans["cuda"].graph == first.graph
