"""`mirage cache`."""

from __future__ import annotations

import difflib
from typing import Any

import click

from mirage_cli.commands import common
from mirage_cli.commands.common import Voice
from mirage_cli.options.options import Options

ACTIONS = ("dir", "list", "export", "import", "clean")


class Action(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """An action on the cache."""

    name = "action"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The action. One that does not exist suggests the near one."""
        if value in ACTIONS:
            return value
        close = difflib.get_close_matches(value, ACTIONS, 1)
        suggestion = f"Did you mean {close[0]}?" if close else f"Actions are {', '.join(ACTIONS)}."
        raise click.UsageError(f"No such action {value!r}. {suggestion}", ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """The actions that the text begins."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(a) for a in ACTIONS if a.startswith(incomplete)]


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
@click.argument("action", type=Action(), metavar="|".join(ACTIONS))
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
    from mirage_cli.inspection import caches

    options = Options(**common.given_values(given))
    actions = {"dir": caches.where, "list": caches.listed, "export": caches.export, "clean": caches.clean}
    answer = caches.bring(options, file) if file is not None else actions[action](options)
    voice.result(answer.to_json, answer.text)
