"""The stage of `optimize` that chooses candidates by their times: those in the tuning cache, and new ones with `--gpu`.

Candidates of a fragment are tried by `tuning.tune`; the fastest that is proved takes the place of the model's choice, and
what was tried stands in the report. Without anything measured the model's choice stays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mirage_cli.backends.compile import offered
from mirage_cli.backends.toolchain import Tool, Toolchain
from mirage_cli.checks import given_tensors
from mirage_cli.checks.kernel_check import Limits
from mirage_cli.errors import CheckFailed, InvalidGraph, MirageError, Refused, ToolMissing
from mirage_cli.farm import offers
from mirage_cli.files import codec, result_store
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax.ir.program import Program
from mirage_cli.machine.devices import Device
from mirage_cli.optimization import environment
from mirage_cli.optimization.task import Work
from mirage_cli.options.options import Options
from mirage_cli.planning import batch, fragment_cache, tuned
from mirage_cli.planning.plan import FragmentPlan, PlanOptions, TargetPlan, fused, newest, planned, printed
from mirage_cli.processes.isolation import Lost
from mirage_cli.processes.jobs import Crew, Kind
from mirage_cli.processes.jobs import Job as Call
from mirage_cli.report import forms
from mirage_cli.runtime.given import Arrays
from mirage_cli.search.search import Candidate
from mirage_cli.tuning import build
from mirage_cli.tuning.bench import WRONG, BenchJob, Neighbour
from mirage_cli.tuning.cache import SETTLED, Measurement, Row, Settled, TuningCache, Where
from mirage_cli.tuning.candidates import LOST, REFUSED, Trial, Tuned, fingerprint
from mirage_cli.tuning.session import TUNE, Bench, Beside, Outcome, TuneJob

MAX_PROOFS = 8  #: candidates that are proved before the model's choice stays
MAX_FRONT_BYTES = 1 << 28  #: of inputs and outputs of a fragment that is timed in front of others


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that choosing depends on: the options of the run and of its plans, compilers, the model, what is
    said of symbols, the cache, the GPU to measure on (None: the cache alone decides), who measures and proves, and the
    tensors that fragments read where the model is given inputs."""

    options: Options
    plans: PlanOptions
    tools: Toolchain
    imported: Imported
    limits: Limits
    sizes: Callable[[Sequence[str]], Mapping[str, int]]  #: what symbols typically are
    cache: TuningCache | None
    device: Device | None
    crew: Crew
    tensors: Arrays | None = None

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
    outcomes = dict(sorted(_measured(work, stage, step)))
    jobs = [
        (work[k].id, work[k].program, _faster(work[k], f), work[k].operators, stage.plans, _own(work[k]))
        for k, f in outcomes.items()
    ]
    numbers = list(outcomes)
    for n, outcome in stage.crew.each(PROVE, jobs):
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


def _proved_elsewhere(identifier: str, program: Program, *rest: Any) -> Any:
    plan, passed_over = first_proved(identifier, program, *rest)
    of_fragment = None if plan is None else FragmentPlan(identifier, "", program, plans={"cuda": plan})
    return {"plan": of_fragment and fragment_cache.plan_to_json(of_fragment), "passed_over": passed_over}


@dataclass(frozen=True, slots=True)
class _Proved:
    plan: dict[str, Any] | None
    passed_over: dict[str, str]


def _proved(document: Any, args: Call) -> tuple[TargetPlan | None, dict[str, str]]:
    identifier, program, candidates, _, options, _ = args
    found = codec.checked(document, _Proved)
    if found.plan is None:
        return None, found.passed_over
    plan = fragment_cache.plan_from_json(found.plan, program).plans["cuda"]
    known = [(fused(c.graph, options), c.schedules) for _, c in candidates]
    if (plan.graph, plan.schedules) not in known:
        raise ValueError("a muGraph that is none of the candidates")
    return batch.proved(identifier, program, plan, options), found.passed_over


PROVE = Kind(f"{__name__}:PROVE", first_proved, _proved_elsewhere, _proved)


# ---- measuring -------------------------------------------------------------------------------------------------------


def _measured(work: Sequence[Work], stage: Stage, step: Callable[[str], None]) -> Iterator[tuple[int, Tuning]]:
    """(number of the fragment, the times of its candidates): those of the cache where they suffice, else new ones. What
    fails is said in its report."""
    known: dict[int, Tuning] = {}
    jobs: dict[int, TuneJob] = {}
    fronts = in_front(work)

    def failed(w: Work, error: str) -> None:
        w.tuning = {"problem": error}
        step(f"{w.name}: not tuned: {error}")

    for k, w in enumerate(work):
        try:
            known[k], needed = _cached(w, stage)
            if needed:
                jobs[k] = _tune_job(w, known[k], stage, fronts.get(k))
        except MirageError as e:
            failed(w, str(e))
            known.pop(k, None)
    numbers = sorted(jobs, key=lambda k: -jobs[k].pool[0][1].predicted_us)  # what takes longest first

    def keep(n: int, trials: Sequence[Trial]) -> None:
        if stage.cache is not None:
            stage.cache.store(_rows(work[numbers[n]], known[numbers[n]].where, trials))

    def told(k: int) -> tuple[int, Tuning]:
        step(f"{work[k].name}: {_headline(known[k])}")
        return k, known[k]

    yield from (told(k) for k in known if k not in jobs)
    names = [_named(known[k].where, jobs[k]) for k in numbers]
    waiting, stuck = dict.fromkeys(jobs), ""
    bench = None if stage.options.scheduler is not None or not jobs else _bench(stage)
    try:
        for n, outcome in stage.crew.each(TUNE, [(jobs[k], bench) for k in numbers], keep, names=names):
            k = numbers[n]
            del waiting[k]
            if isinstance(outcome, Lost):
                failed(work[k], outcome.reason)
                continue
            known[k] = _kept(work[k], known[k].where, outcome, stage)
            yield told(k)
            if stuck := outcome.stuck:
                break
    finally:
        if bench is not None:
            bench.close()
    for k in waiting:
        known[k].problem = stuck
        yield told(k)


