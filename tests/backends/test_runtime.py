"""Kernels called on arrays, and which libraries are loaded."""

import shutil
from pathlib import Path

import pytest

from mirage_cli import runtime
from mirage_cli.errors import MirageError, ModelError, Refused, ToolMissing
from mirage_cli.kernel import Kernel
from mirage_cli.runtime import check_library

from .conftest import make_model, random
from .kernels import AFFINE


def test_libraries_that_anybody_may_replace(library: Path, tmp_path: Path) -> None:
    copy = tmp_path / "libmirage.so"
    shutil.copy(library, copy)
    copy.chmod(0o644)
    assert check_library(copy) == copy
    tmp_path.chmod(0o777)
    with pytest.raises(Refused, match="is writable for everybody") as refused:
        check_library(copy)
    assert refused.value.hint == f"chmod o-w {tmp_path}"
    tmp_path.chmod(0o1777)
    with pytest.warns(UserWarning, match="everybody may add files"):
        check_library(copy)
    tmp_path.chmod(0o700)
    copy.chmod(0o666)
    with pytest.raises(Refused, match="is writable for everybody"):
        Kernel(copy, AFFINE)
    copy.chmod(0o644)
    with pytest.raises(Refused, match="there is no library"):
        runtime.session(b"", tmp_path / "other.so")


def test_group_writable(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "libmirage.so"
    shutil.copy(library, copy)
    tmp_path.chmod(0o770)
    check_library(copy)  # our own group, as on systems with one group for each user
    monkeypatch.setattr("os.getegid", lambda: tmp_path.stat().st_gid + 1)
    with pytest.warns(UserWarning, match=r"group \d+ may change"):
        check_library(copy)


def test_sessions(library: Path, tmp_path: Path) -> None:
    assert "cpu" in runtime.providers()
    with pytest.raises(ModelError, match=r"cannot load .*broken.onnx"):
        (tmp_path / "broken.onnx").write_bytes(b"nothing")
        runtime.session(tmp_path / "broken.onnx")
    if "cuda" not in runtime.providers():
        with pytest.raises(ToolMissing, match="no provider for 'cuda'"):
            runtime.session(make_model(AFFINE), library, "cuda")
    made = runtime.session(make_model(AFFINE), library)
    with pytest.raises(MirageError, match="onnxruntime failed"):
        runtime.run(made, {"wrong": random(1, 4)})
