"""`mirage bench`: the fragments of an output folder and its whole model, original against patched; or a model alone.

Both sides are measured in a process of its own. It is begun before this one imports what it needs itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_cli.benchmark.options import BenchOptions, replaced_fragments
from mirage_cli.errors import MirageError, UsageError
from mirage_cli.files.output import MARK, PAGE, steady
from mirage_cli.kernels import trust
from mirage_cli.machine import devices, load, opencl
from mirage_cli.measurement.contestant import Place
from mirage_cli.options import dims
from mirage_cli.processes.isolation import Lost, Resident
from mirage_cli.report import models, reader
from mirage_cli.runtime import sessions

if TYPE_CHECKING:
    from mirage_cli.benchmark.report import BenchReport, FragmentRow, ModelReports, Sweep
    from mirage_cli.benchmark.rows import Alone, Prepared, Rows
    from mirage_cli.report.stages import Progress

__all__ = ["BenchOptions", "bench_folder", "choose_place"]


def bench_folder(folder: Path, options: BenchOptions, progress: Progress | None = None) -> BenchReport:
    """Measure an output folder, or the model in a file alone.

    Raises ModelError for a folder that `optimize` did not write, UsageError for options that do not fit, ToolMissing for
    a GPU that onnxruntime cannot use, Busy when another run replaces the folder meanwhile. What gives other answers,
    fails, or ends the process that measures, is part of the report.
    """
    with steady(folder):
        report = _bench_folder(folder, options, progress)
    if not options.record:
        return report
    from mirage_cli.optimization import assembly  # noqa: PLC0415

    target = report.settings["provider"]
    rows = {
        r.id: r.comparison.measured(report.device) | {"target": target, "inputs": list(r.inputs)}
        for r in report.fragments
    }
    assembly.add_times(folder, report.device, rows)
    return replace(report, notes=(*report.notes, f"recorded in {folder / MARK} and {folder / PAGE}"))


def sweep(folder: Path, dim: Sequence[str], options: BenchOptions, progress: Progress | None = None) -> Sweep:
    """Measure at all combinations of sizes: `dim` has several for a symbol, as in `seq=16,64,128`. An output folder's page
    gets a plot of them, where it can be written. Raises as `bench_folder`."""
    from mirage_cli.benchmark.report import Sweep  # noqa: PLC0415

    symbols = [(name, sizes.split(",")) for name, _, sizes in (text.rpartition("=") for text in dim)]
    points = [
        tuple(f"{name}={size}" for (name, _), size in zip(symbols, chosen, strict=True))
        for chosen in itertools.product(*(sizes for _, sizes in symbols))
    ]
    for point in points:
        dims.parse(point)
    own = replace(options, record=False)
    found = Sweep(tuple(points), tuple(bench_folder(folder, replace(own, dim=p), progress) for p in points))
    return found if folder.is_file() else replace(found, notes=(_kept(folder, found),))


def _kept(folder: Path, found: Sweep) -> str:
    """Put a sweep into the reports of an output folder; what became of that."""
    from mirage_cli.optimization import assembly  # noqa: PLC0415

    try:
        assembly.add_sweeps(folder, found.kept())
    except (MirageError, OSError) as error:
        return f"there is no plot in {folder / PAGE}: {error}"
    return f"plotted in {folder / PAGE}"


def models_of(folder: Path, options: BenchOptions, progress: Progress | None = None) -> ModelReports | None:
    """Measure the models of an output folder that has several; None for one that has not. Raises as `bench_folder`."""
    from mirage_cli.benchmark.report import ModelReports  # noqa: PLC0415

    index = models.index(folder) if folder.is_dir() else None
    if index is None:
        return None
    return ModelReports({place: bench_folder(folder / place, options, progress) for place in index.models})


def rows_of(folder: Path, options: BenchOptions, place: Place) -> Rows | Alone:
    """The rows of a folder, or of a model, made in the process that measures."""
    from mirage_cli.benchmark.rows import Alone, Rows  # noqa: PLC0415 - onnx and all that searches

    return Alone(folder, options, place) if folder.is_file() else Rows(folder, options, place)


def _bench_folder(folder: Path, options: BenchOptions, shown: Progress | None) -> BenchReport:
    if folder.is_file():
        if options.only or options.record:
            raise UsageError(f"{folder}: --only and --record belong to an output folder, found a model")
        report: Mapping[str, Any] = {"fragments": []}
    else:
        report = reader.read(folder)
        trust.check_unchanged(folder, report)
    place = choose_place(options, _targets(report))
    device = opencl.device(place.opencl).name.strip() if place.opencl else devices.name(place.provider, place.device)
    notes = _loaded() if place.target == "cpu" else ()
    replaced = replaced_fragments(report, options.only)
    rows = Resident(rows_of, (folder.absolute(), options, place), options.timeout, options.max_memory)
    rows.begin()
    from mirage_cli.benchmark.report import BenchReport  # noqa: PLC0415 - the process that was begun does so meanwhile
    from mirage_cli.optimization.fragment_times import Comparison, lost_comparison  # noqa: PLC0415
    from mirage_cli.report.stages import Silent  # noqa: PLC0415

    progress = shown or Silent()
    try:
        prepared: Prepared | Lost = rows.call("prepared", (), options.timeout)
        if isinstance(prepared, Lost):
            raise prepared.raised()
        progress.stage("measure", len(replaced) + (not options.only))
        fragments = []
        for k, f in enumerate(replaced):
            row: FragmentRow | Lost = rows.call("fragment", (k,), options.timeout)
            fragments.append(unmeasured(f, row) if isinstance(row, Lost) else row)
            progress.step(f["name"])
        whole: Comparison | Lost = Comparison(())
        if not options.only:
            whole = rows.call("whole", (), options.timeout)
            progress.step("whole model")
    finally:
        rows.close()
    settings = {
        "provider": place.target,
        "onnxruntime": sessions.version(),
        "threads": options.threads,
        "input_sets": prepared.sets,
        "seed": options.seed,
        "inputs": prepared.inputs,
        "gpu_state": devices.state(place.device) if place.provider == "cuda" else {},
    }
    model = lost_comparison(whole) if isinstance(whole, Lost) else whole
    return BenchReport(device, settings, prepared.note, tuple(fragments), model, prepared.absent, notes)


def _loaded() -> tuple[str, ...]:
    """A note where others use this machine's processors."""
    taken = load.busy()
    if taken <= load.LOADED:
        return ()
    return (f"this machine is loaded: others took {taken:.0%} of its processors, so these times are no measure",)


