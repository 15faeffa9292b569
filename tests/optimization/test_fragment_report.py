"""What a report tells of a fragment: the original nodes, what bounds its speed, what its kernels ask for."""

from __future__ import annotations

import json
import math

import pytest

from mirage_cli.lax.dtypes import F16
from mirage_cli.optimization import fragment_report
from mirage_cli.planning.plan import FragmentPlan, PlanOptions, plan_fragment
from mirage_cli.search.schedules.target import load_target
from tests.codegen.programs import NAMED, program
from tests.optimized import Optimized

BOTH = PlanOptions({"cpu": ("cpu",), "cuda": ("sm_90a",)})


@pytest.fixture(scope="module")
def planned() -> FragmentPlan:
    return plan_fragment("abc", "norm_linear", program(NAMED["rms_linear"], F16), 6, BOTH)


def test_bounds_are_those_of_the_floor(planned: FragmentPlan) -> None:
    p = planned.program
    found = fragment_report.predictions(planned.plans, p, {})
    assert [d["target"] for d in found.values()] == ["cpu", "sm_90a"]
    extents = [int(str(a.extent)) for a in p.axes]
    tensors = [(s.dims, s.dtype) for s in p.sources] + [(o.dims, o.dtype) for o in p.outputs]
    moved = sum(math.prod(int(str(e)) for e in dims) * dtype.bytes for dims, dtype in tensors)
    for d in found.values():
        assert d["bytes"] == moved
        assert d["flops"] == 2 * math.prod(extents)
        assert d["floor_us"] == pytest.approx(1e6 * max(d["bytes"] / d["bandwidth"], d["flops"] / d["rate"]), abs=1e-3)
    assert found["cuda"]["rate"] == pytest.approx(load_target("sm_90a").flops["f16"])


def test_a_fragment_without_products_counts_elementwise_operations() -> None:
    softmax = program(NAMED["softmax"], F16)
    plans = plan_fragment("abc", "softmax", softmax, 3, PlanOptions({"cpu": ("cpu",)})).plans
    found = fragment_report.predictions(plans, softmax, {})["cpu"]
    elements = math.prod(int(str(a.extent)) for a in softmax.axes)
    assert found["flops"] > 3 * elements  # a maximum, exponentials, a sum, a division
    assert found["rate"] == load_target("cpu").special


def test_schedules_tell_what_kernels_ask_for(planned: FragmentPlan) -> None:
    for kind, p in planned.plans.items():
        (s,) = fragment_report.schedules(p)
        assert 0 < s["shared_bytes"] <= load_target(p.target).shared_bytes
        assert s["threads"] == (1 if kind == "cpu" else 32 * s["warps"])
        assert f"{s['shared_bytes']}" in p.text


@pytest.mark.parametrize(("name", "weights"), [("rmsnorm_linear_fp32", 0), ("llama_fp32", 15)])
def test_the_original_nodes_of_an_output_folder(optimized: Optimized, name: str, weights: int) -> None:
    found = json.loads((optimized(name) / "report.json").read_text())
    assert sum(t["weight"] for f in found["fragments"] for t in f["original"]["inputs"]) == weights
    for f in found["fragments"]:
        o = f["original"]
        assert [n["name"] for n in o["nodes"]] == f["nodes"][0]
        assert [n["op"] for n in o["nodes"]] == [found["operators"][n] for n in f["nodes"][0]]
        assert [t["type"] for t in o["inputs"]] == f["program"]["inputs"]
        assert [t["type"] for t in o["outputs"]] == f["program"]["outputs"]
        made = {name for n in o["nodes"] for name in n["outputs"]}
        assert {t["name"] for t in o["outputs"]} <= made
        read = {name for n in o["nodes"] for name in n["inputs"]}
        assert {t["name"] for t in o["inputs"]} <= read
