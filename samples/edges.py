"""Check kernels on inputs at the edges of numbers: the suite's cases on a GPU, sample models and operators on the CPU.

    python -m samples.edges samples/operators/*.onnx          CPU kernels
    python -m samples.edges --gpu 0 --dtype fp16              CUDA kernels of the suite, at its extents

Every fragment is optimized by force; then all kinds of inputs that its operators call for go through the kernel, the original
nodes in onnxruntime (on the same device, where it can) and float64. A line for each fragment says how much of the error that
is allowed the worst kind used.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from mirage_cli import frontends
from mirage_cli.checks import kernel_check
from mirage_cli.checks.kernel_check import CheckJob, FloatCheck
from mirage_cli.errors import MirageError
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.optimization import story
from mirage_cli.options.options import Options
from mirage_cli.processes import isolation
from mirage_cli.report import reader
from mirage_cli.report.stages import Silent
from mirage_cli.suite import build, suites
from mirage_cli.suite.cases import DTYPES
from mirage_cli.tuning.bench import BenchJob, Measured
from mirage_cli.verification import output_folder
from mirage_cli.verification.findings import Verification


def jobs(folder: Path) -> Iterator[tuple[str, CheckJob]]:
    """The checks of the fragments in an output folder, with their operators' names."""
    model, result = output_folder.read_model(folder / MODEL), Verification()
    imported = frontends.load(str(folder / MODEL))
    for f in output_folder.fragments(folder, model, reader.read(folder), result):
        library = folder / LIBRARY
        yield (
            f.op_type,
            output_folder.check_job(f, f.stored.program, model, folder, library, imported, 1, {}),
        )


def on_gpu(job: CheckJob, gpu: int) -> str:
    """The verdict on a CUDA kernel; the original runs on the CPU where onnxruntime lacks its operators in CUDA."""
    symbols = kernel_check.symbol_values(job.spec.symbols)
    try:
        bench = Measured(BenchJob(job, symbols, gpu))
    except MirageError:
        bench = Measured(BenchJob(job, symbols, gpu, "cpu"))
    return verdict_line(bench.checked(job.library))


def on_cpu(job: CheckJob) -> str:
    """The verdict on a CPU kernel."""
    check = kernel_check.run_job(job)
    return "no CPU kernel" if check is None else verdict_line(check)


def verdict_line(check: FloatCheck) -> str:
    """A verdict in one line."""
    if not check.passed:
        return f"FAILED on {check.case}: {check.worst}"
    if check.edges is None:
        return f"not checked: {check.skipped}"
    better = f"; better on {', '.join(check.edges.better)}" if check.edges.better else ""
    used = f"{check.edges.accuracy.used:.0%} of the error allowed"
    return f"{len(check.edges.kinds)} kinds, worst: {check.edges.worst} ({used}){better}"


def folders(args: argparse.Namespace, root: Path) -> Iterator[tuple[str, Path, str]]:
    """The folders that are made: name of the model, folder, and why there is none."""
    options = Options(force=True, jobs=args.jobs, cache=args.cache)
    if args.gpu is None:
        for model in args.models:
            out = root / Path(model).stem
            try:
                story.optimize(model, out, Options(target=("cpu",), force=True, jobs=args.jobs, cache=args.cache))
                yield Path(model).stem, out, ""
            except MirageError as error:
                yield Path(model).stem, out, str(error)
        return
    cases = suites.chosen("paper", args.models)
    for row in build.build("paper", cases, args.dtype, root, options, Silent()):
        yield f"{row.case} {row.dtype}", row.folder / "out", row.problem


def main(arguments: Sequence[str] | None = None) -> int:
    """Check what is asked for and print a line for each fragment; 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="model files; with --gpu: names of suite cases")
    parser.add_argument("--gpu", type=int, help="check the suite's CUDA kernels on this GPU")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="fp16", help="of the suite's cases")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--cache", help="folder of kept results and compiled objects")
    args = parser.parse_args(arguments)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="mirage-edges-") as root:
        names, ready = [], []
        for name, out, problem in folders(args, Path(root)):
            if problem:
                print(f"{name}: not optimized: {problem}", flush=True)
            operators = list(jobs(out)) if (out / LIBRARY).exists() else []
            names += [f"{name} {operator}" for operator, _ in operators]
            ready += [(job,) if args.gpu is None else (job, args.gpu) for _, job in operators]
        for k, told in isolation.each(on_cpu if args.gpu is None else on_gpu, ready, args.jobs):
            text = f"lost: {told.reason}" if isinstance(told, isolation.Lost) else told
            failed += text.startswith(("FAILED", "lost"))
            print(f"{names[k]}: {text}", flush=True)
    print(f"{len(ready)} fragments, {failed} failed", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
