"""`mirage compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mirage_cli.commands import common
from mirage_cli.commands.common import Voice
from mirage_cli.errors import CheckFailed

DEFAULT = "5"  #: per cent that something may be worse, where --fail-on-regression gives no number


class _Percent(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A share in per cent that is not negative."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Fails with what was expected and found."""
        try:
            number = float(str(value).removesuffix("%"))
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            self.fail(f"expected a number of at least 0, found {value!r} (folders come before this option)", param, ctx)
        return number


@click.command(
    cls=common.Command,
    short_help="Show what changed between two output folders.",
    examples=(
        "mirage compare out-old out-new",
        "mirage compare out-old out-new --fail-on-regression 3",
        "mirage compare out-old out-new --json > changes.json",
    ),
)
@click.argument("old", metavar="OLD_DIR", type=click.Path(file_okay=False))
@click.argument("new", metavar="NEW_DIR", type=click.Path(file_okay=False))
@click.option(
    "--fail-on-regression",
    "percent",
    type=_Percent(),
    metavar="[PERCENT]",
    is_flag=False,
    flag_value=DEFAULT,
    help=f"Exit code 1 when something is worse by more than PERCENT [{DEFAULT}].",
)
@common.speaking
def compare(voice: Voice, old: str, new: str, percent: float | None) -> int:
    """Show what a new version, another option or another model changed: fragments (new, gone, computed in another way),
    predicted and measured times, coverage, sizes. Both folders are output folders of mirage optimize."""
    from mirage_cli.inspection import comparison

    changes = comparison.compare(Path(old), Path(new), comparison.TOLERANCE if percent is None else percent)
    voice.result(changes.to_json, changes.text)
    return CheckFailed.exit_code if percent is not None and changes.regressions else 0
