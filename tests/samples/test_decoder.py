"""The end-to-end decoder: a graph without weights, the same weights wherever they have the same names, both models timed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mirage_cli.measurement.contestant import Place
from samples import decoder

ROWS, COLUMNS = 128, 512


def step() -> onnx.ModelProto:
    """A model with the inputs of a step: a product, and a cache handed on."""
    shape, half = [1, 2, 6, 4], TensorProto.FLOAT16
    inputs = [helper.make_tensor_value_info("hidden", half, [1, 1, ROWS])]
    inputs.append(helper.make_tensor_value_info("position", TensorProto.INT64, [1, 1]))
    inputs.append(helper.make_tensor_value_info("past.0.key", half, shape))
    outputs = [helper.make_tensor_value_info("output", half, [1, 1, COLUMNS])]
    outputs.append(helper.make_tensor_value_info("present.0.key", half, shape))
    nodes = [helper.make_node("MatMul", ["hidden", "w"], ["m"]), helper.make_node("Sigmoid", ["m"], ["output"])]
    nodes.append(helper.make_node("Neg", ["past.0.key"], ["present.0.key"]))
    weight = numpy_helper.from_array(np.zeros((ROWS, COLUMNS), np.float16), "w")
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / decoder.STEP).write_text(json.dumps(asdict(decoder.Step(layers=1, cached=6))))
    decoder.without_weights(step(), tmp_path / decoder.MODEL)
    return tmp_path


def test_weights_are_filled_in_by_name(folder: Path, tmp_path: Path) -> None:
    path = folder / decoder.MODEL
    assert path.stat().st_size < 1500
    (stored,) = onnx.load(path, load_external_data=False).graph.initializer
    assert stored.data_location == TensorProto.EXTERNAL and not stored.raw_data
    assert decoder.fill(path) == 2 * ROWS * COLUMNS
    found = numpy_helper.to_array(onnx.load(path).graph.initializer[0]).astype(np.float64)
    assert found.shape == (ROWS, COLUMNS)
    assert abs(found.std() * np.sqrt(ROWS) - 1) < 0.02
    other = folder / "other.onnx"
    model = onnx.load(path)
    model.graph.node[1].op_type = "Tanh"
    onnx.save(model, other, save_as_external_data=True, location="elsewhere.data", size_threshold=1024)
    (folder / "elsewhere.data").write_bytes(bytes(2 * ROWS * COLUMNS))
    decoder.fill(other)
    assert np.array_equal(numpy_helper.to_array(onnx.load(other).graph.initializer[0]), found)


def test_weights_that_the_original_holds_itself_stay_what_they_are(folder: Path) -> None:
    """`optimize` stores them outside of the file too."""
    gain = np.linspace(0, 1, ROWS, dtype=np.float32)
    original = onnx.load(folder / decoder.MODEL, load_external_data=False)
    original.graph.initializer.append(numpy_helper.from_array(gain, "gain"))
    onnx.save(original, folder / decoder.MODEL)
    decoder.fill(folder / decoder.MODEL)
    model = onnx.load(folder / decoder.MODEL)
    onnx.save(model, folder / "patched.onnx", save_as_external_data=True, location="patched.data", size_threshold=64)
    (folder / "patched.data").write_bytes(bytes((folder / "patched.data").stat().st_size))
    with pytest.raises(SystemExit, match="weight gain is not of type float16"):
        decoder.fill(folder / "patched.onnx")
    decoder.fill(folder / "patched.onnx", folder / decoder.MODEL)
    found = {t.name: numpy_helper.to_array(t) for t in onnx.load(folder / "patched.onnx").graph.initializer}
    wanted = {t.name: numpy_helper.to_array(t) for t in onnx.load(folder / decoder.MODEL).graph.initializer}
    assert found.keys() == wanted.keys() == {"w", "gain"}
    assert all(np.array_equal(found[n], wanted[n]) for n in wanted)


def test_a_prompt_keeps_its_mask_and_draws_token_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "STORED", COLUMNS)  # bytes: the mask has as many
    model = step()
    model.graph.node.insert(0, helper.make_node("Gather", ["table", "input_ids"], ["hidden"]))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, 4]))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((5, ROWS), np.float16), "table"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(COLUMNS, np.bool_), "mask"))
    decoder.without_weights(model, tmp_path / decoder.MODEL)
    assert decoder.fill(tmp_path / decoder.MODEL) == 2 * ROWS * (COLUMNS + 5)
    drawn = decoder.drawn(model, 5)
    assert drawn["input_ids"].shape == (1, 4) and 0 <= drawn["input_ids"].min() <= drawn["input_ids"].max() < 5
    assert drawn["position"].tolist() == [[6]]
    assert decoder.read_bytes(model) == 2 * (ROWS * COLUMNS + 2 * 6 * 4) + COLUMNS  # the table is only looked up in


def test_large_weights_repeat_what_is_drawn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "BLOCK", 1000)
    path = folder / decoder.MODEL
    decoder.fill(path)
    found = numpy_helper.to_array(onnx.load(path).graph.initializer[0]).ravel()
    assert np.array_equal(found[:1000], found[1000:2000])
    assert found[-1] == found[(found.size - 1) % 1000]


def test_both_models_are_timed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    decoder.fill(folder / decoder.MODEL)
    result = decoder.measure(folder, None, False, "", 0.01)
    assert result["replaced"] == {"mlp": 1}
    plain = result["plain"]
    assert plain["problem"] == ""
    assert plain["relative_error"] < 1e-2
    assert 0 < plain["far"]["mirage"]["output"] < 1e-3 and plain["far"]["mirage"]["caches"] == 0
    assert set(plain["us"]) == {"original", "mirage"}
    assert plain["gain"] > 0
    assert "graph" not in result


def test_the_reference_is_the_graph_in_float32_with_the_same_weights(folder: Path) -> None:
    decoder.fill(folder / decoder.MODEL)
    model = onnx.load(folder / decoder.MODEL, load_external_data=False)
    inputs = decoder.drawn(model, 5)
    weight = numpy_helper.to_array(onnx.load(folder / decoder.MODEL).graph.initializer[0]).astype(np.float64)
    found = decoder.reference(folder, inputs, Place())
    wanted = {
        "output": 1 / (1 + np.exp(-inputs["hidden"].astype(np.float64) @ weight)),
        "present.0.key": -inputs["past.0.key"],
    }
    assert found["output"].dtype == np.float32
    assert max(decoder.far(found, wanted).values()) < 1e-6
    half = {n: a.astype(np.float16) for n, a in wanted.items()}
    assert decoder.far(half, wanted)["output"] > 1e-5
