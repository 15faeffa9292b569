"""`contract.hpp` beside plain loops, for every instruction set of this machine."""

from __future__ import annotations

import re
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from mirage_cli.backends import cpu, hip, toolchain
from mirage_cli.errors import ToolMissing

from . import kernels

SOURCE = Path(__file__).with_name("contract_check.cpp")
CPU = Path(str(files("mirage_cli.templates").joinpath("include", "mirage", "cpu")))
NEEDS = {"base": "", "avx2": "avx2", "avx512": "avx512dq"}


@pytest.mark.parametrize("isa", NEEDS)
def test_contractions_agree_with_plain_loops(isa: str, tmp_path: Path) -> None:
    """Every element, exactly; the lowest instruction set runs under sanitizers."""
    if isa not in cpu.isas() or (NEEDS[isa] and NEEDS[isa] not in Path("/proc/cpuinfo").read_text().split()):
        pytest.skip(f"no {isa} on this machine")
    cxx = toolchain.find_cxx()
    include = files("mirage_cli.templates").joinpath("include")
    level = kernels.SANITIZERS if isa == "base" else ("-O1", *kernels.CALLED)
    flags = [*cpu.FLAGS, *kernels.WARNINGS, *cpu.ISA_FLAGS[isa], *level]
    program = tmp_path / "check"
    command = [*cxx.command, *flags, f"-DMIRAGE_ISA={isa}", f"-I{include}", str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True)
    result = subprocess.run([program], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[:2000] + result.stderr[:2000]


@pytest.mark.parametrize("isa", cpu.ISA_FLAGS)
def test_clang_reads_it(isa: str) -> None:
    """Whose builtins on vectors have other names: the clang that compiles HIP, for every instruction set."""
    try:
        clang = hip.find().command[0]
    except ToolMissing as missing:
        pytest.skip(str(missing))
    flags = [*cpu.FLAGS, *cpu.ISA_FLAGS[isa], f"-DMIRAGE_ISA={isa}", "-Werror", "-fsyntax-only", "-x", "c++"]
    include = files("mirage_cli.templates").joinpath("include")
    subprocess.run([clang, *flags, f"-I{include}", str(SOURCE)], check=True)


@pytest.mark.parametrize("path", sorted(CPU.glob("*.hpp")), ids=lambda p: p.name)
def test_no_header_takes_long_to_read(path: Path) -> None:
    """<immintrin.h> takes as long to read as all that a usual kernel has to compile, three times a fragment."""
    assert "intrin.h" not in "".join(re.findall(r"^ *# *include.*", path.read_text(), re.MULTILINE))
