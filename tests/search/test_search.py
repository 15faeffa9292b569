"""Every muGraph that the search yields equals its program, in the prime fields and in float64, for whole and partial
tiles; several kernels, bounds and budgets."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings

from mirage_cli.errors import Refused
from mirage_cli.lax.domains.field import ZeroDenominator
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.search import search
from mirage_cli.search.closure import closure
from mirage_cli.search.closure.closure import Closure
from mirage_cli.search.closure.extract import block_graphs
from mirage_cli.search.closure.form import search_form
from mirage_cli.search.closure.mapping import Mapping, mappings
from mirage_cli.search.finish.kernels import assemble, cut_values, cuts, operators, split
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions, SearchResult
from mirage_cli.search.ways import best_combinations
from tests.lax.programs import graphs, recorded
from tests.search.programs import (
    attention,
    built,
    normed,
    one_kernel,
    program_of,
    same_in_field,
    same_in_floats,
    tilings,
)

PROPERTY = settings(max_examples=20, derandomize=True, deadline=None, database=None)
OPERATORS = (
    "rmsnorm_linear_fp32",
    "rmsnorm_gain_linear_fp32",
    "layer_norm_linear_gelu_fp32",
    "group_norm_linear_fp32",
    "batch_norm_linear_fp32",
    "gated_mlp_fp32",
    "norm_gated_mlp_fp32",
    "gated_down_fp32",
    "lora_fp32",
    "lora_scaled_fp32",
    "gqa_fp32",
    "qknorm_gqa_fp32",
    "qknorm_gqa_artifact_fp32",
    "attention_masked_fp32",
    "attention_boolean_fp32",
    "attention_softcap_fp32",
    "ntrans_fp32",
    "ntrans_artifact_fp32",
)


def blocks(p: Program, **options: int) -> list[BlockGraph]:
    """The block graphs that the search finds."""
    return Searcher(SearchOptions(**options)).blocks(p)[0]


def check(p: Program, graph: BlockGraph) -> None:
    """Compare a block graph with its program."""
    graph.validate(p)
    for tiles in tilings(p, graph, {s: 5 + 2 * k for k, s in enumerate(p.symbols)}):
        kernels = one_kernel(p, graph)
        assert same_in_field(p, kernels, [tiles]), f"{tiles}\n{graph.text(p)}"
        assert same_in_floats(p, kernels, [tiles]), f"{tiles}\n{graph.text(p)}"


@pytest.mark.parametrize("name", OPERATORS)
def test_samples(name: str) -> None:
    p = program_of(name)
    found = blocks(p, candidates=1)
    assert found
    for graph in found:
        check(p, graph)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama_dynamic_fp32", "norm_linear"),
        ("llama_decode_dynamic_fp32", "attention"),
        ("llama_composite_fp32", "attention"),
        ("moe_gated_fp32", "gated_mlp"),
        ("gemma2_fp32", "attention"),
    ],
)
def test_model_fragments(name: str, kind: str) -> None:
    p = program_of(name, kind)
    found = blocks(p, candidates=1)
    assert found
    check(p, found[0])
    check(p, found[-1])


@PROPERTY
@given(graphs(contractions=1))
def test_random_programs(made: tuple[Graph, int]) -> None:
    g, out = made
    p = canonical(recorded(g, [out]))
    if not p.nodes:
        return
    for graph in blocks(p, candidates=1)[:4]:
        try:
            check(p, graph)
        except ZeroDenominator:
            continue


def test_a_fragment_of_symbolic_extents() -> None:
    """The loop walks an axis whose length is known at run time only, also for means along it."""
    n = symbol("n")
    p = built(
        lambda g: compose.matmul(
            g, compose.layer_norm(g, g.input("x", (3, n), F32), [-1], 0.5), g.input("w", (n, 5), F32)
        )
    )
    found = blocks(p)
    assert found
    assert {g.loop for g in found} == {"c"} == {n.over[0] for n in p.nodes if n.op == "contract"}
    assert any(o.op == "extent" for g in found for o in g.ops)
    for graph in found:
        check(p, graph)


def test_unknowable_extents_are_refused() -> None:
    p = built(
        lambda g: g.map(
            "mul",
            g.input("x", (3,), F32),
            g.reduce("sum", g.expand(g.fill(1, F32, (1,)), (symbol("n"),)), [0]),
        )
    )
    with pytest.raises(Refused, match="the value of n cannot be computed from the shapes"):
        search_form(p)


def test_reductions_outside_the_algebra_are_refused() -> None:
    p = built(lambda g: g.reduce("prod", g.input("x", (3, 4), F32), [1]))
    found, statistics = Searcher(SearchOptions()).blocks(p)
    assert not found
    assert statistics.refused == ["a reduction by prod is outside the algebra"]


def test_more_candidates_are_more_and_as_right() -> None:
    p = normed()
    few, many = blocks(p, candidates=1), blocks(p, candidates=12)
    assert set(few) <= set(many)
    assert len(many) > len(few)
    for graph in many:
        check(p, graph)


def test_bound_on_operators() -> None:
    p = normed()
    most = max(operators(g) for g in blocks(p))
    bounded, statistics = Searcher(SearchOptions(max_ops=most - 1)).blocks(p)
    assert bounded
    assert max(operators(g) for g in bounded) < most
    assert f"{most} operators in a block" in " ".join(statistics.refused)


def test_bound_on_values() -> None:
    p = normed()
    form = search_form(p)
    with pytest.raises(Refused, match="more than 5 values under loop - split -"):
        Closure(form, Mapping(), 5).run()


def test_values_of_closures_that_are_too_large_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mappings of one search have so many values together."""
    monkeypatch.setattr(closure, "MAX_VALUES", 5)
    monkeypatch.setattr(closure, "MAX_OPEN_VALUES", 5)
    monkeypatch.setattr(search, "HOPELESS", 12)
    graphs, statistics = Searcher(SearchOptions()).blocks(normed())
    assert not graphs
    assert 12 < statistics.values < 24
    assert "more than 5 values under" in statistics.refused[0]
    assert statistics.refused[-1].endswith("others have more than 12 values")


