"""`mirage bench --suite`: every row optimized like any model, judged, and timed beside its peers in one run."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mirage_cli import __version__
from mirage_cli.errors import MirageError, ModelError, UsageError
from mirage_cli.files import rawfile
from mirage_cli.files.staging import Scratch
from mirage_cli.machine import devices
from mirage_cli.measurement import peers
from mirage_cli.optimization import environment
from mirage_cli.options.options import Options, cores
from mirage_cli.processes import isolation
from mirage_cli.report.stages import Progress, Silent
from mirage_cli.suite import build as suite_build
from mirage_cli.suite import cases as suite_cases
from mirage_cli.suite.cases import Case
from mirage_cli.suite.measure import BROKEN, MeasureOptions, perform
from mirage_cli.suite.report import SuiteReport, SuiteRow

_BROKEN = f"exit code {BROKEN}"


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """Options of a run: the suite, the GPU, patterns of row names, the type, the groups of peers (`peers.GROUPS`), a
    JSON document of an earlier run whose peers' times are taken over, whether float32 products may be TF32, a
    folder that keeps what was optimized (None: nothing is kept), whether `optimize` tunes on the GPU, seconds for
    the contestants of a row, processes that optimize; with `peers_only` nothing is optimized and only peers are
    timed."""

    suite: str = "paper"
    gpu: int = 0
    only: tuple[str, ...] = ()
    dtype: str = "fp16"
    peers: tuple[str, ...] = tuple(peers.GROUPS)
    peers_from: Path | None = None
    tf32: bool = False
    build: Path | None = None
    tune: bool = False
    peers_only: bool = False
    seconds: float = 0.5
    jobs: int = field(default_factory=cores)
    seed: int = 0
    cache: str | None = None


def run(options: SuiteOptions, progress: Progress | None = None) -> SuiteReport:
    """Run the suite. Rows that are wrong or fail are part of the report.

    Raises UsageError for options that do not fit, ToolMissing without a GPU, nvcc or torch.
    """
    progress = progress or Silent()
    if options.dtype not in suite_cases.DTYPES:
        raise UsageError(f"--dtype {options.dtype}: expected {', '.join(suite_cases.DTYPES)}")
    cases = suite_cases.chosen(options.suite, options.only)
    earlier = read_peers(options.peers_from, options) if options.peers_from else {}
    arch = environment.architecture_of(devices.device(options.gpu))
    with ExitStack() as stack:
        folder = options.build or stack.enter_context(Scratch("mirage-suite-"))
        folder.mkdir(parents=True, exist_ok=True)
        gpu = options.gpu if options.tune else None
        built = Options(arch=(arch,), gpu=gpu, jobs=options.jobs, seed=options.seed, cache=options.cache)
        rows = [suite_build.Row(c.name, options.dtype, folder, "not asked for") for c in cases]
        if not options.peers_only:
            rows = suite_build.build(options.suite, cases, options.dtype, folder, built, progress)
        asked = MeasureOptions(options.gpu, options.peers, options.tf32, options.seconds, options.seed)
        progress.stage("measure", len(rows) + 1)
        limits, figures = _measured(options, rows, asked, progress)
    reported = [_row(c, options, f, earlier.get(c.name, {})) for c, f in zip(cases, figures, strict=True)]
    settings = {
        "suite": options.suite,
        "dtype": options.dtype,
        "allow_tf32": options.tf32,
        "tuned": options.tune,
        "peers": list(options.peers),
        "peers_from": str(options.peers_from) if options.peers_from else None,
        "seconds": options.seconds,
        "seed": options.seed,
    }
    return SuiteReport(__version__, settings, limits, tuple(reported))


def _measured(
    options: SuiteOptions, rows: list[suite_build.Row], asked: MeasureOptions, progress: Progress
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The limits of the device, and what was measured of each row, in a process that a broken GPU costs one row."""
    jobs: list[tuple[Any, ...]] = [("ceilings", asked, options.dtype)]
    jobs += [("row", asked, options.suite, row) for row in rows]
    measured: list[dict[str, Any]] = [{} for _ in jobs]
    for k, result in isolation.each(perform, jobs, 1, apart=True):
        if isinstance(result, isolation.Lost) and k == 0:
            raise MirageError(f"the GPU cannot be measured: {result.reason}")
        if isinstance(result, isolation.Lost):
            broken = "it left the GPU unusable" if _BROKEN in result.reason else result.reason
            result = {"mirage": {"problem": f"failed: {broken}"}, "peers": {}}
        measured[k] = result
        progress.step(f"{rows[k - 1].case}: {_headline(result)}" if k else "limits of the device")
    return measured[0], measured[1:]


def _headline(result: dict[str, Any]) -> str:
    ours = result["mirage"]
    return str(ours.get("problem") or f"{ours['us']['median']:.2f} us")


def _row(case: Case, options: SuiteOptions, figures: dict[str, Any], earlier: dict[str, Any]) -> SuiteRow:
    dtype = suite_cases.DTYPES[options.dtype]
    taken = {n: {**p, "earlier": True} for n, p in earlier.items() if n not in figures["peers"]}
    return SuiteRow(
        case.name, case.shapes, case.decode, case.bytes(dtype), case.flops, figures, taken | figures["peers"]
    )


def read_peers(path: Path, options: SuiteOptions) -> dict[str, dict[str, Any]]:
    """The peers' times by row in the JSON document of an earlier run. Raises ModelError for one that is none, UsageError
    for one of another suite or type."""
    try:
        data = json.loads(rawfile.content(path))
        settings = dict(data["settings"])
        rows = {str(r["name"]): {str(n): dict(p) for n, p in dict(r["peers"]).items()} for r in data["rows"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{path}: expected the JSON document of `mirage bench --suite`, found {error}") from None
    for name, wanted in (("suite", options.suite), ("dtype", options.dtype), ("allow_tf32", options.tf32)):
        if settings.get(name) != wanted:
            raise UsageError(f"--peers-from {path}: its {name} is {settings.get(name)}, not {wanted}")
    return rows
