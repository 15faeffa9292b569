"""Inputs that no kernel writes: CUDA kernels fetch them before what is in front of them has ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirage_cli.errors import InvalidGraph, UsageError
from mirage_cli.frontends.imported import Options as Reading
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.kernel_proof import prove
from mirage_cli.lax.dtypes import F16
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.ir.program import Program, program_from_json
from mirage_cli.optimization import task
from mirage_cli.optimization.reading import declare_unwritten
from mirage_cli.options.options import Options
from mirage_cli.planning.plan import PlanOptions, plan_fragment
from mirage_cli.suite import cases
from mirage_cli.verification import output_folder
from mirage_cli.verification.findings import Verification, VerifyOptions
from mirage_cli.verification.story import verify_folder
from tests.optimized import anew, sample

EARLY, LATE, CALLED, WAIT = (
    "auto load_constants =",
    "auto load_others =",
    "load_constants(turn, turn);",
    "wait_for_earlier();",
)


def stated(*unwritten: str) -> Program:
    """rms(X) W with both as inputs, of which some are declared."""
    case = cases.rmsnorm_linear("case", 1, 4096, 1024)
    imported = from_proto(case.repeated(F16, 1), Reading(), "case")
    declare_unwritten(imported, unwritten)
    (fragment,) = partition(imported.graph, task.tensor_names(imported)).fragments
    return fragment.program


def ahead(program: Program) -> str:
    """What the CUDA kernel of a program copies before it waits for earlier kernels."""
    plan = plan_fragment("ab", "norm_linear", program, 7, PlanOptions({"cuda": ("sm_90a",)})).plans["cuda"]
    assert plan.verdict.kernels is not None and plan.verdict.kernels.passed
    assert plan.schedules[0].engine == "strip"
    assert plan.text.index(CALLED) < plan.text.index(WAIT)
    return plan.text[plan.text.index(EARLY) : plan.text.index(LATE)]


def test_what_no_kernel_writes_is_fetched_before_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(prove.VARIABLE, raising=False)
    plain, declared = stated(), stated("w_*")
    assert ("load_tile<" in ahead(plain), "load_tile<" in ahead(declared)) == (False, True)


def test_it_is_no_weight_and_part_of_the_key() -> None:
    plain, declared = stated(), stated("w_*")
    assert not declared.constants and not plain.early
    assert {declared.sources[k].name for k in declared.early} == {"w_0"}
    assert plain.key() != declared.key()
    assert program_from_json(json.loads(json.dumps(declared.to_json()))) == declared


def test_a_pattern_that_no_input_fits_is_an_error() -> None:
    with pytest.raises(UsageError, match="--unwritten 'v': no input of the model has such a name"):
        stated("v")


@pytest.mark.usefixtures("one_isa")
def test_verify_knows_the_promise_and_allows_it_of_inputs_alone(tmp_path: Path, own_cache: Path) -> None:
    out = tmp_path / "out"
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(own_cache), unwritten=("*",))
    report = anew(str(sample("mlp_fp32")), out, options)
    files = [out / f.mugraph["file"] for f in report.replaced]
    assert any(s.get("unwritten") for f in files for s in json.loads(f.read_text())["program"]["sources"])
    assert verify_folder(out, VerifyOptions()).passed
    model = output_folder.read_model(out / "model.onnx")
    found = list(output_folder.fragments(out, model, {}, Verification()))
    reader = next(f for f in found if f.unwritten)
    output_folder.check_constants(reader, output_folder.constants(model), frozenset(v.name for v in model.graph.input))
    with pytest.raises(InvalidGraph, match=r"for one of the model; at node .*, which is none"):
        output_folder.check_constants(reader, output_folder.constants(model), frozenset())
