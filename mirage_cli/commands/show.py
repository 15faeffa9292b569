"""`mirage show`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mirage_cli.commands import common
from mirage_cli.commands.common import Voice


@click.command(
    cls=common.Command,
    short_help="Show a fragment of an output folder: its muGraph, proof and schedule.",
    examples=(
        "mirage show out",
        "mirage show out --open",
        "mirage show out a666",
        "mirage show out a666 --source cuda > kernel.cu",
        "mirage show out a666 --svg > mugraph.svg",
    ),
)
@click.argument("folder", metavar="DIR", type=click.Path())
@click.argument("fragment", metavar="[ID]", required=False, shell_complete=common.fragments)
@click.option("--source", type=click.Choice(["cuda", "cpp"]), help="Print the source of its kernels instead.")
@click.option("--svg", is_flag=True, help="Print the drawing of its muGraph instead, an SVG document.")
@click.option("--open", "page", is_flag=True, help="Open the report in a browser.")
@common.speaking
def show(voice: Voice, folder: str, fragment: str | None, source: str | None, svg: bool, page: bool) -> None:
    """Show a fragment of the output folder DIR: its program, its muGraph as a tree of three levels, the times that are
    predicted for it, its schedule and proof. ID is the beginning of its identifier, or its name; without it the fragments
    are listed."""
    context = click.get_current_context()
    if source and svg:
        raise click.UsageError("--source and --svg exclude each other.", context)
    if page and (source or svg or fragment):
        raise click.UsageError("--open shows the report, without an ID and other options.", context)
    if fragment is None and (source or svg):
        raise click.UsageError("Missing argument 'ID'.", context)
    from mirage_cli.inspection import fragment_details

    place = Path(folder)
    if page:
        shown = fragment_details.in_browser(place)
        voice.result(shown.to_json, shown.text)
        return
    shown = fragment_details.show(place, fragment)
    if source:
        shown = fragment_details.source(place, shown.document["id"], source)
    elif svg:
        shown = fragment_details.drawing(place, shown.document["id"])
    elif not (voice.as_json or voice.quiet) and sys.stdout.isatty():
        fragment_details.to_terminal(shown)
        return
    voice.result(shown.to_json, shown.text)
