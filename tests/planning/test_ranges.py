"""Sizes that symbols meet, and plans with several muGraphs: what they are, that files hold them, that all are proved."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import onnx_ir as ir
import pytest

from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import F16, F32
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.program import Program
from mirage_cli.optimization import coverage, fragment_report, tuning_stage
from mirage_cli.optimization.task import Work
from mirage_cli.options import dims
from mirage_cli.options.dims import Range
from mirage_cli.planning import fragment_cache, ranges
from mirage_cli.planning import plan as plans
from mirage_cli.planning.plan import PlanOptions, Slower, newest, plan_fragment, rendered
from mirage_cli.report.stored_plan import plan_from_json
from mirage_cli.search.schedules.alternatives import Leaf
from mirage_cli.search.schedules.fitted import Cpu
from mirage_cli.search.schedules.original import FUSED
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Candidate, SearchOptions
from tests.codegen.programs import behind, program

CUDA = PlanOptions({"cuda": ("sm_90a",)}, SearchOptions(sizes=(("n", 1024),)))


def attention(length: str) -> Program:
    """Attention of a symbolic number of tokens to themselves."""

    def build(g: Any, t: Any) -> list[int]:
        q, k, v = (g.input(name, (16, symbol(length), 64), t) for name in "qkv")
        scores = compose.scale(g, compose.matmul(g, q, g.transpose(k, (0, 2, 1))), 0.125)
        return [compose.matmul(g, compose.softmax(g, scores, [2]), v)]

    return program(build, F16)


@pytest.fixture(scope="module")
def fragment() -> Program:
    return attention("n")


@pytest.fixture(scope="module")
def planned(fragment: Program) -> plans.FragmentPlan:
    return plan_fragment("abc", "attention", fragment, 6, CUDA)


def test_sizes_lie_all_over_the_ranges() -> None:
    given = {"past": Range(2, 100, 5000), "batch": Range(1, 2, 3)}
    found = ranges.points(["(past+1)", "batch", "past"], given)
    assert found[0] == {"(past+1)": 101, "batch": 2, "past": 100}
    assert all(p["(past+1)"] == p["past"] + 1 for p in found)
    assert {p["batch"] for p in found} == {1, 2, 3}
    assert {2, 100, 4096, 5000} <= {p["past"] for p in found} and len(found) <= ranges.MOST_POINTS
    assert len({tuple(p.items()) for p in found}) == len(found)


def test_sizes_that_are_searched_are_the_ends() -> None:
    found = ranges.searched_points(["batch", "past"], {"past": Range(2, 100, 5000), "batch": Range(1, 2, 3)})
    pairs = {(p["batch"], p["past"]) for p in found}
    assert pairs == {(2, 100), (1, 2), (3, 5000), (2, 2), (2, 5000), (1, 100), (3, 100)}


def test_sizes_that_are_far_from_the_floor_are_searched_too() -> None:
    """Candidates are slow where they were not searched for: sizes far from all others are searched until none is left."""
    at, names = list[Mapping[str, int]](), ("batch", "past")

    class Fake:
        models = None

        def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
            self.sizes = sizes

        def at(self, sizes: Mapping[str, int]) -> Fake:
            at.append(sizes)
            return Fake(sizes)

        def search(self, *_: Any) -> Any:
            return mock.Mock(candidates=[mock.Mock(graph="", schedules=tuple((self.sizes or {}).items()))])

    def times(candidates: Any, target: Any, at: Any, models: Any) -> list[list[float]]:
        near = [[c.schedules and ranges._near(dict(c.schedules), sizes) for sizes in at] for c in candidates]
        return [[1.0 if x else 100.0 for x in own] for own in near]

    fragment = mock.Mock(symbols=names, axes=())
    with (
        mock.patch.object(ranges, "times", times),
        mock.patch.object(ranges, "floor_us", lambda *_: 1.0),
        mock.patch.object(ranges, "RESCHEDULED", 0),
    ):
        own: Any = mock.Mock(graph="", schedules=())
        found, times = ranges.pool(fragment, newest(("sm_90a",)), Fake(), {}, own, lambda c: True)  # type: ignore[arg-type]
    ends = ranges.searched_points(names, {})
    assert at[: len(ends)] == ends and len(at) == len(ends) + ranges.FURTHER
    assert not any(ranges._near(x, y) for x in at[len(ends) :] for y in at if x is not y)
    assert len(found) == len(times) == 1 + len(at)


def test_what_is_not_said_is_taken_to_be_something() -> None:
    assert ranges.typical(["batch_size", "n", "(n+1)"], {}) == {"batch_size": 1, "n": 1024, "(n+1)": 1025}
    assert ranges.typical(["B", "bsz", "bins"], {}) == {"B": 1, "bsz": 1, "bins": 1024}
    assert ranges.typical(["n"], {"n": Range(1, 7, 8)}) == {"n": 7}
    assert all(n >= 1 for p in ranges.points(["(n-1)"], {}) for n in p.values())  # nothing has a time at 0


def test_a_batch_is_told_by_where_its_symbol_stands() -> None:
    batch, new, past, mask = map(symbol, ("s11", "s15", "s21", "s64"))
    cache = ((batch, 8, past, 64), False)
    decoder = [((batch, new), True), ((batch, mask), True), cache, cache]
    assert ranges.batches(decoder) == {"s11"}
    assert ranges.batches([((batch, 3, 224, 224), False)]) == ranges.batches([((batch, 128), True)]) == {"s11"}
    assert ranges.batches([((batch, 128), False)]) == set()  # rows of numbers: tokens as well
    assert ranges.batches([((batch,), True), ((), False)]) == set()
    assert ranges.batches([((new, batch, 512), False), ((batch, new), False)]) == set()  # each stands behind once
    assert ranges.batches([((symbol("num_tokens"), 8, 64), False)]) == set()
    named = [((symbol("n"), new), True), ((symbol("batch"), 8, past, 64), False)]
    assert ranges.batches(named) == set()


def test_positions_behind_a_cache_are_a_prompts_and_a_steps() -> None:
    new, past, grown = symbol("new"), symbol("past"), symbol("(past+new)")
    inputs = [(2, new), (2, 8, past, 64)]
    assert ranges.new_positions(inputs, [(2, new, 512), (2, 8, grown, 64)]) == {"new"}
    assert ranges.new_positions(inputs, [(2, 8, symbol("(past+1)"), 64)]) == set()  # one step is a number
    assert ranges.new_positions(inputs, [(2, 8, past, 64), (2, 8, grown)]) == set()
    sizes = ranges.asked(["new", "(past+new)"], {"new": ranges.NEW})
    assert sizes == [{"new": 1024, "(past+new)": 2048}, {"new": 1, "(past+new)": 1025}]
    assert len(ranges.asked(["(past+new)"], {"new": ranges.NEW, "past": Range(1, 2, 4)})) == 6


def test_few_tokens_and_many_have_kernels_of_their_own(fragment: Program, planned: plans.FragmentPlan) -> None:
    p = planned.plans["cuda"]
    assert [s.engine for s in p.schedules] == ["warpgroup"]
    engines = {s.engine for o in p.others for s in o.alternative.schedules}
    assert "strip" in engines and len(p.others) < ranges.MOST[True]
    assert all(v.passed for v in p.verdicts) and len(p.verdicts) == 1 + len(p.others)
    assert any(o.alternative.holds({"n": 1}) for o in p.others)
    assert not any(o.alternative.holds({"n": 1024}) for o in p.others)
    for o in p.others:
        (bound,) = o.alternative.when
        assert f"extents[0] <= {bound.most}" in p.text if bound.most else f"extents[0] >= {bound.least}" in p.text
    assert f"kernel{len(p.others)}(" in p.text


def test_files_hold_all_of_them(fragment: Program, planned: plans.FragmentPlan) -> None:
    p = planned.plans["cuda"]
    again = fragment_cache.plan_from_json(json.loads(json.dumps(fragment_cache.plan_to_json(planned))), planned.program)
    assert again == planned
    stored = plan_from_json(json.loads(json.dumps(planned.to_json())))
    assert stored.others["cuda"] == tuple(o.alternative for o in p.others)
    ways = list(stored.ways)
    assert [way.where for way in ways] == ["", *(f" where {o.alternative.condition}" for o in p.others)]
    again = rendered("abc", fragment, p.graph, p.schedules, stored.target("cuda"), others=stored.others["cuda"]).text
    assert again == p.text


def _candidates(p: plans.TargetPlan) -> list[Candidate]:
    """What a plan has taken, its own first."""
    ways = [(p.graph, p.schedules), *((o.alternative.graph, o.alternative.schedules) for o in p.others)]
    return [Candidate(graph, schedules, p.predicted_us, p.floor_us, (0.0, 0.0)) for graph, schedules in ways]


def test_a_range_that_is_narrow_needs_one(fragment: Program, planned: plans.FragmentPlan) -> None:
    found = _candidates(planned.plans["cuda"])
    target = newest(CUDA.targets["cuda"])

    def leaves(given: Mapping[str, Range]) -> list[ranges.Leaf]:
        at = ranges.points(fragment.symbols, given)
        return ranges.leaves(fragment, ranges.times(found, target, at), target, at)

    (leaf,) = leaves({"n": Range(1000, 1024, 1100)})
    assert (leaf.when, leaf.candidate) == ((), 0)
    assert len(leaves({})) == len(found)


def test_one_row_and_several_behind_caches_have_four_ranges_each() -> None:
    """As many as steps and prompts of few and many positions ask for: with six, steps of four sequences behind 8192 positions
    had one block for each sequence and head."""
    p, target = program(lambda g, t: behind(g, t, symbol("rows"), symbol("keys")), F16), load_target("sm_90a")
    at = [{"rows": rows, "keys": keys} for rows in (1, 512) for keys in (64, 1024, 8192, 32768)]
    times = [[10.0 if k == own else 1000.0 for k in range(len(at))] for own in range(len(at))]
    found = ranges.leaves(p, times, target, at)
    for k, sizes in enumerate(at):
        assert [leaf.candidate for leaf in found if all(bound.holds(sizes) for bound in leaf.when)] == [k]


def _timed(candidates: list[Candidate]) -> tuple[list[Candidate], list[list[float]]]:
    """Candidates with their times, as `ranges.pool` gives them."""
    target = newest(CUDA.targets["cuda"])
    return candidates, ranges.times(candidates, target, ranges.points(("n",), {}))


def test_what_is_not_proved_is_not_taken(fragment: Program, planned: plans.FragmentPlan) -> None:
    own = planned.plans["cuda"]
    target = newest(CUDA.targets["cuda"])
    text = rendered("abc", fragment, own.graph, own.schedules, target).text
    single = replace(own, others=(), text=text)

    def none(*args: Any) -> plans.TargetPlan:
        raise Refused("not this one")

    with (
        mock.patch.object(plans, "planned", none),
        mock.patch.object(plans, "_choose", lambda *_: (single, "")),
        mock.patch.object(ranges, "pool", lambda *_: _timed(_candidates(own))),
    ):
        found = plan_fragment("abc", "attention", fragment, 6, CUDA)
    assert (found.plans["cuda"].others, found.plans["cuda"].text) == ((), text)


def test_what_is_measured_keeps_the_other_ranges(fragment: Program, planned: plans.FragmentPlan) -> None:
    p = replace(planned.plans["cuda"], slower=(Slower("sm_80", 9.0, 5.0),))
    fastest = Candidate(p.graph, p.schedules, p.predicted_us, p.floor_us, (0.0, 0.0))
    found, passed_over = tuning_stage.first_proved("abc", fragment, [("own", fastest)], 6, CUDA, p)
    assert found is not None and not passed_over
    assert (found.others, found.text) == (p.others, p.text)
    assert found.losses[-1].target == "sm_80"


def test_reports_say_when(planned: plans.FragmentPlan) -> None:
    p = planned.plans["cuda"]
    own, *others = fragment_report.chosen(p)
    assert "when" not in own and own["engine"] == "warpgroup"
    assert [s["when"] for s in others] == [{"n": [b.least, b.most]} for o in p.others for b in o.alternative.when]


def test_a_muGraph_found_at_other_sizes_is_predicted_at_typical_ones(
    fragment: Program, planned: plans.FragmentPlan
) -> None:
    own = planned.plans["cuda"]
    other = replace(_candidates(own)[1], predicted_us=1e6, floor_us=1e5)  # at the sizes at which it was found
    with (
        mock.patch.object(ranges, "pool", lambda *_: _timed([_candidates(own)[0], other])),
        mock.patch.object(ranges, "leaves", lambda *_: [Leaf((), (0,), 1)]),
    ):
        found = plan_fragment("abc", "attention", fragment, 6, CUDA).plans["cuda"]
    assert (found.graph, found.schedules) == (other.graph, other.schedules)
    target = newest(CUDA.targets["cuda"])
    assert found.predicted_us == ranges.time(other, target, {"n": 1024})
    assert found.floor_us == own.floor_us < found.predicted_us


def test_sizes_that_are_asked_for_are_those_that_are_said() -> None:
    said = {"past": Range(1, 16, 64)}
    sizes = ranges.asked(["batch", "past", "(past+1)"], said)
    assert {s["past"] for s in sizes} == {1, 2, 4, 8, 16, 32, 64}
    assert all(s["batch"] == 1 and s["(past+1)"] == s["past"] + 1 for s in sizes)
    taken = said | {"batch": ranges.BATCH}
    assert ranges.asked(["batch", "past", "(past+1)"], taken) == sizes and dims.limits(taken) == {"past": (1, 64)}
    assert ranges.is_said(["(past+1)"], taken) and not ranges.is_said(["batch"], taken)


def _of_a_fast_library(name: str, most: int) -> Work:
    """A norm with a product for rows up to `most`, planned for a CPU whose library has slow starts and fast products."""

    def build(g: Any, t: Any) -> list[int]:
        x = g.input("x", (symbol("rows"), 256), t)
        return [compose.linear(g, compose.rms_norm(g, x, [1], 1e-5), g.input("w", (256, 256), t, constant=True))]

    fragment, plan = program(build, F32), PLANNED.get(most)
    options = _options(most)
    if plan is None:
        plan = PLANNED[most] = plan_fragment("abc", "norm_linear", fragment, 8, options)
    region = mock.Mock(nodes=(ir.node("Erf", [ir.Value(name="x")]),), inputs=())
    work = Work(name, "norm_linear", fragment, [mock.Mock(region=region)], (), (), plan)
    work.decide(force=False)
    return work


PLANNED: dict[int, plans.FragmentPlan] = {}


def _options(most: int) -> PlanOptions:
    own = load_target("cpu")
    section = replace(own.fitted(Cpu), library_rate=50.0, library_bandwidth=50.0, library_special=50.0)
    cpu = replace(own, sections=(section,), kernel_us=20.0)
    said = (("rows", Range(1, 4, most)),)
    return PlanOptions({"cpu": ("cpu",)}, SearchOptions(sizes=(("rows", 4),)), own=(cpu,), ranges=said)


def test_a_fragment_is_replaced_where_it_gains_in_the_mean_over_sizes_that_are_asked_for() -> None:
    """The mean is that of powers of two and the ends."""
    for most, gains in ((8, True), (1 << 20, False)):
        work, options = _of_a_fast_library("abc", most), _options(most)
        assert work.plan is not None
        p = work.plan.plans["cpu"]
        assert p.predicted_us * p.margin < p.original_us
        sizes = [{"rows": n} for n in {*(2**k for k in range(21) if 2**k <= most)}]
        times = ranges.compared(p, [o.alternative for o in p.others], work.program, options.target("cpu"), 8, sizes)
        mean = math.exp(sum(math.log(theirs / ours) for ours, theirs in times) / len(times))
        assert p.gain == pytest.approx(mean) and (mean > p.margin) == gains
        assert work.replace == p.faster == gains


def test_fragments_are_left_until_their_sums_gain_on_one_thread_too() -> None:
    both = [_of_a_fast_library(name, 1024) for name in ("a", "b")]

    def times(own: Any, ways: Any, program: Any, target: Any, operators: int, at: Any) -> Any:
        slow = target.units == 1 and program is both[0].program
        return [(10.0 if slow else 5.0, 7.0) for _ in at]

    with mock.patch.object(ranges, "compared", times):
        for w in both:
            w.replace = True
        coverage.leave_losers(both, _options(1024))
        assert [w.replace for w in both] == [False, True]
    assert " on one thread, and this one takes 10.0 us against 7.0 us there" in both[0].reason


def test_fragments_are_left_until_their_sums_gain_at_all_sizes_that_are_asked_for() -> None:
    """Two fragments that take 5 us at few rows and 20 at many: original nodes take 10 and `others`."""
    for others, replaced in (
        ((10.0, 30.0), [True, True]),
        ((10.0, 29.0), [False, True]),
        ((10.0, 19.0), [False, False]),
    ):
        both = [_of_a_fast_library(name, 1024) for name in ("a", "b")]
        originals = dict(zip((id(w.program) for w in both), others, strict=True))

        def times(own: Any, ways: Any, program: Any, target: Any, operators: int, at: Any, us: Any = originals) -> Any:
            return [(20.0, us[id(program)]) if sizes["rows"] > 64 else (5.0, 10.0) for sizes in at]

        with mock.patch.object(ranges, "compared", times):
            for w in both:
                w.replace = True
            coverage.leave_losers(both, _options(1024))
        assert [w.replace for w in both] == replaced
        assert replaced[0] or "at rows 128, and this one takes 20.0 us against 10.0 us" in both[0].reason


def test_a_part_of_an_operator_is_compared_at_all_sizes_that_are_said(fragment: Program) -> None:
    """A library whose short sequences are slow and whose long ones are fast."""

    def original(program: Program, operators: int, target: Any, sizes: Mapping[str, int]) -> float:
        return 1e6 if sizes["n"] <= 1024 else 1e-3

    with mock.patch.object(plans, "original_us", original), mock.patch.object(ranges, "original_us", original):
        for said, losses in (((), []), ((("n", Range(1, 1024, 4096)),), ["sm_90a at n 4096"])):
            p = plan_fragment("abc", "attention", fragment, FUSED, replace(CUDA, ranges=said)).plans["cuda"]
            assert [loss.target for loss in p.losses] == losses
