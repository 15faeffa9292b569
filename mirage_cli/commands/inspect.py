"""`mirage inspect`."""

from __future__ import annotations

from typing import Any

import click

from mirage_cli.commands import common
from mirage_cli.commands.common import Voice
from mirage_cli.options import settings


@click.command(
    cls=common.Command,
    short_help="Show the fragments of a model, and why the rest is left alone.",
    examples=("mirage inspect model.onnx --dim batch=1", "mirage inspect out --json"),
)
@click.argument("path", metavar="MODEL | DIR", type=common.Model())
@common.settings_options("shape", "dim", "target", "arch", "only", "skip", "data")
@common.speaking
def inspect(voice: Voice, path: str, **given: Any) -> None:
    """Show which fragments a model (.onnx, .pt, or - for standard input) has and why the rest is left alone: of every model
    where it is a folder of onnxruntime-genai or transformers.js. Of an output folder, what it holds."""
    options = settings.options(common.given_values(given))
    common.check_input(path)
    from mirage_cli.inspection import summary

    inspection = summary.inspect(path, options)
    voice.result(inspection.to_json, inspection.text)
