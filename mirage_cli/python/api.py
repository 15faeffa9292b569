"""The commands as Python functions. Options are those of the command line, with underscores:

    import mirage_cli as mi

    report = mi.optimize("model.onnx", "out", target="cpu", dim={"batch": 1, "seq": (1, 128, 4096)}, force=True)
    assert mi.verify("out").passed

Errors are `MirageError`s; a difference found by `verify` is a result and no error.
"""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_cli.errors import UsageError
from mirage_cli.inspection import comparison, summary
from mirage_cli.inspection.comparison import Comparison
from mirage_cli.inspection.summary import Inspection
from mirage_cli.optimization import folder_story
from mirage_cli.optimization import story as optimization
from mirage_cli.options import settings
from mirage_cli.report.models import FolderReport
from mirage_cli.report.report import Report
from mirage_cli.verification import story as verification
from mirage_cli.verification.findings import Verification, VerifyOptions

if TYPE_CHECKING:
    from mirage_cli.benchmark.report import BenchReport
    from mirage_cli.report.stages import Progress

AnyPath = str | PathLike[str]


def optimize(model: AnyPath, out: AnyPath | None = None, progress: Progress | None = None, **options: Any) -> Report:
    """Optimize a model file into the folder `out`, which only a dry run can do without.

    Options are the fields of `Options`; `shape`, `dim` and `require_coverage` also take mappings. Raises MirageError.
    """
    settings_of_run = settings.from_keywords(options)
    if out is None and not settings_of_run.dry_run:
        raise UsageError("out: expected a folder to write to, or dry_run=True")
    return optimization.optimize(fspath(model), Path(out or ""), settings_of_run, progress)


def optimize_folder(
    folder: AnyPath, out: AnyPath | None = None, progress: Progress | None = None, **options: Any
) -> FolderReport:
    """Optimize every model of a folder of onnxruntime-genai or transformers.js into the folder `out`, with all else in it.

    Options are as in `optimize`. Raises MirageError.
    """
    settings_of_run = settings.from_keywords(options)
    if out is None and not settings_of_run.dry_run:
        raise UsageError("out: expected a folder to write to, or dry_run=True")
    return folder_story.optimize(Path(folder), Path(out or ""), settings_of_run, progress)


def verify(
    path: AnyPath,
    patched: AnyPath | None = None,
    library: AnyPath | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Verification:
    """Prove and compare an output folder again, or compare an original model with a patched one and its library.

    Options are the fields of `VerifyOptions`. Raises MirageError when something cannot be read or run.
    """
    settings_of_run = VerifyOptions(**_checked(options, VerifyOptions))
    if (patched is None) != (library is None):
        raise UsageError("patched and library belong together")
    if patched is None or library is None:
        return verification.verify_folder(Path(path), settings_of_run, progress)
    return verification.verify_pair(Path(path), Path(patched), Path(library), settings_of_run, progress)


def bench(folder: AnyPath, progress: Progress | None = None, **options: Any) -> BenchReport:
    """Time the original model of an output folder against the patched one. Options are the fields of `BenchOptions`."""
    from mirage_cli.benchmark import benchmark  # noqa: PLC0415 - onnx and all that searches

    return benchmark.bench_folder(
        Path(folder), benchmark.BenchOptions(**_checked(options, benchmark.BenchOptions)), progress
    )


def compare(old: AnyPath, new: AnyPath, tolerance: float = comparison.TOLERANCE) -> Comparison:
    """The changes between two output folders; its `regressions` are what is worse by more than `tolerance` per cent.
    Raises MirageError for a folder without a report that this version reads."""
    return comparison.compare(Path(old), Path(new), tolerance)


def inspect(path: AnyPath, **options: Any) -> Inspection:
    """The content of a model file or an output folder. Options are the fields of `Options`. Raises MirageError."""
    return summary.inspect(fspath(path), settings.from_keywords(options))


def _checked(options: dict[str, Any], kind: type) -> dict[str, Any]:
    """The options as fields of a dataclass; those that `Options` has too are checked as these are."""
    fields = tuple(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    for name in options:
        if name not in fields:
            raise UsageError(*settings.unknown(name, fields))
    try:
        return {
            name: settings.value_of(settings.BY_NAME[name], given) if name in settings.BY_NAME else given
            for name, given in options.items()
        }
    except ValueError as e:
        raise UsageError(str(e)) from None