class Ticks:
    """A clock that goes on by one whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> float:
        self.now += 1
        return float(self.now)


def test_a_budget_ends_a_search_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """In closures, while ways are chosen and while programs are cut; what was found until then is ranked as ever."""
    p, target = program_of("norm_gated_mlp_fp32"), load_target("cpu")

    def searched(budget: float) -> tuple[SearchResult, int]:
        ticks = Ticks()
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", ticks)
            return Searcher(SearchOptions(budget=budget)).search(p, target), ticks.now

    whole, all_ticks = searched(1e9)
    part, ticks = searched(all_ticks / 3)
    assert all_ticks > 1000
    assert part.candidates, "what was found is used"
    assert ticks < all_ticks / 3 + 60, "it ends then, wherever it is looked at the clock"
    assert any("the budget of" in r for r in part.statistics.refused)
    assert whole.candidates[0].order <= part.candidates[0].order
    none, ticks = searched(1)
    assert not none.candidates
    assert ticks < 60


def test_a_spent_budget_is_reported() -> None:
    found, statistics = Searcher(SearchOptions(budget=1e-9)).blocks(normed())
    assert not found
    assert all("the budget of 1e-09 s was spent" in r for r in statistics.refused)


def test_one_refused_graph_does_not_hide_the_others() -> None:
    """A loop over the head dimension leaves graphs whose softmax factor cannot cancel, beside ones where it does."""
    p = attention()
    found, statistics = Searcher(SearchOptions()).blocks(p)
    refused = {r.partition(":")[0] for r in statistics.refused if "cancel" in r or "factor" in r}
    kept = {str(Mapping(g.loop, next(iter(g.split), None))) for g in found}
    assert refused & kept or not refused
    assert len(kept) >= 5


# --- several kernels ----------------------------------------------------------------------------------------------------
def test_cuts() -> None:
    p = normed()
    values = cut_values(p)
    assert [*cuts(p, 1)] == [()]
    assert [*cuts(p, 2)] == [(), *((v,) for v in values)]
    assert all(len(c) < 3 for c in cuts(p, 3))


@pytest.mark.parametrize("name", ["rmsnorm_linear_fp32", "gqa_fp32", "lora_fp32", "norm_gated_mlp_fp32"])
def test_split_programs(name: str) -> None:
    p = program_of(name)
    for stored in cuts(p, 3):
        parts = split(p, stored)
        found = [blocks(part, candidates=1) for part, _ in parts]
        if not all(found):
            continue
        graph = assemble(p, parts, [f[-1] for f in found])
        assert len(graph.kernels) == len(stored) + 1
        tiles = [tilings(part, f[-1], {})[1] for (part, _), f in zip(parts, found, strict=True)]
        factor_free = not any(n.op == "stable_exp" for n in p.nodes)
        assert same_in_floats(p, graph, tiles), stored
        assert not factor_free or same_in_field(p, graph, tiles), stored


def test_candidates_are_ranked() -> None:
    searcher = Searcher(SearchOptions())
    for target in ("cpu", "sm_90a"):
        result = searcher.search(program_of("rmsnorm_linear_fp32"), load_target(target))
        found, statistics = result.candidates, result.statistics
        assert [c.predicted_us for c in found] == sorted(c.predicted_us for c in found)
        assert all(c.floor_us <= c.predicted_us for c in found)
        assert statistics.mugraphs >= len({c.graph for c in found}) > 0
        assert statistics.to_json()["values"] == statistics.values > 0
    assert not any(
        k.block.split for c in searcher.search(normed(), load_target("cpu")).candidates for k in c.graph.kernels
    )


# --- determinism ----------------------------------------------------------------------------------------------------------
LISTING = """
import sys
from mirage_cli.search.search import Searcher, SearchOptions
from tests.search.programs import program_of
for name in sys.argv[1:]:
    p = program_of(name)
    found, statistics = Searcher(SearchOptions()).blocks(p)
    print(p, statistics.values, *(g.text(p) for g in found), *statistics.refused, sep="\\n")
