"""Whether muGraphs give NaN and infinities where the original does, found without running a kernel."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest

from mirage_cli import frontends
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.dtypes import F32, I64
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.numerics import infinities
from mirage_cli.numerics.edges import not_finite
from mirage_cli.numerics.rounding import drawn_inputs
from mirage_cli.optimization import task as works
from mirage_cli.optimization.task import Work
from mirage_cli.planning import plan as plans
from mirage_cli.planning.plan import FragmentPlan, PlanOptions, TargetPlan, plan_fragment
from mirage_cli.runtime import sessions
from mirage_cli.search.mugraph.evaluate import evaluate_kernels
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen.programs import NAMED, program
from tests.search.finish.test_scaling import made

#: x W1 + x W2, which is x (W1 + W2) but for infinities; behind it infinity is a number again (463 of seed 42)
CAPPED = """<ir_version: 10, opset_import: ["" : 23]>
capped (float[9,5] x, float[10,3] w, float[3,17] v) => (float[9,17] y) {
    two = Concat <axis = 1> (x, x)
    scores = MatMul(two, w)
    limit = Constant <value_float = 5.0> ()
    share = Div(scores, limit) soft = Tanh(share) cap = Mul(soft, limit)
    p = Softmax <axis = -1> (cap)
    y = MatMul(p, v)
}"""
#: the product of a mean, which is the mean of products but for infinities (763)
MEAN = """<ir_version: 10, opset_import: ["" : 23]>
mean (float[5,31,63] x, float[63,2] w, bool[31,2] mask, float[2,2] v) => (float[31,2] y) {
    first = Constant <value_ints = [0]> ()
    m = ReduceMean <keepdims = 0> (x, first)
    scores = MatMul(m, w)
    least = Constant <value_float = -9984.0> ()
    masked = Where(mask, scores, least)
    p = Softmax <axis = -1> (masked)
    y = MatMul(p, v)
}"""
#: (x + 2) W, which is x W + 2 W but for infinities (810)
SHIFTED = """<ir_version: 10, opset_import: ["" : 23]>
shifted (float[31,17] x, float[34,33] w, float[33,13] v) => (float[31,13] y) {
    twice = Concat <axis = 1> (x, x)
    by = Constant <value_float = 2.0> ()
    moved = Add(twice, by)
    scores = MatMul(moved, w)
    limit = Constant <value_float = 5.0> ()
    share = Div(scores, limit) soft = Tanh(share) cap = Mul(soft, limit)
    p = Softmax <axis = -1> (cap)
    y = MatMul(p, v)
}"""


TARGETS = {"cuda": "sm_90a", "cpu": "cpu"}


def fragment(text: str) -> Work:
    """The one fragment of a model."""
    imported = from_proto(onnx.parser.parse_model(text), frontends.Options())
    (work,) = works.group_fragments(partition(imported.graph, works.tensor_names(imported)).fragments, imported)
    return work


def planned(w: Work, kind: str) -> FragmentPlan:
    return plan_fragment(w.id, w.name, w.program, w.operators, PlanOptions({kind: (TARGETS[kind],)}))


def differing(text: str, w: Work, plan: TargetPlan) -> int:
    """How many results of a plan's muGraph are finite where those of onnxruntime are not, or the reverse, on inputs that are
    not finite, at their real extents."""
    p, found = w.program, 0
    session = sessions.session(onnx.parser.parse_model(text).SerializeToString(), optimize=False)
    tiles = [s.as_tiles() for s in plan.schedules]
    for edge in not_finite(p, drawn_inputs(p, {}, {}, 7), {}, 7):
        (wanted,) = sessions.run(session, {s.name: a for s, a in zip(p.sources, edge.arrays, strict=True)}).values()
        arrays = {k: a.astype(np.float64) for k, a in enumerate(edge.arrays)}
        (ours,) = evaluate_kernels(plan.graph, tiles, lambda q: Float64([a.name for a in q.axes]), arrays)
        found += int((np.isfinite(ours) != np.isfinite(wanted)).sum())
    return found


def all_changed(p: Any, target: str) -> list[str]:
    """What is said of each muGraph that a search finds."""
    found = Searcher(SearchOptions()).search(p, load_target(target)).candidates
    first = {c.graph: c for c in reversed(found)}
    return [
        infinities.changed_finiteness(p, graph, [s.as_tiles() for s in c.schedules], 0) for graph, c in first.items()
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (CAPPED.replace("float[9,", "float[1,"), "cuda"),  # the muGraph chosen for nine rows is right by itself
        (CAPPED, "cpu"),
        (MEAN, "cuda"),
        (MEAN, "cpu"),
    ],
    ids=["capped-cuda", "capped-cpu", "mean-cuda", "mean-cpu"],
)
def test_another_mugraph_takes_the_place_of_one_that_infinities_break(
    text: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = fragment(text)
    assert differing(text, w, planned(w, kind).plans[kind]) == 0
    monkeypatch.setattr(infinities, "changed_finiteness", lambda *_: "")
    assert differing(text, w, planned(w, kind).plans[kind]) > 0


@pytest.mark.parametrize("kind", TARGETS)
def test_a_fragment_without_a_right_mugraph_is_left_with_the_reason(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w = fragment(SHIFTED)
    found = planned(w, kind)
    assert not found.plans
    assert found.reasons[kind].startswith(
        "NaN and infinities differ (not finite inputs): 0 values are not finite where"
    )
    monkeypatch.setattr(infinities, "changed_finiteness", lambda *_: "")
    assert differing(SHIFTED, w, planned(w, kind).plans[kind]) > 0


@pytest.mark.parametrize(
    "name", ["rms_linear", "layer_norm_gelu", "attention_masked", "attention_symbolic", "gated", "lora"]
)
def test_what_infinities_do_not_break_is_not_refused(name: str) -> None:
    p = program(NAMED[name], F32)
    for target in TARGETS.values():
        said = all_changed(p, target)
        assert len(said) > 1
        assert not any(said)


def test_numbers_beside_infinity_are_drawn_several_times() -> None:
    """(n + m) exp(x) is infinite where n exp(x) + m exp(x) is NaN, since one of the whole numbers is 0: not in every draw."""

    def build(g: Graph) -> int:
        n, m, x = g.input("n", (31,), I64), g.input("m", (3, 31), I64), g.input("x", (2, 3, 31), F32)
        return g.map("exp", g.map("tanh", g.map("mul", g.map("add", n, m), g.map("exp", x))))

    p = made(build)
    first = {c.graph: c for c in Searcher(SearchOptions()).search(p, load_target("cpu")).candidates}.values()
    found = {
        tuple(
            bool(infinities.changed_finiteness(p, c.graph, [s.as_tiles() for s in c.schedules], seed))
            for seed in range(12)
        )
        for c in first
    }
    assert found == {(True,) * 12, (False,) * 12}


def test_what_is_too_much_work_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    w = fragment(CAPPED)
    assert all(all_changed(w.program, "sm_90a")[:1])
    monkeypatch.setattr(infinities, "MOST", 1.0)
    assert not any(all_changed(w.program, "sm_90a"))


def test_a_mugraph_that_is_wrong_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many schedules it has; then more muGraphs are looked at than before."""
    tried = Counter[KernelGraph]()
    real = plans.planned

    def counted(identifier: str, p: Any, candidate: Any, *others: Any) -> TargetPlan:
        tried[candidate.graph] += 1
        return real(identifier, p, candidate, *others)

    monkeypatch.setattr(plans, "planned", counted)
    w = fragment(MEAN)
    first = {c.graph for c in Searcher(SearchOptions()).search(w.program, load_target("sm_90a")).candidates}
    graph = planned(w, "cuda").plans["cuda"].graph
    assert set(tried.values()) == {1}
    assert len(first) > 10 and first < set(tried)
    assert graph not in first
