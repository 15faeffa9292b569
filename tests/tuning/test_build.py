"""Candidates made into libraries: what is refused, what does not compile, and a real one where there is an nvcc."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.backends.compile import CompileJob
from mirage_cli.backends.toolchain import Tool, Toolchain
from mirage_cli.codegen.requests.passes import ALL
from mirage_cli.errors import CompileError
from mirage_cli.lax.dtypes import F16
from mirage_cli.lax.ir.program import Program
from mirage_cli.planning.plan import PlanOptions, newest, plan_fragment
from mirage_cli.search.search import Candidate
from mirage_cli.tuning import build
from mirage_cli.tuning.build import Settings, Workshop
from mirage_cli.tuning.candidates import REFUSED, Built
from tests.codegen.programs import NAMED, program

TOOL = Tool(("nvcc",), "nvcc 13.0", "a test")


@pytest.fixture(scope="module")
def planned() -> tuple[Program, tuple[Candidate, ...]]:
    p = program(NAMED["rms_linear"], F16)
    return p, plan_fragment("ab", "norm", p, 3, PlanOptions({"cuda": ("sm_90a",)}, pool=4)).pool


def workshop(p: Program, folder: Path, nvcc: Tool = TOOL) -> Workshop:
    return Workshop("ab", p, newest(["sm_90a"]), ALL, folder, Settings(nvcc, "sm_90a", 1, None))


def test_what_cannot_be_built_says_why(
    planned: tuple[Program, tuple[Candidate, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, (first, second, *_) = planned
    asked: list[list[CompileJob]] = []

    def compiled(jobs: Sequence[CompileJob], *_: Any) -> dict[CompileJob, CompileError]:
        asked.append(list(jobs))
        return {job: CompileError("made to fail") for job in jobs if "abx1x" in (tmp_path / job.source).read_text()}

    monkeypatch.setattr(build, "compile_objects", compiled)
    monkeypatch.setattr(Workshop, "_link", lambda *_: "")  # both are in one module, then alone
    again = replace(first, predicted_us=99.0)
    made = workshop(p, tmp_path)
    found = made.build([first, second, again])
    assert found[0] == tmp_path / "candidate0.so"
    assert found[1] == "it does not compile: made to fail"
    assert found[2] == f"{REFUSED}the same code as an earlier candidate"
    assert [[job.fragment for job in jobs] for jobs in asked] == [["candidate0"], ["candidate0", "candidate1"]]
    assert "mirage_abx0x(" in (tmp_path / "candidate0.cu").read_text()
    assert made.build([again]) == [f"{REFUSED}the same code as an earlier candidate"]


def test_nothing_left_to_compile(planned: tuple[Program, tuple[Candidate, ...]], tmp_path: Path) -> None:
    p, (first, *_) = planned
    made = workshop(p, tmp_path)
    made.target = replace(made.target, shared_bytes=64)
    (found,) = made.build([first])
    assert str(found).startswith(f"{REFUSED}")
    assert "64" in str(found)


@pytest.mark.nvcc
def test_a_library_holds_the_entry_points(
    planned: tuple[Program, tuple[Candidate, ...]], tmp_path: Path, with_nvcc: Toolchain
) -> None:
    p, (first, second, *_) = planned
    assert with_nvcc.nvcc is not None
    libraries = workshop(p, tmp_path, with_nvcc.nvcc).build([first, second])
    own = [kernels(library) for library in libraries]
    assert own[0] != own[1]
    assert [names for _, names in own] == [own[0][1]] * 2  # both have the kernels of one module
    alone = workshop(p, tmp_path / "alone", with_nvcc.nvcc)
    alone.folder.mkdir()
    assert kernels(*alone.build([second]))[0] >= 0


def kernels(library: Built) -> tuple[int, set[str]]:
    """Where a library has its entry point, in bytes from the other candidates', and the entry points of all."""
    loaded = ctypes.CDLL(str(library))
    loaded.mirage_ab_workspace.restype = ctypes.c_int64
    assert loaded.mirage_ab_workspace(None) >= 0
    names = {f"mirage_abx{k}x" for k in range(2) if hasattr(loaded, f"mirage_abx{k}x")}
    place = {n: ctypes.cast(getattr(loaded, n), ctypes.c_void_p).value or 0 for n in ("mirage_ab", *names)}
    return place["mirage_ab"] - min(place[n] for n in names), names
