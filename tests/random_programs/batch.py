"""Many random programs optimized as one model, and every output of every program judged by the accuracy rule."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from mirage_cli import pipeline, runtime
from mirage_cli.accuracy import ILL_CONDITIONED, ULPS, compare
from mirage_cli.errors import ModelError
from mirage_cli.lax.dtypes import F32, from_numpy
from mirage_cli.options import Options

from .inputs import KINDS, draw
from .sketch import Program, Value, model

Array = NDArray[Any]
Result = tuple[Array, Array, Array]  #: an output: ours, the original's, float64's
#: types of which onnxruntime's CPU computes chains of operators in float32; what keeps the rule beside a run that rounds every
#: tensor to its type, as the model says, is right as well
ROUNDED = ("float16", "bfloat16")
VANISHING = (
    "tiny",
    "denormal",
    "zero",
    "equal rows",
)  #: kinds on which results of norms and differences are rounding alone
#: a norm magnifies the rounding of a mean by 1 / sqrt(epsilon), where the row is constant
MAGNIFIED = ILL_CONDITIONED / math.sqrt(1e-5)
AT_LARGEST = 4.0  #: how many times as large as the largest number of a type, or as small
DRAWS = 3  #: sets of inputs of one kind that an output is judged over together
EXTENTS = (7, 1, 65)  #: of the symbol, one set of inputs each
ONLY_CPU = "programs whose original onnxruntime loads on the CPU only"
LEFT_CPU = "programs that it loads on the CPU only with their kernels too, for nodes that were left"

#: why a fragment may be left: what the search says that it does not find, and elements that no kernel is rendered for
NOT_FOUND = (
    "no muGraph was found",
    "tensors of type f64 are not rendered",
    "there is nothing to compute",
    "which its original nodes compute themselves",
)


@dataclass
class Outcome:
    """What became of a batch: counts, and what is wrong with programs by name."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: dict[str, list[str]] = field(default_factory=dict)

    def wrong(self, name: str, text: str) -> None:
        """Take down that something is wrong with a program."""
        self.problems.setdefault(name, []).append(text)

    def add(self, other: Outcome) -> None:
        """Take over what another batch gave."""
        self.counts.update(other.counts)
        for name, problems in other.problems.items():
            self.problems.setdefault(name, []).extend(problems)


def run(
    programs: Mapping[str, Program], kinds: Sequence[str] = KINDS, seed: int = 0, archs: Sequence[str] = ()
) -> Outcome:
    """Optimize programs as one model, run it with its library, and judge all outputs: on the CPU, and with `archs` for
    these architectures on the GPU instead."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "model.onnx", Path(folder) / "out"
        onnx.save(model(programs), path)
        own = original(path, "cuda" if archs else "cpu", len(programs), outcome)
        target = ("cpu", "cuda") if archs else ("cpu",)
        options = Options(target=target, arch=tuple(archs), force=True, jobs=1, cache="")
        report = pipeline.optimize(str(path), out, options)
        outcome.counts["programs"] = len(programs)
        outcome.counts["dynamic"] = sum(p.dynamic for p in programs.values())
        outcome.counts["operators"] = sum(len(p.nodes) for p in programs.values())
        for f in report.fragments:
            outcome.counts[f"fragments {f.status}"] += f.occurrences
            known = next((r for r in NOT_FOUND if r in f.reason), "") if f.status == "failed" else ""
            if known:
                outcome.counts[f"fragments left: {known}"] += f.occurrences
            if f.status == "failed" and not known:
                place = f.nodes[0][0].split("_")[0]
                outcome.wrong(place, f"fragment {f.name} failed: {f.reason}")
        for u in report.unchanged:
            outcome.counts["nodes left"] += len(u["nodes"]) if isinstance(u, dict) else 1
        library = out / "libmirage.so"
        used = library if library.exists() else None
        try:
            ours = session(out / "model.onnx", used, "cuda" if archs else "cpu")
        except ModelError:
            if not outcome.counts[ONLY_CPU]:
                raise
            outcome.counts[LEFT_CPU] += 1
            ours = session(out / "model.onnx", used, "cpu")
        judge(programs, own, ours, outcome, kinds, seed)
    return outcome


def session(path: Path, library: Path | None, place: str) -> Any:
    """A session without onnxruntime's own rewrites, and with float32 products in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return runtime.session(path, library, place, threads=1, optimize=False, exact=True)


