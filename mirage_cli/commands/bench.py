"""`mirage bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mirage_cli.commands import common
from mirage_cli.commands.common import Voice
from mirage_cli.errors import CheckFailed, Interrupted

if TYPE_CHECKING:
    from mirage_cli.benchmark.options import BenchOptions

#: options that only one of the two forms takes
_FOLDER_ONLY = (
    *("cpu", "opencl", "dim", "shape", "runs", "threads", "record", "timeout", "max_memory", "inputs", "generate"),
)
_SUITE_ONLY = (
    *("dtype", "part", "sample", "within", "peers_from", "results", "allow_tf32"),
    *("peers_only", "build", "tune", "markdown", "html", "jobs"),
)


@click.command(
    cls=common.Command,
    short_help="Time the original model against the patched one, or the suite.",
    examples=(
        "mirage bench out --cpu --threads 4",
        "mirage bench out --only 'mlp*' --dim seq=16,64,128",
        "mirage bench out --gpu 0 --dim seq=1024 --json > times.json",
        "mirage bench out --generate 128",
        "mirage bench --suite paper --gpu 0 --only 'gqa_*' --peers eager,sdpa",
        "mirage bench --suite models --gpu 0 --part judge --sample 40 --html page.html",
    ),
    rare=(
        "opencl",
        "timeout",
        "max_memory",
        "inputs",
        "jobs",
        "peers_from",
        "part",
        "sample",
        "results",
        "within",
        "allow_tf32",
        "build",
        "peers_only",
        "tune",
        "markdown",
        "html",
    ),
)
@click.argument("folder", metavar="[DIR | MODEL]", type=click.Path(), required=False)
@click.option(
    "--suite",
    type=click.Choice(["paper", "models", "apart"]),
    metavar="NAME",
    help="Time a suite instead: paper, models, apart.",
)
@click.option("--cpu", is_flag=True, help="Measure on the CPU [the first GPU that can be used, else the CPU].")
@click.option("--opencl", metavar="P:D", help="Measure on this OpenCL device, by the numbers that doctor lists.")
@click.option("--dim", multiple=True, metavar="SYM=N,N,...", help="Sizes of a symbolic dimension [those of optimize].")
@common.settings_options("shape", gpu="Measure on this GPU.")
@click.option(
    "--generate", type=click.IntRange(1), metavar="N", help="Let onnxruntime-genai generate N tokens from DIR instead."
)
@click.option("--runs", type=click.IntRange(1), metavar="N", help="Runs of each [as many as --seconds allow].")
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), metavar="S", help="Time for each measurement, about [2]."
)
@click.option("--threads", type=click.IntRange(1), metavar="N", help="Threads of ONNX Runtime [its own choice].")
@click.option("--peers", metavar="NAMES", help="Peers on a GPU, of eager,compile,sdpa,ort [all of them].")
@click.option("--no-peers", is_flag=True, help="Time ours alone.")
@click.option("--record", is_flag=True, help="Put the times into the report of DIR.")
@click.option(
    "--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Longest time of a measurement, 0: none [3600]."
)
@common.settings_options(
    "seed",
    max_memory="Memory of the process that measures, as 4G [no limit].",
    inputs="Run the whole model on these inputs: a .npz file or a folder of test data [drawn ones].",
    only="Only these fragments, by name or ID; of a suite, such rows.",
    jobs="Suite: rows that are optimized at a time [number of cores].",
)
@click.option("--dtype", type=click.Choice(["fp16", "bf16", "fp32"]), help="Suite paper: the element type [fp16].")
@click.option(
    "--part",
    type=click.Choice(["fit", "judge"]),
    help="Suite models: rows that constants may be fitted to, or the others.",
)
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Suite: N of the rows, which --seed draws [all].")
@click.option(
    "--peers-from", type=click.Path(), metavar="FILE", help="Suite: take peers' times from this JSON document."
)
@click.option(
    "--results",
    type=click.Path(),
    multiple=True,
    metavar="FILE",
    help="Suite: measure nothing, put together the rows of these JSON documents.",
)
@click.option(
    "--within",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Suite: measure no further row after so long [all rows].",
)
@click.option("--allow-tf32", is_flag=True, help="Suite: float32 products of peers may be TF32.")
@click.option("--build", type=click.Path(), metavar="DIR", help="Suite: keep here what is optimized, and use it again.")
@click.option("--peers-only", is_flag=True, help="Suite: optimize nothing, time peers, for --peers-from.")
@click.option("--tune", is_flag=True, help="Suite: optimize with measured candidates, as optimize --gpu does.")
@click.option(
    "--markdown", type=click.Path(), metavar="FILE", help="Suite: put the table between the marks of this file."
)
@click.option("--html", type=click.Path(), metavar="FILE", help="Suite models: write a page with the distribution.")
@common.speaking
def bench(voice: Voice, folder: str | None, suite: str | None, **given: Any) -> int:
    """Time the original model against the patched one of the output folder DIR, fragment by fragment and whole; a MODEL
    alone; or, with --suite, every case of a suite beside PyTorch and ONNX Runtime. Ends with 1 when an answer is wrong
    or a measurement crashes."""
    context = click.get_current_context()
    if (folder is None) == (suite is None):
        raise click.UsageError("Give an output folder, a model, or --suite.", context)
    values = {k: v for k, v in common.given_values(given).items() if v is not False}
    for name in _FOLDER_ONLY if suite else _SUITE_ONLY:
        if name in values:
            raise click.UsageError(
                f"--{name.replace('_', '-')} does not go with {'--suite' if suite else 'DIR'}.", context
            )
    if sum(name in values for name in ("cpu", "gpu", "opencl")) > 1:
        raise click.UsageError("--cpu, --gpu and --opencl exclude each other.", context)
    if "peers" in values and "no_peers" in values:
        raise click.UsageError("--peers and --no-peers exclude each other.", context)
    if suite:
        return _suite(voice, suite, values)
    return CheckFailed.exit_code if _folder(voice, Path(folder or ""), values) else 0


def _peers(values: dict[str, Any]) -> None:
    """Turn --peers and --no-peers into the field of the options."""
    from mirage_cli.measurement import peers

    if values.pop("no_peers", False):
        values["peers"] = ()
    elif "peers" in values:
        values["peers"] = peers.groups(values["peers"])


def _folder(voice: Voice, folder: Path, values: dict[str, Any]) -> bool:
    from mirage_cli.benchmark import benchmark

    _peers(values)
    count = values.pop("generate", None)
    if count is not None:
        return _generation(voice, folder, count, benchmark.BenchOptions(**values))
    several = [text for text in values.get("dim", ()) if "," in text]
    dim = values.pop("dim", ()) if several else ()
    options = benchmark.BenchOptions(**values)
    with voice.progress() as progress:
        if several:
            sweep = benchmark.sweep(folder, dim, options, progress)
            voice.result(sweep.to_json, sweep.text)
            return sweep.wrong
        report = benchmark.models_of(folder, options, progress) or benchmark.bench_folder(folder, options, progress)
    voice.result(report.to_json, report.text)
    return report.wrong


def _generation(voice: Voice, folder: Path, count: int, options: BenchOptions) -> bool:
    from mirage_cli.benchmark import generation

    report = generation.generate(folder, count, options)
    voice.result(report.to_json, report.text)
    return report.wrong


def _suite(voice: Voice, suite: str, values: dict[str, Any]) -> int:
    from mirage_cli.files.output import write_text
    from mirage_cli.suite import distribution, page
    from mirage_cli.suite import suite as suites
    from mirage_cli.suite.report import write_markdown

    _peers(values)
    markdown, html = values.pop("markdown", None), values.pop("html", None)
    values |= {k: Path(values[k]) for k in ("peers_from", "build") if k in values}
    values["results"] = tuple(map(Path, values.pop("results", ())))
    options = suites.SuiteOptions(suite, tf32=values.pop("allow_tf32", False), **values)
    with voice.progress() as progress:
        report = suites.run(options, progress)
    if report.population:
        voice.result(lambda: distribution.to_json(report), lambda: distribution.text(report))
    else:
        voice.result(report.to_json, report.text)
    if report.interrupted:  # pages keep the rows of the run before
        return Interrupted.exit_code
    if markdown is not None:
        text = distribution.markdown(report) if report.population else report.markdown()
        write_markdown(report, text, Path(markdown))
    if html is not None:
        write_text(Path(html), page.page(report))
    return CheckFailed.exit_code if report.wrong else 0
