"""Fragments in branches of `If`: read apart from each other and from the main graph, replaced where they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mirage_cli as mi
from mirage_cli.benchmark.rows import IN_BRANCHES
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.frontends.onnx.branches import branch_of
from mirage_cli.frontends.onnx.traversal import all_nodes
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.optimization.task import Work, group_fragments, tensor_names
from mirage_cli.patching import patch
from mirage_cli.runtime import sessions
from tests.frontends.models import noise, parsed, read

#: what optimum makes of two exports: weights outside, and one name for a tensor of both branches
MERGED = """<ir_version: 9, opset_import: ["" : 18]>
g (float[b,new,16] x, float[b,past,16] kept, bool[1] cached) => (float[b,new,24] y, float[b,all,16] present) {
    h = Relu (x)
    y, present = If (cached) <
        then_branch = step () => (float[b,new,24] out, float[b,all,16] p) {
            n = LayerNormalization <axis = -1> (h, gain)
            m = MatMul (n, w)
            out = Relu (m)
            p = Concat <axis = 1> (kept, n)
        },
        else_branch = prompt () => (float[b,new,24] out, float[b,all,16] p) {
            n = LayerNormalization <axis = -1> (h, gain)
            m = MatMul (n, w)
            out = Add (m, bias)
            p = Identity (n)
        }
    >
}"""


def merged(text: str = MERGED) -> onnx.ModelProto:
    return parsed(text, gain=noise(16), w=noise(16, 24), bias=noise(24))


def fragments(model: onnx.ModelProto) -> list[Work]:
    imported = read(model)
    return group_fragments(partition(imported.graph, tensor_names(imported)).fragments, imported)


def feeds(cached: bool, past: int = 3) -> dict[str, Any]:
    return {"x": noise(2, 5, 16), "kept": noise(2, past, 16), "cached": np.array([cached])}


def test_each_branch_has_fragments_of_its_own() -> None:
    work = fragments(merged())
    places = [o.region for w in work for o in w.occurrences]
    assert {r.branch for r in places} == {"y/then_branch", "y/else_branch"} and not any(w.failed for w in work)
    read_outside = {v.name for r in places for v in r.inputs if v.producer() is not None and not branch_of(v)}
    assert read_outside == {"h"}  # by the name that it has there


CONTRACTED = """t = Transpose <perm = [0, 2, 1]> (h)
            p = MatMul (t, kept)"""


def test_a_branch_that_may_not_run_tells_nothing_about_sizes() -> None:
    imported = read(merged(MERGED.replace("p = Concat <axis = 1> (kept, n)", CONTRACTED)))
    assert imported.same == {} and imported.least == {} and any("past" in r for r in imported.reasons.values())
    inputs = "float[b,new,16] h, float[b,past,16] kept"
    assert read(parsed(f"g ({inputs}) => (float[b,16,16] p) {{ {CONTRACTED} }}")).same == {"past": "new"}


def test_a_product_of_a_tensor_in_both_branches_is_not_one() -> None:
    """Two products of one tensor are one fragment where they stand together."""
    text = MERGED.replace("m = MatMul (n, w)", "m = MatMul (h, w)")
    assert all(not w.failed and {o.region.torn for o in w.occurrences} == {False} for w in fragments(merged(text)))


@pytest.mark.parametrize("cached", [False, True])
def test_what_is_replaced_in_a_branch_answers_as_before(cached: bool) -> None:
    model = merged()
    imported = read(model)
    work = [w for w in fragments(model) if not w.failed]
    places = [patch.Replacement(w.op_type, o.region) for w in work for o in w.occurrences]
    made = patch.patched(imported, places, {})
    onnx.checker.check_model(made)
    ours = [n for n in all_nodes(made.graph.node) if n.domain == patch.DOMAIN]
    assert len(ours) == len(places) and not any(n.domain == patch.DOMAIN for n in made.graph.node)
    assert {t.name for t in made.graph.initializer} == {"gain", "w", "bias"}
    inputs = feeds(cached)
    before, after = (sessions.run(sessions.session(m.SerializeToString()), inputs) for m in (model, made))
    assert all(np.allclose(before[name], after[name], atol=1e-6) for name in before)


def test_a_branch_that_reads_what_a_fragment_of_the_main_graph_gives() -> None:
    text = MERGED.replace("h = Relu (x)", "h0 = MatMul (x, square) h = Relu (h0)")
    model = merged(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(noise(16, 16), "square"))
    imported = read(model)
    work = group_fragments(partition(imported.graph, tensor_names(imported)).fragments, imported)
    places = [patch.Replacement(w.op_type, o.region) for w in work for o in w.occurrences]
    assert sorted({p.region.branch for p in places}) == ["", "y/else_branch", "y/then_branch"]
    made = patch.patched(imported, places, {})
    for cached in (False, True):
        inputs = feeds(cached)
        before, after = (sessions.run(sessions.session(m.SerializeToString()), inputs) for m in (model, made))
        assert all(np.allclose(before[name], after[name], atol=1e-6) for name in before)


def test_branches_inside_of_a_function_stay() -> None:
    branch = helper.make_graph(
        [helper.make_node("MatMul", ["t", "v"], ["o"])], "g", [], [helper.make_tensor_value_info("o", 1, None)]
    )
    choice = helper.make_node("If", ["c"], ["r"], then_branch=branch, else_branch=branch)
    function = helper.make_function("own", "f", ["t", "v", "c"], ["r"], [choice], [helper.make_opsetid("", 18)])
    graph = helper.make_graph(
        [helper.make_node("f", ["x", "w", "c"], ["y"], domain="own")],
        "g",
        [helper.make_tensor_value_info("x", 1, ["b", 16]), helper.make_tensor_value_info("c", TensorProto.BOOL, [1])],
        [helper.make_tensor_value_info("y", 1, ["b", 24])],
        [onnx.numpy_helper.from_array(noise(16, 24), "w")],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    imported = read(helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=9))
    assert list(imported.reasons.values()) == ["it contains sub-graphs"] and not imported.branches


@pytest.mark.usefixtures("one_isa")
def test_a_merged_model_runs_and_is_verified(cache: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "model.onnx", tmp_path / "out"
    onnx.save(merged(), path)
    report = mi.optimize(path, out, target="cpu", force=True, jobs=1, cache=str(cache))
    assert sum(f.occurrences for f in report.replaced) >= 2 and report.coverage["flops"] == 1.0
    both = sessions.session(str(out / MODEL), library=out / LIBRARY), sessions.session(str(path))
    for cached in (False, True):
        ours, theirs = (sessions.run(s, feeds(cached)) for s in both)
        assert all(np.allclose(ours[name], theirs[name], atol=1e-5) for name in theirs)
    result = mi.verify(out)
    assert result.passed, result
    bench = mi.bench(out, cpu=True, runs=1)
    assert [f.comparison.notes for f in bench.fragments] == [(IN_BRANCHES,)] * len(report.replaced)
    assert len(bench.model.entries) == 2 and not any(e.problem for e in bench.model.entries) and str(bench)
    told = [c.output for c in result.outputs]
    assert told == ["y", "present", "y, truth values turned", "present, truth values turned"]  # of both branches
