"""The map of a model: runs of neighbours in the model's order, each node of one kind."""

from __future__ import annotations

from dataclasses import replace

from mirage_cli.exporters.modelmap import FINE, LABELLED, MOST, model_map
from tests.exporters import reports


def test_runs_follow_the_model() -> None:
    operators = {"embed": "Gather", "pow_0": "Pow", "matmul_5": "MatMul", "shape": "Shape", "pow_0_1": "Pow"}
    operators |= {"softmax_1": "Softmax", "matmul_5_1": "MatMul", "gemm": "Gemm"}
    r = reports.report(reports.replaced(), reports.kept(), reports.failed(), operators=operators).to_json()
    found = model_map(r)
    assert [(run.kind, run.number, run.nodes) for run in found.runs] == [
        ("left", 0, 1),
        ("replaced", 1, 2),
        ("gone", 0, 1),
        ("replaced", 1, 1),
        ("kept", 2, 1),
        ("replaced", 1, 1),
        ("failed", 3, 1),
    ]
    assert found.runs[1].anchor == "fragment-a6660ab85df12c2a"
    assert found.runs[1].title == "1 norm_linear, replaced, place 1 of 2; 2 nodes: Pow pow_0 to MatMul matmul_5"
    assert found.runs[3].title == "1 norm_linear, replaced, place 2 of 2; 1 node: Pow pow_0_1"
    assert found.runs[0].anchor == "left-0" and "embedding lookup" in found.runs[0].title
    assert found.runs[2].anchor == "" and "not needed any more" in found.runs[2].title
    assert found.counts == {"replaced": 4, "kept": 1, "failed": 1, "left": 1, "gone": 1}
    assert (found.scale, found.labelled, found.fine) == (1, True, False)


def test_a_node_of_two_fragments_is_the_replaced_ones() -> None:
    kept, replaced = reports.kept(), reports.replaced(nodes=("softmax_1", "matmul_5"))
    r = reports.report(kept, replaced, operators={"softmax_1": "Softmax"}).to_json()
    assert [(run.kind, run.number) for run in model_map(r).runs] == [("replaced", 2)]


def test_neighbouring_places_are_runs_of_their_own() -> None:
    f = replace(reports.replaced(), nodes=[["a"], ["b"]])
    r = reports.report(f, operators={"a": "Pow", "b": "Pow"}).to_json()
    assert [run.nodes for run in model_map(r).runs] == [1, 1]


def test_large_models_have_fewer_squares_than_nodes() -> None:
    for nodes, labelled, fine in ((FINE, True, False), (LABELLED + 1, False, True), (3 * MOST, False, True)):
        r = reports.report(operators={f"n{k}": "Add" for k in range(nodes)}).to_json()
        found = model_map(r)
        assert (found.labelled, found.fine) == (labelled, fine)
        assert sum(run.squares for run in found.runs) == min(nodes, MOST)
        assert sum(run.nodes for run in found.runs) == nodes == sum(found.counts.values())


def test_a_report_without_the_order_has_no_map() -> None:
    r = reports.report(reports.replaced()).to_json()
    del r["operators"]
    assert model_map(r).runs == []
