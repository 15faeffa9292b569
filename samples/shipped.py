"""Fill the table of schedules that come with the program (`mirage_cli/planning/tunings/`) with layers of published decoders.

python -m samples.shipped measure FILE --within 460   on the GPU: times what the table lacks, a line of FILE for each row
python -m samples.shipped merge FILE ...              adds the rows to the table
python -m samples.shipped list                        what is measured, in its order

Rows are written as they come: what a run that is ended has measured is there, and the next one goes on behind it. Several
fragments are planned and compiled at a time; the GPU times one. Nothing is proved here: that is done where a row is used.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mirage_cli.backends.compile import own_compiler
from mirage_cli.checks.kernel_check import CheckJob
from mirage_cli.codegen.requests.passes import ALL
from mirage_cli.files.staging import Scratch
from mirage_cli.frontends.imported import Options as Reading
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.machine.devices import device
from mirage_cli.measurement.timing import WallClock
from mirage_cli.optimization import environment
from mirage_cli.optimization import task as works
from mirage_cli.optimization.task import Work
from mirage_cli.options.options import Options, cores
from mirage_cli.planning import tuned
from mirage_cli.planning.plan import TUNED_SCHEDULES, FragmentPlan
from mirage_cli.planning.tuned import Row
from mirage_cli.processes import isolation
from mirage_cli.search.schedules.target import Target, load_target
from mirage_cli.search.search import Candidate, Searcher, SearchOptions
from mirage_cli.suite.cases import DTYPES, Case
from mirage_cli.suite.population import KINDS, Drawn, configurations
from mirage_cli.tuning import build
from mirage_cli.tuning import candidates as tuning
from mirage_cli.tuning.bench import BenchJob, IsolatedBench, new_process
from mirage_cli.tuning.build import Settings, Workshop
from mirage_cli.tuning.candidates import Limits, fingerprint

TABLES = Path(tuned.__file__).parent / "tunings"
#: the models whose layers are measured first
FIRST = (
    "llama-3.1-8b",
    "qwen2.5-7b",
    "llama-3.2-1b",
    "qwen3-8b",
    "llama-3.2-3b",
    "qwen2.5-1.5b",
    "qwen3-4b",
    "gemma-2-2b",
)
ROWS = (1, 8, 16, 4, 32, 64)
LAYERS = ("qkv", "norm_mlp", "mlp_down", "projection", "head")
STEPS = (
    (1, 4096),
    (1, 1024),
    (8, 4096),
    (1, 16384),
    (8, 1024),
    (1, 32768),
)  #: sequences and contexts of a decoder's step
AT_A_TIME = 5  #: fragments that are planned, compiled or timed
SECONDS = 120.0  #: for one of them
TUNING_SECONDS = 90.0  #: for the candidates of a fragment: what is kept for everybody is looked for longer


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer to be measured: its model, kind, rows, context (0: none) and element type."""

    model: str
    kind: str
    rows: int
    context: int
    dtype: str

    @property
    def name(self) -> str:
        """As rows of the suite are called."""
        return "_".join(
            [self.model, self.kind, f"r{self.rows}", *([f"c{self.context}"] * bool(self.context)), self.dtype]
        )

    def case(self) -> Case:
        """It as a row of the suite."""
        c = next(c for _, c in configurations() if c["name"] == self.model)
        return replace(KINDS[self.kind].make(self.name, c, Drawn(self.rows, self.context)), dtype=self.dtype)


def layers() -> Iterator[Layer]:
    """What is to be measured, what most people have first; of layers that are equal the first one."""
    own = {c["name"]: c["dtype"] for family, c in configurations() if family == "decoders"}
    names = (*FIRST, *(n for n in own if n not in FIRST))
    seen = set()
    for group in (names[: len(FIRST)], names[len(FIRST) :]):
        for other in (False, True):
            for turn in range(len(ROWS)):
                for model in group:
                    dtype = {"bf16": "fp16", "fp16": "bf16"}[own[model]] if other else own[model]
                    some = [Layer(model, kind, ROWS[turn], 0, dtype) for kind in LAYERS]
                    for layer in (*some, Layer(model, "decode", *STEPS[turn], dtype)):
                        case = layer.case()
                        key = (layer.kind, layer.dtype, case.shapes)
                        if key not in seen:
                            seen.add(key)
                            yield layer


# ---- measuring -------------------------------------------------------------------------------------------------------
@functools.cache
def _process() -> isolation.Resident:
    """This process's own process on the GPU."""
    return new_process()


class Unchecked(IsolatedBench):
    """A bench that leaves the cases of the check to those who use a row."""

    def check(self, library: Path) -> str:
        """Nothing."""
        return ""


