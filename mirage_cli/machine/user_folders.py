"""Where the user's own files are kept; None for a user without a home, who has none."""

from __future__ import annotations

from pathlib import Path

import platformdirs

NAME = "mirage"


def cache() -> Path | None:
    """The folder of what can be found out again."""
    try:
        return _absolute(platformdirs.user_cache_dir(NAME))
    except RuntimeError:
        return None


def state() -> Path | None:
    """The folder of what stays between runs."""
    try:
        return _absolute(platformdirs.user_state_dir(NAME, appauthor=False))
    except RuntimeError:
        return None


def logs() -> Path | None:
    """The folder of logs."""
    try:
        return _absolute(platformdirs.user_log_dir(NAME, appauthor=False))
    except RuntimeError:
        return None


def _absolute(path: str) -> Path | None:
    """A path that does not depend on the working directory; a home that is not known stays `~` in older platformdirs."""
    return Path(path) if Path(path).is_absolute() else None
