"""Many random programs optimized as one model, and every output of every program judged by the accuracy rule."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from mirage_cli.errors import ModelError
from mirage_cli.files.output import MARK
from mirage_cli.lax.dtypes import from_numpy
from mirage_cli.numerics.accuracy import ILL_CONDITIONED, compare, joined_draws
from mirage_cli.optimization import story
from mirage_cli.options.options import Options
from mirage_cli.runtime import sessions

from .inputs import KINDS, draw
from .sketch import Program, Value, model

Array = NDArray[Any]
Result = tuple[Array, Array, Array]  #: an output: ours, the original's, float64's
Drawn = tuple[Mapping[str, Array], Result]  #: inputs by name, and an output
LETTER = "by the letter of the rule"
EITHER = ("large", "infinite", "nan")  #: inputs on which inf - inf is NaN in one order of a sum and not in another
ROUNDINGS = 8  #: runs of a program with results that are rounded by chance
DRAWS = 3  #: sets of random inputs
#: what sums may give in the place of what they give
LOST = ({np.inf: np.nan, -np.inf: np.nan}, {np.nan: np.inf}, {np.nan: -np.inf})
EXTENTS = (7, 1, 65)  #: of the symbol, one set of inputs each
ONLY_CPU = "programs whose original onnxruntime loads on the CPU only"
LEFT_CPU = "programs that it loads on the CPU only with their kernels too, for nodes that were left"
#: says for which instruction sets kernels are built, of which these runs take one at a time
ISA_FILE = "src/library.cpp"
#: why a fragment may be left: what the search says that it does not find, and elements that no kernel is rendered for
NOT_FOUND = (
    "no muGraph was found",
    "tensors of type f64 are not rendered",
    "there is nothing to compute",
    "which its original nodes compute themselves",
    "asked for",  # the bound of the proof
    "would have to hold axis",
    "overflow float32 before they are divided",
    "NaN and infinities differ",
    "before a product overflow",  # float16, which the original rounds to later
    "accumulator registers for each thread",
    "bytes of shared memory",
)
#: the float check leaves a fragment on inputs of some kind, on which equations between real numbers do not hold for floats
LEFT = re.compile(r"less accurate than the original \(((?!random|longer).*|.*(?=.*finite where)) inputs\)")


@dataclass(frozen=True)
class Rule:
    """How results are compared; as it stands, by the letter of the accuracy rule. `factor` takes the place of its own; with
    `either` infinities and NaN stand for each other."""

    factor: float | None = None
    either: bool = False


@dataclass(frozen=True)
class Ran:
    """A draw of the inputs by program and name, and what both models and float64 make of it by program."""

    arrays: Mapping[str, Mapping[str, Array]]
    results: Mapping[str, Sequence[Result]]


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
    programs: Mapping[str, Program],
    kinds: Sequence[str] = KINDS,
    seed: int = 0,
    archs: Sequence[str] = (),
    verified: bool = False,
) -> Outcome:
    """Optimize programs as one model, run it with its library, and judge all outputs: on the CPU, and with `archs` for
    these architectures on the GPU instead. `verified`: the folder goes through `mirage verify` as well."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "model.onnx", Path(folder) / "out"
        onnx.save(model(programs), path)
        own = original(path, "cuda" if archs else "cpu", len(programs), outcome)
        target = ("cpu", "cuda") if archs else ("cpu",)
        options = Options(target=target, arch=tuple(archs), force=True, jobs=1, cache="")
        report = story.optimize(str(path), out, options)
        outcome.counts["programs"] = len(programs)
        outcome.counts["dynamic"] = sum(p.dynamic for p in programs.values())
        outcome.counts["operators"] = sum(len(p.nodes) for p in programs.values())
        for f in report.fragments:
            outcome.counts[f"fragments {f.status}"] += f.occurrences
            kind = LEFT.search(f.reason)
            known = kind.group(1) if kind else next((r for r in NOT_FOUND if r in f.reason), "")
            known = known if f.status == "failed" else ""
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
        if verified:
            verify(programs, path, out, outcome)
    return outcome


def loads(path: Path) -> bool:
    """Whether onnxruntime loads a model with its own rewrites."""
    try:
        sessions.session(path, threads=1)
    except ModelError:
        return False
    return True


