"""The share of this machine's processors that is taken, by the counters of Linux."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

COUNTERS = Path("/proc/stat")
SECONDS = 0.3
LOADED = 0.15  #: of all processors, taken by others, from where on times say little
_IDLE = (3, 4)  #: of the counters of all processors: idle, and waiting for a disk


def busy(seconds: float = SECONDS) -> float:
    """The share, 0 to 1, of all processors that is in use while this process waits; 0 where the system does not tell."""
    before = _counters()
    time.sleep(seconds if before else 0)
    return _share(before)


def others() -> Callable[[], float]:
    """A function that tells the share, 0 to 1, of all processors that others have had since now: neither this process nor its
    children, as far as they have ended. 0 where the system does not tell."""
    before, own = _counters(), sum(os.times()[:4])
    return lambda: _share(before, (sum(os.times()[:4]) - own) * os.sysconf("SC_CLK_TCK"))


def _share(before: list[int], own: float = 0.0) -> float:
    """The share of all processors that was in use since the counters were as `before`, without so many ticks of `own`."""
    spent = [b - a for a, b in zip(before, _counters(), strict=False)]
    if len(spent) <= max(_IDLE) or sum(spent) <= 0:
        return 0.0
    return max(0.0, 1 - (sum(spent[i] for i in _IDLE) + own) / sum(spent))


def _counters() -> list[int]:
    try:
        name, *counts = COUNTERS.read_text().split("\n", 1)[0].split()
        return [int(n) for n in counts] if name == "cpu" else []
    except (OSError, ValueError):
        return []
