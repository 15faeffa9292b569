"""Planning a fragment: what is chosen renders and is proved; reasons where nothing is; files that can be read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import onnx_ir as ir
import pytest

from mirage_cli.codegen.cache_rows import DOMAIN, CacheRows
from mirage_cli.codegen.requests.passes import without
from mirage_cli.codegen.requests.request import Spelled
from mirage_cli.codegen.source import Rendered, lowered
from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.frontends.onnx.parts.splicing import INSIDE
from mirage_cli.lax.dtypes import F16, F32, F64, U4, DType
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.optimization.task import Work
from mirage_cli.planning import plan as plans
from mirage_cli.planning.fragment_cache import plan_key
from mirage_cli.planning.plan import PlanOptions, newest, plan_fragment, rendered
from mirage_cli.report.stored_plan import plan_from_json
from mirage_cli.search.proof.verify import Verdict, verify
from mirage_cli.search.schedules.alternatives import Alternative
from mirage_cli.search.schedules.original import FUSED
from mirage_cli.search.schedules.target import changed_target, load_target
from mirage_cli.search.search import Candidate
from tests.codegen.programs import NAMED, program
from tests.lax.programs import recorded

BOTH = PlanOptions({"cpu": ("cpu",), "cuda": ("sm_80", "sm_90a")})
CPU = PlanOptions({"cpu": ("cpu",)})


@pytest.fixture(scope="module")
def fragment() -> Program:
    return program(NAMED["rms_linear"], F16)


@pytest.fixture(scope="module")
def planned(fragment: Program) -> plans.FragmentPlan:
    return plan_fragment("abc", "norm_linear", fragment, 6, BOTH)


def test_both_targets_are_planned_rendered_and_proved(fragment: Program, planned: plans.FragmentPlan) -> None:
    assert not planned.reasons
    assert {kind: p.target for kind, p in planned.plans.items()} == {"cpu": "cpu", "cuda": "sm_90a"}
    for kind, p in planned.plans.items():
        target = newest(BOTH.targets[kind])
        others = [o.alternative for o in p.others]
        assert p.text == rendered("abc", fragment, p.graph, p.schedules, target, others=others).text
        assert p.verdict.passed
        assert len(p.schedules) == len(p.graph.kernels)
        assert 0 < p.floor_us <= p.predicted_us
        assert p.faster == (p.predicted_us * load_target(p.target).margin < p.original_us)
    assert "mirage_parallel" in planned.plans["cpu"].text
    assert "__global__" in planned.plans["cuda"].text


def test_of_near_predictions_fewer_kernels_are_tried_first(planned: plans.FragmentPlan) -> None:
    """Two per cent are within what the model is off by; what is predicted to be slower than that keeps its place."""
    one = planned.plans["cpu"]
    times = [(100.0, 3), (101.0, 2), (101.5, 1), (102.5, 1), (101.9, 2)]
    found = [
        Candidate(replace(one.graph, kernels=one.graph.kernels[:1] * n), one.schedules, us, 0.0, (us, 0.0))
        for us, n in times
    ]
    assert [c.predicted_us for c in plans._in_turn(found)] == [101.5, 101.0, 101.9, 100.0, 102.5]
    assert plans._in_turn([]) == []


def test_every_architecture_has_the_muGraph_that_is_best_there(fragment: Program, planned: plans.FragmentPlan) -> None:
    """One source: kernels of Hopper are compiled for it alone, and the device says which are launched."""
    assert newest(("sm_90a", "sm_80")).name == newest(("sm_80", "sm_90a")).name == "sm_90a"
    p = planned.plans["cuda"]
    assert p.shared_bytes == load_target("sm_90a").shared_bytes
    (other,) = p.others
    older = plan_fragment("abc", "norm_linear", fragment, 6, PlanOptions({"cuda": ("sm_80",)})).plans["cuda"]
    assert other.alternative == Alternative((), older.graph, older.schedules, "sm_80") and other.verdict.passed
    alone = plan_fragment("abc", "norm_linear", fragment, 6, PlanOptions({"cuda": ("sm_90a",)})).plans["cuda"]
    assert (alone.graph, alone.schedules, alone.others) == (p.graph, p.schedules, ())
    assert "mirage::capability() != 900) return run0(" in p.text and "__CUDA_ARCH__" not in alone.text
    guards = [line for line in p.text.splitlines() if "__CUDA_ARCH__" in line]
    assert guards == [
        *["#if defined(__CUDA_ARCH__) && !(__CUDA_ARCH__ != 900)"] * len(older.schedules),
        *["#if defined(__CUDA_ARCH__) && !(__CUDA_ARCH__ == 900)"] * len(p.schedules),
    ]


def test_a_muGraph_for_an_older_architecture_is_read_back(fragment: Program, planned: plans.FragmentPlan) -> None:
    stored = plan_from_json(json.loads(json.dumps(planned.to_json())))
    p = planned.plans["cuda"]
    assert stored.others["cuda"] == tuple(o.alternative for o in p.others)
    assert [w.where for w in stored.ways if w.kind == "cuda"] == ["", " where the GPU is sm_80"]
    again = rendered("abc", fragment, p.graph, p.schedules, stored.target("cuda"), others=stored.others["cuda"]).text
    assert again == p.text


def test_a_fragment_is_replaced_where_it_is_faster_on_every_architecture(planned: plans.FragmentPlan) -> None:
    p = planned.plans["cuda"]
    assert p.faster == (p.predicted_us * load_target(p.target).margin < p.original_us)
    slower = plans.Slower("sm_80", 9.0, 5.0)
    both = replace(p, slower=(slower,))
    assert not both.faster and both.losses[-1] == slower
    work = Work("abc", "norm_linear", planned.program, [], (), (), replace(planned, plans={"cuda": both}))
    work.decide(force=False)
    assert not work.replace and "not predicted to be faster on sm_80: 9.0 us against 5.0 us" in work.reason
    work.decide(force=True)
    assert work.replace


def test_sizes_that_are_asked_for_count_in_the_mean(planned: plans.FragmentPlan) -> None:
    """A fragment that gains at typical sizes and not in the mean stays, and says so; where it is measured that decides."""
    p = replace(planned.plans["cpu"], predicted_us=4.0, original_us=6.0, margin=1.1, slower=())
    assert p.faster and replace(p, gain=1.2).faster
    even = replace(p, gain=1.0)
    work = Work("abc", "norm_linear", planned.program, [], (), (), replace(planned, plans={"cpu": even}))
    work.decide(force=False)
    assert not work.replace
    assert "not predicted to be faster on cpu in the mean over its sizes: 6.0 us against 6.0 us" in work.reason
    work.decide(force=False, measured="cpu")
    assert work.replace


def test_measuring_decides_for_the_architecture_that_is_measured(planned: plans.FragmentPlan) -> None:
    p = replace(planned.plans["cuda"], original_us=0.0)
    assert [s.target for s in p.losses][:1] == ["sm_90a"]
    older = plans.Slower("sm_80", 9.0, 5.0)
    for slower, measured, replaced in (((), "sm_90a", True), ((older,), "sm_90a", False), ((), "sm_80", False)):
        plan = replace(planned, plans={"cuda": replace(p, slower=slower)})
        work = Work("abc", "norm_linear", planned.program, [], (), (), plan)
        work.decide(force=False, measured=measured)
        assert work.replace is replaced, (slower, measured)
        assert ("on sm_80" in work.reason) == (slower == (older,))


def test_a_part_of_an_operator_is_replaced_where_gpus_gain_or_the_whole_model_is_measured(
    planned: plans.FragmentPlan,
) -> None:
    """What writes new rows into caches beside it takes its time too."""
    rows = CacheRows("f16", 4, 2, 32)
    x = ir.node(rows.op_type, [], domain=DOMAIN).outputs[0]
    part = ir.node("MatMul", [x, ir.Value(name="y")])
    part.meta[INSIDE] = "GroupQueryAttention"
    nodes = (ir.node("Add", [ir.Value(name="x"), ir.Value(name="y")]), part)
    places = [mock.Mock(region=mock.Mock(nodes=nodes, inputs=(x,)))]
    cpu, cuda = (replace(planned.plans[kind], original_us=1e9, slower=()) for kind in ("cpu", "cuda"))
    launch = load_target(cuda.target).launch_us

    def work(kinds: dict[str, plans.TargetPlan]) -> Work:
        return Work("abc", "attention", planned.program, places, (), (), replace(planned, plans=kinds))

    assert work({}).operators == FUSED and work({}).beside == {rows.op_type: rows}
    for force, measured, replaced in ((False, "", False), (False, "cpu", True), (True, "", True)):
        own = work({"cpu": cpu})
        own.decide(force, measured)
        assert own.replace is replaced and ("a part of GroupQueryAttention" in own.reason) == (not replaced)
    slow = replace(cpu, original_us=0.0)
    for more, replaced in ((1.1, True), (0.9, False)):
        margin = (cuda.predicted_us + more * launch) * load_target(cuda.target).margin
        own = work({"cpu": slow, "cuda": replace(cuda, original_us=margin)})
        own.decide(force=False)
        assert own.replace is replaced, own.reason
    own = work({"cpu": cpu, "opencl": replace(cuda, target="opencl")})
    own.decide(force=True)
    assert not own.replace and "no kernels of such parts on opencl" in own.reason


def test_a_plan_is_printed_once(fragment: Program) -> None:
    asked: list[tuple[Any, ...]] = []

    def counted(identifier: str, program: Program, *arguments: Any) -> Rendered:
        asked.append((*arguments[:2], arguments[2].name, *map(tuple, arguments[4:])))
        return rendered(identifier, program, *arguments)

    with mock.patch.object(plans, "rendered", counted):
        found = plan_fragment("abc", "norm_linear", fragment, 6, BOTH)
    assert found.plans["cuda"].others
    assert len(asked) == len(set(asked)) == 2  # one source for the CPU, one for all architectures


def test_heads_that_a_norm_joins_are_normalised_by_a_kernel_of_their_own() -> None:
    """A block that holds all heads cannot multiply each with its own keys."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        q = compose.rms_norm(g, g.input("q", (6, 32), t), [1], 1e-5)
        heads = g.transpose(g.reshape(q, (6, 4, 8)), (1, 0, 2))
        scores = compose.matmul(g, heads, g.input("k", (4, 8, 40), t))
        return [compose.matmul(g, compose.softmax(g, scores, [2]), g.input("v", (4, 40, 8), t))]

    found = plan_fragment("abc", "qknorm_attention", program(build, F32), 9, CPU)
    assert not found.reasons and len(found.plans["cpu"].graph.kernels) == 2


