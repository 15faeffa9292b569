"""Some of the models of `make foreign`, end to end, and the runner: it resumes, and nothing that a model does ends it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from . import apart, judging, nodes, record, spellings
from .__main__ import main, run
from .case import cases
from .record import APART, FAILED, PASSED, Record
from .story import Settings, tell

#: node tests with test data: one whose operator becomes a kernel, one whose does not
NODES = ("test_softmax_axis_1", "test_xor2d")
#: operators that meant something else, or were written otherwise, at the oldest opset
OPERATORS = ("Softmax", "ReduceSum", "Clip")


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    apart.warm()


# --- models -----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def settings(cache: Path) -> Settings:
    return Settings(cache=str(cache))


@pytest.mark.parametrize("name", NODES)
def test_node_tests_pass(name: str, settings: Settings, tmp_path: Path) -> None:
    nodes.write(tmp_path, frozenset({name}))
    for case in cases(tmp_path, "node/*"):
        found = tell(case, settings)
        assert (found.status, found.failures) == (PASSED, []), case.name
        assert "test_data_set_0" in found.draws


@pytest.mark.parametrize("operator", OPERATORS)
def test_old_spellings_pass(operator: str, settings: Settings, tmp_path: Path) -> None:
    spellings.write(tmp_path, frozenset({operator}))
    oldest = f"between/{operator}-{spellings.OLDEST}-0/*"
    (found,) = [tell(case, settings) for case in cases(tmp_path, oldest)]
    assert (found.status, found.failures) == (PASSED, [])
    assert found.replaced


def test_every_operator_that_is_read_is_spelled_at_every_version() -> None:
    by_name = {title.rsplit("-", 1)[0] for title, _ in spellings.spelled()}
    names = {name.rsplit("-", 1)[0] for name in by_name}
    missing = {f"{n}-{v}" for n in names for v in spellings.versions(n)} - by_name
    assert missing == {"DepthToSpace-7"}
    assert len(names) > 100


# --- the runner -------------------------------------------------------------------------------------------------------
def saved(path: Path, nodes: list[onnx.NodeProto]) -> Path:
    """A model of one float input x [2, 3] and one output y."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def endless(path: Path) -> Path:
    """A model that never ends: a loop whose condition stays true."""
    kinds = {"i": TensorProto.INT64, "c": TensorProto.BOOL, "v": TensorProto.FLOAT}
    i, c, v = (helper.make_tensor_value_info(n, kinds[n], []) for n in "icv")
    c2, v2 = (helper.make_tensor_value_info(n, kinds[n[0]], []) for n in ("c2", "v2"))
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Neg", ["v"], ["v2"])], "b", [i, c, v], [c2, v2]
    )
    true = helper.make_node("Constant", [], ["t"], value=helper.make_tensor("t", TensorProto.BOOL, [], [True]))
    mean = helper.make_node("ReduceMean", ["x"], ["m"], keepdims=0)
    loop = helper.make_node("Loop", ["", "t", "m"], ["l"], body=body)
    return saved(path, [true, mean, loop, helper.make_node("Add", ["x", "l"], ["y"])])


def test_a_run_resumes_where_it_was_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b/c"):
        saved(tmp_path / f"{name}.onnx", [helper.make_node("Identity", ["x"], ["y"])])
    out = tmp_path / "results.jsonl"
    run(tmp_path, out, Settings(), only="a.onnx")
    with out.open("a") as file:
        file.write('{"model": "b/c.onnx", "dig')  # a run that was killed while it wrote
    assert list(record.read(out)) == ["a.onnx"]
    with out.open("a") as file:
        file.write("\n")
    capsys.readouterr()
    assert main([str(tmp_path)]) == 0
    assert "1 models to run, 1 known" in capsys.readouterr().out
    assert {r.model: r.status for r in record.read(out).values()} == {"a.onnx": PASSED, "b/c.onnx": PASSED}


def test_files_that_are_no_models_and_models_that_never_end_are_told(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x07garbage")
    saved(tmp_path / "unknown.onnx", [helper.make_node("NoSuchOperator", ["x"], ["y"])])
    endless(tmp_path / "endless.onnx")
    out = tmp_path / "results.jsonl"
    run(tmp_path, out, Settings(timeout=30.0, patience=3.0))
    found = record.read(out)
    assert {name: r.status for name, r in found.items()} == dict.fromkeys(
        ("broken.onnx", "endless.onnx", "unknown.onnx"), APART
    )
    assert "does not load" in found["unknown.onnx"].apart
    assert "does not run" in found["endless.onnx"].apart


def sleeping(seconds: float) -> None:
    print("asleep", flush=True)
    time.sleep(seconds)


def crashing() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def test_a_call_that_does_not_end_or_crashes_is_told(tmp_path: Path) -> None:
    late = apart.call(sleeping, (60.0,), 2.0, tmp_path)
    assert (late.code, late.out, late.crashed) == (None, "asleep\n", False)
    assert late.how == "no end within 2 s"
    crashed = apart.call(crashing, (), 20.0, tmp_path)
    assert crashed.crashed
    assert crashed.how == "SIGSEGV"


def test_tables_count_models_by_what_became_of_them() -> None:
    bad = Record("b", left={"Conv: 3 of 'x'": 2, "Conv: 4 of 'y'": 1}, replaced=2)
    bad.fail("wrong bare", "y: shape [2, 3]")
    text = record.table([Record("a"), bad, Record("c", status=APART)])
    assert bad.status == FAILED
    assert "3 models, 1 of them not models of onnxruntime\n1 of 2 passed, 1 failed" in text
    assert "      1  wrong bare\n" in text
    assert "      3  Conv: N of '…'" in text


def test_outputs_that_differ_are_told_apart_from_inaccurate_ones() -> None:
    import numpy as np

    right = np.linspace(1, 2, 2000, dtype=np.float32)
    exact = np.linspace(1, 2, 2000)

    def kinds(found: object, truth: bool = True) -> list[str]:
        given = {"y": exact} if truth else {}
        return [d.kind for d in judging.differences(["y"], [found], [right], [False], given)]

    assert kinds(right) == kinds(right + 1e-7) == []
    assert kinds(right + np.float32(8e-7)) == [judging.INACCURATE]
    for off, lucky in ((3e-7, True), (8e-7, False)):  # what comes once in some draws
        (found,) = judging.differences(["y"], [right + np.float32(off)], [right], [False], {"y": exact})
        assert found.may_be_luck == lucky
    assert kinds(right * 2) == kinds(right[1:]) == kinds(right.astype(np.float64)) == [judging.WRONG]
    assert kinds(right * 2, truth=False) == [judging.WRONG]
    assert kinds(right + np.float32(1e-5), truth=False) == []
    gone = right.copy()
    gone[3] = np.nan
    assert kinds(gone) == kinds(gone, truth=False) == [judging.WRONG]
