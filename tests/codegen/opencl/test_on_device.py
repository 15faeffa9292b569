"""Kernels in OpenCL C, run on the first device there is (in CI: PoCL), beside float64."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
import pytest

from mirage_cli.lax.dtypes import BF16, F16, F32
from samples import operators
from tests.codegen import kernels
from tests.codegen.kernels import Case
from tests.codegen.opencl import runs
from tests.codegen.opencl.cases import OPENCL, of_model
from tests.codegen.programs import NAMED, program
from tests.optimization import test_quantized
from tests.random_programs import alone

pytestmark = pytest.mark.opencl
KINDS = (
    "rmsnorm_gain_linear",
    "gated_mlp",
    "lora_adapters",
    "mha",
    "attention_masked",
    "gqa_decode",
    "mla",
    "moe_gated",
)
BRAIN = ("rms_linear", "gated", "lora", "attention", "attention_masked", "attention_causal")
ODD = ("attention_causal", "attention_symbolic", "integers", "symbolic", "two_outputs")


def problems(cases: Iterable[Case], folder: Path) -> list[str]:
    """What is wrong with the answers of kernels."""
    found = list(cases)
    assert found
    library = runs.Library([c.render().text for c in found], folder)
    wrong = []
    for case in found:
        arrays = case.inputs()
        if problem := case.problem(library.run(case, arrays), arrays):
            wrong.append(f"{case.name}: {problem}")
    return wrong


@pytest.mark.parametrize("part", range(4))
def test_operators(part: int, tmp_path: Path) -> None:
    names = list(operators.OPERATORS)[part::4]
    assert (
        problems((c for n in names for c in of_model(f"{n}fp32".replace("_", ""), operators.build(n))), tmp_path) == []
    )


@pytest.mark.parametrize("part", range(2))
def test_kinds_in_half_precision(part: int, tmp_path: Path) -> None:
    models = ((n, operators.build(n, "small", "fp16")) for n in KINDS[part::2])
    assert problems((c for n, m in models for c in of_model(f"{n}fp16".replace("_", ""), m)), tmp_path) == []


def test_kinds_in_bfloat16(tmp_path: Path) -> None:
    made = ((n, program(NAMED[n], BF16)) for n in BRAIN)
    assert problems((c for n, p in made for c in kernels.cases(n, p, OPENCL, 1, 5)), tmp_path) == []


def test_packed_weights(tmp_path: Path) -> None:
    made = {n: test_quantized.CASES[n] for n in ("zero_points", "half", "int4")}
    paths = [test_quantized.quantized(sample, tmp_path / f"{n}.onnx", **how) for n, (sample, how) in made.items()]
    models = map(onnx.load, paths)
    assert problems((c for k, m in enumerate(models) for c in of_model(f"packed{k}", m)), tmp_path) == []


def test_small_programs(tmp_path: Path) -> None:
    made = ((n, program(NAMED[n], (F32, F16, BF16)[k % 3])) for k, n in enumerate(ODD))
    assert problems((c for n, p in made for c in kernels.cases(n, p, OPENCL, 1, 3)), tmp_path) == []


def test_random_programs(tmp_path: Path) -> None:
    assert problems((c for n in range(8) for c in alone.cases(n, 28, OPENCL)), tmp_path) == []
