"""The price of launches one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_cli.search.finish.split_reduction import two_kernels
from mirage_cli.search.schedules.fitted import Strip
from mirage_cli.search.schedules.ranking import behind_us, ranked, total_us
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.search.programs import normed


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
