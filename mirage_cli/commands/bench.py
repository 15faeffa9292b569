"""`mirage bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mirage_cli.commands import common
from mirage_cli.commands.common import Voice


@click.command(
    cls=common.Command,
    short_help="Time the original model against the patched one.",
    examples=("mirage bench out --cpu --threads 4", "mirage bench out --gpu 0 --dim seq=1024 --json > times.json"),
)
@click.argument("folder", metavar="DIR", type=click.Path())
@click.option("--cpu", is_flag=True, help="Measure on the CPU [the first GPU that can be used, else the CPU].")
@common.settings_options("dim", "shape", gpu="Measure on this GPU.")
@click.option("--runs", type=click.IntRange(1), metavar="N", help="Runs of each [as many as --seconds allow].")
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), metavar="S", help="Time for each measurement, about [2]."
)
@click.option("--threads", type=click.IntRange(1), metavar="N", help="Threads of ONNX Runtime [its own choice].")
@common.settings_options("seed")
@common.speaking
def bench(voice: Voice, folder: str, cpu: bool, **given: Any) -> None:
    """Time the original model against the patched one of the output folder DIR, fragment by fragment and whole."""
    values = common.given_values(given)
    if cpu and "gpu" in values:
        raise click.UsageError("--cpu and --gpu exclude each other.", click.get_current_context())
    from mirage_cli import benchmark

    options = benchmark.BenchOptions(cpu=cpu, **values)
    with voice.progress() as progress:
        found = benchmark.bench_folder(Path(folder), options, progress)
    voice.result(found.to_json, found.text)
