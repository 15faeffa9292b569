"""`contract.hpp` beside plain loops, for every instruction set of this machine."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from mirage_cli.backends import cpu, toolchain

from . import kernels

SOURCE = Path(__file__).with_name("contract_check.cpp")
NEEDS = {"base": "", "avx2": "avx2", "avx512": "avx512dq"}


@pytest.mark.parametrize("isa", NEEDS)
def test_contractions_agree_with_plain_loops(isa: str, tmp_path: Path) -> None:
    """Every element, exactly; the lowest instruction set runs under sanitizers."""
    if isa not in cpu.isas() or (NEEDS[isa] and NEEDS[isa] not in Path("/proc/cpuinfo").read_text().split()):
        pytest.skip(f"no {isa} on this machine")
    cxx = toolchain.find_cxx()
    include = files("mirage_cli.templates").joinpath("include")
    level = kernels.SANITIZERS if isa == "base" else ("-O1",)
    flags = [*cpu.FLAGS, *kernels.WARNINGS, *cpu.ISA_FLAGS[isa], *level]
    program = tmp_path / "check"
    command = [*cxx.command, *flags, f"-DMIRAGE_ISA={isa}", f"-I{include}", str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True)
    result = subprocess.run([program], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[:2000] + result.stderr[:2000]
