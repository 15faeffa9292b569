"""The stages of `mirage optimize` (story.py): read and partition, plan each distinct fragment, build, check, patch, write."""

from __future__ import annotations

import fnmatch
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mirage_cli.backends import cache_rows, torch_library
from mirage_cli.backends.library import BuildResult, build_library
from mirage_cli.backends.library import Options as BuildOptions
from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.checks import given_tensors, stated_program
from mirage_cli.checks.kernel_check import CHECK, CheckJob, FloatCheck, Limits, case_sizes, too_large
from mirage_cli.codegen import join
from mirage_cli.codegen.requests.passes import without
from mirage_cli.farm import offers
from mirage_cli.files.datafile import Piece
from mirage_cli.files.output import MODEL
from mirage_cli.files.result_store import Kept
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.fragments.lax_fragment import Partition
from mirage_cli.machine import devices
from mirage_cli.measurement.contestant import Place
from mirage_cli.measurement.timing import Effort
from mirage_cli.optimization import (
    assembly,
    coverage,
    environment,
    fragment_models,
    fragment_times,
    kernels_only,
    reading,
    run_cache,
    trial,
    tuning_stage,
)
from mirage_cli.optimization import task as works
from mirage_cli.optimization.fragment_times import MIRAGE, UNCOMPARED, WRONG, measure_fragments
from mirage_cli.optimization.task import Work
from mirage_cli.options import dims
from mirage_cli.options.options import Options
from mirage_cli.planning import batch, example_programs, fragment_cache, ranges
from mirage_cli.planning.plan import PlanOptions, Shaped, newest, shaped
from mirage_cli.processes import isolation
from mirage_cli.processes.jobs import Crew, Here
from mirage_cli.report import forms
from mirage_cli.report.report import Report
from mirage_cli.report.stages import Clock, Progress, Silent
from mirage_cli.runtime import given
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.progress import Standing
from mirage_cli.search.search import SearchOptions

MOST_WRONG = 2  #: muGraphs of a fragment after which no other one is tried
MOST_REFUSED = 8  #: and kernels of it that do not compile
CPU_SECONDS = 0.5  #: that timing a fragment on the CPU takes, about
TUNING_POOL = 1000  #: candidates of a fragment that tuning chooses from


