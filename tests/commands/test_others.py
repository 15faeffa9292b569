"""`mirage verify`, `bench`, `inspect` and `doctor`: real runs, and what the commands hand on and return."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.benchmark import benchmark
from mirage_cli.benchmark.benchmark import BenchOptions
from mirage_cli.inspection import doctor, summary
from mirage_cli.options.options import Options
from mirage_cli.suite import report, suite
from mirage_cli.suite.suite import SuiteOptions
from mirage_cli.verification import story
from mirage_cli.verification.findings import VerifyOptions
from tests.commands.conftest import Run
from tests.optimized import Optimized, sample, share_objects

MODEL = sample("rmsnorm_linear_fp32")
Calls = list[tuple[Any, ...]]


@dataclass
class Found:
    """What the parts below the commands hand back."""

    passed: bool = True
    ok: bool = True
    wrong: bool = False
    interrupted: bool = False
    population: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"fine": self.passed and self.ok and not self.wrong}

    def text(self) -> str:
        return "in words\n"

    def markdown(self) -> str:
        return "| in | words |"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    """What the commands ask of the parts below them, which do nothing; `m.onnx` and `out` are there."""
    made: Calls = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").touch()
    (tmp_path / "out").mkdir()

    def answer(name: str) -> Any:
        def remember(*arguments: Any) -> Found:
            made.append((name, *arguments))
            return Found()

        return remember

    for module, name in (
        (story, "verify_folder"),
        (story, "verify_pair"),
        (benchmark, "bench_folder"),
        (suite, "run"),
        (summary, "inspect"),
        (doctor, "examine"),
    ):
        monkeypatch.setattr(module, name, answer(name))
    return made


def test_what_is_handed_on(run: Run, calls: Calls) -> None:
    run(
        "verify", "out", "--seed", "3", "--confidence", "60", "--dim", "s=4", "--bisect", "--save-failing", "kept", "-q"
    )
    run("verify", "a.onnx", "b.onnx", "--library", "lib.so", "--shape", "x=1x2", "--jobs", "2", "-q")
    run("bench", "out", "--gpu", "1", "--runs", "5", "--seconds", "0.5", "--threads", "2", "--seed", "7", "-q")
    run("bench", "out", "--cpu", "--dim", "s=4", "--shape", "x=1x2", "-q")
    run("inspect", "m.onnx", "--dim", "s=4", "--only", "*a*", "--target", "cpu", "-q")
    run("doctor", "-q")
    whole = VerifyOptions(seed=3, confidence=60, dim=("s=4",), bisect=True, save_failing="kept")
    assert calls == [
        ("verify_folder", Path("out"), whole, None),
        ("verify_pair", Path("a.onnx"), Path("b.onnx"), Path("lib.so"), VerifyOptions(shape=("x=1x2",), jobs=2), None),
        ("bench_folder", Path("out"), BenchOptions(gpu=1, runs=5, seconds=0.5, threads=2, seed=7), None),
        ("bench_folder", Path("out"), BenchOptions(cpu=True, dim=("s=4",), shape=("x=1x2",)), None),
        ("inspect", "m.onnx", Options(dim=("s=4",), only=("*a*",), target=("cpu",))),
        ("examine", False),
    ]


def test_without_options_the_defaults_are_handed_on(run: Run, calls: Calls) -> None:
    for command in ("verify", "bench", "inspect"):
        run(command, "out")
    assert [call[2] for call in calls] == [VerifyOptions(), BenchOptions(), Options()]


@pytest.mark.parametrize("command", [["verify", "out"], ["bench", "out"], ["inspect", "out"], ["doctor"]])
def test_text_json_or_nothing(run: Run, calls: Calls, command: list[str]) -> None:
    assert run(*command).stdout == "in words\n"
    assert json.loads(run(*command, "--json").stdout) == {"fine": True}
    assert run(*command, "-q").output == ""
    assert json.loads(run(*command, "-q", "--json").stdout) == {"fine": True}


def test_exit_codes(run: Run, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("verify", "out").exit_code == run("doctor").exit_code == 0
    monkeypatch.setattr(story, "verify_folder", lambda *_: Found(passed=False))
    monkeypatch.setattr(doctor, "examine", lambda *_: Found(ok=False))
    monkeypatch.setattr(benchmark, "bench_folder", lambda *_: Found(wrong=True))
    monkeypatch.setattr(suite, "run", lambda *_: Found(wrong=True))
    for arguments in (("bench", "out"), ("bench", "--suite", "paper")):
        answer = run(*arguments, "--json")
        assert (answer.exit_code, json.loads(answer.stdout)) == (1, {"fine": False})
    monkeypatch.setattr(suite, "run", lambda *_: Found(interrupted=True))
    answer = run("bench", "--suite", "paper", "--json")  # what was measured, all the same
    assert (answer.exit_code, json.loads(answer.stdout)) == (130, {"fine": True})
    difference, missing = run("verify", "out", "--json"), run("doctor", "--json")
    assert (difference.exit_code, json.loads(difference.stdout)) == (1, {"fine": False})
    assert (missing.exit_code, json.loads(missing.stdout)) == (4, {"fine": False})


def test_the_suite_is_handed_on(run: Run, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    monkeypatch.setattr(report, "write_markdown", lambda found, text, path: written.append(path))
    run("bench", "--suite", "paper", "--gpu", "1", "--only", "a*", "--only", "b", "--dtype", "bf16", "--no-peers", "-q")
    asked = ("--peers", "ort, eager", "--peers-from", "p.json", "--build", "kept", "--allow-tf32", "--tune")
    run(
        "bench",
        "--suite",
        "paper",
        *asked,
        "--jobs",
        "3",
        "--seconds",
        "0.2",
        "--seed",
        "5",
        "--markdown",
        "page.md",
        "-q",
    )
    first = SuiteOptions(gpu=1, only=("a*", "b"), dtype="bf16", peers=())
    kept = {"peers_from": Path("p.json"), "build": Path("kept")}
    second = SuiteOptions(peers=("eager", "ort"), tf32=True, tune=True, seconds=0.2, jobs=3, seed=5, **kept)
    assert calls == [("run", first, None), ("run", second, None)]
    assert written == [Path("page.md")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Give an output folder, a model, or --suite"),
        (("out", "--suite", "paper"), "Give an output folder, a model, or --suite"),
        (("--suite", "paper", "--threads", "2"), "--threads does not go with --suite"),
        (("out", "--dtype", "fp16"), "--dtype does not go with DIR"),
        (("out", "--peers", "eager", "--no-peers"), "exclude each other"),
        (("out", "--peers", "nobody"), "there is no such peer"),
    ],
)
def test_what_does_not_go_together(run: Run, calls: Calls, arguments: tuple[str, ...], message: str) -> None:
    result = run("bench", *arguments)
    assert result.exit_code == 2 and message in result.stderr
    assert calls == []


# --- for real ---------------------------------------------------------------------------------------------------------
def test_verify(run: Run, optimized: Optimized, cache: Path) -> None:
    share_objects(cache)  # and so the seal of what it wrote
    folder = optimized("rmsnorm_linear_fp32")
    result = run("verify", folder)
    assert result.exit_code == 0 and "norm_linear" in result.stdout
    result = run("verify", MODEL, folder / "model.onnx", "--library", folder / "libmirage.so", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout)["passed"] is True


def test_verify_finds_another_model(run: Run, optimized: Optimized) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    result = run(
        "verify", sample("rmsnorm_gain_linear_fp32"), folder / "model.onnx", "--library", folder / "libmirage.so"
    )
    assert result.exit_code in (1, 2, 3)
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["verify", "bench", "inspect"])
def test_a_folder_that_is_no_output(run: Run, tmp_path: Path, command: str) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        result = run(command, folder, "--json")
        assert result.exit_code == 3
        assert str(folder) in json.loads(result.stdout)["error"]["message"]


def test_bench(run: Run, optimized: Optimized) -> None:
    arguments = ("--cpu", "--runs", "2", "--seconds", "0.01", "--threads", "1")
    result = run("bench", optimized("rmsnorm_linear_fp32"), *arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout)
    result = run("bench", optimized("rmsnorm_linear_fp32"), *arguments)
    assert "norm_linear" in result.stdout


def test_inspect(run: Run, optimized: Optimized) -> None:
    for path in (MODEL, optimized("rmsnorm_linear_fp32")):
        result = run("inspect", path)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "norm_linear" in result.stdout
        assert json.loads(run("inspect", path, "--json").stdout)
    piped = run("inspect", "-", input=MODEL.read_bytes())
    assert (piped.exit_code, piped.stderr) == (0, "")
    assert "norm_linear" in piped.stdout


def test_doctor(run: Run) -> None:
    result = run("doctor", "--json")
    found = json.loads(result.stdout)
    assert result.stderr == ""
    assert result.exit_code == (0 if found["ok"] else 4)
    assert "g++" in run("doctor").stdout or not found["ok"]
