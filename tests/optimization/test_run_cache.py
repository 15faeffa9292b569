"""Whole runs that are kept: a second one writes the same files without doing anything again, or is no answer at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from mirage_cli.backends import compile as compiling
from mirage_cli.errors import CheckFailed, CompileError, UsageError
from mirage_cli.exporters import slots
from mirage_cli.files import result_store
from mirage_cli.files.datafile import Piece
from mirage_cli.files.output import DATA
from mirage_cli.files.rawfile import DataFile
from mirage_cli.optimization import environment, pipeline, run_cache, story
from mirage_cli.optimization.environment import Machine
from mirage_cli.options.options import Options
from mirage_cli.report.report import Report
from tests.exporters import reports
from tests.optimized import sample

NAME = "rmsnorm_linear_fp32"


class DoneAgain(Exception):
    """The pipeline was asked."""


@pytest.fixture(scope="module", autouse=True)
def _own_secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A folder with a model whose weights are in a file, the cache and the output of its first run."""
    place = tmp_path_factory.mktemp("answers")
    model = onnx.load(sample(NAME))
    weight = model.graph.input.pop()
    values = np.random.default_rng(1).random([d.dim_value for d in weight.type.tensor_type.shape.dim], np.float32)
    model.graph.initializer.append(numpy_helper.from_array(values, weight.name))
    onnx.save(model, place / "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=1024)
    (cache / "objects").mkdir(mode=0o700, parents=True, exist_ok=True)
    (place / "cache").mkdir()
    (place / "cache" / "objects").symlink_to(cache / "objects")
    story.optimize(str(place / "model.onnx"), place / "first", options(place))
    return place


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: Any, **named: Any) -> Report:
        raise DoneAgain

    monkeypatch.setattr(pipeline, "Run", run)


def options(place: Path, **changes: Any) -> Options:
    return Options(target=("cpu",), force=True, jobs=1, cache=str(place / "cache"), **changes)


