"""The whole story of `mirage optimize`: read, partition, plan each distinct fragment, build, check, patch, write."""

from __future__ import annotations

import fnmatch
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mirage_cli import assemble, environment, frontends
from mirage_cli import work as works
from mirage_cli.backends.library import BuildResult, build_library
from mirage_cli.backends.library import Options as BuildOptions
from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.errors import CheckFailed, UsageError
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax.fragment import LaxFragment, Partition, partition
from mirage_cli.options import Options
from mirage_cli.output import replaced
from mirage_cli.plan import FragmentPlan, PlanOptions, plan_fragment
from mirage_cli.report import FragmentReport, Report
from mirage_cli.search.search import SearchOptions
from mirage_cli.work import Work


class Progress(Protocol):
    """What is shown while a run goes on."""

    def stage(self, name: str, total: int) -> None:
        """A stage of `total` steps begins."""

    def step(self, text: str) -> None:
        """A step of the stage is done."""


class Silent:
    """No progress."""

    def stage(self, name: str, total: int) -> None:
        """Nothing."""

    def step(self, text: str) -> None:
        """Nothing."""


@dataclass(slots=True)
class Clock:
    """Seconds spent in each stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def optimize(model: str, out: Path, options: Options, progress: Progress | None = None) -> Report:
    """Optimize a model file into the folder `out` (nothing is written with `dry_run`).

    Raises ModelError for files that cannot be read, ToolMissing without a C++ compiler, UsageError for options that do
    not fit, CheckFailed when a required coverage is missed (or, with `strict`, when any fragment failed).
    """
    progress = progress or Silent()
    clock = Clock()
    start = time.perf_counter()
    with clock.measure("read"):
        progress.stage("read", 1)
        imported = frontends.load(model, frontend_options(options))
        progress.step(model)
    with clock.measure("partition"):
        parts = partition(imported.graph, works.tensor_names(imported))
        selected = select(parts, imported, options)
    tools = environment.toolchain(options)
    work = plan_all(selected, imported, plan_options(options, tools), options, clock, progress)
    if options.dry_run:
        report = assemble.report(model, imported, parts, work, options, clock.seconds)
    else:
        with replaced(out) as draft:
            built = build(work, draft, tools, options, clock, progress)
            with clock.measure("verify"):
                check(work, imported, draft, built, options, progress)
            built = rebuild_without_failed(work, draft, tools, options, clock, progress, built)
            report = assemble.write(model, imported, parts, work, options, clock.seconds, draft)
            report.seconds["total"] = time.perf_counter() - start
            assemble.write_report(report, draft)
    report.seconds["total"] = time.perf_counter() - start
    enforce(report, options)
    return report


def frontend_options(options: Options) -> frontends.Options:
    """The part of the options that concerns reading. Raises UsageError for malformed shapes and dimensions."""
    shapes = {}
    for text in options.shape:
        name, _, dims = text.rpartition("=")
        try:
            shapes[name] = tuple(int(d) for d in dims.split("x"))
        except ValueError:
            name = ""
        if not name:
            raise UsageError(f"--shape {text}: expected NAME=1x128x...")
    dims_ = {}
    for text in options.dim:
        name, _, value = text.rpartition("=")
        parts = value.split(":")
        if not name or len(parts) not in (1, 3) or not all(p.isdigit() for p in parts):
            raise UsageError(f"--dim {text}: expected SYMBOL=N or SYMBOL=MIN:TYPICAL:MAX")
        if len(parts) == 1:
            dims_[name] = int(value)
    return frontends.Options(shapes, dims_)


def select(parts: Partition, imported: Imported, options: Options) -> list[LaxFragment]:
    """The fragments whose nodes `--only` and `--skip` admit."""
    if not options.only and not options.skip:
        return parts.fragments
    kept = []
    for f in parts.fragments:
        names = works.region_of(imported, f).node_names
        wanted = not options.only or any(fnmatch.fnmatch(n, g) for n in names for g in options.only)
        unwanted = any(fnmatch.fnmatch(n, g) for n in names for g in options.skip)
        if wanted and not unwanted:
            kept.append(f)
    return kept


def plan_options(options: Options, tools: Toolchain) -> PlanOptions:
    """Targets, bounds and proof options of a run."""
    bounds = SearchOptions(options.max_kernels, options.max_ops, options.candidates, 4, options.budget)
    return PlanOptions(environment.targets(options, tools), bounds, options.seed, options.confidence)


def plan_all(
    fragments: Sequence[LaxFragment],
    imported: Imported,
    options: PlanOptions,
    run: Options,
    clock: Clock,
    progress: Progress,
) -> list[Work]:
    """Plan each distinct fragment once, in processes of their own when there are several."""
    work = works.group(fragments, imported)
    progress.stage("search and prove", len(work))
    with clock.measure("plan"):
        jobs = [(w.id, w.name, w.program, w.operators, options) for w in work]
        for w, plan in zip(work, _run(jobs, run.jobs), strict=True):
            w.plan = plan
            w.decide(run.force)
            progress.step(f"{w.name} x{len(w.occurrences)}: {w.headline()}")
    clock.seconds["search"] = sum(w.plan.statistics.seconds for w in work if w.plan)
    clock.seconds["verify"] = sum(p.verdict.seconds for w in work if w.plan for p in w.plan.plans.values())
    return work


def _run(jobs: list[tuple[Any, ...]], workers: int) -> Iterator[FragmentPlan]:
    if workers <= 1 or len(jobs) <= 1:
        for job in jobs:
            yield plan_fragment(*job)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context) as pool:
        yield from pool.map(plan_fragment, *zip(*jobs, strict=True))


def build(
    work: Sequence[Work], draft: Path, tools: Toolchain, options: Options, clock: Clock, progress: Progress
) -> BuildResult | None:
    """Compile the kernels of all fragments that are to be replaced; those that fail are left as they were."""
    chosen = [w for w in work if w.replace]
    if not chosen:
        return None
    with clock.measure("compile"):
        sources = {w.id: w.source() for w in chosen}
        count = sum(assemble.compilations(w, tools) for w in chosen)
        progress.stage("compile", count)
        settings = BuildOptions(
            workers=options.jobs,
            cache=environment.object_cache(options),
            progress=lambda job: progress.step(str(job.fragment)),
            archs=environment.archs(options),
        )
        result = build_library([w.spec() for w in chosen], sources, draft, tools, settings)
    for w in chosen:
        if w.id in result.failed:
            w.fail(f"the kernel does not compile: {result.failed[w.id]}")
    return result


def check(
    work: Sequence[Work],
    imported: Imported,
    draft: Path,
    built: BuildResult | None,
    options: Options,
    progress: Progress,
) -> None:
    """Compare every built CPU kernel with float64; a fragment that is less accurate than the rule allows is left."""
    if built is None or built.library is None:
        return
    chosen = [w for w in work if w.replace]
    progress.stage("check", len(chosen))
    for w in chosen:
        w.check(imported, built.library, options.seed)
        progress.step(f"{w.name}: {w.reason or 'agrees'}")


def rebuild_without_failed(
    work: Sequence[Work],
    draft: Path,
    tools: Toolchain,
    options: Options,
    clock: Clock,
    progress: Progress,
    built: BuildResult | None,
) -> BuildResult | None:
    """Build again without the fragments that failed their check, so that the library holds no wrong kernel."""
    if built is None or all(any(w.id == o.id for w in work if w.replace) for o in built.built):
        return built
    assemble.clear(draft)
    return build(work, draft, tools, options, clock, progress)


def enforce(report: Report, options: Options) -> None:
    """Raise CheckFailed when a required coverage is missed or, with `strict`, when a fragment failed."""
    for text in options.require_coverage:
        kind, _, share = text.partition("=")
        try:
            wanted = float(share)
        except ValueError:
            raise UsageError(f"--require-coverage {text}: expected KIND=SHARE, such as flops=0.95") from None
        if kind not in report.coverage:
            raise UsageError(f"--require-coverage {text}: kinds are {', '.join(sorted(report.coverage))}")
        if report.coverage[kind] < wanted:
            raise CheckFailed(f"coverage of {kind} is {report.coverage[kind]:.3f}, below {wanted:g}")
    failed: list[FragmentReport] = [f for f in report.fragments if f.status == "failed"]
    if options.strict and failed:
        raise CheckFailed(f"{len(failed)} fragments failed; the first: {failed[0].name} ({failed[0].reason})")
