"""`mirage bench --suite`: every row optimized like any model, judged, and timed beside its peers in one run."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mirage_cli import __version__
from mirage_cli.errors import MirageError, UsageError
from mirage_cli.files.staging import Scratch
from mirage_cli.machine import devices
from mirage_cli.measurement import peers
from mirage_cli.optimization import environment
from mirage_cli.options.options import Options, cores
from mirage_cli.processes import isolation
from mirage_cli.report.stages import Progress, Silent
from mirage_cli.suite import build as suite_build
from mirage_cli.suite import documents, suites
from mirage_cli.suite.cases import DTYPES, Case
from mirage_cli.suite.measure import BROKEN, MeasureOptions, perform
from mirage_cli.suite.report import SuiteReport, SuiteRow, row_of

ROW_SECONDS = 300.0  #: after which a row that is measured is given up: kernels may wait for one another for ever
BUILDING = 0.7  #: share of the time that optimizing rows may take
_BROKEN = f"exit code {BROKEN}"


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """Options of a run: the suite, the GPU, patterns of row names, the part of its rows (`population.PARTS`; None: all), of
    these a sample of so many (0: all), the type (None: fp16, or the rows' own), the groups of peers (`peers.GROUPS`), a
    JSON document of an earlier run whose peers' times are taken over, such documents whose rows are reported in the
    place of a run, whether float32 products may be TF32, a folder that keeps what was optimized (None: nothing is
    kept), whether `optimize` tunes on the GPU, seconds for the contestants of a row, processes that optimize, seconds
    after which no further row is measured (0: none); with `peers_only` nothing is optimized and only peers are timed.
    """

    suite: str = "paper"
    gpu: int = 0
    only: tuple[str, ...] = ()
    part: str | None = None
    sample: int = 0
    dtype: str | None = None
    peers: tuple[str, ...] = tuple(peers.GROUPS)
    peers_from: Path | None = None
    results: tuple[Path, ...] = ()
    tf32: bool = False
    build: Path | None = None
    tune: bool = False
    peers_only: bool = False
    seconds: float = 0.5
    jobs: int = field(default_factory=cores)
    within: float = 0
    seed: int = 0
    cache: str | None = None


def run(options: SuiteOptions, progress: Progress | None = None) -> SuiteReport:
    """Run the suite. Rows that are wrong or fail are part of the report; one that is interrupted reports the rows that it has,
    if any.

    Raises UsageError for options that do not fit, ToolMissing without a GPU, nvcc or torch.
    """
    progress, began = progress or Silent(), time.monotonic()
    cases = suites.chosen(options.suite, options.only, options.part, options.sample, options.seed)
    options = replace(options, dtype=type_of(options.dtype, cases))
    if options.results:
        return documents.merged(options.results, {c.name: c for c in cases}, settings_of(options))
    earlier = documents.read(options.peers_from, settings_of(options)) if options.peers_from else None
    arch = environment.architecture_of(devices.device(options.gpu))
    with ExitStack() as stack:
        folder = options.build or stack.enter_context(Scratch("mirage-suite-"))
        folder.mkdir(parents=True, exist_ok=True)
        gpu = options.gpu if options.tune else None
        without = () if options.tune else ("tunings",)  # the model's own choices are what is judged
        built = Options(
            arch=(arch,), gpu=gpu, jobs=options.jobs, seed=options.seed, cache=options.cache, without=without
        )
        rows = [suite_build.Row(c.name, _own(c, options), folder, "not asked for") for c in cases]
        if not options.peers_only:
            until = began + BUILDING * options.within if options.within else math.inf
            rows = suite_build.build(options.suite, cases, options.dtype or "", folder, built, progress, until)
            reached = {r.case for r in rows}
            cases = tuple(c for c in cases if c.name in reached)
        asked = MeasureOptions(options.gpu, options.peers, options.tf32, options.seconds, options.seed)
        progress.stage("measure", len(rows) + 1)
        limits, figures, interrupted = _measured(options, rows, asked, progress, began)
    known = earlier.peers if earlier else {}
    reported = [_row(c, _own(c, options), f, known.get(c.name, {})) for c, f in zip(cases, figures, strict=True) if f]
    settings = settings_of(options) | {"peers_machine": earlier.machine if earlier else None}
    return SuiteReport(__version__, settings, limits, tuple(reported), interrupted)


def type_of(dtype: str | None, cases: Sequence[Case]) -> str | None:
    """The element type of cases that have none of their own; None where all have. Raises UsageError for an unknown type,
    and for one that does not go with the cases."""
    own = cases[0].dtype
    if dtype is not None and own:
        raise UsageError(
            f"--dtype {dtype}: rows of this suite have element types of their own", "--only '*_fp16' selects"
        )
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype}: expected {', '.join(DTYPES)}")
    return None if own else dtype or "fp16"


def _own(case: Case, options: SuiteOptions) -> str:
    return case.dtype or options.dtype or ""


def settings_of(options: SuiteOptions) -> dict[str, Any]:
    """What a report says of the options."""
    return {
        "suite": options.suite,
        "dtype": options.dtype,
        "part": options.part,
        "sample": options.sample,
        "allow_tf32": options.tf32,
        "tuned": options.tune,
        "peers": list(options.peers),
        "peers_from": str(options.peers_from) if options.peers_from else None,
        "seconds": options.seconds,
        "seed": options.seed,
    }


def _measured(
    options: SuiteOptions, rows: list[suite_build.Row], asked: MeasureOptions, progress: Progress, began: float
) -> tuple[dict[str, Any], list[dict[str, Any]], bool]:
    """The limits of the device, what was measured of each row (nothing of those for which there was no time), in a process
    that a broken GPU costs one row, and True if it was interrupted."""
    jobs: list[tuple[Any, ...]] = [("ceilings", asked, sorted({r.dtype for r in rows}))]
    jobs += [("row", asked, options.suite, row) for row in rows]
    measured: list[dict[str, Any]] = [{} for _ in jobs]
    limit = min(options.within or ROW_SECONDS, ROW_SECONDS)
    try:
        with closing(isolation.each(perform, jobs, 1, apart=True, seconds=limit)) as results:
            for k, result in results:
                if isinstance(result, isolation.Lost) and k == 0:
                    raise MirageError(f"the GPU cannot be measured: {result.reason}")
                if isinstance(result, isolation.Lost):
                    broken = "it left the GPU unusable" if _BROKEN in result.reason else result.reason
                    result = {"mirage": {"problem": f"failed: {broken}"}, "peers": {}}
                measured[k] = result
                progress.step(f"{rows[k - 1].case}: {_headline(result)}" if k else "limits of the device")
                if options.within and time.monotonic() - began > options.within:
                    break
    except KeyboardInterrupt:
        if not any(measured[1:]):
            raise
        return measured[0], measured[1:], True
    return measured[0], measured[1:], False


def _headline(result: dict[str, Any]) -> str:
    ours = result["mirage"]
    return str(ours.get("problem") or f"{ours['us']['median']:.2f} us")


def _row(case: Case, dtype: str, figures: dict[str, Any], earlier: dict[str, Any]) -> SuiteRow:
    taken = {n: {**p, "earlier": True} for n, p in earlier.items() if n not in figures["peers"]}
    return row_of(case, dtype, figures, taken | figures["peers"])
