"""What is said of a CUDA error: a run-time library that plays driver and device, under the library's own words."""

from __future__ import annotations

import ctypes
import subprocess

import pytest

from mirage_cli.backends import cpu
from mirage_cli.backends.library import tables
from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.codegen.render import include_dir
from mirage_cli.errors import MirageError, OutOfResources, Refused, ToolMissing
from mirage_cli.machine import devices
from mirage_cli.runtime import sessions

from .kernels import AFFINE_CUDA

RUN_TIME = """
#include <stddef.h>
#include <stdint.h>
int driver = 0, capability = 0;
int cudaDriverGetVersion(int* version) { return *version = driver, 0; }
int cudaRuntimeGetVersion(int* version) { return *version = 13010, 0; }
int cudaGetDevice(int* device) { return *device = 0, capability == 0 ? 35 : 0; }
int cudaDeviceGetAttribute(int* value, int attribute, int device) {
    return *value = attribute == 75 ? capability / 10 : capability % 10, device;
}
const char* cudaGetErrorName(int code) { return code ? "cudaErrorOfTests" : ""; }
const char* cudaGetErrorString(int code) { return code ? "it failed" : ""; }
int cudaMallocAsync(void** at, size_t bytes, void* stream) { return at == stream && bytes; }
int cudaFreeAsync(void* at, void* stream) { return at == stream; }
int cudaDeviceGetDefaultMemPool(void** pool, int device) { return pool == NULL && device; }
int cudaMemPoolGetAttribute(void* pool, int attribute, void* value) { return pool == value && attribute; }
int cudaMemPoolSetAttribute(void* pool, int attribute, void* value) { return pool == value && attribute; }
int cudaGetLastError(void) { return 0; }
int mirage_ID(void) { return 0; }
int64_t mirage_ID_workspace(void) { return 0; }
"""


@pytest.fixture(scope="module")
def library(cxx: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The tables of a library whose only kernel is for CUDA, and what they are linked with."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "build").mkdir()
    (folder / "include").symlink_to(include_dir())
    (folder / "library.cpp").write_text(tables((AFFINE_CUDA,), set(), {AFFINE_CUDA.id}, [])[0])
    (folder / "run_time.cpp").write_text(f'extern "C" {{{RUN_TIME.replace("ID", AFFINE_CUDA.id)}}}')
    jobs = cpu.library_jobs(cxx.cxx, ("sm_80", "sm_90a"))
    for job in jobs:
        subprocess.run([part if part != "-O1" else "-O0" for part in job.command], cwd=folder, check=True)
    objects = [job.object for job in jobs]
    link = [*cxx.cxx.command, *cxx.cxx.compile_flags, "-shared", "-fPIC", "run_time.cpp", *objects]
    own = "-Wl,-Bsymbolic"  # and not those of a run-time library that torch or onnxruntime have loaded for all
    subprocess.run([*link, *cxx.cxx.link_flags, own, "-o", "libmirage.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "libmirage.so"))


def told(library: ctypes.CDLL, code: int, driver: int = 0, capability: int = 0) -> MirageError:
    for name, value in (("driver", driver), ("capability", capability)):
        ctypes.c_int.in_dll(library, name).value = value
    return sessions.cuda_failure(library, "Affine", code)


@pytest.mark.parametrize(("driver", "said"), [(12020, "the NVIDIA driver is for CUDA 12.2"), (0, "there is no NVIDIA")])
def test_a_driver_that_is_too_old(library: ctypes.CDLL, driver: int, said: str) -> None:
    error = told(library, 35, driver)
    assert isinstance(error, ToolMissing)
    assert said in str(error)
    assert str(error).endswith("; this library was built with CUDA 13.1")
    assert error.hint == devices.UPDATE


@pytest.mark.parametrize(("capability", "said"), [(89, "the device has compute capability 8.9; "), (0, "")])
def test_a_device_that_the_library_has_no_code_for(library: ctypes.CDLL, capability: int, said: str) -> None:
    error = told(library, 209, 13010, capability)
    assert isinstance(error, Refused)
    assert str(error).endswith(f"it failed; {said}this library holds code for sm_80, sm_90a")
    assert "--arch native" in error.hint


def test_other_errors(library: ctypes.CDLL) -> None:
    assert isinstance(told(library, 2), OutOfResources)
    error = told(library, 700)
    assert (type(error), error.hint) == (MirageError, "")
    assert str(error) == "Affine: the kernel ended with CUDA error 700 (cudaErrorOfTests): it failed"


def test_a_library_that_knows_no_words() -> None:
    assert str(sessions.cuda_failure(ctypes.CDLL(None), "Affine", 9)) == "Affine: the kernel ended with CUDA error 9"
