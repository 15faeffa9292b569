"""The library of operators for PyTorch: its source, and calls by way of a stand-in for PyTorch."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.backends import torch_library
from mirage_cli.backends.library import build_library
from mirage_cli.backends.toolchain import Toolchain

from .kernels import AFFINE, NEGATE, SOURCES

HERE = Path(__file__).parent
GOLDEN = HERE / "golden" / "torch_library.cpp"


def test_source() -> None:
    """As it is kept in golden/; MIRAGE_GOLDEN=1 writes it anew."""
    two = replace(NEGATE, outputs=(*NEGATE.outputs, *NEGATE.outputs))
    assert "(Tensor, Tensor)" in torch_library.schema(two)
    text = torch_library.source([AFFINE, NEGATE], {AFFINE.id, NEGATE.id}, {AFFINE.id})
    if os.environ.get("MIRAGE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(cxx: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("torch")
    built = build_library([AFFINE], SOURCES, made, cxx)
    torch_library.build(made, built.built, cxx.cxx)
    stand_in = [*cxx.cxx.command, *cxx.cxx.compile_flags, "-shared", "-fPIC", "-O1", str(HERE / "torch_stand_in.cpp")]
    subprocess.run([*stand_in, "-Wl,-soname,libtorch_cpu.so", "-o", str(made / "libtorch_cpu.so")], check=True)
    return made


@pytest.fixture(scope="module")
def calls(folder: Path) -> dict[str, Any]:
    program = [sys.executable, str(HERE / "torch_calls.py"), str(folder / "libtorch_cpu.so")]
    done = subprocess.run([*program, str(folder / torch_library.LIBRARY)], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


AFFINE_RESULT = [[1.0, 3.0, 5.0, 7.0], [9.0, 11.0, 13.0, 15.0]]


def test_operators_are_registered(calls: dict[str, Any]) -> None:
    assert calls["schemas"] == ["affine_a0(Tensor in0) -> Tensor"]


def test_a_call(calls: dict[str, Any]) -> None:
    assert calls["dense"] == AFFINE_RESULT


def test_tensors_that_are_not_dense_are_copied(calls: dict[str, Any]) -> None:
    assert calls["turned"] == AFFINE_RESULT


def test_empty_tensors(calls: dict[str, Any]) -> None:
    assert calls["empty"] == []


@pytest.mark.parametrize(
    ("case", "phrase"),
    [
        ("type", "input 0 'x' has another type"),
        ("rank", "input 0 'x' has shape [4], expected [batch, 4]"),
        ("width", "input 0 'x' has shape [2, 3], expected [batch, 4]"),
        ("device", "on another device"),
    ],
)
def test_what_does_not_fit_is_an_exception(calls: dict[str, Any], case: str, phrase: str) -> None:
    assert phrase in calls[case]
    assert calls[case].startswith("mirage::affine_a0: ")


def test_no_kernel_for_a_device_means_no_operator_there(calls: dict[str, Any]) -> None:
    assert calls["cuda"] == "no CUDA:affine_a0"


def test_every_tensor_is_given_back(calls: dict[str, Any]) -> None:
    assert calls["live"] == 0


def test_without_torch_the_library_says_so(folder: Path) -> None:
    load = f"import ctypes; ctypes.CDLL({str(folder / torch_library.LIBRARY)!r})"
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=True)
    assert "torch 2.9 or newer must be imported first" in done.stderr


def test_the_folder_rebuilds_it(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(folder), str(copy)], check=True)
    (copy / torch_library.LIBRARY).unlink()
    subprocess.run([str(copy / "src" / "build.sh")], check=True)
    assert (copy / torch_library.LIBRARY).read_bytes() == (folder / torch_library.LIBRARY).read_bytes()
