"""The CPU's constants, fitted to models that were timed, and what predictions are worth: `python -m samples.cpu_fit NAME ...`.

`samples.cpu_suite --keep DIR` has made models and, for times of ours, output folders and records. Here the original nodes
of every fragment are timed, those that stay included, and kept beside them (NAME.fit). Constants are fitted to every other
model and judged by the rest; then they are fitted to all and printed as lines of `search/targets/cpu.yaml`. Rates are those of
this machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mirage_cli.backends import toolchain
from mirage_cli.errors import MirageError
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.ir.program import Program
from mirage_cli.machine import devices
from mirage_cli.measurement import rates
from mirage_cli.measurement.contestant import OrtContestant, Place
from mirage_cli.measurement.timing import Effort, paired
from mirage_cli.optimization import fragment_models, reading, task
from mirage_cli.optimization.fragment_times import COLD
from mirage_cli.options.options import Options
from mirage_cli.planning import ranges
from mirage_cli.planning.plan import FragmentPlan
from mirage_cli.report import mugraph_file, stored_plan
from mirage_cli.search.schedules.fitted import Cpu
from mirage_cli.search.schedules.original import original_us
from mirage_cli.search.schedules.target import Target, changed_target
from mirage_cli.search.search import Candidate
from samples import cpu_whole
from samples.cpu_models import MODELS, TimedModel
from samples.cpu_suite import KEPT

THREADS = 2
SECONDS, CALL_SECONDS = 0.15, 0.05  #: for timing a fragment's nodes, and for one call of the model that holds them
SHORT_US = 30.0  #: what takes less is mostly overhead, and decides nothing
MOST = 0.7  #: a logarithm of an error counts for no more: times of a loaded machine are off by anything
ROUNDS = 300
ORIGINALS = ("kernel_us", *(f.name for f in dataclasses.fields(Cpu) if f.name.startswith("library_")))
OURS = (
    *("special", "launch_us", "streamed_rate", "streamed_half", "packed_rate", "packed_half"),
    *("large_pages", "panel_rate", "panel_half", "row_flops", "overlap"),
)
SHARES = ("overlap", "library_overlap", "streamed_rate", "packed_rate", "panel_rate")  #: constants that are at most one


@dataclass(frozen=True, slots=True)
class Timed:
    """A fragment's original nodes: the model, the program, how many operators run, sizes of symbols, microseconds."""

    model: str
    name: str
    id: str
    program: Program
    operators: int
    sizes: dict[str, int]
    us: float

    def predicted(self, target: Target) -> float:
        """The cost model's time."""
        return original_us(self.program, self.operators, target, self.sizes)


@dataclass(frozen=True, slots=True)
class TimedOurs:
    """A fragment's kernels: the model, what was planned, sizes of symbols, microseconds."""

    model: str
    name: str
    candidate: Candidate
    sizes: dict[str, int]
    us: float

    def predicted(self, target: Target) -> float:
        """The cost model's time."""
        return ranges.time(self.candidate, target, self.sizes)


Sample = Timed | TimedOurs


# ---- timing ----------------------------------------------------------------------------------------------------------
def originals(timed: TimedModel, folder: Path) -> list[Timed]:
    """The original nodes of all fragments of a model at typical sizes; those of an earlier time where they are kept."""
    path = folder / f"{timed.name}.fit"
    if not path.is_file():
        path.write_bytes(pickle.dumps(list(_originals(timed, folder))))
    found: list[Timed] = pickle.loads(path.read_bytes())
    return found


def _originals(timed: TimedModel, folder: Path) -> Iterator[Timed]:
    options = Options(dim=timed.dim, target=("cpu",))
    imported = reading.read_model(str(folder / timed.file), options)
    _, sizes = reading.running_ranges(imported, options)
    parts = partition(imported.graph, task.tensor_names(imported), False)
    for w in task.group_fragments(parts.fragments, imported, lambda names: True):
        if w.failed:
            continue
        w.plan = FragmentPlan(w.id, w.name, w.program)  # its description asks for nothing more
        at = {**ranges.resolved(w.spec().symbols, sizes), **sizes}
        try:
            us = _microseconds(fragment_models.from_work(imported, w, at))
        except MirageError as error:
            print(f"{timed.name} {w.name}: {error}")
            continue
        own = {s: at[s] for s in w.program.symbols}
        yield Timed(timed.name, w.name, w.id, w.program, w.operators, own, us)


def _microseconds(fragment: fragment_models.FragmentModel) -> float:
    """The median time of a call on tensors that no cache holds, as `bench` times it."""
    place = Place("cpu", 0, THREADS)

    def contestant(calls: int) -> OrtContestant:
        return OrtContestant(fragment.model(calls), None, [fragment.inputs(calls, k) for k in range(2)], place)

    one = paired({"": contestant(1).call}, Effort(CALL_SECONDS))[""].median
    calls = max(1, min(fragment.calls(COLD * devices.cache_bytes("cpu")), int(CALL_SECONDS * 1e6 / one)))
    return paired({"": contestant(calls).call}, Effort(SECONDS))[""].median / calls


