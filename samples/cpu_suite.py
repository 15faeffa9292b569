"""Whole models and the published cases on the CPU, original against patched in onnxruntime: `python -m samples.cpu_suite`.

Whole models (`cpu_models.py`) come first, as `optimize` without options leaves them, on two threads and on one. They are kept,
with their output folders and times, in a folder, so that one command can optimize and another one time: the table is of all
that is kept.

Every case goes through the ordinary path: a model with its weights stored and its activations as inputs, `mirage optimize
--target cpu`, then `mirage bench --cpu --threads 2`, both sides in turn in one process. A fragment that `optimize` leaves
alone is forced, so that its time is known, and counts as 1. `--write` puts the table into docs/reference/measurements.md.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import numpy_helper

import mirage_cli as mi
from mirage_cli.errors import MirageError
from mirage_cli.machine import devices
from mirage_cli.optimization.fragment_times import MIRAGE, ORIGINAL
from mirage_cli.runtime import sessions
from mirage_cli.suite.report import between
from samples import cpu_whole, operators
from samples.cpu_models import MODELS
from samples.inputs import random_inputs

DOCS = Path(__file__).resolve().parents[1] / "docs" / "reference" / "measurements.md"
BEGIN, END = "<!-- cpu suite -->", "<!-- end of cpu suite -->"
WHOLE_BEGIN, WHOLE_END = "<!-- cpu models -->", "<!-- end of cpu models -->"
KEPT = Path("out/cpu-models")
DTYPES = ("fp32", "fp16")
THREADS = 2
OPTIMIZE, MEASURE, TABLE = "optimize", "measure", "table"
METHOD = "Microseconds for one run, medians; speedup and ratio: median of the rounds' quotients, both sides in turn."
ATTENTION, DECODE, PREFILL = "attention", "decode", "prefill"
#: inputs that are weights of a model, by the operators' names for them
WEIGHTS = frozenset({"w", "w1", "w2", "w3", "a", "b", "g", "w_uk", "w_uv", "alpha"})
HEADER = ("case", "kind", "type", "onnxruntime us", "mirage us", "speedup", "predicted us", "counts as")


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
        yield attention(f"qknorm_gqa_b{b}", 2 * b, 256, operator="qknorm_gqa")
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
    """The case as a model: weights are stored, activations are inputs. Numbers are those of `random_inputs`."""
    message = operators.model(case.operator, case.dims, dtype)
    numbers = random_inputs(message)
    stored = [i for i in message.graph.input if i.name in WEIGHTS]
    for i in stored:
        message.graph.input.remove(i)
        message.graph.initializer.append(numpy_helper.from_array(numbers[i.name], i.name))
    return message


@dataclass(frozen=True, slots=True)
class Result:
    """A case in one type: median microseconds of one run of the whole model, the median of paired quotients, what the cost
    model predicts, and whether `optimize` leaves the fragment alone unless it is forced."""

    case: SuiteCase
    dtype: str
    original_us: float
    mirage_us: float
    speedup: float
    predicted_us: float
    left: bool

    @property
    def counted(self) -> float:
        """The gain that the case counts as in means: a fragment that is left alone costs what the original costs."""
        return 1.0 if self.left else self.speedup

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        name = f"`{self.case.name}`" + (f" ({self.case.scaled})" if self.case.scaled else "")
        numbers = (f"{x:,.0f}" for x in (self.original_us, self.mirage_us))
        counted = "1 (left alone)" if self.left else f"{self.counted:.2f}"
        return (name, self.case.kind, self.dtype, *numbers, f"{self.speedup:.2f}", f"{self.predicted_us:,.0f}", counted)


def measured(case: SuiteCase, dtype: str, seconds: float, folder: Path) -> Result:
    """Optimize and time a case in `folder`. Raises ValueError where there is nothing to time."""
    path, out = folder / "model.onnx", folder / "out"
    onnx.save(model(case, dtype), path, save_as_external_data=True, location="weights", size_threshold=1 << 20)
    report = mi.optimize(path, out, target="cpu").to_json()
    left = not any(f["status"] == "replaced" for f in report["fragments"])
    if left:
        shutil.rmtree(out)
        report = mi.optimize(path, out, target="cpu", force=True).to_json()
    fragments = [f for f in report["fragments"] if f["status"] == "replaced"]
    if not fragments:
        raise ValueError(f"{case.name} {dtype}: {[u['reason'] for u in report['unchanged']]}")
    predicted = sum(f["occurrences"] * f["predicted_us"] for f in fragments)
    whole = mi.bench(out, cpu=True, threads=THREADS, seconds=seconds).model
    original, ours = whole.entry(ORIGINAL).us, whole.entry(MIRAGE).us
    if original is None or ours is None or whole.speedup is None:
        raise ValueError(f"{case.name} {dtype}: {[e.problem for e in whole.entries]}")
    return Result(case, dtype, original.median, ours.median, whole.speedup.median, predicted, left)


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def document(results: Sequence[Result]) -> str:
    """The table and what it comes to, in Markdown."""
    lines = [f"{THREADS} threads.", "", f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER)]
    lines += [f"| {' | '.join(r.cells())} |" for r in results]
    lines += ["", "Geometric means of what cases count as:", ""]
    for dtype in DTYPES:
        for kind in (ATTENTION, DECODE, PREFILL, ""):
            gains = [r.counted for r in results if r.dtype == dtype and kind in ("", r.case.kind)]
            if gains:
                lines.append(
                    f"- {dtype}, {kind or 'all'}: {mean(gains):.2f}, least {min(gains):.2f} ({len(gains)} cases)"
                )
    return "\n".join(lines)


def whole_models(options: argparse.Namespace, names: Sequence[str]) -> str:
    """Optimize and time the named models; the table of all that are kept, in Markdown. A model that fails is told of."""
    for name in names:
        timed = MODELS[name]
        try:
            if options.stage in (OPTIMIZE, None):
                cpu_whole.optimized(timed, options.keep, options.exporter)
            if options.stage in (MEASURE, None):
                for run in cpu_whole.measured(timed, options.keep, options.seconds):
                    print(" ".join(run.cells()), *run.notes, file=sys.stderr, flush=True)
        except (MirageError, ValueError, subprocess.CalledProcessError) as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    runs = [run for timed in MODELS.values() for run in cpu_whole.kept(timed, options.keep)]
    return cpu_whole.document(runs, mean([r.ratio for r in runs])) if runs else ""


def cases(options: argparse.Namespace, names: Sequence[str]) -> str:
    """Measure the named cases; their table in Markdown."""
    results = []
    for name in names:
        for dtype in [options.dtype] if options.dtype else DTYPES:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    results.append(measured(CASES[name], dtype, options.seconds, Path(folder)))
                except ValueError as error:
                    print(error, file=sys.stderr, flush=True)
                    continue
            print(" ".join(results[-1].cells()), file=sys.stderr, flush=True)
    return document(results) if results else ""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; `names` are those of models and cases, all of them where none is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models and cases (default: all)")
    parser.add_argument("--models", action="store_true", help="all models, no cases")
    parser.add_argument("--dtype", choices=DTYPES, help="type of the cases (default: both)")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for measuring anything once (default: 2)")
    parser.add_argument("--stage", choices=(OPTIMIZE, MEASURE, TABLE), help="do only this with models (default: all)")
    parser.add_argument("--keep", type=Path, default=KEPT, metavar="DIR", help=f"models and times (default: {KEPT})")
    parser.add_argument(
        "--exporter", default=sys.executable, metavar="PYTHON", help="interpreter with torch and transformers"
    )
    parser.add_argument("--write", action="store_true", help=f"put the tables into {DOCS.name}")
    options = parser.parse_args(arguments)
    options.names = options.names or [*MODELS, *([] if options.models else CASES)]
    if unknown := [n for n in options.names if n not in {**MODELS, **CASES}]:
        parser.error(f"unknown: {', '.join(unknown)}; models: {', '.join(MODELS)}; cases: {', '.join(CASES)}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure; print the tables or write them into the document."""
    options = parsed(arguments)
    versions = f"{devices.name('cpu', 0)}; onnxruntime {sessions.version()}, mirage {mi.__version__}."
    for group, measure, marks in (
        (MODELS, whole_models, (WHOLE_BEGIN, WHOLE_END)),
        (CASES, cases, (BEGIN, END)),
    ):
        names = [n for n in options.names if n in group]
        text = measure(options, names) if names else ""
        if text and options.write:
            DOCS.write_text(between(DOCS.read_text(), *marks, f"{versions} {METHOD}\n\n{text}"))
        elif text:
            print(text)


if __name__ == "__main__":
    main()
