"""Constants of the GPU's cost model, fitted to kernels of the layers that may be fitted to (`mirage bench --suite models`).

python -m samples.gpu_fit measure FILE --sample 60 --each 5    on the GPU: makes and times candidates, a line of FILE for each
python -m samples.gpu_fit judge FILE ...                       what predictions are worth, by engine and range of rows
python -m samples.gpu_fit fit FILE ... --keys strip.launch_us  fits constants to a part of the layers, judges by the rest

Of every fragment the model's own choice is timed and others that differ. Nothing is proved or compared here: kernels are
timed as they are rendered, on random inputs.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_cli.backends.compile import own_compiler
from mirage_cli.backends.spec import OperatorSpec
from mirage_cli.codegen.requests.passes import ALL
from mirage_cli.errors import MirageError
from mirage_cli.files.staging import Scratch
from mirage_cli.frontends.imported import Options as Reading
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.machine.devices import device
from mirage_cli.measurement import gpu_backends
from mirage_cli.measurement.gpu import GpuTimer, sets_for
from mirage_cli.measurement.gpu_entry import entry
from mirage_cli.measurement.timing import Effort
from mirage_cli.optimization import environment
from mirage_cli.optimization import task as works
from mirage_cli.options.options import cores
from mirage_cli.planning.plan import TUNED_SCHEDULES, FragmentPlan
from mirage_cli.processes import isolation
from mirage_cli.search.mugraph.documents import graph_from_json, graph_to_json
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.schedules.fitted import Section
from mirage_cli.search.schedules.ranking import total_us
from mirage_cli.search.schedules.schedule import Schedule, schedule_from_json
from mirage_cli.search.schedules.target import Target, load_target
from mirage_cli.search.search import Searcher, SearchOptions
from mirage_cli.suite import suites
from mirage_cli.suite.cases import DTYPES, Case
from mirage_cli.suite.measure import BROKEN
from mirage_cli.suite.population import range_of
from mirage_cli.tuning.build import Settings, Workshop
from mirage_cli.tuning.candidates import select

MOST_BYTES = 1 << 30  #: of a layer: several are made at a time
SECONDS = 150.0  #: for a layer
EFFORT = Effort(warm_up=1, warm_seconds=2e-3, sample_seconds=5e-4, runs=9)
HELD = 3  #: one layer in so many judges
MOST = 0.5  #: a logarithm of an error counts for no more
STEPS = (1.3, 1.1, 1.03, 1.01)  #: by which constants are moved, one after the other


@dataclass(frozen=True, slots=True)
class Timed:
    """A candidate that was timed: its layer and the layer's rows, its kernels, microseconds; `own` is the model's choice."""

    layer: str
    fragment: str
    rows: int
    graph: KernelGraph
    schedules: tuple[Schedule, ...]
    us: float
    own: bool

    @property
    def held(self) -> bool:
        """True where it only judges."""
        return hashlib.sha256(self.layer.encode()).digest()[1] % HELD == 0

    @property
    def engine(self) -> str:
        """The engines of its kernels; those that only prepare or combine rows come last."""
        names = {s.engine for s in self.schedules}
        return "+".join(sorted(names, key=lambda n: (n == "rows", n)))

    def error(self, target: Target) -> float:
        """The logarithm of the prediction over the time."""
        return math.log(total_us(self.graph, self.schedules, target, {}) / self.us)


# ---- measuring -------------------------------------------------------------------------------------------------------
def made(
    suite: str, name: str, each: int, target: Target, folder: Path, workers: int
) -> list[tuple[Path, OperatorSpec, Any]]:
    """Libraries of a layer's candidates, with what is told of each."""
    case = suites.case_of(suite, name)
    imported = from_proto(case.model(DTYPES[case.dtype], 0), Reading(), case.name)
    found = []
    for w in works.group_fragments(partition(imported.graph, works.tensor_names(imported)).fragments, imported):
        w.plan = FragmentPlan(w.id, w.name, w.program)
        searcher = Searcher(SearchOptions(largest=w.largest(imported), growth=w.growth))
        own = searcher.search(w.program, target).candidates[:1]
        pool = searcher.with_schedules(TUNED_SCHEDULES).search(w.program, target).candidates
        chosen = [*own, *select([c for c in pool if c not in own], each - 1, own)]
        (own_folder := folder / w.id).mkdir(parents=True)
        settings = Settings(own_compiler(cuda=True), target.name, workers, None)
        libraries = Workshop(w.id, w.program, target, ALL, own_folder, settings).build(chosen)
        for k, (c, library) in enumerate(zip(chosen, libraries, strict=True)):
            told = {"layer": case.name, "fragment": w.name, "rows": case.rows, "own": k == 0, "us": None}
            told |= {"graph": graph_to_json(c.graph), "schedules": [s.to_json() for s in c.schedules]}
            if isinstance(library, Path):
                found.append((library, w.spec(), told))
    return found