def unmeasured(fragment: Mapping[str, Any], reason: Lost) -> FragmentRow:
    """The row of a fragment, told by its part of the report of `optimize`, that ended the process that measured it."""
    from mirage_cli.benchmark.report import FragmentRow  # noqa: PLC0415
    from mirage_cli.optimization.fragment_times import lost_comparison  # noqa: PLC0415

    return FragmentRow(fragment["id"], fragment["name"], fragment["occurrences"], (), lost_comparison(reason))


# ---- where -----------------------------------------------------------------------------------------------------------


def choose_place(options: BenchOptions, kinds: Collection[str]) -> Place:
    """Where to measure a folder, given the kinds of kernels in its library. Raises UsageError and ToolMissing."""
    has_cuda = "cuda" in kinds
    if (options.gpu is not None) + options.cpu + bool(options.opencl) > 1:
        raise UsageError("--gpu, --cpu and --opencl exclude each other")
    if options.opencl:
        if "opencl" not in kinds:
            raise UsageError("the library of this folder has no OpenCL kernels", "optimize with --target opencl")
        opencl.device(options.opencl)
        return Place("cpu", 0, options.threads, options.opencl)
    if options.gpu is not None:
        sessions.check_provider("cuda")
        devices.device(options.gpu)
        if not has_cuda:
            raise UsageError(
                "the library of this folder has no CUDA kernels", "optimize with --target cuda, or use --cpu"
            )
        return Place("cuda", options.gpu, options.threads)
    if not options.cpu and has_cuda and "cuda" in sessions.providers() and devices.devices():
        return Place("cuda", 0, options.threads)
    return Place("cpu", 0, options.threads)


def _targets(report: Mapping[str, Any]) -> set[str]:
    """The kinds of target that all replaced fragments have kernels for."""
    kinds = [set(f["schedule"]) for f in report["fragments"] if f["status"] == "replaced"]
    return set.intersection(*kinds) if kinds else {"cpu", "cuda", "opencl"}
