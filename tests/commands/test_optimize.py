"""`mirage optimize`: what is printed and written, and where its options come from."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.frontends import folders
from mirage_cli.optimization import folder_story, story
from mirage_cli.options import config, settings
from mirage_cli.options.options import Options
from mirage_cli.patching import saving
from mirage_cli.processes import isolation
from mirage_cli.report.models import FolderReport
from mirage_cli.report.report import Report
from tests.commands.conftest import Run, error_of
from tests.exporters import reports
from tests.optimized import sample, share_objects

MODEL = sample("rmsnorm_linear_fp32")


@pytest.fixture
def fixed(cache: Path) -> list[str | Path]:
    """Options that make a run small and independent of the machine."""
    share_objects(cache)
    return ["--target", "cpu", "--jobs", "1", "--cache", cache]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, Path, Options]]:
    """What `optimize` hands on to the pipeline, which then does nothing; `m.onnx` is there."""
    calls: list[tuple[str, Path, Options]] = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").touch()

    def remember(model: str, out: Path, options: Options, progress: Any) -> Report:
        calls.append((model, out, options))
        return replace(reports.report(path=model), options=options.to_json())

    monkeypatch.setattr(story, "optimize", remember)
    return calls


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_what_comes_next_is_told_of_each_model_of_a_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("encoder", "decoder"):
        (tmp_path / "onnx").mkdir(exist_ok=True)
        (tmp_path / "onnx" / f"{name}.onnx").touch()

    def made(path: Path, out: Path, options: Options, progress: Any) -> FolderReport:
        return FolderReport(str(path), {m.file: reports.report(path=m.file) for m in folders.read(path).members})

    monkeypatch.setattr(folder_story, "optimize", made)
    told = run("optimize", tmp_path, "-o", "out").stdout
    assert [f"mirage verify out/onnx/{name}" in told for name in ("decoder", "encoder")] == [True, True]


def test_json_is_the_report(run: Run, tmp_path: Path, fixed: list[str | Path]) -> None:
    result = run("optimize", MODEL, "-o", tmp_path / "out", *fixed, "--force", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert report == json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["model"]["path"], report["options"]["force"]) == (str(MODEL), True)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert {"model.onnx", "libmirage.so", "mirage.h", "mugraphs", "src"} <= {
        p.name for p in (tmp_path / "out").iterdir()
    }


def test_text_tells_what_happened(run: Run, tmp_path: Path, fixed: list[str | Path]) -> None:
    result = run("optimize", MODEL, "-o", tmp_path / "out", *fixed, "--force")
    assert result.exit_code == 0 and "norm_linear" in result.stdout
    assert "search and prove (1 step)\n" in result.stderr and "Warning" not in result.stderr


def test_quiet_prints_nothing(run: Run, tmp_path: Path, fixed: list[str | Path]) -> None:
    result = run("optimize", MODEL, "-o", tmp_path / "out", *fixed, "-q")
    assert (result.exit_code, result.output) == (0, "")
    assert (tmp_path / "out" / "report.json").exists()
    result = run("optimize", MODEL, "--dry-run", *fixed, "-q", "--json")
    assert json.loads(result.stdout)["options"]["dry_run"] is True


def test_verbose_tells_the_stages_on_standard_error(run: Run, fixed: list[str | Path]) -> None:
    result = run("optimize", MODEL, "--dry-run", *fixed, "--json", "-v")
    assert json.loads(result.stdout)["model"]["format"] == "onnx"
    assert "read (1 step)" in result.stderr
    assert "search and prove: norm_linear" in result.stderr


def test_a_dry_run_writes_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for out in ([], ["-o", "out"]):
        result = run("optimize", MODEL, "--dry-run", "--target", "cpu", "--jobs", "1", "--no-cache", *out, "--json")
        assert json.loads(result.stdout)["fragments"][0]["name"] == "norm_linear"
        assert list(tmp_path.iterdir()) == []


def test_standard_input(run: Run, fixed: list[str | Path]) -> None:
    arguments = ("--dry-run", *fixed, "--json")
    piped = json.loads(run("optimize", "-", *arguments, input=MODEL.read_bytes()).stdout)
    read = json.loads(run("optimize", MODEL, *arguments).stdout)
    assert piped["model"] == read["model"] | {"path": "-"}
    assert [f["id"] for f in piped["fragments"]] == [f["id"] for f in read["fragments"]]


def test_a_folder_that_is_not_ours_is_refused(run: Run, tmp_path: Path, fixed: list[str | Path]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = run("optimize", MODEL, "-o", tmp_path, *fixed, "--json")
    assert result.exit_code == 2
    assert f"{tmp_path} holds files that mirage did not write" in error_of(result)["message"]
    assert tree(tmp_path) == {"notes.txt": b"mine"}


def test_existing_output_is_replaced_whole(run: Run, tmp_path: Path, fixed: list[str | Path]) -> None:
    out = tmp_path / "out"
    assert run("optimize", MODEL, "-o", out, *fixed, "--force").exit_code == 0
    (out / "notes.txt").write_text("mine")
    before = tree(out)
    assert run("optimize", MODEL, "-o", out, *fixed, "--skip", "*").exit_code == 2
    assert tree(out) == before
    (out / "notes.txt").unlink()
    inode = out.stat().st_ino
    assert run("optimize", MODEL, "-o", out, *fixed, "--skip", "*").exit_code == 0
    assert out.stat().st_ino != inode
    assert not (out / "libmirage.so").exists()
    assert json.loads((out / "report.json").read_text())["coverage"]["nodes"] == 0
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_run_that_fails_leaves_the_output_of_before(
    run: Run, tmp_path: Path, fixed: list[str | Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert run("optimize", MODEL, "-o", out, *fixed, "--skip", "*").exit_code == 0
    before = tree(out)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "model.onnx")

    monkeypatch.setattr(saving, "save", full)
    result = run("optimize", MODEL, "-o", out, *fixed, "--force", "--json")
    assert result.exit_code == 5
    assert error_of(result)["message"] == "model.onnx: No space left on device"
    assert tree(out) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


# --- options ----------------------------------------------------------------------------------------------------------
ALL = [
    *(
        "--target-file",
        "rates.yaml",
        "--shape",
        "x=1x128",
        "--shape",
        "y=2",
        "--dim",
        "b=4",
        "--dim",
        "s=1:16:32",
        "--target",
        "cuda",
        "--target",
        "cpu",
    ),
    *("--arch", "sm_80", "--arch", "native", "--gpu", "1", "--only", "*attn*", "--skip", "a", "--skip", "b"),
    *("--max-kernels", "3", "--max-ops", "9", "--candidates", "2", "--budget", "1.5", "--jobs", "3", "--seed", "7"),
    *("--without", "order", "--without", "fusion"),
    *("--confidence", "60", "--cache", "there", "--max-memory", "4G", "--require-coverage", "flops=0.95"),
    *("--dry-run", "--force", "--strict", "--inputs", "given.npz"),
    *("--scheduler", "tls://there:8786", "--certificates", "mine"),
    *("--tune-candidates", "12", "--tune-budget", "30", "--tuned", "--data", "weights", "--measure"),
    *("--unwritten", "lora*"),
]
ALL_OPTIONS = Options(
    shape=("x=1x128", "y=2"),
    dim=("b=4", "s=1:16:32"),
    target=("cuda", "cpu"),
    arch=("sm_80", "native"),
    gpu=1,
    only=("*attn*",),
    skip=("a", "b"),
    max_kernels=3,
    max_ops=9,
    candidates=2,
    budget=1.5,
    without=("order", "fusion"),
    jobs=3,
    seed=7,
    confidence=60,
    cache="there",
    max_memory=4 << 30,
    inputs="given.npz",
    require_coverage=("flops=0.95",),
    dry_run=True,
    force=True,
    strict=True,
    tune_candidates=12,
    tune_budget=30.0,
    tuned=True,
    data="weights",
    measure=True,
    scheduler="tls://there:8786",
    certificates="mine",
    target_file="rates.yaml",
    unwritten=("lora*",),
)


def test_every_option_arrives(
    run: Run, asked: list[tuple[str, Path, Options]], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    monkeypatch.setattr(isolation, "limit_memory", limits.append)  # this process goes on without
    for name in Options.__dataclass_fields__:
        assert getattr(ALL_OPTIONS, name) != getattr(Options(), name), name
    assert run("optimize", "m.onnx", "-o", "out", *ALL, "--json").exit_code == 0
    assert asked == [("m.onnx", Path("out"), ALL_OPTIONS)] and limits == [4 << 30]


def test_without_options_the_defaults_arrive(run: Run, asked: list[tuple[str, Path, Options]]) -> None:
    run("optimize", "m.onnx", "-o", "out", "--json")
    assert asked == [("m.onnx", Path("out"), Options())]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--no-cache"], Options(cache="")),
        (["--keep-going"], Options()),
        (["--strict"], Options(strict=True)),
        (["--strict", "--keep-going"], Options()),
    ],
)
def test_opposites(run: Run, asked: list[tuple[str, Path, Options]], arguments: list[str], expected: Options) -> None:
    run("optimize", "m.onnx", "-o", "out", "--json", *arguments)
    assert asked[0][2] == expected


def test_the_command_line_wins_over_the_file(run: Run, asked: list[tuple[str, Path, Options]], tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(config.written(ALL_OPTIONS))
    run("optimize", "m.onnx", "-o", "out", "--json", "--config", path)
    assert asked.pop()[2] == ALL_OPTIONS
    run(
        "optimize",
        "m.onnx",
        "-o",
        "o",
        "--json",
        "--config",
        path,
        "--seed",
        "0",
        "--keep-going",
        "--skip",
        "c",
        "--no-cache",
    )
    assert asked.pop()[2] == replace(ALL_OPTIONS, seed=0, strict=False, skip=("c",), cache="")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_print_config_is_read_back(
    run: Run, asked: list[tuple[str, Path, Options]], tmp_path: Path, form: list[str]
) -> None:
    path = tmp_path / "c.yaml"
    result = run("optimize", *ALL, "--print-config", *form)
    assert (result.exit_code, result.stderr) == (0, "")
    path.write_text(result.stdout)
    assert settings.options(config.read(str(path))) == ALL_OPTIONS
    assert run("optimize", "--config", path, "--print-config", *form).stdout == result.stdout
    assert asked == []


def test_print_config_shows_the_defaults(run: Run) -> None:
    lines = run("optimize", "--print-config").stdout.splitlines()
    assert lines[0].startswith("# ")
    assert [line.partition(":")[0] for line in lines[1:]] == [s.key for s in settings.SETTINGS]
    assert "max-kernels: 4" in lines