def test_a_plan_is_the_same_whenever_it_is_made(fragment: Program, planned: plans.FragmentPlan) -> None:
    again = plan_fragment("abc", "norm_linear", fragment, 6, BOTH)
    assert again.to_json() == planned.to_json()
    assert {k: p.text for k, p in again.plans.items()} == {k: p.text for k, p in planned.plans.items()}


def test_files_are_read_back(fragment: Program, planned: plans.FragmentPlan) -> None:
    stored = plan_from_json(json.loads(json.dumps(planned.to_json())))
    assert (stored.id, stored.name) == ("abc", "norm_linear")
    assert stored.program.key() == fragment.key()
    for kind, p in planned.plans.items():
        assert stored.targets[kind] == (p.target, p.graph, p.schedules)


@pytest.mark.parametrize("missing", ["id", "program", "targets"])
def test_files_that_lack_something_are_refused(planned: plans.FragmentPlan, missing: str) -> None:
    data = planned.to_json()
    del data[missing]
    with pytest.raises(InvalidGraph, match=missing):
        plan_from_json(data)


def test_files_with_a_broken_graph_are_refused(planned: plans.FragmentPlan) -> None:
    data = json.loads(json.dumps(planned.to_json()))
    data["targets"]["cpu"]["graph"]["kernels"][0]["inputs"] = [99]
    with pytest.raises(InvalidGraph, match="a kernel's tensors"):
        plan_from_json(data)