def planned(layer: Layer, target: Target) -> Iterator[tuple[Work, dict[str, Candidate], CheckJob]]:
    """A layer's fragments with their candidates, the model's own choice first, and checks."""
    case = layer.case()
    imported = from_proto(case.model(DTYPES[layer.dtype], 0), Reading(), case.name)
    for w in works.group_fragments(partition(imported.graph, works.tensor_names(imported)).fragments, imported):
        w.plan = FragmentPlan(w.id, w.name, w.program)
        searcher = Searcher(SearchOptions(largest=w.largest(imported), growth=w.growth))
        pool = searcher.search(w.program, target).candidates[:1]
        pool += searcher.with_schedules(TUNED_SCHEDULES).search(w.program, target).candidates
        yield w, {fingerprint(c): c for c in pool}, w.check_job(imported, Path(), 0, imported.limits({}))


def rows_of(layer: Layer, gpu: int, jobs: int, every: bool = False) -> list[dict[str, Any]]:
    """The rows of a layer's fragments, and what was tried: where a model is not trusted, `every` candidate in its turn."""
    begun, options, found = time.monotonic(), Options(), device(gpu)
    nvcc, target = own_compiler(cuda=True), load_target(environment.architecture_of(found))
    rows = []
    for w, pool, check in planned(layer, target):
        bench = Unchecked(BenchJob(check, {}, gpu), _process())
        bench.begin()
        with Scratch("mirage-shipped-") as folder:
            workshop = Workshop(w.id, w.program, target, ALL, folder, Settings(nvcc, target.name, jobs, None))
            error = target.error if w.program.packed is None else target.packed_error
            error = math.inf if every else error
            limits = Limits(options.tune_candidates, TUNING_SECONDS, max(tuning.FIRST, jobs), error)
            outcome = tuning.tune(pool, {}, workshop, bench, limits, WallClock())
        told: dict[str, Any] = {
            "layer": layer.name,
            "seconds": round(time.monotonic() - begun, 1),
            "tried": outcome.tried,
            "own_us": outcome.trials[0].result.us if outcome.trials else None,
            "problem": outcome.problem,
            "trials": [t.to_json() | {"mugraph": tuned.identity(t.candidate.graph)} for t in outcome.trials],
        }
        for best in outcome.ranking[:1]:
            graph, schedules = best.candidate.graph, [s.to_json() for s in best.candidate.schedules]
            version = build.version(nvcc)
            row = Row(
                tuned.form(w.program), {}, tuned.identity(graph), schedules, best.us, layer.name, found.name, version
            )
            told |= {"target": target.name, "row": asdict(row)}
        rows.append(told)
    return rows


def measure(file: Path, gpu: int, within: float, most: int, every: bool = False) -> None:
    """Measure layers of which a file has no line, for so many seconds (0: all of them)."""
    end = time.monotonic() + (within or math.inf)
    done = {t["layer"] for t in _lines(file) if "row" in t} if file.exists() else set()
    asked = [layer for layer in layers() if layer.name not in done][: most or None]
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, str(max(1, cores() // AT_A_TIME)))
    jobs = [(layer, gpu, max(2, cores() // AT_A_TIME), every) for layer in asked]
    with closing(isolation.each(rows_of, jobs, AT_A_TIME, apart=True, seconds=SECONDS)) as outcomes:
        for k, outcome in outcomes:
            lost = isinstance(outcome, isolation.Lost)
            told = [{"layer": asked[k].name, "problem": outcome.reason}] if lost else outcome
            with file.open("a", encoding="utf-8") as out:
                out.writelines(json.dumps(t) + "\n" for t in told)
            for t in told:
                us = t["row"]["us"] if "row" in t else "-"
                print(f"{t['layer']}: {us} us", *(f"{k} {t[k]}" for k in _TOLD if t.get(k)), sep=", ", flush=True)
            if time.monotonic() > end:
                break


_TOLD = ("own_us", "tried", "seconds", "problem")


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def merge(paths: Sequence[Path]) -> None:
    """Add the rows of files to the tables of their targets."""
    told = [t for path in paths for t in _lines(path) if "row" in t]
    for target in sorted({t["target"] for t in told}):
        table = TABLES / f"{target}.json"
        new = {r.key: r for r in (Row(**t["row"]) for t in told if t["target"] == target)}
        old = [r for r in tuned.read(table.read_text(encoding="utf-8")) if r.key not in new] if table.exists() else []
        tuned.write(table, [*old, *new.values()])
        print(f"{table}: {len(old)} rows were there, {len(new)} are new")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, merge or list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "merge", "list"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--gpu", type=int, default=0, metavar="N")
    parser.add_argument("--within", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--most", type=int, default=0, metavar="N", help="layers")
    parser.add_argument("--every", action="store_true", help="time every candidate, to see what the early end costs")
    given = parser.parse_args(arguments)
    if given.what == "measure":
        measure(given.files[0], given.gpu, given.within, given.most, given.every)
    elif given.what == "merge":
        merge(given.files)
    else:
        print("\n".join(layer.name for layer in layers()))


if __name__ == "__main__":
    main()
