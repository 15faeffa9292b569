"""Names that a user writes: patterns that nothing fits are errors, which tell names that are near."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence

from mirage_cli.errors import UsageError

SHOWN = 3  #: names that a hint tells
NEAR = 0.4  #: how alike they are, of 1


def check(option: str, patterns: Iterable[str], names: Sequence[str], what: str) -> None:
    """Raise UsageError for a pattern that none of the `names` fits: those of `what`, in the singular."""
    for pattern in patterns:
        if not any(fnmatch.fnmatch(name, pattern) for name in names):
            raise UsageError(f"{option} {pattern!r}: no {what} has such a name", near(pattern, names))


def near(wanted: str, names: Iterable[str]) -> str:
    """A hint: the names that are most like what was wanted, else some of them."""
    known = sorted({n for n in names if n})
    close = difflib.get_close_matches(wanted.strip("*?"), known, SHOWN, NEAR)
    shown = ", ".join(close or known[:SHOWN])
    if close:
        return f"did you mean {shown}?"
    return f"there are {shown}{', ...' if len(known) > SHOWN else ''}" if known else "there are none"