def test_a_candidate_that_does_not_fit_is_passed_over(fragment: Program) -> None:
    refused: list[tuple[Any, ...]] = []

    def first_refused(*arguments: Any) -> tuple[Spelled, ...]:
        if not refused:
            refused.append(arguments)
            raise Refused("not this one")
        return lowered(*arguments)

    with mock.patch.object(plans, "lowered", first_refused):
        found = plan_fragment("abc", "norm_linear", fragment, 6, CPU)
    assert not found.reasons
    chosen = found.plans["cpu"]
    assert (chosen.graph, chosen.schedules) != (refused[0][1], refused[0][2])


def test_reasons_are_kept_where_nothing_fits(fragment: Program) -> None:
    with mock.patch.object(plans, "lowered", side_effect=Refused("too wide")) as tried:
        found = plan_fragment("abc", "norm_linear", fragment, 6, CPU)
    assert not found.plans
    assert found.reasons == {"cpu": "too wide"}
    assert 1 < tried.call_count <= plans.MAX_FITTED


def test_nothing_unproved_is_chosen(fragment: Program) -> None:
    def failed(*arguments: Any, entropy: str) -> Verdict:
        return replace(verify(*arguments, entropy=entropy), passed=False, reason="output 0 differs")

    with mock.patch.object(plans, "verify", failed):
        found = plan_fragment("abc", "norm_linear", fragment, 6, CPU)
    assert not found.plans
    assert found.reasons == {"cpu": "the proof failed: output 0 differs"}


