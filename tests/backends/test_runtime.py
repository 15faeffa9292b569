"""Kernels called on arrays, which libraries are loaded, and what is said of GPUs that onnxruntime cannot use."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.errors import MirageError, ModelError, OutOfResources, Refused, ToolMissing
from mirage_cli.kernels.kernel import Kernel
from mirage_cli.machine import devices
from mirage_cli.runtime import sessions
from mirage_cli.runtime.sessions import check_library

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
        sessions.session(b"", tmp_path / "other.so")


def test_group_writable(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "libmirage.so"
    shutil.copy(library, copy)
    tmp_path.chmod(0o770)
    check_library(copy)  # our own group, as on systems with one group for each user
    monkeypatch.setattr("os.getegid", lambda: tmp_path.stat().st_gid + 1)
    with pytest.warns(UserWarning, match=r"group \d+ may change"):
        check_library(copy)


def test_sessions(library: Path, tmp_path: Path) -> None:
    assert "cpu" in sessions.providers()
    with pytest.raises(ModelError, match=r"cannot load .*broken.onnx"):
        (tmp_path / "broken.onnx").write_bytes(b"nothing")
        sessions.session(tmp_path / "broken.onnx")
    if "cuda" not in sessions.providers():
        with pytest.raises(ToolMissing, match="no provider for 'cuda'"):
            sessions.session(make_model(AFFINE), library, "cuda")
    made = sessions.session(make_model(AFFINE), library)
    with pytest.raises(MirageError, match="onnxruntime failed"):
        sessions.run(made, {"wrong": random(1, 4)})


# ---- GPUs that fail --------------------------------------------------------------------------------------------------
FULL = """[ONNXRuntimeError] : 1 : FAIL : /src/cuda_call.cc:154 CudaCall(ERRTYPE) [with ERRTYPE = cudaError]
CUDA failure 2: out of memory ; GPU=0 ; hostname=vm ; file=/src/cuda_execution_provider.cc ; expr=cudaSetDevice(0);
"""


class Onnxruntime:
    """A session that says what a GPU made of it."""

    def __init__(self, fault: str = "", providers: tuple[str, ...] = ("CPUExecutionProvider",)) -> None:
        self.fault, self.found = fault, providers

    def __call__(self, source: Any, options: Any, providers: Any, enable_fallback: int = 1) -> Onnxruntime:
        assert not enable_fallback, "the CPU in the place of a GPU"
        if self.fault:
            raise RuntimeError(self.fault)
        return self

    def get_providers(self) -> tuple[str, ...]:
        return self.found

    def get_outputs(self) -> list[Any]:
        return []

    get_inputs = get_outputs

    def run(self, *_: Any) -> None:
        raise RuntimeError("Status Message: CUDA error cudaErrorMemoryAllocation:out of memory")


def started(monkeypatch: pytest.MonkeyPatch, made: Onnxruntime, driver: tuple[int, int] | None = (13, 0)) -> Any:
    import onnxruntime

    monkeypatch.setattr(sessions, "providers", lambda: ("cpu", "cuda"))
    monkeypatch.setattr(devices, "driver_cuda", lambda: driver)
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0", raising=False)
    monkeypatch.setattr(onnxruntime, "InferenceSession", made)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    return sessions.session(b"", provider="cuda")


def test_a_gpu_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutOfResources) as told:
        started(monkeypatch, Onnxruntime(FULL))
    assert str(told.value) == "onnxruntime cannot start its provider for cuda: CUDA failure 2: out of memory"
    assert "nvidia-smi" in told.value.hint
    with pytest.raises(
        OutOfResources, match="onnxruntime failed: Status Message: CUDA error cudaErrorMemoryAllocation"
    ):
        sessions.run(Onnxruntime(), {})


def test_a_kernel_that_the_gpu_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError(
            "mirage.x: CUDA error 209 (cudaErrorNoKernelImageForDevice); this library holds code for sm_80"
        )

    monkeypatch.setattr(Onnxruntime, "run", fail)
    with pytest.raises(Refused, match="holds code for sm_80") as told:
        sessions.run(Onnxruntime(), {})
    assert "--arch native" in told.value.hint


def test_a_driver_that_is_too_old_for_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolMissing, match=r"for CUDA 12\.2, too old for onnxruntime, which is for CUDA 13\.0"):
        started(monkeypatch, Onnxruntime(), (12, 2))
    with pytest.raises(ToolMissing) as told:
        started(monkeypatch, Onnxruntime())
    said = "onnxruntime (built for CUDA 13.0; the NVIDIA driver is for CUDA 13.0) could not start its provider for cuda"
    assert (str(told.value), told.value.hint) == (said, sessions.CUDA_LIBRARIES_COMMAND)
    both = Onnxruntime(providers=("CUDAExecutionProvider", "CPUExecutionProvider"))
    assert started(monkeypatch, both) is both