def timed(library: Path, spec: OperatorSpec, gpu: int) -> float:
    """Microseconds of one call, chained, with cold caches."""
    backend = gpu_backends.opened(gpu)
    shapes = [[d for d in t.dims if isinstance(d, int)] for t in spec.inputs]
    size = sum(math.prod(s) * t.dtype.bytes for s, t in zip(shapes, spec.inputs, strict=True))
    sets = sets_for(size, backend.cache)
    try:
        call = entry(backend, library, spec, shapes, sets, seed=0).call
        return GpuTimer(gpu, backend).times({"": call}, sets, EFFORT)[""].median
    finally:
        try:
            backend.synchronize()
        except Exception:
            os._exit(BROKEN)  # nothing runs on this GPU in this process any more


def measure(file: Path, cases: Sequence[Case], each: int, gpu: int, workers: int) -> None:
    """Make and time candidates of layers; lines are appended as they come."""
    target = load_target(environment.architecture_of(device(gpu)))
    with Scratch("mirage-fit-") as folder, file.open("a", encoding="utf-8") as out:
        jobs = [("models", c.name, each, target, folder / c.name, 2) for c in cases]
        with closing(isolation.each(made, jobs, workers, apart=True, seconds=SECONDS)) as layers:
            kernels = []
            for k, layer in layers:
                if isinstance(layer, isolation.Lost):
                    print(f"{cases[k].name}: {layer.reason}", flush=True)
                else:
                    kernels += layer
        with closing(isolation.each(timed, [(a, b, gpu) for a, b, _ in kernels], 1, apart=True)) as times:
            for k, us in times:
                told = kernels[k][2] | {"device": device(gpu).name, "target": target.name}
                told |= {"problem": us.reason} if isinstance(us, isolation.Lost) else {"us": us}
                out.write(json.dumps(told) + "\n")
                out.flush()


# ---- what predictions are worth ----------------------------------------------------------------------------------------
def read(paths: Sequence[Path]) -> Iterator[Timed]:
    """The kernels of files that have a time."""
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            told = json.loads(line)
            if told["us"]:
                schedules = tuple(schedule_from_json(s) for s in told["schedules"])
                graph = graph_from_json(told["graph"])
                yield Timed(told["layer"], told["fragment"], told["rows"], graph, schedules, told["us"], told["own"])


def mean(errors: Sequence[float]) -> float:
    """The factor by which predictions are off: e to the root mean square of logarithms."""
    return math.exp(math.sqrt(sum(e * e for e in errors) / len(errors))) if errors else 1.0


def judged(kernels: Sequence[Timed], target: Target) -> Iterator[str]:
    """Lines: of groups of kernels how many there are, by how much predictions are off, and to which side."""
    groups: dict[str, list[float]] = {}
    for t in kernels:
        for name in ("all", t.engine, f"{t.engine} {range_of(t.rows)}", "own choices" if t.own else "others"):
            groups.setdefault(name, []).append(t.error(target))
    for name, errors in sorted(groups.items()):
        side = math.exp(sum(errors) / len(errors))
        yield f"{name}: {len(errors)} kernels, off by {mean(errors):.3f}, predicted {side:.3f} times"
    best: dict[tuple[str, str], list[Timed]] = {}
    for t in kernels:
        best.setdefault((t.layer, t.fragment), []).append(t)
    lost = [math.log(next(t.us for t in ts if t.own) / min(t.us for t in ts)) for ts in best.values() if _compared(ts)]
    if lost:
        yield f"own choices take {math.exp(sum(lost) / len(lost)):.3f} times the fastest ({len(lost)} fragments)"