def test_each_target_has_its_own_reason(fragment: Program) -> None:
    def cpu_only(*arguments: Any) -> tuple[Spelled, ...]:
        if arguments[3].kind == "cuda":
            raise Refused("too wide")
        return lowered(*arguments)

    with mock.patch.object(plans, "lowered", cpu_only):
        found = plan_fragment("abc", "norm_linear", fragment, 6, BOTH)
    assert set(found.plans) == {"cpu"}
    assert found.reasons == {"cuda": "sm_80: too wide"}


def test_more_operators_cost_more(fragment: Program) -> None:
    few, many = (plan_fragment("abc", "n", fragment, n, CPU).plans["cpu"].original_us for n in (1, 9))
    assert many - few >= 8 * load_target("cpu").kernel_us


def test_programs_without_a_form_have_a_reason() -> None:
    product = program(lambda g, t: [g.reduce("prod", compose.square(g, g.input("x", (4, 33), t)), [1])], F32)
    found = plan_fragment("abc", "product", product, 2, CPU)
    assert not found.plans
    assert found.reasons["cpu"].startswith("no muGraph was found: ")


@pytest.mark.parametrize(
    ("extent", "dtype", "reason"),
    [
        (0, F32, "axis c has extent 0: there is nothing to compute"),
        (5, F64, "tensors of type f64 are not rendered"),
        (6, U4, "t0 has numbers of 4 bits that the model does not hold: only weights do"),
    ],
)
def test_what_no_target_has_kernels_for_is_not_searched(extent: int, dtype: DType, reason: str) -> None:
    g = Graph()
    x = g.input("x", (3, extent), dtype)
    p = canonical(recorded(g, [compose.matmul(g, x, g.input("w", (extent, 7), dtype))]))
    assert plan_fragment("abc", "linear", p, 1, CPU).reasons == {"cpu": reason}


def test_a_plan_without_passes_is_rendered_again_from_its_file(fragment: Program, planned: plans.FragmentPlan) -> None:
    """The file says which passes made the source, and for how much shared memory."""
    options = plans.PlanOptions(BOTH.targets, passes=without(["fusion", "layouts", "memory"]))
    found = plan_fragment("abc", "norm_linear", fragment, 6, options)
    stored = plan_from_json(json.loads(json.dumps(found.to_json())))
    assert stored.passes == options.passes
    for kind, p in found.plans.items():
        _, graph, schedules = stored.targets[kind]
        assert p.verdict.passed and p.text != planned.plans[kind].text
        assert stored.target(kind) == newest(BOTH.targets[kind])
        others = stored.others[kind]
        again = rendered("abc", fragment, graph, schedules, stored.target(kind), stored.passes, others).text
        assert again == p.text


def test_files_with_unknown_passes_are_refused(planned: plans.FragmentPlan) -> None:
    with pytest.raises(InvalidGraph, match="unknown pass 'speed'"):
        plan_from_json(planned.to_json() | {"without": ["speed"]})


