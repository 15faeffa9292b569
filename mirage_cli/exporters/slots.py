"""Places in a page for what differs from run to run: times, and the folder that is written.

A slot is written in characters of the private use area, which `escaped` takes out of every name: nothing else can make one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from markupsafe import escape

from mirage_cli.exporters import wording

FOLDER = "\ue000"
_TIME = "\ue001"
_SLOT = re.compile(rf"{_TIME}(\d+)\.(\d){_TIME}")


def seconds(number: int, digits: int) -> str:
    """A slot for the time of the stage of that number."""
    return f"{_TIME}{number}.{digits}{_TIME}"


def filled(frame: str, times: Mapping[str, float], folder: str) -> str:
    """The page with the seconds of its stages, in their order, and with its folder."""
    values = list(times.values())
    page = _SLOT.sub(lambda slot: f"{values[int(slot[1])]:.{slot[2]}f}", frame)
    return page.replace(FOLDER, str(escape(wording.command([folder]))))