def _named(where: Where, job: TuneJob) -> str:
    """What a job of another model that gives the same times is known by too."""
    return result_store.key("tune", where.columns, job.asked.to_json(), [k for k, _ in job.pool])


def _kept(w: Work, where: Where, outcome: Outcome, stage: Stage) -> Tuning:
    """The outcome of measuring, put into the cache."""
    tuned = outcome.tuned
    if stage.cache is not None:
        stage.cache.store(_rows(w, where, tuned.trials))
        if not tuned.lost:
            stage.cache.store([Row(where.columns, SETTLED, {"name": w.name}, stage.asked)])
    return Tuning(where, tuned, tuned.problem, outcome.seconds, outcome.stuck)


def _cached(w: Work, stage: Stage) -> tuple[Tuning, bool]:
    """What the cache knows of a fragment, and whether more is to be measured."""
    assert w.plan is not None
    pool = _pool(w, stage)
    where = _where(w, stage)
    rows = stage.cache.fetch(where) if stage.cache is not None else {}
    known = {k: v for k, v in rows.items() if k in pool and isinstance(v, Measurement)}
    trials = [Trial(c, k, known[k], known=True) for k, c in pool.items() if k in known]
    cached = Tuned(trials, own=next(iter(pool), ""))
    settled = rows.get(SETTLED)
    enough = isinstance(settled, Settled) and settled.covers(stage.asked) and bool(cached.ranking)
    return Tuning(where, cached), not (stage.device is None or enough)


def _pool(w: Work, stage: Stage) -> dict[str, Candidate]:
    """The candidates of a fragment by their hashes."""
    assert w.plan is not None
    return {fingerprint(c, stage.plans.passes.off): c for c in w.plan.pool}


def in_front(work: Sequence[Work]) -> dict[int, Work]:
    """For the number of each fragment the one that most often writes what it reads, where a call of it can be timed: one of
    floating-point inputs, not too large, and not the fragment itself."""
    made = {v: k for k, w in enumerate(work) for o in w.occurrences for v in o.region.outputs}
    found = {}
    for k, w in enumerate(work):
        counts = Counter(made[v] for o in w.occurrences for v in o.region.inputs if v in made)
        fronts = (work[n] for n, _ in counts.most_common() if n != k)
        front = next((f for f in fronts if f.plan is not None and f.plan.pool and _timed(f)), None)
        if front is not None:
            found[k] = front
    return found


def _timed(w: Work) -> bool:
    """Whether calls of a fragment can be timed beside others."""
    spec = w.spec()
    sizes = [math.prod(d for d in t.dims if isinstance(d, int)) * t.dtype.bytes for t in (*spec.inputs, *spec.outputs)]
    return all(t.dtype.is_float for t in spec.inputs) and sum(sizes) <= MAX_FRONT_BYTES


def _tune_job(w: Work, cached: Tuning, stage: Stage, front: Work | None) -> TuneJob:
    assert stage.device is not None
    check = w.check_job(stage.imported, Path(), stage.options.seed, stage.limits)
    check = check if stage.tensors is None else given_tensors.checked_with(check, stage.tensors)
    beside, neighbour = None, None
    if front is not None and front.plan is not None:
        beside = Beside(front.id, front.program, front.plan.pool[0])
        neighbour = Neighbour(front.spec(), dict(stage.sizes(front.spec().symbols)))
    return TuneJob(
        w.id,
        w.program,
        tuple(_pool(w, stage).items()),
        {t.key: t.result for t in cached.tuned.trials},
        BenchJob(check, dict(stage.sizes(w.spec().symbols)), stage.options.gpu or 0, beside=neighbour),
        newest(stage.plans.targets["cuda"]).name,
        environment.architecture_of(stage.device),
        stage.plans.passes,
        stage.asked,
        (offers.device_offer(stage.device), offered("nvcc", _nvcc(stage).version)),
        beside,
    )


def _bench(stage: Stage) -> Bench:
    """Where this machine compiles and measures."""
    return Bench(_nvcc(stage), stage.options.jobs, environment.object_cache(stage.options))


def _nvcc(stage: Stage) -> Tool:
    if stage.tools.nvcc is None:
        raise ToolMissing("candidates are compiled by nvcc, and none was found")
    return stage.tools.nvcc


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
            described = {"name": w.name, "form": tuned.form(w.program), "mugraph": tuned.identity(t.candidate.graph)}
            described |= {k: v for k, v in t.to_json().items() if k in _DESCRIBED}
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
