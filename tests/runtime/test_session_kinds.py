"""A patched model in all kinds of onnxruntime sessions, with fixed and with symbolic sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from mirage_cli.options.options import Options
from samples import sessions
from tests.frontends.models import noise, parsed
from tests.optimized import Optimized, anew, for_one_isa, sample

SAMPLE = "llama_fp32"
SYMBOLIC = """g (float[batch,48] x) => (float[batch,40] y, float[batch,48] z) {
    two = Constant <value = float {2.0}> ()
    square = Mul(x, x)
    mean = ReduceMean <keepdims = 1> (square, axis)
    root = Sqrt(mean)
    normal = Div(x, root)
    z = Mul(normal, two)
    y = MatMul(normal, w)
}"""


@pytest.fixture(scope="module")
def case(optimized: Optimized, tmp_path_factory: pytest.TempPathFactory) -> sessions.Case:
    return sessions.case_of(sample(SAMPLE), optimized(SAMPLE), tmp_path_factory.mktemp("sessions"))


@pytest.fixture(scope="module")
def symbolic(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model with a symbolic dimension, and what was made of it."""
    folder = tmp_path_factory.mktemp("symbolic")
    model = parsed(SYMBOLIC, axis=np.array([1]), w=noise(48, 40))
    onnx.save(model, folder / "original.onnx")
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(cache))
    with for_one_isa():
        report = anew(str(folder / "original.onnx"), folder / "out", options)
    assert [f.status for f in report.fragments] == ["replaced"] * len(report.fragments)
    return folder / "original.onnx", folder / "out"


@pytest.mark.parametrize("name", sessions.ways("cpu"))
def test_every_kind_of_session(case: sessions.Case, name: str) -> None:
    assert sessions.verdict(case, sessions.WAYS[name]) == ""


@pytest.mark.parametrize("batch", [1, 7])
def test_symbolic_sizes(symbolic: tuple[Path, Path], tmp_path: Path, batch: int) -> None:
    found = sessions.case_of(*symbolic, tmp_path, dims={"batch": batch})
    problems = {name: sessions.verdict(found, way) for name, way in sessions.WAYS.items()}
    assert problems == dict.fromkeys(problems, "")


def test_fixed_dimensions_that_are_not_those_of_the_input(symbolic: tuple[Path, Path], tmp_path: Path) -> None:
    found = sessions.case_of(*symbolic, tmp_path, dims={"batch": 3})
    options = found.options()
    options.add_free_dimension_override_by_name("batch", 4)
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match="Got: 3 Expected: 4"):
        sessions.answers(found.session(options), found.feeds[0])


def test_only_the_kernels_can_be_right(case: sessions.Case) -> None:
    """What the other tests rely on: the copy of the model without its library gives NaN."""
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(str(case.model), options, providers=["CPUExecutionProvider"])
    found = sessions.answers(session, case.feeds[0])
    assert all(np.isnan(array).all() for array in found.values())
    assert sessions.difference(found, case.wanted[0])


def test_one_library_of_ours_for_a_session(case: sessions.Case) -> None:
    """onnxruntime takes a domain once: further models get options of their own."""
    options = case.options()
    options.register_custom_ops_library(str(case.library))
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="Domain already set"):
        case.session(options)
    for _ in range(2):  # and the same options make as many sessions as one likes
        options = case.options()
        assert sessions.difference(sessions.answers(case.session(options), case.feeds[0]), case.wanted[0]) == ""
