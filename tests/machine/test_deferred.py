"""onnx_ir without sympy, in fresh processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: what onnx_ir computes with sympy, and what it can do without
PROGRAM = """
import sys
{first}
import mirage_cli
import onnx_ir
assert ("sympy" in sys.modules) is {loaded}, "before"
n, unknown = onnx_ir.SymbolicDim("n"), onnx_ir.SymbolicDim(None)
assert n == "n" and onnx_ir.Shape(["n", 2])[0] == n and unknown.value is None
assert ("sympy" in sys.modules) is {loaded}, "symbols alone"
assert (n + 1).value == "n + 1" and onnx_ir.SymbolicDim("max(3, 5) * 2") + 0 == "10"
assert onnx_ir.SymbolicDim("floor(n / 2)").evaluate({{"n": 7}}) == 3
import sympy, sympy.core
assert sympy.__file__ and isinstance(sympy.Symbol("n") + 1, sympy.Expr)
assert onnx_ir.SymbolicDim(sympy.Symbol("k") * 2).value == "2*k"
assert onnx_ir.__spec__.loader is onnx_ir.__loader__ and onnx_ir.__loader__.get_source("onnx_ir")
"""


@pytest.mark.parametrize(("first", "loaded"), [("", False), ("import sympy", True), ("import onnx_ir", True)])
def test_sympy_is_imported_when_it_is_used(first: str, loaded: bool) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(first=first, loaded=loaded)], check=False)
    assert done.returncode == 0
