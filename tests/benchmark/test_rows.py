"""Fragments as models of their own, and what is made of contestants' answers; nothing is compiled here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mirage_cli.backends.spec import operator_spec
from mirage_cli.errors import InvalidGraph, MirageError, ModelError
from mirage_cli.measurement.contestant import Arrays, Contestant, OrtContestant, Place, agreement, poisoned_array
from mirage_cli.measurement.timing import Effort
from mirage_cli.optimization import fragment_models, fragment_times
from mirage_cli.optimization.fragment_models import MAX_BYTES, MAX_CALLS, FragmentModel
from mirage_cli.optimization.fragment_times import MIRAGE, ORIGINAL, compare
from mirage_cli.runtime import sessions

OPERATOR = {
    "op_type": "scaled_1",
    "inputs": [
        {"name": "x", "dtype": "f32", "dims": ["n", 3]},
        {"name": "w", "dtype": "f32", "dims": [3, 2]},
        {"name": "shape", "dtype": "i64", "dims": [2]},
    ],
    "outputs": [{"name": "y", "dtype": "f32", "dims": ["2*n", 1]}],
    "symbols": ["n"],
}
W = np.arange(6, dtype=np.float32).reshape(3, 2)
V = W[::-1].copy()


def model() -> onnx.ModelProto:
    """Two places of an operator, with weights of their own, on an input of unknown length; a shape is computed."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], end=1),
        helper.make_node("Mul", ["s", "two"], ["t"]),
        helper.make_node("Concat", ["t", "one"], ["shape"], axis=0),
        helper.make_node("scaled_1", ["x", "w", "shape"], ["y"], domain="mirage"),
        helper.make_node("Neg", ["x"], ["m"]),
        helper.make_node("scaled_1", ["m", "v", "shape"], ["z"], domain="mirage"),
    ]
    body = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Reshape", ["p", "shape"], ["y"]),
    ]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mirage", 1)]
    function = helper.make_function("mirage", "scaled_1", ["x", "w", "shape"], ["y"], body, opsets[:1])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yz"]
    weights = {"w": W, "v": V, "two": np.array([2]), "one": np.array([1])}
    stored = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "g", [x], outputs, stored)
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10)


@pytest.fixture
def fragment(tmp_path: Path) -> FragmentModel:
    spec = operator_spec("1", OPERATOR)
    feeds = {"x": np.zeros((5, 3), np.float32)}
    return fragment_models.from_folder(model(), tmp_path, [spec], feeds)["1"]


# ---- fragments of a folder -------------------------------------------------------------------------------------------


def test_shapes_and_integers_are_the_models_own(fragment: FragmentModel) -> None:
    assert fragment.shapes == ((5, 3), (3, 2), (2,))
    assert fragment.given.keys() == {2}
    assert fragment.given[2].tolist() == [10, 1]
    assert [w.tolist() for w in fragment.constants[1]] == [W.tolist(), V.tolist()]
    assert fragment.size == 4 * (15 + 6 + 10) + 8 * 2


def test_the_model_computes_the_original_nodes(fragment: FragmentModel) -> None:
    """Three calls: weights of the first place, of the second, and of the first again."""
    feeds = fragment.inputs(3, seed=7)
    assert sorted(feeds) == ["in0_0", "in0_1", "in0_2", "in2_0", "in2_1", "in2_2"]
    found = sessions.run(sessions.session(fragment.model(3)), feeds)
    for k, weight in enumerate((W, V, W)):
        wanted = (feeds[f"in0_{k}"].astype(np.float64) @ weight).reshape(10, 1)
        assert np.allclose(found[f"out0_{k}"], wanted, rtol=1e-6, atol=1e-6)


