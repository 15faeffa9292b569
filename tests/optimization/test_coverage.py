"""Shares that are covered, and a true reason for every node that stays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mirage_cli as mi
from mirage_cli import frontends
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.fragments.lax_fragment import Partition
from mirage_cli.optimization import coverage
from mirage_cli.optimization import task as works
from mirage_cli.optimization.task import Work
from mirage_cli.patching import patch
from tests.optimized import sample


def read(path: Path) -> tuple[Imported, Partition, list[Work]]:
    imported = frontends.load(str(path))
    parts = partition(imported.graph, works.tensor_names(imported))
    work = works.group_fragments(parts.fragments, imported)
    for w in work:
        w.replace = True
    return imported, parts, work


def model(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[int | str]]],
    outputs: Sequence[str],
    weights: dict[str, tuple[int, ...]],
) -> Path:
    """A model file; its outputs have no declared shapes."""
    random = np.random.default_rng(0)
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(random.standard_normal(s).astype(np.float32), n) for n, s in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


def node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [output], name=f"n_{output}", **attributes)


def reasons(imported: Imported, parts: Partition, work: Sequence[Work]) -> dict[str, str]:
    return {n: u["reason"] for u in coverage.unchanged(imported, parts, work) for n in u["nodes"]}


MIXED = (
    node("Gather", ["table", "ids"], "e"),  # rows chosen at run time
    node("MatMul", ["e", "w"], "m"),
    node("Tanh", ["m"], "t"),
    node("Abs", ["t"], "a"),
    node("NonZero", ["m"], "nz"),  # not read
    node("Neg", ["x"], "short"),  # one elementwise operator: a result of the model
    node("Transpose", ["x"], "turned", perm=[1, 0]),
    node("Cast", ["x"], "wide", to=TensorProto.DOUBLE),
)


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[Imported, Partition, list[Work]]:
    path = model(
        tmp_path / "mixed.onnx",
        MIXED,
        {"ids": (TensorProto.INT64, [6]), "x": (TensorProto.FLOAT, [4, 5])},
        ["a", "short", "turned"],
        {"table": (10, 8), "w": (8, 16)},
    )
    proto = onnx.load(path)
    for name, dtype in (("nz", TensorProto.INT64), ("wide", TensorProto.DOUBLE)):
        proto.graph.output.append(helper.make_tensor_value_info(name, dtype, None))
    onnx.save(proto, path)
    return read(path)


def test_every_kind_of_reason(mixed: tuple[Imported, Partition, list[Work]]) -> None:
    found = reasons(*mixed)
    assert found["n_e"] == coverage.LOOKUP
    assert found["n_nz"] == "NonZero: the operator is not read"
    assert found["n_short"] == coverage.CHAINED
    assert found["n_turned"] == coverage.LAYOUT
    assert found["n_wide"] == coverage.CONVERSION
    assert not found.keys() & {
        n.name for w in mixed[2] for o in w.occurrences for n in o.region.nodes if n.name != "n_m"
    }


def test_products_that_are_not_read_count_as_work_outside(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "taps"], "c", pads=[1, 1]),  # [1, 6, 10]: 6 x 10 windows of 4 x 3
        node("ConvTranspose", ["c", "back"], "d", pads=[1, 1]),  # from [1, 6, 10] to 4 channels by 3 elements
        node("MatMul", ["d", "w"], "y"),  # [1, 4, 10] x [10, 8]
    ]
    weights = {"taps": (6, 4, 3), "back": (6, 4, 3), "w": (10, 8)}
    path = model(tmp_path / "m.onnx", nodes, {"x": (TensorProto.FLOAT, [1, 4, 10])}, ["y"], weights)
    imported, _, work = read(path)
    outside, inside = 2 * (6 * 10 * 4 * 3), 4 * 10 * 8
    assert coverage.total_flops(imported) == inside + outside
    shares = coverage.measure(imported, [o for w in work for o in w.occurrences])
    assert shares["flops"] == pytest.approx(inside / (inside + outside))


def test_integer_products_count_as_work_outside(tmp_path: Path) -> None:
    nodes = [node("MatMulInteger", ["a", "b"], "y")]
    inputs = {"a": (TensorProto.INT8, [5, 8]), "b": (TensorProto.INT8, [8, 7])}
    path = model(tmp_path / "m.onnx", nodes, inputs, [], {})
    proto = onnx.load(path)
    proto.graph.output.append(helper.make_tensor_value_info("y", TensorProto.INT32, None))
    onnx.save(proto, path)
    assert coverage.total_flops(read(path)[0]) == 5 * 8 * 7


def test_fragments_that_are_kept_or_excluded(mixed: tuple[Imported, Partition, list[Work]]) -> None:
    imported, parts, work = mixed
    first = work[0]
    first.replace, first.reason = False, "not predicted to be faster"
    assert {reasons(imported, parts, work)[n] for n in first.occurrences[0].region.node_names} == {first.reason}
    assert {reasons(imported, parts, [])[n] for n in first.occurrences[0].region.node_names} == {coverage.EXCLUDED}


def test_a_value_that_is_needed_twice(tmp_path: Path) -> None:
    nodes = (
        node("Mul", ["x", "x"], "s"),
        node("MatMul", ["s", "w"], "m"),
        node("NonZero", ["s"], "nz"),
        node("Cast", ["nz"], "f", to=TensorProto.FLOAT),
    )
    path = model(tmp_path / "m.onnx", nodes, {"x": (TensorProto.FLOAT, [4, 8])}, ["m", "f"], {"w": (8, 16)})
    imported, parts, work = read(path)
    assert {n for w in work for o in w.occurrences for n in o.region.node_names} == {"n_s", "n_m"}
    found = reasons(imported, parts, work)
    assert found["n_s"] == coverage.SHARED
    assert found["n_nz"] == "NonZero: the operator is not read"
    assert "n_m" not in found


def shaped(path: Path, source: str) -> Path:
    """A normalised product, turned and through Tanh, and something that is not read with the shape of `source`."""
    nodes = (
        node("LayerNormalization", ["x", "gain"], "n"),
        node("MatMul", ["n", "w"], "m"),
        node("Transpose", ["m"], "t", perm=[1, 0]),
        node("Tanh", ["t"], "y"),
        node("CumSum", ["z", "axis"], "c"),  # not read
        node("Shape", [source], "shape"),
        node("Reshape", ["c", "shape"], "r"),
    )
    inputs = {"x": (TensorProto.FLOAT, ["rows", 64]), "z": (TensorProto.FLOAT, [None]), "axis": (TensorProto.INT64, [])}
    return model(path, nodes, inputs, ["y", "r"], {"gain": (64,), "w": (64, 64)})


@pytest.mark.parametrize(("source", "replaced"), [("y", True), ("t", False)])
def test_work_that_stays_for_a_shape_on_the_way_is_not_doubled(tmp_path: Path, source: str, replaced: bool) -> None:
    imported, _, (w,) = read(shaped(tmp_path / "m.onnx", source))
    coverage.leave_doubled(imported.model, [w])
    assert (w.replace, w.reason) == (replaced, "" if replaced else coverage.TWICE)


def test_what_is_forced_is_replaced_even_so(tmp_path: Path, cache: Path) -> None:
    path = shaped(tmp_path / "m.onnx", "t")
    assert mi.optimize(path, dry_run=True, target="cpu", force=True, cache=cache).replaced
    assert not mi.optimize(path, dry_run=True, target="cpu", cache=cache).replaced


def test_what_no_fragment_can_be_made_of(tmp_path: Path) -> None:
    """The elements of x in two orders, which no axes describe together."""
    nodes = (
        node("Transpose", ["x"], "t"),
        node("Reshape", ["x", "shape"], "r"),
        node("Add", ["t", "r"], "a"),
        node("Exp", ["a"], "e"),
        node("Neg", ["e"], "y"),
    )
    path = model(tmp_path / "m.onnx", nodes, {"x": (TensorProto.FLOAT, [2, 3])}, ["y"], {})
    proto = onnx.load(path)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([3, 2]), "shape"))
    onnx.save(proto, path)
    imported, parts, work = read(path)
    (left,) = {x.reason for x in parts.left}
    found = reasons(imported, parts, work)
    assert found["n_y"] == f"no fragment could be made here: {left}"


def test_new_keys_behind_a_cache() -> None:
    """They are turned by a fragment of their own, and stored behind the cache by the one that reads both."""
    imported, parts, work = read(sample("llama_decode_fp32"))
    assert not parts.left and set(reasons(imported, parts, work)) == {"node_embedding"}
    caches = [v.name for v in imported.model.graph.outputs if v.name != "logits"]
    stored = {v.name for w in work if w.name == "attention" for o in w.occurrences for v in o.region.outputs}
    assert len(caches) == 4 and stored >= {*caches}


@pytest.mark.parametrize(
    "name", ["llama_dynamic_fp32", "llama_decode_dynamic_fp32", "bert_masked_fp32", "qwen3_moe_fp32", "vit_fp32"]
)
def test_every_node_that_stays_has_one_reason(name: str) -> None:
    imported, parts, work = read(sample(name))
    groups = coverage.unchanged(imported, parts, work)
    names = [n for u in groups for n in u["nodes"]]
    assert len(names) == len(set(names))
    assert len({u["reason"] for u in groups}) == len(groups)
    assert all(u["reason"] for u in groups)
    shares = coverage.measure(imported, [o for w in work for o in w.occurrences])
    assert 0.25 < shares["weight_bytes"] <= 1 and 0.5 < shares["nodes"] <= 1 and shares["flops"] == 1.0
    replacements = [patch.Replacement(w.op_type, o.region) for w in work for o in w.occurrences]
    made = patch.patched(imported, replacements, {})
    stays = {n.name for n in made.graph.node if n.domain != patch.DOMAIN}
    assert stays == set(names)


def test_shares() -> None:
    imported, _, work = read(sample("llama_fp32"))
    occurrences = [o for w in work for o in w.occurrences]
    whole = coverage.measure(imported, occurrences)
    half = coverage.measure(imported, [o for o in occurrences if "attention" not in o.fragment.name])
    none = coverage.measure(imported, [])
    assert none == {"flops": 0.0, "weight_bytes": 0.0, "nodes": 0.0}
    assert none["flops"] < half["flops"] < whole["flops"] == 1.0


def test_sub_graphs_keep_what_they_read(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["outer"], ["b"], name="inner")],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
    )
    nodes = (
        node("Sin", ["x"], "outer"),
        helper.make_node("If", ["c"], ["y"], name="n_if", then_branch=branch, else_branch=branch),
    )
    path = model(tmp_path / "m.onnx", nodes, {"x": (TensorProto.FLOAT, [4]), "c": (TensorProto.BOOL, [])}, ["y"], {})
    found = reasons(*read(path))
    assert found["n_if"] == "If: it contains sub-graphs"
    assert "n_outer" in found


def test_nothing_is_covered_where_nothing_is_replaced(tmp_path: Path) -> None:
    """Not even of products, where a model has none."""
    path = model(tmp_path / "m.onnx", (node("Tanh", ["x"], "y"),), {"x": (TensorProto.FLOAT, [2, 3])}, ["y"], {})
    imported, _, work = read(path)
    assert not work and set(coverage.measure(imported, []).values()) == {0.0}
