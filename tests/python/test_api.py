"""The Python interface: light to import, the same options as the command line, results as objects."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mirage_cli as mi
from mirage_cli import errors
from mirage_cli.benchmark import benchmark
from mirage_cli.benchmark.benchmark import BenchOptions
from mirage_cli.inspection import summary
from mirage_cli.options.options import Options
from mirage_cli.verification import story
from mirage_cli.verification.findings import VerifyOptions
from tests.optimized import Optimized, sample

MODEL = sample("rmsnorm_linear_fp32")


class Steps:
    """Progress that is remembered."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, name: str, total: int) -> None:
        self.stages.append(name)

    def step(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def search(self, fragment: str, name: str, standing: object) -> None:
        pass


def test_importing_is_light() -> None:
    script = (
        "import sys, json, mirage_cli as mi\n"
        "assert mi.__version__ and mi.MirageError and 'optimize' in dir(mi)\n"
        "print(json.dumps([m for m in ('numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'click', 'rich') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == []


def test_every_public_name_is_there() -> None:
    for name in mi.__all__:
        home = importlib.import_module(f"mirage_cli.{mi._MODULES.get(name, 'errors')}")
        assert getattr(mi, name) is getattr(home, name)
        assert name in dir(mi)
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.MirageError)]
    assert {k.__name__ for k in kinds if "code" in vars(k)} <= set(mi.__all__)
    with pytest.raises(AttributeError, match="module 'mirage_cli' has no attribute 'nothing'"):
        _ = mi.nothing


def test_optimize(tmp_path: Path, cache: Path) -> None:
    steps = Steps()
    report = mi.optimize(MODEL, tmp_path / "out", target="cpu", jobs=1, force=True, cache=cache, progress=steps)
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == json.loads(report.text())
    assert [f.name for f in report.replaced] == ["norm_linear"]
    assert steps.stages[0] == "read"


def test_reports_are_shown_in_a_line(optimized: Optimized, cache: Path) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    shown = [repr(x) for x in (mi.load_kernel(folder), mi.inspect(folder), mi.compare(folder, folder))]
    shown.append(repr(mi.optimize(MODEL, dry_run=True, target="cpu", cache=cache)))
    shown.append(repr(mi.bench(folder, cpu=True, runs=1, seconds=0.01)))
    assert all(s.startswith("<") and len(s) < 200 and "\n" not in s for s in shown), shown
    assert shown[2] == f"<comparison of {folder} and {folder}: 0 regressions>"


def test_a_dry_run_needs_no_folder() -> None:
    report = mi.optimize(str(MODEL), dry_run=True, target=("cpu",), jobs=1, no_cache=True)
    assert report.options["dry_run"] is True
    with pytest.raises(mi.UsageError, match="out: expected a folder to write to, or dry_run=True"):
        mi.optimize(str(MODEL))


def test_errors_are_exceptions(tmp_path: Path) -> None:
    with pytest.raises(mi.ModelError, match="no such file"):
        mi.optimize(tmp_path / "none.onnx", tmp_path / "out", target="cpu")
    with pytest.raises(mi.UsageError, match="unknown option 'forse'") as caught:
        mi.optimize(MODEL, tmp_path / "out", forse=True)
    assert caught.value.hint == "did you mean force?"
    with pytest.raises(mi.UsageError, match="unknown option 'runns'") as caught:
        mi.bench(tmp_path, runns=3)
    assert caught.value.hint == "did you mean runs?"
    with pytest.raises(mi.UsageError, match="expected an integer of at least 0, found -1"):
        mi.verify(tmp_path, seed=-1)
    with pytest.raises(mi.UsageError, match="patched and library belong together"):
        mi.verify(MODEL, MODEL)


def test_inspect(optimized: Optimized) -> None:
    assert "norm_linear" in mi.inspect(MODEL).text()
    assert "norm_linear" in mi.inspect(optimized("rmsnorm_linear_fp32")).text()


def test_what_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    for module, name in (
        (story, "verify_folder"),
        (story, "verify_pair"),
        (benchmark, "bench_folder"),
        (summary, "inspect"),
    ):
        monkeypatch.setattr(module, name, lambda *a, name=name: calls.append((name, *a)))
    mi.verify("out", dim={"s": (1, 2, 3)}, bisect=True)
    mi.verify("a.onnx", "b.onnx", "lib.so", shape="x=1x2")
    mi.bench("out", cpu=True, runs=3, dim="s=4")
    mi.inspect("m.onnx", only="*a*")
    assert calls == [
        ("verify_folder", Path("out"), VerifyOptions(dim=("s=1:2:3",), bisect=True), None),
        ("verify_pair", Path("a.onnx"), Path("b.onnx"), Path("lib.so"), VerifyOptions(shape=("x=1x2",)), None),
        ("bench_folder", Path("out"), BenchOptions(cpu=True, runs=3, dim=("s=4",)), None),
        ("inspect", "m.onnx", Options(only=("*a*",))),
    ]
