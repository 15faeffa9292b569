"""`mirage cache`."""

from __future__ import annotations

from typing import Any

import click

from mirage_cli.commands import common
from mirage_cli.commands.common import Voice
from mirage_cli.options import Options

ACTIONS = ("dir", "list", "export", "import", "clean")


@click.command(
    cls=common.Command,
    short_help="Show, carry or empty what earlier runs have kept.",
    examples=(
        "mirage cache list",
        "mirage cache export > tunings.json",
        "mirage cache import tunings.json --cache /tmp/mirage",
        "mirage cache clean --cache /tmp/mirage",
    ),
)
@click.argument("action", type=click.Choice(ACTIONS), metavar="|".join(ACTIONS))
@click.argument("file", required=False, type=click.Path(), metavar="[FILE]")
@common.settings_options("cache")
@common.speaking
def cache(voice: Voice, action: str, file: str | None, **given: Any) -> None:
    """What earlier runs have kept: compiled objects, results (searches, proofs, checks) and tunings, the times of
    candidates on a GPU.

    dir prints the folder, list what is in it, export the tunings as JSON; import adds the tunings of such a FILE (- for
    standard input), so that optimize --tuned can use them without a GPU; clean removes everything.
    """
    if (action == "import") != (file is not None):
        text = "Missing argument 'FILE'." if file is None else f"{action} takes no FILE."
        raise click.UsageError(text, click.get_current_context())
    from mirage_cli import caches

    options = Options(**common.given_values(given))
    actions = {"dir": caches.where, "list": caches.listed, "export": caches.export, "clean": caches.clean}
    found = caches.bring(options, file) if file is not None else actions[action](options)
    voice.result(found.to_json, found.text)