def test_no_two_calls_have_a_large_weight_in_common(fragment: FragmentModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime stores equal weights once, and would read them in caches; small ones stay as they are (masks)."""
    small = [fragment.weight(1, k) for k in range(6)]
    monkeypatch.setattr(fragment_models, "LARGE", 1)
    own = [fragment.weight(1, k) for k in range(6)]
    assert len({w.tobytes() for w in small}) == 2 and len({w.tobytes() for w in own}) == 6
    assert all(np.allclose(a, b, rtol=1e-6, atol=0) for a, b in zip(small, own, strict=True))


def test_calls_and_seeds_draw_different_values(fragment: FragmentModel) -> None:
    first, again, other = (fragment.inputs(2, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(first[n], again[n]) for n in first)
    assert not np.array_equal(first["in0_0"], first["in0_1"])
    assert not np.array_equal(first["in0_0"], other["in0_0"])


def test_external_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(
        model(), path, save_as_external_data=True, location="model.onnx.data", size_threshold=0, convert_attribute=False
    )
    stored = onnx.load(path, load_external_data=False)
    spec = operator_spec("1", OPERATOR)
    feeds = {"x": np.ones((4, 3), np.float32)}
    found = fragment_models.from_folder(stored, tmp_path, [spec], feeds)["1"]
    assert found.shapes[0] == (4, 3)
    assert found.given[2].tolist() == [8, 1]
    assert np.array_equal(found.constants[1][1], V)


def test_calls_fill_the_working_set_within_limits(fragment: FragmentModel) -> None:
    assert fragment.calls(1) == 1
    assert fragment.calls(fragment.size * 3) == 3
    assert fragment.calls(fragment.size * 3 + 1) == 4
    assert fragment.calls(1 << 40) == MAX_CALLS


def test_weights_that_a_file_cannot_hold_are_inputs(fragment: FragmentModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_BYTES < 2**31
    monkeypatch.setattr(fragment_models, "MAX_BYTES", W.nbytes - 1)
    feeds = fragment.inputs(2, seed=0)
    assert np.array_equal(feeds["in1_1"], V)
    assert not onnx.load_from_string(fragment.model(2)).graph.initializer
    found = sessions.run(sessions.session(fragment.model(2)), feeds)
    assert np.allclose(found["out0_1"].ravel(), (feeds["in0_1"] @ V).ravel(), rtol=1e-6, atol=1e-6)


def test_an_operator_that_the_model_lacks(tmp_path: Path) -> None:
    spec = operator_spec("2", OPERATOR | {"op_type": "other_2"})
    with pytest.raises(ModelError, match="expected the operator other_2"):
        fragment_models.from_folder(model(), tmp_path, [spec], {})


@pytest.mark.parametrize("data", [{}, {"inputs": 3}, OPERATOR | {"inputs": [{"name": "x", "dtype": "f7", "dims": []}]}])
def test_an_operator_that_is_not_well_formed(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidGraph, match="muGraph file of abc"):
        operator_spec("abc", data)


# ---- contestants -----------------------------------------------------------------------------------------------------


def unary(op: str, kind: int, shape: Sequence[int] | None) -> bytes:
    x, y = (helper.make_tensor_value_info(n, kind, s) for n, s in (("x", shape), ("y", None)))
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", [x], [y])
    data: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    ).SerializeToString()
    return data


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(TensorProto.FLOAT, np.float32), (TensorProto.FLOAT16, np.float16), (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
     (TensorProto.INT64, np.int64), (TensorProto.BOOL, np.bool_)],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (3,), (2, 0)])
def test_answers_of_every_set(kind: int, dtype: Any, shape: tuple[int, ...]) -> None:
    sets = [{"x": np.full(shape, value, dtype)} for value in (0, 1)]
    contestant = OrtContestant(unary("Identity", kind, shape), None, sets, Place(threads=1))
    for given, found in zip(sets, contestant.answers(), strict=True):
        assert found["y"].dtype == given["x"].dtype
        assert found["y"].shape == shape
        assert found["y"].tobytes() == given["x"].tobytes()


def test_calls_go_round_the_sets() -> None:
    """Outputs hold no answer before the first call of their set."""
    sets = [{"x": np.full((2,), value, np.float32)} for value in (1, 2)]
    contestant = OrtContestant(unary("Neg", TensorProto.FLOAT, [2]), None, sets, Place(threads=1))

    def outputs() -> list[float]:
        return [float(values[0][1].numpy()[0]) for values in contestant._outputs]

    assert np.isnan(outputs()).all()
    contestant.call()
    assert np.isnan(outputs()).tolist() == [False, True]
    contestant.call()
    contestant.call()
    assert outputs() == [-1, -2]


def test_a_run_that_changes_its_input_is_found() -> None:
    x = np.ones(2, np.float32)
    contestant = OrtContestant(unary("Neg", TensorProto.FLOAT, [2]), None, [{"x": x}], Place(threads=1))
    contestant.answers()
    x[0] = 2  # the contestant has a copy: now the two differ, as if the run had written to its own
    with pytest.raises(MirageError, match="changed input 'x'"):
        contestant.answers()


def test_inputs_that_do_not_fit_are_errors_of_ours() -> None:
    with pytest.raises(MirageError, match="onnxruntime failed"):
        OrtContestant(unary("Neg", TensorProto.FLOAT, [2]), None, [{"x": np.zeros(3, np.float32)}], Place(threads=1))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int8, np.uint64, np.bool_])
def test_broken_arrays(dtype: Any) -> None:
    found = poisoned_array((2, 3), np.dtype(dtype))
    assert (found.dtype, found.shape) == (np.dtype(dtype), (2, 3))
    assert found.all() if np.dtype(dtype).kind in "iub" else np.isnan(found.astype(np.float64)).all()


# ---- answers ---------------------------------------------------------------------------------------------------------

RIGHT = np.linspace(-3, 5, 1000)


def verdict(found: NDArray[Any], right: NDArray[Any]) -> str:
    return agreement([{"y": found}], [{"y": right}]).problem


@pytest.mark.parametrize(
    ("dtype", "bits"), [(np.float64, 52), (np.float32, 23), (np.float16, 10), (ml_dtypes.bfloat16, 7)]
)
def test_rounding_agrees_and_other_answers_do_not(dtype: Any, bits: int) -> None:
    right = RIGHT.astype(dtype)
    rounded = (right.astype(np.float64) * (1 + 2.0 ** (1 - bits))).astype(dtype)
    assert verdict(rounded, right) == ""
    assert "relative error" in verdict((RIGHT * 1.2).astype(dtype), right)
    assert "relative error" in verdict(right[::-1], right)


def test_float32_that_was_computed_in_less_may_differ_as_less_does() -> None:
    right, half = RIGHT.astype(np.float32), RIGHT.astype(np.float16).astype(np.float32)
    rough = (RIGHT * (1 + 2.0**-9 * (-1.0) ** np.arange(1000))).astype(np.float32)
    assert "relative error" in verdict(rough, half)
    convert = onnx.helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.FLOAT16)
    unit = sessions.coarsest_unit([onnx.TensorProto.FLOAT, onnx.TensorProto.INT64], [convert])
    assert unit == 2.0**-10
    assert agreement([{"y": rough}], [{"y": half}], unit).passed
    assert not agreement([{"y": right[::-1]}], [{"y": right}], unit).passed


def test_values_that_are_not_finite() -> None:
    overflowing, fine = RIGHT.astype(np.float32), RIGHT.astype(np.float32)
    overflowing[3] = np.inf
    assert verdict(fine, overflowing) == ""
    assert "1 of 1000 elements are not finite" in verdict(overflowing, fine)


def test_integers_shapes_types_and_names() -> None:
    right = np.arange(4)
    assert verdict(right.copy(), right) == ""
    assert "1 of 4 elements differ" in verdict(np.array([0, 1, 2, 4]), right)
    assert "int64[2, 2] instead of int64[4]" in verdict(right.reshape(2, 2), right)
    assert "int32[4] instead of int64[4]" in verdict(right.astype(np.int32), right)
    assert "outputs ['z'] instead of ['y']" in agreement([{"z": right}], [{"y": right}]).problem


def test_zeros_and_nothing() -> None:
    zero = np.zeros(3, np.float32)
    assert verdict(zero, zero) == ""
    assert verdict(zero + 1, zero) != ""
    assert verdict(zero[:0], zero[:0]) == ""


def test_the_set_that_differs_is_named() -> None:
    right = RIGHT.astype(np.float32)
    found = agreement([{"y": right}, {"y": right + 1}], [{"y": right}, {"y": right}])
    assert found.problem.startswith("output 'y' of input set 1")


# ---- comparing -------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


class Actor:
    """A contestant that takes a given time and gives a given answer."""

    def __init__(self, clock: Clock, seconds: float, answer: float) -> None:
        self.clock, self.seconds, self.answer, self.calls = clock, seconds, answer, 0

    def call(self) -> None:
        self.calls += 1
        self.clock.seconds += self.seconds

    def answers(self) -> list[Arrays]:
        return [{"y": np.array([self.answer])}]


EFFORT = Effort(runs=4, warm_up=1, warm_seconds=0.0, sample_seconds=0.0)


def raising(message: str) -> Callable[[], Any]:
    def make() -> Any:
        raise MirageError(message)

    return make


def returning(actor: Actor) -> Callable[[], Contestant]:
    return lambda: actor


def test_those_that_agree_are_timed() -> None:
    clock = Clock()
    actors = {MIRAGE: Actor(clock, 0.5, 1.0), ORIGINAL: Actor(clock, 2.0, 1.0), "peer": Actor(clock, 1.0, 1.0)}
    found = compare({n: returning(a) for n, a in actors.items()}, EFFORT, clock, calls=10)
    assert [e.name for e in found.entries] == [ORIGINAL, MIRAGE, "peer"]
    assert found.faster
    assert found.speedup is not None
    assert found.speedup.samples == (4.0,) * 4
    assert found.measured("GPU") == {
        "device": "GPU",
        "original_us": 200_000.0,
        "mirage_us": 50_000.0,
        "peers": {"peer": 100_000.0},
    }


def test_other_answers_are_wrong_and_not_timed() -> None:
    clock = Clock()
    ours = Actor(clock, 0.001, 2.0)
    found = compare({ORIGINAL: lambda: Actor(clock, 1.0, 1.0), MIRAGE: lambda: ours}, EFFORT, clock)
    assert found.entry(MIRAGE).problem.startswith("wrong: output 'y' of input set 0: relative error")
    assert ours.calls == 0
    assert (found.faster, found.speedup) == (False, None)
    row = found.measured("GPU")
    assert (row["original_us"], row["mirage_us"]) == (1_000_000.0, None)
    assert "wrong" in row["problems"][MIRAGE]


def test_what_fails_is_told() -> None:
    clock = Clock()
    found = compare({ORIGINAL: lambda: Actor(clock, 1.0, 1.0), MIRAGE: raising("no kernel")}, EFFORT, clock)
    assert found.entry(MIRAGE).problem == "failed: no kernel"
    assert found.entry(ORIGINAL).us is not None
    assert not found.faster


def test_without_the_original_nothing_is_timed() -> None:
    clock = Clock()
    found = compare({MIRAGE: lambda: Actor(clock, 1.0, 1.0), ORIGINAL: raising("not valid")}, EFFORT, clock)
    assert found.entry(ORIGINAL).problem == "failed: not valid"
    assert found.entry(MIRAGE).problem.startswith("not measured")
    assert clock.seconds == 0


@pytest.mark.parametrize(("capturing", "graph"), [(True, True), (False, False)])
def test_cuda_graphs_for_both_or_for_none(
    fragment: FragmentModel, monkeypatch: pytest.MonkeyPatch, capturing: bool, graph: bool
) -> None:
    """A stand-in for onnxruntime on a GPU, whose kernel may not let itself be captured."""
    clock, made = Clock(), []

    def contestant(
        model: bytes, library: Path | None, sets: Sequence[Arrays], place: Place, graph: bool = False
    ) -> Actor:
        assert len(sets) == 1
        if graph and library is not None and not capturing:
            raise MirageError("the stream cannot be captured")
        made.append((library, graph))
        return Actor(clock, 0.001 if library else 0.002, 1.0)

    monkeypatch.setattr(fragment_times, "OrtContestant", contestant)
    library = Path("libmirage.so")
    found = fragment_times.measure_fragment(fragment, library, Place("cuda"), EFFORT, timer=clock)
    assert found.graph == graph
    assert made[-2:] == [(None, graph), (library, graph)]
    assert bool(found.notes) == (not capturing)
    assert found.calls == 50  # as many as take CALL_SECONDS
    assert found.speedup is not None
    assert found.speedup.median == pytest.approx(2.0)
