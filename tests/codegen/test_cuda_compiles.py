"""CUDA sources under nvcc: kernels of samples and of full size, without a warning, a spilled register or a local array."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from mirage_cli import frontends
from mirage_cli.backends import toolchain
from mirage_cli.backends.cuda import arch_flags
from mirage_cli.codegen import render
from mirage_cli.errors import ToolMissing
from mirage_cli.lax.dtypes import F16, DType
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.ops import OPS
from mirage_cli.optimization import task
from mirage_cli.planning.plan import PlanOptions, plan_fragment
from mirage_cli.search.schedules.architectures import architectures
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.optimized import sample

from .kernels import Case, cases
from .programs import Build, program

pytestmark = pytest.mark.nvcc
SAMPLES = {
    "sm_80": ("attention_masked_fp16", "gated_mlp_fp32", "lora_scaled_fp16", "moe_fp32", "rmsnorm_gain_linear_fp16"),
    "sm_89": ("norm_gated_mlp_fp32", "qknorm_gqa_fp16"),
    "sm_120": ("attention_masked_fp16", "qknorm_gqa_fp16", "rmsnorm_gain_linear_fp16"),
    "sm_90a": ("gqa_fp32", "layer_norm_linear_gelu_fp16", "norm_gated_mlp_fp32", "ntrans_fp16", "qknorm_gqa_fp16"),
}
INCLUDES = (
    *(f"mirage/cuda/{name}.cuh" for name in ("launch", "tile", "strip", "rows", "warpgroup", "tma")),
    "mirage/entry.h",
)
OPTIONS = ("-std=c++17", "-O3", "-Werror", "all-warnings", "-Xptxas", "-v")


def _rms_linear(g: Graph, t: DType) -> Sequence[int]:
    x = compose.rms_norm(g, g.input("x", (16, 4096), t), [1], 1e-5)
    return [compose.linear(g, x, g.input("w", (4096, 6144), t))]


def _attention(g: Graph, t: DType) -> Sequence[int]:
    q, k, v = (g.input(n, e, t) for n, e in (("q", (8, 64, 128)), ("k", (8, 128, 4096)), ("v", (8, 4096, 128))))
    scores = compose.scale(g, compose.matmul(g, q, k), 0.0884)
    return [compose.matmul(g, compose.softmax(g, scores, [2]), v)]


def _wide(g: Graph, t: DType) -> Sequence[int]:
    """A weight that 32-bit offsets do not reach."""
    return [compose.linear(g, g.input("x", (16, 1 << 20), t), g.input("w", (1 << 20, 4096), t))]


def _decode(g: Graph, t: DType) -> Sequence[int]:
    """An attention of one query, whose keys the blocks of a cluster share."""
    q, k, v = (g.input(n, e, t) for n, e in (("q", (64, 1, 128)), ("k", (64, 128, 4096)), ("v", (64, 4096, 128))))
    return [compose.matmul(g, compose.softmax(g, compose.matmul(g, q, k), [2]), v)]


def _norm(g: Graph, t: DType) -> Sequence[int]:
    return [compose.rms_norm(g, g.input("x", (64, 4096), t), [1], 1e-5)]


def _many_rows(g: Graph, t: DType) -> Sequence[int]:
    return [compose.linear(g, g.input("x", (2048, 1024), t), g.input("w", (1024, 2048), t))]


FULL_SIZE: dict[str, Build] = {"rmslinear": _rms_linear, "attention": _attention}
ENGINES: dict[str, Build] = {"warpgroup": _many_rows, "strip": _decode}  #: that sm_80 lacks, or has without clusters


def found_nvcc() -> toolchain.Tool:
    """The compiler; skips the test where there is none."""
    try:
        return toolchain.find_nvcc()
    except ToolMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def nvcc() -> toolchain.Tool:
    return found_nvcc()


def _best(name: str, fragment: Program, target: str) -> Case:
    """The best candidate that renders, where vectors are weights (gains of norms) below 2, as in models."""
    machine = load_target(target)
    gains = tuple((k, 2.0) for k, s in enumerate(fragment.sources) if len(s.dims) == 1)
    candidates = Searcher(SearchOptions(largest=gains)).search(fragment, machine).candidates
    made = (Case(name, fragment, c.graph, c.schedules, machine) for c in candidates)
    return next(c for c in made if c.renders())


def _fragments(target: str) -> Iterator[tuple[str, Program]]:
    for name in SAMPLES[target]:
        imported = frontends.load(str(sample(name)))
        for k, fragment in enumerate(partition(imported.graph, task.tensor_names(imported)).fragments):
            yield f"{name.replace('_', '')}x{k}", fragment.program
    yield "rows", program(_norm, F16)
    if target == "sm_90a":
        for name, build in FULL_SIZE.items():
            yield name, program(build, F16)


def in_namespaces(texts: Mapping[str, str]) -> str:
    """Sources by name as one source: its headers first, each in a namespace of its own."""
    headers = dict.fromkeys(line for t in texts.values() for line in t.splitlines() if line.startswith("#include"))
    own = (re.sub(r"(?m)^#include.*$", "", text) for text in texts.values())
    return "\n".join([*headers, *(f"namespace of_{name} {{\n{t}\n}}" for name, t in zip(texts, own, strict=True))])


def compiled(nvcc: toolchain.Tool, text: str, folder: Path, *targets: str, made: str = "-c") -> str:
    """What the compiler says of a source; fails when it says no or warns. `made` is what it makes; `-fatbin` and `-ptx` leave
    out the part of the host."""
    (folder / "all.cu").write_text(text)
    command = [*nvcc.command, *nvcc.compile_flags, *OPTIONS, *arch_flags(targets), f"-I{render.include_dir()}"]
    command += [made, "all.cu", "-o", "all.o"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:8000]
    return done.stderr


@pytest.mark.parametrize("target", list(SAMPLES))
def test_kernels_of_samplescompiled(target: str, nvcc: toolchain.Tool, tmp_path: Path) -> None:
    found = [_best(name, fragment, target) for name, fragment in _fragments(target)]
    found += cases("wide", program(_wide, F16), target, 1, kind=lambda g: g.loop in g.split)
    assert len(found) > len(SAMPLES[target])
    assert {s.engine for c in found for s in c.schedules} >= {"block", "strip", "rows"}
    lines = [f'#include "{header}"' for header in INCLUDES]
    for case in found:
        lines += [f"namespace of_{case.name} {{", case.render().text, "}"]
    said = compiled(nvcc, "\n".join(lines), tmp_path, target, made="-fatbin")
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", said)]
    assert len(registers) == sum(len(c.graph.kernels) for c in found)
    assert max(registers) < 255
    assert set(re.findall(r"(\d+) bytes (?:stack frame|spill)", said)) == {"0"}


@pytest.mark.parametrize("engine", list(ENGINES))
def test_one_source_serves_all_architectures(engine: str, nvcc: toolchain.Tool, tmp_path: Path) -> None:
    """What only one has is compiled for it alone."""
    fragment = program(ENGINES[engine], F16)
    plan = plan_fragment("abc", "n", fragment, 3, PlanOptions({"cuda": architectures()})).plans["cuda"]
    found = {o.alternative.target: o.alternative.schedules for o in plan.others} | {plan.target: plan.schedules}
    assert set(found) == set(architectures()) and engine in [s.engine for s in found["sm_90a"]]
    assert engine == "warpgroup" or "cluster_arrive" in plan.text
    compiled(nvcc, plan.text, tmp_path, *architectures())


@pytest.mark.parametrize("header", sorted(p.name for p in (render.include_dir() / "mirage" / "cuda").iterdir()))
def test_header_compiles_alone(header: str, nvcc: toolchain.Tool, tmp_path: Path) -> None:
    compiled(nvcc, f'#include "mirage/cuda/{header}"\n', tmp_path, "sm_80", made="-ptx")


@pytest.mark.parametrize("target", list(SAMPLES))
def test_a_comparison_with_no_number_is_false(target: str, nvcc: toolchain.Tool, tmp_path: Path) -> None:
    """ptxas 13.0 takes setp.ge.f32 of |x| and 0, and others that hold for all numbers, for true without looking at x:
    what CUDA kernels ask is whether the opposite holds or one of the two is no number."""
    asked = ("m_where(m_le(0.0f, m_abs(v)), -1.0f, v)", "m_where(m_lt(-1.0f, v * v), -1.0f, v)", "m_sign(m_exp(v))")
    lines = ["#include <mirage/cuda/math.cuh>", "using namespace mirage;"]
    for k, text in enumerate(asked):
        lines.append(f"__global__ void kernel{k}(const float* x, float* y) {{ const float v = x[threadIdx.x];")
        lines.append(f"y[threadIdx.x] = {text}; }}")
    compiled(nvcc, "\n".join(lines), tmp_path, target, made="-ptx")
    found = set(re.findall(r"setp\.([a-z]+)\.f32", (tmp_path / "all.o").read_text(encoding="utf-8")))
    assert {"gtu", "geu"} <= found and not found & {"lt", "le", "gt", "ge"}
    assert not [op.name for op in OPS.values() if re.search("[<>]", op.c)], "compared as C++ does"
