"""The stage of `optimize` that chooses candidates by their times: those in the tuning cache, and new ones with `--gpu`.

Candidates of a fragment are tried by `tuning.tune`; the fastest that is proved takes the place of the model's choice, and
what was tried stands in the report. Without anything measured the model's choice stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mirage_cli.backends.toolchain import Tool, Toolchain
from mirage_cli.checks.kernel_check import Limits
from mirage_cli.errors import CheckFailed, InvalidGraph, MirageError, Refused, ToolMissing
from mirage_cli.files.staging import Scratch
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax.ir.program import Program
from mirage_cli.machine import devices
from mirage_cli.machine.devices import Device
from mirage_cli.measurement.timing import WallClock
from mirage_cli.optimization import environment
from mirage_cli.optimization.task import Work
from mirage_cli.options.options import Options
from mirage_cli.planning.plan import PlanOptions, TargetPlan, newest, planned, printed
from mirage_cli.processes import isolation
from mirage_cli.processes.isolation import Lost
from mirage_cli.report import forms
from mirage_cli.search.search import Candidate
from mirage_cli.tuning import build
from mirage_cli.tuning.bench import WRONG, BenchJob, IsolatedBench
from mirage_cli.tuning.build import Settings, Workshop
from mirage_cli.tuning.cache import SETTLED, Measurement, Row, Settled, TuningCache, Where
from mirage_cli.tuning.candidates import LOST, REFUSED, Trial, Tuned, fingerprint, tune
from mirage_cli.tuning.candidates import Limits as TuningLimits

MAX_PROOFS = 8  #: candidates that are proved before the model's choice stays


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that choosing depends on: the options of the run and of its plans, compilers, the model, what is
    said of symbols, the cache, and the GPU to measure on (None: the cache alone decides)."""

    options: Options
    plans: PlanOptions
    tools: Toolchain
    imported: Imported
    limits: Limits
    sizes: Callable[[Sequence[str]], Mapping[str, int]]  #: what symbols typically are
    cache: TuningCache | None
    device: Device | None

    @property
    def asked(self) -> Settled:
        """The thoroughness that the run is asked for."""
        return Settled(self.options.tune_candidates, self.options.tune_budget)


@dataclass(slots=True)
class Tuning:
    """The outcome of tuning one fragment: where its times hold, the trials, why nothing was measured, if so, and why
    nothing can be measured any more."""

    where: Where
    tuned: Tuned
    problem: str = ""
    seconds: float = 0.0
    stuck: str = ""
    proofs: dict[str, str] = field(default_factory=dict)  #: why faster candidates were passed over


def choose(work: Sequence[Work], stage: Stage, step: Callable[[str], None]) -> None:
    """Give every fragment the fastest proved candidate of its pool, and its report what was tried. Trouble with one leaves
    it the model's choice."""
    outcomes: dict[int, Tuning] = {}
    stuck = ""
    for k, w in enumerate(work):
        try:
            outcomes[k] = _measured(w, replace(stage, device=None) if stuck else stage)
            outcomes[k].problem = outcomes[k].problem or stuck
            stuck = stuck or outcomes[k].stuck
            step(f"{w.name}: {_headline(outcomes[k])}")
        except MirageError as e:
            w.tuning = {"problem": str(e)}
            step(f"{w.name}: not tuned: {e}")
    jobs = [
        (work[k].id, work[k].program, _faster(work[k], f), work[k].operators, stage.plans, _own(work[k]))
        for k, f in outcomes.items()
    ]
    numbers = list(outcomes)
    for n, outcome in isolation.each(first_proved, jobs, stage.options.jobs, stage.options.max_memory):
        w, f = work[numbers[n]], outcomes[numbers[n]]
        assert w.plan is not None
        if isinstance(outcome, Lost):
            f.problem = f"the proofs failed: {outcome.reason}"
        else:
            chosen, f.proofs = outcome
            if chosen is not None:
                w.plan.plans["cuda"] = chosen
            elif wrong := _own_fault(w, f):
                w.fail(f"cuda: {wrong}")
    for k, f in outcomes.items():
        work[k].tuning = report(work[k], f)


