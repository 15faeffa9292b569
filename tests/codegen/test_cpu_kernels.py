"""CPU kernels of odd extents under several schedules, compiled with all warnings and run under sanitizers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_cli.backends import toolchain
from mirage_cli.backends.cpu import FLAGS, ISA_FLAGS
from mirage_cli.backends.library import build_library
from mirage_cli.backends.spec import KernelSource, OperatorSpec, TensorSpec
from mirage_cli.kernel_language import ir
from mirage_cli.kernels.kernel import Kernel
from mirage_cli.lax.dtypes import BF16, F16, F32, I64, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph

from . import kernels
from .kernels import Case
from .programs import NAMED, ROWS, normed_keys, program, random_build

RANDOM = 12


def every_case() -> list[Case]:
    """Kernels of all named programs and of random ones."""
    found: list[Case] = []
    for k, (name, build) in enumerate(NAMED.items()):
        for dtype in (F16, (F32, BF16)[k // 2 % 2]):
            found += kernels.cases(f"{name.replace('_', '')}{dtype.name}", program(build, dtype), "cpu", 1, seed=k)
    for seed in range(RANDOM):
        build, dtype = random_build(1000 + seed)
        found += kernels.cases(f"random{seed}", program(build, dtype), "cpu", 2, seed=seed)
    return found


@pytest.fixture(scope="module")
def every() -> list[Case]:
    return every_case()


def test_sanitizers_have_nothing_to_report(every: list[Case], tmp_path: Path) -> None:
    assert len(every) >= 2 * len(NAMED) + RANDOM
    some = every[::3]
    texts = {c.name: c.render().text for c in some}
    harness = kernels.build(texts, tmp_path, [*kernels.CPU_FLAGS, *kernels.SANITIZERS])
    assert kernels.run(harness, some) == []


def test_sums_within_a_loop_of_unknown_length(tmp_path: Path) -> None:
    found = list(kernels.cases("keys", program(normed_keys, F32), "cpu", 2))
    assert len(found) == 2
    texts = {c.name: c.render().text for c in found}
    assert kernels.run(kernels.build(texts, tmp_path, kernels.CPU_FLAGS), found) == []


def _chosen(g: Graph, t: DType) -> Sequence[int]:
    """Values chosen by a comparison, normalised, times a matrix."""
    x, y = g.input("x", (ROWS, 13), t), g.input("y", (ROWS, 13), t)
    chosen = g.map("where", g.map("le", x, g.fill(Fraction(1, 2), t)), x, y)
    normal = g.map("mul", compose.rms_norm(g, chosen, [1], 1e-5), g.input("gain", (13,), t))
    return [compose.linear(g, normal, g.input("w", (63, 13), t), transposed=True)]


def test_what_is_chosen_by_a_comparison(tmp_path: Path) -> None:
    """With branches GCC 12 took a mask of another comparison."""
    if "avx2" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("no avx2 on this machine")
    case = next(kernels.cases("chosen", program(_chosen, F32), "cpu", 1, kind=lambda b: not b.loop))
    flags = [f for f in FLAGS if f != "-fvisibility=hidden"]
    harness = kernels.build({case.name: case.render().text}, tmp_path, [*flags, *ISA_FLAGS["avx2"]])
    assert kernels.run(harness, [case]) == []


def test_sums_run_along_the_long_axis(tmp_path: Path) -> None:
    """Sums of two along the short one would be added to one number, one after the other."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        n = g.cast(g.input("n", (201,), I64), t)
        x = g.map("mul", g.input("x", (2, 201), t), n)
        return [g.map("mul", compose.layer_norm(g, x, [0, 1], 1e-2), g.input("gain", (2, 201), t))]

    found = list(kernels.cases("short", program(build, F32), "cpu", 3, kind=lambda b: not b.loop))
    texts = {c.name: c.render().text for c in found}
    assert all("reduce<Sum>(201" in text for text in texts.values())
    assert not any(re.search(r"i_b < 201; \+\+i_b\)\s+total = ", text) for text in texts.values())
    assert kernels.run(kernels.build(texts, tmp_path, kernels.CPU_FLAGS), found) == []


@pytest.mark.usefixtures("one_isa")
def test_sums_of_equal_numbers(tmp_path: Path) -> None:
    """Along long rows and across many: in float32 alone every step is rounded to the same side."""

    def along(g: Graph, t: DType) -> Sequence[int]:
        return [compose.rms_norm(g, g.input("x", (2, 8209), t), [1], 1e-5)]

    def across(g: Graph, t: DType) -> Sequence[int]:
        return [g.map("mul", g.reduce("sum", g.input("x", (2053, 20), t), [0]), g.fill(0.5, t))]

    def whole(part: Any) -> bool:
        """Sums that are made of a whole row, or side by side: not in tiles, which are added in float32."""
        match part:
            case ir.Call(ir.Name(("mirage", "reduce")), (ir.Literal("8209"), _)):
                return True
            case ir.Declare(ir.Type("Sum::Wide"), (ir.Variable("part"),)):
                return True
        return False

    found = []
    for name, build in (("along", along), ("across", across)):
        cases = kernels.cases(name, program(build, F32), "cpu", 12)
        found.append(next(c for c in cases if any(map(whole, kernels.parts(c.render().kernels)))))
    sources = {c.name: KernelSource(c.name, c.render().text) for c in found}
    built = build_library(tuple(map(_spec, found)), sources, tmp_path, toolchain.Toolchain(toolchain.find_cxx()))
    assert not built.failed and built.library is not None
    for case in found:
        x = np.full(case.program.sources[0].dims, 2.8284, np.float32)
        (made,) = Kernel(built.library, _spec(case)).run([x])
        (wanted,) = case.reference([x])
        assert (np.abs(np.asarray(made) / wanted - 1) < 1.5e-7).all()


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_vector_kernels_agree_with_float64(isa: str, every: list[Case], tmp_path: Path) -> None:
    """As a library is built, but warnings are errors."""
    if {"avx2": "avx2", "avx512": "avx512dq"}[isa] not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip(f"no {isa} on this machine")
    some = every[1 + (isa == "avx512") :: 4]
    texts = {c.name: c.render().text for c in some}
    harness = kernels.build(texts, tmp_path, [*FLAGS, *kernels.WARNINGS, *ISA_FLAGS[isa]])
    assert kernels.run(harness, some) == []


@pytest.mark.usefixtures("one_isa")
def test_library_on_several_threads(tmp_path: Path) -> None:
    """The flags of a real build, the best instruction set of this machine, three threads."""
    picked = [("attention", F16), ("symbolic", BF16)]
    found = [next(kernels.cases(f"k{k}", program(NAMED[n], t), "cpu", 1, seed=5)) for k, (n, t) in enumerate(picked)]
    sources = {c.name: KernelSource(c.name, c.render().text) for c in found}
    specs = {c.name: _spec(c) for c in found}
    built = build_library(tuple(specs.values()), sources, tmp_path, toolchain.Toolchain(toolchain.find_cxx()))
    assert not built.failed and built.library is not None
    for case in found:
        arrays = case.inputs()
        results = Kernel(built.library, specs[case.name], threads=3).run(arrays)
        assert case.problem([np.asarray(r) for r in results], arrays) == ""


def _spec(case: Case) -> OperatorSpec:
    inputs = tuple(TensorSpec(f"x{k}", s.dtype, s.dims) for k, s in enumerate(case.program.sources))
    outputs = tuple(TensorSpec(f"y{k}", o.dtype, o.dims) for k, o in enumerate(case.program.outputs))
    return OperatorSpec(case.name, f"kernel_{case.name}", inputs, outputs, case.program.symbols)
