"""The matrix product of `wgmma.cuh`: the instruction of every width, type and kind of left operand, as nvcc prints it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from mirage_cli.backends import toolchain
from mirage_cli.codegen import render
from mirage_cli.errors import ToolMissing

WIDTHS = range(8, 257, 8)
TYPES = {"f16": "__half", "bf16": "__nv_bfloat16"}
KERNEL = """__global__ void of_{name}_{columns}(float* p, const uint32_t (&w)[4], uint64_t a, uint64_t b, bool more) {{
    float c[{columns} / 8][4];
    for (int n = 0; n < {columns} / 2; ++n) c[n / 4][n % 4] = p[n];
    wgmma<{columns}, {type}, true, false>(c, a, b, more);
    wgmma<{columns}, {type}, true>(c, w, b, more);
    for (int n = 0; n < {columns} / 2; ++n) p[n] = c[n / 4][n % 4];
}}"""
PRODUCT = re.compile(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(\w+)\.(\w+) \{(.*?)\}, (.*?);")


@pytest.mark.nvcc
def test_every_width_and_type(tmp_path: Path) -> None:
    """Each adds to as many registers as it has columns for a thread, in order, and says which operands are turned."""
    try:
        nvcc = toolchain.find_nvcc()
    except ToolMissing as missing:
        pytest.skip(str(missing))
    kernels = [KERNEL.format(name=n, columns=c, type=t) for c in WIDTHS for n, t in TYPES.items()]
    (tmp_path / "all.cu").write_text(
        "\n".join(['#include "mirage/cuda/wgmma.cuh"', "using namespace mirage;", *kernels])
    )
    command = [*nvcc.command, *nvcc.compile_flags, "-std=c++17", "-O3", "-arch=sm_90a", f"-I{render.include_dir()}"]
    done = subprocess.run(
        [*command, "-ptx", "all.cu", "-o", "all.ptx"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:4000]
    found = PRODUCT.findall((tmp_path / "all.ptx").read_text())
    assert [f[:3] for f in found] == [(str(c), t, t) for c in WIDTHS for t in TYPES for _ in range(2)]
    for columns, _, _, registers, _ in found:
        numbers = [int(n) for n in re.findall(r"\d+", registers)]
        assert len(numbers) == int(columns) // 2 and numbers == sorted(set(numbers))
    kinds = [re.sub(r"%\w+", "r", operands) for *_, operands in found]
    assert kinds == ["r, r, p, 1, 1, 1, 0", "{r, r, r, r}, r, p, 1, 1, 1"] * (len(WIDTHS) * len(TYPES))
