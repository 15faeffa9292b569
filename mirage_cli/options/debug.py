"""`MIRAGE_DEBUG=program,search,tile,source`: what each stage hands to the next, on standard error.

For those who work on mirage. Fragments are planned in processes of their own, so texts of several may be mixed; `--jobs 1`
keeps them apart. Plans of earlier runs are not taken, or there would be nothing to show.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable

from mirage_cli.errors import UsageError

VARIABLE = "MIRAGE_DEBUG"
#: the words and what they show
STAGES = {
    "program": "the fragment as a program on named axes",
    "search": "the candidates that the search found, best first, and the muGraph of the best",
    "tile": "tile programs of the kernels, as they are rendered",
    "source": "the rendered source",
}


def requested_stages() -> frozenset[str]:
    """The stages that are to be shown. Raises UsageError for a word that is none of theirs."""
    words = [w.strip() for w in os.environ.get(VARIABLE, "").split(",")]
    stages = frozenset(w for w in words if w)
    for word in sorted(stages - STAGES.keys()):
        close = difflib.get_close_matches(word, STAGES, 1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"{VARIABLE}: unknown stage {word!r}", f"{meant}stages are {', '.join(STAGES)}")
    return stages


def show(stage: str, title: str, text: Callable[[], str]) -> None:
    """Print a stage's text under a line that names it, where it is asked for."""
    if stage in requested_stages():
        lines = [f"--- {stage}: {title} ---", *text().rstrip("\n").splitlines()]
        print("\n".join(lines), file=sys.stderr, flush=True)
