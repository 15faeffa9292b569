"""Kernels called on arrays, and which libraries are loaded."""

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mirage_cli import runtime
from mirage_cli.errors import MirageError, ModelError, Refused, ToolMissing
from mirage_cli.runtime import Kernel, check_library

from .conftest import make_model, random
from .kernels import AFFINE, NEGATE_BF16, PICKY, REVERSE, WHICH


class Foreign:
    """A tensor of some other framework."""

    def __init__(self, array: np.ndarray[Any, Any], device: int = 1) -> None:
        self.array = array
        self.device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)


@pytest.mark.parametrize("threads", [None, 3])
def test_numpy(library: Path, threads: int | None) -> None:
    x = random(7, 4)
    (y,) = Kernel(library, AFFINE, threads)(x)
    assert np.array_equal(y, 2 * x + 1)
    x = random(200, 3)
    y, total = Kernel(library, REVERSE, threads)(x, np.zeros((10, 5), np.int64))
    assert np.array_equal(y, x[::-1].reshape(100, 6))
    assert total.shape == ()
    assert total == 200


def test_no_symbols_bfloat16_empty(library: Path) -> None:
    assert Kernel(library, WHICH)(random(1))[0].shape == (2,)
    x = random(3, 4).astype(ml_dtypes.bfloat16)
    assert (Kernel(library, NEGATE_BF16)(x)[0] == -x).all()
    assert Kernel(library, AFFINE)(random(0, 4))[0].shape == (0, 4)


def test_dlpack(library: Path) -> None:
    x = random(7, 4)
    assert np.array_equal(Kernel(library, AFFINE)(Foreign(x))[0], 2 * x + 1)
    with pytest.raises(Refused, match="DLPack device 7"):
        Kernel(library, AFFINE)(Foreign(x, 7))
    with pytest.raises(Refused, match="list is not an array"):
        Kernel(library, AFFINE)([1.0])


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (np.zeros((3, 4)), "input 'x' has elements f64, expected f32"),
        (np.zeros((3, 4), ">f4"), "input 'x' is not dense"),
        (np.zeros((3, 4), np.complex64), "input 'x' has elements complex64, expected f32"),
        (np.zeros((4, 3), np.float32).T, "input 'x' is not dense"),
        (np.zeros((6, 4), np.float32)[::2], "input 'x' is not dense"),
        (np.zeros((3, 5), np.float32), r"input 0 'x' has shape \[3, 5\], expected \[batch, 4\] with batch = 3"),
        (np.zeros(4, np.float32), r"input 0 'x' has shape \[4\], expected \[batch, 4\]"),
    ],
)
def test_inputs_that_do_not_fit(library: Path, x: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        Kernel(library, AFFINE)(x)


def test_other_failures(library: Path) -> None:
    with pytest.raises(Refused, match="inputs must share one framework and device, found no inputs"):
        Kernel(library, AFFINE)()
    with pytest.raises(MirageError, match="picky_d3: the kernel ended with error 2"):
        Kernel(library, PICKY)(random(9))
    kernel = Kernel(library, AFFINE)
    assert kernel.has("cpu")
    assert not kernel.has("cuda")


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
