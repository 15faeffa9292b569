"""The way into `mirage optimize`: a run that is known is answered without importing what it would take to do it again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_cli import answers, environment
from mirage_cli.options import Options
from mirage_cli.output import check_target, claimed, replaced
from mirage_cli.report import Report, enforce

if TYPE_CHECKING:
    from mirage_cli.pipeline import Progress


def optimize(model: str, out: Path, options: Options, progress: Progress | None = None) -> Report:
    """What `pipeline.optimize` does, answered from the cache where it has this run."""
    start = time.perf_counter()
    found = None
    if answers.lasting(model, options):
        check_target(out, Path(model))
        found = answers.find(model, options, environment.toolchain(options))
    if found is None:
        from mirage_cli import pipeline  # noqa: PLC0415 - it takes seconds

        return pipeline.optimize(model, out, options, progress)
    if progress is not None:
        progress.stage("read", 1)
    with claimed(out, Path(model)), replaced(out) as draft:
        report = found.write(draft, str(out), start)
    if progress is not None:
        progress.step(f"{model}: as it was before")
    enforce(report, options)
    return report
