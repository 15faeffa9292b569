"""Random programs in short: a few through everything, many through numpy and onnxruntime, and the tools themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mirage_cli.errors import ModelError
from mirage_cli.runtime import sessions

from . import racecheck
from .alone import engine_cases
from .batch import LETTER, ONLY_CPU, Outcome, compared, original, verdict
from .choices import DTYPES, LONGEST, drawn, reduced, replayed
from .drawn import VOCABULARY, program
from .inputs import KINDS, draw
from .meaning import MEANINGS
from .sketch import Node, Program, Value, model
from .working import tried

Array = NDArray[Any]
TOLERANCES = {"float32": 1e-4, "float16": 4e-2, "bfloat16": 0.3, "float64": 1e-6}


@st.composite
def programs(made: st.DrawFn) -> Program:
    """A random program, by hypothesis, which makes failing ones small."""
    dtype = made(st.sampled_from(sorted(set(DTYPES))))
    return program(lambda n: made(st.integers(0, n - 1)), dtype, made(st.integers(0, 9)), LONGEST)


@settings(max_examples=15, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.integers(1, 70))
def test_numpy_and_onnxruntime_agree_on_the_originals(p: Program, extent: int) -> None:
    """What the programs are judged by: their meanings in float64 are those of the models."""
    session = sessions.session(model({"p": p}).SerializeToString(), optimize=False, threads=1)
    arrays = {v.name: draw(v, p.shape(v, extent), "random", np.random.default_rng(extent)) for v in p.inputs}
    found = sessions.run(session, {f"p_{name}": a for name, a in arrays.items()})
    for v, wanted in zip(p.outputs, p.evaluate(arrays), strict=True):
        own = found[f"p_{v.name}"].astype(np.float64)
        assert own.shape == wanted.shape == p.shape(v, extent)
        scale = np.abs(wanted, dtype=np.float64).max(initial=1.0)
        np.testing.assert_allclose(own, wanted.astype(np.float64), rtol=0, atol=TOLERANCES.get(v.dtype, 0.0) * scale)


def test_programs_keep_their_answers() -> None:
    """Two programs through import, search, proof, compiler and onnxruntime."""
    chosen = {"p0": drawn(0, 0, "float32")[0], "p1": drawn(1, 0, "float16")[0]}
    outcome = tried(chosen, "base", 7, ("random", "large"))
    assert outcome.problems == {}
    assert outcome.counts["fragments replaced"] >= 2
    assert outcome.counts["outputs"] >= 4


def test_every_operator_is_drawn() -> None:
    seen = {n.op for k in range(400) for n in drawn(k, 0, DTYPES[k % len(DTYPES)])[0].nodes}
    assert MEANINGS.keys() - seen <= {"IsNaN", "IsInf"}
    assert len(VOCABULARY) > 40


def test_a_wrong_answer_is_found() -> None:
    v = Value("t", "float32", (3,))
    right = np.array([1.0, 2.0, 3.0])
    own = right.astype(np.float32)
    assert compared(v, [(own, own, right)]) == ""
    off = (right * (1 + 1e-5)).astype(np.float32)
    assert "rmse" in compared(v, [(off, own, right)])
    assert "shape" in compared(v, [(off[:2], own, right)])


def test_allowances_are_told_from_the_letter_of_the_rule() -> None:
    """An output that doubles its input, off or not finite in ways that one allowance after the other is for."""
    x = Value("x", "float32", (3,))
    p = Program((x,), {}, (Node("Add", ("x", "x"), ("t",), {}, "float32"),), (Value("t", "float32", (3,)),))
    arrays = {"x": np.array([0.3, 0.7, 0.9])}
    (wanted,) = p.evaluate(arrays)
    ulp = 2.0**-23

    def how(ours: Array, own: Array, kind: str = "random") -> str:
        return verdict(p, 0, kind, [(arrays, (ours, own, wanted))])[0]

    assert how(wanted, wanted) == LETTER
    assert how(wanted + 4 * ulp, wanted + ulp / 2, "large") == "with a factor of ten on extreme inputs"
    assert how(np.array([np.nan, *wanted[1:]]), np.array([np.inf, *wanted[1:]]), "nan") == "with infinity for NaN"
    assert how(wanted + 2.4 * ulp, wanted) == "beside runs that round by chance"
    assert how(wanted + 1e-3, wanted) == ""
    assert how(wanted[:2], wanted) == ""


def test_infinity_for_nan_within_a_program() -> None:
    """The tanh of a sum that is infinite is 1, and NaN where the sum's parts are added in another order."""
    x = Value("x", "float32", (2, 2))
    nodes = (
        Node("ReduceSum", ("x", "a"), ("s",), {"keepdims": 0}, "float32"),
        Node("Tanh", ("s",), ("t",), {}, "float32"),
    )
    p = Program((x,), {"a": ("int64", np.array([1]))}, nodes, (Value("t", "float32", (2,)),))
    arrays = {"x": np.array([[np.inf, 1.0], [1.0, 2.0]])}
    (wanted,) = p.evaluate(arrays)
    ours = np.array([np.nan, wanted[1]])
    verdicts = [verdict(p, 0, kind, [(arrays, (ours, wanted, wanted))])[0] for kind in ("infinite", "random")]
    assert verdicts == ["where infinity for NaN within it changes nothing", ""]
    off = np.array([np.nan, wanted[1] + 1e-3])
    assert verdict(p, 0, "infinite", [(arrays, (off, wanted, wanted))])[0] == ""


