"""Turns on a GPU: what is timed there has it for itself among the processes of this user."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def turn(device: int, alone: bool) -> Iterator[None]:
    """Wait until GPU `device` may be used: `alone` by nobody else, otherwise by all that time nothing. Where there can be no
    lock nobody waits."""
    path = Path(tempfile.gettempdir()) / f"mirage-{os.geteuid()}-gpu{device}.lock"
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            lock = os.open(path, flags, 0o600)
            held.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