def session(path: Path, library: Path | None, place: str) -> Any:
    """A session without onnxruntime's own rewrites, and with float32 products in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sessions.session(path, library, place, threads=1, optimize=False, exact=True)


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


def verify(programs: Mapping[str, Program], path: Path, folder: Path, outcome: Outcome) -> None:
    """Take down what `mirage verify` says of an output folder; what concerns no one program is the first one's. Models that
    onnxruntime's own rewrites keep from loading are counted only: it lacks float64 kernels of what it makes."""
    command = [sys.executable, "-m", "mirage_cli", "verify", str(folder), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    told = json.loads(ended.stdout or "{}")
    nodes = {f["id"]: f["nodes"] for f in json.loads((folder / MARK).read_text())["fragments"]}
    outcome.counts["programs verified"] += len(programs)
    for f in told.get("findings", [{"check": ended.returncode, "where": "", "passed": False, "text": ended.stderr}]):
        outcome.counts["findings of verify"] += 1
        if "NOT_IMPLEMENTED" in f.get("text", "") and not loads(path):
            outcome.counts["models that onnxruntime's rewrites keep from loading"] += 1
        elif not f["passed"] and f["where"] != ISA_FILE:
            identifier = Path(f["where"]).stem.rsplit("_", 1)[-1]
            first = nodes.get(identifier, [[f["where"]]])[0][0].split("_")[0]
            name = first if first in programs else next(iter(programs))
            outcome.wrong(name, f"verify {f['check']} {f['where']}: {f.get('text', '')}")


def judge(
    programs: Mapping[str, Program],
    own: Any,
    ours: Any,
    outcome: Outcome,
    kinds: Sequence[str],
    seed: int,
) -> None:
    """Run sessions of both models on inputs of all kinds and judge the outputs."""
    for kind in kinds:
        usual = [run_both(programs, own, ours, kind, n, seed) for n in range(DRAWS if kind == "random" else 1)]
        for name, p in programs.items():
            for k, v in enumerate(p.outputs):
                outcome.counts["outputs"] += 1
                outcome.counts["elements"] += sum(r.results[name][k][0].size for r in usual)

                drawn = [(r.arrays[name], r.results[name][k]) for r in usual]
                how, problem = verdict(p, k, kind, drawn)
                outcome.counts[f"outputs right {how}" if how else "outputs wrong"] += 1
                if not how:
                    outcome.wrong(name, f"{kind}: {v.name} {v.dtype}{list(v.dims)}: {problem}")


def verdict(p: Program, k: int, kind: str, usual: Sequence[Drawn]) -> tuple[str, str]:
    """By which allowances output `k` is right, each with those before it (none: it is wrong), and what is wrong with it by the
    letter of the rule."""
    v, results = p.outputs[k], [r for _, r in usual]
    problem = next((x for x in (compared(v, [r]) for r in results) if x), "")
    if not problem:
        return LETTER, ""
    if "shape" in problem:
        return "", problem
    rules: list[tuple[str, Rule]] = []
    if kind != "random":
        rules.append(("with a factor of ten on extreme inputs", Rule(factor=ILL_CONDITIONED)))
    if kind in EITHER:
        rules.append(("with infinity for NaN", replace(rules[-1][1], either=True)))
    for how, rule in rules:
        if not compared(v, results, rule):
            return how, problem
    rule = rules[-1][1] if rules else Rule()
    if not by_chance(p, k, usual, rule):
        return "beside runs that round by chance", problem
    if kind in EITHER and not by_chance(p, k, usual, rule, lost=True):
        return "where infinity for NaN within it changes nothing", problem
    return "", problem


def run_both(programs: Mapping[str, Program], own: Any, ours: Any, kind: str, number: int, seed: int) -> Ran:
    """What becomes of one draw of the inputs."""
    arrays = inputs_of(programs, kind, number, seed)
    feeds = {f"{name}_{k}": a for name, own_arrays in arrays.items() for k, a in own_arrays.items()}
    a, b = sessions.run(ours, feeds), sessions.run(own, feeds)
    results = {}
    for name, p in programs.items():
        tensors = [f"{name}_{v.name}" for v in p.outputs]
        results[name] = [(a[t], b[t], w) for t, w in zip(tensors, p.evaluate(arrays[name]), strict=True)]
    return Ran(arrays, results)


def by_chance(p: Program, k: int, drawn: Sequence[Drawn], rule: Rule, lost: bool = False) -> str:
    """What is wrong with output `k` beside runs of its program that round by chance, all together, or nothing. `lost`: numbers
    are not compared either that depend on which of infinity and NaN a sum gives."""
    rounded = []
    for arrays, (ours, _, wanted) in drawn:
        runs = [p.evaluate(arrays, np.random.default_rng(number))[k] for number in range(ROUNDINGS)]
        others = [p.evaluate(arrays, None, x)[k] for x in LOST] if lost else []
        finite = np.array([np.isfinite(r) for r in (*runs, *others)])
        decided = finite.all(axis=0) | ~finite.any(axis=0)  # elsewhere chance decides whether there is a number
        rounded += [(np.where(decided, ours, 0), np.where(decided, r, 0), np.where(decided, wanted, 0)) for r in runs]
    return compared(p.outputs[k], rounded, rule)


def inputs_of(programs: Mapping[str, Program], kind: str, number: int, seed: int) -> dict[str, dict[str, Array]]:
    """The inputs of programs, number `number` of a kind, by program and name."""
    extent = EXTENTS[number % len(EXTENTS)] if kind == "random" else 17
    found = {}
    for name, p in programs.items():
        random = np.random.default_rng([seed, number, KINDS.index(kind), *name.encode()])
        found[name] = {v.name: draw(v, p.shape(v, extent), kind, random) for v in p.inputs}
    return found


def compared(v: Value, results: Sequence[Result], rule: Rule = Rule()) -> str:
    """What is wrong with an output over several inputs together, or nothing."""
    for found, original, wanted in results:
        if not found.shape == original.shape == wanted.shape:
            return f"shape {list(found.shape)}, the original's is {list(original.shape)}, expected {list(wanted.shape)}"
    dtype = from_numpy(sessions.numpy_dtype(v.dtype))
    assert dtype is not None
    found, original, wanted = joined_draws(
        [(f.astype(np.float64), o.astype(np.float64), w) for f, o, w in results], dtype
    )
    accuracy = compare(found, original, wanted, dtype, rule.factor, rule.either)
    return "" if accuracy.passed else str(accuracy)
