"""Runs of `optimize` from inside: selection, failures of single fragments, coverage, ranges, the promise of equal bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mirage_cli.checks import kernel_check
from mirage_cli.codegen.source import Rendered
from mirage_cli.errors import CheckFailed, Refused, UsageError
from mirage_cli.lax.fragments import key as keys
from mirage_cli.numerics.accuracy import Accuracy
from mirage_cli.optimization import pipeline
from mirage_cli.options.options import Options
from mirage_cli.planning import batch, plan
from mirage_cli.report.report import Report
from mirage_cli.runtime import sessions
from mirage_cli.verification.findings import VerifyOptions
from mirage_cli.verification.story import verify_folder
from samples.inputs import example_inputs
from tests.frontends.models import parsed
from tests.optimized import Optimized, anew, sample

pytestmark = pytest.mark.usefixtures("one_isa")

Run = Callable[..., tuple[Report, Path]]


@pytest.fixture
def run(tmp_path: Path, own_cache: Path) -> Run:
    def optimize(name: str, **options: Any) -> tuple[Report, Path]:
        settings = {"target": ("cpu",), "force": True, "jobs": 1, "cache": str(own_cache)} | options
        return anew(str(sample(name)), tmp_path / "out", Options(**settings)), tmp_path / "out"

    return optimize


def agree(name: str, out: Path) -> None:
    inputs = example_inputs(sample(name))
    wanted = sessions.run(sessions.session(sample(name)), inputs)
    lib = out / "libmirage.so"
    found = sessions.run(sessions.session(out / "model.onnx", lib if lib.exists() else None), inputs)
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=2e-4, atol=2e-5)


# --- selection --------------------------------------------------------------------------------------------------------
def test_only_and_skip_choose_single_places_of_a_fragment(run: Run) -> None:
    everything, _ = run("mlp_fp32", dry_run=True)
    nodes = [n for f in everything.fragments for place in f.nodes for n in place]
    first = everything.fragments[0].nodes[0]
    only, _ = run("mlp_fp32", dry_run=True, only=(first[0],))
    skipped, _ = run("mlp_fp32", dry_run=True, skip=(first[0],))
    assert [f.nodes for f in only.fragments] == [everything.fragments[0].nodes]
    assert first[0] not in [n for f in skipped.fragments for place in f.nodes for n in place]
    assert len(skipped.fragments) == len(everything.fragments) - 1
    assert {n for u in skipped.unchanged for n in u["nodes"]} | set(nodes) >= set(first)


def test_one_layer_of_two_can_be_skipped(run: Run, cache: Path) -> None:
    everything, _ = run("llama_fp32", dry_run=True, only=("*",), cache=str(cache))
    attention = next(f for f in everything.fragments if f.name == "attention")
    assert attention.occurrences == 2
    rest, _ = run("llama_fp32", dry_run=True, skip=(attention.nodes[0][0],), cache=str(cache))
    assert [f.nodes for f in rest.fragments if f.name == "attention"] == [[attention.nodes[1]]]


# --- fragments that fail ----------------------------------------------------------------------------------------------
def mlp(run: Run) -> str:
    """The key of the fragment that the tests make fail; the other one of the sample is to go on."""
    return next(f.id for f in run("mlp_fp32", dry_run=True, cache="")[0].fragments if f.name == "mlp")


def failing(report: Report) -> dict[str, str]:
    return {f.name: f.reason for f in report.fragments if f.status == "failed"}


def test_a_fragment_whose_search_fails_is_left(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = plan.plan_fragment

    def broken(identifier: str, name: str, *rest: Any) -> Any:
        if name == "mlp":
            raise ZeroDivisionError("made to fail")
        return real(identifier, name, *rest)

    monkeypatch.setattr(batch, "PLAN", replace(batch.PLAN, function=broken))
    report, out = run("mlp_fp32")
    assert failing(report) == {"mlp": "the search failed: internal error ZeroDivisionError: made to fail"}
    assert [f.name for f in report.replaced] == ["linear"]
    agree("mlp_fp32", out)


def test_a_fragment_whose_proof_fails_is_left(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real, bad = plan.verify, mlp(run)

    def doubtful(program: Any, *rest: Any, entropy: str) -> Any:
        verdict = real(program, *rest, entropy=entropy)
        if keys.key(program) == bad:
            return type(verdict)(
                **{f: getattr(verdict, f) for f in verdict.__slots__} | {"passed": False, "reason": "made to fail"}
            )
        return verdict

    monkeypatch.setattr(plan, "verify", doubtful)
    report, out = run("mlp_fp32")
    assert list(failing(report)) == ["mlp"]
    assert "the proof failed: made to fail" in failing(report)["mlp"]
    agree("mlp_fp32", out)


def test_a_fragment_that_does_not_compile_is_left(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real, bad = plan.rendered, mlp(run)

    def broken(identifier: str, program: Any, *rest: Any) -> Rendered:
        made = real(identifier, program, *rest)
        return replace(made, text=made.text + "\n#error made to fail\n") if keys.key(program) == bad else made

    monkeypatch.setattr(plan, "rendered", broken)
    report, out = run("mlp_fp32", cache="")
    assert "does not compile" in failing(report)["mlp"]
    assert "made to fail" in failing(report)["mlp"]
    agree("mlp_fp32", out)


def test_another_kernel_is_taken_where_one_does_not_compile(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real, bad, refused = plan.rendered, mlp(run), set[plan.Shaped]()

    def broken(identifier: str, program: Any, graph: Any, schedules: Any, *rest: Any) -> Rendered:
        made, own = real(identifier, program, graph, schedules, *rest), plan.shaped(graph, schedules)
        if keys.key(program) != bad or (refused and own not in refused):
            return made
        refused.add(own)
        return replace(made, text=made.text + "\n#error made to fail\n")

    monkeypatch.setattr(plan, "rendered", broken)
    report, out = run("mlp_fp32", cache="")
    (note,) = (n for n in report.notes if "another muGraph is taken" in n)
    assert failing(report) == {} and len(refused) == 1 and "made to fail" in note
    agree("mlp_fp32", out)


@dataclass(frozen=True)
class Strict:
    """A float check, in a process of its own, that one program does not pass."""

    bad: str

    def __call__(self, job: kernel_check.CheckJob) -> Any:
        if keys.key(job.program) == self.bad:
            return kernel_check.FloatCheck(False, Accuracy(False, 1.0, 0.1, 1.0, 0.1), "random")
        return kernel_check.run_job(job)


def test_a_kernel_that_is_not_accurate_is_left_out_of_the_library(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = mlp(run)
    monkeypatch.setattr(pipeline, "CHECK", replace(pipeline.CHECK, function=Strict(bad)))
    report, out = run("mlp_fp32")
    assert "less accurate than the original (random inputs)" in failing(report)["mlp"]
    assert bad.encode() not in (out / "libmirage.so").read_bytes()
    assert not (out / "src" / f"{bad}.cpp").exists()
    agree("mlp_fp32", out)


@dataclass(frozen=True)
class Once:
    """A float check, in a process of its own, that one program's first kernel does not pass, which is kept in a file."""

    bad: str
    file: Path

    def __call__(self, job: kernel_check.CheckJob) -> Any:
        if keys.key(job.program) == self.bad and not self.file.exists():
            shutil.copy(job.library, self.file)
            return kernel_check.FloatCheck(False, Accuracy(False, 1.0, 0.1, 1.0, 0.1), "random")
        return kernel_check.run_job(job)


