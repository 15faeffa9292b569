"""Kernels as OpenCL C 1.2: forms that the language lacks are gone, and a compiler for the standard takes the text."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from mirage_cli.backends import hip
from mirage_cli.codegen.opencl.printer import OpenCL
from mirage_cli.errors import Refused, ToolMissing
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax.dtypes import BF16, F16, F32, DType
from tests.codegen.kernels import cases
from tests.codegen.programs import NAMED, program

NAMES = ("rms_linear", "attention_masked", "layer_norm_gelu", "integers", "symbolic")
LACKING = (
    "template",
    "[&]",
    "auto ",
    "static_cast",
    "reinterpret_cast",
    "nullptr",
    "::",
    "using ",
    "constexpr",
    "__half",
)


def programs(dtype: DType) -> list[str]:
    """The OpenCL C of kernels, each with its headers."""
    found = [c.render().text for n in NAMES for c in cases(n, program(NAMED[n], dtype), "opencl", 1, 2)]
    return ["".join(re.findall(r'R"CL\((.*?)\)CL"', text, flags=re.DOTALL)) for text in found]


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_of_the_standard(dtype: DType, tmp_path: Path) -> None:
    texts = programs(dtype)
    assert len(texts) == len(NAMES)
    for text in texts:
        kernel = text[text.index("__kernel") :]
        assert [form for form in LACKING if form in kernel] == []
        assert "vload_half" not in kernel and "barrier" in text
    try:
        clang = hip.find().command
    except ToolMissing as missing:
        pytest.skip(f"{missing}: {missing.hint}")
    flags = (
        "-x",
        "cl",
        "-cl-std=CL1.2",
        "-target",
        "spir64",
        "-fsyntax-only",
        "-Wall",
        "-Werror",
        "-Wno-unused-variable",
    )
    flags = (*flags, "-Xclang", "-finclude-default-header")
    for n, text in enumerate(texts):
        (tmp_path / f"{n}.cl").write_text(text)
    files = [f"{n}.cl" for n in range(len(texts))]
    done = subprocess.run([*clang, *flags, *files], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


@pytest.mark.parametrize(
    "statement",
    [
        ir.ForEach(k.of_type("float", reference=True), "x", k.name("parts"), ()),
        k.declare(k.of_type("Chunk", "float", 4), "x"),
        k.assign("x", k.name("Words", 4)),
        k.assign("x", k.construct(k.of_type("Row", "float"), 1)),
    ],
)
def test_what_the_language_has_not(statement: ir.Statement) -> None:
    kernel = ir.Kernel("kernel0", "parameters", (), (32,), (statement,))
    with pytest.raises(Refused, match="OpenCL C"):
        OpenCL(kernel, 0).function(kernel)


def test_a_defined_function_is_where_it_is_called() -> None:
    """Its argument is computed before its parameter hides a variable of the same name."""
    define = k.define("twice", [("int", "step")], k.assign("total", k.name("step"), "+="))
    call = k.run("twice", k.name("step") + 1)
    kernel = ir.Kernel("kernel0", "parameters", (), (32,), (define, k.loop("step", 4, call)))
    text = " ".join(OpenCL(kernel, 0).function(kernel).split())
    assert "{ const int step_ = step + 1; { const int step = step_; total += step; } }" in text