def ours(timed: TimedModel, folder: Path) -> Iterator[TimedOurs]:
    """The kernels of a model's fragments that `cpu_suite` has timed at typical sizes, where one muGraph serves all."""
    out = folder / f"{timed.name}.out"
    known = {
        f.id: f
        for run in cpu_whole.kept(timed, folder)
        if run.threads == THREADS
        for f in run.fragments
        if f.typical and f.mirage_us is not None
    }
    for identifier, f in known.items():
        plan = stored_plan.plan_from_json(mugraph_file.read(out / "mugraphs" / f"{identifier}.json"))
        if not plan.program.symbols and f.mirage_us is not None:
            _, graph, schedules = plan.targets["cpu"]
            yield TimedOurs(timed.name, f.name, Candidate(graph, schedules, 0.0, 0.0, (0.0, 0.0)), {}, f.mirage_us)


# ---- fitting ---------------------------------------------------------------------------------------------------------
SECTION = frozenset(f.name for f in dataclasses.fields(Cpu))


def with_constants(target: Target, values: Mapping[str, Any]) -> Target:
    """The target with these constants, its own ones or those of its section."""
    section = dataclasses.replace(target.fitted(Cpu), **{k: v for k, v in values.items() if k in SECTION})
    own = {k: v for k, v in values.items() if k not in SECTION}
    return dataclasses.replace(target, **own, sections=(section,))


def constants(target: Target, names: Sequence[str]) -> dict[str, float]:
    """The values of constants, a target's own ones or those of its section."""
    return {n: getattr(target.fitted(Cpu) if n in SECTION else target, n) for n in names}


def errors(samples: Sequence[Sample], target: Target) -> np.ndarray[Any, Any]:
    """Logarithms of predicted over measured times."""
    return np.array([math.log(s.predicted(target) / s.us) for s in samples])


def loss(samples: Sequence[Sample], target: Target) -> float:
    """The mean error; short times count for less."""
    weights = np.array([min(1.0, s.us / SHORT_US) for s in samples])
    return float(np.average(np.minimum(np.abs(errors(samples, target)), MOST), weights=weights))


def fitted(samples: Sequence[Sample], target: Target, names: Sequence[str], rounds: int = ROUNDS) -> Target:
    """The target with those constants that predict samples best, by steps at random that become smaller."""
    random = np.random.default_rng(0)
    values, least = constants(target, names), loss(samples, target)
    for k in range(rounds):
        step = dict(values)
        for name in random.choice(names, size=random.integers(1, 3), replace=False):
            step[name] *= math.exp(0.3 * (1 - k / rounds) * random.normal())
            step[name] = min(1.0, step[name]) if name in SHARES else step[name]
        if (found := loss(samples, with_constants(target, step))) < least:
            values, least = step, found
    return with_constants(target, {k: float(f"{v:.3g}") for k, v in values.items()})


def judged(title: str, samples: Sequence[Sample], target: Target) -> str:
    """How far predictions are off, as a row of a table; what is short does not count."""
    found = np.exp(np.abs(errors([s for s in samples if s.us > SHORT_US], target))) - 1
    shares = [f"{np.mean(found < share):.0%}" for share in (0.1, 0.2)]
    return f"| {title} | {len(found)} | {np.median(found):.0%} | {' | '.join(shares)} | {np.quantile(found, 0.9):.0%} |"


def document(title: str, samples: Sequence[Sample], target: Target, names: Sequence[str]) -> tuple[str, Target]:
    """The rows of the table, and the target whose constants are fitted to all samples."""
    models = sorted({s.model for s in samples})
    learnt, other = ([s for s in samples if (models.index(s.model) % 2 == 0) == half] for half in (True, False))
    half, both = fitted(learnt, target, names), fitted(samples, target, names)
    rows = [judged(f"{title}, models of the fit", learnt, half), judged(f"{title}, other models", other, half)]
    return "\n".join([*rows, judged(f"{title}, all, fitted to all", samples, both)]), both


def main(arguments: Sequence[str] | None = None) -> None:
    """Time what is not kept yet, fit, print the table and the constants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models (default: those that are kept)")
    parser.add_argument("--keep", type=Path, default=KEPT, metavar="DIR", help=f"models and times (default: {KEPT})")
    parser.add_argument("--time", action="store_true", help="only time the original nodes of these models")
    options = parser.parse_args(arguments)
    names = options.names or [n for n in MODELS if (options.keep / f"{n}.fit").is_file()]
    timed = [s for n in names for s in originals(MODELS[n], options.keep)]
    if options.time:
        return
    own = [s for n in names for s in ours(MODELS[n], options.keep)]
    known, problem = rates.found(toolchain.find_cxx())
    if known is None:
        raise SystemExit(problem)
    target = changed_target(known.changes(), "")
    print("| | fragments | median error | within 10 % | within 20 % | 90 % are within |\n|---|---|---|---|---|---|")
    for title, samples, tuned in (("mirage", own, OURS), ("onnxruntime", timed, ORIGINALS)):
        if samples:
            rows, target = document(title, samples, target, tuned)
            print(rows)
    print("\n".join(f"{name}: {value:g}" for name, value in constants(target, (*ORIGINALS, *OURS)).items()))


if __name__ == "__main__":
    main()
