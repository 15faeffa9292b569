"""Devices that cannot, or fail: a kernel's entry point says what is wrong, and the next call starts anew."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mirage_cli.codegen.render import include_dir
from mirage_cli.lax.dtypes import F32
from tests.codegen.kernels import cases
from tests.codegen.programs import NAMED, program

HERE = Path(__file__).parent
MAIN = """
#include <cstdio>
int main() {
    mirage_opencl_tensor t = {nullptr, 0};
    const void* in[8] = {&t, &t, &t, &t};
    void* out[8] = {&t, &t, &t, &t};
    for (int call = 0; call < 2; ++call) {
        const int status = mirage_NAME_opencl(in, out, &t, nullptr, &t);
        std::printf("%d: %s\\n", status, status != 0 ? mirage::opencl::message() : "");
    }
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that calls a kernel twice, and two platforms, of which one lacks a function."""
    place = tmp_path_factory.mktemp("hostile")
    (case,) = cases("layer", program(NAMED["layer_norm_gelu"], F32), "opencl", 1, 1)
    text = case.render().text
    assert "double" in text
    (place / "main.cpp").write_text(f"{text}\nusing namespace kernels_{case.name};{MAIN.replace('NAME', case.name)}")
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-fno-exceptions", "-fno-rtti", f"-I{include_dir()}")
    subprocess.run(["g++", *flags, "main.cpp", "-o", "main", "-ldl"], cwd=place, check=True)
    for name, more in (("whole", ()), ("lacking", ("-DWITHOUT_ENQUEUE",))):
        made = ["gcc", "-shared", "-fPIC", *more, str(HERE / "hostile.c"), "-o", f"{name}.so"]
        subprocess.run(made, cwd=place, check=True)
    return place


def said(folder: Path, hostile: str, library: str = "./whole.so") -> list[str]:
    surroundings = os.environ | {"HOSTILE": hostile, "MIRAGE_OPENCL_LIBRARY": library}
    done = subprocess.run(["./main"], cwd=folder, env=surroundings, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("hostile", "answer"),
    [
        ("", "0: "),
        ("no double", "2: a hostile device has no numbers of 64 bits (cl_khr_fp64), which this kernel sums in"),
        ("little memory", "2: a hostile device has 512 bytes of local memory, this kernel asks for 4096"),
        (
            "no build",
            "-11: a hostile device does not build the kernels (OpenCL error -11): error: line 7: no such thing",
        ),
        ("no program", "-6: clCreateProgramWithSource failed with OpenCL error -6"),
        ("no kernel", "-46: clCreateKernel failed with OpenCL error -46"),
        ("no argument", "-51: clSetKernelArg failed with OpenCL error -51"),
        ("no resources", "-5: clEnqueueNDRangeKernel failed with OpenCL error -5"),
        ("bad queue", "-36: clGetCommandQueueInfo failed with OpenCL error -36"),
    ],
)
def test_answers_of_a_device(folder: Path, hostile: str, answer: str) -> None:
    assert said(folder, hostile) == [answer, answer]


def test_groups_that_are_too_small(folder: Path) -> None:
    assert said(folder, "small groups")[0].startswith("2: a hostile device runs groups of 8 work-items of this kernel")


@pytest.mark.parametrize(
    ("library", "name"), [("./none.so", "clGetCommandQueueInfo"), ("./lacking.so", "clEnqueueNDRangeKernel")]
)
def test_a_library_that_is_missing_or_lacks_a_function(folder: Path, library: str, name: str) -> None:
    answer = f"1: libOpenCL.so.1 is not there or has no {name} (apt install ocl-icd-libopencl1)"
    assert said(folder, "", library) == [answer] * 2
