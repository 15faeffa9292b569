"""The same library with CUDA: it builds, loads where there is no CUDA, and runs where there is."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_cli.backends import cuda
from mirage_cli.backends.compile import run_command
from mirage_cli.backends.library import EXPORT_MAP, EXPORTS, BuildResult, build_library
from mirage_cli.backends.spec import KernelSource
from mirage_cli.backends.toolchain import Tool, Toolchain
from mirage_cli.codegen import render
from mirage_cli.errors import Refused
from mirage_cli.kernels.kernel import Kernel
from mirage_cli.runtime import sessions

from .conftest import make_model, random
from .kernels import AFFINE_CUDA, REVERSE, SOURCES

pytestmark = pytest.mark.nvcc
RENDERED = Path(__file__).parents[1] / "codegen" / "golden" / "kernel.cu"


@pytest.fixture(scope="session")
def cuda_library(with_nvcc: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    return build_library((AFFINE_CUDA, REVERSE), SOURCES, tmp_path_factory.mktemp("cuda"), with_nvcc)


@pytest.fixture
def library(cuda_library: BuildResult) -> Path:
    assert not cuda_library.failed
    assert cuda_library.library is not None
    return cuda_library.library


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("no CUDA device")
    return found


@pytest.fixture
def cupy(torch: Any) -> Any:
    return pytest.importorskip("cupy")


def linked(nvcc: Tool, folder: Path) -> bytes:
    """A library of a rendered kernel, compiled in `folder`."""
    (folder / "build").mkdir(parents=True)
    shutil.copytree(render.include_dir(), folder / "include")
    shutil.copy(RENDERED, folder / "golden.cu")
    (folder / EXPORT_MAP).write_text(EXPORTS)
    (job,) = cuda.jobs(nvcc, "golden", ("sm_80",))
    for command in (job.command, cuda.link_command(nvcc, [job.object], "libgolden.so", ("sm_80",))):
        error, _ = run_command(command, "it does not build", folder)
        assert error is None
    return (folder / "libgolden.so").read_bytes()


def test_folder_and_moment_leave_no_trace(with_nvcc: Toolchain, tmp_path: Path) -> None:
    nvcc = with_nvcc.nvcc
    assert nvcc is not None
    assert linked(nvcc, tmp_path / "here") == linked(nvcc, tmp_path / "some where" / "else")


def test_it_runs_on_the_cpu(library: Path) -> None:
    x = random(5, 4)
    assert np.array_equal(Kernel(library, AFFINE_CUDA)(x), 2 * x + 1)
    found = sessions.run(sessions.session(make_model(AFFINE_CUDA), library), {"in0": x})
    assert np.array_equal(found["out0"], 2 * x + 1)


def test_the_cuda_run_time_is_inside_and_hidden(library: Path) -> None:
    needed = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    assert "cuda" not in needed
    printed = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in printed.stdout.splitlines()}
    assert {"mirage_a0", "mirage_a0_workspace"} <= names
    assert {name for name in names if not name.startswith("mirage_")} == {"RegisterCustomOps"}
    assert not any("_avx2" in name or "_base" in name for name in names)


def test_the_commands_name_all_architectures(cuda_library: BuildResult) -> None:
    (command,) = [c for c in cuda_library.commands if "a0.cu" in c]
    assert "arch=compute_80,code=[sm_80,compute_80]" in command
    assert "arch=compute_90a,code=sm_90a" in command
    assert cuda_library.header is not None
    assert "void* cuda_stream" in cuda_library.header.read_text()


def test_a_cuda_kernel_that_does_not_compile(with_nvcc: Toolchain, tmp_path: Path) -> None:
    sources = SOURCES | {"a0": KernelSource("a0", SOURCES["a0"].cpp, "__global__ void f() { nonsense; }\n")}
    result = build_library((AFFINE_CUDA, REVERSE), sources, tmp_path, with_nvcc)
    assert list(result.failed) == ["a0"]
    assert 'a0.cu(1): error: identifier "nonsense" is undefined' in str(result.failed["a0"])
    assert result.built == (REVERSE,)
    assert not any("nvcc" in part for command in result.commands for part in command)


@pytest.mark.gpu
def test_torch(library: Path, torch: Any) -> None:
    x = torch.randn(1000, 4, device="cuda")
    kernel = Kernel(library, AFFINE_CUDA)
    y = kernel(x)
    assert y.device == x.device
    assert torch.equal(y, 2 * x + 1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = kernel(y)
    stream.synchronize()
    assert torch.equal(y, 2 * (2 * x + 1) + 1)
    with pytest.raises(Refused, match="aligned to 16 bytes"):
        kernel(torch.randn(41, device="cuda")[1:].reshape(10, 4))
    host = torch.randn(3, 4)
    assert torch.equal(kernel(host), 2 * host + 1)


@pytest.mark.gpu
def test_a_cuda_graph(library: Path, torch: Any) -> None:
    x = torch.randn(64, 4, device="cuda")
    kernel = Kernel(library, AFFINE_CUDA)
    kernel(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = kernel(x)
    x.fill_(3)
    graph.replay()
    assert (y == 7).all()


@pytest.mark.gpu
def test_cupy(library: Path, cupy: Any) -> None:
    x = cupy.arange(40, dtype=cupy.float32).reshape(10, 4)
    assert (Kernel(library, AFFINE_CUDA)(x) == 2 * x + 1).all()


@pytest.mark.gpu
def test_onnxruntime(library: Path, torch: Any) -> None:
    if "cuda" not in sessions.providers():
        pytest.skip("onnxruntime without its CUDA provider")
    made = sessions.session(make_model(AFFINE_CUDA), library, "cuda")
    for rows in (5, 0, 70000):
        x = random(rows, 4)
        assert np.array_equal(sessions.run(made, {"in0": x})["out0"], 2 * x + 1)
