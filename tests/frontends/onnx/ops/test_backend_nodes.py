"""Every node test of the `onnx` package through the reader and the float64 evaluator.

The outcome of each case is kept in `golden/backend_nodes.json`; `MIRAGE_GOLDEN=1` writes it anew. Cases differ between
versions of `onnx`: with another version than the one recorded, cases that only one of them has are left out.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import version_converter
from onnx.backend.test.case.test_case import TestCase

from mirage_cli.frontends.onnx.ops import READERS
from mirage_cli.frontends.onnx.preparation import OLDEST_OPSET
from tests import alone
from tests.frontends.onnx.ops import node_cases
from tests.frontends.onnx.ops.node_cases import PASSED, STORED, WRONG

GOLDEN = Path(__file__).parents[2] / "golden" / "backend_nodes.json"
UPDATE = bool(os.environ.get("MIRAGE_GOLDEN"))
CHUNKS = 8
NEWEST = onnx.defs.onnx_opset_version()
#: operators whose readers no node test reaches; `test_against_onnxruntime.py` and `test_indexing.py` run them
ELSEWHERE = {"GatherElements", "SimplifiedLayerNormalization"}


def golden() -> dict[str, str]:
    cases: dict[str, str] = json.loads(GOLDEN.read_text())["cases"]
    return cases


def recorded_version() -> str:
    return str(json.loads(GOLDEN.read_text())["onnx"])


def chunk(k: int) -> dict[str, TestCase]:
    """Every CHUNKS-th case from the k-th on."""
    cases = node_cases.collect()
    return {name: cases[name] for name in list(cases)[k::CHUNKS]}


def write(found: dict[str, str]) -> None:
    """Put outcomes into the golden file, in which cases that the package no longer has are dropped."""
    with GOLDEN.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        merged = (golden() if GOLDEN.exists() else {}) | found
        known = node_cases.collect()
        cases = {name: merged[name] for name in sorted(merged) if name in known}
        GOLDEN.write_text(json.dumps({"onnx": onnx.__version__, "cases": cases}, indent=1, ensure_ascii=False) + "\n")
    GOLDEN.with_suffix(".lock").unlink(missing_ok=True)


@pytest.mark.parametrize("k", range(CHUNKS))
def test_outcomes_are_the_recorded_ones(k: int) -> None:
    found = {name: node_cases.outcome(case) for name, case in chunk(k).items()}
    if UPDATE:
        write(found)
    known = golden()
    same_package = recorded_version() == onnx.__version__
    compared = found if same_package else {name: found[name] for name in found if name in known}
    assert compared == {name: known.get(name) for name in compared}
    assert {name: text for name, text in found.items() if text.startswith(WRONG)} == {}


def test_the_record_is_complete_and_has_no_wrong_case() -> None:
    known = golden()
    if recorded_version() == onnx.__version__:
        assert set(known) == set(node_cases.collect())
    assert not [name for name, text in known.items() if text.startswith(WRONG)]
    passed = sum(text in (PASSED, STORED) for text in known.values())
    assert passed >= 960


# --- other opsets -----------------------------------------------------------------------------------------------------
def own_operators(case: TestCase) -> set[str]:
    return {node.op_type for node in case.model.graph.node if node.domain == ""}


def opset(model: onnx.ModelProto) -> int:
    return next(entry.version for entry in model.opset_import if entry.domain == "")


def passing() -> dict[str, list[TestCase]]:
    """For each operator that is read up to two single-node cases that pass: one of the oldest and one of the newest form."""
    known, found = golden(), dict[str, list[TestCase]]()
    for name, case in node_cases.collect().items():
        nodes = case.model.graph.node
        if known.get(name) in (PASSED, STORED) and len(nodes) == 1 and nodes[0].domain == "":
            found.setdefault(nodes[0].op_type, []).append(case)
    by_age = {op: sorted(cases, key=lambda c: opset(c.model)) for op, cases in found.items()}
    return {op: list({c.name: c for c in (cases[0], cases[-1])}.values()) for op, cases in sorted(by_age.items())}


def at_opset(case: TestCase, version: int) -> onnx.ModelProto | None:
    """The case's model at another opset; None where its operator differs there and onnx cannot convert it."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    own = opset(model)
    (op,) = own_operators(case)
    if onnx.defs.has(op, version) and onnx.defs.get_schema(op, version).since_version == _since(op, own):
        next(entry for entry in model.opset_import if entry.domain == "").version = version
        return model
    if version < own:
        return None
    try:
        return version_converter.convert_version(model, version)
    except Exception:  # the converter raises whatever its adapters do
        return None


def _since(op: str, version: int) -> int:
    return int(onnx.defs.get_schema(op, version).since_version)


def ends(op: str) -> list[int]:
    """The first and the last opset of each form of an operator."""
    first = {s.since_version for s in onnx.defs.get_all_schemas_with_history() if (s.domain, s.name) == ("", op)}
    return sorted({v for v in (*first, *(v - 1 for v in first), NEWEST, OLDEST_OPSET) if OLDEST_OPSET <= v <= NEWEST})


@pytest.mark.parametrize("k", range(CHUNKS))
def test_cases_pass_at_the_ends_of_all_forms_of_their_operator(k: int) -> None:
    operators = passing()
    for op in list(operators)[k::CHUNKS]:
        for case in operators[op]:
            own = opset(case.model)
            for version in ends(op):
                model = None if version == own else at_opset(case, version)
                if model is not None:
                    found = node_cases.outcome(case, model)
                    assert found in (PASSED, STORED), f"{case.name} at opset {version}"


def valid_before(case: TestCase) -> list[tuple[int, onnx.ModelProto]]:
    """The case's model at the opsets before its own at which the checker accepts it with another schema."""
    (op,) = own_operators(case)
    found = []
    for version in range(OLDEST_OPSET, opset(case.model)):
        if not onnx.defs.has(op, version) or onnx.defs.get_schema(op, version).deprecated:
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        next(entry for entry in model.opset_import if entry.domain == "").version = version
        try:
            onnx.checker.check_model(model, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue
        found.append((version, model))
    return found


def onnxruntime_outputs(model: onnx.ModelProto, case: TestCase) -> list[Any] | None:
    """The outputs on the case's inputs; None where onnxruntime has no such operator for the CPU."""
    inputs = [node_cases.array(x) for x in case.data_sets[0][0]]
    try:
        session = alone.session(model)
        names = [value.name for value in session.get_inputs()]
        return list(session.run(None, dict(zip(names, inputs, strict=True))))
    except Exception:  # onnxruntime's errors have no common base class
        return None


@pytest.mark.parametrize("k", range(CHUNKS))
def test_older_forms_agree_with_onnxruntime(k: int) -> None:
    operators = passing()
    for op in list(operators)[k::CHUNKS]:
        for case in operators[op][:1]:
            for version, model in valid_before(case):
                expected = onnxruntime_outputs(model, case)
                if expected is not None:
                    found = node_cases.outcome(case, model, expected)
                    assert found in (PASSED, STORED), f"{case.name} at opset {version}"


def test_every_reader_has_a_passing_case() -> None:
    known = golden()
    reached = {
        op
        for name, case in node_cases.collect().items()
        if known.get(name) in (PASSED, STORED)
        for op in own_operators(case)
    }
    names = {name for domain, name in READERS if domain == ""}
    own = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}
    assert names - reached == ELSEWHERE & names
    assert names - own <= ELSEWHERE