def original(path: Path, place: str, programs: int, outcome: Outcome) -> Any:
    """A session of the original model. One program that onnxruntime cannot load on the GPU (most often since it has no kernel
    in bfloat16 there) runs on the CPU, and is counted; of several ModelError is raised."""
    try:
        return session(path, None, place)
    except ModelError:
        if place == "cpu" or programs > 1:
            raise
        outcome.counts[ONLY_CPU] += 1
        return session(path, None, "cpu")


def judge(
    programs: Mapping[str, Program],
    own: Any,
    ours: Any,
    outcome: Outcome,
    kinds: Sequence[str],
    seed: int,
) -> None:
    """Run sessions of both models on inputs of all kinds and judge the outputs."""
    sizes: dict[tuple[str, str], float] = {}
    for kind in kinds:
        found: dict[tuple[str, str], list[Result]] = {}
        drawn = [inputs_of(programs, kind, number, seed) for number in range(DRAWS if kind == "random" else 1)]
        for arrays in drawn:
            feeds = {f"{name}_{k}": a for name, own_arrays in arrays.items() for k, a in own_arrays.items()}
            a, b = runtime.run(ours, feeds), runtime.run(own, feeds)
            for name, p in programs.items():
                for v, wanted in zip(p.outputs, p.evaluate(arrays[name]), strict=True):
                    tensor = f"{name}_{v.name}"
                    found.setdefault((name, v.name), []).append((a[tensor], b[tensor], wanted))
        for name, p in programs.items():
            for k, v in enumerate(p.outputs):
                results = found[name, v.name]
                usual = sizes.setdefault((name, v.name), size_of(results) if kind == "random" else 0.0)
                problem = compared(v, results, kind, usual if kind in VANISHING else 0.0)
                outcome.counts["comparisons"] += 1
                outcome.counts["elements"] += sum(r[0].size for r in results)
                if problem and "shape" not in problem and any(n.dtype in ROUNDED for n in p.nodes):
                    typed = [p.evaluate(arrays[name], typed=True)[k] for arrays in drawn]
                    as_typed = [(r[0], t, r[2]) for r, t in zip(results, typed, strict=True)]
                    problem = compared(v, as_typed, kind, usual if kind in VANISHING else 0.0) and problem
                    outcome.counts["judged beside a run that rounds every tensor"] += not problem
                if problem:
                    outcome.wrong(name, f"{kind}: {v.name} {v.dtype}{list(v.dims)}: {problem}")


def size_of(results: Sequence[Result]) -> float:
    """The root of the mean square of an output, or 0 where that is no number."""
    wanted = np.concatenate([r[2].astype(np.float64).ravel() for r in results])
    size = float(np.sqrt(np.mean(wanted**2))) if wanted.size else 0.0
    return size if np.isfinite(size) else 0.0


def inputs_of(programs: Mapping[str, Program], kind: str, number: int, seed: int) -> dict[str, dict[str, Array]]:
    """The inputs of programs, number `number` of a kind, by program and name."""
    extent = EXTENTS[number] if kind == "random" else 17
    found = {}
    for name, p in programs.items():
        random = np.random.default_rng([seed, number, KINDS.index(kind), *name.encode()])
        found[name] = {v.name: draw(v, p.shape(v, extent), kind, random) for v in p.inputs}
    return found


def compared(v: Value, results: Sequence[Result], kind: str, usual: float = 0.0) -> str:
    """What is wrong with an output over several inputs of a kind, or nothing; `usual` is its size on random inputs."""
    for found, original, wanted in results:
        if not found.shape == original.shape == wanted.shape:
            return f"shape {list(found.shape)}, the original's is {list(original.shape)}, expected {list(wanted.shape)}"
    dtype = from_numpy(runtime.numpy_dtype(v.dtype))
    assert dtype is not None
    found, original, wanted = (np.concatenate([r[k].astype(np.float64).ravel() for r in results]) for k in range(3))
    if dtype.is_float:  # numbers at the largest of the type may become infinities or not
        part = np.abs(wanted) / dtype.largest
        sure = ~((part > 1 / AT_LARGEST) & (part < AT_LARGEST))
        found, original, wanted = (a[sure] for a in (found, original, wanted))
        with np.errstate(invalid="ignore"):
            error = np.abs(found - wanted).max(initial=0.0)
        if error <= max(ULPS * dtype.epsilon, MAGNIFIED * F32.epsilon) * usual:
            return ""  # what vanishes has the units of what it is on random inputs
    either = kind in ("infinite", "nan") or (kind == "large" and v.dtype in ROUNDED)
    accuracy = compare(found, original, wanted, dtype, None if kind == "random" else ILL_CONDITIONED, either)
    return "" if accuracy.passed else str(accuracy)
