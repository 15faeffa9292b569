"""Exit codes and messages of what goes wrong, as text and with --json."""

from __future__ import annotations

import errno
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import Result
from onnx import TensorProto, helper

import mirage_cli
from mirage_cli import errors
from mirage_cli.errors import MirageError
from mirage_cli.optimization import story
from mirage_cli.report.report import Report
from tests.commands.conftest import Run, error_of, state_folder
from tests.exporters import reports
from tests.optimized import sample

MODEL = sample("rmsnorm_linear_fp32")


def small_model(opset: int, ir_version: int, read: str) -> bytes:
    """A model of one Relu, which reads the tensor `read`; the input is "x"."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", [read], ["y"])], "g", [value], [result])
    opsets = [helper.make_opsetid("", opset)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version).SerializeToString()
    return made


def lost_data() -> bytes:
    """A model whose external data file is not there."""
    model = onnx.load(MODEL)
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="lost.bin")
    model.graph.initializer.append(weight)
    made: bytes = model.SerializeToString()
    return made


WHOLE = MODEL.read_bytes()
#: file name -> (content, or None for no file; the error's code; what its message says)
UNREADABLE: dict[str, tuple[bytes | None, str, str]] = {
    "none.onnx": (None, "model-unreadable", "no such file"),
    "empty.onnx": (b"", "model-unreadable", "found an empty file"),
    "truncated.onnx": (WHOLE[: len(WHOLE) // 2], "model-unreadable", "truncated"),
    "text.onnx": (b"hello, this is no model", "model-unreadable", "expected an ONNX model"),
    "zip.onnx": (b"PK\x03\x04" + bytes(99), "model-unreadable", "zip archive"),
    "lfs.onnx": (b"version https://git-lfs.github.com/spec/v1\n", "model-unreadable", "git lfs pull"),
    "new.onnx": (small_model(999, 8, "x"), "model-unreadable", "found 999"),
    "invalid.onnx": (small_model(17, 8, "nowhere"), "model-unreadable", "nowhere"),
    "lost.onnx": (lost_data(), "model-unreadable", "lost.bin"),
    "model.bin": (WHOLE, "model-format", "'.bin'"),
    "model": (WHOLE, "model-format", "no suffix"),
    "model.pt": (WHOLE, "model-format", "expected a TorchScript archive"),
}


@pytest.mark.parametrize("command", ["optimize", "inspect"])
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_model_that_cannot_be_read(run: Run, tmp_path: Path, name: str, command: str) -> None:
    content, code, phrase = UNREADABLE[name]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    out = ["-o", tmp_path / "out", "--target", "cpu"] if command == "optimize" else []
    result = run(command, path, *out, "--json")
    error = error_of(result)
    assert result.exit_code == 3
    assert error["code"] == code
    assert str(path) in error["message"]
    assert phrase in error["message"]
    assert not (tmp_path / "out").exists()

    told = run(command, path, *out)
    assert (told.exit_code, told.stdout) == (3, "")
    assert told.stderr.startswith(f"Error: {error['message']}")
    assert ("\nHint: " in told.stderr) == bool(error["hint"])


def test_a_folder_is_no_model(run: Run, tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    result = run("optimize", tmp_path / "folder.onnx", "--dry-run", "--json")
    assert result.exit_code == 3
    assert "expected a folder with genai_config.json" in error_of(result)["message"]


def test_standard_input_that_cannot_be_read(run: Run, tmp_path: Path) -> None:
    for content, phrase in ((b"", "empty"), (MODEL.read_bytes()[:100], "truncated")):
        result = run("optimize", "-", "--dry-run", "--json", input=content)
        assert result.exit_code == 3
        assert phrase in error_of(result)["message"]


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["optimize"], "Missing argument 'MODEL'"),
        (["optimize", MODEL], "Missing option '-o'"),
        (["optimize", MODEL, "-o", "x", "--fore"], "--force"),
        (["optimize", MODEL, "-o", "x", "--jobs", "0"], "'--jobs': expected an integer of at least 1, found '0'"),
        (["optimize", MODEL, "-o", "x", "--budget", "nan"], "'--budget': expected a number of at least 0, found 'nan'"),
        (["optimize", MODEL, "-o", "x", "--max-memory", "4Q"], "'--max-memory': expected a size such as 4G"),
        (
            ["optimize", MODEL, "-o", "x", "--target", "gpu"],
            "'--target': expected cuda or cpu or hip or opencl, found 'gpu'",
        ),
        (
            ["optimize", MODEL, "-o", "x", "--arch", "sm_70"],
            "'--arch': expected sm_80 or sm_89 or sm_90a or sm_120 or native",
        ),
        (["optimize", MODEL, "-o", "x", "--dim", "s=3:2:1"], "'--dim': s=3:2:1: expected 0 <= MIN <= TYPICAL <= MAX"),
        (["optimize", MODEL, "-o", "x", "--dim", "s=1", "--dim", "s=2"], "s is 1 already"),
        (["optimize", MODEL, "-o", "x", "--shape", "x=1,2"], "'--shape': x=1,2: expected NAME=1x128x..."),
        (["optimize", MODEL, "-o", "x", "--require-coverage", "all"], "'--require-coverage': expected KIND=SHARE"),
        (["optimize", MODEL, "-o", "x", "--cache", "c", "--no-cache"], "--cache and --no-cache exclude each other"),
        (["optimize", MODEL, "-o", "x", "-q", "-v"], "-q and -v exclude each other"),
        (["optimize", MODEL, "-o", "x", "--config", "none.yaml"], "none.yaml: the configuration file cannot be read"),
        (["optimize", MODEL, "-o", "/proc/out"], "/proc cannot be written to"),
        (["optimize", MODEL, "-o", "/proc/no/such/out"], "/proc/no/such cannot be written to"),
        (["optimize", MODEL, "-o", MODEL], "is a file, expected a folder"),
        (["optimize", MODEL, "--dry-run", "--target", "cpu", "--dim", "nope=1"], "no such symbol"),
        (["optimize", MODEL, "--dry-run", "--target", "cpu", "--shape", "nope=1"], "no such input"),
        (["verify"], "Missing argument"),
        (["verify", "a", "b"], "need --library"),
        (["verify", "a", "b", "c"], "found 3 paths"),
        (["verify", "a", "--library", "l"], "--library belongs to ORIGINAL PATCHED"),
        (["bench"], "Give an output folder, a model, or --suite."),
        (["bench", "a", "--cpu", "--gpu", "0"], "--cpu, --gpu and --opencl exclude each other"),
        (["bench", "a", "--runs", "0"], "'--runs'"),
        (["inspect"], "Missing argument"),
        (["doctor", "x"], "Got unexpected extra argument"),
        (["optimse"], "No such command 'optimse'. Did you mean optimize?"),
        (
            ["zzz"],
            "No such command 'zzz'. Commands are optimize, verify, bench, inspect, show, compare, doctor, cache, farm.",
        ),
        (["--nope"], "No such option"),
    ],
)
def test_wrong_usage(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[Any], phrase: str
) -> None:
    monkeypatch.chdir(tmp_path)
    told = run(*arguments)
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr.startswith("Error: ")
    assert phrase in told.stderr
    result = run(*arguments, "--json")
    assert result.exit_code == 2
    error = error_of(result)
    if arguments != ["--nope"]:
        assert phrase in error["message"]
    assert error["code"] in ("usage", "config")
    assert [p.name for p in tmp_path.iterdir()] == []


def test_a_broken_configuration_names_file_line_and_key(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("seed: 1\njobs: none\n")
    result = run("optimize", MODEL, "--dry-run", "--config", tmp_path / "c.yaml", "--json")
    assert result.exit_code == 2
    assert error_of(result) == {
        "code": "config",
        "message": f"{tmp_path}/c.yaml:2:7: jobs: expected an integer of at least 1, found 'none'",
        "hint": "",
    }


def test_a_missing_compiler(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    result = run("optimize", MODEL, "--dry-run", "--target", "cpu", "--json")
    assert result.exit_code == 4
    error = error_of(result)
    assert error["code"] == "tool-missing"
    assert "no C++17 compiler was found" in error["message"]
    assert "apt install g++" in error["hint"]


def test_a_compiler_that_is_named_and_does_not_exist(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/g++")
    result = run("optimize", MODEL, "--dry-run", "--target", "cpu")
    assert result.exit_code == 4
    assert "/no/such/g++" in result.stderr


def test_a_missing_coverage_is_a_failed_check(run: Run) -> None:
    arguments = ("optimize", sample("ntrans_fp32"), "--dry-run", "--target", "cpu", "--skip", "*")
    result = run(*arguments, "--require-coverage", "nodes=0.5", "--json")
    assert result.exit_code == 1
    error = error_of(result)
    assert error["code"] == "check-failed"
    assert "coverage of nodes is 0.000, below 0.5" in error["message"]
    assert run(*arguments, "--require-coverage", "nodes=0", "--json").exit_code == 0


def raising(monkeypatch: pytest.MonkeyPatch, run: Run, raised: BaseException, *arguments: str) -> Result:
    def fail(*_: Any) -> None:
        raise raised

    monkeypatch.setattr(story, "optimize", fail)
    return run("optimize", MODEL, "--dry-run", *arguments)


def test_an_unexpected_exception_leaves_a_log(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = raising(monkeypatch, run, ZeroDivisionError("by zero"), "--json")
    assert result.exit_code == 5
    error = error_of(result)
    assert error["code"] == "internal"
    assert error["message"] == "internal error: ZeroDivisionError: by zero"
    assert "please report it with the log" in error["hint"]
    (log,) = (state_folder(tmp_path) / "mirage" / "log").iterdir()
    assert error["hint"].endswith(f"the log is {log}")
    text = log.read_text()
    for phrase in (
        f"mirage {mirage_cli.__version__}",
        str(MODEL),
        "Traceback",
        "in fail",
        "ZeroDivisionError: by zero",
    ):
        assert phrase in text


def test_a_traceback_is_shown_only_with_verbose(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" not in raising(monkeypatch, run, ZeroDivisionError("by zero")).stderr
    assert "Traceback" in raising(monkeypatch, run, ZeroDivisionError("by zero"), "-v").stderr
    assert "Traceback" not in raising(monkeypatch, run, errors.ModelError("unreadable"), "-v").stderr


def test_a_log_that_cannot_be_written_in_its_place(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (state_folder(tmp_path)).write_text("in the way")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    hint = error_of(raising(monkeypatch, run, ValueError("x"), "--json"))["hint"]
    assert hint.endswith(f"the log is {next(tmp_path.glob('mirage-*.log'))}")
    monkeypatch.setattr("tempfile.tempdir", str(state_folder(tmp_path)))
    assert "no log could be written" in error_of(raising(monkeypatch, run, ValueError("x"), "--json"))["hint"]


@pytest.mark.parametrize(
    ("raised", "exit_code", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted", "interrupted"),
        (MemoryError(), 5, "out-of-resources", "out of memory"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/full"),
            5,
            "out-of-resources",
            "/full: No space left on device",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 2, "usage", "/root/x: Permission denied"),
        (OSError(errno.EIO, "I/O error", "/bad"), 5, "out-of-resources", "/bad: I/O error"),
        (
            FileNotFoundError(2, "No such file"),
            5,
            "internal",
            "internal error: FileNotFoundError: [Errno 2] No such file",
        ),
        (
            BrokenPipeError(errno.EPIPE, "Broken pipe"),
            5,
            "internal",
            "internal error: BrokenPipeError: [Errno 32] Broken pipe",
        ),
        (EOFError(), 5, "internal", "internal error: EOFError"),
        (AssertionError(), 5, "internal", "internal error: AssertionError"),
        (errors.CompileError("the compiler"), 5, "compile-failed", "the compiler"),
    ],
)
def test_other_exceptions(
    run: Run, monkeypatch: pytest.MonkeyPatch, raised: BaseException, exit_code: int, code: str, message: str
) -> None:
    result = raising(monkeypatch, run, raised, "--json")
    error = error_of(result)
    assert (result.exit_code, error["code"], error["message"]) == (exit_code, code, message)
    assert ("the log is" in error["hint"]) == (exit_code == 5)


def test_an_interrupt_behind_another_exception(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = ImportError("a library could not be loaded")
    raised.__context__ = KeyboardInterrupt()
    result = raising(monkeypatch, run, raised, "--json")
    assert (result.exit_code, error_of(result)["code"]) == (130, "interrupted")


def test_warnings_are_told_in_a_line_unless_quiet(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(model: str, *_: Any) -> Report:
        warnings.warn("take care", stacklevel=2)
        return reports.report(path=model)

    monkeypatch.setattr(story, "optimize", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run("optimize", MODEL, "--dry-run", "--json").stderr == "Warning: take care\n"
        assert run("optimize", MODEL, "--dry-run", "--json", "-q").stderr == ""


def test_names_cannot_steer_the_terminal(run: Run, tmp_path: Path) -> None:
    result = run("optimize", tmp_path / "\x1b[2Jx.onnx", "--dry-run")
    assert "\\x1b[2Jx.onnx: no such file" in result.stderr
    assert "\x1b" not in result.stderr


def test_the_catalogue_of_errors() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, MirageError)]
    own = [k for k in kinds if "code" in vars(k)]  # others are told apart within mirage alone
    assert len({k.code for k in own}) == len(own) == 17
    assert {k.exit_code for k in kinds} == {1, 2, 3, 4, 5, 130}
    made = errors.ToolMissing("no g++", "install it")
    assert json.loads(json.dumps(made.to_json())) == {
        "error": {"code": "tool-missing", "message": "no g++", "hint": "install it"}
    }
