"""Limits for one input: seconds, and memory beyond what the process has."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class TooSlow(BaseException):
    """An input took longer than is allowed. Not an Exception: what is read may catch these, as libraries do, and go on."""


@contextlib.contextmanager
def memory(more: int) -> Iterator[None]:
    """Let this process take at most `more` bytes of addresses beyond those that it has; MemoryError then."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    old, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + more
    limits = [n for n in (wanted, hard) if n != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (old, hard))


@contextlib.contextmanager
def time(seconds: float) -> Iterator[None]:
    """Raise TooSlow in the main thread after so many seconds of this process's own time."""

    def stop(*_: Any) -> None:
        raise TooSlow(f"{seconds:g} s are over")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
