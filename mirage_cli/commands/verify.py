"""`mirage verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mirage_cli.commands import common
from mirage_cli.commands.common import Voice
from mirage_cli.errors import CheckFailed


@click.command(
    cls=common.Command,
    short_help="Prove and compare an output folder again.",
    examples=(
        "mirage verify out",
        "mirage verify out --bisect --save-failing failing",
        "mirage verify model.onnx out/model.onnx --library out/libmirage.so",
    ),
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="DIR | ORIGINAL PATCHED")
@click.option("--library", metavar="LIB", type=click.Path(), help="The operators of PATCHED: its libmirage.so.")
@click.option("--bisect", is_flag=True, help="Find the fragment that differs.")
@click.option(
    "--save-failing", metavar="DIR", type=click.Path(), help="Keep what failed: inputs, outputs, smallest model."
)
@click.option("--trust-library", is_flag=True, help="Load the library of a folder that somebody else made.")
@click.option(
    "--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Longest time of one run of a model, 0: none [600]."
)
@common.settings_options(
    "confidence",
    "dim",
    "shape",
    seed="Where random numbers start [0: kernels on the inputs of optimize].",
    jobs="Fragments that are proved at a time [1].",
    max_memory="Memory of a process, as 4G; models run in ones of their own [no limit].",
    inputs="Compare outputs for these inputs: a .npz file or a folder of test data [drawn ones].",
)
@common.speaking
def verify(
    voice: Voice,
    paths: tuple[str, ...],
    library: str | None,
    bisect: bool,
    save_failing: str | None,
    trust_library: bool,
    timeout: float | None,
    **given: Any,
) -> int:
    """Prove the muGraphs of the output folder DIR again and compare its model with the original in ONNX Runtime, or
    compare two model files. Exit code 1 when something differs."""
    context = click.get_current_context()
    if len(paths) > 2:
        raise click.UsageError(f"Expected DIR or ORIGINAL PATCHED, found {len(paths)} paths.", context)
    if len(paths) == 2 and library is None:
        raise click.UsageError("ORIGINAL PATCHED need --library LIB, the operators of PATCHED.", context)
    if len(paths) == 1 and library is not None:
        raise click.UsageError("--library belongs to ORIGINAL PATCHED; a folder has its own.", context)
    values = common.given_values(given) | ({} if timeout is None else {"timeout": timeout})
    from mirage_cli.processes import isolation
    from mirage_cli.verification import story
    from mirage_cli.verification.findings import VerifyOptions

    isolation.limit_memory(values.get("max_memory", 0))
    options = VerifyOptions(bisect=bisect, save_failing=save_failing, trust_library=trust_library, **values)
    with voice.progress() as progress:
        if library is None:
            verification = story.verify_folder(Path(paths[0]), options, progress)
        else:
            verification = story.verify_pair(Path(paths[0]), Path(paths[1]), Path(library), options, progress)
    voice.result(verification.to_json, verification.text)
    return 0 if verification.passed else CheckFailed.exit_code
