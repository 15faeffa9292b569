"""`mirage doctor`."""

from __future__ import annotations

import click

from mirage_cli.commands import common
from mirage_cli.commands.common import Voice
from mirage_cli.errors import ToolMissing


@click.command(
    cls=common.Command,
    short_help="Check what this machine has and what is missing.",
    examples=("mirage doctor", "mirage doctor --measure --json"),
)
@click.option("--measure", is_flag=True, help="Measure the CPU's rates (some seconds).")
@common.speaking
def doctor(voice: Voice, measure: bool) -> int:
    """Check what this machine has: compilers, GPUs, ONNX Runtime, caches, and say how to get what is missing. Exit
    code 4 when something that every run needs is missing."""
    from mirage_cli.inspection.doctor import examine

    diagnosis = examine(measure)
    voice.result(diagnosis.to_json, diagnosis.text)
    return 0 if diagnosis.ok else ToolMissing.exit_code