"""


def test_the_same_candidates_whatever_the_hash_seed() -> None:
    names = ["rmsnorm_gain_linear_fp32", "attention_boolean_fp32", "lora_scaled_fp32", "group_norm_linear_fp32"]
    outputs = set()
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", LISTING, *names],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=Path(__file__).resolve().parents[2],
            capture_output=True,
            text=True,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) > 500


def test_mappings() -> None:
    form = search_form(attention())
    found = mappings(form)
    assert found[0] == Mapping()
    assert len(set(found)) == len(found)
    assert {m.loop for m in found} == {None, *form.reduced}
    assert {m.split for m in found} == {None, *form.reduced}
    assert [str(m) for m in mappings(form, max_whole=5)] == ["loop c split -", "loop c split c"]
    assert mappings(form, max_whole=3) == []


def test_closures_hold_equal_values_once() -> None:
    closure = Closure(search_form(normed()), Mapping("c")).run()
    keys = {(v.phase, v.live, v.array.tobytes()) for v in closure.values}
    assert len(keys) == len(closure.values)
    assert all(v.ways for v in closure.values)
    assert len(block_graphs(closure, 3)) == len({g.ops for g in block_graphs(closure, 3)})


def test_a_searcher_for_measuring_keeps_more_and_the_same_best() -> None:
    p, target = normed(), load_target("sm_90a")
    plain = Searcher(SearchOptions())
    few, many = plain.search(p, target).candidates, plain.with_schedules(8).search(p, target).candidates
    assert len(many) > len(few)
    assert (many[0].graph, many[0].schedules) == (few[0].graph, few[0].schedules)
    assert {(c.graph, c.schedules) for c in few if len(c.graph.kernels) == 1} <= {(c.graph, c.schedules) for c in many}


def test_kernels_of_a_graph_are_varied_together_or_one_at_a_time() -> None:
    assert list(best_combinations([3, 1], False)) == [(0, 0), (1, 0), (2, 0)]
    assert list(best_combinations([3, 2], False, 2)) == [(0, 0), (1, 1)]
    assert list(best_combinations([3, 2], True)) == [(0, 0), (1, 0), (2, 0), (0, 1)]