def again(place: Path, out: Path, **changes: Any) -> Report:
    return story.optimize(str(place / "model.onnx"), out, options(place, **changes))


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and bytes of all files but the reports, which hold times."""
    found = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.stem != "report")
    return {p.relative_to(folder).as_posix(): (p.stat().st_mode, p.read_bytes()) for p in found}


@pytest.mark.usefixtures("never")
def test_a_second_run_writes_the_same_files(first: Path, tmp_path: Path) -> None:
    report = again(first, tmp_path / "<b>second")
    out = tmp_path / "<b>second"
    assert {"model.onnx", "model.onnx.data", "libmirage.so", "mirage.h", "src/build.sh"} <= contents(out).keys()
    assert contents(out) == contents(first / "first")
    old, new = (json.loads((folder / "report.json").read_text()) for folder in (first / "first", out))
    assert new == json.loads(report.text())
    assert new["fragments"][0]["search"].pop("cached") is True
    assert new.pop("seconds").keys() == old.pop("seconds").keys()
    assert new == old
    page = (out / "report.html").read_text()
    assert "&lt;b&gt;second" in page and f"{report.to_json()['seconds']['total']:.2f} s</dd>" in page
    assert slots.FOLDER not in page and "\ue001" not in page


def test_a_second_run_imports_little(first: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from mirage_cli.main import cli\n"
        "code = cli.run(sys.argv[1:])\n"
        "sys.exit(code or str([m for m in sys.modules if m in ('onnx', 'onnx_ir', 'sympy', 'jinja2', 'onnxruntime')]))"
    )
    told = ("--target", "cpu", "--force", "--cache", str(first / "cache"), "-q")
    command = (sys.executable, "-c", script, "optimize", str(first / "model.onnx"), "-o", str(tmp_path / "out"), *told)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"
    assert contents(tmp_path / "out") == contents(first / "first")


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("what", ["model", "weights", "no weights", "seed", "version", "answer", "compiler", "package"])
def test_what_changed_is_done_again(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    changes: dict[str, Any] = {}
    tools = environment.toolchain(options(first))
    (stored,) = (first / "cache" / "answers").iterdir()
    before = {path: path.read_bytes() for path in (first / "model.onnx", first / "w.bin", stored)}
    match what:
        case "model":
            (first / "model.onnx").write_bytes(before[first / "model.onnx"] + b"\x08\x08")
        case "weights":
            (first / "w.bin").write_bytes(before[first / "w.bin"][:-1] + b"\1")
        case "no weights":
            (first / "w.bin").unlink()
        case "seed":
            changes["seed"] = 1
        case "version":
            monkeypatch.setattr(result_store, "version", lambda: "another")
        case "answer":
            stored.write_bytes(before[stored][:-1] + b"\0")
        case "compiler":
            other = replace(tools, cxx=replace(tools.cxx, version="g++ 99"))
            monkeypatch.setattr(environment, "toolchain", lambda options: other)
        case "package":
            monkeypatch.setattr(run_cache, "packages", lambda: ["numpy 99"])
    try:
        with pytest.raises(DoneAgain):
            again(first, tmp_path / "out", **changes)
    finally:
        for path, content in before.items():
            path.write_bytes(content)


@pytest.mark.usefixtures("never")
def test_runs_that_depend_on_more_have_no_answer(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, usual = str(first / "model.onnx"), options(first)
    assert run_cache.lasting(model, usual)
    assert not run_cache.lasting("-", usual)
    for changes in ({"gpu": 0}, {"tuned": True}, {"budget": 1.0}, {"dry_run": True}, {"cache": ""}):
        assert not run_cache.lasting(model, replace(usual, **changes)), changes
    monkeypatch.setenv("MIRAGE_DEBUG", "source")
    with pytest.raises(DoneAgain):
        again(first, tmp_path / "out")


@pytest.mark.usefixtures("never")
def test_a_folder_of_others_is_left_alone(first: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="files that mirage did not write"):
        again(first, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_required_coverage_is_missed_each_time(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(2):
        with pytest.raises(CheckFailed, match="coverage of nodes"):
            again(first, tmp_path / f"out{k}", require_coverage=("nodes=1.01",))
        monkeypatch.setattr(pipeline, "Run", None)
    assert contents(tmp_path / "out0") == contents(tmp_path / "out1") == contents(first / "first")
    max((first / "cache" / "answers").iterdir(), key=lambda path: path.stat().st_mtime_ns).unlink()


def test_what_may_go_better_next_time_is_not_kept(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path(shutil.copytree(first, tmp_path / "copy", symlinks=True))
    (place / "cache" / "objects").unlink()
    shutil.rmtree(place / "cache" / "answers")
    monkeypatch.setattr(compiling, "run_command", lambda *_: (CompileError("the disk is full"), ""))
    report = again(place, tmp_path / "out")
    assert [f.status for f in report.fragments] == ["failed"]
    assert not list((place / "cache").glob("answers/*"))


def test_weights_that_are_computed_are_kept(tmp_path: Path) -> None:
    """A file of weights of which one range is another file's and one is not, with a hole between them."""
    (tmp_path / "w").write_bytes(bytes(range(256)) * 20)
    draft, cache = tmp_path / "draft", tmp_path / "cache"
    draft.mkdir()
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")
    computed = np.arange(600, dtype=np.float32).tobytes()
    file = DataFile(tmp_path / "w")
    (draft / DATA).write_bytes((tmp_path / "w").read_bytes()[100:400] + bytes(3796) + computed)
    pieces = [Piece(0, 300, file, 100), Piece(4096, len(computed))]
    made = Options(target=("cpu",), cache=str(cache))
    tools = environment.toolchain(made)
    report = reports.report(path=str(model))
    told = {**report.model, "sha256": run_cache.digest(model), "external_data": {"w": file.sha256()}}
    run_cache.keep(replace(report, model=told), "page", draft, made, tools, Machine(), pieces, {id(file): "w"})
    found = run_cache.find(str(model), made, tools, Machine())
    assert found is not None
    (tmp_path / "out").mkdir()
    found.write(tmp_path / "out", "out", 0.0)
    assert (tmp_path / "out" / DATA).read_bytes() == (draft / DATA).read_bytes()
    faster = Machine("this machine", {"name": "cpu", "bandwidth": 1e12})
    assert run_cache.find(str(model), made, tools, faster) is None


def test_large_runs_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "libmirage.so").write_bytes(bytes(1000))
    made = Options(target=("cpu",), cache=str(tmp_path / "cache"))
    report = reports.report(path="m")
    for largest in (999, 1000):
        monkeypatch.setattr(run_cache, "LARGEST", largest)
        run_cache.keep(report, "", tmp_path / "draft", made, environment.toolchain(made), Machine())
        assert len(list((tmp_path / "cache" / "answers").iterdir())) == largest - 999


def test_the_oldest_make_room(tmp_path: Path) -> None:
    store = result_store.Kept(tmp_path / "answers")
    for k in range(4):
        store.write(f"{k}", os.urandom(1000))
        os.utime(tmp_path / "answers" / f"{k}.kept", (k, k))
    run_cache.make_room(store, 2500)
    assert sorted(p.stem for p in (tmp_path / "answers").iterdir()) == ["2", "3"]