@pytest.mark.parametrize(
    ("targets", "replaced"), [((), False), (("cpu",), False), (("cuda",), True), (("cuda", "cpu"), False)]
)
def test_only_targets_that_were_asked_for_decide(
    fragment: Program, planned: plans.FragmentPlan, targets: tuple[str, ...], replaced: bool
) -> None:
    """A CPU kernel that comes along with a CUDA one may be slower than the original."""
    p = planned.plans
    slower = {"cpu": replace(p["cpu"], original_us=0.0), "cuda": replace(p["cuda"], original_us=1e9)}
    work = Work("abc", "norm_linear", fragment, [], (), (), replace(planned, plans=slower))
    work.decide(force=False, targets=targets)
    assert work.replace is replaced
    assert work.reason.startswith("" if replaced else "not predicted to be faster on cpu")


def test_a_machines_rates_decide_between_plans_but_not_what_is_printed() -> None:
    own = changed_target({"name": "cpu", "bandwidth": 1e13, "flops": {"f32": 1e13}, "special": 1e13}, "")
    fragment, fast = program(NAMED["rms_linear"], F32), replace(CPU, own=(own,))
    slow = plan_fragment("abc", "norm_linear", fragment, 6, CPU).plans["cpu"]
    p = plan_fragment("abc", "norm_linear", fragment, 6, fast).plans["cpu"]
    assert p.predicted_us < slow.predicted_us and p.original_us < slow.original_us
    assert p.text == rendered("abc", fragment, p.graph, p.schedules, load_target("cpu")).text
    keys = {plan_key("abc", "norm_linear", fragment, 6, options) for options in (CPU, fast)}
    assert len(keys) == 2


@pytest.mark.parametrize(("library", "replaced"), [(0.5, True), (4.0, False)])
def test_what_loses_on_one_thread_stays(library: float, replaced: bool) -> None:
    """A machine whose cores read as fast together, but alone onnxruntime's products read more than packed ones."""
    alone = {"library_bandwidth": 0.3, "single_library": library, "single_pages": 1.0}
    own = changed_target({"name": "cpu", "single": 0.5, "margin": 1.0, "cpu": alone}, "")
    g = Graph()
    x, w = g.input("x", (1, 1024), F32), g.input("w", (1024, 1024), F32, True)
    product = canonical(recorded(g, [g.contract(x, w, [0, 1], [1, 2], [0, 2])]))
    found = plan_fragment("abc", "linear", product, 1, replace(CPU, own=(own,)))
    p = found.plans["cpu"]
    assert p.predicted_us < p.original_us and p.alone is not None
    assert p.predicted_us < p.alone[0] and (p.alone[0] < p.alone[1]) == replaced
    work = Work("abc", "linear", product, [], (), (), found)
    work.decide(force=False)
    assert work.replace is replaced
    assert replaced or work.reason.startswith("not predicted to be faster on cpu on one thread: ")


def test_kinds_that_nobody_asked_for_have_one_mugraph_for_all_sizes() -> None:
    """The kernels of the kind that is asked for are the same; those besides are proved too, and hold any size."""
    g = Graph()
    x, w = g.input("x", (symbol("rows"), 64), F16), g.input("w", (64, 64), F16, True)
    rows = canonical(recorded(g, [g.contract(x, w, [0, 1], [1, 2], [0, 2])]))
    options = replace(BOTH, targets={"cpu": ("cpu",), "cuda": ("sm_90a",)})
    with mock.patch.object(plans, "_ranged", side_effect=plans._ranged) as several:
        every, once = (plan_fragment("abc", "norm", rows, 6, o) for o in (options, replace(options, once=("cpu",))))
    assert [call.args[4].name for call in several.call_args_list] == ["cpu", "sm_90a", "sm_90a"]
    assert once.plans["cuda"].text == every.plans["cuda"].text
    assert once.plans["cpu"].others == () and once.plans["cpu"].verdict.passed and once.plans["cpu"].text
    assert plan_key("abc", "norm", rows, 6, options) != plan_key(
        "abc", "norm", rows, 6, replace(options, once=("cpu",))
    )
