"""The demonstration behind `make demo`: optimize an exported decoder, verify it, run it beside the original.

Everything that is printed comes from this run: the commands are carried out as they are shown, outputs and times are
those of onnxruntime on this machine.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from samples.inputs import Tensor, example_inputs

ROOT = Path(__file__).resolve().parents[1]
MODEL = Path("samples/models/llama_fp32.onnx")
TOLERANCE = 1e-4  #: of the largest output; float32 rounding is far below it, a wrong kernel far above
SECONDS = 2.0  #: for measuring


@dataclass(frozen=True, slots=True)
class Variant:
    """A model file as onnxruntime runs it, with what it gives."""

    name: str
    session: ort.InferenceSession
    outputs: list[Tensor]


def main() -> int:
    """Run the demonstration; 0 when the outputs agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    parser.add_argument("--target", choices=("cpu", "cuda"), help="default: cuda where there is an nvcc")
    args = parser.parse_args()
    os.chdir(ROOT)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    optimize = ["optimize", str(MODEL), "-o", str(args.out), "--force"]
    optimize += ["--target", args.target] if args.target else []
    for command in (optimize, ["verify", str(args.out)]):
        code = mirage(command)
        if code != 0:
            return code
    return compare(MODEL, args.out)


def mirage(arguments: list[str]) -> int:
    """Run the command line of this environment, and show it."""
    print(f"\n$ mirage {shlex.join(arguments)}", flush=True)
    return subprocess.run([Path(sys.executable).with_name("mirage"), *arguments], check=False).returncode


def compare(model: Path, out: Path) -> int:
    """Print the original beside the patched model, with and without the library; 1 when outputs differ."""
    patched, library = out / "model.onnx", out / "libmirage.so"
    feeds = example_inputs(model)
    variants = [
        variant("original", model, None, feeds),
        variant("patched, with the library", patched, library, feeds),
        variant("patched, without the library", patched, None, feeds),
    ]
    times = measure(variants, feeds)
    shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in feeds.items())
    print(f"\nonnxruntime {ort.__version__} on the CPU ({os.cpu_count()} cores), inputs: {shapes}\n")
    print(f"{'':32}{'operators':>10}{'largest difference':>21}{'next token':>14}{'time':>8}")
    nodes = {"original": operators(model)}
    agree = True
    for v in variants:
        difference, largest = distance(variants[0].outputs, v.outputs)
        agree = agree and difference <= TOLERANCE * largest
        first, own = (x.outputs[0].argmax(-1).ravel() for x in (variants[0], v))
        same = f"{int((first == own).sum())} of {own.size}"
        count = nodes.get(v.name, operators(patched))
        print(f"{v.name:32}{count:>10}{difference:>21.1e}{same:>14}{times[v.name]:>7.2f}x")
    largest = distance(variants[0].outputs, variants[0].outputs)[1]
    print(
        f"\n'largest difference' is over all outputs, whose largest value is {largest:.2f}; 'next token' counts positions\n"
        "with the same most likely token; 'time' is relative to the original, measured in turn (median).\n"
        f"{mirage_operators(patched)} of the patched model's operators are kernels that mirage found, proved and compiled; "
        f"see {out}/report.html."
    )
    print("The outputs agree." if agree else "THE OUTPUTS DIFFER.")
    return 0 if agree else 1


def variant(name: str, model: Path, library: Path | None, feeds: dict[str, Tensor]) -> Variant:
    """Load a model and run it once."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if library is not None:
        options.register_custom_ops_library(str(library.absolute()))
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return Variant(name, session, session.run(None, feeds))


def measure(variants: list[Variant], feeds: dict[str, Tensor]) -> dict[str, float]:
    """Median time of a run relative to the first variant's; the variants take turns, so that load hits all alike."""
    times: dict[str, list[float]] = {v.name: [] for v in variants}
    stop = time.perf_counter() + SECONDS
    while time.perf_counter() < stop:
        for v in variants:
            start = time.perf_counter()
            v.session.run(None, feeds)
            times[v.name].append(time.perf_counter() - start)
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    return {name: median / medians[variants[0].name] for name, median in medians.items()}


def distance(wanted: list[Tensor], answers: list[Tensor]) -> tuple[float, float]:
    """The largest absolute difference over all outputs, and the largest absolute value."""
    difference = max(float(np.abs(w - f).max()) for w, f in zip(wanted, answers, strict=True))
    return difference, max(float(np.abs(w).max()) for w in wanted)


def nodes_of(model: Path) -> list[Any]:
    """The nodes of a model's graph that compute something."""
    return [n for n in onnx.load(model, load_external_data=False).graph.node if n.op_type != "Constant"]


def operators(model: Path) -> int:
    """Number of operators in a model's graph."""
    return len(nodes_of(model))


def mirage_operators(model: Path) -> int:
    """Number of them that are ours."""
    return sum(n.domain == "mirage" for n in nodes_of(model))


if __name__ == "__main__":
    sys.exit(main())
