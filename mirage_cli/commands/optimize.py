"""`mirage optimize`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mirage_cli.commands import common
from mirage_cli.commands.common import Voice
from mirage_cli.options import settings
from mirage_cli.options.options import Options

if TYPE_CHECKING:
    from mirage_cli.report.report import Report


@click.command(
    cls=common.Command,
    short_help="Write the improved model, its library and the report.",
    examples=(
        "mirage optimize model.onnx -o out --dim batch=1 --dim seq=1:128:4096",
        "mirage optimize model.onnx -o out --force --target cpu --json > report.json",
        "cat model.onnx | mirage optimize - --dry-run",
    ),
    rare=(
        "max_kernels",
        "max_ops",
        "candidates",
        "tune_candidates",
        "tune_budget",
        "tuned",
        "without",
        "unwritten",
        "seed",
        "confidence",
        "max_memory",
        "inputs",
        "data",
        "target_file",
        "certificates",
    ),
)
@click.argument("models", nargs=-1, type=common.Model(), metavar="MODEL...")
@click.option("-o", "--output", metavar="DIR", type=click.Path(), help="The folder to write; one of ours is replaced.")
@click.option("--config", metavar="FILE", type=click.Path(), help="Take options from a YAML file.")
@click.option("--print-config", is_flag=True, help="Print the options as such a file, and exit.")
@common.settings_options(*settings.BY_NAME)
@common.speaking
def optimize(
    voice: Voice, models: tuple[str, ...], output: str | None, config: str | None, print_config: bool, **given: Any
) -> int:
    """Optimize MODEL (.onnx, .pt, or - for standard input) into a folder: the patched model, a library of kernels for ONNX
    Runtime, the report. Several models, and those in a folder of onnxruntime-genai or transformers.js, have one each."""
    options = effective(config, given)
    if print_config:
        click.echo(_written(options, voice.as_json), nl=False)
        return 0
    if not models:
        raise click.UsageError("Missing argument 'MODEL'.", click.get_current_context())
    if output is None and not options.dry_run:
        raise click.UsageError("Missing option '-o' (or --dry-run, to write nothing).", click.get_current_context())
    paths = [common.check_input(model) for model in models]
    if len(paths) > 1:
        from mirage_cli.commands.farm import optimize_all
        from mirage_cli.options import orders

        return optimize_all(voice, orders.of(paths, Path(output or ""), options))
    from mirage_cli.processes import isolation

    isolation.limit_memory(options.max_memory)
    if os.path.isdir(paths[0]):
        _folder(voice, Path(paths[0]), output, options)
        return 0
    from mirage_cli.optimization import story

    with voice.progress() as progress:
        report = story.optimize(paths[0], Path(output or ""), options, progress)
    voice.result(report.to_json, lambda: _summary(report, output))
    return 0


def _folder(voice: Voice, path: Path, output: str | None, options: Options) -> None:
    from mirage_cli.frontends import folders
    from mirage_cli.optimization import folder_story

    with voice.progress() as progress:
        found = folder_story.optimize(path, Path(output or ""), options, progress)
    places = {m.file: os.path.normpath(os.path.join(output or "DIR", m.place)) for m in folders.read(path).members}
    told = (_summary(report, places[file]) for file, report in found.models.items())
    voice.result(found.to_json, lambda: "\n".join([*told, *found.notes]))


def effective(config: str | None, given: dict[str, Any]) -> Options:
    """The options of the configuration file with those of the command line over them. Raises UsageError."""
    values = common.given_values(given)
    if config is not None:
        from mirage_cli.options import config as files

        values = files.read(config) | values
    return settings.options(values)


def _summary(report: Report, output: str | None) -> str:
    from mirage_cli.exporters import text

    return text.summary(report, output or "DIR")


def _written(options: Options, as_json: bool) -> str:
    from mirage_cli.options import config as files

    return json.dumps(files.to_json(options), indent=2) + "\n" if as_json else files.written(options)
