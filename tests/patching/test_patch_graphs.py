"""Random graphs and models of many layers, patched."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.optimization.task import group_fragments, tensor_names
from mirage_cli.patching import patch
from tests.frontends.models import noise, read
from tests.patched_models import operators, patched, run

# --- any graph --------------------------------------------------------------------------------------------------------
UNARY = ("Exp", "Neg", "Tanh", "Relu", "Identity", "Abs")
BINARY = ("Add", "Mul", "Sub", "Max", "MatMul")


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Random graphs of square matrices with one or two inputs, weights, and up to twelve nodes."""
    known = ["x", "z", "w", "k"]
    nodes = []
    for i in range(draw(st.integers(1, 12))):
        pick = st.sampled_from(known)
        if draw(st.booleans()):
            node = helper.make_node(draw(st.sampled_from(UNARY)), [draw(pick)], [f"t{i}"])
        else:
            node = helper.make_node(draw(st.sampled_from(BINARY)), [draw(pick), draw(pick)], [f"t{i}"])
        nodes.append(node)
        known.append(f"t{i}")
    ends = {f"t{i}" for i in range(len(nodes))} - {name for node in nodes for name in node.input}
    ends |= set(draw(st.lists(st.sampled_from([f"t{i}" for i in range(len(nodes))]), max_size=2)))

    def declared(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3] if name == "z" else [3, 3])

    weights = [
        numpy_helper.from_array(noise(3, 3), "w"),
        numpy_helper.from_array(np.full((3, 3), 0.5, np.float32), "k"),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 3]) for name in ("x", "z")]
    graph = helper.make_graph(nodes, "g", inputs, [declared(name) for name in sorted(ends)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def intervals(draw: st.DrawFn, count: int) -> list[range]:
    """Runs of nodes that do not overlap: convex, whatever the graph."""
    cuts = sorted(draw(st.lists(st.integers(0, count), min_size=2, max_size=6, unique=True)))
    return [range(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]


def around(model: ir.Model, run_of: range) -> tuple[list[str], list[str]]:
    """The tensors that a run of nodes reads from outside (weights too) and those that are read outside."""
    nodes = [list(model.graph)[i] for i in run_of]
    inside = {v for node in nodes for v in node.outputs}
    read_here = dict.fromkeys(v.name or "" for node in nodes for v in node.inputs if v is not None and v not in inside)
    results = [
        v.name or ""
        for node in nodes
        for v in node.outputs
        if v in model.graph.outputs or any(user not in nodes for user, _ in v.uses())
    ]
    return list(read_here), results


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_any_graph_with_any_runs_of_nodes_replaced(data: st.DataObject) -> None:
    model = data.draw(graphs())
    feed = {"x": noise(3, 3), "z": noise(3, 3)[::-1].copy()}
    imported = read(model)
    count = len(list(imported.model.graph))
    runs = data.draw(st.composite(lambda draw: intervals(draw, count))()) if count >= 1 else []
    places = [(f"f_{k}", *around(imported.model, r)) for k, r in enumerate(runs)]
    made = patched(imported, *[p for p in places if p[2]])
    assert list(made.graph.input) == list(model.graph.input)
    assert list(made.graph.output) == list(model.graph.output)
    assert len(operators(made)) == len([p for p in places if p[2]])
    exact = {t.name for t in made.graph.initializer} <= {t.name for t in model.graph.initializer}  # nothing was folded
    for ours, original in zip(run(made, feed), run(model, feed), strict=True):
        assert np.array_equal(ours, original, equal_nan=True) or not exact
        assert np.allclose(ours, original, rtol=1e-4, atol=1e-5, equal_nan=True)


# --- whole models -----------------------------------------------------------------------------------------------------
def layers(count: int) -> onnx.ModelProto:
    """RMS norm, two products and a residual sum, `count` times."""
    nodes: list[onnx.NodeProto] = []
    weights = {"two": np.float32(2), "eps": np.float32(1e-5), "axes": np.array([-1])}
    x = "x"
    for i in range(count):

        def step(op: str, *inputs: str, to: str, layer: int = i) -> str:
            nodes.append(helper.make_node(op, list(inputs), [f"{to}{layer}"], f"{op}_{layer}_{to}"))
            return f"{to}{layer}"

        weights |= {f"u{i}": noise(8, 16), f"v{i}": noise(16, 8)}
        mean = step("ReduceMean", step("Pow", x, "two", to="sq"), "axes", to="mean")
        normed = step("Div", x, step("Sqrt", step("Add", mean, "eps", to="eps"), to="root"), to="norm")
        hidden = step("Relu", step("MatMul", normed, f"u{i}", to="up"), to="relu")
        x = step("Add", x, step("MatMul", hidden, f"v{i}", to="down"), to="x")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", 8]) for n in ("x", x)]
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_many_layers_share_their_functions() -> None:
    model = layers(20)
    imported = read(model)
    work = group_fragments(partition(imported.graph, tensor_names(imported)).fragments, imported)
    assert sum(len(w.occurrences) for w in work) >= 20
    assert len(work) <= 4
    made = patch.patched(imported, [patch.Replacement(w.op_type, o.region) for w in work for o in w.occurrences], {})
    onnx.checker.check_model(made)
    assert len(made.functions) == len(work)
    x = noise(3, 8)
    assert np.allclose(run(made, {"x": x})[0], run(model, {"x": x})[0], rtol=1e-5, atol=1e-5)


def test_the_model_is_not_searched_for_every_fragment(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[ir.Graph] = []
    original = ir.Graph.__iter__
    monkeypatch.setattr(ir.Graph, "__iter__", lambda graph: walks.append(graph) or original(graph))
    counts = []
    for count in (5, 20):
        imported = read(layers(count))
        fragments = partition(imported.graph, tensor_names(imported)).fragments
        walks.clear()
        work = group_fragments(fragments, imported)
        replacements = [patch.Replacement(w.op_type, o.region) for w in work for o in w.occurrences]
        patch.patched(imported, replacements, {})
        counts.append(len(walks))
    assert counts[0] == counts[1]
