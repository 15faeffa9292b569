"""Models that are run a piece at a time: the same answers, and never more weights than a piece may have."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from mirage_cli.checks import model_runs
from mirage_cli.errors import ModelError
from mirage_cli.runtime import piecewise, sessions
from tests.frontends.models import noise, parsed
from tests.optimized import Optimized, sample
from tests.patched_models import run

CHAIN = """g (float[2,8] x, bool c) => (float[2,8] y, float[2,8] a) {
    a = MatMul(x, u)
    b = MatMul(a, v)
    d = If (c) <
        then_branch = t () => (float[2,8] p) { p = Add(a, w) },
        else_branch = e () => (float[2,8] q) { q = Mul(b, u_row) }
    >
    f = MatMul(d, u)
    y = Add(f, b)
}"""
SQUARE = 8 * 8 * 4


def chain() -> onnx.ModelProto:
    return parsed(CHAIN, u=noise(8, 8), v=noise(8, 8) + 1, w=noise(2, 8), u_row=noise(8))


@pytest.mark.parametrize("limit", [0, SQUARE, 2 * SQUARE, 1 << 20])
@pytest.mark.parametrize("condition", [False, True])
def test_the_same_answers(limit: int, condition: bool) -> None:
    model, feeds = chain(), {"x": noise(2, 8), "c": np.array(condition)}
    found = piecewise.run(model, Path(), feeds, None, limit)
    assert list(found) == ["y", "a"]
    for ours, wanted in zip(found.values(), run(model, feeds), strict=True):
        assert np.allclose(ours, wanted, rtol=1e-5)


def test_pieces_hold_no_more_weights_than_they_may() -> None:
    found = piecewise.split_model(chain(), SQUARE)
    assert [[n.op_type for n in part.nodes] for part in found] == [["MatMul"], ["MatMul"], ["If"], ["MatMul", "Add"]]
    assert all(sum(map(piecewise.size_of, part.weights)) <= SQUARE for part in found)
    assert found[2].inputs == ("c", "a", "b") and found[2].outputs == ("d",)
    assert len(piecewise.split_model(chain(), 1 << 20)) == 1


def test_sessions_hold_one_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What bounds the memory: no session has more weights than a piece, and each is gone before the next is made."""
    alive: list[weakref.ref[object]] = []

    class Session:
        """A session that can be referred to weakly."""

        def __init__(self, made: object) -> None:
            self.made = made

        def __getattr__(self, name: str) -> object:
            return getattr(self.made, name)

    def session(model: bytes, *args: object, **settings: object) -> Session:
        assert all(ref() is None for ref in alive)
        assert sum(map(piecewise.size_of, onnx.load_from_string(model).graph.initializer)) <= SQUARE
        made = Session(real(model, *args, **settings))  # type: ignore[arg-type]
        alive.append(weakref.ref(made))
        return made

    real = sessions.session
    monkeypatch.setattr(sessions, "session", session)
    piecewise.run(chain(), Path(), {"x": noise(2, 8), "c": np.array(True)}, None, SQUARE)
    assert len(alive) == 4


def test_a_patched_model_with_its_library(optimized: Optimized, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    monkeypatch.setattr(piecewise, "is_large", lambda model: True)
    model = onnx.load(sample("rmsnorm_linear_fp32"))
    dims = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input]
    feeds = {v.name: noise(*d) for v, d in zip(model.graph.input, dims, strict=True)}
    for library in (None, folder / "libmirage.so"):
        (found,) = model_runs.run_job(model_runs.Job(str(folder / "model.onnx"), feeds, library)).values()
        assert np.allclose(found, run(model, feeds)[0], rtol=1e-4, atol=1e-6)
    with pytest.raises(ModelError, match="expected inputs"):
        model_runs.run_job(model_runs.Job(str(folder / "model.onnx"), {"other": noise(2)}))


def test_which_models_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain()
    assert not piecewise.is_large(model)
    monkeypatch.setattr(piecewise, "LARGE", 2 * SQUARE)
    assert piecewise.is_large(model)
    model.graph.node.append(helper.make_node("SequenceConstruct", ["a"], ["s"]))  # a value that is no tensor
    assert not piecewise.is_large(model)
