"""The published cases on the CPU, original against patched in onnxruntime: `python -m samples.cpu_suite [NAME ...]`.

Every case goes through the ordinary path: a model with its weights stored and its activations as inputs, `mirage optimize
--target cpu --force`, then `mirage bench --cpu --threads 2`, both sides in turn in one process. `--write` puts the table
into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

import mirage_cli as mi
from mirage_cli.bench_report import BenchReport
from mirage_cli.measure import MIRAGE, ORIGINAL
from samples import operators
from samples.inputs import random_inputs

DOCS = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- cpu suite -->\n", "<!-- end of cpu suite -->"
DTYPES = ("fp32", "fp16")
ATTENTION, DECODE, PREFILL = "attention", "decode", "prefill"
#: inputs that are weights of a model, by the operators' names for them
WEIGHTS = frozenset({"w", "w1", "w2", "w3", "a", "b", "g", "w_uk", "w_uv", "alpha"})
HEADER = ("case", "kind", "extents", "type", "onnxruntime us", "mirage us", "speedup", "predicted us", "left alone?")


@dataclass(frozen=True, slots=True)
class SuiteCase:
    """One operator at the extents of a published case; `scaled` names what was made smaller for the CPU."""

    name: str
    kind: str
    operator: str
    dims: dict[str, int]
    scaled: str = ""


def _cases() -> Iterator[SuiteCase]:
    def attention(name: str, h: int, q: int, d: int = 64, operator: str = "attention", scaled: str = "") -> SuiteCase:
        return SuiteCase(name, ATTENTION, operator, {"h": h, "q": q, "k": 4096, "d": d}, scaled)

    for b in (1, 8, 16):
        yield SuiteCase(f"rmsnorm_linear_b{b}", DECODE, "rmsnorm_linear", {"n": b, "h": 4096, "d": 6144})
    for b in (1, 8, 16):
        yield SuiteCase(f"gated_mlp_b{b}", DECODE, "gated_mlp", {"n": b, "h": 4096, "d": 4096})
    for b in (1, 8, 16):
        yield SuiteCase(f"lora_b{b}", DECODE, "lora", {"n": b, "h": 4096, "r": 16, "d": 4096})
    yield SuiteCase("lora_paper", DECODE, "lora", {"n": 16, "h": 256, "r": 16, "d": 4096})
    for b in (1, 8):
        yield attention(f"gqa_b{b}", 2 * b, 256)
    for b in (1, 8):
        yield attention(f"mha_b{b}", 32 * b, 16)
    for b in (1, 8):
        yield attention(f"mqa_b{b}", b, 1024)
    for b in (1, 8):
        yield attention(f"qknorm_gqa_b{b}", 2 * b, 256, operator="qknorm")
    for b in (1, 8):
        yield SuiteCase(f"ntrans_b{b}", DECODE, "ntrans", {"n": 8 * b, "h": 4096})
    yield attention("seed_attention", 64, 1, 128)
    norm = "256 tokens of 4096"
    yield SuiteCase("prefill_norm_linear", PREFILL, "rmsnorm_linear", {"n": 256, "h": 4096, "d": 6144}, norm)
    tokens = "64 tokens of 4096"
    yield SuiteCase("prefill_gated_mlp", PREFILL, "gated_mlp", {"n": 64, "h": 4096, "d": 14336}, tokens)
    yield attention("prefill_attention", 1, 4096, 128, scaled="1 head of 32")
    latent = {"h": 128, "q": 1, "k": 4096, "nope": 128, "rope": 64, "c": 512}
    yield SuiteCase("mla_b1", ATTENTION, "mla_absorbed", latent)
    for b in (1, 16):
        yield SuiteCase(f"norm_mlp_down_b{b}", DECODE, "norm_gated_mlp_down", {"n": b, "h": 4096, "d": 14336})


CASES: dict[str, SuiteCase] = {case.name: case for case in _cases()}


def model(case: SuiteCase, dtype: str) -> onnx.ModelProto:
    """The case as a model: weights are stored, activations are inputs."""
    made = operators.model(case.operator, case.dims, dtype)
    numbers = random_inputs(made)
    stored = [i for i in made.graph.input if i.name in WEIGHTS]
    for i in stored:
        made.graph.input.remove(i)
        made.graph.initializer.append(numpy_helper.from_array(numbers[i.name], i.name))
    return made


@dataclass(frozen=True, slots=True)
class Result:
    """A case in one type: median microseconds of one run of the whole model, and the median of paired quotients."""

    case: str
    dtype: str
    original_us: float
    mirage_us: float
    speedup: float
    predicted_us: float
    left: bool  #: whether the model, asked without --force, leaves the fragment alone
    problems: tuple[str, ...] = field(default=())

    @property
    def counted(self) -> float:
        """What the case counts as in means: a fragment that is left alone costs what the original costs."""
        return 1.0 if self.left else self.speedup


def measured(case: SuiteCase, dtype: str, seconds: float, folder: Path) -> Result:
    """Optimize and time a case in `folder`."""
    path = folder / "model.onnx"
    onnx.save(model(case, dtype), path, save_as_external_data=True, location="weights", size_threshold=1 << 20)
    report = json.loads(json.dumps(mi.optimize(path, folder / "out", target="cpu", force=True).to_json()))
    found = mi.bench(folder / "out", cpu=True, threads=2, seconds=seconds)
    return result(case, dtype, report, found)


def result(case: SuiteCase, dtype: str, report: dict[str, Any], found: BenchReport) -> Result:
    """What the reports of `optimize` and `bench` say of a case. Raises ValueError where there is no time."""
    whole = found.model
    original, ours = whole.entry(ORIGINAL).us, whole.entry(MIRAGE).us
    if original is None or ours is None or whole.speedup is None:
        raise ValueError(f"{case.name} {dtype}: {[e.problem for e in whole.entries]}")
    fragments = report["fragments"]
    predicted = sum(f["occurrences"] * f["predicted_us"] for f in fragments)
    return Result(case.name, dtype, original.median, ours.median, whole.speedup.median, predicted, False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args(arguments)
    for name in options.names or CASES:
        for dtype in [options.dtype] if options.dtype else DTYPES:
            with tempfile.TemporaryDirectory() as folder:
                r = measured(CASES[name], dtype, options.seconds, Path(folder))
            print(
                f"{r.case:22} {dtype} {r.original_us:10.0f} {r.mirage_us:10.0f} {r.speedup:6.2f} pred {r.predicted_us:10.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
