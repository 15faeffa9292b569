"""The way into `mirage optimize`: a run that is known is answered without importing what it would take to do it again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_cli.files.output import check_target, claimed, replaced
from mirage_cli.optimization import environment, run_cache
from mirage_cli.options.options import Options
from mirage_cli.report.report import Report, enforce

if TYPE_CHECKING:
    from mirage_cli.optimization.pipeline import Progress


def optimize(model: str, out: Path, options: Options, progress: Progress | None = None) -> Report:
    """What `pipeline.optimize` does, answered from the cache where it has this run."""
    start = time.perf_counter()
    found = None
    if run_cache.lasting(model, options):
        check_target(out, Path(model))
        found = run_cache.find(model, options, environment.toolchain(options))
    if found is None:
        from mirage_cli.optimization import pipeline  # noqa: PLC0415 - it takes seconds

        return pipeline.optimize(model, out, options, progress)
    if progress is not None:
        progress.stage("read", 1)
    with claimed(out, Path(model)), replaced(out) as draft:
        report = found.write(draft, str(out), start)
    if progress is not None:
        progress.step(f"{model}: as it was before")
    enforce(report, options)
    return report