def test_originals_without_kernels_on_the_gpu_run_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(path: Path, library: Path | None, place: str) -> str:
        if place == "cuda":
            raise ModelError("no kernel")
        return place

    monkeypatch.setattr("tests.random_programs.batch.session", session)
    outcome = Outcome()
    assert original(Path("m.onnx"), "cuda", 1, outcome) == "cpu"
    assert outcome.counts[ONLY_CPU] == 1
    with pytest.raises(ModelError):
        original(Path("m.onnx"), "cuda", 2, outcome)


def test_what_fails_as_a_whole_is_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(programs: dict[str, Program], *_: object) -> Outcome:
        if "p1" in programs:
            raise ValueError("no")
        found = Outcome()
        found.counts["programs"] = len(programs)
        return found

    monkeypatch.setattr("tests.random_programs.batch.run", run)
    outcome = tried({f"p{k}": drawn(k, 0, "float32")[0] for k in range(3)}, "base", 0, KINDS)
    assert outcome.problems == {"p1": ["ValueError: no"]}
    assert outcome.counts["programs"] == 2


def test_only_what_blocks_of_a_cluster_exchange_is_forgiven_by_racecheck() -> None:
    known = """= Error: Race reported between Write access at mirage::store_shared(unsigned int, float)+0xcf0 in a.cuh:64
=     and Read access at mirage::load_of_block(int, unsigned int)+0x42d0 in a.cuh:72 [2976 hazards]"""
    assert racecheck.exchange_only(known)
    assert not racecheck.exchange_only(known.replace("load_of_block", "load_matrices"))
    assert not racecheck.exchange_only("")


def test_strips_whose_groups_have_different_numbers_of_turns_are_known() -> None:
    found = {c.name: racecheck.misread(c) for c in engine_cases(6, 11, "sm_90a")}
    assert found == {"strip1x0": False, "strip1x1": True}  # one iteration for one group of warps, and for two


def test_choices_are_played_again_and_made_fewer() -> None:
    p, choices = drawn(5, 0, "float32")
    assert replayed(choices, 5, "float32").nodes == p.nodes

    def fails(c: list[int]) -> bool:
        return any(n.op == "MatMul" for n in replayed(c, 5, "float32").nodes)

    number = next(k for k in range(50) if fails(drawn(k, 0, "float32")[1]) and len(drawn(k, 0, "float32")[0].nodes) > 6)
    few = reduced(drawn(number, 0, "float32")[1], fails)
    assert fails(few)
    assert len(replayed(few, 5, "float32").nodes) <= 4
