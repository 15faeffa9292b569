"""Waiting for processes that were killed, for a bounded time.

A process in a call of the system that does not come back ends at no signal: a driver, or a file system on a network, does
not answer any more. Whoever waits for it waits without end, so what has not ended after `SECONDS` is left to the system.
"""

from __future__ import annotations

import subprocess
import time
import warnings
from typing import Any

SECONDS = 10.0  #: to end in once it was killed, which takes milliseconds, and a second or two with memory of a GPU
_left: list[subprocess.Popen[Any]] = []


def killed(*processes: subprocess.Popen[Any]) -> str:
    """Kill processes; what there is to say where one of them does not end, as in `awaited`."""
    for p in processes:
        p.kill()
    return awaited(*processes)


def awaited(*killed: subprocess.Popen[Any]) -> str:
    """Wait for processes that were killed, for `SECONDS` in all. What there is to say, and is warned of, where one of them has
    not ended; else nothing."""
    until = time.monotonic() + SECONDS
    known = list(_left)
    stuck = [p for p in killed if not over(p, 0.0 if p in known else max(0.0, until - time.monotonic()))]
    if not stuck:
        return ""
    _left.extend(p for p in stuck if p not in known)
    subject = (
        f"process {stuck[0].pid} was" if len(stuck) == 1 else f"processes {', '.join(str(p.pid) for p in stuck)} were"
    )
    said = f"{subject} killed and did not end: a driver or a file system does not answer"
    if len(_left) > len(known):
        warnings.warn(f"{said}; not waited for any longer", RuntimeWarning, stacklevel=2)
    return said


def over(process: subprocess.Popen[Any], seconds: float) -> bool:
    """True if a process ends within some seconds."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