def _faster(w: Work, tuning: Tuning) -> list[tuple[str, Candidate]]:
    """The candidates to prove, fastest first: those before the model's own choice, which is proved already."""
    assert w.plan is not None
    own = w.plan.pool[0]
    ranked = [(t.key, t.candidate) for t in tuning.tuned.ranking]
    stop = next((k for k, (_, c) in enumerate(ranked) if c is own), len(ranked))
    return ranked[: min(stop, MAX_PROOFS)]


def _own_fault(w: Work, tuning: Tuning) -> str:
    """The fault in the answers of the model's own choice, as was seen on the GPU; nothing where they are right."""
    assert w.plan is not None
    problems = [t.result.problem for t in tuning.tuned.trials if t.candidate is w.plan.pool[0]]
    return next((p for p in problems if p.startswith(WRONG)), "")


def _own(w: Work) -> TargetPlan:
    """The plan by the model's choice."""
    assert w.plan is not None
    return w.plan.plans["cuda"]


def first_proved(
    identifier: str,
    program: Program,
    candidates: Sequence[tuple[str, Candidate]],
    operators: int,
    options: PlanOptions,
    own: TargetPlan,
) -> tuple[TargetPlan | None, dict[str, str]]:
    """The plan of the first candidate that fits and is proved, and why those before it are not. What the `own` plan takes
    for other sizes and architectures, and predicts of these, stays as it is."""
    passed_over: dict[str, str] = {}
    target = newest(options.targets["cuda"])
    for tries, (key, candidate) in enumerate(candidates, 1):
        try:
            plan = planned(identifier, program, candidate, target, operators, options)
            plan = replace(plan, verdict=plan.verdict.among(tries))
            complete = replace(plan, others=own.others, slower=own.slower)
            return printed(complete, identifier, program, target, options.passes), passed_over
        except (Refused, InvalidGraph, CheckFailed) as e:
            passed_over[key] = str(e)
    return None, passed_over


# ---- measuring -------------------------------------------------------------------------------------------------------


def _measured(w: Work, stage: Stage) -> Tuning:
    """The times of a fragment's candidates: those of the cache where they suffice, else new ones."""
    assert w.plan is not None
    nvcc = _nvcc(stage)
    pool = {fingerprint(c, stage.plans.passes.off): c for c in w.plan.pool}
    where = _where(w, stage)
    rows = stage.cache.fetch(where) if stage.cache is not None else {}
    known = {k: v for k, v in rows.items() if k in pool and isinstance(v, Measurement)}
    cached = Tuned([Trial(c, k, known[k], known=True) for k, c in pool.items() if k in known])
    settled = rows.get(SETTLED)
    enough = isinstance(settled, Settled) and settled.covers(stage.asked) and bool(cached.ranking)
    if stage.device is None or enough:
        return Tuning(where, cached)
    clock = WallClock()
    start = clock.now()

    def keep(trials: Sequence[Trial]) -> None:
        if stage.cache is not None:
            stage.cache.store(_rows(w, where, trials))

    bench = IsolatedBench(BenchJob(_check_job(w, stage), dict(stage.sizes(w.spec().symbols)), stage.options.gpu or 0))
    try:
        bench.begin()
        with Scratch("mirage-tuning-") as folder:
            settings = Settings(
                nvcc,
                environment.architecture_of(stage.device),
                stage.options.jobs,
                environment.object_cache(stage.options),
            )
            target = newest(stage.plans.targets["cuda"])
            workshop = Workshop(w.id, w.program, target, stage.plans.passes, folder, settings)
            limits = TuningLimits(stage.options.tune_candidates, stage.options.tune_budget, max(16, stage.options.jobs))
            tuned = tune(pool, known, workshop, bench, limits, clock, keep)
    finally:
        bench.close()
    keep(tuned.trials)
    if stage.cache is not None and not tuned.lost:
        stage.cache.store([Row(where.columns, SETTLED, {"name": w.name}, stage.asked)])
    return Tuning(where, tuned, tuned.problem, clock.now() - start, bench.stuck)