@dataclass(slots=True)
class Run:
    """One run of `optimize`: what it was asked and what it has so far."""

    model: str
    options: Options
    tools: Toolchain
    progress: Progress = field(default_factory=Silent)
    complete: str = ""
    lent: Crew | None = None  #: who makes its jobs; without, the processes of this machine
    machine: environment.Machine = field(default_factory=environment.Machine)  #: the CPU that plans go by
    checks: bool = True  #: whether kernels are compared with float64
    wrong: dict[str, tuple[KernelGraph, ...]] = field(
        default_factory=dict
    )  #: muGraphs of inaccurate kernels, by fragment
    refused: dict[str, tuple[Shaped, ...]] = field(default_factory=dict)  #: kernels that do not compile, by fragment
    faulty: dict[str, str] = field(
        default_factory=dict
    )  #: fragments to plan again, and the kind of their fault's target
    crew: Crew = field(init=False)
    imported: Imported = field(init=False)
    parts: Partition = field(init=False)
    plans: PlanOptions = field(init=False)
    kept: Kept | None = None
    ranges: dict[str, dims.Range] = field(default_factory=dict)  #: of symbolic dimensions: given, or all that runs
    sizes: dict[str, int] = field(default_factory=dict)  #: of symbols of the model's inputs, that times are for
    whole: forms.Measured | None = None  #: the whole model's times, with `--measure`
    inputs: given.Arrays | None = None  #: of the whole model, with which kernels are checked too
    work: list[Work] = field(default_factory=list)
    built: BuildResult | None = None
    entropy: str = field(default_factory=lambda: secrets.token_hex(16))  #: that proofs' random points come from
    steady: bool = True  #: whether all that failed would fail again
    pieces: list[Piece] = field(default_factory=list)  #: what the file of weights is made of
    notes: list[str] = field(default_factory=list)  #: on trying the patched model
    clock: Clock = field(default_factory=Clock)

    @property
    def device(self) -> devices.Device | None:
        """The GPU to measure on."""
        return environment.device(self.options, self.crew)

    def __post_init__(self) -> None:
        self.crew = self.lent or Here(self.options.jobs, self.options.max_memory)

    @property
    def chosen(self) -> list[Work]:
        """The fragments that are to be replaced, as far as is known."""
        return [w for w in self.work if w.replace]

    def read(self) -> None:
        """The model and its fragments, those that `--only` and `--skip` admit grouped into distinct ones."""
        self.kept = environment.store(self.options)
        with self.clock.measure("read"):
            self.progress.stage("read", 1)
            self.imported = reading.read_model(self.model, self.options)
            self.ranges, self.sizes = reading.running_ranges(self.imported, self.options)
            self.inputs = self._inputs()
            self.imported.notes.extend(environment.unasked(self.options, self.tools))
            self.progress.step(self.model)
        with self.clock.measure("partition"):
            joining = environment.targets(self.options, self.tools).keys() <= {*join.KINDS}
            self.parts = partition(self.imported.graph, works.tensor_names(self.imported), bool(self.complete), joining)
            self.work = works.group_fragments(
                self.parts.fragments, self.imported, lambda names: selected(names, self.options)
            )
            if self.complete:
                kernels_only.check_complete(self.imported, self.parts, self.work)
            inner = reading.inner_sizes(self.imported, self.work, self.sizes, self.options)
            self.sizes |= inner
            self.ranges |= {n: dims.Range(1, k, max(k, ranges.OTHER.high)) for n, k in inner.items()}
            self.imported.forget()
        with self.clock.measure("verify"):
            for w in self.work:
                if not w.failed:
                    own, bits = w.occurrences[0].fragment.program, self.options.confidence
                    w.stated(
                        stated_program.statement(self.imported, own, f"{self.entropy}, seed {self.options.seed}", bits)
                    )

    def plan(self) -> None:
        """Search, render and prove each distinct fragment; those of which earlier runs have kept the plan are not searched
        again."""
        work = [w for w in self.work if not w.failed]
        symbols = {s for w in work for s in w.program.symbols}
        options = replace(
            plan_options(self.options, self.tools, symbols, self.ranges, self.device),
            entropy=self.entropy,
            own=self.machine.targets(),
        )
        self.plans = batch.shared_out(options, len(work), self.crew.workers)
        measured = "cpu" if self.options.measure else ""
        if (device := self.device) is not None:
            measured = environment.architecture_of(device)
        self.progress.stage("search and prove", len(work))
        with self.clock.measure("plan"):
            jobs = [(w.id, w.name, w.program, w.operators, w.largest(self.imported), w.growth) for w in work]
            self.imported.forget()
            for k, plan in batch.each(jobs, options, self.crew, self.kept, self._watch(work)):
                w = work[k]
                self.progress.search(w.id, w.name, None)
                if isinstance(plan, isolation.Lost):
                    self.steady = False
                    w.fail(f"the search failed: {plan.reason}")
                else:
                    w.plan = plan
                    w.decide(self.options.force, measured, self.options.target)
                self.progress.step(f"{w.name} x{len(w.occurrences)}: {w.headline()}")
        self.leave_doubled()
        plans = [w.plan for w in work if w.plan is not None and not w.plan.kept]
        self.clock.seconds["search"] = sum(p.statistics.seconds for p in plans)
        self.clock.seconds["verify"] += sum(v.seconds for p in plans for t in p.plans.values() for v in t.verdicts)
        if self.complete:
            kernels_only.check_complete(self.imported, self.parts, self.work)

    def _watch(self, work: Sequence[Work]) -> Callable[[int, Standing], None] | None:
        """A listener that hears how far searches are; None where nobody looks at it."""
        if isinstance(self.progress, Silent):
            return None
        return lambda k, standing: self.progress.search(work[k].id, work[k].name, standing)

    def choose(self) -> None:
        """With `--gpu`, or `--tuned`, the fastest proved candidate of each fragment takes the place of the model's choice."""
        work = [w for w in self.chosen if w.plan is not None and w.plan.pool]
        if not work:
            return
        self.progress.stage("tune", len(work))
        with self.clock.measure("tune"):
            stage = tuning_stage.Stage(
                self.options,
                self.plans,
                self.tools,
                self.imported,
                dims.limits(self.ranges),
                lambda symbols: ranges.typical(symbols, self.ranges),
                environment.tuning_cache(self.options),
                self.device,
                self.crew,
                self._tensors(),
            )
            tuning_stage.choose(work, stage, self.progress.step)

    def build(self, draft: Path) -> None:
        """Compile the kernels of all fragments that are to be replaced; those that fail are left as they were."""
        self.built = None
        chosen = self.chosen
        if not chosen:
            return
        with self.clock.measure("compile"):
            self.progress.stage("compile", sum(assembly.compilations(w, self.tools) for w in chosen))
            settings = BuildOptions(
                workers=self.options.jobs,
                cache=environment.object_cache(self.options),
                progress=lambda job: self.progress.step(str(job.fragment)),
                archs=environment.archs(self.options),
                crew=self.crew,
            )
            cuda = any(w.spec().has_cuda for w in chosen)
            beside = {r.id: r for w in chosen for r in w.beside.values()}
            sources = {w.id: w.source() for w in chosen} | {n: cache_rows.source(r, cuda) for n, r in beside.items()}
            specs = [*(w.spec() for w in chosen), *(cache_rows.spec(r, cuda) for _, r in sorted(beside.items()))]
            self.built = build_library(specs, sources, draft, self.tools, settings)
            if self.imported.script is not None and self.built.library is not None:
                torch_library.build(draft, self.built.built, self.tools.cxx)
        for w in chosen:
            own = (w.id, *(r.id for r in w.beside.values()))
            if error := next((self.built.failed[n] for n in own if n in self.built.failed), None):
                self.steady = False
                w.fail(f"the kernel does not compile: {error}")
            if (refusal := self.built.failed.get(w.id)) is not None and refusal.kind:
                self._note(w, refusal.kind, refused=True)

    def check(self) -> None:
        """Compare every built CPU kernel with float64; a fragment that is less accurate than the rule allows is left."""
        if self.built is None or self.built.library is None:
            return
        self.progress.stage("check", len(self.chosen))
        with self.clock.measure("verify"):
            limits: Limits = self.imported.limits(dims.limits(self.ranges))
            jobs: list[tuple[CheckJob]] = []
            checked: list[Work] = []
            tensors = self._tensors()
            checks = fragment_cache.Checks(self.kept, self.built.library, self._identity(), limits)
            for w in self.chosen:
                if w.float_check is not None:
                    continue  # others are planned again
                reason = too_large(w.program, case_sizes(w.program, w.program.symbols, "longer", limits))
                reason = reason if self.checks else "the caller judges its kernels"
                if reason:
                    w.checked(FloatCheck(True, None, skipped=reason))
                    self.progress.step(f"{w.name}: {reason}")
                    continue
                known = checks.get(w.id)
                if known is not None:
                    w.checked(known)
                    self.progress.step(f"{w.name}: agrees, as it did before")
                    continue
                checked.append(w)
                job = w.check_job(self.imported, self.built.library, self.options.seed, limits)
                jobs.append((job if tensors is None else given_tensors.checked_with(job, tensors),))
            # a kernel that crashes, or an original at which onnxruntime does, costs its own check only
            names = [checks.name(w.id) for w in checked]
            for k, outcome in self.crew.each(CHECK, jobs, apart=True, names=names):
                checked[k].checked(outcome)
                self.steady &= not checked[k].failed
                if isinstance(outcome, FloatCheck) and not outcome.passed and not outcome.parted:
                    self._note(checked[k], "cpu")
                checks.put(checked[k].id, outcome)
                self.imported.forget()
                self.progress.step(f"{checked[k].name}: {checked[k].reason or 'agrees'}")

    def build_again(self, draft: Path) -> bool:
        """Plan fragments again whose kernels a compiler refused, or gave answers less accurate than the rule allows, without
        these, and build what is found; whether there is any to check."""
        found, faulty, self.faulty = False, self.faulty, {}
        for w in self.work:
            kind = faulty.get(w.id)
            if kind is None or w.plan is None:
                continue
            wrong, refused = self.wrong.get(w.id, ()), self.refused.get(w.id, ())
            targets = {kind: self.plans.targets[kind]}
            options = replace(self.plans, targets=targets, pool=0, wrong=wrong, refused=refused)
            job = (w.id, w.name, w.program, w.operators, w.largest(self.imported), w.growth)
            with self.clock.measure("plan"):
                ((_, plan),) = batch.each([job], options, self.crew, self.kept, None)
            if isinstance(plan, isolation.Lost) or kind not in plan.plans:
                continue
            w.plan.plans[kind], why = plan.plans[kind], w.reason
            w.failed, w.measured = False, []
            w.float_check = None if kind == "cpu" else w.float_check
            device = self.device
            measured = (
                environment.architecture_of(device) if device is not None else "cpu" if self.options.measure else ""
            )
            w.decide(self.options.force, measured, self.options.target)
            where = "the CPU" if kind == "cpu" else kind.upper()
            self.imported.notes.append(f"{w.name}: another muGraph is taken on {where}; of the first one: {why}")
            found |= w.replace
        if found:
            assembly.clear(draft)
            self.build(draft)
        return found

    def _note(self, w: Work, kind: str, refused: bool = False) -> None:
        """Have a fragment planned again without the muGraphs of its kernels of a kind, which give wrong answers; where a
        compiler refused one of them, without such kernels."""
        assert w.plan is not None
        own, tried = w.plan.plans[kind], len((self.refused if refused else self.wrong).get(w.id, ()))
        if tried >= (MOST_REFUSED if refused else MOST_WRONG):
            return
        ways = [(own.graph, own.schedules), *((o.alternative.graph, o.alternative.schedules) for o in own.others)]
        if refused:
            self.refused[w.id] = (*self.refused.get(w.id, ()), *(shaped(*way) for way in ways))
        else:
            self.wrong[w.id] = (*self.wrong.get(w.id, ()), *(graph for graph, _ in ways))
        self.faulty[w.id] = kind

    def _inputs(self) -> given.Arrays | None:
        """The inputs of `--inputs`. Raises UsageError for those that do not fit the model."""
        if self.options.inputs is None or self.imported.original is None:
            return None
        return given.read(self.options.inputs, self.imported.original.proto())

    def _tensors(self) -> given.Arrays | None:
        """The tensors that the fragments read where the model is given inputs; None without these."""
        if self.inputs is None or self.imported.original is None:
            return None
        regions = [w.occurrences[0].region for w in self.chosen]
        names = [v.name or "" for r in regions for v in (*r.inputs, *r.outputs)]
        return given_tensors.tensors_of(self.imported.original, self.inputs, names, self.options.max_memory)

    def _identity(self) -> list[object]:
        """The identity of weights, original nodes and inputs: what they come from, and where random ones start."""
        o = self.options
        inputs = None if o.inputs is None else given.digest(o.inputs)
        return [self.imported.sha256, sorted(self.imported.external.items()), o.shape, o.dim, o.seed, inputs]

    def tune(self) -> None:
        """With `--gpu` or `--measure`, time every fragment there beside its original nodes; without `--force`, what is not
        faster is left, and what gives other answers fails in any case."""
        o = self.options
        if (o.gpu is None and not o.measure) or self.built is None or self.built.library is None:
            return
        if o.gpu is not None and not environment.times_originals(o):
            self.imported.notes.append("original nodes are not timed: onnxruntime has no provider for CUDA here")
            return
        self.progress.stage("measure", len(self.chosen))
        place = Place("cpu") if o.gpu is None else Place("cuda", o.gpu)
        effort = Effort(CPU_SECONDS) if o.gpu is None else None
        found = self.device
        device = devices.name("cpu") if found is None else found.name
        needs = () if found is None else (offers.device_offer(found),)
        crew = Here(1, o.max_memory) if found is None else self.crew
        with self.clock.measure("tune"):
            models = {
                w.id: fragment_models.from_work(self.imported, w, ranges.typical(w.spec().symbols, self.ranges))
                for w in self.chosen
                if not w.measured
            }
            comparisons = measure_fragments(
                models, self.built.library, place, effort, o.seed, self.progress.step, crew, needs
            )
            for w in self.chosen:
                if w.id not in comparisons:
                    continue
                f = comparisons[w.id]
                row: forms.Measured = {**f.measured(device), "target": place.provider}
                problem = f.entry(MIRAGE).problem
                if o.force and problem.startswith(UNCOMPARED):  # it is no worse for that
                    self.imported.notes.append(f"{w.name}: {problem}")
                    problem = ""
                w.timed(row, f.faster, problem, o.force)
                if problem.startswith(WRONG):
                    self._note(w, "cpu" if o.gpu is None else "cuda")

    def time_whole(self, draft: Path) -> None:
        """With `--measure`, time the patched model beside the original; without `--force`, parts of operators are not replaced
        where it is not faster, and where it is not faster without these either, nothing is."""
        library = None if self.built is None else self.built.library
        if not self.options.measure or self.options.gpu is not None or library is None or not self.chosen:
            return
        self.progress.stage("measure the whole model", 1)
        device = devices.name("cpu", 0)
        with self.clock.measure("tune"):
            files = fragment_times.Files(self.imported.path, str(draft / MODEL), str(library))
            found = fragment_times.measure_model(files, self.sizes, self.options.seed, self.options.max_memory)
        self.whole = found.measured(device)
        self.progress.step(works.against(self.whole))
        if found.faster or self.options.force or self.whole["mirage_us"] is None:
            return
        parts = [w for w in self.chosen if w.inside]
        for w in parts or self.chosen:
            w.replace = False
            w.reason = f"the whole model is not faster on {device} with it: {works.against(self.whole)}"
        self.rebuild(draft)
        self.hand_over(draft)
        if parts:
            self.time_whole(draft)

    def leave_doubled(self) -> None:
        """Leave parts of operators that stay, and without `--force` what stays in the model as well or loses at some sizes."""
        coverage.leave_torn(self.imported.model, self.work)
        if not self.options.force:
            coverage.leave_doubled(self.imported.model, self.work)
            coverage.leave_losers(self.work, self.plans)

    def rebuild(self, draft: Path) -> None:
        """Build again without the fragments that have been left since, so that the library holds no kernel of theirs."""
        self.leave_doubled()
        wanted = {n for w in self.chosen for n in (w.id, *(r.id for r in w.beside.values()))}
        if self.built is None or {o.id for o in self.built.built} == wanted:
            return
        assembly.clear(draft)
        self.build(draft)

    def hand_over(self, draft: Path) -> None:
        """Write the patched model where onnxruntime loads and runs it, without the library and with it; fragments that keep it
        from that are left."""
        blamed = True
        while blamed:
            library = None if self.built is None else self.built.library
            with self.clock.measure("render"):
                memory, numbers = self.options.max_memory, dims.typical(self.ranges)
                outcome = trial.write(self.imported, self.chosen, draft, library, memory, self.pieces, numbers)
            blamed = bool(outcome.blamed)
            self.notes = [outcome.note] if outcome.note else []
            for w, reason in outcome.blamed:
                self.steady = False
                w.fail(reason)
            if blamed:
                self.rebuild(draft)

    def report(self) -> Report:
        """The report of what is known by now."""
        seconds, own = self.clock.total(), self.machine.targets()
        made = assembly.report(
            self.model, self.imported, self.parts, self.work, self.options, seconds, self.ranges, own
        )
        return replace(made, sizes=self.sizes, whole=self.whole, farm=self.crew.summary(), rates=self.machine.to_json())

    def write(self, draft: Path, out: Path) -> Report:
        """Write everything but model and library, which are there, into the draft, which will be `out`."""
        report = self.report()
        if self.complete:
            kernels_only.write(self.imported, self.parts, self.work, self.complete, draft)
        with self.clock.measure("render"):
            notes = [*report.notes, *self.notes, *assembly.write(self.imported, self.work, draft)]
            example_programs.write(self.imported, [w.spec() for w in self.chosen], draft, self.sizes)
        report = assembly.finished(replace(report, notes=notes, seconds=self.clock.total()), draft)
        page = assembly.write_report(report, draft, str(out))
        if self.steady and not self.complete and self.checks and run_cache.lasting(self.model, self.options):
            names = {id(file): name for name, file in zip(self.imported.external, self.imported.files, strict=False)}
            run_cache.keep(report, page, draft, self.options, self.tools, self.machine, self.pieces, names)
        return report


