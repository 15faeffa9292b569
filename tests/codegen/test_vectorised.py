"""The C functions of the operators run on vectors: a branch that the compiler cannot turn into a selection costs a factor."""

from __future__ import annotations

import re
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from mirage_cli.backends import cpu, toolchain

#: those that call the C library, which has no vector versions of them, and conversions that not all processors have
SCALAR = {"m_cos", "m_log", "m_pow", "m_round_f16", "m_sin", "m_softplus"}
FUNCTION = re.compile(r"^MIRAGE_INLINE float (m_\w+)\(((?:float \w+(?:, )?)+)\)", re.MULTILINE)


def test_loops_over_functions_are_vectorised(tmp_path: Path) -> None:
    cxx = toolchain.find(cuda=False).cxx
    if (
        "clang" in cxx.version
        or "zig" in cxx.version
        or not Path("/proc/cpuinfo").exists()
        or not toolchain.is_x86_64()
    ):
        pytest.skip("the compiler's remarks are read as gcc for x86-64 prints them")
    include = files("mirage_cli.templates").joinpath("include")
    functions = FUNCTION.findall(include.joinpath("mirage", "cpu", "math.hpp").read_text())
    assert len(functions) > 20
    lines = ['#include "mirage/cpu/math.hpp"', "using namespace mirage;"]
    for name, parameters in functions:
        operands = ["x[i]", "z[i]", "w[i]"][: parameters.count("float")]
        reads = ", ".join(f"const float* __restrict {v}" for v in "xzw")
        head = f"void t_{name}(float* __restrict y, {reads})"
        lines.append(
            f"{head} {{ (void)z; (void)w; for (int i = 0; i < 64; ++i) y[i] = {name}({', '.join(operands)}); }}"
        )
    source = tmp_path / "loops.cpp"
    source.write_text("\n".join(lines) + "\n")
    flags = [*cpu.FLAGS, *cpu.ISA_FLAGS["avx2"], "-DMIRAGE_ISA=avx2", "-I", str(include), "-fopt-info-vec-optimized"]
    command = [*cxx.command, *flags, "-c", str(source), "-o", str(tmp_path / "loops.o")]
    remarks = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    vectorised = {int(n) for n in re.findall(r"loops\.cpp:(\d+):\d+: optimized: loop vectorized", remarks)}
    missed = {name for k, (name, _) in enumerate(functions, 3) if k not in vectorised}
    assert missed <= SCALAR
