"""Loops over registers: which run side by side, and that nothing else comes of it; float32, operation by operation."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from mirage_cli.kernel_interpreter import nests
from mirage_cli.kernel_interpreter.numbers import float32
from mirage_cli.kernel_interpreter.rounding import product, rounded
from mirage_cli.kernel_interpreter.statements import Statements
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.reader import read_statements
from mirage_cli.lax.dtypes import F16
from tests.codegen import kernels
from tests.codegen.kernels import Case
from tests.codegen.programs import NAMED, program
from tests.kernel_proof.mutations import corpus

LOOP = "for (int m = 0; m < 2; ++m) for (int i = 0; i < 4; ++i) {{ {0} }}"


@pytest.mark.parametrize(
    ("body", "apart"),
    [
        ("x[m][i] = y[m][i] * 2.0f;", True),
        ("const int n = m * 4 + i; x[n] = x[n] + 1.0f;", True),
        ("total[m] += x[m][i];", True),
        ("total[m] = fmaxf(total[m], x[m][i]);", True),
        ("if (i < 3) x[m][i] = 0.0f;", True),
        ("x[m][i] = x[m][3 - i];", False),  # of another iteration
        ("x[i] = x[i] + 1.0f;", False),  # two iterations have one place
        ("x[m][i] = 1.0f; y[m][i] = x[m][0];", False),
        ("total[m] += 1.0f; x[m][i] = total[m];", False),
        ("x[i] += 1.0f; x[i] *= 2.0f;", False),  # in turns
        ("x[total[i]] = total[i]; total[m] = 1.0f;", False),
        ("__syncthreads(); x[m][i] = 1.0f;", False),
        ("++total; x[m][i] = 1.0f;", False),
    ],
)
def test_which_loops_run_side_by_side(body: str, apart: bool) -> None:
    (loop,) = read_statements(LOOP.format(body))
    assert isinstance(loop, ir.For)
    assert (nests.nest_of(loop) is not None) == apart


@pytest.mark.parametrize("engine", ["block", "strip", "warpgroup"])
def test_side_by_side_is_one_by_one(engine: str) -> None:
    case = next(c for c in corpus(engine) if "attention" in c.name)
    arrays, calls = case.inputs(), []
    run = nests.SideBySide._run
    with mock.patch.object(nests.SideBySide, "_run", lambda *a: (calls.append(a), run(*a))):
        together = _outputs(case, arrays)
    assert calls
    with mock.patch.object(Statements, "nest", lambda self, st, one_by_one: one_by_one):
        alone = _outputs(case, arrays)
    np.testing.assert_allclose(together, alone, rtol=2 * F16.epsilon)


def _outputs(case: Case, arrays: list[np.ndarray]) -> np.ndarray:
    kernels.source_of.cache_clear()
    found = kernels.answered(case, arrays)
    assert not isinstance(found, str), found
    return found[0].astype(np.float64)


def test_float32_is_rounded_by_operation() -> None:
    a = float32()
    one, small = a.literal("1.0f"), a.literal("0x1p-24f")
    assert (a.apply("add", a.apply("add", one, small), small).a == 1).all()
    assert (a.apply("add", one, a.apply("add", small, small)).a == 1 + 2.0**-23).all()
    assert a.apply("add", one, a.literal("0x1p-24")).a.dtype == np.float64  # a double
    assert a.literal("0.1f").a.dtype == np.float32
    assert rounded(np.array([1 + 2.0**-11, 1e6, 2.0**-30]), "__half").tolist() == [1, np.inf, 0]
    assert rounded(np.array([1 + 2.0**-8 + 2.0**-20]), "__nv_bfloat16").tolist() == [1 + 2.0**-7]
    ones = np.full((1, 1, 64), 1.0, np.float32)
    assert product(ones * 2.0**24, np.full((1, 64, 1), 1.0, np.float32)).item() == 2.0**30


def test_what_nobody_wrote_is_no_number_in_floats() -> None:
    (case,) = kernels.cases("sum", program(NAMED["rms_linear"], F16), "sm_80", 1, seed=3)
    text = case.render().text
    start = "t6[0] = 0x0p+0f;"
    assert start in text
    found = kernels.interpreted(case, kernels.Source(text.replace(start, "(void)i;")), case.inputs())
    assert not isinstance(found, str) and np.isnan(found[0]).all()