def selected(names: Sequence[str], options: Options) -> bool:
    """True if `--only` and `--skip` admit one place of a fragment, by the names of its nodes."""
    wanted = not options.only or any(fnmatch.fnmatch(n, g) for n in names for g in options.only)
    return wanted and not any(fnmatch.fnmatch(n, g) for n in names for g in options.skip)


def plan_options(
    options: Options,
    tools: Toolchain,
    symbols: Iterable[str],
    given: Mapping[str, dims.Range],
    device: devices.Device | None = None,
) -> PlanOptions:
    """Targets, bounds and proof options of a run; `given` is what is said of the `symbols` of its programs, `device` the
    GPU to measure on."""
    typical = tuple(sorted(ranges.typical(symbols, given).items()))
    passes = without(options.without)
    bounds = SearchOptions(
        options.max_kernels, options.max_ops, options.candidates, 4, options.budget, typical, engines=passes.engines
    )
    pool = TUNING_POOL if options.tune_candidates and not options.dry_run and _tunes(options, device) else 0
    return PlanOptions(
        environment.targets(options, tools),
        bounds,
        options.seed,
        options.confidence,
        passes,
        pool,
        tuple(sorted(given.items())),
        once=environment.made_besides(options),
    )


def _tunes(options: Options, device: devices.Device | None) -> bool:
    """True if times decide: measured ones, or those of the cache; times of another architecture than plans are for do
    not."""
    if device is None:
        return options.tuned
    return environment.architecture_of(device) == newest(environment.archs(options)).name