def test_the_next_candidate_takes_the_place_of_one_that_is_not_accurate(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = mlp(run)
    before = json.loads((run("mlp_fp32", cache="")[1] / "mugraphs" / f"{bad}.json").read_text())["targets"]["cpu"]
    monkeypatch.setattr(pipeline, "CHECK", replace(pipeline.CHECK, function=Once(bad, tmp_path / "first.so")))
    report, out = run("mlp_fp32")
    assert not failing(report) and bad in {f.id for f in report.replaced}
    after = json.loads((out / "mugraphs" / f"{bad}.json").read_text())["targets"]["cpu"]
    assert after["graph"] != before["graph"]
    assert (out / "libmirage.so").read_bytes() != (tmp_path / "first.so").read_bytes()
    (note,) = (n for n in report.notes if "another muGraph is taken" in n)
    assert "less accurate than the original (random inputs)" in note
    agree("mlp_fp32", out)


def test_strict_makes_a_failure_an_error_and_writes_what_there_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise Refused("made to fail")

    monkeypatch.setattr(batch, "PLAN", replace(batch.PLAN, function=broken))
    with pytest.raises(CheckFailed, match=r"fragments failed.*made to fail"):
        run("mlp_fp32", strict=True)


def test_nothing_to_improve_copies_the_model(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    report, out = run("mlp_fp32", skip=("*",))
    assert report.fragments == []
    assert not (out / "libmirage.so").exists()
    onnx.checker.check_model(onnx.load(out / "model.onnx"))
    agree("mlp_fp32", out)


# --- coverage, dimensions ---------------------------------------------------------------------------------------------
def test_required_coverage(run: Run) -> None:
    run("mlp_fp32", dry_run=True, require_coverage=("flops=0.9",))
    with pytest.raises(CheckFailed, match=r"coverage of flops is 0\.000, below 0\.9"):
        run("mlp_fp32", dry_run=True, skip=("*",), require_coverage=("flops=0.9",))
    with pytest.raises(UsageError, match="kinds are flops, nodes, weight_bytes"):
        run("mlp_fp32", dry_run=True, require_coverage=("speed=1",))
    with pytest.raises(UsageError, match="expected KIND=SHARE"):
        run("mlp_fp32", dry_run=True, require_coverage=("flops=much",))


def test_a_dimension_that_is_given_is_fixed_and_a_range_is_not(run: Run) -> None:
    linear = ("node_linear_3",)
    fixed, _ = run("llama_dynamic_fp32", dry_run=True, dim=("batch=2", "sequence=8"), only=linear)
    assert [e for f in fixed.fragments for e in f.program["axes"].values()] == [16, 64, 64]
    ranged, _ = run("llama_dynamic_fp32", dry_run=True, dim=("batch=1:2:4",), only=linear)
    assert [e for f in ranged.fragments for e in f.program["axes"].values()] == ["batch*sequence", 64, 64]
    with pytest.raises(UsageError, match="no such symbol"):
        run("llama_dynamic_fp32", dry_run=True, dim=("seq=1:2:4",))


# --- what the report says ---------------------------------------------------------------------------------------------
def test_the_report_has_every_stage(optimized: Optimized) -> None:
    report = json.loads((optimized("rmsnorm_linear_fp32") / "report.json").read_text())
    assert {"read", "search", "verify", "tune", "render", "compile", "total"} <= set(report["seconds"])
    assert report["coverage"] == {"flops": 1.0, "weight_bytes": 1.0, "nodes": 1.0}
    assert report["unchanged"] == []


# --- sizes of real models ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 8192, 48), (5, 8192, 48), (3, 700, 1100), (7, 600, 2050)])
def test_long_and_wide_products_are_as_accurate_as_the_originals(
    rows: int, depth: int, columns: int, tmp_path: Path, cache: Path
) -> None:
    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.standard_normal((depth, columns), np.float32), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "product",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [rows, depth])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [rows, columns])],
        [weight],
    )
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 20)])
    onnx.save(model, tmp_path / "m.onnx")
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(cache))
    report = anew(str(tmp_path / "m.onnx"), tmp_path / "out", options)
    assert [(f.status, f.reason) for f in report.fragments] == [("replaced", "")]


def test_a_known_position_of_a_dimension_of_any_length(tmp_path: Path, cache: Path) -> None:
    """Sizes at which the position is not there are no runs of the model, and proofs are at none."""
    head = "agraph (float[s,16] x, float[16,s] w) => (float[s] y)"
    text = f"{head} {{ i = Constant <value_int = 5> () m = MatMul(x, w) y = Gather <axis = 1> (m, i) }}"
    onnx.save(parsed(text), tmp_path / "m.onnx")
    report = anew(str(tmp_path / "m.onnx"), tmp_path / "out", Options(target=("cpu",), force=True, cache=str(cache)))
    assert [f.status for f in report.fragments] == ["replaced"]
    assert verify_folder(tmp_path / "out", VerifyOptions()).passed
