"""Example inputs: what they mean is read off the model, every sample runs on them."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from mirage_cli.errors import UsageError
from mirage_cli.runtime.example import Arrays, example_inputs, usual
from tests import alone
from tests.optimized import SAMPLES, Optimized

Dims = list[int | str | None]
FILES = sorted(SAMPLES.glob("*/*.onnx"))


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[int | str | None] | None]], **weights: int
) -> onnx.ModelProto:
    """A model that only has to be looked at; `weights` are rows of tables."""
    given = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
    stored = [helper.make_tensor(n, TensorProto.FLOAT, [r, 2], [0.0] * 2 * r) for n, r in weights.items()]
    output = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph(nodes, "g", given, [output], stored))


def identity(name: str) -> list[onnx.NodeProto]:
    return [helper.make_node("Identity", [name], ["out"])]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_samples_run_on_them(path) -> None:  # type: ignore[no-untyped-def]
    proto = onnx.load(path)
    inputs = example_inputs(proto, {}, 1)
    session = alone.session(path)
    assert [i.name for i in session.get_inputs()] == list(inputs)
    for found in session.run(None, inputs):
        assert np.isfinite(np.asarray(found, dtype=np.float64)).all()
        assert np.std(np.asarray(found, dtype=np.float64)) > 0


def test_patched_models_get_the_same(optimized: Optimized) -> None:
    name = "llama_fp32"
    original = example_inputs(onnx.load(SAMPLES / "models" / f"{name}.onnx"), {}, 3)
    patched = example_inputs(onnx.load(optimized(name) / "model.onnx"), {}, 3)
    assert _same(original, patched)


def _same(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in a)


def test_they_depend_on_seed_and_name_only() -> None:
    proto = onnx.load(SAMPLES / "models" / "llama_decode_fp32.onnx")
    assert _same(example_inputs(proto, {}, 1), example_inputs(ir.from_proto(proto), {}, 1))
    first, second = example_inputs(proto, {}, 1), example_inputs(proto, {}, 2)
    assert not np.array_equal(first["input_ids"], second["input_ids"])
    floats = [n for n, a in first.items() if a.dtype == np.float32 and a.shape == next(iter(first.values())).shape]
    assert len({first[n].tobytes() for n in floats}) == len(floats)


def test_dimensions() -> None:
    proto = model(identity("x"), {"x": (TensorProto.FLOAT, ["batch", "past + 1", None, 5, "other"])})
    assert example_inputs(proto, {}, 0)["x"].shape == (usual("batch"), usual("past") + 1, 4, 5, 4)
    given = {"batch": 3, "past": 6, "x.2": 7, "other": 1}
    assert example_inputs(proto, given, 0)["x"].shape == (3, 7, 7, 5, 1)


def test_caches_of_a_windows_size() -> None:
    """They have room for the window; the mask is as long as the other caches and one new token."""
    told = {"num_heads": 2, "kv_num_heads": 1, "local_window_size": 20, "sliding_window_cache": 1}
    names = ["x", "", "", "past.0.key", "past.0.value"]
    node = helper.make_node("GroupQueryAttention", names, ["y"], domain="com.microsoft", **told)
    caches: dict[str, tuple[int, Dims | None]] = {
        f"past.{i}.{what}": (TensorProto.FLOAT, ["b", 1, size, 4])
        for i, size in enumerate(("past_window", "past_whole"))
        for what in ("key", "value")
    }
    flat: dict[str, tuple[int, Dims | None]] = {
        "ids": (TensorProto.INT64, ["b", "fresh"]),
        "mask": (TensorProto.INT64, ["b", "total"]),
        "x": (TensorProto.FLOAT, ["b", "fresh", 16]),
    }
    drawn = example_inputs(model([node], caches | flat), {"past_whole": 30}, 0)
    assert drawn["past.0.value"].shape[2] == 20 and drawn["past.1.key"].shape[2] == 30
    assert drawn["mask"].shape[1] == 31 and drawn["ids"].shape[1] == 1
    drawn = example_inputs(model([node], dict(list(caches.items())[:2]) | flat), {}, 0)
    assert drawn["mask"].shape[1] == 21  # all caches have a window's size


def test_indices_are_below_the_shortest_table() -> None:
    nodes = [
        helper.make_node("Reshape", ["ids", "shape"], ["flat"]),
        helper.make_node("Gather", ["long", "flat"], ["a"]),
        helper.make_node("Gather", ["short", "ids"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["out"]),
    ]
    inputs = {"ids": (TensorProto.INT64, [50]), "shape": (TensorProto.INT64, [1])}
    ids = example_inputs(model(nodes, inputs, long=9, short=5), {}, 0)["ids"]
    assert set(ids.tolist()) == {0, 1, 2, 3, 4}


def test_positions_count_up_within_their_table() -> None:
    nodes = [helper.make_node("Gather", ["table", "position_ids"], ["out"])]
    proto = model(nodes, {"position_ids": (TensorProto.INT64, ["batch", 7])}, table=5)
    assert example_inputs(proto, {}, 0)["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1]] * 2


def test_masks() -> None:
    proto = model(identity("attention_mask"), {"attention_mask": (TensorProto.INT64, [3, 8])})
    assert example_inputs(proto, {}, 0)["attention_mask"].sum(axis=1).tolist() == [8, 6, 4]
    cached = model(identity("mask"), {"mask": (TensorProto.INT64, [2, 8]), "past_key": (TensorProto.FLOAT, [1])})
    assert example_inputs(cached, {}, 0)["mask"].tolist() == [[1] * 8, [0, 0] + [1] * 6]
    scores = helper.make_node("Add", ["scores", "mask"], ["out"])
    added = model([scores], {"scores": (TensorProto.FLOAT, [2, 6, 9]), "mask": (TensorProto.FLOAT, [2, 6, 9])})
    mask = example_inputs(added, {}, 0)["mask"]
    assert np.isneginf(mask).any()
    assert np.isfinite(mask).any(axis=-1).all()
    assert np.isfinite(mask[..., 0]).all()
    assert (
        example_inputs(model(identity("m_mask"), {"m_mask": (TensorProto.BOOL, [4, 6, 6])}), {}, 0)["m_mask"].dtype
        == bool
    )


def test_weights_keep_products_at_the_scale_of_their_inputs() -> None:
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["out"])],
        {"x": (TensorProto.FLOAT16, [64, 4096]), "w": (TensorProto.FLOAT16, [4096, 32])},
    )
    found = example_inputs(proto, {}, 0)
    assert found["w"].dtype == np.float16
    assert 0.9 < np.std(found["x"].astype(np.float64) @ found["w"].astype(np.float64)) < 1.1


def test_strings_are_those_that_the_model_lists() -> None:
    nodes = [helper.make_node("LabelEncoder", ["x"], ["out"], domain="ai.onnx.ml", keys_strings=["a", "word", "c"])]
    found = example_inputs(model(nodes, {"x": (TensorProto.STRING, [200])}), {}, 0)["x"]
    assert found.dtype == object and set(found) == {"a", "word", "c", "wordword"}


def test_inputs_that_cannot_be_made_up() -> None:
    with pytest.raises(UsageError, match="no known number of dimensions"):
        example_inputs(model(identity("x"), {"x": (TensorProto.FLOAT, None)}), {}, 0)
