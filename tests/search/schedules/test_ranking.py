"""The price of launches one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_cli.lax.dtypes import F16
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.search.finish.split_reduction import two_kernels
from mirage_cli.search.schedules.fitted import Strip
from mirage_cli.search.schedules.ranking import Beside, Models, behind_us, ranked, times_us, together_us, total_us
from mirage_cli.search.schedules.schedule import Prediction, launches
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.lax.programs import recorded
from tests.search.programs import built, normed


@pytest.mark.parametrize(("arch", "waits"), [("sm_90a", True), ("sm_80", False)])
def test_a_launch_that_reads_what_the_one_in_front_wrote_has_a_price(arch: str, waits: bool) -> None:
    target, program = load_target(arch), normed(8)
    block = next(b for b in Searcher(SearchOptions(candidates=1)).blocks(program)[0] if b.split)
    graph = two_kernels(program, block, 2)
    chosen = [ranked(k.program, k.block, target, 1)[0] for k in graph.kernels]
    apart = sum(r.prediction.us for r in chosen)
    price = target.fitted(Strip).behind_us if waits else 0.0
    assert total_us(graph, [r.schedule for r in chosen], target, {}) == pytest.approx(apart + price)
    alone = replace(graph, kernels=(graph.kernels[0], replace(graph.kernels[1], inputs=graph.kernels[0].inputs)))
    assert behind_us(alone, [range(1), range(1, 2)], target) == 0.0


def masked(g: Graph) -> int:
    """A causal attention over `n` positions: iterations behind the mask are left out."""
    q, k, v = (g.input(name, (4, symbol("n"), 64), F16) for name in "qkv")
    scores = compose.causal(g, compose.matmul(g, q, g.transpose(k, (0, 2, 1))))
    return compose.matmul(g, compose.softmax(g, scores, [-1]), v)


def projected(g: Graph) -> int:
    """A norm and a product with a weight."""
    x = compose.rms_norm(g, g.input("x", (symbol("n"), 256), F16), [-1], 0.5)
    return compose.matmul(g, x, g.input("w", (256, 512), F16, True))


@pytest.mark.parametrize("arch", ["cpu", "sm_90a", "sm_80"])
@pytest.mark.parametrize("build", [masked, projected])
def test_many_sizes_at_once_cost_what_each_does(arch: str, build: Callable[[Graph], int]) -> None:
    """Predictions for arrays of sizes are those for one after the other, whatever the engine."""
    target, program = load_target(arch), built(build)
    at = [{"n": n} for n in (1, 3, 16, 17, 100, 1024, 4096, 32768)]
    found = Searcher(SearchOptions(candidates=2, apart=True)).search(program, target).candidates
    assert found
    for c in found:
        models = Models()
        each = [total_us(c.graph, c.schedules, target, sizes, Models()) for sizes in at]
        assert times_us(c.graph, c.schedules, target, at, models) == pytest.approx(each, rel=1e-12)


@pytest.mark.parametrize(("shared", "more"), [(160_000, True), (80_000, False)])
def test_a_last_wave_of_blocks_that_fill_a_multiprocessor_has_a_price(shared: int, more: bool) -> None:
    """Three products started together: with 64 blocks each the last ones wait for others to end, with 44 none does; where two
    blocks share a multiprocessor nobody waits."""
    target = load_target("sm_90a")
    waits, waits_not = (
        together_us([Beside(Prediction(4.3, shared, 2.0), blocks, 256, 1)] * 3, target) for blocks in (64, 44)
    )
    assert waits_not == pytest.approx(4.3 - 2.0 + 3 * 2.0)
    assert (waits > waits_not + target.fitted(Strip).behind_us) == more and (waits == waits_not) != more


def test_products_that_start_together_are_chosen_together() -> None:
    """Products of one layer norm, one of which a second kernel turns: one block on each multiprocessor."""
    g = Graph()
    x = compose.layer_norm(g, g.input("x", (1, 2048), F16), [-1], 1e-5)
    q, k, v = (compose.matmul(g, x, g.input(n, (2048, 2048), F16, True)) for n in "qkv")
    k = g.reshape(k, (1, 32, 64))
    cos, sin = (g.input(n, (1, 1, 32), F16) for n in ("cos", "sin"))
    own, a, b = g.slice(k, 2, 0, 32), g.slice(k, 2, 0, 16), g.slice(k, 2, 16, 16)
    turned = g.map("add", g.map("mul", own, cos), g.map("mul", g.concat([g.map("neg", b), a], 2), sin))
    results = [q, v, g.concat([turned, g.slice(k, 2, 32, 32)], 2)]
    target, program = load_target("sm_90a"), canonical(recorded(g, results))
    best = Searcher(SearchOptions()).search(program, target).candidates[0]
    kernels, axes = best.graph.kernels, [dict(s.tiles) for s in best.schedules]
    for run in launches(best.graph, best.schedules):
        assert (
            sum(-(-2048 // axes[n][kernels[n].block.grid[0]]) for n in run if best.schedules[n].engine == "strip")
            <= 132
        )
