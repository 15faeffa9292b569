"""The story of `mirage optimize`, from a model file to the folder that is written.

A run that was made before is answered from the cache, without importing what it would take to make it again.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_cli.files.output import claimed, replaced
from mirage_cli.optimization import environment, run_cache
from mirage_cli.options.options import Options
from mirage_cli.report.report import Report, enforce
from mirage_cli.report.stages import Clock, Progress, Silent

if TYPE_CHECKING:
    from mirage_cli.optimization.pipeline import Run


def optimize(
    model: str,
    out: Path,
    options: Options,
    progress: Progress | None = None,
    complete: str = "",
    check: bool = True,
) -> Report:
    """Optimize a model file into the folder `out` (nothing is written with `dry_run`).

    With `complete`, an identifier, all of the model has to become kernels, whose order is written too (`steps.json`);
    where that is not possible it raises Refused, naming an operator. Without `check` kernels are not compared with float64:
    the caller judges them.

    Raises ModelError for files that cannot be read, ToolMissing without a C++ compiler, UsageError for options that do
    not fit, Busy while another run writes the folder, FarmLost where a scheduler does not answer, CheckFailed when a
    required coverage is missed (or, with `strict`, when any fragment failed).
    """
    with nullcontext() if options.dry_run else claimed(out, None if model == "-" else Path(model)):
        report = made(model, out, replaced(out), options, progress, complete, check)
    enforce(report, options)
    return report


def made(
    model: str,
    out: Path,
    place: AbstractContextManager[Path],
    options: Options,
    progress: Progress | None = None,
    complete: str = "",
    check: bool = True,
) -> Report:
    """The report of a run that writes what `place` gives, a new folder that will be `out`. Raises as `optimize`."""
    start, progress = time.perf_counter(), progress or Silent()
    tools = environment.toolchain(options)
    machine = environment.machine(options, tools)
    known = None if complete or not check else run_cache.find(model, options, tools, machine)
    if known is None:
        from mirage_cli.optimization.pipeline import Run  # noqa: PLC0415 - it takes seconds

        with closing(environment.crew(options)) as crew:
            options = environment.settled(options, crew)
            if line := crew.greeting():
                progress.note(line)
            if machine.note:
                progress.note(machine.note)
            run = Run(model, options, tools, progress, complete, crew, machine, check, clock=Clock(start=start))
            return _run_stages(run, out, place)
    progress.stage("read", 1)
    with place as draft:
        report = known.write(draft, str(out), start)
    progress.step(f"{model}: as it was before")
    return report


def _run_stages(run: Run, out: Path, place: AbstractContextManager[Path]) -> Report:
    """The stages of a run, each once; fragments that one of them leaves are built without."""
    run.read()
    run.plan()
    if run.options.dry_run:
        return run.report()
    run.choose()
    with place as draft:
        run.build(draft)
        run.check()
        run.tune()
        while run.build_again(draft):
            run.check()
            run.tune()
        run.rebuild(draft)
        run.hand_over(draft)
        run.time_whole(draft)
        return run.write(draft, out)