def _compared(kernels: Sequence[Timed]) -> bool:
    return len(kernels) > 1 and any(t.own for t in kernels)


def changed(target: Target, constants: Mapping[str, float]) -> Target:
    """A target with other constants, by section and name; rates of its own have a name alone."""
    sections, rates = [], dict[str, Any]((k, v) for k, v in constants.items() if "." not in k)
    for s in target.sections:
        own: dict[str, Any] = {k.partition(".")[2]: v for k, v in constants.items() if k.partition(".")[0] == _name(s)}
        sections.append(dataclasses.replace(s, **own))
    return dataclasses.replace(target, sections=tuple(sections), **rates)


def _name(section: Section) -> str:
    return type(section).__name__.lower()


def constant(target: Target, key: str) -> float:
    """A constant. Raises MirageError for an unknown one."""
    section, _, name = key.partition(".")
    if isinstance(rate := getattr(target, key, None), float):
        return rate
    for s in target.sections:
        if _name(s) == section and isinstance(value := getattr(s, name, None), int | float):
            return float(value)
    raise MirageError(f"{key}: no constant of {target.name}")


def fit(kernels: Sequence[Timed], target: Target, keys: Sequence[str]) -> Target:
    """The target with the constants `keys` moved, one after the other, as long as that makes predictions better."""

    def loss(constants: Mapping[str, float]) -> float:
        moved = changed(target, constants)
        return sum(min(t.error(moved) ** 2, MOST**2) for t in kernels)

    best = {key: constant(target, key) for key in keys}
    least = loss(best)
    for step in STEPS:
        improved = True
        while improved:
            improved = False
            for key in keys:
                for factor in (step, 1 / step):
                    while (now := loss(other := best | {key: best[key] * factor})) < least * (1 - 1e-4):
                        best, least, improved = other, now, True
    for key in keys:
        print(f"{key}: {constant(target, key):.4g} -> {best[key]:.4g}")
    return changed(target, best)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, judge or fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "judge", "fit"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument(
        "--only", action="append", default=[], metavar="GLOB", help="layers [all that may be fitted to]"
    )
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="layers")
    parser.add_argument("--each", type=int, default=5, metavar="N", help="candidates of a fragment")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpu", type=int, default=0, metavar="N")
    parser.add_argument("--jobs", type=int, default=cores(), metavar="N")
    parser.add_argument(
        "--engines", nargs="+", metavar="NAME", help="kernels of these alone, as judge names them [all]"
    )
    parser.add_argument("--keys", nargs="+", default=[], metavar="SECTION.NAME")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument(
        "--rates", nargs="+", default=[], metavar="NAME=X", help="those of the device that was measured"
    )
    given = parser.parse_args(arguments)
    if given.what == "measure":
        cases = suites.chosen("models", tuple(given.only), "fit")
        small = {c.name for c in cases if c.bytes(DTYPES[c.dtype]) <= MOST_BYTES}
        cases = suites.chosen("models", tuple(small), "fit", given.sample, given.seed)
        measure(given.files[0], cases, given.each, given.gpu, given.jobs)
        return
    kernels = [t for t in read(given.files) if not given.engines or t.engine in given.engines]
    rates = {k: float(v) for k, _, v in (r.partition("=") for r in given.rates)}
    target = changed(load_target(given.target), rates)
    if given.what == "judge":
        print("\n".join(judged(kernels, target)))
        return
    parts = [[t for t in kernels if t.held == held] for held in (False, True)]
    fitted = fit(parts[0], target, given.keys)
    for name, part in zip(("fitted to", "held back"), parts, strict=True):
        before, after = ([t.error(x) for t in part] for x in (target, fitted))
        print(f"{name}: {len(part)} kernels, off by {mean(before):.3f} -> {mean(after):.3f}")


if __name__ == "__main__":
    main()