def _nvcc(stage: Stage) -> Tool:
    if stage.tools.nvcc is None:
        raise ToolMissing("candidates are compiled by nvcc, and none was found")
    return stage.tools.nvcc


def _check_job(w: Work, stage: Stage) -> Any:
    return w.check_job(stage.imported, Path(), stage.options.seed, stage.limits)


def _where(w: Work, stage: Stage) -> Where:
    """The key of what times of a fragment hold for. Without a GPU: those of the device with the most of them."""
    sizes = stage.sizes(w.program.symbols)
    extents = tuple(sorted((s, sizes[s]) for s in w.program.symbols))
    dtype = ",".join(dict.fromkeys(str(s.dtype) for s in w.program.sources))
    name, driver = (stage.device.name, stage.device.driver) if stage.device is not None else ("", "")
    plans = newest(stage.plans.targets["cuda"]).name
    architecture = plans if stage.device is None else environment.architecture_of(stage.device)
    version = build.version(_nvcc(stage))
    where = Where(w.program.key(), extents, dtype, architecture, name, driver, version)
    if stage.device is None and stage.cache is not None:
        name, driver = next(iter(stage.cache.devices(where)), ("", ""))
        where = Where(w.program.key(), extents, dtype, architecture, name, driver, version)
    return where


def _rows(w: Work, where: Where, trials: Sequence[Trial]) -> list[Row]:
    """The rows of candidates that the cache is to keep: what was found out now, but for what was lost, which may be
    the device's doing."""
    rows = []
    for t in trials:
        if not t.known and not t.result.problem.startswith(LOST):
            described = {"name": w.name} | {k: v for k, v in t.to_json().items() if k in _DESCRIBED}
            rows.append(Row(where.columns, t.key, described, t.result))
    return rows


_DESCRIBED = ("engines", "schedules", "predicted_us")


# ---- reporting -------------------------------------------------------------------------------------------------------


def report(w: Work, tuning: Tuning) -> forms.Tuning:
    """The `tuning` of a fragment's report."""
    assert w.plan is not None
    main = w.plan.plans["cuda"]
    trials = tuning.tuned.trials
    own = next((t for t in trials if t.candidate is w.plan.pool[0]), None)
    chosen = next(
        (t for t in trials if (t.candidate.graph, t.candidate.schedules) == (main.graph, main.schedules)), None
    )
    refused = sum(t.result.problem.startswith(REFUSED) for t in trials)
    data: forms.Tuning = {
        "device": tuning.where.device,
        "driver": tuning.where.driver,
        "extents": dict(tuning.where.extents),
        "seconds": round(tuning.seconds, 3),
        "complete": tuning.tuned.complete,
        "tried": len(trials) - refused,
        "refused": refused,
        "own": own.key if own is not None else None,
        "chosen": chosen.key if chosen is not None else None,
        "own_us": _us(own),
        "chosen_us": _us(chosen),
        "candidates": [t.to_json() for t in trials],
    }
    if tuning.problem:
        data["problem"] = tuning.problem
    return {**data, "passed_over": tuning.proofs} if tuning.proofs else data


def _us(trial: Trial | None) -> float | None:
    return None if trial is None or trial.result.us is None else round(trial.result.us, 3)


def _headline(tuning: Tuning) -> str:
    if tuning.problem:
        return f"not tuned: {tuning.problem}"
    best = tuning.tuned.ranking
    if not best:
        return "no candidate has a time"
    own = next((t for t in best if t is tuning.tuned.trials[0]), None)
    origin = "cached" if all(t.known for t in best) else f"{tuning.tuned.tried} tried in {tuning.seconds:.0f} s"
    text = f"{best[0].us:.2f} us ({origin}"
    return text + (f"; the model's own choice {own.us:.2f} us)" if own is not None else ")")


def device_of(options: Options) -> Device | None:
    """The GPU to measure on."""
    return None if options.gpu is None else devices.device(options.gpu)
